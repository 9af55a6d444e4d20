//! Random queries whose rows, as a multiset, the data determine; and smaller ones like them.

use std::fmt::Write as _;

use super::expression::{Maker, Visible};
use super::schema::Ty;

/// An output column.
#[derive(Clone, Debug)]
pub struct Item {
    pub text: String,
    pub ty: Ty,
}

/// A SELECT in parts that can be left out one by one.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Name, text and MATERIALIZED or not.
    with: Vec<(String, Query, &'static str)>,
    distinct: bool,
    items: Vec<Item>,
    from: String,
    joins: Vec<String>,
    filters: Vec<String>,
    groups: Vec<String>,
    /// How the groups are combined: `ROLLUP`, `CUBE`, `GROUPING SETS` or nothing.
    grouping: &'static str,
    having: Vec<String>,
    /// `UNION ALL` and the like, with queries of the same columns.
    sets: Vec<(&'static str, Query)>,
    /// Direction of each column of a total order; empty for none.
    order: Vec<&'static str>,
    limit: Option<(u32, u32)>,
}

impl Query {
    /// A query with these columns, or any if there are none.
    pub fn generate(maker: &mut Maker, wanted: &[Ty], depth: u32) -> Query {
        let mut query = Query::default();
        let mut visible = Vec::new();
        query.relations(maker, &mut visible, depth);
        for _ in 0..maker.rng.usize(..3) {
            query.filters.push(maker.condition(&visible, 2));
        }
        if maker.one_in(4) {
            query.filters.extend(maker.key_condition(&visible));
        }
        let types: Vec<Ty> = if wanted.is_empty() {
            (0..maker.rng.usize(1..5)).map(|_| maker.ty()).collect()
        } else {
            wanted.to_vec()
        };
        match maker.rng.usize(..8) {
            0..=2 => query.plain(maker, &types, &visible),
            3 if wanted.is_empty() => query.windows(maker, &visible),
            _ if wanted.is_empty() => query.aggregate(maker, &visible),
            _ => query.plain(maker, &types, &visible),
        }
        if depth > 0 && maker.one_in(6) {
            query.add_sets(maker, depth);
        }
        if maker.one_in(4) {
            query.order = (0..query.items.len())
                .map(|_| ["", " DESC", " NULLS FIRST", " DESC NULLS LAST"][maker.rng.usize(..4)])
                .collect();
            if maker.rng.bool() {
                query.limit = Some((maker.rng.u32(..40), maker.rng.u32(..3) * 5));
            }
        }
        query
    }

    /// FROM, with what its relations offer.
    fn relations(&mut self, maker: &mut Maker, visible: &mut Vec<Visible>, depth: u32) {
        let (from, columns) = self.relation(maker, visible, depth, true);
        self.from = from;
        visible.extend(columns);
        for _ in 0..[0, 0, 0, 1, 1, 2][maker.rng.usize(..6)] {
            let kind =
                ["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"][maker.rng.usize(..5)];
            let (text, columns) = self.relation(maker, visible, depth, false);
            let key = &columns[0].name;
            let ints: Vec<String> = visible
                .iter()
                .filter(|column| column.ty == Ty::Int)
                .map(|column| column.name.clone())
                .collect();
            let other = &ints[maker.rng.usize(..ints.len())];
            let mut condition = format!("{other} = {key}");
            if kind != "FULL JOIN" && maker.one_in(4) {
                let mut both = visible.clone();
                both.extend(columns.iter().cloned());
                write!(condition, " AND {}", maker.condition(&both, 1)).expect("a String takes it");
            }
            self.joins.push(format!("{kind} {text} ON {condition}"));
            visible.extend(columns);
        }
        if maker.one_in(12) {
            let alias = maker.alias('g');
            let n = maker.expression(Ty::Int, visible, 0);
            self.joins.push(format!(
                "CROSS JOIN LATERAL generate_series(1, abs({n} % 3)) {alias}(n)"
            ));
            visible.push(Visible {
                name: format!("{alias}.n"),
                ty: Ty::Int,
            });
        }
    }

    /// One relation. Its first column is an int; if it is joined to, a unique one.
    fn relation(
        &mut self,
        maker: &mut Maker,
        _outer: &[Visible],
        depth: u32,
        first: bool,
    ) -> (String, Vec<Visible>) {
        let choice = maker.rng.usize(..12);
        if depth == 0 || !first || choice > 3 {
            let (table, alias, columns) = maker.table();
            return (format!("{table} {alias}"), columns);
        }
        let mut types = vec![Ty::Int];
        types.extend((0..maker.rng.usize(1..4)).map(|_| maker.ty()));
        let inner = Query::generate(maker, &types, depth - 1);
        let alias = maker.alias(if choice < 2 { 's' } else { 'w' });
        let names: Vec<String> = (0..types.len()).map(|index| format!("x{index}")).collect();
        let columns = types
            .iter()
            .zip(&names)
            .map(|(ty, name)| Visible {
                name: format!("{alias}.{name}"),
                ty: *ty,
            })
            .collect();
        let heading = format!("{alias}({})", names.join(", "));
        if choice < 2 {
            return (format!("({}) {heading}", inner.sql()), columns);
        }
        let how = ["", "MATERIALIZED ", "NOT MATERIALIZED "][maker.rng.usize(..3)];
        self.with.push((heading, inner, how));
        (alias, columns)
    }

    fn plain(&mut self, maker: &mut Maker, types: &[Ty], visible: &[Visible]) {
        for ty in types {
            let text = maker.expression(*ty, visible, 2);
            self.items.push(Item { text, ty: *ty });
        }
        self.distinct = maker.one_in(6);
    }

    fn aggregate(&mut self, maker: &mut Maker, visible: &[Visible]) {
        self.grouping = match maker.rng.usize(..8) {
            0 => "ROLLUP",
            1 => "CUBE",
            2 => "GROUPING SETS",
            _ => "",
        };
        for _ in 0..[0, 0, 1, 1, 2][maker.rng.usize(..5)] {
            let ty = maker.ty();
            // Where a set leaves a constant out, some of PostgreSQL 15's plans show it all the same, and
            // others NULL, as they should.
            let group = match self.grouping {
                "" => Some(maker.expression(ty, visible, 1)),
                _ => maker.column(ty, visible),
            };
            let Some(group) = group else {
                continue;
            };
            // As the item is printed.
            self.groups.push(format!("({group})::{}", ty.sql()));
            self.items.push(Item { text: group, ty });
        }
        for _ in 0..maker.rng.usize(1..4) {
            let (text, ty) = maker.aggregate(visible);
            self.items.push(Item { text, ty });
        }
        if maker.one_in(5) {
            self.having
                .push(format!("count(*) > {}", maker.rng.u8(..4)));
        }
    }

    /// Functions that treat peers alike.
    fn windows(&mut self, maker: &mut Maker, visible: &[Visible]) {
        let ty = maker.ty();
        let text = maker.expression(ty, visible, 1);
        self.items.push(Item { text, ty });
        for _ in 0..maker.rng.usize(1..3) {
            let (a, b) = (maker.ty(), maker.ty());
            let partition = maker.expression(a, visible, 1);
            let order = maker.expression(b, visible, 1);
            let value = maker.expression(Ty::Int, visible, 1);
            let call = match maker.rng.usize(..5) {
                0 => String::from("rank()"),
                1 => String::from("dense_rank()"),
                2 => String::from("count(*)"),
                3 => format!("sum({value})"),
                _ => format!("max({value})"),
            };
            let window = match maker.rng.usize(..3) {
                0 => format!("PARTITION BY {partition}"),
                1 => format!("ORDER BY ({order})"),
                _ => format!("PARTITION BY ({partition}) ORDER BY ({order}) DESC"),
            };
            self.items.push(Item {
                text: format!("{call} OVER ({window})"),
                ty: Ty::Big,
            });
        }
    }

    fn add_sets(&mut self, maker: &mut Maker, depth: u32) {
        let types: Vec<Ty> = self.items.iter().map(|item| item.ty).collect();
        for _ in 0..maker.rng.usize(1..3) {
            let word = [
                "UNION ALL",
                "UNION ALL",
                "UNION",
                "INTERSECT",
                "EXCEPT",
                "EXCEPT ALL",
            ][maker.rng.usize(..6)];
            let other = Query::generate(maker, &types, depth - 1);
            self.sets.push((word, other));
        }
    }

    /// The text.
    pub fn sql(&self) -> String {
        let mut text = String::new();
        if !self.with.is_empty() {
            let parts: Vec<String> = self
                .with
                .iter()
                .map(|(heading, query, how)| format!("{heading} AS {how}({})", query.sql()))
                .collect();
            write!(text, "WITH {} ", parts.join(", ")).expect("a String takes it");
        }
        if self.sets.is_empty() {
            text.push_str(&self.core());
        } else {
            write!(text, "({})", self.core()).expect("a String takes it");
        }
        for (word, query) in &self.sets {
            write!(text, " {word} ({})", query.sql()).expect("a String takes it");
        }
        if !self.order.is_empty() {
            let keys: Vec<String> = self
                .order
                .iter()
                .enumerate()
                .map(|(index, direction)| format!("{}{direction}", index + 1))
                .collect();
            write!(text, " ORDER BY {}", keys.join(", ")).expect("a String takes it");
        }
        if let Some((limit, offset)) = self.limit {
            write!(text, " LIMIT {limit} OFFSET {offset}").expect("a String takes it");
        }
        text
    }

    fn core(&self) -> String {
        let items: Vec<String> = self
            .items
            .iter()
            .map(|item| format!("({})::{}", item.text, item.ty.sql()))
            .collect();
        let mut text = format!(
            "SELECT {}{} FROM {}",
            if self.distinct { "DISTINCT " } else { "" },
            items.join(", "),
            self.from
        );
        for join in &self.joins {
            write!(text, " {join}").expect("a String takes it");
        }
        for (word, parts) in [("WHERE", &self.filters), ("HAVING", &self.having)] {
            if word == "HAVING" && !self.groups.is_empty() {
                let groups = self.groups.join(", ");
                match self.grouping {
                    "" => write!(text, " GROUP BY {groups}"),
                    "GROUPING SETS" => write!(
                        text,
                        " GROUP BY GROUPING SETS (({groups}), ({}), ())",
                        self.groups.join("), (")
                    ),
                    grouping => write!(text, " GROUP BY {grouping} ({groups})"),
                }
                .expect("a String takes it");
            }
            if !parts.is_empty() {
                let parts: Vec<String> = parts.iter().map(|part| format!("({part})")).collect();
                write!(text, " {word} {}", parts.join(" AND ")).expect("a String takes it");
            }
        }
        text
    }

    /// Are its rows in an order that its data determine?
    pub fn is_ordered(&self) -> bool {
        !self.order.is_empty() && self.order.len() == self.items.len()
    }

    /// Every query that is this one with one part left out. Not all of them are valid.
    pub fn smaller(&self) -> Vec<Query> {
        let mut found = Vec::new();
        let mut with = |change: &dyn Fn(&mut Query)| {
            let mut copy = self.clone();
            change(&mut copy);
            found.push(copy);
        };
        for index in 0..self.sets.len() {
            with(&|q| drop(q.sets.remove(index)));
            with(&|q| {
                let (_, query) = q.sets.remove(index);
                *q = query;
            });
        }
        for index in 0..self.joins.len() {
            with(&|q| drop(q.joins.remove(index)));
        }
        for index in 0..self.filters.len() {
            with(&|q| drop(q.filters.remove(index)));
        }
        for index in 0..self.having.len() {
            with(&|q| drop(q.having.remove(index)));
        }
        if self.items.len() > 1 && self.sets.is_empty() {
            for index in 0..self.items.len() {
                with(&|q| {
                    q.items.remove(index);
                    q.order.pop();
                });
            }
        }
        for index in 0..self.groups.len() {
            with(&|q| drop(q.groups.remove(index)));
        }
        if self.distinct {
            with(&|q| q.distinct = false);
        }
        if !self.grouping.is_empty() {
            with(&|q| q.grouping = "");
        }
        if self.limit.is_some() {
            with(&|q| q.limit = None);
        } else if !self.order.is_empty() {
            with(&|q| q.order.clear());
        }
        for index in 0..self.with.len() {
            with(&|q| drop(q.with.remove(index)));
            with(&|q| {
                let (_, query, _) = q.with.remove(index);
                *q = query;
            });
            for smaller in self.with[index].1.smaller() {
                with(&|q| q.with[index].1 = smaller.clone());
            }
        }
        found
    }
}
