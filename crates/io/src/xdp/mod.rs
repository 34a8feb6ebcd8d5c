//! AF_XDP: frames of an existing interface, taken before the kernel's stack sees them.
//!
//! A small program on the interface (`program`) redirects the frames of our addresses, or of our
//! ports on addresses of the kernel ([`SharedPorts`]), to sockets (`socket`), one for each
//! receive queue of the interface; the kernel receives all others. The stack has the link address
//! of the interface, so the network sees one station.
//!
//! Frames are copied between the memory of the sockets and the buffers of the device. There are no
//! offloads: sent frames have complete checksums, those of received frames are verified by the
//! device, and a frame is one packet. A frame fits one chunk, which limits the MTU.
//!
//! The program and the sockets end with the last queue, or with the process.

mod attach;
mod neighbors;
mod program;
mod ring;
mod socket;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use abi::link::{LinkCaps, RxFrame, TxFrame};
use abi::{Checksum, PacketBuf, PacketPool};
use base::{Duration, Instant};
use wire::ETHERNET_BYTES;

pub use attach::XdpMode;
pub use program::SharedPorts;
pub use socket::XdpTransfer;

use crate::bpf::BpfProgram;
use crate::interface::InterfaceControl;
use crate::link::{Link, LinkTxStatus};
use crate::netlink;
use crate::notify::epoll_any_of;
use crate::open_error::{LinkKind, OpenLinkError};
use crate::packet_socket;
use attach::XskMap;
use neighbors::{KernelNeighbors, NeighborAnswer};
use program::RedirectRules;
use socket::{FRAME_BYTES_MAX, XskReceived, XskSent, XskSocket};

/// Largest MTU.
const MTU_MAX: u16 = 4096 - 256 - 14;
const _: () = assert!(MTU_MAX as usize + ETHERNET_BYTES == FRAME_BYTES_MAX, "a frame fits a chunk");
/// Frames after which the kernel gets the chunks back, and the next socket has its turn.
const RX_BATCH: u32 = 64;
/// Interval at which frames are offered again to an interface that was full.
const BACKLOG_RETRY: Duration = Duration::from_micros(100);

/// Configuration of an AF_XDP link.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The interface.
    pub interface: String,
    /// Queues of the device, at least 1 and at most the receive queues of the interface. Each takes
    /// the frames of one or more queues of the interface.
    pub queues: usize,
    /// Where the program runs; `None` for the driver if it can.
    pub mode: Option<XdpMode>,
    /// Transfer of frames; `None` for zero-copy if the driver can.
    pub transfer: Option<XdpTransfer>,
    /// Our addresses.
    pub addrs: Vec<IpAddr>,
    /// Our ports, if the addresses are the kernel's too.
    pub shared: Option<SharedPorts>,
}

base::counters! {
    /// Counters of one queue of an AF_XDP link.
    pub struct XdpLinkCounters {
        /// Frames sent.
        link_tx_frames,
        /// Bytes sent.
        link_tx_bytes,
        /// Frames for which there was no free memory: the interface is the bottleneck.
        link_tx_full,
        /// Frames that are longer than the memory for a frame.
        link_tx_refused: alarm,
        /// Frames received.
        link_rx_frames,
        /// Bytes received.
        link_rx_bytes,
        /// Descriptors from the kernel that named no memory of a frame.
        link_rx_malformed: alarm,
        /// Solicitations of neighbors that the kernel's table has answered.
        link_neighbors_answered,
        /// Solicitations of neighbors that the kernel did not know yet.
        link_neighbors_unknown,
    }
}

/// The attached program with its map.
#[derive(Debug)]
struct AttachedProgram {
    /// Detaches the program when it is closed.
    _link: OwnedFd,
    _program: BpfProgram,
    map: XskMap,
    mode: XdpMode,
}

/// One queue of an AF_XDP link.
#[derive(Debug)]
pub struct XdpLink {
    sockets: Vec<XskSocket>,
    /// The socket to receive from next.
    next: usize,
    /// Frames received from it in this turn of it.
    received: u32,
    caps: LinkCaps,
    mac: [u8; 6],
    /// Polls readable while one of several sockets does.
    any_readable: Option<OwnedFd>,
    /// Answers solicitations, if the addresses are the kernel's too.
    neighbors: Option<KernelNeighbors>,
    /// Answers that the stack has not received yet.
    answers: VecDeque<Vec<u8>>,
    /// The interface left frames in a ring: time of the next attempt.
    retry_at: Option<Instant>,
    counters: XdpLinkCounters,
    program: Arc<AttachedProgram>,
    /// Keeps memberships of multicast groups.
    _groups: Arc<Option<File>>,
}

