//! Threads with connections of their own.

use std::time::Duration;

use redis::Value;
use sekisho::store::redis::{Error, Job, Redis, keep_to_this_thread};
use tokio::{task::JoinSet, time::Instant};

use super::{counting, job, patient, quick, read, server::Server, until_it_works};

fn any_order(mut job: Job) -> Job {
    job.any_order = true;
    job
}

/// The clients that the server has, by their numbers and in order, besides the one that asks.
fn clients(server: &Server) -> Vec<u64> {
    let list: String = server.query(&["CLIENT", "LIST"]);
    let id = |line: &str| line.strip_prefix("id=")?.split(' ').next()?.parse().ok();
    let mut clients: Vec<u64> = list.lines().filter_map(id).collect();
    clients.pop();
    clients
}

/// Asks until the thread has got its connection.
async fn warm(redis: &Redis, server: &Server) {
    for _ in 0..1000 {
        redis.run(&counting(), any_order(job("warm", ""))).await.unwrap();
        if clients(server).len() == 2 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the thread got no connection");
}

#[tokio::test]
async fn what_a_thread_asks_at_once_goes_out_together() {
    let server = Server::start();
    keep_to_this_thread();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    warm(&redis, &server).await;
    let (script, before) = (counting(), server.calls("evalsha"));
    let mut tasks = JoinSet::new();
    for number in 0..60 {
        let (redis, script) = (redis.clone(), script.clone());
        tasks.spawn(async move {
            for turn in 1..=50 {
                let answer = redis.run(&script, any_order(job(format!("k{number}"), number))).await.unwrap();
                assert_eq!(read(answer), (number.to_string(), turn));
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let calls = server.calls("evalsha") - before;
    assert!(calls < 3000 / 10, "{calls} calls for 3000 jobs");
}

#[tokio::test]
async fn what_is_ordered_keeps_to_the_main_connection() {
    let server = Server::start();
    keep_to_this_thread();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    // Many more round trips than a connection takes to be made.
    for _ in 0..1000 {
        redis.run(&counting(), job("k", "")).await.unwrap();
    }
    assert_eq!(clients(&server).len(), 1);
}

#[tokio::test]
async fn a_thread_that_loses_its_connection_asks_over_the_main_one() {
    let server = Server::start();
    keep_to_this_thread();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    warm(&redis, &server).await;
    let [main, own] = clients(&server)[..] else { panic!("two connections") };
    let _: Value = server.query(&["CLIENT", "KILL", "ID", &own.to_string()]);
    // It hears of it while it waits for anything.
    for _ in 0..20 {
        redis.run(&counting(), job("k", "")).await.unwrap();
    }
    for _ in 0..20 {
        redis.run(&counting(), any_order(job("k", ""))).await.unwrap();
    }
    assert_eq!(clients(&server), [main]);
    warm(&redis, &server).await;
    assert_eq!(clients(&server)[0], main, "the main one was never in doubt");
}

#[tokio::test]
async fn a_thread_finds_a_server_again_that_was_killed() {
    let mut server = Server::start();
    keep_to_this_thread();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    warm(&redis, &server).await;
    server.kill();
    for _ in 0..20 {
        let begin = Instant::now();
        let error = redis.run(&counting(), any_order(job("k", ""))).await.unwrap_err();
        assert!(begin.elapsed() < Duration::from_millis(500), "{:?} for {error}", begin.elapsed());
    }
    server.restart();
    until_it_works(&redis, &counting(), "k").await;
    warm(&redis, &server).await;
}

#[tokio::test]
async fn a_server_that_stands_still_costs_a_thread_the_deadline_and_no_more() {
    let server = Server::start();
    keep_to_this_thread();
    let redis = Redis::connect(&server.url(), quick()).await.unwrap();
    warm(&redis, &server).await;
    let (script, stopped, begin) = (counting(), server.stop(), Instant::now());
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let (redis, script) = (redis.clone(), script.clone());
        tasks.spawn(async move { redis.run(&script, any_order(job("k", ""))).await });
    }
    let mut unknown = 0;
    while let Some(task) = tasks.join_next().await {
        match task.unwrap() {
            Err(Error::Unknown { .. }) => unknown += 1,
            Err(Error::Unavailable { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(begin.elapsed() < Duration::from_millis(400), "{:?}", begin.elapsed());
    // Those in the call that was out, half of all. Of the others all are known not to have run, but for those whose time was over in
    // the very moment in which their turn came.
    assert!((50..90).contains(&unknown), "{unknown} unknown");

    let begin = Instant::now();
    for _ in 0..100 {
        let error = redis.run(&script, any_order(job("k", ""))).await.unwrap_err();
        assert!(!error.may_have_run(), "{error:?}");
    }
    assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());
    drop(stopped);
    until_it_works(&redis, &script, "other").await;
    assert!(server.query::<Option<i64>>(&["GET", "k"]).unwrap_or(0) <= unknown);
}

#[tokio::test]
async fn callers_of_a_thread_that_go_away_strand_nobody() {
    let server = Server::start();
    keep_to_this_thread();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    warm(&redis, &server).await;
    let script = counting();
    for round in 0..20 {
        let mut staying = JoinSet::new();
        let mut leaving = Vec::new();
        for number in 0..40 {
            let (redis, script) = (redis.clone(), script.clone());
            let key = format!("k{round}:{number}");
            let task = async move { redis.run(&script, any_order(job(key, ""))).await };
            if number % 2 == 0 { leaving.push(tokio::spawn(task)) } else { drop(staying.spawn(task)) }
        }
        // All have asked, and what sends it comes after them.
        tokio::task::yield_now().await;
        leaving.iter().for_each(tokio::task::JoinHandle::abort);
        while let Some(task) = staying.join_next().await {
            task.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn nothing_overtakes_a_job_that_comes_before_others() {
    let server = Server::start();
    keep_to_this_thread();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    warm(&redis, &server).await;
    let script = counting();
    for round in 1..=200 {
        let mut first = job("k", "first");
        first.before_others = true;
        let (first, second) =
            tokio::join!(redis.run(&script, first), redis.run(&script, any_order(job("k", "second"))));
        assert_eq!((read(first.unwrap()).1, read(second.unwrap()).1), (round * 2 - 1, round * 2));
    }
}
