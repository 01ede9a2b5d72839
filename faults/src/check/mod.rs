//! Figures out of a ledger. Nothing here asks a server.

mod over;
mod times;

pub(crate) use over::{Over, over};
pub(crate) use times::{failures, percentile, slowest, to_be_back, to_notice};
