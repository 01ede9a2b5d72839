//! Every route of the API, once: the router and the OpenAPI document are both made from this table.

mod cached;
mod outgoing;

use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::handler::Handler;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, any, delete, get, post, put};
use serde_json::{Value, json};

use super::answer::{self, Released, Results, Settled};
use super::oauth::{Introspection, OauthError, TokenForm};
use super::operate::Policies;
use super::path::{SessionPath, UserPath};
use super::request::{BatchBody, CheckBody, GrantBody, OverrideBody, ReleaseBody, ReserveBody, SettleBody, TargetBody};
use super::sessions::{EndedView, ExceptQuery, RotateBody, SessionList, SessionView, TermsView, TouchBody, TtlQuery};
use super::stats::{KeyQuery, KeyStats, Stats, StatsQuery};
use super::tokens::{NotBefore, NotBeforeBody, RevokeBody, Revoked};
use super::{decide, elevation, end, oauth, operate, sessions, stats, tokens, words};
use crate::app::App;
use crate::envoy::json as envoy;
use crate::openapi::{self, Answer, Operation, headers};
use crate::{auth, metrics};

pub(super) struct Route {
    /// As the document has it.
    pub(super) path: &'static str,
    /// What the router serves it under, where that is another path.
    under: Option<&'static str>,
    pub(super) methods: &'static [&'static str],
    pub(super) handler: MethodRouter<Arc<App>>,
    pub(super) operation: Operation,
}

impl Route {
    pub(super) fn get<T: 'static>(
        path: &'static str,
        handler: impl Handler<T, Arc<App>>,
        operation: Operation,
    ) -> Self {
        Self { path, under: None, methods: &["GET"], handler: get(handler), operation }
    }

    pub(super) fn post<T: 'static>(
        path: &'static str,
        handler: impl Handler<T, Arc<App>>,
        operation: Operation,
    ) -> Self {
        Self { path, under: None, methods: &["POST"], handler: post(handler), operation }
    }

    fn put<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>, operation: Operation) -> Self {
        Self { path, under: None, methods: &["PUT"], handler: put(handler), operation }
    }

    fn delete<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>, operation: Operation) -> Self {
        Self { path, under: None, methods: &["DELETE"], handler: delete(handler), operation }
    }

    /// Part of what another route's handler serves.
    fn within(under: &'static str, path: &'static str, methods: &'static [&'static str], operation: Operation) -> Self {
        Self { path, under: Some(under), methods, handler: MethodRouter::new(), operation }
    }

    pub(super) fn served_at(&self) -> &'static str {
        self.under.unwrap_or(self.path)
    }

    fn any<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>, operation: Operation) -> Self {
        let methods = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];
        Self { path, under: None, methods, handler: any(handler), operation }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let all = [
        limits(),
        operators(),
        self::sessions(),
        revocations(),
        self::oauth(),
        cached::routes(),
        outgoing::routes(),
        others(),
    ];
    all.into_iter().flatten().chain(elevation::routes()).collect()
}

