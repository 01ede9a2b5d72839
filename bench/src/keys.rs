//! Which subjects are asked for: the same stream for every contender.

/// A sequence of indices below `count`, drawn by zipf(1.0) or evenly, repeatable.
pub(crate) fn sequence(count: usize, length: usize, zipf: bool, seed: u64) -> Vec<u32> {
    let mut state = seed | 1;
    let mut uniform = move || {
        // xorshift64*: enough for a sequence of keys.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1_u64 << 53) as f64
    };
    if !zipf {
        return (0..length).map(|_| (uniform() * count as f64) as u32).collect();
    }
    let mut cumulative = Vec::with_capacity(count);
    let mut sum = 0.0;
    for rank in 1..=count {
        sum += 1.0 / rank as f64;
        cumulative.push(sum);
    }
    (0..length).map(|_| cumulative.partition_point(|c| *c < uniform() * sum).min(count - 1) as u32).collect()
}

/// Sixteen bytes each, as an address or a short id has.
pub(crate) fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("user-{i:011}")).collect()
}