/// Opens the link: attaches the program, and binds a socket to each receive queue of the interface.
/// Returns one link for each queue of the device.
///
/// # Errors
/// As [`OpenLinkError`] lists them.
pub fn open(config: &XdpConfig) -> Result<Vec<XdpLink>, OpenLinkError> {
    let interface = InterfaceControl::new(LinkKind::Xdp, &config.interface)?;
    let index = interface.index()?;
    let mac = interface.ethernet_address()?;
    interface.set_flags(libc::IFF_UP)?;
    let mtu = interface.mtu()?;
    if mtu > MTU_MAX {
        let name = config.interface.clone();
        return Err(OpenLinkError::MtuTooLarge { name, mtu, max: MTU_MAX });
    }
    let interface_queues = interface.receive_queues()?;
    let queues = u32::try_from(config.queues.max(1)).unwrap_or(u32::MAX);
    if queues > interface_queues {
        let name = config.interface.clone();
        return Err(OpenLinkError::TooFewQueues { name, has: interface_queues, asked: queues });
    }
    check_addresses(config, &interface)?;
    let program = Arc::new(attach(config, &interface, (index, interface_queues))?);
    let groups = Arc::new(join_groups(config, index).map_err(interface.error("join groups of"))?);
    let caps = LinkCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu };
    let link = |queue| {
        let sockets = (queue..interface_queues)
            .step_by(queues as usize)
            .map(|queue| open_socket(config, &interface, (index, queue), &program))
            .collect::<Result<Vec<_>, _>>()?;
        let any_readable = any_readable(&sockets).map_err(interface.error("poll"))?;
        Ok(XdpLink {
            sockets,
            next: 0,
            received: 0,
            caps,
            mac,
            any_readable,
            neighbors: config.shared.as_ref().map(|_| KernelNeighbors::new(index, mac)),
            answers: VecDeque::new(),
            retry_at: None,
            counters: XdpLinkCounters::default(),
            program: Arc::clone(&program),
            _groups: Arc::clone(&groups),
        })
    };
    (0..queues).map(link).collect()
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
    if shared.listeners.len() > SharedPorts::LISTENERS_MAX {
        let max = SharedPorts::LISTENERS_MAX;
        return Err(OpenLinkError::TooManyPorts { count: shared.listeners.len(), max });
    }
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
    (index, queues): (u32, u32),
) -> Result<AttachedProgram, OpenLinkError> {
    let map = XskMap::new(queues).map_err(interface.error("create a map of sockets for"))?;
    let rules = RedirectRules { addrs: config.addrs.clone(), shared: config.shared.clone() };
    let (program, log) = attach::load(&program::assemble(&rules, map.raw()));
    let program = program.map_err(|error| {
        // The verifier's log ends with its reason, and statistics.
        let is_reason = |line: &&str| !line.starts_with("processed ");
        let why = log.lines().rev().find(is_reason).unwrap_or_default().to_owned();
        let source = if why.is_empty() { error } else { io::Error::new(error.kind(), why) };
        interface.error("load a program for")(source)
    })?;
    let modes: &[_] = match config.mode {
        None => &[XdpMode::Native, XdpMode::Generic],
        Some(XdpMode::Native) => &[XdpMode::Native],
        Some(XdpMode::Generic) => &[XdpMode::Generic],
    };
    let mut refused = None;
    for &mode in modes {
        match attach::attach(&program, index, mode) {
            Ok(link) => return Ok(AttachedProgram { _link: link, _program: program, map, mode }),
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

/// Opens a socket, binds it to a queue of the interface and adds it to the program's map.
fn open_socket(
    config: &XdpConfig,
    interface: &InterfaceControl,
    (index, queue): (u32, u32),
    program: &AttachedProgram,
) -> Result<XskSocket, OpenLinkError> {
    let socket = XskSocket::open().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOBUFS) => OpenLinkError::LockedMemory { name: config.interface.clone() },
        _ => interface.error("open an XDP socket on")(error),
    })?;
    // Frames that the kernel redirects are copied, whatever the driver can.
    let transfer = match (program.mode, config.transfer) {
        (XdpMode::Generic, None) => Some(XdpTransfer::Copy),
        (_, transfer) => transfer,
    };
    socket.bind(index, queue, transfer).map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EINVAL) if transfer == Some(XdpTransfer::ZeroCopy) => {
            OpenLinkError::NoZeroCopy { name: config.interface.clone() }
        }
        _ => interface.error("bind an XDP socket to")(error),
    })?;
    program.map.set(queue, socket.fd()).map_err(interface.error("redirect frames of"))?;
    Ok(socket)
}

