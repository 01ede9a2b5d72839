//! Memory that the machine maps in large pieces. A read of a random place in many small ones costs most of its time in finding out
//! where that place is.

use memmap2::MmapMut;
use zerocopy::{FromBytes, IntoBytes};

/// What most machines map at once, where they are asked to.
pub(super) const BYTES: usize = 2 << 20;

/// So many bytes of zeros, for as long as the process lives.
pub(super) fn zeros<T: FromBytes + IntoBytes>() -> &'static [T] {
    mapped().unwrap_or_else(|| Box::leak((0..BYTES / size_of::<T>()).map(|_| T::new_zeroed()).collect()))
}

fn mapped<T: FromBytes + IntoBytes>() -> Option<&'static [T]> {
    // Twice as much, so that a whole piece is in it; what nobody touches is not there.
    let map = MmapMut::map_anon(2 * BYTES).ok()?;
    #[cfg(target_os = "linux")]
    drop(map.advise(memmap2::Advice::HugePage));
    let bytes = &mut Box::leak(Box::new(map))[..];
    let start = bytes.as_ptr().align_offset(BYTES);
    <[T]>::mut_from_bytes(bytes.get_mut(start..start + BYTES)?).ok().map(|all| &*all)
}
