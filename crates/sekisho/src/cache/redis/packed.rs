//! Values that were made smaller for Redis. One says so itself: a client that writes a plain one over it, knowing nothing of
//! this, leaves no word elsewhere that would then be wrong.
//!
//! ```text
//! "\0sekisho:zlib\0" · a zlib stream (RFC 1950), whose checksum tells what was damaged
//! ```

use std::borrow::Cow;

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::{TINFLStatus, decompress_to_vec_zlib_with_limit};

const MARK: &[u8] = b"\0sekisho:zlib\0";
/// What is shorter would gain next to nothing.
const SMALL: usize = 512;
/// The fastest: somebody waits for the value.
const LEVEL: u8 = 1;

/// Whether long values are made smaller. Whatever is set, both forms are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    #[default]
    None,
    /// Values of 512 bytes and more, if they become shorter by it. Only Sekisho can then read them.
    Zlib,
}

pub(super) fn pack(content: &[u8], compression: Compression) -> Cow<'_, [u8]> {
    // What begins like a packed one by itself is packed in any case, or it would be taken for one.
    let is_marked = content.starts_with(MARK);
    if !is_marked && (compression == Compression::None || content.len() < SMALL) {
        return Cow::Borrowed(content);
    }
    let packed = [MARK, &compress_to_vec_zlib(content, LEVEL)].concat();
    if is_marked || packed.len() < content.len() { Cow::Owned(packed) } else { Cow::Borrowed(content) }
}

/// Whatever stands there, no more than `most` bytes become of it.
pub(crate) fn unpack(content: Vec<u8>, most: usize) -> Result<Vec<u8>, &'static str> {
    let Some(packed) = content.strip_prefix(MARK) else { return Ok(content) };
    decompress_to_vec_zlib_with_limit(packed, most).map_err(|error| match error.status {
        TINFLStatus::HasMoreOutput => "it is longer than a value may be once it is decompressed",
        _ => "it is damaged, and cannot be decompressed",
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_becomes_shorter_is_packed() {
        let heights = "118.71,118.69,e,".repeat(100);
        assert!(pack(heights.as_bytes(), Compression::Zlib).len() < heights.len() / 4);
        assert_eq!(pack(heights.as_bytes(), Compression::None), heights.as_bytes());
        assert_eq!(pack(&heights.as_bytes()[..SMALL - 1], Compression::Zlib), &heights.as_bytes()[..SMALL - 1]);
        let mut state = 1_u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        let noise: Vec<u8> = (0..10_000).map(|_| noise()).collect();
        assert_eq!(pack(&noise, Compression::Zlib), noise);
    }

    #[test]
    fn no_value_becomes_longer_than_it_may_be() {
        // A thousand bytes that would be a mebibyte.
        let bomb = pack(&vec![0; 1 << 20], Compression::Zlib).into_owned();
        assert!(bomb.len() < 10_000, "{}", bomb.len());
        assert_eq!(unpack(bomb.clone(), 1 << 20).map(|content| content.len()), Ok(1 << 20));
        let used = allocation_counter::measure(|| {
            assert!(unpack(bomb.clone(), (1 << 20) - 1).unwrap_err().contains("longer"));
            assert!(unpack(bomb.clone(), 10_000).unwrap_err().contains("longer"));
        });
        assert!(used.bytes_max < 3 << 20, "{used:?}");
        let used = allocation_counter::measure(|| assert!(unpack(bomb, 10_000).is_err()));
        assert!(used.bytes_max < 100_000, "{used:?}");
    }

    #[test]
    fn what_was_damaged_is_told() {
        let packed = pack("118.71,".repeat(1_000).as_bytes(), Compression::Zlib).into_owned();
        for end in MARK.len()..packed.len() {
            assert!(unpack(packed[..end].to_vec(), 1 << 20).is_err(), "cut to {end} of {}", packed.len());
        }
        let mut changed = packed.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(unpack(changed, 1 << 20).unwrap_err().contains("damaged"));
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_back(
            bytes in proptest::collection::vec(0_u8..4, 0..4_000), is_marked: bool, is_on: bool,
        ) {
            let content = if is_marked { [MARK, &bytes].concat() } else { bytes };
            let packed = pack(&content, if is_on { Compression::Zlib } else { Compression::None });
            prop_assert_eq!(unpack(packed.into_owned(), 1 << 20).unwrap(), content);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            let _either = unpack([MARK, &bytes].concat(), 1 << 16);
        }
    }
}
