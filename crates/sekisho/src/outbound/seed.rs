//! The original crawler's functions and results, under their own names.

use serde::Serialize;

use super::engine::{Figures, Outbound, Reason};
use super::site::Site;
use super::terms::UNLIMITED;
use crate::clock::Timestamp;
use crate::error::Error;

/// Whether a domain may be asked today.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DomainBudgetCheckResult {
    pub allowed: bool,
    pub reason: Option<Reason>,
    pub requests_remaining: u64,
    pub pages_remaining: u64,
}

/// What a domain was asked today, and may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DomainDailyBudget {
    pub domain: String,
    pub requests_today: u64,
    pub pages_today: u64,
    /// 0 is unlimited.
    pub max_requests_per_day: u64,
    /// 0 is unlimited.
    pub max_pages_per_day: u64,
    /// `2026-11-16`, in the domain's zone.
    pub date: String,
    pub requests_remaining: u64,
    pub pages_remaining: u64,
    /// Nobody may ask before then.
    #[serde(skip)]
    pub cooldown_until: Option<Timestamp>,
}

impl Outbound {
    /// Denies when either budget is spent. A look, which books nothing: between it and the request another worker may have
    /// taken the last one. [`acquire`](Self::acquire) has no such gap.
    pub async fn can_request_to_domain(&self, domain: &str) -> Result<DomainBudgetCheckResult, Error> {
        let site = Site::parse("domain", domain)?;
        let Figures { requests, pages, .. } = match self.figures(&site).await {
            Ok(figures) => figures,
            Err(Error::Unavailable { .. }) if self.is_open_on_failure() => Figures::unlimited(),
            Err(error) => return Err(error),
        };
        let (requests_remaining, pages_remaining) = (requests.remaining, pages.remaining);
        let allowed = requests_remaining > 0 && pages_remaining > 0;
        let reason = (!allowed).then_some(Reason::Budget);
        Ok(DomainBudgetCheckResult { allowed, reason, requests_remaining, pages_remaining })
    }

    /// Counts a request that was made without asking, past the limit if need be.
    pub async fn record_domain_request(&self, domain: &str, is_page: bool) -> Result<(), Error> {
        self.record(&Site::parse("domain", domain)?, is_page).await
    }

    /// What was used today. A domain that has never been asked has its full budget.
    pub async fn get_domain_budget(&self, domain: &str) -> Result<DomainDailyBudget, Error> {
        self.budget(&Site::parse("domain", domain)?).await
    }
}

/// A budget as the original shows it.
pub(super) const fn remaining(remaining: u64) -> u64 {
    if remaining > UNLIMITED { UNLIMITED } else { remaining }
}
