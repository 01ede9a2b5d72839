//! Requests that go out.

use axum::http::StatusCode;
use serde_json::json;

use super::super::fetch::{self, FetchBody, FetchedView};
use super::super::outbound::{
    self, AcquireBody, AcquiredView, DomainView, DomainsView, ExplainQuery, ExplainView, ListQuery, SettleBody,
    SettledView,
};
use super::super::words;
use super::Route;
use crate::openapi::{Answer, Operation};

pub(super) fn routes() -> Vec<Route> {
    let operation =
        |id, summary| Operation::new("outbound", id, summary).fails(&[StatusCode::NOT_FOUND]).asks_the_store();
    let of_domain =
        |id, summary| operation(id, summary).in_path("domain", words::domain()).fails(&[StatusCode::BAD_REQUEST]);
    let ok = |description| Answer::new(StatusCode::OK, description);
    vec![
        Route::post(
            "/v1/outbound/acquire",
            outbound::acquire,
            operation("acquire", "Whether a request may go out, and when; books its turn")
                .asks::<AcquireBody>(json!({ "url": "https://example.com/page", "page": true }))
                .answers(ok("Also where it may not.").json::<AcquiredView>()),
        ),
        Route::post(
            "/v1/outbound/settle",
            outbound::settle,
            operation("settleRequest", "Says what became of a request")
                .asks::<SettleBody>(
                    json!({ "permit": "AQABAgMEBQYHCAkKCwwNDg8GCiQbsccAAAhvdXRib3VuZAALZXhhbXBsZS5jb20AAAYAAAAAAQAAAAABAAAAAAEAAAAAAQAAAAABAAAAAABlOnHi", "status": 200 }),
                )
                .answers(ok("It is settled, now or before.").json::<SettledView>()),
        ),
        Route::get(
            "/v1/outbound/explain",
            outbound::explain,
            operation("explainDomain", "Whom a URL is charged to, by which rules, and what is left")
                .queries::<ExplainQuery>()
                .answers(ok("The rules and the budget.").json::<ExplainView>()),
        ),
        Route::post(
            "/v1/fetch",
            fetch::fetch,
            operation("fetch", "Fetches a URL, politely: budgets, robots.txt, redirects and retries are seen to")
                .asks::<FetchBody>(json!({ "url": "https://example.com/page", "wait": true }))
                .reads_header(
                    "Accept",
                    "`application/octet-stream` asks for the body as it is, up to `outbound.max_file_bytes`",
                )
                .answers(ok("Also where it was not allowed, or nobody answered.").json::<FetchedView>().or_bytes())
                .fails(&[StatusCode::INTERNAL_SERVER_ERROR]),
        ),
        Route::get(
            "/v1/outbound/domains",
            outbound::list,
            operation("domains", "What domains were asked today, and may be")
                .queries::<ListQuery>()
                .answers(ok("By name.").json::<DomainsView>()),
        ),
        Route::get(
            "/v1/outbound/domains/{domain}",
            outbound::domain,
            of_domain("domain", "What one domain was asked today, and may be")
                .answers(ok("Its budget.").json::<DomainView>()),
        ),
        Route::delete(
            "/v1/outbound/domains/{domain}/cooldown",
            outbound::lift,
            of_domain("liftCooldown", "Lets a domain be asked again that wanted to be left alone")
                .answers(ok("It may; what was spent stays spent.").json::<DomainView>()),
        ),
    ]
}
