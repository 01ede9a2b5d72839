//! The operator's tools: look, reset, grant, override.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use sekisho::clock::Timestamp;
use sekisho::key::{Endpoint, Subject};
use sekisho::limits::Decision;
use sekisho::{Error, Invalid};
use serde::Serialize;
use serde_json::json;

use super::answer::{Answer, json_response};
use super::body::{Body, Params};
use super::request::{GrantBody, LATEST, OverrideBody, TargetBody};
use crate::app::App;
use crate::audit::{Act, Operator};
use crate::describe::{self, PolicyView};
use crate::payload::Response;
use crate::respond::Problem;

pub(super) async fn explain(
    State(app): State<Arc<App>>,
    Params(body): Params<TargetBody>,
) -> Result<Response, Problem> {
    let (subject, endpoint) = target(&body.subject, body.endpoint.as_deref())?;
    figures(&app, app.gate.limits().explain(&body.policy, subject, endpoint).await)
}

pub(super) async fn reset(
    State(app): State<Arc<App>>,
    operator: Operator,
    Body(body): Body<TargetBody>,
) -> Result<Response, Problem> {
    let (subject, endpoint) = target(&body.subject, body.endpoint.as_deref())?;
    let act = act("reset", &body.policy, &body.subject, body.endpoint.as_deref());
    let doing = async { figures(&app, app.gate.limits().reset(&body.policy, subject, endpoint).await) };
    app.audit.of(&operator, act, doing).await
}

pub(super) async fn grant(
    State(app): State<Arc<App>>,
    operator: Operator,
    Body(body): Body<GrantBody>,
) -> Result<Response, Problem> {
    let (subject, endpoint) = target(&body.subject, body.endpoint.as_deref())?;
    if body.cost.is_empty() {
        return Err(Problem::bad_input("cost", "`cost` names nothing to give back"));
    }
    let cost = body.cost.cost().map_err(|invalid| Problem::invalid(&invalid))?;
    let act =
        act("grant", &body.policy, &body.subject, body.endpoint.as_deref()).about("cost", json!(body.cost.by_name()));
    let doing = async { figures(&app, app.gate.limits().grant(&body.policy, subject, endpoint, &cost).await) };
    app.audit.of(&operator, act, doing).await
}

pub(super) async fn override_limits(
    State(app): State<Arc<App>>,
    operator: Operator,
    Body(body): Body<OverrideBody>,
) -> Result<Response, Problem> {
    let (subject, endpoint) = target(&body.subject, body.endpoint.as_deref())?;
    if body.until.0 > LATEST {
        return Err(Problem::bad_input("until", format!("`until` must be Unix milliseconds up to {LATEST}")));
    }
    let (limits, until) = (body.limits.by_name(), Timestamp::from_millis(body.until.0));
    let act = act("override", &body.policy, &body.subject, body.endpoint.as_deref())
        .about("limits", json!(limits))
        .about("until", body.until.0);
    let doing = async {
        figures(&app, app.gate.limits().override_limits(&body.policy, subject, endpoint, &limits, until).await)
    };
    app.audit.of(&operator, act, doing).await
}

/// What is configured.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Policies {
    policies: Vec<PolicyView>,
}

pub(super) async fn policies(State(app): State<Arc<App>>) -> Json<Policies> {
    let mut policies = describe::policies(&app.config.policies);
    policies.extend(describe::policies_of(&app.config.domains));
    Json(Policies { policies })
}

/// All three can give somebody more than the policy does.
fn act(name: &'static str, policy: &str, subject: &str, endpoint: Option<&str>) -> Act {
    Act::giving(name).about("policy", policy).about("subject", subject).maybe("endpoint", endpoint)
}

fn target(subject: &str, endpoint: Option<&str>) -> Result<(Subject, Option<Endpoint>), Problem> {
    let parts = || -> Result<_, Invalid> { Ok((Subject::new(subject)?, endpoint.map(Endpoint::new).transpose()?)) };
    parts().map_err(|invalid| Problem::invalid(&invalid))
}

fn figures(app: &App, decision: Result<Decision, Error>) -> Result<Response, Problem> {
    let decision = decision.map_err(|error| app.problem(&error))?;
    Ok(json_response(Answer::figures(&decision, false).json()))
}
