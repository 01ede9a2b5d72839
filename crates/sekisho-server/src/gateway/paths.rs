//! Paths as every server could read them. A limit that `/login` has must not be escaped by `/%6cogin`, `/login;x=1` or
//! `//login`: what a server behind may take for the same path finds the same route, and what can be read as one path or as
//! another is refused.

use std::borrow::Cow;

/// The path that routes are matched with: decoded, and its segments without parameters. None if it is not one path.
pub(crate) fn read(path: &str) -> Option<Cow<'_, str>> {
    // A backslash is a slash to some.
    if !path.starts_with('/') || path.contains('\\') {
        return None;
    }
    let mut read = Cow::Borrowed(path);
    if path.contains('%') {
        read = Cow::Owned(decoded(path)?);
    }
    if read.contains(';') {
        let bare = |segment: &str| segment.split(';').next().unwrap_or_default().to_owned();
        read = Cow::Owned(read.split('/').map(bare).collect::<Vec<_>>().join("/"));
        // What was only parameters is a second slash to those who drop them.
        if read.ends_with('/') && !path.ends_with('/') {
            return None;
        }
    }
    let mut segments = read.strip_prefix('/').unwrap_or(&read).split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_empty = segment.is_empty() && segments.peek().is_some();
        if is_empty || matches!(segment, "." | "..") {
            return None;
        }
    }
    Some(read)
}

/// None if it holds an encoded slash, which some take for a slash, or what no path holds.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let byte = u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).ok()?;
        if matches!(byte, b'/' | b'\\' | 0..=0x1f | 0x7f) {
            return None;
        }
        bytes.push(byte);
        rest = after;
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a39_paths_that_can_be_read_in_two_ways_are_refused() {
        for path in [
            "/a/../b",
            "/a/./b",
            "/..",
            "//a",
            "/a//b",
            "/a%2fb",
            "/a%2Fb",
            "/a%5cb",
            "/a\\b",
            "/\\a",
            "/a\\..\\b",
            "*",
            "/a/%2e%2E/b",
            "/%2e",
            "/a%00",
            "/..;/a",
            "/a/..;x=1/b",
            "/.;x",
            "/;x/a",
            "/a/;x",
            "/a%",
            "/a%4",
            "/a%zz",
            "/a%0d%0ab",
            "/%2e%3b/a",
        ] {
            assert!(read(path).is_none(), "{path}");
        }
        for (path, as_read) in [
            ("/", "/"),
            ("/a", "/a"),
            ("/a/", "/a/"),
            ("/a.b/..c", "/a.b/..c"),
            ("/a%20b", "/a b"),
            ("/%7Euser", "/~user"),
            ("/...", "/..."),
            ("/%6cogin;x=1", "/login"),
            ("/a;x/b;y=1;z/", "/a/b/"),
            ("/%E9%96%A2%E6%89%80", "/関所"),
            ("/%ff", "/\u{fffd}"),
            ("/100%25", "/100%"),
        ] {
            assert_eq!(read(path).as_deref(), Some(as_read), "{path}");
        }
    }
}
