//! `cargo xtask fuzz TARGET|all [--minutes N] [--seed N] [--keep]`
#![allow(clippy::print_stdout, reason = "a terminal is the only reader of this program")]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use sekisho_fuzz::{Ended, Search, TARGETS, Target, corpus};

const USAGE: &str = "usage: cargo xtask fuzz TARGET|all [--minutes N] [--seed N] [--keep]";
/// No parser may take as long for 64 KiB, even where the machine is busy.
const SLOW: Duration = Duration::from_secs(2);

struct Orders {
    targets: Vec<Target>,
    each: Duration,
    seed: u64,
    keep: bool,
}

fn main() -> Result<()> {
    let orders = orders(&std::env::args().skip(1).collect::<Vec<_>>())?;
    // Each crash is told once, below.
    std::panic::set_hook(Box::new(|_| {}));
    let mut crashes = 0;
    for target in &orders.targets {
        crashes += fuzz(target, &orders)?;
    }
    ensure!(crashes == 0, "{crashes} inputs crashed: see fuzz/crashes");
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "how long a search lasts is real time")]
fn fuzz(target: &Target, orders: &Orders) -> Result<usize> {
    let seeds = corpus::read(target)?;
    let mut search = Search::new(*target, seeds.iter().map(|(_, seed)| seed.clone()).collect(), orders.seed);
    let (mut ways, mut crashes, mut runs) = (0, Vec::new(), 0_u64);
    for (name, seed) in &seeds {
        match search.run(seed) {
            Ended::Crash(text) => bail!("{}/{name}: {text}", target.name),
            Ended::New(_) => ways += 1,
            Ended::Before => {}
        }
    }
    let (start, of_seeds) = (Instant::now(), ways);
    let mut before = start;
    while before.duration_since(start) < orders.each {
        let (input, ended) = search.step();
        runs += 1;
        let now = Instant::now();
        let text = match ended {
            Ended::Before if now.duration_since(before) > SLOW => Some("it took too long".to_owned()),
            Ended::Before => None,
            Ended::New(_) => {
                ways += 1;
                if orders.keep && input.len() <= 1_024 && ways <= of_seeds + 24 {
                    corpus::keep_seed(target, &input)?;
                }
                None
            }
            Ended::Crash(text) => Some(text),
        };
        // One of each kind.
        if let Some(text) = text.filter(|text| !crashes.contains(text) && crashes.len() < 20) {
            println!("{}: {text}: {}", target.name, corpus::keep_crash(target, &input)?.display());
            crashes.push(text);
        }
        before = now;
    }
    let rate = runs as f64 / start.elapsed().as_secs_f64();
    println!(
        "{:<18} {runs:>10} runs {rate:>8.0}/s, {of_seeds} ways by seeds, {ways} in all, {} crashes",
        target.name,
        crashes.len()
    );
    Ok(crashes.len())
}

fn orders(args: &[String]) -> Result<Orders> {
    let (name, mut rest) = args.split_first().with_context(|| format!("{USAGE}\ntargets: {}", names()))?;
    let mut orders = Orders { targets: TARGETS.to_vec(), each: Duration::from_secs(60), seed: 1, keep: false };
    if name != "all" {
        orders.targets = vec![Target::named(name).with_context(|| format!("no target `{name}`: {}", names()))?];
    }
    let mut minutes = 1.0;
    loop {
        match rest {
            [] => break,
            [flag, value, after @ ..] if flag == "--minutes" => (minutes, rest) = (value.parse::<f64>()?, after),
            [flag, value, after @ ..] if flag == "--seed" => (orders.seed, rest) = (value.parse()?, after),
            [flag, after @ ..] if flag == "--keep" => (orders.keep, rest) = (true, after),
            _ => bail!(USAGE),
        }
    }
    // What is given is for all of them together.
    orders.each = Duration::try_from_secs_f64(minutes * 60.0 / orders.targets.len() as f64)?;
    Ok(orders)
}

fn names() -> String {
    TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ")
}
