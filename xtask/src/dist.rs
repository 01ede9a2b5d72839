//! The binary as it is shipped: built, tried under load, and built again by what was seen.
//!
//! The compiler then knows which code every request runs, keeps that together and lets the rest be small. Of what a
//! request costs beyond the kernel this is a quarter (docs/benchmarks.md).

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{setup, shell};

const SECRET: &str = "a secret of the training, 32 bytes long";
/// `{"iss":"training","aud":"api","sub":"user-1","jti":"token-1","exp":4102444800}`, signed with it.
const BEARER: &str = "authorization: Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.\
                      eyJpc3MiOiJ0cmFpbmluZyIsImF1ZCI6ImFwaSIsInN1YiI6InVzZXItMSIsImp0aSI6InRva2VuLTEiLCJleHAiOjQxMDI0NDQ4MDB9.\
                      SiCH7i-5jnEVdBbXb7f4-g70WuAkkZMGWaiQSK4V308";
const BEHIND_A_PROXY: [&str; 3] =
    ["x-forwarded-for: 203.0.113.7", "accept: text/html,*/*;q=0.8", "accept-encoding: gzip, deflate, br"];
/// A `RateLimitRequest` for one `remote_address` of the domain `training`, as gRPC frames it.
const SHOULD_RATE_LIMIT: &[u8] =
    b"\0\0\0\0\x2a\x0a\x08training\x12\x1c\x0a\x1a\x0a\x0eremote_address\x12\x0810.0.0.1\x18\x01";

/// Builds `target/dist/sekisho` and says where it is.
pub(crate) fn run() -> Result<PathBuf> {
    setup::redis_server()?;
    setup::provide(&("h2load", &["--version"], "nghttp2-client"))?;
    let host = host()?;
    let profdata = profdata(&host)?;
    let dist = shell::root().join("target").join("dist");
    let (profiles, merged) = (dist.join("profiles"), dist.join("sekisho.profdata"));
    let observed = build(&host, &dist.join("observed"), &format!("-Cprofile-generate={}", profiles.display()))?;
    // The same code need not be tried again in the same way.
    if !is_newer(&merged, &observed) || !is_newer(&merged, &std::env::current_exe()?) {
        let _ = fs::remove_dir_all(&profiles);
        train(&observed, &dist.join("training"), &profiles)?;
        let mut merge = shell::command(profdata, &["merge", "--output"]);
        shell::run(merge.arg(&merged).arg(&profiles))?;
        // Cargo does not see that the profile is another.
        let _ = fs::remove_dir_all(dist.join("shipped"));
    }
    let built = build(&host, &dist.join("shipped"), &format!("-Cprofile-use={}", merged.display()))?;
    let shipped = dist.join("sekisho");
    // One that runs cannot be written to, only replaced.
    let copy = dist.join("sekisho.new");
    fs::copy(built, &copy)?;
    fs::rename(copy, &shipped)?;
    println!("{}", shipped.display());
    Ok(shipped)
}

fn host() -> Result<String> {
    let about = shell::probe("rustc", &["-vV"]).context("`rustc -vV` failed")?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

/// The tool of the compiler's own version: profiles of another cannot be read.
fn profdata(host: &str) -> Result<PathBuf> {
    let sysroot = shell::probe("rustc", &["--print", "sysroot"]).context("`rustc --print sysroot` failed")?;
    let path = Path::new(&sysroot).join("lib/rustlib").join(host).join("bin/llvm-profdata");
    if !path.exists() {
        shell::run(&mut shell::command("rustup", &["component", "add", "llvm-tools"]))?;
    }
    ensure!(path.exists(), "there is no {}", path.display());
    Ok(path)
}

/// With `--target` the flags are not for build scripts.
fn build(host: &str, dir: &Path, flags: &str) -> Result<PathBuf> {
    let mut command =
        shell::command("cargo", &["build", "--release", "--locked", "--package", "sekisho-cli", "--target", host]);
    shell::run(command.arg("--target-dir").arg(dir).env("RUSTFLAGS", flags))?;
    Ok(dir.join(host).join("release").join("sekisho"))
}

fn is_newer(one: &Path, other: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).ok();
    changed(one) > changed(other)
}

