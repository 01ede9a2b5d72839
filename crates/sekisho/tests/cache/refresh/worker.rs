//! Workers: at the fleet's pace, again when it failed, not at all when it is needless, and to the end when they are stopped.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sekisho::cache::refresh::{MemoryRefresh, Pace, Queued, Ranking, Refresh, Terms, Why};
use sekisho::cache::{
    Cache, Failure, Fetched, Key, Origin, OriginFuture, Raw, Reached, Reply, Tier, Tiers, Validators,
};
use sekisho::clock::{Clock, Timestamp};
use sekisho::limits;
use sekisho::store::redis::key_slot;
use sekisho_testkit::{RedisCluster, RedisServer};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{DAY, QUEUE, RANK, START, is_idle, leave, pace_of, quick, refreshing};
use crate::{TestOrigin, entry, field, get, instance, key, ms, terms, until};

const SECOND: Duration = Duration::from_secs(1);

/// Goes with tokio's time, which tests let run by itself.
#[derive(Debug)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        START + self.0.elapsed()
    }
}

pub(super) type Calls = Arc<Mutex<Vec<(String, Duration)>>>;

/// Notes when it is asked for what, and answers as it is told for each key.
struct Noting {
    calls: Calls,
    began: Instant,
    #[allow(clippy::type_complexity, reason = "needed once")]
    answer: Box<dyn Fn(&str, &Validators) -> Result<Reply, Failure> + Send + Sync>,
}

impl Origin for Noting {
    fn fetch<'a>(&'a self, key: &'a Key, known: &'a Validators) -> OriginFuture<'a> {
        self.calls.lock().push((key.to_string(), self.began.elapsed()));
        Box::pin(async { (self.answer)(key.as_str(), known) })
    }
}

impl std::fmt::Debug for Noting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Noting").finish_non_exhaustive()
    }
}

/// Everything in memory, on tokio's time: hours pass in no time.
fn alone(
    answer: impl Fn(&str, &Validators) -> Result<Reply, Failure> + Send + Sync + 'static,
) -> (Cache<Raw>, Pace, Calls) {
    alone_with(answer, |store| Arc::new(store))
}

/// The same, with something before the store of turns.
pub(super) fn alone_with(
    answer: impl Fn(&str, &Validators) -> Result<Reply, Failure> + Send + Sync + 'static,
    turns: impl FnOnce(limits::MemoryStore) -> Arc<dyn limits::LimitStore>,
) -> (Cache<Raw>, Pace, Calls) {
    let (calls, clock) = (Calls::default(), Arc::new(TokioClock(Instant::now())));
    let origin = Noting { calls: Arc::clone(&calls), began: Instant::now(), answer: Box::new(answer) };
    let store = Arc::new(MemoryRefresh::new(Ranking::default(), clock.clone()).unwrap());
    let refresh = Some(Refresh { terms: Terms::default(), store });
    let tiers = Tiers { origin: Some(Arc::new(origin)), refresh, shared: None };
    let cache = Cache::new("alone", Raw, terms(), tiers, clock.clone()).unwrap();
    let limits = turns(limits::MemoryStore::new(limits::Capacity::default(), clock));
    (cache, Pace::every(SECOND, "alone", limits).unwrap(), calls)
}

/// A worker, and how to stop it.
pub(super) fn start(cache: &Cache<Raw>, pace: &Pace) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let worker = cache.worker(pace.clone()).unwrap();
    (stop, tokio::spawn(worker.run(async move { _ = stopped.await })))
}

async fn why(cache: &Cache<Raw>, name: &str) -> Why {
    cache.explain(&key(name)).await.unwrap().why
}

pub(super) fn value(content: &str) -> Result<Reply, Failure> {
    Ok(Reply::Fetched(content.as_bytes().to_vec().into()))
}

fn asked_for(calls: &Calls, name: &str) -> Vec<Duration> {
    calls.lock().iter().filter(|(key, _)| key == name).map(|(_, at)| *at).collect()
}

