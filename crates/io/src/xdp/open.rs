//! Opening an AF_XDP link: checks, the program on the interface, and the sockets.
//!
//! Called by [`crate::watched_link`], at first and when a removed interface is back, and by
//! [`super::XdpLink`] when the interface gets further receive queues.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use abi::link::LinkCaps;
use wire::ETHERNET_BYTES;

use super::attach::{self, XdpMode, XskMap};
use super::neighbors::KernelNeighbors;
use super::program::{self, RedirectRules};
use super::socket::{CHUNK_FRAME_BYTES_MAX, FRAME_BYTES_MAX, XdpTransfer, XskOptions, XskSocket};
use super::{SharedAddress, XdpConfig, XdpLink, XdpLinkCounters, XskCounts, readable, transfer_of};
use crate::bpf::{BpfAttachment, BpfProgram};
use crate::interface::InterfaceControl;
use crate::netlink;
use crate::open_error::{LinkKind, OpenLinkError};
use crate::packet_socket;
use crate::tap::kernel_version;
use crate::xdp_features::xdp_features;

/// Largest MTU whose packets fit one chunk.
const CHUNK_MTU_MAX: u16 = 4096 - 256 - 14;
/// Largest MTU.
const MTU_MAX: u16 = 4 * (4096 - 256) - 14;
const _: () = assert!(
    CHUNK_MTU_MAX as usize + ETHERNET_BYTES == CHUNK_FRAME_BYTES_MAX
        && MTU_MAX as usize + ETHERNET_BYTES == FRAME_BYTES_MAX,
    "a frame fits the chunks of a frame"
);

/// Kernel that takes requests for checksums with the flag that newer ones demand.
const TX_METADATA_SINCE: (u32, u32) = (6, 11);

/// Returns the largest MTU of a link on this kernel: frames have several chunks since Linux 6.6.
#[must_use]
pub fn mtu_max(kernel: (u32, u32)) -> u16 {
    if kernel >= (6, 6) { MTU_MAX } else { CHUNK_MTU_MAX }
}

/// Returns the largest MTU whose packets take one chunk. With a larger one each frame costs more,
/// and fewer drivers can run the program or transfer frames without a copy.
#[must_use]
pub const fn mtu_max_of_chunk() -> u16 {
    CHUNK_MTU_MAX
}

/// The attached program with its map.
#[derive(Debug)]
pub(super) struct AttachedProgram {
    /// Name of the interface.
    name: String,
    attachment: BpfAttachment,
    map: XskMap,
    mode: XdpMode,
    has_fragments: bool,
    addrs: Vec<IpAddr>,
    shared: Option<SharedAddress>,
}

impl AttachedProgram {
    /// Replaces the program by one with these ports of listeners.
    pub(super) fn replace(&self, listeners: &[u16]) -> Result<(), OpenLinkError> {
        let doing = |doing| move |e| OpenLinkError::from_io(LinkKind::Xdp, &self.name, doing, e);
        let shared = self.shared.as_ref().map(|shared| shared.rules(listeners.to_vec()));
        let rules = RedirectRules { addrs: self.addrs.clone(), shared };
        let program = load(&rules, &self.map, self.has_fragments);
        let program = program.map_err(doing("load a program for"))?;
        self.attachment.replace(&program).map_err(doing("replace the XDP program of"))
    }
}

/// An interface with the attached program, on which sockets are opened.
#[derive(Debug)]
pub(super) struct XdpInterface {
    control: InterfaceControl,
    index: u32,
    options: XskOptions,
    program: Arc<AttachedProgram>,
    /// Keeps memberships of multicast groups.
    _groups: Option<File>,
}

