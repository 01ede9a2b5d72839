//! Certificates and keys from their files.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsConfig;
use crate::start::StartError;

/// What encrypts a listener. `name` is the key that errors speak of; the first protocol that a client knows as well is spoken.
pub(crate) fn acceptor(name: &'static str, config: &TlsConfig, protocols: &[&str]) -> Result<TlsAcceptor, StartError> {
    let failed = |file: &Path, error: &dyn Display| StartError::Certificate {
        name,
        reason: format!("{}: {error}", file.display()),
    };
    let certificates = |file: &Path| -> Result<Vec<CertificateDer<'static>>, StartError> {
        let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
        let certificates: Vec<_> = read.map_err(|error| failed(file, &error))?;
        if certificates.is_empty() { Err(failed(file, &"holds no certificate")) } else { Ok(certificates) }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients: Arc<dyn ClientCertVerifier> = match &config.client_ca {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(file)? {
                roots.add(root).map_err(|error| failed(file, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            verifier.build().map_err(|error| failed(file, &error))?
        }
    };
    let chain = certificates(&config.cert)?;
    let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|error| failed(&config.key, &error))?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_client_cert_verifier(clients).with_single_cert(chain, key))
        .map_err(|error| failed(&config.cert, &error))?;
    server.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(TlsAcceptor::from(Arc::new(server)))
}
