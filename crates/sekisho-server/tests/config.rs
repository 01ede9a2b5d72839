//! Every mistake in a configuration is named, with its place and what was probably meant.

use sekisho_server::config::{Action, Config, HeaderStyle};

fn problems(text: &str) -> String {
    Config::parse("sekisho.yaml", text).expect_err(text).to_string()
}

/// A policy with one rule, whose fields are given in flow style on line 4 from column 10 on.
fn with_rule(rule: &str) -> String {
    format!("policies:\n  p:\n    rules:\n      - {{ {rule} }}\n")
}

#[test]
fn a_mistake_is_shown_with_its_line_and_a_caret() {
    let text = "policies:\n  p:\n    rules:\n      - algorithm: fixed_window\n        limt: 5\n        window: 60s\n";
    let expected = "\
sekisho.yaml:4:9: `limit` is missing: a fixed_window rule needs it
 4 |       - algorithm: fixed_window
   |         ^
sekisho.yaml:5:9: unknown key `limt`; did you mean `limit`?
 5 |         limt: 5
   |         ^";
    assert_eq!(problems(text), expected);
}

#[test]
fn mistakes_in_rules() {
    let mut wrong = Vec::new();
    for (rule, expected) in [
        (
            "algorithm: fixed_windw, limit: 5, window: 60s",
            "4:22: `algorithm` must be one of fixed_window, sliding_log, sliding_counter, token_bucket, leaky_bucket, gcra, concurrency, calendar, interval, block; it is `fixed_windw`; did you mean `fixed_window`?",
        ),
        ("limit: 5, window: 60s", "4:9: `algorithm` is missing"),
        ("algorithm: fixed_window, limit: 0, window: 60s", "4:43: `limit` must be 1 to 1000000000000; it is 0"),
        ("algorithm: fixed_window, limit: -5, window: 60s", "4:43: `limit` must be 1 to 1000000000000; it is -5"),
        (
            "algorithm: fixed_window, limit: 9223372036854775808, window: 60s",
            "4:43: `limit` must be 1 to 1000000000000; it is 9223372036854775808",
        ),
        (
            "algorithm: fixed_window, limit: 1.5, window: 60s",
            "4:43: `limit` must be a whole number from 1 to 1000000000000; it is a number with a fraction",
        ),
        (
            "algorithm: fixed_window, limit: five, window: 60s",
            "4:43: `limit` must be a whole number from 1 to 1000000000000; it is text",
        ),
        ("algorithm: fixed_window, limit: 5, window: 60", "4:54: `window` needs a unit: `60s`, `60m` or `60h`"),
        (
            "algorithm: fixed_window, limit: 5, window: 1y",
            "4:54: `window` must be a duration such as 50ms, 1.5s, 90s, 5m, 1h or 365d; it is `1y`",
        ),
        (
            "algorithm: fixed_window, limit: 5, window: 0s",
            "4:54: `window` must be 1 microsecond to 366 days in whole microseconds; it is 0ns",
        ),
        (
            "algorithm: fixed_window, limit: 5, window: 60s, burst: 9",
            "4:59: `burst` does not belong to a fixed_window rule, which takes limit, window, key",
        ),
        ("algorithm: block, limit: 5", "4:29: `limit` does not belong to a block rule, which takes none of its own"),
        (
            "algorithm: calendar, limit: 5, period: day, zone: Asia/Tokio",
            "4:61: `Asia/Tokio` is no IANA time zone; did you mean `Asia/Tokyo`?",
        ),
        (
            "algorithm: calendar, limit: 5, period: dya",
            "4:50: `period` must be one of hour, day, week, month; it is `dya`; did you mean `day`?",
        ),
        ("algorithm: calendar, limit: 5", "4:9: `period` is missing: a calendar rule needs it"),
        (
            "algorithm: sliding_counter, limit: 5, window: 1m, variant: interpolated, buckets: 4",
            "4:93: `buckets` contradicts `variant: interpolated`, which always has two",
        ),
        (
            "algorithm: sliding_counter, limit: 5, window: 1m, buckets: 121",
            "4:70: `buckets` must be 1 to 120; it is 121",
        ),
        ("algorithm: interval, interval: [5s, 1s]", "4:42: `interval` must not end before it starts"),
        (
            "algorithm: interval, interval: [5s]",
            "4:42: `interval` must be one duration, or two: the shortest and the longest",
        ),
        (
            "algorithm: leaky_bucket, limit: 5, window: 1s, mode: que",
            "4:64: `mode` must be one of meter, queue; it is `que`; did you mean `queue`?",
        ),
        (
            "algorithm: sliding_log, limit: 5, window: 1m, key: \"rate:{user}\"",
            "4:62: `key` has the unknown placeholder {user}",
        ),
        (
            "algorithm: fixed_window, limit: 5, window: 1m, key: \"rate:{subject}\"",
            "4:63: `key` must tell windows apart",
        ),
        ("algorithm: fixed_window, limit: 5, window: 1m, name: \"a b\"", "4:64: `name` must be 1 to 64 of"),
    ] {
        let problem = problems(&with_rule(rule));
        let (first, _) = problem.split_once('\n').unwrap_or((&problem, ""));
        if !first.starts_with(&format!("sekisho.yaml:{expected}")) {
            wrong.push(format!("{rule}\n expected {expected}\n got {problem}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn mistakes_in_caches() {
    let mut wrong = Vec::new();
    let origin = |origin: &str| format!("c: {{ key: \"c:{{id}}\", origin: {{ {origin} }} }}");
    for (caches, expected) in [
        ("c: {}".to_owned(), "`key` is missing"),
        ("c: { key: plain }".into(), "`key` has no part such as {id}"),
        ("c: { key: \"{id}\" }".into(), "`key` must begin with text"),
        ("c: { key: \"session:{id}\" }".into(), "where others keep what is theirs"),
        ("a b: { key: \"c:{id}\" }".into(), "to name a cache"),
        ("c: { key: \"c:{id}\" }\n  d: { key: \"c:d:{id}\" }".into(), "its `key` begins as that of `c`"),
        ("c: { key: \"c:{id}\", ttl: 5m, fresh_for: 1h }".into(), "`fresh_for` must be at most `ttl`"),
        ("c: { key: \"c:{id}\", ttl: 0s }".into(), "`ttl` must be 1s to 100 years"),
        ("c: { key: \"c:{id}\", refresh: {} }".into(), "`refresh` needs an `origin`"),
        ("c: { key: \"c:{id}\", rank: \"c:rank\" }".into(), "`rank` must be a key that begins otherwise"),
        ("c: { key: \"c:{id}\", l2: json, compression: zlib }".into(), "`compression` goes with `l2: hash`"),
        ("c: { key: \"c:{id}\", compression: zip }".into(), "`compression` must be one of none, zlib; it is `zip`"),
        (origin(""), "an origin is asked by either `http` or `database`"),
        (origin("http: \"ftp://x/{id}\""), "`http` must begin with http:// or https://"),
        (origin("http: \"http://{id}/\""), "`http` must name its server"),
        (origin("http: \"http://x/{z}\""), "`http` names {z}, which is no part of the key c:{id}"),
        (origin("http: \"http://x/{id}\", sql: \"SELECT 1\""), "`sql` goes with `database`"),
        (origin("http: \"http://x/{id}\", timeout: 1s, soft_timeout: 2s"), "`soft_timeout` must be at most `timeout`"),
        (origin("database: \"mysql://x\", sql: \"SELECT 1\""), "`database` must be sqlite://FILE or postgres://"),
        (origin("database: \"sqlite://x.db\""), "`sql` is missing"),
        (origin("database: \"sqlite://x.db\", sql: \"SELECT :z\""), "`sql` has :z, which is no part of the key"),
        (origin("database: \"sqlite://x.db\", sql: \"SELECT 1; SELECT 2\""), "`sql` must be one statement"),
        (
            origin("database: \"sqlite://x.db\", sql: \"SELECT 1\", update: \"UPDATE p SET a = :a\""),
            "`update` has no part of the key: it would change every row",
        ),
    ] {
        let found = problems(&format!("caches:\n  {caches}\n"));
        if !found.contains(expected) {
            wrong.push(format!("{caches}: {found} has no {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn mistakes_in_elevation() {
    let mut wrong = Vec::new();
    for (elevation, expected) in [
        ("origin: \"ftp://x\"", "`origin` must be a URL"),
        ("layers: []", "`layers` must name at least one"),
        ("layers: [dem, dem]", "`layers` names dem twice"),
        ("ttl: 1s", "`ttl` must be 1h to 3650d"),
        ("ttl: 10d, fresh_for: 11d", "`fresh_for` must be 1s to `ttl`"),
        ("timeout: 0s", "`timeout` must be 10ms to 60s"),
        ("entries: 0", "`entries` must be 1 to 1000000"),
        ("bytes: 1KiB", "`bytes` must be 1MiB to 1024GiB"),
        ("bytes: 2000000GiB", "`bytes` must be 1MiB to 1024GiB"),
        ("policy: nobody", "nobody"),
    ] {
        let found = problems(&format!("elevation: {{ {elevation} }}\n"));
        if !found.contains(expected) {
            wrong.push(format!("{elevation}: {found} has no {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn mistakes_elsewhere() {
    let mut wrong = Vec::new();
    let route = |route: &str| {
        let policies = "policies: { demo: { subject: ip, rules: [{ algorithm: gcra, limit: 5, window: 1m }] }, bare: { rules: [{ algorithm: block }] } }";
        format!("{policies}\nroutes:\n  - {{ {route} }}\n")
    };
    for (text, expected) in [
        ("polices: {}\n".to_owned(), "1:1: unknown key `polices`; did you mean `policies`?"),
        ("console: {}\n".into(), "1:1: unknown key `console`"),
        ("listen: 8000\n".into(), "1:9: `listen` must be text; it is a whole number"),
        (
            "listen: localhost\n".into(),
            "1:9: `listen` must be an address with a port such as 127.0.0.1:8000; it is `localhost`",
        ),
        ("listen: 127.0.0.1:9\napi: 127.0.0.1:9\n".into(), "2:6: `listen` and `api` are both 127.0.0.1:9"),
        ("api: 127.0.0.1:1\napi: 127.0.0.1:2\n".into(), "2:1: the key `api` stands here a second time"),
        (
            "headers: drafts\n".into(),
            "1:10: `headers` must be one of legacy, draft, both, none; it is `drafts`; did you mean `draft`?",
        ),
        ("instances: 0\n".into(), "1:12: `instances` must be 1 to 100000; it is 0"),
        ("store: { timeout: 50ms }\n".into(), "1:8: `url` is missing"),
        (
            "store: { url: \"http://x\" }\n".into(),
            "1:15: `url` must start with redis://, rediss://, redis+cluster:// or rediss+cluster://",
        ),
        ("store: { url: \"redis://x\", timeout: 0s }\n".into(), "1:37: `timeout` must be 1ms to 60s"),
        (
            "store: { url: \"redis://x\", on_failure: opn }\n".into(),
            "1:40: `on_failure` must be one of memory, open, closed; it is `opn`; did you mean `open`?",
        ),
        ("memory: { bytes: 64 }\n".into(), "1:18: `bytes` needs a unit: `64MiB`, or `64B` for bytes"),
        ("memory: { subjects: 0 }\n".into(), "1:21: `subjects` must be 1 to 1000000000; it is 0"),
        (
            "usage_policy: demo\npolicies: { dem: { rules: [{ algorithm: block }] } }\n".into(),
            "1:15: unknown policy `demo`; did you mean `dem`?",
        ),
        (
            "usage_policy: p\npolicies: { p: { rules: [{ algorithm: block }] } }\n".into(),
            "1:15: the policy `p` has no `subject`, which `usage_policy` needs",
        ),
        ("policies: { p: { subject: ip } }\n".into(), "1:13: the policy `p` has no `rules`"),
        ("policies: { p: { rules: [] } }\n".into(), "1:25: `rules` must be 1 to 16; there are 0"),
        (
            "policies: { p: { subject: ipua, rules: [{ algorithm: block }] } }\n".into(),
            "1:27: `subject` \"ipua\" is not one of ip, ip_ua, user, endpoint, header:<name>, claim:<name>; did you mean `ip_ua`?",
        ),
        (
            "policies: { p: { lease: 2d, rules: [{ algorithm: block }] } }\n".into(),
            "1:25: `lease` must be 1 millisecond to 24 hours",
        ),
        (
            "policies: { p: { rules: [{ algorithm: block }, { algorithm: block }] } }\n".into(),
            "1:48: `rules[1].name` `block` is the name of two rules",
        ),
        (
            "policies: { p: { mode: shadows, rules: [{ algorithm: block }] } }\n".into(),
            "1:24: `mode` must be one of enforce, shadow; it is `shadows`; did you mean `shadow`?",
        ),
        ("policies: { \"a b\": { rules: [{ algorithm: block }] } }\n".into(), "1:13: `policy` must be 1 to 64 of"),
        ("policies: [\n".into(), "1:11: unclosed bracket"),
        ("[1]\n".into(), "1:1: `the file` must be a mapping; it is a list"),
        (route("match: { path: /a }, policy: dem, respond: {}"), "3:36: unknown policy `dem`; did you mean `demo`?"),
        (
            route("match: { path: /a }, policy: bare, respond: {}"),
            "3:36: the policy `bare` has no `subject`, which a route needs",
        ),
        (
            route("match: { path: /a }, policy: demo"),
            "3:5: `upstream` or `respond` is missing: a route forwards or answers itself",
        ),
        (
            route("match: { path: /a }, policy: demo, respond: {}, upstream: \"http://x\""),
            "3:65: a route has `upstream` or `respond`, not both",
        ),
        (
            route("match: { path: /a }, policy: demo, respond: {}, timeout: 1s"),
            "3:64: `timeout` is for a route with an `upstream`; this one has `respond`",
        ),
        (
            route("match: { path: /a }, policy: demo, upstream: \"127.0.0.1:9000\""),
            "3:52: `upstream` must be a URL such as http://127.0.0.1:9000; it is `127.0.0.1:9000`",
        ),
        (
            route("match: { path: /a }, policy: demo, upstream: \"http://u:hidden@x\""),
            "3:52: `upstream` holds credentials; give them as a `secret` header instead",
        ),
        (
            route("match: { path: /a }, policy: demo, upstream: \"http://x\", release_on: [6xx]"),
            "3:77: `release_on` must be one of connect, timeout, 5xx, 4xx; it is `6xx`; did you mean `5xx`?",
        ),
        (
            route("match: { path: /a }, policy: demo, upstream: \"http://x\", settle_from: { requests: usage }"),
            "3:89: `settle_from.requests` must be a JSON pointer such as /usage/total_tokens; it is `usage`",
        ),
        (
            route("match: { path: /a }, policy: demo, upstream: \"http://x\", settle_from: { tokens: /usage }"),
            "3:79: no rule of the policy `demo` counts `tokens`",
        ),
        (
            route("match: { path: /a }, policy: demo, upstream: \"http://x\", secret: { header: x-key }"),
            "3:72: `env` is missing: a secret is a header and the variable that holds it",
        ),
        (
            route("match: { path: /a, host: \"x:80\" }, policy: demo, respond: {}"),
            "3:32: `host` must be a name without a port, such as api.example.com",
        ),
        (
            route("match: { path: /a }, policy: demo, respond: { status: 204, json: { message: none } }"),
            "3:72: an answer with status 204 has no body",
        ),
        ("trusted_proxies: [10.0.0.0/33]\n".into(), "1:19: `trusted_proxies` must hold networks such as 10.0.0.0/24"),
        (
            "forwarded_by: x-real-ip\n".into(),
            "1:15: `forwarded_by` must be one of x-forwarded-for, forwarded; it is `x-real-ip`",
        ),
        (route("match: { path: a }, policy: demo, respond: {}"), "3:22: `path` must start with a slash; it is `a`"),
        (
            route("match: { path: /livez }, policy: demo, respond: {}"),
            "3:22: `/livez` is answered by the server itself",
        ),
        (
            route("match: { path: /a, methods: [GTE] }, policy: demo, respond: {}"),
            "3:36: unknown method `GTE`; did you mean `GET`?",
        ),
        (
            route("match: { path: /a }, policy: demo, cost: { token: 1 }, respond: {}"),
            "3:50: no rule of the policy `demo` counts `token`",
        ),
        (
            route("match: { path: /a }, policy: demo, cost: { requests: 6 }, respond: {}"),
            "3:60: `cost.requests` is 6, but the rule `gcra` never gives more than 5",
        ),
        (
            route(
                "match: { path: /a }, policy: demo, respond: {} }\n  - { match: { path: /a, methods: [GET] }, policy: demo, respond: {}",
            ),
            "4:5: this route is never reached: the one on line 3 matches all of it",
        ),
    ] {
        let problem = problems(&text);
        let (first, _) = problem.split_once('\n').unwrap_or((&problem, ""));
        if !first.starts_with(&format!("sekisho.yaml:{expected}")) {
            wrong.push(format!("{text}\n expected {expected}\n got {problem}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a72_a_bomb_is_refused() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..9 {
        let before = i - 1;
        text.push_str(&format!("a{i}: &a{i} [{}]\n", vec![format!("*a{before}"); 10].join(", ")));
    }
    assert!(problems(&text).starts_with("sekisho.yaml:"));
    assert!(problems(&"[".repeat(100_000)).starts_with("sekisho.yaml:"));
    assert!(problems(&"#\n".repeat(600_000)).contains("bytes long"));
}

#[test]
fn everything_can_be_said() {
    let config = Config::parse(
        "all.yaml",
        r#"
listen: 127.0.0.1:0
api: "[::1]:0"
grpc: off
store: { url: "rediss://u:pw@h:1/0", on_failure: closed, timeout: 20ms }
memory: { subjects: 10000, bytes: 64MiB }
instances: 3
usage_policy: all
headers: legacy
policies:
  all:
    subject: [user, header:X-Tenant, endpoint]
    mode: shadow
    on_failure: open
    lease: 2m
    on_lease_expiry: release
    ipv6_prefix: 56
    rules:
      - { name: a, algorithm: fixed_window, limit: 5, window: 1h, key: "rate:{subject}:{endpoint}:{yyyyMMddHH}" }
      - { name: b, algorithm: sliding_log, limit: 5, window: 60s, key: "rate:minute:{subject}" }
      - { name: c, algorithm: sliding_counter, limit: 5, window: 60s, buckets: 6 }
      - { name: d, algorithm: sliding_counter, limit: 5, window: 60s, variant: interpolated }
      - { name: e, algorithm: token_bucket, limit: 5, window: 60s, burst: 9, unit: tokens }
      - { name: f, algorithm: leaky_bucket, limit: 5, window: 60s, mode: queue }
      - { name: g, algorithm: gcra, limit: 5, window: 60s }
      - { name: h, algorithm: concurrency, limit: 4 }
      - { name: i, algorithm: calendar, period: month, zone: Asia/Tokyo, limit: 5 }
      - { name: j, algorithm: interval, interval: [1.5s, 5.5s], max_wait: 10s }
      - { name: k, algorithm: block }
routes:
  - match: { path: "/a/{b}", methods: [GET, POST] }
    policy: all
    cost: { tokens: 2, requests: 0 }
    respond: { status: 201, json: { list: [1, -1, 2.5, true, null, text] } }
"#,
    )
    .unwrap();
    assert_eq!(config.policies[0].policy.rules().len(), 11);
    assert_eq!(config.headers, HeaderStyle::Legacy);
    assert!(config.grpc.is_none());
    let Action::Respond(fixed) = &config.routes[0].action else { panic!("{:?}", config.routes[0]) };
    assert_eq!(fixed.body, r#"{"list":[1,-1,2.5,true,null,"text"]}"#);
    let shown = format!("{config:?}");
    assert!(!shown.contains("pw"), "{shown}");
}

#[test]
fn the_reference_is_up_to_date() {
    let page = include_str!("../../../docs/reference/configuration.md");
    let filled = sekisho_server::config::reference::fill(page).unwrap();
    assert!(filled == page, "docs/reference/configuration.md is old: run `cargo xtask docs`");
    // This table is written by hand, for it says what each algorithm is for.
    let schema = sekisho_server::config::schema();
    for case in schema["$defs"]["rules"]["allOf"].as_array().unwrap() {
        let algorithm = case["if"]["properties"]["algorithm"]["const"].as_str().unwrap();
        let keys = case["then"]["propertyNames"]["enum"].as_array().unwrap();
        let own: Vec<String> = keys.iter().skip(3).map(|key| format!("`{}`", key.as_str().unwrap())).collect();
        let row = format!("| `{algorithm}` | {}", own.join(", "));
        assert!(page.lines().any(|line| line.starts_with(row.trim_end())), "no row begins with {row}");
    }
}
