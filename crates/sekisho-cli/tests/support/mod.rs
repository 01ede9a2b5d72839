//! A process of ours, for tests that speak to it byte by byte.
#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// It ends with the test.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) gateway: String,
    pub(crate) api: String,
}

impl Serving {
    pub(crate) fn start(file: &Path, variables: &[(&str, &Path)]) -> Self {
        let mut child = sekisho()
            .args(["serve", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--config"])
            .arg(file)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = || lines.next().unwrap().unwrap().rsplit("http://").next().unwrap().trim().to_owned();
        Self { gateway: address(), api: address(), child }
    }

    pub(crate) fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.gateway).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// No variable of the machine takes part.
pub(crate) fn sekisho() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sekisho"));
    command.env_clear();
    command
}
