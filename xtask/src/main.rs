//! The project's own commands, run as `cargo xtask <command>`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a terminal is the only reader of this program")]

mod bench;
mod ci;
mod deny;
mod dist;
mod docs;
mod faults;
mod plots;
mod python;
mod screenshot;
mod setup;
mod shell;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask <command>

  setup                install what the tests need: redis-server, proxies, Chromium, schemathesis, redis-py, cargo-nextest
  test [args…]         setup, then every test; the arguments go to `cargo nextest run`
  ci                   everything that must hold before a merge
  tidy                 file lengths, import rule, suites, leftovers, whitespace, links
  deny                 licences, banned crates and sources of the dependencies
  bench <name> [args…] run one benchmark
  dist                 build target/dist/sekisho, the binary as it is shipped: tried under load, and built again by what was seen
  faults [F3 …]        measure what instances do under each fault; without names write docs/guarantees.md anew
  soak [--minutes 10] [--seed 1]  three instances under load and every class of fault
  fuzz <target|all> [--minutes N] [--seed N] [--keep]
                       change inputs of one parser or of all for so long; what crashes is kept in fuzz/crashes
  docs                 write the tables of docs/reference/configuration.md anew
  plots                draw the pictures in docs/concepts/img
  screenshot           take the picture of /elevation in docs/img
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["setup"] => setup::run(),
        ["test", rest @ ..] => test::run(rest),
        ["ci"] => ci::run(),
        ["tidy"] => tidy::run(),
        ["deny"] => deny::run(),
        ["bench", name, rest @ ..] => bench::run(name, rest),
        ["dist"] => dist::run().map(drop),
        [what @ ("faults" | "soak"), rest @ ..] => faults::run(what, rest),
        ["fuzz", rest @ ..] => shell::cargo(&[&["run", "--package", "sekisho-fuzz", "--"], rest].concat()),
        ["plots"] => plots::run(),
        ["docs"] => docs::run(),
        ["screenshot"] => screenshot::run(),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
