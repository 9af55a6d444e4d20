//! Why a link ended early, and whose fault that was.

use crate::net::{NetError, RemoteError};
use parallel_replicas_core::frame::{Identity, Refusal};

/// Why a turn of the link ended it.
pub enum Failure {
    /// Connection, protocol, infrastructure error there.
    Infrastructure(String),
    Refused(Refusal),
    /// An error that the query itself causes.
    Data(Box<RemoteError>),
}

impl From<NetError> for Failure {
    fn from(error: NetError) -> Self {
        Failure::Infrastructure(error.to_string())
    }
}

pub fn protocol(what: &str) -> Failure {
    Failure::Infrastructure(what.to_owned())
}

/// Sorts a replica's error: is it the rows' fault, or the server's?
pub fn remote(error: Option<RemoteError>) -> Failure {
    match error {
        Some(error) if is_data_error(&error) => Failure::Data(Box::new(error)),
        Some(error) => Failure::Infrastructure(format!(
            "{} (SQLSTATE {})",
            error.primary,
            error.sqlstate.as_str()
        )),
        None => protocol("replica gave an unexpected answer"),
    }
}

/// Errors that executing the same rows here would raise too. Everything else costs the replica its
/// part and the query nothing: should the error be the query's after all, doing the work again
/// raises it here.
fn is_data_error(error: &RemoteError) -> bool {
    matches!(error.sqlstate.class(), b"21" | b"22" | b"23")
}

pub fn identity_difference(ours: &Identity, theirs: &Identity) -> String {
    if ours.system_identifier != theirs.system_identifier {
        "the servers do not belong to the same physical cluster".to_owned()
    } else if ours.server_version != theirs.server_version {
        format!(
            "server version {} against {}",
            theirs.server_version, ours.server_version
        )
    } else if ours.build_id != theirs.build_id || ours.protocol_version != theirs.protocol_version {
        format!(
            "extension build {} against {}",
            theirs.build_id, ours.build_id
        )
    } else {
        "database or block size differs".to_owned()
    }
}
