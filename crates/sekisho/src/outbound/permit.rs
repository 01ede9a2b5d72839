//! The right to make one request.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use smallvec::SmallVec;

use super::engine::reserved;
use super::outcome::Kind;
use super::site::Site;
use super::terms::POLICY;
use crate::error::Invalid;
use crate::key::Subject;
use crate::limits::ReservationId;
use crate::limits::reservation::{Backing, Held, Tag};

/// One admitted request, until it is settled. As text it goes to crawlers in other processes and comes back.
#[derive(Debug, Clone)]
pub struct Permit {
    pub(super) tag: Tag,
    /// The end of its lease, by the clock that granted it.
    pub(super) expires: u64,
    pub(super) kind: Kind,
    /// Whom it is charged to, as they are counted; the last one is the domain itself.
    pub(super) charged: SmallVec<[Subject; 2]>,
    pub(super) backing: Backing,
    /// It was read from text, which others may have too and settle as well: they are told how it ended. Of one that never left
    /// this process nobody asks that, and remembering it would cost as much as the domain itself.
    pub(super) is_shared: bool,
}

/// The tag is what tells one from another, as text or not.
impl PartialEq for Permit {
    fn eq(&self, other: &Self) -> bool {
        (self.tag, &self.charged) == (other.tag, &other.charged)
    }
}

impl Eq for Permit {}

impl Hash for Permit {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.tag.hash(hasher);
    }
}

impl fmt::Display for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = |subject: &Subject| {
            let (policy, subject, amounts) = (POLICY.to_owned(), subject.clone(), reserved(self.kind));
            Held { policy, subject, endpoint: None, amounts }
        };
        let held = self.charged.iter().map(held).collect();
        fmt::Display::fmt(&ReservationId { tag: self.tag, expires: self.expires, held, backing: self.backing }, f)
    }
}

impl FromStr for Permit {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refuse = || Invalid::new("permit", "is not one that this server gives out");
        let id: ReservationId = text.parse().map_err(|_| refuse())?;
        let kind = |held: &Held| [Kind::Request, Kind::Page].into_iter().find(|kind| held.amounts == reserved(*kind));
        let kind = id.held.first().and_then(kind).ok_or_else(refuse)?;
        let is_ours = |held: &Held| {
            let is_site = Site::parse("permit", held.subject.as_str()).is_ok_and(|s| s.host() == held.subject.as_str());
            held.policy == POLICY && held.endpoint.is_none() && is_site && held.amounts == reserved(kind)
        };
        if !(1..=2).contains(&id.held.len()) || !id.held.iter().all(is_ours) {
            return Err(refuse());
        }
        let charged = id.held.into_iter().map(|held| held.subject).collect();
        Ok(Self { tag: id.tag, expires: id.expires, kind, charged, backing: id.backing, is_shared: true })
    }
}
