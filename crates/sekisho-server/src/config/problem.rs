//! What is wrong with a configuration, where, and what was probably meant.

use std::fmt;

/// A place in a file, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) line: u32,
    pub(super) column: u32,
}

impl At {
    pub(super) const START: Self = Self { line: 1, column: 1 };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) at: At,
    pub(super) message: String,
}

impl Problem {
    pub(super) fn new(at: At, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

/// Everything that is wrong with one configuration, ready to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(String);

impl ConfigError {
    /// Something that stands in no file: a flag, a variable, a file that cannot be read.
    pub fn plain(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Those of several files.
    pub(super) fn all(errors: impl IntoIterator<Item = Self>) -> Self {
        Self(errors.into_iter().map(|error| error.0).collect::<Vec<_>>().join("\n"))
    }

    /// Each problem as `file:line:column: message`, with its line and a caret below.
    pub(super) fn in_file(file: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.at);
        let shown = problems.iter().map(|problem| show(file, text, problem));
        Self(shown.collect::<Vec<_>>().join("\n"))
    }
}

fn show(file: &str, text: &str, problem: &Problem) -> String {
    let At { line, column } = problem.at;
    let head = format!("{file}:{line}:{column}: {}", problem.message);
    let Some(source) = text.lines().nth(line as usize - 1).filter(|source| !source.trim().is_empty()) else {
        return head;
    };
    // A tab would move the caret, and a line of a megabyte would hide the message.
    let source = masked(source).into_iter().take(160);
    let source: String = source.map(|c| if c.is_control() { ' ' } else { c }).collect();
    let number = line.to_string();
    let margin = " ".repeat(number.len());
    let indent = " ".repeat((column as usize - 1).min(160));
    format!("{head}\n {number} | {source}\n {margin} | {indent}^")
}

/// What is shown may go into a log, so that who may log in, and the query, of a URL are not: stars stand in their place.
fn masked(source: &str) -> Vec<char> {
    let mut line: Vec<char> = source.chars().collect();
    let mut from = 0;
    while let Some(start) = line[from..].windows(3).position(|three| three == [':', '/', '/']).map(|at| from + at + 3) {
        let is_over = |c: &char| c.is_whitespace() || matches!(c, '"' | '\'' | '`');
        let end = line[start..].iter().position(is_over).map_or(line.len(), |length| start + length);
        let login = line[start..end].iter().rposition(|c| *c == '@').map_or(start, |at| start + at);
        let query = line[login..end].iter().position(|c| *c == '?').map_or(end, |at| login + at + 1);
        line[start..login].fill('*');
        line[query..end].fill('*');
        from = end;
    }
    line
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// The known name that is nearest to a mistyped one, if any is near.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Comparing costs the product of the lengths, and callers choose this one.
    if name.len() > 64 {
        return None;
    }
    let folded = name.to_ascii_lowercase();
    // What was cut short is as near as one wrong letter.
    let distance = |candidate: &str| match candidate.to_ascii_lowercase() {
        cut if folded.len() >= 3 && cut.starts_with(&folded) => 1,
        whole => strsim::damerau_levenshtein(&folded, &whole),
    };
    let best =
        known.into_iter().map(|candidate| (distance(candidate), candidate)).min_by_key(|(distance, _)| *distance);
    // A third of the letters may be wrong: beyond that a suggestion is a guess.
    best.filter(|(distance, candidate)| *distance <= (candidate.len().max(name.len()) / 3).max(1)).map(|(_, name)| name)
}

/// `; did you mean …?`, or nothing.
pub(crate) fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a71_logins_and_queries_of_urls_are_not_shown() {
        for (line, shown) in [
            ("url: \"redis://:pw@h\"", "url: \"redis://***@h\""),
            ("url: redis://u:p/w@x@h:1/0", "url: redis://*******@h:1/0"),
            ("a: http://h/p?key=s, b: 'https://h/?x'", "a: http://h/p?****** b: 'https://h/?*'"),
            ("a: http://h/p, b: 1", "a: http://h/p, b: 1"),
            ("://", "://"),
            ("no URL @ all?", "no URL @ all?"),
        ] {
            assert_eq!(masked(line).into_iter().collect::<String>(), shown);
        }
    }
}
