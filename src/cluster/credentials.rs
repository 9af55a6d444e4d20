//! How a user logs in on a replica, and whether that user may.
//!
//! Not here: connecting (`net`). Called by whoever opens a link.
//!
//! Invariants, which are postgres_fdw's: a user needs USAGE on the foreign server; a user who is
//! not a superuser gives a password in the user mapping, and the replica must really ask for it,
//! because otherwise that user would act with what the server's own account may do (`.pgpass`,
//! peer or trust authentication). Only a superuser can lift that with password_required 'false'.
//! Fixed keywords come last and so win over options.

use std::ffi::CStr;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use pgrx::pg_sys;

use super::{Replica, catalog};
use crate::net::pool::{self, PoolKey};
use crate::net::{ConnectParameters, NetError};

/// Server options that are ours and not libpq's.
const OWN_SERVER_OPTIONS: [&str; 4] = ["cluster", "discover", "priority", "weight"];
/// Milliseconds after which a replica process that computes notices that its coordinator is gone.
const CONNECTION_CHECK_INTERVAL_MS: u32 = 500;

const TCP_OPTIONS: [(&str, &str); 4] = [
    ("keepalives_idle", "5"),
    ("keepalives_interval", "1"),
    ("keepalives_count", "5"),
    ("tcp_user_timeout", "10000"),
];

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Fragments of queries. Refused by a server that has not loaded the library at start.
    Link,
    /// Questions in ordinary SQL, also to servers that are set up wrongly.
    Check,
    /// The same for values that this server reads back, whatever its sessions and the role there have set.
    Read,
}

/// Everything that opening a connection needs.
#[derive(Clone, Debug)]
pub struct ConnectTarget {
    pub parameters: ConnectParameters,
    /// For `net::pool`.
    pub key: PoolKey,
}

/// Why a user cannot use a replica. None of these fails a query: the replica is left out.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unusable {
    #[error("foreign server \"{replica}\" does not exist")]
    NoServer { replica: String },
    #[error("permission denied for foreign server \"{replica}\"")]
    NoUsage { replica: String },
    #[error("user mapping not found for \"{user}\" on replica \"{replica}\"")]
    NoMapping { user: String, replica: String },
    #[error("password is required for \"{user}\" on replica \"{replica}\"")]
    NoPassword { user: String, replica: String },
    #[error("role with OID {} does not exist", u32::from(*.0))]
    NoRole(pg_sys::Oid),
    #[error("no transaction to read the user mapping in")]
    NoTransaction,
    #[error(transparent)]
    Parameters(#[from] NetError),
}

impl Unusable {
    pub fn hint(&self) -> Option<String> {
        match self {
            Unusable::NoUsage { replica } => Some(format!(
                "Grant USAGE ON FOREIGN SERVER \"{replica}\" to the user."
            )),
            Unusable::NoMapping { user, replica } => Some(format!(
                "Use CREATE USER MAPPING FOR \"{user}\" SERVER \"{replica}\" OPTIONS (user '...', \
                 password '...')."
            )),
            Unusable::NoPassword { .. } => Some(
                "Add a password to the user mapping, or let a superuser set password_required to \
                 false in it."
                    .into(),
            ),
            Unusable::Parameters(error) => error.hint(),
            _ => None,
        }
    }
}

/// libpq parameters for a user's connection to a replica.
///
/// # Errors
/// The reason why this user cannot use this replica.
pub fn connect_parameters(
    replica: &Replica,
    user: pg_sys::Oid,
    application_name: &str,
    purpose: Purpose,
) -> Result<ConnectTarget, Unusable> {
    if !catalog::is_readable() {
        return Err(Unusable::NoTransaction);
    }
    // Before the catalog is read, so that a change in between makes the connection short-lived
    // instead of wrong.
    let catalog_generation = pool::catalog_generation();
    let user_name = role_name(user).ok_or(Unusable::NoRole(user))?;
    let server = catalog::current_server(replica.server_oid).ok_or_else(|| Unusable::NoServer {
        replica: replica.name.clone(),
    })?;
    if !has_usage(replica.server_oid, user) {
        return Err(Unusable::NoUsage {
            replica: replica.name.clone(),
        });
    }
    // SAFETY: main thread, inside a transaction; looks in a cache of the catalog.
    let is_superuser = unsafe { pg_sys::superuser_arg(user) };
    let mapping = catalog::mapping(user, replica.server_oid);

    let mut parameters = ConnectParameters::new();
    // A host that vanishes is noticed within seconds; server options may say otherwise.
    for (name, value) in TCP_OPTIONS {
        parameters.set(name, value)?;
    }
    for (name, value) in server.options.iter() {
        if !OWN_SERVER_OPTIONS.contains(&name) {
            parameters.set(name, value)?;
        }
    }
    if replica.is_discovered {
        // A host that the template names stays, for the server's certificate.
        parameters.set("hostaddr", &replica.address)?;
    }
    parameters.set("user", &user_name)?;
    match &mapping {
        Some(mapping) => {
            for (name, value) in mapping
                .options
                .iter()
                .filter(|(n, _)| *n != "password_required")
            {
                parameters.set(name, value)?;
            }
        }
        None if is_superuser => {}
        None => {
            let user = String::from_utf8_lossy(&user_name).into_owned();
            return Err(Unusable::NoMapping {
                user,
                replica: replica.name.clone(),
            });
        }
    }
    if !is_superuser && mapping.as_ref().is_none_or(password_is_required) {
        let given = mapping.as_ref().and_then(|m| m.options.bytes("password"));
        if given.is_none_or(<[u8]>::is_empty) {
            let user = String::from_utf8_lossy(&user_name).into_owned();
            return Err(Unusable::NoPassword {
                user,
                replica: replica.name.clone(),
            });
        }
        parameters.require_password_use();
    }
    set_fixed(&mut parameters, application_name, purpose)?;

    let mapping_user_oid = mapping.map_or(user, |m| m.owner);
    let server_oid = replica.server_oid;
    let key = PoolKey {
        server_oid,
        address_hash: hash(&replica.address),
        mapping_user_oid,
        catalog_generation,
        user_oid: user,
    };
    Ok(ConnectTarget { parameters, key })
}

