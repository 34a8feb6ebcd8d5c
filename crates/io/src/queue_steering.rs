//! A program in the kernel that selects the queue of a TAP, or the packet socket of a group, by the
//! same hash as the devices.
//!
//! Without it the kernel selects queues by a hash of its own, and devices hand many frames over to
//! each other. [`attach_to_tap`] and [`attach_to_fanout`] load an eBPF program
//! (`TUNSETSTEERINGEBPF`, Linux 4.16; `PACKET_FANOUT_EBPF`) that computes the Toeplitz hash of TCP
//! and UDP over IPv4 and IPv6 from the tables of [`wire::rss::Toeplitz`], and looks up the queue of
//! a TCP flow in a copy of the indirection table, which [`KernelSteering`] keeps up to date. The
//! program only saves the hand-over: if it cannot be loaded (it needs CAP_BPF, and Linux 5.2), and
//! for QUIC, which is steered by connection ID, the devices hand frames over. So they do after an
//! interface was down, when the kernel may put the sockets of a group into another order.
//!
//! Instructions are those of the kernel's `Documentation/bpf/standardization/instruction-set.rst`.

use std::fs::File;
use std::io;

use abi::steering::FlowSteering;

use crate::bpf::{BpfInstruction, BpfMap, BpfProgram};
use crate::interface::ioctl;
use crate::socket_option::set_option;

/// `TUNSETSTEERINGEBPF`: `_IOR('T', 224, int)`.
const TUNSETSTEERINGEBPF: libc::Ioctl = 0x8004_54e0;

const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;

/// Offset of the Ethernet header relative to the packet of a socket filter (`SKF_LL_OFF`), which
/// begins at its network header on receive.
const ETHERNET: i32 = libc::SKF_LL_OFF;

/// Entries of a table, one for each value of a nibble.
const NIBBLE_VALUES: i16 = 16;
/// Bytes of a table.
const TABLE_BYTES: i16 = NIBBLE_VALUES * 4;

/// Operation codes.
mod code {
    /// `dst = src`.
    pub(super) const MOV: u8 = 0xbf;
    /// `dst = imm`.
    pub(super) const MOV_IMM: u8 = 0xb7;
    /// `dst = imm64`, in two instructions.
    pub(super) const LOAD_IMM64: u8 = 0x18;
    pub(super) const SHIFT_RIGHT_IMM: u8 = 0x77;
    pub(super) const SHIFT_LEFT_IMM: u8 = 0x67;
    pub(super) const AND_IMM: u8 = 0x57;
    pub(super) const ADD: u8 = 0x0f;
    pub(super) const XOR: u8 = 0xaf;
    /// `dst = *(u32 *)(src + off)`.
    pub(super) const LOAD_WORD: u8 = 0x61;
    /// `r0 = ` bytes of the packet at `imm`, in host order.
    pub(super) const PACKET_BYTE: u8 = 0x30;
    pub(super) const PACKET_HALF: u8 = 0x28;
    pub(super) const PACKET_WORD: u8 = 0x20;
    /// `r0 = ` word of the packet at `src + imm`.
    pub(super) const PACKET_WORD_INDEXED: u8 = 0x40;
    pub(super) const JUMP: u8 = 0x05;
    pub(super) const JUMP_EQUAL_IMM: u8 = 0x15;
    pub(super) const JUMP_NOT_EQUAL_IMM: u8 = 0x55;
    /// `dst %= imm`.
    pub(super) const MODULO_IMM: u8 = 0x97;
    pub(super) const JUMP_AT_LEAST_IMM: u8 = 0x35;
    pub(super) const EXIT: u8 = 0x95;
}

/// Value of the source register in [`code::LOAD_IMM64`] for the address of a map's value.
const PSEUDO_MAP_VALUE: u8 = 2;

/// A jump whose distance is not known yet, to the label `to`.
#[derive(Clone, Copy)]
struct Jump {
    at: usize,
    to: Label,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    HashV4,
    V6,
    HashV6,
    Table,
    Return,
}

/// The program, while it is written.
#[derive(Default)]
struct Program {
    code: Vec<BpfInstruction>,
    jumps: Vec<Jump>,
}

