//! Writes the tables of docs/reference/configuration.md anew: `cargo xtask docs`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/configuration.md");
    let text = std::fs::read_to_string(&page)?;
    std::fs::write(&page, sekisho_server::config::reference::fill(&text)?)?;
    Ok(())
}
