//! Packet socket (packet(7)): a station of its own on an existing Ethernet interface.
//!
//! Frames are received and sent with a virtio-net header (`PACKET_VNET_HDR`), so runs of segments
//! and partial checksums cross as over a TAP; [`crate::vnet`] carries them. The socket receives
//! frames to our link address and multicast, without VLAN tag. The kernel of this machine receives
//! broadcasts too, but ignores frames to our link address; it cannot be reached through the socket.
#![expect(unsafe_code, reason = "socket and bind")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use abi::steering::FlowSteering;

use crate::bpf::BpfProgram;
use crate::interface::{InterfaceControl, low_word};
use crate::open_error::{LinkKind, OpenLinkError};
use crate::queue_steering::{self, KernelSteering};
use crate::socket_option::{get_option, option_len, set_option};
use crate::tap;
use crate::vnet::{LinkOffloads, PacketQueues, VnetLink};

/// Bytes that wait in the kernel in each direction.
const BUFFER_BYTES: libc::c_int = 8 << 20;

/// Configuration of a packet socket.
#[derive(Clone, Debug)]
pub struct PacketSocketConfig {
    /// The interface.
    pub interface: String,
    /// Sockets to open, one per queue of the device, at least 1. The kernel keeps each flow on one.
    pub queues: usize,
    /// The kernel selects the socket as this does, if it can (`PACKET_FANOUT_EBPF`); otherwise by a
    /// hash of its own (`PACKET_FANOUT_HASH`).
    pub steering: Option<Arc<FlowSteering>>,
    /// Our link address.
    pub mac: [u8; 6],
    /// True if runs of segments and partial checksums may be sent. They may be received in any
    /// case: the kernel does not segment for a packet socket.
    pub offloads: bool,
}

/// Opens a socket for each queue.
///
/// # Errors
/// As [`OpenLinkError`] lists them.
pub fn open(config: &PacketSocketConfig) -> Result<Vec<VnetLink>, OpenLinkError> {
    let interface = InterfaceControl::new(LinkKind::PacketSocket, &config.interface)?;
    let index = interface.index()?;
    interface.require_ethernet()?;
    interface.set_flags(libc::IFF_UP)?;
    let mtu = interface.mtu()?;
    // Linux sends runs of datagrams from a virtio-net header since 6.2.
    let udp = config.offloads && tap::kernel_version() >= (6, 2);
    let offloads = LinkOffloads { tcp: config.offloads, udp };
    let queues = config.queues.max(1);
    let mut group = FanoutGroup::new(config.steering.as_deref());
    let mut links = Vec::new();
    for _ in 0..queues {
        let opened = open_socket(index, libc::ETH_P_ALL, &filter(config.mac), |socket| {
            add_membership(socket, index, (libc::PACKET_MR_UNICAST, 6), config.mac)?;
            add_membership(socket, index, (libc::PACKET_MR_ALLMULTI, 0), config.mac)
        });
        let (socket, packet_queues) = opened.map_err(interface.error("receive from"))?;
        if queues > 1 {
            group.join(&socket).map_err(interface.error("spread flows of"))?;
        }
        let link = VnetLink::new(socket, interface.name(), mtu, offloads);
        let steering = group.steering.take();
        links.push(link.with_packet_queues(packet_queues).with_steering(steering));
    }
    Ok(links)
}

/// Makes an interface receive frames to these groups, until the returned descriptor is closed. It
/// receives nothing itself.
pub(crate) fn join_groups(index: u32, groups: &[[u8; 6]]) -> io::Result<File> {
    let socket = unbound_socket()?;
    for group in groups {
        add_membership(&socket, index, (libc::PACKET_MR_MULTICAST, 6), *group)?;
    }
    Ok(socket)
}

/// Opens a socket that receives nothing until it is bound.
fn unbound_socket() -> io::Result<File> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed; the result is checked before use. Protocol 0 receives
    // nothing.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Adds a membership of a kind, with the length of its address.
fn add_membership(
    socket: &File,
    index: u32,
    (kind, len): (libc::c_int, u16),
    mac: [u8; 6],
) -> io::Result<()> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&mac);
    let member = libc::packet_mreq {
        mr_ifindex: signed(index),
        mr_type: u16::from_ne_bytes(low_word(kind)),
        mr_alen: len,
        mr_address: address,
    };
    set_option(socket, (libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP), &member)
}

/// Opens a socket with its queues for the frames of a protocol that pass a filter. `set_up` is
/// called before it is bound.
pub(crate) fn open_socket(
    index: u32,
    protocol: libc::c_int,
    filter: &[libc::sock_filter],
    set_up: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<(File, PacketQueues)> {
    // All options are set before it is bound.
    let socket = unbound_socket()?;
    let on: libc::c_int = 1;
    set_option(&socket, (libc::SOL_PACKET, libc::PACKET_VNET_HDR), &on)?;
    set_option(&socket, (libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING), &on)?;
    attach_filter(&socket, filter)?;
    let buffers =
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)];
    for (forced, limited) in buffers {
        // Without CAP_NET_ADMIN the size is limited by net.core.rmem_max and wmem_max.
        if set_option(&socket, (libc::SOL_SOCKET, forced), &BUFFER_BYTES).is_err() {
            set_option(&socket, (libc::SOL_SOCKET, limited), &BUFFER_BYTES)?;
        }
    }
    set_up(&socket)?;
    let queues = PacketQueues::new(&socket)?;
    bind(&socket, index, protocol)?;
    Ok((socket, queues))
}

