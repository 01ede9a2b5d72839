//! Fingerprints with deadlines, read without a lock: a reader writes nothing, so that readers take no cache line from each
//! other, and the processor goes on to the next check while memory answers.
//!
//! It is extendible hashing. The upper bits of a hash choose a page of 4 KiB through the directory, the lower ones a line of
//! 64 bytes in it, which has room for five entries: a check that is not in the caches reads one of them, in most cases. Before
//! it, a filter of a byte an entry, which caches hold, tells most names that are not there. A page that is full is written
//! anew, into one page or two, and published in the directory; the old one is used again later.
//!
//! Whoever reads meanwhile may see a page that is already used for others. So what was found, or that nothing was, is believed
//! only if the directory still says the same afterwards.
//!
//! A line that is not in the caches takes longer than all the rest of a check, so what counts is how many bytes there are: an
//! entry is twelve, and pages are filled as far as one line of a page seldom spills into the next.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use super::large;
use crate::store::memory::fingerprint::Fingerprint;

const SLOTS: usize = 5;
const LINES: usize = 64;
/// Entries in a page before it is written anew.
const FULL: usize = LINES * SLOTS * 85 / 100;
/// As many as the machine maps at once, if it can: then it knows by heart where every page is.
const PAGES_PER_CHUNK: usize = large::BYTES / size_of::<Page>();
/// Four gibibytes of pages: more than a hundred million entries.
const CHUNKS: usize = 1 << 11;
const DEPTHS: usize = 21;

/// Names by their hashes, and their deadlines. No deadline, no entry.
#[derive(FromBytes, IntoBytes, KnownLayout)]
#[repr(C, align(64))]
struct Line {
    hashes: [AtomicU64; SLOTS],
    until: [AtomicU32; SLOTS],
    rest: [u8; 4],
}

#[derive(FromBytes, IntoBytes, KnownLayout)]
#[repr(C)]
struct Page([Line; LINES]);

/// Three bits for each entry of a page, all in one word.
#[derive(Default)]
struct Filter([AtomicU64; 32]);

/// Filters stand beside each other and not by their pages: so they are in few pages of the machine's memory.
struct Chunk {
    filters: Box<[Filter]>,
    pages: &'static [Page],
}

/// Of tables that are no more.
static UNUSED: Mutex<Vec<&'static [Page]>> = Mutex::new(Vec::new());

/// Without an entry.
fn pages() -> &'static [Page] {
    let Some(used) = UNUSED.lock().pop() else { return large::zeros() };
    used.iter().for_each(Page::clear);
    used
}

/// Its memory is for the next one.
impl Drop for Chunk {
    fn drop(&mut self) {
        UNUSED.lock().push(self.pages);
    }
}

pub(super) struct Table {
    /// One directory for each depth, of `1 << depth` places. The deepest counts; others are left as they were.
    directories: [OnceLock<Box<[AtomicU64]>>; DEPTHS],
    depth: AtomicU32,
    chunks: Box<[OnceLock<Chunk>]>,
    writer: Mutex<Writer>,
}

#[derive(Default)]
struct Writer {
    entries: usize,
    /// Of each page that was ever made.
    pages: Vec<Kept>,
    free: Vec<u32>,
    /// Counts what is published, so that no place of a directory says the same twice.
    published: u32,
}

#[derive(Clone, Copy, Default)]
struct Kept {
    entries: u32,
    /// Upper bits that all its hashes have in common.
    depth: u32,
}

/// The hash is one lane of a fingerprint, mixed: by 61 bits two names differ, so that among a million entries a name that is
/// none of them is taken for one with a chance of one to two million millions.
#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    until: u32,
}

impl Table {
    pub(super) fn new() -> Self {
        let table = Self {
            directories: [const { OnceLock::new() }; DEPTHS],
            depth: AtomicU32::new(0),
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            writer: Mutex::default(),
        };
        let first = table.take_page(&mut table.writer.lock(), 0);
        table.directories[0].get_or_init(|| [AtomicU64::new(u64::from(first))].into());
        table
    }

