//! Which terms hold for which domain: the longest rule that matches on a label boundary wins.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use smallvec::{SmallVec, smallvec};

use super::site::{Site, names};
use super::terms::{DomainPolicy, Settings, Terms};
use crate::error::Invalid;
use crate::key::Subject;
use crate::limits::Policy;

/// Terms for everybody, and for those that have a rule of their own.
#[derive(Debug)]
pub struct Domains {
    settings: Settings,
    default: Arc<Governed>,
    rules: HashMap<Box<str>, Arc<Governed>>,
}

/// Terms, and the policies they make. Domains with the same terms share one.
#[derive(Debug)]
pub(super) struct Governed {
    pub(super) terms: Terms,
    /// Books a turn as far ahead as the settings allow.
    pub(super) patient: Arc<Policy>,
    /// Has room now or not.
    pub(super) prompt: Arc<Policy>,
}

/// A rule that holds for a URL, as people ask for it.
#[derive(Debug, Clone, Copy)]
pub struct Governing<'a> {
    /// Whose budget it is.
    pub charged: &'a str,
    /// The domain that the rule names; none is the default.
    pub rule: Option<&'a str>,
    pub terms: &'a Terms,
}

/// Whom a request is charged to: a rule for a host, then its domain.
pub(super) type ChargedTo<'s, 'd> = SmallVec<[(&'s str, &'d Arc<Governed>); 2]>;

impl Domains {
    /// Every domain under `default`, whose own figures the rules inherit.
    pub fn new(default: Terms, settings: Settings) -> Result<Self, Invalid> {
        let default = Arc::new(Governed::new(default, &settings)?);
        Ok(Self { settings, default, rules: HashMap::new() })
    }

    /// Adds rules. A public suffix and a domain that stands there twice are refused, with the place in the list.
    pub fn with_rules<'a>(
        mut self,
        rules: impl IntoIterator<Item = (&'a str, DomainPolicy)>,
    ) -> Result<Self, (usize, Invalid)> {
        // Few terms are written for many domains, and a policy is larger than its terms.
        let mut made: HashMap<String, Arc<Governed>> = HashMap::new();
        for (i, (domain, said)) in rules.into_iter().enumerate() {
            let at = |invalid| (i, invalid);
            let site = rule_site(domain).map_err(at)?;
            let terms = self.default.terms.overridden(&said);
            let known = made.get(&format!("{terms:?}")).map(Arc::clone);
            let governed = match known {
                Some(governed) => governed,
                None => {
                    let name = format!("{terms:?}");
                    let governed = Arc::new(Governed::new(terms, &self.settings).map_err(at)?);
                    made.insert(name, Arc::clone(&governed));
                    governed
                }
            };
            if self.rules.insert(site.host().into(), governed).is_some() {
                return Err((i, Invalid::new("domain", format!("`{site}` has a rule already"))));
            }
        }
        Ok(self)
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How many domains have a rule of their own.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The domains that have a rule of their own, in no order.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.rules.keys().map(|name| &**name)
    }

    pub fn default_terms(&self) -> &Terms {
        &self.default.terms
    }

    /// The terms of the most specific rule.
    pub fn terms(&self, site: &Site) -> &Terms {
        &self.charged(site)[0].1.terms
    }

    /// All that a request to this site is charged to, the most specific first.
    pub fn governing<'a>(&'a self, site: &'a Site) -> impl Iterator<Item = Governing<'a>> {
        self.charged(site).into_iter().map(|(charged, governed)| {
            let names = site.names().skip_while(move |name| *name != charged);
            let rule = { names }.find(|name| self.rules.contains_key(*name));
            Governing { charged, rule, terms: &governed.terms }
        })
    }

    pub(super) fn charged<'s>(&self, site: &'s Site) -> ChargedTo<'s, '_> {
        let domain = site.domain();
        let mut names = site.names().filter_map(|name| Some((name, self.rules.get(name)?)));
        match names.next() {
            // A rule for a host counts for itself, inside what its domain may have.
            Some((name, governed)) if name.len() > domain.len() => {
                let above =
                    names.find(|(name, _)| name.len() <= domain.len()).map_or(&self.default, |(_, above)| above);
                smallvec![(name, governed), (domain, above)]
            }
            Some((_, governed)) => smallvec![(domain, governed)],
            None => smallvec![(domain, &self.default)],
        }
    }

    /// What holds for one that was charged before, and is written as it is counted.
    pub(super) fn of_subject(&self, subject: &Subject) -> &Arc<Governed> {
        names(subject.as_str()).find_map(|name| self.rules.get(name)).unwrap_or(&self.default)
    }
}

