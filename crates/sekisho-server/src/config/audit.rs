//! `audit`

use std::path::{Path, PathBuf};

use super::keys;
use super::read::Reader;
use super::tree::Node;

/// Where acts of operators are written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AuditTo {
    /// The structured log, under the target `audit`.
    #[default]
    Log,
    /// Lines of JSON on standard error.
    Stderr,
    /// Lines of JSON, appended.
    File(PathBuf),
}

impl AuditTo {
    /// Beside the configuration, unless it has a path of its own.
    pub(super) fn place_in(&mut self, folder: &Path) {
        if let Self::File(file) = self {
            *file = folder.join(&*file);
        }
    }
}

pub(super) fn read(reader: &mut Reader, node: &Node) -> Option<AuditTo> {
    let fields = reader.fields(node, "audit", &keys::AUDIT)?;
    let Some(node) = fields.peek("to") else { return Some(AuditTo::Log) };
    match reader.text(node, "to")? {
        "log" => Some(AuditTo::Log),
        "stderr" => Some(AuditTo::Stderr),
        "" => {
            reader.complain(node.at, "`to` must be `log`, `stderr` or a file");
            None
        }
        file => Some(AuditTo::File(file.into())),
    }
}
