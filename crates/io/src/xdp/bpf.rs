//! bpf(2): the map of sockets, loading and attaching the XDP program.
//!
//! Called once per run. The program is attached by a BPF link, a file descriptor: the kernel
//! detaches it when the descriptor is closed, also if the process is killed.
#![expect(unsafe_code, reason = "bpf")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::program::BpfInstruction;

/// Commands, types and flags of `linux/bpf.h` and `linux/if_link.h`.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
#[cfg(test)]
const BPF_PROG_TEST_RUN: libc::c_int = 10;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Maximum number of attempts to load a program while signals arrive.
const LOAD_ATTEMPTS_MAX: u32 = 5;

/// Where the kernel runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel has a packet of its own.
    Native,
    /// In the kernel's receive path, with any driver.
    Generic,
}

/// First fields of the argument of `BPF_MAP_CREATE`.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

/// First fields of the argument of `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
struct MapUpdate {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// First fields of the argument of `BPF_PROG_LOAD`.
#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instructions_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// First fields of the argument of `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// First fields of the argument of `BPF_PROG_TEST_RUN`.
#[cfg(test)]
#[repr(C)]
struct TestRun {
    program: u32,
    verdict: u32,
    data_in_bytes: u32,
    data_out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration_ns: u32,
}

/// Sockets by the queue of the interface.
#[derive(Debug)]
pub(crate) struct XskMap(OwnedFd);

impl XskMap {
    /// Creates a map for `queues` queues.
    pub(crate) fn new(queues: u32) -> io::Result<Self> {
        let mut argument = MapCreate {
            map_type: BPF_MAP_TYPE_XSKMAP,
            key_bytes: 4,
            value_bytes: 4,
            entries_max: queues,
            flags: 0,
        };
        // SAFETY: no pointers.
        unsafe { bpf(BPF_MAP_CREATE, &mut argument) }.map(|fd| Self(owned(fd)))
    }

    /// Sets the socket of a queue. The kernel removes it when the socket is closed.
    pub(crate) fn set(&self, queue: u32, socket: &OwnedFd) -> io::Result<()> {
        let socket = number(socket.as_raw_fd());
        let mut argument = MapUpdate {
            map: number(self.raw()),
            _pad: 0,
            key: address(&queue),
            value: address(&socket),
            flags: 0,
        };
        // SAFETY: key and value are live, with the sizes that the map was created with.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut argument) }.map(|_| ())
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A loaded program.
#[derive(Debug)]
pub(crate) struct Program(OwnedFd);

impl Program {
    /// Loads an XDP program. Returns it, and the log of the verifier if it has refused it.
    pub(crate) fn load(instructions: &[BpfInstruction]) -> (io::Result<Self>, String) {
        let mut log = vec![0_u8; 0];
        let mut result = load(instructions, &mut log);
        if matches!(&result, Err(e) if e.kind() == io::ErrorKind::InvalidInput) {
            log = vec![0; 64 * 1024];
            result = load(instructions, &mut log);
        }
        let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
        (result.map(Self), String::from_utf8_lossy(&log[..end]).into_owned())
    }

    /// Attaches the program to an interface, until the returned descriptor is closed.
    pub(crate) fn attach(&self, interface: u32, mode: XdpMode) -> io::Result<OwnedFd> {
        let mut argument = LinkCreate {
            program: number(self.0.as_raw_fd()),
            interface,
            attach_type: BPF_XDP,
            flags: match mode {
                XdpMode::Native => XDP_FLAGS_DRV_MODE,
                XdpMode::Generic => XDP_FLAGS_SKB_MODE,
            },
        };
        // SAFETY: no pointers.
        unsafe { bpf(BPF_LINK_CREATE, &mut argument) }.map(owned)
    }

    /// Runs the program on a frame, and returns its verdict.
    #[cfg(test)]
    pub(crate) fn test_run(&self, frame: &[u8]) -> io::Result<u32> {
        let mut argument = TestRun {
            program: number(self.0.as_raw_fd()),
            verdict: 0,
            data_in_bytes: u32::try_from(frame.len()).map_err(io::Error::other)?,
            data_out_bytes: 0,
            data_in: frame.as_ptr() as u64,
            data_out: 0,
            repeat: 1,
            duration_ns: 0,
        };
        // SAFETY: the frame is live, and the kernel writes only to the argument.
        unsafe { bpf(BPF_PROG_TEST_RUN, &mut argument) }.map(|_| argument.verdict)
    }
}

fn load(instructions: &[BpfInstruction], log: &mut Vec<u8>) -> io::Result<OwnedFd> {
    let log_bytes = u32::try_from(log.len()).map_err(io::Error::other)?;
    let mut argument = ProgramLoad {
        program_type: BPF_PROG_TYPE_XDP,
        instructions_count: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: u32::from(log_bytes > 0),
        log_bytes,
        log: if log_bytes > 0 { log.as_mut_ptr() as u64 } else { 0 },
        kernel_version: 0,
        flags: 0,
        name: *b"outboard\0\0\0\0\0\0\0\0",
    };
    let mut attempts = 0;
    loop {
        attempts += 1;
        // SAFETY: instructions, license and log are live for the call, with the lengths given.
        match unsafe { bpf(BPF_PROG_LOAD, &mut argument) } {
            // The verifier gives up when a signal arrives.
            Err(error) if is_interrupted(&error) && attempts < LOAD_ATTEMPTS_MAX => {}
            result => return result.map(owned),
        }
    }
}

fn is_interrupted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR))
}

/// Calls bpf(2). The kernel takes the fields beyond the end of `argument` as zeros.
///
/// # Safety
/// `argument` has the layout that `command` requires, and its pointers are valid for it.
unsafe fn bpf<T>(command: libc::c_int, argument: &mut T) -> io::Result<RawFd> {
    // SAFETY: the pointer and the length are those of `argument`; the caller vouches for the rest.
    let rc = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(argument), size_of::<T>())
    };
    match RawFd::try_from(rc) {
        Ok(fd @ 0..) => Ok(fd),
        _ => Err(io::Error::last_os_error()),
    }
}

fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the callers pass a descriptor that the kernel has just returned, which nothing else
    // owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Returns a descriptor in the type that arguments of bpf(2) have.
const fn number(fd: RawFd) -> u32 {
    u32::from_ne_bytes(fd.to_ne_bytes())
}

fn address<T>(value: &T) -> u64 {
    std::ptr::from_ref(value) as u64
}
