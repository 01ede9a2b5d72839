//! `sekisho serve`

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use sekisho_server::config::env::Environment;
use sekisho_server::config::{Config, ConfigError, address};
use sekisho_server::{Addresses, Crew, Server, StartError, stop_signal};

use super::reload;
use crate::exit::{Failure, Outcome};
use crate::logging::{self, LogFormat};
use crate::output;
use crate::systemd::Systemd;

/// What is looked for in the working directory.
const DEFAULT_FILES: [&str; 2] = ["sekisho.yaml", "sekisho.toml"];

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The configuration, in YAML or TOML; without it ./sekisho.yaml or ./sekisho.toml, or five requests a minute on
    /// /api/test in memory
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the gateway listens
    #[arg(long, value_name = "ADDR", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Where the API listens; off loopback it needs SEKISHO_API_TOKEN
    #[arg(long, value_name = "ADDR", value_parser = address)]
    api: Option<SocketAddr>,
    /// Where Envoy's rate-limit service listens, or `off`; without `domains` it is off unless said otherwise
    #[arg(long, value_name = "ADDR", value_parser = grpc)]
    grpc: Option<Grpc>,
    /// How logs are written to standard error
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy)]
enum Grpc {
    Off,
    At(SocketAddr),
}

fn grpc(text: &str) -> Result<Grpc, String> {
    if text == "off" { Ok(Grpc::Off) } else { address(text).map(Grpc::At) }
}

pub(crate) fn run(args: &ServeArgs) -> Result<Outcome, Failure> {
    let environment = Environment::of_process();
    logging::start(args.log_format, environment.log_filter())?;
    for (name, near) in environment.mistyped() {
        tracing::warn!("the variable {name} is not known; did you mean {near}?");
    }
    let config = config(args, &environment).map_err(|error| Failure::Input(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Server(format!("the runtime did not start: {error}")))?;
    let systemd = Systemd::of(&environment);
    runtime.block_on(serve(config, &systemd, || self::config(args, &environment)))
}

/// File, then environment, then flags: each overrides the one before.
fn config(args: &ServeArgs, environment: &Environment) -> Result<Config, ConfigError> {
    let mut config = config_from(args.config.as_deref(), environment)?;
    config.listen = args.listen.unwrap_or(config.listen);
    config.api = args.api.unwrap_or(config.api);
    match args.grpc {
        Some(Grpc::Off) => config.grpc = None,
        Some(Grpc::At(address)) => config.grpc = Some(address),
        None => {}
    }
    Ok(config)
}

/// File, then environment.
pub(super) fn config_from(file: Option<&Path>, environment: &Environment) -> Result<Config, ConfigError> {
    match file {
        Some(file) => Config::load(Some(file), environment),
        None => config_here(environment),
    }
}

/// The file in the working directory, or what is built in. Of two files neither is more right than the other.
fn config_here(environment: &Environment) -> Result<Config, ConfigError> {
    match DEFAULT_FILES.map(Path::new).map(|file| (file, file.exists())) {
        [(_, true), (_, true)] => {
            let both = DEFAULT_FILES.join(" and ");
            Err(ConfigError::plain(format!("{both} are both here: say which one with --config, or remove one")))
        }
        [(file, true), _] | [_, (file, true)] => Config::load(Some(file), environment),
        _ => Config::load(None, environment),
    }
}

async fn serve(
    config: Config,
    systemd: &Systemd,
    load: impl Fn() -> Result<Config, ConfigError>,
) -> Result<Outcome, Failure> {
    let examples = Examples::of(&config);
    let seen = reload::Seen::of(config.files.clone());
    let server = Server::bind(config).await.map_err(|error| match error {
        // The file or a flag asks for what must not be.
        StartError::Policy(_) | StartError::OpenApi(_) | StartError::OpenGrpc(_) => Failure::Input(error.to_string()),
        _ => Failure::Server(error.to_string()),
    })?;
    let crew = Crew::start().map_err(|error| Failure::Server(format!("threads cannot be started: {error}")))?;
    let server = server.with_crew(crew);
    // Whoever is told that this serves may send signals at once.
    let stop = stop_signal().map_err(|error| Failure::Server(format!("signals cannot be heard: {error}")))?;
    let hangup = reload::hangup();
    output::line(&examples.welcome(server.addresses()));
    let handle = server.handle();
    systemd.ready();
    server
        .run(async {
            tokio::select! {
                () = stop => {}
                () = reload::watch(handle, seen, systemd, hangup, load) => {}
                () = systemd.keep_alive() => {}
            }
            systemd.stopping();
        })
        .await;
    Ok(Outcome::Done)
}

/// What a newcomer can paste.
struct Examples {
    path: Option<String>,
    policy: String,
    token: &'static str,
}

impl Examples {
    fn of(config: &Config) -> Self {
        let plain = |route: &&sekisho_server::config::Route| {
            route.methods.is_empty() || route.methods.iter().any(|method| method.as_str() == "GET")
        };
        let own = config.policies.iter().map(|policy| &policy.policy);
        let mut policies = own.chain(config.domains.iter().flat_map(|domain| domain.policies()));
        Self {
            path: config.routes.iter().find(plain).map(|route| route.path.to_string()),
            policy: policies.next().map_or_else(|| "demo".to_owned(), |policy| policy.name().to_owned()),
            token: if config.api_token.is_some() { " -H \"authorization: Bearer $SEKISHO_API_TOKEN\"" } else { "" },
        }
    }

    fn welcome(&self, addresses: Addresses) -> String {
        let Addresses { gateway, api, grpc } = addresses;
        let grpc = grpc.map_or_else(String::new, |grpc| format!("gRPC     {grpc} (Envoy's rate-limit service)\n"));
        let Self { path, policy, token } = self;
        let path = path.as_deref().unwrap_or("/livez");
        format!(
            "gateway  http://{gateway}\n\
             API      http://{api}\n\
             {grpc}\
             Try:\n  \
             curl -i http://{gateway}{path}\n  \
             curl{token} -H 'content-type: application/json' -d '{{\"policy\":\"{policy}\",\"subject\":\"me\"}}' http://{api}/v1/check\n  \
             curl{token} 'http://{api}/v1/explain?policy={policy}&subject=me'"
        )
    }
}
