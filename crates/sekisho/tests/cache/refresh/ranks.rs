//! Scores: counted, decaying, bounded, and never in the way of others.

use std::sync::Arc;

use sekisho::cache::refresh::{Decay, Ranking, RefreshStore as _};
use sekisho::clock::{Clock, ManualClock, WallClock};
use sekisho_testkit::RedisServer;

use super::{DAY, RANK, START, count, decay, everywhere, forward, key, keys, on_redis, score};

fn is_near(score: f64, expected: f64) -> bool {
    (score - expected).abs() <= 1e-9 * expected.max(1.0)
}

#[tokio::test]
async fn increment_score() {
    everywhere(&[Ranking::default(), forward()], async |name, store, _| {
        assert_eq!(score(store, "15:1:2").await, 0.0, "{name}");
        assert!(is_near(count(store, "15:1:2", 1).await, 1.0), "{name}");
        let scores = store.count(&[(key("15:1:2"), 2), (key("15:1:3"), 5)]).await.unwrap();
        assert!(is_near(scores[0], 3.0) && is_near(scores[1], 5.0), "{name}: {scores:?}");
        let scores = store.scores(&keys(&["15:1:3", "15:9:9", "15:1:2"])).await.unwrap();
        assert!(is_near(scores[0], 5.0) && scores[1] == 0.0 && is_near(scores[2], 3.0), "{name}: {scores:?}");
    })
    .await;
}

#[tokio::test]
async fn decay_algorithm_tells_the_same_scores_on_every_store() {
    everywhere(&[Ranking::default(), forward()], async |name, store, clock| {
        let mut expected = [0.0_f64; 3];
        decay(store).await;
        for day in 0..40_u64 {
            for (who, score) in expected.iter_mut().enumerate() {
                let accesses = (day * 7 + who as u64 * 3) % 5;
                *score += accesses as f64;
                count(store, &format!("k{who}"), accesses).await;
            }
            clock.advance(DAY);
            decay(store).await;
            // Often is as good as once.
            decay(store).await;
            expected = expected.map(|score| score * 0.95);
            for (who, expected) in expected.iter().enumerate() {
                let score = score(store, &format!("k{who}")).await;
                assert!(is_near(score, *expected), "{name}, day {day}: {score} for {expected}");
            }
        }
        // Days on which nobody was there count as well.
        clock.advance(DAY * 30);
        decay(store).await;
        let score = score(store, "k1").await;
        assert!(is_near(score, expected[1] * 0.95_f64.powi(30)), "{name}: {score}");
    })
    .await;
}

#[tokio::test]
async fn what_has_decayed_to_nothing_goes() {
    everywhere(&[Ranking::default(), forward()], async |name, store, clock| {
        decay(store).await;
        count(store, "once", 1).await;
        count(store, "often", 1_000).await;
        clock.advance(DAY * 89);
        decay(store).await;
        assert!(score(store, "once").await > 0.01, "{name}");
        clock.advance(DAY);
        decay(store).await;
        assert_eq!(score(store, "once").await, 0.0, "{name}");
        assert!(is_near(score(store, "often").await, 1_000.0 * 0.95_f64.powi(90)), "{name}");
    })
    .await;
}

#[tokio::test]
async fn the_lowest_go_when_there_are_too_many() {
    let few = [Decay::Seed, Decay::Forward].map(|decay| Ranking { decay, most: 100, ..Ranking::default() });
    everywhere(&few, async |name, store, _| {
        let accesses: Vec<_> = (1..=400_u64).map(|n| (key(&format!("k{n}")), n)).collect();
        store.count(&accesses).await.unwrap();
        super::decay(store).await;
        let all: Vec<_> = accesses.iter().map(|(key, _)| key.clone()).collect();
        let scores = store.scores(&all).await.unwrap();
        let left = scores.iter().filter(|score| **score > 0.0).count();
        assert!((80..=100).contains(&left), "{name}: {left}");
        assert!(scores[..400 - left].iter().all(|score| *score == 0.0), "{name}: the lowest");
    })
    .await;
}

