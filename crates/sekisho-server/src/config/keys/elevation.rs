//! The keys of `elevation`.

use super::super::elevation::{COMPAT, FORMATS};
use super::{Fallback, Kind, SESSION_STORE, Section, key, section, words};

const FORMAT_WORDS: [&str; 2] = words(&FORMATS);
const COMPAT_WORDS: [&str; 2] = words(&COMPAT);
const LAYERS: [&str; 5] = ["dem1a", "dem5a", "dem5b", "dem5c", "dem"];

pub(in crate::config) static ELEVATION: Section = section(
    "elevation",
    &[
        key("origin", Kind::Text, "where tiles come from: what stands before `/dem5a_png/15/…`, `http://` or `https://`")
            .or(Fallback::Text("https://cyberjapandata.gsi.go.jp/xyz")),
        key("format", Kind::Choice(&FORMAT_WORDS), "of the tiles. GSI no longer updates `text`, and has none of `dem1a`")
            .or(Fallback::Text("png")),
        key("layers", Kind::Choices(&LAYERS), "where heights are looked for, in this order").or(Fallback::Texts(&LAYERS)),
        key("policy", Kind::Text, "what is charged on `listen`. It needs a `subject`")
            .or(Fallback::Words("`elevation` if there is one, else 60 requests a minute by `ip`")),
        key(
            "compat",
            Kind::Choice(&COMPAT_WORDS),
            "`seed` also writes the merged tiles of zoom 15 as CSV under `cycling:elevation:v1:data:{z}:{x}:{y}`, for older clients; `off` does not",
        )
        .or(Fallback::Text("seed")),
        key("store", Kind::One(&SESSION_STORE), "a Redis of their own, such as one that evicts what is least used")
            .or(Fallback::Words("the `store` of all")),
        key("ttl", Kind::Duration, "how long a tile is kept in Redis, 1h to 3650d").or(Fallback::Text("365d")),
        key(
            "fresh_for",
            Kind::Duration,
            "after this a tile is asked for again, with its `ETag`; at most `ttl`. What is older stands in when the origin is slow or fails",
        )
        .or(Fallback::Words("`ttl`")),
        key("missing_for", Kind::Duration, "how long it is remembered that there is no such tile, 1s to 3650d")
            .or(Fallback::Text("7d")),
        key("entries", Kind::Whole(1, 1_000_000), "how many decoded tiles are kept in memory").or(Fallback::Whole(1_000)),
        key("bytes", Kind::Size, "how much memory they may take, 1MiB to 1024GiB").or(Fallback::Text("256MiB")),
        key("max_age", Kind::Duration, "how long one in memory is believed before Redis is asked, 1s to 3650d")
            .or(Fallback::Text("10m")),
        key("timeout", Kind::Duration, "how long the origin may take for one tile, 10ms to 60s")
            .or(Fallback::Text("10s")),
        key("concurrency", Kind::Whole(1, 64), "requests to the origin at a time").or(Fallback::Whole(8)),
    ],
);
