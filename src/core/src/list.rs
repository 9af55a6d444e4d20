//! Lists of names in a setting, as PostgreSQL writes them: separated by commas, and quoted where a name
//! has characters of its own.

/// The names: unquoted ones in lower case, empty ones left out.
pub fn names(list: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut name = String::new();
    let mut quoted = false;
    let mut rest = list.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '"' if quoted && rest.next_if_eq(&'"').is_some() => name.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => names.push(std::mem::take(&mut name)),
            _ if quoted => name.push(character),
            _ if character.is_whitespace() => {}
            _ => name.extend(character.to_lowercase()),
        }
    }
    names.push(name);
    names.retain(|name| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn a_list_is_cut_at_commas_outside_quotes() {
        assert_eq!(names(""), [""; 0]);
        assert_eq!(names(" , ,"), [""; 0]);
        assert_eq!(
            names("PG_Trgm,hstore , citext"),
            ["pg_trgm", "hstore", "citext"]
        );
        assert_eq!(
            names(r#""uuid-ossp", "A ""b"", c""#),
            ["uuid-ossp", "A \"b\", c"]
        );
        assert_eq!(names("\"open, "), ["open, "]);
    }
}
