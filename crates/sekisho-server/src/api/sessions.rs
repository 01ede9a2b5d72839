//! Sessions for trusted callers: a login service stores them, others read them, operators end them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MATCH, SET_COOKIE};
use axum::response::{IntoResponse as _, Response};
use data_encoding::BASE64URL_NOPAD;
use schemars::JsonSchema;
use sekisho::clock::{Clock, Timestamp};
use sekisho::revocation::Whom;
use sekisho::sessions::{Document, Put, Session, SessionId, UserId};
use sekisho::{Error, Invalid};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::body::{Body, JsonText, Params};
use super::path::{OneSession, OneUser};
use super::profiles;
use super::request::Amount;
use super::tokens::KEEP_MARKS;
use super::words;
use crate::app::App;
use crate::audit::{Act, Operator};
use crate::cookie;
use crate::respond::Problem;

/// 366 days, in seconds.
pub(super) const LONGEST_TTL: u64 = 366 * 86_400;

/// How long it is to live.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TtlQuery {
    /// In seconds. Left out: as configured.
    #[schemars(with = "Option<words::Seconds>")]
    ttl: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExceptQuery {
    /// The session that stays. With it tokens stay too.
    #[schemars(with = "Option<words::SidText>")]
    except: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Touch")]
pub(super) struct TouchBody {
    /// In seconds. Left out: as configured.
    #[schemars(extend("minimum" = 1, "maximum" = LONGEST_TTL))]
    ttl: Option<Amount>,
}

/// There is nothing to say. That it is JSON, or nothing at all, keeps pages of other sites from asking.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Rotate")]
pub(super) struct RotateBody {}

/// What is stored, and what is left of its life.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Session", extend("additionalProperties" = true))]
pub(super) struct SessionView {
    /// -1: it has no expiry of its own.
    #[schemars(extend("minimum" = -1))]
    ttl_seconds: i64,
}

/// A user's sessions, the newest first. Tokens are not shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Sessions")]
pub(super) struct SessionList {
    sessions: Vec<ListedSession>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListedSession {
    session_id: String,
    created_at: Value,
    expires_at: Value,
    ip_address: Value,
    user_agent: Value,
    /// -1: it has no expiry of its own.
    ttl_seconds: i64,
}

/// What began until then has ended.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SessionsEnded")]
pub(super) struct EndedView {
    /// Unix milliseconds.
    not_before: u64,
}

/// How sessions are kept here.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SessionTerms")]
pub(super) struct TermsView {
    /// Without being touched.
    ttl_seconds: u64,
    /// Touched or not.
    max_lifetime_seconds: u64,
    /// One more ends the oldest. Left out: no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_per_user: Option<usize>,
    cookie: String,
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    OneUser(user): OneUser,
    Params(query): Params<TtlQuery>,
    JsonText(text): JsonText,
) -> Result<Response, Problem> {
    let ttl = query.ttl()?;
    let members: Map<String, Value> = match text {
        None => Map::new(),
        Some(text) => {
            Document::new(text.as_str()).map_err(|invalid| Problem::invalid(&invalid))?;
            serde_json::from_str(&text).map_err(|error| Problem::bad_input("session", error.to_string()))?
        }
    };
    for is_last in [false, true] {
        let put = app.sessions.create(&user, members.clone(), ttl).await.map_err(|error| app.problem(&error))?;
        match put {
            Put::Stored(session) => return Ok(with_cookie(&app, StatusCode::CREATED, &session)),
            // Whoever was ended just now may log in again, but not in the same second: the mark would refuse it.
            Put::Ended { mark: Some(mark) } if !is_last => {
                if !reaches(&*app.backend.clock, Timestamp::from_secs(mark.as_micros() / 1_000_000 + 1)).await {
                    break;
                }
            }
            Put::Ended { .. } | Put::Changed => break,
        }
    }
    Err(Problem::session_ended())
}

/// Waits for a time that is near, and says whether it came. The clock may lag behind the timer on a busy machine, so that
/// only the clock itself can tell; one that stands still is not waited for.
async fn reaches(clock: &dyn Clock, at: Timestamp) -> bool {
    const NEAR: Duration = Duration::from_secs(2);
    let comes = async {
        loop {
            match at.since(clock.now()) {
                Duration::ZERO => return true,
                left if left > NEAR => return false,
                left => tokio::time::sleep(left).await,
            }
        }
    };
    tokio::time::timeout(NEAR * 2, comes).await.unwrap_or(false)
}

pub(super) async fn put(
    State(app): State<Arc<App>>,
    OneSession(id): OneSession,
    Params(query): Params<TtlQuery>,
    headers: HeaderMap,
    JsonText(text): JsonText,
) -> Result<Response, Problem> {
    let ttl = query.ttl()?;
    let text =
        text.ok_or_else(|| Problem::bad_input("session", "`session` must be a JSON object; the body is empty"))?;
    let document = Document::new(text).map_err(|invalid| Problem::invalid(&invalid))?;
    let put = match headers.get(IF_MATCH) {
        None => app.sessions.put(&id, &document, ttl).await,
        Some(expected) => {
            let current = app.sessions.get(&id).await.map_err(|error| app.problem(&error))?;
            let current = current.ok_or_else(Problem::session_changed)?;
            if etag(&current.document) != *expected {
                return Err(Problem::session_changed());
            }
            app.sessions.replace(&id, &current.document, &document).await
        }
    };
    match put.map_err(|error| app.problem(&error))? {
        Put::Stored(session) => Ok(shown(StatusCode::OK, &session)),
        Put::Ended { .. } => Err(Problem::session_ended()),
        Put::Changed => Err(Problem::session_changed()),
    }
}

pub(super) async fn get(State(app): State<Arc<App>>, OneSession(id): OneSession) -> Result<Response, Problem> {
    let session = app.sessions.get(&id).await.map_err(|error| app.problem(&error))?;
    session.map(|session| shown(StatusCode::OK, &session)).ok_or_else(Problem::no_session)
}

pub(super) async fn end(
    State(app): State<Arc<App>>,
    operator: Operator,
    OneSession(id): OneSession,
) -> Result<StatusCode, Problem> {
    let act = Act::ending("session_end").about("user", id.user.as_str()).hashed("session", id.sid.as_str());
    let doing = async { app.sessions.end(&id).await.map_err(|error| app.problem(&error)) };
    app.audit.of(&operator, act, doing).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn touch(
    State(app): State<Arc<App>>,
    OneSession(id): OneSession,
    JsonText(text): JsonText,
) -> Result<Response, Problem> {
    let body = text.map(|text| Body::<TouchBody>::parse(text.as_bytes())).transpose()?.unwrap_or_default();
    let ttl = body.ttl.map(|ttl| seconds(ttl.0)).transpose()?;
    let session = app.sessions.touch(&id, ttl).await.map_err(|error| app.problem(&error))?;
    let session = session.ok_or_else(Problem::no_session)?;
    let mut answer = Json(SessionView { ttl_seconds: ttl_seconds(&session) }).into_response();
    answer.headers_mut().insert(SET_COOKIE, cookie::set(&app.config.sessions.cookie, &session.id, session.ttl));
    Ok(answer)
}

pub(super) async fn rotate(
    State(app): State<Arc<App>>,
    OneSession(id): OneSession,
    JsonText(text): JsonText,
) -> Result<Response, Problem> {
    text.map(|text| Body::<RotateBody>::parse(text.as_bytes())).transpose()?;
    let session = app.sessions.rotate(&id).await.map_err(|error| app.problem(&error))?;
    session.map(|session| with_cookie(&app, StatusCode::OK, &session)).ok_or_else(Problem::no_session)
}

pub(super) async fn list(State(app): State<Arc<App>>, OneUser(user): OneUser) -> Result<Json<SessionList>, Problem> {
    let sessions = app.sessions.list(&user).await.map_err(|error| app.problem(&error))?;
    Ok(Json(SessionList { sessions: sessions.iter().map(listed).collect() }))
}

pub(super) async fn end_all(
    State(app): State<Arc<App>>,
    operator: Operator,
    OneUser(user): OneUser,
    Params(query): Params<ExceptQuery>,
) -> Result<Json<EndedView>, Problem> {
    let except = query.except.as_ref().map(|except| SessionId::new(user.as_str(), except)).transpose();
    let except = except.map_err(|invalid| Problem::invalid(&Invalid { field: "except".to_owned(), ..invalid }))?;
    let mut act = Act::ending("sessions_end").about("user", user.as_str());
    if let Some(id) = &except {
        act = act.hashed("except", id.sid.as_str());
    }
    let doing = async {
        let mark = match &except {
            None => end_everything(&app, &user).await,
            Some(id) => app.sessions.end_others(id).await,
        };
        mark.map_err(|error| app.problem(&error))
    };
    let mark = app.audit.of(&operator, act, doing).await?;
    Ok(Json(EndedView { not_before: mark.as_millis_ceil() }))
}

pub(super) async fn terms(State(app): State<Arc<App>>) -> Json<TermsView> {
    let terms = app.sessions.terms();
    Json(TermsView {
        ttl_seconds: terms.ttl.as_secs(),
        max_lifetime_seconds: terms.max_lifetime.as_secs(),
        max_per_user: terms.max_per_user,
        cookie: app.config.sessions.cookie.name.clone(),
    })
}

/// Sessions and tokens may be kept apart: the mark is written for both, and what is cached of the user goes, all at the same
/// time. Only the marks can fail: without them nobody is logged out.
async fn end_everything(app: &App, user: &UserId) -> Result<Timestamp, Error> {
    let now = app.backend.clock.now();
    let tokens = app.backend.revocations.end_before(Whom::User(user.as_str()), now, KEEP_MARKS);
    let profile = profiles::forget(app, user.as_str());
    let (mark, tokens, ()) = tokio::join!(app.sessions.end_all(user), tokens, profile);
    tokens.and(mark)
}

/// Nothing of a session stays in a cache on its way.
pub(super) async fn no_store(mut answer: Response) -> Response {
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

impl TtlQuery {
    fn ttl(&self) -> Result<Option<Duration>, Problem> {
        let Some(text) = &self.ttl else { return Ok(None) };
        let digits = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        seconds(digits.unwrap_or(0)).map(Some)
    }
}

fn seconds(seconds: u64) -> Result<Duration, Problem> {
    if (1..=LONGEST_TTL).contains(&seconds) {
        return Ok(Duration::from_secs(seconds));
    }
    Err(Problem::bad_input("ttl", format!("`ttl` must be whole seconds, 1 to {LONGEST_TTL}")))
}

/// As Redis's own `TTL` rounds it, which the seed's clients know.
fn ttl_seconds(session: &Session) -> i64 {
    session.ttl.map_or(-1, |ttl| i64::try_from((ttl.as_millis() + 500) / 1_000).unwrap_or(i64::MAX))
}

fn with_cookie(app: &App, status: StatusCode, session: &Session) -> Response {
    let mut answer = shown(status, session);
    let cookie = cookie::set(&app.config.sessions.cookie, &session.id, session.ttl);
    answer.headers_mut().insert(SET_COOKIE, cookie);
    answer
}

fn shown(status: StatusCode, session: &Session) -> Response {
    let text = with_ttl(session.document.as_str(), ttl_seconds(session));
    let headers = [(CONTENT_TYPE, HeaderValue::from_static("application/json")), (ETAG, etag(&session.document))];
    (status, headers, text).into_response()
}

/// The document to the letter, with one more member. Whoever stored a member of that name gets ours in its place.
fn with_ttl(document: &str, ttl_seconds: i64) -> String {
    let is_there = document.contains("\"ttl_seconds\"");
    let parsed =
        || serde_json::from_str::<Map<String, Value>>(document).ok().filter(|map| map.contains_key("ttl_seconds"));
    if let Some(mut members) = is_there.then(parsed).flatten() {
        members.insert("ttl_seconds".to_owned(), json!(ttl_seconds));
        return Value::Object(members).to_string();
    }
    let body = document.trim_end().strip_suffix('}').unwrap_or(document);
    let comma = if body.trim_end().ends_with('{') { "" } else { "," };
    format!("{body}{comma}\"ttl_seconds\":{ttl_seconds}}}")
}

/// A version that says nothing of what it is a version of.
fn etag(document: &Document) -> HeaderValue {
    let digest = Sha256::digest(document.as_str().as_bytes());
    let text = format!("\"{}\"", BASE64URL_NOPAD.encode(&digest[..16]));
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("\"\""))
}

fn listed(session: &Session) -> ListedSession {
    let mut members: Map<String, Value> = serde_json::from_str(session.document.as_str()).unwrap_or_default();
    let mut member = |name: &str| members.remove(name).unwrap_or(Value::Null);
    ListedSession {
        session_id: session.id.sid.as_str().to_owned(),
        created_at: member("created_at"),
        expires_at: member("expires_at"),
        ip_address: member("ip_address"),
        user_agent: member("user_agent"),
        ttl_seconds: ttl_seconds(session),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time that is near comes, also where the clock lags behind the timer; time that is far is not waited for.
    #[tokio::test(start_paused = true)]
    async fn what_is_near_is_waited_for_by_the_clock() {
        let start = Timestamp::from_millis(1_700_000_000_900);
        let clock = sekisho::clock::ManualClock::at(start);
        let next = Timestamp::from_secs(1_700_000_001);
        let waiting = tokio::spawn({
            let clock = clock.clone();
            async move { reaches(&clock, next).await }
        });
        // The timer has fired many times, and the clock stands still.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished(), "the timer is not the clock");
        clock.advance(Duration::from_millis(99));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished(), "a millisecond is missing");
        clock.advance(Duration::from_millis(1));
        assert!(waiting.await.unwrap());
        assert!(reaches(&clock, next).await, "it has come");
        let begun = tokio::time::Instant::now();
        assert!(!reaches(&clock, next + Duration::from_millis(2_001)).await);
        assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waits for what is far");
        assert!(!reaches(&clock, next + Duration::from_secs(1)).await, "nor for ever");
    }

    #[test]
    fn a_ttl_is_added_and_the_rest_stays_to_the_letter() {
        assert_eq!(with_ttl("{}", 5), r#"{"ttl_seconds":5}"#);
        assert_eq!(with_ttl("{ \"a\" : 1.00 }\n", -1), r#"{ "a" : 1.00 ,"ttl_seconds":-1}"#);
        assert_eq!(with_ttl(r#"{"a":"\"ttl_seconds\""}"#, 5), r#"{"a":"\"ttl_seconds\"","ttl_seconds":5}"#);
        assert_eq!(with_ttl(r#"{"ttl_seconds":9,"a":1}"#, 5), r#"{"a":1,"ttl_seconds":5}"#);
    }
}
