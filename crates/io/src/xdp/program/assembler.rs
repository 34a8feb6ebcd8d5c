//! Assembler for BPF programs: instructions with labels, encoded as the kernel expects them (BPF
//! instruction set, RFC 9669).
//!
//! Called by [`super`], once per link. Covers the instructions that our program uses. A program
//! whose jumps do not fit the encoding is an internal error.

use crate::bpf::BpfInstruction;

/// A register.
#[derive(Clone, Copy, Debug)]
pub(super) enum Register {
    /// Result.
    R0,
    /// First argument, and other arguments.
    R1,
    R2,
    R3,
    /// Scratch.
    R4,
    R5,
    /// Kept across calls.
    R6,
    R7,
    R8,
}

/// Size of a load.
#[derive(Clone, Copy, Debug)]
pub(super) enum LoadSize {
    Byte,
    Half,
    Word,
}

/// Condition of a jump that compares the lower 32 bits of a register with a constant.
#[derive(Clone, Copy, Debug)]
pub(super) enum Condition {
    Equal,
    NotEqual,
    Below,
    Above,
    /// A bit of the constant is set.
    AnyBit,
}

/// Position in the program, which may be set after jumps to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

/// A program under construction.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<BpfInstruction>,
    /// Position of each label.
    labels: Vec<Option<usize>>,
    /// Position of each jump, with its label.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// Returns a label without position.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Sets the position of a label to that of the next instruction.
    pub(super) fn place(&mut self, label: Label) {
        let old = self.labels[label.0].replace(self.code.len());
        assert_eq!(old, None, "a label has one position");
    }

    /// Sets the position of a label as [`Self::place`] does, if a jump leads to it. Otherwise
    /// returns false: the instructions there must be omitted, because the verifier refuses
    /// instructions that are never reached.
    pub(super) fn place_if_used(&mut self, label: Label) -> bool {
        let is_used = self.jumps.iter().any(|(_, to)| to.0 == label.0);
        if is_used {
            self.place(label);
        }
        is_used
    }

    /// `to = *(size *)(base + offset)`; the value is in native byte order.
    pub(super) fn load(&mut self, size: LoadSize, to: Register, base: Register, offset: i16) {
        // BPF_LDX | BPF_MEM.
        let opcode = match size {
            LoadSize::Word => 0x61,
            LoadSize::Half => 0x69,
            LoadSize::Byte => 0x71,
        };
        self.push(opcode, to, base, offset, 0);
    }

    /// `to = from`
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.push(0xbf, to, from, 0, 0);
    }

    /// `to = value`
    pub(super) fn set(&mut self, to: Register, value: i32) {
        self.push(0xb7, to, Register::R0, 0, value);
    }

    /// `to += value`
    pub(super) fn add(&mut self, to: Register, value: i32) {
        self.push(0x07, to, Register::R0, 0, value);
    }

    /// `to += from`
    pub(super) fn add_register(&mut self, to: Register, from: Register) {
        self.push(0x0f, to, from, 0, 0);
    }

    /// `to &= value`
    pub(super) fn and(&mut self, to: Register, value: i32) {
        self.push(0x57, to, Register::R0, 0, value);
    }

    /// `to <<= bits`
    pub(super) fn shift_left(&mut self, to: Register, bits: i32) {
        self.push(0x67, to, Register::R0, 0, bits);
    }

    /// `to = be16(to)`: converts a number of the network to the native byte order.
    pub(super) fn convert_be16(&mut self, to: Register) {
        self.push(0xdc, to, Register::R0, 0, 16);
    }

    /// `goto label`
    pub(super) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(0x05, Register::R0, Register::R0, 0, 0);
    }

    /// `if (u32)register CONDITION value goto label`
    pub(super) fn jump_if(
        &mut self,
        register: Register,
        condition: Condition,
        value: i32,
        label: Label,
    ) {
        // BPF_JMP32 | BPF_K.
        let opcode = match condition {
            Condition::Equal => 0x16,
            Condition::NotEqual => 0x56,
            Condition::Below => 0xa6,
            Condition::Above => 0x26,
            Condition::AnyBit => 0x46,
        };
        self.jumps.push((self.code.len(), label));
        self.push(opcode, register, Register::R0, 0, value);
    }

    /// `if pointer > end goto label`, in 64 bits: the comparison from which the verifier derives
    /// how many bytes before `pointer` may be read.
    pub(super) fn jump_if_beyond(&mut self, pointer: Register, end: Register, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(0x2d, pointer, end, 0, 0);
    }

    /// `to = map`, a map of this file descriptor.
    pub(super) fn load_map(&mut self, to: Register, map: i32) {
        // BPF_LD | BPF_IMM | BPF_DW; source BPF_PSEUDO_MAP_FD; it takes two slots.
        self.push(0x18, to, Register::R1, 0, map);
        self.push(0, Register::R0, Register::R0, 0, 0);
    }

    /// `r0 = helper(r1, ..)`
    pub(super) fn call(&mut self, helper: i32) {
        self.push(0x85, Register::R0, Register::R0, 0, helper);
    }

    /// `return r0`
    pub(super) fn exit(&mut self) {
        self.push(0x95, Register::R0, Register::R0, 0, 0);
    }

    /// Returns the instructions, with the distances of all jumps.
    pub(super) fn finish(mut self) -> Vec<BpfInstruction> {
        for (at, label) in self.jumps {
            let to = self.labels[label.0].expect("each label of a jump has a position");
            assert!(to > at, "jumps lead forward, so that the program ends");
            self.code[at].offset = i16::try_from(to - at - 1).expect("a short program");
        }
        self.code
    }

    fn push(&mut self, opcode: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.code.push(BpfInstruction::new(opcode, to as u8, from as u8, offset, immediate));
    }
}
