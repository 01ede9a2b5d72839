//! The paths that Rust code names, with `use` groups written out.

/// A path such as `crate::limits::Limit` as its segments, and the line where it ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) line: usize,
    pub(super) segments: Vec<String>,
}

/// Finds every path of two or more segments in code without comments and literals.
pub(super) fn named_in(code: &str) -> Vec<Named> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at = path(&tokens, at, &[], &mut found);
    }
    found.retain(|named| named.segments.len() > 1);
    found
}

#[derive(Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Colons,
    Open,
    Close,
    Comma,
    Other,
}

/// Reads one path that continues `prefix`, and returns where the next one can start.
fn path(tokens: &[(usize, Token<'_>)], mut at: usize, prefix: &[String], found: &mut Vec<Named>) -> usize {
    let mut segments = prefix.to_vec();
    while let Some((line, Token::Word(word))) = tokens.get(at) {
        segments.push((*word).to_owned());
        at += 1;
        match (tokens.get(at), tokens.get(at + 1)) {
            (Some((_, Token::Colons)), Some((_, Token::Word(_)))) => at += 1,
            (Some((_, Token::Colons)), Some((_, Token::Open))) => return group(tokens, at + 2, &segments, found),
            _ => {
                found.push(Named { line: *line, segments });
                return at;
            }
        }
    }
    at + 1
}

fn group(tokens: &[(usize, Token<'_>)], mut at: usize, prefix: &[String], found: &mut Vec<Named>) -> usize {
    let mut starts_item = true;
    while let Some((_, token)) = tokens.get(at) {
        match token {
            Token::Close => return at + 1,
            Token::Comma => {
                starts_item = true;
                at += 1;
            }
            // `as` and the name behind it follow an item, and name nothing.
            Token::Word(_) if starts_item => {
                starts_item = false;
                at = path(tokens, at, prefix, found);
            }
            _ => at += 1,
        }
    }
    at
}

fn tokens(code: &str) -> Vec<(usize, Token<'_>)> {
    let mut tokens = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(c) = rest.chars().next() {
            let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let (token, length) = match c {
                _ if word > 0 => (Token::Word(&rest[..word]), word),
                ':' if rest.starts_with("::") => (Token::Colons, 2),
                '{' => (Token::Open, 1),
                '}' => (Token::Close, 1),
                ',' => (Token::Comma, 1),
                c => (Token::Other, c.len_utf8()),
            };
            tokens.push((index + 1, token));
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str) -> Vec<(usize, String)> {
        named_in(code).into_iter().map(|named| (named.line, named.segments.join("::"))).collect()
    }

    #[test]
    fn plain_paths_are_found_anywhere() {
        let code = "use crate::limits::Limit;\nfn f(x: std::time::Instant) { tokio::spawn(x) }";
        let expected = [(1, "crate::limits::Limit"), (2, "std::time::Instant"), (2, "tokio::spawn")];
        assert_eq!(found(code), expected.map(|(line, path)| (line, path.to_owned())));
    }

    #[test]
    fn groups_are_written_out() {
        let code = "use crate::{\n    cache::{self, Entry as E},\n    limits,\n};\nuse a::b;";
        let expected = [(2, "crate::cache::self"), (2, "crate::cache::Entry"), (3, "crate::limits"), (5, "a::b")];
        assert_eq!(found(code), expected.map(|(line, path)| (line, path.to_owned())));
    }

    #[test]
    fn stars_and_generics_end_a_path() {
        assert_eq!(found("use super::*; Vec::<u8>::new()"), []);
        assert_eq!(found("use crate::limits::*;"), [(1, "crate::limits".to_owned())]);
    }
}
