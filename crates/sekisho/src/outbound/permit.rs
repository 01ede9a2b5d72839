//! The right to make one request.

use std::fmt;
use std::str::FromStr;

use super::terms::POLICY;
use crate::error::Invalid;
use crate::limits::ReservationId;

/// One admitted request, until it is settled. As text it goes to crawlers in other processes and comes back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Permit(pub(super) ReservationId);

impl fmt::Display for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Permit {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refuse = || Invalid::new("permit", "is not one that this server gives out");
        let id: ReservationId = text.parse().map_err(|_| refuse())?;
        let is_ours = id.held.iter().all(|held| held.policy == POLICY && held.endpoint.is_none());
        if is_ours && (1..=2).contains(&id.held.len()) { Ok(Self(id)) } else { Err(refuse()) }
    }
}
