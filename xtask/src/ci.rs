use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{deny, shell, test, tidy};

type Step = (&'static str, fn() -> Result<()>);

/// The cheap checks come first, so that a forgotten `cargo fmt` is told in seconds.
const STEPS: [Step; 5] = [
    ("fmt", || shell::cargo(&["fmt", "--all", "--check"])),
    ("tidy", tidy::run),
    ("clippy", clippy),
    ("deny", deny::run),
    ("test", || test::run(&["--locked"])),
];

pub(crate) fn run() -> Result<()> {
    let mut times = Vec::new();
    let mut outcome = Ok(());
    for (name, step) in STEPS {
        println!("── {name}");
        let (took, result) = timed(step);
        times.push((name, took));
        if result.is_err() {
            outcome = result.map_err(|error| error.context(format!("step `{name}`")));
            break;
        }
    }
    println!("── time per step");
    for (name, took) in times {
        println!("{name:>8} {:>7.1} s", took.as_secs_f64());
    }
    outcome
}

fn clippy() -> Result<()> {
    let selection = ["--workspace", "--exclude", "sekisho-bench", "--all-targets", "--locked"];
    shell::cargo(&[&["clippy"], &selection[..], &["--", "-D", "warnings"]].concat())
}

fn timed(step: impl FnOnce() -> Result<()>) -> (Duration, Result<()>) {
    #[allow(clippy::disallowed_methods, reason = "the duration of a build is real time")]
    let start = Instant::now();
    let result = step();
    (start.elapsed(), result)
}
