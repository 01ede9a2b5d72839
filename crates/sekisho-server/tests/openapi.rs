//! The OpenAPI document, held against the server by a real schemathesis: it makes requests up from the document, valid
//! and invalid ones, and finds answers that the document does not promise.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use sekisho_elevation::Layer;
use sekisho_server::config::Config;
use sekisho_testkit::tiles::{TileServer, ground};
use serde_json::{Value, json};
use support::TestServer;

const POLICIES: &str = r#"
policies:
  demo: { subject: ip, rules: [{ name: minute, algorithm: fixed_window, limit: 5, window: 60s }] }
  tokens:
    subject: user
    lease: 2m
    rules:
      - { name: budget, algorithm: token_bucket, unit: tokens, limit: 3600, window: 1h, burst: 1000 }
      - { name: flight, algorithm: concurrency, limit: 2 }
  hourly:
    subject: user
    rules: [{ name: hour, algorithm: fixed_window, limit: 2, window: 1h, key: "rate:{subject}:{endpoint}:{yyyyMMddHH}" }]
  watched: { mode: shadow, rules: [{ name: one, algorithm: fixed_window, limit: 1, window: 60s }] }
  turns: { rules: [{ name: turn, algorithm: interval, interval: 2s, max_wait: 10s }] }
auth: { policy: demo }
domains: [edge.yaml]
"#;
const DOMAIN: &str = r#"
domain: edge
descriptors: [{ key: remote_address, rate_limit: { unit: minute, requests_per_unit: 1 } }]
"#;
const TOKEN: &str = "t0ken";
/// Enough for every phase to reach every operation, in half a minute.
const EXAMPLES: &str = "25";

#[test]
fn the_document_says_exactly_what_is_understood() {
    let server = TestServer::with_token("{}", TOKEN);
    let bearer = format!("Bearer {TOKEN}");
    let document = server.send("GET", "/openapi.json", &[("authorization", &bearer)], String::new()).expect(200);
    assert_eq!(server.get("/openapi.json").status, 401);
    nothing_is_found(&server, &document, "exact.toml");
}

#[test]
fn decisions_are_answered_as_the_document_promises() {
    let server = with_policies();
    let document = server.get("/openapi.json").expect(200);
    nothing_is_found(&server, &document, "policies.toml");
    let example = &document["paths"]["/v1/release"]["post"]["requestBody"]["content"]["application/json"]["example"];
    server.post("/v1/release", example).expect(404);
    // Whether schemathesis ended what it had reserved before the lease did is luck.
    for end in ["/v1/settle", "/v1/release"] {
        let asked = json!({ "policy": "watched", "subject": end });
        let id = server.post("/v1/reserve", &asked).expect(200)["reservation"].clone();
        assert!(id.is_string(), "{id}");
        server.post(end, json!({ "reservation": id })).expect(200);
    }
    // It was not all refused.
    let metrics = server.get("/metrics").text;
    let counts: Vec<&str> = metrics.lines().filter(|line| line.starts_with("sekisho_http_requests_total")).collect();
    for (route, status) in [
        ("/v1/check", 200),
        ("/v1/check", 429),
        ("/v1/check", 400),
        ("/v1/check", 415),
        ("/v1/peek", 200),
        ("/v1/reserve", 200),
        ("/v1/reserve", 429),
        ("/v1/settle", 404),
        ("/v1/explain", 200),
        ("/v1/reset", 200),
        ("/v1/grant", 200),
        ("/v1/override", 200),
        ("/v1/policies", 405),
        ("/auth/nginx", 403),
        ("/auth/forward", 200),
        ("/auth/forward", 429),
        ("/json", 200),
        ("/json", 429),
        ("/v1/elevation", 200),
        ("/v1/elevation/profile", 200),
        ("/api/v1/lookup", 200),
        ("/api/v1/lookup", 400),
    ] {
        let labels = format!("{{door=\"api\",route=\"{route}\",status=\"{status}\"}}");
        assert!(counts.iter().any(|line| line.contains(&labels)), "{route} never answered {status}: {counts:#?}");
    }
}

#[test]
fn every_method_is_described_or_refused() {
    let server = with_policies();
    let document = server.get("/openapi.json").expect(200);
    for (path, described) in document["paths"].as_object().unwrap() {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
            let reply = server.send(method, path, &[], String::new());
            let is_described = described.get(method.to_lowercase()).is_some();
            assert_eq!(reply.status != 405, is_described, "{method} {path}: {} {}", reply.status, reply.text);
            assert_ne!((reply.status, reply.header("allow")), (405, ""), "{method} {path}");
        }
    }
    assert_eq!(server.get("/").status, 404);
}

fn with_policies() -> TestServer {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("sekisho.yaml");
    // It lives as long as the test.
    let tiles = TileServer::start(ground::only(Layer::Dem10b, ground::plane(100.0, 10.0)));
    let elevation = format!("elevation: {{ origin: \"{}\", layers: [dem] }}\n", tiles.url());
    std::fs::write(&config, format!("{POLICIES}{elevation}")).unwrap();
    std::fs::write(dir.path().join("edge.yaml"), DOMAIN).unwrap();
    TestServer::with(Config::read(&config).unwrap_or_else(|error| panic!("{error}")))
}

#[track_caller]
fn nothing_is_found(server: &TestServer, document: &Value, config: &str) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = here.join("../../target/tools/schemathesis/bin/st");
    assert!(program.exists(), "schemathesis is not installed, and this test needs it: run `cargo xtask setup`");
    // It leaves files where it runs.
    let dir = tempfile::tempdir().unwrap();
    let (schema, report) = (dir.path().join("openapi.json"), dir.path().join("report.json"));
    std::fs::write(&schema, document.to_string()).unwrap();
    let output = Command::new(program.canonicalize().unwrap())
        .current_dir(dir.path())
        .args(["--no-color", "--config-file"])
        .arg(here.join("tests/schemathesis").join(config))
        .arg("run")
        .arg(&schema)
        .arg(format!("--url=http://{}", server.addresses.api))
        .args(["--seed=1", "--continue-on-failure", "--warnings=off", "--max-examples", EXAMPLES])
        .arg("--report-json-path")
        .arg(&report)
        .env("NO_PROXY", "*")
        .output()
        .unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");
    let report = read(&report);
    assert_eq!(report["operations"]["tested"], operations(document), "{told}");
    assert_eq!((&report["failures"], &report["errors"]), (&Value::Array(vec![]), &Value::Array(vec![])), "{told}");
    for phase in ["examples", "coverage", "fuzzing", "stateful"] {
        assert_eq!(report["phases"][phase]["status"], "success", "{phase}: {told}");
    }
    assert!(report["test_cases"]["generated"].as_u64().unwrap() > 1_000, "{told}");
}

fn operations(document: &Value) -> usize {
    document["paths"].as_object().unwrap().values().map(|methods| methods.as_object().unwrap().len()).sum()
}

fn read(path: &PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}
