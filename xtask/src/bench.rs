use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::setup::Need;
use crate::{dist, python, setup, shell};

/// For limitador's Redis storage: bindgen reads RocksDB's headers with clang's library, and the TLS is OpenSSL.
const NATIVE: [Need; 4] = [
    ("g++", &["--version"], "g++"),
    ("clang", &["--version"], "clang"),
    ("pkg-config", &["--version"], "pkg-config"),
    ("pkg-config", &["--exists", "openssl"], "libssl-dev"),
];

/// For the doors: a load generator for HTTP/2, and nginx to compare with.
const DOORS: [Need; 3] = [
    ("h2load", &["--version"], "nghttp2-client"),
    ("/usr/sbin/nginx", &["-v"], "nginx"),
    // throttlecrab-server is built with it.
    ("protoc", &["--version"], "protobuf-compiler"),
];

const THROTTLECRAB_SERVER: &str = "0.4.40";

pub(crate) fn run(name: &str, args: &[&str]) -> Result<()> {
    if name == "doors" {
        return doors(args);
    }
    let run = ["run", "--release", "--package", "sekisho-bench"];
    if matches!(name, "sessions" | "cache") {
        setup::redis_server()?;
    }
    // Only these measure the peers on Redis, which need more than Rust to build.
    if !matches!((name, args), ("limits", [] | ["redis"] | ["profile", "limitador", _])) {
        return shell::cargo(&[&run[..], &["--", name], args].concat());
    }
    setup::redis_server()?;
    NATIVE.iter().try_for_each(setup::provide)?;
    // Python's `limits`.
    python::install("python", &["--requirement", "bench/python/requirements.txt"])?;
    let mut command = shell::command("cargo", &run);
    command.args(["--features", "limitador-redis", "--", name]).args(args);
    shell::run(command.env("ROCKSDB_LIB_DIR", empty_rocksdb()?).env("ROCKSDB_STATIC", "1"))
}

/// Our own server and the peers' are processes of their own, built or installed before.
fn doors(args: &[&str]) -> Result<()> {
    setup::redis_server()?;
    DOORS.iter().try_for_each(setup::provide)?;
    python::install("flask", &["--requirement", "bench/python/flask.txt"])?;
    if !setup::tool_path("throttlecrab-server").exists() {
        let package = format!("throttlecrab-server@{THROTTLECRAB_SERVER}");
        let mut command = shell::command("cargo", &["install", "--locked", &package, "--root"]);
        shell::run(command.arg(setup::tools_dir()))?;
    }
    let mut command = shell::command("cargo", &["run", "--release", "--package", "sekisho-bench", "--", "doors"]);
    shell::run(command.args(args).env("SEKISHO", dist::run()?))
}

/// limitador's Redis storage does not build without its disk storage, and never calls it. So an archive with nothing in
/// it stands in for RocksDB, which takes far longer to compile than all the rest; a call into it would not link.
fn empty_rocksdb() -> Result<PathBuf> {
    let dir = setup::tools_dir().join("empty-rocksdb");
    fs::create_dir_all(&dir)?;
    let archive = dir.join("librocksdb.a");
    if !archive.exists() {
        fs::write(archive, "!<arch>\n")?;
    }
    Ok(dir)
}
