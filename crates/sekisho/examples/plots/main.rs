//! Draws what each algorithm admits of one bursty load: `cargo xtask plots` writes docs/concepts/img/*.svg and prints what
//! a subject costs in memory.
//!
//! The engine is the real one, on memory and a clock that moves by hand, so that a picture is the same whenever it is made.

mod load;
mod memory;
mod pacing;
mod scenes;
mod svg;

use std::error::Error;
use std::path::PathBuf;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: plots FOLDER")?);
    std::fs::create_dir_all(&folder)?;
    let scenes = scenes::all()?;
    for scene in &scenes {
        let played = load::play(scene).await?;
        std::fs::write(folder.join(format!("{}.svg", scene.name)), svg::picture(scene, &played))?;
    }
    std::fs::write(folder.join("pacing.svg"), pacing::picture().await?)?;
    memory::print(&scenes, std::io::stdout().lock())
}
