//! Check, peek, reserve, and checks in batches.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use futures_util::{StreamExt as _, stream};
use sekisho::Error;
use sekisho::backend::BackendKind;
use sekisho::limits::{Decision, ReserveOptions, Reserved};

use super::answer::{Answer, json_response};
use super::body::{Body, MAX_BATCH as MAX_BATCH_BYTES};
use super::object::Object;
use super::request::{Asked, BatchBody, CheckBody, MAX_BATCH, ReserveBody};
use super::written::append;
use crate::app::App;
use crate::payload::Response;
use crate::respond::Problem;

/// How many of a batch are with the store at once. One connection carries them all, so more would only queue elsewhere.
const AT_ONCE: usize = 64;
/// Of an answer inside a batch, about.
const USUAL_BYTES: usize = 320;

pub(super) async fn check(State(app): State<Arc<App>>, Body(body): Body<CheckBody>) -> Result<Response, Problem> {
    let asked = asked(body)?;
    match at_once(&app, &asked) {
        Some(answer) => answer,
        None => Box::pin(decide(&app, &asked)).await,
    }
}

pub(super) fn asked(body: CheckBody) -> Result<Asked, Problem> {
    body.asked().map_err(|invalid| Problem::invalid(&invalid))
}

/// Where neither the store nor a turn has to be waited for.
pub(super) fn at_once(app: &App, asked: &Asked) -> Option<Result<Response, Problem>> {
    Some(answer(app, asked, app.gate.check_at_once(&asked.asks)?))
}

pub(super) async fn decide(app: &App, asked: &Asked) -> Result<Response, Problem> {
    answer(app, asked, app.gate.check(&asked.asks).await)
}

pub(super) async fn peek(State(app): State<Arc<App>>, Body(body): Body<CheckBody>) -> Result<Response, Problem> {
    let asked = asked(body)?;
    let decision = app.gate.peek(&asked.asks).await;
    answer(&app, &asked, decision)
}

fn answer(app: &App, asked: &Asked, decision: Result<Decision, Error>) -> Result<Response, Problem> {
    let decision = decision.map_err(|error| app.problem(&asked.placed(error)))?;
    Ok(Answer::to(&decision, asked.listed).response(&decision))
}

pub(super) async fn reserve(
    State(app): State<Arc<App>>,
    Body(mut body): Body<ReserveBody>,
) -> Result<Response, Problem> {
    let options = ReserveOptions {
        lease: body.lease_ms.map(|millis| Duration::from_millis(millis.0)),
        idempotency_key: body.idempotency_key.take(),
    };
    let asked = body.asked().map_err(|invalid| Problem::invalid(&invalid))?;
    let reserved = app.gate.reserve(&asked.asks, &options).await.map_err(|error| {
        // The options belong to the request, not to its one charge.
        let own = matches!(&error, Error::Invalid(e) if ["lease_ms", "idempotency_key"].contains(&e.field.as_str()));
        app.problem(&if own { error } else { asked.placed(error) })
    })?;
    match reserved {
        Reserved::Denied(decision) => Ok(Answer::to(&decision, asked.listed).response(&decision)),
        Reserved::Admitted(admission) => {
            let (decision, expires_at) = (admission.decision().clone(), admission.expires_at());
            // From here on the caller holds it: only the id, or the lease, can end it.
            let id = admission.into_id();
            Ok(Answer::to(&decision, asked.listed).held_as(&id, expires_at).response(&decision))
        }
    }
}

pub(super) async fn batch(
    State(app): State<Arc<App>>,
    Body(body): Body<BatchBody, MAX_BATCH_BYTES>,
) -> Result<Response, Problem> {
    let count = body.checks.len();
    if count == 0 || count > MAX_BATCH {
        return Err(Problem::bad_input("checks", format!("`checks` must be 1 to {MAX_BATCH}; there are {count}")));
    }
    // Memory decides at once: only a store that has to be waited for gains from many at a time.
    let at_once = if app.backend.kind == BackendKind::Memory { 1 } else { AT_ONCE };
    let results = stream::iter(body.checks).map(|Object(check)| one(&app, check)).buffered(at_once);
    let mut json = Vec::with_capacity(count * USUAL_BYTES);
    json.extend_from_slice(br#"{"results":["#);
    let mut results = pin!(results);
    while let Some(result) = results.next().await {
        json.extend_from_slice(&result);
        json.push(b',');
    }
    // There is one at least, and behind the last no comma.
    json.pop();
    json.extend_from_slice(b"]}");
    Ok(json_response(json))
}

/// One check of a batch, with its own outcome, as JSON.
async fn one(app: &App, check: CheckBody) -> Vec<u8> {
    let outcome = async {
        let asked = check.asked().map_err(|invalid| Problem::invalid(&invalid))?;
        let decision = app.gate.check(&asked.asks).await.map_err(|error| app.problem(&asked.placed(error)))?;
        Ok::<_, Problem>(Answer::to(&decision, asked.listed).in_batch().json())
    };
    outcome.await.unwrap_or_else(|problem| {
        let mut json = Vec::new();
        append(&mut json, &problem);
        json
    })
}
