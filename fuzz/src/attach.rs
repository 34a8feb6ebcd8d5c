//! Fuzzes the messages that attach a program to a device process, and the table of claims: no bytes
//! panic, what decodes has these bytes as its only encoding, and no two programs get the same port.

use abi::attach::{AddressClaim, AttachRefusal, AttachRequest, ClaimedQueue, PortClaim};
use abi::layout::{
    decode_attach_reply, decode_attach_request, encode_attach_reply, encode_attach_request,
};
use nic::switch::ClaimTable;

use crate::input::FuzzInput;

/// Runs this fuzz target. Each message has its length in front (16 bits) and lacks the head, which
/// is that of this version.
pub fn run(data: &[u8]) {
    let mut input = FuzzInput(data);
    let mut claims = ClaimTable::default();
    let mut function = 0;
    let head = head();
    while !input.is_empty() {
        let (kind, len) = (input.byte(), usize::from(input.u16() & 0x3ff));
        let message = [&head[..], input.take(len)].concat();
        if kind & 1 == 0 {
            if let Ok(reply) = decode_attach_reply(&message) {
                assert_eq!(encode_attach_reply(&reply), message, "one encoding");
            }
            continue;
        }
        let Ok(request) = decode_attach_request(&message) else { continue };
        assert_eq!(encode_attach_request(&request), message, "one encoding");
        let granted =
            claims.check(&request.claim).and_then(|()| claims.insert(function, &request.claim));
        if granted.is_ok() {
            function += 1;
            expect_refusal_of_others(&claims, request.claim);
        }
        if function == nic::switch::FUNCTIONS_MAX || kind & 2 != 0 {
            function = function.saturating_sub(1);
            claims.remove(function);
        }
    }
}

/// Asserts that no other program gets a claim that was granted.
fn expect_refusal_of_others(claims: &ClaimTable, granted: AddressClaim) {
    let AddressClaim { addrs, queue, automatic, .. } = granted;
    let all = AddressClaim::new(addrs, PortClaim::All);
    if automatic {
        let other = AddressClaim { automatic, ..all.clone() };
        assert_eq!(claims.check(&other), Err(AttachRefusal::OtherAutomatic));
    }
    if all.addrs.is_empty() {
        return;
    }
    assert_eq!(claims.check(&all), Err(AttachRefusal::Claimed));
    if let Some(queue) = queue {
        // The same queue again, and one of a program with another seed.
        for queue in [queue, ClaimedQueue { seed: !queue.seed, ..queue }] {
            let other = AddressClaim { queue: Some(queue), ..all.clone() };
            assert_eq!(claims.check(&other), Err(AttachRefusal::Claimed));
        }
    }
}

/// Returns the head of each message of this version.
fn head() -> Vec<u8> {
    let claim = AddressClaim::new([].into(), PortClaim::All);
    let request = AttachRequest { root: None, claim, outgoing: None };
    encode_attach_request(&request)[..18].to_vec()
}
