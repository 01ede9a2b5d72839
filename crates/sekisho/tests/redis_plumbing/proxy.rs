//! A relay in front of a server that can lose an answer: the server has done its work, and the caller never learns it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
};

pub(crate) struct Proxy {
    pub(crate) port: u16,
    cut: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(AtomicBool::new(false));
        let flag = cut.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, server, flag.clone()));
            }
        });
        Self { port, cut }
    }

    /// The next answer of the server is lost, and with it the connection.
    pub(crate) fn lose_the_next_answer(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }
}

async fn relay(mut client: TcpStream, server: u16, cut: Arc<AtomicBool>) {
    let mut server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let answers = async {
        let mut buffer = [0; 4096];
        loop {
            match from_server.read(&mut buffer).await {
                Ok(count) if count > 0 && !cut.swap(false, Ordering::SeqCst) => {
                    to_client.write_all(&buffer[..count]).await.ok();
                }
                _ => return,
            }
        }
    };
    tokio::select! {
        () = answers => {}
        _ = copy(&mut from_client, &mut to_server) => {}
    }
}
