//! Fuzzes the layout of operations and events: no bytes panic, and what decodes has these bytes as
//! its only encoding.

use abi::PacketPool;
use abi::layout::{self, InlineMemory};

use crate::input::FuzzInput;

/// Runs this fuzz target. The first byte of `data` selects operations or events.
pub fn run(data: &[u8]) {
    let mut input = FuzzInput(data);
    let is_op = input.byte() % 2 == 0;
    let mut memory = InlineMemory { pool: PacketPool::new(1) };
    let mut again = vec![];
    let encoded = if is_op {
        let Ok(mut op) = layout::decode_op(input.0, &mut memory) else { return };
        layout::encode_op(&mut op, &mut memory, &mut again)
    } else {
        let Ok(mut event) = layout::decode_event(input.0, &mut memory) else { return };
        layout::encode_event(&mut event, &mut memory, &mut again)
    };
    assert_eq!(encoded, Ok(()), "everything that decodes is portable");
    assert_eq!(again, input.0, "one encoding");
}
