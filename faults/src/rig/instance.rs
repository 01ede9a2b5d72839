//! One `sekisho serve`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use sekisho_testkit::{Port, poll_until};
use serde_json::{Value, json};

use super::Settings;
use super::config::{SECRET, SECRET_ENV, yaml};
use crate::ask;

const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Instance {
    child: Mutex<Child>,
    gateway: Port,
    api: Port,
    config: PathBuf,
}

/// What a process takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) rss_mib: f64,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) tasks: usize,
}

impl Instance {
    /// Starts one and waits until it takes connections.
    pub(super) fn start(dir: &Path, store: &str, settings: &Settings, origin: u16) -> Instance {
        let (gateway, api) = (Port::claim(), Port::claim());
        let config = dir.join(format!("sekisho-{}.yaml", api.number()));
        fs::write(&config, yaml(settings, store, [gateway.number(), api.number()], origin)).expect("a file to write");
        let child = Mutex::new(spawn(&config));
        let instance = Instance { child, gateway, api, config };
        instance.await_listening();
        instance
    }

    pub(crate) fn api(&self) -> u16 {
        self.api.number()
    }

    pub(crate) fn gateway(&self) -> u16 {
        self.gateway.number()
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.config.with_extension("log")
    }

    pub(crate) fn kill9(&self) {
        let mut child = self.child.lock();
        // Both succeed on a process that is gone already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// As an operator does it, who waits until it has ended.
    pub(crate) fn terminate(&self) -> Result<ExitStatus> {
        let mut child = self.child.lock();
        kill_process(Pid::from_child(&child), Signal::TERM).context("a running instance can be told to stop")?;
        let ended = poll_until(Duration::from_secs(30), || child.try_wait().ok().flatten());
        ended.context("the instance did not stop")
    }

    /// Starts it again on the same ports.
    pub(crate) fn restart(&self) {
        self.kill9();
        *self.child.lock() = spawn(&self.config);
        self.await_listening();
    }

    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// Tells it to look at its configuration.
    pub(crate) fn reload(&self) {
        self.signal(Signal::HUP);
    }

    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child.lock()), signal).expect("a running instance hears signals");
    }

    pub(crate) fn figures(&self) -> Figures {
        let proc = PathBuf::from(format!("/proc/{}", self.child.lock().id()));
        let status = fs::read_to_string(proc.join("status")).unwrap_or_default();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<usize>().ok()
        };
        Figures {
            rss_mib: number("VmRSS:").unwrap_or_default() as f64 / 1024.0,
            descriptors: fs::read_dir(proc.join("fd")).map_or(0, Iterator::count),
            threads: number("Threads:").unwrap_or_default(),
            tasks: self.metric("sekisho_tasks").unwrap_or_default() as usize,
        }
    }

    /// What `/readyz` says; empty if it does not answer.
    pub(crate) fn ready(&self) -> Value {
        ask::get(self.gateway(), "/readyz").map(|(_, body)| body).unwrap_or_default()
    }

    /// The figures of one subject.
    pub(crate) fn explain(&self, policy: &str, subject: &str) -> Result<Value> {
        let (status, body) = ask::get(self.api(), &format!("/v1/explain?policy={policy}&subject={subject}"))?;
        ensure!(status == 200, "explain {policy} {subject}: {status} {body}");
        Ok(body)
    }

    /// A metric without its labels, all of them together.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = ask::text(self.api(), "/metrics").ok()?;
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let is_whole = rest.starts_with(' ') || rest.starts_with('{');
            is_whole.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        values.reduce(|a, b| a + b)
    }

    /// Waits until it decides on the store, and has nothing to write back.
    pub(crate) fn await_shared(&self) -> Result<()> {
        let shared = poll_until(PATIENCE, || {
            let ready = self.ready()["checks"]["rate_limiter_ok"] == json!(true);
            (ready && self.metric("sekisho_write_back_pending").unwrap_or_default() == 0.0).then_some(())
        });
        shared.with_context(|| format!("the instance did not come back to its store: {}", self.ready()))
    }

    /// Waits until it has counted so many by their heartbeats. One that was replaced just now may be counted twice.
    pub(crate) fn await_others(&self, instances: usize) -> Result<()> {
        let count = || self.metric("sekisho_instances").unwrap_or_default();
        let counted = poll_until(PATIENCE, || (count() >= instances as f64).then_some(()));
        counted.with_context(|| format!("an instance knows of {} of {instances}", count()))
    }

    fn await_listening(&self) {
        let up = poll_until(PATIENCE, || ask::get(self.gateway(), "/livez").ok());
        assert!(
            up.is_some(),
            "{} did not start: {}",
            self.config.display(),
            fs::read_to_string(self.log()).unwrap_or_default()
        );
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill9();
    }
}

fn spawn(config: &Path) -> Child {
    let log = File::options().create(true).append(true).open(config.with_extension("log")).expect("a log file");
    let program = std::env::current_exe().expect("a path of its own").with_file_name("sekisho");
    let mut command = Command::new(&program);
    command.arg("serve").arg("--config").arg(config).env(SECRET_ENV, SECRET).env("RUST_LOG", "warn");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}; build it first", program.display()))
}
