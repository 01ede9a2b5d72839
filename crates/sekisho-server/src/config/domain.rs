//! The files of Envoy's rate-limit service, as they are: a domain and its nested descriptors.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use sekisho::limits::Mode;

use super::problem::{At, ConfigError, Problem, did_you_mean};
use super::read::{Fields, Reader};
use super::tree::{self, Node};
use super::{Config, DEFAULT_GRPC};
use crate::envoy::{Allowance, Domain, Draft, Limit, Unit, Value};

const ROOT: [&str; 2] = ["domain", "descriptors"];
const DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    // These three only name metrics and metadata of Envoy's own service; they are read over.
    "detailed_metric",
    "value_to_metric",
    "metadata",
];
const RATE_LIMIT: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// Reads several files of Envoy's rate-limit service. No two may be of one domain.
pub fn read_domains(files: &[PathBuf]) -> Result<Vec<Domain>, ConfigError> {
    let mut seen = Seen::default();
    let mut errors = Vec::new();
    let mut domains = Vec::new();
    for file in files {
        match load(file).and_then(|text| read_file(&mut seen, file, &text)) {
            Ok(domain) => domains.push(domain),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(domains) } else { Err(ConfigError::all(errors)) }
}

/// One file by itself, from its text.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_text(text: &str) -> Result<Domain, ConfigError> {
    read_file(&mut Seen::default(), Path::new("domain.yaml"), text)
}

/// Reads the files that `domains` names, relative to the folder of the file that names them. What is wrong with a name goes
/// to `reader`, what is wrong inside a file is returned.
pub(super) fn read_named(reader: &mut Reader, root: &Node, folder: &Path, config: &mut Config) -> Vec<ConfigError> {
    let tree::Value::Map(entries) = &root.value else { return Vec::new() };
    let Some((_, list)) = entries.iter().find(|(key, _)| key.name == "domains") else { return Vec::new() };
    let mut errors = Vec::new();
    let mut seen = Seen::default();
    for node in reader.list(list, "domains").unwrap_or_default() {
        let Some(name) = reader.text(node, "domains") else { continue };
        let file = folder.join(name);
        config.files.push(file.clone());
        match load(&file) {
            Ok(text) => match read_file(&mut seen, &file, &text) {
                Ok(domain) => config.domains.push(domain),
                Err(error) => errors.push(error),
            },
            Err(error) => reader.complain(node.at, error.to_string()),
        }
    }
    let is_said = entries.iter().any(|(key, _)| key.name == "grpc");
    if !config.domains.is_empty() && !is_said {
        config.grpc = Some(DEFAULT_GRPC);
    }
    errors
}

/// The files read so far, by the domain in them.
type Seen = HashMap<String, String>;

fn load(file: &Path) -> Result<String, ConfigError> {
    let refuse = |reason: String| ConfigError::plain(format!("{}: {reason}", file.display()));
    let bytes = std::fs::read(file).map_err(|error| refuse(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| refuse("is not UTF-8 text".to_owned()))
}

fn read_file(seen: &mut Seen, file: &Path, text: &str) -> Result<Domain, ConfigError> {
    let name = file.display().to_string();
    let wrong = |problems: Vec<Problem>| ConfigError::in_file(&name, text, problems);
    let root = tree::parse_yaml(text).map_err(|problem| wrong(vec![problem]))?;
    let mut file = File { reader: Reader::default(), text, domain: String::new() };
    let domain = file.root(&root, seen, &name);
    match domain {
        Some(domain) if file.reader.problems.is_empty() => Ok(domain),
        _ => Err(wrong(file.reader.problems)),
    }
}

struct File<'t> {
    reader: Reader,
    text: &'t str,
    domain: String,
}

/// The keys and values down to a descriptor.
type Way = Vec<(String, Value)>;

