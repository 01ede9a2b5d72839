//! Revocation (RFC 7009) and introspection (RFC 7662), for those who have the API token: whoever could ask without one could
//! try tokens out.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use data_encoding::BASE64;
use futures_util::future::try_join_all;
use schemars::JsonSchema;
use sekisho::tokens::{Claims, Refusal, TokenKind};
use serde::Serialize;
use serde_json::Value;

use super::body::Form;
use crate::app::App;
use crate::audit::{Act, Operator};
use crate::caller::bearer;
use crate::config::Secret;
use crate::respond::Problem;

pub(super) const HOW: &str = "Authorization: Bearer …, or as the password of Authorization: Basic …";

/// What both take. Members that are not known are ignored, as RFC 6749 wants.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "it describes a form; the form itself is read by name")]
pub(super) struct TokenForm {
    /// The token.
    #[schemars(length(min = 1))]
    token: String,
    /// `access_token` or `refresh_token`. A wrong one does no harm, and others are ignored.
    token_type_hint: Option<String>,
}

/// What is known of a token. Nothing but `active` where it is not.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Introspection {
    active: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<String>,
    /// A text, or a list of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jti: Option<String>,
    /// Seconds since 1970, as the next two.
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<serde_json::Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iat: Option<serde_json::Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nbf: Option<serde_json::Number>,
    /// `Bearer` of an access token; a refresh token has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_type: Option<&'static str>,
}

/// RFC 6749, 5.2.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct OauthError {
    error: &'static str,
    error_description: &'static str,
}

/// Refuses a token from now on. 200 for whatever cannot be revoked as well: it is not accepted anyway.
pub(super) async fn revoke(State(app): State<Arc<App>>, operator: Operator, form: Form) -> Result<Response, Problem> {
    refuse_open(&app)?;
    let (token, hint) = match asked(&form) {
        Ok(asked) => asked,
        Err(error) => return Ok(error.into_response()),
    };
    if let Some(verifier) = &app.tokens {
        match verifier.read(token, hint).await {
            Ok(claims) => {
                let until = verifier.forgotten_at(&claims);
                let (lists, jti) = (claims.lists(), &claims.jti);
                let kind = if let [kind] = lists { kind.as_str() } else { "either" };
                let act = Act::ending("token_revoke").about("kind", kind).hashed("jti", jti.as_str());
                let doing = async {
                    let revoking = lists.iter().map(|kind| verifier.revocations().revoke(*kind, jti, until));
                    try_join_all(revoking).await.map(drop).map_err(|error| app.problem(&error))
                };
                app.audit.of(&operator, act, doing).await?;
            }
            Err(Refusal::Unavailable(error)) => return Err(app.problem(&error)),
            Err(refusal) => tracing::debug!(%refusal, "nothing to revoke"),
        }
    }
    Ok(no_store(StatusCode::OK.into_response()))
}

/// Whether a token is accepted, and what it says. Of one that is not, nothing: neither why, nor whether it ever was.
pub(super) async fn introspect(State(app): State<Arc<App>>, form: Form) -> Result<Response, Problem> {
    refuse_open(&app)?;
    let (token, hint) = match asked(&form) {
        Ok(asked) => asked,
        Err(error) => return Ok(error.into_response()),
    };
    let found = match &app.tokens {
        Some(verifier) => verifier.inspect(token, hint).await,
        None => Err(Refusal::Issuer),
    };
    let answer = match found {
        Ok(claims) => described(claims),
        Err(Refusal::Unavailable(error)) => return Err(app.problem(&error)),
        Err(refusal) => {
            tracing::debug!(%refusal, "a token is not active");
            Introspection::default()
        }
    };
    Ok(no_store(Json(answer).into_response()))
}

/// Without an API token the rest of the API is open on loopback. This is not.
fn refuse_open(app: &App) -> Result<(), Problem> {
    if app.config.api_token.is_none() { Err(Problem::unauthorized(HOW)) } else { Ok(()) }
}

/// Bearer, or the password of Basic: clients of OAuth send theirs so.
pub(super) fn shows(token: &Secret, authorization: Option<&[u8]>) -> bool {
    let Some(given) = authorization else { return false };
    if let Some(given) = bearer(given) {
        return token.is(given);
    }
    let basic = given.split_at_checked(6).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"basic "));
    let pair = basic.and_then(|(_, pair)| BASE64.decode(pair).ok());
    let colon = pair.as_ref().and_then(|pair| pair.iter().position(|byte| *byte == b':'));
    matches!((pair, colon), (Some(pair), Some(colon)) if token.is(&pair[colon + 1..]))
}

pub(super) fn asked(form: &Form) -> Result<(&str, Option<TokenKind>), OauthError> {
    let error = |error_description| OauthError { error: "invalid_request", error_description };
    let one = |name: &str| {
        let mut values = form.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            _ => Err(error("a parameter is given twice")),
        }
    };
    let hint = match one("token_type_hint")? {
        Some("access_token") => Some(TokenKind::Access),
        Some("refresh_token") => Some(TokenKind::Refresh),
        _ => None,
    };
    let token = one("token")?.filter(|token| !token.is_empty());
    Ok((token.ok_or_else(|| error("`token` is missing"))?, hint))
}

fn described(claims: Claims) -> Introspection {
    let text = |name: &str| claims.raw.get(name).and_then(Value::as_str).map(str::to_owned);
    let number = |name: &str| claims.raw.get(name).and_then(Value::as_number).cloned();
    Introspection {
        active: true,
        sub: text("sub"),
        aud: claims.raw.get("aud").cloned(),
        client_id: text("client_id").or_else(|| text("azp")),
        scope: text("scope"),
        jti: text("jti"),
        exp: number("exp"),
        iat: number("iat"),
        nbf: number("nbf"),
        token_type: (claims.kind == TokenKind::Access).then_some("Bearer"),
        iss: Some(claims.issuer),
    }
}

fn no_store(mut response: Response) -> Response {
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl IntoResponse for OauthError {
    fn into_response(self) -> Response {
        no_store((StatusCode::BAD_REQUEST, Json(self)).into_response())
    }
}