/// Every door in memory and on Redis.
fn train(binary: &Path, dir: &Path, profiles: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join("ratelimit.yaml"), include_str!("dist/ratelimit.yaml"))?;
    fs::write(dir.join("grpc"), SHOULD_RATE_LIMIT)?;
    let check = |policy: &str| format!(r#"{{"policy":"{policy}","subject":"10.0.0.1"}}"#);
    for policy in ["open", "two", "shared"] {
        fs::write(dir.join(policy), check(policy))?;
    }
    fs::write(dir.join("batch"), format!(r#"{{"checks":[{}]}}"#, [&*check("open"); 8].join(",")))?;

    let port = free_port()?;
    let mut redis = Command::new("redis-server");
    redis.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
    let _redis = Process::start(redis, port)?;
    let upstream = Sekisho::start(binary, dir, profiles, None, "http://127.0.0.1:9")?;
    let url = format!("http://127.0.0.1:{}/fixed", upstream.listen);
    for redis in [None, Some(port)] {
        let server = Sekisho::start(binary, dir, profiles, redis, &url)?;
        server.load(dir)?;
        server.process.end()?;
    }
    upstream.process.end()
}

struct Sekisho {
    process: Process,
    listen: u16,
    api: u16,
    grpc: u16,
}

impl Sekisho {
    fn start(binary: &Path, dir: &Path, profiles: &Path, redis: Option<u16>, upstream: &str) -> Result<Self> {
        let [listen, api, grpc] = [free_port()?, free_port()?, free_port()?];
        let mut config = include_str!("dist/sekisho.yaml").to_owned();
        for (name, port) in [("LISTEN", listen), ("API", api), ("GRPC", grpc)] {
            config = config.replace(&format!(": {name}\n"), &format!(": 127.0.0.1:{port}\n"));
        }
        let mut config = config.replace(": UPSTREAM", &format!(": {upstream:?}"));
        if let Some(port) = redis {
            config.push_str(&format!("store: {{ url: \"redis://127.0.0.1:{port}\" }}\n"));
        }
        let path = dir.join(format!("{listen}.yaml"));
        fs::write(&path, config)?;
        let mut command = Command::new(binary);
        command.arg("serve").arg("--config").arg(path).env("TRAINING_SECRET", SECRET).env("RUST_LOG", "error");
        command.env("LLVM_PROFILE_FILE", profiles.join("%p.profraw"));
        Ok(Self { process: Process::start(command, api)?, listen, api, grpc })
    }

    fn load(&self, dir: &Path) -> Result<()> {
        let gateway = |path: &str| format!("http://127.0.0.1:{}{path}", self.listen);
        let api = |path: &str| format!("http://127.0.0.1:{}{path}", self.api);
        let grpc =
            format!("http://127.0.0.1:{}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", self.grpc);
        let get = |headers: &[&str], url: &str, answers| h2load("--h1", headers, None, url, answers);
        let send = |headers: &[&str], name: &str, url: &str| {
            let headers = [&["content-type: application/json"], headers].concat();
            h2load("--h1", &headers, Some(&dir.join(name)), url, Answers::Good)
        };
        get(&[], &gateway("/fixed"), Answers::Good)?;
        get(&[], &gateway("/tight"), Answers::Any)?;
        get(&[], &gateway("/there"), Answers::Good)?;
        get(&BEHIND_A_PROXY, &gateway("/fixed"), Answers::Good)?;
        get(&BEHIND_A_PROXY, &gateway("/there"), Answers::Good)?;
        get(&[BEARER], &gateway("/mine"), Answers::Good)?;
        h2load("--no-tls-proto=h2c", &[], None, &gateway("/there"), Answers::Good)?;
        send(&[], "open", &api("/v1/check"))?;
        send(&[], "two", &api("/v1/check"))?;
        send(&[], "shared", &api("/v1/check"))?;
        send(&[], "batch", &api("/v1/check/batch"))?;
        get(&[], &api("/auth/nginx"), Answers::Good)?;
        send(&[":method: PUT"], "open", &api("/v1/caches/notes/1"))?;
        get(&[], &api("/v1/caches/notes/1"), Answers::Good)?;
        let headers = ["content-type: application/grpc", "te: trailers"];
        h2load("--no-tls-proto=h2c", &headers, Some(&dir.join("grpc")), &grpc, Answers::Good)
    }
}

#[derive(PartialEq)]
enum Answers {
    /// A training on errors would be a bad one.
    Good,
    Any,
}

fn h2load(protocol: &str, headers: &[&str], data: Option<&Path>, url: &str, answers: Answers) -> Result<()> {
    let mut command = Command::new("h2load");
    command.args([protocol, "--requests", "30000", "--clients", "32", "--max-concurrent-streams", "4"]);
    command.args(headers.iter().flat_map(|header| ["--header", header]));
    if let Some(data) = data {
        command.arg("--data").arg(data);
    }
    let output = command.arg(url).output().context("h2load could not be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let is_good = text.contains("30000 succeeded, 0 failed, 0 errored");
    let is_done = text.contains("30000 done") && text.contains(" 0 errored");
    ensure!(is_good || (answers == Answers::Any && is_done), "{url}: {text}");
    println!("trained with {url}");
    Ok(())
}

/// Ended with this, whatever happens.
struct Process(Child);

impl Process {
    fn start(mut command: Command, port: u16) -> Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let mut tries = 0;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Some(status) = child.try_wait()? {
                bail!("{command:?} ended: {status}");
            }
            tries += 1;
            ensure!(tries < 3_000, "{command:?} does not listen on {port}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self(child))
    }

    /// Asks it to end, and waits: what was seen is written at the end.
    fn end(mut self) -> Result<()> {
        shell::run(&mut shell::command("kill", &[&self.0.id().to_string()]))?;
        let status = self.0.wait()?;
        ensure!(status.success(), "a server of the training ended: {status}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
