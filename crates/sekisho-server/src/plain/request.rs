//! Reads a request that came whole.

use std::mem::MaybeUninit;

use axum::body::Bytes;
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{Method, Request, Uri};
use httparse::{ParserConfig, Status};

use super::MOST;

const MAX_HEADERS: usize = 64;

/// What has come so far.
pub(super) enum Came {
    Whole(Whole),
    /// A head without its end.
    Part,
    /// Where it ends, or a line of it, could be read in two ways: somebody before us may have read the other one.
    Ambiguous(&'static str),
    /// Something that only hyper can make out, or refuse.
    Other,
}

pub(super) struct Whole {
    pub(super) head: Parts,
    pub(super) body: Option<Bytes>,
    /// Where the next one begins.
    pub(super) end: usize,
}

/// Every value lies in `bytes`, none is copied.
pub(super) fn read(bytes: &Bytes) -> Came {
    let mut lines = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    match ParserConfig::default().parse_request_with_uninit_headers(&mut request, bytes, &mut lines) {
        Ok(Status::Complete(length)) => match ambiguity(&bytes[..length], request.headers) {
            Some(what) => Came::Ambiguous(what),
            None => whole(bytes, &request, length).map_or(Came::Other, Came::Whole),
        },
        Ok(Status::Partial) => Came::Part,
        Err(_) => Came::Other,
    }
}

/// What hyper and httparse would make one thing of, as RFC 9112 allows (2.2, 6.3), and others another.
fn ambiguity(head: &[u8], lines: &[httparse::Header<'_>]) -> Option<&'static str> {
    let count = |wanted: u8| head.iter().filter(|byte| **byte == wanted).count();
    // Every other carriage return was refused already.
    if count(b'\n') != count(b'\r') {
        return Some("a line ends without a carriage return");
    }
    let says = |name: &str| lines.iter().filter(|line| line.name.eq_ignore_ascii_case(name)).count();
    match says("content-length") {
        0 => None,
        1 if says("transfer-encoding") == 0 => None,
        1 => Some("it has both a length and an encoding"),
        _ => Some("it says its length more than once"),
    }
}

fn whole(bytes: &Bytes, request: &httparse::Request<'_, '_>, length: usize) -> Option<Whole> {
    let (Some(method), Some(target), Some(1)) = (request.method, request.path, request.version) else { return None };
    if length > MOST {
        return None;
    }
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    // An answer to these is of another shape.
    if matches!(method, Method::HEAD | Method::CONNECT) || !target.starts_with('/') {
        return None;
    }
    let uri = Uri::from_maybe_shared(bytes.slice_ref(target.as_bytes())).ok()?;
    let mut headers = HeaderMap::with_capacity(request.headers.len());
    let mut body = None;
    for line in &*request.headers {
        let name = named(line.name)?;
        if name == CONTENT_LENGTH {
            // Digits alone: all else is read in different ways.
            if line.value.is_empty() || !line.value.iter().all(u8::is_ascii_digit) {
                return None;
            }
            body = Some(std::str::from_utf8(line.value).ok()?.parse::<usize>().ok()?);
        } else if name == CONNECTION {
            if !line.value.eq_ignore_ascii_case(b"keep-alive") {
                return None;
            }
        } else if name == TRANSFER_ENCODING || name == EXPECT || name == UPGRADE {
            return None;
        }
        headers.append(name, HeaderValue::from_maybe_shared(bytes.slice_ref(line.value)).ok()?);
    }
    let end = length.checked_add(body.unwrap_or_default())?;
    if end > bytes.len() {
        return None;
    }
    let (mut head, ()) = Request::new(()).into_parts();
    (head.method, head.uri, head.headers) = (method, uri, headers);
    let body = (end > length).then(|| bytes.slice(length..end));
    Some(Whole { head, body, end })
}

/// Every request has a host, and to look for it among all the names that are known takes long.
fn named(name: &str) -> Option<HeaderName> {
    if name.eq_ignore_ascii_case("host") { Some(HOST) } else { HeaderName::from_bytes(name.as_bytes()).ok() }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use http_body_util::BodyExt as _;
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const NEXT: &[u8] = b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n";

    type Seen = (Method, Uri, HeaderMap, Vec<u8>);

    /// What hyper makes of the same bytes, request by request, until it has enough of them.
    async fn hyper(bytes: &[u8]) -> Vec<Seen> {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&seen);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let seen = Arc::clone(&told);
            async move {
                let (head, body) = request.into_parts();
                if let Ok(body) = body.collect().await {
                    let body = body.to_bytes().to_vec();
                    seen.lock().push((head.method, head.uri, head.headers, body));
                }
                Ok::<_, Infallible>(hyper::Response::new(axum::body::Body::empty()))
            }
        });
        let mut builder = http1::Builder::new();
        let _ = builder.half_close(true).serve_connection(TokioIo::new(server), service).await;
        drop(client);
        Arc::into_inner(seen).unwrap().into_inner()
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let mostly = |usual: &[&'static str], others: &[&'static str]| prop_oneof![9 => prop::sample::select(usual.to_vec()), 1 => prop::sample::select(others.to_vec())];
        let method = mostly(&["GET", "POST", "OPTIONS", "x"], &["HEAD", "CONNECT", "G T"]);
        let target =
            prop::sample::select(vec!["/", "/a?b=c&d", "/%2e%2e/x", "*", "http://x/y", "x:1", "/a b", "/\u{e9}"]);
        let version = mostly(&["HTTP/1.1"], &["HTTP/1.0", "HTTP/2.0", "http/1.1"]);
        let usual = [
            "host: a.example",
            "Host:b",
            "accept: */*",
            "cookie: a=b; c=d",
            "x-empty:",
            "x-tab: a\tb",
            "x-text: caf\u{e9}",
        ];
        let lengths = ["content-length: 0", "content-length: 3", "Content-Length: 3", "content-length: 4"];
        let doubtful = [
            "x-odd\u{1}: 1",
            "x space: 1",
            "x-before : 1",
            " folded: 1",
            "content-length: 03",
            "content-length: +3",
            "content-length: 3, 3",
            "content-length:",
            "content-length: 99999999999999999999",
            "content-length: 18446744073709551615",
            "transfer-encoding: chunked",
            "transfer-encoding: gzip",
            "connection: close",
            "connection: keep-alive, close",
            "connection: upgrade",
            "upgrade: h2c",
            "expect: 100-continue",
        ];
        let line = prop_oneof![
            6 => prop::sample::select(usual.to_vec()),
            2 => prop::sample::select(lengths.to_vec()),
            1 => Just("connection: keep-alive"),
            1 => prop::sample::select(doubtful.to_vec()),
        ];
        let end = prop_oneof![30 => Just("\r\n"), 1 => prop::sample::select(vec!["\n", "\r", "\r\r\n"])];
        let lines = prop::collection::vec((line, end), 0..6);
        let body = prop::sample::select(vec!["", "abc", "abcd", "3\r\nabc\r\n0\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"]);
        let odd = prop::option::weighted(0.1, (any::<prop::sample::Index>(), any::<u8>()));
        let before = prop::sample::select(vec!["", "", "", "\r\n", "\n"]);
        let cut = prop::option::weighted(0.2, any::<prop::sample::Index>());
        (before, method, target, version, lines, body, odd, cut).prop_map(
            |(before, method, target, version, lines, body, odd, cut)| {
                let lines: String = lines.iter().flat_map(|(line, end)| [*line, *end]).collect();
                let mut bytes = format!("{before}{method} {target} {version}\r\n{lines}\r\n{body}").into_bytes();
                if let Some((place, byte)) = odd {
                    let place = place.index(bytes.len());
                    bytes[place] = byte;
                }
                if let Some(cut) = cut {
                    bytes.truncate(cut.index(bytes.len()));
                }
                bytes
            },
        )
    }

