//! A real Chromium, driven over WebDriver as a person would use it.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::process::Process;
use crate::wait::poll_until;

/// A page on a busy machine takes its time; whoever waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(90);
/// What WebDriver calls an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Chromium without a window. Dropping the value ends it.
#[derive(Debug)]
pub struct Browser {
    driver: Process,
    session: String,
}

/// Keys that no letter stands for.
pub mod keys {
    pub const TAB: &str = "\u{e004}";
    pub const ENTER: &str = "\u{e007}";
    pub const RIGHT: &str = "\u{e014}";
}

impl Browser {
    #[track_caller]
    pub fn start(width: u32, height: u32) -> Self {
        let command = |dir: &Path, ports: &[u16]| {
            let mut command = Command::new("chromedriver");
            // Profiles and caches go where the test's other files go.
            command.arg(format!("--port={}", ports[0])).env("HOME", dir).env("TMPDIR", dir);
            command
        };
        let is_ready = |ports: &[u16]| {
            call(ports[0], "GET", "/status", None).is_ok_and(|(_, status)| status["value"]["ready"] == true)
        };
        let driver = Process::start(1, command, is_ready);
        let window = format!("--window-size={width},{height}");
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            &window,
        ];
        let options = json!({ "args": args });
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let body = json!({ "capabilities": { "alwaysMatch": wanted } });
        let answer = call(driver.port(0), "POST", "/session", Some(&body));
        let session = answer.as_ref().ok().and_then(|(_, answer)| answer["value"]["sessionId"].as_str());
        let Some(session) = session else { panic!("no Chromium: {answer:?}\n{}", driver.log()) };
        Self { session: session.to_owned(), driver }
    }

    #[track_caller]
    pub fn open(&self, url: &str) {
        self.ask("POST", "/url", Some(&json!({ "url": url })));
    }

    /// What `script` returns.
    #[track_caller]
    pub fn run(&self, script: &str) -> Value {
        self.ask("POST", "/execute/sync", Some(&json!({ "script": script, "args": [] })))
    }

    /// The text that is shown in the first element of a selector.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let element = self.find(selector);
        self.ask("GET", &format!("/element/{element}/text"), None).as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    pub fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.ask("POST", &format!("/element/{element}/click"), Some(&json!({})));
    }

    /// Chooses a file in an element for files.
    #[track_caller]
    pub fn choose_file(&self, selector: &str, file: &Path) {
        let element = self.find(selector);
        self.ask("POST", &format!("/element/{element}/value"), Some(&json!({ "text": file })));
    }

    /// Presses keys one after the other, wherever the focus is.
    #[track_caller]
    pub fn press(&self, keys: &str) {
        let action = |key: char| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key }));
        let actions: Vec<Value> = keys.chars().flat_map(action).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.ask("POST", "/actions", Some(&json!({ "actions": [keyboard] })));
    }

    /// What assistive technology is told that an element is, and what it is called.
    #[track_caller]
    pub fn role_and_name(&self, selector: &str) -> (String, String) {
        let element = self.find(selector);
        let said = |what: &str| self.ask("GET", &format!("/element/{element}/{what}"), None);
        let text = |value: Value| value.as_str().unwrap_or_default().to_owned();
        (text(said("computedrole")), text(said("computedlabel")))
    }

    /// Drags a file from elsewhere onto the middle of an element, and lets go.
    #[track_caller]
    pub fn drop_file(&self, selector: &str, file: &Path) {
        let script = format!(
            "const box = document.querySelector({selector:?}).getBoundingClientRect(); \
             return [box.x + box.width / 2, box.y + box.height / 2];"
        );
        let at = self.run(&script);
        for kind in ["dragEnter", "dragOver", "drop"] {
            let data = json!({ "items": [], "files": [file], "dragOperationsMask": 1 });
            let params = json!({ "type": kind, "x": at[0], "y": at[1], "data": data });
            let command = json!({ "cmd": "Input.dispatchDragEvent", "params": params });
            self.ask("POST", "/goog/cdp/execute", Some(&command));
        }
    }

    /// Waits until a script returns something that is neither null nor false.
    #[track_caller]
    pub fn wait_for(&self, script: &str) -> Value {
        let found = poll_until(PATIENCE, || {
            let value = self.run(script);
            (value != Value::Null && value != Value::Bool(false)).then_some(value)
        });
        found.unwrap_or_else(|| panic!("`{script}` never held; the page says:\n{}", self.text("body")))
    }

    /// What the browser complained of: scripts that failed, and what the page's own rules forbade.
    #[track_caller]
    pub fn complaints(&self) -> Vec<String> {
        let log = self.ask("POST", "/se/log", Some(&json!({ "type": "browser" })));
        let lines = log.as_array().into_iter().flatten().filter(|line| line["level"] == "SEVERE");
        lines.map(|line| line["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// What is to be seen, as a PNG.
    #[track_caller]
    pub fn screenshot(&self) -> Vec<u8> {
        let shot = self.ask("GET", "/screenshot", None);
        BASE64.decode(shot.as_str().unwrap_or_default().as_bytes()).expect("a picture in base 64")
    }

    #[track_caller]
    fn find(&self, selector: &str) -> String {
        let found = self.ask("POST", "/element", Some(&json!({ "using": "css selector", "value": selector })));
        found[ELEMENT].as_str().unwrap_or_else(|| panic!("{selector} is no element: {found}")).to_owned()
    }

    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let path = format!("/session/{}{path}", self.session);
        match call(self.driver.port(0), method, &path, body) {
            Ok((200, answer)) => answer["value"].clone(),
            other => panic!("{method} {path}: {other:?}\n{}", self.driver.log()),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends its browser, and is then ended itself.
        let _ = call(self.driver.port(0), "DELETE", &format!("/session/{}", self.session), None);
    }
}

/// One request on a connection of its own. Status and JSON.
fn call(port: u16, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost:{port}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let wrong = |what: &str| io::Error::other(format!("{what}: {line:?}"));
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| wrong("no status"))?;
    let mut length = None;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        match header.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.trim().parse().ok(),
            Some(_) => {}
            None => break,
        }
    }
    let mut answer = vec![0; length.ok_or_else(|| wrong("no length"))?];
    reader.read_exact(&mut answer)?;
    Ok((status, serde_json::from_slice(&answer)?))
}
