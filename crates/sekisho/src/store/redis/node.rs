//! One server and the connection to it, besides those of threads (`lane`).
//!
//! redis-rs's own ConnectionManager makes callers wait for its reconnects, beyond any time-out, and stays on a server
//! that has become a replica. Here a lost connection is replaced in the background, and calls meanwhile fail at once.
//!
//! That makes it the breaker, too: a server that is silent for longer than a deadline, answers too many calls too late, or
//! refuses one call after the other loses its connection, and gets no other call before a new one has shown, with a deadline
//! of its own, that it serves. After that it is half open for a while (`is_trusted`): it can be told things, and whoever can
//! decide without it goes on to do so. Others come back at other moments, and what they admitted is not known there before.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, PushInfo, PushKind, ServerErrorKind, aio::MultiplexedConnection,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};

use super::{
    client::Options,
    coalesce::Queue,
    error::Error,
    lane::{self, Lane},
    probe,
    url::{Address, Login},
    witness::{self, Witness},
};

/// The part of a call's deadline that it waits for the attempt to connect which follows a loss at once: 3 ms of 50. A server that is gone
/// may neither answer it nor refuse it: one that is being ended, or a machine that is off.
const PART_FOR_CONNECTING: u32 = 16;
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(300);
/// How long a server that was lost is half open: longer than the longest pause, so that every instance is back by then and
/// has told it most of what it admitted.
const SETTLING: Duration = Duration::from_millis(800);
/// The same for one that was lost again soon after it was taken back.
const SETTLING_AGAIN: Duration = Duration::from_millis(1_000);
const SOON: Duration = Duration::from_secs(10);
/// Before a server is asked again that does not tell of changes: it will not soon.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(60);
/// A connection that lived shorter than this did not prove that the server is well.
const PROVEN: Duration = Duration::from_secs(1);
/// So many calls in a row that the server refuses to serve, and it is not asked again until a probe has passed.
const REFUSALS: u32 = 5;
/// A late answer weighs as much as so many that came in time, and so much is too much: five in a row, or one of ten for long.
const LATE: u32 = 10;
const TOO_LATE: u32 = 50;

/// A server, connected or trying to be.
pub(super) struct Node {
    pub(super) address: Address,
    pub(super) options: Options,
    pub(super) runtime: Handle,
    pub(super) queue: Queue,
    login: Login,
    live: ArcSwapOption<Live>,
    link: watch::Sender<Link>,
    epochs: AtomicU64,
    /// Connections lost or not made since the last one that proved itself.
    failures: AtomicU32,
    /// Calls in a row that the server did not serve.
    refusals: AtomicU32,
    /// Late answers, weighed against those in time.
    lateness: AtomicU32,
    /// It was away for longer than it takes to connect anew, or did not serve.
    was_away: AtomicBool,
    /// It was lost again soon after it was taken back.
    is_flapping: AtomicBool,
    /// Which life of which server the last connection led to.
    life: AtomicU64,
    /// Some of the slots that it has, on a Cluster, the first and the last in one number: for a key to probe it with.
    slots: AtomicU32,
    /// Told of every lost connection: the reason may be that the slots are elsewhere now.
    on_loss: Option<Arc<Notify>>,
    witness: Option<Arc<dyn Witness>>,
    /// By the numbers of their threads, few and soon all there.
    lanes: ArcSwap<Vec<(usize, Arc<Lane>)>>,
}

/// A connection and its number, so that of all the calls that fail on it only the first drops it.
pub(super) struct Live {
    pub(super) connection: MultiplexedConnection,
    pub(super) epoch: u64,
    since: Instant,
    /// Until when it is half open.
    settles_at: Instant,
    is_settled: AtomicBool,
    /// Answers that came over it.
    heard: AtomicU32,
}

impl Live {
    fn is_settled(&self) -> bool {
        // The clock is looked at only for as long as it matters.
        if !self.is_settled.load(Ordering::Relaxed) && Instant::now() >= self.settles_at {
            self.is_settled.store(true, Ordering::Relaxed);
        }
        self.is_settled.load(Ordering::Relaxed)
    }

    /// Of a call that goes out now: what was heard before it.
    pub(super) fn heard(&self) -> u32 {
        self.heard.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Debug)]
