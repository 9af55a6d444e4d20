//! A random database: tables of random columns, partitioned or not, with all that makes rows
//! awkward to read.

use fastrand::Rng;

/// The types that generated columns and expressions have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ty {
    Int,
    Big,
    Num,
    Float,
    Text,
    Bool,
    Date,
    Stamp,
    StampTz,
    Json,
    Ints,
    Mood,
    Bytes,
    Uuid,
    Range,
}

/// All of them.
pub const TYPES: [Ty; 15] = [
    Ty::Int,
    Ty::Big,
    Ty::Num,
    Ty::Float,
    Ty::Text,
    Ty::Bool,
    Ty::Date,
    Ty::Stamp,
    Ty::StampTz,
    Ty::Json,
    Ty::Ints,
    Ty::Mood,
    Ty::Bytes,
    Ty::Uuid,
    Ty::Range,
];

impl Ty {
    /// As it stands in SQL.
    pub fn sql(self) -> &'static str {
        match self {
            Ty::Int => "int",
            Ty::Big => "bigint",
            Ty::Num => "numeric(14,2)",
            Ty::Float => "float8",
            Ty::Text => "text",
            Ty::Bool => "bool",
            Ty::Date => "date",
            Ty::Stamp => "timestamp",
            Ty::StampTz => "timestamptz",
            Ty::Json => "jsonb",
            Ty::Ints => "int[]",
            Ty::Mood => "fuzz_mood",
            Ty::Bytes => "bytea",
            Ty::Uuid => "uuid",
            Ty::Range => "int4range",
        }
    }

    /// The value of row `i` in the stream `salt`: few distinct ones, so that keys repeat.
    fn value(self, salt: u32, long: bool) -> String {
        let h = format!("hashint8extended(i, {salt})");
        match self {
            Ty::Int => format!("({h} % 60)::int"),
            Ty::Big => format!("{h} % 1000000007"),
            Ty::Num => format!("({h} % 10000)::numeric / 100"),
            Ty::Float => format!("({h} % 400)::float8 / 4"),
            Ty::Text if long => {
                format!(
                    "(SELECT string_agg(md5(({h} + j)::text), '') FROM generate_series(1, 90) j)"
                )
            }
            Ty::Text => format!("substr(md5(({h} % 40)::text), 1, 1 + abs({h} % 7)::int)"),
            Ty::Bool => format!("{h} % 3 = 0"),
            Ty::Date => format!("date '2020-01-01' + ({h} % 400)::int"),
            Ty::Stamp => format!("timestamp '2020-01-01 12:00' + ({h} % 5000) * interval '37 min'"),
            Ty::StampTz => {
                format!("timestamptz '2020-06-01 12:00Z' + ({h} % 5000) * interval '53 min'")
            }
            Ty::Json => format!("jsonb_build_object('a', {h} % 9, 'b', md5(({h} % 5)::text))"),
            Ty::Ints => format!("ARRAY[{h} % 5, {h} % 7, NULL]::int[]"),
            Ty::Mood => format!("(enum_range(NULL::fuzz_mood))[1 + abs({h} % 4)]"),
            Ty::Bytes => format!("decode(md5(({h} % 30)::text), 'hex')"),
            Ty::Uuid => format!("md5(({h} % 30)::text)::uuid"),
            Ty::Range => format!("int4range(({h} % 20)::int, ({h} % 20)::int + 5)"),
        }
    }
}

/// A column that queries may name.
#[derive(Clone, Debug)]
pub struct Column {
    pub name: String,
    pub ty: Ty,
}

/// A table, materialised view or view; its first column is `id`, an int that is unique and not null.
#[derive(Clone, Debug)]
pub struct Table {
    pub name: String,
    pub columns: Vec<Column>,
}

/// Tables, and the script that makes them.
pub struct Schema {
    pub tables: Vec<Table>,
    pub script: String,
}

impl Schema {
    /// Of about `count` tables.
    pub fn generate(rng: &mut Rng, count: usize) -> Schema {
        let mut schema = Schema {
            tables: Vec::new(),
            script: String::from(
                "SET client_min_messages = warning; SET timezone = 'UTC'; SET search_path = fuzz;
                 DROP SCHEMA IF EXISTS fuzz CASCADE; CREATE SCHEMA fuzz;
                 CREATE TYPE fuzz_mood AS ENUM ('sad', 'ok', 'happy', 'mad');\n",
            ),
        };
        for number in 0..count {
            schema.add_table(rng, number);
        }
        schema
    }

