//! Rust source with everything that is not code blanked out.

use std::iter::Peekable;
use std::str::Chars;

/// Replaces comments and the insides of literals by spaces; lines and columns of the code stay where they are.
pub(super) fn only_code(text: &str) -> String {
    let mut scanner = Scanner { rest: text.chars().peekable(), code: String::with_capacity(text.len()) };
    scanner.scan();
    scanner.code
}

struct Scanner<'a> {
    rest: Peekable<Chars<'a>>,
    code: String,
}

impl Scanner<'_> {
    fn scan(&mut self) {
        while let Some(c) = self.rest.next() {
            match (c, self.rest.peek().copied()) {
                ('/', Some('/')) => self.line_comment(),
                ('/', Some('*')) => self.block_comment(),
                ('"', _) => match self.raw_hashes() {
                    Some(hashes) => self.raw_string(hashes),
                    None => self.quoted('"'),
                },
                ('\'', _) if self.is_char_literal() => self.quoted('\''),
                _ => self.code.push(c),
            }
        }
    }

    fn blank(&mut self, c: char) {
        self.code.push(if c == '\n' { '\n' } else { ' ' });
    }

    fn line_comment(&mut self) {
        self.blank('/');
        while let Some(c) = self.rest.next_if(|&c| c != '\n') {
            self.blank(c);
        }
    }

    fn block_comment(&mut self) {
        self.blank('/');
        let mut depth = 0;
        let mut last = '/';
        while let Some(c) = self.rest.next() {
            self.blank(c);
            // A pair is used up, so that `/*/` does not open and close at once.
            last = match (last, c) {
                ('/', '*') => {
                    depth += 1;
                    ' '
                }
                ('*', '/') => {
                    depth -= 1;
                    ' '
                }
                _ => c,
            };
            if depth == 0 {
                return;
            }
        }
    }

    fn quoted(&mut self, quote: char) {
        self.blank(quote);
        while let Some(c) = self.rest.next() {
            self.blank(c);
            if c == quote {
                return;
            }
            if c == '\\'
                && let Some(escaped) = self.rest.next()
            {
                self.blank(escaped);
            }
        }
    }

    /// The number of `#` between an `r` and the quote that was just read, if it opens a raw string.
    fn raw_hashes(&self) -> Option<usize> {
        let before = self.code.trim_end_matches('#');
        let hashes = self.code.len() - before.len();
        let before = before.strip_suffix('r')?;
        let before = before.strip_suffix(['b', 'c']).unwrap_or(before);
        let in_a_word = before.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        (!in_a_word).then_some(hashes)
    }

    fn raw_string(&mut self, hashes: usize) {
        self.blank('"');
        let mut closing = None;
        while let Some(c) = self.rest.next() {
            self.blank(c);
            closing = match (c, closing) {
                ('"', _) => Some(0),
                ('#', Some(seen)) => Some(seen + 1),
                _ => None,
            };
            if closing == Some(hashes) {
                return;
            }
        }
    }

    /// `'a'` and `'\n'` are literals, `'a` is a lifetime.
    fn is_char_literal(&self) -> bool {
        let mut ahead = self.rest.clone();
        match ahead.next() {
            Some('\\') => true,
            Some(_) => ahead.next() == Some('\''),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        only_code(text).split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(words("a // b\nc /* d /* e */ f */ g /// h"), ["a", "c", "g"]);
        assert_eq!(words("a /*/ b */ c"), ["a", "c"]);
    }

    #[test]
    fn strings_are_no_code() {
        assert_eq!(words(r#"a "b \" // c" d"#), ["a", "d"]);
        assert_eq!(words(r###"a r##"b "# c"## d"###), ["a", "r##", "d"]);
        assert_eq!(words(r#"a b"b" r"\" c"#), ["a", "b", "r", "c"]);
    }

    #[test]
    fn quotes_in_chars_open_no_string() {
        assert_eq!(words(r#"a '"' b '\'' c '\\' d"#), ["a", "b", "c", "d"]);
        assert_eq!(words("f<'a>(x: &'a str)"), ["f<'a>(x:", "&'a", "str)"]);
    }

    #[test]
    fn lines_and_columns_stay() {
        let text = "a \"b\nc\" d // é\n/* e\n*/ f";
        let code = only_code(text);
        assert_eq!(code.lines().count(), text.lines().count());
        assert_eq!(code.lines().nth(1), Some("   d     "));
    }
}
