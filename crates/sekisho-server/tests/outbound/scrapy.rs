//! Crawlers in Python over the sidecar: examples/crawler with a real Scrapy, and the snippet of the guide.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::response::{Html, IntoResponse as _, Response};
use sekisho::clock::{Clock as _, SystemClock};
use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::poll_until;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::support::TestServer;

/// Every crawler sends it; one of the servers wants it.
const TOKEN: &str = "a token of the api, at least thirty-two bytes";

/// A site of forty pages, each with links to the next three, that remembers which were asked for.
struct Site {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Site {
    /// It wants to be left alone once it was asked for so many.
    fn patient_for(requests: usize) -> Self {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&seen);
        let answer = move |uri: Uri| {
            let mut seen = log.lock().unwrap();
            seen.push(uri.path().to_owned());
            let answer = answer(uri.path(), seen.len() <= requests);
            std::future::ready(answer)
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                ready.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    _ = stopped => {}
                    served = axum::serve(listener, Router::new().fallback(answer)) => served.unwrap(),
                }
            });
        });
        Self { address: address.recv().unwrap(), seen, stop: Some(stop), thread: Some(thread) }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        drop(self.stop.take());
        drop(self.thread.take().map(std::thread::JoinHandle::join));
    }
}

fn answer(path: &str, is_patient: bool) -> Response {
    if !is_patient {
        return (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "3600")]).into_response();
    }
    if path == "/robots.txt" {
        return "User-agent: *\nDisallow: /2\n".into_response();
    }
    if path == "/moved" {
        return (StatusCode::FOUND, [("location", "/0")]).into_response();
    }
    let Some(page) = path.strip_prefix('/').and_then(|page| page.parse::<u32>().ok()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let link = |next: u32| format!("<a href=/{}>next</a>", (page + next) % 40);
    Html(format!("<title>{page}</title>{}{}{}", link(1), link(2), link(3))).into_response()
}

/// A crawler in a process of its own, which ends with the test.
struct Crawler {
    process: Child,
    log: PathBuf,
}

impl Crawler {
    fn start(folder: &Path, name: &str, arguments: &[&str]) -> Self {
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/crawler/bin/python");
        assert!(python.exists(), "Scrapy is not installed, and this test needs it: run `cargo xtask setup`");
        let log = folder.join(name);
        let file = File::create(&log).unwrap();
        let mut command = Command::new(python);
        // Without this environment: it may name a proxy.
        command.env_clear().env("PYTHONDONTWRITEBYTECODE", "1").env("HOME", folder).current_dir(folder);
        command.env("SEKISHO_API_TOKEN", TOKEN);
        command.args(arguments).stdout(file.try_clone().unwrap()).stderr(file);
        Self { process: command.spawn().unwrap(), log }
    }

    fn spider(folder: &Path, name: &str, server: &TestServer, start: &str) -> Self {
        let spider = root().join("examples/crawler/spider.py");
        let (start, sidecar) = (format!("start={start}"), format!("SEKISHO_URL=http://{}", server.addresses.api));
        let program = ["-m", "scrapy", "runspider", spider.to_str().unwrap()];
        let settings = ["-a", &start, "-s", &sidecar, "-s", "TELNETCONSOLE_ENABLED=0", "-s", "LOG_LEVEL=INFO"];
        Self::start(folder, name, &[&program[..], &settings].concat())
    }

    /// What it wrote, when it has ended by itself.
    #[track_caller]
    fn ended(mut self) -> String {
        let ended = poll_until(Duration::from_secs(180), || self.process.try_wait().unwrap());
        let log = std::fs::read_to_string(&self.log).unwrap();
        let status = ended.unwrap_or_else(|| panic!("it is stuck: {log}"));
        assert!(status.success(), "{status}: {log}");
        log
    }
}

impl Drop for Crawler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Ten requests a day, under the example's configuration with its pace cut short.
fn ten_a_day(folder: &Path) -> TestServer {
    TestServer::on_its_store(config(folder))
}

fn config(folder: &Path) -> Config {
    // No day may end while a test runs.
    let hour = SystemClock::start().now().as_secs_ceil() / 3_600 % 24;
    let zone = if hour < 18 { "UTC" } else { "Etc/GMT+12" };
    let policies = format!("default_policy: {{ max_requests_per_day: 10, max_pages_per_day: 0, zone: {zone} }}\n");
    std::fs::write(folder.join("domains.yaml"), policies).unwrap();
    let text = std::fs::read_to_string(root().join("examples/crawler/sekisho.yaml")).unwrap();
    let pace = "interval: [1.5s, 5.5s]";
    assert!(text.contains(pace), "{text}");
    let file = folder.join("sekisho.yaml");
    std::fs::write(&file, text.replace(pace, "interval: [1ms, 5ms]")).unwrap();
    Config::read(&file).unwrap()
}

fn budget(server: &TestServer, domain: &str) -> Value {
    let token = format!("Bearer {TOKEN}");
    server
        .send("GET", &format!("/v1/outbound/domains/{domain}"), &[("authorization", &token)], String::new())
        .expect(200)
}

/// How often its statistics say that this happened.
fn counted(log: &str, name: &str) -> u64 {
    let start = format!("'{name}': ");
    let figure = log.split(&start).nth(1).and_then(|rest| rest.split([',', '}']).next());
    figure.map_or(0, |figure| figure.parse().unwrap())
}

#[test]
fn the_example_is_whole() {
    let config = Config::read(&root().join("examples/crawler/sekisho.yaml")).unwrap();
    assert!(config.outbound.is_some());
    let warned: Vec<_> = config.warnings().iter().filter(|warning| !warning.contains("`qps` 0.2")).cloned().collect();
    assert!(warned.is_empty(), "{warned:?}");
}