enum Link {
    Up,
    /// The first attempt of all, or since the loss, has begun: worth waiting for.
    Connecting,
    /// It failed, or is not expected to succeed. Calls fail at once.
    Down(Arc<str>),
}

/// Why a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// It broke.
    Closed,
    /// The server answers as a replica; the name may lead to another server by now.
    ReadOnly,
    /// No answer came in time, or too many did not. What was sent may still run, and more must not be piled on it.
    Stalled,
    /// It answers that it does not serve: loading, out of memory, unable to save, and the like.
    Refused,
}

impl Node {
    /// Starts to connect in the background, on this runtime, and goes on until the last handle is dropped.
    pub(super) fn start(
        address: Address,
        login: &Login,
        options: Options,
        runtime: Handle,
        on_loss: Option<Arc<Notify>>,
        witness: Option<Arc<dyn Witness>>,
    ) -> Result<Arc<Self>, Error> {
        // Whether it can be used is known now; with which password it connects, only then.
        client(login, &address)?;
        let node = Arc::new(Self {
            address,
            options,
            runtime,
            queue: Queue::default(),
            login: login.clone(),
            live: ArcSwapOption::empty(),
            link: watch::Sender::new(Link::Connecting),
            epochs: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            refusals: AtomicU32::new(0),
            lateness: AtomicU32::new(0),
            was_away: AtomicBool::new(false),
            is_flapping: AtomicBool::new(false),
            life: AtomicU64::new(0),
            slots: AtomicU32::new(ANY_SLOT),
            on_loss,
            witness,
            lanes: ArcSwap::default(),
        });
        node.connect_in_background(Duration::ZERO);
        Ok(node)
    }

    /// The connection, if there is one.
    pub(super) fn live(&self) -> Option<Arc<Live>> {
        self.live.load_full()
    }

    /// This thread's own way to the server, if it has one. Of changes only the one connection is told.
    pub(super) fn lane(&self) -> Option<Arc<Lane>> {
        let thread = lane::thread().filter(|_| self.witness.is_none())?;
        let find =
            |lanes: &[(usize, Arc<Lane>)]| lanes.iter().find(|(of, _)| *of == thread).map(|(_, lane)| lane.clone());
        find(&self.lanes.load()).or_else(|| {
            let lane = Lane::new(Handle::try_current().ok()?);
            self.lanes.rcu(|lanes| lanes.iter().cloned().chain([(thread, lane.clone())]).collect::<Vec<_>>());
            Some(lane)
        })
    }

    pub(super) fn is_up(&self) -> bool {
        self.live.load().is_some()
    }

    /// Whether it is connected, and has been for long enough after it was away.
    pub(super) fn is_trusted(&self) -> bool {
        self.live.load().as_ref().is_some_and(|live| live.is_settled())
    }

    /// Which life of which server this was connected to last: another one may know less. 0 before the first.
    pub(super) fn life(&self) -> u64 {
        self.life.load(Ordering::Relaxed)
    }

    /// These slots are its own, on a Cluster.
    pub(super) fn owns(&self, first: u16, last: u16) {
        self.slots.store(u32::from(first) << 16 | u32::from(last), Ordering::Relaxed);
    }

    /// An answer has come in time.
    pub(super) fn heard(&self, live: &Live) {
        live.heard.fetch_add(1, Ordering::Relaxed);
        let lateness = self.lateness.load(Ordering::Relaxed);
        if lateness > 0 {
            // Another answer at the same moment may weigh nothing: it is no exact science.
            self.lateness.store(lateness - 1, Ordering::Relaxed);
        }
    }

    /// A call was out for a whole deadline, and nobody waits for it any more; `heard` had been heard before it.
    pub(super) fn missed(self: &Arc<Self>, live: &Live, heard: u32) {
        let is_silent = live.heard() == heard;
        if is_silent || self.lateness.fetch_add(LATE, Ordering::Relaxed) + LATE >= TOO_LATE {
            self.drop_connection(live.epoch, Loss::Stalled);
        }
    }

