//! The file: its tables, how it is made, opened and written. Nothing outside this file knows redb.
//!
//! ```text
//! meta      format · seed of the fingerprints · owner, the process that wrote last · the latest time seen
//! shapes    shape of a policy → shapes of its rules, 8 bytes each
//! records   fingerprint → when it says nothing any more (8) · the packed record, or nothing for a lone bucket
//! ```

use std::collections::HashSet;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::store::memory::fingerprint::{Fingerprint, Seed};

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const SHAPES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("shapes");
const RECORDS: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("records");

const FORMAT: &[u8] = b"sekisho limits 1";
/// Memory has all that is read again and again; this is for the upper pages of the tree, and what one commit writes.
const CACHE_BYTES: usize = 4 << 20;
/// Records that are looked at in one step when the file is opened.
const STEP: usize = 4096;

/// Why a file cannot be the state of limits.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("{} is in use: another process keeps its limits there, and only one can", path.display())]
    InUse { path: PathBuf },

    /// Never begun anew by itself: what was spent would be forgotten.
    #[error(
        "{} cannot be read as a state of limits: {reason}; restore it, or move it away to begin without what it counted",
        path.display()
    )]
    Corrupt { path: PathBuf, reason: String },

    #[error("{} cannot be opened: {reason}", path.display())]
    Io { path: PathBuf, reason: String },
}

/// What one transaction changes.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    /// Forgets all records first.
    pub(super) clears: bool,
    pub(super) prints: &'a HashSet<Fingerprint>,
    pub(super) now: u64,
}

/// Whoever knows the records.
pub(super) trait Source {
    /// What is to stand there now; `None` for nothing.
    fn exported(&self, print: Fingerprint) -> Option<(u64, Vec<u8>)>;
    /// Whether a record has still anything to say.
    fn is_known_after(&self, print: Fingerprint, now: u64) -> bool;
    fn shapes(&self) -> Vec<(u64, Arc<[u64]>)>;
}

#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    /// `None` after a failure: redb is done with a file that could not be written, and it is opened again.
    database: Option<Database>,
    owner: [u8; 16],
    seen: u64,
    shapes: HashSet<u64>,
    /// Where the look for records that can go continues.
    hand: u128,
}

/// What the file says besides its records.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) seed: Seed,
    pub(super) seen: u64,
    pub(super) shapes: Vec<(u64, Arc<[u64]>)>,
}

type Outcome<T> = Result<T, redb::Error>;

