//! `sekisho config schema`

use sekisho_server::config;

use crate::exit::{Failure, Outcome};
use crate::output;

pub(crate) fn run() -> Result<Outcome, Failure> {
    output::json(&config::schema());
    Ok(Outcome::Done)
}
