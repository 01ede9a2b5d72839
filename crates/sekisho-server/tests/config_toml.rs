//! A configuration in TOML is the same configuration, and its mistakes are shown at their place as well.

use std::path::PathBuf;

use sekisho_server::config::Config;

fn example(path: &str) -> PathBuf {
    PathBuf::from(format!("{}/../../examples/{path}", env!("CARGO_MANIFEST_DIR")))
}

fn problems(text: &str) -> String {
    Config::parse("sekisho.toml", text).expect_err(text).to_string()
}

/// All that was read, but for the files it was read from.
fn shown(config: Config) -> String {
    format!("{:#?}", Config { files: Vec::new(), ..config })
}

#[test]
fn the_quickstart_is_the_same_in_both_forms() {
    let yaml = Config::read(&example("quickstart/sekisho.yaml")).unwrap();
    let toml = Config::read(&example("toml/sekisho.toml")).unwrap();
    assert_eq!(shown(toml), shown(yaml));
}

#[test]
fn everything_can_be_said_in_both_forms() {
    let yaml = r#"
listen: 127.0.0.1:1
api: "[::1]:2"
grpc: off
store: { url: "rediss://u:pw@h:1/0", on_failure: closed, timeout: 20ms }
memory: { subjects: 10000, bytes: 64MiB }
instances: 3
trusted_proxies: [10.0.0.0/8, "::1"]
forwarded_by: forwarded
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
      - { name: c, algorithm: sliding_counter, limit: 5, window: 60s, buckets: 6 }
      - { name: i, algorithm: calendar, period: month, zone: Asia/Tokyo, limit: 5, unit: tokens }
      - { name: j, algorithm: interval, interval: [1.5s, 5.5s], max_wait: 10s }
  another: { subject: ip, rules: [{ algorithm: block }] }
routes:
  - match: { path: "/a/{b}", methods: [GET, POST] }
    policy: all
    cost: { tokens: 2, requests: 0 }
    respond: { status: 201, json: { list: [1, -1, 2.5, true, text] } }
  - match: { path: /c, host: example.com }
    policy: all
    upstream: http://127.0.0.1:9000
    timeout: 5s
    release_on: [connect, 4xx]
    settle_from: { tokens: /usage/total }
    secret: { header: x-key, env: KEY }
auth: { policy: another }
"#;
    let toml = r#"
listen = "127.0.0.1:1"
api = "[::1]:2"
grpc = false
instances = 0x3
trusted_proxies = ["10.0.0.0/8", "::1"]
forwarded_by = "forwarded"
usage_policy = "all"
headers = 'legacy'
memory = { subjects = 10_000, bytes = "64MiB" }
store.url = "rediss://u:pw@h:1/0"
store.on_failure = "closed"
store.timeout = "20ms"

[policies.all]
subject = ["user", "header:X-Tenant", "endpoint"]
mode = "shadow"
on_failure = "open"
lease = "2m"
on_lease_expiry = "release"
ipv6_prefix = 56

[[policies.all.rules]]
name = "a"
algorithm = "fixed_window"
limit = 5
window = "1h"
key = "rate:{subject}:{endpoint}:{yyyyMMddHH}"

[[policies.all.rules]]
name = "c"
algorithm = "sliding_counter"
limit = 5
window = "60s"
buckets = 6

[[policies.all.rules]]
name = "i"
algorithm = "calendar"
period = "month"
zone = "Asia/Tokyo"
limit = 5
unit = "tokens"

[[policies.all.rules]]
name = "j"
algorithm = "interval"
interval = ["1.5s", "5.5s"]
max_wait = "10s"

[policies.another]
subject = "ip"
rules = [{ algorithm = "block" }]

[[routes]]
match = { path = "/a/{b}", methods = ["GET", "POST"] }
policy = "all"
cost = { tokens = 2, requests = 0 }
respond = { status = 201, json = { list = [1, -1, 2.5, true, "text"] } }

[[routes]]
match.path = "/c"
match.host = "example.com"
policy = "all"
upstream = "http://127.0.0.1:9000"
timeout = "5s"
release_on = ["connect", "4xx"]
settle_from.tokens = "/usage/total"
secret = { header = "x-key", env = "KEY" }

[auth]
policy = "another"
"#;
    let read = |name, text| shown(Config::parse(name, text).unwrap());
    assert_eq!(read("sekisho.toml", toml), read("sekisho.yaml", yaml));
}

#[test]
fn a_mistake_is_shown_with_its_line_and_a_caret() {
    let text = "# 関所\n[[policies.p.rules]]\nalgorithm = \"fixed_window\"\nlimt = 5\nwindow = \"60s\"\n";
    let expected = "\
sekisho.toml:2:1: `limit` is missing: a fixed_window rule needs it
 2 | [[policies.p.rules]]
   | ^
sekisho.toml:4:1: unknown key `limt`; did you mean `limit`?
 4 | limt = 5
   | ^";
    assert_eq!(problems(text), expected);
}

#[test]
fn mistakes_are_named_with_their_place() {
    let mut wrong = Vec::new();
    for (text, expected) in [
        ("polices = {}\n", "1:1: unknown key `polices`; did you mean `policies`?"),
        ("[polices]\n", "1:2: unknown key `polices`; did you mean `policies`?"),
        ("store.ulr = \"x\"\n", "1:1: `url` is missing"),
        ("memory = { subjcts = 5 }\n", "1:12: unknown key `subjcts`; did you mean `subjects`?"),
        ("# 関\nlisten =  8000\n", "2:11: `listen` must be text; it is a whole number"),
        ("api = \"127.0.0.1:1\"\napi = \"127.0.0.1:2\"\n", "2:1: the key `api` stands here a second time"),
        ("[memory]\nbytes = \"1MiB\"\n[memory]\n", "3:2: the key `memory` stands here a second time"),
        (
            "memory = { bytes = \"1MiB\", \"bytes\" = \"2MiB\" }\n",
            "1:28: the key `\"bytes\"` stands here a second time",
        ),
        ("listen = 2026-11-16\n", "1:10: is a date, and no setting is one: write text in quotes"),
        ("instances = 99999999999999999999999999999999999999999\n", "1:13: `instances` must be 1 to 100000"),
        (
            "instances = 1.5\n",
            "1:13: `instances` must be a whole number from 1 to 100000; it is a number with a fraction",
        ),
        ("headers = \"drafts\"\n", "1:11: `headers` must be one of legacy, draft, both, none; it is `drafts`"),
        ("listen: 127.0.0.1:8000\n", "1:9: key with no value, expected `=`"),
        ("listen = \"127", "1:14: invalid basic string"),
        ("[policies.p]\nrules = []\n", "2:9: `rules` must be 1 to 16; there are 0"),
    ] {
        let problem = problems(text);
        let (first, _) = problem.split_once('\n').unwrap_or((&problem, ""));
        if !first.starts_with(&format!("sekisho.toml:{expected}")) {
            wrong.push(format!("{text}\n expected {expected}\n got {problem}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a72_what_is_deep_or_long_is_refused() {
    assert!(problems(&format!("a = {}", "[".repeat(100_000))).starts_with("sekisho.toml:"));
    assert!(problems(&format!("a{} = 1", ".a".repeat(100_000))).starts_with("sekisho.toml:"));
    assert!(problems(&"#\n".repeat(600_000)).contains("bytes long"));
}