impl File {
    /// Opens the file at `path`, which is made if nothing is there.
    pub(super) fn open(path: &Path) -> Result<(Self, Head), OpenError> {
        if !path.try_exists().map_err(|error| failed(path, &error))? {
            create(path)?;
        }
        let mut database = open_database(path)?;
        // A file that was closed in good order is not checked by redb itself.
        let is_sound = guarded(|| database.check_integrity().map_err(redb::Error::from));
        if !is_sound.map_err(|error| refused(path, error))? {
            return Err(corrupt(path, "its checksums are wrong"));
        }
        let head = guarded(|| read_head(&database)).map_err(|error| refused(path, error))?;
        let head = head.map_err(|reason| corrupt(path, reason))?;
        let shapes = head.shapes.iter().map(|(shape, _)| *shape).collect();
        let owner = rand::random();
        let file = Self { path: path.to_owned(), database: Some(database), owner, seen: head.seen, shapes, hand: 0 };
        Ok((file, head))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Shows every record to `keeps`, in steps, and takes out those that it does not keep; `None` from it is one that cannot
    /// be read. From here on this process owns the file.
    pub(super) fn load(
        &mut self,
        now: u64,
        mut keeps: impl FnMut(Fingerprint, u64, &[u8]) -> Option<bool>,
    ) -> Result<(), OpenError> {
        self.seen = self.seen.max(now);
        let Self { path, database, owner, seen, .. } = self;
        let Some(database) = database else { return Err(corrupt(path, "it is closed")) };
        let mut next = Some(0);
        while let Some(from) = next {
            let step = guarded(|| {
                let mut leaving = Vec::new();
                let mut unreadable = None;
                let mut last = None;
                for entry in database.begin_read()?.open_table(RECORDS)?.range(from..)?.take(STEP) {
                    let (key, value) = entry?;
                    let (key, value) = (key.value(), value.value());
                    last = Some(key);
                    let kept = value
                        .split_first_chunk()
                        .and_then(|(quiet_at, record)| keeps(print_of(key), u64::from_le_bytes(*quiet_at), record));
                    match kept {
                        Some(true) => {}
                        Some(false) => leaving.push(key),
                        None => unreadable = Some(key),
                    }
                }
                if from == 0 || !leaving.is_empty() {
                    let transaction = database.begin_write()?;
                    {
                        let mut meta = transaction.open_table(META)?;
                        meta.insert("owner", &owner[..])?;
                        meta.insert("seen", &seen.to_le_bytes()[..])?;
                        let mut records = transaction.open_table(RECORDS)?;
                        for key in &leaving {
                            records.remove(key)?;
                        }
                    }
                    transaction.commit()?;
                }
                Ok((last, unreadable))
            });
            let (last, unreadable) = step.map_err(|error| refused(path, error))?;
            if let Some(key) = unreadable {
                return Err(corrupt(path, format!("the record {key:032x} is no record")));
            }
            next = last.and_then(|key| key.checked_add(1));
        }
        Ok(())
    }

    /// Writes what `source` knows of the changed records, whole or not at all; it is on the disk when this returns. After a
    /// failure the next call opens the file again.
    pub(super) fn write(&mut self, batch: &Batch<'_>, source: &impl Source) -> Result<(), String> {
        let outcome = self.reopened().and_then(|database| {
            guarded(|| write(&database, self, batch, source)).map(|written| (database, written)).map_err(told)
        });
        let (database, written) = outcome?;
        self.database = Some(database);
        self.hand = written.hand;
        self.seen = self.seen.max(batch.now);
        self.shapes.extend(written.shapes);
        Ok(())
    }

    /// Takes the database out: only a success puts it back.
    fn reopened(&mut self) -> Result<Database, String> {
        if let Some(database) = self.database.take() {
            return Ok(database);
        }
        let database = open_database(&self.path).map_err(|error| error.to_string())?;
        let owner = guarded(|| {
            let meta = database.begin_read()?.open_table(META)?;
            Ok(meta.get("owner")?.is_some_and(|owner| owner.value() == self.owner))
        });
        if owner.map_err(told)? {
            return Ok(database);
        }
        Err("another process has written to it meanwhile; restart this one".to_owned())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(database) = self.database.take() {
            drop(catch_unwind(AssertUnwindSafe(|| drop(database))));
        }
    }
}

struct Written {
    hand: u128,
    shapes: Vec<u64>,
}

fn write(database: &Database, file: &File, batch: &Batch<'_>, source: &impl Source) -> Outcome<Written> {
    let transaction = database.begin_write()?;
    if batch.clears {
        transaction.delete_table(RECORDS)?;
    }
    // In the order of the tree, so that neighbours are written together.
    let mut keys: Vec<u128> = batch.prints.iter().map(|print| key_of(*print)).collect();
    keys.sort_unstable();
    let mut hand = file.hand;
    {
        let mut records = transaction.open_table(RECORDS)?;
        for key in &keys {
            match source.exported(print_of(*key)) {
                Some((quiet_at, record)) => {
                    let value = [&quiet_at.to_le_bytes()[..], &record].concat();
                    records.insert(key, &value[..])?;
                }
                None => drop(records.remove(key)?),
            }
        }
        // More than are added, so that what has nothing to say leaves the file sooner than it can grow.
        let look = 8 + 2 * keys.len();
        let seen: Vec<u128> = records
            .range(hand..)?
            .take(look)
            .map(|entry| entry.map(|(key, _)| key.value()))
            .collect::<Result<_, _>>()?;
        hand = if seen.len() < look { 0 } else { seen.last().map_or(0, |key| key.wrapping_add(1)) };
        for key in seen.into_iter().filter(|key| !source.is_known_after(print_of(*key), batch.now)) {
            records.remove(&key)?;
        }
    }
    let shapes = source.shapes().into_iter().filter(|(shape, _)| !file.shapes.contains(shape));
    let mut written = Vec::new();
    for (shape, rules) in shapes {
        let bytes: Vec<u8> = rules.iter().flat_map(|rule| rule.to_le_bytes()).collect();
        transaction.open_table(SHAPES)?.insert(shape, &bytes[..])?;
        written.push(shape);
    }
    transaction.open_table(META)?.insert("seen", &file.seen.max(batch.now).to_le_bytes()[..])?;
    transaction.commit()?;
    Ok(Written { hand, shapes: written })
}

/// Made whole under another name first: a file at `path` is never half made, whenever the power goes.
fn create(path: &Path) -> Result<(), OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}.new", rand::random::<u64>()));
    let new = PathBuf::from(name);
    let made = make(&new).and_then(|()| match fs::hard_link(&new, path) {
        // Somebody else has made it at the same time.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Not every file system has links. A rename would put this one in another's place.
        Err(_) => fs::rename(&new, path),
        Ok(()) => Ok(()),
    });
    drop(fs::remove_file(&new));
    made.and_then(|()| sync_folder(path)).map_err(|error| failed(path, &error))
}

