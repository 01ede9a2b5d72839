//! The doors against trivial servers, nginx and peers: `cargo xtask bench doors`.
//!
//! Load and servers share the machine. CPU per request is what a server itself spends, and is the figure to trust.

mod load;
mod process;
pub(crate) mod trivial;

use std::fs;
use std::process::Command;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::Message as _;
use tempfile::TempDir;

use self::load::{Load, get, get_for, post};
use self::process::{Server, flask, nginx, redis, redis_cli, sekisho, throttlecrab, trivial};
use crate::measure::{median, ratio, row};

const ROUNDS: usize = 15;
const SUBJECTS: usize = 20_000;
const MANY: &str = "20,000 clients";
/// A limit that is never reached.
const OPEN: &str = "{ algorithm: gcra, limit: 1000000000, window: 1s }";

/// Requests a second and CPU microseconds a request, in every round.
#[derive(Default)]
struct Figures {
    rates: Vec<f64>,
    cpu: Vec<f64>,
}

/// All contenders in turn, every round beginning with another.
fn contest(contenders: &[(&Server, &Load)], before: impl Fn()) -> Vec<Figures> {
    let mut figures: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
    for round in 0..=ROUNDS {
        for turn in 0..contenders.len() {
            let which = (round + turn) % contenders.len();
            let (server, load) = contenders[which];
            before();
            let cpu = server.cpu();
            let seen = load.run(server.port);
            // The first round warms up.
            if round > 0 {
                figures[which].rates.push(seen.per_second);
                figures[which].cpu.push((server.cpu() - cpu) / seen.done as f64);
            }
        }
    }
    figures
}

fn k(rates: &[f64]) -> String {
    format!("{:.1}k", median(rates) / 1_000.0)
}

fn table(title: &str, names: &[&str], figures: &[Figures]) {
    println!("\n| {title} | requests/s | of the first | CPU µs a request | of the first |\n|---|---|---|---|---|");
    for (name, one) in names.iter().zip(figures) {
        let first = &figures[0];
        row(
            name,
            &[
                ("", k(&one.rates)),
                ("×", format!("{:.2}", ratio(&one.rates, &first.rates))),
                ("", format!("{:.1}", median(&one.cpu))),
                ("×", format!("{:.2}", ratio(&one.cpu, &first.cpu))),
            ],
        );
    }
}

pub(crate) fn run(which: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let wanted = |name: &str| which.is_empty() || which.contains(&name);
    println!("\n## Doors (medians of {ROUNDS} interleaved rounds; of requests more is better, of CPU less)");
    if wanted("check") {
        check(&dir);
    }
    if wanted("redis") {
        check_on_redis(&dir);
    }
    if wanted("grpc") {
        grpc(&dir);
    }
    if wanted("respond") {
        respond(&dir);
    }
    if wanted("proxy") {
        proxy(&dir);
    }
    if wanted("latency") {
        latency(&dir);
    }
    if wanted("footprint") {
        footprint(&dir);
    }
}

fn subjects() -> impl Iterator<Item = String> {
    (0..SUBJECTS).map(|i| format!("10.{}.{}.{}", i / 65_536, i / 256 % 256, i % 256))
}