impl Program {
    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.code.push(BpfInstruction::new(code, to, from, offset, immediate));
    }

    /// Jumps on a condition of register 0.
    fn jump(&mut self, code: u8, immediate: i32, to: Label) {
        self.jump_on(0, code, immediate, to);
    }

    fn jump_on(&mut self, register: u8, code: u8, immediate: i32, to: Label) {
        self.jumps.push(Jump { at: self.code.len(), to });
        self.push(code, register, 0, 0, immediate);
    }

    /// Sets the distances of the jumps to a label, which is here.
    fn label(&mut self, label: Label) {
        let here = self.code.len();
        for jump in self.jumps.iter().filter(|jump| jump.to == label) {
            let distance = i16::try_from(here - jump.at - 1).unwrap_or(i16::MAX);
            if let Some(jump) = self.code.get_mut(jump.at) {
                jump.offset = distance;
            }
        }
    }

    /// Adds the word in register 0 to the hash in register 7, by the tables from `nibble` on, whose
    /// address is in register 8.
    fn hash_word(&mut self, nibble: i16) {
        for index in 0..8 {
            self.push(code::MOV, 1, 0, 0, 0);
            self.push(code::SHIFT_RIGHT_IMM, 1, 0, 0, 28 - 4 * i32::from(index));
            self.push(code::AND_IMM, 1, 0, 0, i32::from(NIBBLE_VALUES - 1));
            self.push(code::SHIFT_LEFT_IMM, 1, 0, 0, 2);
            self.push(code::ADD, 1, 8, 0, 0);
            self.push(code::LOAD_WORD, 2, 1, (nibble + index) * TABLE_BYTES, 0);
            self.push(code::XOR, 7, 2, 0, 0);
        }
    }

    /// Continues at `transport` if the byte at `offset` is TCP or UDP; returns the hash zero
    /// otherwise.
    fn check_protocol(&mut self, offset: i32, transport: Label) {
        self.push(code::PACKET_BYTE, 0, 0, 0, offset);
        self.jump(code::JUMP_EQUAL_IMM, 6, transport);
        self.jump(code::JUMP_NOT_EQUAL_IMM, 17, Label::Return);
        self.label(transport);
    }

    /// Continues at the indirection table if the byte at `offset` is TCP; returns the hash
    /// otherwise, of which the kernel computes the queue.
    fn leave_if_not_tcp(&mut self, offset: i32) {
        self.push(code::PACKET_BYTE, 0, 0, 0, offset);
        self.jump(code::JUMP_NOT_EQUAL_IMM, 6, Label::Return);
    }

    /// Replaces the hash in register 7 by the queue of its entry. The table is behind `tables`
    /// tables of the hash function.
    fn look_up(&mut self, tables: i16, entries: i32) {
        self.push(code::MODULO_IMM, 7, 0, 0, entries);
        // Never taken: the kernel's verifier does not follow the remainder.
        self.jump_on(7, code::JUMP_AT_LEAST_IMM, entries, Label::Return);
        self.push(code::MOV, 1, 7, 0, 0);
        self.push(code::SHIFT_LEFT_IMM, 1, 0, 0, 2);
        self.push(code::ADD, 1, 8, 0, 0);
        self.push(code::LOAD_WORD, 7, 1, tables * TABLE_BYTES, 0);
    }

    /// Hashes an IPv4 packet.
    fn v4(&mut self, base: i32) {
        self.check_protocol(base + 23, Label::HashV4);
        // Fragments: more fragments, or an offset.
        self.push(code::PACKET_HALF, 0, 0, 0, base + 20);
        self.push(code::AND_IMM, 0, 0, 0, 0x3fff);
        self.jump(code::JUMP_NOT_EQUAL_IMM, 0, Label::Return);
        // The length of the header, to register 9.
        self.push(code::PACKET_BYTE, 0, 0, 0, base + 14);
        self.push(code::AND_IMM, 0, 0, 0, 15);
        self.push(code::SHIFT_LEFT_IMM, 0, 0, 0, 2);
        self.push(code::MOV, 9, 0, 0, 0);
        self.push(code::PACKET_WORD, 0, 0, 0, base + 26);
        self.hash_word(0);
        self.push(code::PACKET_WORD, 0, 0, 0, base + 30);
        self.hash_word(8);
        self.push(code::PACKET_WORD_INDEXED, 0, 9, 0, base + 14);
        self.hash_word(16);
        self.leave_if_not_tcp(base + 23);
    }

    /// Hashes an IPv6 packet without extension headers.
    fn v6(&mut self, base: i32) {
        self.check_protocol(base + 20, Label::HashV6);
        for word in 0..9_i16 {
            self.push(code::PACKET_WORD, 0, 0, 0, base + 22 + 4 * i32::from(word));
            self.hash_word(word * 8);
        }
        self.leave_if_not_tcp(base + 20);
    }
}