fn make(new: &Path) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create_new(true);
    // Whoever knows the seed can make subjects that share a fingerprint.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(new)?;
    let seed: Seed = rand::random();
    let made = guarded(|| {
        let transaction = builder().create_file(file)?.begin_write()?;
        {
            let mut meta = transaction.open_table(META)?;
            meta.insert("format", FORMAT)?;
            meta.insert("seed", &seed[..])?;
            meta.insert("seen", &0_u64.to_le_bytes()[..])?;
            transaction.open_table(SHAPES)?;
            transaction.open_table(RECORDS)?;
        }
        Ok(transaction.commit()?)
    });
    made.map_err(|error| io::Error::other(told(error)))
}

/// The name is in the folder, and survives a power cut only when that is written.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(folder)?.sync_all()
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

fn open_database(path: &Path) -> Result<Database, OpenError> {
    guarded(|| builder().open(path).map_err(redb::Error::from)).map_err(|error| refused(path, error))
}

fn read_head(database: &Database) -> Outcome<Result<Head, &'static str>> {
    let transaction = database.begin_read()?;
    let meta = transaction.open_table(META)?;
    let value = |key: &str| Outcome::Ok(meta.get(key)?.map(|value| value.value().to_vec()));
    if value("format")?.as_deref() != Some(FORMAT) {
        return Ok(Err("it is of another version"));
    }
    let seed = value("seed")?.and_then(|seed| Seed::try_from(seed).ok());
    let seen = value("seen")?.and_then(|seen| seen.try_into().ok().map(u64::from_le_bytes));
    let (Some(seed), Some(seen)) = (seed, seen) else { return Ok(Err("its head is not whole")) };
    let mut shapes = Vec::new();
    for entry in transaction.open_table(SHAPES)?.iter()? {
        let (shape, rules) = entry?;
        let (rules, _) = rules.value().as_chunks::<8>();
        shapes.push((shape.value(), rules.iter().map(|rule| u64::from_le_bytes(*rule)).collect()));
    }
    Ok(Ok(Head { seed, seen, shapes }))
}

/// redb checks what it reads, but not everything, and some of what is wrong makes it panic.
fn guarded<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(redb::Error::Corrupted("what is in it does not fit together".to_owned())))
}

fn told(error: redb::Error) -> String {
    error.to_string()
}

fn refused(path: &Path, error: redb::Error) -> OpenError {
    let path = path.to_owned();
    match error {
        redb::Error::DatabaseAlreadyOpen => OpenError::InUse { path },
        // redb says so of a file that is none of its own, or ends too early.
        redb::Error::Io(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
            OpenError::Corrupt { path, reason: error.to_string() }
        }
        redb::Error::Io(error) => OpenError::Io { path, reason: error.to_string() },
        error => OpenError::Corrupt { path, reason: error.to_string() },
    }
}

fn failed(path: &Path, error: &io::Error) -> OpenError {
    OpenError::Io { path: path.to_owned(), reason: error.to_string() }
}

fn corrupt(path: &Path, reason: impl Into<String>) -> OpenError {
    OpenError::Corrupt { path: path.to_owned(), reason: reason.into() }
}

