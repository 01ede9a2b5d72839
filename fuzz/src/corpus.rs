//! Seeds, and what crashed, as files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::Target;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where the seeds of a target are.
pub fn folder(target: &Target) -> PathBuf {
    root().join("corpus").join(target.name)
}

/// Every target has a folder, and no folder is without one.
pub fn folders() -> Result<Vec<String>> {
    let entries = fs::read_dir(root().join("corpus"))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

/// The seeds of a target with their names, in their order.
pub fn read(target: &Target) -> Result<Vec<(String, Vec<u8>)>> {
    let folder = folder(target);
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut seeds = Vec::new();
    for entry in entries {
        let entry = entry?;
        seeds.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
    }
    seeds.sort();
    Ok(seeds)
}

/// Keeps an input that crashed, outside of what is committed. Whoever mends it moves it into the corpus.
pub fn keep_crash(target: &Target, input: &[u8]) -> Result<PathBuf> {
    keep(&root().join("crashes").join(target.name), input)
}

/// Adds an input to the corpus.
pub fn keep_seed(target: &Target, input: &[u8]) -> Result<PathBuf> {
    keep(&folder(target), input)
}

fn keep(folder: &Path, input: &[u8]) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let digest = ring::digest::digest(&ring::digest::SHA256, input);
    let path = folder.join(data_encoding::HEXLOWER.encode(&digest.as_ref()[..6]));
    fs::write(&path, input)?;
    Ok(path)
}