    /// Two readers of the same bytes who see different requests are how requests are smuggled.
    #[test]
    fn a28_what_is_read_here_is_what_hyper_reads() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (whole, part, other) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        proptest!(ProptestConfig { cases: 4_000, ..ProptestConfig::default() }, |(bytes in bytes())| {
            let bytes = Bytes::from(bytes);
            match read(&bytes) {
                Came::Whole(Whole { head, body, end }) => {
                    whole.fetch_add(1, Relaxed);
                    let seen = runtime.block_on(hyper(&[&bytes[..end], NEXT].concat()));
                    prop_assert_eq!(seen.len(), 2);
                    let body = body.map_or(Vec::new(), |body| body.to_vec());
                    prop_assert_eq!(&seen[0], &(head.method, head.uri, head.headers, body));
                    prop_assert_eq!(seen[1].1.path(), "/next");
                }
                Came::Part => {
                    part.fetch_add(1, Relaxed);
                    prop_assert!(runtime.block_on(hyper(&bytes)).is_empty());
                }
                Came::Other | Came::Ambiguous(_) => drop(other.fetch_add(1, Relaxed)),
            }
        });
        for (what, count) in [("whole", whole), ("part", part), ("other", other)] {
            assert!(count.load(Relaxed) > 400, "{what}: {count:?}");
        }
    }

    #[test]
    fn a28_what_could_be_read_in_two_ways_is_told() {
        for lines in [
            "content-length: 1\r\ntransfer-encoding: chunked\r\n",
            "Transfer-Encoding: gzip\r\nContent-Length: 1\r\n",
            "content-length: 1\r\ncontent-length: 1\r\n",
            "content-length: 1\r\nContent-Length: 2\r\n",
            "x: 1\n",
            "content-length: 1\nx: 1\r\n",
        ] {
            let came = Bytes::from(format!("POST / HTTP/1.1\r\nhost: x\r\n{lines}\r\na"));
            assert!(matches!(read(&came), Came::Ambiguous(_)), "{lines:?}");
        }
        for whole in ["GET / HTTP/1.1\nhost: x\n\n", "GET / HTTP/1.1\r\nhost: x\r\n\n", "\nGET / HTTP/1.1\r\n\r\n"] {
            assert!(matches!(read(&Bytes::from(whole)), Came::Ambiguous(_)), "{whole:?}");
        }
    }

    #[test]
    fn what_is_usual_is_read() {
        let came = Bytes::from_static(
            b"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\n{}GET",
        );
        let Came::Whole(Whole { head, body, end }) = read(&came) else { panic!("it is whole") };
        assert_eq!((head.method, head.uri.to_string().as_str()), (Method::POST, "/a?b"));
        assert_eq!(head.headers.len(), 3);
        assert_eq!((body.as_deref(), &came[end..]), (Some(&b"{}"[..]), &b"GET"[..]));
        assert!(matches!(read(&came.slice(..40)), Came::Part));
        // hyper waits for the rest.
        assert!(matches!(read(&came.slice(..end - 1)), Came::Other));
    }
}