#[test]
fn a_spider_stays_within_the_budget_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (server, site) = (ten_a_day(folder.path()), Site::patient_for(1_000));
    let log = Crawler::spider(folder.path(), "log", &server, &site.url("/0")).ended();

    let seen = site.seen();
    assert_eq!((seen.len(), seen[0].as_str()), (10, "/robots.txt"), "{seen:?}\n{log}");
    assert!(!seen.iter().any(|path| path.starts_with("/2")), "{seen:?}");
    let spent = budget(&server, "127.0.0.1");
    let figures = |name: &str| spent[name].as_u64().unwrap();
    assert_eq!((figures("requests_today"), figures("requests_remaining")), (10, 0), "{spent}");
    assert_eq!(figures("pages_today"), 9, "robots.txt is no page: {spent}");
    assert!(counted(&log, "sekisho/domain_budget_exceeded") > 0, "{log}");
    assert!(log.contains("'finish_reason': 'finished'"), "{log}");
    assert_eq!((counted(&log, "item_scraped_count"), counted(&log, "log_count/ERROR")), (9, 0), "{log}");
}

#[test]
fn two_spiders_share_one_budget() {
    let folder = tempfile::tempdir().unwrap();
    let (server, site) = (ten_a_day(folder.path()), Site::patient_for(1_000));
    let spiders = ["one", "two"].map(|name| Crawler::spider(folder.path(), name, &server, &site.url("/0")));
    for log in spiders.map(Crawler::ended) {
        assert!(counted(&log, "sekisho/domain_budget_exceeded") > 0, "{log}");
    }
    assert_eq!(site.seen().len(), 10, "{:?}", site.seen());
    assert_eq!(budget(&server, "127.0.0.1")["requests_today"], 10);
}

#[test]
fn a_site_that_wants_to_be_left_alone_is() {
    let folder = tempfile::tempdir().unwrap();
    let environment = Environment::from([("SEKISHO_API_TOKEN", TOKEN)]);
    let server = TestServer::on_its_store(config(folder.path()).with_environment(&environment).unwrap());
    server.get("/v1/outbound/domains").expect(401);
    let site = Site::patient_for(4);
    let log = Crawler::spider(folder.path(), "log", &server, &site.url("/0")).ended();
    assert_eq!(site.seen().len(), 5, "the fifth was told to go: {:?}\n{log}", site.seen());
    assert!(counted(&log, "sekisho/domain_cooldown") > 0, "{log}");
    let spent = budget(&server, "127.0.0.1");
    assert_eq!(spent["requests_today"], 5, "{spent}");
    let (until, now) = (spent["cooldown_until"].as_u64().unwrap(), SystemClock::start().now().as_millis_ceil());
    assert!(until > now + 3_000_000 && until <= now + 3_600_000, "{spent} at {now}");
}

#[test]
fn what_was_never_sent_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = ten_a_day(folder.path());
    // Nobody listens there.
    let log = Crawler::spider(folder.path(), "log", &server, "http://127.0.0.2:1/").ended();
    assert!(counted(&log, "downloader/exception_count") > 0, "{log}");
    assert_eq!(counted(&log, "sekisho/domain_budget_exceeded"), 0, "{log}");
    let asked = server.get("/v1/outbound/domains").expect(200);
    assert_eq!(
        (&asked["domains"][0]["domain"], &asked["domains"][0]["requests_today"]),
        (&json!("127.0.0.2"), &json!(0))
    );
    let acquired = server.post("/v1/outbound/acquire", json!({ "url": "http://127.0.0.2:1/" })).expect(200);
    assert_eq!(acquired["allowed"], true, "nothing is in flight: {acquired}");
}

/// The one block of Python in the guide, with `server` in place of the usual address, and `more` after it.
fn snippet(folder: &Path, server: &TestServer, more: &str) -> PathBuf {
    let guide = std::fs::read_to_string(root().join("docs/guides/crawlers.md")).unwrap();
    let (_, block) = guide.split_once("```python\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let usual = "http://127.0.0.1:8001";
    assert!(block.contains(usual), "{block}");
    let program = folder.join("snippet.py");
    std::fs::write(&program, block.replace(usual, &format!("http://{}", server.addresses.api)) + more).unwrap();
    program
}

#[test]
fn the_guide_s_snippet_asks_and_settles() {
    let folder = tempfile::tempdir().unwrap();
    let (server, site) = (ten_a_day(folder.path()), Site::patient_for(6));
    let more = format!(
        "
def tried(url):
    try:
        return fetch(url)[0]
    except OSError as error:
        return str(error).split(' until ')[0]

for url in ['/0', '/none', '/moved', '/3', '/4', '/5', '/6', '/7']:
    print(tried('http://{}' + url))
print(tried('http://127.0.0.2:1/'))
",
        site.address
    );
    let program = snippet(folder.path(), &server, &more);
    let said = Crawler::start(folder.path(), "log", &[program.to_str().unwrap()]).ended();
    let said: Vec<_> = said.lines().collect();
    assert_eq!(said[..7], ["200", "404", "302", "200", "200", "200", "429"], "{said:?}");
    assert!(said[7].ends_with("/7: domain_cooldown") && said[8].contains("refused"), "{said:?}");
    assert_eq!(site.seen(), ["/0", "/none", "/moved", "/3", "/4", "/5", "/6"]);
    let spent = budget(&server, "127.0.0.1");
    assert_eq!((&spent["requests_today"], &spent["pages_today"]), (&json!(7), &json!(4)), "{spent}");
    assert_eq!(budget(&server, "127.0.0.2")["requests_today"], 0);
}
