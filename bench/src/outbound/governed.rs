//! The same through the domain's own engine: which policy holds, acquire, settle.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sekisho::key::Subject;
use sekisho::limits::{Charge, Cost, LimitStore, Limits, Period, Policy, RedisStore, Rule, TimeZone};
use sekisho::limits::{ReserveOptions, Reserved};
use sekisho::outbound::{Acquired, DomainPolicy, Domains, Kind, Outbound, Outcome, Settings, Site, Terms, parse_url};
use sekisho_testkit::RedisServer;
use url::Url;

const RULES: usize = 100_000;
const ROUNDS: usize = 5;
const TASKS: usize = 64;

/// Nobody waits, and nobody is denied.
fn open_terms() -> Terms {
    let none = Duration::ZERO;
    Terms { max_requests_per_day: 0, max_pages_per_day: 0, interval: (none, none), concurrency: 0, ..Terms::default() }
}

/// Under those terms.
pub(super) fn open(store: Arc<dyn LimitStore>) -> anyhow::Result<Outbound> {
    Ok(Outbound::new(Domains::new(open_terms(), Settings::default())?, store))
}

pub(super) fn url(number: usize) -> anyhow::Result<Url> {
    Ok(parse_url("url", &format!("https://domain-{number:07}.example/"))?)
}

pub(super) fn urls(domains: usize) -> anyhow::Result<Vec<Url>> {
    (0..domains).map(url).collect()
}

fn rules() -> anyhow::Result<Domains> {
    let names: Vec<String> = (0..RULES).map(|i| format!("domain-{i}.example")).collect();
    let policy = |i: usize| DomainPolicy { max_requests_per_day: Some(1 + (i % 50) as u64), ..DomainPolicy::default() };
    let listed = names.iter().enumerate().map(|(i, name)| (name.as_str(), policy(i)));
    let domains = Domains::new(Terms::default(), Settings::default())?.with_rules(listed);
    domains.map_err(|(_, invalid)| invalid.into())
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(super) fn lookup() -> anyhow::Result<()> {
    println!("\n## Which policy holds, among {RULES} rules, ns each\n");
    println!("| | ns |\n|---|---|");
    let domains = rules()?;
    let urls: Vec<_> = (0..RULES).map(|i| format!("https://www.domain-{}.example/page", i * 7_919 % RULES)).collect();
    let urls: Vec<_> = urls.iter().map(|url| parse_url("url", url)).collect::<Result<_, _>>()?;
    let sites: Vec<_> = urls.iter().map(Site::of).collect::<Result<_, _>>()?;
    let per = |start: Instant| start.elapsed().as_nanos() as f64 / RULES as f64;
    let (mut found, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for site in &sites {
            black_box(domains.terms(site).max_requests_per_day);
        }
        found.push(per(start));
        let start = Instant::now();
        for url in &urls {
            black_box(domains.terms(&Site::of(url)?).max_requests_per_day);
        }
        whole.push(per(start));
    }
    println!(
        "| of a site | {:.0} |\n| of a URL, its registrable domain included | {:.0} |",
        middle(found),
        middle(whole)
    );
    Ok(())
}

pub(super) async fn pair(outbound: &Outbound, url: &Url) {
    let Acquired::Admitted(admitted) = outbound.acquire(url, Kind::Page).await.unwrap() else { panic!("it is open") };
    let outcome = Outcome::Answered { status: 200, page: true, not_before: None };
    outbound.settle(&admitted.permit, outcome).await.unwrap();
}

/// The rules of a domain, without what knows of domains.
fn same_rules() -> anyhow::Result<Policy> {
    let day = |name: &str| Rule::calendar(1_000_000_000_000, Period::Day, TimeZone::UTC)?.named(name)?.counting(name);
    let rules = vec![
        Rule::block().named("cooldown")?.counting("turns")?,
        day("requests")?,
        day("pages")?,
        Rule::interval(Duration::from_micros(1), Duration::from_micros(1), Duration::from_secs(60))?
            .counting("turns")?,
        Rule::concurrency(1_000_000_000_000)?.counting("turns")?,
        Rule::sliding_log(1_000_000_000_000, Duration::from_secs(86_400))?.named("incidents")?.counting("incidents")?,
    ];
    Ok(Policy::new("plain", rules)?)
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(super) fn redis() -> anyhow::Result<()> {
    println!("\n## Acquire and settle on Redis, pairs a second ({TASKS} tasks, 10,000 domains)\n");
    println!("| | pairs a second |\n|---|---|");
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let store: Arc<dyn LimitStore> =
        Arc::new(runtime.block_on(RedisStore::connect(&server.url(), Duration::from_secs(10), None))?);
    let outbound = open(Arc::clone(&store))?;
    let limits = Arc::new(Limits::new(vec![same_rules()?], store)?);
    let cost = Cost::requests(1)?.and("pages", 1)?.and("turns", 1)?;
    let (mut governed, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for is_plain in [false, true] {
            let start = Instant::now();
            let done: usize = runtime.block_on(async {
                let mut tasks = Vec::new();
                for task in 0..TASKS {
                    let (outbound, limits, cost) = (outbound.clone(), Arc::clone(&limits), cost.clone());
                    tasks.push(tokio::spawn(async move {
                        let mut done = 0;
                        while start.elapsed() < Duration::from_secs(2) {
                            let number = (task * 7_919 + done * 104_729) % 10_000;
                            let name = format!("domain-{number:07}.example");
                            if is_plain {
                                let charges =
                                    [Charge::new("plain", Subject::new(&name).unwrap()).costing(cost.clone())];
                                let reserved = limits.reserve(&charges, &ReserveOptions::default()).await.unwrap();
                                let Reserved::Admitted(admission) = reserved else { panic!("it is open") };
                                admission.settle(&cost).await.unwrap();
                            } else {
                                pair(&outbound, &url(number).unwrap()).await;
                            }
                            done += 1;
                        }
                        done
                    }));
                }
                let mut all = 0;
                for task in tasks {
                    all += task.await.unwrap();
                }
                all
            });
            let rate = done as f64 / start.elapsed().as_secs_f64();
            if is_plain { plain.push(rate) } else { governed.push(rate) }
        }
    }
    let (governed, plain) = (middle(governed), middle(plain));
    println!(
        "| outbound | {governed:.0} |\n| the engine, with the same rules | {plain:.0} |\n| ratio | ×{:.2} |",
        governed / plain
    );
    Ok(())
}

fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
