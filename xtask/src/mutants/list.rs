//! The list of faults: `xtask/faults/*.toml`.
//!
//! An entry contains the code that it changes; the part that is replaced stands between `«` and
//! `»`, or is all of it (see `xtask/faults/README.md`). The code must occur exactly once in the
//! crate, outside tests, in any file.

use serde::Deserialize;

use crate::tree;

const FOLDER: &str = "xtask/faults/";

/// An entry of the list.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct PlantedFault {
    /// Name by which the fault is switched on.
    pub(crate) name: String,
    /// Short description of its effect.
    pub(crate) what: String,
    /// Folder of the crate below `crates`.
    #[serde(rename = "crate")]
    pub(crate) krate: String,
    /// Present code.
    pub(crate) code: String,
    /// The code that replaces the marked part.
    pub(crate) faulty: String,
    /// Arguments of `cargo test` for the test that finds it; `None` if the simulator does.
    pub(crate) test: Option<String>,
    /// Area of the product, from the head of the list file.
    #[serde(skip)]
    pub(crate) area: String,
    /// List file that contains the entry.
    #[serde(skip)]
    pub(crate) listed_in: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    area: String,
    fault: Vec<PlantedFault>,
}

/// A test, written as `-p PACKAGE --lib|--test FILE NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FaultTest {
    /// The package.
    pub(crate) package: String,
    /// Test file below `tests` without `.rs`; `None` for a unit test.
    pub(crate) file: Option<String>,
    /// Path of the test function.
    pub(crate) name: String,
}

impl PlantedFault {
    /// Returns the test that finds the fault; `None` if the simulator does.
    ///
    /// # Errors
    /// Reports a test that is not written in the required form.
    pub(crate) fn test(&self) -> Result<Option<FaultTest>, String> {
        let Some(text) = &self.test else { return Ok(None) };
        let words: Vec<&str> = text.split_whitespace().collect();
        let (package, file, name) = match words.as_slice() {
            ["-p", package, "--lib", name] => (package, None, name),
            ["-p", package, "--test", file, name] => (package, Some((*file).to_owned()), name),
            _ => return Err(format!("`{text}` is not `-p PACKAGE --lib|--test FILE NAME`")),
        };
        Ok(Some(FaultTest { package: (*package).to_owned(), file, name: (*name).to_owned() }))
    }
}

/// Reads all list files.
///
/// # Errors
/// Reports a file that cannot be read or is not a list.
pub(crate) fn read(files: &[String]) -> Result<Vec<PlantedFault>, String> {
    let mut faults = Vec::new();
    let is_list = |path: &&String| path.starts_with(FOLDER) && path.ends_with(".toml");
    for path in files.iter().filter(is_list) {
        faults.extend(parse(path, &tree::read(path)?)?);
    }
    Ok(faults)
}

fn parse(path: &str, text: &str) -> Result<Vec<PlantedFault>, String> {
    let File { area, mut fault } = toml::from_str(text).map_err(|e| format!("{path}: {e}"))?;
    for fault in &mut fault {
        area.clone_into(&mut fault.area);
        path.clone_into(&mut fault.listed_in);
    }
    Ok(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "area = 'x'\n[[fault]]\nname = 'n'\nwhat = 'w'\ncrate = 'nic'\n\
                         code = 'a'\nfaulty = 'b'\n";

    #[test]
    fn an_entry_knows_its_area_and_its_test() {
        let text = format!("{ENTRY}test = '-p outboard-nic --test order kept::in_order'\n");
        let faults = parse("f.toml", &text).unwrap();
        assert_eq!((faults[0].area.as_str(), faults[0].listed_in.as_str()), ("x", "f.toml"));
        let test = faults[0].test().unwrap().unwrap();
        assert_eq!((test.package.as_str(), test.file.as_deref()), ("outboard-nic", Some("order")));
        assert_eq!(test.name, "kept::in_order");
    }

    #[test]
    fn invalid_entries_are_errors() {
        assert!(parse("f.toml", &format!("{ENTRY}line = 7\n")).is_err());
        assert!(parse("f.toml", "area = 'x'\n[[fault]]\nname = 'n'\n").is_err());
        let faults = parse("f.toml", &format!("{ENTRY}test = 'nic order'\n")).unwrap();
        assert!(faults[0].test().is_err());
        assert_eq!(parse("f.toml", ENTRY).unwrap()[0].test(), Ok(None));
    }
}
