//! SQL with named parameters, `:user_id`, made into what databases take: `$1`.

/// One statement. What stands in quotes and comments is not looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    text: String,
    /// `$1` is the first of these.
    names: Vec<String>,
}

impl Statement {
    pub fn parse(source: &str) -> Result<Self, String> {
        let (mut text, mut names) = (String::new(), Vec::<String>::new());
        let mut rest = source.trim().trim_end_matches(';').trim_end();
        if rest.is_empty() {
            return Err("is empty".to_owned());
        }
        while let Some(first) = rest.chars().next() {
            let length = match first {
                '\'' | '"' | '`' => 1 + closing(&rest[1..], &first.to_string())?,
                '-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
                '/' if rest.starts_with("/*") => 2 + closing(&rest[2..], "*/")?,
                ':' if rest.starts_with("::") => 2,
                ':' if rest[1..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') => {
                    let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
                    let end = rest[1..].find(is_end).map_or(rest.len(), |end| end + 1);
                    let name = &rest[1..end];
                    let place = names.iter().position(|known| known == name).unwrap_or_else(|| {
                        names.push(name.to_owned());
                        names.len() - 1
                    });
                    text.push_str(&format!("${}", place + 1));
                    rest = &rest[end..];
                    continue;
                }
                '$' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                    return Err("has a numbered parameter; they are written :name".to_owned());
                }
                ';' => return Err("must be one statement".to_owned()),
                other => other.len_utf8(),
            };
            text.push_str(&rest[..length]);
            rest = &rest[length..];
        }
        Ok(Self { text, names })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

/// Where what was opened ends. A quote that is written twice closes and opens again.
fn closing(rest: &str, what: &str) -> Result<usize, String> {
    rest.find(what).map(|at| at + what.len()).ok_or_else(|| format!("has no closing {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_numbers_and_one_name_one_number() {
        let statement = Statement::parse("UPDATE p SET a = :a, b = :b_2 WHERE id = :a::uuid ; ").unwrap();
        assert_eq!(statement.text(), "UPDATE p SET a = $1, b = $2 WHERE id = $1::uuid");
        assert_eq!(statement.names().collect::<Vec<_>>(), ["a", "b_2"]);
    }

    #[test]
    fn what_is_quoted_is_left_alone() {
        let sql =
            "SELECT ':no', 'it''s :no', \":no\", x::text -- :no; ?\nFROM p /* :no */ WHERE t = '12:30' AND y = :yes";
        let statement = Statement::parse(sql).unwrap();
        assert_eq!(statement.names().collect::<Vec<_>>(), ["yes"]);
        assert_eq!(statement.text(), sql.replace(":yes", "$1"));
    }

    #[test]
    fn more_than_one_statement_is_refused() {
        for sql in ["", " ; ", "SELECT 1; DROP TABLE p", "SELECT 'open", "SELECT $1", "SELECT /* open"] {
            assert!(Statement::parse(sql).is_err(), "{sql}");
        }
        assert!(Statement::parse("SELECT ';' -- ;").is_ok());
    }
}
