//! Logs go to standard error, so that standard output stays for what was asked.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::exit::Failure;

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

pub(crate) fn start(format: LogFormat, filter: Option<&str>) -> Result<(), Failure> {
    let filter = filter.unwrap_or("info");
    // The audit log must not fall silent because somebody wants less of the other one; who means it can say `audit=off`.
    let filter = if filter.contains("audit") { filter.to_owned() } else { format!("{filter},audit=info") };
    let filter =
        EnvFilter::try_new(filter).map_err(|error| Failure::Input(format!("SEKISHO_LOG is no filter: {error}")))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}