fn limits() -> Vec<Route> {
    let operation = |id, summary| Operation::new("limits", id, summary);
    let charge = || json!({ "policy": "demo", "subject": "192.0.2.1", "cost": { "requests": 1 } });
    let id = "AQABAgMEBQYHCAkKCwwNDg8GCiQbsccAAARkZW1vAAkxOTIuMC4yLjEAAAEAAAAAATLfbpY";
    vec![
        Route::post(
            "/v1/check",
            decide::check,
            decides(operation("check", "Takes a charge now").asks::<CheckBody>(charge()), allowed(&[])),
        ),
        Route::post(
            "/v1/peek",
            decide::peek,
            decides(
                operation("peek", "What a check would answer; takes nothing").asks::<CheckBody>(charge()),
                allowed(&[]),
            ),
        ),
        Route::post(
            "/v1/reserve",
            decide::reserve,
            decides(
                operation("reserve", "Holds a charge until it is settled or released").asks::<ReserveBody>(
                    json!({ "policy": "demo", "subject": "192.0.2.1", "lease_ms": 30_000, "idempotency_key": "call-1" }),
                ),
                allowed(&["reservation", "expires_at"])
                    .leads_to("settle", "reservation")
                    .leads_to("release", "reservation"),
            ),
        ),
        Route::post(
            "/v1/settle",
            end::settle,
            operation("settle", "Ends a reservation with what it really cost")
                .asks::<SettleBody>(json!({ "reservation": id, "cost": { "requests": 1 } }))
                .answers(Answer::new(StatusCode::OK, "It is settled, now or before.").json::<Settled>())
                .fails(&[StatusCode::NOT_FOUND, StatusCode::CONFLICT])
                .asks_the_store(),
        ),
        Route::post(
            "/v1/release",
            end::release,
            operation("release", "Gives back all that a reservation holds")
                .asks::<ReleaseBody>(json!({ "reservation": id }))
                .answers(Answer::new(StatusCode::OK, "It is released, now or before.").json::<Released>())
                .fails(&[StatusCode::NOT_FOUND, StatusCode::CONFLICT])
                .asks_the_store(),
        ),
        Route::post(
            "/v1/check/batch",
            decide::batch,
            operation("checkBatch", "Many checks in one request, each with its own outcome")
                .asks::<BatchBody>(json!({ "checks": [charge(), { "policy": "demo", "subject": "192.0.2.2" }] }))
                .answers(Answer::new(StatusCode::OK, "The outcome of each, in order.").json::<Results>()),
        ),
    ]
}

fn operators() -> Vec<Route> {
    let operation = |id, summary| Operation::new("operators", id, summary);
    let figures = |operation: Operation| {
        let only = json!({ "required": ["policy", "subject", "rules"] });
        let answer = Answer::new(StatusCode::OK, "The figures of every rule.").json_with::<answer::Answer<'_>>(only);
        operation.answers(answer).fails(&[StatusCode::NOT_FOUND]).asks_the_store()
    };
    let target = || json!({ "policy": "demo", "subject": "192.0.2.1" });
    let with = |name: &str, value: Value| {
        let mut target = target();
        target[name] = value;
        target
    };
    let mut limits = with("limits", json!({ "minute": 100 }));
    limits["until"] = json!(4_102_444_800_000u64);
    vec![
        Route::get(
            "/v1/explain",
            operate::explain,
            figures(operation("explain", "Every rule of a policy for one subject").queries::<TargetBody>()),
        ),
        Route::post(
            "/v1/reset",
            operate::reset,
            figures(
                operation("reset", "Forgets what is counted, held and overridden for one subject")
                    .asks::<TargetBody>(target()),
            ),
        ),
        Route::post(
            "/v1/grant",
            operate::grant,
            figures(
                operation("grant", "Gives back of what one subject has used")
                    .asks::<GrantBody>(with("cost", json!({ "requests": 2 }))),
            ),
        ),
        Route::post(
            "/v1/override",
            operate::override_limits,
            figures(operation("override", "Other limits for one subject, for a while").asks::<OverrideBody>(limits)),
        ),
        Route::get(
            "/v1/policies",
            operate::policies,
            operation("policies", "What is configured")
                .answers(Answer::new(StatusCode::OK, "Every policy.").json::<Policies>()),
        ),
        Route::get(
            "/v1/stats/keys",
            stats::keys,
            operation("stats", "How many keys there are of which category")
                .queries::<StatsQuery>()
                .answers(Answer::new(StatusCode::OK, "All categories.").json::<Stats>())
                .asks_the_store(),
        ),
        Route::get(
            "/v1/stats/key",
            stats::key,
            operation("statsOfKey", "One key, without what is in it")
                .queries::<KeyQuery>()
                .answers(Answer::new(StatusCode::OK, "Its kind and figures.").json::<KeyStats>())
                .fails(&[StatusCode::NOT_FOUND])
                .asks_the_store(),
        ),
        Route::get(
            "/metrics",
            metrics::render,
            operation("metrics", "Figures for Prometheus")
                .answers(Answer::new(StatusCode::OK, "In Prometheus's text format.").text()),
        ),
        Route::get(
            "/openapi.json",
            document_served,
            operation("openapi", "This document")
                .answers(Answer::new(StatusCode::OK, "OpenAPI 3.1.").json::<serde_json::Map<String, Value>>()),
        ),
    ]
}

