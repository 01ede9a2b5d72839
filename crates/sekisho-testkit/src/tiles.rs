//! A server of elevation tiles, in the place of GSI's: the ground is made up, so every height is known.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use sekisho_elevation::{Layer, Pixel, Point, TILE_SIDE, Tile, TileId, Zoom};

/// The height of a point as a layer has it, in metres; `None` is a hole.
pub type Ground = Arc<dyn Fn(Layer, Point) -> Option<f64> + Send + Sync>;

/// Serves `/{layer}_png/{z}/{x}/{y}.png` and `/{layer}/{z}/{x}/{y}.txt` with `ETag`s, on a port of its own. A tile without
/// any height is 404, as at GSI.
#[derive(Debug)]
pub struct TileServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// What it does instead of serving.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Trouble {
    #[default]
    None,
    /// 404 for everything.
    Missing,
    /// 429, with so many seconds in `Retry-After`.
    TooMany(u64),
    /// Any other status.
    Status(u16),
    /// 200 with these bytes.
    Bytes(Vec<u8>),
    /// No answer before the trouble is another.
    Silence,
}

/// A request as it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    pub path: String,
    pub status: u16,
}

struct Shared {
    ground: Mutex<Ground>,
    made: Mutex<HashMap<String, Option<Arc<Body>>>>,
    trouble: Mutex<Trouble>,
    changed: Condvar,
    served: Mutex<Vec<Served>>,
}

struct Body {
    bytes: Vec<u8>,
    etag: String,
}

impl TileServer {
    #[track_caller]
    pub fn start(ground: Ground) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
        let address = listener.local_addr().expect("the address of an open listener");
        let shared = Arc::new(Shared {
            ground: Mutex::new(ground),
            made: Mutex::default(),
            trouble: Mutex::default(),
            changed: Condvar::new(),
            served: Mutex::default(),
        });
        let all = Arc::clone(&shared);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let all = Arc::clone(&all);
                std::thread::spawn(move || all.talk(stream));
            }
        });
        Self { address, shared }
    }

    /// What stands before `/dem5a_png/…`.
    pub fn url(&self) -> String {
        format!("http://{}/xyz", self.address)
    }

    pub fn trouble(&self, trouble: Trouble) {
        *lock(&self.shared.trouble) = trouble;
        self.shared.changed.notify_all();
    }

    /// Another survey: tiles that differ have other `ETag`s.
    pub fn resurvey(&self, ground: Ground) {
        *lock(&self.shared.ground) = ground;
        lock(&self.shared.made).clear();
    }

    /// What was asked for since the last time, in the order of the answers.
    pub fn served(&self) -> Vec<Served> {
        std::mem::take(&mut lock(&self.shared.served))
    }
}

impl Shared {
    /// One answer, and the connection is closed.
    fn talk(&self, stream: TcpStream) -> Option<()> {
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut known = None;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            match header.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("if-none-match") => known = Some(value.to_owned()),
                Some(_) => {}
                None => break,
            }
        }
        let (status, headers, body) = self.answer(&path, known.as_deref());
        lock(&self.served).push(Served { path, status });
        let length = body.len();
        let head = format!("HTTP/1.1 {status} -\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n");
        let mut stream = reader.into_inner();
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(&body).ok()
    }

    fn answer(&self, path: &str, known: Option<&str>) -> (u16, String, Vec<u8>) {
        let trouble = lock(&self.trouble);
        let trouble = self.changed.wait_while(trouble, |trouble| *trouble == Trouble::Silence);
        let trouble = trouble.unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let plain = |status| (status, String::new(), Vec::new());
        match trouble {
            Trouble::None | Trouble::Silence => {}
            Trouble::Missing => return plain(404),
            Trouble::TooMany(seconds) => return (429, format!("retry-after: {seconds}\r\n"), Vec::new()),
            Trouble::Status(status) => return plain(status),
            Trouble::Bytes(bytes) => return (200, String::new(), bytes),
        }
        let Some(body) = self.body(path) else { return plain(404) };
        let etag = format!("etag: {}\r\n", body.etag);
        match known == Some(&body.etag) {
            true => (304, etag, Vec::new()),
            false => (200, etag, body.bytes.clone()),
        }
    }

    fn body(&self, path: &str) -> Option<Arc<Body>> {
        if let Some(made) = lock(&self.made).get(path) {
            return made.clone();
        }
        let ground = Arc::clone(&lock(&self.ground));
        let body = make(&ground, path).map(|bytes| {
            let etag = format!("\"{:x}\"", fnv(&bytes));
            Arc::new(Body { bytes, etag })
        });
        lock(&self.made).insert(path.to_owned(), body.clone());
        body
    }
}

fn make(ground: &Ground, path: &str) -> Option<Vec<u8>> {
    let mut parts = path.strip_prefix("/xyz/")?.split('/');
    let (layer, zoom, x, y) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let (y, ending) = y.split_once('.')?;
    let is_png = ending == "png";
    let layer: Layer = if is_png { layer.strip_suffix("_png")? } else { layer }.parse().ok()?;
    let id = TileId { layer, zoom: Zoom::new(zoom.parse().ok()?)?, x: x.parse().ok()?, y: y.parse().ok()? };
    let is_named = if is_png { id.png_path() } else { id.text_path()? } == path.strip_prefix("/xyz/")?;
    // GSI has the larger scales too, but no finer ones.
    if !is_named || id.zoom > layer.zoom() {
        return None;
    }
    // A column has one longitude and a row one latitude: 512 middles instead of 65,536.
    let middle = |step: u32| Pixel { x: id.x * TILE_SIDE + step, y: id.y * TILE_SIDE + step }.centre(id.zoom);
    let middles: Vec<Point> = (0..TILE_SIDE).map(middle).collect();
    let at = |x: u8, y: u8| Point::new(middles[usize::from(y)].lat(), middles[usize::from(x)].lon()).ok();
    let tile = Tile::from_fn(|x, y| ground(layer, at(x, y)?));
    (!tile.is_empty()).then(|| if is_png { tile.to_png() } else { tile.to_text().into_bytes() })
}

/// Only for `ETag`s: the same bytes have the same.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("trouble", &self.trouble).finish_non_exhaustive()
    }
}

/// Ground with known heights, around 35°N 138°E.
pub mod ground {
    use super::*;

    /// A slope that rises to the east: `at_138` metres on 138°E, and `per_degree` more on 139°E. Blending four pixels of
    /// it changes nothing.
    pub fn plane(at_138: f64, per_degree: f64) -> impl Fn(Point) -> f64 + Send + Sync + Copy {
        move |point| at_138 + (point.lon() - 138.0) * per_degree
    }

    /// A mountain: `height` metres on its top, and `slope` metres less for each metre away from it.
    pub fn cone(top: Point, height: f64, slope: f64) -> impl Fn(Point) -> f64 + Send + Sync + Copy {
        move |point| height - slope * point.distance_m(top)
    }

    /// The same in one layer, and nothing in the others.
    pub fn only(layer: Layer, height: impl Fn(Point) -> f64 + Send + Sync + 'static) -> Ground {
        Arc::new(move |asked, point| (asked == layer).then(|| height(point)))
    }
}
