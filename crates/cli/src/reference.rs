//! Pages of the command-line reference, generated from the definitions that clap parses with.
//!
//! Called by a test of each program: the pages in docs/cli have to equal the program's own help.
//! With `OUTBOARD_WRITE_DOCS=1` in the environment the test writes them instead.

use std::path::Path;

use clap::Command;

/// Width of the help texts, in characters.
const WIDTH: usize = 96;

/// A page of the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferencePage {
    /// Name of the file, without its folder.
    pub file: String,
    /// Content of the page, in Markdown.
    pub text: String,
}

/// Returns a page for each command that has no subcommands.
fn pages(command: &mut Command, name: &str, all: &mut Vec<ReferencePage>) {
    let subcommands: Vec<String> = command
        .get_subcommands()
        .map(|subcommand| subcommand.get_name().to_owned())
        .filter(|subcommand| subcommand != "help")
        .collect();
    for subcommand in &subcommands {
        if let Some(command) = command.find_subcommand_mut(subcommand) {
            pages(command, &format!("{name} {subcommand}"), all);
        }
    }
    if subcommands.is_empty() {
        let help = command.clone().bin_name(name).term_width(WIDTH).render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        let text = format!(
            "# {name}\n\nThis page is generated from `{name} --help`.\n\n```text\n{}\n```\n",
            lines.join("\n").trim_end()
        );
        all.push(ReferencePage { file: format!("{}.md", name.replace(' ', "-")), text });
    }
}

/// Compares the pages in `folder` with the commands of a program, or writes them.
///
/// # Errors
/// Names the first page that is missing or differs, and says how to write it.
pub fn check_reference(mut command: Command, folder: &Path) -> Result<(), String> {
    command.build();
    let name = command.get_name().to_owned();
    let mut all = Vec::new();
    pages(&mut command, &name, &mut all);
    for ReferencePage { file, text } in all {
        let path = folder.join(&file);
        if std::env::var_os("OUTBOARD_WRITE_DOCS").is_some() {
            std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            std::fs::write(&path, &text).map_err(|e| format!("{}: {e}", path.display()))?;
        } else if std::fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            return Err(format!(
                "docs/cli/{file} is not current; run OUTBOARD_WRITE_DOCS=1 cargo test -p {name} \
                 reference"
            ));
        }
    }
    Ok(())
}