/// Opens the link: attaches the program, and binds a socket to each receive queue of the interface.
/// Returns one link for each queue of the device.
///
/// # Errors
/// As [`OpenLinkError`] lists them.
pub fn open(config: &XdpConfig) -> Result<Vec<XdpLink>, OpenLinkError> {
    let control = InterfaceControl::new(LinkKind::Xdp, &config.interface)?;
    let index = control.index()?;
    let mac = control.ethernet_address()?;
    control.set_flags(libc::IFF_UP)?;
    let (mtu, max) = (control.mtu()?, mtu_max(kernel_version()));
    if mtu > max {
        return Err(OpenLinkError::MtuTooLarge { name: config.interface.clone(), mtu, max });
    }
    let (interface_queues, map_size) = control.receive_queues()?;
    let queues = u32::try_from(config.queues.max(1)).unwrap_or(u32::MAX);
    if queues > interface_queues {
        let name = config.interface.clone();
        return Err(OpenLinkError::TooFewQueues { name, has: interface_queues, asked: queues });
    }
    check_addresses(config, &control)?;
    let has_fragments = mtu > CHUNK_MTU_MAX;
    let program = attach(config, &control, (index, map_size), has_fragments)?;
    // Frames that the kernel redirects are copied, whatever the driver can.
    let transfer = match (program.mode, config.transfer) {
        (XdpMode::Generic, None) => Some(XdpTransfer::Copy),
        (_, transfer) => transfer,
    };
    let offers_checksums = kernel_version() >= TX_METADATA_SINCE
        && xdp_features(index).is_ok_and(|features| features.tx_checksum);
    let has_metadata = config.tx_checksum || offers_checksums;
    let options = XskOptions { transfer, has_fragments, busy_poll: config.busy_poll, has_metadata };
    let groups = join_groups(config, index).map_err(control.error("join groups of"))?;
    let interface = XdpInterface { control, index, options, program, _groups: groups };
    let interface = Arc::new(interface);
    let link = |queue| {
        let sockets = (queue..interface_queues)
            .step_by(queues as usize)
            .map(|queue| interface.open_socket(queue))
            .collect::<Result<Vec<_>, _>>()?;
        let transfer = transfer_of(&sockets);
        let checksum = match transfer {
            XdpTransfer::Copy => config.tx_checksum,
            XdpTransfer::ZeroCopy => offers_checksums,
        };
        if config.tx_checksum && !checksum {
            return Err(OpenLinkError::NoTxChecksum { name: config.interface.clone() });
        }
        Ok(XdpLink {
            queue,
            queues,
            interface_queues,
            next: 0,
            received: 0,
            busy_poll: config.busy_poll,
            polled: false,
            caps: LinkCaps { segmentation: false, udp_segmentation: false, checksum, mtu },
            mtu_max: if has_fragments { max } else { CHUNK_MTU_MAX },
            mac,
            mode: interface.program.mode,
            transfer,
            readable: readable(&sockets).map_err(interface.control.error("poll"))?,
            sockets,
            neighbors: config.shared.as_ref().map(|_| KernelNeighbors::new(index, mac)),
            answers: std::collections::VecDeque::new(),
            retry_at: None,
            is_down: false,
            counters: XdpLinkCounters::default(),
            closed: XskCounts::default(),
            interface: Some(Arc::clone(&interface)),
        })
    };
    (0..queues).map(link).collect()
}

impl XdpInterface {
    /// Replaces the program by an equal one. A veth runs no program on queues that it got after the
    /// program (Linux 6.18), until it gets another one.
    pub(super) fn renew_program(&self) -> Result<(), OpenLinkError> {
        match &self.program.shared {
            Some(shared) => shared.listeners.renew(&self.program),
            None => self.program.replace(&[]),
        }
    }

    /// Opens a socket, binds it to a queue of the interface and adds it to the program's map.
    pub(super) fn open_socket(&self, queue: u32) -> Result<XskSocket, OpenLinkError> {
        let Self { control, index, options, program, .. } = self;
        let name = || control.name().to_owned();
        let opened = XskSocket::open(options.has_metadata);
        let socket = opened.map_err(|error| match error.raw_os_error() {
            None if options.has_metadata => OpenLinkError::NoTxChecksum { name: name() },
            Some(libc::ENOBUFS) => OpenLinkError::LockedMemory { name: name() },
            _ => control.error("open an XDP socket on")(error),
        })?;
        let zero_copy = options.transfer == Some(XdpTransfer::ZeroCopy);
        socket.bind(*index, queue, *options).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EINVAL) if zero_copy => {
                OpenLinkError::NoZeroCopy { name: name() }
            }
            _ => control.error("bind an XDP socket to")(error),
        })?;
        program.map.set(queue, socket.fd()).map_err(control.error("redirect frames of"))?;
        Ok(socket)
    }
}

