//! Every key of a configuration, once.
//!
//! The reader knows these and no others; the JSON Schema (`schema.rs`) and the tables of docs/reference/configuration.md
//! (`reference.rs`) are made from them. So none of the three can have a key that another has not. It is a table and no derive
//! on structs, because the reader is none either: it names every mistake in a file at its place, not the first.

mod caches;
mod elevation;
mod outbound;
mod sessions;
mod tokens;

use sekisho::limits::MAX_AMOUNT;

use super::{FORWARDED_BY, HEADERS, forward, policy, route, rule};

pub(super) use caches::{CACHE_STORE, CACHES, L1, ORIGIN, REFRESH};
pub(super) use elevation::ELEVATION;
pub(super) use outbound::OUTBOUND;
pub(super) use sessions::{COOKIE, SESSION_STORE, SESSIONS};
pub(super) use tokens::{AUDIT, ISSUERS, TOKENS};

/// One kind of mapping in a configuration.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) keys: &'static [KeySpec],
    /// Exactly one of these must be there.
    pub(super) either: &'static [&'static str],
    /// What the value of one key says about which others belong there.
    pub(super) cases: Option<Cases>,
}

/// For each value of `key`: the keys that go with it, besides those in `always`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cases {
    pub(super) key: &'static str,
    pub(super) always: &'static [&'static str],
    /// Needed wherever they may stand.
    pub(super) needed: &'static [&'static str],
    pub(super) of: &'static [(&'static str, &'static [&'static str])],
}

#[derive(Debug, Clone, Copy)]
pub(super) struct KeySpec {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) fallback: Fallback,
    pub(super) is_needed: bool,
    /// One or two clauses, in Markdown without links.
    pub(super) about: &'static str,
}