#[tokio::test(start_paused = true)]
async fn in_memory_too_what_is_old_and_hot_is_renewed() {
    let (cache, pace, calls) = alone(|_, _| value("new"));
    for name in ["hot", "cold"] {
        cache.put(&key(name), Fetched::from(b"old".to_vec())).await.unwrap();
    }
    tokio::time::advance(DAY * 100).await;
    let _worker = start(&cache, &pace);
    assert_eq!(get(&cache, "cold").await, "old");
    for _ in 0..11 {
        assert_eq!(get(&cache, "hot").await, "old");
    }
    until("it is renewed", async || cache.get(&key("hot")).await.unwrap().age < DAY).await;
    assert_eq!((get(&cache, "hot").await, get(&cache, "cold").await), ("new".to_owned(), "old".to_owned()));
    assert_eq!(calls.lock().len(), 1);
    assert_eq!((why(&cache, "hot").await, why(&cache, "cold").await), (Why::Fresh, Why::Cold));
}

#[tokio::test(start_paused = true)]
async fn failures_are_repeated_after_one_two_and_four_seconds_and_hold_up_nobody() {
    let (cache, pace, calls) = alone(|name, _| if name == "bad" { Err(Failure::new("503")) } else { value("new") });
    for name in ["bad", "a", "b", "c", "d"] {
        cache.put(&key(name), Fetched::from(b"old".to_vec())).await.unwrap();
        tokio::time::advance(ms(1)).await;
        assert_eq!(cache.refresh(&key(name)).await.unwrap(), Queued::Queued);
    }
    let _worker = start(&cache, &pace);
    tokio::time::sleep(SECOND * 30).await;
    let bad = asked_for(&calls, "bad");
    assert_eq!(bad.len(), 4, "{bad:?}");
    let gaps: Vec<_> = bad.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect();
    for (gap, pause) in gaps.iter().zip([1.0, 2.0, 4.0]) {
        // It may have to wait for its turn, and for one or two others'.
        assert!((pause..pause * 1.25 + 3.0).contains(gap), "{gaps:?}");
    }
    let calls = calls.lock().clone();
    assert_eq!(calls.len(), 8, "{calls:?}");
    let others = calls.iter().position(|(name, _)| name == "d" || name == "a").unwrap();
    let last_bad = calls.iter().rposition(|(name, _)| name == "bad").unwrap();
    assert!(others < last_bad, "the others did not wait for it: {calls:?}");
    assert_eq!((get(&cache, "bad").await, get(&cache, "c").await), ("old".to_owned(), "new".to_owned()));
    assert_ne!(why(&cache, "bad").await, Why::Queued, "it was dropped");
}

