//! Links of a stack: one queue of the link for each queue of the stack, with the capture and the
//! faults of the options.
//!
//! Called by [`crate::Builder`], and by programs that join links before they pass them to it.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use cli::Failure;
use host::Cidr;
use io::bridge::Bridge;
use io::clock::MonotonicClock;
use io::fault::FaultLink;
use io::link::Link;
use io::macvtap::{self, MacvtapConfig, MacvtapMode};
use io::open_error::OpenLinkError;
use io::packet_socket::{self, PacketSocketConfig};
use io::pcap::PcapLink;
use io::tap::{self, IpPrefix, TapConfig};
use io::vnet;
use io::watched_link::{self, ChangeableLink, WatchConfig};
use io::xdp::{self, SharedAddress, XdpConfig, XdpMode, XdpTransfer};

use crate::open_failure::open_link_failure;
use crate::options::{SHARED_ACTIVE_PORTS, StackOptions};

/// A link as named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkName {
    /// A TAP interface with this name.
    Tap(String),
    /// A macvtap interface on an interface.
    Macvtap {
        /// The interface below.
        lower: String,
        /// Traffic between interfaces on it.
        mode: MacvtapMode,
    },
    /// A packet socket on an interface.
    Packet(String),
    /// XDP sockets on an interface.
    Xdp {
        /// The interface.
        interface: String,
        /// Where the program runs; `None` for the driver if it can.
        mode: Option<XdpMode>,
        /// Transfer of frames; `None` for zero-copy if the driver can.
        transfer: Option<XdpTransfer>,
        /// The device polls the driver.
        busy_poll: bool,
        /// The interface completes checksums, also of copied frames.
        tx_checksum: bool,
    },
}

impl LinkName {
    /// Returns whether the link consists of XDP sockets.
    pub(crate) const fn is_xdp(&self) -> bool {
        matches!(self, Self::Xdp { .. })
    }

    /// Returns the name of the interface that carries the frames.
    #[must_use]
    pub fn interface(&self) -> String {
        match self {
            Self::Tap(name) | Self::Packet(name) | Self::Xdp { interface: name, .. } => {
                name.clone()
            }
            Self::Macvtap { lower, .. } => macvtap::interface_name(lower),
        }
    }

    /// Returns the largest payload in bytes of a run of segments.
    pub(crate) fn run_bytes_max(&self) -> u32 {
        match self {
            Self::Tap(_) => tap::run_bytes_max(),
            Self::Macvtap { .. } | Self::Packet(_) | Self::Xdp { .. } => vnet::RUN_BYTES_MAX,
        }
    }
}

impl FromStr for LinkName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("tap", name)) if !name.is_empty() => Ok(Self::Tap(name.to_owned())),
            Some(("packet", name)) if !name.is_empty() => Ok(Self::Packet(name.to_owned())),
            Some(("macvtap", rest)) if !rest.is_empty() => {
                let (lower, mode) = rest.split_once(',').unwrap_or((rest, "bridge"));
                Ok(Self::Macvtap { lower: lower.to_owned(), mode: mode.parse()? })
            }
            Some(("xdp", rest)) if !rest.is_empty() => parse_xdp(rest),
            _ => Err(format!(
                "invalid link `{text}`; expected tap:NAME, macvtap:IF[,MODE], packet:IF or \
                 xdp:IF[,MODE]"
            )),
        }
    }
}

