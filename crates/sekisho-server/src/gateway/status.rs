//! What seed 000 asks of a gateway: whether it can serve, and how much of a day's budget the caller has used.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use sekisho::Error;
use sekisho::backend::BackendKind;
use sekisho::gate::Ask;
use sekisho::limits::{Cost, OnFailure, Period};
use serde_json::json;

use crate::app::App;
use crate::caller;
use crate::config::Action;
use crate::facts::{self, Peer};
use crate::respond::Problem;

const MINUTE: Duration = Duration::from_secs(60);

/// 200 while requests can be decided and sent on, 503 otherwise: the status is the contract, the checks say why.
pub(super) async fn ready(app: &App) -> Response {
    let has_secret = |action: &Action| match action {
        Action::Forward(to) => to.secret.as_ref().is_none_or(|secret| secret.value.is_some()),
        Action::Respond(_) => true,
    };
    let has_secrets = app.config.routes.iter().all(|route| has_secret(&route.action));
    let answered =
        |ping: Result<(), Error>| ping.inspect_err(|error| tracing::debug!(%error, "the store did not answer")).is_ok();
    // They may be on several servers, and have connections of their own where they are not.
    let budgets = async { Some(app.outbound.as_ref()?.is_well().await) };
    let (limits, sessions, budgets) = tokio::join!(app.gate.limits().ping(), app.sessions.ping(), budgets);
    let (answers, has_sessions) = (answered(limits), answered(sessions));
    let is_shared = answers && app.backend.limits.is_well();
    let is_memory = app.backend.kind == BackendKind::Memory || !is_shared;
    // An instance that decides by itself is more use than none.
    let decides = answers || app.config.store.on_failure != OnFailure::Closed;
    let needs_sessions = app.config.needs_sessions();
    let revocations = &app.backend.revocations;
    let is_leaving = app.metrics.is_leaving();
    let can_serve = has_secrets && decides && (has_sessions || !needs_sessions) && revocations.is_ready();
    let is_ready = can_serve && !is_leaving;
    let mut body = json!({
        "status": if is_ready { "ok" } else if is_leaving { "stopping" } else { "unavailable" },
        "checks": {
            "api_key_configured": has_secrets,
            "rate_limiter_backend": if is_memory { "in_memory" } else { "redis" },
            "rate_limiter_ok": is_shared,
            "config_ok": app.metrics.is_config_ok(),
        },
    });
    if app.config.store.url.is_some() || app.config.sessions.store.is_some() {
        body["checks"]["sessions_ok"] = has_sessions.into();
        body["checks"]["sessions_may_be_evicted"] = app.metrics.may_evict_sessions().into();
    }
    if app.tokens.is_some() {
        body["checks"]["revocations_ok"] = revocations.is_ready().into();
        // No reason to turn requests away, but for whoever looks: a restarted instance accepts what was evicted.
        body["checks"]["revocations_may_be_evicted"] = revocations.may_evict().into();
    }
    if let Some(is_well) = budgets {
        body["checks"]["outbound_ok"] = is_well.into();
    }
    // Heights are told without it, only by asking GSI more often.
    if let Some(is_sharing) = app.elevation.as_ref().and_then(|heights| heights.is_sharing()) {
        body["checks"]["elevation_store_ok"] = is_sharing.into();
    }
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

/// The caller's own figures under `usage_policy`: the rule of a calendar day, and the one of a minute. Callers are whom the first
/// route of that policy takes them for.
pub(super) async fn usage(app: &App, peer: Peer, headers: &HeaderMap) -> Result<Response, Problem> {
    let Some(name) = app.config.usage_policy.clone() else { return Err(Problem::not_found()) };
    let client = facts::client(app, peer, headers);
    let route = app.config.routes.iter().find(|route| *route.policy == *name);
    let (require, endpoint) = route.map_or((&[][..], None), |route| (&route.require[..], Some(&*route.endpoint)));
    let cookie = &app.config.sessions.cookie.name;
    let mut caller = caller::establish(app, require, &name, cookie, client, headers).await?;
    let who = facts::who(app, &name, client, &caller, endpoint, headers)?;
    let ask = Ask { policy: name.into(), who, cost: Cost::default() };
    let decided = |error| app.problem(&error);
    let charge = app.gate.identify(&ask).map_err(decided)?;
    let decision = app.gate.limits().explain(&charge.policy, charge.subject, charge.endpoint).await.map_err(decided)?;
    let rules = || decision.charges.iter().flat_map(|charge| charge.policy.rules().iter().zip(&charge.rules));
    let daily = rules().find(|(rule, _)| rule.calendar_parts().is_some_and(|(period, _)| period == Period::Day));
    let minute = rules().find(|(rule, _)| rule.calendar_parts().is_none() && rule.window() == Some(MINUTE));
    let body = json!({
        "daily_count": daily.map(|(_, figures)| figures.used + figures.held),
        "daily_limit": daily.map(|(_, figures)| figures.limit),
        "per_minute_limit": minute.map(|(_, figures)| figures.limit),
    });
    let mut answer = Json(body).into_response();
    caller.renew_cookie(answer.headers_mut());
    Ok(answer)
}