#[tokio::test(start_paused = true)]
async fn an_origin_says_when_to_come_back() {
    let busy = || Failure { retry_after: Some(SECOND * 60), ..Failure::new("429") };
    let (cache, pace, calls) = alone(move |_, _| Err(busy()));
    cache.put(&key("k"), Fetched::from(b"old".to_vec())).await.unwrap();
    tokio::time::advance(SECOND).await;
    cache.refresh(&key("k")).await.unwrap();
    let _worker = start(&cache, &pace);
    tokio::time::sleep(SECOND * 30).await;
    assert_eq!(asked_for(&calls, "k").len(), 1);
    let explanation = cache.explain(&key("k")).await.unwrap();
    assert_eq!((explanation.why, explanation.repeats), (Why::PutOff, Some(1)));
    assert!((20.0..=40.0).contains(&explanation.due_in_seconds.unwrap()), "{explanation:?}");
    tokio::time::sleep(SECOND * 600).await;
    let at = asked_for(&calls, "k");
    assert_eq!(at.len(), 4, "{at:?}");
    assert!(at.windows(2).all(|two| two[1] - two[0] >= SECOND * 60), "{at:?}");
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_wants_rest_is_left_alone_by_all_jobs() {
    let busy = || Failure { retry_after: Some(SECOND * 50), ..Failure::new("429") };
    let (cache, pace, calls) = alone(move |_, _| Err(busy()));
    for name in ["a", "b", "c"] {
        cache.put(&key(name), Fetched::from(b"old".to_vec())).await.unwrap();
        tokio::time::advance(ms(1)).await;
        cache.refresh(&key(name)).await.unwrap();
    }
    let _workers: Vec<_> = (0..2).map(|_| start(&cache, &pace)).collect();
    tokio::time::sleep(SECOND * 400).await;
    let at: Vec<_> = calls.lock().iter().map(|(_, at)| *at).collect();
    assert!(at.len() >= 5, "{at:?}");
    // Two workers may have been on their way when it said so.
    assert!(at[1..].windows(2).all(|two| two[1] - two[0] >= SECOND * 49), "{at:?}");
}

#[tokio::test(start_paused = true)]
async fn what_the_origin_refuses_for_good_is_not_repeated() {
    let refused = |status| Failure { reached: Reached::Answered(status), ..Failure::new("refused") };
    let (cache, pace, calls) = alone(move |name, _| Err(refused(name.parse().unwrap())));
    for name in ["400", "401", "403", "500"] {
        cache.put(&key(name), Fetched::from(b"old".to_vec())).await.unwrap();
        tokio::time::advance(ms(1)).await;
        cache.refresh(&key(name)).await.unwrap();
    }
    let _worker = start(&cache, &pace);
    tokio::time::sleep(SECOND * 60).await;
    let of = |name: &str| asked_for(&calls, name).len();
    assert_eq!((of("400"), of("401"), of("403"), of("500")), (1, 1, 1, 4));
    assert_eq!(get(&cache, "403").await, "old");
}

#[tokio::test(start_paused = true)]
async fn all_workers_together_keep_the_pace() {
    let (cache, pace, calls) = alone(|_, _| value("new"));
    for n in 0..15 {
        cache.put(&key(&format!("k{n}")), Fetched::from(b"old".to_vec())).await.unwrap();
    }
    tokio::time::advance(SECOND).await;
    for n in 0..15 {
        cache.refresh(&key(&format!("k{n}"))).await.unwrap();
    }
    let _workers: Vec<_> = (0..4).map(|_| start(&cache, &pace)).collect();
    until("all are done", async || calls.lock().len() == 15).await;
    let at: Vec<_> = calls.lock().iter().map(|(_, at)| *at).collect();
    assert!(at.windows(2).all(|two| two[1] - two[0] >= SECOND), "{at:?}");
    assert!(at[14] - at[0] <= SECOND * 17, "and do not idle: {at:?}");
}

/// Turns come from Redis here. A start may be late on a busy machine, but never early.
#[tokio::test]
async fn a_fleet_on_redis_keeps_the_pace() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let mut workers = Vec::new();
    for _ in 0..2 {
        let (cache, _) = refreshing(&server.url(), quick(), &origin).await;
        workers.push((cache, pace_of(&server.url(), ms(300)).await));
    }
    for n in 0..6 {
        leave(&server, &n.to_string(), "old", 200);
        server.command(&["SADD", QUEUE, &n.to_string()]).expect_success();
    }
    let began = Instant::now();
    let _workers: Vec<_> = workers.iter().map(|(cache, pace)| start(cache, pace)).collect();
    until("all are asked for", async || origin.calls() == 6).await;
    assert!(began.elapsed() >= ms(5 * 300 - 20), "{:?}", began.elapsed());
    until("all are done", async || is_idle(&server)).await;
    assert_eq!(origin.calls(), 6, "each once");
}

#[tokio::test]
async fn a_304_renews_the_age_and_moves_no_body() {
    let server = RedisServer::start();
    let origin = TestOrigin::new(|_, known| match known.etag.as_deref() {
        Some("\"e1\"") => Ok(Reply::NotModified),
        _ => Err(Failure::new("it did not say what it has")),
    });
    let (cache, pace) = refreshing(&server.url(), quick(), &origin).await;
    let body = "body".repeat(1 << 20);
    leave(&server, "k", &body, 200);
    server.command(&["HSET", &entry("k"), "etag", "\"e1\""]).expect_success();
    let moved = || {
        let stats = server.command(&["INFO", "stats"]).text();
        let of = |name: &str| stats.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse::<u64>().unwrap();
        of("total_net_input_bytes:") + of("total_net_output_bytes:")
    };
    let before = moved();
    let _worker = start(&cache, &pace);
    server.command(&["SADD", QUEUE, "k"]).expect_success();
    until("it is done", async || is_idle(&server)).await;
    assert_eq!(origin.calls(), 1);
    let now: i64 = server.command(&["TIME"]).items()[0].text().parse().unwrap();
    let at: i64 = field(&server, "k", "updated_at").unwrap().parse().unwrap();
    assert!(now - at < 60, "{}", now - at);
    let ttl = server.command(&["TTL", &entry("k")]).int();
    assert!(ttl > 364 * 86_400, "{ttl}");
    assert_eq!(field(&server, "k", "etag").as_deref(), Some("\"e1\""));
    assert!(moved() - before < 1 << 20, "{}", moved() - before);
    let answer = cache.get(&key("k")).await.unwrap();
    assert!(answer.age < DAY && *answer.value.unwrap() == body.as_bytes());
}

