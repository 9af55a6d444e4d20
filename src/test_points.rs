//! Named places at which a test makes this server fail or wait. Not in the library that is installed:
//! without the cargo feature `test_points` a point is nothing at all.
//!
//! A test arms a point by a file `test_points/NAME` in the data folder, which says what is to happen
//! there: `error`, `fatal`, `crash`, or `wait` as long as the file is there. The first process that
//! gets there makes a file `NAME.reached`.

/// A place with this name.
macro_rules! test_point {
    ($name:literal) => {
        #[cfg(feature = "test_points")]
        $crate::test_points::reach($name);
    };
}

/// Does what the test wants here.
#[cfg(feature = "test_points")]
pub fn reach(name: &str) {
    use pgrx::{PgLogLevel, PgSqlErrorCode, check_for_interrupts, ereport};
    let path = std::path::Path::new("test_points").join(name);
    let armed = || std::fs::read_to_string(&path);
    let Ok(action) = armed() else {
        return;
    };
    // If that fails the test waits in vain, and says so.
    let _ = std::fs::write(path.with_extension("reached"), "");
    match action.trim() {
        "error" => crate::error::raise(
            PgSqlErrorCode::ERRCODE_IO_ERROR,
            format!("test point {name}"),
            "",
            "",
        ),
        "fatal" => ereport!(
            PgLogLevel::FATAL,
            PgSqlErrorCode::ERRCODE_IO_ERROR,
            format!("test point {name}")
        ),
        "crash" => std::process::abort(),
        _ => {
            while armed().is_ok() {
                check_for_interrupts!();
                // Seldom, so that it does not pass for work.
                std::thread::sleep(std::time::Duration::from_millis(250));
            }
        }
    }
}
