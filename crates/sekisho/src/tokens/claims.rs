//! What a token says, once its signature is known to be its issuer's. Pure: the time comes in.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{Jti, Refusal, TokenKind};
use crate::clock::Timestamp;

/// No user id is longer. It becomes a key and a header.
const MAX_USER: usize = 256;

/// What can be relied on of a token.
#[derive(Debug, Clone)]
pub struct Claims {
    pub issuer: String,
    /// `sub`, within the issuer's namespace if it has one. A token need not be a user's.
    pub user: Option<String>,
    /// Within the issuer's namespace as well.
    pub jti: Jti,
    pub kind: TokenKind,
    /// Whether the token itself says its kind, in its header or a claim.
    pub says_kind: bool,
    pub issued_at: Option<Timestamp>,
    pub expires_at: Timestamp,
    /// All claims as they stand in the token.
    pub raw: Map<String, Value>,
}

impl Claims {
    /// The lists in which a revocation of it may stand. A token that does not say its kind may have been revoked as either.
    pub fn lists(&self) -> &'static [TokenKind] {
        match self.kind {
            _ if !self.says_kind => &TokenKind::ALL,
            TokenKind::Access => &[TokenKind::Access],
            TokenKind::Refresh => &[TokenKind::Refresh],
        }
    }

    /// A claim as text, for subjects: text itself, a number or a flag. Lists and objects are none.
    pub fn text(&self, name: &str) -> Option<String> {
        match self.raw.get(name)? {
            Value::String(text) => Some(text.clone()),
            value @ (Value::Number(_) | Value::Bool(_)) => Some(value.to_string()),
            _ => None,
        }
    }
}

/// What the header says that matters here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Typed<'a>(pub(super) Option<&'a str>);

impl Typed<'_> {
    /// RFC 7515, 4.1.9: `application/` may be left out, and case does not count.
    fn is(self, name: &str) -> bool {
        let short = |text: &str| text.len() == name.len() && text.eq_ignore_ascii_case(name);
        self.0.is_some_and(|typ| {
            let start = typ.get(..12).filter(|start| start.eq_ignore_ascii_case("application/"));
            short(if start.is_some() { &typ[12..] } else { typ })
        })
    }

    /// Types exist so that one kind of token cannot be passed off as another (RFC 8725, 3.11).
    pub(super) fn is_known(self) -> bool {
        self.0.is_none() || ["JWT", "at+jwt", "rt+jwt"].iter().any(|name| self.is(name))
    }
}

/// Reads the claims of a token whose signature was checked. `namespace` goes before user and id.
pub(super) fn read(
    raw: Map<String, Value>,
    typed: Typed<'_>,
    hint: Option<TokenKind>,
    namespace: Option<&str>,
) -> Result<Claims, Refusal> {
    let issuer = raw.get("iss").and_then(Value::as_str).ok_or(Refusal::Claim("iss"))?.to_owned();
    let said = kind(&raw, typed)?;
    let kind = said.or(hint).unwrap_or(TokenKind::Access);
    let within = |text: &str| namespace.map_or_else(|| text.to_owned(), |namespace| format!("{namespace}/{text}"));
    let user = match raw.get("sub") {
        Some(Value::String(sub)) if is_user(sub) => Some(within(sub)),
        Some(_) => return Err(Refusal::Claim("sub")),
        None => None,
    };
    // Without an id it could not be revoked, so it is not accepted.
    let jti = raw.get("jti").and_then(Value::as_str).filter(|jti| !jti.is_empty()).ok_or(Refusal::Claim("jti"))?;
    let jti = Jti::new(within(jti)).map_err(|_| Refusal::Claim("jti"))?;
    let expires_at = time(&raw, "exp")?.ok_or(Refusal::Claim("exp"))?;
    let issued_at = time(&raw, "iat")?;
    Ok(Claims { issuer, user, jti, kind, says_kind: said.is_some(), issued_at, expires_at, raw })
}