async fn changed_values_are_seen_everywhere(url: &str, leave_old: impl AsyncFn(&str), is_idle: impl Fn() -> bool) {
    let origin = TestOrigin::counting();
    let (cache, pace) = refreshing(url, quick(), &origin).await;
    let other = instance(url, terms(), &origin).await;
    let names = ["15:1:1", "15:1:2", "15:1:3", "15:1:4"];
    for name in names {
        leave_old(name).await;
        assert_eq!(get(&cache, name).await, "old");
        assert_eq!(get(&other, name).await, "old");
        assert_eq!(cache.refresh(&key(name)).await.unwrap(), Queued::Queued);
    }
    let (stop, worker) = start(&cache, &pace);
    for name in names {
        until("both have it", async || {
            get(&cache, name).await.starts_with('v') && get(&other, name).await.starts_with('v')
        })
        .await;
    }
    // While we looked, old copies may have been asked for often enough to be queued once more, for nothing.
    until("nothing is left", async || is_idle()).await;
    assert_eq!(origin.calls(), 4);
    stop.send(()).unwrap();
    worker.await.unwrap();
}

#[tokio::test]
async fn changed_values_are_seen_everywhere_on_one_server() {
    let server = RedisServer::start();
    let leave = async |name: &str| leave(&server, name, "old", 100);
    changed_values_are_seen_everywhere(&server.url(), leave, || is_idle(&server)).await;
}

#[tokio::test]
async fn changed_values_are_seen_everywhere_on_a_cluster() {
    let cluster = RedisCluster::start(3);
    let writer = instance(&cluster.url(), terms(), &TestOrigin::counting()).await;
    let leave = async |name: &str| {
        writer.put(&key(name), Fetched::from(b"old".to_vec())).await.unwrap();
    };
    let home = cluster.node_for_slot(key_slot(QUEUE.as_bytes()));
    changed_values_are_seen_everywhere(&cluster.url(), leave, || is_idle(home)).await;
}

#[tokio::test]
async fn what_has_become_fresh_is_dropped_without_a_request() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let (cache, pace) = refreshing(&server.url(), quick(), &origin).await;
    leave(&server, "fresh", "new", 1);
    leave(&server, "stale", "old", 100);
    server.command(&["SADD", QUEUE, "fresh", "stale", "not there"]).expect_success();
    let _worker = start(&cache, &pace);
    until("all are gone", async || is_idle(&server)).await;
    assert_eq!(origin.calls(), 2, "for what is stale, and for what is not there");
    assert_eq!(field(&server, "fresh", "content").as_deref(), Some("new"));
    assert!(field(&server, "stale", "content").unwrap().starts_with('v'));
    assert!(field(&server, "not there", "content").unwrap().starts_with('v'));
}

#[tokio::test]
async fn a_stopped_worker_ends_its_request_and_leaves_the_rest() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let (cache, pace) = refreshing(&server.url(), quick(), &origin).await;
    server.command(&["ZADD", RANK, "100", "first", "10", "second"]).expect_success();
    for name in ["first", "second"] {
        leave(&server, name, "old", 200);
        server.command(&["SADD", QUEUE, name]).expect_success();
    }
    get(&cache, "first").await;
    origin.shut();
    let (stop, worker) = start(&cache, &pace);
    until("it asks", async || origin.calls() == 1).await;
    assert_eq!(why(&cache, "first").await, Why::InWork);
    assert_eq!(cache.refresh(&key("first")).await.unwrap(), Queued::InWork);
    stop.send(()).unwrap();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert!(!worker.is_finished(), "its request is out");
    origin.open();
    worker.await.unwrap();
    assert_eq!(field(&server, "first", "content").as_deref(), Some("v1"));
    assert_eq!(why(&cache, "second").await, Why::Queued, "it waits for somebody else");
    assert_eq!(origin.calls(), 1);
    assert_eq!(server.command(&["ZSCORE", RANK, "first"]).text(), "101", "what was counted is told");
}