    /// The deadline that is known of a name.
    #[inline]
    pub(super) fn until(&self, name: Fingerprint) -> Option<u32> {
        let hash = name.table_hash();
        loop {
            let depth = self.depth.load(Ordering::Acquire);
            let place = self.place(hash, depth);
            let published = place.load(Ordering::Acquire);
            let (page, filter) = self.page(published);
            let until = if filter.may_have(hash) { page.until(hash) } else { 0 };
            if place.load(Ordering::Acquire) == published && self.depth.load(Ordering::Acquire) == depth {
                return (until > 0).then_some(until);
            }
        }
    }

    /// Adds an entry, or lets a known one live longer if that `extends` it. What had run out `before` may go.
    pub(super) fn put(&self, name: Fingerprint, until: u32, extends: bool, before: u32) {
        let entry = Entry { hash: name.table_hash(), until: until.max(1) };
        let mut writer = self.writer.lock();
        loop {
            let depth = self.depth.load(Ordering::Relaxed);
            let published = self.place(entry.hash, depth).load(Ordering::Relaxed);
            let ((page, filter), number) = (self.page(published), published as u32 as usize);
            if let Some(known) = page.find(entry.hash) {
                if extends {
                    // One writer: nothing comes between.
                    known.fetch_max(entry.until, Ordering::Release);
                }
                return;
            }
            if (writer.pages[number].entries as usize) < FULL || !self.make_room(&mut writer, entry.hash, before) {
                page.add(entry);
                filter.add(entry.hash);
                writer.pages[number].entries += 1;
                writer.entries += 1;
                return;
            }
        }
    }

    /// Entries, and the bytes of all pages and directories.
    pub(super) fn size(&self) -> (usize, usize) {
        let chunks = self.chunks.iter().filter(|chunk| chunk.get().is_some()).count();
        let places: usize = self.directories.iter().filter_map(OnceLock::get).map(|places| places.len()).sum();
        let pages = chunks * PAGES_PER_CHUNK * (size_of::<Page>() + size_of::<Filter>());
        (self.writer.lock().entries, pages + 8 * places + CHUNKS * size_of::<OnceLock<Chunk>>())
    }

    /// Writes the page of a hash anew, without what has run out, into two if it would be nearly full again. False if that
    /// cannot be done: there are too many pages.
    fn make_room(&self, writer: &mut Writer, hash: u64, before: u32) -> bool {
        let depth = self.depth.load(Ordering::Relaxed);
        let old = self.place(hash, depth).load(Ordering::Relaxed);
        let number = old as u32 as usize;
        let Kept { entries, depth: own } = writer.pages[number];
        let stay: Vec<Entry> = self.page(old).0.entries().filter(|entry| entry.until > before).collect();
        let splits = stay.len() > FULL / 4 * 3;
        // Also where hashes are more alike than chance makes them, which keyed ones are not.
        if writer.free.len() + CHUNKS * PAGES_PER_CHUNK < writer.pages.len() + 2 || own as usize + 2 > DEPTHS {
            return false;
        }
        if splits && own == depth {
            self.deepen(depth);
        }
        let depth = self.depth.load(Ordering::Relaxed);
        let below = own + u32::from(splits);
        for half in 0..=u32::from(splits) {
            let is_here = |entry: &&Entry| !splits || (entry.hash >> (63 - own)) as u32 & 1 == half;
            let new = self.take_page(writer, below);
            let (page, filter) = self.page(u64::from(new));
            page.clear();
            filter.0.iter().for_each(|word| word.store(0, Ordering::Release));
            let mut count = 0;
            for entry in stay.iter().filter(is_here) {
                page.add(*entry);
                filter.add(entry.hash);
                count += 1;
            }
            writer.pages[new as usize].entries = count;
            writer.published += 1;
            // All places whose upper bits are those of the page.
            let prefix = bits(hash, own) << u32::from(splits) | half as usize;
            let each = 1 << (depth - below);
            for place in prefix * each..(prefix + 1) * each {
                self.directory(depth)[place]
                    .store(u64::from(writer.published) << 32 | u64::from(new), Ordering::Release);
            }
        }
        writer.free.push(number as u32);
        writer.entries -= entries as usize - stay.len();
        true
    }

