//! Envoy's rate-limit service, asked by a client that knows Envoy's own messages.
//!
//! The clients live on a thread beside the test's: a server that is dropped says goodbye and waits for their answer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::RedisServer;
use serde_json::{Value, json};
use support::{TestServer, until};
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const OK: i32 = Code::Ok as i32;
const OVER: i32 = Code::OverLimit as i32;
const MINUTE: i32 = 2;
const HOUR: i32 = 3;
const YEAR: i32 = 6;

const RULES: &str = r#"
domain: edge
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 5, name: per_user }
  - key: user
    value: free
    rate_limit: { unlimited: true, replaces: [{ name: per_plan }] }
  - key: user
    value: robot-*
    rate_limit: { unit: day, requests_per_unit: 0 }
  - key: plan
    rate_limit: { unit: hour, requests_per_unit: 2, name: per_plan }
  - key: tokens
    rate_limit: { unit: hour, requests_per_unit: 1000 }
  - key: shadow
    shadow_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - { key: quota, value: a, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: quota, value: b, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 2 } }
  - key: file
    value: img*
    share_threshold: true
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: ip
    descriptors:
      - key: path
        value: /login
        rate_limit: { unit: second, requests_per_unit: 1 }
"#;

/// A configuration that names the rules, both in files.
fn config(rules: &str, rest: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let file = folder.path().join("sekisho.yaml");
    std::fs::write(&file, format!("domains: [rules.yaml]\n{rest}")).unwrap();
    Config::read(&file).unwrap_or_else(|error| panic!("{error}"))
}

fn server() -> TestServer {
    TestServer::with(config(RULES, ""))
}

struct Client(RateLimitServiceClient<Channel>);

impl Client {
    async fn of(server: &TestServer) -> Self {
        Self(RateLimitServiceClient::connect(server.grpc()).await.unwrap())
    }

    async fn try_ask(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, tonic::Status> {
        self.0.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    async fn ask(&mut self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.try_ask(RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }).await.unwrap()
    }

    /// Code and remaining of the only descriptor.
    async fn one(&mut self, descriptor: RateLimitDescriptor) -> (i32, u32) {
        let response = self.ask(vec![descriptor]).await;
        assert_eq!(response.overall_code, response.statuses[0].code);
        (response.overall_code, response.statuses[0].limit_remaining)
    }
}

/// Entries as `key=value, key=value`.
fn descriptor(entries: &str) -> RateLimitDescriptor {
    let entry = |part: &str| {
        let (key, value) = part.trim().split_once('=').unwrap();
        Entry { key: key.into(), value: value.into() }
    };
    RateLimitDescriptor { entries: entries.split(',').map(entry).collect(), ..RateLimitDescriptor::default() }
}

fn hits(entries: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor(entries) }
}

fn back(entries: &str, given: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..hits(entries, given) }
}

fn limited(entries: &str, requests_per_unit: u32, unit: i32) -> RateLimitDescriptor {
    RateLimitDescriptor { limit: Some(RateLimitOverride { requests_per_unit, unit }), ..descriptor(entries) }
}

fn header<'a>(response: &'a RateLimitResponse, name: &str) -> &'a str {
    response.response_headers_to_add.iter().find(|header| header.key == name).map_or("", |header| &header.value)
}

