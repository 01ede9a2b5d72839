//! One command per file.

pub(crate) mod completions;
pub(crate) mod config_check;
pub(crate) mod explain;
mod figures;
pub(crate) mod peek;
pub(crate) mod reset;
pub(crate) mod serve;
