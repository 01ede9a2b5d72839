//! The tables of docs/reference/configuration.md, made from the keys that the reader knows.

use super::keys::{Fallback, KeySpec, Kind, ROOT, Section};

const START: &str = "<!-- keys: ";
const END: &str = "<!-- end of keys -->";

/// The page with its tables made anew: each stands between `<!-- keys: SECTION -->` and `<!-- end of keys -->`.
pub fn fill(page: &str) -> Result<String, String> {
    let mut left: Vec<&Section> = Vec::new();
    collect(&ROOT, &mut left);
    let mut parts = page.split(START);
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(" -->").ok_or_else(|| format!("`{START}` has no end"))?;
        let (_, rest) = rest.split_once(END).ok_or_else(|| format!("the keys of {name} have no end"))?;
        let place = left.iter().position(|section| section.name == name);
        let section = place.map(|place| left.remove(place)).ok_or_else(|| format!("no section {name} is left"))?;
        filled.push_str(&format!("{START}{name} -->\n{}{END}{rest}", table(section)));
    }
    match left.first() {
        Some(missing) => Err(format!("the page has no place for the keys of {}", missing.name)),
        None => Ok(filled),
    }
}

/// The section and all below it, each once.
fn collect(section: &'static Section, found: &mut Vec<&'static Section>) {
    if found.iter().any(|known| known.name == section.name) {
        return;
    }
    found.push(section);
    for key in section.keys {
        if let Kind::One(below) | Kind::List(below) | Kind::Named(below) = key.kind {
            collect(below, found);
        }
    }
}

fn table(section: &Section) -> String {
    let mut table = String::from("| key | type | default | meaning |\n|---|---|---|---|\n");
    for key in section.keys {
        let KeySpec { name, about, .. } = key;
        table.push_str(&format!("| `{name}` | {} | {} | {about} |\n", kind(key.kind), fallback(section, key)));
    }
    table
}

fn kind(kind: Kind) -> String {
    let words = |words: &[&str]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let link = |section: &Section| format!("[{0}](#{0})", section.name);
    match kind {
        Kind::Address => "address".to_owned(),
        Kind::AddressOrOff => "address, or `off`".to_owned(),
        Kind::Flag => "`true`, `false`".to_owned(),
        Kind::Whole(least, most) => format!("{least} to {}", grouped(most)),
        Kind::Duration => "duration".to_owned(),
        Kind::DurationOrRange => "duration, or a list of two".to_owned(),
        Kind::DurationOrOff => "duration, or `off`".to_owned(),
        Kind::Rate => "rate such as `1/s`".to_owned(),
        Kind::Number(least, most) => format!("{least} to {most}"),
        Kind::Size => "size".to_owned(),
        Kind::Text => "text".to_owned(),
        Kind::Texts => "list of text".to_owned(),
        Kind::TextOrTexts => "text, or a list of text".to_owned(),
        Kind::Choice(choices) => words(choices),
        Kind::Choices(choices) => format!("list of {}", words(choices)),
        Kind::One(section) => link(section),
        Kind::List(section) => format!("list of {}", link(section)),
        Kind::Named(section) => format!("name → {}", link(section)),
        Kind::Amounts => "unit → number".to_owned(),
        Kind::Pointers => "unit → JSON pointer".to_owned(),
        Kind::Json => "any JSON".to_owned(),
    }
}

fn fallback(section: &Section, key: &KeySpec) -> String {
    match key.fallback {
        Fallback::Nothing if key.is_needed => "needed".to_owned(),
        Fallback::Nothing if section.either.contains(&key.name) => "one of these is needed".to_owned(),
        Fallback::Nothing => String::new(),
        Fallback::Text(text) => format!("`{text}`"),
        Fallback::Whole(number) => grouped(number),
        Fallback::Flag(flag) => format!("`{flag}`"),
        Fallback::Texts([]) => "none".to_owned(),
        Fallback::Texts(texts) => format!("`[{}]`", texts.join(", ")),
        Fallback::Words(words) => words.to_owned(),
    }
}

/// `1,000,000`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}
