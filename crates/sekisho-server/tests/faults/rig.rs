//! A server on a Redis behind a proxy, and the story that every outage is told by.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use sekisho_server::config::Config;
use sekisho_testkit::{FaultProxy, RedisServer};
use serde_json::{Value, json};

use crate::account::{Account, LIMIT};
use crate::support::{TestServer, until};

const POLICIES: &str = r#"
policies:
  day: { lease: 10m, rules: [{ name: day, algorithm: fixed_window, limit: 20, window: 1d }] }
  other: { lease: 10m, rules: [{ name: log, algorithm: sliding_log, limit: 20, window: 1d }] }
  seed: { rules: [{ name: day, algorithm: fixed_window, limit: 20, window: 1d, key: "rate:{{{subject}}}:{date}" }] }
  gate: { subject: ip, rules: [{ name: day, algorithm: fixed_window, limit: 1000, window: 1d }] }
  loose: { on_failure: open, rules: [{ name: day, algorithm: fixed_window, limit: 20, window: 1d }] }
  strict: { on_failure: closed, rules: [{ name: day, algorithm: fixed_window, limit: 20, window: 1d }] }
routes: [{ match: { path: /gate }, policy: gate, respond: {} }]
"#;

/// A server of so many, with a deadline that a busy machine keeps.
pub(crate) fn serve(url: &str, instances: u32) -> TestServer {
    TestServer::on_its_store(config(url, instances))
}

pub(crate) fn config(url: &str, instances: u32) -> Config {
    let store = format!("store: {{ url: \"{url}\", timeout: 250ms, on_failure: memory }}\ninstances: {instances}");
    let config = Config::parse("test.yaml", &format!("{store}\n{POLICIES}"));
    config.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) struct Rig {
    pub(crate) redis: RedisServer,
    pub(crate) proxy: FaultProxy,
    pub(crate) server: TestServer,
}

impl Rig {
    pub(crate) fn start() -> Rig {
        Rig::with(&[])
    }

    pub(crate) fn with(args: &[&str]) -> Rig {
        let redis = RedisServer::start_with(args);
        let proxy = FaultProxy::to(redis.port());
        let server = serve(&proxy.url(), 1);
        Rig { redis, proxy, server }
    }

    /// An outage of which Redis hears nothing: what was admitted is counted to the last one, though Redis may know nothing any more of
    /// what was before.
    pub(crate) fn outage(&self, begin: impl FnOnce(), end: impl FnOnce()) {
        outage(&self.server, Lost::Nothing, begin, end);
    }

    /// One in which Redis may do what it was asked, and nobody learns it.
    pub(crate) fn outage_with_lost_replies(&self, begin: impl FnOnce(), end: impl FnOnce()) {
        outage(&self.server, Lost::Replies, begin, end);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    Nothing,
    Replies,
}

/// Nobody fails, every answer without the store says so, the limit holds, and in the end Redis has counted what was
/// admitted, once.
pub(crate) fn outage(server: &TestServer, lost: Lost, begin: impl FnOnce(), end: impl FnOnce()) {
    let hot = Account::of(server, "hot");
    let both = Account::of(server, "both");
    for _ in 0..3 {
        hot.check();
    }
    assert_eq!(hot.counted(), (3, 0), "they were shared");
    // They are held when it begins, and Redis may not know them any more when they end.
    let [before, after, given_up] = [(); 3].map(|()| hot.reserve());

    begin();
    let probe = Account::of(server, "probe");
    until(|| probe.check().is_degraded && !is_well(server));
    assert_degraded(server);
    for _ in 0..5 {
        assert!(hot.check().is_degraded);
        assert!(both.check_both().is_degraded);
    }
    (0..2).for_each(|_| assert!(!hot.settle(&before, 2), "it says that the store did not hear of it"));
    hot.admit(2);
    let released = hot.reserve();
    let open = hot.reserve();
    for _ in 0..2 {
        assert!(!hot.release(&released), "it says that the store did not hear of it");
    }

    end();
    until_shared(server);
    for _ in 0..2 {
        hot.settle(&open, 3);
        hot.settle(&before, 2);
        hot.settle(&after, 2);
        hot.release(&released);
        hot.release(&given_up);
    }
    hot.admit(5);
    for account in [&hot, &both, &probe] {
        account.assert_counted(lost != Lost::Replies);
        account.use_up();
        assert!(account.admitted() <= LIMIT);
    }
    if lost != Lost::Replies {
        assert_eq!(hot.admitted(), LIMIT, "nothing is charged for what was not admitted");
    }
}

/// Every way of going on without the store.
pub(crate) fn assert_degraded(server: &TestServer) {
    let ready = server.gateway("GET", "/readyz", &[]);
    let checks = ready.json()["checks"].clone();
    assert_eq!((ready.status, &checks["rate_limiter_ok"]), (200, &json!(false)), "{checks}");
    assert_eq!(checks["rate_limiter_backend"], "in_memory", "{checks}");
    let check = |policy: &str| server.post("/v1/check", json!({ "policy": policy, "subject": "s" }));
    let loose = check("loose");
    assert_eq!((loose.status, degraded_of(&loose.json())), (200, "open"), "{}", loose.text);
    assert_eq!(loose.header("x-sekisho-degraded"), "open");
    let passed = server.gateway("GET", "/gate", &[]);
    assert_eq!((passed.status, passed.header("x-sekisho-degraded")), (200, "memory"), "{}", passed.text);
    let strict = check("strict");
    assert_eq!((strict.status, strict.header("retry-after")), (503, "1"), "{}", strict.text);
}

/// Waits until the store decides again and knows all that was decided without it.
pub(crate) fn until_shared(server: &TestServer) {
    until(|| is_well(server));
    until(|| metric(server, "sekisho_write_back_pending") == 0.0);
    let reply = || server.post("/v1/check", json!({ "policy": "strict", "subject": "after" }));
    until(|| [200, 429].contains(&reply().status));
}

pub(crate) fn is_well(server: &TestServer) -> bool {
    let reply = server.gateway("GET", "/readyz", &[]);
    reply.status == 200 && reply.json()["checks"]["rate_limiter_ok"] == true
}

/// Waits until what was acknowledged is on both.
pub(crate) fn in_step(primary: &RedisServer, replica: &RedisServer) {
    let offset = |server: &RedisServer, name: &str| {
        let info = server.command(&["INFO", "replication"]).text();
        info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
    };
    until(|| {
        let sent = offset(primary, "master_repl_offset:");
        sent.is_some() && offset(replica, "slave_repl_offset:") == sent
    });
}

/// The sum over all labels; 0 where there is none yet.
pub(crate) fn metric(server: &TestServer, name: &str) -> f64 {
    let text = server.get("/metrics").text;
    let is_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
    text.lines().filter(is_it).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// A connection that is there before a server takes no more.
pub(crate) struct Console(TcpStream);

impl Console {
    pub(crate) fn on(redis: &RedisServer) -> Console {
        Console(TcpStream::connect(("127.0.0.1", redis.port())).unwrap())
    }

    /// Says something, without waiting for what comes back.
    pub(crate) fn say(&self, line: &str) {
        (&self.0).write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    #[track_caller]
    pub(crate) fn ask(&self, line: &str) {
        self.say(line);
        let mut reply = vec![0; 256];
        let length = (&self.0).read(&mut reply).unwrap();
        let reply = String::from_utf8_lossy(&reply[..length]);
        assert!(reply.starts_with(['+', ':']), "{line}: {reply}");
    }
}

pub(crate) fn degraded_of(answer: &Value) -> &str {
    answer["degraded"].as_str().unwrap_or_default()
}
