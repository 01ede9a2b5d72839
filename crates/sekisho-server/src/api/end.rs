//! Settle and release.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use sekisho::limits::{Degraded, Ended, Ending, ReservationId};

use super::answer::{Released, Settled, label};
use super::body::Body;
use super::request::{ReleaseBody, SettleBody};
use crate::app::App;
use crate::respond::Problem;

pub(super) async fn settle(State(app): State<Arc<App>>, Body(body): Body<SettleBody>) -> Result<Response, Problem> {
    let id = reservation(&body.reservation)?;
    let cost = body.cost.cost().map_err(|invalid| Problem::invalid(&invalid))?;
    let ended = app.gate.settle(&id, &cost).await.map_err(|error| app.problem(&error))?;
    expect(&ended, Ending::Settled)?;
    let degraded = ended.degraded;
    let settled = Settled { state: "settled", charged: ended.charged.into_iter().collect() };
    Ok(labelled(Json(settled).into_response(), degraded))
}

pub(super) async fn release(State(app): State<Arc<App>>, Body(body): Body<ReleaseBody>) -> Result<Response, Problem> {
    let id = reservation(&body.reservation)?;
    let ended = app.gate.release(&id).await.map_err(|error| app.problem(&error))?;
    expect(&ended, Ending::Released)?;
    Ok(labelled(Json(Released { state: "released" }).into_response(), ended.degraded))
}

fn labelled(mut response: Response, degraded: Option<Degraded>) -> Response {
    label(&mut response, degraded);
    response
}

fn reservation(text: &str) -> Result<ReservationId, Problem> {
    text.parse().map_err(|invalid| Problem::invalid(&invalid))
}

/// A repeated end is fine; another end than the one asked for is a conflict.
fn expect(ended: &Ended, expected: Ending) -> Result<(), Problem> {
    if ended.ending == expected { Ok(()) } else { Err(Problem::already_ended(ended.ending)) }
}
