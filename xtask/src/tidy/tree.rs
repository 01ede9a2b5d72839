use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The text files of the repository and the names of everything else in it.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: Vec<File>,
    paths: BTreeSet<String>,
}

#[derive(Debug)]
pub(super) struct File {
    /// Relative to the root, with `/` between the parts.
    pub(super) path: String,
    pub(super) text: String,
}

impl File {
    pub(super) fn has_extension(&self, extensions: &[&str]) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
    }
}

impl Tree {
    pub(super) fn read(root: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        tree.read_dir(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for &(path, text) in files {
            tree.paths.insert(path.to_owned());
            let folders = path.match_indices('/').map(|(end, _)| path[..end].to_owned());
            tree.paths.extend(folders);
            tree.files.push(File { path: path.to_owned(), text: text.to_owned() });
        }
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        tree
    }

    pub(super) fn files(&self) -> &[File] {
        &self.files
    }

    pub(super) fn with_extension<'a>(&'a self, extensions: &'a [&'a str]) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |file| file.has_extension(extensions))
    }

    /// Whether a file or a folder of this name exists.
    pub(super) fn contains(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path)
    }

    fn read_dir(&mut self, dir: &Path, prefix: &str) -> Result<()> {
        for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if matches!(name.as_str(), "target" | ".git") {
                continue;
            }
            let path = format!("{prefix}{name}");
            self.paths.insert(path.clone());
            if entry.file_type()?.is_dir() {
                self.read_dir(&entry.path(), &format!("{path}/"))?;
                continue;
            }
            let file = File { path, text: String::new() };
            if file.has_extension(&["rs", "lua", "md"]) {
                let text = fs::read_to_string(entry.path()).with_context(|| file.path.clone())?;
                self.files.push(File { text, ..file });
            }
        }
        Ok(())
    }
}