/// What may stand behind a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Address,
    AddressOrOff,
    Flag,
    Whole(u64, u64),
    Duration,
    /// One, or a list of the shortest and the longest.
    DurationOrRange,
    DurationOrOff,
    /// So many in a unit of time.
    Rate,
    Number(f64, f64),
    Size,
    Text,
    Texts,
    TextOrTexts,
    Choice(&'static [&'static str]),
    Choices(&'static [&'static str]),
    /// A mapping.
    One(&'static Section),
    /// A list of mappings.
    List(&'static Section),
    /// A mapping of mappings, under names of the user's choice.
    Named(&'static Section),
    /// Unit → whole number.
    Amounts,
    /// Unit → JSON pointer.
    Pointers,
    /// Whatever JSON can say.
    Json,
}

/// What counts where a key is not there.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fallback {
    Nothing,
    Text(&'static str),
    Whole(u64),
    Flag(bool),
    Texts(&'static [&'static str]),
    /// What depends on something else, in words.
    Words(&'static str),
}

impl Section {
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }
}

impl KeySpec {
    const fn or(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    const fn needed(mut self) -> Self {
        self.is_needed = true;
        self
    }
}

const fn key(name: &'static str, kind: Kind, about: &'static str) -> KeySpec {
    KeySpec { name, kind, fallback: Fallback::Nothing, is_needed: false, about }
}

const fn section(name: &'static str, keys: &'static [KeySpec]) -> Section {
    Section { name, keys, either: &[], cases: None }
}

/// The words of a choice, without what they stand for.
const fn words<T, const N: usize>(choices: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut index = 0;
    while index < N {
        words[index] = choices[index].0;
        index += 1;
    }
    words
}

const FORWARDED_BY_WORDS: [&str; 2] = words(&FORWARDED_BY);
const HEADERS_WORDS: [&str; 4] = words(&HEADERS);
const ON_FAILURE_WORDS: [&str; 3] = words(&policy::ON_FAILURE);
const MODE_WORDS: [&str; 2] = words(&policy::MODES);
const ON_LEASE_EXPIRY_WORDS: [&str; 2] = words(&policy::ON_LEASE_EXPIRY);
const ALGORITHM_WORDS: [&str; 10] = words(&rule::Algorithm::ALL);
const VARIANT_WORDS: [&str; 2] = words(&rule::VARIANTS);
const BUCKET_MODE_WORDS: [&str; 2] = words(&rule::BUCKET_MODES);
const PERIOD_WORDS: [&str; 4] = words(&rule::PERIODS);
const RELEASE_ON_WORDS: [&str; 4] = words(&forward::RELEASE_ON);
const REQUIRE_WORDS: [&str; 2] = words(&super::tokens::REQUIRE);
const ALGORITHM_KEYS: [(&str, &[&str]); 10] = rule::Algorithm::all_with_fields();

/// In the order of the documentation.
#[cfg(test)]
pub(super) static ALL: [&Section; 26] = [
    &ROOT,
    &TLS,
    &GRPC_TLS,
    &CONNECTIONS,
    &STORE,
    &MEMORY,
    &AUTH,
    &AUDIT,
    &TOKENS,
    &ISSUERS,
    &SESSIONS,
    &SESSION_STORE,
    &COOKIE,
    &CACHES,
    &L1,
    &REFRESH,
    &CACHE_STORE,
    &ORIGIN,
    &ELEVATION,
    &OUTBOUND,
    &POLICIES,
    &RULES,
    &ROUTES,
    &MATCH,
    &RESPOND,
    &SECRET,
];

pub(super) static ROOT: Section = section(
    "top level",
    &[
        key("listen", Kind::Address, "where the gateway listens, for clients").or(Fallback::Text("127.0.0.1:8000")),
        key("tls", Kind::One(&TLS), "encrypts `listen`"),
        key(
            "api",
            Kind::Address,
            "where the API listens, for trusted callers. Anywhere but on loopback it needs `SEKISHO_API_TOKEN`, or the server does not start",
        )
        .or(Fallback::Text("127.0.0.1:8001")),
        key(
            "grpc",
            Kind::AddressOrOff,
            "where Envoy's rate-limit service listens; `off` closes it. Anywhere but on loopback it needs a `grpc_tls` with a `client_ca`, or `insecure_grpc: true`",
        )
        .or(Fallback::Words("`127.0.0.1:8081` if there are `domains`, else `off`")),
        key("grpc_tls", Kind::One(&GRPC_TLS), "encrypts `grpc`, and asks clients for certificates"),
        key("insecure_grpc", Kind::Flag, "whether `grpc` may be open to others though it asks nobody who they are")
            .or(Fallback::Flag(false)),
        key("connections", Kind::One(&CONNECTIONS), "how many there may be, and how slow"),
        key("store", Kind::One(&STORE), "where counts are kept").or(Fallback::Words("memory")),
        key("memory", Kind::One(&MEMORY), "how much the memory store may hold"),
        key("instances", Kind::Whole(1, 100_000), "the least number of instances to assume in an outage. Those that announce themselves in Redis are counted")
            .or(Fallback::Whole(1)),
        key(
            "trusted_proxies",
            Kind::Texts,
            "networks such as `10.0.0.0/24`, or addresses, whose word is taken for where a request comes from. Wide ones (IPv4 /8, IPv6 /16 and wider) are warned about",
        )
        .or(Fallback::Texts(&[])),
        key(
            "forwarded_by",
            Kind::Choice(&FORWARDED_BY_WORDS),
            "the header in which they say it; the other one is ignored",
        )
        .or(Fallback::Text("x-forwarded-for")),
        key("usage_policy", Kind::Text, "the policy whose figures clients see at `GET /api/config/usage`. Who they are is established as by the first route with that policy"),
        key(
            "headers",
            Kind::Choice(&HEADERS_WORDS),
            "rate-limit headers of the gateway: `legacy` is `X-RateLimit-*`, `draft` is `RateLimit` and `RateLimit-Policy`",
        )
        .or(Fallback::Text("both")),
        key("policies", Kind::Named(&POLICIES), "what is limited, and how"),
        key("routes", Kind::List(&ROUTES), "what the gateway serves; the first match wins"),
        key("auth", Kind::One(&AUTH), "what `/auth/nginx` and `/auth/forward` check"),
        key("audit", Kind::One(&AUDIT), "where acts of operators are written"),
        key("tokens", Kind::One(&TOKENS), "whose tokens are believed"),
        key("sessions", Kind::One(&SESSIONS), "how long they live, and where they are kept"),
        key("caches", Kind::Named(&CACHES), "what is kept so that it need not be asked for again"),
        key("elevation", Kind::One(&ELEVATION), "serves heights, and the page `/elevation`").or(Fallback::Words("not served")),
        key("outbound", Kind::One(&OUTBOUND), "how often, how fast and when other servers are asked").or(Fallback::Words("nothing goes out")),
        key("domains", Kind::Texts, "files of Envoy's rate-limit service, beside this file or with a path")
            .or(Fallback::Texts(&[])),
    ],
);

pub(super) static TLS: Section = section(
    "tls",
    &[
        key("cert", Kind::Text, "the certificate and those that lead to its root, a file in PEM").needed(),
        key("key", Kind::Text, "its private key, a file in PEM").needed(),
    ],
);

pub(super) static GRPC_TLS: Section = section(
    "grpc_tls",
    &[
        key("cert", Kind::Text, "as in `tls`").needed(),
        key("key", Kind::Text, "as in `tls`").needed(),
        key(
            "client_ca",
            Kind::Text,
            "whose certificates clients have to show: one or more, a file in PEM. Without it `grpc` is encrypted, but open to all who reach it",
        ),
    ],
);

pub(super) static CONNECTIONS: Section = section(
    "connections",
    &[
        key(
            "max",
            Kind::Whole(1, 10_000_000),
            "open at once on each listener; further ones are closed. The process needs as many file descriptors, twice as many if it forwards",
        )
        .or(Fallback::Whole(10_000)),
        key(
            "per_ip",
            Kind::Whole(1, 10_000_000),
            "open at once from one address on `listen`, an IPv6 /64 being one. Not for `trusted_proxies`, which speak for many",
        )
        .or(Fallback::Whole(1_000)),
        key(
            "header_timeout",
            Kind::Duration,
            "from the first byte of a request's head to its last (then 408), and for a TLS handshake; 10ms to 1h, as the next two",
        )
        .or(Fallback::Text("10s")),
        key("idle_timeout", Kind::Duration, "how long a connection is kept on which nothing is asked")
            .or(Fallback::Text("60s")),
        key(
            "grace",
            Kind::Duration,
            "see `min_rate`. On HTTP/2 an answer that waits in a client's window is given three to four of these",
        )
        .or(Fallback::Text("10s")),
        key(
            "min_rate",
            Kind::Size,
            "bytes a second that a client must send of a body (else 408) or read of an answer (else it is cut off), on the average of `grace`. Only time in which the client is waited for counts. `0B` is any",
        )
        .or(Fallback::Text("240B")),
        key(
            "drain",
            Kind::Duration,
            "how long a server that was told to stop still takes connections while any are open, with `Connection: close` in every answer and 503 at `/readyz`, so that balancers and clients go elsewhere; 0s to 1h",
        )
        .or(Fallback::Text("1s")),
    ],
);

pub(super) static STORE: Section = section(
    "store",
    &[
        key(
            "url",
            Kind::Text,
            "`redis://host:port`, `rediss://…`, `redis+cluster://host:port,host:port` or `rediss+cluster://…`. In a password, write `/` as `%2F`",
        )
        .needed(),
        key("timeout", Kind::Duration, "no decision waits longer, 1ms to 60s").or(Fallback::Text("50ms")),
        key(
            "on_failure",
            Kind::Choice(&ON_FAILURE_WORDS),
            "when no answer comes in time: `memory` goes on with this instance's share, `open` admits, `closed` refuses with 503",
        )
        .or(Fallback::Text("memory")),
    ],
);

pub(super) static MEMORY: Section = section(
    "memory",
    &[
        key("subjects", Kind::Whole(1, 1_000_000_000), "how many subjects are remembered")
            .or(Fallback::Whole(1_000_000)),
        key("bytes", Kind::Size, "how much memory they may take, at least 1MiB").or(Fallback::Words("no bound")),
    ],
);

pub(super) static AUTH: Section = section(
    "auth",
    &[
        key("policy", Kind::Text, "what is charged. It needs a `subject`").needed(),
        key("require", Kind::Choices(&REQUIRE_WORDS), "what callers have to show, all of it, else 401")
            .or(Fallback::Texts(&[])),
        key("session_cookie", Kind::Text, "the cookie that carries the session, where proxies call it otherwise")
            .or(Fallback::Words("`sessions.cookie.name`")),
    ],
);

pub(super) static POLICIES: Section = section(
    "policies",
    &[
        key(
            "subject",
            Kind::TextOrTexts,
            "who is counted: `ip`, `ip_ua`, `user`, `endpoint`, `header:<name>` (what the client sent), `claim:<name>`, or a list of them. Without it, callers of the API name the subject themselves",
        ),
        key("ipv6_prefix", Kind::Whole(1, 128), "how many leading bits of an IPv6 address are one client")
            .or(Fallback::Words("64")),
        key("mode", Kind::Choice(&MODE_WORDS), "`shadow` decides, counts and reports, but never denies")
            .or(Fallback::Text("enforce")),
        key("lease", Kind::Duration, "how long a reservation is held for a caller that does not come back, 1ms to 24h")
            .or(Fallback::Text("60s")),
        key("on_lease_expiry", Kind::Choice(&ON_LEASE_EXPIRY_WORDS), "what then becomes of it")
            .or(Fallback::Text("settle")),
        key(
            "on_failure",
            Kind::Choice(&ON_FAILURE_WORDS),
            "as in `store`, for this policy; in shadow mode `open` unless said",
        )
        .or(Fallback::Words("the store's")),
        key("rules", Kind::List(&RULES), "1 to 16, which must all admit").needed(),
    ],
);

pub(super) static RULES: Section = Section {
    name: "rules",
    keys: &[
        key("algorithm", Kind::Choice(&ALGORITHM_WORDS), "how it counts").needed(),
        key("name", Kind::Text, "what answers, headers and errors call it").or(Fallback::Words("the algorithm")),
        key("unit", Kind::Text, "what it counts").or(Fallback::Text("requests")),
        key("limit", Kind::Whole(1, MAX_AMOUNT), "how much is admitted"),
        key("window", Kind::Duration, "in which time, up to 366 days"),
        key("burst", Kind::Whole(1, MAX_AMOUNT), "how much at once").or(Fallback::Words("the limit")),
        key("buckets", Kind::Whole(1, 120), "in how many parts the window is counted").or(Fallback::Whole(10)),
        key(
            "variant",
            Kind::Choice(&VARIANT_WORDS),
            "`interpolated` needs less memory, and can let through nearly twice the limit; it takes no `buckets`",
        )
        .or(Fallback::Text("sub_buckets")),
        key("mode", Kind::Choice(&BUCKET_MODE_WORDS), "`queue` admits with a time to wait").or(Fallback::Text("meter")),
        key("period", Kind::Choice(&PERIOD_WORDS), "of the calendar"),
        key("zone", Kind::Text, "its IANA time zone").or(Fallback::Text("UTC")),
        key(
            "interval",
            Kind::DurationOrRange,
            "the time between two, or the shortest and the longest to draw from: `[1.5s, 5.5s]`",
        ),
        key("max_wait", Kind::Duration, "who would wait no longer is admitted, with the time to wait")
            .or(Fallback::Text("0s")),
        key(
            "key",
            Kind::Text,
            "the key of an older client's counter on Redis, to count together: `\"rate:daily:{subject}:{date}\"`",
        ),
    ],
    either: &[],
    cases: Some(Cases {
        key: "algorithm",
        always: &rule::COMMON,
        needed: &["limit", "window", "period", "interval"],
        of: &ALGORITHM_KEYS,
    }),
};

pub(super) static ROUTES: Section = Section {
    name: "routes",
    keys: &[
        key("match", Kind::One(&MATCH), "which requests it is for").needed(),
        key("policy", Kind::Text, "what is charged. It needs a `subject`").needed(),
        key("require", Kind::Choices(&REQUIRE_WORDS), "what callers have to show, all of it, else 401")
            .or(Fallback::Texts(&[])),
        key("cost", Kind::Amounts, "what is reserved, by unit").or(Fallback::Words("1 request")),
        key("endpoint", Kind::Text, "what limits call the route").or(Fallback::Words("the path, `/models/:call`")),
        key("respond", Kind::One(&RESPOND), "answers by itself"),
        key(
            "upstream",
            Kind::Text,
            "or forwards to this server, `http://` or `https://`. A path in it is put before the request's own",
        ),
        key(
            "timeout",
            Kind::Duration,
            "until the head of the answer, and then between any two parts of its body, 1ms to 1h",
        )
        .or(Fallback::Text("30s")),
        key(
            "release_on",
            Kind::Choices(&RELEASE_ON_WORDS),
            "which failures give back what was reserved. An upstream that breaks off counts as `5xx`",
        )
        .or(Fallback::Texts(&["connect", "timeout", "5xx"])),
        key(
            "settle_from",
            Kind::Pointers,
            "where the actual cost stands in the answer, or in the last event of a stream (`text/event-stream`, or a JSON list), by unit. Where nothing stands there, what was reserved stays",
        ),
        key(
            "forward_credentials",
            Kind::Flag,
            "whether the upstream sees the credential that was checked here, `Authorization`. It sees who it is in any case, in `X-Sekisho-User`",
        )
        .or(Fallback::Flag(false)),
        key("outbound", Kind::Flag, "whether the policy of the upstream's domain in `outbound` applies: its budget, pace and cooldown. What it denies is answered with 503")
            .or(Fallback::Flag(false)),
        key("secret", Kind::One(&SECRET), "a credential for the upstream. Without its value the route answers 503"),
    ],
    either: &["respond", "upstream"],
    cases: None,
};

pub(super) static MATCH: Section = section(
    "match",
    &[
        key("path", Kind::Text, "segment by segment: `{name}` is any one segment, `{*name}` at the end all the rest")
            .needed(),
        key("methods", Kind::Choices(&route::METHODS), "of these").or(Fallback::Words("all")),
        key("host", Kind::Text, "a name without a port").or(Fallback::Words("all")),
    ],
);

pub(super) static RESPOND: Section = section(
    "respond",
    &[
        key("status", Kind::Whole(200, 599), "of the answer").or(Fallback::Whole(200)),
        key("json", Kind::Json, "its body").or(Fallback::Words("`{}`")),
        key(
            "logout",
            Kind::Flag,
            "ends the session that the request carries, and takes the cookie away. For a route of `methods: [POST]`; requests from pages of other sites are refused with 403",
        )
        .or(Fallback::Flag(false)),
    ],
);

pub(super) static SECRET: Section = section(
    "secret",
    &[
        key("header", Kind::Text, "the header to set; a client's own of that name does not pass").needed(),
        key("env", Kind::Text, "the environment variable that holds its value").needed(),
    ],
);
