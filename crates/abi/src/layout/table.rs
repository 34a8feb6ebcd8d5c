//! The table of the layout, built by the types themselves.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

/// Fields of a type or variant: name and type of each.
pub(super) type LayoutFields = Vec<(&'static str, String)>;

/// Layout of all types that the contract uses, each after the types that it contains.
#[derive(Clone, Debug, Default)]
pub struct LayoutTable {
    known: Vec<&'static str>,
    types: Vec<TypeLayout>,
}

#[derive(Clone, Debug)]
struct TypeLayout {
    name: &'static str,
    kind: TypeLayoutKind,
}

#[derive(Clone, Debug)]
enum TypeLayoutKind {
    Fields(LayoutFields),
    Variants(Vec<(u8, &'static str, LayoutFields)>),
}

impl LayoutTable {
    /// Returns true if a type is not in the table yet; the caller adds it.
    pub(super) fn begin(&mut self, name: &'static str) -> bool {
        let new = !self.known.contains(&name);
        if new {
            self.known.push(name);
        }
        new
    }

    pub(super) fn add_fields(&mut self, name: &'static str, fields: LayoutFields) {
        self.types.push(TypeLayout { name, kind: TypeLayoutKind::Fields(fields) });
    }

    pub(super) fn add_variants(
        &mut self,
        name: &'static str,
        variants: Vec<(u8, &'static str, LayoutFields)>,
    ) {
        self.types.push(TypeLayout { name, kind: TypeLayoutKind::Variants(variants) });
    }

    /// Returns the table as text: a line for each type with fields, and for an enumeration a line
    /// for each variant.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for TypeLayout { name, kind } in &self.types {
            match kind {
                TypeLayoutKind::Fields(fields) => write_line(&mut text, name, fields),
                TypeLayoutKind::Variants(variants) => {
                    let _ = writeln!(text, "{name}");
                    for (tag, variant, fields) in variants {
                        write_line(&mut text, &alloc::format!("  {tag} {variant}"), fields);
                    }
                }
            }
        }
        text
    }

    /// Returns a number that differs between layouts: FNV-1a of the text.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        base::fnv1a(self.to_text().as_bytes())
    }
}

/// Writes a name and its fields, with lines of at most 100 columns.
fn write_line(text: &mut String, name: &str, fields: &LayoutFields) {
    let mut line = String::from(name);
    for (index, (field, of)) in fields.iter().enumerate() {
        let part = alloc::format!("{field} {of}");
        let between = if index == 0 { ": " } else { ", " };
        if line.len() + between.len() + part.len() > 98 {
            line.push_str(between.trim_end());
            text.push_str(&line);
            text.push('\n');
            line = String::from("      ");
            line.push_str(&part);
        } else {
            line.push_str(between);
            line.push_str(&part);
        }
    }
    text.push_str(&line);
    text.push('\n');
}
