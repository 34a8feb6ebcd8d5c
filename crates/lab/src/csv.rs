//! Comma-separated values (RFC 4180) of JSON values.

use serde_json::Value;

/// Returns a line with its line feed. Absent values are empty fields.
pub(crate) fn line<'a>(cells: impl IntoIterator<Item = &'a Value>) -> String {
    cells.into_iter().map(field).collect::<Vec<_>>().join(",") + "\n"
}

fn field(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_quoted_if_necessary() {
        let cells = json!([1, 0.5, null, "plain", "a,b", "say \"x\"", "two\nlines", [1, 2]]);
        assert_eq!(
            line(cells.as_array().unwrap()),
            "1,0.5,,plain,\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",\"[1,2]\"\n"
        );
    }
}
