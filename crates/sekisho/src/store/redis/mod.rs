//! The Redis connection: deadlines, slots, scripts, coalescing.
