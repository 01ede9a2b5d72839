//! Changes to inputs, all drawn from one seed: the same seed makes the same inputs on every machine.

const MAX: usize = 64 << 10;
/// Where numbers tend to break.
const NUMBERS: [&str; 14] = [
    "0",
    "-1",
    "1",
    "127",
    "256",
    "65536",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551616",
    "1e309",
    "-0.0",
    "NaN",
];
const BYTES: [u8; 20] = *b"\0\x01\x7f\x80\xff\r\n\t \"'\\/:;,{}[%";

/// SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// The words of a corpus, to be put where they were not.
pub(crate) fn words(corpus: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') || *byte >= 0x80;
    let mut words: Vec<Vec<u8>> = Vec::new();
    for seed in corpus {
        let found = seed.split(|byte| !is_word(byte)).filter(|word| (2..=40).contains(&word.len()));
        words.extend(found.map(<[u8]>::to_vec));
    }
    words.sort();
    words.dedup();
    words
}

/// Changes `input` in one to eight places.
pub(crate) fn mutate(dice: &mut Dice, input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[Vec<u8>]) {
    for _ in 0..=dice.below(8) {
        change(dice, input, corpus, words);
    }
    input.truncate(MAX);
}

fn change(dice: &mut Dice, input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[Vec<u8>]) {
    let at = dice.below(input.len() + 1);
    let (start, end) = range(dice, input.len());
    match dice.below(11) {
        0 => flip(dice, input),
        1 => put(input, at..at, &[*dice.one(&BYTES)]),
        2 if at < input.len() => input[at] = *dice.one(&BYTES),
        3 => put(input, start..end, &[]),
        4 => {
            let copy = input[start..end].to_vec();
            put(input, at..at, &copy);
        }
        // Much of the same.
        5 => {
            let copy = input[start..end.min(start + 16)].repeat(1 + dice.below(64));
            put(input, at..at, &copy);
        }
        6 => {
            let (start, end) = digits(input, at);
            put(input, start..end, dice.one(&NUMBERS).as_bytes());
        }
        7 if !words.is_empty() => put(input, at..at, &dice.one(words)[..]),
        8 if !words.is_empty() => put(input, start..end, &dice.one(words)[..]),
        9 if !corpus.is_empty() => {
            let other = dice.one(corpus);
            let (start, end) = range(dice, other.len());
            put(input, at..at, &other[start..end]);
        }
        // The end of another.
        10 if !corpus.is_empty() => {
            let other = dice.one(corpus);
            let from = dice.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        _ => flip(dice, input),
    }
}

fn flip(dice: &mut Dice, input: &mut Vec<u8>) {
    match input.len() {
        0 => input.push(dice.next() as u8),
        length => input[dice.below(length)] ^= 1 << dice.below(8),
    }
}

fn put(input: &mut Vec<u8>, place: std::ops::Range<usize>, bytes: &[u8]) {
    if input.len() + bytes.len() <= MAX {
        input.splice(place, bytes.iter().copied());
    }
}

fn range(dice: &mut Dice, length: usize) -> (usize, usize) {
    let start = dice.below(length + 1);
    // Mostly short.
    let most = if dice.below(4) == 0 { length - start } else { (length - start).min(12) };
    (start, start + dice.below(most + 1))
}

/// The number at or after a place, or nothing there.
fn digits(input: &[u8], at: usize) -> (usize, usize) {
    let Some(start) = input[at..].iter().position(u8::is_ascii_digit).map(|found| at + found) else { return (at, at) };
    let length = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    (start, start + length)
}
