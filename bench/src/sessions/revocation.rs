//! A check among a million revoked tokens: how long it takes, and what remembering them takes.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::{RngExt as _, SeedableRng as _};
use sekisho::clock::{Clock as _, SystemClock};
use sekisho::revocation::{Jti, Revocations, Token, TokenKind, Verdict, Whom};

use crate::limits_memory::resident;
use crate::measure::{Contender, median, rounds, row};

pub(super) const REVOKED: usize = 1_000_000;
const MARKED_USERS: usize = 1_000;
const OPERATIONS: usize = 500_000;
const ROUNDS: usize = 21;
/// Ids that are made before they are asked for: few enough to be in the processor's caches then, as those of a caller are, who
/// has just read the token.
const AT_A_TIME: usize = 500;

pub(crate) fn run() -> anyhow::Result<()> {
    println!("\n## A check of a token, 1M tokens revoked (ns, median of {ROUNDS} rounds)\n");
    println!("| tokens in random order | 1 thread | 2 threads |\n|---|---|---|");
    let clock = Arc::new(SystemClock::start());
    let revocations = filled(clock.clone())?;
    let user = "550e8400-e29b-41d4-a716-446655440000";
    // What is asked for once is not in the caches.
    let mut random = rand::rngs::StdRng::seed_from_u64(11);
    let mut draw = |from: std::ops::Range<usize>| -> Vec<Vec<usize>> {
        (0..2).map(|_| (0..OPERATIONS).map(|_| random.random_range(from.clone())).collect()).collect()
    };
    let measure = |what: &str, draws: &[Vec<usize>]| {
        let expected: Vec<usize> =
            draws.iter().map(|draws| draws.iter().filter(|number| **number < REVOKED).count()).collect();
        let contender = [Contender::timed(|thread: usize| {
            let (mut revoked, mut taken) = (0, Duration::ZERO);
            for numbers in draws[thread].chunks(AT_A_TIME) {
                let jtis: Vec<Jti> = numbers.iter().copied().map(jti).collect();
                taken += timed(|| {
                    for jti in &jtis {
                        let token =
                            Token { kind: TokenKind::Access, jti: Some(jti), user: Some(user), issued_at: None };
                        revoked += usize::from(black_box(revocations.check(&token)) == Ok(Verdict::Revoked));
                    }
                });
            }
            assert_eq!(revoked, expected[thread]);
            taken
        })];
        let ns = |threads| format!("{:.0}", median(&rounds(&contender, threads, OPERATIONS, ROUNDS)[0]));
        row(what, &[("", ns(1)), ("", ns(2))]);
    };
    measure("revoked", &draw(0..REVOKED));
    measure("good", &draw(REVOKED..2 * REVOKED));
    let both = draw(0..2 * REVOKED);
    measure("half of them revoked", &both);
    block_on(async {
        for number in 0..MARKED_USERS {
            let marked = format!("user-{number}");
            revocations.end_before(Whom::User(&marked), clock.now(), Duration::from_secs(3_600)).await?;
        }
        anyhow::Ok(())
    })?;
    measure("the same, and 1,000 other users have a mark", &both);
    let memory = Memory::new(revocations.size().1);
    let contender = [Contender::new(|thread: usize| memory.read(thread))];
    let ns = |threads| format!("{:.0}", median(&rounds(&contender, threads, OPERATIONS, ROUNDS)[0]));
    row("one read of a random place in as much memory, and nothing else", &[("", ns(1)), ("", ns(2))]);

    let output = std::process::Command::new(std::env::current_exe()?).args(["bytes", "revocations"]).output()?;
    let grown: f64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    println!("\n| memory, 1M revoked tokens | bytes each |\n|---|---|");
    row("growth of the process (RSS)", &[("", format!("{:.1}", grown / REVOKED as f64))]);
    let (entries, bytes) = revocations.size();
    row("the tables themselves", &[("", format!("{:.1}", bytes as f64 / entries as f64))]);
    Ok(())
}

/// As many bytes as the table has, and a walk over them in which every place tells the next: what memory takes to answer.
struct Memory(Vec<u32>);

impl Memory {
    fn new(bytes: usize) -> Self {
        let places = bytes / size_of::<u32>();
        let mut random = rand::rngs::StdRng::seed_from_u64(12);
        Self((0..places).map(|_| random.random_range(0..places as u32)).collect())
    }

    fn read(&self, thread: usize) {
        let mut place = thread;
        for step in 0..OPERATIONS {
            // The step keeps the walk from running in a circle.
            place = (self.0[place] as usize + step * 16) % self.0.len();
        }
        black_box(place);
    }
}

/// Prints by how much this process grows. Run in one of its own, so that nothing is reused.
pub(crate) fn bytes() -> anyhow::Result<()> {
    let clock = Arc::new(SystemClock::start());
    let before = resident();
    let revocations = filled(clock)?;
    println!("{}", resident() - before);
    drop(revocations);
    Ok(())
}

pub(super) fn filled(clock: Arc<SystemClock>) -> anyhow::Result<Revocations> {
    let until = clock.now() + Duration::from_secs(3_600);
    let revocations = Revocations::memory(clock);
    block_on(async {
        for number in 0..REVOKED {
            revocations.revoke(TokenKind::Access, &jti(number), until).await?;
        }
        anyhow::Ok(())
    })?;
    assert_eq!(revocations.size().0, REVOKED);
    Ok(revocations)
}

/// As long as a UUID, which most issuers take.
pub(super) fn jti(number: usize) -> Jti {
    Jti::new(format!("550e8400-e29b-41d4-a716-{number:012}")).unwrap()
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Nothing in memory waits.
fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().build()?.block_on(future)
}
