//! No resurrection: every interleaving of a logout with others that write the same session, at each of their calls to the
//! store, and with a crash of the logout or of a writer after any of them. Each run is a history of its own in memory or on a
//! real Redis: after it the session is not alive, and its key is gone as soon as somebody has looked. And every interleaving of
//! logins of one user, of which some are too many.
//!
//! The explorer replays: a schedule says which process makes the next call; when a run has ended, the last choice that has an
//! alternative is changed, until none has.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sekisho::clock::{Clock, ManualClock, Timestamp, WallClock};
use sekisho::sessions::{
    Document, MemoryStore, RedisStore, Save, Saved, Session, SessionId, SessionStore, Sessions, Sid, Steps,
    StoreFuture, Terms, UserId, write_time,
};
use sekisho_testkit::{RedisCluster, RedisServer};

/// The session began a minute before all else.
const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const NOW: Timestamp = Timestamp::from_secs(1_700_000_060);
const TERMS: Terms = Terms {
    ttl: Duration::from_secs(3_600),
    max_lifetime: Duration::from_secs(86_400),
    max_per_user: None,
    keep_marks: Duration::from_secs(86_400 * 8),
};

/// What a process does. Each call to Redis is a step of it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    /// Ends the session.
    Logout,
    /// Ends all of the user's.
    ForceLogout,
    /// Ends all but another one.
    LogoutOfOthers,
    /// Gives it a new id.
    Rotate,
    /// A slow request that stores what it read long ago.
    Save,
    /// A slow request that changes what it finds.
    Update,
    Touch,
    Get,
    /// An old client that reads, and writes back what it has read.
    OldClient,
    /// An old client that writes back what it read long ago.
    OldClientLate,
}

struct Bench<'a> {
    store: Place,
    clock: Arc<dyn Clock>,
    /// When every session began.
    start: Timestamp,
    nodes: Nodes<'a>,
    /// A session that is got after every step, and whether those that the histories are about are got before them.
    witness: Option<(SessionId, bool)>,
}

#[derive(Debug, Clone)]
enum Place {
    Memory(Arc<MemoryStore>),
    Redis(RedisStore),
}

#[derive(Clone, Copy)]
enum Nodes<'a> {
    None,
    One(&'a RedisServer),
    Many(&'a RedisCluster),
}

impl Nodes<'_> {
    fn of(&self, key: &str) -> Option<&RedisServer> {
        match self {
            Nodes::None => None,
            Nodes::One(server) => Some(server),
            Nodes::Many(cluster) => Some(cluster.node_for_slot(sekisho::store::redis::key_slot(key.as_bytes()))),
        }
    }
}

impl Place {
    /// With each call waiting for its turn.
    fn in_steps(&self, steps: &Arc<Steps>) -> Arc<dyn SessionStore> {
        match self {
            Place::Memory(store) => Arc::new(Stepped(Arc::clone(store), Arc::clone(steps))),
            Place::Redis(store) => Arc::new(store.in_steps(Arc::clone(steps))),
        }
    }

    fn at_once(&self) -> Arc<dyn SessionStore> {
        match self {
            Place::Memory(store) => store.clone(),
            Place::Redis(store) => Arc::new(store.clone()),
        }
    }
}

/// Memory decides in one step; what takes several of them is made of these.
#[derive(Debug)]
struct Stepped(Arc<MemoryStore>, Arc<Steps>);

impl SessionStore for Stepped {
    fn get<'a>(&'a self, id: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, Option<Session>> {
        Box::pin(self.1.one(async move { self.0.get(id, terms).await }))
    }

    fn save<'a>(&'a self, save: &'a Save<'a>, terms: &'a Terms) -> StoreFuture<'a, Saved> {
        Box::pin(self.1.one(async move { self.0.save(save, terms).await }))
    }

