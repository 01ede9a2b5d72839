use std::{sync::Arc, time::Duration};

use redis::Value;
use sekisho::store::redis::{Error, Options, Redis, Script};
use tokio::task::JoinSet;

use super::{counting, job, patient, read, server::Server};

#[tokio::test]
async fn a_lone_caller_is_served_alone() {
    let server = Server::start();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    let script = counting();
    for expected in 1..=10 {
        assert_eq!(read(redis.run(&script, job("k", "x")).await.unwrap()), ("x".into(), expected));
    }
    assert!(!redis.is_cluster());
    assert_eq!(server.calls("evalsha"), 10);
    assert_eq!(server.calls("eval"), 1, "the first call taught the server the script");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_callers_share_calls_and_each_gets_its_own_answer() {
    let server = Server::start();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    let (script, other) = (counting(), Arc::new(Script::new(counting().source().to_owned() + " -- other")));
    let mut tasks = JoinSet::new();
    for number in 0..1000 {
        let (redis, script) = (redis.clone(), if number % 3 == 0 { other.clone() } else { script.clone() });
        tasks.spawn(async move {
            for turn in 1..=5 {
                let answer = redis.run(&script, job(format!("k{number}"), number)).await.unwrap();
                assert_eq!(read(answer), (number.to_string(), turn));
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let calls = server.calls("evalsha") + server.calls("eval");
    assert!(calls < 5000 / 4, "{calls} calls for 5000 jobs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_are_loaded_again_and_no_job_is_lost_or_counted_twice() {
    let server = Server::start();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    let script = counting();
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let (redis, script) = (redis.clone(), script.clone());
        tasks.spawn(async move {
            for _ in 0..50 {
                redis.run(&script, job("all", "")).await.unwrap();
            }
        });
    }
    let mut connection = server.connection();
    while !tasks.is_empty() {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
        if let Ok(Some(task)) = tokio::time::timeout(Duration::from_millis(1), tasks.join_next()).await {
            task.unwrap();
        }
    }
    assert_eq!(server.query::<i64>(&["GET", "all"]), 5000);
    assert!(server.calls("eval") > 1, "the flush was felt");
}

#[tokio::test]
async fn one_bad_job_fails_alone_and_a_bad_script_fails_all() {
    let server = Server::start();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    let picky = Arc::new(Script::new(
        "local out = {}
         for i, arg in ipairs(ARGV) do
           if arg == 'bad' then out[i] = redis.error_reply('NOPE not this one') else out[i] = arg end
         end
         return out",
    ));
    let jobs = (0..100).map(|number| {
        let (redis, picky) = (redis.clone(), picky.clone());
        async move { redis.run(&picky, job("k", if number % 10 == 0 { "bad" } else { "good" })).await }
    });
    for (number, answer) in join_all(jobs).await.into_iter().enumerate() {
        match answer {
            Ok(value) => assert!(number % 10 != 0 && value == Value::BulkString(b"good".to_vec())),
            Err(Error::Server { code, message }) => {
                assert_eq!((number % 10, code.as_str(), message.as_str()), (0, "NOPE", "not this one"));
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    let broken = Arc::new(Script::new("error('oh no')"));
    let short = Arc::new(Script::new("return {}"));
    let runs = (0..50).map(|_| redis.run(&broken, job("k", "")));
    for answer in join_all(runs).await {
        assert!(matches!(answer, Err(ref error @ Error::Server { .. }) if error.may_have_run()), "{answer:?}");
    }
    assert!(matches!(redis.run(&short, job("k", "")).await, Err(Error::BadReply { .. })));
}

#[tokio::test]
async fn callers_that_go_away_neither_strand_others_nor_keep_places() {
    let server = Server::start();
    let options = Options { in_flight: 2, batch: 4, ..patient() };
    let redis = Redis::connect(&server.url(), options).await.unwrap();
    let script = counting();
    redis.run(&script, job("k", "")).await.unwrap();
    for round in 0..20 {
        // The server stands still, so some are out and the others wait; every second one is then dropped.
        let stopped = server.stop();
        let mut staying = JoinSet::new();
        let mut leaving = Vec::new();
        for number in 0..40 {
            let (redis, script) = (redis.clone(), script.clone());
            let key = format!("k{round}:{number}");
            let task = async move { redis.run(&script, job(key, "")).await };
            if number % 2 == 0 { leaving.push(tokio::spawn(task)) } else { drop(staying.spawn(task)) }
        }
        tokio::task::yield_now().await;
        for task in leaving {
            task.abort();
        }
        drop(stopped);
        while let Some(task) = staying.join_next().await {
            task.unwrap().unwrap();
        }
        let ran = (0..20).filter(|at| server.query(&["EXISTS", &format!("k{round}:{}", at * 2)])).count();
        assert!(ran <= 2, "{ran} jobs ran that had been withdrawn before they were sent");
    }
    assert!(format!("{redis:?}").contains("127.0.0.1"));
    redis.run(&script, job("k", "")).await.unwrap();
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let server = Server::start();
    let options = Options { in_flight: 1, queue: 10, ..patient() };
    let redis = Redis::connect(&server.url(), options).await.unwrap();
    let script = counting();
    let stopped = server.stop();
    let mut tasks = JoinSet::new();
    for _ in 0..31 {
        let (redis, script) = (redis.clone(), script.clone());
        tasks.spawn(async move { redis.run(&script, job("k", "")).await });
    }
    for _ in 0..20 {
        let refused = tasks.join_next().await.unwrap().unwrap();
        assert!(matches!(refused, Err(ref error @ Error::Overloaded) if !error.may_have_run()), "{refused:?}");
    }
    drop(stopped);
    while let Some(task) = tasks.join_next().await {
        task.unwrap().unwrap();
    }
    assert_eq!(server.query::<i64>(&["GET", "k"]), 11);
}

#[test]
fn what_is_run_later_runs_on_the_runtime_of_the_connection() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let redis = runtime.block_on(Redis::connect(&server.url(), patient())).unwrap();
    // Here, outside of it, there is no runtime.
    for _ in 0..100 {
        let caller = redis.clone();
        redis.later(async move { caller.run(&counting(), job("later", "")).await });
    }
    super::server::wait_until("all of them ran", || server.query::<Option<i64>>(&["GET", "later"]) == Some(100));
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (future, output) in &mut futures {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}
