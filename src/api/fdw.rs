//! The validator of the foreign-data wrapper `parallel_replicas`.
//!
//! PostgreSQL calls it with the complete option list each time a wrapper, server, user mapping or
//! foreign table of ours is created or altered. There is no handler: nothing is ever scanned
//! through this wrapper, it only keeps definitions.
//!
//! Invariants: secrets can be given in user mappings only (definitions of servers can be read by
//! everybody); what we set ourselves for each connection cannot be given at all; values never turn
//! up in an error text if they may be secret.

use std::ffi::{CStr, CString};

use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::submodules::errcodes::PgSqlErrorCode;
use pgrx::prelude::*;

use crate::cluster;
use crate::net::library_options;
use crate::shm::monitor;

/// libpq options that we set ourselves, or that would lead elsewhere than host and port say.
const RESERVED: [&str; 8] = [
    "application_name",
    "client_encoding",
    "dbname",
    "fallback_application_name",
    "load_balance_hosts",
    "options",
    "service",
    "target_session_attrs",
];
const RESERVED_REPLICATION: &str = "replication";
const OWN_SERVER_OPTIONS: [&str; 4] = ["cluster", "discover", "priority", "weight"];
const MAPPING_OPTIONS: [&str; 6] = [
    "user",
    "password",
    "password_required",
    "sslcert",
    "sslkey",
    "sslpassword",
];
/// Cluster names are as long as PostgreSQL's other names.
const CLUSTER_BYTES_MAX: usize = 63;
/// Edit distance up to which another name is offered as what was meant.
const DISTANCE_MAX: i32 = 4;

#[pg_extern(
    strict,
    volatile,
    parallel_safe,
    sql = "CREATE FUNCTION fdw_validator(options text[], catalog oid) RETURNS void \
           STRICT VOLATILE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';"
)]
pub(super) fn fdw_validator(options: pgrx::AnyArray, catalog: pg_sys::Oid) {
    // SAFETY: PostgreSQL hands a text[] of name=value elements; the list and its strings live in
    // the function's memory context until it returns.
    let given = unsafe { list_elements(pg_sys::untransformRelOptions(options.datum())) };
    let valid = valid_options(catalog);
    for element in &given {
        if !valid.contains(&element.name) {
            reject_name(&element.name, &valid);
        }
    }
    match catalog {
        pg_sys::ForeignServerRelationId => {
            check_server(&given);
            monitor::want_this_database_after_commit();
        }
        pg_sys::UserMappingRelationId => check_mapping(&given),
        _ => {}
    }
}

struct Given {
    name: String,
    value: String,
}

/// # Safety
/// `list` must be null or a list of DefElem.
unsafe fn list_elements(list: *mut pg_sys::List) -> Vec<Given> {
    if list.is_null() {
        return Vec::new();
    }
    let text = |text: *const std::ffi::c_char| match text.is_null() {
        true => String::new(),
        // SAFETY: not null; names and values of options are zero-terminated.
        false => unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    };
    // SAFETY: the caller's promise; a list's cells are an array of its length.
    unsafe {
        let cells = (*list).elements;
        let elements = (0..(*list).length as usize).map(|i| {
            let element = (*cells.add(i)).ptr_value.cast::<pg_sys::DefElem>();
            let value = match (*element).arg.is_null() {
                true => String::new(),
                false => text(pg_sys::defGetString(element)),
            };
            Given {
                name: text((*element).defname),
                value,
            }
        });
        elements.collect()
    }
}

/// Names that may be given for an object of this catalog, sorted.
fn valid_options(catalog: pg_sys::Oid) -> Vec<String> {
    let mut valid: Vec<String> = match catalog {
        pg_sys::ForeignServerRelationId => {
            let Some(options) = library_options() else {
                raise(
                    PgSqlErrorCode::ERRCODE_FDW_OUT_OF_MEMORY,
                    "out of memory".into(),
                    Some("Could not get libpq's connection options.".into()),
                    None,
                )
            };
            let usable = options.into_iter().filter(|option| {
                let name = option.keyword.as_str();
                !option.is_debug
                    && !option.is_secret
                    && name != "user"
                    && name != RESERVED_REPLICATION
                    && !RESERVED.contains(&name)
            });
            usable
                .map(|o| o.keyword)
                .chain(OWN_SERVER_OPTIONS.map(str::to_owned))
                .collect()
        }
        pg_sys::UserMappingRelationId => MAPPING_OPTIONS.map(str::to_owned).to_vec(),
        _ => Vec::new(),
    };
    valid.sort();
    valid
}

fn reject_name(name: &str, valid: &[String]) -> ! {
    let detail = if MAPPING_OPTIONS.contains(&name) {
        Some("This option belongs in the user mapping.".to_owned())
    } else if OWN_SERVER_OPTIONS.contains(&name) || name == "host" || name == "port" {
        Some("This option belongs to the server.".to_owned())
    } else if RESERVED.contains(&name) || name == RESERVED_REPLICATION {
        Some("This option is set by parallel_replicas itself.".to_owned())
    } else {
        None
    };
    // An option that exists elsewhere is no typing error.
    let meant = if detail.is_none() {
        closest(name, valid)
    } else {
        None
    };
    let list = valid.join(", ");
    let hint = match (meant, valid.is_empty()) {
        (Some(meant), _) => {
            format!("Perhaps you meant the option \"{meant}\". Valid options here are: {list}")
        }
        (None, false) => format!("Valid options here are: {list}"),
        (None, true) => "There are no valid options here.".into(),
    };
    raise(
        PgSqlErrorCode::ERRCODE_FDW_INVALID_OPTION_NAME,
        format!("invalid option \"{name}\""),
        detail,
        Some(hint),
    )
}