    fn touch<'a>(&'a self, id: &'a SessionId, ttl: Duration, terms: &'a Terms) -> StoreFuture<'a, Option<Session>> {
        Box::pin(self.1.one(async move { self.0.touch(id, ttl, terms).await }))
    }

    fn end<'a>(&'a self, id: &'a SessionId, only_if: Option<&'a Document>, terms: &'a Terms) -> StoreFuture<'a, bool> {
        Box::pin(self.1.one(async move { self.0.end(id, only_if, terms).await }))
    }

    fn list<'a>(&'a self, user: &'a UserId, terms: &'a Terms) -> StoreFuture<'a, Vec<Session>> {
        Box::pin(self.1.one(async move { self.0.list(user, terms).await }))
    }

    fn end_before<'a>(
        &'a self,
        user: Option<&'a UserId>,
        at: Option<Timestamp>,
        terms: &'a Terms,
    ) -> StoreFuture<'a, Timestamp> {
        Box::pin(self.1.one(async move { self.0.end_before(user, at, terms).await }))
    }

    fn end_others<'a>(&'a self, keep: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, Timestamp> {
        Box::pin(self.1.one(async move { self.0.end_others(keep, terms).await }))
    }

    fn end_surplus<'a>(&'a self, saved: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, ()> {
        Box::pin(self.1.one(async move { self.0.end_surplus(saved, terms).await }))
    }

    fn keep_instead<'a>(&'a self, old: &'a SessionId, new: &'a Sid, terms: &'a Terms) -> StoreFuture<'a, ()> {
        Box::pin(self.1.one(async move { self.0.keep_instead(old, new, terms).await }))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.0.ping()
    }

    fn may_evict(&self) -> StoreFuture<'_, bool> {
        self.0.may_evict()
    }
}

/// One process, and how far it has come.
struct Process<'a> {
    running: Option<Pin<Box<dyn Future<Output = Vec<SessionId>> + 'a>>>,
    steps: Arc<Steps>,
    /// What it answers with: the ids under which the session may live on.
    answer: Option<Vec<SessionId>>,
    taken: usize,
}

impl<'a> Bench<'a> {
    async fn new(url: &str, nodes: Nodes<'a>) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(NOW));
        let store = RedisStore::connect(url, Duration::from_secs(10), Some(clock.clone())).await.unwrap();
        Self { store: Place::Redis(store), clock, start: START, nodes, witness: None }
    }

