//! One server, followed over one connection at a time.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, PushInfo, PushKind, ServerError, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::{Left, Server, Shared};

/// A sign of life is asked for this long after the last one.
const BEAT: Duration = Duration::from_millis(100);
/// A connection on which nothing is answered for so long is given up. Not sooner: nothing is lost while it lives, and a new
/// one has to read the whole server. How old knowledge has become is counted anyway.
const PATIENCE: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_millis(500);
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Tracking does not tell of `SWAPDB`, so the server is read through every so often, slowly.
const READ_AGAIN: Duration = Duration::from_secs(300);
const PAUSE_READING_AGAIN: Duration = Duration::from_millis(2);
/// Keys in one pipeline, and in one step of a scan.
const KEYS: usize = 500;
/// Beats between two looks at the server's settings: ten seconds.
const BEATS_PER_LOOK: u32 = 100;

type Failure = String;

/// Connects again and again; ends when it is aborted.
pub(super) async fn keep(server: Arc<Server>, shared: Arc<Shared>) {
    let mut pause = SHORTEST_PAUSE;
    loop {
        let was_fresh = server.fresh_at.load(Ordering::Relaxed);
        let Err(reason) = follow(&server, &shared).await;
        if server.live.swap(None).is_some() {
            shared.follow.lost();
        }
        shared.lost.notify_one();
        if server.fresh_at.load(Ordering::Relaxed) > was_fresh {
            pause = SHORTEST_PAUSE;
            tracing::warn!(server = %server.address, reason, "redis is no longer followed");
        } else {
            tracing::debug!(server = %server.address, reason, "redis cannot be followed");
        }
        sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

/// What has come in over a connection. Answers and pushes come by different ways, so they are counted.
#[derive(Default)]
struct Inbox {
    received: AtomicU64,
    read: watch::Sender<u64>,
    /// How often the server has said that everything may be different.
    upheavals: AtomicU64,
    /// One more than the upheavals before the last whole scan; 0 before the first.
    scanned: AtomicU64,
    read_again: Notify,
    scan_ended: Notify,
    closed: Notify,
}

impl Inbox {
    fn is_whole(&self) -> bool {
        self.scanned.load(Ordering::SeqCst) == self.upheavals.load(Ordering::SeqCst) + 1
    }
}

async fn follow(server: &Arc<Server>, shared: &Arc<Shared>) -> Result<Infallible, Failure> {
    let inbox = Arc::new(Inbox::default());
    let (sender, keys) = unbounded_channel();
    let (sorter, follow) = (Arc::clone(&inbox), Arc::clone(&shared.follow));
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(Some(PATIENCE))
        .set_push_sender(move |push: PushInfo| {
            for key in sort(push, &sorter) {
                follow.touched(&key);
                sorter.received.fetch_add(1, Ordering::SeqCst);
                // The other end goes only when the connection is given up.
                let _ = sender.send(key);
            }
            Ok::<(), ()>(())
        });
    let info = shared.target.login.at(&server.address).map_err(|error| error.to_string())?;
    let client = Client::open(info).map_err(|error| error.to_string())?;
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    let connection = connection.map_err(|error| error.to_string())?;
    if shared.target.cluster {
        // Without it a replica sends every question about a key to its master.
        ask(&connection, &redis::cmd("READONLY")).await?;
    }
    let mut track = redis::cmd("CLIENT");
    track.arg(&["TRACKING", "ON", "BCAST"]);
    for prefix in shared.followed.prefixes.iter() {
        track.arg("PREFIX").arg(prefix.as_ref());
    }
    ask(&connection, &track).await?;
    server.live.store(Some(Arc::new(connection.clone())));
    tokio::select! {
        ended = read_what_comes(&connection, shared, &inbox, keys) => ended,
        ended = beat(&connection, server, shared, &inbox) => ended,
        ended = read_through(&connection, shared, &inbox) => ended,
        () = inbox.closed.notified() => Err("the connection was closed".to_owned()),
    }
}

/// The keys that a push names.
fn sort(push: PushInfo, inbox: &Inbox) -> Vec<Vec<u8>> {
    match (push.kind, push.data.into_iter().next()) {
        (PushKind::Disconnection, _) => inbox.closed.notify_one(),
        (PushKind::Invalidate, Some(Value::Array(keys))) => {
            let name = |key| if let Value::BulkString(key) = key { Some(key) } else { None };
            return keys.into_iter().filter_map(name).collect();
        }
        // Flushed, or a replica that has taken over another data set: of what is there now nothing is told.
        (PushKind::Invalidate, _) => {
            inbox.upheavals.fetch_add(1, Ordering::SeqCst);
            inbox.read_again.notify_one();
        }
        _ => {}
    }
    Vec::new()
}

/// The same, with whether everything may be different, for fuzzing.
#[cfg(feature = "fuzzing")]
pub(in super::super) fn sorted(push: PushInfo) -> (Vec<Vec<u8>>, bool) {
    let inbox = Inbox::default();
    (sort(push, &inbox), inbox.upheavals.load(Ordering::SeqCst) > 0)
}

async fn read_what_comes(
    connection: &MultiplexedConnection,
    shared: &Shared,
    inbox: &Inbox,
    mut incoming: UnboundedReceiver<Vec<u8>>,
) -> Result<Infallible, Failure> {
    let mut keys = Vec::with_capacity(KEYS);
    loop {
        let count = incoming.recv_many(&mut keys, KEYS).await;
        if count == 0 {
            return Err("the connection was closed".to_owned());
        }
        if shared.followed.pattern.is_some() {
            read(connection, shared, &keys).await?;
        }
        keys.clear();
        inbox.read.send_modify(|read| *read += count as u64);
    }
}

/// An answer comes after every push that was sent before it. So once those are read as well, all is known that was written
/// before the question.
async fn beat(
    connection: &MultiplexedConnection,
    server: &Server,
    shared: &Shared,
    inbox: &Inbox,
) -> Result<Infallible, Failure> {
    let mut read = inbox.read.subscribe();
    for beats in 0_u32.. {
        let sent = shared.now();
        if shared.followed.pattern.is_some() && beats % BEATS_PER_LOOK == 0 {
            look(connection, server).await?;
        } else {
            ask(connection, &redis::cmd("PING")).await?;
        }
        let received = inbox.received.load(Ordering::SeqCst);
        let is_read = timeout(PATIENCE, read.wait_for(|read| *read >= received)).await.is_ok();
        if is_read && inbox.is_whole() {
            shared.refreshed(server, sent);
        }
        let _ = timeout(BEAT, inbox.scan_ended.notified()).await;
    }
    Err("it has been followed for thirteen years".to_owned())
}

/// A server that evicts throws revocations away. `INFO`, because `CONFIG` is forbidden on many a managed server.
async fn look(connection: &MultiplexedConnection, server: &Server) -> Result<(), Failure> {
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    let answer = connection.clone().send_packed_command(&info).await.map_err(|error| error.to_string())?;
    let text = match answer {
        Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
        Value::VerbatimString { text, .. } => text,
        // Not every user may ask; that, too, is a sign of life.
        _ => return Ok(()),
    };
    let policy = text.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"));
    let Some(policy) = policy.map(str::trim) else { return Ok(()) };
    let may_evict = policy != "noeviction";
    if may_evict && !server.may_evict.swap(may_evict, Ordering::Relaxed) {
        tracing::warn!(
            server = %server.address,
            policy,
            "this redis may evict revocations, so that revoked tokens become valid again; set maxmemory-policy noeviction"
        );
    }
    server.may_evict.store(may_evict, Ordering::Relaxed);
    Ok(())
}

async fn read_through(
    connection: &MultiplexedConnection,
    shared: &Shared,
    inbox: &Inbox,
) -> Result<Infallible, Failure> {
    let Some(pattern) = shared.followed.pattern.as_deref() else { return read_nothing(shared, inbox).await };
    let mut pause = Duration::ZERO;
    loop {
        let upheavals = inbox.upheavals.load(Ordering::SeqCst);
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(KEYS);
            let page = ask(connection, &scan).await?;
            let page = redis::from_redis_value::<(u64, Vec<Vec<u8>>)>(page).map_err(|error| error.to_string())?;
            let is_followed =
                |key: &Vec<u8>| shared.followed.prefixes.iter().any(|prefix| key.starts_with(prefix.as_bytes()));
            let keys: Vec<_> = page.1.into_iter().filter(is_followed).collect();
            for keys in keys.chunks(KEYS) {
                read(connection, shared, keys).await?;
            }
            cursor = page.0;
            if cursor == 0 {
                break;
            }
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
        // Before anything counts as known again.
        if pause.is_zero() {
            shared.follow.caught_up();
        }
        inbox.scanned.fetch_max(upheavals + 1, Ordering::SeqCst);
        inbox.scan_ended.notify_one();
        pause = match timeout(READ_AGAIN, inbox.read_again.notified()).await {
            Ok(()) => Duration::ZERO,
            Err(_) => PAUSE_READING_AGAIN,
        };
    }
}

/// Where only names are wanted there is nothing to catch up with, but what was known before may be old.
async fn read_nothing(shared: &Shared, inbox: &Inbox) -> Result<Infallible, Failure> {
    loop {
        let upheavals = inbox.upheavals.load(Ordering::SeqCst);
        shared.follow.caught_up();
        inbox.scanned.fetch_max(upheavals + 1, Ordering::SeqCst);
        inbox.scan_ended.notify_one();
        inbox.read_again.notified().await;
    }
}

/// Asks for what the keys hold, and tells.
async fn read(connection: &MultiplexedConnection, shared: &Shared, keys: &[Vec<u8>]) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let mut pipeline = Pipeline::with_capacity(keys.len());
    let mut count = 0;
    for key in keys {
        pipeline.cmd("PTTL").arg(key);
        count += 1;
        if shared.follow.wants_value(key) {
            pipeline.cmd("GET").arg(key);
            count += 1;
        }
    }
    let mut connection = connection.clone();
    let answers = connection.send_packed_commands(&pipeline, 0, count).await.map_err(|error| error.to_string())?;
    let mut answers = answers.into_iter();
    for key in keys {
        let ttl = answers.next();
        let value = if shared.follow.wants_value(key) { answers.next() } else { None };
        let left = match ttl {
            Some(Value::Int(-1)) => Left::Forever,
            Some(Value::Int(millis)) => {
                u64::try_from(millis).map_or(Left::Gone, |ms| Left::For(Duration::from_millis(ms)))
            }
            // The slot has moved: its new server tells of the key.
            Some(Value::ServerError(error)) if matches!(error.code(), "MOVED" | "ASK") => continue,
            // A key that may not be read is a revocation that is not known: whoever goes on would take it for none.
            Some(Value::ServerError(error)) => return Err(refused(&error)),
            other => return Err(format!("PTTL answered {other:?}")),
        };
        let value = match &value {
            Some(Value::BulkString(value)) => Some(value.as_slice()),
            // It has run out since its deadline was read.
            Some(Value::Nil) => continue,
            // Of the wrong type: it is there, and cannot be read as a mark.
            Some(Value::ServerError(error)) if error.code() != "WRONGTYPE" => return Err(refused(error)),
            _ => None,
        };
        shared.follow.found(key, left, value);
    }
    Ok(())
}

async fn ask(connection: &MultiplexedConnection, command: &Cmd) -> Result<Value, Failure> {
    let mut connection = connection.clone();
    match connection.send_packed_command(command).await {
        Ok(Value::ServerError(error)) => Err(refused(&error)),
        Ok(answer) => Ok(answer),
        Err(error) => Err(error.to_string()),
    }
}

fn refused(error: &ServerError) -> Failure {
    format!("{} {}", error.code(), error.details().unwrap_or_default())
}
