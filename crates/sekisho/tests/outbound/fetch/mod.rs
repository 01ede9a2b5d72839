//! The fetcher against real servers on loopback, which write down all that they are asked. Names lead there by a resolver
//! of the tests' own, so that several domains can be told apart.

mod addresses;
mod bodies;
mod ledger;
mod pace;
mod robots;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use sekisho::clock::{Clock, Timestamp};
use sekisho::limits::{Capacity, MemoryStore};
use sekisho::outbound::fetch::{Addresses, FetchParts, FetchRequest, FetchTerms, Fetched, Fetcher, Guard, Resolve};
use sekisho::outbound::{Domains, Outbound, Settings, Terms};
use tokio::time::Instant;

use super::NOON;

pub(super) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Loopback too, and not allowed in any test.
pub(super) const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Real time from noon on: no test runs over midnight.
#[derive(Debug)]
struct FromNoon(Instant);

impl Clock for FromNoon {
    fn now(&self) -> Timestamp {
        NOON + self.0.elapsed()
    }
}

/// One request as the server saw it.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) host: String,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    /// From 1 on, among those for the same host and path.
    pub(super) number: usize,
}

/// Answers as it is told, and remembers what it was asked and how it answered.
pub(super) struct Origin {
    pub(super) address: SocketAddr,
    log: Arc<Mutex<Vec<(Asked, u16)>>>,
}

impl Origin {
    pub(super) async fn start(answer: impl Fn(&Asked) -> Response + Send + Sync + 'static) -> Self {
        Self::start_at(LOOPBACK, answer).await
    }

    pub(super) async fn start_at(ip: IpAddr, answer: impl Fn(&Asked) -> Response + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind((ip, 0)).await.unwrap();
        let (address, log, answer) =
            (listener.local_addr().unwrap(), Arc::<Mutex<Vec<_>>>::default(), Arc::new(answer));
        let all = Arc::clone(&log);
        let router = axum::Router::new().fallback(async move |request: axum::extract::Request| {
            let headers = request.headers().clone();
            let host = headers["host"].to_str().unwrap().split(':').next().unwrap().to_owned();
            let path = request.uri().to_string();
            let mut all = all.lock();
            let is_same = |(asked, _): &&(Asked, u16)| asked.host == host && asked.path == path;
            let number = all.iter().filter(is_same).count() + 1;
            let asked = Asked { host, path, headers, number };
            let response = answer(&asked);
            all.push((asked, response.status().as_u16()));
            response
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, log }
    }

    pub(super) fn url(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.address.port())
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.log.lock().iter().map(|(asked, _)| asked.clone()).collect()
    }

    /// Paths and statuses of what one host was asked.
    pub(super) fn log_of(&self, host: &str) -> Vec<(String, u16)> {
        let log = self.log.lock();
        let of_host = log.iter().filter(|(asked, _)| asked.host == host);
        of_host.map(|(asked, status)| (asked.path.clone(), *status)).collect()
    }
}

/// All names lead to loopback, but for those that are led elsewhere.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// One answer after the other; the last one stays.
    pub(super) led: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    /// Of these nobody ever says where they lead.
    silent: Mutex<Vec<String>>,
}

impl Names {
    pub(super) fn lead(&self, host: &str, answers: &[&[IpAddr]]) {
        let answers = answers.iter().rev().map(|answer| answer.to_vec()).collect();
        self.led.lock().insert(host.to_owned(), answers);
    }

    pub(super) fn silence(&self, host: &str) {
        self.silent.lock().push(host.to_owned());
    }
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, host: &'a str) -> Addresses<'a> {
        let mut led = self.led.lock();
        let answer = led.get_mut(host).and_then(|answers| match answers.len() {
            0 | 1 => answers.last().cloned(),
            _ => answers.pop(),
        });
        let is_silent = self.silent.lock().iter().any(|silent| silent == host);
        Box::pin(async move {
            if is_silent {
                std::future::pending::<()>().await;
            }
            Ok(answer.unwrap_or_else(|| vec![LOOPBACK]))
        })
    }
}

/// A fetcher, and the budgets it goes by.
pub(super) struct Crawl {
    pub(super) fetcher: Fetcher,
    pub(super) outbound: Outbound,
    pub(super) names: Arc<Names>,
}

impl Crawl {
    /// Without any pace, and with plenty of budget.
    pub(super) fn start() -> Self {
        Self::under(free(), terms(), FetchParts::default())
    }

    pub(super) fn under(domain: Terms, terms: FetchTerms, parts: FetchParts) -> Self {
        let store = MemoryStore::new(Capacity::default(), Arc::new(FromNoon(Instant::now())));
        let outbound = Outbound::new(Domains::new(domain, Settings::default()).unwrap(), Arc::new(store));
        let names = Arc::new(Names::default());
        let fetcher = fetcher(&outbound, &names, terms, parts);
        Self { fetcher, outbound, names }
    }

    pub(super) async fn fetch(&self, url: &str) -> Fetched {
        self.fetcher.fetch(&FetchRequest::get(url).unwrap()).await.unwrap()
    }

    /// Waits for its turn.
    pub(super) async fn wait_for(&self, url: &str) -> Fetched {
        self.fetcher.fetch(&FetchRequest::get(url).unwrap().waiting()).await.unwrap()
    }

    /// Requests and pages of today.
    pub(super) async fn spent(&self, domain: &str) -> (u64, u64) {
        let budget = self.outbound.get_domain_budget(domain).await.unwrap();
        (budget.requests_today, budget.pages_today)
    }
}

/// Only 127.0.0.1 is let through.
pub(super) fn fetcher(outbound: &Outbound, names: &Arc<Names>, terms: FetchTerms, parts: FetchParts) -> Fetcher {
    let guard = Guard::allowing([LOOPBACK.into()]);
    let parts = FetchParts { guard, resolver: Arc::clone(names) as _, ..parts };
    Fetcher::new(outbound.clone(), terms, parts).unwrap()
}

pub(super) fn free() -> Terms {
    Terms {
        interval: (Duration::ZERO, Duration::ZERO),
        max_requests_per_day: 10_000,
        max_pages_per_day: 0,
        ..Terms::default()
    }
}

/// Patient enough for a busy machine, and quick to try again.
pub(super) fn terms() -> FetchTerms {
    FetchTerms { idle: Duration::from_secs(60), backoff: Duration::from_millis(1), ..FetchTerms::default() }
}

/// What went wrong, as people read it.
pub(super) fn reason(fetched: &Fetched) -> &'static str {
    fetched.reason.map_or("ok", |reason| reason.as_str())
}

pub(super) fn redirect(to: &str) -> Response {
    (axum::http::StatusCode::FOUND, [("location", to.to_owned())]).into_response()
}

pub(super) fn status(status: u16) -> Response {
    axum::http::StatusCode::from_u16(status).unwrap().into_response()
}
