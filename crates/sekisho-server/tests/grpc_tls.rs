//! Envoy's rate-limit service with certificates on both sides.
//!
//! A runtime has a thread beside the test's: a server that is dropped says goodbye and waits for its clients' answer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use sekisho_server::config::Config;
use sekisho_server::{Server, StartError};
use sekisho_testkit::Envoy;
use support::TestServer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tonic::transport::Endpoint;

const RULES: &str = "domain: edge
descriptors: [{ key: user, rate_limit: { unit: minute, requests_per_unit: 5 } }]
";

/// A folder with an authority (`ca.pem`), what it has signed for the server and for a client, and what a stranger has.
struct Papers(tempfile::TempDir);

impl Papers {
    fn new() -> Self {
        let papers = Self(tempfile::tempdir().unwrap());
        let (ours, theirs) = (authority(), authority());
        papers.write("ca.pem", ours.pem());
        papers.write("theirs.pem", theirs.pem());
        papers.sign("server", &ours);
        papers.sign("client", &ours);
        papers.sign("stranger", &theirs);
        papers.write("rules.yaml", RULES.to_owned());
        papers
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: String) {
        std::fs::write(self.at(name), text).unwrap();
    }

    fn sign(&self, name: &str, by: &CertifiedIssuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let cert = params.signed_by(&key, by).unwrap();
        self.write(&format!("{name}.pem"), cert.pem());
        self.write(&format!("{name}.key"), key.serialize_pem());
    }

