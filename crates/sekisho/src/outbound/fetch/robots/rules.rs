//! What a robots.txt says to us, by RFC 9309: pure.

use std::time::Duration;

use url::Url;

/// More of a file is not read; the RFC asks for at least 500 KiB.
pub(crate) const MAX_BYTES: usize = 500 << 10;
/// A delay beyond this is a mistake (milliseconds, perhaps), and would stop the domain for good.
const MAX_DELAY: Duration = Duration::from_secs(86_400);

/// The rules of the groups that are ours.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rules {
    rules: Vec<Rule>,
    delay: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    allows: bool,
    /// Normalised, without the `$` at its end.
    pattern: String,
    is_anchored: bool,
}

/// Whom a group is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    Us,
    Everybody,
    Others,
}

impl Rules {
    /// The groups that name `token` (letters, `-` and `_`), all taken together; if none does, those for `*`.
    pub(crate) fn read(text: &[u8], token: &str) -> Self {
        let text = String::from_utf8_lossy(&text[..text.len().min(MAX_BYTES)]);
        let (mut ours, mut everybodys, mut is_named) = (Self::default(), Self::default(), false);
        // One group may be for several agents, so for us and for everybody at once.
        let (mut group, mut has_rules): (Vec<For>, bool) = (Vec::new(), false);
        for line in text.trim_start_matches('\u{feff}').split(['\r', '\n']) {
            let Some((key, value)) = line.split('#').next().and_then(|line| line.split_once(':')) else { continue };
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
            if key == "user-agent" {
                if std::mem::take(&mut has_rules) {
                    group.clear();
                }
                group.push(whom(value, token));
                is_named |= group.contains(&For::Us);
                continue;
            }
            // What is no rule, such as a sitemap, belongs to no group and ends none.
            let Some(said) = Said::of(&key, value) else { continue };
            has_rules = true;
            if group.contains(&For::Us) {
                ours.take(&said);
            }
            if group.contains(&For::Everybody) {
                everybodys.take(&said);
            }
        }
        if is_named { ours } else { everybodys }
    }

    /// The longest rule that matches decides, and of two that are as long the one that allows.
    pub(crate) fn allows(&self, url: &Url) -> bool {
        if url.path() == "/robots.txt" {
            return true;
        }
        let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        let path = normalised(&path, Side::Url);
        let matching = self.rules.iter().filter(|rule| rule.matches(&path));
        matching.max_by_key(|rule| (rule.weight(), rule.allows)).is_none_or(|rule| rule.allows)
    }

    /// How long to leave between two requests.
    pub(crate) fn crawl_delay(&self) -> Option<Duration> {
        self.delay
    }

    /// Roughly, for a cache with a bound.
    pub(crate) fn bytes(&self) -> usize {
        self.rules.iter().map(|rule| size_of::<Rule>() + rule.pattern.len()).sum()
    }

    fn take(&mut self, said: &Said) {
        match said {
            Said::Rule(rule) => self.rules.extend(rule.clone()),
            // Of several the slowest.
            Said::Delay(delay) => self.delay = self.delay.max(*delay),
        }
    }
}

/// A line that belongs to a group, though it may say nothing: `Disallow:` alone forbids nothing.
enum Said {
    Rule(Option<Rule>),
    Delay(Option<Duration>),
}

impl Said {
    fn of(key: &str, value: &str) -> Option<Self> {
        match key {
            "allow" | "disallow" => Some(Self::Rule(Rule::read(value, key == "allow"))),
            "crawl-delay" => Some(Self::Delay(delay(value))),
            _ => None,
        }
    }
}

impl Rule {
    fn read(value: &str, allows: bool) -> Option<Self> {
        if value.is_empty() {
            return None;
        }
        let (pattern, is_anchored) = value.strip_suffix('$').map_or((value, false), |pattern| (pattern, true));
        Some(Self { allows, pattern: normalised(pattern, Side::Pattern), is_anchored })
    }

    fn weight(&self) -> usize {
        self.pattern.len() + usize::from(self.is_anchored)
    }

