//! `GET /metrics` in Prometheus's text format. Every server has a recorder of its own: two in one process do not mix.

mod recorder;
mod tally;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use metrics::{Counter, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use parking_lot::RwLock;
use sekisho::clock::Stopwatch;
use sekisho::keyspace::{Category, Survey};
use tokio::runtime::Handle;

use crate::app::App;
use recorder::Recorder;

/// As OpenTelemetry has them for HTTP, with finer ones below: a decision in memory takes microseconds.
const SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0];
const COUNTS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 1_000.0, 10_000.0];
/// How many statuses a route is expected to answer with.
const USUAL_STATUSES: usize = 16;
/// How often what nobody asks for is brought to now.
pub(crate) const UPKEEP: Duration = Duration::from_secs(1);

pub(crate) struct Metrics {
    recorder: Recorder,
    /// False while the file that should be served could not be read, and the last good one is.
    config_ok: AtomicBool,
    /// True while the Redis of sessions may throw them away.
    sessions_may_be_evicted: AtomicBool,
    /// True once the server was told to stop.
    leaving: Arc<AtomicBool>,
    /// Where tasks run, once anything does.
    runtimes: OnceLock<Vec<Handle>>,
    /// By door and route, made when they are first asked for.
    routes: RwLock<HashMap<(Door, String), Arc<RouteMeter>>>,
}

type Door = &'static str;

