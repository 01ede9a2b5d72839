//! Which versions of Redis and Valkey let a script out of its box. Pure.

/// In these a script could run any code (CVE-2025-49844) until the last number: later branches never had it.
const REDIS: [[u32; 3]; 5] = [[6, 2, 20], [7, 2, 11], [7, 4, 6], [8, 0, 4], [8, 2, 2]];
const VALKEY: [[u32; 3]; 3] = [[7, 2, 11], [8, 0, 6], [8, 1, 4]];

/// Whether a server that says this of itself is one of them. What cannot be read is not judged.
pub(super) fn is_open(version: &str) -> bool {
    let (fixed, numbers) = match version.strip_prefix("valkey ") {
        Some(numbers) => (&VALKEY[..], numbers),
        None => (&REDIS[..], version.strip_prefix("redis ").unwrap_or(version)),
    };
    let mut numbers = numbers.split(['.', '-']).map(|number| number.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor)), Some(Some(patch))) = (numbers.next(), numbers.next(), numbers.next())
    else {
        return false;
    };
    match fixed.iter().find(|[a, b, _]| (*a, *b) == (major, minor)) {
        Some([_, _, first]) => patch < *first,
        // A branch without a fix of its own.
        None => fixed.last().is_some_and(|[a, b, _]| (major, minor) < (*a, *b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a63_versions_before_their_fix_are_known() {
        for open in [
            "redis 6.2.19",
            "redis 7.0.15",
            "redis 7.2.10",
            "redis 8.2.1",
            "redis 5.0.14",
            "valkey 8.1.3",
            "valkey 7.2.4",
        ] {
            assert!(is_open(open), "{open}");
        }
        for fixed in [
            "redis 6.2.20",
            "redis 7.4.6",
            "redis 8.2.2",
            "redis 8.4.0",
            "redis 9.0.0-rc1",
            "valkey 8.1.4",
            "valkey 9.0.0",
        ] {
            assert!(!is_open(fixed), "{fixed}");
        }
        for unknown in ["", "redis", "redis seven", "redis 7", "dragonfly 1.0"] {
            assert!(!is_open(unknown), "{unknown}");
        }
    }
}
