//! bpf(2): maps and programs.
//!
//! Called by [`crate::tap`] for the selection of queues and by [`crate::xdp`], once per run. Both
//! generate their instructions themselves.
#![expect(unsafe_code, reason = "bpf")]

use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Commands of `linux/bpf.h`.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
#[cfg(test)]
const BPF_PROG_TEST_RUN: libc::c_int = 10;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_UPDATE: libc::c_int = 29;

/// Maximum number of attempts to load a program while signals arrive.
const LOAD_ATTEMPTS_MAX: u32 = 5;

/// An encoded instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct BpfInstruction {
    opcode: u8,
    registers: u8,
    /// Distance of a jump, or offset in memory.
    pub(crate) offset: i16,
    immediate: i32,
}

impl BpfInstruction {
    /// Encodes an instruction with the numbers of its registers.
    pub(crate) const fn new(opcode: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Self {
        // Bit fields of a byte: their order is that of the machine's bytes.
        let registers =
            if cfg!(target_endian = "little") { (from << 4) | to } else { (to << 4) | from };
        Self { opcode, registers, offset, immediate }
    }
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

/// First fields of the argument of `BPF_LINK_UPDATE`.
#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
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

/// A map whose keys are numbers of 32 bits.
#[derive(Debug)]
pub(crate) struct BpfMap {
    map: OwnedFd,
    value_bytes: u32,
}

impl BpfMap {
    /// Creates a map of a type, with the size of its values and the number of its entries.
    pub(crate) fn new(map_type: u32, value_bytes: u32, entries_max: u32) -> io::Result<Self> {
        let mut argument = MapCreate { map_type, key_bytes: 4, value_bytes, entries_max, flags: 0 };
        // SAFETY: no pointers.
        unsafe { bpf(BPF_MAP_CREATE, &mut argument) }.map(|fd| Self { map: owned(fd), value_bytes })
    }

    /// Sets the value of a key.
    ///
    /// # Panics
    /// If `value` has another size than the map's values.
    pub(crate) fn set(&self, key: u32, value: &[u32]) -> io::Result<()> {
        assert_eq!(size_of_val(value), self.value_bytes as usize, "the size of a value");
        let mut argument = MapUpdate {
            map: number(self.raw()),
            _pad: 0,
            key: std::ptr::from_ref(&key) as u64,
            value: value.as_ptr() as u64,
            flags: 0,
        };
        // SAFETY: key and value are live, with the sizes that the map was created with.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut argument) }.map(|_| ())
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.map.as_raw_fd()
    }
}

/// A loaded program. It keeps its maps.
#[derive(Debug)]
pub(crate) struct BpfProgram(OwnedFd);

impl BpfProgram {
    /// Loads a program of a type with flags. Returns it, and the log of the verifier if it has
    /// refused it.
    pub(crate) fn load(
        (program_type, flags): (u32, u32),
        instructions: &[BpfInstruction],
    ) -> (io::Result<Self>, String) {
        let mut log = vec![0_u8; 0];
        let mut result = load((program_type, flags), instructions, &mut log);
        if matches!(&result, Err(e) if e.kind() == io::ErrorKind::InvalidInput) {
            log = vec![0; 64 * 1024];
            result = load((program_type, flags), instructions, &mut log);
        }
        let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
        (result.map(Self), String::from_utf8_lossy(&log[..end]).into_owned())
    }

    /// Attaches the program to an interface.
    pub(crate) fn attach(
        &self,
        interface: u32,
        attach_type: u32,
        flags: u32,
    ) -> io::Result<BpfAttachment> {
        let program = number(self.raw());
        let mut argument = LinkCreate { program, interface, attach_type, flags };
        // SAFETY: no pointers.
        unsafe { bpf(BPF_LINK_CREATE, &mut argument) }.map(|fd| BpfAttachment(owned(fd)))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
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

/// An attached program, which the kernel keeps. It ends when this is dropped, also if the process
/// is killed.
#[derive(Debug)]
pub(crate) struct BpfAttachment(OwnedFd);

impl BpfAttachment {
    /// Replaces the program by another one of its type: the next frame is the new program's.
    pub(crate) fn replace(&self, program: &BpfProgram) -> io::Result<()> {
        let link = number(self.0.as_raw_fd());
        let mut argument = LinkUpdate { link, program: number(program.raw()) };
        // SAFETY: no pointers.
        unsafe { bpf(BPF_LINK_UPDATE, &mut argument) }.map(|_| ())
    }
}

fn load(
    (program_type, flags): (u32, u32),
    instructions: &[BpfInstruction],
    log: &mut Vec<u8>,
) -> io::Result<OwnedFd> {
    let log_bytes = u32::try_from(log.len()).map_err(io::Error::other)?;
    let mut argument = ProgramLoad {
        program_type,
        instructions_count: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: u32::from(log_bytes > 0),
        log_bytes,
        log: if log_bytes > 0 { log.as_mut_ptr() as u64 } else { 0 },
        kernel_version: 0,
        flags,
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
