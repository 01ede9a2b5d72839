//! One connection that is kept, as long as the server keeps it.

use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Far beyond any deadline of the server: who waits so long has got no answer.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Client {
    port: u16,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Refused,
    Cut,
    TimedOut,
}

impl Client {
    pub(super) fn new(port: u16) -> Client {
        Client { port, connection: None }
    }

    pub(super) fn close(&mut self) {
        self.connection = None;
    }

    pub(super) async fn send(&mut self, request: &Request<Full<Bytes>>) -> Result<Response<Bytes>, Missing> {
        match timeout(PATIENCE, self.exchange(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(missing)) => {
                self.connection = None;
                Err(missing)
            }
            Err(_) => {
                self.connection = None;
                Err(Missing::TimedOut)
            }
        }
    }

    async fn exchange(&mut self, request: &Request<Full<Bytes>>) -> Result<Response<Bytes>, Missing> {
        loop {
            let mut connection = match self.connection.take() {
                Some(kept) => kept,
                None => self.connect().await?,
            };
            // The server may have closed it while nothing was asked.
            if connection.ready().await.is_err() {
                continue;
            }
            let sent = connection.send_request(request.clone()).await;
            let answer = match sent {
                Ok(answer) => answer,
                // Nothing of it was written, so that it may be asked again.
                Err(error) if error.is_canceled() => continue,
                Err(_) => return Err(Missing::Cut),
            };
            let (head, body) = answer.into_parts();
            let body = body.collect().await.map_err(|_| Missing::Cut)?.to_bytes();
            self.connection = Some(connection);
            return Ok(Response::from_parts(head, body));
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Missing> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.map_err(|_| Missing::Refused)?;
        let _ = stream.set_nodelay(true);
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|_| Missing::Refused)?;
        tokio::spawn(connection);
        Ok(sender)
    }
}
