//! A configuration file as a tree that knows where each part of it stands.
//!
//! Reading into a tree first, and into types afterwards, is what lets every later complaint point at a line, and lets one
//! run report all of them. Only the modules below know YAML and TOML; above the tree a file is a file.

mod toml;
mod yaml;

use std::path::Path;

use super::problem::{At, Problem};

/// A configuration is a few kilobytes; what is larger than this is a mistake or an attack.
const MAX_BYTES: usize = 1024 * 1024;
const MAX_NODES: usize = 100_000;

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) at: At,
    pub(super) value: Value,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Whole(i128),
    Fraction(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) at: At,
    pub(super) name: String,
}

impl Node {
    pub(super) const fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Whole(_) => "a whole number",
            Value::Fraction(_) => "a number with a fraction",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

/// How a file is written, told by the end of its name: what is not TOML is YAML.
pub(super) fn parse(name: &str, text: &str) -> Result<Node, Problem> {
    let is_toml = Path::new(name).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"));
    if is_toml { parse_toml(text) } else { parse_yaml(text) }
}

pub(super) fn parse_yaml(text: &str) -> Result<Node, Problem> {
    refuse_long(text, MAX_BYTES)?;
    yaml::parse(text, MAX_NODES)
}

/// A list that may be long: the policies of a hundred thousand domains.
pub(super) fn parse_list(text: &str) -> Result<Node, Problem> {
    refuse_long(text, 64 * MAX_BYTES)?;
    yaml::parse(text, 64 * MAX_NODES)
}

fn parse_toml(text: &str) -> Result<Node, Problem> {
    refuse_long(text, MAX_BYTES)?;
    toml::parse(text)
}

fn refuse_long(text: &str, most: usize) -> Result<(), Problem> {
    if text.len() > most {
        return Err(Problem::new(At::START, format!("is {} bytes long; at most {most} are read", text.len())));
    }
    Ok(())
}
