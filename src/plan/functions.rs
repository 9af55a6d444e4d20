//! What is known about built-in functions that are not plainly immutable.
//!
//! By name, because the object ids of PostgreSQL's own functions mean nothing to a reader and the
//! overloads of one name behave alike here. The lists are sorted.

/// Stable functions whose result depends on settings that are shipped with every fragment, and on
/// nothing else.
const STABLE_FROM_SETTINGS: &[&str] = &[
    "anyarray_out",
    "array_in",
    "array_out",
    "array_to_json",
    "array_to_string",
    "concat",
    "concat_ws",
    "date",
    "date_cmp_timestamptz",
    "date_eq_timestamptz",
    "date_ge_timestamptz",
    "date_gt_timestamptz",
    "date_in",
    "date_le_timestamptz",
    "date_lt_timestamptz",
    "date_ne_timestamptz",
    "date_out",
    "date_part",
    "date_trunc",
    "enum_in",
    "enum_out",
    "extract",
    "format",
    "generate_series",
    "in_range",
    "interval_in",
    "interval_out",
    "interval_pl_timestamptz",
    "json_agg",
    "json_build_array",
    "json_build_object",
    "json_object_agg",
    "jsonb_agg",
    "jsonb_build_array",
    "jsonb_build_object",
    "jsonb_object_agg",
    "make_timestamptz",
    "multirange_in",
    "multirange_out",
    "range_in",
    "range_out",
    "record_out",
    "row_to_json",
    "time",
    "time_in",
    "timestamp",
    "timestamp_cmp_timestamptz",
    "timestamp_eq_timestamptz",
    "timestamp_ge_timestamptz",
    "timestamp_gt_timestamptz",
    "timestamp_in",
    "timestamp_le_timestamptz",
    "timestamp_lt_timestamptz",
    "timestamp_ne_timestamptz",
    "timestamp_out",
    "timestamptz",
    "timestamptz_cmp_date",
    "timestamptz_cmp_timestamp",
    "timestamptz_eq_date",
    "timestamptz_eq_timestamp",
    "timestamptz_ge_date",
    "timestamptz_ge_timestamp",
    "timestamptz_gt_date",
    "timestamptz_gt_timestamp",
    "timestamptz_in",
    "timestamptz_le_date",
    "timestamptz_le_timestamp",
    "timestamptz_lt_date",
    "timestamptz_lt_timestamp",
    "timestamptz_mi_interval",
    "timestamptz_ne_date",
    "timestamptz_ne_timestamp",
    "timestamptz_out",
    "timestamptz_pl_interval",
    "timetz",
    "timezone",
    "to_char",
    "to_date",
    "to_json",
    "to_jsonb",
    "to_number",
    "to_timestamp",
];

/// Input functions that read whatever type their second argument names. A conversion calls them for a type
/// that has been looked at.
const INPUT_OF_ANY_TYPE: &[&str] = &["array_in", "multirange_in", "range_in"];

/// Declared immutable, but dependent on files or libraries that may differ between servers, on the catalog as
/// it is now, or on the functions of a table's partition key.
const SERVER_SPECIFIC: &[&str] = &[
    "json_to_tsvector",
    "jsonb_to_tsvector",
    "pg_partition_root",
    "pg_walfile_name",
    "pg_walfile_name_offset",
    "phraseto_tsquery",
    "plainto_tsquery",
    "satisfies_hash_partition",
    "to_tsquery",
    "to_tsvector",
    "ts_headline",
    "ts_lexize",
    "ts_parse",
    "ts_token_type",
    "websearch_to_tsquery",
    "xml_is_well_formed_content",
    "xml_is_well_formed_document",
    "xmlexists",
    "xmlvalidate",
    "xpath",
    "xpath_exists",
];

/// Functions of the session or transaction, without arguments that matter, that cannot fail.
/// `current_schema` may: it makes the schema of temporary tables where that comes first.
const OF_THE_SESSION: &[&str] = &[
    "current_database",
    "current_query",
    "current_setting",
    "current_user",
    "getpgusername",
    "now",
    "pg_backend_pid",
    "pg_conf_load_time",
    "pg_postmaster_start_time",
    "session_user",
    "statement_timestamp",
    "transaction_timestamp",
    "version",
];

pub fn is_of_the_session(name: &str) -> bool {
    OF_THE_SESSION.binary_search(&name).is_ok()
}

pub fn is_stable_from_settings(name: &str) -> bool {
    STABLE_FROM_SETTINGS.binary_search(&name).is_ok()
}

pub fn is_input_of_any_type(name: &str) -> bool {
    INPUT_OF_ANY_TYPE.contains(&name)
}

pub fn is_server_specific(name: &str) -> bool {
    SERVER_SPECIFIC.binary_search(&name).is_ok()
}

/// Might the function consult the session's time zone? Every stable function here is taken to, and so are
/// `timezone`, whose immutable forms read the time zone data of the named zone, and `age`.
pub fn reads_time_zone(name: &str) -> bool {
    name == "age" || name == "timezone" || is_stable_from_settings(name)
}