    /// Taking each piece between stars as early as it comes is enough: what is found later leaves less, never more.
    fn matches(&self, path: &str) -> bool {
        let mut pieces = self.pattern.split('*');
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = path.strip_prefix(first) else { return false };
        let mut pieces = pieces.peekable();
        if pieces.peek().is_none() {
            return !self.is_anchored || rest.is_empty();
        }
        while let Some(piece) = pieces.next() {
            if self.is_anchored && pieces.peek().is_none() {
                return rest.ends_with(piece);
            }
            let Some(at) = rest.find(piece) else { return false };
            rest = &rest[at + piece.len()..];
        }
        true
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Url,
    Pattern,
}

/// The one spelling of a path: what needs no escape has none, all else has one in capitals. A star or dollar of a URL is
/// only a character, so it is escaped, as it must be in a rule that means it.
fn normalised(path: &str, side: Side) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if let (b'%', [high, low, beyond @ ..]) = (byte, after)
            && let Some(octet) = octet(*high, *low)
        {
            rest = beyond;
            push(&mut out, octet, is_unreserved(octet));
        } else if *byte == b'*' {
            push(&mut out, b'*', side == Side::Pattern);
        } else {
            push(&mut out, *byte, is_unreserved(*byte) || b":/?#[]@!&'()+,;=".contains(byte));
        }
    }
    out
}

fn push(out: &mut String, octet: u8, is_plain: bool) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    if is_plain {
        out.push(char::from(octet));
    } else {
        let digit = |digit: u8| char::from(DIGITS[usize::from(digit)]);
        out.extend(['%', digit(octet >> 4), digit(octet & 15)]);
    }
}

