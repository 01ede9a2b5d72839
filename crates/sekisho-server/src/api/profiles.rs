//! Profiles of users, from the cache named `profile`: read through it, and changed in its database.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use sekisho::cache::Key;
use serde::Serialize;
use serde_json::{Map, Value};

use super::body::Body;
use super::caches;
use crate::app::App;
use crate::caches::{Named, NotUpdated, SqlOrigin};
use crate::respond::Problem;

const CACHE: &str = "profile";

/// What became of an update.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ProfileUpdated")]
pub(super) struct UpdatedView {
    updated: bool,
    /// `everywhere`, or `here_only`: other instances may answer the old profile until its time is over.
    invalidated: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'static str>,
}

pub(super) struct UserId(String);

impl<S: Send + Sync> FromRequestParts<S> for UserId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(user) = Path::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::bad_input("", "the path is not UTF-8 once its escapes are read"))?;
        Ok(Self(user))
    }
}

pub(super) async fn get(State(app): State<Arc<App>>, UserId(user): UserId) -> Result<Response, Problem> {
    let (named, key) = profile(&app, &user)?;
    caches::get(named, &key).await
}

/// First the database, then the caches: whoever reads in between may have the old one, and nobody keeps it.
pub(super) async fn put(
    State(app): State<Arc<App>>,
    UserId(user): UserId,
    body: Result<Body<Map<String, Value>>, Problem>,
) -> Result<Response, Problem> {
    let (named, key) = profile(&app, &user)?;
    let read_only = || Problem::not_updatable(CACHE);
    let sql = named.sql.as_ref().ok_or_else(read_only)?;
    let Body(fields) = body?;
    refuse_fields(sql, &fields, read_only)?;
    let updated = sql.update(&key, &fields).await;
    let problem = match updated {
        Ok(()) => None,
        // Whether it was done nobody knows: what is cached is not to be trusted either.
        Err(why @ NotUpdated::TimedOut(_)) => Some(Problem::not_updated(why)),
        Err(why) => return Err(Problem::not_updated(why)),
    };
    let invalidated = named.cache.invalidate(&key).await;
    if let Some(problem) = problem {
        return Err(problem);
    }
    let (invalidated, detail) = match invalidated {
        Ok(()) => ("everywhere", None),
        Err(_) => {
            ("here_only", Some("the shared store did not answer: it and other instances may have the old profile"))
        }
    };
    Ok(Json(UpdatedView { updated: true, invalidated, detail }).into_response())
}

fn profile<'a>(app: &'a App, user: &str) -> Result<(&'a Named, Key), Problem> {
    let named = app.caches.get(CACHE).ok_or_else(|| Problem::no_such_cache(CACHE, app.caches.all()))?;
    let key = named.config.key.key(&[user]).map_err(|invalid| Problem::invalid(&invalid))?;
    Ok((named, key))
}

/// A field that is left out would be emptied, so that all have to be there.
fn refuse_fields(sql: &SqlOrigin, fields: &Map<String, Value>, read_only: impl Fn() -> Problem) -> Result<(), Problem> {
    let known = sql.fields().ok_or_else(read_only)?;
    if let Some(name) = fields.keys().find(|name| !known.contains(&name.as_str())) {
        let detail = format!("unknown field `{name}`, expected {}", known.join(", "));
        return Err(Problem::bad_input(name, detail));
    }
    match known.iter().find(|name| !fields.contains_key(**name)) {
        Some(name) => Err(Problem::bad_input(name, format!("missing field `{name}`"))),
        None => Ok(()),
    }
}
