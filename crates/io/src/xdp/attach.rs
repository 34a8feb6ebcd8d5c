//! Types of the XDP program for bpf(2): the map of sockets, and where the kernel runs the program.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::bpf::{BpfAttachment, BpfInstruction, BpfMap, BpfProgram};

/// Types and flags of `linux/bpf.h` and `linux/if_link.h`.
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Where the kernel runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel has a packet of its own.
    Native,
    /// In the kernel's receive path, with any driver.
    Generic,
}

/// Sockets by the queue of the interface.
#[derive(Debug)]
pub(crate) struct XskMap(BpfMap);

impl XskMap {
    /// Creates a map for `queues` queues.
    pub(crate) fn new(queues: u32) -> io::Result<Self> {
        BpfMap::new(BPF_MAP_TYPE_XSKMAP, 4, queues).map(Self)
    }

    /// Sets the socket of a queue. The kernel removes it when the socket is closed.
    pub(crate) fn set(&self, queue: u32, socket: &OwnedFd) -> io::Result<()> {
        let socket = u32::from_ne_bytes(socket.as_raw_fd().to_ne_bytes());
        self.0.set(queue, &[socket])
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.raw()
    }
}

/// Loads an XDP program, for frames of one or more buffers. Returns it, and the log of the verifier
/// if it has refused it.
pub(crate) fn load(
    instructions: &[BpfInstruction],
    has_fragments: bool,
) -> (io::Result<BpfProgram>, String) {
    let flags = if has_fragments { BPF_F_XDP_HAS_FRAGS } else { 0 };
    BpfProgram::load((BPF_PROG_TYPE_XDP, flags), instructions)
}

/// Attaches an XDP program to an interface.
pub(crate) fn attach(
    program: &BpfProgram,
    interface: u32,
    mode: XdpMode,
) -> io::Result<BpfAttachment> {
    let flags = match mode {
        XdpMode::Native => XDP_FLAGS_DRV_MODE,
        XdpMode::Generic => XDP_FLAGS_SKB_MODE,
    };
    program.attach(interface, BPF_XDP, flags)
}
