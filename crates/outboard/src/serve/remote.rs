//! Namespaces to serve, from the command line: `[/NAME=]nvme://TARGET/NSID[?OPTION[=VALUE]&...]`.
//!
//! Called by [`super::run`]. The options are those of `outboard nvme read` that concern the
//! connection, without their dashes; they are parsed by the same code.

use std::path::Path;

use apps::remote::{RemoteContentServer, RemoteEvent, RemoteFilesConfig, RemoteVolumeConfig};
use clap::Parser;

use crate::nvme::{SubsystemArgs, initiator_config};
use cli::Failure;

const SCHEME: &str = "nvme://";
/// Options of a URL.
const OPTIONS: [&str; 13] = [
    "nqn",
    "hostnqn",
    "header-digest",
    "data-digest",
    "io-queues",
    "queue-size",
    "tls",
    "tls-ca",
    "tls-name",
    "insecure",
    "tls-psk-file",
    "tls-psk-version",
    "tls-psk-derivation",
];

#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct UrlOptions {
    #[command(flatten)]
    subsystem: SubsystemArgs,
}

/// Returns the namespaces that the sources name; `None` if they name a directory.
///
/// # Errors
/// A URL is invalid, a directory is given beside it, or a key or certificate cannot be read.
pub(super) fn volumes(sources: &[impl AsRef<Path>]) -> Result<Option<RemoteFilesConfig>, Failure> {
    let texts: Vec<String> =
        sources.iter().map(|source| source.as_ref().to_string_lossy().into_owned()).collect();
    if !texts.iter().any(|text| text.contains(SCHEME)) {
        return match texts.len() {
            1 => Ok(None),
            _ => Err(Failure::Usage("only one directory can be served".to_owned())),
        };
    }
    let mut volumes: Vec<RemoteVolumeConfig> = Vec::new();
    for text in &texts {
        let volume = volume(text)?;
        if volumes.iter().any(|other| other.name == volume.name) {
            let line = format!("{text}: another namespace is served at /{}", volume.name);
            return Err(Failure::Usage(line));
        }
        volumes.push(volume);
    }
    Ok(Some(RemoteFilesConfig { volumes, ..RemoteFilesConfig::default() }))
}

fn volume(text: &str) -> Result<RemoteVolumeConfig, Failure> {
    let invalid = |why: String| {
        Failure::Usage(format!(
            "invalid namespace `{text}`: {why}; expected [/NAME=]nvme://TARGET/NSID[?OPTIONS], for \
             example nvme://10.77.0.9/1?tls-psk-file=keys&hostnqn=NQN"
        ))
    };
    let at = text.find(SCHEME).ok_or_else(|| invalid("not a URL".to_owned()))?;
    let (prefix, url) = text.split_at(at);
    let name = match prefix {
        "" => "",
        _ => prefix
            .strip_prefix('/')
            .and_then(|name| name.strip_suffix('='))
            .filter(|name| !name.contains('/'))
            .ok_or_else(|| invalid(format!("bad name `{prefix}`")))?,
    };
    let (place, query) =
        url[SCHEME.len()..].split_once('?').unwrap_or_else(|| (&url[SCHEME.len()..], ""));
    let (target, nsid) =
        place.split_once('/').ok_or_else(|| invalid("no namespace ID".to_owned()))?;
    let nsid = nsid.parse().map_err(|_| invalid(format!("bad namespace ID `{nsid}`")))?;
    let mut options = vec![target.to_owned()];
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let name = option.split('=').next().unwrap_or_default();
        if !OPTIONS.contains(&name) {
            return Err(invalid(format!("unknown option `{name}`")));
        }
        options.push(format!("--{option}"));
    }
    let parsed = UrlOptions::try_parse_from(options).map_err(|error| {
        let first = error.to_string();
        invalid(first.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned())
    })?;
    let mut initiator = initiator_config(&parsed.subsystem)?;
    // A server retries as long as it runs.
    initiator.back_off.ctrl_loss = None;
    let remote = parsed.subsystem.connect.target.0;
    Ok(RemoteVolumeConfig { name: name.to_owned(), initiator, remote, nsid })
}

/// Prints the events of volumes.
pub(super) fn report_events(server: &mut RemoteContentServer, config: &RemoteFilesConfig) {
    while let Some((index, event)) = server.poll_event() {
        let Some(volume) = config.volumes.get(index) else { continue };
        let (addr, nsid) = (volume.remote.addr, volume.nsid);
        let of = format!("outboard: namespace {nsid} of {addr}");
        match event {
            RemoteEvent::Connected => {}
            RemoteEvent::Readable => eprintln!("{of}: file system found"),
            RemoteEvent::Lost(loss) => eprintln!("{of}: target lost: {loss}; reconnecting"),
            RemoteEvent::Unreadable(fault) => eprintln!("{of}: {fault}"),
            RemoteEvent::ReadFailed(error) => eprintln!("{of}: read failed: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        volume(text).err().map(|failure| failure.to_string()).unwrap_or_default()
    }

    #[test]
    fn urls_name_target_namespace_and_options() {
        let found = volume("/video=nvme://10.77.0.9:4421/7?data-digest&nqn=nqn.2026-11.org.a:b");
        let found = found.expect("it is valid");
        assert_eq!((found.name.as_str(), found.nsid), ("video", 7));
        assert_eq!((found.remote.port, found.initiator.data_digest), (4421, true));
        assert_eq!(volume("nvme://10.77.0.9/1").expect("it is valid").remote.port, 4420);
    }

    #[test]
    fn invalid_urls_are_explained() {
        for (text, part) in [
            ("nvme://10.77.0.9", "no namespace ID"),
            ("nvme://10.77.0.9/x", "bad namespace ID `x`"),
            ("nvme://host/1", "invalid target address"),
            ("nvme://10.77.0.9/1?link=tap:a", "unknown option `link`"),
            ("a/b=nvme://10.77.0.9/1", "bad name"),
            ("nvme://10.77.0.9/1?tls", "--tls requires"),
        ] {
            let line = error(text);
            assert!(line.contains(part), "{text}: {line}");
        }
    }
}
