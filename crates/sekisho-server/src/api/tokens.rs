//! Revocations: one token by its id, or all that was issued up to a time.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use schemars::JsonSchema;
use sekisho::Error;
use sekisho::clock::Timestamp;
use sekisho::revocation::{Jti, TokenKind, Whom};
use sekisho::sessions::UserId;
use serde::{Deserialize, Serialize};

use super::body::Body;
use super::profiles;
use super::request::{Amount, LATEST};
use super::words;
use crate::app::App;
use crate::audit::{Act, Operator};
use crate::respond::Problem;

/// Longer than any session or token lives that was there when the mark was set.
pub(super) const KEEP_MARKS: Duration = Duration::from_secs(400 * 86_400);
/// A mark further ahead than clocks differ would end sessions that have not begun: most likely a wrong unit.
const AHEAD: Duration = Duration::from_secs(60);
/// Ten years, in seconds.
const LONGEST: u64 = 315_360_000;
/// Below this a number is Unix seconds, above it milliseconds: it is the year 5138 in the one and 1973 in the other. A mark of
/// 1970 would end nothing, and nobody would notice.
const SECONDS_BELOW: u64 = 100_000_000_000;

/// When the token expires: one of the two.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Revoke", extend("oneOf" = ways_to_expire()))]
pub(super) struct RevokeBody {
    /// Its `exp`, in Unix seconds.
    #[schemars(extend("maximum" = LATEST / 1_000))]
    exp: Option<Amount>,
    /// Seconds from now.
    #[schemars(extend("maximum" = LONGEST))]
    ttl: Option<Amount>,
}

fn ways_to_expire() -> serde_json::Value {
    let (number, nothing) = (serde_json::json!({ "type": "integer" }), serde_json::json!({ "type": "null" }));
    serde_json::json!([
        { "required": ["exp"], "properties": { "exp": number, "ttl": nothing } },
        { "required": ["ttl"], "properties": { "ttl": number, "exp": nothing } },
    ])
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Revoked {
    /// False for a token that is not in its list; one that has expired need not be.
    revoked: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EndBefore")]
pub(super) struct NotBeforeBody {
    /// Left out: everyone. At most 512 bytes of UTF-8.
    #[schemars(with = "Option<words::AnyUserText>")]
    user: Option<String>,
    /// All that was issued in this second or before ends. Unix milliseconds, or seconds; left out: now.
    #[schemars(with = "Option<Amount>")]
    time: Option<Amount>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NotBefore {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// In Unix milliseconds. A later mark that was set before stays.
    not_before: u64,
}

pub(super) async fn revoke(
    State(app): State<Arc<App>>,
    operator: Operator,
    path: Result<Path<(String, String)>, PathRejection>,
    Body(body): Body<RevokeBody>,
) -> Result<Json<Revoked>, Problem> {
    let (kind, jti) = named(path)?;
    let now = app.backend.clock.now();
    let expires = match (body.exp, body.ttl) {
        (Some(Amount(exp)), None) if exp <= LATEST / 1_000 => Timestamp::from_secs(exp),
        (None, Some(Amount(ttl))) if ttl <= LONGEST => now + Duration::from_secs(ttl),
        (Some(_), None) => return Err(Problem::bad_input("exp", format!("`exp` must be at most {}", LATEST / 1_000))),
        (None, Some(_)) => return Err(Problem::bad_input("ttl", format!("`ttl` must be at most {LONGEST}"))),
        _ => return Err(Problem::bad_input("exp", "give `exp`, or `ttl`, and not both")),
    };
    let until = Timestamp::from_secs((expires + app.config.tokens.leeway).as_secs_ceil());
    let act = Act::ending("token_revoke").about("kind", kind.as_str()).hashed("jti", jti.as_str());
    let doing = async { app.backend.revocations.revoke(kind, &jti, until).await.map_err(|error| app.problem(&error)) };
    app.audit.of(&operator, act, doing).await?;
    Ok(Json(Revoked { revoked: until > now }))
}

pub(super) async fn is_revoked(
    State(app): State<Arc<App>>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<Revoked>, Problem> {
    let (kind, jti) = named(path)?;
    let revoked = app.backend.revocations.is_revoked(kind, &jti).await.map_err(|error| app.problem(&error))?;
    Ok(Json(Revoked { revoked }))
}

pub(super) async fn not_before(
    State(app): State<Arc<App>>,
    operator: Operator,
    Body(body): Body<NotBeforeBody>,
) -> Result<Json<NotBefore>, Problem> {
    let now = app.backend.clock.now();
    let at = match body.time {
        None => now,
        Some(Amount(seconds)) if seconds < SECONDS_BELOW => Timestamp::from_secs(seconds),
        Some(Amount(millis)) => Timestamp::from_millis(millis),
    };
    if at > now + AHEAD {
        return Err(Problem::bad_input("time", "`time` lies in the future; it is in Unix milliseconds, or seconds"));
    }
    let whom = body.user.as_deref().map_or(Whom::Everyone, Whom::User);
    let act = Act::ending("not_before").maybe("user", body.user.as_deref()).about("time", at.as_millis_ceil());
    let profile = async {
        if let Some(user) = &body.user {
            profiles::forget(&app, user).await;
        }
    };
    let doing = async {
        let (ended, ()) = tokio::join!(end_before(&app, whom, at), profile);
        ended.map_err(|error| app.problem(&error))
    };
    app.audit.of(&operator, act, doing).await?;
    Ok(Json(NotBefore { not_before: at.as_millis_ceil(), user: body.user }))
}

/// Tokens and sessions: their stores may be two, and neither waits for the other's.
pub(super) async fn end_before(app: &App, whom: Whom<'_>, at: Timestamp) -> Result<(), Error> {
    let of_sessions = async {
        match whom {
            Whom::Everyone => app.sessions.end_before(None, at).await.map(drop),
            // Whoever can have no session needs no mark there.
            Whom::User(user) => match UserId::new(user) {
                Ok(user) => app.sessions.end_before(Some(&user), at).await.map(drop),
                Err(_) => Ok(()),
            },
        }
    };
    let (tokens, sessions) = tokio::join!(app.backend.revocations.end_before(whom, at, KEEP_MARKS), of_sessions);
    tokens.and(sessions)
}

fn named(path: Result<Path<(String, String)>, PathRejection>) -> Result<(TokenKind, Jti), Problem> {
    let Path((kind, jti)) = path.map_err(|_| Problem::bad_input("jti", "`jti` is not UTF-8"))?;
    let kind = TokenKind::from_name(&kind).ok_or_else(Problem::not_found)?;
    Ok((kind, Jti::new(jti).map_err(|invalid| Problem::invalid(&invalid))?))
}
