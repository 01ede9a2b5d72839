//! The server of tiles serves what the ground says, and makes the trouble it is told to.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use sekisho_elevation::{Layer, Pixel, Point, Tile};
use sekisho_testkit::tiles::{TileServer, Trouble, ground};

fn get(server: &TileServer, path: &str, etag: &str) -> (String, Vec<u8>) {
    let url = server.url();
    let (host, base) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{base}/{path} HTTP/1.1\r\nhost: {host}\r\nif-none-match: {etag}\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    (String::from_utf8(answer[..end].to_vec()).unwrap(), answer[end + 4..].to_vec())
}

#[test]
fn tiles_say_what_the_ground_is() {
    let slope = ground::plane(100.0, 1_000.0);
    let server = TileServer::start(ground::only(Layer::Dem5a, slope));
    let point = Point::new(35.0, 138.5).unwrap();
    let pixel = Pixel::of(point, Layer::Dem5a.zoom());
    let ((x, y), (column, row)) = (pixel.tile(), pixel.within());
    let (head, png) = get(&server, &format!("dem5a_png/15/{x}/{y}.png"), "");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let expected = slope(pixel.centre(Layer::Dem5a.zoom()));
    assert!((Tile::decode(&png).unwrap().metres(column, row).unwrap() - expected).abs() < 0.006);
    let (_, text) = get(&server, &format!("dem5a/15/{x}/{y}.txt"), "");
    assert_eq!(Tile::decode(&text).unwrap().to_png(), png);
    let etag = head.split("etag: ").nth(1).unwrap().split('\r').next().unwrap();
    let (head, body) = get(&server, &format!("dem5a_png/15/{x}/{y}.png"), etag);
    assert!(head.starts_with("HTTP/1.1 304 ") && body.is_empty(), "{head}");
    assert!(get(&server, &format!("dem5b_png/15/{x}/{y}.png"), "").0.starts_with("HTTP/1.1 404 "));
    server.trouble(Trouble::TooMany(7));
    let (head, _) = get(&server, &format!("dem5a_png/15/{x}/{y}.png"), "");
    assert!(head.starts_with("HTTP/1.1 429 ") && head.contains("retry-after: 7"), "{head}");
    let statuses: Vec<u16> = server.served().iter().map(|served| served.status).collect();
    assert_eq!((statuses, server.served()), (vec![200, 200, 304, 404, 429], vec![]));
}
