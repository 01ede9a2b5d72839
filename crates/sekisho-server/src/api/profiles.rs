//! Profiles of users, from the cache named `profile`: read through it, and changed in its database.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use sekisho::cache::{Cache, Key};
use serde::Serialize;
use serde_json::{Map, Value};

use super::body::Body;
use super::caches;
use crate::app::App;
use crate::caches::{Content, Named, SqlOrigin};
use crate::quiet::quietly;
use crate::respond::Problem;

const CACHE: &str = "profile";

/// What became of an update.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ProfileUpdated")]
pub(super) struct UpdatedView {
    updated: bool,
    /// `everywhere`, or `here_only`: other instances may answer the old profile until the shared store is back.
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

pub(super) async fn put(
    State(app): State<Arc<App>>,
    UserId(user): UserId,
    body: Result<Body<Map<String, Value>>, Problem>,
) -> Result<Response, Problem> {
    let (named, key) = profile(&app, &user)?;
    let read_only = || Problem::not_updatable(CACHE);
    let sql = Arc::clone(named.sql.as_ref().ok_or_else(read_only)?);
    let Body(fields) = body?;
    refuse_fields(&sql, &fields, read_only)?;
    let cache = named.cache.clone();
    // A task of its own: a caller who goes away must not come between the two.
    match tokio::spawn(async move { change(&sql, &cache, &key, &fields).await }).await {
        Ok(changed) => Ok(Json(changed?).into_response()),
        Err(crashed) => std::panic::resume_unwind(crashed.into_panic()),
    }
}

/// First the database, then the caches: whoever reads in between may have the old one, and nobody keeps it.
async fn change(
    sql: &SqlOrigin,
    cache: &Cache<Content>,
    key: &Key,
    fields: &Map<String, Value>,
) -> Result<UpdatedView, Problem> {
    let problem = match sql.update(key, fields).await {
        Ok(()) => None,
        // Whether it was done nobody knows: what is cached is not to be trusted either.
        Err(why) if why.is_unsure() => Some(Problem::not_updated(why)),
        Err(why) => return Err(Problem::not_updated(why)),
    };
    let invalidated = cache.invalidate(key).await;
    if let Some(problem) = problem {
        return Err(problem);
    }
    let (invalidated, detail) = match invalidated {
        Ok(()) => ("everywhere", None),
        Err(_) => (
            "here_only",
            Some("the shared store did not answer: other instances may have the old profile until it does"),
        ),
    };
    Ok(UpdatedView { updated: true, invalidated, detail })
}

/// Whoever is thrown out everywhere leaves nothing in caches: neither in the one named `profile`, in memory and shared, nor in
/// `cache:profile:<user>`, where older services keep it. It can fail: they forget within minutes.
pub(super) async fn forget(app: &App, user: &str) {
    let ours = async {
        // A key of several parts is not a user's, and a name that is no part of a key has none.
        match profile(app, user) {
            Ok((named, key)) => named.cache.invalidate(&key).await,
            Err(_) => Ok(()),
        }
    };
    let (ours, theirs) = tokio::join!(ours, app.backend.keys.drop_profile(user));
    if let Err(error) = ours.and(theirs) {
        quietly!(warn, %error, "the cached profile of somebody who was logged out stays until it expires");
    }
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