/// The site that a rule is for.
fn rule_site(domain: &str) -> Result<Site, Invalid> {
    let site = Site::parse("domain", domain)?;
    if site.is_registry() {
        let reason = format!("`{site}` is a public suffix: whole registries have no rule; name a domain below it");
        return Err(Invalid::new("domain", reason));
    }
    Ok(site)
}

impl Governed {
    fn new(terms: Terms, settings: &Settings) -> Result<Self, Invalid> {
        let policy = |patience| terms.policy(settings, patience).map(Arc::new);
        Ok(Self { patient: policy(settings.max_wait)?, prompt: policy(Duration::ZERO)?, terms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(n: u64) -> DomainPolicy {
        DomainPolicy { max_requests_per_day: Some(n), ..DomainPolicy::default() }
    }

    fn domains() -> Domains {
        let domains = Domains::new(Terms::default(), Settings::default()).unwrap();
        let rules = [
            ("Wikipedia.org", requests(500)),
            ("api.wikipedia.org.", requests(50)),
            ("v2.api.wikipedia.org", requests(5)),
            ("github.io", requests(7)),
            ("10.0.0.1", requests(8)),
            ("static.example.com", requests(9)),
        ];
        domains.with_rules(rules).unwrap()
    }

    #[test]
    fn the_longest_rule_on_a_label_boundary_wins_and_a_host_is_charged_with_its_domain() {
        let domains = domains();
        for (host, expected) in [
            ("wikipedia.org", vec![("wikipedia.org", Some("wikipedia.org"), 500)]),
            ("ja.wikipedia.org", vec![("wikipedia.org", Some("wikipedia.org"), 500)]),
            ("notwikipedia.org", vec![("notwikipedia.org", None, 200)]),
            (
                "a.api.wikipedia.org",
                vec![
                    ("api.wikipedia.org", Some("api.wikipedia.org"), 50),
                    ("wikipedia.org", Some("wikipedia.org"), 500),
                ],
            ),
            (
                "v2.api.wikipedia.org",
                vec![
                    ("v2.api.wikipedia.org", Some("v2.api.wikipedia.org"), 5),
                    ("wikipedia.org", Some("wikipedia.org"), 500),
                ],
            ),
            ("a.user.github.io", vec![("user.github.io", Some("github.io"), 7)]),
            (
                "static.example.com",
                vec![("static.example.com", Some("static.example.com"), 9), ("example.com", None, 200)],
            ),
            ("10.0.0.1", vec![("10.0.0.1", Some("10.0.0.1"), 8)]),
            ("1.10.0.0", vec![("1.10.0.0", None, 200)]),
            ("::1", vec![("::1", None, 200)]),
        ] {
            let site = Site::parse("host", host).unwrap();
            let found: Vec<_> =
                domains.governing(&site).map(|g| (g.charged, g.rule, g.terms.max_requests_per_day)).collect();
            assert_eq!(found, expected, "{host}");
            for (charged, _, limit) in expected {
                let again = domains.of_subject(&Subject::new(charged).unwrap());
                assert_eq!(again.terms.max_requests_per_day, limit, "{charged} when it is settled");
            }
        }
    }

    #[test]
    fn rules_that_make_no_sense_are_refused_with_their_place() {
        let refused = |rules: Vec<(&'static str, DomainPolicy)>| {
            Domains::new(Terms::default(), Settings::default()).unwrap().with_rules(rules).unwrap_err()
        };
        let said = || DomainPolicy::default();
        let twice = refused(vec![("a.com", said()), ("A.com.", said())]);
        assert!(twice.0 == 1 && twice.1.reason.contains("already"), "{twice:?}");
        let suffix = refused(vec![("co.jp", said())]);
        assert!(suffix.0 == 0 && suffix.1.reason.contains("public suffix"), "{suffix:?}");
        let wrong = refused(vec![("a.com", DomainPolicy { qps: Some(-1.0), ..said() })]);
        assert_eq!(wrong.1.field, "qps");
    }

    #[test]
    fn equal_terms_are_kept_once() {
        let domains = Domains::new(Terms::default(), Settings::default()).unwrap();
        let names: Vec<String> = (0..100).map(|i| format!("d{i}.com")).collect();
        let domains = domains.with_rules(names.iter().map(|name| (name.as_str(), requests(5)))).unwrap();
        assert_eq!(Arc::strong_count(&domains.rules["d0.com"]), 100);
    }
}
