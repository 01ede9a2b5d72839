//! Heights for clients: the same as on the API, under a policy.

use axum::body::Body;
use axum::http::Request;
use axum::http::request::Parts;
use sekisho::gate::Ask;
use sekisho::http::fields;
use sekisho::limits::Cost;

use super::{denied, turn};
use crate::app::App;
use crate::elevation::door;
use crate::facts::{self, Peer};
use crate::payload::{Response, gathered};
use crate::respond::Problem;
use crate::{caller, elevation};

/// Whether a path is one of those, and which.
pub(super) fn asked(app: &App, path: &str) -> Option<usize> {
    app.elevation.as_ref()?;
    door::PATHS.iter().position(|known| *known == path)
}

/// The page itself costs nothing; what it asks for does.
pub(super) async fn answer(app: &App, peer: Peer, head: Parts, body: Option<Body>) -> Result<Response, Problem> {
    let Some(heights) = &app.elevation else { return Err(Problem::not_found()) };
    let policy = app.config.elevation.as_ref().map(|elevation| &elevation.policy);
    let answer = async |head, body: Option<Body>| {
        gathered(door::answer(heights, Request::from_parts(head, body.unwrap_or_default())).await).await
    };
    let Some(policy) = policy.filter(|_| head.uri.path() != elevation::door::PAGE) else {
        return Ok(answer(head, body).await);
    };
    let client = facts::client(app, peer, &head.headers);
    let caller = caller::establish(app, &[], policy, "", client, &head.headers).await?;
    let who = facts::who(app, policy, client, &caller, Some(head.uri.path()), &head.headers)?;
    let asks = [Ask { policy: (&**policy).into(), who, cost: Cost::default() }];
    let decision = app.gate.check(&asks).await.map_err(|error| app.problem(&error))?;
    if !decision.allowed {
        return Ok(denied(app, &decision));
    }
    turn(&decision).await;
    let mut answer = answer(head, body).await;
    fields::add(answer.headers_mut(), app.config.headers, &decision);
    Ok(answer)
}
