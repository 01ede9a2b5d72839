//! An upstream behind TLS: a real nginx, and a process of ours that trusts its certificate, or another one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use sekisho_testkit::Proxy;
use tempfile::TempDir;

struct Serving {
    child: Child,
    gateway: String,
}

impl Serving {
    /// Trusts whom the certificate in the file `trusted` names.
    fn start(folder: &TempDir, nginx: &Proxy, trusted: &str) -> Self {
        let file = folder.path().join(format!("{trusted}.yaml"));
        let config = format!(
            "grpc: off\npolicies: {{ calls: {{ subject: ip, rules: [{{ algorithm: fixed_window, limit: 100, window: 366d }}] }} }}\n\
             routes: [{{ match: {{ path: \"/{{*rest}}\" }}, policy: calls, upstream: \"https://localhost:{}\" }}]\n",
            nginx.port()
        );
        fs::write(&file, config).unwrap();
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("sekisho"))
            .args(["serve", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--config"])
            .arg(file)
            .env("SSL_CERT_FILE", folder.path().join(trusted))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let first = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        let gateway = first.rsplit("http://").next().unwrap().trim().to_owned();
        Self { child, gateway }
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.gateway).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
    let trusting = Serving::start(&folder, &nginx, "own.pem");
    let get = "GET /x HTTP/1.1\r\nhost: x\r\n\r\n";
    let last = "GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answers = trusting.ask(&format!("{get}{get}{last}"));
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
    assert!(
        (1..=3).all(|asked| answers.contains(&format!("GET  {asked}"))),
        "one connection for all of them: {answers}"
    );
    let body = "x".repeat(300_000);
    let post =
        format!("POST /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let answer = trusting.ask(&post);
    assert!(answer.contains("POST 300000 "), "{answer}");
    let wary = Serving::start(&folder, &nginx, "other.pem");
    let answer = wary.ask(last);
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}