#[tokio::test]
async fn a_worker_that_waits_for_its_turn_gives_the_job_back() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let (cache, _) = refreshing(&server.url(), quick(), &origin).await;
    let slow = pace_of(&server.url(), SECOND * 3_600).await;
    for name in ["a", "b"] {
        leave(&server, name, "old", 200);
        server.command(&["SADD", QUEUE, name]).expect_success();
    }
    let (stop, worker) = start(&cache, &slow);
    let in_work = async || {
        let works = async |name| why(&cache, name).await == Why::InWork;
        works("a").await || works("b").await
    };
    until("one is done and the other waits", async || origin.calls() == 1 && in_work().await).await;
    stop.send(()).unwrap();
    worker.await.unwrap();
    let left = server.command(&["SMEMBERS", QUEUE]).items().len();
    assert_eq!((left, server.command(&["EXISTS", &format!("held:{{{QUEUE}}}")]).int()), (1, 0), "no lease is left");
}

#[tokio::test]
async fn what_is_being_fetched_by_others_is_left_to_them() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let (cache, pace) = refreshing(&server.url(), quick(), &origin).await;
    origin.shut();
    let asking = tokio::spawn({
        let cache = cache.clone();
        async move { get(&cache, "k").await }
    });
    until("it is being fetched", async || origin.calls() == 1).await;
    let _worker = start(&cache, &pace);
    server.command(&["SADD", QUEUE, "k"]).expect_success();
    until("it is put off", async || why(&cache, "k").await == Why::PutOff).await;
    origin.open();
    assert_eq!(asking.await.unwrap(), "v1");
    until("it is fresh now", async || is_idle(&server)).await;
    assert_eq!(origin.calls(), 1);
}

#[tokio::test]
async fn explain_says_all_that_decides() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let exact = Terms { jitter_percent: 0, ..quick() };
    let (cache, _) = refreshing(&server.url(), exact, &origin).await;
    leave(&server, "k", "old", 200);
    server.command(&["ZADD", RANK, "12.5", "k"]).expect_success();
    let explanation = cache.explain(&key("k")).await.unwrap();
    assert_eq!((explanation.tier, explanation.why), (Some(Tier::Shared), Why::Due));
    assert_eq!((explanation.score, explanation.min_score), (Some(12.5), Some(10.0)));
    assert_eq!(explanation.refresh_after_seconds, Some(90.0 * 86_400.0));
    assert!(explanation.age_seconds.unwrap() >= 200.0 * 86_400.0);
    get(&cache, "k").await;
    cache.flush().await;
    until("it is queued", async || why(&cache, "k").await == Why::Queued).await;
    server.command(&["SADD", QUEUE, "stranger"]).expect_success();
    let explanation = cache.explain(&key("k")).await.unwrap();
    assert_eq!((explanation.jobs_before, explanation.queued, explanation.score), (Some(0), Some(2), Some(13.5)));
    assert_eq!(why(&cache, "stranger").await, Why::Queued);
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!((&json["why"], &json["score"]), (&"queued".into(), &13.5.into()));
    until("it is in memory", async || {
        get(&cache, "k").await;
        cache.explain(&key("k")).await.unwrap().tier == Some(Tier::Memory)
    })
    .await;
    let plain = instance(&server.url(), terms(), &origin).await;
    let explanation = plain.explain(&key("k")).await.unwrap();
    assert_eq!((explanation.why, explanation.tier, explanation.score), (Why::Off, Some(Tier::Shared), None));
    assert!(plain.refresh(&key("k")).await.is_err());
}