/// What was answered on one route of a door. The route as it is configured, never the path: a label must not grow with what
/// clients make up.
pub(crate) struct RouteMeter {
    door: Door,
    route: String,
    duration: Histogram,
    /// By status, made when the first answer of the kind goes out.
    counts: [OnceLock<(u16, Counter)>; USUAL_STATUSES],
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            recorder: Recorder::new([("_seconds", &SECONDS), ("", &COUNTS)]),
            config_ok: AtomicBool::new(true),
            sessions_may_be_evicted: AtomicBool::new(false),
            leaving: Arc::default(),
            runtimes: OnceLock::new(),
            routes: RwLock::default(),
        };
        metrics.collect(|| {
            describe_gauge!("sekisho_build_info", "The version that runs");
            describe_counter!("sekisho_http_requests_total", "Requests answered, by listener, route and status");
            describe_histogram!(
                "sekisho_http_request_duration_seconds",
                "From the head of a request to that of its answer"
            );
            describe_counter!("sekisho_config_reload_total", "Attempts to take up a changed configuration");
            describe_gauge!("sekisho_config_last_reload_success_timestamp_seconds", "When that last succeeded");
            describe_counter!("sekisho_audit_failures_total", "Lines of the audit log that could not be written");
            counter!("sekisho_audit_failures_total").increment(0);
            describe_gauge!("sekisho_sessions_may_evict", "1 if the store may throw sessions away to make room");
            gauge!("sekisho_sessions_may_evict").set(0.0);
            describe_gauge!("sekisho_tasks", "Tasks that are alive, those of connections among them");
            describe_gauge!("sekisho_keys", "Keys in the store by category, as last counted");
            describe_gauge!("sekisho_keys_memory_bytes", "What they take, estimated from a sample");
            describe_gauge!("sekisho_store_memory_bytes", "What the store takes in all, as it says");
            gauge!("sekisho_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        });
        metrics
    }
}

impl Metrics {
    /// What is registered meanwhile is registered here.
    pub(crate) fn collect<T>(&self, register: impl FnOnce() -> T) -> T {
        metrics::with_local_recorder(&self.recorder, register)
    }

    pub(crate) fn is_config_ok(&self) -> bool {
        self.config_ok.load(Ordering::Relaxed)
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// For those who must not ask for it by every request.
    pub(crate) fn leaving(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.leaving)
    }

    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Of all tasks that are counted from now on.
    pub(crate) fn watch_tasks(&self, runtimes: Vec<Handle>) {
        // A server runs once.
        let _ = self.runtimes.set(runtimes);
    }

    fn count_tasks(&self) {
        let Some(runtimes) = self.runtimes.get() else { return };
        let alive: usize = runtimes.iter().map(|runtime| runtime.metrics().num_alive_tasks()).sum();
        self.collect(|| gauge!("sekisho_tasks").set(alive as f64));
    }

    pub(crate) fn may_evict_sessions(&self) -> bool {
        self.sessions_may_be_evicted.load(Ordering::Relaxed)
    }

    pub(crate) fn sessions_may_be_evicted(&self, may_evict: bool) {
        self.sessions_may_be_evicted.store(may_evict, Ordering::Relaxed);
        self.collect(|| gauge!("sekisho_sessions_may_evict").set(f64::from(u8::from(may_evict))));
    }

    /// `at` in Unix seconds.
    pub(crate) fn reloaded(&self, is_ok: bool, at: f64) {
        self.config_ok.store(is_ok, Ordering::Relaxed);
        self.collect(|| {
            let result = if is_ok { "success" } else { "failure" };
            counter!("sekisho_config_reload_total", "result" => result).increment(1);
            if is_ok {
                gauge!("sekisho_config_last_reload_success_timestamp_seconds").set(at);
            }
        });
    }

    pub(crate) fn audit_failed(&self) {
        self.collect(|| counter!("sekisho_audit_failures_total").increment(1));
    }

    /// What the store held when it was last looked at.
    pub(crate) fn counted(&self, survey: &Survey) {
        self.collect(|| {
            for (category, figures) in Category::ALL.iter().zip(&survey.categories) {
                let name = category.as_str();
                gauge!("sekisho_keys", "category" => name).set(figures.keys as f64);
                gauge!("sekisho_keys_memory_bytes", "category" => name).set(figures.memory as f64);
            }
            gauge!("sekisho_store_memory_bytes").set(survey.used_memory as f64);
        });
    }

    pub(crate) fn rendered(&self) -> String {
        self.recorder.render()
    }

    pub(crate) fn route(&self, door: Door, route: &str) -> Arc<RouteMeter> {
        let key = (door, route.to_owned());
        if let Some(known) = self.routes.read().get(&key) {
            return Arc::clone(known);
        }
        let label = key.1.clone();
        let duration = self
            .collect(|| histogram!("sekisho_http_request_duration_seconds", "door" => door, "route" => label.clone()));
        let meter = RouteMeter { door, route: label, duration, counts: Default::default() };
        Arc::clone(self.routes.write().entry(key).or_insert_with(|| Arc::new(meter)))
    }

    pub(crate) fn answered(&self, route: &RouteMeter, status: StatusCode, since: &Stopwatch) {
        route.duration.record(since.seconds());
        let status = status.as_u16();
        let count = || {
            let (door, route) = (route.door, route.route.clone());
            self.collect(|| counter!("sekisho_http_requests_total", "door" => door, "route" => route, "status" => status.to_string()))
        };
        for known in &route.counts {
            let (of, counter) = known.get_or_init(|| (status, count()));
            if *of == status {
                return counter.increment(1);
            }
        }
        count().increment(1);
    }
}

impl fmt::Debug for RouteMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteMeter").field("door", &self.door).field("route", &self.route).finish_non_exhaustive()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

pub(crate) async fn render(State(app): State<Arc<App>>) -> Response {
    app.gate.upkeep();
    app.metrics.count_tasks();
    app.backend.revocations.report();
    app.caches.report();
    if let Some(heights) = &app.elevation {
        heights.report();
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.rendered()).into_response()
}

/// Counts what passes through the API's router.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = app.metrics.route("api", request.extensions().get().map_or("other", MatchedPath::as_str));
    let start = Stopwatch::start();
    let answer = next.run(request).await;
    app.metrics.answered(&route, answer.status(), &start);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_counts_more_statuses_than_it_is_expected_to_have() {
        let metrics = Metrics::default();
        let route = metrics.route("api", "/x");
        let statuses = 400..400 + 2 * USUAL_STATUSES as u16;
        for status in statuses.clone().chain(statuses.clone()) {
            metrics.answered(&route, StatusCode::from_u16(status).unwrap(), &Stopwatch::start());
        }
        let text = metrics.rendered();
        for status in statuses {
            let line = format!("sekisho_http_requests_total{{door=\"api\",route=\"/x\",status=\"{status}\"}} 2\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
