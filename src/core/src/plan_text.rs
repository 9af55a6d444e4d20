//! Is a text a whole plan in PostgreSQL's `nodeToString` form?
//!
//! PostgreSQL's reader trusts its text: one that ends early makes it read a null pointer. So the
//! outline is checked before: one node, all brackets closed in order, nothing after it, and in each
//! node a label and named fields. What the fields mean is not looked at.

/// What is wrong with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the plan is not a statement")]
    NoStatement,
    #[error("the plan has a zero byte")]
    ZeroByte,
    #[error("the plan's brackets do not match at byte {0}")]
    Bracket(usize),
    #[error("the plan has a node without label or fields at byte {0}")]
    Node(usize),
    #[error("the plan ends early")]
    Truncated,
    #[error("something follows the plan at byte {0}")]
    Trailing(usize),
}

const ROOT: &[u8] = b"{PLANNEDSTMT ";

/// Checks a text; see the module comment.
pub fn check(text: &[u8]) -> Result<(), Malformed> {
    if text.contains(&0) {
        return Err(Malformed::ZeroByte);
    }
    if !text.starts_with(ROOT) {
        return Err(Malformed::NoStatement);
    }
    let mut open = Vec::new();
    let tokens = Tokens { text, at: 0 };
    // What the next token must be: a label, then a field.
    let (mut label, mut field) = (false, false);
    for (at, token) in tokens {
        if at > 0 && open.is_empty() {
            return Err(Malformed::Trailing(at));
        }
        if label {
            let letter = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'_';
            if !token.iter().all(letter) {
                return Err(Malformed::Node(at));
            }
            (label, field) = (false, true);
            continue;
        }
        if std::mem::take(&mut field) && !(token.starts_with(b":") || token == b"}") {
            return Err(Malformed::Node(at));
        }
        match token {
            b"{" | b"(" => open.push(token[0]),
            b"}" if open.pop() != Some(b'{') => return Err(Malformed::Bracket(at)),
            b")" if open.pop() != Some(b'(') => return Err(Malformed::Bracket(at)),
            _ => {}
        }
        label = token == b"{";
    }
    match open.is_empty() {
        true => Ok(()),
        false => Err(Malformed::Truncated),
    }
}

/// As `pg_strtok` of read.c: words between white space, brackets alone, a backslash takes the next
/// byte along.
struct Tokens<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = (usize, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\t');
        let bracket = |byte: u8| matches!(byte, b'(' | b')' | b'{' | b'}');
        let rest = self.text.get(self.at..)?;
        let start = self.at + rest.iter().position(|byte| !space(byte))?;
        let mut end = start;
        while let Some(byte) = self.text.get(end) {
            if bracket(*byte) || space(byte) {
                break;
            }
            end += if *byte == b'\\' && end + 1 < self.text.len() {
                2
            } else {
                1
            };
        }
        let end = end.max(start + 1);
        self.at = end;
        Some((start, &self.text[start..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &[u8] = b"{PLANNEDSTMT :commandType 1 :planTree {SEQSCAN :qual ({OPEXPR :args \
        ({CONST :constvalue 4 [ 1 0 0 0 ]} {VAR :varno 1})} <>) :name a\\ b\\}c} :ids (b 1 2) \
        :nothing {EMPTY}}";

    #[test]
    fn a_whole_plan_passes() {
        assert_eq!(check(PLAN), Ok(()));
    }

    #[test]
    fn every_beginning_of_a_plan_is_refused() {
        for length in 0..PLAN.len() {
            assert!(check(&PLAN[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        let edited = |from: &str, to: &str| {
            let text = std::str::from_utf8(PLAN).unwrap();
            assert!(text.contains(from));
            check(text.replacen(from, to, 1).as_bytes())
        };
        assert_eq!(check(b"(1 2 3)"), Err(Malformed::NoStatement));
        assert_eq!(edited("varno", "var\0no"), Err(Malformed::ZeroByte));
        assert!(matches!(edited("<>)", "<>}"), Err(Malformed::Bracket(_))));
        assert!(matches!(
            edited("{SEQSCAN :qual", "{:qual"),
            Err(Malformed::Node(_))
        ));
        assert!(matches!(
            edited("{VAR :varno 1}", "{VAR 1}"),
            Err(Malformed::Node(_))
        ));
        assert!(matches!(
            edited("{EMPTY}}", "{EMPTY}} 1"),
            Err(Malformed::Trailing(_))
        ));
    }
}