fn password_is_required(mapping: &catalog::Mapping) -> bool {
    // The validator has made sure that the value is a boolean; anything unclear means yes.
    let value = mapping.options.text("password_required").unwrap_or("true");
    parse_boolean(value).unwrap_or(true)
}

/// A boolean option, in the words that PostgreSQL takes for options of catalog objects.
pub fn parse_boolean(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Some(true),
        "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// Keywords that no option may change.
fn set_fixed(
    parameters: &mut ConnectParameters,
    application_name: &str,
    purpose: Purpose,
) -> Result<(), NetError> {
    parameters.set("dbname", current_database())?;
    parameters.set("client_encoding", database_encoding())?;
    parameters.set("application_name", application_name)?;
    parameters.set("fallback_application_name", "parallel_replicas")?;
    // Which server it is gets checked in the conversation, not by libpq asking it first.
    parameters.set("target_session_attrs", "any")?;
    parameters.set("options", session_options(purpose))
}

/// Settings of the remote session. Given at start, they win over ALTER ROLE and ALTER DATABASE.
fn session_options(purpose: Purpose) -> String {
    let interval = CONNECTION_CHECK_INTERVAL_MS.to_string();
    let mut settings = vec![
        // Only below REPEATABLE READ can the serving procedure drop every snapshot while it waits
        // for replay.
        ("default_transaction_isolation", r"read\ committed"),
        // A replica that was promoted meanwhile is not written to either.
        ("default_transaction_read_only", "on"),
        // The coordinator's own timeouts hold; its cancel and its closed socket are noticed.
        ("statement_timeout", "0"),
        ("lock_timeout", "0"),
        ("idle_in_transaction_session_timeout", "0"),
        ("idle_session_timeout", "0"),
        ("client_connection_check_interval", interval.as_str()),
        // Nothing that the role may have set resolves a name before the built-in one.
        ("search_path", "pg_catalog"),
        ("client_min_messages", "warning"),
        ("synchronize_seqscans", "off"),
    ];
    match purpose {
        Purpose::Link => settings.push(("enable_parallel_replicas", "0")),
        Purpose::Check => {}
        Purpose::Read => settings.extend([
            ("datestyle", "ISO"),
            ("intervalstyle", "postgres"),
            ("extra_float_digits", "3"),
            ("lc_monetary", "C"),
        ]),
    }
    let settings = settings
        .iter()
        .map(|(name, value)| format!("-c {name}={value}"));
    settings.collect::<Vec<_>>().join(" ")
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn has_usage(server: pg_sys::Oid, user: pg_sys::Oid) -> bool {
    // SAFETY: main thread, inside a transaction. A server dropped meanwhile raises the ordinary
    // error for that.
    let result = unsafe {
        pg_sys::pg_foreign_server_aclcheck(server, user, pg_sys::ACL_USAGE as pg_sys::AclMode)
    };
    result == pg_sys::AclResult::ACLCHECK_OK
}

/// Copies a text that PostgreSQL allocated, and frees that.
///
/// # Safety
/// `text` must be null or zero-terminated and allocated in a memory context.
unsafe fn take_text(text: *mut std::ffi::c_char) -> Option<Vec<u8>> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let copy = CStr::from_ptr(text).to_bytes().to_vec();
        pg_sys::pfree(text.cast());
        Some(copy)
    }
}

fn role_name(role: pg_sys::Oid) -> Option<Vec<u8>> {
    // SAFETY: main thread, inside a transaction; answers null for a role that does not exist.
    unsafe { take_text(pg_sys::GetUserNameFromId(role, true)) }
}

fn current_database() -> Vec<u8> {
    // SAFETY: main thread, inside a transaction of a backend that is connected to a database.
    unsafe { take_text(pg_sys::get_database_name(pg_sys::MyDatabaseId)) }.unwrap_or_default()
}

fn database_encoding() -> &'static [u8] {
    // SAFETY: answers a static, zero-terminated name.
    unsafe { CStr::from_ptr(pg_sys::GetDatabaseEncodingName()) }.to_bytes()
}
