//! `sekisho fetch URL…`, `sekisho fetch --file LIST --out DIR`

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::client::Client;
use crate::exit::{Failure, Outcome};
use crate::{ServerArgs, output};

/// What was fetched before, one line each: a run that was broken off goes on where it was.
const INDEX: &str = "fetched.jsonl";

#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// What to fetch
    #[arg(required_unless_present = "file")]
    urls: Vec<String>,
    /// Fetch what stands in this file, a URL on each line
    #[arg(long, value_name = "LIST")]
    file: Option<PathBuf>,
    /// Write bodies into this folder; what is there already is not fetched again
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// They are no pages: only requests are charged
    #[arg(long)]
    no_page: bool,
    /// Give up at once where a domain has no turn now
    #[arg(long)]
    no_wait: bool,
    /// Fetch so many at a time; each domain still has its own pace
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &FetchArgs) -> Result<Outcome, Failure> {
    let urls = urls(args)?;
    match (&args.out, urls.as_slice()) {
        (Some(folder), _) => fetch_all(args, urls, folder),
        (None, [url]) => fetch_one(args, url),
        (None, _) => Err(Failure::Input("name a folder with --out for more than one URL".to_owned())),
    }
}

/// Each once, in the order they stand in.
fn urls(args: &FetchArgs) -> Result<Vec<String>, Failure> {
    let mut urls = args.urls.clone();
    if let Some(file) = &args.file {
        let text = fs::read_to_string(file).map_err(|error| at(file, &error))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        urls.extend(lines.map(str::to_owned));
    }
    let mut seen = HashSet::new();
    urls.retain(|url| seen.insert(url.clone()));
    Ok(urls)
}

fn fetch_one(args: &FetchArgs, url: &str) -> Result<Outcome, Failure> {
    let client = Client::fetching(&args.server);
    let answer = if args.server.json {
        let answer = client.post("/v1/fetch", &asked(args, url))?.body;
        output::json(&answer);
        answer
    } else {
        let answer = client.fetch_into(&asked(args, url), &mut io::stdout().lock())?;
        // What is no good answer may have a body all the same.
        output::raw(&content(&answer)?);
        if let Some(why) = trouble(&answer) {
            output::note(&why);
        }
        answer
    };
    Ok(if is_ok(&answer) { Outcome::Done } else { Outcome::Denied })
}

fn fetch_all(args: &FetchArgs, urls: Vec<String>, folder: &Path) -> Result<Outcome, Failure> {
    fs::create_dir_all(folder).map_err(|error| at(folder, &error))?;
    let index = folder.join(INDEX);
    let known = read_index(&index, folder).map_err(|error| at(&index, &error))?;
    let bar = ProgressBar::new(urls.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:32} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    let (before, todo): (Vec<_>, Vec<_>) = urls.into_iter().partition(|url| known.contains(url));
    bar.inc(before.len() as u64);
    let mut lines = File::options().append(true).create(true).open(&index).map_err(|error| at(&index, &error))?;
    let (todo, told) = (Mutex::new(VecDeque::from(todo)), std::sync::mpsc::channel());
    let (tell, told) = told;
    let results: Result<Vec<(String, Value)>, Failure> = std::thread::scope(|threads| {
        for _ in 0..args.jobs {
            let (tell, todo) = (tell.clone(), &todo);
            threads.spawn(move || {
                let client = Client::fetching(&args.server);
                while let Some(url) = take(todo) {
                    let answer = ask(&client, args, &url, folder);
                    let is_over = matches!(answer, Err(Failure::Server(_)));
                    // Without its server nothing else will go better; and nobody listens after a failure.
                    if tell.send((url, answer)).is_err() || is_over {
                        take_all(todo);
                    }
                }
            });
        }
        drop(tell);
        let mut results = Vec::new();
        for (url, answer) in told {
            let answer = match answer {
                Ok(answer) => answer,
                // A line that is no URL is not the others' fault.
                Err(Failure::Input(why)) => json!({ "ok": false, "reason": "invalid", "detail": why }),
                Err(failure) => return Err(failure),
            };
            if is_ok(&answer) {
                save(folder, &url, &answer, &mut lines)?;
            }
            bar.inc(1);
            bar.set_message(url.clone());
            results.push((url, answer));
        }
        Ok(results)
    });
    bar.finish_and_clear();
    let results = results?;
    summarize(args, before.len(), &results);
    Ok(if results.iter().all(|(_, answer)| is_ok(answer)) { Outcome::Done } else { Outcome::Denied })
}

fn asked(args: &FetchArgs, url: &str) -> Value {
    json!({ "url": url, "page": !args.no_page, "wait": !args.no_wait })
}

