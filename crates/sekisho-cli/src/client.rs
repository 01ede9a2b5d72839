//! Talks to the API of a running server.

use std::io::{self, Write};
use std::time::Duration;

use sekisho_server::config::env::Environment;
use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::ServerArgs;
use crate::exit::Failure;

pub(crate) struct Client {
    agent: Agent,
    api: String,
    authorization: Option<String>,
}

/// As it is, with the word of which tier it came from.
pub(crate) struct Bytes {
    pub(crate) content: Vec<u8>,
    pub(crate) cache_status: String,
}

/// No value of a cache is longer.
const LONGEST: u64 = 256 << 20;

/// 200 or 429: the server has decided.
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    pub(crate) body: Value,
}

impl Client {
    pub(crate) fn new(args: &ServerArgs) -> Self {
        Self::waiting(args, Duration::from_secs(10))
    }

    /// For what the server itself may have to fetch first.
    pub(crate) fn patient(args: &ServerArgs) -> Self {
        Self::waiting(args, Duration::from_secs(60))
    }

    /// For what has to wait for its turn at another server: longer than the server itself does.
    pub(crate) fn fetching(args: &ServerArgs) -> Self {
        Self::waiting(args, Duration::from_secs(2 * 3_600))
    }

    fn waiting(args: &ServerArgs, limit: Duration) -> Self {
        let agent = Agent::config_builder().http_status_as_error(false).timeout_global(Some(limit)).build().into();
        let authorization = Environment::of_process().api_token().map(|token| format!("Bearer {token}"));
        Self { agent, api: args.api.trim_end_matches('/').to_owned(), authorization }
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Answer, Failure> {
        let mut request = self.agent.put(format!("{}{path}", self.api));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.answer(request.send_json(body))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Answer, Failure> {
        let mut request = self.agent.post(format!("{}{path}", self.api));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.answer(request.send_json(body))
    }

    pub(crate) fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Answer, Failure> {
        let mut request = self.agent.get(format!("{}{path}", self.api)).query_pairs(query.iter().copied());
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.answer(request.call())
    }

    pub(crate) fn delete(&self, path: &str, query: &[(&str, &str)]) -> Result<Answer, Failure> {
        let mut request = self.agent.delete(format!("{}{path}", self.api)).query_pairs(query.iter().copied());
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.answer(request.call())
    }

    pub(crate) fn put_bytes(&self, path: &str, content: &[u8]) -> Result<Answer, Failure> {
        let mut request = self.agent.put(format!("{}{path}", self.api)).content_type("application/octet-stream");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.answer(request.send(content))
    }

    pub(crate) fn bytes(&self, path: &str) -> Result<Bytes, Failure> {
        let mut request = self.agent.get(format!("{}{path}", self.api));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let sent = request.call();
        if !sent.as_ref().is_ok_and(|response| response.status().as_u16() == 200) {
            let answer = self.answer(sent)?;
            return Err(Failure::Server(format!("{} answered what is no value: {}", self.api, answer.body)));
        }
        let mut response = sent.map_err(|error| Failure::Server(error.to_string()))?;
        let status = response.headers().get("cache-status").and_then(|status| status.to_str().ok());
        let cache_status = status.unwrap_or_default().to_owned();
        let content = response.body_mut().with_config().limit(LONGEST).read_to_vec();
        let broke_off = |error| Failure::Server(format!("{} broke off: {error}", self.api));
        Ok(Bytes { content: content.map_err(broke_off)?, cache_status })
    }

    /// Fetches into `sink`, piece by piece, and returns what is said of it; or of why there is nothing.
    pub(crate) fn fetch_into(&self, asked: &Value, sink: &mut dyn Write) -> Result<Value, Failure> {
        let mut request =
            self.agent.post(format!("{}/v1/fetch", self.api)).header("accept", "application/octet-stream");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let sent = request.send_json(asked);
        let told = sent.as_ref().ok().and_then(|response| {
            serde_json::from_slice::<Value>(response.headers().get("x-sekisho-fetched")?.as_bytes()).ok()
        });
        let (Some(told), Ok(response)) = (told, &sent) else { return Ok(self.answer(sent)?.body) };
        let length =
            response.headers().get("content-length").and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let mut body = sent.map_err(|error| Failure::Server(error.to_string()))?.into_body().into_reader();
        let broke_off = |error: &dyn std::fmt::Display| Failure::Server(format!("{} broke off: {error}", self.api));
        let copied = io::copy(&mut body, sink).map_err(|error| broke_off(&error))?;
        match length {
            Some(length) if copied != length => Err(broke_off(&format!("{copied} of {length} bytes came"))),
            _ => Ok(told),
        }
    }

    fn answer(&self, response: Result<Response<Body>, ureq::Error>) -> Result<Answer, Failure> {
        let mut response = response.map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                Failure::Input(format!("{} is no URL of a server: {error}", self.api))
            }
            error => Failure::Server(format!("{} cannot be reached: {error}", self.api)),
        })?;
        let status = response.status().as_u16();
        if status == 204 {
            return Ok(Answer { allowed: true, body: Value::Null });
        }
        let body: Value = response
            .body_mut()
            .with_config()
            .limit(2 * LONGEST)
            .read_json()
            .map_err(|error| Failure::Server(format!("{} answered {status} and no JSON: {error}", self.api)))?;
        match status {
            200 | 202 | 429 => Ok(Answer { allowed: status != 429, body }),
            _ => {
                let detail = body["detail"].as_str().unwrap_or("no reason given");
                let message = format!("{detail} ({status})");
                Err(if status < 500 { Failure::Input(message) } else { Failure::Server(message) })
            }
        }
    }
}

/// A name as one segment of a path.
pub(crate) fn segment(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}
