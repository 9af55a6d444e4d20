//! The differential oracle: the same query with replicas off and on, in one snapshot.

use postgres::error::DbError;
use postgres::{Client, Error};

use crate::rows::Rows;

/// How the second run uses replicas; the values of `enable_parallel_replicas`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// Falls back silently when replicas cannot be used.
    Allowed = 1,
    /// Any reason not to use replicas is an error.
    Forced = 2,
}

/// An error as a client is told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Five letters.
    pub sqlstate: String,
    /// Primary message.
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    /// Without the line that PostgreSQL adds where a parallel worker has met it.
    pub context: Option<String>,
}

impl From<&DbError> for Told {
    fn from(error: &DbError) -> Self {
        let context = error.where_().map(|text| {
            let lines = text.lines().filter(|line| *line != "parallel worker");
            lines.collect::<Vec<_>>().join("\n")
        });
        Self {
            sqlstate: String::from(error.code().code()),
            message: String::from(error.message()),
            detail: error.detail().map(String::from),
            hint: error.hint().map(String::from),
            context: context.filter(|text| !text.is_empty()),
        }
    }
}

/// One comparison of a query with itself under two settings.
///
/// Both runs happen in one REPEATABLE READ transaction, so concurrent writers cannot cause a
/// difference. The transaction is rolled back.
pub struct Differential<'a> {
    client: &'a mut Client,
    before: Vec<String>,
    first: String,
    second: String,
    ordered: bool,
}

impl<'a> Differential<'a> {
    /// Compares `enable_parallel_replicas = 0` with `= 2`.
    pub fn new(client: &'a mut Client) -> Self {
        let mut this = Self {
            client,
            before: Vec::new(),
            first: String::from("SET LOCAL enable_parallel_replicas = 0"),
            second: String::new(),
            ordered: false,
        };
        this.second = Self::replicas_setting(Replicas::Forced);
        this
    }

    fn replicas_setting(replicas: Replicas) -> String {
        format!("SET LOCAL enable_parallel_replicas = {}", replicas as i32)
    }

    /// How the second run uses replicas.
    pub fn replicas(mut self, replicas: Replicas) -> Self {
        self.second = Self::replicas_setting(replicas);
        self
    }

    /// A statement that is run before both runs, in their transaction.
    pub fn before(mut self, statement: &str) -> Self {
        self.before.push(String::from(statement));
        self
    }

    /// Two statements in place of those that set `enable_parallel_replicas`.
    pub fn between(mut self, first: &str, second: &str) -> Self {
        self.first = String::from(first);
        self.second = String::from(second);
        self
    }

    /// Demands the same order of rows too. The query must have a total order.
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Panics unless both runs give the same rows; returns them.
    #[track_caller]
    pub fn check(self, query: &str) -> Rows {
        match self.compare(query) {
            Ok((rows, None)) => rows,
            Ok((_, Some(difference))) => panic!("the result differs: {difference}\n{query}"),
            Err((setting, error)) => panic!("failed after {setting}: {error:?}\n{query}"),
        }
    }

    /// The rows of the first run and how those of the second differ, or the setting under which
    /// the query failed and its error.
    pub fn compare(self, query: &str) -> Result<(Rows, Option<String>), (String, Error)> {
        let begin = String::from("BEGIN ISOLATION LEVEL REPEATABLE READ");
        let outcome = (|| {
            for statement in [&begin].into_iter().chain(&self.before) {
                self.client
                    .batch_execute(statement)
                    .map_err(|e| (statement.clone(), e))?;
            }
            let mut run = |setting: &String| {
                self.client
                    .batch_execute(setting)
                    .and_then(|()| Rows::fetch(self.client, query))
                    .map_err(|error| (setting.clone(), error))
            };
            let first = run(&self.first)?;
            let second = run(&self.second)?;
            let difference = first.difference(&second, self.ordered);
            Ok((first, difference))
        })();
        // After a lost connection there is nothing to roll back.
        let _ = self.client.batch_execute("ROLLBACK");
        outcome
    }

    /// Panics unless both runs, each in a transaction of its own, fail with the same error;
    /// returns it.
    #[track_caller]
    pub fn check_same_error(self, query: &str) -> Told {
        let mut errors = Vec::new();
        for setting in [&self.first, &self.second] {
            let script = format!("BEGIN; {}; {setting}", self.before.join("; "));
            self.client
                .batch_execute(&script)
                .expect("the settings can be made");
            let error = match Rows::fetch(self.client, query) {
                Ok(_) => panic!("succeeded after {setting}, an error was expected\n{query}"),
                Err(error) => error,
            };
            let Some(error) = error.as_db_error() else {
                panic!("failed after {setting}: {error:?}\n{query}");
            };
            errors.push(Told::from(error));
            self.client
                .batch_execute("ROLLBACK")
                .expect("a failed transaction can be left");
        }
        assert_eq!(errors[0], errors[1], "the error differs\n{query}");
        errors.swap_remove(0)
    }
}