    /// By Redis's own time, with which copies of sessions are kept and saves need no script. Where all are `read` before, a save
    /// knows already what stands beside its session.
    async fn with_copies(server: &'a RedisServer, read: bool) -> Self {
        let store = RedisStore::connect(&server.url(), Duration::from_secs(10), None).await.unwrap();
        let (clock, nodes) = (Arc::new(WallClock::new()), Nodes::One(server));
        let witness = SessionId::new("witness", "s").unwrap();
        let start = Timestamp::from_micros(clock.now().as_micros() - 60_000_000);
        let bench = Self { store: Place::Redis(store), clock, start, nodes, witness: Some((witness.clone(), read)) };
        let sessions = bench.sessions(bench.store.at_once());
        sessions.put(&witness, &bench.document(), None).await.unwrap();
        // The connection that tells of changes may come up later; then a save is no script.
        let scripts = || {
            let stats = server.command(&["INFO", "commandstats"]).text();
            stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).map(str::to_owned)
        };
        for _ in 0..6_000 {
            let before = scripts();
            sessions.put(&witness, &bench.document(), None).await.unwrap();
            if scripts() == before {
                return bench;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("every save is a script");
    }

    fn document(&self) -> Document {
        Document::new(format!(r#"{{"created_at":"{}","note":"old"}}"#, write_time(self.start))).unwrap()
    }

    /// Whatever was changed before this has been told when it returns, so that a history can be replayed. What a process has
    /// looked at before its turn came it has looked at.
    async fn settle(&self) {
        if let Some((witness, _)) = &self.witness {
            assert!(self.sessions(self.store.at_once()).get(witness).await.unwrap().is_some());
        }
    }

    fn in_memory() -> Self {
        let clock = ManualClock::at(NOW);
        let store = Place::Memory(Arc::new(MemoryStore::new(Arc::new(clock.clone()))));
        Self { store, clock: Arc::new(clock), start: START, nodes: Nodes::None, witness: None }
    }

    fn sessions(&self, store: Arc<dyn SessionStore>) -> Sessions {
        Sessions::new(store, self.clock.clone(), TERMS)
    }

    fn start(&'a self, act: Act, id: &'a SessionId, document: &'a Document) -> Process<'a> {
        let steps = Arc::new(Steps::default());
        let sessions = self.sessions(self.store.in_steps(&steps));
        let own = Arc::clone(&steps);
        let running = Box::pin(async move {
            match act {
                Act::Logout => drop(sessions.end(id).await.unwrap()),
                Act::ForceLogout => drop(sessions.end_all(&id.user).await.unwrap()),
                Act::LogoutOfOthers => {
                    let other = SessionId::new(id.user.as_str(), "other").unwrap();
                    sessions.end_others(&other).await.unwrap();
                }
                Act::Rotate => return sessions.rotate(id).await.unwrap().map(|new| new.id).into_iter().collect(),
                Act::Save => drop(sessions.put(id, document, None).await.unwrap()),
                Act::Update => drop(sessions.update(id, |old| Ok(noted(old))).await.unwrap()),
                Act::Touch => drop(sessions.touch(id, None).await.unwrap()),
                Act::Get => drop(sessions.get(id).await.unwrap()),
                Act::OldClient => {
                    let key = key(id);
                    let read = own.one(async { self.nodes.of(&key).unwrap().command(&["GET", &key]) }).await;
                    if !read.is_nil() {
                        own.one(async { self.setex(&key, &read.text()) }).await;
                    }
                }
                Act::OldClientLate => own.one(async { self.setex(&key(id), document.as_str()) }).await,
            }
            Vec::new()
        });
        Process { running: Some(running), steps, answer: None, taken: 0 }
    }

    fn setex(&self, key: &str, json: &str) {
        let node = self.nodes.of(key).expect("old clients write into Redis");
        node.command(&["SETEX", key, "3600", json]).expect_success();
    }

    /// One history: at each step `choose` names one of those that can go on. It panics where the session has come back.
    /// `crash` is a process and how many calls it may make; says whether that stopped it.
    async fn run(&self, acts: &[Act], crash: Option<(usize, usize)>, choose: &mut Schedule) -> bool {
        let user = UserId::new(format!("u{:016x}", rand_number())).unwrap();
        let id = SessionId { user, sid: Sid::new("s").unwrap() };
        let document = self.document();
        let sessions = self.sessions(self.store.at_once());
        sessions.put(&id, &document, None).await.unwrap();
        if matches!(self.witness, Some((_, true))) {
            sessions.get(&id).await.unwrap().unwrap();
        }

        let mut processes: Vec<_> = acts.iter().map(|act| self.start(*act, &id, &document)).collect();
        let trace = self.interleave(&mut processes, crash, choose).await;
        // What is done by the first write stays done. A logout that crashed before it has said nothing.
        let has_decided = processes[0].taken >= 1 || processes[0].answer.is_some();
        let is_rotation = acts[0] == Act::Rotate;
        let decided = if is_rotation { processes[0].answer.is_some() } else { has_decided };
        let what = format!("{acts:?}, crash after {crash:?}, order {trace:?}");
        if decided {
            self.assert_dead(&id, &what).await;
            for new in processes.iter().flat_map(|process| process.answer.iter().flatten()) {
                assert_ne!(new.sid, id.sid);
                // Whoever ends all of a user's ends the session under every id that it got meanwhile.
                if matches!(acts[0], Act::ForceLogout | Act::LogoutOfOthers) {
                    self.assert_dead(new, &what).await;
                }
            }
            if matches!(acts[0], Act::ForceLogout | Act::LogoutOfOthers) {
                assert_eq!(sessions.list(&id.user).await.unwrap(), [], "{what}");
            }
        } else if is_rotation {
            // It crashed, and nobody knows a new id. The old one is as alive as before, or is dead for good.
            if sessions.get(&id).await.unwrap().is_some() {
                let listed = sessions.list(&id.user).await.unwrap();
                assert!(listed.iter().any(|session| session.id == id), "it lives and is not listed: {what}");
            } else {
                self.assert_dead(&id, &what).await;
            }
        }
        crash.is_some_and(|(who, _)| processes[who].answer.is_none())
    }

    /// Says in which order they made their calls.
    async fn interleave(
        &self,
        processes: &mut [Process<'_>],
        crash: Option<(usize, usize)>,
        choose: &mut Schedule,
    ) -> Vec<usize> {
        let mut trace = Vec::new();
        processes.iter_mut().for_each(Process::wake);
        loop {
            let is_crashed = |i: usize, taken| crash.is_some_and(|(who, most)| i == who && taken >= most);
            let able: Vec<usize> = (0..processes.len())
                .filter(|i| processes[*i].running.is_some() && !is_crashed(*i, processes[*i].taken))
                .collect();
            if able.is_empty() {
                return trace;
            }
            let next = choose.next_of(&able, trace.last().copied());
            trace.push(next);
            processes[next].step().await;
            self.settle().await;
        }
    }

    /// So many log in at once where `most` may be, the last of them with a session that began long ago; as many stood there
    /// before. Says how many interleavings there are.
    async fn explore_logins(&self, logins: usize, most: usize, preemptions: usize) -> usize {
        let terms = Terms { max_per_user: Some(most), ..TERMS };
        let new = Document::new(format!(r#"{{"created_at":"{}"}}"#, write_time(self.clock.now()))).unwrap();
        let (old, mut histories) = (self.document(), 0);
        let mut schedule = Schedule { preemptions, ..Schedule::default() };
        loop {
            let user = UserId::new(format!("u{:016x}", rand_number())).unwrap();
            let named = |name: &str, i: usize| SessionId::new(user.as_str(), format!("{name}{i}")).unwrap();
            let stood: Vec<_> = (0..most).map(|i| named("stood", i)).collect();
            let ids: Vec<_> = (0..logins).map(|i| named("new", i)).collect();
            let sessions = self.sessions(self.store.at_once()).with_terms(terms);
            for id in &stood {
                sessions.put(id, &new, None).await.unwrap();
            }
            let mut processes: Vec<_> = Vec::new();
            for (i, id) in ids.iter().enumerate() {
                let steps = Arc::new(Steps::default());
                let sessions = self.sessions(self.store.in_steps(&steps)).with_terms(terms);
                let document = if i + 1 == logins { &old } else { &new };
                let running = Box::pin(async move {
                    let put = sessions.put(id, document, None).await.unwrap();
                    assert!(matches!(put, sekisho::sessions::Put::Stored(_)), "{put:?}");
                    Vec::new()
                });
                processes.push(Process { running: Some(running), steps, answer: None, taken: 0 });
            }
            let trace = self.interleave(&mut processes, None, &mut schedule).await;
            let mut alive = Vec::new();
            for id in stood.iter().chain(&ids) {
                alive.extend(sessions.get(id).await.unwrap().map(|session| session.id.sid));
            }
            assert_eq!(alive.len(), most, "{alive:?} are alive: {logins} logins, order {trace:?}");
            assert_eq!(sessions.list(&user).await.unwrap().len(), most, "order {trace:?}");
            histories += 1;
            if !schedule.advance() {
                return histories;
            }
        }
    }

    async fn assert_dead(&self, id: &SessionId, what: &str) {
        let sessions = self.sessions(self.store.at_once());
        assert_eq!(sessions.get(id).await.unwrap(), None, "it lives again: {what}");
        let key = key(id);
        let is_left = || self.nodes.of(&key).is_some_and(|node| node.command(&["EXISTS", &key]).int() == 1);
        assert!(!is_left(), "the key is left: {what}");
        let listed = sessions.list(&id.user).await.unwrap();
        assert!(listed.iter().all(|session| session.id != *id), "it is listed: {what}");
        // And the slowest of all, after everybody has looked.
        let late = Document::new(format!(r#"{{"created_at":"{}"}}"#, write_time(self.start))).unwrap();
        let put = sessions.put(id, &late, None).await.unwrap();
        assert!(matches!(put, sekisho::sessions::Put::Ended { .. }), "{put:?}: {what}");
        if self.nodes.of(&key).is_some() {
            self.setex(&key, late.as_str());
            assert_eq!(sessions.get(id).await.unwrap(), None, "an old client brought it back: {what}");
            assert!(!is_left(), "{what}");
        }
    }

    /// Every interleaving with so many preemptions at most, without a crash and with one of the process `who` after each of its
    /// calls. Returns how many there are.
    async fn explore(&self, acts: &[Act], who: usize, preemptions: usize) -> usize {
        let mut histories = 0;
        for calls in 1.. {
            let mut schedule = Schedule { preemptions, ..Schedule::default() };
            let mut has_crashed = false;
            loop {
                has_crashed |= self.run(acts, Some((who, calls)), &mut schedule).await;
                histories += 1;
                if !schedule.advance() {
                    break;
                }
            }
            // It had all the calls that it wanted, so that these were the histories without a crash.
            if !has_crashed {
                break;
            }
        }
        histories
    }
}

impl Process<'_> {
    /// Runs it up to its next call.
    fn wake(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        if let Some(running) = &mut self.running
            && let Poll::Ready(answer) = running.as_mut().poll(&mut context)
        {
            (self.answer, self.running) = (Some(answer), None);
        }
    }

    /// Lets it make one call, and runs it up to the next one.
    async fn step(&mut self) {
        self.taken += 1;
        self.steps.allow_one();
        let running = self.running.as_mut().expect("only those that run are chosen");
        let steps = Arc::clone(&self.steps);
        let mut done = std::pin::pin!(steps.done());
        let answer = std::future::poll_fn(|context| {
            if let Poll::Ready(answer) = running.as_mut().poll(context) {
                return Poll::Ready(Some(answer));
            }
            // Polled again after the call has its answer, so that it stands before its next one.
            done.as_mut().poll(context).map(|()| None)
        })
        .await;
        match answer {
            Some(answer) => (self.answer, self.running) = (Some(answer), None),
            None => self.wake(),
        }
    }
}

/// Choices made so far, and how many there were to choose from.
#[derive(Default)]
struct Schedule {
    made: Vec<(usize, usize)>,
    at: usize,
    /// How often a process may be stopped that could go on, and how often one was.
    preemptions: usize,
    used: usize,
}

impl Schedule {
    /// The one that ran last stands first among those that are able, so that staying with it costs nothing.
    fn next_of(&mut self, able: &[usize], last: Option<usize>) -> usize {
        let stays = last.filter(|last| able.contains(last));
        let others = able.iter().copied().filter(|i| Some(*i) != stays);
        let may_change = stays.is_none() || self.used < self.preemptions;
        let choices: Vec<usize> = stays.into_iter().chain(others.filter(|_| may_change)).collect();
        if self.at == self.made.len() {
            self.made.push((0, choices.len()));
        }
        let (choice, known) = self.made[self.at];
        assert_eq!(known, choices.len(), "a history cannot be replayed");
        self.at += 1;
        self.used += usize::from(stays.is_some_and(|stays| stays != choices[choice]));
        choices[choice]
    }

    /// To the next schedule, depth first; false when there is none.
    fn advance(&mut self) -> bool {
        (self.at, self.used) = (0, 0);
        while let Some((choice, count)) = self.made.pop() {
            if choice + 1 < count {
                self.made.push((choice + 1, count));
                return true;
            }
        }
        false
    }
}

fn key(id: &SessionId) -> String {
    format!("session:{}:{}", id.user.as_str(), id.sid.as_str())
}

fn noted(old: &Document) -> Document {
    Document::new(old.as_str().replace("old", "new")).unwrap()
}

/// Users of two histories are never the same.
fn rand_number() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

const ENDS: [Act; 4] = [Act::Logout, Act::ForceLogout, Act::LogoutOfOthers, Act::Rotate];
/// Those that write what they know, and could write too late.
const WRITERS: [Act; 4] = [Act::Save, Act::Update, Act::OldClient, Act::OldClientLate];
/// Those that only move an expiry or an index.
const READERS: [Act; 2] = [Act::Touch, Act::Get];

/// On one server a decision is one call, so that all interleavings of three processes can be tried.
#[tokio::test]
async fn c10_no_interleaving_brings_a_session_back_on_one_server() {
    let server = RedisServer::start();
    let bench = Bench::new(&server.url(), Nodes::One(&server)).await;
    let mut histories = 0;
    for end in ENDS {
        for (i, writer) in WRITERS.into_iter().enumerate() {
            for other in &WRITERS[i..] {
                histories += bench.explore(&[end, writer, *other], 0, usize::MAX).await;
            }
            histories += bench.explore(&[end, writer], 1, usize::MAX).await;
        }
        for reader in READERS {
            histories += bench.explore(&[end, reader, Act::OldClient], 0, usize::MAX).await;
        }
    }
    println!("{histories} histories");
    assert!(histories > 1_000, "only {histories} histories");
}

/// A rotation that has read the session before its logout gives it no new id after it, nor does one keep what it was given before.
#[tokio::test]
async fn c10_no_interleaving_lets_a_session_live_on_under_a_new_id() {
    let (server, cluster) = (RedisServer::start(), RedisCluster::start(3));
    let one = Bench::new(&server.url(), Nodes::One(&server)).await;
    let many = Bench::new(&cluster.url(), Nodes::Many(&cluster)).await;
    let mut histories = [0; 3];
    for end in [Act::ForceLogout, Act::LogoutOfOthers] {
        for who in [0, 1] {
            let memory = Bench::in_memory();
            histories[0] += memory.explore(&[end, Act::Rotate, Act::Rotate], who, usize::MAX).await;
            histories[1] += one.explore(&[end, Act::Rotate, Act::Save], who, usize::MAX).await;
            histories[1] += one.explore(&[end, Act::Rotate, Act::Rotate], who, 2).await;
            histories[2] += many.explore(&[end, Act::Rotate], who, 1).await;
        }
    }
    println!("{histories:?} histories in memory, on one server and on a cluster");
    assert!(histories.iter().all(|count| *count > 100), "only {histories:?} histories");
}

/// With copies a get and a save are plain commands, and what they rest on may have changed meanwhile: both where it is known
/// before, and where it is read in the same call.
#[tokio::test]
async fn c10_no_interleaving_brings_a_session_back_where_copies_are_kept() {
    let server = RedisServer::start();
    let mut histories = 0;
    for read in [true, false] {
        let bench = Bench::with_copies(&server, read).await;
        for end in ENDS {
            for other in WRITERS {
                histories += bench.explore(&[end, Act::Save, other], 0, usize::MAX).await;
            }
            histories += bench.explore(&[end, Act::Save], 1, usize::MAX).await;
            histories += bench.explore(&[end, Act::Save, Act::OldClientLate], 1, usize::MAX).await;
            histories += bench.explore(&[end, Act::Get, Act::OldClient], 0, usize::MAX).await;
        }
    }
    println!("{histories} histories");
    assert!(histories > 1_000, "only {histories} histories");
}

/// In memory nobody else writes, and a logout is one step: it is the others that have several.
#[tokio::test]
async fn c10_no_interleaving_brings_a_session_back_in_memory() {
    let bench = Bench::in_memory();
    let mut histories = 0;
    for end in ENDS {
        for first in [Act::Save, Act::Update, Act::Touch, Act::Get] {
            for second in [Act::Save, Act::Update, Act::Rotate] {
                for who in 0..3 {
                    histories += bench.explore(&[end, first, second], who, usize::MAX).await;
                }
            }
        }
    }
    println!("{histories} histories");
    assert!(histories > 1_000, "only {histories} histories");
}

/// On Cluster a decision is up to nine calls: two processes, and one or two preemptions.
#[tokio::test]
async fn c10_no_interleaving_brings_a_session_back_on_a_cluster() {
    let cluster = RedisCluster::start(3);
    let bench = Bench::new(&cluster.url(), Nodes::Many(&cluster)).await;
    let mut histories = 0;
    for end in ENDS {
        for writer in WRITERS {
            histories += bench.explore(&[end, writer], 0, if end == Act::Rotate { 1 } else { 2 }).await;
            // A writer that dies between its own calls, which are many where it saves.
            if matches!((end, writer), (Act::Logout | Act::ForceLogout | Act::LogoutOfOthers, Act::Save | Act::Update))
            {
                histories += bench.explore(&[end, writer], 1, 1).await;
            }
        }
        for reader in READERS {
            histories += bench.explore(&[end, reader], 0, 1).await;
        }
    }
    // Both writers in one history: what one has seen of the other must not let either pass.
    for end in [Act::Logout, Act::ForceLogout] {
        for who in [0, 1] {
            histories += bench.explore(&[end, Act::Save, Act::OldClientLate], who, 1).await;
        }
    }
    println!("{histories} histories");
    assert!(histories > 1_000, "only {histories} histories");
}

/// Whoever is one too many ends others, who end others too: as many are left as may be, never fewer and never more.
#[tokio::test]
async fn c09_no_interleaving_of_logins_leaves_fewer_or_more_than_may_be() {
    let (memory, server) = (Bench::in_memory(), RedisServer::start());
    let one = Bench::new(&server.url(), Nodes::One(&server)).await;
    let mut histories = [0; 2];
    for most in [1, 2] {
        histories[0] += memory.explore_logins(4, most, usize::MAX).await;
        histories[1] += one.explore_logins(2, most, usize::MAX).await;
        histories[1] += one.explore_logins(3, most, 2).await;
    }
    println!("{histories:?} histories in memory and on one server");
    assert!(histories.iter().all(|count| *count > 1_000), "only {histories:?} histories");
}

#[tokio::test]
async fn c09_no_interleaving_of_logins_leaves_fewer_or_more_than_may_be_on_a_cluster() {
    let cluster = RedisCluster::start(3);
    let bench = Bench::new(&cluster.url(), Nodes::Many(&cluster)).await;
    let mut histories = bench.explore_logins(2, 1, 2).await;
    for most in [1, 2] {
        histories += bench.explore_logins(3, most, 1).await;
    }
    println!("{histories} histories");
    assert!(histories > 1_000, "only {histories} histories");
}
