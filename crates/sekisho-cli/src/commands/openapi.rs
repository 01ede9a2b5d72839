//! `sekisho openapi`

use crate::exit::{Failure, Outcome};
use crate::output;

pub(crate) fn run() -> Result<Outcome, Failure> {
    output::json(&sekisho_server::openapi());
    Ok(Outcome::Done)
}