    fn deepen(&self, depth: u32) {
        let old = self.directory(depth);
        let copied = |place: usize| AtomicU64::new(old[place / 2].load(Ordering::Relaxed));
        self.directories[depth as usize + 1].get_or_init(|| (0..2 * old.len()).map(copied).collect());
        self.depth.store(depth + 1, Ordering::Release);
    }

    /// A page that nobody is sent to, whatever is still written in it.
    fn take_page(&self, writer: &mut Writer, depth: u32) -> u32 {
        let number = writer.free.pop().unwrap_or_else(|| {
            writer.pages.push(Kept::default());
            writer.pages.len() as u32 - 1
        });
        writer.pages[number as usize] = Kept { entries: 0, depth };
        let chunk = &self.chunks[number as usize / PAGES_PER_CHUNK];
        chunk.get_or_init(|| Chunk {
            filters: (0..PAGES_PER_CHUNK).map(|_| Filter::default()).collect(),
            pages: pages(),
        });
        number
    }

    fn directory(&self, depth: u32) -> &[AtomicU64] {
        self.directories[depth as usize].get().expect("it is made before its depth is told")
    }

    #[inline]
    fn place(&self, hash: u64, depth: u32) -> &AtomicU64 {
        &self.directory(depth)[bits(hash, depth)]
    }

    /// The page that a place of the directory names in its lower half.
    #[inline]
    fn page(&self, published: u64) -> (&Page, &Filter) {
        let number = published as u32 as usize;
        let chunk = self.chunks[number / PAGES_PER_CHUNK].get().expect("a page is made before it is told");
        (&chunk.pages[number % PAGES_PER_CHUNK], &chunk.filters[number % PAGES_PER_CHUNK])
    }
}

impl Page {
    /// The deadline of a name, or 0. Lines fill in the order in which they are looked at, and nothing leaves a page: behind a
    /// slot that is free there is none.
    #[inline]
    fn until(&self, hash: u64) -> u32 {
        for line in self.lines(hash) {
            let (mut found, mut is_last) = (0, false);
            // All five, whichever it is: a branch on what memory has yet to answer would keep the next check waiting.
            for (known, until) in line.hashes.iter().zip(&line.until) {
                // The deadline first: it is written last, so whoever sees it sees its name.
                let until = until.load(Ordering::Acquire);
                found |= until * u32::from(known.load(Ordering::Acquire) == hash);
                is_last |= until == 0;
            }
            if found > 0 || is_last {
                return found;
            }
        }
        0
    }

    fn clear(&self) {
        self.0.iter().flat_map(|line| &line.until).for_each(|until| until.store(0, Ordering::Release));
    }

    fn find(&self, hash: u64) -> Option<&AtomicU32> {
        if self.until(hash) == 0 {
            return None;
        }
        let is_it = |(known, until): &(&AtomicU64, &AtomicU32)| {
            known.load(Ordering::Relaxed) == hash && until.load(Ordering::Relaxed) > 0
        };
        self.lines(hash).flat_map(Line::slots).find(is_it).map(|(_, until)| until)
    }

    fn add(&self, entry: Entry) {
        let slots = || self.lines(entry.hash).flat_map(Line::slots);
        // A page is never full, but where no more can be made: then what ends first goes, which is better than nothing.
        let free = slots().find(|(_, until)| until.load(Ordering::Relaxed) == 0);
        let first = || slots().min_by_key(|(_, until)| until.load(Ordering::Relaxed));
        if let Some((hash, until)) = free.or_else(first) {
            hash.store(entry.hash, Ordering::Release);
            until.store(entry.until, Ordering::Release);
        }
    }

