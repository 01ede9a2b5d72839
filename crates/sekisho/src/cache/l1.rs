//! The first tier: decoded values in this process, bounded by count and by bytes.

use std::num::NonZero;
use std::sync::Arc;
use std::{fmt, thread};

use lru::LruCache;
use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};

use super::gone::Gone;
use super::key::Key;
use super::name::{Asked, Name};
use crate::error::Invalid;

/// Entries for which one lock is enough.
const FEW: usize = 256;
/// The part of all room that is for what was asked for more than once; the rest is where what is new waits for that.
const HOT: f64 = 0.98;

/// How much is kept in this process, and what goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub entries: usize,
    pub bytes: u64,
    pub policy: Policy,
}

impl Default for Room {
    fn default() -> Self {
        Self { entries: 1_000, bytes: 256 << 20, policy: Policy::Modern }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// S3-FIFO: what is asked for once, as by a scan, does not push out what is asked for often.
    #[default]
    Modern,
    /// The least recently used goes first, and a get refreshes. Exactly, and therefore behind one lock.
    Lru,
}

impl Room {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.entries == 0 || self.entries > 1 << 30 {
            return Err(Invalid::new("entries", "must be from 1 to a thousand million"));
        }
        if self.bytes < self.entries as u64 || self.bytes > 1 << 50 {
            return Err(Invalid::new("bytes", "must be at least one for each entry, and at most a pebibyte"));
        }
        Ok(())
    }
}

/// Whatever is kept knows its own weight in bytes. It is cloned for whoever gets it, so that should cost little.
pub(super) trait Weighed: Clone {
    fn bytes(&self) -> u64;
}

#[derive(Debug)]
pub(super) enum L1<V> {
    Modern(Modern<V>),
    Lru(Mutex<Lru<V>>),
}

impl<V: Weighed> L1<V> {
    /// `room` has been checked.
    pub(super) fn new(room: Room) -> Self {
        match room.policy {
            Policy::Modern => Self::Modern(Modern::new(room)),
            Policy::Lru => Self::Lru(Mutex::new(Lru::new(room))),
        }
    }

    #[inline]
    pub(super) fn get(&self, key: &Key) -> Option<V> {
        match self {
            Self::Modern(cache) => cache.entries.get(&Asked(key)),
            Self::Lru(cache) => cache.lock().entries.get(key).cloned(),
        }
    }

    pub(super) fn insert(&self, key: Key, value: V) {
        match self {
            Self::Modern(cache) => cache.insert(key, value),
            Self::Lru(cache) => cache.lock().insert(key, value),
        }
    }

    pub(super) fn remove(&self, key: &Key) -> bool {
        match self {
            Self::Modern(cache) => cache.entries.remove(&Asked(key)).is_some(),
            Self::Lru(cache) => cache.lock().remove(key),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Modern(cache) => cache.entries.len(),
            Self::Lru(cache) => cache.lock().entries.len(),
        }
    }
}

/// quick_cache bounds one weight. An entry weighs its bytes, but at least its share of all bytes: so neither the bytes nor
/// the count can be exceeded.
///
/// What comes back soon after it went is given a place among what is asked for often, for quick_cache remembers its name. But there it is as if
/// nobody had asked for it, and goes when the clock's hand next comes by; that it came back is an asking, and is counted as one.
/// By that a recorded trace that had three and a half in a hundred fewer hits than moka has as many.
pub(super) struct Modern<V> {
    entries: Cache<Name, V, Share, DefaultHashBuilder, Noting<V>>,
    gone: Arc<Gone>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Share(u64);

impl<V: Weighed> Weighter<Name, V> for Share {
    fn weight(&self, name: &Name, value: &V) -> u64 {
        weight(&name.0, value).max(self.0)
    }
}

/// Notes the names of what goes without having been asked for again.
pub(super) struct Noting<V> {
    gone: Arc<Gone>,
    /// Drops what went after the lock is free again.
    dropping: DefaultLifecycle<Name, V>,
}

impl<V> Lifecycle<Name, V> for Noting<V> {
    type RequestState = <DefaultLifecycle<Name, V> as Lifecycle<Name, V>>::RequestState;

    fn on_evict(&self, state: &mut Self::RequestState, name: Name, value: V) {
        self.dropping.on_evict(state, name, value);
    }