    fn add_table(&mut self, rng: &mut Rng, number: usize) {
        let name = format!("t{number}");
        let mut columns = vec![
            Column {
                name: String::from("id"),
                ty: Ty::Int,
            },
            Column {
                name: String::from("k"),
                ty: Ty::Int,
            },
        ];
        for index in 0..rng.usize(2..8) {
            columns.push(Column {
                name: format!("c{index}"),
                ty: TYPES[rng.usize(..TYPES.len())],
            });
        }
        let mut definitions: Vec<String> = columns
            .iter()
            .map(|column| format!("{} {}", column.name, column.ty.sql()))
            .collect();
        definitions.insert(rng.usize(..definitions.len()), String::from("gone text"));
        let rows = [0, 1, 40, 300, 1000][rng.usize(..5)].max(if number < 3 { 300 } else { 0 });
        let kind = rng.usize(..6);
        let partition = match kind {
            0 => " PARTITION BY HASH (id)",
            1 => " PARTITION BY RANGE (id)",
            2 => " PARTITION BY LIST (k)",
            _ => "",
        };
        let script = &mut self.script;
        let mut say = |line: String| {
            script.push_str(&line);
            script.push('\n');
        };
        say(format!(
            "CREATE TABLE {name} ({}){partition};",
            definitions.join(", ")
        ));
        match kind {
            0 => {
                for part in 0..3 {
                    say(format!(
                        "CREATE TABLE {name}_{part} PARTITION OF {name}
                         FOR VALUES WITH (MODULUS 3, REMAINDER {part});"
                    ));
                }
            }
            1 => {
                for (part, (from, to)) in [("MINVALUE", "200"), ("200", "900"), ("900", "MAXVALUE")]
                    .iter()
                    .enumerate()
                {
                    say(format!(
                        "CREATE TABLE {name}_{part} PARTITION OF {name}
                         FOR VALUES FROM ({from}) TO ({to});"
                    ));
                }
            }
            2 => {
                say(format!(
                    "CREATE TABLE {name}_0 PARTITION OF {name} FOR VALUES IN (0, 1, 2, NULL);
                     CREATE TABLE {name}_1 PARTITION OF {name} DEFAULT;"
                ));
            }
            3 => say(format!("CREATE TABLE {name}_child () INHERITS ({name});")),
            _ => {}
        }
        say(format!("ALTER TABLE {name} DROP COLUMN gone;"));
        let target = |part: usize| match (kind, part) {
            (3, 1) => format!("{name}_child"),
            _ => name.clone(),
        };
        for part in 0..2 {
            let mut values = vec![
                String::from("i"),
                String::from(if rng.bool() {
                    "CASE WHEN i % 11 = 0 THEN NULL ELSE i % 37 END"
                } else {
                    "(1000 / (1 + i % 500))::int"
                }),
            ];
            for column in &columns[2..] {
                let salt = rng.u32(1..100_000);
                let value = column.ty.value(salt, rng.usize(..8) == 0);
                let nulls = [3, 10, 1_000_000][rng.usize(..3)];
                values.push(format!(
                    "CASE WHEN hashint8extended(i, {}) % {nulls} = 0 THEN NULL ELSE {value} END",
                    salt + 1
                ));
            }
            let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            say(format!(
                "INSERT INTO {} ({}) SELECT {} FROM generate_series({}::bigint, {}) i;",
                target(part),
                names.join(", "),
                values.join(", "),
                part * rows + 1,
                (part + 1) * rows
            ));
        }
        // A column that the old rows do not store.
        if rng.bool() && rows > 0 {
            say(format!("ALTER TABLE {name} ADD COLUMN late int DEFAULT 7;"));
            say(format!("UPDATE {name} SET late = id % 3 WHERE id % 5 = 0;"));
            columns.push(Column {
                name: String::from("late"),
                ty: Ty::Int,
            });
        }
        if rng.bool() {
            say(format!("DELETE FROM {name} WHERE id % 13 = 5;"));
        }
        if rng.usize(..3) > 0 && kind != 3 {
            say(format!(
                "CREATE UNIQUE INDEX ON {name} (id{});",
                if kind == 2 { ", k" } else { "" }
            ));
            say(format!("CREATE INDEX ON {name} (k);"));
        }
        if rng.usize(..4) > 0 {
            say(format!("ANALYZE {name};"));
        }
        if rng.usize(..3) == 0 {
            say(format!("VACUUM {name};"));
        }
        let table = Table { name, columns };
        match rng.usize(..8) {
            0 => {
                say(format!(
                    "CREATE MATERIALIZED VIEW m{number} AS SELECT * FROM {};",
                    table.name
                ));
                self.tables.push(Table {
                    name: format!("m{number}"),
                    columns: table.columns.clone(),
                });
            }
            1 => {
                say(format!(
                    "CREATE VIEW v{number} WITH (security_barrier) AS SELECT * FROM {} WHERE id % 7 <> 1;",
                    table.name
                ));
                self.tables.push(Table {
                    name: format!("v{number}"),
                    columns: table.columns.clone(),
                });
            }
            _ => {}
        }
        self.tables.push(table);
    }
}
