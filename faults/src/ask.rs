//! One question on a connection of its own, for who may wait.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(5);

/// The status, and the body as JSON: null where it is none.
pub(crate) fn get(port: u16, path: &str) -> Result<(u16, Value)> {
    send(port, "GET", path, "", "")
}

pub(crate) fn post(port: u16, path: &str, body: &Value) -> Result<(u16, Value)> {
    send(port, "POST", path, "", &body.to_string())
}

/// `headers` are lines with their ends.
pub(crate) fn send(port: u16, method: &str, path: &str, headers: &str, body: &str) -> Result<(u16, Value)> {
    let answer = exchange(port, method, path, headers, body)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without an end of its head")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("an answer without a status")?;
    Ok((status, serde_json::from_str(body).unwrap_or_default()))
}

pub(crate) fn text(port: u16, path: &str) -> Result<String> {
    exchange(port, "GET", path, "", "")
}

/// The whole answer as it came.
pub(crate) fn exchange(port: u16, method: &str, path: &str, headers: &str, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let content = if body.is_empty() {
        String::new()
    } else {
        format!("content-type: application/json\r\ncontent-length: {length}\r\n")
    };
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{headers}{content}\r\n{body}");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
