//! Where lines go.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::config::AuditTo;

#[derive(Debug)]
pub(super) enum Sink {
    Log,
    Stderr,
    File(File),
}

impl Sink {
    /// A file is for its owner to read, unless it is there already with other rights.
    pub(super) fn open(to: &AuditTo) -> Result<Self, (PathBuf, io::Error)> {
        match to {
            AuditTo::Log => Ok(Self::Log),
            AuditTo::Stderr => Ok(Self::Stderr),
            AuditTo::File(file) => {
                let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(file);
                opened.map(Self::File).map_err(|error| (file.clone(), error))
            }
        }
    }

    /// A line is one write at the end of the file, so that those of several processes do not mix.
    pub(super) fn write(&self, line: &Map<String, Value>) -> io::Result<()> {
        let text = plain(line);
        match self {
            Self::Log => {
                tracing::info!(target: "audit", "{text}");
                Ok(())
            }
            Self::Stderr => io::stderr().lock().write_all(format!("{text}\n").as_bytes()),
            Self::File(file) => {
                let mut file = file;
                file.write_all(format!("{text}\n").as_bytes())
            }
        }
    }
}

/// JSON in printable ASCII: no name can end a line, move a cursor or turn the order of what is read around.
fn plain(line: &Map<String, Value>) -> String {
    let json = Value::Object(line.clone()).to_string();
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() && !character.is_ascii_control() {
            text.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn c35_a73_no_name_forges_a_line() {
        let name = "a\r\n{\"act\":\"grant\"}\u{7f}\u{9b}31m\u{202e}\u{2028}\u{1b}[2J太郎🎉\"\\";
        let text = plain(json!({ "subject": name }).as_object().unwrap());
        assert!(text.bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["subject"], name);
    }
}