/// The seed's own set: scores written by ZINCRBY, read by ZSCORE.
#[tokio::test]
async fn older_clients_share_the_set() {
    let server = RedisServer::start();
    let clock = ManualClock::at(START);
    let store = on_redis(&server.url(), Ranking::default(), Arc::new(clock.clone())).await;
    server.command(&["ZINCRBY", RANK, "40", "15:1:2"]).expect_success();
    decay(&store).await;
    assert_eq!(server.command(&["ZSCORE", RANK, "15:1:2"]).text(), "40", "nobody knows how old it is");
    assert!(is_near(count(&store, "15:1:2", 2).await, 42.0));
    clock.advance(DAY);
    decay(&store).await;
    assert!(is_near(server.command(&["ZSCORE", RANK, "15:1:2"]).text().parse().unwrap(), 42.0 * 0.95));
    // From one way to the other and back, scores go on.
    let weighed = on_redis(&server.url(), forward(), Arc::new(clock.clone())).await;
    assert!(is_near(count(&weighed, "15:1:2", 1).await, 42.0 * 0.95 + 1.0));
    clock.advance(DAY);
    assert!(is_near(score(&weighed, "15:1:2").await, (42.0 * 0.95 + 1.0) * 0.95));
    count(&weighed, "15:1:2", 1).await;
    decay(&store).await;
    assert!(is_near(score(&store, "15:1:2").await, (42.0 * 0.95 + 1.0) * 0.95 + 1.0));
}

/// Whoever decays may die at any call, others may be at it as well, and accesses go on: no score loses twice, or not at all.
#[tokio::test]
async fn a_decay_that_was_left_half_done_goes_on() {
    let server = RedisServer::start();
    let clock = ManualClock::at(START);
    let store = on_redis(&server.url(), Ranking::default(), Arc::new(clock.clone())).await;
    decay(&store).await;
    let all: Vec<_> = (0..2_000).map(|n| key(&format!("15:{n}:7"))).collect();
    for batch in all.chunks(100) {
        store.count(&batch.iter().map(|key| (key.clone(), 100)).collect::<Vec<_>>()).await.unwrap();
    }
    clock.advance(DAY);
    for _ in 0..5 {
        assert!(store.decay().await.unwrap());
    }
    let untouched = |scores: &[f64]| scores.iter().filter(|score| **score == 100.0).count();
    let half = store.scores(&all).await.unwrap();
    assert!((1..2_000).contains(&untouched(&half)), "it is half done: {}", untouched(&half));
    // The next one knows nothing but what Redis has. New members make the table grow under the scan.
    let next = on_redis(&server.url(), Ranking::default(), Arc::new(clock.clone())).await;
    let mut more = 0;
    while next.decay().await.unwrap() {
        if more < 4_000 {
            let accesses: Vec<_> = (more..more + 100).map(|n| (key(&format!("16:{n}:7")), 1)).collect();
            next.count(&accesses).await.unwrap();
            more += 100;
        }
        let _ = store.decay().await.unwrap();
    }
    let scores = store.scores(&all).await.unwrap();
    let wrong: Vec<_> = scores.iter().filter(|score| !is_near(**score, 95.0)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(server.command(&["EXISTS", &format!("decayed:{{{RANK}}}")]).int(), 0);
}

/// The seed asks that a large set does not block Redis. How long a batch takes is the machine's; how much it touches is ours.
#[tokio::test]
async fn large_dataset_scan() {
    const MEMBERS: i64 = 50_000;
    let server = RedisServer::start();
    let script = "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], i, '15:' .. i .. ':7') end";
    server.command(&["EVAL", script, "1", RANK, &MEMBERS.to_string()]).expect_success();
    let clock = ManualClock::at(START);
    let store = on_redis(&server.url(), Ranking { floor: 1.0, ..Ranking::default() }, Arc::new(clock.clone())).await;
    decay(&store).await;
    clock.advance(DAY);
    let calls = |name: &str| {
        let stats = server.command(&["INFO", "commandstats"]).text();
        let line =
            stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")).map(str::to_owned));
        line.map_or(0, |line| line.split(',').next().unwrap().parse::<i64>().unwrap())
    };
    let mut most = 0;
    loop {
        let before = calls("zadd");
        let is_more = store.decay().await.unwrap();
        most = most.max(calls("zadd") - before);
        if !is_more {
            break;
        }
        // Nobody needs to look at all of them: the first fiftieth, and then the rest in one go.
        if most > 0 && before > MEMBERS + MEMBERS / 50 {
            decay(&store).await;
        }
    }
    assert!((1..=200).contains(&most), "one call went through {most} members");
    assert_eq!(server.command(&["ZCARD", RANK]).int(), MEMBERS - 1, "only the first has come to nothing");
    assert!(is_near(score(&store, "15:50000:7").await, 47_500.0));
    assert!(is_near(score(&store, "15:2:7").await, 1.9));
}

#[tokio::test]
async fn script_atomicity() {
    let server = RedisServer::start();
    let clock: Arc<dyn Clock> = Arc::new(WallClock::new());
    let store = Arc::new(on_redis(&server.url(), Ranking::default(), clock).await);
    // Many who count, with others that write the same member: nothing is lost between reading and writing.
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for _ in 0..50 {
                count(&*store, "k", 1).await;
            }
        });
    }
    for _ in 0..100 {
        server.command(&["ZINCRBY", RANK, "1", "k"]).expect_success();
        tokio::task::yield_now().await;
    }
    tasks.join_all().await;
    assert!(is_near(score(&*store, "k").await, 500.0));
}