/// Fails if an address of the stack is the kernel's, or if one to be shared is not.
fn check_addresses(config: &XdpConfig, interface: &InterfaceControl) -> Result<(), OpenLinkError> {
    for &addr in &config.addrs {
        let holders = netlink::interfaces_with_address(addr).map_err(interface.error("query"))?;
        if config.shared.is_none() {
            if let Some(holder) = holders.into_iter().next() {
                return Err(OpenLinkError::AddressOfKernel { addr, interface: holder });
            }
        } else if !holders.contains(&config.interface) {
            let interface = config.interface.clone();
            return Err(OpenLinkError::AddressNotShared { addr, interface });
        }
    }
    let Some(shared) = &config.shared else { return Ok(()) };
    let kernel = kernel_ports();
    if kernel.0 <= *shared.active.end() && *shared.active.start() <= kernel.1 {
        let (first, last) = (*shared.active.start(), *shared.active.end());
        return Err(OpenLinkError::PortsOfKernel { kernel, first, last });
    }
    Ok(())
}

/// Returns the range of the kernel's local ports of active opens.
fn kernel_ports() -> (u16, u16) {
    let text =
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ports = text.split_whitespace().map_while(|port| port.parse().ok());
    // The default of Linux.
    (ports.next().unwrap_or(32768), ports.next().unwrap_or(60999))
}

/// Loads the program and attaches it: in the driver if it can, unless the configuration says
/// otherwise.
fn attach(
    config: &XdpConfig,
    interface: &InterfaceControl,
    (index, map_size): (u32, u32),
    has_fragments: bool,
) -> Result<Arc<AttachedProgram>, OpenLinkError> {
    let map = XskMap::new(map_size).map_err(interface.error("create a map of sockets for"))?;
    let attach = |shared| {
        let rules = RedirectRules { addrs: config.addrs.clone(), shared };
        let program = load(&rules, &map, has_fragments);
        let program = program.map_err(interface.error("load a program for"))?;
        let (attachment, mode) = attach_program(config, interface, index, &program)?;
        Ok(Arc::new(AttachedProgram {
            name: config.interface.clone(),
            attachment,
            map,
            mode,
            has_fragments,
            addrs: rules.addrs,
            shared: config.shared.clone(),
        }))
    };
    match &config.shared {
        None => attach(None),
        Some(shared) => shared.listeners.attach(|ports| attach(Some(shared.rules(ports)))),
    }
}

fn load(rules: &RedirectRules, map: &XskMap, has_fragments: bool) -> io::Result<BpfProgram> {
    let (program, log) = attach::load(&program::assemble(rules, map.raw()), has_fragments);
    program.map_err(|error| {
        // The verifier's log ends with its reason, and statistics.
        let is_reason = |line: &&str| !line.starts_with("processed ");
        let why = log.lines().rev().find(is_reason).unwrap_or_default().to_owned();
        if why.is_empty() { error } else { io::Error::new(error.kind(), why) }
    })
}

/// Attaches the program in the mode that the configuration names.
fn attach_program(
    config: &XdpConfig,
    interface: &InterfaceControl,
    index: u32,
    program: &BpfProgram,
) -> Result<(BpfAttachment, XdpMode), OpenLinkError> {
    let modes: &[_] = match config.mode {
        None => &[XdpMode::Native, XdpMode::Generic],
        Some(XdpMode::Native) => &[XdpMode::Native],
        Some(XdpMode::Generic) => &[XdpMode::Generic],
    };
    let mut refused = None;
    for &mode in modes {
        match attach::attach(program, index, mode) {
            Ok(attachment) => return Ok((attachment, mode)),
            Err(error) => {
                let is_final = matches!(
                    error.raw_os_error(),
                    Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES)
                );
                refused = Some(error);
                if is_final {
                    break;
                }
            }
        }
    }
    let name = config.interface.clone();
    let error = refused.unwrap_or_else(|| io::ErrorKind::Unsupported.into());
    Err(match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => OpenLinkError::HasXdpProgram { name },
        _ => interface.error("attach an XDP program to")(error),
    })
}

/// Joins the solicited-node groups (RFC 4291 section 2.7.1) of our addresses, so that the interface
/// receives solicitations for them. The kernel joins those of its own addresses.
fn join_groups(config: &XdpConfig, index: u32) -> io::Result<Option<File>> {
    let group = |addr: &IpAddr| match addr {
        IpAddr::V6(v6) if config.shared.is_none() => Some(solicited_node_mac(*v6)),
        _ => None,
    };
    let groups: Vec<_> = config.addrs.iter().filter_map(group).collect();
    if groups.is_empty() { Ok(None) } else { packet_socket::join_groups(index, &groups).map(Some) }
}

const fn solicited_node_mac(addr: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c] = addr.octets();
    [0x33, 0x33, 0xff, a, b, c]
}
