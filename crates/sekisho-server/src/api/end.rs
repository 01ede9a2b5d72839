//! Settle and release.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use sekisho::limits::{Ended, Ending, ReservationId};
use serde_json::{Map, Value, json};

use super::body::Body;
use super::request::{ReleaseBody, SettleBody};
use crate::app::App;
use crate::respond::Problem;

pub(super) async fn settle(State(app): State<Arc<App>>, Body(body): Body<SettleBody>) -> Result<Json<Value>, Problem> {
    let id = reservation(&body.reservation)?;
    let cost = body.cost.cost().map_err(|invalid| Problem::invalid(&invalid))?;
    let ended = app.gate.settle(&id, &cost).await.map_err(|error| app.problem(&error))?;
    expect(&ended, Ending::Settled)?;
    let charged: Map<String, Value> = ended.charged.into_iter().map(|(unit, amount)| (unit, amount.into())).collect();
    Ok(Json(json!({ "state": "settled", "charged": charged })))
}

pub(super) async fn release(
    State(app): State<Arc<App>>,
    Body(body): Body<ReleaseBody>,
) -> Result<Json<Value>, Problem> {
    let id = reservation(&body.reservation)?;
    let ended = app.gate.release(&id).await.map_err(|error| app.problem(&error))?;
    expect(&ended, Ending::Released)?;
    Ok(Json(json!({ "state": "released" })))
}

fn reservation(text: &str) -> Result<ReservationId, Problem> {
    text.parse().map_err(|invalid| Problem::invalid(&invalid))
}

/// A repeated end is fine; another end than the one asked for is a conflict.
fn expect(ended: &Ended, expected: Ending) -> Result<(), Problem> {
    if ended.ending == expected { Ok(()) } else { Err(Problem::already_ended(ended.ending)) }
}
