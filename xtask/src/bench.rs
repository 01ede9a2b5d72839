use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::{setup, shell};

/// A command that succeeds where something is there, and the Debian package that brings it.
type Need = (&'static str, &'static [&'static str], &'static str);

/// For limitador's Redis storage: bindgen reads RocksDB's headers with clang's library, and the TLS is OpenSSL.
const NATIVE: [Need; 4] = [
    ("g++", &["--version"], "g++"),
    ("clang", &["--version"], "clang"),
    ("pkg-config", &["--version"], "pkg-config"),
    ("pkg-config", &["--exists", "openssl"], "libssl-dev"),
];

const VENV: Need = ("python3", &["-c", "import ensurepip, venv"], "python3-venv");

pub(crate) fn run(name: &str, args: &[&str]) -> Result<()> {
    let run = ["run", "--release", "--package", "sekisho-bench"];
    // Only these measure the peers on Redis, which need more than Rust to build.
    if !matches!((name, args), ("limits", [] | ["redis"] | ["profile", "limitador", _])) {
        return shell::cargo(&[&run[..], &["--", name], args].concat());
    }
    setup::redis_server()?;
    NATIVE.iter().try_for_each(provide)?;
    python_limits()?;
    let mut command = shell::command("cargo", &run);
    command.args(["--features", "limitador-redis", "--", name]).args(args);
    shell::run(command.env("ROCKSDB_LIB_DIR", empty_rocksdb()?).env("ROCKSDB_STATIC", "1"))
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

/// Python's `limits`, in an environment of its own.
fn python_limits() -> Result<()> {
    let venv = setup::tools_dir().join("python");
    let python = venv.join("bin/python");
    if shell::probe(&python, &["-m", "pip", "--version"]).is_none() {
        provide(&VENV)?;
        shell::run(shell::command("python3", &["-m", "venv", "--clear"]).arg(venv))?;
    }
    let install = ["-m", "pip", "--quiet", "install", "--requirement", "bench/python/requirements.txt"];
    shell::run(&mut shell::command(python, &install))
}

fn provide((program, args, package): &Need) -> Result<()> {
    if shell::probe(program, args).is_none() { setup::apt_install(package) } else { Ok(()) }
}
