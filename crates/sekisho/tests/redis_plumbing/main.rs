//! The Redis plumbing against real servers that are flushed, stopped, killed and moved about.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

mod cluster;
mod coalescing;
mod faults;
mod lanes;
mod proxy;
mod server;

use std::{sync::Arc, time::Duration};

use redis::Value;
use sekisho::store::redis::{Error, Job, Options, Redis, Script};

/// Counts one up per job in the job's one key, and answers with the job's one argument and the count.
fn counting() -> Arc<Script> {
    Arc::new(Script::new(
        "local out = {}
         for i, key in ipairs(KEYS) do out[i] = {ARGV[i], redis.call('INCR', key)} end
         return out",
    ))
}

fn job(key: impl Into<Vec<u8>>, argument: impl ToString) -> Job {
    job_of([key], argument)
}

fn job_of<K: Into<Vec<u8>>>(keys: impl IntoIterator<Item = K>, argument: impl ToString) -> Job {
    let mut job = Job::default();
    for key in keys {
        job.add_key(|bytes| bytes.extend(key.into()));
    }
    job.add_argument(|bytes| bytes.extend(argument.to_string().into_bytes()));
    job
}

fn repeatable(mut job: Job) -> Job {
    job.repeatable = true;
    job
}

/// Time enough that a busy machine does not fail a test that is not about time.
fn patient() -> Options {
    Options { timeout: Duration::from_secs(5), connect_timeout: Duration::from_secs(5), ..Options::default() }
}

fn quick() -> Options {
    Options { timeout: Duration::from_millis(100), ..Options::default() }
}

/// The argument and the count that `counting` answers with.
fn read(value: Value) -> (String, i64) {
    redis::from_redis_value(value).unwrap()
}

/// Calls until one succeeds; the servers are back, and only the connection may still have to follow.
async fn until_it_works(redis: &Redis, script: &Arc<Script>, key: &str) -> Vec<Error> {
    let mut errors = Vec::new();
    for _ in 0..2000 {
        match redis.run(script, job(key, "")).await {
            Ok(_) => return errors,
            Err(error) => errors.push(error),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never worked again: {:?}", errors.last());
}
