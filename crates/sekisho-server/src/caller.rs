//! Who is asking: established here once, for the gateway and for forward-auth alike.
//!
//! What callers say of themselves does not count; what they can show does.

use std::net::IpAddr;

use axum::http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use sekisho::identity::{Facts, SubjectPart, SubjectSpec};
use sekisho::sessions::Session;
use sekisho::tokens::{Claims, Refusal, TokenKind};

use crate::app::App;
use crate::config::{CookieConfig, Credential};
use crate::cookie;
use crate::respond::Problem;
use crate::security;

/// Says to others who it is. Always there, so that a client's own header of that name never comes through.
pub(crate) const USER: HeaderName = HeaderName::from_static("x-sekisho-user");

/// Who it is, as far as that was asked.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    user: Option<String>,
    /// Of the token that was verified.
    claims: Option<Box<Claims>>,
    /// The cookie that carried the session.
    cookie: Option<String>,
    /// The same with a longer life, when the session was let live on.
    renewed: Option<HeaderValue>,
}

impl Caller {
    /// Adds what `spec` builds subjects from.
    pub(crate) fn tell(&self, spec: &SubjectSpec, facts: &mut Facts) {
        for part in spec.parts() {
            match part {
                SubjectPart::User => facts.user.clone_from(&self.user),
                SubjectPart::Claim(name) => facts.claims.extend(self.claim(name).map(|value| (name.clone(), value))),
                _ => {}
            }
        }
    }

    /// The value of [`USER`], empty if unknown.
    pub(crate) fn header(&self) -> HeaderValue {
        // Control characters were refused with the token, so every user has one.
        let value = self.user.as_deref().and_then(|user| HeaderValue::from_bytes(user.as_bytes()).ok());
        value.unwrap_or(HeaderValue::from_static(""))
    }

    /// Takes out what was checked here: whoever needs it no more must not have it.
    pub(crate) fn take_credentials(&self, headers: &mut HeaderMap) {
        if self.claims.is_some() {
            headers.remove(AUTHORIZATION);
        }
        if let Some(name) = &self.cookie {
            cookie::take(headers, name);
        }
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed.is_some()
    }

    /// Tells the browser that its session lives on.
    pub(crate) fn renew_cookie(&mut self, headers: &mut HeaderMap) {
        if let Some((name, renewed)) = self.cookie.as_ref().zip(self.renewed.take()) {
            cookie::renew(headers, name, renewed);
        }
    }

    fn claim(&self, name: &str) -> Option<String> {
        self.claims.as_ref()?.text(name)
    }
}

/// Whether anything may have to be shown. Otherwise it is nobody in particular.
pub(crate) fn has_to_show(app: &App, require: &[Credential]) -> bool {
    !require.is_empty() || app.tokens.is_some()
}

/// Everything in `require` must be shown, a session in the cookie of that name. Where nothing is required but `policy` counts by user or claim, a token is.
pub(crate) async fn establish(
    app: &App,
    require: &[Credential],
    policy: &str,
    cookie: &str,
    client: IpAddr,
    headers: &HeaderMap,
) -> Result<Caller, Problem> {
    if !has_to_show(app, require) {
        return Ok(Caller::default());
    }
    let parts = app.gate.subject_spec(policy).map(SubjectSpec::parts).unwrap_or_default();
    let counts_users = parts.iter().any(|part| matches!(part, SubjectPart::User | SubjectPart::Claim(_)));
    let mut caller = Caller::default();
    if require.contains(&Credential::Token) || require.is_empty() && counts_users {
        let claims = token(app, client, headers).await?;
        caller.user.clone_from(&claims.user);
        caller.claims = Some(Box::new(claims));
    }
    if require.contains(&Credential::Session) {
        let (session, slid) = session(app, cookie, client, headers).await?;
        let user = session.id.user.as_str().to_owned();
        // Two credentials of two people are nobody's; a token of nobody is not this one's either.
        if caller.claims.is_some() && caller.user.as_ref() != Some(&user) {
            security::two_users(&user, client);
            return Err(Problem::no_valid_session(cookie));
        }
        caller.user = Some(user);
        if slid {
            let config = CookieConfig { name: cookie.to_owned(), ..app.config.sessions.cookie.clone() };
            caller.renewed = Some(cookie::set(&config, &session.id, session.ttl));
        }
        caller.cookie = Some(cookie.to_owned());
    }
    if caller.claims.is_some() {
        let lacks = parts.iter().find_map(|part| match part {
            SubjectPart::User => caller.user.is_none().then_some("sub"),
            SubjectPart::Claim(name) => caller.claim(name).is_none().then_some(name.as_str()),
            _ => None,
        });
        if let Some(name) = lacks {
            return Err(Problem::forbidden(format!("the token has no claim `{name}`, by which is counted here")));
        }
    }
    Ok(caller)
}

/// From the cookie alone, and whether it was let live on. What ends a session takes no cookie away here: a store that is away
/// would log everybody out.
async fn session(app: &App, cookie: &str, client: IpAddr, headers: &HeaderMap) -> Result<(Session, bool), Problem> {
    let refused = || Problem::no_valid_session(cookie);
    let Some(id) = cookie::session(headers, cookie) else {
        if cookie::is_there(headers, cookie) {
            security::odd_cookie(client);
        }
        return Err(refused());
    };
    let visited = app.sessions.visit(&id).await.map_err(|error| app.problem(&error))?;
    visited.ok_or_else(|| {
        security::unknown_session(&id, client);
        refused()
    })
}

/// From `Authorization` alone: what stands in a URL ends up in logs.
async fn token(app: &App, client: IpAddr, headers: &HeaderMap) -> Result<Claims, Problem> {
    let Some(verifier) = &app.tokens else { return Err(Problem::not_configured()) };
    let mut sent = headers.get_all(AUTHORIZATION).iter();
    let given = match (sent.next(), sent.next()) {
        (Some(given), None) => given,
        (None, _) => return Err(Problem::unauthenticated(false)),
        // Two servers could believe two different ones.
        (Some(_), Some(_)) => return Err(Problem::unauthenticated(true)),
    };
    let token = bearer(given.as_bytes()).and_then(|token| std::str::from_utf8(token).ok());
    let Some(token) = token else { return Err(Problem::unauthenticated(false)) };
    verifier.verify(token, TokenKind::Access).await.map_err(|refusal| match refusal {
        Refusal::Unavailable(error) => app.problem(&error),
        refusal => {
            security::refused_token(token, &refusal, client);
            Problem::unauthenticated(true)
        }
    })
}

/// The token in an `Authorization` of that scheme (RFC 6750, 2.1).
pub(crate) fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}