    fn on_evict_cold(&self, state: &mut Self::RequestState, name: Name, value: V) {
        self.gone.note(&name.0);
        self.on_evict(state, name, value);
    }
}

impl<V> Clone for Noting<V> {
    fn clone(&self) -> Self {
        Self { gone: Arc::clone(&self.gone), dropping: self.dropping.clone() }
    }
}

impl<V: Weighed> Modern<V> {
    fn new(room: Room) -> Self {
        let share = room.bytes.div_ceil(room.entries as u64);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(room.entries)
            .weight_capacity(share.saturating_mul(room.entries as u64))
            .hot_allocation(HOT)
            // As many names of what went are remembered as entries fit, and not half of them: a recorded trace has a tenth more
            // hits by that, and zipf's loses one in a hundred.
            .ghost_allocation(1.0)
            .shards(shards(room.entries))
            .build()
            .expect("both capacities are set");
        let gone = Arc::new(Gone::new(room.entries));
        let noting = Noting { gone: Arc::clone(&gone), dropping: DefaultLifecycle::default() };
        Self { entries: Cache::with_options(options, Share(share), DefaultHashBuilder::default(), noting), gone }
    }

    fn insert(&self, key: Key, value: V) {
        // Looked up before: what has to go for it may take its place in the table.
        let returning = self.gone.has(&key).then(|| key.clone());
        self.entries.insert(Name(key), value);
        if let Some(key) = returning {
            self.entries.get(&Asked(&key));
        }
    }
}

/// Four for each processor, but no small ones: where the share of a shard is no whole number of entries, part of one is lost in each.
fn shards(entries: usize) -> usize {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    (entries / FEW).clamp(1, 4 * processors)
}

impl<V> fmt::Debug for Modern<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Modern").finish_non_exhaustive()
    }
}

pub(super) struct Lru<V> {
    entries: LruCache<Key, V>,
    room: Room,
    bytes: u64,
}

impl<V: Weighed> Lru<V> {
    fn new(room: Room) -> Self {
        Self { entries: LruCache::unbounded(), room, bytes: 0 }
    }

    fn insert(&mut self, key: Key, value: V) {
        let bytes = weight(&key, &value);
        self.remove(&key);
        if bytes > self.room.bytes {
            return;
        }
        while self.entries.len() >= self.room.entries || self.bytes + bytes > self.room.bytes {
            let Some((key, value)) = self.entries.pop_lru() else { break };
            self.bytes -= weight(&key, &value);
        }
        self.bytes += bytes;
        self.entries.put(key, value);
    }

    fn remove(&mut self, key: &Key) -> bool {
        let Some(value) = self.entries.pop(key) else { return false };
        self.bytes -= weight(key, &value);
        true
    }
}

fn weight<V: Weighed>(key: &Key, value: &V) -> u64 {
    key.as_str().len() as u64 + value.bytes()
}

