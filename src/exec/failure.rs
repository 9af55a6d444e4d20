//! Why a link ended early, and whose fault that was.

use crate::net::{Connection, NetError, RemoteError, ResultRead};
use parallel_replicas_core::frame::{Identity, Refusal};
use parallel_replicas_core::link::{Event, Misreport, OutOfTurn, is_of_the_query};
use std::fmt;

/// Reason of a refusal: the file of a table has lost its end.
pub const TRUNCATED_FILE: &str = "truncated_file";

/// Why a turn of the link ended it.
pub enum Failure {
    /// Connection, protocol.
    Infrastructure(String),
    /// An error there that is that server's own.
    OfTheServer(String),
    /// An error there that is the query's fault.
    OfTheQuery(String),
    Refused(Refusal),
}

impl Failure {
    pub fn event(&self) -> Event {
        match self {
            Failure::Infrastructure(_) | Failure::OfTheServer(_) | Failure::OfTheQuery(_) => {
                Event::Failed
            }
            Failure::Refused(_) => Event::Refused,
        }
    }

    /// One of the two servers does not know the other's secret.
    pub fn is_of_authentication(&self) -> bool {
        self.is_refusal_for("authentication")
    }

    /// The replica has not replayed far enough.
    pub fn is_of_replay(&self) -> bool {
        self.is_refusal_for("replay")
    }

    /// Something is wrong with the replica, and may be with it alone.
    pub fn is_of_server(&self) -> bool {
        matches!(self, Failure::OfTheServer(_)) || self.is_refusal_for(TRUNCATED_FILE)
    }

    fn is_refusal_for(&self, reason: &str) -> bool {
        matches!(self, Failure::Refused(refusal) if refusal.reason == reason)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Infrastructure(why) | Failure::OfTheServer(why) | Failure::OfTheQuery(why) => {
                f.write_str(why)
            }
            Failure::Refused(refusal) => write!(f, "{} ({})", refusal.reason, refusal.detail),
        }
    }
}

impl From<OutOfTurn> for Failure {
    fn from(error: OutOfTurn) -> Self {
        Failure::Infrastructure(error.to_string())
    }
}

impl From<Misreport> for Failure {
    fn from(error: Misreport) -> Self {
        Failure::Infrastructure(error.to_string())
    }
}

impl From<NetError> for Failure {
    fn from(error: NetError) -> Self {
        Failure::Infrastructure(error.to_string())
    }
}

pub fn refused(reason: &str, detail: impl Into<String>) -> Failure {
    Failure::Refused(Refusal {
        reason: reason.to_owned(),
        detail: detail.into(),
    })
}

pub fn protocol(what: &str) -> Failure {
    Failure::Infrastructure(what.to_owned())
}

/// An error that the replica raised. Whether it was the query's fault or the server's, the work is
/// done again: an error of the query is raised there, as it would be without us.
pub fn remote(error: Option<RemoteError>) -> Failure {
    match error {
        Some(error) => {
            let sqlstate = error.sqlstate.as_str();
            let text = format!("{} (SQLSTATE {sqlstate})", error.primary);
            match is_of_the_query(sqlstate) {
                true => Failure::OfTheQuery(text),
                false => Failure::OfTheServer(text),
            }
        }
        None => protocol("replica gave an unexpected answer"),
    }
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

/// The replica's direction ended before its last frame: the result says why.
pub fn early_end(connection: &mut Connection) -> Failure {
    match connection.next_result() {
        ResultRead::Result(result) => remote(result.error()),
        ResultRead::Nothing | ResultRead::Done => protocol("replica ended the exchange early"),
    }
}