/// Binds the socket to a protocol of the interface.
fn bind(socket: &File, index: u32, protocol: libc::c_int) -> io::Result<()> {
    // SAFETY: a sockaddr_ll is plain data, valid as zeros.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::from_ne_bytes(low_word(libc::AF_PACKET));
    address.sll_protocol = u16::from_ne_bytes(low_word(protocol)).to_be();
    address.sll_ifindex = signed(index);
    let len = option_len::<libc::sockaddr_ll>();
    // SAFETY: the pointer and the length are those of `address`.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The group of sockets among which the kernel spreads flows.
struct FanoutGroup {
    /// Selects the socket; `None` if the kernel does so by its own hash.
    program: Option<BpfProgram>,
    /// The table of the program, until a link has it.
    steering: Option<KernelSteering>,
    /// `None` until the first socket has created the group.
    id: Option<u32>,
}

impl FanoutGroup {
    fn new(steering: Option<&FlowSteering>) -> Self {
        // Without the program devices hand frames over to each other.
        let loaded = steering.and_then(|steering| queue_steering::load_for_fanout(steering).ok());
        let (program, steering) = loaded.unzip();
        Self { program, steering, id: None }
    }

    /// Adds a socket; the first creates the group.
    fn join(&mut self, socket: &File) -> io::Result<()> {
        let kind = match self.program {
            Some(_) => libc::PACKET_FANOUT_EBPF,
            None => libc::PACKET_FANOUT_HASH,
        };
        if let Some(id) = self.id {
            return set_option(socket, (libc::SOL_PACKET, libc::PACKET_FANOUT), &(id | kind << 16));
        }
        let create = (kind | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16;
        set_option(socket, (libc::SOL_PACKET, libc::PACKET_FANOUT), &create)?;
        let mut value = 0_u32;
        get_option(socket, (libc::SOL_PACKET, libc::PACKET_FANOUT), &mut value)?;
        // The lower half is the group's ID.
        self.id = Some(value & 0xffff);
        match &self.program {
            Some(program) => queue_steering::attach_to_fanout(socket, program),
            None => Ok(()),
        }
    }
}

/// Attaches a classic BPF program, in place of the former one. That needs no privilege.
pub(crate) fn attach_filter(
    socket: &impl AsRawFd,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    // The kernel reads the instructions.
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    set_option(socket, (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER), &filter)
}

/// Codes of instructions of classic BPF: loads of a 32-bit word, a 16-bit word and a byte at an
/// offset; jumps if the loaded value is equal to the operand, or has one of its bits; the return of
/// the number of bytes to keep.
pub(crate) const LOAD_WORD: u16 = 0x20;
/// See [`LOAD_WORD`].
const LOAD_HALF: u16 = 0x28;
/// See [`LOAD_WORD`].
pub(crate) const LOAD_BYTE: u16 = 0x30;
/// See [`LOAD_WORD`].
pub(crate) const JUMP_IF_EQUAL: u16 = 0x15;
/// See [`LOAD_WORD`].
const JUMP_IF_ANY_BIT: u16 = 0x45;
/// See [`LOAD_WORD`].
pub(crate) const RETURN: u16 = 0x06;

/// Returns an instruction; a jump skips `jt` instructions if its condition holds, and else `jf`.
pub(crate) const fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Returns a program that accepts frames without VLAN tag to our link address, and multicast.
fn filter(mac: [u8; 6]) -> [libc::sock_filter; 9] {
    let [a, b, c, d, e, f] = mac;
    let vlan = libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT;
    let vlan = u32::from_ne_bytes(vlan.to_ne_bytes());
    [
        instruction(LOAD_BYTE, vlan, 0, 0),
        instruction(JUMP_IF_EQUAL, 0, 0, 6),
        instruction(LOAD_WORD, 0, 0, 0),
        // The group bit of the destination.
        instruction(JUMP_IF_ANY_BIT, 0x0100_0000, 3, 0),
        instruction(JUMP_IF_EQUAL, u32::from_be_bytes([a, b, c, d]), 0, 3),
        instruction(LOAD_HALF, 4, 0, 0),
        instruction(JUMP_IF_EQUAL, u32::from_be_bytes([0, 0, e, f]), 0, 1),
        instruction(RETURN, u32::MAX, 0, 0),
        instruction(RETURN, 0, 0, 0),
    ]
}

/// Returns an interface's index in the type that socket addresses have.
const fn signed(index: u32) -> libc::c_int {
    libc::c_int::from_ne_bytes(index.to_ne_bytes())
}
