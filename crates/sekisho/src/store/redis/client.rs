use std::{
    fmt,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, Value};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::yield_now,
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::clock::Reader;

use super::{
    call,
    cluster::Cluster,
    coalesce::{self, Terms},
    error::{Error, Failure},
    node::Node,
    script::{Job, Script},
    server::Server,
    slots::key_slot,
    tracking::{Follow, Followed, Tracking},
    url::{self, Credentials, Target},
    witness::Witness,
};

/// Redirects and lost connections that one call goes through before it gives up, if its deadline leaves it the time.
const ATTEMPTS: u32 = 8;
/// Pauses before a server that said "not now" is asked again: they double up to the longest, until the deadline.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// On a connection with a witness. Few calls at a time: whoever waits shares the next one's answer. And not all who wait in one call: while
/// the server is at some, the others are made or read here.
const WITNESSED_IN_FLIGHT: usize = 2;
const WITNESSED_BATCH: usize = 16;

/// How long calls may take and how many may be out.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The deadline of one call, with everything: waiting for a turn, redirects, repeats.
    pub timeout: Duration,
    /// For a new connection, with login.
    pub connect_timeout: Duration,
    /// Jobs in one `EVALSHA`, and `EVALSHA`s in one pipeline.
    pub batch: usize,
    /// Calls that may be out to one server at a time. Jobs that come while all are out share the next one.
    pub in_flight: usize,
    /// Jobs that may wait for one server. More are refused at once.
    pub queue: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(50),
            connect_timeout: Duration::from_millis(250),
            batch: 64,
            in_flight: 8,
            queue: 65_536,
        }
    }
}

/// What is known of a server without asking it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    /// It is connected.
    pub(crate) is_up: bool,
    /// It did not come back just now.
    pub(crate) is_trusted: bool,
    /// Changes when it may have lost what it knew.
    pub(crate) life: u64,
}

/// A Redis server or a Redis Cluster. Clones share the connections.
#[derive(Clone)]
pub struct Redis {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    runtime: Handle,
    servers: Servers,
    target: Target,
    /// Jobs on their way that come before others: while there are any, nothing goes another way.
    before_others: Arc<AtomicUsize>,
    /// Calls in the background, each of which has a receiver.
    later: watch::Sender<()>,
}

#[derive(Clone, Debug)]
enum Servers {
    One(Arc<Node>),
    Many(Arc<Cluster>),
}

impl Redis {
    /// Connects to `redis://[[user]:password@]host[:port][/db]`, or to a Cluster by one or more of its servers,
    /// `redis+cluster://host:port,host:port`. With `rediss` instead of `redis` it goes over TLS.
    ///
    /// Fails if no server answers within `connect_timeout`. Afterwards connections that are lost are replaced in the
    /// background, on the runtime that this is called on.
    pub async fn connect(url: &str, options: Options) -> Result<Self, Error> {
        let (redis, first) = Self::start(url, options).await?;
        first.map(|()| redis)
    }

    /// As [`connect`](Self::connect), but a server that does not answer yet is tried again in the background like one that
    /// was lost. Also returns how the first attempt went. Only a URL that cannot be used is an error.
    pub async fn start(url: &str, options: Options) -> Result<(Self, Result<(), Error>), Error> {
        let target = url::parse(url)?;
        let runtime = Handle::try_current().map_err(|_| Error::unavailable("there is no tokio runtime"))?;
        if target.login.tls && rustls::crypto::CryptoProvider::get_default().is_none() {
            // If somebody else was faster, theirs is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let (servers, first) = if target.cluster {
            let (cluster, first) = Cluster::open(target.clone(), options, runtime.clone()).await;
            (Servers::Many(cluster), first)
        } else {
            let address = target.addresses.first().cloned().ok_or_else(|| Error::invalid_url("a host is missing"))?;
            let node = Node::start(address, &target.login, options, runtime.clone(), None, None)?;
            let first = node.wait_up().await;
            (Servers::One(node), first)
        };
        let (before_others, later) = (Arc::default(), watch::Sender::default());
        let inner = Inner { options, runtime, servers, target, before_others, later };
        Ok((Self { inner: Arc::new(inner) }, first))
    }