    /// Files are looked for beside the configuration.
    fn config(&self, client_ca: &str) -> Config {
        let tls = format!("grpc_tls: {{ cert: server.pem, key: server.key{client_ca} }}");
        self.write("sekisho.yaml", format!("domains: [rules.yaml]\n{tls}\n"));
        Config::read(&self.at("sekisho.yaml")).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A handshake with what `name` has to show, if it is anybody. With TLS 1.3 a client is through before the server has
    /// looked at its certificate, so the first answer is awaited as well.
    async fn shake_hands(&self, to: SocketAddr, name: Option<&str>) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.at("ca.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_root_certificates(roots);
        let mut client = match name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let cert = CertificateDer::from_pem_file(self.at(&format!("{name}.pem"))).unwrap();
                let key = PrivateKeyDer::from_pem_file(self.at(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        client.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(to).await?;
        let name = ServerName::try_from("localhost").unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, stream).await
    }

    /// What keeps a client out.
    async fn refusal(&self, to: SocketAddr, name: Option<&str>) -> String {
        let mut stream = self.shake_hands(to, name).await.unwrap();
        stream.read_u8().await.unwrap_err().to_string()
    }

    /// One question by a client of Envoy's service, and what is left afterwards.
    async fn ask(&self, to: SocketAddr, name: Option<&str>) -> u32 {
        let stream = self.shake_hands(to, name).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
        let mut stream = Some(TokioIo::new(stream));
        let connector = tower::service_fn(move |_| std::future::ready(stream.take().ok_or("one connection is enough")));
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap();
        let entries = vec![Entry { key: "user".into(), value: "alice".into() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let request = RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 };
        let answer = RateLimitServiceClient::new(channel).should_rate_limit(request).await.unwrap().into_inner();
        assert_eq!(answer.overall_code, Code::Ok as i32);
        answer.statuses[0].limit_remaining
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a76_only_clients_with_a_certificate_are_served() {
    let papers = Papers::new();
    let server = TestServer::with(papers.config(", client_ca: ca.pem"));
    let to = server.addresses.grpc.unwrap();
    assert_eq!(papers.ask(to, Some("client")).await, 4);
    assert_eq!(papers.refusal(to, None).await, "received fatal alert: CertificateRequired");
    let refusal = papers.refusal(to, Some("stranger")).await;
    assert!(refusal.starts_with("received fatal alert: "), "{refusal}");
    assert!(plain_is_refused(to).await);
    assert_eq!(papers.ask(to, Some("client")).await, 3, "and nobody else was counted");
}

/// HTTP/2 without encryption: the connection ends, and no frame of HTTP/2 has come before.
async fn plain_is_refused(to: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    // At most an alert of TLS: 21 is its type.
    answer.first().is_none_or(|first| *first == 21)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn without_an_authority_it_only_encrypts() {
    let papers = Papers::new();
    let server = TestServer::with(papers.config(""));
    let to = server.addresses.grpc.unwrap();
    assert_eq!(papers.ask(to, None).await, 4);
    assert_eq!(papers.ask(to, Some("stranger")).await, 3);
    // What is not HTTP/2 inside gets no answer.
    let mut stream = papers.shake_hands(to, None).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a19_a_client_that_says_nothing_inside_is_cut_off() {
    let papers = Papers::new();
    let mut config = papers.config("");
    config.connections.header_timeout = std::time::Duration::from_millis(200);
    let server = TestServer::with(config);
    for start in ["", "PRI * HT"] {
        let mut stream = papers.shake_hands(server.addresses.grpc.unwrap(), None).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let ended = tokio::time::timeout(std::time::Duration::from_secs(10), stream.read_u8()).await;
        assert!(ended.unwrap().is_err(), "{start:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn f63_others_certificates_are_taken_up_while_it_runs() {
    let papers = Papers::new();
    let server = TestServer::with(papers.config(", client_ca: ca.pem"));
    let to = server.addresses.grpc.unwrap();
    let config = papers.config(", client_ca: theirs.pem");
    for name in ["server.pem", "server.key", "theirs.pem"] {
        assert!(config.files.contains(&papers.at(name)), "{name} is not watched");
    }
    assert_eq!(server.handle.reload(config).unwrap(), Vec::<&str>::new());
    assert_eq!(papers.ask(to, Some("stranger")).await, 4);
    assert!(papers.refusal(to, Some("client")).await.starts_with("received fatal alert: "));
    let broken = papers.config(", client_ca: rules.yaml");
    assert!(matches!(server.handle.reload(broken), Err(StartError::Certificate { name: "grpc_tls", .. })));
    assert_eq!(papers.ask(to, Some("stranger")).await, 3, "the last good ones stay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a76_off_loopback_clients_have_to_show_who_they_are() {
    let papers = Papers::new();
    let mut config = papers.config("");
    (config.listen, config.api) = ("127.0.0.1:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap());
    config.grpc = Some("0.0.0.0:0".parse().unwrap());
    let refusal = Server::bind(config.clone()).await.unwrap_err();
    assert!(matches!(refusal, StartError::OpenGrpc(_)) && refusal.to_string().contains("client_ca"), "{refusal}");
    config.grpc_tls.as_mut().unwrap().client_ca = Some(papers.at("ca.pem"));
    let server = Server::bind(config.clone()).await.unwrap();
    // Nor does a running server come to it.
    config.grpc_tls = None;
    assert!(matches!(server.handle().reload(config.clone()), Err(StartError::OpenGrpc(_))));
    config.insecure_grpc = true;
    assert!(server.handle().reload(config).is_ok());
}

#[test]
fn mistakes_are_shown_at_their_place() {
    for (yaml, expected) in [
        (
            "grpc: 0.0.0.0:8081\ngrpc_tls: { cert: a, key: b }\n",
            "test.yaml:2:11: `client_ca` is missing: without it `grpc_tls` encrypts but lets everybody in",
        ),
        ("grpc_tls: { cert: a, client_ca: c }\n", "test.yaml:1:11: `key` is missing"),
        ("grpc_tls: { cert: a, key: b, client_ca: 7 }\n", "test.yaml:1:41: `client_ca` must be text"),
        ("grpc_tls:\n  client_cert: a\n", "test.yaml:2:3: unknown key `client_cert`"),
        ("tls: { cert: a, key: b, client_ca: c }\n", "test.yaml:1:25: unknown key `client_ca`"),
    ] {
        let error = Config::parse("test.yaml", yaml).unwrap_err().to_string();
        assert!(error.contains(expected), "{yaml}{error}");
    }
    for yaml in [
        "grpc: 0.0.0.0:8081\ngrpc_tls: { cert: a, key: b, client_ca: c }\n",
        "grpc: 0.0.0.0:8081\ninsecure_grpc: true\ngrpc_tls: { cert: a, key: b }\n",
        "grpc: 127.0.0.1:8081\ngrpc_tls: { cert: a, key: b }\n",
        "grpc: off\ngrpc_tls: { cert: a, key: b }\n",
    ] {
        assert!(Config::parse("test.yaml", yaml).is_ok(), "{yaml}");
    }
}

/// The lines of docs/reference/envoy.md, below the cluster `sekisho` of the example.
fn envoy(papers: &Papers, port: u16, name: &str) -> Envoy {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/reference/envoy.md")).unwrap();
    let begin = page.find("    transport_socket:").unwrap();
    let lines = page[begin..].lines().take_while(|line| line.starts_with("    "));
    let socket: String = lines.map(|line| format!("  {line}\n")).collect();
    let socket = socket.replace("/etc/envoy/client", &papers.at(name).display().to_string());
    let socket = socket.replace("/etc/envoy/", &format!("{}/", papers.0.path().display()));
    let socket = socket.replace("sekisho.internal", "localhost");
    let config = std::fs::read_to_string(root.join("examples/envoy/envoy.yaml")).unwrap();
    let config = config.replace("port_value: 8081 }", &format!("port_value: {port} }}"));
    let config = config.replace("    - name: sekisho\n", &format!("    - name: sekisho\n{socket}"));
    Envoy::start(&config, 9901, &[10_000, 10_001])
}

#[test]
fn a_real_envoy_shows_its_certificate() {
    let papers = Papers::new();
    let server = TestServer::with(papers.config(", client_ca: ca.pem"));
    let port = server.addresses.grpc.unwrap().port();
    for (name, expected) in [("client", [200, 200, 200, 200, 200, 429]), ("stranger", [500; 6])] {
        let envoy = envoy(&papers, port, name);
        let url = format!("http://127.0.0.1:{}/", envoy.port(0));
        let ask = |_| server.to(url.clone(), "GET", &[("x-user", "alice")], String::new()).status;
        assert_eq!([(); 6].map(ask), expected, "{name}: {}", envoy.log());
    }
}
