//! Benchmarks side by side with peers: `cargo xtask bench limits`, `cargo xtask bench doors`, `cargo xtask bench sessions`,
//! `cargo xtask bench cache`, `cargo xtask bench outbound`, `cargo xtask bench attack`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints its table, and stops where it fails")]

mod attack;
mod cache;
mod doors;
mod keys;
mod limits_memory;
mod limits_redis;
mod measure;
mod outbound;
mod sessions;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["limits"] => {
            limits_memory::run();
            limits_redis::run()
        }
        ["limits", "memory"] => {
            limits_memory::run();
            Ok(())
        }
        ["limits", "redis"] => limits_redis::run(),
        ["limits", "profile", what, tasks] => limits_redis::profile(what, tasks.parse()?),
        ["limits", "count", who, subjects] => limits_memory::profile(who, subjects.parse()?),
        ["attack", arguments @ ..] => attack::run(arguments),
        ["cache", which @ ..] => cache::run(which),
        ["doors", which @ ..] => {
            doors::run(which);
            Ok(())
        }
        ["sessions", which @ ..] => sessions::run(which),
        ["outbound", which @ ..] => outbound::run(which),
        ["serve", what, port] => doors::trivial::serve(what, port.parse()?),
        ["churn", who] => {
            limits_memory::churn(who);
            Ok(())
        }
        ["bytes", "revocations"] => sessions::revocation::bytes(),
        ["bytes", who] => {
            limits_memory::bytes(who);
            Ok(())
        }
        _ => anyhow::bail!(
            "usage: cargo xtask bench limits [memory|redis] | attack [--times N] | doors [check|redis|grpc|respond|proxy|latency|footprint] | sessions [revocation|tokens|store|logout|propagation] | cache [hit|ratio|herd|elevation|refresh|rank] | outbound [durable|memory|known|acquire|redis|lookup]"
        ),
    }
}
