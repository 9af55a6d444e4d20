//! What users call: SQL functions and the foreign-data wrapper's validator.
//!
//! Not here: logic that anything but SQL needs. Nothing in the extension calls into this room.

mod checks;
mod events;
mod everywhere;
mod fdw;
mod log;
mod monitor;
mod prewarm;
mod queue;
mod readable;
mod replicas;
mod serve;
mod taken;
mod timeline;
mod type_owners;

pgrx::extension_sql_file!("../../sql/bootstrap.sql", name = "bootstrap", bootstrap);
pgrx::extension_sql_file!(
    "../../sql/views.sql",
    name = "views",
    requires = [events::get_events, serve::serve, serve::cpu_time]
);
pgrx::extension_sql_file!(
    "../../sql/queue.sql",
    name = "queue",
    requires = [
        queue::get_running_queries,
        queue::get_query_queue,
        queue::get_query_queue_classes,
        queue::get_resource_groups,
        queue::resource_group_changed
    ]
);
