//! An origin that is asked only when its domain's policy allows it.

use sekisho::cache::{Failure, Hop, HttpOrigin, Key, Origin, OriginFuture, Reached, Reply, Validators};
use sekisho::outbound::{Outbound, Outcome};
use url::Url;

use crate::outgoing::Outgoing;

#[derive(Debug)]
pub(crate) struct Governed {
    pub(crate) origin: HttpOrigin,
    pub(crate) outbound: Outbound,
}

impl Origin for Governed {
    fn fetch<'a>(&'a self, key: &'a Key, known: &'a Validators) -> OriginFuture<'a> {
        Box::pin(self.origin.fetch_by(key, |url| self.ask(url, known)))
    }
}

impl Governed {
    /// One request in its turn. Every hop is one.
    async fn ask(&self, url: Url, known: &Validators) -> Result<Hop, Failure> {
        let begun = Outgoing::begin(&self.outbound, &url).await;
        let outgoing = match begun.map_err(|error| Failure::new(error.to_string()))? {
            Ok(outgoing) => outgoing,
            Err(denied) => {
                let reason = format!("{} is not asked: {}", url.host_str().unwrap_or(""), denied.reason.as_str());
                let retry_after = denied.retry_at.map(|at| at.since(denied.at));
                return Err(Failure { reason, retry_after, reached: Reached::Nobody });
            }
        };
        let hop = self.origin.hop(&url, known).await;
        let answered = |status| Outcome::Answered { status, page: false, not_before: None };
        let outcome = match &hop {
            Ok(Hop::Here(Reply::Fetched(_))) => answered(200),
            Ok(Hop::Here(Reply::NotModified)) => answered(304),
            Ok(Hop::Here(Reply::Missing)) => answered(404),
            Ok(Hop::Elsewhere { status, .. }) => answered(*status),
            Err(failure) => match failure.reached {
                Reached::Nobody => Outcome::NotSent,
                Reached::Perhaps => Outcome::NoAnswer,
                Reached::Answered(status) => outgoing.refused(status, failure.retry_after),
            },
        };
        outgoing.end(outcome).await;
        hop
    }
}