/// The body goes into its file under another name, until the line that it is there can be written.
fn ask(client: &Client, args: &FetchArgs, url: &str, folder: &Path) -> Result<Value, Failure> {
    let part = part_of(folder, url);
    let mut file = File::create(&part).map_err(|error| at(&part, &error))?;
    let answer = client.fetch_into(&asked(args, url), &mut file);
    if answer.as_ref().is_ok_and(is_ok) {
        file.sync_all().map_err(|error| at(&part, &error))?;
    } else {
        let _ = fs::remove_file(&part);
    }
    answer
}

fn part_of(folder: &Path, url: &str) -> PathBuf {
    folder.join(format!(".{}.part", name_of(url)))
}

fn is_ok(answer: &Value) -> bool {
    answer["ok"].as_bool() == Some(true)
}

fn content(answer: &Value) -> Result<Vec<u8>, Failure> {
    let body = answer["body"].as_str().unwrap_or_default();
    if answer["body_encoding"] != "base64" {
        return Ok(body.as_bytes().to_vec());
    }
    let decoded = data_encoding::BASE64.decode(body.as_bytes());
    decoded.map_err(|error| Failure::Server(format!("the server sent a body that cannot be read: {error}")))
}

/// In one line, why there is nothing.
fn trouble(answer: &Value) -> Option<String> {
    let reason = answer["reason"].as_str()?;
    let detail = answer["detail"].as_str().map_or_else(String::new, |detail| format!(": {detail}"));
    let until = answer["retry_at"].as_i64().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    let until = until.map_or_else(String::new, |until| format!(", until {until}"));
    Some(format!("{reason}{detail}{until}"))
}

/// First the body under its name, whole, then the line that says so: a crash between them costs one fetch more.
fn save(folder: &Path, url: &str, answer: &Value, index: &mut File) -> Result<(), Failure> {
    let name = name_of(url);
    let path = folder.join(&name);
    fs::rename(part_of(folder, url), &path).map_err(|error| at(&path, &error))?;
    let line = json!({ "url": url, "file": name, "status": answer["status"], "final_url": answer["final_url"] });
    index.write_all(format!("{line}\n").as_bytes()).map_err(|error| at(&folder.join(INDEX), &error))
}

/// What is in the index and still there. A line that was cut off is none.
fn read_index(index: &Path, folder: &Path) -> io::Result<HashSet<String>> {
    let file = match File::open(index) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashSet::new()),
        Err(error) => return Err(error),
    };
    let mut known = HashSet::new();
    for line in BufReader::new(file).lines() {
        let Ok(entry) = serde_json::from_str::<Value>(&line?) else { continue };
        if let (Some(url), Some(name)) = (entry["url"].as_str(), entry["file"].as_str())
            && name == name_of(url)
            && folder.join(name).is_file()
        {
            known.insert(url.to_owned());
        }
    }
    Ok(known)
}

/// Its host, so that people find it, and a hash, so that no two are the same.
fn name_of(url: &str) -> String {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest).split(['/', '?', '#', ':', '@']).next();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let host: String = host.unwrap_or_default().chars().filter(|c| plain(*c)).take(100).collect();
    let hash: String = Sha256::digest(url.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", host.trim_start_matches('.'))
}

fn summarize(args: &FetchArgs, before: usize, results: &[(String, Value)]) {
    let mut counts = BTreeMap::<String, usize>::new();
    for (_, answer) in results {
        let name = match (is_ok(answer), answer["from_cache"].as_bool()) {
            (true, Some(true)) => "fetched, unchanged",
            (true, _) => "fetched",
            (false, _) => answer["reason"].as_str().unwrap_or("failed"),
        };
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    if before > 0 {
        counts.insert("there before".to_owned(), before);
    }
    if args.server.json {
        let failed = results.iter().filter(|(_, answer)| !is_ok(answer));
        let failed = failed.map(|(url, answer)| {
            json!({ "url": url, "reason": answer["reason"], "detail": answer["detail"], "retry_at": answer["retry_at"] })
        });
        output::json(&json!({ "counts": counts, "failed": failed.collect::<Vec<_>>() }));
        return;
    }
    output::table(&["", "URLs"], counts.into_iter().map(|(name, count)| vec![name, count.to_string()]));
    for (url, answer) in results {
        if let Some(why) = trouble(answer) {
            output::note(&format!("{url}: {why}"));
        }
    }
}

fn take(todo: &Mutex<VecDeque<String>>) -> Option<String> {
    todo.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop_front()
}

fn take_all(todo: &Mutex<VecDeque<String>>) {
    todo.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
}

fn at(path: &Path, error: &io::Error) -> Failure {
    Failure::Input(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_the_host_and_stay_in_the_folder() {
        for (url, host) in [
            ("http://example.com:8080/a/b?c", "example.com"),
            ("https://../../etc/passwd", ""),
            ("nonsense", "nonsense"),
            ("http://[::1]/", ""),
        ] {
            let name = name_of(url);
            let (found, hash) = name.rsplit_once('-').unwrap();
            assert_eq!((found, hash.len()), (host, 16), "{url}");
        }
        assert_ne!(name_of("http://a/1"), name_of("http://a/2"));
    }
}
