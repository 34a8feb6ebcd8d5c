//! Links of a stack: one TAP queue for each queue, with the capture and the faults of the options.
//!
//! Called by [`crate::Builder`], and by programs that join links before they pass them to it.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use cli::Failure;
use io::clock::MonotonicClock;
use io::fault::FaultLink;
use io::link::Link;
use io::pcap::PcapLink;
use io::tap::{IpPrefix, Tap, TapConfig, TapError};

use crate::options::StackOptions;

/// A link as named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkName {
    /// A TAP interface with this name.
    Tap(String),
}

impl LinkName {
    /// Returns the name of the interface.
    #[must_use]
    pub fn interface(&self) -> &str {
        let Self::Tap(name) = self;
        name
    }
}

impl FromStr for LinkName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("tap", name)) if !name.is_empty() => Ok(Self::Tap(name.to_owned())),
            _ => Err(format!("invalid link `{text}`; expected tap:NAME")),
        }
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap(name) => write!(f, "tap:{name}"),
        }
    }
}

/// Opens a link for each queue, with the capture and the faults of the options.
///
/// # Errors
/// Fails if an interface or file cannot be opened; the message says what to do.
pub fn open_links(
    options: &StackOptions,
    clock: &MonotonicClock,
) -> Result<Vec<Box<dyn Link>>, Failure> {
    let name = options.link.interface();
    let prefix = |cidr: &host::Cidr| IpPrefix { addr: cidr.addr, prefix: cidr.prefix_len };
    let config = TapConfig {
        name: name.to_owned(),
        queues: usize::from(options.queues),
        peer: options.peer.iter().map(prefix).collect(),
        mtu: None,
        // Faults apply to packets: all packets of a run would be dropped or kept together.
        offloads: !options.faults.config(0).is_active(),
    };
    let taps = Tap::open(&config).map_err(tap_failure)?;
    let wrap = |(queue, tap): (usize, Tap)| {
        let mut link: Box<dyn Link> = Box::new(tap);
        if let Some(path) = &options.pcap {
            link = capture(link, path, queue, (name, clock))?;
        }
        let faults = options.faults.config(queue);
        if faults.is_active() {
            link = Box::new(FaultLink::new(link, faults));
        }
        Ok(link)
    };
    taps.into_iter().enumerate().map(wrap).collect()
}

/// Wraps a queue's link to write its packets to a file.
fn capture(
    link: Box<dyn Link>,
    path: &Path,
    queue: usize,
    (interface, clock): (&str, &MonotonicClock),
) -> Result<Box<dyn Link>, Failure> {
    let mut path = path.to_owned();
    if queue > 0 {
        path.as_mut_os_string().push(format!(".{queue}"));
    }
    let failed = |e| Failure::NoInput(format!("cannot create --pcap {}: {e}", path.display()));
    let capture = PcapLink::create(link, &path, interface, clock.unix_epoch()).map_err(failed)?;
    Ok(Box::new(capture))
}

fn tap_failure(error: TapError) -> Failure {
    let line = error.to_string();
    match error {
        TapError::NoPermission { .. } | TapError::DeviceDenied => Failure::NoPermission(line),
        TapError::BadName { .. } => Failure::Usage(line),
        TapError::Busy { .. } | TapError::AddressInUse { .. } | TapError::NoDevice => {
            Failure::Unavailable(line)
        }
        _ => Failure::System(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_links() {
        let name: LinkName = "tap:ob0".parse().unwrap();
        assert_eq!((name.interface(), name.to_string().as_str()), ("ob0", "tap:ob0"));
        assert!("tap:".parse::<LinkName>().is_err());
        assert!("ob0".parse::<LinkName>().is_err());
    }
}