fn sessions() -> Vec<Route> {
    let operation = |id, summary| Operation::new("sessions", id, summary).asks_the_store();
    let of_user = |id, summary| operation(id, summary).at::<UserPath>();
    let of_one = |id, summary| operation(id, summary).at::<SessionPath>();
    let ok = |description| Answer::new(StatusCode::OK, description);
    let stored = |answer: Answer| answer.json::<SessionView>().header("ETag", headers::etag());
    let example = json!({
        "user_id": "u-1", "access_token": "eyJ…", "created_at": "2025-09-30T10:00:00Z", "ip_address": "192.0.2.1",
    });
    type Members = serde_json::Map<String, Value>;
    let mut routes = vec![
        Route::post(
            "/v1/sessions/{user}",
            sessions::create,
            of_user("createSession", "A new session under an id chosen here")
                .queries::<TtlQuery>()
                .may_ask::<Members>(json!({ "ip_address": "192.0.2.1" }))
                .answers(stored(Answer::new(StatusCode::CREATED, "It is stored; `Set-Cookie` is for the browser.")))
                .fails(&[StatusCode::CONFLICT]),
        ),
        Route::get(
            "/v1/sessions/{user}",
            sessions::list,
            of_user("sessions", "A user's sessions, without tokens")
                .answers(ok("The newest first.").json::<SessionList>()),
        ),
        Route::delete(
            "/v1/sessions/{user}",
            sessions::end_all,
            of_user("endSessions", "Ends all of a user's sessions and tokens, or all sessions but one")
                .queries::<ExceptQuery>()
                .answers(ok("They have ended.").json::<EndedView>()),
        ),
        Route::put(
            "/v1/sessions/{user}/{sid}",
            sessions::put,
            of_one("putSession", "Stores exactly the JSON given")
                .queries::<TtlQuery>()
                .reads_header("If-Match", "The `ETag` of what is replaced; how long it lives does not change then.")
                .asks::<Members>(example)
                .answers(stored(ok("It is stored.")))
                .fails(&[StatusCode::CONFLICT, StatusCode::PRECONDITION_FAILED]),
        ),
        Route::get(
            "/v1/sessions/{user}/{sid}",
            sessions::get,
            of_one("session", "One session").answers(stored(ok("As it was stored."))).fails(&[StatusCode::NOT_FOUND]),
        ),
        Route::delete(
            "/v1/sessions/{user}/{sid}",
            sessions::end,
            of_one("endSession", "Ends one session").answers(Answer::new(StatusCode::NO_CONTENT, "It has ended.")),
        ),
        Route::post(
            "/v1/sessions/{user}/{sid}/touch",
            sessions::touch,
            of_one("touchSession", "Lets it live longer, up to the absolute cap")
                .may_ask::<TouchBody>(json!({ "ttl": 3600 }))
                .answers(ok("What is left of its life; `Set-Cookie` is for the browser.").json::<SessionView>())
                .fails(&[StatusCode::NOT_FOUND]),
        ),
        Route::post(
            "/v1/sessions/{user}/{sid}/rotate",
            sessions::rotate,
            of_one("rotateSession", "The same session under a new id; the old one is dead")
                .may_ask::<RotateBody>(json!({}))
                .answers(stored(ok("Under its new id; `Set-Cookie` is for the browser.")))
                .fails(&[StatusCode::NOT_FOUND]),
        ),
        Route::get(
            "/v1/policies/sessions",
            sessions::terms,
            Operation::new("sessions", "sessionTerms", "How long sessions live, and how many a user may have")
                .answers(ok("What is configured.").json::<TermsView>()),
        ),
    ];
    for route in &mut routes {
        route.handler = std::mem::take(&mut route.handler).layer(map_response(sessions::no_store));
    }
    routes
}

