//! Sequence diagrams as SVG.
//!
//! Called by `diagrams`. Understands `participant X as text`, `A->>B: text`, `A-->>B: text` and
//! `Note over A,B: text`.

use std::fmt::Write as _;

/// Distance of two participants' lines, and of two messages.
const COLUMN: usize = 190;
const ROW: usize = 34;
/// Height of the row of participants.
const HEAD: usize = 44;

/// Draws a sequence diagram.
///
/// # Errors
/// Reports a line that is not understood.
pub(super) fn draw(lines: &[&str]) -> Result<String, String> {
    let mut names: Vec<(String, String)> = Vec::new();
    let mut rows = Vec::new();
    for line in lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty()) {
        let unknown = || format!("unknown line: {line}");
        if let Some(rest) = line.strip_prefix("participant ") {
            let (name, text) = rest.split_once(" as ").unwrap_or((rest, rest));
            names.push((name.to_owned(), text.to_owned()));
            continue;
        }
        let (left, text) = line.split_once(':').ok_or_else(unknown)?;
        let index = |name: &str| names.iter().position(|(n, _)| n == name.trim());
        if let Some(over) = left.strip_prefix("Note over ") {
            let (a, b) = over.split_once(',').unwrap_or((over, over));
            let ends = (index(a).ok_or_else(unknown)?, index(b).ok_or_else(unknown)?);
            rows.push((ends, text.trim(), "note"));
            continue;
        }
        let (kind, arrow) =
            if left.contains("-->>") { ("dashed", "-->>") } else { ("solid", "->>") };
        let (a, b) = left.split_once(arrow).ok_or_else(unknown)?;
        rows.push((
            (index(a).ok_or_else(unknown)?, index(b).ok_or_else(unknown)?),
            text.trim(),
            kind,
        ));
    }
    Ok(svg(&names, &rows))
}

fn svg(names: &[(String, String)], rows: &[((usize, usize), &str, &str)]) -> String {
    let at = |index: usize| index * COLUMN + COLUMN / 2;
    // A message of the last participant to itself has its text to the right.
    let (width, height) = (names.len() * COLUMN + COLUMN / 2, HEAD + (rows.len() + 1) * ROW);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-size=\"12\">\n"
    );
    for (index, (_, text)) in names.iter().enumerate() {
        let x = at(index);
        let _ = writeln!(
            out,
            "<line x1=\"{x}\" y1=\"{HEAD}\" x2=\"{x}\" y2=\"{height}\" stroke-opacity=\"0.4\"/>\n\
             <rect class=\"box\" x=\"{}\" y=\"8\" width=\"{}\" height=\"28\" rx=\"5\"/>\n\
             <text x=\"{x}\" y=\"26\" text-anchor=\"middle\">{}</text>",
            x - COLUMN * 9 / 20,
            COLUMN * 9 / 10,
            escaped(text)
        );
    }
    for (row, ((from, to), text, kind)) in rows.iter().enumerate() {
        let y = HEAD + (row + 1) * ROW - 8;
        let (a, b) = (at(*from), at(*to));
        let dash = if *kind == "dashed" { " stroke-dasharray=\"4 3\"" } else { "" };
        let _ = match (*kind, a == b) {
            ("note", _) => writeln!(
                out,
                "<text x=\"{}\" y=\"{y}\" text-anchor=\"middle\" font-style=\"italic\">{}</text>",
                (a + b) / 2,
                escaped(text)
            ),
            (_, true) => writeln!(
                out,
                "<polyline fill=\"none\" points=\"{a},{} {},{} {},{y} {},{y}\"/>\n\
                 <polygon class=\"arrow\" points=\"{a},{y} {},{} {},{}\"/>\n\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                y - 14,
                a + 22,
                y - 14,
                a + 22,
                a + 7,
                a + 8,
                y - 4,
                a + 8,
                y + 4,
                a + 28,
                y - 3,
                escaped(text)
            ),
            (_, false) => {
                let tip = if a < b { b - 8 } else { b + 8 };
                writeln!(
                    out,
                    "<line x1=\"{a}\" y1=\"{y}\" x2=\"{tip}\" y2=\"{y}\"{dash}/>\n\
                     <polygon class=\"arrow\" points=\"{b},{y} {tip},{} {tip},{}\"/>\n\
                     <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                    y - 4,
                    y + 4,
                    (a + b) / 2,
                    y - 6,
                    escaped(text)
                )
            }
        };
    }
    out + "</svg>"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_arrows() {
        let svg = draw(&["participant A as a & b", "participant B", "A->>B: x", "B-->>A: y"]);
        let svg = svg.unwrap();
        assert_eq!(svg.matches("<polygon").count(), 2);
        assert!(svg.contains("a &amp; b") && svg.contains("stroke-dasharray"), "{svg}");
        assert!(draw(&["A->>B: undeclared"]).is_err());
    }
}