fn checks(policy: &str) -> Load {
    post("/v1/check", subjects().map(|subject| format!(r#"{{"policy":"{policy}","subject":"{subject}"}}"#)))
}

fn check(dir: &TempDir) {
    let config =
        format!("listen: LISTEN\napi: API\ngrpc: off\npolicies: {{ open: {{ rules: [{OPEN}] }} }}\nroutes: []\n");
    let ours = sekisho(dir.path(), &config, "API");
    let (axum, crab) = (trivial("axum"), throttlecrab());
    let crab_body =
        |key| format!(r#"{{"key":"{key}","max_burst":1000000,"count_per_period":1000000,"period":1,"quantity":1}}"#);
    let (checks, crabs) = (checks("open"), post("/throttle", subjects().map(crab_body)));
    let figures = contest(&[(&axum, &checks), (&ours, &checks), (&crab, &crabs)], || ());
    table(
        "`POST /v1/check` in memory",
        &["axum that only parses and answers", "sekisho", "throttlecrab-server"],
        &figures,
    );
}

/// Seed 000's rules under its own keys, which older programs read too, and as they are kept where nobody else does.
fn check_on_redis(dir: &TempDir) {
    let redis = redis(dir.path());
    let url = format!("redis://127.0.0.1:{}", redis.port);
    let rules = |minute: &str, daily: &str| {
        format!(
            "listen: LISTEN\napi: API\ngrpc: off\nstore: {{ url: \"{url}\", timeout: 5s }}\npolicies:\n  vision:\n    rules:\n      \
             - {{ name: minute, algorithm: sliding_log, limit: 20, window: 60s{minute} }}\n      \
             - {{ name: daily, algorithm: calendar, period: day, zone: UTC, limit: 1000{daily} }}\nroutes: []\n"
        )
    };
    let under_its_keys = rules(", key: \"rate:minute:{subject}\"", ", key: \"rate:daily:{subject}:{date}\"");
    let (seeds, own) = (sekisho(dir.path(), &under_its_keys, "API"), sekisho(dir.path(), &rules("", ""), "API"));
    let (axum, flask) = (trivial("axum"), flask(&url));
    let checks = checks("vision");
    let contenders = [(&axum, &checks), (&own, &checks), (&seeds, &checks), (&flask, &checks)];
    let figures = contest(&contenders, || redis_cli(redis.port, "FLUSHALL"));
    let names = [
        "axum that only parses and answers",
        "sekisho on Redis",
        "sekisho on Redis, under the seed's keys",
        "Flask, Flask-Limiter, gunicorn on Redis",
    ];
    table("`POST /v1/check`, seed 000's two rules on Redis", &names, &figures);
    let of_flask = |which: usize| ratio(&figures[which].rates, &figures[3].rates);
    println!("\nOf Flask's requests a second: ×{:.1}, under the seed's keys ×{:.1}", of_flask(1), of_flask(2));
}

/// h2load, because gRPC is HTTP/2 and its own clients cost more than the servers.
fn grpc(dir: &TempDir) {
    let entry = rate_limit_descriptor::Entry { key: "remote_address".into(), value: "10.0.0.1".into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request = RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], hits_addend: 1 };
    let message = request.encode_to_vec();
    let mut body = vec![0];
    body.extend((message.len() as u32).to_be_bytes());
    body.extend(message);
    let file = dir.path().join("request.bin");
    fs::write(&file, body).unwrap();
    fs::write(
        dir.path().join("ratelimit.yaml"),
        "domain: bench\ndescriptors:\n  - key: remote_address\n    rate_limit: { unit: second, requests_per_unit: 1000000000 }\n",
    )
    .unwrap();
    let config = "listen: LISTEN\napi: API\ngrpc: GRPC\ndomains: [ratelimit.yaml]\nroutes: []\n";
    let (ours, tonic) = (sekisho(dir.path(), config, "GRPC"), trivial("tonic"));
    let mut figures = [Figures::default(), Figures::default()];
    for round in 0..=ROUNDS {
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let server = [&tonic, &ours][which];
            let cpu = server.cpu();
            let url =
                format!("http://127.0.0.1:{}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", server.port);
            let mut command = Command::new("h2load");
            command.args(["-n", "40000", "-c", "8", "-m", "8", "-H", "content-type: application/grpc"]);
            command.args(["-H", "te: trailers", "-d"]).arg(&file).arg(url);
            let output = command.output().unwrap_or_else(|error| panic!("h2load: {error}"));
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("40000 succeeded, 0 failed"), "{text}");
            if round > 0 {
                let rate = text.lines().find_map(|line| {
                    let (_, rest) = line.split_once("finished in ")?;
                    rest.split(", ").nth(1)?.trim_end_matches(" req/s").parse().ok()
                });
                figures[which].rates.push(rate.unwrap());
                figures[which].cpu.push((server.cpu() - cpu) / 40_000.0);
            }
        }
    }
    table("gRPC `ShouldRateLimit` in memory", &["tonic that only answers", "sekisho"], &figures);
}

/// Both count clients by address, and believe who is before them.
const ZONE: &str = "set_real_ip_from 127.0.0.1;\nreal_ip_header X-Forwarded-For;\n\
                    limit_req_zone $binary_remote_addr zone=one:10m rate=1000000r/s;";
const BY_ADDRESS: &str = "trusted_proxies: [127.0.0.1]\npolicies: { open: { subject: ip, rules: [RULE] } }";
const LIMIT: &str = "limit_req zone=one burst=1000000 nodelay;";

fn respond(dir: &TempDir) {
    let config = format!(
        "listen: LISTEN\napi: API\ngrpc: off\n{}\nroutes:\n  \
         - {{ match: {{ path: / }}, policy: open, respond: {{ status: 200, json: {{ message: ok }} }} }}\n",
        BY_ADDRESS.replace("RULE", OPEN)
    );
    let ours = sekisho(dir.path(), &config, "LISTEN");
    // `return` alone would answer before the limit is looked at.
    let server = format!(
        "location / {{ {LIMIT} try_files /nothing @answer; }}\nlocation @answer {{ default_type application/json; return 200 '{{\"message\":\"ok\"}}'; }}"
    );
    let (nginx, axum) = (nginx(dir.path(), ZONE, &server), trivial("axum"));
    let names = ["nginx, limit_req", "sekisho, `respond`", "axum, no limit"];
    for (whom, load) in [("one client", get("/")), (MANY, get_for("/", subjects()))] {
        let figures = contest(&[(&nginx, &load), (&ours, &load), (&axum, &load)], || ());
        table(&format!("a fixed answer under one rule, {whom}"), &names, &figures);
    }
}

/// An nginx that answers, and behind it two gateways that count clients: sekisho and nginx.
fn gateways(dir: &TempDir) -> [Server; 3] {
    let upstream =
        nginx(dir.path(), "", "location / { default_type text/plain; return 200 'hello from the upstream'; }");
    let config = format!(
        "listen: LISTEN\napi: API\ngrpc: off\n{}\nroutes:\n  \
         - {{ match: {{ path: / }}, policy: open, upstream: \"http://127.0.0.1:{}\" }}\n",
        BY_ADDRESS.replace("RULE", OPEN),
        upstream.port
    );
    let ours = sekisho(dir.path(), &config, "LISTEN");
    let http = format!(
        "{ZONE}\nupstream up {{ server 127.0.0.1:{}; keepalive 64; keepalive_requests 1000000000; }}",
        upstream.port
    );
    let server = format!(
        "location / {{ {LIMIT} proxy_http_version 1.1; proxy_set_header Connection ''; proxy_pass http://up; }}"
    );
    let nginx = nginx(dir.path(), &http, &server);
    [upstream, ours, nginx]
}

fn proxy(dir: &TempDir) {
    let [upstream, ours, nginx] = gateways(dir);
    let before = ours.rss();
    let names = ["nginx, proxy_pass and limit_req", "sekisho", "the upstream alone"];
    for (whom, load) in [("one client", get("/")), (MANY, get_for("/", subjects()))] {
        let figures = contest(&[(&nginx, &load), (&ours, &load), (&upstream, &load)], || ());
        table(&format!("proxying to a local nginx under one rule, {whom}"), &names, &figures);
    }
    println!("\nMemory of sekisho before and after: {before:.1} and {:.1} MiB", ours.rss());
}

/// What the gateways add to the latency of the upstream, at half of what sekisho can do.
fn latency(dir: &TempDir) {
    let [upstream, ours, nginx] = gateways(dir);
    let rates: Vec<f64> = (0..5).map(|_| get("/").run(ours.port).per_second).collect();
    let pace = median(&rates) / 2.0;
    let half = Load { pace: Some(pace), lasts: Duration::from_secs(2), ..get("/") };
    println!(
        "\n| p99 at {pace:.0} requests/s, ms | upstream alone | through sekisho | through nginx |\n|---|---|---|---|"
    );
    let (mut added, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let p99 = |server: &Server| half.run(server.port).percentile(99.0).as_secs_f64() * 1_000.0;
        let [alone, sekisho, nginx] = [&upstream, &ours, &nginx].map(p99);
        let ms = |value: f64| ("", format!("{value:.2}"));
        row(&format!("round {round}"), &[ms(alone), ms(sekisho), ms(nginx)]);
        added.push(sekisho - alone);
        theirs.push(nginx - alone);
    }
    println!("\nAdded, medians: by sekisho {:.2} ms, by nginx {:.2} ms", median(&added), median(&theirs));
}

fn footprint(dir: &TempDir) {
    let config = "listen: LISTEN\napi: API\n";
    let starts: Vec<f64> =
        (0..15).map(|_| sekisho(dir.path(), config, "LISTEN").took.as_secs_f64() * 1_000.0).collect();
    let config =
        format!("listen: LISTEN\napi: API\ngrpc: off\npolicies: {{ open: {{ rules: [{OPEN}] }} }}\nroutes: []\n");
    let server = sekisho(dir.path(), &config, "API");
    let idle = server.rss();
    let body = |i: usize| {
        let checks: Vec<String> =
            (0..500).map(|j| format!(r#"{{"policy":"open","subject":"subject-{:08}"}}"#, i * 500 + j)).collect();
        format!(r#"{{"checks":[{}]}}"#, checks.join(","))
    };
    // Every body once, or twice where the first took less than a millisecond.
    for body in (0..200).map(body) {
        let one = post("/v1/check/batch", std::iter::once(body));
        Load { connections: 1, lasts: Duration::from_millis(1), ..one }.run(server.port);
    }
    let after = server.rss();
    println!("\n| idle RSS, MiB | more after 100k subjects, MiB | start-up, ms (median of 15) |\n|---|---|---|");
    println!("| {idle:.1} | {:.1} | {:.1} |", after - idle, median(&starts));
}