    /// The same connections with another deadline of a call: for what is not on a request's way.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let Inner { options, runtime, servers, target, before_others, later } = &*self.inner;
        let (options, runtime, later) = (Options { timeout, ..*options }, runtime.clone(), later.clone());
        let (servers, target, before_others) = (servers.clone(), target.clone(), before_others.clone());
        Self { inner: Arc::new(Inner { options, runtime, servers, target, before_others, later }) }
    }

    /// The same server over a connection of its own, whose witness hears of every change to what is read over it before any
    /// later answer. None on a Cluster. It may never come up: not every server tells of changes.
    pub(crate) fn witnessed(&self, witness: Arc<dyn Witness>) -> Option<Self> {
        let Inner { options, runtime, servers, target, .. } = &*self.inner;
        let Servers::One(node) = servers else { return None };
        let batch = options.batch.min(WITNESSED_BATCH);
        let options = Options { in_flight: WITNESSED_IN_FLIGHT, batch, ..*options };
        let node =
            Node::start(node.address.clone(), &target.login, options, runtime.clone(), None, Some(witness)).ok()?;
        let (runtime, target, later) = (runtime.clone(), target.clone(), watch::Sender::default());
        let before_others = Arc::default();
        let inner = Inner { options, runtime, servers: Servers::One(node), target, before_others, later };
        Some(Self { inner: Arc::new(inner) })
    }

    /// As whom a changed URL says to log in. `None` where it leads elsewhere: that needs another client.
    pub fn credentials(&self, url: &str) -> Result<Option<Credentials>, Error> {
        let target = url::parse(url)?;
        Ok(self.inner.target.is_same_place(&target).then(|| target.login.credentials()))
    }

    /// Logs in with these from now on, wherever a connection is made: here, on all clones, and on what follows changes.
    /// Connections that are there stay: a server that takes a password back does not close them either.
    pub fn log_in_as(&self, credentials: Credentials) {
        self.inner.target.login.change(credentials);
    }

    /// The deadline of a call.
    pub(crate) fn timeout(&self) -> Duration {
        self.inner.options.timeout
    }

    /// Whether there is a connection now. Of a Cluster nothing is said.
    pub(crate) fn is_up(&self) -> bool {
        matches!(&self.inner.servers, Servers::One(node) if node.is_up())
    }

    /// Whether every server that is known answers, and did not come back just now, as far as is known without asking.
    pub(crate) fn is_well(&self) -> bool {
        match &self.inner.servers {
            Servers::One(node) => node.is_trusted(),
            Servers::Many(cluster) => cluster.is_well(),
        }
    }

    /// How it stands with the server that a job with this key would be sent to.
    pub(crate) fn standing(&self, write_key: impl FnOnce(&mut Vec<u8>)) -> Standing {
        let node = match &self.inner.servers {
            Servers::One(node) => Some(node.clone()),
            Servers::Many(cluster) => {
                let mut key = Vec::with_capacity(64);
                write_key(&mut key);
                cluster.owner(key_slot(&key))
            }
        };
        node.map_or_else(Standing::default, |node| Standing {
            is_up: node.is_up(),
            is_trusted: node.is_trusted(),
            life: node.life(),
        })
    }

    /// Follows keys on every server, over connections of their own, until the tracking is dropped.
    pub(crate) fn track(&self, followed: Followed, follow: Arc<dyn Follow>, clock: Arc<Reader>) -> Tracking {
        Tracking::start(self.inner.target.clone(), followed, follow, clock, self.inner.runtime.clone())
    }

    /// Whether keys are spread over slots, so that those of one job must share a hash tag.
    pub fn is_cluster(&self) -> bool {
        matches!(self.inner.servers, Servers::Many(_))
    }

    /// Runs `script` for `job` and returns the job's own element of the answer.
    ///
    /// It ends within `Options::timeout`. A script that may have run is sent again only if the job is repeatable.
    /// Dropping the future withdraws a job that waits for its turn, and leaves one that was sent to run.
    pub async fn run(&self, script: &Arc<Script>, job: Job) -> Result<Value, Error> {
        self.run_until(self.deadline(), script, job).await
    }

    /// Of what begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.inner.options.timeout
    }

    /// As [`run`](Self::run), for what takes several calls and has one deadline.
    pub(crate) async fn run_until(&self, deadline: Instant, script: &Arc<Script>, job: Job) -> Result<Value, Error> {
        let _first = job.before_others.then(|| BeforeOthers::new(&self.inner.before_others));
        let job = match self.inner.by_lane(script, job, deadline).await {
            ControlFlow::Break(answer) => return answer,
            ControlFlow::Continue(job) => job,
        };
        let mut sent = false;
        // In a box, because it is large, and those who ask over a lane would carry it for nothing.
        let attempts = Box::pin(self.inner.attempts(script, job, deadline, &mut sent));
        match timeout_at(deadline, attempts).await {
            Ok(answer) => answer,
            Err(_) if sent => Err(Error::unknown(format!("no answer in {:?}", self.inner.options.timeout))),
            Err(_) => Err(Error::unavailable(format!("no turn in {:?}", self.inner.options.timeout))),
        }
    }

    /// Makes calls in the background, on the runtime of [`Redis::connect`]: for what is given back on drop, where nobody
    /// can wait. Failures are logged.
    pub fn later<T, E: fmt::Display>(&self, calls: impl Future<Output = Result<T, E>> + Send + 'static) {
        let under_way = self.inner.later.subscribe();
        self.inner.runtime.spawn(async move {
            if let Err(error) = calls.await {
                tracing::debug!(%error, "a call in the background failed");
            }
            drop(under_way);
        });
    }

    /// Does something that goes on for as long as it likes, on the same runtime.
    pub(super) fn beside(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.runtime.spawn(task);
    }

    /// Waits until no call in the background is under way.
    pub(crate) async fn nothing_later(&self) {
        self.inner.later.closed().await;
    }

    /// The servers that keys are on: the one, or every master of a Cluster as it is known now.
    pub fn masters(&self) -> Vec<Server> {
        match &self.inner.servers {
            Servers::One(node) => vec![Server::new(node.clone())],
            Servers::Many(cluster) => cluster.masters().into_iter().map(Server::new).collect(),
        }
    }

    /// The server that `key` is on.
    pub fn server_of(&self, key: &[u8]) -> Result<Server, Error> {
        self.inner.owner(key_slot(key)).map(Server::new)
    }

    /// Sends a plain command to every master, for tests and checks, and returns their answers.
    pub async fn command_all(&self, command: Cmd) -> Result<Vec<Value>, Error> {
        let masters = match &self.inner.servers {
            Servers::One(node) => vec![node.clone()],
            Servers::Many(cluster) => cluster.masters(),
        };
        if masters.is_empty() {
            return Err(Error::unavailable("no server of the cluster is known"));
        }
        let patience = self.inner.options.timeout.max(self.inner.options.connect_timeout);
        let mut answers = Vec::with_capacity(masters.len());
        for node in masters {
            node.wait_up().await?;
            let live = node.live().ok_or_else(|| Error::unavailable(format!("{} is not connected", node.address)))?;
            let mut connection = live.connection.clone();
            match timeout(patience, connection.send_packed_command(&command)).await {
                Ok(Ok(Value::ServerError(error))) => {
                    return Err(Failure::from_job(&error).into_error(&node.address.to_string(), true));
                }
                Ok(Ok(value)) => answers.push(value),
                Ok(Err(error)) => return Err(Error::unknown(format!("{}: {error}", node.address))),
                Err(_) => return Err(Error::unknown(format!("{}: no answer in {patience:?}", node.address))),
            }
        }
        Ok(answers)
    }
}

