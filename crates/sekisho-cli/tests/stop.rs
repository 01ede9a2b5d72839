//! What a process that is told to stop still does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use sekisho_testkit::{RedisServer, poll_until};
use serde_json::{Value, json};
use support::{Serving, sekisho};

/// Until the end of a head.
fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
}

/// Clients have their answers before the store hears what those cost, and more calls wait for it than may be out at a time.
#[test]
fn f39_what_the_last_answers_cost_is_told_to_the_store() {
    const CALLS: usize = 20;
    let (redis, folder) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = folder.path().join("sekisho.yaml");
    let config = format!(
        "grpc: off\nstore: {{ url: \"{}\", timeout: 10s }}\n\
         policies: {{ tokens: {{ subject: ip, rules: [{{ algorithm: fixed_window, unit: tokens, limit: 1000000, window: 366d }}] }} }}\n\
         routes: [{{ match: {{ path: \"/call\" }}, policy: tokens, cost: {{ tokens: 1000 }}, settle_from: {{ tokens: /cost }}, \
         upstream: \"http://{}\" }}]\n",
        redis.url(),
        upstream.local_addr().unwrap()
    );
    fs::write(&file, config).unwrap();
    let mut serving = Serving::start(&file, &[]);
    let clients: Vec<TcpStream> = (0..CALLS).map(|_| serving.send("GET /call HTTP/1.1\r\nhost: x\r\n\r\n")).collect();
    let mut calls: Vec<TcpStream> = (0..CALLS).map(|_| upstream.accept().unwrap().0).collect();
    calls.iter_mut().for_each(read_head);
    assert!(Command::new("kill").arg(serving.child.id().to_string()).status().unwrap().success());
    redis.freeze();
    for call in &mut calls {
        write!(call, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{{\"cost\":7}}")
            .unwrap();
    }
    for mut client in clients {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("{\"cost\":7}"), "{answer}");
    }
    let ended = poll_until(Duration::from_millis(500), || serving.child.try_wait().unwrap());
    assert_eq!(ended, None, "it waits for the store");
    redis.thaw();
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));

    let next = Serving::start(&file, &[]);
    let api = format!("http://{}", next.api);
    let output = sekisho().args(["explain", "tokens", "127.0.0.1", "--json", "--api", &api]).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rule = &said["rules"][0];
    assert_eq!((&rule["used"], &rule["held"]), (&json!(7 * CALLS), &json!(0)), "{said}");
}