/// Returns the program for tables in the map `map`. `base` is the offset of the Ethernet header.
fn program(map: &BpfMap, base: i32, steering: &FlowSteering) -> Vec<BpfInstruction> {
    let mut program = Program::default();
    // Loads from the packet expect their context in register 6, and keep registers 6 to 9.
    program.push(code::MOV, 6, 1, 0, 0);
    program.push(code::LOAD_IMM64, 8, PSEUDO_MAP_VALUE, 0, map.raw());
    program.push(0, 0, 0, 0, 0);
    program.push(code::MOV_IMM, 7, 0, 0, 0);
    program.push(code::PACKET_HALF, 0, 0, 0, base + 12);
    program.jump(code::JUMP_EQUAL_IMM, 0x86dd, Label::V6);
    program.jump(code::JUMP_NOT_EQUAL_IMM, 0x0800, Label::Return);
    program.v4(base);
    program.jump(code::JUMP, 0, Label::Table);
    program.label(Label::V6);
    program.v6(base);
    program.label(Label::Table);
    let tables = i16::try_from(steering.rss().tables().len()).unwrap_or(i16::MAX);
    let entries = i32::try_from(steering.entries()).unwrap_or(i32::MAX);
    program.look_up(tables, entries);
    program.label(Label::Return);
    program.push(code::MOV, 0, 7, 0, 0);
    program.push(code::EXIT, 0, 0, 0, 0);
    program.code
}

/// The tables of the program in the kernel: those of the hash function, then the queue of each
/// entry of the indirection table.
#[derive(Debug)]
pub(crate) struct KernelSteering {
    map: BpfMap,
    /// Changes of the indirection table that the map has.
    changes: u32,
}

impl KernelSteering {
    fn new(steering: &FlowSteering) -> io::Result<Self> {
        let changes = steering.changes();
        let values = map_values(steering);
        let value_bytes = u32::try_from(size_of_val(&values[..])).map_err(io::Error::other)?;
        let map = BpfMap::new(BPF_MAP_TYPE_ARRAY, value_bytes, 1)?;
        map.set(0, &values)?;
        Ok(Self { map, changes })
    }

    /// Copies the indirection table, if it has changed. An error leaves the old copy, and the
    /// devices hand frames over.
    pub(crate) fn follow(&mut self, steering: &FlowSteering) {
        let changes = steering.changes();
        if changes != self.changes && self.map.set(0, &map_values(steering)).is_ok() {
            self.changes = changes;
        }
    }
}

fn map_values(steering: &FlowSteering) -> Vec<u32> {
    let tables = steering.rss().tables().iter().flatten().copied();
    let owner = |entry| steering.owners_of_entry(entry).current;
    let queues = (0..steering.entries()).map(|n| u32::try_from(owner(n)).unwrap_or(u32::MAX));
    tables.chain(queues).collect()
}

fn load(steering: &FlowSteering, base: i32) -> io::Result<(BpfProgram, KernelSteering)> {
    let kernel = KernelSteering::new(steering)?;
    let code = program(&kernel.map, base, steering);
    Ok((BpfProgram::load((BPF_PROG_TYPE_SOCKET_FILTER, 0), &code).0?, kernel))
}

