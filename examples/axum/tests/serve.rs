//! The example as anybody would run it: in memory and on Redis, until it denies.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sekisho_testkit::{RedisServer, poll_until};
use serde_json::{Value, json};

struct Example {
    child: Child,
    url: String,
}

impl Example {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_example-axum"));
        let mut child = command.arg("127.0.0.1:0").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, url }
    }

    /// Status, headers and body.
    fn send(&self, path: &str, user: Option<&str>, body: Option<&str>) -> (u16, ureq::http::HeaderMap, String) {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(20)))
            .build()
            .into();
        let mut request = ureq::http::Request::builder().uri(format!("{}{path}", self.url));
        if let Some(user) = user {
            request = request.header("x-user", user);
        }
        let mut response = match body {
            Some(body) => agent.run(request.method("POST").body(body.to_owned()).unwrap()).unwrap(),
            None => agent.run(request.body(()).unwrap()).unwrap(),
        };
        let text = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), response.headers().clone(), text)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        drop((self.child.kill(), self.child.wait()));
    }
}

fn denies_after_three_and_charges_what_was_used(example: &Example) {
    for left in ["2", "1", "0"] {
        let (status, headers, body) = example.send("/hello", None, None);
        assert_eq!((status, body.as_str()), (200, "hello"));
        assert_eq!(
            (&headers["x-ratelimit-limit"], &headers["x-ratelimit-remaining"]),
            (&"3".parse().unwrap(), &left.parse().unwrap())
        );
    }
    let (status, headers, body) = example.send("/hello", None, None);
    assert_eq!((status, &headers["content-type"]), (429, &"application/problem+json".parse().unwrap()));
    let wait: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    let problem: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&problem["status"], &problem["violated-policies"]), (&json!(429), &json!(["sliding_log"])));

    let ask = |user| example.send("/ask", user, Some("how are you"));
    // 400 tokens fit in 1,000 twice; many calls fit because only what was used is charged.
    for _ in 0..10 {
        let admitted =
            poll_until(Duration::from_secs(10), || Some(ask(Some("ann"))).filter(|(status, ..)| *status == 200));
        assert_eq!(admitted.unwrap().2, "that took 3 tokens\n");
    }
    let (status, _, body) = ask(None);
    assert_eq!(status, 400, "{body}");
}

#[test]
fn in_memory() {
    denies_after_three_and_charges_what_was_used(&Example::start(&[]));
}

#[test]
fn on_redis() {
    let redis = RedisServer::start();
    denies_after_three_and_charges_what_was_used(&Example::start(&[&redis.url()]));
}
