//! Random expressions of a wanted type, which neither fail nor depend on the order of rows.

use fastrand::Rng;

use super::schema::{Schema, TYPES, Ty};

/// What an expression may name.
#[derive(Clone, Debug)]
pub struct Visible {
    pub name: String,
    pub ty: Ty,
}

/// Makes expressions.
pub struct Maker<'a> {
    pub rng: &'a mut Rng,
    pub schema: &'a Schema,
    /// Values of `$1`, `$2`, ...; None where the query has no parameters.
    pub parameters: Option<Vec<i32>>,
    /// For aliases that do not repeat.
    pub aliases: usize,
}

impl Maker<'_> {
    pub fn alias(&mut self, letter: char) -> String {
        self.aliases += 1;
        format!("{letter}{}", self.aliases)
    }

    pub fn ty(&mut self) -> Ty {
        TYPES[self.rng.usize(..TYPES.len())]
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.rng.usize(..n) == 0
    }

    fn pick<'b>(&mut self, of: &[&'b str]) -> &'b str {
        of[self.rng.usize(..of.len())]
    }

    /// A column of the type, if any is visible.
    pub fn column(&mut self, ty: Ty, visible: &[Visible]) -> Option<String> {
        let fit: Vec<&Visible> = visible.iter().filter(|column| column.ty == ty).collect();
        (!fit.is_empty()).then(|| fit[self.rng.usize(..fit.len())].name.clone())
    }

    fn literal(&mut self, ty: Ty) -> String {
        if self.one_in(25) {
            return format!("NULL::{}", ty.sql());
        }
        let n = self.rng.i32(-30..60);
        match ty {
            Ty::Int => match &mut self.parameters {
                Some(values) if values.len() < 6 => {
                    values.push(n);
                    format!("${}::int", values.len())
                }
                _ => format!("({n})"),
            },
            Ty::Big => format!("({})::bigint", i64::from(n) * 1_000_003),
            Ty::Num => format!("({n}.50)::numeric(14,2)"),
            Ty::Float => format!("({})::float8", f64::from(n) / 4.0),
            Ty::Text => format!("'{}'::text", self.pick(&["a", "c8", "", "e4d", "a%", "1f"])),
            Ty::Bool => String::from(self.pick(&["true", "false"])),
            Ty::Date => format!("(date '2020-02-01' + {n})"),
            Ty::Stamp => format!("(timestamp '2020-01-31 10:00' + {n} * interval '1 day')"),
            Ty::StampTz => format!("(timestamptz '2020-03-31 10:00Z' + {n} * interval '7 hours')"),
            Ty::Json => format!("jsonb '{{\"a\": {n}, \"c\": [1, 2]}}'"),
            Ty::Ints => format!("ARRAY[1, {n}, NULL]"),
            Ty::Mood => format!("'{}'::fuzz_mood", self.pick(&["sad", "ok", "happy", "mad"])),
            Ty::Bytes => format!("'\\x{:02x}0a'::bytea", n.unsigned_abs()),
            Ty::Uuid => format!("md5('{n}')::uuid"),
            Ty::Range => format!("int4range({n}, {})", n + 4),
        }
    }

    /// An expression of the type.
    pub fn expression(&mut self, ty: Ty, visible: &[Visible], depth: u32) -> String {
        if depth == 0 || self.one_in(3) {
            let column = self.column(ty, visible).filter(|_| !self.one_in(8));
            return column.unwrap_or_else(|| self.literal(ty));
        }
        let d = depth - 1;
        match self.rng.usize(..10) {
            0 => {
                let condition = self.condition(visible, d);
                let (a, b) = (
                    self.expression(ty, visible, d),
                    self.expression(ty, visible, d),
                );
                return format!("(CASE WHEN {condition} THEN {a} ELSE {b} END)");
            }
            1 => {
                let (a, b) = (
                    self.expression(ty, visible, d),
                    self.expression(ty, visible, d),
                );
                return format!("coalesce({a}, {b})");
            }
            2 if !matches!(ty, Ty::Json) => {
                let (a, b) = (
                    self.expression(ty, visible, d),
                    self.expression(ty, visible, d),
                );
                let word = self.pick(&["nullif", "greatest", "least"]);
                return format!("{word}({a}, {b})");
            }
            3 if self.one_in(3) => return self.scalar_subquery(ty, visible),
            _ => {}
        }
        self.call(ty, visible, d)
    }

    /// An operator or function whose result is of the type.
    fn call(&mut self, ty: Ty, visible: &[Visible], d: u32) -> String {
        let choice = self.rng.usize(..6);
        let mut e = |ty: Ty| self.expression(ty, visible, d);
        match (ty, choice) {
            (Ty::Int, 0) => format!("(({} + {}) % 10007)", e(Ty::Int), e(Ty::Int)),
            (Ty::Int, 1) => format!("({} % 1009 * ({} % 1009))", e(Ty::Int), e(Ty::Int)),
            (Ty::Int, 2) => format!("length({})", e(Ty::Text)),
            (Ty::Int, 3) => format!("({} / nullif({}, 0))", e(Ty::Int), e(Ty::Int)),
            (Ty::Int, 4) => format!("extract(day FROM {})::int", e(Ty::Stamp)),
            (Ty::Int, _) => format!("cardinality({})", e(Ty::Ints)),
            (Ty::Big, 0 | 1) => format!("({}::bigint * 3)", e(Ty::Int)),
            (Ty::Big, 2) => format!("(hashtextextended({}, 5) % 1000)", e(Ty::Text)),
            (Ty::Big, _) => format!("({} % 100003 + {})", e(Ty::Big), e(Ty::Int)),
            (Ty::Num, 0 | 1) => format!("({} + {})::numeric(14,2)", e(Ty::Num), e(Ty::Num)),
            (Ty::Num, 2) => format!("round({} * 1.5, 2)", e(Ty::Num)),
            (Ty::Num, _) => format!("{}::numeric(14,2)", e(Ty::Int)),
            (Ty::Float, 0..=2) => format!("({} + {})", e(Ty::Float), e(Ty::Float)),
            (Ty::Float, _) => format!("({}::float8 / 4)", e(Ty::Int)),
            (Ty::Text, 0) => format!("({} || {})", e(Ty::Text), e(Ty::Text)),
            (Ty::Text, 1) => format!("upper(left({}, 3))", e(Ty::Text)),
            (Ty::Text, 2) => format!("to_char({}, 'YYYY-MM-DD')", e(Ty::Date)),
            (Ty::Text, 3) => format!("({}::text)", e(Ty::Int)),
            (Ty::Text, 4) => format!("regexp_replace({}, '[0-9]+', '#')", e(Ty::Text)),
            (Ty::Text, _) => format!("substr({}, 2, 2)", e(Ty::Text)),
            (Ty::Bool, _) => self.condition(visible, d),
            (Ty::Date, 0..=2) => format!("({} + {} % 100)", e(Ty::Date), e(Ty::Int)),
            (Ty::Date, _) => format!("{}::date", e(Ty::StampTz)),
            (Ty::Stamp, 0..=2) => format!("date_trunc('month', {})", e(Ty::Stamp)),
            (Ty::Stamp, _) => format!("({} AT TIME ZONE 'Asia/Kolkata')", e(Ty::StampTz)),
            (Ty::StampTz, 0..=2) => format!("date_trunc('day', {})", e(Ty::StampTz)),
            (Ty::StampTz, _) => format!("({}::timestamptz + interval '1 hour')", e(Ty::Date)),
            (Ty::Json, 0..=2) => {
                format!(
                    "jsonb_build_object('x', {}, 'y', {})",
                    e(Ty::Int),
                    e(Ty::Text)
                )
            }
            (Ty::Json, _) => format!("({} -> 'b')", e(Ty::Json)),
            (Ty::Ints, 0..=2) => format!("ARRAY[{}, {}]", e(Ty::Int), e(Ty::Int)),
            (Ty::Ints, _) => format!("({} || {})", e(Ty::Ints), e(Ty::Int)),
            (Ty::Bytes, _) => format!("decode(md5({}), 'hex')", e(Ty::Text)),
            (Ty::Uuid, _) => format!("md5({})::uuid", e(Ty::Text)),
            (Ty::Range, _) => format!("({} * int4range(-5, 30))", e(Ty::Range)),
            (Ty::Mood, _) => e(Ty::Mood),
        }
    }

    /// A condition on a column by which tables are partitioned, whose other side is known when the query
    /// is planned, when it starts, or when a subquery has run.
    pub fn key_condition(&mut self, visible: &[Visible]) -> Option<String> {
        let is_key =
            |column: &&Visible| column.name.ends_with(".id") || column.name.ends_with(".k");
        let keys: Vec<&Visible> = visible.iter().filter(is_key).collect();
        if keys.is_empty() {
            return None;
        }
        let key = &keys[self.rng.usize(..keys.len())].name;
        let value = format!("{} * {}", self.literal(Ty::Int), self.pick(&["1", "15"]));
        let value = match self.rng.usize(..4) {
            0 => format!("(SELECT {value})"),
            1 => format!("({value} + extract(epoch FROM now() - now())::int)"),
            _ => value,
        };
        Some(format!(
            "{key} {} {value}",
            self.pick(&["<", ">=", "=", "<>"])
        ))
    }

    /// A boolean expression.
    pub fn condition(&mut self, visible: &[Visible], depth: u32) -> String {
        format!("({})", self.bare_condition(visible, depth))
    }

    fn bare_condition(&mut self, visible: &[Visible], depth: u32) -> String {
        let d = depth.saturating_sub(1);
        // Of a column's type: conditions on constants alone are true or false at once.
        let ty = match self.column_type(visible) {
            Some(ty) if !self.one_in(20) => ty,
            _ => self.ty(),
        };
        let choice = self.rng.usize(..if depth == 0 { 9 } else { 16 });
        let operator = self.pick(&["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM"]);
        match choice {
            0..=3 => {
                let (a, b) = (
                    self.expression(ty, visible, d),
                    self.expression(ty, visible, d),
                );
                format!("{a} {operator} {b}")
            }
            4 => {
                let not = self.pick(&["", "NOT "]);
                format!("{} IS {not}NULL", self.expression(ty, visible, d))
            }
            5 => {
                let (a, b, c) = (
                    self.expression(ty, visible, d),
                    self.literal(ty),
                    self.literal(ty),
                );
                format!("{a} BETWEEN {b} AND {c}")
            }
            6 => {
                let not = self.pick(&["", "NOT "]);
                let a = self.expression(ty, visible, d);
                let list: Vec<String> = (0..self.rng.usize(1..12))
                    .map(|_| self.literal(ty))
                    .collect();
                format!("{a} {not}IN ({})", list.join(", "))
            }
            7 => {
                let pattern = self.pick(&["a%", "%c%", "_1%", "%", "e4_"]);
                let word = self.pick(&["LIKE", "NOT LIKE", "ILIKE", "~"]);
                format!(
                    "{} {word} '{pattern}'",
                    self.expression(Ty::Text, visible, d)
                )
            }
            8 => format!(
                "{} % 3 = {}",
                self.expression(Ty::Int, visible, d),
                self.rng.u8(..3)
            ),
            9 | 10 => {
                let word = self.pick(&["AND", "AND", "OR"]);
                let (a, b) = (self.condition(visible, d), self.condition(visible, d));
                format!("{a} {word} {b}")
            }
            11 => format!("NOT {}", self.condition(visible, d)),
            12 => {
                let (a, b) = (
                    self.expression(Ty::Int, visible, d),
                    self.expression(Ty::Text, visible, d),
                );
                format!("({a}, {b}) {} (10, 'b')", self.pick(&["<", ">=", "="]))
            }
            13 => {
                let a = self.expression(Ty::Int, visible, d);
                format!("{a} = ANY ({})", self.expression(Ty::Ints, visible, d))
            }
            14 => self.membership(visible),
            _ => {
                let (a, b) = (
                    self.expression(Ty::Range, visible, d),
                    self.expression(Ty::Range, visible, d),
                );
                format!("{a} {} {b}", self.pick(&["&&", "@>", "<<"]))
            }
        }
    }

    fn column_type(&mut self, visible: &[Visible]) -> Option<Ty> {
        (!visible.is_empty()).then(|| visible[self.rng.usize(..visible.len())].ty)
    }

    /// `IN` or `EXISTS` over another table.
    fn membership(&mut self, visible: &[Visible]) -> String {
        let (table, alias, columns) = self.table();
        let not = self.pick(&["", "NOT "]);
        let filter = self.condition(&columns, 1);
        let key = self.pick(&["id", "k"]);
        let outer = self.expression(Ty::Int, visible, 0);
        if self.rng.bool() {
            format!(
                "{outer} {not}IN (SELECT {alias}.{key} FROM {table} {alias} WHERE {filter}{})",
                if not.is_empty() {
                    String::new()
                } else {
                    format!(" AND {alias}.{key} IS NOT NULL")
                }
            )
        } else {
            format!(
                "{not}EXISTS (SELECT FROM {table} {alias} WHERE {alias}.{key} = {outer} AND {filter})"
            )
        }
    }

    /// A subquery of one row, correlated at times.
    fn scalar_subquery(&mut self, ty: Ty, visible: &[Visible]) -> String {
        let (table, alias, columns) = self.table();
        let filter = self.condition(&columns, 1);
        let correlation = if self.one_in(3) {
            format!(" AND {alias}.id = {}", self.expression(Ty::Int, visible, 0))
        } else {
            String::new()
        };
        let value = self.expression(ty, &columns, 1);
        let aggregate = match ty {
            Ty::Bool => format!("bool_or({value})"),
            Ty::Json | Ty::Bytes | Ty::Uuid | Ty::Range => {
                format!("(array_agg({value} ORDER BY {value}))[1]")
            }
            _ => format!("{}({value})", self.pick(&["max", "min"])),
        };
        format!("(SELECT {aggregate} FROM {table} {alias} WHERE {filter}{correlation})")
    }

    /// A table, a new alias for it, and its columns under that.
    pub fn table(&mut self) -> (String, String, Vec<Visible>) {
        let table = &self.schema.tables[self.rng.usize(..self.schema.tables.len())];
        let alias = self.alias('r');
        let columns = table
            .columns
            .iter()
            .map(|column| Visible {
                name: format!("{alias}.{}", column.name),
                ty: column.ty,
            })
            .collect();
        (table.name.clone(), alias, columns)
    }

    /// An aggregate and the type of its result.
    pub fn aggregate(&mut self, visible: &[Visible]) -> (String, Ty) {
        let d = 1;
        let filter = if self.one_in(4) {
            format!(" FILTER (WHERE {})", self.condition(visible, d))
        } else {
            String::new()
        };
        let ty = match self.column_type(visible) {
            Some(ty) => ty,
            None => Ty::Int,
        };
        let distinct = if self.one_in(5) { "DISTINCT " } else { "" };
        let plain = |call: String, ty: Ty| (String::new(), call, String::new(), ty);
        let numeric = |call: String| {
            (
                String::new(),
                call,
                String::from("::numeric(14,2)"),
                Ty::Num,
            )
        };
        let (before, call, after, result) = match self.rng.usize(..14) {
            0 | 1 => plain(String::from("count(*)"), Ty::Big),
            2 => {
                let value = self.expression(ty, visible, d);
                plain(format!("count({distinct}{value})"), Ty::Big)
            }
            3 => plain(
                format!("sum({distinct}{})", self.expression(Ty::Int, visible, d)),
                Ty::Big,
            ),
            4 => numeric(format!("sum({})", self.expression(Ty::Num, visible, d))),
            5 => {
                let call = format!("sum({})", self.expression(Ty::Float, visible, d));
                // No negative zero.
                (String::from("("), call, String::from(" + 0)"), Ty::Float)
            }
            6 => numeric(format!("avg({})", self.expression(Ty::Int, visible, d))),
            7 => numeric(format!("stddev({})", self.expression(Ty::Num, visible, d))),
            8 => {
                let value = self.expression(Ty::Text, visible, d);
                let call = format!("string_agg({distinct}{value}, ',' ORDER BY {value})");
                plain(call, Ty::Text)
            }
            9 => {
                let value = self.expression(Ty::Int, visible, d);
                plain(format!("array_agg({value} ORDER BY {value})"), Ty::Ints)
            }
            10 => plain(
                format!("bool_and({})", self.condition(visible, d)),
                Ty::Bool,
            ),
            _ => {
                let ty = match ty {
                    Ty::Bool | Ty::Json | Ty::Bytes | Ty::Uuid | Ty::Range => Ty::Stamp,
                    other => other,
                };
                let word = self.pick(&["min", "max"]);
                plain(format!("{word}({})", self.expression(ty, visible, d)), ty)
            }
        };
        (format!("{before}{call}{filter}{after}"), result)
    }
}