fn key_of(print: Fingerprint) -> u128 {
    let [high, low] = print.lanes();
    u128::from(high) << 64 | u128::from(low)
}

fn print_of(key: u128) -> Fingerprint {
    Fingerprint::from_lanes([(key >> 64) as u64, key as u64])
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use rand::rngs::SmallRng;
    use rand::{RngExt as _, SeedableRng as _};
    use redb::StorageBackend;

    use super::*;

    const COMMITS: u64 = 12;

    /// What happens to a disk, in order.
    #[derive(Debug, Clone)]
    enum Event {
        Length(u64),
        Write(u64, Vec<u8>),
        Sync,
        /// The caller has been told of so many records.
        Told(u64),
    }

    fn apply(bytes: &mut Vec<u8>, event: &Event) {
        match event {
            Event::Length(length) => bytes.resize(*length as usize, 0),
            Event::Write(at, data) => {
                let (from, to) = (*at as usize, *at as usize + data.len());
                if bytes.len() < to {
                    bytes.resize(to, 0);
                }
                bytes[from..to].copy_from_slice(data);
            }
            Event::Sync | Event::Told(_) => {}
        }
    }

    /// A disk, and all that it was asked to do.
    #[derive(Debug, Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, Vec<Event>)>>);

    impl Disk {
        fn happens(&self, event: Event) {
            let (bytes, events) = &mut *self.0.lock();
            apply(bytes, &event);
            events.push(event);
        }
    }

    impl StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            Ok(self.0.lock().0.len() as u64)
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            let from = offset as usize;
            out.copy_from_slice(self.0.lock().0.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.happens(Event::Length(len));
            Ok(())
        }

        fn sync_data(&self) -> io::Result<()> {
            self.happens(Event::Sync);
            Ok(())
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.happens(Event::Write(offset, data.to_vec()));
            Ok(())
        }
    }

    /// What was synced before the power went, and of the rest whatever the disk had come to.
    fn after_a_cut(events: &[Event], random: &mut SmallRng) -> Disk {
        let synced = events.iter().rposition(|event| matches!(event, Event::Sync)).unwrap_or_default();
        let mut bytes = Vec::new();
        for (place, event) in events.iter().enumerate() {
            if place <= synced || random.random() {
                apply(&mut bytes, event);
            }
        }
        Disk(Arc::new(Mutex::new((bytes, Vec::new()))))
    }

    struct Anything;

    impl Source for Anything {
        fn exported(&self, print: Fingerprint) -> Option<(u64, Vec<u8>)> {
            Some((u64::MAX, key_of(print).to_le_bytes().to_vec()))
        }

        fn is_known_after(&self, _: Fingerprint, _: u64) -> bool {
            true
        }

        fn shapes(&self) -> Vec<(u64, Arc<[u64]>)> {
            Vec::new()
        }
    }

    #[test]
    fn what_was_told_of_is_there_whenever_the_power_goes() {
        let disk = Disk::default();
        let database = Some(builder().create_with_backend(disk.clone()).unwrap());
        let (path, owner, shapes) = (PathBuf::new(), [0; 16], HashSet::new());
        let mut file = File { path, database, owner, seen: 0, shapes, hand: 0 };
        for number in 1..=COMMITS {
            let prints = HashSet::from([print_of(u128::from(number) << 64 | 7)]);
            file.write(&Batch { clears: false, prints: &prints, now: number }, &Anything).unwrap();
            disk.happens(Event::Told(number));
        }
        let events = disk.0.lock().1.clone();
        let told = |events: &[Event]| {
            events.iter().rev().find_map(|event| if let Event::Told(number) = event { Some(*number) } else { None })
        };
        let mut random = SmallRng::seed_from_u64(1);
        for cut in 0..=events.len() {
            // Before that there is no file under its name.
            let Some(told) = told(&events[..cut]) else { continue };
            let cut_off = after_a_cut(&events[..cut], &mut random);
            let database = builder().create_with_backend(cut_off).unwrap();
            let records = database.begin_read().unwrap().open_table(RECORDS).unwrap();
            for number in 1..=told {
                let record = records.get(u128::from(number) << 64 | 7).unwrap();
                assert!(record.is_some(), "the record {number} of {told} is gone when the power goes at event {cut}");
            }
        }
    }
}
