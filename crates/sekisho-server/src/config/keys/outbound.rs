//! The keys of `outbound`.

use super::{Fallback, Kind, ON_FAILURE_WORDS, SESSION_STORE, Section, key, section};

pub(in crate::config) static OUTBOUND: Section = section(
    "outbound",
    &[
        key(
            "domains",
            Kind::Text,
            "the policies of domains: a file with `default_policy` and `allowlist`, beside this one or with a path",
        )
        .or(Fallback::Words("200 requests and 100 pages a day for each")),
        key(
            "state",
            Kind::Text,
            "where counts and cooldowns outlive this process while they are kept in memory: a file, beside this one or with a path",
        )
        .or(Fallback::Words("they end with the process")),
        key("store", Kind::One(&SESSION_STORE), "a Redis of their own, such as one that evicts nothing")
            .or(Fallback::Words("the `store` of all")),
        key("on_failure", Kind::Choice(&ON_FAILURE_WORDS), "what is answered while the store does not answer")
            .or(Fallback::Words("that of `store`")),
        key(
            "interval",
            Kind::DurationOrRange,
            "between two requests to one domain: one time, or two to draw from. A domain's `qps` can only make it longer",
        )
        .or(Fallback::Texts(&["1.5s", "5.5s"])),
        key("concurrency", Kind::Whole(0, 1_000_000), "requests to one domain at a time; 0 is any number")
            .or(Fallback::Whole(1)),
        key("max_wait", Kind::Duration, "how far ahead a turn is booked, 0s to 1h").or(Fallback::Text("60s")),
        key(
            "lease",
            Kind::Duration,
            "a request that nobody settles for so long stays charged and is no longer in flight; at least `max_wait` and `timeout` together, up to 24h",
        )
        .or(Fallback::Text("5m")),
        key(
            "allow_addresses",
            Kind::Texts,
            "networks that may be asked though they are private, loopback or link-local",
        )
        .or(Fallback::Texts(&[])),
        key("user_agent", Kind::Text, "who we say we are, also to robots.txt").or(Fallback::Words("`sekisho/` and the version")),
        key("timeout", Kind::Duration, "how long one answer may take, 10ms to 10m").or(Fallback::Text("30s")),
        key("max_bytes", Kind::Size, "the longest body that is fetched into memory, up to 256MiB").or(Fallback::Text("16MiB")),
        key("max_file_bytes", Kind::Size, "the longest body that is fetched to a file, `max_bytes` to 1024GiB")
            .or(Fallback::Text("1GiB")),
        key(
            "cache",
            Kind::Text,
            "which of `caches` keeps what was fetched, so that its server can say that it has not changed: one with a `key` of one part and without `origin`",
        )
        .or(Fallback::Words("64 MiB in this process")),
    ],
);