    /// All of them, in the order in which one is looked for and filled.
    #[inline]
    fn lines(&self, hash: u64) -> impl Iterator<Item = &Line> {
        (0..LINES).map(move |number| &self.0[(hash as usize + number) % LINES])
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        let read = |(hash, until): (&AtomicU64, &AtomicU32)| Entry {
            hash: hash.load(Ordering::Relaxed),
            until: until.load(Ordering::Relaxed),
        };
        self.0.iter().flat_map(Line::slots).map(read).filter(|entry| entry.until > 0)
    }
}

impl Line {
    fn slots(&self) -> impl Iterator<Item = (&AtomicU64, &AtomicU32)> {
        self.hashes.iter().zip(&self.until)
    }
}

impl Filter {
    #[inline]
    fn may_have(&self, hash: u64) -> bool {
        let (word, bits) = Self::of(hash);
        self.0[word].load(Ordering::Acquire) & bits == bits
    }

    fn add(&self, hash: u64) {
        let (word, bits) = Self::of(hash);
        self.0[word].fetch_or(bits, Ordering::Release);
    }

    /// By bits of the hash that choose neither page nor line.
    #[inline]
    const fn of(hash: u64) -> (usize, u64) {
        let bits = 1 << (hash >> 11 & 63) | 1 << (hash >> 17 & 63) | 1 << (hash >> 23 & 63);
        ((hash >> 6 & 31) as usize, bits)
    }
}

/// The upper bits of a hash.
#[inline]
const fn bits(hash: u64, depth: u32) -> usize {
    // Not one shift: by all 64 bits none is left to shift by.
    (hash >> 1 >> (63 - depth)) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::store::memory::fingerprint::Fingerprinter;

    fn names(count: u32) -> Vec<Fingerprint> {
        let hash = Fingerprinter::new();
        (0..count).map(|number| hash.of(hash.space(0), &number.to_le_bytes())).collect()
    }

    #[test]
    fn it_is_a_map_whatever_splits_and_runs_out() {
        let names = names(20_000);
        let (table, mut model) = (Table::new(), HashMap::new());
        for step in 0..200_000 {
            // Every tenth goes at the next chance, the others stay.
            let at = rand::random_range(0..names.len());
            let until = if at % 10 == 0 { 5 } else { rand::random_range(10..1_000) };
            let extends = rand::random();
            table.put(names[at], until, extends, 9);
            model
                .entry(at)
                .and_modify(|had: &mut u32| {
                    if extends {
                        *had = until.max(*had)
                    }
                })
                .or_insert(until);
            let asked = rand::random_range(0..names.len());
            match (table.until(names[asked]), model.get(&asked)) {
                (None, Some(5)) => _ = model.remove(&asked),
                (found, expected) => assert_eq!(found, expected.copied(), "{step}"),
            }
        }
        let there = names.iter().filter(|name| table.until(**name).is_some()).count();
        assert_eq!(table.size().0, there);
    }

    #[test]
    fn an_entry_takes_less_than_40_bytes_but_for_the_last_piece_of_memory() {
        let table = Table::new();
        for (number, name) in names(300_000).into_iter().enumerate() {
            table.put(name, 10, true, 0);
            if number % 1_000 == 999 {
                let (entries, bytes) = table.size();
                assert_eq!(entries, number + 1);
                assert!(entries < 100_000 || bytes <= 40 * entries + large::BYTES, "{bytes} for {entries}");
            }
        }
    }

    #[test]
    fn whoever_reads_meanwhile_misses_nothing() {
        let (names, table, done) = (names(100_000), Table::new(), AtomicBool::new(false));
        let added = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let added = added.load(Ordering::Acquire) as usize;
                        if added > 0 {
                            let at = rand::random_range(0..added);
                            assert_eq!(table.until(names[at]), Some(at as u32 + 1));
                        }
                    }
                });
            }
            for (at, name) in names.iter().enumerate() {
                table.put(*name, at as u32 + 1, true, 0);
                added.store(at as u64 + 1, Ordering::Release);
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
