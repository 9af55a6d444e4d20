//! Whose fault an error is that a replica raised.

/// Beginnings of SQLSTATEs of troubles of a server or a connection: connection, transaction state and
/// rollback (which recovery conflicts are), resources, object state, intervention, system, a snapshot too
/// old, configuration, internal errors.
const OF_THE_SERVER: &[&str] = &["08", "25", "40", "53", "55", "57", "58", "72", "F0", "XX"];

/// The rows' or the query's fault, which every server would meet; else the trouble is of the replica.
pub fn is_of_the_query(sqlstate: &str) -> bool {
    let known = sqlstate.len() == 5 && sqlstate.is_ascii();
    known
        && !OF_THE_SERVER
            .iter()
            .any(|beginning| sqlstate.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::is_of_the_query;

    #[test]
    fn data_errors_are_of_the_query() {
        for state in [
            "22012", "22P02", "23514", "42501", "54000", "P0001", "21000",
        ] {
            assert!(is_of_the_query(state), "{state}");
        }
    }

    #[test]
    fn other_errors_are_of_the_server() {
        for state in [
            "40001", "57014", "57P01", "53200", "58030", "XX000", "XX001", "72000", "08P01",
            "55000", "", "é",
        ] {
            assert!(!is_of_the_query(state), "{state}");
        }
    }
}
