//! Questions of both listeners, and their answers.

use std::collections::HashSet;
use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequest as _, FromRequestParts as _, Request};
use axum::http::header::HeaderName;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use sekisho_elevation::answers::{HeightAnswer, ProfileAnswer, ProfileRequest};
use sekisho_elevation::open_elevation::{LookupError, LookupFailure, LookupRequest, LookupResponse};
use sekisho_elevation::{BadPoint, Elevation, Layer, Pixel, Point, Profile, TilesError, covers};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::asking::{Asking, Tally};
use super::{Heights, page};
use crate::api::{Body, Params};
use crate::quiet::quietly;
use crate::respond::Problem;

/// What the gateway serves of it. The page is its alone.
pub(crate) const PATHS: [&str; 4] = ["/elevation", "/v1/elevation", "/v1/elevation/profile", "/api/v1/lookup"];
pub(crate) const PAGE: &str = PATHS[0];

/// A GPX of a long day is two megabytes.
pub(crate) const MAX_BODY: usize = 8 << 20;
/// Squares of a kilometre that one request may touch: what it can make us ask GSI for has to have an end.
const MAX_AREAS: usize = 1_000;
/// From the question to the answer. What was fetched until then is there when it is asked again.
const DEADLINE: Duration = Duration::from_secs(25);
const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// Where a height is asked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PointQuery {
    /// Degrees north, -90 to 90.
    lat: f64,
    /// Degrees east, -180 to 180.
    lon: f64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LookupQuery {
    /// `35.7,139.8|34.2,132.3`
    locations: String,
}

/// A profile, and where its tiles came from.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProfileView {
    #[serde(flatten)]
    profile: ProfileAnswer,
    tiles: Tally,
}

/// Answers what is one of `PATHS`.
pub(crate) async fn answer(heights: &Heights, request: Request) -> Response {
    let (path, method) = (request.uri().path().to_owned(), request.method().clone());
    let is_get = matches!(method, Method::GET | Method::HEAD);
    let answer = async {
        match path.as_str() {
            PAGE if is_get => Ok(page::answer()),
            "/v1/elevation" if is_get => height(heights, request).await,
            "/v1/elevation/profile" if method == Method::POST => profile(heights, request).await,
            "/api/v1/lookup" if is_get || method == Method::POST => lookup(heights, request).await,
            "/v1/elevation/profile" => Err(not_allowed("POST")),
            "/api/v1/lookup" => Err(not_allowed("GET,HEAD,POST")),
            _ => Err(not_allowed("GET,HEAD")),
        }
    };
    let late = |_| Err(Problem::no_tiles("fetching the tiles takes longer than a request may; ask again", 1));
    timeout(DEADLINE, answer).await.unwrap_or_else(late).unwrap_or_else(IntoResponse::into_response)
}

fn not_allowed(methods: &str) -> Problem {
    Problem::method_not_allowed(Some(methods.to_owned()))
}

async fn height(heights: &Heights, request: Request) -> Result<Response, Problem> {
    let Params(PointQuery { lat, lon }) = Params::from_request_parts(&mut request.into_parts().0, &()).await?;
    let point = Point::new(lat, lon).map_err(|bad| {
        let bad = BadPoint { field: if bad.field == "latitude" { "lat" } else { "lon" }, ..bad };
        Problem::bad_input(bad.field, bad.to_string())
    })?;
    let asking = Asking::new(heights.cache().await);
    let height = elevation(heights, &asking).at(point).await.map_err(|error| problem(&asking, &error))?;
    Ok(with_tiers(&asking, Json(HeightAnswer::new(point, height))))
}

async fn profile(heights: &Heights, request: Request) -> Result<Response, Problem> {
    let Body(asked) = Body::<ProfileRequest, MAX_BODY>::from_request(request, &()).await?;
    let wrong = |error: sekisho_elevation::answers::ProfileRequestError| Problem::bad_input("", error.to_string());
    let (line, settings) = (asked.line().map_err(wrong)?, asked.settings().map_err(wrong)?);
    drop(asked);
    let samples = settings.samples(&line);
    let points: Vec<Point> = samples.samples.iter().map(|sample| sample.point).collect();
    refuse_too_wide(&points).map_err(|reason| Problem::bad_input("", reason))?;
    let asking = Asking::new(heights.cache().await);
    let found = elevation(heights, &asking).along(&points).await.map_err(|error| problem(&asking, &error))?;
    let profile = ProfileAnswer::from(&Profile::new(samples, &found, settings));
    Ok(with_tiers(&asking, Json(ProfileView { profile, tiles: asking.tally() })))
}

/// Open-Elevation's clients know a 400 by its `error`, and nothing of other problems.
async fn lookup(heights: &Heights, request: Request) -> Result<Response, Problem> {
    let refuse = |error: String| Ok((StatusCode::BAD_REQUEST, Json(LookupFailure { error })).into_response());
    let asked = match read_lookup(request).await {
        Err(problem) if problem.is_bad_input() => return refuse(problem.detail().to_owned()),
        asked => asked?,
    };
    let points = match asked.and_then(|asked| asked.points()) {
        Ok(points) => points,
        Err(error) => return refuse(error.to_string()),
    };
    if let Err(reason) = refuse_too_wide(&points) {
        return refuse(reason);
    }
    let asking = Asking::new(heights.cache().await);
    let found = elevation(heights, &asking).along(&points).await.map_err(|error| problem(&asking, &error))?;
    Ok(with_tiers(&asking, Json(LookupResponse::new(&points, &found))))
}

async fn read_lookup(request: Request) -> Result<Result<LookupRequest, LookupError>, Problem> {
    if request.method() == Method::POST {
        let Body(asked) = Body::<LookupRequest, { 1 << 20 }>::from_request(request, &()).await?;
        return Ok(Ok(asked));
    }
    let Params(LookupQuery { locations }) = Params::from_request_parts(&mut request.into_parts().0, &()).await?;
    Ok(LookupRequest::from_query(&locations))
}

fn elevation<'a>(heights: &Heights, asking: &'a Asking<'a>) -> Elevation<&'a Asking<'a>> {
    Elevation::new(asking).with_layers(heights.config.layers.iter().copied())
}

fn refuse_too_wide(points: &[Point]) -> Result<(), String> {
    let area = |point: &Point| Pixel::of(*point, Layer::Dem5a.zoom()).tile();
    let areas: HashSet<_> = points.iter().filter(|point| covers(**point)).map(area).collect();
    match areas.len() {
        many if many > MAX_AREAS => Err(format!(
            "this touches {many} squares of about a kilometre, and one request may touch {MAX_AREAS}: ask for a part at a time"
        )),
        _ => Ok(()),
    }
}

fn with_tiers(asking: &Asking<'_>, answer: impl IntoResponse) -> Response {
    let mut answer = answer.into_response();
    answer.headers_mut().insert(CACHE_STATUS, asking.tally().header());
    answer
}

/// What went wrong at the origin is for the log.
fn problem(asking: &Asking<'_>, error: &TilesError) -> Problem {
    quietly!(warn, %error, "heights could not be told");
    Problem::no_tiles("tiles that are needed for this cannot be had now", asking.retry_after())
}
