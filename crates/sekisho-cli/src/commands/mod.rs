//! One command per file.

pub(crate) mod cache;
pub(crate) mod completions;
pub(crate) mod config_check;
pub(crate) mod config_init;
pub(crate) mod config_schema;
pub(crate) mod doctor;
pub(crate) mod domains;
pub(crate) mod elevation;
mod envoy_rules;
pub(crate) mod explain;
pub(crate) mod fetch;
mod figures;
pub(crate) mod import_envoy;
pub(crate) mod openapi;
pub(crate) mod peek;
mod reload;
pub(crate) mod reset;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod stats;
pub(crate) mod tokens;
