//! Who is behind the questions that are not checks: their tokens, and their sessions, which Redis may lose.

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use sekisho_testkit::jwt::Signer;
use serde_json::json;

use super::Mix;
use super::mix::OTHERS;
use super::question::{Question, get};
use crate::ask;
use crate::rig::{Rig, SECRET};

#[derive(Debug, Default)]
pub(crate) struct People {
    /// Where each is found.
    sessions: Mutex<Vec<String>>,
    tokens: Vec<String>,
}

impl People {
    pub(super) fn of(rig: &Rig, mix: &Mix) -> Result<People> {
        let mut people = People::default();
        if mix.tokens > 0.0 {
            let signer = Signer::hmac("HS256", SECRET.as_bytes());
            // Until the year 2100.
            let claims = |user| json!({ "iss": "https://faults.test", "sub": format!("u{user}"), "jti": jti(user), "iat": 1, "exp": 4_102_444_800_u64 });
            people.tokens = (0..OTHERS).map(|user| format!("Bearer {}", signer.token(&claims(user)))).collect();
        }
        if mix.sessions > 0.0 {
            people.sign_in(rig)?;
        }
        Ok(people)
    }

    /// A new session for everybody.
    pub(super) fn sign_in(&self, rig: &Rig) -> Result<()> {
        let api = rig.instances.first().context("an instance")?.api();
        let sessions = (0..OTHERS).map(|user| {
            let path = format!("/v1/sessions/u{user}");
            let (status, session) = ask::post(api, &path, &json!({ "ip_address": "192.0.2.1" }))?;
            let sid = session["session_id"].as_str().unwrap_or_default();
            ensure!(status == 201, "a session could not be made: {status} {session}");
            Ok(format!("{path}/{sid}"))
        });
        *self.sessions.lock() = sessions.collect::<Result<_>>()?;
        Ok(())
    }

    pub(super) fn session(&self, user: usize) -> Question {
        get(&self.sessions.lock()[user], ("accept", "application/json"))
    }

    pub(super) fn show(&self, user: usize) -> Question {
        get("/token", ("authorization", &self.tokens[user]))
    }
}

/// The id of a user's token.
pub(crate) fn jti(user: usize) -> String {
    format!("token-{user}")
}

pub(super) fn pass(user: usize) -> Question {
    get("/pass", ("x-user", &format!("u{user}")))
}

pub(super) fn tile(id: usize) -> Question {
    get(&format!("/v1/caches/tiles/{id}"), ("accept", "*/*"))
}

pub(super) fn livez() -> Question {
    get("/livez", ("accept", "*/*"))
}