/// Parses an interface and options, separated by commas.
fn parse_xdp(text: &str) -> Result<LinkName, String> {
    let mut parts = text.split(',');
    let interface = parts.next().unwrap_or_default().to_owned();
    let (mut mode, mut transfer) = (None, None);
    let (mut busy_poll, mut tx_checksum) = (false, false);
    for part in parts {
        match part {
            "native" => mode = Some(XdpMode::Native),
            "generic" => mode = Some(XdpMode::Generic),
            "copy" => transfer = Some(XdpTransfer::Copy),
            "zerocopy" => transfer = Some(XdpTransfer::ZeroCopy),
            "busy-poll" => busy_poll = true,
            "tx-checksum" => tx_checksum = true,
            _ => {
                return Err(format!(
                    "unknown XDP mode `{part}`; expected native, generic, copy, zerocopy, \
                     busy-poll or tx-checksum"
                ));
            }
        }
    }
    if (mode, transfer) == (Some(XdpMode::Generic), Some(XdpTransfer::ZeroCopy)) {
        return Err("XDP mode `generic` copies; omit `zerocopy`".to_owned());
    }
    Ok(LinkName::Xdp { interface, mode, transfer, busy_poll, tx_checksum })
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Macvtap { lower, mode } => write!(f, "macvtap:{lower},{}", mode.name()),
            Self::Packet(name) => write!(f, "packet:{name}"),
            Self::Xdp { interface, mode, transfer, busy_poll, tx_checksum } => {
                let mode = mode.map_or("", |mode| match mode {
                    XdpMode::Native => ",native",
                    XdpMode::Generic => ",generic",
                });
                let transfer = transfer.map_or("", |transfer| match transfer {
                    XdpTransfer::Copy => ",copy",
                    XdpTransfer::ZeroCopy => ",zerocopy",
                });
                let busy_poll = if *busy_poll { ",busy-poll" } else { "" };
                let tx_checksum = if *tx_checksum { ",tx-checksum" } else { "" };
                write!(f, "xdp:{interface}{mode}{transfer}{busy_poll}{tx_checksum}")
            }
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
    let interface = options.link.interface();
    let wrap = |(queue, mut link): (usize, Box<dyn Link>)| {
        if let Some(path) = &options.pcap {
            link = capture(link, path, queue, (&interface, clock))?;
        }
        let faults = options.faults.config(queue);
        if faults.is_active() {
            link = Box::new(FaultLink::new(link, faults));
        }
        Ok(link)
    };
    let opened = open_interface(options)?;
    opened.into_iter().enumerate().map(wrap).collect()
}

/// A second link of the same stack or device, joined with the first by a bridge
/// ([`io::bridge::Bridge`]): that to the backends of a proxy.
#[derive(Clone, Debug)]
pub struct BackendLink {
    /// The link.
    pub link: LinkName,
    /// Addresses of the kernel's end of a TAP.
    pub peer: Vec<Cidr>,
}

impl BackendLink {
    /// Fails if the link cannot be joined with that of the options.
    ///
    /// # Errors
    /// A line about the options.
    pub fn check(&self, options: &StackOptions) -> Result<(), Failure> {
        let line = if self.link == options.link {
            "--backend-link is the same as --link; omit it"
        } else if options.has_auto_addrs() {
            "--backend-link: dhcp and slaac support only one link; set --addr CIDR"
        } else if self.link.is_xdp() || options.link.is_xdp() {
            // The stack has one link address, and each xdp link that of its interface.
            "--backend-link does not work with xdp links"
        } else {
            return Ok(());
        };
        Err(Failure::Usage(line.to_owned()))
    }

    /// Opens the link of the options for each queue, joined with this one. Captures of this one
    /// are in files with `.backend` after their names.
    ///
    /// # Errors
    /// As [`open_links`].
    pub fn open_joined(
        &self,
        options: &StackOptions,
        clock: &MonotonicClock,
    ) -> Result<Vec<Box<dyn Link>>, Failure> {
        let firsts = open_links(options, clock)?;
        let pcap = options.pcap.clone().map(|mut path| {
            path.as_mut_os_string().push(".backend");
            path
        });
        let (link, peer) = (self.link.clone(), self.peer.clone());
        let seconds = open_links(&StackOptions { link, peer, pcap, ..options.clone() }, clock)?;
        let join = |(first, second)| match Bridge::new([first, second]) {
            Ok(bridge) => Ok(Box::new(bridge) as Box<dyn Link>),
            Err(e) => Err(Failure::System(format!("cannot poll two links: {e}"))),
        };
        firsts.into_iter().zip(seconds).map(join).collect()
    }
}