    /// The server has answered a call, or has refused to.
    pub(super) fn answered(self: &Arc<Self>, epoch: u64, is_refused: bool) {
        if !is_refused {
            if self.refusals.load(Ordering::Relaxed) > 0 {
                self.refusals.store(0, Ordering::Relaxed);
            }
        } else if self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= REFUSALS {
            self.drop_connection(epoch, Loss::Refused);
        }
    }

    /// Waits while the first attempt to connect is under way, and no longer.
    pub(super) async fn wait_up(&self) -> Result<(), Error> {
        if self.is_up() {
            return Ok(());
        }
        let mut link = self.link.subscribe();
        let settled = link.wait_for(|link| !matches!(link, Link::Connecting)).await;
        match settled.as_deref() {
            Ok(Link::Down(reason)) => Err(Error::unavailable(format!("{}: {reason}", self.address))),
            Ok(_) => Ok(()),
            Err(_) => Err(Error::unavailable("shut down")),
        }
    }

    /// Gives a connection up and has it replaced. Does nothing if that was done before.
    pub(super) fn drop_connection(self: &Arc<Self>, epoch: u64, loss: Loss) {
        let current = self.live.load();
        let Some(live) = current.as_ref().filter(|live| live.epoch == epoch) else { return };
        let (since, settles_at) = (live.since, live.settles_at);
        let previous = self.live.compare_and_swap(&current, None);
        if previous.as_ref().is_none_or(|previous| previous.epoch != epoch) {
            return;
        }
        if since.elapsed() >= PROVEN {
            self.failures.store(0, Ordering::Relaxed);
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        // Whoever connects anew at once was not away.
        if failures > 0 || !matches!(loss, Loss::Closed | Loss::ReadOnly) {
            self.was_away.store(true, Ordering::Relaxed);
            self.is_flapping.store(settles_at > since && settles_at.elapsed() < SOON, Ordering::Relaxed);
        }
        self.lateness.store(0, Ordering::Relaxed);
        // One immediate attempt is free; a server that keeps closing must not be hammered.
        let pause = if failures == 0 { Duration::ZERO } else { pause_after(failures) };
        let link = if matches!(loss, Loss::Closed | Loss::ReadOnly) && pause.is_zero() {
            Link::Connecting
        } else {
            Link::Down(format!("the connection was given up ({loss:?})").into())
        };
        self.link.send_replace(link);
        // Once for each time that it was well: a server that comes and goes is told apart below.
        if failures == 0 {
            tracing::warn!(server = %self.address, ?loss, "connection to redis lost");
        } else {
            tracing::debug!(server = %self.address, ?loss, "connection to redis lost");
        }
        if let Some(on_loss) = &self.on_loss {
            on_loss.notify_one();
        }
        self.connect_in_background(pause);
    }

    fn connect_in_background(self: &Arc<Self>, mut pause: Duration) {
        let node = Arc::downgrade(self);
        self.runtime.spawn(async move {
            loop {
                if !pause.is_zero() {
                    sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
                }
                let Some(node) = node.upgrade() else { return };
                match node.connect_in_time().await {
                    Ok(()) => return,
                    Err(error) => {
                        let failures = node.failures.fetch_add(1, Ordering::Relaxed);
                        node.was_away.store(true, Ordering::Relaxed);
                        tracing::debug!(server = %node.address, %error, "redis does not let us connect");
                        node.link.send_replace(Link::Down(error.to_string().into()));
                        let is_refused = node.witness.is_some() && is_refusal(&error);
                        pause = if is_refused { PAUSE_AFTER_REFUSAL } else { pause_after(failures + 1) };
                    }
                }
            }
        });
    }

    /// Connects. Calls wait for it only so long, but for the first time.
    async fn connect_in_time(self: &Arc<Self>) -> Result<(), redis::RedisError> {
        let mut connecting = pin!(self.connect());
        if self.life() > 0 {
            if let Ok(connected) = timeout(self.options.timeout / PART_FOR_CONNECTING, connecting.as_mut()).await {
                return connected;
            }
            self.link.send_if_modified(|link| {
                let is_waited_for = matches!(link, Link::Connecting);
                if is_waited_for {
                    self.was_away.store(true, Ordering::Relaxed);
                    *link = Link::Down("it is not connected to again at once".into());
                }
                is_waited_for
            });
        }
        connecting.await
    }

    /// One more connection, driven by the runtime that this is called on. `lost` is called when it has ended.
    pub(super) async fn open(
        &self,
        lost: impl Fn() + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, redis::RedisError> {
        let watch = move |info: PushInfo| {
            if info.kind == PushKind::Disconnection {
                lost();
            }
            Ok(())
        };
        self.open_to(watch).await
    }

    async fn open_to(
        &self,
        told: impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, redis::RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            // Every call has its own deadline, and one timer is enough.
            .set_response_timeout(None)
            .set_push_sender(told);
        let client = client(&self.login, &self.address).map_err(|error| std::io::Error::other(error.to_string()))?;
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    async fn connect(self: &Arc<Self>) -> Result<(), redis::RedisError> {
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed);
        let broken = Arc::new(AtomicBool::new(false));
        let mut connection = self.open_to(watch(Arc::downgrade(self), epoch, broken.clone())).await?;
        if let Some(witness) = &self.witness {
            let begin = witness::begin();
            let begun = timeout(self.options.connect_timeout, begin.query_async::<()>(&mut connection));
            begun.await.unwrap_or_else(|late| Err(std::io::Error::from(late).into()))?;
            // Before anybody can ask over this connection: what was read over another is not watched by it.
            witness.all_changed();
        }
        let life = timeout(self.options.connect_timeout, probe::life(&mut connection)).await.unwrap_or_default();
        if self.failures.load(Ordering::Relaxed) > 0 {
            let slots = self.slots.load(Ordering::Relaxed);
            let slots = (slots >> 16) as u16..=slots as u16;
            let probed = timeout(self.options.timeout, probe::serves(&mut connection, &slots)).await;
            probed.unwrap_or_else(|late| Err(std::io::Error::from(late).into()))?;
        }
        // Who may not be asked is taken to be another one each time.
        self.life.store(life.unwrap_or(epoch + 1), Ordering::Relaxed);
        self.refusals.store(0, Ordering::Relaxed);
        let since = Instant::now();
        let settling = match (self.was_away.swap(false, Ordering::Relaxed), self.is_flapping.load(Ordering::Relaxed)) {
            (false, _) => Duration::ZERO,
            (true, false) => SETTLING,
            (true, true) => SETTLING_AGAIN,
        };
        let (settles_at, is_settled) = (since + settling, AtomicBool::new(settling.is_zero()));
        let heard = AtomicU32::new(0);
        self.live.store(Some(Arc::new(Live { connection, epoch, since, settles_at, is_settled, heard })));
        self.link.send_replace(Link::Up);
        tracing::debug!(server = %self.address, "connected to redis");
        // It may have broken before it was stored, when there was nothing to drop yet.
        if broken.load(Ordering::SeqCst) {
            self.drop_connection(epoch, Loss::Closed);
        }
        Ok(())
    }
}

fn client(login: &Login, address: &Address) -> Result<Client, Error> {
    Client::open(login.at(address)?).map_err(|error| Error::invalid_url(error.to_string()))
}

/// All slots, and more.
const ANY_SLOT: u32 = 0xffff;

fn watch(
    node: Weak<Node>,
    epoch: u64,
    broken: Arc<AtomicBool>,
) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static {
    move |info| {
        let is_lost = info.kind == PushKind::Disconnection;
        if is_lost {
            broken.store(true, Ordering::SeqCst);
        }
        let Some(node) = node.upgrade() else { return Ok(()) };
        if let Some(witness) = &node.witness {
            witness::hear(&**witness, info);
        }
        if is_lost {
            node.drop_connection(epoch, Loss::Closed);
        }
        Ok(())
    }
}

/// What the server says because it does not know the command, or does not allow it.
fn is_refusal(error: &redis::RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => kind != ServerErrorKind::BusyLoading,
        kind => kind == ErrorKind::Extension,
    }
}

fn pause_after(failures: u32) -> Duration {
    LONGEST_PAUSE.min(SHORTEST_PAUSE * (1 << failures.saturating_sub(1).min(5)))
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the login: it holds the password.
        f.debug_struct("Node")
            .field("address", &self.address.to_string())
            .field("link", &*self.link.borrow())
            .finish_non_exhaustive()
    }
}