/// While all of them decay, some are counted. Of each the accesses before its own decay are less by it and those after it are
/// not, and that is all: what lies between reading and writing a score would be a part of an access.
#[tokio::test]
async fn script_atomicity_while_scores_decay() {
    const BEFORE: u64 = 1_000;
    const MORE: u64 = 40;
    let server = RedisServer::start();
    let clock = ManualClock::at(START);
    let ranking = Ranking { factor: 0.93, ..Ranking::default() };
    let store = Arc::new(on_redis(&server.url(), ranking, Arc::new(clock.clone())).await);
    decay(&*store).await;
    let all: Vec<_> = (0..2_000).map(|n| (key(&format!("15:{n}:7")), BEFORE)).collect();
    store.count(&all).await.unwrap();
    clock.advance(DAY);
    let watched: Vec<_> = all.iter().step_by(50).map(|(key, _)| key.clone()).collect();
    let counting = tokio::spawn({
        let (store, watched) = (Arc::clone(&store), watched.clone());
        async move {
            for _ in 0..MORE {
                store.count(&watched.iter().map(|key| (key.clone(), 1)).collect::<Vec<_>>()).await.unwrap();
            }
        }
    });
    let decaying = tokio::spawn({
        let store = Arc::clone(&store);
        async move { decay(&*store).await }
    });
    counting.await.unwrap();
    decaying.await.unwrap();
    let whole = BEFORE as f64 * ranking.factor + MORE as f64;
    let mut between = 0;
    for score in store.scores(&watched).await.unwrap() {
        let early = (whole - score) / (1.0 - ranking.factor);
        assert!((early - early.round()).abs() < 1e-6 && (0.0..=MORE as f64).contains(&early.round()), "{score}");
        between += u64::from(early.round() > 0.0 && early.round() < MORE as f64);
    }
    assert!(between > 0, "no access came between");
}

#[tokio::test]
async fn among_very_many_fewer_are_told_of_at_once() {
    let server = RedisServer::start();
    let store = on_redis(&server.url(), Ranking::default(), Arc::new(WallClock::default())).await;
    let unknown = store.count_at_once();
    count(&store, "k", 1).await;
    let few = store.count_at_once();
    let fill = "for i = 1, 100000 do redis.call('ZADD', KEYS[1], i, 'k' .. i) end";
    server.command(&["EVAL", fill, "1", RANK]).expect_success();
    count(&store, "k", 1).await;
    let many = store.count_at_once();
    assert!(many < few && unknown == many, "{unknown} before anything is known, {few} among one, {many} among 100,001");
}
