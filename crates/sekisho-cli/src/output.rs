//! The one place that writes to standard output and standard error.

use std::io::{self, Write as _};

use comfy_table::{Table, presets};

use crate::exit::Failure;

/// A reader that has seen enough (`| head`) is no failure.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

pub(crate) fn raw(bytes: &[u8]) {
    let _ = io::stdout().lock().write_all(bytes);
}

pub(crate) fn json(value: &serde_json::Value) {
    line(&format!("{value:#}"));
}

pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    line(&table.to_string());
}

pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

pub(crate) fn complain(failure: &Failure) {
    let _ = writeln!(io::stderr().lock(), "sekisho: {failure}");
}
