//! `outboard doctor`: examines this machine, and says which link and options to take, what will be
//! slow and why, and how to change that.
//!
//! `collect` reads the facts, `checks` and `links` are functions of them, and this module prints.
//! It changes nothing.

mod checks;
mod collect;
mod facts;
mod links;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use serde_json::json;

use crate::args::DoctorArgs;
use checks::{Finding, FindingStatus};
use cli::Failure;
use links::{LinkVerdict, Obstacle, Recommendation};

/// The result of an examination.
struct Diagnosis {
    findings: Vec<Finding>,
    links: Vec<LinkVerdict>,
    recommendation: Option<Recommendation>,
}

impl Diagnosis {
    fn of(facts: &facts::MachineFacts) -> Self {
        let links = links::verdicts(facts);
        let recommendation = links::recommend(facts, &links);
        Self { findings: checks::run(facts), links, recommendation }
    }

    /// Fails if no link can be used.
    fn result(&self) -> Result<(), Failure> {
        if self.links.iter().any(LinkVerdict::is_usable) {
            return Ok(());
        }
        let denied = |link: &&LinkVerdict| link.obstacle == Some(Obstacle::Permission);
        Err(match self.links.iter().find(denied) {
            Some(LinkVerdict { link, why, fix, .. }) => {
                Failure::NoPermission(format!("no link can be used: {link}: {why}; {fix}"))
            }
            None => Failure::Unavailable("no link can be used; see above".to_owned()),
        })
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "usable": self.result().is_ok(),
            "recommendation": self.recommendation,
            "links": self.links,
            "checks": self.findings,
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Finding { check, status, found, why, fix } in &self.findings {
            row(&mut text, (check, *status), found, why, fix);
        }
        text.push('\n');
        for LinkVerdict { link, obstacle, why, fix } in &self.links {
            let status = match obstacle {
                None if fix.is_empty() => FindingStatus::Ok,
                None => FindingStatus::Slow,
                Some(_) => FindingStatus::Missing,
            };
            row(&mut text, (link, status), why, "", fix);
        }
        if let Some(Recommendation { link, why, commands, .. }) = &self.recommendation {
            let _ = writeln!(text, "\ntake {link}: {why}");
            for command in commands {
                let _ = writeln!(text, "  {command}");
            }
        }
        text
    }
}

fn row(
    text: &mut String,
    (name, status): (&str, FindingStatus),
    found: &str,
    why: &str,
    fix: &str,
) {
    let status = match status {
        FindingStatus::Ok => "ok",
        FindingStatus::Slow => "slow",
        FindingStatus::Missing => "missing",
    };
    let _ = writeln!(text, "{name:<16} {status:<8} {found}");
    for (label, line) in [("why", why), ("fix", fix)] {
        if !line.is_empty() {
            let _ = writeln!(text, "{:<25} {label}: {line}", "");
        }
    }
}

/// Examines this machine, and prints the result.
///
/// # Errors
/// Fails if no link can be used, or if the interface or the directory does not exist.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    if let Some(folder) = &args.folder {
        let refused = |e| Failure::NoInput(format!("cannot open {}: {e}", folder.display()));
        collect::open_folder(folder).map_err(refused)?;
    }
    let facts = collect::collect(args.interface.as_deref(), args.folder.as_deref());
    if let (Some(name), None) = (&args.interface, &facts.interface) {
        return Err(Failure::Unavailable(format!("no interface {name}; `ip link` lists them")));
    }
    let diagnosis = Diagnosis::of(&facts);
    match args.json {
        true => crate::query::print(&format!("{:#}\n", diagnosis.json()))?,
        false => crate::query::print(&diagnosis.text())?,
    }
    diagnosis.result()
}
