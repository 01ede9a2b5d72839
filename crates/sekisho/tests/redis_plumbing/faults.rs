use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use redis::Value;
use sekisho::store::redis::{Error, Options, Redis};
use sekisho_testkit::{Fault, FaultProxy};
use tokio::{task::JoinSet, time::Instant};

use super::{counting, job, patient, proxy::Proxy, quick, read, repeatable, server::Server, until_it_works};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_costs_the_deadline_and_no_more() {
    let server = Server::start();
    let redis = Redis::connect(&server.url(), quick()).await.unwrap();
    let script = counting();
    redis.run(&script, job("k", "")).await.unwrap();
    let stopped = server.stop();
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let (redis, script) = (redis.clone(), script.clone());
        tasks.spawn(async move { redis.run(&script, job("k", "")).await });
    }
    let (mut unknown, mut unavailable) = (0, 0);
    while let Some(task) = tasks.join_next().await {
        match task.unwrap() {
            Err(Error::Unknown { .. }) => unknown += 1,
            Err(Error::Unavailable { .. }) => unavailable += 1,
            other => panic!("{other:?}"),
        }
    }
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(90) && took < Duration::from_millis(400), "{took:?}");
    // Eight were out. Of the others all are known not to have run, but for those whose time was over in the very
    // moment in which their turn came.
    assert!(unknown >= 8 && unavailable >= 20, "{unknown} unknown, {unavailable} unavailable");

    // The connection has been given up, so nothing more is piled on the server, and nobody waits.
    let begin = Instant::now();
    for _ in 0..100 {
        let error = redis.run(&script, job("k", "")).await.unwrap_err();
        assert!(!error.may_have_run(), "{error:?}");
    }
    assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());

    drop(stopped);
    until_it_works(&redis, &script, "k").await;
    let count: i64 = server.query(&["GET", "k"]);
    assert!((2..=10).contains(&count), "1 before, up to 8 unknown, 1 after: {count}");
}

#[tokio::test]
async fn a_killed_server_fails_calls_at_once_and_is_found_again() {
    let mut server = Server::start();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    let script = counting();
    redis.run(&script, job("k", "")).await.unwrap();
    server.kill();
    for _ in 0..20 {
        let begin = Instant::now();
        let error = redis.run(&script, job("k", "")).await.unwrap_err();
        assert!(begin.elapsed() < Duration::from_millis(500), "{:?} for {error}", begin.elapsed());
    }
    server.restart();
    until_it_works(&redis, &script, "k").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_while_idle_fails_no_call() {
    let server = Server::start();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    let script = counting();
    for _ in 0..20 {
        redis.run(&script, job("k", "")).await.unwrap();
        let _: Value = server.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        super::server::wait_until("we are connected again", || {
            let clients: String = server.query(&["CLIENT", "LIST"]);
            clients.lines().count() == 2
        });
        // The server's word comes before ours, by the time of one wake-up.
        while format!("{redis:?}").contains("Connecting") || format!("{redis:?}").contains("Down") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// As one does that is being ended, or whose machine is off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_a_server_that_neither_answers_nor_refuses_a_new_connection_is_not_waited_for() {
    let server = Server::start();
    let proxy = FaultProxy::to(server.port);
    let options = Options { timeout: Duration::from_secs(4), connect_timeout: Duration::from_secs(60), ..quick() };
    let redis = Redis::connect(&proxy.url(), options).await.unwrap();
    redis.run(&counting(), job("k", 1)).await.unwrap();
    proxy.set(Fault::Blackhole);
    proxy.cut();
    let error = until_it_fails(&redis).await;
    assert!(error.to_string().contains("at once"), "{error}");
    proxy.set(Fault::Pass);
}

/// A call may still go out over the connection that is just being lost.
async fn until_it_fails(redis: &Redis) -> Error {
    loop {
        match redis.run(&counting(), job("k", 1)).await {
            Err(error) if !error.may_have_run() => return error,
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_only_a_repeatable_job_is_sent_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.port).await;
    let redis = Redis::connect(&format!("redis://127.0.0.1:{}", proxy.port), patient()).await.unwrap();
    let script = counting();
    redis.run(&script, job("known", "")).await.unwrap();

    proxy.lose_the_next_answer();
    let error = redis.run(&script, job("once", "")).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }) && error.may_have_run(), "{error:?}");
    until_it_works(&redis, &script, "known").await;
    assert_eq!(server.query::<i64>(&["GET", "once"]), 1, "it ran, and must not run again");

    // A connection that lived as long is replaced without a pause, and the repeat need not give up.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    proxy.lose_the_next_answer();
    let answer = redis.run(&script, repeatable(job("twice", ""))).await;
    assert_eq!(read(answer.unwrap()).1, 2, "the script counts, so both times show");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_have_run_is_not_run_again() {
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "no"]);
    let redis = Redis::connect(&server.url(), quick()).await.unwrap();
    let script = counting();
    let (acknowledged, unknown, done) = (AtomicI64::new(0), AtomicI64::new(0), AtomicBool::new(false));
    let shared = Arc::new((acknowledged, unknown, done));
    let mut tasks = JoinSet::new();
    for _ in 0..32 {
        let (redis, script, shared) = (redis.clone(), script.clone(), shared.clone());
        tasks.spawn(async move {
            while !shared.2.load(Ordering::Relaxed) {
                match redis.run(&script, job("n", "")).await {
                    Ok(_) => shared.0.fetch_add(1, Ordering::Relaxed),
                    Err(error) if error.may_have_run() => shared.1.fetch_add(1, Ordering::Relaxed),
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        0
                    }
                };
            }
        });
    }
    for round in 0..6 {
        let before = shared.0.load(Ordering::Relaxed);
        while shared.0.load(Ordering::Relaxed) < before + 500 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        match round % 3 {
            0 => {
                let stopped = server.stop();
                tokio::time::sleep(Duration::from_millis(200)).await;
                drop(stopped);
            }
            1 => drop(server.query::<Value>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])),
            _ => server.restart(),
        }
    }
    shared.2.store(true, Ordering::Relaxed);
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let (acknowledged, unknown) = (shared.0.load(Ordering::Relaxed), shared.1.load(Ordering::Relaxed));
    let count: i64 = server.query(&["GET", "n"]);
    assert!(unknown > 0, "no fault was felt");
    assert!(count >= acknowledged && count <= acknowledged + unknown, "{acknowledged} ≤ {count} ≤ + {unknown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeatable_job_survives_a_cut_connection() {
    let server = Server::start();
    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    let script = counting();
    let done = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (redis, script, done) = (redis.clone(), script.clone(), done.clone());
        tasks.spawn(async move {
            let mut cut_short = 0;
            while !done.load(Ordering::Relaxed) {
                if let Err(error) = redis.run(&script, repeatable(job("n", ""))).await {
                    // Cuts in quick succession make the node pause, and then it must not wait.
                    assert!(matches!(error, Error::Unknown { .. } | Error::Unavailable { .. }), "{error:?}");
                    cut_short += 1;
                }
            }
            cut_short
        });
    }
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let _: Value = server.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    until_it_works(&redis, &script, "other").await;
    done.store(true, Ordering::Relaxed);
    while let Some(task) = tasks.join_next().await {
        assert_eq!(task.unwrap(), 0, "one cut must not be felt");
    }
}