/// The valid name nearest to what was written, if any is near.
fn closest<'a>(name: &str, valid: &'a [String]) -> Option<&'a str> {
    // PostgreSQL's function takes up to 255 characters; longer names are no typing errors.
    if name.len() > CLUSTER_BYTES_MAX {
        return None;
    }
    let distance = |other: &str| {
        let (a, b) = (CString::new(name).ok()?, CString::new(other).ok()?);
        // SAFETY: main thread; both texts are alive and as long as said, within the limit.
        let distance = unsafe {
            pg_sys::varstr_levenshtein_less_equal(
                a.as_ptr(),
                name.len() as i32,
                b.as_ptr(),
                other.len() as i32,
                1,
                1,
                1,
                DISTANCE_MAX,
                false,
            )
        };
        // A word that shares less than half of its letters is another word.
        (distance <= DISTANCE_MAX && distance as usize <= name.len() / 2).then_some(distance)
    };
    let near = valid
        .iter()
        .filter_map(|other| Some((distance(other)?, other.as_str())));
    near.min().map(|(_, other)| other)
}

fn check_server(given: &[Given]) {
    for Given { name, value } in given {
        match name.as_str() {
            "port" => check_integer(name, value, 1, 65_535),
            "priority" => check_integer(name, value, 0, i64::from(i32::MAX)),
            "weight" => check_integer(name, value, 1, 1000),
            "cluster" => check_cluster_name(value),
            "host" | "hostaddr" => check_host(name, value),
            "discover" => check_discover(value, given),
            _ => {}
        }
    }
    // `check_discover` has seen to the host of a name that is looked up.
    if !given
        .iter()
        .any(|g| matches!(g.name.as_str(), "host" | "hostaddr" | "discover"))
    {
        raise(
            PgSqlErrorCode::ERRCODE_FDW_OPTION_NAME_NOT_FOUND,
            "option \"host\" is missing".into(),
            Some("A replica needs the address of its server.".into()),
            Some("Add OPTIONS (host '...', port '...').".into()),
        );
    }
}

fn check_integer(name: &str, value: &str, min: i64, max: i64) {
    // Digits only: libpq would take a list of ports, and Rust a leading plus sign.
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    let number = digits.then(|| value.parse::<i64>().ok()).flatten();
    if number.is_none_or(|n| n < min || n > max) {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("invalid value for option \"{name}\": \"{value}\""),
            Some(format!(
                "The value must be an integer between {min} and {max}."
            )),
            (name == "port" && value.contains(','))
                .then(|| "Define one server for each replica.".into()),
        );
    }
}

fn check_cluster_name(value: &str) {
    if value.is_empty() || value.len() > CLUSTER_BYTES_MAX {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("invalid value for option \"cluster\": \"{value}\""),
            Some(format!(
                "A cluster name must not be empty nor longer than {CLUSTER_BYTES_MAX} bytes."
            )),
            None,
        );
    }
}

fn check_discover(value: &str, given: &[Given]) {
    let names = cluster::Source::NAMES;
    let has = |name: &str| given.iter().any(|option| option.name == name);
    let (detail, hint) = if !names.contains(&value) {
        (format!("Valid values are {}.", names.join(" and ")), None)
    } else if has("hostaddr") {
        (
            "A server that discovers addresses cannot name one.".into(),
            Some("Leave out the option \"hostaddr\".".into()),
        )
    } else if value == "dns" && !has("host") {
        (
            "There is no name to look up.".into(),
            Some("Add the option \"host\".".into()),
        )
    } else {
        return;
    };
    raise(
        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        format!("invalid value for option \"discover\": \"{value}\""),
        Some(detail),
        hint,
    )
}

fn check_host(name: &str, value: &str) {
    if value.is_empty() || value.contains(',') {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("invalid value for option \"{name}\": \"{value}\""),
            Some("The value must be one address.".into()),
            value
                .contains(',')
                .then(|| "Define one server for each replica.".into()),
        );
    }
}

fn check_mapping(given: &[Given]) {
    // SAFETY: main thread, inside the DDL's transaction.
    let is_superuser = unsafe { pg_sys::superuser() };
    for Given { name, value } in given {
        match name.as_str() {
            "password_required" => match cluster::parse_boolean(value) {
                Some(true) => {}
                Some(false) if is_superuser => {}
                Some(false) => raise(
                    PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
                    "permission denied to set password_required to false".into(),
                    Some("Only superusers may let a user connect without a password.".into()),
                    Some("Give a password in the user mapping.".into()),
                ),
                None => raise(
                    PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                    format!("invalid value for option \"{name}\": \"{value}\""),
                    Some("The value must be true or false.".into()),
                    None,
                ),
            },
            // Files are read with the server's rights.
            "sslcert" | "sslkey" if !is_superuser => raise(
                PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("permission denied to set option \"{name}\""),
                Some("Only superusers may name files of the server in a user mapping.".into()),
                None,
            ),
            _ => {}
        }
    }
}

fn raise(code: PgSqlErrorCode, message: String, detail: Option<String>, hint: Option<String>) -> ! {
    let mut report = ErrorReport::new(code, message, "fdw_validator");
    if let Some(detail) = detail {
        report = report.set_detail(detail);
    }
    if let Some(hint) = hint {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::ERROR);
    unreachable!("an error report does not return")
}
