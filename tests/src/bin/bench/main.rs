//! Benchmarks, one module each; `bench NAME FILE` prints the table of one and writes its figures to
//! FILE as JSON. docs/benchmarks.md says what each compares and what to expect.
//!
//! The two sides of a comparison run by turns in one run, and the figures are medians with the
//! spread beside them: on a shared machine only their ratio means something.

mod by_hand;
mod groups;
mod local;
mod locality;
mod options;
mod overhead;
mod report;
mod rows;
mod scale;
mod small;
mod tail;
mod write;

use report::Row;

type Benchmark = fn() -> Vec<Row>;

const BENCHMARKS: &[(&str, Benchmark)] = &[
    ("overhead", overhead::run),
    ("local", local::run),
    ("small", small::run),
    ("rows", rows::run),
    ("groups", groups::run),
    ("write", write::run),
    ("scale", scale::run),
    ("tail", tail::run),
    ("locality", locality::run),
];

/// What the two sides of a benchmark's rows are called.
fn sides(name: &str) -> [&'static str; 2] {
    match name {
        "tail" => ["allowed", "measured"],
        "locality" => ["first run", "second run"],
        _ => ["without", "with"],
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(file)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: bench NAME FILE");
        std::process::exit(2);
    };
    let Some((_, run)) = BENCHMARKS.iter().find(|(known, _)| *known == name) else {
        eprintln!("there is no benchmark \"{name}\"");
        std::process::exit(2);
    };
    let rows = run();
    report::print_table(&rows, sides(&name));
    std::fs::write(&file, report::json(&name, &rows)).expect("figures can be written");
    println!("\nfigures: {file}");
}