fn any_readable(sockets: &[XskSocket]) -> io::Result<Option<OwnedFd>> {
    if sockets.len() == 1 {
        return Ok(None);
    }
    let fds: Vec<_> = sockets.iter().map(|socket| socket.fd().as_raw_fd()).collect();
    epoll_any_of(&fds).map(Some)
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

impl XdpLink {
    /// Returns where the program runs, and whether the interface accesses the memory of frames
    /// itself.
    #[must_use]
    pub fn mode(&self) -> (XdpMode, XdpTransfer) {
        let is_zero_copy = self.sockets.iter().all(XskSocket::is_zero_copy);
        let transfer = if is_zero_copy { XdpTransfer::ZeroCopy } else { XdpTransfer::Copy };
        (self.program.mode, transfer)
    }

    /// Returns whether the frame was a solicitation, which the kernel's table answers.
    fn answer_solicitation(&mut self, frame: &TxFrame) -> bool {
        let Some(neighbors) = &self.neighbors else { return false };
        match neighbors.answer(frame.headers()) {
            NeighborAnswer::NotAsked => return false,
            NeighborAnswer::Asked(Some(answer)) => {
                self.counters.link_neighbors_answered += 1;
                self.answers.push_back(answer);
            }
            NeighborAnswer::Asked(None) => self.counters.link_neighbors_unknown += 1,
        }
        true
    }

    /// Returns a frame of the socket whose turn it is. Without one, the turn passes on.
    fn receive_from_next(&mut self, pool: &mut PacketPool) -> Option<PacketBuf> {
        let socket = self.sockets.get_mut(self.next)?;
        while self.received < RX_BATCH {
            self.received += 1;
            match socket.receive(pool) {
                XskReceived::Frame(packet) => return Some(packet),
                XskReceived::Malformed => self.counters.link_rx_malformed += 1,
                XskReceived::Empty => break,
            }
        }
        socket.refill();
        self.received = 0;
        self.next = (self.next + 1) % self.sockets.len();
        None
    }

    /// Sends the frames that are waiting, and offers those again that the interface had no room
    /// for.
    fn flush(&mut self, now: Instant) {
        let is_due = self.retry_at.is_none_or(|at| at <= now);
        let mut backlog = false;
        for socket in &mut self.sockets {
            socket.flush();
            if is_due {
                socket.flush_backlog();
            }
            backlog |= socket.has_backlog();
        }
        self.retry_at = match (backlog, is_due) {
            (false, _) => None,
            (true, true) => Some(now + BACKLOG_RETRY),
            (true, false) => self.retry_at,
        };
    }
}

impl Link for XdpLink {
    fn capabilities(&self) -> LinkCaps {
        self.caps
    }

    fn transmit(&mut self, _now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        if self.answer_solicitation(frame) {
            return LinkTxStatus::Sent;
        }
        let sent = self.sockets.first_mut().map_or(XskSent::TooLong, |s| s.transmit(frame));
        match sent {
            XskSent::Sent => {
                self.counters.link_tx_frames += 1;
                self.counters.link_tx_bytes += frame.len() as u64;
                LinkTxStatus::Sent
            }
            XskSent::Full => {
                self.counters.link_tx_full += 1;
                LinkTxStatus::Full
            }
            XskSent::TooLong => {
                self.counters.link_tx_refused += 1;
                LinkTxStatus::Failed
            }
        }
    }

    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        if let Some(answer) = self.answers.pop_front() {
            return neighbors::received(&answer, pool);
        }
        self.flush(now);
        // Each socket is asked once more after the last one was full.
        for _ in 0..=self.sockets.len() {
            if let Some(packet) = self.receive_from_next(pool) {
                self.counters.link_rx_frames += 1;
                self.counters.link_rx_bytes += packet.len() as u64;
                return Some(RxFrame { packet, checksum: Checksum::Unchecked, segment_size: 0 });
            }
        }
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    fn pollable(&self) -> Option<RawFd> {
        let one = || self.sockets.first().map(|socket| socket.fd().as_raw_fd());
        self.any_readable.as_ref().map(AsRawFd::as_raw_fd).or_else(one)
    }

    fn link_address(&self) -> Option<[u8; 6]> {
        Some(self.mac)
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        let mut sum = [0; 4];
        for socket in &self.sockets {
            let kernel = socket.statistics();
            let invalid = kernel.rx_invalid_descs + kernel.tx_invalid_descs;
            let counts = [
                kernel.rx_dropped,
                kernel.rx_ring_full,
                kernel.rx_fill_ring_empty_descs,
                invalid + socket.bad_completions(),
            ];
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let [dropped, full, empty, errors] = sum;
        f("link_rx_dropped", dropped);
        f("link_rx_ring_full", full);
        f("link_rx_fill_empty", empty);
        f("link_tx_errors", errors);
        let (mode, transfer) = self.mode();
        f("link_xdp_native", u64::from(mode == XdpMode::Native));
        f("link_xdp_zero_copy", u64::from(transfer == XdpTransfer::ZeroCopy));
    }
}
