//! The command as people run it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use assert_cmd::assert::OutputAssertExt as _;
use sekisho_elevation::Layer;
use sekisho_testkit::jwt::{Signer, jwks};
use sekisho_testkit::tiles::{TileServer, ground};
use sekisho_testkit::{RedisServer, limit_descriptors};
use serde_json::{Value, json};

/// Alone with its arguments: no variable and no file of the machine takes part.
fn sekisho(args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sekisho"));
    command.args(args).env_clear().current_dir(std::env::temp_dir());
    command
}

fn run(args: &[&str]) -> (i32, String, String) {
    let output = sekisho(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn example(name: &str) -> String {
    format!("{}/../../examples/{name}/sekisho.yaml", env!("CARGO_MANIFEST_DIR"))
}

/// A server of its own, which ends with the test.
struct Serving {
    child: Child,
    gateway: String,
    api: String,
    welcome: String,
}

impl Serving {
    fn start(args: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::logging(args, variables, Stdio::null())
    }

    fn logging(args: &[&str], variables: &[(&str, &str)], log: Stdio) -> Self {
        let mut command = sekisho(&["serve", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]);
        let command = command.args(args).envs(variables.iter().copied());
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let welcome: Vec<String> = (0..6).map(|_| lines.next().unwrap().unwrap()).collect();
        let url = |line: &str| line.split_whitespace().last().unwrap().to_owned();
        Self { gateway: url(&welcome[0]), api: url(&welcome[1]), welcome: welcome.join("\n"), child }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn heights_and_profiles_are_shown_and_drawn() {
    let slope = ground::plane(200.0, 1_000.0);
    let tiles = TileServer::start(ground::only(Layer::Dem5a, slope));
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let elevation = format!("elevation: {{ origin: \"{}\", layers: [dem5a] }}\n", tiles.url());
    std::fs::write(file("sekisho.yaml"), elevation).unwrap();
    let serving = Serving::start(&["--config", &file("sekisho.yaml")], &[]);
    let with = |args: &[&str]| run(&[&["elevation"], args, &["--api", serving.api.as_str()]].concat());
    let (code, out, _) = with(&["35.3", "138.2"]);
    assert!(code == 0 && out.ends_with(" m (dem5a)\n"), "{out}");
    let metres: f64 = out.split(' ').next().unwrap().parse().unwrap();
    assert!((metres - 400.0).abs() < 0.011, "{out}");
    assert_eq!(with(&["-35.3", "-138.2"]), (0, "no height is known there\n".to_owned(), String::new()));
    let (code, _, err) = with(&["135.3", "138.2"]);
    assert!(code == 2 && err.contains("lat is 135.3"), "{err}");

    let gpx = r#"<gpx><trk><name>East &amp; up</name><trkseg><trkpt lat="35.3" lon="138.2"/><trkpt lat="35.3" lon="138.24"/></trkseg></trk></gpx>"#;
    std::fs::write(file("east.gpx"), gpx).unwrap();
    let (code, out, err) = with(&["profile", &file("east.gpx"), "--svg", &file("east.svg")]);
    assert_eq!((code, err.as_str()), (0, ""), "no bar where there is no terminal");
    assert!(out.contains("3.63 km") && out.contains("40 m (raw 40 m)") && out.contains("地理院タイル"), "{out}");
    let svg = std::fs::read_to_string(file("east.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("East &amp; up") && svg.contains("40 m up"), "{svg}");
    let (_, out, _) = with(&["profile", &file("east.gpx"), "--json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert!(answer["points"].as_array().unwrap().len() > 360, "they were asked for in two parts: {out}");
    let (code, _, err) = with(&["profile", &file("sekisho.yaml")]);
    assert!(code == 2 && err.contains("sekisho.yaml: "), "{err}");
}

#[test]
fn it_serves_and_shows_what_it_counts() {
    let serving = Serving::start(&[], &[]);
    assert_eq!(serving.welcome.matches("curl").count(), 3, "{}", serving.welcome);
    let get = |path: &str| {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        agent.get(format!("{}{path}", serving.gateway)).call().unwrap().status().as_u16()
    };
    assert_eq!(get("/api/test"), 200);
    let api = ["--api", serving.api.as_str()];
    let with = |args: &[&str]| run(&[args, &api].concat());

    let (code, out, _) = with(&["explain", "demo", "127.0.0.1", "--json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &answer["rules"][0]["used"]), (0, &json!(1)), "{out}");
    let (code, out, _) = with(&["explain", "demo", "127.0.0.1"]);
    assert!(code == 0 && out.contains("fixed_window") && out.contains("minute *"), "{out}");

    assert_eq!(with(&["peek", "demo", "127.0.0.1", "--cost", "requests=4"]).0, 0);
    let (code, out, _) = with(&["peek", "demo", "127.0.0.1", "--cost", "requests=5"]);
    assert!(code == 1 && out.contains("denied: try again in"), "{out}");
    let (code, out, _) = with(&["peek", "demo", "127.0.0.1", "--cost", "requests=5", "--json"]);
    assert_eq!((code, serde_json::from_str::<Value>(&out).unwrap()["allowed"].clone()), (1, json!(false)));

    let (code, out, _) = with(&["stats"]);
    assert!(code == 0 && out.contains("1 keys") && out.contains("sekisho"), "{out}");
    let (code, out, _) = with(&["stats", "--json", "--budget", "10"]);
    assert_eq!((code, serde_json::from_str::<Value>(&out).unwrap()["backend"].clone()), (0, json!("memory")), "{out}");
    assert_eq!(with(&["stats", "no:such:key"]).0, 2);

    let (code, out, _) = with(&["reset", "demo", "127.0.0.1", "--json"]);
    assert_eq!((code, serde_json::from_str::<Value>(&out).unwrap()["rules"][0]["used"].clone()), (0, json!(0)));

    let (code, out, err) = with(&["explain", "dmeo", "127.0.0.1"]);
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (2, "", "sekisho: unknown policy `dmeo`; did you mean `demo`? (404)\n")
    );
    assert_eq!(with(&["peek", "demo", "a", "--cost", "pages=1"]).0, 2);
    assert_eq!(with(&["peek", "demo", "a", "--cost", "requests=-1"]).0, 2);
    assert_eq!(with(&["peek", "demo", "a", "--cost", "requests=1", "--cost", "requests=1"]).0, 2);
}

#[test]
fn sessions_are_listed_and_ended() {
    let serving = Serving::start(&[], &[]);
    let api = ["--api", serving.api.as_str()];
    let with = |args: &[&str]| run(&[args, &api].concat());
    let login = |sid: &str| {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let url = format!("{}/v1/sessions/a%2Fb/{sid}", serving.api);
        let session = json!({ "user_agent": "curl", "access_token": "secret" });
        assert_eq!(agent.put(url).send_json(session).unwrap().status(), 200);
    };
    ["one", "two", "three"].into_iter().for_each(login);
    let (code, out, _) = with(&["sessions", "list", "a/b"]);
    assert!(code == 0 && out.contains("two") && out.contains("curl") && !out.contains("secret"), "{out}");
    let known = || {
        let (code, out, _) = with(&["sessions", "list", "a/b", "--json"]);
        let answer: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(code, 0);
        answer["sessions"].as_array().unwrap().len()
    };
    assert_eq!(known(), 3);
    assert_eq!(with(&["sessions", "end", "a/b", "one"]).1, "the session has ended\n");
    assert_eq!(known(), 2);
    assert_eq!(with(&["sessions", "end", "a/b", "--except", "two"]).1, "all other sessions have ended\n");
    assert_eq!(known(), 1);
    assert_eq!(with(&["sessions", "end", "a/b"]).1, "all sessions and tokens have ended\n");
    assert_eq!(known(), 0);
    let (code, _, err) = with(&["sessions", "list", "a:b"]);
    assert!(code == 2 && err.contains("`user`"), "{err}");
}

#[test]
fn a_token_goes_along() {
    let token = [("SEKISHO_API_TOKEN", "s3cret")];
    let serving = Serving::start(&[], &token);
    assert!(!serving.welcome.contains("s3cret"));
    let args = ["explain", "demo", "me", "--api", serving.api.as_str()];
    assert_eq!(run(&args).0, 2);
    sekisho(&args).envs(token).assert().code(0);
}

/// What a server on `store` warns of while 20 requests are let through without it, the first of which come after `begin`.
fn warnings_of_an_outage(store: &str, begin: impl FnOnce(&Serving)) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sekisho.yaml");
    let store = format!("store: {{ url: '{store}', on_failure: open }}");
    let policy = "policies: { p: { subject: ip, rules: [{ algorithm: fixed_window, limit: 1, window: 60s }] } }";
    let route = "routes: [{ match: { path: / }, policy: p, respond: {} }]";
    std::fs::write(&file, format!("{store}\n{policy}\n{route}\n")).unwrap();
    let log = folder.path().join("log");
    let mut serving =
        Serving::logging(&["--config", file.to_str().unwrap()], &[], std::fs::File::create(&log).unwrap().into());
    begin(&serving);
    for _ in 0..20 {
        let reply = ureq::get(&serving.gateway).call().unwrap();
        assert_eq!((reply.status().as_u16(), &reply.headers()["x-sekisho-degraded"]), (200, &"open".parse().unwrap()));
    }
    Command::new("kill").args(["-TERM", &serving.child.id().to_string()]).status().unwrap();
    serving.child.wait().unwrap();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains("hunter2"), "{log}");
    log.lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect()
}

#[test]
fn an_outage_is_logged_when_it_begins_and_not_for_every_request() {
    let redis = RedisServer::start();
    let warnings = warnings_of_an_outage(&redis.url(), |serving| {
        assert_eq!(ureq::get(&serving.gateway).call().unwrap().headers().get("x-sekisho-degraded"), None);
        redis.kill9();
    });
    // Each connection that was lost says so once.
    let away: Vec<_> = warnings.iter().filter(|warning| !warning.contains("connection to redis lost")).collect();
    let [away] = away.as_slice() else { panic!("{warnings:?}") };
    assert!(away.contains("the store does not answer; policies go on by their `on_failure`"), "{warnings:?}");
}

#[test]
fn a_start_without_the_store_is_logged_and_not_every_request() {
    let warnings = warnings_of_an_outage("redis://:hunter2@127.0.0.1:1", |_| ());
    let [without] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(without.contains("starting without the store; policies go on by their `on_failure`"), "{warnings:?}");
}

#[test]
fn f39_it_stops_when_told() {
    let mut serving = Serving::start(&[], &[]);
    let pid = serving.child.id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_served_is_said_in_one_line() {
    let (code, out, err) = run(&["--api", "0.0.0.0:0", "--listen", "127.0.0.1:0"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.starts_with("sekisho: the API would be open") && err.lines().count() == 1, "{err}");
    assert_eq!(run(&["--listen", "nowhere"]).0, 2);
    assert_eq!(run(&["--config", "no-such-file.yaml"]).0, 2);
    assert_eq!(run(&["nonsense"]).0, 2);
    let unreachable = run(&["explain", "demo", "me", "--api", "http://127.0.0.1:1"]);
    assert_eq!(unreachable.0, 3, "{}", unreachable.2);
    assert_eq!(unreachable.2.lines().count(), 1);
    assert_eq!(run(&["explain", "demo", "me", "--api", "nowhere:x"]).0, 2);
}

#[test]
fn a_file_in_the_working_directory_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = || {
        let output = sekisho(&[]).current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let [yaml, toml] = ["sekisho.yaml", "sekisho.toml"].map(|name| folder.path().join(name));
    std::fs::write(&yaml, "polices: {}\n").unwrap();
    let err = refusal();
    assert!(err.starts_with("sekisho: sekisho.yaml:1:1: unknown key `polices`; did you mean `policies`?"), "{err}");
    std::fs::write(&toml, "[polices]\n").unwrap();
    let err = refusal();
    assert!(err.starts_with("sekisho: sekisho.yaml and sekisho.toml are both here"), "{err}");
    std::fs::remove_file(&yaml).unwrap();
    let err = refusal();
    assert!(err.starts_with("sekisho: sekisho.toml:1:2: unknown key `polices`; did you mean `policies`?"), "{err}");
}

#[test]
fn a8_wide_networks_are_told_by_check_and_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sekisho.yaml");
    std::fs::write(&file, "trusted_proxies: [0.0.0.0/0, 10.0.0.0/8, 192.168.1.1]\n").unwrap();
    let file = file.to_str().unwrap();
    let (code, out, _) = run(&["config", "check", file]);
    assert!(code == 0 && out.contains("is valid"), "{out}");
    for said in ["warning: `trusted_proxies` holds 0.0.0.0/0, which is every IPv4 address", "holds 10.0.0.0/8, a wide"]
    {
        assert!(out.contains(said), "{out}");
    }
    assert!(!out.contains("192.168"), "{out}");
    let (_, out, _) = run(&["config", "check", file, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["warnings"].as_array().unwrap().len(), 2);

    let log = folder.path().join("log");
    let serving = Serving::logging(&["--config", file], &[], std::fs::File::create(&log).unwrap().into());
    drop(serving);
    let log = std::fs::read_to_string(&log).unwrap();
    assert_eq!(
        log.lines().filter(|line| line.contains("WARN") && line.contains("`trusted_proxies`")).count(),
        2,
        "{log}"
    );
}

#[test]
fn config_check_prints_the_policies() {
    let (code, out, err) = run(&["config", "check", &example("quickstart")]);
    assert_eq!((code, err.as_str()), (0, ""));
    for cell in ["policy", "demo", "minute", "fixed_window", "1m", "budget", "100000 (burst 20000)", "1h", "tokens"] {
        assert!(out.contains(cell), "{cell} in\n{out}");
    }
    let (code, out, _) = run(&["config", "check", &example("vision-gateway"), "--json"]);
    let parsed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &parsed["policies"][0]["rules"][1]["zone"]), (0, &json!("Asia/Tokyo")));
    for name in ["ai-micro", "fixed-window"] {
        let (code, out, _) = run(&["config", "check", &example(name)]);
        assert!(code == 0 && !out.contains("warning"), "{out}");
    }
    assert_eq!(run(&["config", "check", "no-such-file.yaml"]).0, 2);
}

#[test]
fn config_init_writes_a_file_that_serves() {
    let folder = tempfile::tempdir().unwrap();
    let init = |args: &[&str]| {
        let output = sekisho(&[&["config", "init"], args].concat()).current_dir(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, out, err) = init(&[]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let file = folder.path().join("sekisho.yaml");
    let starter = std::fs::read_to_string(&file).unwrap();
    for printed in [init(&["-"]), init(&["--stdout"])] {
        assert_eq!((printed.0, printed.1.as_str()), (Some(0), starter.as_str()));
    }
    let (code, out, err) = run(&["config", "check", file.to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");

    std::fs::write(&file, "mine").unwrap();
    let (code, _, err) = init(&["sekisho.yaml"]);
    assert!(code == Some(2) && err.contains("is there already; --force overwrites it"), "{err}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(init(&["--force", "sekisho.yaml"]).0, Some(0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), starter);
    assert_eq!(init(&["no/such/folder.yaml"]).0, Some(2));
    assert_eq!(init(&["sekisho.toml"]).0, Some(2));

    let serving = Serving::start(&["--config", file.to_str().unwrap()], &[]);
    let hello = ureq::get(format!("{}/hello", serving.gateway)).call().unwrap();
    assert_eq!(hello.headers()["x-ratelimit-limit"], "60");
}

#[test]
fn what_the_starter_comments_out_can_be_taken_in() {
    let (_, starter, _) = run(&["config", "init", "-"]);
    let is_option =
        |line: &&str| line.trim_start().starts_with("# ") && line.contains(": ") && line.contains(['{', '[', '0']);
    let options: Vec<&str> = starter.lines().filter(is_option).filter(|line| !line.contains("curl")).collect();
    assert!(options.len() >= 5, "{options:?}");
    let taken: Vec<String> = starter
        .lines()
        .map(|line| if options.contains(&line) { line.replacen("# ", "", 1) } else { line.to_owned() })
        .collect();
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), taken.join("\n")).unwrap();
    let (code, out, err) = run(&["config", "check", file.path().to_str().unwrap()]);
    assert!(code == 0 && out.contains("in_flight"), "{err}\n{}", taken.join("\n"));
}

#[test]
fn config_schema_is_json() {
    let (code, out, _) = run(&["config", "schema"]);
    let schema: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &schema["$schema"]), (0, &json!("https://json-schema.org/draft/2020-12/schema")));
    assert_eq!(schema["properties"]["listen"]["default"], "127.0.0.1:8000");
}

#[test]
fn import_shows_what_envoys_files_become() {
    let file = format!("{}/../../examples/envoy/ratelimit.yaml", env!("CARGO_MANIFEST_DIR"));
    let (code, out, err) = run(&["import", "envoy", &file]);
    assert_eq!((code, err.as_str()), (0, ""));
    for cell in
        ["edge", "user=robot-*", "5 per minute", "blocked", "unlimited", "fixed_window", "1h", "shadow", "domains: ["]
    {
        assert!(out.contains(cell), "{cell} in\n{out}");
    }
    let (code, out, _) = run(&["import", "envoy", "--json", &file]);
    let parsed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &parsed["rules"][1]["policy"]["rules"][0]["window_ms"]), (0, &json!(60_000)));
    let (code, out, _) = run(&["config", "check", &example("envoy")]);
    assert!(code == 0 && out.contains("remote_address") && out.contains("is valid"), "{out}");
    // One domain in two files.
    let (code, _, err) = run(&["import", "envoy", &file, &file]);
    assert!(code == 2 && err.contains("ratelimit.yaml:1:9: the domain `edge` is also that of"), "{err}");
    assert_eq!(run(&["import", "envoy", "no-such-file.yaml"]).0, 2);
    assert_eq!(run(&["import", "envoy"]).0, 2);
}

#[test]
fn envoys_service_is_served_beside_the_rest() {
    let with = ["--config", &example("envoy"), "--grpc", "127.0.0.1:0"];
    let serving = Serving::start(&with, &[]);
    let address = serving.welcome.lines().find_map(|line| line.strip_prefix("gRPC     ")).unwrap();
    let address = address.split(' ').next().unwrap();
    assert!(std::net::TcpStream::connect(address).is_ok(), "{address}");
    let closed = Serving::start(&["--config", &example("envoy"), "--grpc", "off"], &[]);
    assert!(!closed.welcome.contains("gRPC"));
    let (code, _, err) = run(&["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--grpc", "0.0.0.0:0"]);
    assert!(code == 2 && err.starts_with("sekisho: the rate-limit service would be open"), "{err}");
}

#[test]
fn the_document_is_printed_as_it_is_served() {
    let server = Serving::start(&["--grpc", "off"], &[]);
    let (code, out, _) = run(&["openapi"]);
    let printed: Value = serde_json::from_str(&out).unwrap();
    let mut served = ureq::get(format!("{}/openapi.json", server.api)).call().unwrap();
    assert_eq!((code, printed), (0, served.body_mut().read_json().unwrap()));
}

#[test]
fn variables_override_the_file_and_flags_override_both() {
    let refused =
        sekisho(&["serve"]).env("SEKISHO_STORE_TIMEOUT", "soon").env("REDIS_URL", "redis://h").output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && error.contains("SEKISHO_STORE_TIMEOUT: `timeout` must be"), "{error}");
    // A flag says another address than the variable, which nobody could listen at.
    let serving = Serving::start(&[], &[("SEKISHO_LISTEN", "192.0.2.1:1"), ("SEKISHO_HEADERS", "legacy")]);
    let answer = ureq::get(format!("{}/api/test", serving.gateway)).call().unwrap();
    assert!(answer.headers().contains_key("x-ratelimit-limit") && !answer.headers().contains_key("ratelimit"));
}

#[test]
fn help_names_the_exit_codes_and_completions_are_there() {
    let (code, out, _) = run(&["--help"]);
    assert!(code == 0 && out.contains("Exit codes"), "{out}");
    for shell in ["bash", "zsh", "fish"] {
        let (code, out, _) = run(&["completions", shell]);
        assert!(code == 0 && out.contains("sekisho"), "{shell}");
    }
}

/// Waits for a condition that must come true.
fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("it did not come true in ten seconds");
}

#[test]
fn f43_a_changed_file_is_taken_up_and_a_bad_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sekisho.yaml");
    let write = |limit: &str| {
        let text = format!(
            "policies: {{ demo: {{ subject: ip, rules: [{{ name: minute, algorithm: fixed_window, limit: {limit}, window: 366d }}] }} }}\nroutes: [{{ match: {{ path: /x }}, policy: demo, respond: {{}} }}]\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    write("2");
    let serving = Serving::start(&["--config", file.to_str().unwrap()], &[]);
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let get = |url: String| {
        let mut answer = agent.get(url).call().unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    };
    let request = || get(format!("{}/x", serving.gateway)).0;
    let limit = || {
        let answer: Value = serde_json::from_str(&get(format!("{}/v1/policies", serving.api)).1).unwrap();
        answer["policies"][0]["rules"][0]["limit"].clone()
    };
    let config_ok = || {
        let ready: Value = serde_json::from_str(&get(format!("{}/readyz", serving.gateway)).1).unwrap();
        ready["checks"]["config_ok"].clone()
    };
    assert_eq!((request(), request(), request()), (200, 200, 429));

    write("30");
    until(|| limit() == json!(30));
    let counted: Value =
        serde_json::from_str(&get(format!("{}/v1/explain?policy=demo&subject=127.0.0.1", serving.api)).1).unwrap();
    assert_eq!((request(), &counted["rules"][0]["used"]), (200, &json!(2)), "what was counted is kept");

    write("none");
    until(|| config_ok() == json!(false));
    assert_eq!((request(), limit()), (200, json!(30)), "the last good one stays");

    let hang_up = || {
        let hangup = Command::new("kill").args(["-HUP", &serving.child.id().to_string()]).status().unwrap();
        assert!(hangup.success());
    };
    write("40");
    until(|| config_ok() == json!(true));
    std::fs::write(&file, "").unwrap();
    hang_up();
    until(|| config_ok() == json!(false));
    assert_eq!((request(), limit()), (200, json!(40)), "an empty file is one that is being written");

    write("500");
    hang_up();
    until(|| limit() == json!(500) && config_ok() == json!(true));
    let metrics = get(format!("{}/metrics", serving.api)).1;
    assert!(metrics.contains("sekisho_config_reload_total{result=\"failure\"}"), "{metrics}");

    // Whatever happens to the file, the last good one stays; and what is put right is taken up.
    let good = std::fs::read_to_string(&file).unwrap();
    let (other, swap) = (dir.path().join("other.yaml"), dir.path().join("swap"));
    let point_to = |target: &std::path::Path| {
        std::os::unix::fs::symlink(target, &swap).unwrap();
        std::fs::rename(&swap, &file).unwrap();
    };
    let clear = || drop(std::fs::remove_file(&file).or_else(|_| std::fs::remove_dir(&file)));
    let troubles: [(&str, &dyn Fn()); 7] = [
        ("cut in the middle", &|| std::fs::write(&file, &good[..good.len() / 2]).unwrap()),
        ("not text", &|| std::fs::write(&file, b"\xff\xfe\0").unwrap()),
        ("longer than a megabyte", &|| {
            let comment = "# as long as no file of a person is\n".repeat(40_000);
            std::fs::write(&file, good.replace("limit: 500", "limit: 5000") + &comment).unwrap();
        }),
        ("deleted", &clear),
        // As root one may read what nobody may: a folder cannot be read by anybody.
        ("not to be read", &|| {
            clear();
            std::fs::create_dir(&file).unwrap();
        }),
        ("a link to another that is wrong", &|| {
            std::fs::write(&other, "policies: 7").unwrap();
            clear();
            point_to(&other);
        }),
        ("a link to nowhere", &|| {
            clear();
            point_to(&dir.path().join("nowhere"));
        }),
    ];
    for (number, (what, trouble)) in troubles.into_iter().enumerate() {
        trouble();
        hang_up();
        until(|| config_ok() == json!(false));
        assert_eq!((request(), limit()), (200, json!(500 + number)), "{what}");
        clear();
        write(&(501 + number).to_string());
        hang_up();
        until(|| limit() == json!(501 + number) && config_ok() == json!(true));
    }
    // A link that is swapped for one to another good file.
    std::fs::write(&other, std::fs::read_to_string(&file).unwrap().replace("limit: 507", "limit: 600")).unwrap();
    point_to(&other);
    until(|| limit() == json!(600));
}

/// Somebody writes the file again and again: what is served is always one of them as a whole, and nothing is left behind.
#[test]
fn a_key_set_that_changes_on_the_disk_is_taken_up_and_a_bad_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (file, keys) = (dir.path().join("sekisho.yaml"), dir.path().join("keys.json"));
    let yaml = "tokens: { issuers: [{ iss: me, algorithms: [ES256], jwks: keys.json }] }\n\
                policies: { p: { subject: ip, rules: [{ algorithm: fixed_window, limit: 100000, window: 1d }] } }\n\
                routes: [{ match: { path: / }, policy: p, require: [token], respond: {} }]\n";
    let (old, new) = (Signer::ec("ES256").named("old"), Signer::ec("ES256").named("new"));
    std::fs::write(&file, yaml).unwrap();
    std::fs::write(&keys, jwks(&[&old])).unwrap();
    let serving = Serving::start(&["--config", file.to_str().unwrap()], &[]);
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let of = |signer: &Signer| {
        let claims = json!({ "iss": "me", "sub": "u", "jti": "j", "iat": 1_700_000_000, "exp": 4_102_444_800_u64 });
        let shown = format!("Bearer {}", signer.token(&claims));
        agent.get(&serving.gateway).header("authorization", shown).call().unwrap().status().as_u16()
    };
    assert_eq!((of(&old), of(&new)), (200, 401));
    // Both for a while, as issuers do it, then the new one alone; nobody has to tell the server.
    std::fs::write(&keys, jwks(&[&old, &new])).unwrap();
    until(|| (of(&old), of(&new)) == (200, 200));
    std::fs::write(&keys, jwks(&[&new])).unwrap();
    until(|| (of(&old), of(&new)) == (401, 200));
    std::fs::write(&keys, "{ not a key set").unwrap();
    until(|| {
        let mut ready = agent.get(format!("{}/readyz", serving.gateway)).call().unwrap();
        ready.body_mut().read_json::<Value>().unwrap()["checks"]["config_ok"] == json!(false)
    });
    assert_eq!((of(&old), of(&new)), (401, 200), "the last good one stays");
}

#[test]
fn f44_a_hundred_reloads_leave_nothing_behind_and_mix_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sekisho.yaml");
    let write = |limit: u64| {
        let policy = |name: &str| {
            format!("  {name}: {{ rules: [{{ name: r, algorithm: fixed_window, limit: {limit}, window: 1d }}] }}\n")
        };
        let draft = dir.path().join("draft");
        std::fs::write(&draft, format!("policies:\n{}{}", policy("a"), policy("b"))).unwrap();
        std::fs::rename(&draft, &file).unwrap();
    };
    write(1);
    let serving = Serving::start(&["--config", file.to_str().unwrap()], &[]);
    let agent: ureq::Agent = ureq::Agent::config_builder().build().into();
    let limit = || {
        let text =
            agent.get(format!("{}/v1/policies", serving.api)).call().unwrap().body_mut().read_to_string().unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        let limits = [0, 1].map(|policy| answer["policies"][policy]["rules"][0]["limit"].as_u64().unwrap());
        assert_eq!(limits[0], limits[1], "two configurations in one answer");
        limits[0]
    };
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", serving.child.id())).unwrap().count();
    write(2);
    until(|| limit() == 2);
    let before = descriptors();
    let mut last = 2;
    for number in 3..=102 {
        write(number);
        assert!(Command::new("kill").args(["-HUP", &serving.child.id().to_string()]).status().unwrap().success());
        let now = limit();
        assert!((last..=number).contains(&now), "{now} after {last}");
        last = now;
    }
    until(|| limit() == 102);
    until(|| descriptors() <= before);
}

/// There are no more descriptors: who is in is served, and others wait until somebody goes.
#[test]
fn f47_without_descriptors_it_accepts_nobody_until_there_are_some() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let serving = Serving::logging(&[], &[], Stdio::from(std::fs::File::create(&log).unwrap()));
    let gateway = serving.gateway.strip_prefix("http://").unwrap();
    let connect = || {
        let stream = std::net::TcpStream::connect(gateway).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        stream
    };
    let ask = |mut stream: &std::net::TcpStream| {
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        String::from_utf8(head.to_vec()).unwrap()
    };
    let first = connect();
    assert_eq!(ask(&first), "HTTP/1.1 200");
    let pid = serving.child.id();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
    limit_descriptors(pid, Some(open));
    let others: Vec<_> = (0..5).map(|_| connect()).collect();
    let said = || std::fs::read_to_string(&log).unwrap().matches("a connection could not be accepted").count();
    until(|| said() > 0);
    // It does not give up, and does not fill the disk with it: ten lines a second at the most.
    assert!(said() <= 20, "{}", said());
    drop(first);
    // One place is free: the others come in one after the other.
    for other in others {
        assert_eq!(ask(&other), "HTTP/1.1 200");
    }
    limit_descriptors(pid, None);
    assert_eq!(ask(&connect()), "HTTP/1.1 200");
}

#[test]
fn caches_are_filled_looked_into_and_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let (config, value) = (folder.path().join("sekisho.yaml"), folder.path().join("value"));
    std::fs::write(&config, "caches: { tiles: { key: \"t:{z}:{x}\" } }").unwrap();
    std::fs::write(&value, b"\x00\xff bytes").unwrap();
    let server = Serving::start(&["--config", config.to_str().unwrap()], &[]);
    let cache = |args: &[&str]| sekisho(&[&["cache"], args, &["--api", &server.api]].concat()).output().unwrap();
    let put = cache(&["put", "tiles", "15", "a b/c", "--file", value.to_str().unwrap()]);
    assert_eq!(put.status.code(), Some(2), "a part with a slash: {put:?}");
    let put = cache(&["put", "tiles", "15", "a b", "--file", value.to_str().unwrap()]);
    let said = String::from_utf8(put.stdout).unwrap();
    assert_eq!(said, "it is kept by this server only: this cache has no shared store\n");
    let got = cache(&["get", "tiles", "15", "a b", "--verbose"]);
    assert_eq!(got.stdout, b"\x00\xff bytes");
    let status = String::from_utf8(got.stderr).unwrap();
    assert!(status.starts_with("sekisho; hit; ") && status.ends_with("detail=l1\n"), "{status}");
    let explained: Value = serde_json::from_slice(&cache(&["explain", "tiles", "15", "a b", "--json"]).stdout).unwrap();
    assert_eq!((&explained["tier"], &explained["why"]), (&json!("l1"), &json!("off")), "{explained}");
    let refreshed = cache(&["refresh", "tiles", "15", "a b"]);
    assert_eq!(refreshed.status.code(), Some(2), "nothing to ask: {refreshed:?}");
    assert!(String::from_utf8(cache(&["list"]).stdout).unwrap().contains("t:{z}:{x}"));
    assert_eq!(cache(&["purge", "tiles", "15", "a b"]).stdout, b"it is forgotten everywhere\n");
    let gone = cache(&["get", "tiles", "15", "a b"]);
    assert_eq!((gone.status.code(), gone.stdout.len()), (Some(2), 0));
    assert_eq!(cache(&["get", "nothing", "15"]).status.code(), Some(2));
}

#[test]
fn a_cache_by_least_recent_use_keeps_what_was_asked_for_last() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("sekisho.yaml");
    let yaml = "caches: { old: { key: \"o:{id}\", l1: { entries: 2, policy: lru, max_age: off } } }";
    std::fs::write(&config, yaml).unwrap();
    let server = Serving::start(&["--config", config.to_str().unwrap()], &[]);
    let cache = |args: &[&str]| sekisho(&[&["cache"], args, &["--api", &server.api]].concat());
    // Without a file the value comes from standard input.
    let put = |key: &str| {
        let mut child = cache(&["put", "old", key]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(key.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    };
    let get = |key: &str| cache(&["get", "old", key]).output().unwrap().stdout;
    put("one");
    put("two");
    assert_eq!(get("one"), b"one");
    put("three");
    assert_eq!(["one", "two", "three"].map(get), [b"one".to_vec(), Vec::new(), b"three".to_vec()]);
    let metrics = ureq::get(format!("{}/metrics", server.api)).call().unwrap().body_mut().read_to_string().unwrap();
    let hits = "sekisho_cache_requests_total{cache=\"old\",tier=\"l1\",result=\"fresh\"} 3";
    assert!(metrics.contains(hits), "{metrics}");
}

#[test]
fn tokens_are_revoked_and_looked_up() {
    let serving = Serving::start(&[], &[]);
    let tokens = |args: &[&str]| run(&[&["tokens"], args, &["--api", &serving.api]].concat());
    assert_eq!(tokens(&["check", "access", "a/b c"]).0, 0);
    assert_eq!(tokens(&["revoke", "access", "a/b c", "--ttl", "60"]), (0, "revoked\n".to_owned(), String::new()));
    assert_eq!(tokens(&["check", "access", "a/b c"]), (1, "revoked\n".to_owned(), String::new()));
    assert_eq!(tokens(&["check", "refresh", "a/b c"]).0, 0);
    assert!(tokens(&["revoke", "access", "old", "--exp", "1000"]).1.contains("expired already"));
    assert_eq!(tokens(&["revoke", "access", "x"]).0, 2, "until when?");
    assert_eq!(tokens(&["not-before"]).0, 2, "whom? Not everyone by accident");
    assert!(tokens(&["not-before", "--user", "alice"]).1.starts_with("ended for alice"));
    assert_eq!(tokens(&["not-before", "--everyone", "--time", "99999999999"]).0, 2, "in the future");
    let (code, text, _) = tokens(&["not-before", "--everyone", "--time", "1000", "--json"]);
    assert_eq!((code, serde_json::from_str::<Value>(&text).unwrap()), (0, json!({ "not_before": 1_000_000 })));
}

#[test]
fn lists_are_fetched_into_a_folder_and_not_twice() {
    let origin = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = origin.local_addr().unwrap();
    let paths = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = std::sync::Arc::clone(&paths);
    // It ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in origin.incoming().flatten() {
            let mut head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let path = head.next().unwrap_or_default().split(' ').nth(1).unwrap_or_default().to_owned();
            head.for_each(drop);
            let (status, body) = match path.as_str() {
                "/robots.txt" => (200, "User-agent: *\nDisallow: /private\n"),
                "/gone" => (404, ""),
                _ => (200, "content"),
            };
            seen.lock().unwrap().push(path);
            let length = body.len();
            let answer = format!("HTTP/1.1 {status} -\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
            let _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let config = "outbound: { interval: 0s, allow_addresses: [127.0.0.1/32] }";
    std::fs::write(path("sekisho.yaml"), config).unwrap();
    let server = Serving::start(&["--config", &path("sekisho.yaml")], &[]);
    let fetch = |args: &[&str]| run(&[&["fetch"], args, &["--api", &server.api]].concat());

    let (code, out, err) = fetch(&[&format!("http://{address}/one")]);
    assert_eq!((code, out.as_str()), (0, "content"), "{err}");
    let (code, out, err) = fetch(&[&format!("http://{address}/private")]);
    assert!(code == 1 && out.is_empty() && err.starts_with("robots_disallowed"), "{out}{err}");

    let list =
        format!("# two good ones\nhttp://{address}/one\n\nhttp://{address}/two\nhttp://{address}/gone\nnothing\n");
    std::fs::write(path("list"), list).unwrap();
    let all = ["--file", &path("list"), "--out", &path("out"), "--json"];
    let (code, out, err) = fetch(&all);
    let told: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!((code, &told["counts"]), (1, &json!({ "fetched": 2, "http_status": 1, "invalid": 1 })), "{told}");
    let index = std::fs::read_to_string(path("out/fetched.jsonl")).unwrap();
    for line in index.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let body = std::fs::read(path(&format!("out/{}", entry["file"].as_str().unwrap()))).unwrap();
        assert_eq!(body, b"content", "{entry}");
    }
    assert_eq!(std::fs::read_dir(path("out")).unwrap().count(), 3);
    // Again: only what is missing is asked for.
    paths.lock().unwrap().clear();
    let (_, out, _) = fetch(&all);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(told["counts"], json!({ "http_status": 1, "invalid": 1, "there before": 2 }));
    assert_eq!(*paths.lock().unwrap(), ["/gone"]);
    let (code, out, err) = fetch(&["--file", &path("list"), "--out", &path("out")]);
    assert!(code == 1 && out.contains("there before") && err.contains("/gone: http_status"), "{out}{err}");
    assert_eq!(fetch(&["http://a/", "http://b/"]).0, 2);
}

#[test]
fn domains_are_checked_explained_listed_and_let_go_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let policies = "allowlist:\n  - domain: example.com\n    max_requests_per_day: 10\n    max_pages_per_day: 20\n";
    std::fs::write(path("domains.yaml"), policies).unwrap();
    let (code, out, err) = run(&["domains", "check", &path("domains.yaml")]);
    assert_eq!(code, 0, "{err}");
    for part in ["example.com", "domains.yaml:4: example.com may have 20 pages", "is valid"] {
        assert!(out.contains(part), "no {part} in {out}");
    }
    let (_, out, _) = run(&["domains", "check", &path("domains.yaml"), "--json"]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(told["warnings"].as_array().unwrap().len(), 1, "{told}");
    std::fs::write(path("bad.yaml"), "allowlist:\n  - { domain: co.jp }\n").unwrap();
    let (code, out, err) = run(&["domains", "check", &path("bad.yaml")]);
    assert!(code == 2 && out.is_empty() && err.contains("bad.yaml:2:15"), "{out}{err}");

    let page = "https://www.example.com/page";
    let (code, out, _) = run(&["domains", "explain", page, "--file", &path("domains.yaml")]);
    assert!(code == 0 && out.starts_with("www.example.com belongs to example.com"), "{out}");
    std::fs::write(path("sekisho.yaml"), "outbound: { domains: domains.yaml }").unwrap();
    let server = Serving::start(&["--config", &path("sekisho.yaml")], &[]);
    let domains = |args: &[&str]| run(&[&["domains"], args, &["--api", &server.api]].concat());
    let (code, out, _) = domains(&["explain", page]);
    assert!(code == 0 && out.starts_with("www.example.com belongs to example.com") && out.contains("0 of 10"), "{out}");

    let post = |path: &str, body: Value| {
        let mut answer = ureq::post(format!("{}{path}", server.api)).send_json(body).unwrap();
        answer.body_mut().read_json::<Value>().unwrap()
    };
    let permit = post("/v1/outbound/acquire", json!({ "url": page }))["permit"].clone();
    post("/v1/outbound/settle", json!({ "permit": permit, "status": 429, "retry_after": 3_600 }));
    let left_alone = |args: &[&str]| {
        let (code, out, err) = domains(&[args, &["--json"]].concat());
        assert_eq!(code, 0, "{err}");
        let told: Value = serde_json::from_str(&out).unwrap();
        let domain = if told["domains"].is_array() { told["domains"][0].clone() } else { told };
        assert_eq!((&domain["domain"], &domain["requests_today"]), (&json!("example.com"), &json!(1)), "{domain}");
        domain["cooldown_until"].is_number()
    };
    assert!(left_alone(&["list"]) && left_alone(&["list", "example.com"]));
    let (code, out, _) = domains(&["list"]);
    assert!(code == 0 && out.contains("1 of 10"), "{out}");
    assert!(!left_alone(&["reset", "www.example.com"]));
    assert!(!left_alone(&["list"]), "what was spent stays spent");
    assert_eq!(domains(&["reset", "a b"]).0, 2);
}