fn octet(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

fn is_unreserved(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || b"-._~".contains(&octet)
}

fn whom(value: &str, token: &str) -> For {
    let named = product_token(value);
    match () {
        () if !token.is_empty() && named.eq_ignore_ascii_case(token) => For::Us,
        () if value == "*" || value.starts_with("* ") => For::Everybody,
        () => For::Others,
    }
}

/// `Sekisho/1.0 (+https://…)` is `Sekisho`.
pub(crate) fn product_token(agent: &str) -> &str {
    let is_part = |byte: &u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_');
    &agent[..agent.bytes().take_while(is_part).count()]
}

fn delay(value: &str) -> Option<Duration> {
    let seconds: f64 = value.parse().ok()?;
    // An overlong delay is cut, and neither infinity nor a negative one is a delay.
    (seconds.is_finite() && seconds > 0.0).then(|| Duration::from_secs_f64(seconds.min(MAX_DELAY.as_secs_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(path: &str) -> Url {
        Url::parse(&format!("https://example.com{path}")).unwrap()
    }

    fn allows(text: &str, path: &str) -> bool {
        Rules::read(text.as_bytes(), "sekisho").allows(&url(path))
    }

    #[test]
    fn without_rules_all_is_allowed() {
        for text in
            ["", "nonsense", "\0\u{7f}", "Disallow: /", "User-agent: *\nDisallow:", "User-agent: other\nDisallow: /"]
        {
            assert!(allows(text, "/a"), "{text:?}");
        }
    }

    #[test]
    fn groups_are_chosen_by_the_product_token() {
        let text = "User-agent: *\nDisallow: /\n\nUser-Agent: Sekisho/2.0\nDisallow: /private\n\n\
                    user-agent: sekisho-news\nDisallow: /news\n";
        assert!(allows(text, "/a"));
        assert!(allows(text, "/news"));
        assert!(!allows(text, "/private/b"));
        assert!(!Rules::read(text.as_bytes(), "other").allows(&url("/a")));
        // A group of ours that says nothing still keeps us out of the one for everybody.
        assert!(allows("User-agent: *\nDisallow: /\nUser-agent: sekisho\nDisallow:\n", "/a"));
    }

    #[test]
    fn groups_for_one_agent_are_taken_together() {
        let text = "User-agent: a\nUser-agent: sekisho\nDisallow: /a\nSitemap: /s\nDisallow: /b\n\
                    User-agent: b\nDisallow: /c\nUser-agent: sekisho\nDisallow: /d";
        let found: Vec<_> = ["/a", "/b", "/c", "/d"].into_iter().filter(|path| !allows(text, path)).collect();
        assert_eq!(found, ["/a", "/b", "/d"]);
    }

    #[test]
    fn the_longest_match_wins_and_of_two_the_one_that_allows() {
        let text = "User-agent: *\nDisallow: /\nAllow: /p\nDisallow: /page\nAllow: /page\nDisallow: /p/secret$";
        for (path, expected) in
            [("/", false), ("/x", false), ("/p", true), ("/page1", true), ("/p/secret", false), ("/p/secrets", true)]
        {
            assert_eq!(allows(text, path), expected, "{path}");
        }
        assert!(allows("User-agent: *\nDisallow: /", "/robots.txt"));
    }

    #[test]
    fn stars_and_anchors() {
        for (pattern, path, matches) in [
            ("/fish", "/fish.html", true),
            ("/fish", "/Fish", false),
            ("/fish*", "/fishheads/yummy", true),
            ("/fish/", "/fish", false),
            ("/*.php", "/folder/any.php.file.html", true),
            ("/*.php", "/windows.PHP", false),
            ("/*.php$", "/filename.php", true),
            ("/*.php$", "/filename.php?parameters", false),
            ("/*.php$", "/a.php/b.php", true),
            ("/fish*.php", "/fishheads/catfish.php?parameters", true),
            ("/$", "/", true),
            ("/$", "/a", false),
            ("*", "/a", true),
            ("/**a", "/xa", true),
            ("/a*b*c$", "/abbbc", true),
            ("/a*b*c$", "/acb", false),
            ("/*ab$", "/ab", true),
            ("/ab*ab$", "/ab", false),
            ("/*?", "/a?b", true),
            ("/*?", "/a", false),
            ("fish", "/fish", false),
        ] {
            assert_eq!(!allows(&format!("User-agent: *\nDisallow: {pattern}"), path), matches, "{pattern} {path}");
        }
    }

    #[test]
    fn escapes_make_no_difference() {
        for (pattern, path) in [
            ("/foo/bar?baz=https://foo.bar", "/foo/bar?baz=https://foo.bar"),
            ("/foo/bar/ツ", "/foo/bar/%E3%83%84"),
            ("/foo/bar/%e3%83%84", "/foo/bar/ツ"),
            ("/foo/bar/%62%61%7A", "/foo/bar/baz"),
            ("/foo/bar/baz", "/foo/bar/%62%61%7a"),
            ("/file-with-a-%2A.html", "/file-with-a-*.html"),
            ("/path/foo-%24", "/path/foo-$"),
            ("/100%", "/100%"),
            ("/a|b", "/a%7Cb"),
        ] {
            assert!(!allows(&format!("User-agent: *\nDisallow: {pattern}"), path), "{pattern} {path}");
        }
        assert!(allows("User-agent: *\nDisallow: /a%2Fb", "/a/b"));
        assert!(allows("User-agent: *\nDisallow: /a%2A", "/ab"));
    }

    #[test]
    fn odd_files_are_read_as_they_are_meant() {
        let text = "\u{feff}USER-AGENT : * # all\r\ndisallow :/a#b\rDisallow: /c  \r\nCrawl-delay: 0.5\n";
        let rules = Rules::read(text.as_bytes(), "sekisho");
        let found: Vec<_> = ["/a", "/b", "/c"].into_iter().filter(|path| !rules.allows(&url(path))).collect();
        assert_eq!((found, rules.crawl_delay()), (vec!["/a", "/c"], Some(Duration::from_millis(500))));
        let mut long = vec![b'#'; MAX_BYTES - 30];
        long.extend_from_slice(b"\nUser-agent: *\nDisallow: /a\n  ");
        long.extend_from_slice(b"Disallow: /b\n");
        let rules = Rules::read(&long, "sekisho");
        assert_eq!((rules.allows(&url("/a")), rules.allows(&url("/b"))), (false, true));
    }

    #[test]
    fn delays() {
        for (said, expected) in [
            ("2", Some(2_000)),
            ("0.25", Some(250)),
            ("0", None),
            ("-1", None),
            ("inf", None),
            ("NaN", None),
            ("soon", None),
            ("1e300", Some(86_400_000)),
        ] {
            let text = format!("User-agent: a\nCrawl-delay: {said}\nUser-agent: b\nDisallow: /\n");
            let rules = Rules::read(text.as_bytes(), "a");
            assert_eq!(rules.crawl_delay(), expected.map(Duration::from_millis), "{said}");
            assert!(rules.allows(&url("/")));
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_makes_it_stumble(text: Vec<u8>, path in "/[ -~]{0,40}") {
            let rules = Rules::read(&text, "sekisho");
            rules.allows(&url(&path));
        }

        #[test]
        fn a24_a_match_is_what_a_slow_reader_finds(pattern in "/[ab*]{0,8}[$]?", path in "/[ab]{0,12}") {
            fn slow(pattern: &[u8], path: &[u8]) -> bool {
                match (pattern, path) {
                    ([], _) | ([b'$'], []) => true,
                    ([b'*', rest @ ..], _) => (0..=path.len()).any(|skip| slow(rest, &path[skip..])),
                    ([first, rest @ ..], [byte, after @ ..]) => first == byte && slow(rest, after),
                    _ => false,
                }
            }
            let expected = slow(pattern.as_bytes(), path.as_bytes());
            let text = format!("User-agent: *\nDisallow: {pattern}\n");
            proptest::prop_assert_eq!(!allows(&text, &path), expected);
        }
    }
}
