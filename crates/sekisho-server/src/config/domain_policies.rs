//! The policies of domains that are asked: `default_policy` and `allowlist`, in a file that other programs read too.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sekisho::Invalid;
use sekisho::limits::MAX_AMOUNT;
use sekisho::outbound::{Charged, DomainPolicy, Domains, Settings, Terms};

use super::problem::{At, ConfigError};
use super::read::Reader;
use super::tree::{self, Key, Node, Value};

const CHARGED: [(&str, Charged); 2] = [("sent", Charged::Sent), ("success", Charged::Success)];
const MODES: [(&str, bool); 2] = [("enforce", false), ("observe", true)];
/// So many mistakes are shown at once.
const MANY: usize = 20;
const DAY: Duration = Duration::from_secs(86_400);

/// What a file of policies says.
#[derive(Debug, Clone)]
pub struct DomainFile {
    pub domains: Arc<Domains>,
    /// What is probably not meant, as `file:line: …`.
    pub warnings: Vec<String>,
}

impl Default for DomainFile {
    #[allow(clippy::expect_used, reason = "the defaults are constants, and a test makes them")]
    fn default() -> Self {
        let domains = Domains::new(Terms::default(), Settings::default()).expect("the defaults can be served");
        Self { domains: Arc::new(domains), warnings: Vec::new() }
    }
}

impl DomainFile {
    /// A file by itself, where no configuration sets other defaults.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        read_domain_file(file, &Terms::default(), Settings::default())
    }
}

/// Reads a file of policies. What it does not say is in `defaults`.
pub(super) fn read_domain_file(file: &Path, defaults: &Terms, settings: Settings) -> Result<DomainFile, ConfigError> {
    let name = file.display().to_string();
    let refuse = |reason: String| ConfigError::plain(format!("{name}: {reason}"));
    let bytes = std::fs::read(file).map_err(|error| refuse(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("is not UTF-8 text".to_owned()))?;
    parse_domain_file(&name, &text, defaults, settings)
}

/// `name` is what errors call the file.
pub(crate) fn parse_domain_file(
    name: &str,
    text: &str,
    defaults: &Terms,
    settings: Settings,
) -> Result<DomainFile, ConfigError> {
    let root = tree::parse_list(text).map_err(|problem| ConfigError::in_file(name, text, vec![problem]))?;
    let mut file = File { reader: Reader::default(), name, warnings: Vec::new() };
    let domains = file.domains(&root, defaults, settings);
    match domains {
        Some(domains) if file.reader.problems.is_empty() => {
            Ok(DomainFile { domains: Arc::new(domains), warnings: file.warnings })
        }
        _ => Err(ConfigError::in_file(name, text, file.reader.problems)),
    }
}

struct File<'n> {
    reader: Reader,
    name: &'n str,
    warnings: Vec<String>,
}

/// One rule of the list.
struct Rule<'a> {
    domain: &'a str,
    said: DomainPolicy,
    at: At,
    places: Vec<(&'a str, At)>,
}