impl File<'_> {
    fn root(&mut self, root: &Node, seen: &mut Seen, name: &str) -> Option<Domain> {
        let fields = self.reader.fields_named(root, "the file", &ROOT)?;
        let Some(node) = fields.peek("domain") else {
            self.reader.complain(fields.at, "`domain` is missing");
            return None;
        };
        self.domain = self.words(node, "domain")?;
        if let Some(other) = seen.insert(self.domain.clone(), name.to_owned()) {
            self.reader.complain(node.at, format!("the domain `{}` is also that of {other}", self.domain));
        }
        let descriptors = self.descriptors(&fields, &mut Vec::new());
        Some(Domain::new(self.domain.clone(), descriptors))
    }

    fn descriptors(&mut self, fields: &Fields<'_>, way: &mut Way) -> Vec<Draft> {
        let Some(node) = fields.peek("descriptors").filter(|node| !matches!(node.value, tree::Value::Null)) else {
            return Vec::new();
        };
        let mut lines = HashMap::new();
        let mut drafts = Vec::new();
        for node in self.reader.list(node, "descriptors").unwrap_or_default() {
            let Some(draft) = self.descriptor(node, way) else { continue };
            let first = lines.insert((draft.key.clone(), draft.value.clone()), node.at.line);
            if let Some(first) = first {
                let message = format!("{} stands here a second time; the first is on line {first}", shown(&draft));
                self.reader.complain(node.at, message);
            }
            drafts.push(draft);
        }
        drafts
    }

    fn descriptor(&mut self, node: &Node, way: &mut Way) -> Option<Draft> {
        let fields = self.reader.fields_named(node, "descriptors", &DESCRIPTOR)?;
        let Some(key) = fields.peek("key") else {
            self.reader.complain(fields.at, "`key` is missing");
            return None;
        };
        let key_at = key.at;
        let key = self.words(key, "key")?;
        if key.contains('*') {
            self.reader.complain(key_at, "`key` holds a `*`, which only a `value` may");
        }
        let value = self.value(&fields)?;
        let is_shared = self.flag(&fields, "share_threshold");
        if is_shared && !matches!(value, Value::Pattern(_)) {
            let message = "`share_threshold` needs a `value` with a `*`: only then are there several to share";
            self.reader.complain(fields.at("share_threshold"), message);
        }
        for ignored in ["detailed_metric", "value_to_metric"] {
            self.flag(&fields, ignored);
        }
        way.push((key.clone(), value.clone()));
        let limit = self.limit(&fields, way);
        let below = self.descriptors(&fields, way);
        way.pop();
        Some(Draft { key, value, limit, is_shared, below })
    }

    fn value(&mut self, fields: &Fields<'_>) -> Option<Value> {
        let Some(node) = fields.peek("value") else { return Some(Value::Any) };
        if matches!(&node.value, tree::Value::Null) || matches!(&node.value, tree::Value::Text(text) if text.is_empty())
        {
            return Some(Value::Any);
        }
        let text = self.words(node, "value")?;
        Some(if text.contains('*') { Value::Pattern(text) } else { Value::Exact(text) })
    }

    fn limit(&mut self, descriptor: &Fields<'_>, way: &Way) -> Option<Limit> {
        let is_quota = self.flag(descriptor, "quota_mode");
        let mode = if self.flag(descriptor, "shadow_mode") { Mode::Shadow } else { Mode::Enforce };
        let node = descriptor.peek("rate_limit").filter(|node| !matches!(node.value, tree::Value::Null))?;
        let fields = self.reader.fields_named(node, "rate_limit", &RATE_LIMIT)?;
        let name = match fields.peek("name") {
            Some(node) => self.reader.text(node, "name")?.to_owned(),
            None => String::new(),
        };
        let replaces = self.replaces(&fields, &name)?;
        let allowance = if self.flag(&fields, "unlimited") {
            if fields.peek("unit").is_some() {
                self.reader.complain(fields.at("unit"), "`unit` contradicts `unlimited`");
            }
            Allowance::Unlimited
        } else {
            let (unit, requests) = (self.unit(&fields), self.requests(&fields));
            let built = Allowance::per_unit(requests?, unit?, (&self.domain, way), mode);
            built.map_err(|invalid| self.reader.complain(fields.at, invalid.to_string())).ok()?
        };
        Some(Limit { name, replaces, is_quota, allowance })
    }

    fn unit(&mut self, fields: &Fields<'_>) -> Option<Unit> {
        let Some(node) = fields.peek("unit") else {
            self.reader.complain(fields.at, "`unit` is missing; a rule without a limit says `unlimited: true`");
            return None;
        };
        let text = self.reader.text(node, "unit")?;
        let unit = Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(text));
        if unit.is_none() {
            let names = Unit::ALL.map(Unit::name);
            let near = did_you_mean(text, names);
            self.reader.complain(node.at, format!("`unit` must be one of {}; it is `{text}`{near}", names.join(", ")));
        }
        unit
    }

    fn requests(&mut self, fields: &Fields<'_>) -> Option<u32> {
        let Some(node) = fields.peek("requests_per_unit") else {
            self.reader.complain(fields.at, "`requests_per_unit` is missing; 0 would block");
            return None;
        };
        self.reader.whole(node, "requests_per_unit", 0, u32::MAX.into()).and_then(|number| u32::try_from(number).ok())
    }

    fn replaces(&mut self, fields: &Fields<'_>, own: &str) -> Option<Vec<String>> {
        let Some(node) = fields.peek("replaces") else { return Some(Vec::new()) };
        let mut names = Vec::new();
        for node in self.reader.list(node, "replaces")? {
            let fields = self.reader.fields_named(node, "replaces", &["name"])?;
            let Some(name) = fields.peek("name") else {
                self.reader.complain(fields.at, "`name` is missing: the name of the limit to replace");
                return None;
            };
            let text = self.words(name, "name")?;
            if text == own {
                self.reader.complain(name.at, format!("`{text}` is this limit itself"));
            }
            names.push(text);
        }
        Some(names)
    }

    fn flag(&mut self, fields: &Fields<'_>, name: &str) -> bool {
        fields.peek(name).and_then(|node| self.reader.flag(node, name)).unwrap_or(false)
    }

    /// Text that is not empty. A number or a boolean is text as well, as long as it was written as it would be shown:
    /// `404` is, while nobody could say what `007` or `1.10` are compared with.
    fn words(&mut self, node: &Node, what: &str) -> Option<String> {
        let shown = match &node.value {
            tree::Value::Text(text) if text.is_empty() => {
                self.reader.complain(node.at, format!("`{what}` is empty"));
                return None;
            }
            tree::Value::Text(text) => return Some(text.clone()),
            tree::Value::Whole(number) => number.to_string(),
            tree::Value::Bool(flag) => flag.to_string(),
            _ => String::new(),
        };
        if shown.is_empty() || !self.is_written(node.at, &shown) {
            let kind = node.kind();
            self.reader.complain(node.at, format!("`{what}` must be text; it is {kind}: write it in quotes"));
            return None;
        }
        Some(shown)
    }

    fn is_written(&self, at: At, shown: &str) -> bool {
        let line = self.text.lines().nth(at.line as usize - 1).unwrap_or_default();
        let start = line.char_indices().nth(at.column as usize - 1).map_or(line.len(), |(start, _)| start);
        let rest = line[start..].strip_prefix(shown);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '+' | '-')))
    }
}

fn shown(draft: &Draft) -> String {
    match &draft.value {
        Value::Any => format!("`{}`", draft.key),
        Value::Exact(value) | Value::Pattern(value) => format!("`{}` with `{value}`", draft.key),
    }
}