/// Opens the interface of the options, without capture and faults. Its changes are reported on
/// standard error.
fn open_interface(options: &StackOptions) -> Result<Vec<Box<dyn Link>>, Failure> {
    let is_xdp = options.link.is_xdp();
    if is_xdp && options.has_auto_addrs() {
        // The program of the link selects frames by addresses that must be known before.
        let line = format!("--addr dhcp and slaac do not work with --link {}", options.link);
        return Err(Failure::Usage(line));
    }
    if options.share_address && !is_xdp {
        let line = format!("--share-address needs --link xdp:IF, not {}", options.link);
        return Err(Failure::Usage(line));
    }
    let (queues, mac) = (usize::from(options.queues), options.link_address());
    // Faults apply to packets: all packets of a run would be dropped or kept together.
    let offloads = !options.faults.config(0).is_active();
    match &options.link {
        LinkName::Tap(name) => {
            let prefix = |cidr: &Cidr| IpPrefix { addr: cidr.addr, prefix: cidr.prefix_len };
            let peer = options.peer.iter().map(prefix).collect();
            let steering = (queues > 1).then(|| options.flow_steering());
            let config =
                TapConfig { name: name.clone(), queues, steering, peer, mtu: None, offloads };
            watch(options, move || tap::open(&config))
        }
        LinkName::Macvtap { lower, mode } => {
            let config = MacvtapConfig { lower: lower.clone(), mode: *mode, queues, mac, offloads };
            watch(options, move || macvtap::open(&config))
        }
        LinkName::Packet(name) => {
            let steering = (queues > 1).then(|| options.flow_steering());
            let config =
                PacketSocketConfig { interface: name.clone(), queues, steering, mac, offloads };
            watch(options, move || packet_socket::open(&config))
        }
        LinkName::Xdp { interface, mode, transfer, busy_poll, tx_checksum } => {
            let shared = options.share_address.then(|| SharedAddress {
                listeners: options.listen_ports.clone(),
                active: SHARED_ACTIVE_PORTS,
            });
            let config = XdpConfig {
                interface: interface.clone(),
                queues,
                mode: *mode,
                transfer: *transfer,
                busy_poll: *busy_poll,
                tx_checksum: *tx_checksum,
                addrs: options.addrs().iter().map(|cidr| cidr.addr).collect(),
                shared,
            };
            watch(options, move || xdp::open(&config))
        }
    }
}

/// Opens the queues of a link by `open`, and watches its interface.
fn watch<L: ChangeableLink + 'static>(
    options: &StackOptions,
    open: impl Fn() -> Result<Vec<L>, OpenLinkError> + Send + 'static,
) -> Result<Vec<Box<dyn Link>>, Failure> {
    let interface = options.link.interface();
    let (needs, mac) = match &options.link {
        LinkName::Macvtap { lower, .. } => (lower.clone(), Some(options.link_address())),
        _ => (interface.clone(), None),
    };
    let config = WatchConfig {
        interface,
        needs,
        mac,
        follows_queues: options.link.is_xdp(),
        open: Box::new(open),
        report: |line| eprintln!("outboard: {line}"),
    };
    let links = watched_link::open(config).map_err(open_link_failure)?;
    Ok(links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_links() {
        let name: LinkName = "tap:ob0".parse().unwrap();
        assert_eq!((name.interface(), name.to_string()), ("ob0".into(), "tap:ob0".into()));
        let name: LinkName = "macvtap:eth0".parse().unwrap();
        assert_eq!(name.interface(), "ob-eth0");
        assert_eq!(name.to_string(), "macvtap:eth0,bridge");
        let private: LinkName = "macvtap:enp0s31f6u1u2,private".parse().unwrap();
        assert_eq!((private.interface().len(), private.run_bytes_max()), (15, 65_416));
        let name: LinkName = "packet:eth0".parse().unwrap();
        assert_eq!((name.interface(), name.to_string()), ("eth0".into(), "packet:eth0".into()));
        let name: LinkName = "xdp:eth0,copy,generic".parse().unwrap();
        assert_eq!(name.interface(), "eth0");
        assert_eq!(name.to_string(), "xdp:eth0,generic,copy");
        let polled: LinkName = "xdp:eth0,busy-poll".parse().unwrap();
        assert_eq!(polled.to_string().parse(), Ok(polled));
        let completed: LinkName = "xdp:eth0,native,copy,tx-checksum".parse().unwrap();
        assert_eq!(completed.to_string().parse(), Ok(completed));
        let plain: LinkName = "xdp:eth0".parse().unwrap();
        assert_eq!(plain.to_string().parse(), Ok(plain));
        assert!("xdp:eth0,fast".parse::<LinkName>().unwrap_err().contains("zerocopy"));
        assert!("xdp:eth0,generic,zerocopy".parse::<LinkName>().is_err());
        assert!("macvtap:eth0,x".parse::<LinkName>().unwrap_err().contains("passthru"));
        assert!("tap:".parse::<LinkName>().is_err());
        assert!("ob0".parse::<LinkName>().is_err());
    }
}
