//! `tls` and `grpc_tls`

use std::path::PathBuf;

use super::read::{Fields, Reader};
use super::tree::Node;
use super::{Config, keys};

/// Files in PEM.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Clients have to show a certificate that one of these has signed.
    pub client_ca: Option<PathBuf>,
}

impl TlsConfig {
    pub(super) fn files(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        [&mut self.cert, &mut self.key].into_iter().chain(&mut self.client_ca)
    }
}

pub(super) fn read(reader: &mut Reader, node: &Node) -> Option<TlsConfig> {
    let fields = reader.fields(node, "tls", &keys::TLS)?;
    cert_and_key(reader, &fields)
}

/// `config` has what is said of `grpc` besides.
pub(super) fn read_grpc(reader: &mut Reader, node: &Node, config: &Config) -> Option<TlsConfig> {
    let fields = reader.fields(node, "grpc_tls", &keys::GRPC_TLS)?;
    let tls = cert_and_key(reader, &fields);
    let Some(node) = fields.peek("client_ca") else {
        let is_open = config.grpc.is_some_and(|address| !address.ip().to_canonical().is_loopback());
        if is_open && !config.insecure_grpc {
            // The server would not start either; here the place is known.
            let message = "`client_ca` is missing: without it `grpc_tls` encrypts but lets everybody in, and `grpc` is not \
                           on loopback. `insecure_grpc: true` says that the network keeps others out";
            reader.complain(fields.at, message);
        }
        return tls;
    };
    let client_ca = reader.text(node, "client_ca").map(PathBuf::from);
    Some(TlsConfig { client_ca: Some(client_ca?), ..tls? })
}

fn cert_and_key(reader: &mut Reader, fields: &Fields<'_>) -> Option<TlsConfig> {
    let mut file = |name: &str| match fields.peek(name) {
        Some(node) => reader.text(node, name).map(PathBuf::from),
        None => {
            reader.complain(fields.at, format!("`{name}` is missing: give certificate and key as files in PEM"));
            None
        }
    };
    let (cert, key) = (file("cert"), file("key"));
    Some(TlsConfig { cert: cert?, key: key?, client_ca: None })
}