fn codes(response: &RateLimitResponse) -> Vec<i32> {
    response.statuses.iter().map(|status: &DescriptorStatus| status.code).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_sixth_of_five_is_over() {
    let server = server();
    let mut client = Client::of(&server).await;
    for used in 1..=5 {
        let response = client.ask(vec![descriptor("user=alice")]).await;
        let status = &response.statuses[0];
        assert_eq!((response.overall_code, status.code, status.limit_remaining), (OK, OK, 5 - used));
        let limit = status.current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit, limit.name.as_str()), (5, MINUTE, "per_user"));
        // A third of the minute is over.
        assert_eq!(status.duration_until_reset.as_ref().unwrap().seconds, 40);
        assert_eq!(header(&response, "x-ratelimit-remaining"), (5 - used).to_string());
        assert_eq!(header(&response, "ratelimit-policy"), "\"minute\";q=5;w=60");
        assert!(response.raw_body.is_empty() && header(&response, "retry-after").is_empty());
    }
    let response = client.ask(vec![descriptor("user=alice")]).await;
    assert_eq!((response.overall_code, codes(&response)), (OVER, vec![OVER]));
    assert_eq!(header(&response, "retry-after"), "40");
    assert_eq!(header(&response, "content-type"), "application/problem+json");
    assert_eq!(header(&response, "x-ratelimit-reset"), "1759104060");
    assert_eq!(header(&response, "ratelimit"), "\"minute\";r=0;t=40");
    let body: Value = serde_json::from_slice(&response.raw_body).unwrap();
    assert_eq!((&body["status"], &body["violated-policies"]), (&json!(429), &json!(["minute"])));

    // Others have their own; and the next minute starts at its edge.
    assert_eq!(client.one(descriptor("user=bob")).await, (OK, 4));
    server.clock.advance(Duration::from_secs(40));
    assert_eq!(client.one(descriptor("user=alice")).await, (OK, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn each_descriptor_is_decided_for_itself_and_in_order() {
    let server = server();
    let mut client = Client::of(&server).await;
    let both = || vec![descriptor("user=alice"), descriptor("none=x"), descriptor("plan=gold")];
    for _ in 0..2 {
        assert_eq!(client.ask(both()).await.overall_code, OK);
    }
    for used in 3..=5 {
        let response = client.ask(both()).await;
        assert_eq!((response.overall_code, codes(&response)), (OVER, vec![OK, OK, OVER]));
        // What is denied by one is counted by the other all the same.
        assert_eq!(response.statuses[0].limit_remaining, 5 - used);
        assert!(response.statuses[1].current_limit.is_none());
        assert_eq!(header(&response, "retry-after"), "3580");
    }
    assert_eq!(codes(&client.ask(both()).await), [OVER, OK, OVER]);
    // The same descriptor twice counts twice, one after the other.
    let twice = client.ask(vec![hits("user=bob", 4), hits("user=bob", 2)]).await;
    assert_eq!(codes(&twice), [OK, OVER]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn rules_of_every_kind() {
    let server = server();
    let mut client = Client::of(&server).await;
    assert_eq!(client.one(descriptor("user=free")).await, (OK, u32::MAX));
    assert_eq!(client.one(descriptor("user=robot-1")).await, (OVER, 0));
    let blocked = client.ask(vec![descriptor("user=robot-1")]).await;
    assert_eq!(blocked.statuses[0].duration_until_reset.as_ref().unwrap().seconds, 86_400 - 20);
    assert_eq!(header(&blocked, "x-ratelimit-limit"), "0");
    // The depth must be that of the rule.
    assert_eq!(client.one(descriptor("ip=1.2.3.4")).await, (OK, 0));
    assert_eq!(client.one(descriptor("ip=1.2.3.4, path=/login")).await, (OK, 0));
    assert_eq!(client.one(descriptor("ip=1.2.3.4, path=/login")).await, (OVER, 0));
    assert_eq!(client.one(descriptor("ip=1.2.3.5, path=/login")).await, (OK, 0));
    // One counter for all that match.
    for (file, expected) in [("img1", (OK, 2)), ("img2", (OK, 1)), ("img1", (OK, 0)), ("img3", (OVER, 0))] {
        assert_eq!(client.one(descriptor(&format!("file={file}"))).await, expected, "{file}");
    }
    // Counted, never over, and no header says so.
    assert_eq!(client.one(descriptor("shadow=x")).await, (OK, 0));
    let shadow = client.ask(vec![descriptor("shadow=x")]).await;
    assert_eq!((shadow.overall_code, shadow.statuses[0].limit_remaining), (OK, 0));
    assert!(shadow.response_headers_to_add.is_empty());
    // A rule that is replaced does not count.
    for _ in 0..3 {
        let response = client.ask(vec![descriptor("plan=gold"), descriptor("user=free")]).await;
        assert_eq!(codes(&response), [OK, OK]);
        assert!(response.statuses[0].current_limit.is_none());
    }
    assert_eq!(client.one(descriptor("plan=gold")).await, (OK, 1));
    // Of quotas all have to be used up.
    let quotas = || vec![descriptor("quota=a"), descriptor("quota=b")];
    let answers: Vec<_> = [client.ask(quotas()).await, client.ask(quotas()).await, client.ask(quotas()).await].into();
    assert_eq!(answers.iter().map(codes).collect::<Vec<_>>(), [vec![OK, OK], vec![OVER, OK], vec![OVER, OVER]]);
    assert_eq!(answers.iter().map(|answer| answer.overall_code).collect::<Vec<_>>(), [OK, OK, OVER]);
    assert_eq!(header(&answers[2], "retry-after"), "40");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn hits_are_added_looked_at_and_given_back() {
    let server = server();
    let mut client = Client::of(&server).await;
    let request = |hits_addend| RateLimitRequest {
        domain: "edge".into(),
        descriptors: vec![descriptor("tokens=a")],
        hits_addend,
    };
    assert_eq!(client.try_ask(request(0)).await.unwrap().statuses[0].limit_remaining, 999);
    assert_eq!(client.try_ask(request(99)).await.unwrap().statuses[0].limit_remaining, 900);
    assert_eq!(client.one(hits("tokens=a", 0)).await, (OK, 900));
    assert_eq!(client.one(hits("tokens=a", 850)).await, (OK, 50));
    assert_eq!(client.one(back("tokens=a", 850)).await, (OK, 900));
    assert_eq!(client.one(hits("tokens=a", 850)).await, (OK, 50));
    // What a model has used is used, whether it fits or not: nothing is left, also for whoever only looks.
    assert_eq!(client.one(hits("tokens=a", 150)).await, (OVER, 0));
    assert_eq!(client.one(hits("tokens=a", 0)).await, (OVER, 0));
    assert_eq!(client.one(hits("tokens=a", 1)).await, (OVER, 0));
    // It was counted whole: the 100 above the limit have to come back first.
    assert_eq!(client.one(back("tokens=a", 100)).await, (OVER, 0));
    assert_eq!(client.one(back("tokens=a", 1)).await, (OK, 1));
    // More than the limit can ever give is no mistake here.
    assert_eq!(client.one(hits("tokens=b", u64::MAX)).await, (OVER, 0));
    assert_eq!(client.one(hits("tokens=b", 0)).await, (OVER, 0));
    // Giving back what was never taken gives nothing.
    assert_eq!(client.one(back("tokens=c", u64::MAX)).await, (OK, 1000));
    server.clock.advance(Duration::from_secs(3600));
    assert_eq!(client.one(hits("tokens=a", 0)).await, (OK, 1000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_limit_in_the_request_goes_first() {
    let server = server();
    let mut client = Client::of(&server).await;
    assert_eq!(client.one(hits("user=alice", 4)).await, (OK, 1));
    // With the same window it counts where the rule does.
    assert_eq!(client.one(limited("user=alice", 6, MINUTE)).await, (OK, 1));
    assert_eq!(client.one(limited("user=alice", 6, MINUTE)).await, (OK, 0));
    assert_eq!(client.one(limited("user=alice", 6, MINUTE)).await, (OVER, 0));
    assert_eq!(client.one(descriptor("user=alice")).await, (OVER, 0));
    assert_eq!(client.one(limited("user=alice", 0, MINUTE)).await, (OVER, 0));
    assert_eq!(client.one(limited("user=alice", 7, MINUTE)).await, (OK, 0));
    let response = client.ask(vec![limited("user=alice", 6, MINUTE)]).await;
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 6);
    assert_eq!(header(&response, "ratelimit-policy"), "\"minute\";q=6;w=60");
    // Another window is another counter; and shadow mode does not hold for it.
    assert_eq!(client.one(limited("user=alice", 2, HOUR)).await, (OK, 1));
    assert_eq!(client.one(limited("shadow=x", 1, MINUTE)).await, (OK, 0));
    assert_eq!(client.one(limited("shadow=x", 1, MINUTE)).await, (OVER, 0));
    assert_eq!(client.one(limited("user=free", 1, HOUR)).await, (OK, 0));
    assert_eq!(client.one(limited("user=free", 1, HOUR)).await, (OVER, 0));
    for (requests, expected) in [(0, (OVER, 0)), (2, (OK, 1)), (0, (OVER, 0)), (2, (OK, 0))] {
        assert_eq!(client.one(limited("nobody=configured", requests, HOUR)).await, expected);
    }
    let refusal = client.try_ask(RateLimitRequest {
        domain: "edge".into(),
        descriptors: vec![descriptor("user=a"), limited("user=a", 1, 0)],
        hits_addend: 0,
    });
    let refusal = refusal.await.unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::InvalidArgument);
    assert!(refusal.message().contains("descriptors[1].limit.unit"), "{refusal}");
    // Nothing of a refused request was counted.
    assert_eq!(client.one(descriptor("user=a")).await, (OK, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_cannot_be_is_refused_and_what_is_unknown_is_free() {
    let server = server();
    let mut client = Client::of(&server).await;
    let request = |domain: &str, descriptors| RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 };
    let many = vec![descriptor("user=a"); 129];
    for refused in [request("", vec![descriptor("user=a")]), request("edge", vec![]), request("edge", many)] {
        assert_eq!(client.try_ask(refused).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    }
    let unknown = client.try_ask(request("other", vec![limited("user=a", 0, HOUR)])).await.unwrap();
    assert_eq!((unknown.overall_code, codes(&unknown)), (OK, vec![OK]));
    assert!(unknown.response_headers_to_add.is_empty());
    let empty = client.try_ask(request("edge", vec![RateLimitDescriptor::default()])).await.unwrap();
    assert_eq!(codes(&empty), [OK]);
    let large = client.try_ask(request("edge", vec![descriptor(&format!("user={}", "x".repeat(70_000)))])).await;
    assert_eq!(large.unwrap_err().code(), tonic::Code::OutOfRange);
    // Long values and values that look like other keys are counted, each for itself.
    for value in ["x".repeat(60_000), "a}b{c".into(), "b\n".into(), "alice;user".into(), String::new()] {
        assert_eq!(client.one(hits(&format!("user={value}"), 4)).await, (OK, 1));
    }
    // Reflection is off, and so is everything else.
    let channel = Channel::from_shared(server.grpc()).unwrap().connect().await.unwrap();
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo".parse().unwrap();
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckRequest>::default();
    let answer = grpc.unary(tonic::Request::new(HealthCheckRequest::default()), path, codec).await;
    assert_eq!(answer.unwrap_err().code(), tonic::Code::Unimplemented);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn health_is_told_and_a_watch_ends_with_the_server() {
    let mut server = server();
    let channel = Channel::from_shared(server.grpc()).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    for service in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
        let answer = client.check(HealthCheckRequest { service: service.into() }).await.unwrap();
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving, "{service}");
    }
    let unknown = client.check(HealthCheckRequest { service: "other".into() }).await;
    assert_eq!(unknown.unwrap_err().code(), tonic::Code::NotFound);
    let mut watch = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.stop();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(watch.message().await.unwrap().is_none());
}

#[test]
fn the_same_as_json() {
    let server = server();
    let ask = |body: Value| server.post("/json", body);
    let body = json!({ "domain": "edge", "descriptors": [{ "entries": [{ "key": "plan", "value": "gold" }] }] });
    let answer = ask(body.clone()).expect(200);
    assert_eq!(answer["overallCode"], "OK");
    assert_eq!(
        answer["statuses"],
        json!([{
            "code": "OK",
            "currentLimit": { "name": "per_plan", "requestsPerUnit": 2, "unit": "HOUR" },
            "limitRemaining": 1,
            "durationUntilReset": "3580s",
        }])
    );
    // As curl sends it, which names another type.
    let form = [("content-type", "application/x-www-form-urlencoded")];
    assert_eq!(server.send("POST", "/json", &form, body.to_string()).status, 200);
    let denied = ask(body.clone());
    assert_eq!(denied.status, 429);
    let denied = denied.json();
    assert_eq!((&denied["overallCode"], &denied["statuses"][0]["code"]), (&json!("OVER_LIMIT"), &json!("OVER_LIMIT")));
    assert!(denied["rawBody"].as_str().unwrap().starts_with("ey") && denied["statuses"][0]["limitRemaining"].is_null());

    let entries = json!([{ "key": "tokens", "value": "a" }]);
    let one = |mut descriptor: Value| {
        descriptor["entries"] = entries.clone();
        ask(json!({ "domain": "edge", "descriptors": [descriptor], "hits_addend": 10 }))
    };
    assert_eq!(one(json!({})).expect(200)["statuses"][0]["limitRemaining"], 990);
    assert_eq!(one(json!({ "hitsAddend": "90" })).expect(200)["statuses"][0]["limitRemaining"], 900);
    assert_eq!(one(json!({ "hits_addend": 0 })).expect(200)["statuses"][0]["limitRemaining"], 900);
    let back = json!({ "hitsAddend": 100, "isNegativeHits": true });
    assert_eq!(one(back).expect(200)["statuses"][0]["limitRemaining"], 1000);
    let own = json!({ "limit": { "requestsPerUnit": 70, "unit": "DAY" }, "hitsAddend": null });
    assert_eq!(one(own).expect(200)["statuses"][0]["currentLimit"]["requestsPerUnit"], 70);

    for (refused, field) in [
        (json!({}), "domain"),
        (json!({ "domain": "edge" }), "descriptors"),
        (json!({ "domain": "edge", "descriptors": [], "hits": 1 }), "hits"),
        (json!({ "domain": "edge", "hitsAddend": -1 }), "hitsAddend"),
        (json!({ "domain": "edge", "hitsAddend": 1.5 }), "hitsAddend"),
        (json!({ "domain": "none", "descriptors": [{ "limit": { "unit": 8 } }] }), "descriptors[0].limit.unit"),
        (json!({ "domain": "none", "descriptors": [[null, null, null, null]] }), "descriptors[0]"),
        (json!({ "domain": "edge", "descriptors": [{ "limit": { "unit": "MINUT" } }] }), "descriptors[0].limit.unit"),
    ] {
        assert_eq!(ask(refused).expect(400)["field"], field);
    }
    // A page of somebody else's cannot make a browser ask.
    let origin = [("content-type", "text/plain"), ("origin", "https://elsewhere.example")];
    assert_eq!(server.send("POST", "/json", &origin, body.to_string()).status, 415);
    assert_eq!(server.get("/healthcheck").status, 200);
    assert_eq!(server.get("/json").status, 405);
}

#[test]
fn operators_see_what_envoy_counts() {
    let server = server();
    let ask = json!({ "domain": "edge", "descriptors": [{ "entries": [{ "key": "user", "value": "a,b" }] }] });
    server.post("/json", ask).expect(200);
    let policies = server.get("/v1/policies").expect(200)["policies"].clone();
    let names: Vec<&str> = policies.as_array().unwrap().iter().map(|policy| policy["name"].as_str().unwrap()).collect();
    let name = names.iter().find(|name| name.starts_with("envoy.edge.user-")).unwrap();
    assert_eq!(server.counted(name, "user=a%252Cb"), (1, 0));
    let counted = server.get("/metrics").text;
    let line = counted.lines().find(|line| line.contains(name) && line.contains("outcome=\"allow\""));
    assert!(line.is_some_and(|line| line.ends_with(" 1")), "{counted}");
    // A look stands before a request and a block refuses it; a limit that comes along counts where it stands for another.
    // Giving back decides nothing.
    let asked = |key: &str, value: &str, more: serde_json::Value| {
        let mut descriptor = json!({ "entries": [{ "key": key, "value": value }] });
        descriptor.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/json", json!({ "domain": "edge", "descriptors": [descriptor] })).status
    };
    assert_eq!(asked("user", "c", json!({ "hitsAddend": 0 })), 200);
    assert_eq!(asked("user", "c", json!({ "hitsAddend": 6 })), 429);
    assert_eq!(asked("user", "c", json!({ "hitsAddend": 0 })), 429);
    assert_eq!(asked("user", "d", json!({ "limit": { "requestsPerUnit": 2, "unit": "MINUTE" } })), 200);
    assert_eq!(asked("user", "d", json!({ "limit": { "requestsPerUnit": 2, "unit": "DAY" } })), 200);
    assert_eq!(asked("user", "d", json!({ "hitsAddend": 1, "isNegativeHits": true })), 200);
    assert_eq!(asked("user", "robot-1", json!({})), 429);
    let counted = server.get("/metrics").text;
    let decisions = |name: &str, outcome: &str| {
        let label = format!("outcome=\"{outcome}\"");
        let line = counted.lines().find(|line| line.contains(name) && line.contains(&label)).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!((decisions(name, "allow"), decisions(name, "deny")), ("3".to_owned(), "2".to_owned()));
    let robots = names.iter().find(|name| name.contains("robot")).unwrap_or_else(|| panic!("{names:?}"));
    assert_eq!((decisions(robots, "allow"), decisions(robots, "deny")), ("0".to_owned(), "1".to_owned()));
    server.post("/v1/reset", json!({ "policy": name, "subject": "user=a%2Cb" })).expect(200);
    assert_eq!(server.counted(name, "user=a%252Cb"), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn on_redis_and_without_it() {
    let redis = RedisServer::start();
    let url = [("REDIS_URL", redis.url())];
    let environment = Environment::from([(url[0].0, url[0].1.as_str())]);
    // On Redis's own clock: no window may end while the test runs.
    let rules = RULES.replace("unit: hour", "unit: year");
    let config = config(&rules, "store: { url: \"redis://127.0.0.1:1\", timeout: 500ms }\n");
    let server = TestServer::on_its_store(config.with_environment(&environment).unwrap());
    let mut client = Client::of(&server).await;
    assert_eq!(client.one(hits("tokens=a", 900)).await, (OK, 100));
    assert_eq!(client.one(hits("tokens=a", 150)).await, (OVER, 0));
    assert_eq!(client.one(hits("tokens=a", 0)).await, (OVER, 0));
    assert_eq!(client.one(back("tokens=a", 60)).await, (OK, 10));
    assert_eq!(client.one(hits("tokens=b", 1001)).await, (OVER, 0));
    assert_eq!(client.one(limited("tokens=c", 2, YEAR)).await, (OK, 1));
    assert_eq!(client.one(limited("tokens=c", 3, YEAR)).await, (OK, 1));
    assert_eq!(client.one(limited("tokens=c", 2, YEAR)).await, (OVER, 0));
    let many: Vec<_> = (0..50).map(|i| descriptor(&format!("plan=p{i}"))).collect();
    assert_eq!(codes(&client.ask(many).await), [OK; 50]);
    assert_eq!(codes(&client.ask(vec![descriptor("plan=twin"); 4]).await), [OK, OK, OVER, OVER]);
    redis.freeze();
    for expected in [OK, OK, OVER] {
        let answer = client.ask(vec![descriptor("plan=x")]).await;
        assert_eq!(codes(&answer), [expected]);
        let labels = answer.response_headers_to_add.iter().filter(|header| header.key == "x-sekisho-degraded");
        assert_eq!(labels.map(|header| header.value.as_str()).collect::<Vec<_>>(), ["memory"]);
    }
    let body = json!({ "domain": "edge", "descriptors": [{ "entries": [{ "key": "plan", "value": "x" }] }] });
    assert_eq!(server.post("/json", &body).status, 429, "two a year, counted here");
    redis.thaw();
    until(|| server.post("/json", &body).header("x-sekisho-degraded").is_empty());
    assert_eq!(server.post("/json", &body).status, 429, "and told to Redis");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a77_messages_and_metadata_are_bounded() {
    let server = server();
    let mut client = Client::of(&server).await;
    // What is around the value: `edge`, `user` and their lengths.
    let of = |value: usize| RateLimitRequest {
        domain: "edge".into(),
        descriptors: vec![descriptor(&format!("user={}", "x".repeat(value)))],
        hits_addend: 0,
    };
    let rest = prost::Message::encoded_len(&of(60_000)) - 60_000;
    assert!(client.try_ask(of(64 * 1024 - rest)).await.is_ok());
    assert_eq!(client.try_ask(of(64 * 1024 - rest + 1)).await.unwrap_err().code(), tonic::Code::OutOfRange);
    let with = |bytes: usize| {
        let mut request = tonic::Request::new(of(1));
        request.metadata_mut().insert("x-large", "x".repeat(bytes).parse().unwrap());
        request
    };
    assert!(client.0.should_rate_limit(with(8 * 1024)).await.is_ok());
    assert!(client.0.should_rate_limit(with(32 * 1024)).await.is_err());
    // It was only that request's fault.
    assert_eq!(client.one(descriptor("user=a")).await, (OK, 4));
}
