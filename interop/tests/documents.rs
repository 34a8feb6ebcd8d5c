//! Runs every command of every page: the lines that begin with `$ ` in blocks tagged `console`.
//!
//! Each page runs in a shell of its own, in a new network namespace and a new process namespace, as
//! a reader would type it. `/tmp` stands for an empty folder, and `target` for the folder of the
//! programs. A line that ends with `&` starts a server: the next line waits until it has announced
//! itself, or two seconds.

use interop::{Files, Netns};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// Functions of the shell that runs a page.
const PRELUDE: &str = r#"set -o pipefail
sudo() { while [ "${1#-}" != "$1" ]; do shift; done; "$@"; }
announced() {
    for _ in $(seq 20); do
        grep -q '^try: ' "$log" && return
        kill -0 $! 2>/dev/null || return
        sleep 0.1
    done
}
check() { [ "$1" = 0 ] || { echo "exit status $1"; cat "$TMPDIR"/log-* 2>/dev/null; exit 1; }; }
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

/// Returns the commands of a page.
fn commands(page: &str) -> Vec<String> {
    let (mut commands, mut in_console, mut continues) = (Vec::<String>::new(), false, false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_console = line.trim() == "```console";
        } else if in_console && continues {
            if let Some(last) = commands.last_mut() {
                *last = format!("{last}\n{line}");
            }
            continues = line.ends_with('\\');
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| in_console) {
            commands.push(command.to_owned());
            continues = line.ends_with('\\');
        }
    }
    commands
}

/// Returns a script that runs commands and ends at the first that fails.
fn script(commands: &[String], scratch: &str) -> String {
    let mut script = PRELUDE.to_owned();
    for (number, command) in commands.iter().enumerate() {
        let command = command.replace("/tmp/", &format!("{scratch}/"));
        let _ = writeln!(script, "cat <<'COMMAND'\n$ {command}\nCOMMAND");
        let _ = match command.strip_suffix('&') {
            Some(command) => writeln!(
                script,
                "log=$TMPDIR/log-{number}; touch \"$log\"\n\
                 {{ {command}; }} >\"$log\" 2>&1 &\nannounced"
            ),
            None => writeln!(script, "{command}\ncheck $?"),
        };
    }
    script
}

/// Returns the pages with commands, by their path in the tree.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

fn run_page(path: &Path) -> Result<usize, String> {
    let commands = commands(&std::fs::read_to_string(path).expect("a page"));
    if commands.is_empty() {
        return Ok(0);
    }
    let (netns, scratch) = (Netns::new(), Files::new(TMP));
    let program = std::env::var_os("OUTBOARD_BIN").expect("OUTBOARD_BIN: run `make interop`");
    let programs = Path::new(&program).parent().expect("a folder").to_owned();
    // The page's current folder: that of the tree, with a `target` that has the programs.
    let here = scratch.path().join("checkout");
    std::fs::create_dir_all(here.join("target")).expect("a folder");
    let link = |from: &Path, to: &Path| std::os::unix::fs::symlink(from, to).expect("a link");
    link(&programs, &here.join("target/release"));
    for entry in std::fs::read_dir(root()).expect("the repository") {
        let entry = entry.expect("an entry");
        if entry.file_name() != "target" {
            link(&entry.path(), &here.join(entry.file_name()));
        }
    }
    let tmp = scratch.path().join("tmp");
    std::fs::create_dir_all(&tmp).expect("a folder");
    let file = scratch.write("page.sh", script(&commands, &tmp.to_string_lossy()).as_bytes());
    let output = netns
        .command("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "timeout", "150", "bash"])
        .arg(file)
        .current_dir(&here)
        .env("TMPDIR", &tmp)
        .env_remove("XDG_RUNTIME_DIR")
        .output()
        .expect("unshare and bash");
    let text = [output.stdout, output.stderr].concat();
    match output.status.success() {
        true => Ok(commands.len()),
        false => Err(format!("{}: {}", path.display(), String::from_utf8_lossy(&text))),
    }
}

#[test]
fn every_command_on_every_page_runs() {
    let mut all = vec![root().join("README.md")];
    pages(&root().join("docs"), &mut all);
    // To run one page: PAGE=docs/serve.md.
    let only = std::env::var("PAGE").ok();
    all.retain(|path| only.as_ref().is_none_or(|only| path.ends_with(only)));
    let results: Vec<_> = all.iter().map(|path| run_page(path)).collect();
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} pages: {failed:#?}", failed.len());
    let count: usize = results.iter().filter_map(|result| result.as_ref().ok()).sum();
    println!("{count} commands of {} pages", all.len());
    assert!(count > 50 || only.is_some(), "only {count} commands were found");
}

#[test]
fn commands_are_found() {
    let page = "```console\n$ a \\\n  b\noutput\n$ c &\n```\n```sh\n$ d\n```\n";
    assert_eq!(commands(page), ["a \\\n  b", "c &"]);
}