#[tokio::test]
async fn a_server_turned_replica_is_left_and_taken_again() {
    let (server, master) = (Server::start(), Server::start());
    let redis = Redis::connect(&server.url(), quick()).await.unwrap();
    let script = counting();
    redis.run(&script, job("k", "")).await.unwrap();
    let id = |server: &Server| {
        let clients: String = server.query(&["CLIENT", "LIST", "TYPE", "normal"]);
        clients.lines().next().unwrap().split(' ').next().unwrap().to_owned()
    };
    let before = id(&server);
    let _: () = server.query(&["REPLICAOF", "127.0.0.1", &master.port.to_string()]);
    let error = redis.run(&script, job("k", "")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "a replica runs nothing: {error:?}");
    let _: () = server.query(&["REPLICAOF", "NO", "ONE"]);
    let errors = until_it_works(&redis, &script, "k").await;
    assert!(errors.iter().all(|error| !error.may_have_run()), "{errors:?}");
    assert_ne!(id(&server), before, "the connection to the replica was given up");
}

#[tokio::test]
async fn connecting_fails_clearly_and_in_time() {
    let nobody = Redis::connect("redis://:hunter2@127.0.0.1:1", quick()).await.unwrap_err();
    assert!(matches!(nobody, Error::Unavailable { .. }) && nobody.to_string().contains("127.0.0.1:1"), "{nobody}");
    assert!(!format!("{nobody} {nobody:?}").contains("hunter2"));

    let server = Server::start();
    let stopped = server.stop();
    let begin = Instant::now();
    assert!(Redis::connect(&server.url(), quick()).await.is_err());
    assert!(begin.elapsed() < Duration::from_millis(600), "{:?}", begin.elapsed());
    drop(stopped);

    let _: () = server.query(&["ACL", "SETUSER", "alice", "on", ">hunter2", "~*", "+@all"]);
    let with = |credentials: &str| format!("redis://{credentials}@127.0.0.1:{}/2", server.port);
    let redis = Redis::connect(&with("alice:hunter2"), patient()).await.unwrap();
    assert!(!format!("{redis:?}").contains("hunter2"));
    redis.run(&counting(), job("in two", "")).await.unwrap();
    let keyspace: String = server.query(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db2:keys=1"), "{keyspace}");
    let refused = Redis::connect(&with("alice:hunter3"), patient()).await.unwrap_err();
    assert!(!format!("{refused} {refused:?}").contains("hunter3"), "{refused:?}");

    // TLS spoken to a server without it ends in an error, and the provider is there.
    let tls = format!("rediss://127.0.0.1:{}", server.port);
    let error = Redis::connect(&tls, Options { connect_timeout: Duration::from_secs(1), ..quick() }).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}