/// Makes the kernel select the queues of a TAP as the devices do. `queue` is one of its
/// descriptors; they were opened in the order of the queues. Returns the tables in the kernel.
///
/// # Errors
/// If the kernel refuses the program, which leaves its own selection in place.
pub(crate) fn attach_to_tap(queue: &File, steering: &FlowSteering) -> io::Result<KernelSteering> {
    let (program, kernel) = load(steering, 0)?;
    let mut descriptor = program.raw();
    ioctl(queue, TUNSETSTEERINGEBPF, &mut descriptor)?;
    Ok(kernel)
}

/// Makes the kernel select the packet socket of a group by the hash of the devices. `socket` is one
/// of the group, whose kind is `PACKET_FANOUT_EBPF`; they have joined in the order of the queues.
///
/// # Errors
/// If the kernel refuses the program; all frames go to the first socket then.
pub(crate) fn attach_to_fanout(socket: &File, program: &BpfProgram) -> io::Result<()> {
    set_option(socket, (libc::SOL_PACKET, libc::PACKET_FANOUT_DATA), &program.raw())
}

/// Loads the program for a group of packet sockets. Also returns its tables.
///
/// # Errors
/// If the kernel refuses the program.
pub(crate) fn load_for_fanout(steering: &FlowSteering) -> io::Result<(BpfProgram, KernelSteering)> {
    load(steering, ETHERNET)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use base::Prng;
    use wire::{Endpoint, Tuple};

    use super::*;

    /// Returns a packet of the tuple, with `options` words of IPv4 options.
    fn packet(tuple: &Tuple, protocol: u8, options: u8) -> Vec<u8> {
        let mut packet = vec![2; 12];
        match (tuple.remote.addr, tuple.local.addr) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                packet.extend([8, 0, 0x45 + options, 0, 0, 60, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
                packet.extend([from.octets(), to.octets()].concat());
                packet.extend(vec![1; usize::from(options) * 4]);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, protocol, 64]);
                packet.extend([from.octets(), to.octets()].concat());
            }
            _ => unreachable!("one family"),
        }
        packet.extend([tuple.remote.port.to_be_bytes(), tuple.local.port.to_be_bytes()].concat());
        packet.extend([7; 40]);
        packet
    }

    /// The kernel's verifier accepts the program, and it selects the devices' queues, also after
    /// entries were moved.
    #[test]
    fn the_kernel_selects_the_queues_of_the_devices() {
        let steering = FlowSteering::new(99, 3);
        // As on receive, a test run removes the Ethernet header from the packet.
        let (program, mut kernel) = match load_for_fanout(&steering) {
            Ok(program) => program,
            // Without CAP_BPF there is no program to test.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
            Err(error) => panic!("{error}"),
        };
        let r = &mut Prng::new(5);
        for round in 0..200_u8 {
            if round == 100 {
                let moved = (0..steering.entries()).filter(|&n| steering.move_entry(n, 2 - n % 3));
                assert_eq!(moved.count(), 340);
                kernel.follow(&steering);
            }
            let mut addr = |v6: bool| -> IpAddr {
                let bytes = [r.next_u64().to_le_bytes(), r.next_u64().to_le_bytes()].concat();
                let bytes: [u8; 16] = bytes.try_into().unwrap();
                if v6 { bytes.into() } else { [bytes[0], bytes[1], bytes[2], bytes[3]].into() }
            };
            let (from, to) = (addr(round % 2 == 1), addr(round % 2 == 1));
            let [a, b, c, d, ..] = r.next_u64().to_le_bytes();
            let remote = Endpoint { addr: from, port: u16::from_le_bytes([a, b]) };
            let local = Endpoint { addr: to, port: u16::from_le_bytes([c, d]) };
            let tuple = Tuple { local, remote };
            let hash = steering.hash(&tuple);
            let queue = u32::try_from(steering.queue_of(&tuple)).unwrap();
            for (protocol, expected) in [(6, queue), (17, hash)] {
                let frame = packet(&tuple, protocol, round % 3);
                assert_eq!(program.test_run(&frame).unwrap(), expected, "{tuple:?}");
            }
            assert_eq!(program.test_run(&packet(&tuple, 1, 0)).unwrap(), 0, "ICMP has no ports");
        }
        let mut arp = vec![0xff; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(program.test_run(&arp).unwrap(), 0);
    }
}