/// Whether a token holds at `now`, for one of `audience`.
pub(super) fn holds(claims: &Claims, audience: &[String], now: Timestamp, leeway: Duration) -> Result<(), Refusal> {
    if now >= claims.expires_at + leeway {
        return Err(Refusal::Expired);
    }
    let begins = time(&claims.raw, "nbf")?;
    // A token from the future would outlive every not-before mark that is set until then.
    if begins.max(claims.issued_at).is_some_and(|begins| begins > now + leeway) {
        return Err(Refusal::NotYet);
    }
    is_for(claims.raw.get("aud"), audience).then_some(()).ok_or(Refusal::Audience)
}

/// RFC 7519, 4.1.3: who is not named refuses. So without an audience only tokens pass that name none.
fn is_for(named: Option<&Value>, audience: &[String]) -> bool {
    let is_ours = |name: &Value| name.as_str().is_some_and(|name| audience.iter().any(|ours| ours == name));
    match named {
        None => audience.is_empty(),
        Some(Value::Array(names)) => names.iter().any(is_ours),
        Some(name) => is_ours(name),
    }
}

/// By the header or a claim that names it; none where neither does. A kind that is not known here is not taken for another
/// (RFC 8725, 3.11 and 3.12): issuers sign links for lost passwords with the same key.
fn kind(raw: &Map<String, Value>, typed: Typed<'_>) -> Result<Option<TokenKind>, Refusal> {
    let said = ["token_type", "typ", "type"].iter().filter_map(|name| raw.get(*name));
    let words: Option<Vec<&str>> = said.map(Value::as_str).collect();
    let words = words.ok_or(Refusal::Kind)?;
    let is = |word: &&str, known: &[&str]| known.iter().any(|known| word.eq_ignore_ascii_case(known));
    if typed.is("rt+jwt") || words.iter().any(|word| is(word, &REFRESH)) {
        return Ok(Some(TokenKind::Refresh));
    }
    if words.iter().any(|word| is(word, &["id", "id_token", "logout", "logout_token"])) {
        return Err(Refusal::Kind);
    }
    // The header is there to say it, so that a claim of the same name may say something else.
    if typed.is("at+jwt") {
        return Ok(Some(TokenKind::Access));
    }
    // Hashes of other tokens are what an ID token has (OpenID Connect Core, 3.1.3.6).
    let is_id = ["at_hash", "c_hash"].iter().any(|name| raw.contains_key(*name));
    let is_unknown = words.iter().any(|word| !is(word, &ACCESS) && !is(word, &["jwt"]));
    if is_id || is_unknown {
        return Err(Refusal::Kind);
    }
    Ok(words.iter().any(|word| is(word, &ACCESS)).then_some(TokenKind::Access))
}

const ACCESS: [&str; 4] = ["access", "access_token", "bearer", "at+jwt"];
/// `Offline` is what Keycloak calls a refresh token that outlives its session.
const REFRESH: [&str; 4] = ["refresh", "refresh_token", "offline", "rt+jwt"];

/// A NumericDate: seconds, with or without a fraction. None if there is none.
fn time(raw: &Map<String, Value>, name: &'static str) -> Result<Option<Timestamp>, Refusal> {
    let Some(value) = raw.get(name) else { return Ok(None) };
    let whole = value.as_u64().map(Timestamp::from_secs);
    // Up to the year 9999, where doubles still have microseconds to spare.
    let part = || value.as_f64().filter(|seconds| (0.0..=253_402_300_799.0).contains(seconds));
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
    let at = whole.or_else(|| part().map(|seconds| Timestamp::from_micros((seconds * 1e6) as u64)));
    at.map(Some).ok_or(Refusal::Claim(name))
}

/// Blanks at the ends would be lost on the way in a header, and make two users one.
fn is_user(sub: &str) -> bool {
    let fits = !sub.is_empty() && sub.len() <= MAX_USER && sub.trim() == sub;
    fits && !sub.chars().any(char::is_control)
}
