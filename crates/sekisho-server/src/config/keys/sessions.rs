//! The keys of `sessions` and what is below it.

use super::super::sessions::SAME_SITE;
use super::{Fallback, Kind, Section, key, section, words};

const SAME_SITE_WORDS: [&str; 3] = words(&SAME_SITE);

pub(in crate::config) static SESSIONS: Section = section(
    "sessions",
    &[
        key("ttl", Kind::Duration, "how long a session lives that nobody touches, 1s to 366d").or(Fallback::Text("1h")),
        key(
            "max_lifetime",
            Kind::Duration,
            "how long it lives at most, touched or not, counted from its `created_at`; at least `ttl`, at most 366d",
        )
        .or(Fallback::Text("24h")),
        key("max_per_user", Kind::Whole(1, 1_000_000), "how many a user may have; one more ends the oldest")
            .or(Fallback::Words("no bound")),
        key("store", Kind::One(&SESSION_STORE), "a Redis of their own").or(Fallback::Words("the `store` of all")),
        key("cookie", Kind::One(&COOKIE), "what browsers carry"),
    ],
);

pub(in crate::config) static SESSION_STORE: Section = section(
    "session_store",
    &[
        key("url", Kind::Text, "as in `store`").needed(),
        key("timeout", Kind::Duration, "no call waits longer, 1ms to 60s").or(Fallback::Words("that of `store`")),
    ],
);

pub(in crate::config) static COOKIE: Section = section(
    "cookie",
    &[
        key(
            "name",
            Kind::Text,
            "with `__Host-` before it browsers take the cookie only over TLS and from this host. The cookie is `Secure`, `HttpOnly` and of `Path=/` whatever its name",
        )
        .or(Fallback::Text("__Host-session")),
        key("same_site", Kind::Choice(&SAME_SITE_WORDS), "which requests of other sites carry it: of `lax`, links only")
            .or(Fallback::Text("lax")),
    ],
);
