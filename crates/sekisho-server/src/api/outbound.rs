//! The sidecar of crawlers in any language: ask before a request leaves, and say what became of it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use futures_util::future::try_join_all;
use schemars::JsonSchema;
use sekisho::Invalid;
use sekisho::clock::Timestamp;
use sekisho::outbound::{
    Acquired, DomainDailyBudget, Kind, MAX_URL, Outbound, Outcome, Permit, Site, not_before, parse_url,
};
use serde::{Deserialize, Serialize};

use super::body::{Body, Params};
use super::request::Amount;
use super::words;
use crate::app::App;
use crate::audit::{Act, Operator};
use crate::governing::Explanation;
use crate::respond::Problem;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Acquire")]
pub(super) struct AcquireBody {
    /// What is to be asked, `http` or `https`.
    #[schemars(extend("maxLength" = MAX_URL, "pattern" = "^[Hh][Tt][Tt][Pp][Ss]?://"))]
    url: String,
    /// A page counts against both budgets; `true` if left out.
    page: Option<bool>,
    /// Whether a turn may be booked that comes later; `true` if left out.
    wait: Option<bool>,
}

/// Whether a request may leave, and when. Times are Unix milliseconds.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "Acquired")]
pub(super) struct AcquiredView {
    allowed: bool,
    /// To be settled when it is known what became of the request.
    permit: Option<String>,
    /// The request may leave only then.
    wait_until: Option<u64>,
    /// The same from now, for those whose clock differs.
    wait_ms: u64,
    /// Why not: `domain_budget_exceeded`, `domain_cooldown`, `domain_busy`. With `allowed` it is what a domain in
    /// `mode: observe` was let through in spite of.
    reason: Option<&'static str>,
    /// The earliest time at which it can be allowed.
    retry_at: Option<u64>,
    /// What is left today of the tightest budget; 2147483647 is unlimited.
    requests_remaining: u64,
    pages_remaining: u64,
    /// The store did not decide: it did not answer, and `on_failure` did.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SettleRequest")]
pub(super) struct SettleBody {
    #[schemars(with = "words::ReservationText")]
    permit: String,
    /// The answer's status, or `not_sent` where nobody could be connected to, or `no_answer`.
    #[schemars(with = "words::RequestStatus")]
    status: Status,
    /// Whether it was a page after all; as it was acquired if left out.
    page: Option<bool>,
    /// The answer's `Retry-After`, as it is: seconds or a date. It counts with 429, 503 and 3xx; what cannot be read does not.
    #[schemars(with = "Option<words::RetryAfterText>")]
    retry_after: Option<RetryAfterText>,
}

/// The answer's status, or `not_sent` where nobody could be connected to, or `no_answer`.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a status from 100 to 599, \"not_sent\" or \"no_answer\"")]
enum Status {
    Answered(Amount),
    None(NoStatus),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NoStatus {
    NotSent,
    NoAnswer,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "seconds, or the text of a Retry-After")]
enum RetryAfterText {
    Seconds(Amount),
    Text(String),
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SettledRequest")]
pub(super) struct SettledView {
    settled: bool,
}

/// What a domain was asked today, and may be.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DomainBudget")]
pub(super) struct DomainView {
    domain: String,
    requests_today: u64,
    pages_today: u64,
    /// 0 is unlimited.
    max_requests_per_day: u64,
    max_pages_per_day: u64,
    /// The day in the domain's zone: `2026-11-16`.
    date: String,
    /// 2147483647 is unlimited.
    requests_remaining: u64,
    pages_remaining: u64,
    /// Nobody may ask before then, in Unix milliseconds.
    cooldown_until: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// At most so many, 1 to 1000; 100 if left out.
    #[schemars(with = "Option<words::ListLength>")]
    limit: Option<usize>,
    /// Those whose name comes after this one.
    after: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Domains")]
pub(super) struct DomainsView {
    /// Those that have a rule, and those that this process was asked about lately; by name.
    domains: Vec<DomainView>,
    /// What to send as `after` for those that follow.
    next: Option<String>,
}

pub(super) async fn acquire(
    State(app): State<Arc<App>>,
    Body(body): Body<AcquireBody>,
) -> Result<Json<AcquiredView>, Problem> {
    let outbound = outbound(&app)?;
    let url = parse_url("url", &body.url).map_err(|invalid| Problem::invalid(&invalid))?;
    let kind = if body.page.unwrap_or(true) { Kind::Page } else { Kind::Request };
    let acquired = match body.wait.unwrap_or(true) {
        true => outbound.acquire(&url, kind).await,
        false => outbound.try_acquire(&url, kind).await,
    };
    Ok(Json(AcquiredView::of(acquired.map_err(|error| app.problem(&error))?)))
}

pub(super) async fn settle(
    State(app): State<Arc<App>>,
    Body(body): Body<SettleBody>,
) -> Result<Json<SettledView>, Problem> {
    let outbound = outbound(&app)?;
    let permit: Permit = body.permit.parse().map_err(|invalid| Problem::invalid(&invalid))?;
    // Seconds are counted from the store's now, or instances whose clocks differ would not agree on them.
    let now = match body.retry_after {
        Some(_) => outbound.time(&permit).await.unwrap_or_else(|_| app.backend.clock.now()),
        None => app.backend.clock.now(),
    };
    let outcome = outcome(&body, now).map_err(|invalid| Problem::invalid(&invalid))?;
    outbound.settle(&permit, outcome).await.map_err(|error| app.problem(&error))?;
    Ok(Json(SettledView { settled: true }))
}

/// What was said of a request, as the engine takes it.
fn outcome(body: &SettleBody, now: Timestamp) -> Result<Outcome, Invalid> {
    // It is another server's header: what cannot be read in it is as if it were not there.
    let asked_for = |status: u64| match &body.retry_after {
        _ if !matches!(status, 300..=399 | 429 | 503) => None,
        None => None,
        Some(RetryAfterText::Seconds(Amount(seconds))) => Some(now + Duration::from_secs(*seconds)),
        Some(RetryAfterText::Text(text)) => not_before(text, now),
    };
    Ok(match &body.status {
        Status::None(NoStatus::NotSent) => Outcome::NotSent,
        Status::None(NoStatus::NoAnswer) => Outcome::NoAnswer,
        Status::Answered(Amount(status @ 100..=599)) => {
            let (page, not_before) = (body.page.unwrap_or(true), asked_for(*status));
            Outcome::Answered { status: u16::try_from(*status).unwrap_or_default(), page, not_before }
        }
        Status::Answered(Amount(status)) => {
            return Err(Invalid::new("status", format!("must be 100 to 599; it is {status}")));
        }
    })
}

pub(super) async fn domain(
    State(app): State<Arc<App>>,
    Path(domain): Path<String>,
) -> Result<Json<DomainView>, Problem> {
    let (outbound, site) = (outbound(&app)?, site(&domain)?);
    outbound.budget(&site).await.map(|budget| Json(budget.into())).map_err(|error| app.problem(&error))
}

pub(super) async fn lift(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(domain): Path<String>,
) -> Result<Json<DomainView>, Problem> {
    let (outbound, site) = (outbound(&app)?, site(&domain)?);
    let act = Act::giving("lift_cooldown").about("domain", site.domain());
    let doing = async { outbound.lift(&site).await.map_err(|error| app.problem(&error)) };
    app.audit.of(&operator, act, doing).await.map(|budget| Json(budget.into()))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainQuery {
    /// A URL, or a domain.
    #[schemars(extend("minLength" = 1, "maxLength" = 1024))]
    url: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ExplainedDomain")]
pub(super) struct ExplainView {
    governed: Explanation,
    budget: DomainView,
}

pub(super) async fn explain(
    State(app): State<Arc<App>>,
    Params(query): Params<ExplainQuery>,
) -> Result<Json<ExplainView>, Problem> {
    let outbound = outbound(&app)?;
    let governed = Explanation::of(&outbound.domains(), &query.url).map_err(|invalid| Problem::invalid(&invalid))?;
    let budget = outbound.budget(&site(&governed.host)?).await.map_err(|error| app.problem(&error))?;
    Ok(Json(ExplainView { governed, budget: budget.into() }))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    Params(query): Params<ListQuery>,
) -> Result<Json<DomainsView>, Problem> {
    let outbound = outbound(&app)?;
    let limit = query.limit.unwrap_or(100);
    if !(1..=1_000).contains(&limit) {
        return Err(Problem::bad_input("limit", "`limit` must be 1 to 1000"));
    }
    let mut names = outbound.known();
    let start = query.after.map_or(0, |after| names.partition_point(|name| **name <= *after));
    let next = names.get(start + limit - 1).filter(|_| start + limit < names.len()).map(ToString::to_string);
    names = names.into_iter().skip(start).take(limit).collect();
    let budgets = try_join_all(names.iter().map(|name| async {
        let site = Site::parse("domain", name)?;
        outbound.budget(&site).await
    }));
    let budgets = budgets.await.map_err(|error| app.problem(&error))?;
    Ok(Json(DomainsView { domains: budgets.into_iter().map(DomainView::from).collect(), next }))
}

fn outbound(app: &App) -> Result<&Outbound, Problem> {
    app.outbound.as_ref().ok_or_else(Problem::no_outbound)
}

fn site(domain: &str) -> Result<Site, Problem> {
    Site::parse("domain", domain).map_err(|invalid| Problem::invalid(&invalid))
}

impl AcquiredView {
    fn of(acquired: Acquired) -> Self {
        match acquired {
            Acquired::Admitted(admitted) => Self {
                allowed: true,
                permit: Some(admitted.permit.to_string()),
                wait_until: admitted.wait_until.map(Timestamp::as_millis_ceil),
                wait_ms: admitted.wait_until.map_or(0, |until| millis(admitted.at, until)),
                reason: admitted.observed.map(|reason| reason.as_str()),
                retry_at: None,
                requests_remaining: admitted.requests_remaining,
                pages_remaining: admitted.pages_remaining,
                degraded: admitted.is_degraded,
            },
            Acquired::Denied(denied) => Self {
                reason: Some(denied.reason.as_str()),
                retry_at: denied.retry_at.map(Timestamp::as_millis_ceil),
                requests_remaining: denied.requests_remaining,
                pages_remaining: denied.pages_remaining,
                degraded: denied.is_degraded,
                ..Self::default()
            },
        }
    }
}

fn millis(from: Timestamp, until: Timestamp) -> u64 {
    u64::try_from(until.since(from).as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

impl From<DomainDailyBudget> for DomainView {
    fn from(budget: DomainDailyBudget) -> Self {
        Self {
            domain: budget.domain,
            requests_today: budget.requests_today,
            pages_today: budget.pages_today,
            max_requests_per_day: budget.max_requests_per_day,
            max_pages_per_day: budget.max_pages_per_day,
            date: budget.date,
            requests_remaining: budget.requests_remaining,
            pages_remaining: budget.pages_remaining,
            cooldown_until: budget.cooldown_until.map(Timestamp::as_millis_ceil),
        }
    }
}
