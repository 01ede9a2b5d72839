//! Questions as requests, answers as outcomes.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use serde_json::{Value, json};

use super::client::Missing;
use crate::ledger::{Label, Op, Outcome};
use crate::rig::{HELD, policy_of};

/// Reserved, and then settled.
pub(crate) const RESERVED: u64 = 3;
pub(crate) const SETTLED: u64 = 2;

pub(super) type Question = Request<Full<Bytes>>;

pub(super) fn post(path: &str, body: &Value) -> Question {
    let request = Request::post(path).header("host", "127.0.0.1").header("content-type", "application/json");
    request.body(Full::from(body.to_string())).expect("a well-formed request")
}

pub(super) fn get(path: &str, header: (&str, &str)) -> Question {
    let request = Request::get(path).header("host", "127.0.0.1").header(header.0, header.1);
    request.body(Full::default()).expect("a well-formed request")
}

pub(super) fn check(subject: usize) -> Question {
    post("/v1/check", &json!({ "policy": policy_of(subject), "subject": format!("s{subject}") }))
}

pub(super) fn reserve(subject: usize, id: u64) -> Question {
    let cost = json!({ "tokens": RESERVED });
    let key = format!("r{id}");
    post(
        "/v1/reserve",
        &json!({ "policy": HELD, "subject": format!("s{subject}"), "cost": cost, "idempotency_key": key }),
    )
}

pub(super) fn settle(reservation: &Value) -> Question {
    post("/v1/settle", &json!({ "reservation": reservation, "cost": { "tokens": SETTLED } }))
}

pub(super) fn outcome(op: Op, answer: &Result<Response<Bytes>, Missing>) -> Outcome {
    let status = match answer {
        Ok(answer) => answer.status().as_u16(),
        Err(Missing::Refused) => return Outcome::Refused,
        Err(Missing::Cut) => return Outcome::Cut,
        Err(Missing::TimedOut) => return Outcome::TimedOut,
    };
    match (op, status) {
        (_, 200) => Outcome::Admitted,
        (Op::Check | Op::Reserve | Op::Pass | Op::Token, 429) => Outcome::Denied,
        (Op::Session, 404) | (Op::Token, 401) => Outcome::Unknown,
        (_, other) => Outcome::Failed(other),
    }
}

/// What an answer says about who decided.
pub(super) fn label(answer: &Response<Bytes>) -> Label {
    let named = answer.headers().get("x-sekisho-degraded").map(|value| value.as_bytes());
    match named.or_else(|| in_body(answer.body())) {
        None => Label::Shared,
        Some(b"open") => Label::Open,
        Some(_) => Label::Memory,
    }
}

fn in_body(body: &[u8]) -> Option<&[u8]> {
    const NAME: &[u8] = b"\"degraded\":\"";
    let start = body.windows(NAME.len()).position(|part| part == NAME)? + NAME.len();
    body.get(start..)?.split(|byte| *byte == b'"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_who_decided() {
        let said = |body: &'static str| label(&Response::new(Bytes::from(body)));
        assert_eq!(said(r#"{"allowed":true}"#), Label::Shared);
        assert_eq!(said(r#"{"allowed":true,"degraded":"memory","rules":[]}"#), Label::Memory);
        assert_eq!(said(r#"{"degraded":"open"}"#), Label::Open);
    }
}