impl File<'_> {
    fn domains(&mut self, root: &Node, defaults: &Terms, settings: Settings) -> Option<Domains> {
        let entries = self.reader.map(root, "the file")?;
        let (mut terms, mut places, mut rules) = (defaults.clone(), Vec::new(), Vec::new());
        for (key, node) in entries {
            match key.name.as_str() {
                "default_policy" => {
                    let said;
                    (said, places) = self.policy(node, "default_policy", &[])?;
                    terms = defaults.overridden(&said);
                    self.warn_of_terms("default_policy", &terms, &places);
                }
                "allowlist" => rules = self.rules(node)?,
                _ => self.ignore(key),
            }
        }
        for rule in &rules {
            let terms = terms.overridden(&rule.said);
            self.warn_of_terms(rule.domain, &terms, &rule.places);
        }
        // What is wrong is told and left out, so that all of it is told at once; a file that is all wrong is told enough of.
        while self.reader.problems.len() < MANY {
            let domains = Domains::new(terms.clone(), settings);
            let domains = domains.map_err(|invalid| self.refuse(&invalid, &places, root.at)).ok()?;
            match domains.with_rules(rules.iter().map(|rule| (rule.domain, rule.said.clone()))) {
                Ok(domains) => return Some(domains),
                Err((i, invalid)) => {
                    let wrong = rules.remove(i);
                    self.refuse(&invalid, &wrong.places, wrong.at);
                }
            }
        }
        None
    }

    /// Complains where the field stands, and otherwise of all of it.
    fn refuse(&mut self, invalid: &Invalid, places: &[(&str, At)], whole: At) {
        let place = places.iter().find(|(name, _)| *name == invalid.field).map_or(whole, |(_, at)| *at);
        // The reader may have said it better.
        if self.reader.problems.iter().all(|problem| problem.at != place) {
            self.reader.complain(place, format!("`{}` {}", invalid.field, invalid.reason));
        }
    }

    fn rules<'a>(&mut self, node: &'a Node) -> Option<Vec<Rule<'a>>> {
        if let Value::Null = node.value {
            return Some(Vec::new());
        }
        let mut rules = Vec::new();
        for item in self.reader.list(node, "allowlist")? {
            let Some((said, places)) = self.policy(item, "allowlist", &["domain", "domain_category"]) else { continue };
            let Value::Map(entries) = &item.value else { continue };
            let Some((_, domain)) = entries.iter().find(|(key, _)| key.name == "domain") else {
                self.reader.complain(item.at, "`domain` is missing");
                continue;
            };
            let Some(domain) = self.reader.text(domain, "domain") else { continue };
            rules.push(Rule { domain, said, at: item.at, places });
        }
        Some(rules)
    }

    /// What a mapping says, and where it says it. A value of nothing is not said.
    fn policy<'a>(
        &mut self,
        node: &'a Node,
        what: &str,
        others: &[&str],
    ) -> Option<(DomainPolicy, Vec<(&'a str, At)>)> {
        let (mut said, mut places) = (DomainPolicy::default(), Vec::new());
        if let Value::Null = node.value {
            return Some((said, places));
        }
        for (key, node) in self.reader.map(node, what)? {
            let (name, reader) = (key.name.as_str(), &mut self.reader);
            places.push((name, node.at));
            if matches!(node.value, Value::Null) {
                continue;
            }
            match name {
                "qps" => said.qps = reader.number(node, name, 0.0, 1_000_000.0),
                "max_requests_per_day" => said.max_requests_per_day = reader.whole(node, name, 0, MAX_AMOUNT),
                "max_pages_per_day" => said.max_pages_per_day = reader.whole(node, name, 0, MAX_AMOUNT),
                "interval" => said.interval = reader.interval(node),
                "concurrency" => said.concurrency = reader.whole(node, name, 0, 1_000_000),
                "zone" => said.zone = reader.zone(node),
                "mode" => said.observe = reader.choice(node, name, &MODES),
                "robots" => said.robots = reader.flag(node, name),
                "not_modified_cost" => said.not_modified_cost = reader.whole(node, name, 0, 1),
                "charge" => said.charge = reader.choice(node, name, &CHARGED),
                _ if others.contains(&name) => {}
                _ => self.ignore(key),
            }
        }
        Some((said, places))
    }

    /// The file has other readers, which may know it.
    fn ignore(&mut self, key: &Key) {
        let known = ["default_policy", "allowlist", "domain", "qps", "max_requests_per_day", "max_pages_per_day"];
        let near = super::did_you_mean(&key.name, known);
        self.warn(key.at, format!("`{}` is not used here{near}", key.name));
    }

    fn warn(&mut self, at: At, message: impl std::fmt::Display) {
        self.warnings.push(format!("{}:{}: {message}", self.name, at.line));
    }

    /// What cannot all be meant, where at least one side of it is said in this place.
    fn warn_of_terms(&mut self, whose: &str, terms: &Terms, places: &[(&str, At)]) {
        let said = |names: [&str; 2]| names.iter().find_map(|name| places.iter().find(|(said, _)| said == name));
        let ((least, most), floor) = (terms.interval, terms.floor());
        if let Some((_, at)) = said(["qps", "interval"]).filter(|_| floor > least) {
            let left = if floor < most { format!("{floor:?} to {most:?}") } else { format!("{floor:?}") };
            let message = format!(
                "`qps` {} of {whose} is one request in {floor:?}: its interval is {left}, not {least:?} to {most:?}",
                terms.qps
            );
            self.warn(*at, message);
        }
        let (requests, pages) = (terms.max_requests_per_day, terms.max_pages_per_day);
        let of_budget = ["max_pages_per_day", "max_requests_per_day"];
        if let Some((_, at)) = said(of_budget).filter(|_| requests > 0 && pages > requests) {
            let message = format!("{whose} may have {pages} pages in {requests} requests a day, and each page is one");
            self.warn(*at, message);
        }
        let in_a_day = DAY.as_micros() / terms.pace().0.as_micros().max(1);
        let of_pace = said(of_budget).or(said(["qps", "interval"]));
        if let Some((_, at)) = of_pace.filter(|_| u128::from(requests) > in_a_day) {
            self.warn(*at, format!("{whose} may have {requests} requests a day, and its pace leaves {in_a_day}"));
        }
    }
}
