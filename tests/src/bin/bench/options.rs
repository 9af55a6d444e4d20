//! Sizes that the environment may change; a benchmark says what it uses.

use std::fmt::Display;
use std::str::FromStr;

/// The variable's value, or `default` if it is not set.
///
/// # Panics
/// If it is set to something else than a number.
#[track_caller]
pub fn number<T: FromStr + Display>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}