/// A job that comes before others, for as long as its caller waits.
struct BeforeOthers<'a>(&'a AtomicUsize);

impl<'a> BeforeOthers<'a> {
    fn new(out: &'a AtomicUsize) -> Self {
        out.fetch_add(1, Ordering::Relaxed);
        Self(out)
    }
}

impl Drop for BeforeOthers<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    /// Asks over this thread's own connection. The job comes back where there is none, or where an answer proves that it did
    /// not run: what to do about that is known to `attempts`.
    async fn by_lane(
        &self,
        script: &Arc<Script>,
        job: Job,
        deadline: Instant,
    ) -> ControlFlow<Result<Value, Error>, Job> {
        let slot = self.slot(&job);
        let may_overtake = job.any_order && self.before_others.load(Ordering::Relaxed) == 0;
        let node = if may_overtake { self.owner(slot).ok().filter(|node| node.is_up()) } else { None };
        let Some((node, lane)) = node.and_then(|node| node.lane().map(|lane| (node, lane))) else {
            return ControlFlow::Continue(job);
        };
        let terms = Terms { slot, alone: false, deadline };
        match coalesce::submit_by(&lane, &node, script, job, terms).await {
            Ok(value) => ControlFlow::Break(Ok(value)),
            Err(returned) => match returned.why {
                why @ (Failure::Lost { .. } | Failure::Final(_) | Failure::Refused { .. }) => {
                    ControlFlow::Break(Err(why.into_error(&node.address.to_string(), false)))
                }
                _ => ControlFlow::Continue(returned.job),
            },
        }
    }

    /// On Cluster where the job belongs; elsewhere slots do not matter.
    fn slot(&self, job: &Job) -> u16 {
        match &self.servers {
            Servers::One(_) => 0,
            Servers::Many(_) => job.keys().next().map_or(0, key_slot),
        }
    }

    /// Sends the job until it has an answer or the error is one that a repeat cannot or must not mend.
    /// `sent` is true whenever this may be dropped with the job on its way.
    async fn attempts(
        &self,
        script: &Arc<Script>,
        mut job: Job,
        deadline: Instant,
        sent: &mut bool,
    ) -> Result<Value, Error> {
        let slot = self.slot(&job);
        let mut ask: Option<Arc<Node>> = None;
        let mut attempt = 0;
        let mut pause = SHORTEST_PAUSE;
        loop {
            let asking = ask.take();
            let node = match &asking {
                Some(node) => node.clone(),
                None => self.owner(slot)?,
            };
            if let Err(error) = node.wait_up().await {
                self.doubt();
                return Err(if *sent { Error::unknown(error.to_string()) } else { error });
            }
            let sent_before = *sent;
            let failure = if asking.is_some() {
                match Box::pin(call::send_asking(&node, script, &job, sent)).await {
                    Ok(value) => return Ok(value),
                    Err(failure) => failure,
                }
            } else {
                let terms = Terms { slot, alone: attempt > 0 && self.is_cluster(), deadline };
                match coalesce::submit(&node, script, job, terms, sent).await {
                    Ok(value) => return Ok(value),
                    Err(returned) => {
                        job = returned.job;
                        returned.why
                    }
                }
            };
            *sent = sent_before || matches!(failure, Failure::Lost { .. });
            attempt += 1;
            let is_last = attempt == ATTEMPTS;
            match failure {
                Failure::Moved { address } if !is_last => match &self.servers {
                    Servers::Many(cluster) => cluster.moved(slot, &address, &node)?,
                    Servers::One(_) => {
                        let message = format!("{slot} {address}: it is a Redis Cluster, write redis+cluster://");
                        return Err(Error::Server { code: "MOVED".to_owned(), message });
                    }
                },
                Failure::Ask { address } if !is_last => {
                    if let Servers::Many(cluster) = &self.servers {
                        ask = Some(cluster.node_at(&address, &node.address.host)?);
                    }
                }
                Failure::Busy { .. } if Instant::now() + pause < deadline => {
                    self.doubt();
                    sleep(pause).await;
                    pause = LONGEST_PAUSE.min(pause * 2);
                    // A slot with many keys is on its way for longer than eight questions take.
                    attempt = 1;
                }
                Failure::ReadOnly | Failure::Disconnected if !is_last => {
                    self.doubt();
                    // Whoever takes the connection away has not said so yet; without a pause all attempts could be
                    // used up in that moment.
                    yield_now().await;
                }
                Failure::Lost { .. } if job.repeatable && !is_last => self.doubt(),
                failure => return Err(failure.into_error(&node.address.to_string(), *sent)),
            }
        }
    }

    fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Many(_))
    }

    fn owner(&self, slot: u16) -> Result<Arc<Node>, Error> {
        match &self.servers {
            Servers::One(node) => Ok(node.clone()),
            Servers::Many(cluster) => cluster.owner(slot).ok_or_else(|| {
                cluster.doubt();
                Error::unavailable(format!("no server has slot {slot}"))
            }),
        }
    }

    fn doubt(&self) {
        if let Servers::Many(cluster) = &self.servers {
            cluster.doubt();
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("servers", &self.inner.servers)
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}