fn revocations() -> Vec<Route> {
    const TOKEN: &str = "/v1/tokens/{kind}/{jti}";
    let operation = |id, summary| Operation::new("tokens", id, summary).asks_the_store();
    let token = |id, summary| {
        operation(id, summary)
            .in_path("kind", json!({ "type": "string", "enum": ["access", "refresh"] }))
            .in_path("jti", words::jti())
            .fails(&[StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND])
    };
    vec![
        Route::put(
            TOKEN,
            tokens::revoke,
            token("revokeToken", "Refuses a token until it would be refused anyway")
                .asks::<RevokeBody>(json!({ "exp": 4_102_444_800_u64 }))
                .answers(Answer::new(StatusCode::OK, "It is revoked, or has expired.").json::<Revoked>()),
        ),
        Route::get(
            TOKEN,
            tokens::is_revoked,
            token("isTokenRevoked", "Whether a token is revoked by its id")
                .answers(Answer::new(StatusCode::OK, "Whether it is.").json::<Revoked>()),
        ),
        Route::post(
            "/v1/tokens/not-before",
            tokens::not_before,
            operation("endBefore", "Ends all sessions and tokens of a user, or of everyone, up to a time")
                .asks::<NotBeforeBody>(json!({ "user": "user-1", "time": 1_759_104_000_000_u64 }))
                .answers(Answer::new(StatusCode::OK, "They are ended.").json::<NotBefore>()),
        ),
    ]
}

/// Always with the token, also where everything else is open.
fn oauth() -> Vec<Route> {
    let operation = |id, summary| {
        let bad = Answer::new(StatusCode::BAD_REQUEST, "`token` is missing, or something is given twice.");
        Operation::new("oauth", id, summary)
            .always_closed()
            .asks_form::<TokenForm>(
                json!({ "token": "eyJhbGciOiJFUzI1NiJ9.e30.AA", "token_type_hint": "access_token" }),
            )
            .answers(bad.json::<OauthError>())
            .asks_the_store()
    };
    vec![
        Route::post(
            "/oauth/revoke",
            oauth::revoke,
            operation("revoke", "Refuses a token from now on (RFC 7009)")
                .answers(Answer::new(StatusCode::OK, "It is not accepted any more, if it ever was.")),
        ),
        Route::post(
            "/oauth/introspect",
            oauth::introspect,
            operation("introspect", "Whether a token is accepted, and what it says (RFC 7662)")
                .answers(Answer::new(StatusCode::OK, "What is known of it.").json::<Introspection>()),
        ),
    ]
}

