use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::Value;
use sekisho::store::redis::{Error, Redis, Script, key_slot};
use tokio::task::JoinSet;

use super::{
    counting, job, job_of, patient, quick, read,
    server::{Cluster, wait_until},
    until_it_works,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_go_to_the_owner_of_their_slot() {
    let cluster = Cluster::start(3);
    let redis = Redis::connect(&cluster.url(), patient()).await.unwrap();
    assert!(redis.is_cluster());
    let script = counting();
    let mut tasks = JoinSet::new();
    for number in 0..300 {
        let (redis, script) = (redis.clone(), script.clone());
        tasks.spawn(async move {
            for turn in 1..=3 {
                let answer = redis.run(&script, job(format!("k{{{number}}}"), number)).await.unwrap();
                assert_eq!(read(answer), (number.to_string(), turn));
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let sizes: Vec<i64> = cluster.servers.iter().map(|server| server.query(&["DBSIZE"])).collect();
    assert!(sizes.iter().sum::<i64>() == 300 && sizes.iter().all(|&size| size > 50), "{sizes:?}");
    for server in &cluster.servers {
        let errors: String = server.query(&["INFO", "errorstats"]);
        assert!(!errors.contains("MOVED") && !errors.contains("CROSSSLOT"), "{errors}");
    }
    let pongs = redis.command_all(redis::cmd("PING")).await.unwrap();
    assert_eq!(pongs, vec![Value::SimpleString("PONG".into()); 3]);
    redis.command_all(redis::cmd("FLUSHDB")).await.unwrap();
    assert!(cluster.servers.iter().all(|server| server.query::<i64>(&["DBSIZE"]) == 0));

    let error = redis.run(&script, job_of(["a", "b"], "")).await.unwrap_err();
    assert!(matches!(&error, Error::Server { code, .. } if code == "CROSSSLOT") && !error.may_have_run(), "{error:?}");
}

#[tokio::test]
async fn slots_are_those_of_the_server() {
    let cluster = Cluster::start(1);
    let mut connection = cluster.servers[0].connection();
    let odd = ["", "{", "}", "{}", "a{}b", "{a}b", "x{{y}}z", "{a}{b}", "a{b", "a}b{c}", "{\u{1F980}}"];
    let random = (0..500).map(|_| {
        let bytes: [u8; 12] = rand::random();
        let bytes = bytes.map(|byte| {
            if byte < 40 {
                b'{'
            } else if byte < 80 {
                b'}'
            } else {
                byte
            }
        });
        bytes[..usize::from(rand::random::<u8>() % 13)].to_vec()
    });
    for key in odd.iter().map(|key| key.as_bytes().to_vec()).chain(random) {
        let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(&key).query(&mut connection).unwrap();
        assert_eq!(key_slot(&key), slot, "{key:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_fail_no_call() {
    let cluster = Cluster::start(3);
    let redis = Redis::connect(&cluster.url(), patient()).await.unwrap();
    let script = counting();
    let slot = key_slot(b"moving");
    let done = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for number in 0..40 {
        let (redis, script, done) = (redis.clone(), script.clone(), done.clone());
        tasks.spawn(async move {
            let (mut turn, key) = (0, format!("{{moving}}{number}"));
            while !done.load(Ordering::Relaxed) {
                turn += 1;
                let answer = redis.run(&script, job(key.as_bytes(), number)).await.unwrap();
                assert_eq!(read(answer), (number.to_string(), turn));
            }
            turn
        });
    }
    // Two keys of one job may be apart for a while, and then neither server takes the job.
    let pairs = Arc::new(Script::new(
        "local out = {}
         for i = 1, #KEYS, 2 do out[#out + 1] = redis.call('INCR', KEYS[i]) + redis.call('INCR', KEYS[i + 1]) end
         return out",
    ));
    for number in 0..10 {
        let (redis, pairs, done) = (redis.clone(), pairs.clone(), done.clone());
        tasks.spawn(async move {
            let mut turn = 0;
            while !done.load(Ordering::Relaxed) {
                turn += 1;
                let keys = ["a", "b"].map(|key| format!("{{moving}}{key}{number}").into_bytes());
                let answer = redis.run(&pairs, job_of(keys, "")).await.unwrap();
                assert_eq!(answer, Value::Int(2 * turn));
            }
            turn
        });
    }
    let cluster = Arc::new(cluster);
    let moved = cluster.clone();
    tokio::task::spawn_blocking(move || {
        let mut at = moved.owner(slot);
        for _ in 0..6 {
            let next = (at + 1) % 3;
            moved.migrate(slot, at, next, || std::thread::sleep(Duration::from_millis(2)));
            at = next;
        }
    })
    .await
    .unwrap();
    done.store(true, Ordering::Relaxed);
    let mut turns = 0;
    while let Some(task) = tasks.join_next().await {
        turns += task.unwrap();
    }
    assert!(turns > 500, "{turns}");
    let errors: String = cluster.servers.iter().map(|server| server.query::<String>(&["INFO", "errorstats"])).collect();
    assert!(["MOVED", "ASK", "TRYAGAIN"].iter().all(|code| errors.contains(code)), "not all were met: {errors}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_on_cluster_are_loaded_again() {
    let cluster = Cluster::start(2);
    let redis = Redis::connect(&cluster.url(), patient()).await.unwrap();
    let script = counting();
    let mut tasks = JoinSet::new();
    for number in 0..100 {
        let (redis, script) = (redis.clone(), script.clone());
        tasks.spawn(async move {
            for turn in 1..=30 {
                let answer = redis.run(&script, job(format!("k{number}"), "")).await.unwrap();
                assert_eq!(read(answer).1, turn);
            }
        });
    }
    let mut connections: Vec<_> = cluster.servers.iter().map(|server| server.connection()).collect();
    while !tasks.is_empty() {
        for connection in &mut connections {
            redis::cmd("SCRIPT").arg("FLUSH").exec(connection).unwrap();
        }
        if let Ok(Some(task)) = tokio::time::timeout(Duration::from_millis(1), tasks.join_next()).await {
            task.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_master_fails_only_its_own_slots_and_comes_back() {
    let mut cluster = Cluster::start(3);
    for server in &cluster.servers {
        let _: () = server.query(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let redis = Redis::connect(&cluster.url(), quick()).await.unwrap();
    let script = counting();
    let key_of = |server: usize| {
        (0..).map(|number| format!("k{number}")).find(|key| cluster.owner(key_slot(key.as_bytes())) == server).unwrap()
    };
    let keys = [key_of(0), key_of(1), key_of(2)];
    for key in &keys {
        redis.run(&script, job(key.as_bytes(), "")).await.unwrap();
    }
    cluster.servers[1].kill();
    let mut failed = 0;
    for _ in 0..50 {
        redis.run(&script, job(keys[0].as_bytes(), "")).await.unwrap();
        redis.run(&script, job(keys[2].as_bytes(), "")).await.unwrap();
        failed += u32::from(redis.run(&script, job(keys[1].as_bytes(), "")).await.is_err());
    }
    assert_eq!(failed, 50);
    cluster.servers[1].restart();
    until_it_works(&redis, &script, &keys[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_under_load_fails_no_call() {
    let mut cluster = Cluster::start(3);
    cluster.add_replica(0);
    let redis = Redis::connect(&cluster.url(), patient()).await.unwrap();
    let script = counting();
    let done = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for number in 0..40 {
        let (redis, script, done) = (redis.clone(), script.clone(), done.clone());
        tasks.spawn(async move {
            let mut turn = 0;
            while !done.load(Ordering::Relaxed) {
                turn += 1;
                let answer = redis.run(&script, job(format!("k{number}"), number)).await.unwrap();
                assert_eq!(read(answer), (number.to_string(), turn));
            }
        });
    }
    let _: () = cluster.servers[3].query(&["CLUSTER", "FAILOVER"]);
    wait_until("the replica is the master, and the master its replica", || {
        let role = |server: usize| cluster.servers[server].query::<String>(&["INFO", "replication"]);
        role(3).contains("role:master") && role(0).contains("master_link_status:up")
    });
    done.store(true, Ordering::Relaxed);
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}
