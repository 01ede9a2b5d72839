//! A greedy crawler of one domain under several paces, and the budget that ends each of them.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use sekisho::backend::Backend;
use sekisho::clock::{Clock as _, ManualClock, Timestamp};
use sekisho::limits::Capacity;
use sekisho::outbound::{Acquired, Domains, Kind, Outbound, Outcome, Settings, Terms, parse_url};

use crate::svg::Svg;

/// The start of a day.
const START: Timestamp = Timestamp::from_secs(1_767_225_600);
const MINUTES: u64 = 40;
const BUDGET: u64 = 200;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 704.0;
const TOP: f64 = 74.0;
const FLOOR: f64 = 282.0;

/// What it is called, its colour, and its requests a second.
const PACES: [(&str, &str, f64); 3] =
    [("interval 1.5 s to 5.5 s", "blue", 0.0), ("and qps 0.2", "violet", 0.2), ("and qps 0.1", "orange", 0.1)];

pub(crate) async fn picture() -> Result<String, Box<dyn Error>> {
    let title = "A greedy crawler of one domain: 200 requests a day";
    let mut svg = Svg::new(title);
    svg.text("ink", 44, 22, "start", title);
    svg.text("soft", 44, 42, "start", "requests since midnight, between the shortest and the longest interval");
    for minute in (0..=MINUTES).step_by(5) {
        svg.line("grid", x(minute * 60), TOP, x(minute * 60), FLOOR);
        svg.text("soft", x(minute * 60) as u64, 300, "middle", &minute.to_string());
    }
    svg.text("soft", 704, 314, "end", "minutes after midnight");
    for (i, (name, colour, qps)) in PACES.into_iter().enumerate() {
        let terms = Terms { qps, max_requests_per_day: BUDGET, max_pages_per_day: 0, ..Terms::default() };
        let (shortest, longest) = terms.pace();
        let fast = crawl(Terms { interval: (shortest, shortest), ..terms.clone() }).await?;
        let slow = crawl(Terms { interval: (longest, longest), ..terms }).await?;
        svg.path(&format!("{colour} band"), &band(&fast, &slow));
        svg.text(colour, 696, 200 + 18 * i as u64, "end", name);
    }
    svg.line("limit", LEFT, y(BUDGET), RIGHT, y(BUDGET));
    svg.text("limit-text", 704, 68, "end", "the day\u{2019}s budget");
    svg.line("axis", LEFT, FLOOR, RIGHT, FLOOR);
    svg.text("soft", 38, 78, "end", "200");
    Ok(svg.finish())
}

/// When each request left, in seconds: it asks again as soon as one is settled.
async fn crawl(terms: Terms) -> Result<Vec<u64>, Box<dyn Error>> {
    let clock = ManualClock::at(START);
    let store = Backend::memory_on(Capacity::default(), Arc::new(clock.clone())).outbound;
    let outbound = Outbound::new(Domains::new(terms, Settings::default())?, store);
    let url = parse_url("url", "https://example.com/")?;
    let mut left = Vec::new();
    while clock.now() < START + Duration::from_secs(MINUTES * 60) {
        let Acquired::Admitted(admitted) = outbound.acquire(&url, Kind::Request).await? else { break };
        clock.set(admitted.wait_until.unwrap_or(admitted.at));
        left.push(clock.now().since(START).as_secs());
        outbound.settle(&admitted.permit, Outcome::Answered { status: 200, page: false, not_before: None }).await?;
    }
    Ok(left)
}

/// The area between two crawls, each of which stays where it is when it is over.
fn band(fast: &[u64], slow: &[u64]) -> String {
    let mut d = String::from("M");
    let mut to = |at: u64, n: u64| {
        let _infallible = write!(d, "{:.1} {:.1} ", x(at), y(n));
    };
    fast.iter().zip(1..=BUDGET).filter(|(at, _)| **at <= MINUTES * 60).for_each(|(at, n)| to(*at, n));
    to(MINUTES * 60, fast.len() as u64);
    to(MINUTES * 60, slow.len() as u64);
    let in_time: Vec<_> = slow.iter().zip(1..=BUDGET).filter(|(at, _)| **at <= MINUTES * 60).collect();
    in_time.iter().rev().for_each(|(at, n)| to(**at, *n));
    d + "Z"
}

fn x(second: u64) -> f64 {
    LEFT + (RIGHT - LEFT) * second as f64 / (MINUTES * 60) as f64
}

fn y(n: u64) -> f64 {
    FLOOR - (FLOOR - TOP) * n as f64 / BUDGET as f64
}