impl<V> fmt::Debug for Lru<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lru").field("room", &self.room).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Sized(u64);

    impl Weighed for Sized {
        fn bytes(&self) -> u64 {
            self.0
        }
    }

    fn key(n: impl fmt::Display) -> Key {
        Key::new(n.to_string()).unwrap()
    }

    fn room(policy: Policy, entries: usize, bytes: u64) -> L1<Sized> {
        let room = Room { entries, bytes, policy };
        room.check().unwrap();
        L1::new(room)
    }

    fn put(l1: &L1<Sized>, name: &str, bytes: u64) {
        l1.insert(key(name), Sized(bytes));
    }

    fn held(l1: &L1<Sized>, names: &[&str]) -> Vec<bool> {
        // Not by get: that would refresh them.
        let L1::Lru(lru) = l1 else { panic!("only an LRU has an order") };
        names.iter().map(|name| lru.lock().entries.peek(&key(name)).is_some()).collect()
    }

    #[test]
    fn insert_and_get_update_existing_empty_get() {
        for policy in [Policy::Modern, Policy::Lru] {
            let l1 = room(policy, 10, 1_000);
            assert_eq!(l1.get(&key("a")), None);
            put(&l1, "a", 1);
            assert_eq!(l1.get(&key("a")).unwrap(), Sized(1));
            put(&l1, "a", 2);
            assert_eq!((l1.get(&key("a")).unwrap().0, l1.len()), (2, 1));
            assert!(l1.remove(&key("a")) && !l1.remove(&key("a")));
            assert_eq!((l1.get(&key("a")), l1.len()), (None, 0));
        }
    }

    #[test]
    fn f48_capacity_limit_eviction_takes_the_least_recently_used() {
        let l1 = room(Policy::Lru, 3, 1_000);
        for name in ["a", "b", "c", "d"] {
            put(&l1, name, 1);
        }
        assert_eq!(held(&l1, &["a", "b", "c", "d"]), [false, true, true, true]);
    }

    #[test]
    fn access_order_update_keeps_what_was_asked_for() {
        let l1 = room(Policy::Lru, 3, 1_000);
        for name in ["a", "b", "c"] {
            put(&l1, name, 1);
        }
        l1.get(&key("a"));
        put(&l1, "d", 1);
        assert_eq!(held(&l1, &["a", "b", "c", "d"]), [true, false, true, true]);
        // Writing refreshes as well.
        put(&l1, "c", 1);
        put(&l1, "e", 1);
        assert_eq!(held(&l1, &["a", "c", "d", "e"]), [false, true, true, true]);
    }

    #[test]
    fn an_lru_is_bounded_by_bytes() {
        let l1 = room(Policy::Lru, 10, 103);
        put(&l1, "a", 50);
        put(&l1, "b", 50);
        put(&l1, "c", 50);
        assert_eq!(held(&l1, &["a", "b", "c"]), [false, true, true]);
        put(&l1, "d", 500);
        assert_eq!(held(&l1, &["b", "c", "d"]), [true, true, false], "what cannot fit pushes nothing out");
        let L1::Lru(lru) = &l1 else { unreachable!() };
        assert_eq!(lru.lock().bytes, 102);
    }

    #[test]
    fn the_modern_one_is_bounded_by_both() {
        let l1 = room(Policy::Modern, 100, 100_000);
        for n in 0..10_000 {
            put(&l1, &n.to_string(), 1);
        }
        assert!((50..=104).contains(&l1.len()), "{}", l1.len());
        let l1 = room(Policy::Modern, 100, 100_000);
        for n in 0..10_000 {
            put(&l1, &n.to_string(), 10_000);
        }
        assert!(l1.len() <= 10, "{}", l1.len());
    }

    #[test]
    fn a_scan_does_not_empty_the_modern_one() {
        let survivors = |policy| {
            let l1 = room(policy, 100, 100_000);
            for _ in 0..10 {
                for n in 0..50 {
                    if l1.get(&key(n)).is_none() {
                        put(&l1, &n.to_string(), 1);
                    }
                }
            }
            for n in 1_000..11_000 {
                put(&l1, &n.to_string(), 1);
            }
            (0..50).filter(|n| l1.get(&key(n)).is_some()).count()
        };
        assert_eq!(survivors(Policy::Lru), 0);
        assert!(survivors(Policy::Modern) >= 40, "{}", survivors(Policy::Modern));
    }

    #[test]
    fn what_has_come_back_outlives_what_never_went() {
        // One shard. The first hundred fill it, and nobody asks for them again.
        let l1 = room(Policy::Modern, 100, 100_000);
        let ask = |n: usize| {
            if l1.get(&key(n)).is_none() {
                put(&l1, &n.to_string(), 1);
            }
        };
        (0..100).for_each(ask);
        // What is new waits in the small part and goes from there; fifty of those come back, and take places of the first hundred.
        (1_000..1_060).for_each(ask);
        (1_000..1_050).for_each(ask);
        // Eighty others are asked for twice at once. That is more than is left of the first hundred, and the hand goes by those that came back.
        (2_000..2_080).flat_map(|n| [n, n]).for_each(ask);
        let stayed = (1_000..1_050).filter(|n| l1.get(&key(n)).is_some()).count();
        assert!(stayed >= 40, "{stayed}");
    }

    #[test]
    fn thread_safety() {
        for policy in [Policy::Modern, Policy::Lru] {
            let l1 = room(policy, 64, 64_000);
            std::thread::scope(|scope| {
                for thread in 0..4_u64 {
                    let l1 = &l1;
                    scope.spawn(move || {
                        for n in 0..20_000_u64 {
                            let n = (n * 31 + thread * 17) % 200;
                            match n % 3 {
                                0 => l1.insert(key(n), Sized(n)),
                                1 => drop(l1.remove(&key(n - 1))),
                                _ => assert!(l1.get(&key(n - 2)).is_none_or(|value| value.0 == n - 2)),
                            }
                        }
                    });
                }
            });
            assert!(l1.len() <= 68, "{}", l1.len());
        }
    }
}
