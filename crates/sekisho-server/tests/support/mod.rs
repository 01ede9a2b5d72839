//! A real server on ports of its own and a clock that only tests move.
#![allow(dead_code, reason = "every test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub(crate) mod h2;
pub(crate) mod origin;
pub(crate) mod upstream;

use std::io::Read as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use sekisho::backend::Backend;
use sekisho::clock::{ManualClock, Timestamp};
use sekisho_server::config::env::Environment;
use sekisho_server::config::{Config, Connections};
use sekisho_server::{Addresses, Handle, Server, open_store};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub(crate) struct TestServer {
    pub(crate) clock: ManualClock,
    pub(crate) addresses: Addresses,
    pub(crate) handle: Handle,
    agent: ureq::Agent,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: ureq::http::HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json()
    }
}

impl TestServer {
    pub(crate) fn start(yaml: &str) -> Self {
        Self::with(Config::parse("test.yaml", yaml).unwrap())
    }

    pub(crate) fn with_token(yaml: &str, token: &str) -> Self {
        let environment = Environment::from([("SEKISHO_API_TOKEN", token)]);
        Self::with(Config::parse("test.yaml", yaml).unwrap().with_environment(&environment).unwrap())
    }

    /// In memory, on a Monday: 2025-09-29 00:00:20 UTC, so that a minute is a third over and a day has begun.
    pub(crate) fn with(config: Config) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_759_104_020));
        let backend = Backend::memory_on(config.memory, Arc::new(clock.clone()));
        Self::serve(config, clock, Some(backend))
    }

    /// On the store that the configuration names, and on its clock.
    pub(crate) fn on_its_store(config: Config) -> Self {
        Self::serve(config, ManualClock::default(), None)
    }

    pub(crate) fn serve(mut config: Config, clock: ManualClock, backend: Option<Backend>) -> Self {
        // A test's own client is the last to go, and nobody is told to go elsewhere.
        if config.connections.drain == Connections::default().drain {
            config.connections.drain = Duration::ZERO;
        }
        let (stop, stopped) = oneshot::channel();
        let (ready, addresses) = std::sync::mpsc::channel();
        let serve = async move {
            let backend = match backend {
                Some(backend) => backend,
                None => open_store(&config).await.unwrap(),
            };
            let gateway = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let api = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let has_grpc = config.grpc.is_some();
            let mut server = Server::new(config, backend, gateway, api).unwrap();
            if has_grpc {
                server = server.with_grpc(TcpListener::bind("127.0.0.1:0").await.unwrap()).unwrap();
            }
            ready.send((server.addresses(), server.handle())).unwrap();
            server.run(async { drop(stopped.await) }).await;
        };
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let thread = std::thread::spawn(move || runtime().block_on(serve));
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(Duration::from_secs(20)))
            // A kept connection may be closed for its idleness just when it is used again.
            .max_idle_connections(0)
            .build()
            .into();
        let (addresses, handle) = addresses.recv().unwrap();
        Self { clock, addresses, handle, agent, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn post(&self, path: &str, body: impl ToString) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string())
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], String::new())
    }

    /// On the API.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: String) -> Reply {
        self.to(format!("http://{}{path}", self.addresses.api), method, headers, body)
    }

    pub(crate) fn gateway(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.to(format!("http://{}{path}", self.addresses.gateway), method, headers, String::new())
    }

    pub(crate) fn send_to_gateway(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        self.to(format!("http://{}{path}", self.addresses.gateway), method, headers, body.to_owned())
    }

    pub(crate) fn to(&self, url: String, method: &str, headers: &[(&str, &str)], body: String) -> Reply {
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = if body.is_empty() {
            self.agent.run(request.body(()).unwrap()).unwrap()
        } else {
            self.agent.run(request.body(body).unwrap()).unwrap()
        };
        let text = response.body_mut().read_to_string().unwrap();
        Reply { status: response.status().as_u16(), headers: response.headers().clone(), text }
    }

    /// Where Envoy's rate-limit service is.
    pub(crate) fn grpc(&self) -> String {
        format!("http://{}", self.addresses.grpc.unwrap())
    }

    /// Tells it to stop, without waiting for it.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Used and held of the first rule.
    #[track_caller]
    pub(crate) fn counted(&self, policy: &str, subject: &str) -> (u64, u64) {
        let answer = self.get(&format!("/v1/explain?policy={policy}&subject={subject}")).expect(200);
        let figure = |name: &str| answer["rules"][0][name].as_u64().unwrap();
        (figure("used"), figure("held"))
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One answer on a connection of one's own: its status, and whether it says that the connection closes.
pub(crate) fn raw_answer(stream: &mut TcpStream) -> (String, bool) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap();
    stream.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), head.contains("connection: close"))
}

/// Waits for a condition that must come true.
#[track_caller]
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it did not come true in ten seconds");
}
