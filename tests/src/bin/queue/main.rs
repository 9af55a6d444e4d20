//! The query queue under load: `queue soak|bench|overhead FILE`. Figures go to the file as JSON.

mod bench;
mod overhead;
mod plot;
mod soak;

use std::path::Path;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(file)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: queue soak|bench|overhead FILE");
        std::process::exit(2);
    };
    let file = Path::new(&file);
    let figures = match name.as_str() {
        "soak" => soak::run(),
        "overhead" => overhead::run(),
        "bench" => bench::run(&file.with_extension("svg")),
        other => {
            eprintln!("there is no \"{other}\"");
            std::process::exit(2);
        }
    };
    std::fs::write(file, figures).expect("figures can be written");
    println!("\nfigures: {}", file.display());
}

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}
