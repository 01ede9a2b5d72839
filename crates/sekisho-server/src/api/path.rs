//! Names in a path, which come from outside like all else.

use std::collections::HashMap;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use schemars::JsonSchema;
use sekisho::Invalid;
use sekisho::sessions::{SessionId, Sid, UserId};

use super::words;
use crate::respond::Problem;

#[derive(Debug, JsonSchema)]
pub(super) struct UserPath {
    #[allow(dead_code, reason = "it only describes")]
    #[schemars(with = "words::UserText")]
    user: String,
}

#[derive(Debug, JsonSchema)]
pub(super) struct SessionPath {
    #[allow(dead_code, reason = "it only describes")]
    #[schemars(with = "words::UserText")]
    user: String,
    #[allow(dead_code, reason = "it only describes")]
    #[schemars(with = "words::SidText")]
    sid: String,
}

pub(super) struct OneUser(pub(super) UserId);

impl<S: Send + Sync> FromRequestParts<S> for OneUser {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let names = names(parts, state).await?;
        UserId::new(name(&names, "user")).map(Self).map_err(|invalid| Problem::invalid(&invalid))
    }
}

pub(super) struct OneSession(pub(super) SessionId);

impl<S: Send + Sync> FromRequestParts<S> for OneSession {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let names = names(parts, state).await?;
        let id = || -> Result<_, Invalid> {
            Ok(SessionId { user: UserId::new(name(&names, "user"))?, sid: Sid::new(name(&names, "sid"))? })
        };
        id().map(Self).map_err(|invalid| Problem::invalid(&invalid))
    }
}

async fn names<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<HashMap<String, String>, Problem> {
    let Path(names) = Path::from_request_parts(parts, state)
        .await
        .map_err(|_| Problem::bad_input("", "the path is not UTF-8 once its escapes are read"))?;
    Ok(names)
}

fn name<'a>(names: &'a HashMap<String, String>, name: &str) -> &'a str {
    names.get(name).map_or("", String::as_str)
}
