//! An upstream behind TLS: a real nginx, and a process of ours that trusts its certificate, or another one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::fs;
use std::io::Read as _;
use std::path::Path;

use sekisho_testkit::Proxy;
use support::Serving;
use tempfile::TempDir;

/// Trusts whom the certificate in the file `trusted` names.
fn serve(folder: &TempDir, nginx: &Proxy, trusted: &str) -> Serving {
    let file = folder.path().join(format!("{trusted}.yaml"));
    let config = format!(
        "grpc: off\npolicies: {{ calls: {{ subject: ip, rules: [{{ algorithm: fixed_window, limit: 100, window: 366d }}] }} }}\n\
         routes: [{{ match: {{ path: \"/{{*rest}}\" }}, policy: calls, upstream: \"https://localhost:{}\" }}]\n",
        nginx.port()
    );
    fs::write(&file, config).unwrap();
    Serving::start(&file, &[("SSL_CERT_FILE", &folder.path().join(trusted))])
}

fn ask(serving: &Serving, request: &str) -> String {
    let mut answer = String::new();
    serving.send(request).read_to_string(&mut answer).unwrap();
    answer
}

fn certificate(folder: &Path, name: &str) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(folder.join(name), made.cert.pem()).unwrap();
    fs::write(folder.join(format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
}

#[test]
fn an_upstream_is_asked_over_tls_if_its_certificate_is_trusted() {
    let folder = tempfile::tempdir().unwrap();
    ["own.pem", "other.pem"].iter().for_each(|name| certificate(folder.path(), name));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let nginx = Proxy::nginx(&format!(
        "events {{}}\nhttp {{\nserver {{\nlisten 127.0.0.1:8080 ssl;\nssl_certificate {};\nssl_certificate_key {};\n\
         location / {{ return 200 \"$request_method $content_length $connection_requests\"; }}\n}}\n}}\n",
        at("own.pem"),
        at("own.pem.key")
    ));
    let trusting = serve(&folder, &nginx, "own.pem");
    let get = "GET /x HTTP/1.1\r\nhost: x\r\n\r\n";
    let last = "GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answers = ask(&trusting, &format!("{get}{get}{last}"));
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
    assert!(
        (1..=3).all(|asked| answers.contains(&format!("GET  {asked}"))),
        "one connection for all of them: {answers}"
    );
    let body = "x".repeat(300_000);
    let post =
        format!("POST /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let answer = ask(&trusting, &post);
    assert!(answer.contains("POST 300000 "), "{answer}");
    let wary = serve(&folder, &nginx, "other.pem");
    let answer = ask(&wary, last);
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}
