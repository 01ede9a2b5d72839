//! The command `sekisho`.

mod client;
mod commands;
mod exit;
mod logging;
mod output;
mod systemd;

use clap::{Args, Parser, Subcommand};

use exit::{Failure, Outcome};

/// One reservation over many limits: a server for limits, and the tools to look at it.
///
/// Without a subcommand it serves.
#[derive(Debug, Parser)]
#[command(name = "sekisho", version, args_conflicts_with_subcommands = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: commands::serve::ServeArgs,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done; allowed
  1  denied (peek); not all fetched (fetch); revoked (tokens check); something is wrong (doctor)
  2  wrong usage, configuration or input
  3  the server cannot be reached, or it failed";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the gateway and the API
    Serve(commands::serve::ServeArgs),
    /// Begin, check and describe configuration files
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show what files of other rate limiters become
    #[command(subcommand)]
    Import(ImportCommand),
    /// Show every rule of a policy for one subject
    Explain(commands::explain::ExplainArgs),
    /// Show what a check would answer, consuming nothing
    Peek(commands::peek::PeekArgs),
    /// Forget all that is counted, held and overridden for one subject
    Reset(commands::reset::ResetArgs),
    /// Show how many keys of which category the store holds, or one key
    Stats(commands::stats::StatsArgs),
    /// Look for what is wrong with the Redis that a configuration names
    Doctor(commands::doctor::DoctorArgs),
    /// Look at a user's sessions, and end them
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// Revoke tokens, and end sessions
    #[command(subcommand)]
    Tokens(commands::tokens::TokensCommand),
    /// Look into caches, fill and empty them
    #[command(subcommand)]
    Cache(commands::cache::CacheCommand),
    /// Look at the domains that are asked, and their budgets
    #[command(subcommand)]
    Domains(commands::domains::DomainsCommand),
    /// Show how high a place is, or what a route climbs
    Elevation(commands::elevation::ElevationArgs),
    /// Fetch URLs through the server, within budgets, robots.txt and the pace of each domain
    Fetch(commands::fetch::FetchArgs),
    /// Print the HTTP API as an OpenAPI document
    Openapi,
    /// Print completions for a shell
    Completions(commands::completions::CompletionsArgs),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Validate a file and print the policies it comes to
    Check(commands::config_check::CheckArgs),
    /// Write a commented file to begin with
    Init(commands::config_init::InitArgs),
    /// Print the JSON Schema of a configuration, for editors
    Schema,
}

#[derive(Debug, Subcommand)]
enum ImportCommand {
    /// Files of Envoy's rate-limit service
    Envoy(commands::import_envoy::ImportArgs),
}

#[derive(Debug, Subcommand)]
enum SessionsCommand {
    /// Those of a user that are known and alive
    List(commands::sessions::ListArgs),
    /// End one, all, or all but one
    End(commands::sessions::EndArgs),
}

/// Where the running server is, and how to print its answers.
#[derive(Debug, Args)]
struct ServerArgs {
    /// The API of a running server; its token is taken from SEKISHO_API_TOKEN
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8001")]
    api: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        None => commands::serve::run(&cli.serve),
        Some(Command::Serve(args)) => commands::serve::run(&args),
        Some(Command::Config(ConfigCommand::Check(args))) => commands::config_check::run(&args),
        Some(Command::Config(ConfigCommand::Init(args))) => commands::config_init::run(&args),
        Some(Command::Config(ConfigCommand::Schema)) => commands::config_schema::run(),
        Some(Command::Import(ImportCommand::Envoy(args))) => commands::import_envoy::run(&args),
        Some(Command::Explain(args)) => commands::explain::run(&args),
        Some(Command::Peek(args)) => commands::peek::run(&args),
        Some(Command::Reset(args)) => commands::reset::run(&args),
        Some(Command::Stats(args)) => commands::stats::run(&args),
        Some(Command::Doctor(args)) => commands::doctor::run(&args),
        Some(Command::Sessions(SessionsCommand::List(args))) => commands::sessions::list(&args),
        Some(Command::Sessions(SessionsCommand::End(args))) => commands::sessions::end(&args),
        Some(Command::Tokens(command)) => commands::tokens::run(&command),
        Some(Command::Cache(command)) => commands::cache::run(&command),
        Some(Command::Domains(command)) => commands::domains::run(&command),
        Some(Command::Elevation(args)) => commands::elevation::run(&args),
        Some(Command::Fetch(args)) => commands::fetch::run(&args),
        Some(Command::Openapi) => commands::openapi::run(),
        Some(Command::Completions(args)) => commands::completions::run(&args),
    };
    match outcome {
        Ok(Outcome::Done) => 0.into(),
        Ok(Outcome::Denied) => 1.into(),
        Err(failure) => {
            output::complain(&failure);
            match failure {
                Failure::Input(_) => 2.into(),
                Failure::Server(_) => 3.into(),
            }
        }
    }
}
