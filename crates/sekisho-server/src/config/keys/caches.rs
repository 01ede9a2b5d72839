//! The keys of `caches` and what is below it.

use super::super::caches::{COMPRESSIONS, DECAYS, POLICIES, SHAPES};
use super::super::preset::PRESETS;
use super::{Fallback, Kind, SECRET, Section, key, section, words};

const COMPRESSION_WORDS: [&str; 2] = words(&COMPRESSIONS);
const SHAPE_WORDS: [&str; 2] = words(&SHAPES);
const DECAY_WORDS: [&str; 2] = words(&DECAYS);
const PRESET_WORDS: [&str; 1] = words(&PRESETS);
const POLICY_WORDS: [&str; 2] = words(&POLICIES);

pub(in crate::config) static CACHES: Section = section(
    "caches",
    &[
        key(
            "key",
            Kind::Text,
            "where values stand in Redis, with the parts of a key: `\"tiles:{z}:{x}:{y}\"`. It begins with text, and no other cache's begins with the same",
        )
        .or(Fallback::Words("that of its `preset`; without one it is needed")),
        key(
            "preset",
            Kind::Choice(&PRESET_WORDS),
            "a cache that is ready made, of which anything can be said otherwise. `profile`: `key: \"cache:profile:{user_id}\"`, `l2: json`, `ttl: 300s`, `negative: 0s`, and the rows of a table `profiles` in `sqlite://profiles.db`, where file and table are made if they are not there; `origin: { database: … }` names another database that has such a table",
        )
        .or(Fallback::Words("none")),
        key("origin", Kind::One(&ORIGIN), "where values come from").or(Fallback::Words("what is put there, or its `preset`'s")),
        key(
            "l2",
            Kind::Choice(&SHAPE_WORDS),
            "in Redis a `hash` of `content`, `updated_at`, `etag`, `last_modified`; or `json`, an object with `cached_at` in it",
        )
        .or(Fallback::Text("hash")),
        key(
            "compression",
            Kind::Choice(&COMPRESSION_WORDS),
            "`zlib` makes values of 512 bytes and more smaller in Redis, where that helps; only for `l2: hash`, and other clients than Sekisho cannot read them. Both forms are read, whatever is set",
        )
        .or(Fallback::Text("none")),
        key("ttl", Kind::Duration, "how long a value is kept, 1s to 100 years").or(Fallback::Text("365d")),
        key(
            "fresh_for",
            Kind::Duration,
            "so long the origin is not asked again, up to a tenth more or less from key to key; then a value only stands in when the origin is slow or fails",
        )
        .or(Fallback::Words("`ttl`")),
        key("negative", Kind::Duration, "how long it is remembered that the origin has nothing; `0s` is not at all")
            .or(Fallback::Text("60s")),
        key("content_type", Kind::Text, "what answers are called")
            .or(Fallback::Words("`application/json` with `l2: json`, else `application/octet-stream`")),
        key("max_bytes", Kind::Size, "the longest value, up to 256MiB").or(Fallback::Text("16MiB")),
        key("l1", Kind::One(&L1), "what is kept in memory"),
        key("refresh", Kind::One(&REFRESH), "renews in the background what is old and often asked for. It needs an `origin`")
            .or(Fallback::Words("nothing is")),
        key("rank", Kind::Text, "the Sorted Set in Redis of how often each key is asked for")
            .or(Fallback::Words("`sekisho-cache:<name>:rank`")),
        key("queue", Kind::Text, "the Set in Redis of keys to refresh; an older client's `SADD` is a job")
            .or(Fallback::Words("`sekisho-cache:<name>:queue`")),
        key("store", Kind::One(&CACHE_STORE), "the Redis of this cache").or(Fallback::Words("the `store` of all")),
    ],
);

pub(in crate::config) static L1: Section = section(
    "l1",
    &[
        key("entries", Kind::Whole(1, 1 << 30), "how many values").or(Fallback::Whole(1_000)),
        key("bytes", Kind::Size, "how much they may take; whichever is reached first").or(Fallback::Text("256MiB")),
        key(
            "max_age",
            Kind::DurationOrOff,
            "a copy in memory is checked against Redis when it is older, though nobody has told of a change; `off` is never",
        )
        .or(Fallback::Text("60s")),
        key("policy", Kind::Choice(&POLICY_WORDS), "what goes first: `lru` the least recently used, exactly; `default` (S3-FIFO) is not swept out by a scan")
            .or(Fallback::Text("default")),
    ],
);

pub(in crate::config) static CACHE_STORE: Section = section(
    "cache_store",
    &[
        key("url", Kind::Text, "as in `store`").or(Fallback::Words("that of `store`")),
        key("timeout", Kind::Duration, "no reading waits longer, 1ms to 60s").or(Fallback::Text("200ms")),
    ],
);

pub(in crate::config) static REFRESH: Section = section(
    "refresh",
    &[
        key("after", Kind::Duration, "what is older is refreshed, up to a tenth sooner or later from key to key, if it is asked for often")
            .or(Fallback::Text("90d")),
        key("min_score", Kind::Whole(0, 1_000_000_000), "often is a score of more than this; an access is worth 1, and less every day")
            .or(Fallback::Whole(10)),
        key("decay_per_day", Kind::Number(0.9, 1.0), "what is left of a score after a day").or(Fallback::Words("0.95")),
        key("decay", Kind::Choice(&DECAY_WORDS), "`seed` multiplies all scores once a day; `forward` gives the same ranking without touching the set, if only Sekisho writes it")
            .or(Fallback::Text("seed")),
        key("rate", Kind::Rate, "how often at most the origin is asked by all instances together").or(Fallback::Text("1/s")),
        key("retries", Kind::Whole(0, 3), "after a failure, 1s, 2s and 4s later or when the origin says").or(Fallback::Whole(3)),
    ],
);

pub(in crate::config) static ORIGIN: Section = Section {
    name: "origin",
    keys: &[
        key(
            "http",
            Kind::Text,
            "a URL with parts of the key in its path or query: `http://tiles.example/{z}/{x}/{y}.png`",
        ),
        key("secret", Kind::One(&SECRET), "a credential for it"),
        key("redirects", Kind::Whole(0, 10), "how many are followed, on the same host only").or(Fallback::Whole(3)),
        key("outbound", Kind::Flag, "whether the policy of its domain in `outbound` applies: its budget, pace and cooldown. Every redirect is then charged as well")
            .or(Fallback::Flag(false)),
        key(
            "database",
            Kind::Text,
            "or a database, `sqlite://profiles.db` (beside this file) or `postgres://user:password@host/name`",
        ),
        key(
            "sql",
            Kind::Text,
            "a query for one row, with parts of the key as parameters: `SELECT … WHERE user_id = :user_id`. The row is the value, as a JSON object",
        ),
        key(
            "update",
            Kind::Text,
            "how `PUT /v1/profiles/{user_id}` changes the row: `UPDATE … SET phone = :phone WHERE user_id = :user_id`",
        ),
        key("timeout", Kind::Duration, "how long it may take, 1ms to 1h").or(Fallback::Text("10s")),
        key(
            "soft_timeout",
            Kind::Duration,
            "whoever could be answered with a stale value waits so long for a fresh one",
        )
        .or(Fallback::Text("200ms")),
        key("concurrency", Kind::Whole(1, 65_536), "requests to it at a time, from this process")
            .or(Fallback::Whole(16)),
    ],
    either: &["http", "database"],
    cases: None,
};