/// What proxies ask.
fn others() -> Vec<Route> {
    let hits = json!({
        "domain": "edge",
        "descriptors": [{ "entries": [{ "key": "remote_address", "value": "192.0.2.1" }], "hitsAddend": "1" }],
    });
    let asks = |id, summary, method, uri| {
        Operation::new("forward-auth", id, summary)
            .with_token_in(openapi::TOKEN_HEADER)
            .reads_header("X-Forwarded-For", "Where the request came from; the last hop counts.")
            .reads_header(method, "The request's method. Left out: GET.")
            .reads_header(uri, "The request's path and query. Left out: `/`.")
            .answers(fields(Answer::new(StatusCode::OK, "Let it through.")))
    };
    let over = |answer: Answer| fields(answer.problem());
    let retry_later = "Its limits allow no more now.";
    let refused = "A limit allows no more, or the question is wrong; `X-Sekisho-Status` says which status that is.";
    let nginx = asks("authNginx", "May this request pass? In nginx's words", "X-Original-Method", "X-Original-URI");
    let forward = asks("authForward", "May this request pass?", "X-Forwarded-Method", "X-Forwarded-Uri")
        .reads_header("X-Forwarded-Host", "The request's host. Left out: that of no route which wants one.");
    vec![
        Route::any(
            "/auth/nginx",
            auth::nginx,
            nginx.answers(over(Answer::new(StatusCode::FORBIDDEN, refused)).header(
                "X-Sekisho-Status",
                json!({ "required": true, "schema": { "type": "integer", "minimum": 400, "maximum": 599 } }),
            )),
        ),
        Route::any(
            "/auth/forward",
            auth::forward,
            forward
                .answers(
                    over(Answer::new(StatusCode::TOO_MANY_REQUESTS, retry_later))
                        .header("Retry-After", headers::retry_after()),
                )
                .fails(&[StatusCode::BAD_REQUEST, StatusCode::FORBIDDEN, StatusCode::NOT_FOUND])
                .asks_the_store(),
        ),
        Route::post(
            "/json",
            envoy::answer,
            Operation::new("envoy", "shouldRateLimit", "Envoy's rate-limit service without gRPC")
                .asks::<envoy::RequestBody>(hits)
                .answers(Answer::new(StatusCode::OK, "Nothing is over its limit.").json::<envoy::ResponseBody>())
                .answers(
                    Answer::new(StatusCode::TOO_MANY_REQUESTS, "Something is over its limit.")
                        .json::<envoy::ResponseBody>(),
                )
                .asks_the_store(),
        ),
        Route::get(
            "/healthcheck",
            async || "OK",
            Operation::new("envoy", "healthcheck", "Whether the server runs")
                .answers(Answer::new(StatusCode::OK, "It does.").text()),
        ),
    ]
}

/// 200, or 429 with the same object.
fn decides(operation: Operation, allowed: Answer) -> Operation {
    let no = json!({ "required": ["allowed", "retry_after_ms"], "properties": { "allowed": { "const": false } } });
    let denied = Answer::new(StatusCode::TOO_MANY_REQUESTS, "It is denied; nothing was taken.")
        .json_with::<answer::Answer<'_>>(no)
        .header("Retry-After", headers::retry_after());
    operation.answers(allowed).answers(denied).fails(&[StatusCode::NOT_FOUND]).asks_the_store()
}

/// `members` are there beside those of every decision.
fn allowed(members: &[&str]) -> Answer {
    let required = [&["allowed"], members].concat();
    let yes = json!({ "required": required, "properties": { "allowed": { "const": true } } });
    Answer::new(StatusCode::OK, "It is allowed.").json_with::<answer::Answer<'_>>(yes)
}

/// What a governed answer says of its limits, as `headers` in the configuration has it.
fn fields(answer: Answer) -> Answer {
    let number = || json!({ "schema": { "type": "integer", "minimum": 0 } });
    let text = || json!({ "schema": { "type": "string" } });
    answer
        .header("X-RateLimit-Limit", number())
        .header("X-RateLimit-Remaining", number())
        .header("X-RateLimit-Reset", number())
        .header("RateLimit-Policy", text())
        .header("RateLimit", text())
        .header("X-Sekisho-User", json!({ "required": true, "schema": { "type": "string" } }))
}

/// `is_closed`: as a server with a token serves it.
pub(crate) fn document(is_closed: bool) -> Value {
    let routes = routes();
    openapi::document(routes.iter().map(|route| (route.path, route.methods, &route.operation)), is_closed)
}

async fn document_served(State(app): State<Arc<App>>) -> Response {
    static TEXTS: LazyLock<[String; 2]> = LazyLock::new(|| [false, true].map(|closed| document(closed).to_string()));
    let text = TEXTS[usize::from(app.config.api_token.is_some())].as_str();
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}
