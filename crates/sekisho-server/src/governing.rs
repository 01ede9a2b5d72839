//! What holds for the domains that are asked, for people to read.

use std::time::Duration;

use schemars::JsonSchema;
use sekisho::Invalid;
use sekisho::outbound::{Charged, Domains, Site, Terms, parse_url};
use serde::Serialize;

/// Whom a URL is charged to, and by which rules.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Governed")]
pub struct Explanation {
    /// As it is counted: lower case, in Punycode, without a port.
    pub host: String,
    /// The part that somebody registered.
    pub domain: String,
    /// All that a request has to pass together, the most specific first.
    pub rules: Vec<GoverningView>,
}

/// One rule that holds for a domain.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DomainPolicy")]
pub struct GoverningView {
    /// Whose budget it is.
    pub charged: String,
    /// The domain that the policy file names, or `default_policy`.
    pub rule: String,
    /// 0 is unlimited.
    pub max_requests_per_day: u64,
    pub max_pages_per_day: u64,
    /// Seconds between two requests, at least and at most.
    pub interval: (f64, f64),
    /// 0 is any number.
    pub concurrency: u64,
    /// Whose midnight ends the day.
    pub zone: String,
    /// `enforce` or `observe`.
    pub mode: &'static str,
    pub robots: bool,
    pub not_modified_cost: u64,
    /// `sent` or `success`.
    pub charge: &'static str,
}

impl Explanation {
    /// Of a URL or a domain.
    pub fn of(domains: &Domains, url: &str) -> Result<Self, Invalid> {
        let site = match url.contains("://") {
            true => Site::of(&parse_url("url", url)?)?,
            false => Site::parse("url", url)?,
        };
        let rules = domains.governing(&site).map(|g| GoverningView::new(g.charged, g.rule, g.terms)).collect();
        Ok(Self { host: site.host().to_owned(), domain: site.domain().to_owned(), rules })
    }
}

/// Every rule of a policy file, the default first and then by name.
pub fn of_all(domains: &Domains) -> Vec<GoverningView> {
    let default = GoverningView::new("any other domain", None, domains.default_terms());
    let mut names: Vec<&str> = domains.named().collect();
    names.sort_unstable();
    let named = names.iter().filter_map(|name| {
        let site = Site::parse("domain", name).ok()?;
        Some(GoverningView::new(name, Some(name), domains.terms(&site)))
    });
    [default].into_iter().chain(named).collect()
}

impl GoverningView {
    fn new(charged: &str, rule: Option<&str>, terms: &Terms) -> Self {
        let (least, most) = terms.pace();
        Self {
            charged: charged.to_owned(),
            rule: rule.unwrap_or("default_policy").to_owned(),
            max_requests_per_day: terms.max_requests_per_day,
            max_pages_per_day: terms.max_pages_per_day,
            interval: (seconds(least), seconds(most)),
            concurrency: terms.concurrency,
            zone: terms.zone.iana_name().unwrap_or("UTC").to_owned(),
            mode: if terms.observe { "observe" } else { "enforce" },
            robots: terms.robots,
            not_modified_cost: terms.not_modified_cost,
            charge: match terms.charge {
                Charged::Sent => "sent",
                Charged::Success => "success",
            },
        }
    }

    /// For a table; 0 says what it means.
    pub fn columns(&self) -> Vec<String> {
        let budget = |n: u64| if n == 0 { "unlimited".to_owned() } else { n.to_string() };
        let (least, most) = self.interval;
        let pace = match () {
            () if most == 0.0 => "none".to_owned(),
            () if least == most => format!("{least}s"),
            () => format!("{least}s to {most}s"),
        };
        let mut others = Vec::new();
        for (is_said, words) in [
            (self.mode == "observe", "observe"),
            (!self.robots, "robots.txt ignored"),
            (self.not_modified_cost == 0, "304 is free"),
            (self.charge == "success", "only success is charged"),
        ] {
            others.extend(is_said.then_some(words));
        }
        vec![
            self.charged.clone(),
            self.rule.clone(),
            budget(self.max_requests_per_day),
            budget(self.max_pages_per_day),
            pace,
            budget(self.concurrency),
            self.zone.clone(),
            others.join(", "),
        ]
    }

    /// What the columns are.
    pub const COLUMNS: [&str; 8] =
        ["charged to", "rule", "requests/day", "pages/day", "interval", "at once", "zone", "besides"];
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}
