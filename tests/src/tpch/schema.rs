//! Tables, keys and indexes of TPC-H (TPC-H specification, clause 1.4).

/// One table.
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Its columns as CREATE TABLE takes them.
    pub columns: &'static str,
    /// The columns of its primary key.
    pub primary_key: &'static str,
    /// The columns of a further index, where one is needed: without it the correlated subqueries
    /// of Q2, Q17 and Q20 take hours at SF 1.
    pub index: Option<&'static str>,
}

/// The eight tables, referenced ones first.
pub static TABLES: [Table; 8] = [
    Table {
        name: "region",
        columns: "
            r_regionkey integer NOT NULL,
            r_name char(25) NOT NULL,
            r_comment varchar(152)",
        primary_key: "r_regionkey",
        index: None,
    },
    Table {
        name: "nation",
        columns: "
            n_nationkey integer NOT NULL,
            n_name char(25) NOT NULL,
            n_regionkey integer NOT NULL,
            n_comment varchar(152)",
        primary_key: "n_nationkey",
        index: None,
    },
    Table {
        name: "part",
        columns: "
            p_partkey integer NOT NULL,
            p_name varchar(55) NOT NULL,
            p_mfgr char(25) NOT NULL,
            p_brand char(10) NOT NULL,
            p_type varchar(25) NOT NULL,
            p_size integer NOT NULL,
            p_container char(10) NOT NULL,
            p_retailprice numeric(15, 2) NOT NULL,
            p_comment varchar(23) NOT NULL",
        primary_key: "p_partkey",
        index: None,
    },
    Table {
        name: "supplier",
        columns: "
            s_suppkey integer NOT NULL,
            s_name char(25) NOT NULL,
            s_address varchar(40) NOT NULL,
            s_nationkey integer NOT NULL,
            s_phone char(15) NOT NULL,
            s_acctbal numeric(15, 2) NOT NULL,
            s_comment varchar(101) NOT NULL",
        primary_key: "s_suppkey",
        index: None,
    },
    Table {
        name: "partsupp",
        columns: "
            ps_partkey integer NOT NULL,
            ps_suppkey integer NOT NULL,
            ps_availqty integer NOT NULL,
            ps_supplycost numeric(15, 2) NOT NULL,
            ps_comment varchar(199) NOT NULL",
        primary_key: "ps_partkey, ps_suppkey",
        index: Some("ps_suppkey"),
    },
    Table {
        name: "customer",
        columns: "
            c_custkey integer NOT NULL,
            c_name varchar(25) NOT NULL,
            c_address varchar(40) NOT NULL,
            c_nationkey integer NOT NULL,
            c_phone char(15) NOT NULL,
            c_acctbal numeric(15, 2) NOT NULL,
            c_mktsegment char(10) NOT NULL,
            c_comment varchar(117) NOT NULL",
        primary_key: "c_custkey",
        index: None,
    },
    Table {
        name: "orders",
        columns: "
            o_orderkey bigint NOT NULL,
            o_custkey integer NOT NULL,
            o_orderstatus char(1) NOT NULL,
            o_totalprice numeric(15, 2) NOT NULL,
            o_orderdate date NOT NULL,
            o_orderpriority char(15) NOT NULL,
            o_clerk char(15) NOT NULL,
            o_shippriority integer NOT NULL,
            o_comment varchar(79) NOT NULL",
        primary_key: "o_orderkey",
        index: None,
    },
    Table {
        name: "lineitem",
        columns: "
            l_orderkey bigint NOT NULL,
            l_partkey integer NOT NULL,
            l_suppkey integer NOT NULL,
            l_linenumber integer NOT NULL,
            l_quantity numeric(15, 2) NOT NULL,
            l_extendedprice numeric(15, 2) NOT NULL,
            l_discount numeric(15, 2) NOT NULL,
            l_tax numeric(15, 2) NOT NULL,
            l_returnflag char(1) NOT NULL,
            l_linestatus char(1) NOT NULL,
            l_shipdate date NOT NULL,
            l_commitdate date NOT NULL,
            l_receiptdate date NOT NULL,
            l_shipinstruct char(25) NOT NULL,
            l_shipmode char(10) NOT NULL,
            l_comment varchar(44) NOT NULL",
        primary_key: "l_orderkey, l_linenumber",
        index: Some("l_partkey, l_suppkey"),
    },
];

/// A table by its name.
#[track_caller]
pub fn table(name: &str) -> &'static Table {
    match TABLES.iter().find(|table| table.name == name) {
        Some(table) => table,
        None => panic!("TPC-H has no table {name}"),
    }
}
