//! One shard's table: entries under fingerprints, bounded, shedding what is idle a few slots at a time.

use hashbrown::HashTable;

use super::fingerprint::Fingerprint;

/// How many slots each insert looks at for something idle. More than one, so that shedding outruns growth.
const LOOK: usize = 8;
/// How many entries are compared when one that is not idle has to go.
const SAMPLE: usize = 16;

/// What the table must know of an entry. `Shed` receives what leaves, so that its owner can free what it points to.
pub(crate) trait Shed<V> {
    /// From then on the entry says no more than none at all. `u64::MAX` for one that must stay.
    fn idle_at(&self, value: &V) -> u64;
    /// How much would be forgiven if it went now; the least goes first. `None` for one that must stay.
    fn weight(&self, value: &V, now: u64) -> Option<u64>;
    fn shed(&mut self, value: V);
}

#[derive(Debug)]
pub(crate) struct Table<V> {
    slots: HashTable<(Fingerprint, V)>,
    hand: usize,
    /// No entry is idle before this.
    idle_floor: u64,
}

/// Nothing could be evicted: every entry must stay.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { slots: HashTable::new(), hand: 0, idle_floor: u64::MAX }
    }
}

impl<V> Table<V> {
    #[inline]
    pub(crate) fn find_mut(&mut self, fingerprint: Fingerprint) -> Option<&mut V> {
        self.slots.find_mut(fingerprint.table_hash(), |(f, _)| *f == fingerprint).map(|(_, value)| value)
    }

    #[inline]
    pub(crate) fn find(&self, fingerprint: Fingerprint) -> Option<&V> {
        self.slots.find(fingerprint.table_hash(), |(f, _)| *f == fingerprint).map(|(_, value)| value)
    }

    pub(crate) fn remove(&mut self, fingerprint: Fingerprint) -> Option<V> {
        let entry = self.slots.find_entry(fingerprint.table_hash(), |(f, _)| *f == fingerprint).ok()?;
        Some(entry.remove().0.1)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.allocation_size()
    }

    /// The size the table would have with one more entry.
    pub(crate) fn bytes_with_one_more(&self) -> usize {
        if self.slots.len() < self.slots.capacity() { self.bytes() } else { (self.bytes() * 2).max(256) }
    }

    /// Inserts a value that is not there yet. `crowded` asks whether one more would be too many; then something goes
    /// first: all that is idle, else the lightest of a sample.
    pub(crate) fn insert<O: Shed<V>>(
        &mut self,
        fingerprint: Fingerprint,
        value: V,
        now: u64,
        owner: &mut O,
        crowded: impl Fn(&Self, &O) -> bool,
    ) -> Result<(), Full> {
        self.shed_some(now, owner);
        self.make_room(now, owner, crowded)?;
        self.idle_floor = self.idle_floor.min(owner.idle_at(&value));
        self.slots.insert_unique(fingerprint.table_hash(), (fingerprint, value), |(f, _)| f.table_hash());
        Ok(())
    }

    /// Lets things go while it is `crowded`.
    pub(crate) fn make_room<O: Shed<V>>(
        &mut self,
        now: u64,
        owner: &mut O,
        crowded: impl Fn(&Self, &O) -> bool,
    ) -> Result<(), Full> {
        if !crowded(self, owner) {
            return Ok(());
        }
        if self.idle_floor <= now {
            self.shed_all_idle(now, owner);
        }
        while crowded(self, owner) {
            self.evict(now, owner)?;
            self.clear_traces();
        }
        Ok(())
    }

    /// What was removed may leave a trace that takes a place until the table is made anew. Where only traces are in the way, it
    /// would grow, or all that is in it would have to go.
    fn clear_traces(&mut self) {
        let (length, places) = (self.slots.len(), self.slots.num_buckets() / 8 * 7);
        if length < self.slots.capacity() || length + length / 16 >= places {
            return;
        }
        let old = std::mem::replace(&mut self.slots, HashTable::with_capacity(places));
        for (fingerprint, value) in old {
            self.slots.insert_unique(fingerprint.table_hash(), (fingerprint, value), |(f, _)| f.table_hash());
        }
    }

    /// A value's idle time may only ever move earlier through here, or the floor would lie.
    pub(crate) fn idles_earlier(&mut self, idle_at: u64) {
        self.idle_floor = self.idle_floor.min(idle_at);
    }

    fn shed_some(&mut self, now: u64, owner: &mut impl Shed<V>) {
        for _ in 0..LOOK.min(self.slots.num_buckets()) {
            self.move_hand();
            if let Ok(entry) = self.slots.get_bucket_entry(self.hand)
                && owner.idle_at(&entry.get().1) <= now
            {
                let ((_, value), _) = entry.remove();
                owner.shed(value);
            }
        }
    }

    fn move_hand(&mut self) {
        self.hand = if self.hand + 1 < self.slots.num_buckets() { self.hand + 1 } else { 0 };
    }

    /// Walks the whole shard, at most once for each time that something can have become idle.
    fn shed_all_idle(&mut self, now: u64, owner: &mut impl Shed<V>) {
        let mut floor = u64::MAX;
        for bucket in 0..self.slots.num_buckets() {
            let Ok(entry) = self.slots.get_bucket_entry(bucket) else { continue };
            let idle_at = owner.idle_at(&entry.get().1);
            if idle_at <= now {
                let ((_, value), _) = entry.remove();
                owner.shed(value);
            } else {
                floor = floor.min(idle_at);
            }
        }
        self.idle_floor = floor;
    }

    fn evict(&mut self, now: u64, owner: &mut impl Shed<V>) -> Result<(), Full> {
        let mut lightest: Option<(u64, Fingerprint)> = None;
        let mut seen = 0;
        for _ in 0..self.slots.num_buckets() {
            self.move_hand();
            let Some((fingerprint, value)) = self.slots.get_bucket(self.hand) else { continue };
            if let Some(weight) = owner.weight(value, now) {
                seen += 1;
                if lightest.is_none_or(|(least, _)| weight < least) {
                    lightest = Some((weight, *fingerprint));
                }
            }
            if seen == SAMPLE {
                break;
            }
        }
        let (_, fingerprint) = lightest.ok_or(Full)?;
        if let Some(value) = self.remove(fingerprint) {
            owner.shed(value);
        }
        Ok(())
    }
}
