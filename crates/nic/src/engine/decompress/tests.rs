//! Tests of decompression with a complete device, and a decoder that repeats each byte.

use abi::aligned::AlignedBuf;
use abi::decompress::{
    DecodeFault, DecodeProgress, Decoder, DecompressId, DecompressJob, DecompressOutcome,
    DecompressRequest,
};
use abi::{Event, Op, Refusal};
use alloc::boxed::Box;
use alloc::vec::Vec;
use testkit::PLAIN_LINK;

use crate::tests::frames::MAC;
use crate::tests::rig::Rig;
use crate::{DecompressConfig, DeviceConfig};

/// Writes each byte twice; a zero byte is malformed.
#[derive(Debug)]
struct Doubler;

impl Decoder for Doubler {
    fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecodeProgress, DecodeFault> {
        let mut consumed = 0;
        for (byte, pair) in input.iter().zip(output.chunks_exact_mut(2)) {
            if *byte == 0 {
                return Err(DecodeFault::Malformed);
            }
            pair.fill(*byte);
            consumed += 1;
        }
        Ok(DecodeProgress { consumed, produced: 2 * consumed, is_complete: true })
    }
}

fn request(id: u64, bytes: &[u8]) -> Op {
    let mut input = AlignedBuf::new(1);
    input.as_mut_slice()[7..7 + bytes.len()].copy_from_slice(bytes);
    let input_range = 7..7 + u32::try_from(bytes.len()).unwrap();
    let (decoder, output) = (Box::new(Doubler), AlignedBuf::new(1));
    let job = DecompressJob { decoder, input, input_range, output, output_start: 4 };
    Op::Decompress(Box::new(DecompressRequest { id: DecompressId(id), job }))
}

/// Returns queue, number, outcome and the first bytes of output of each answer.
fn answers(rig: &mut Rig) -> Vec<(usize, u64, DecompressOutcome, [u8; 4])> {
    let of = |(queue, event)| match event {
        Event::Decompressed(done) => {
            let output = *done.job.output.as_slice()[4..].first_chunk().unwrap();
            Some((queue, done.id.0, done.outcome, output))
        }
        _ => None,
    };
    rig.events.drain(..).filter_map(of).collect()
}

fn rig(decompress: Option<DecompressConfig>) -> Rig {
    let mut config = DeviceConfig::new(MAC);
    (config.queues, config.decompress) = (2, decompress);
    Rig::with(config, PLAIN_LINK)
}

#[test]
fn jobs_are_run_in_order_and_answered_to_their_queue() {
    let mut rig = rig(Some(DecompressConfig::default()));
    for (queue, op) in [(0, request(1, b"ab")), (1, request(2, b"c")), (0, request(3, &[1, 0]))] {
        rig.device.handle_op(rig.now, queue, op);
    }
    assert_eq!(rig.counter("decompress_waiting"), 3);
    assert_eq!(rig.device.poll_timeout(rig.now), Some(rig.now), "a turn is due");
    rig.collect();
    let done = |consumed| {
        let progress = DecodeProgress { consumed, produced: 2 * consumed, is_complete: true };
        DecompressOutcome::Done(progress)
    };
    let expected = [
        (0, 1, done(2), *b"aabb"),
        (1, 2, done(1), *b"cc\0\0"),
        (0, 3, DecompressOutcome::Failed(DecodeFault::Malformed), [1, 1, 0, 0]),
    ];
    let mut all = answers(&mut rig);
    all.sort_by_key(|(_, id, ..)| *id);
    assert_eq!(all, expected);
    assert_eq!((rig.counter("decompress_jobs"), rig.counter("decompress_faults")), (3, 1));
    assert_eq!((rig.counter("decompress_input_bytes"), rig.counter("decompress_bytes")), (3, 6));
    assert_eq!((rig.counter("decompress_waiting"), rig.counter("decompress_refused")), (0, 0));
}

#[test]
fn jobs_that_do_not_fit_are_refused() {
    let config = DecompressConfig { jobs_max: 1, buffer_bytes_max: 4096 };
    let mut rig = rig(Some(config));
    let with = |change: fn(&mut DecompressJob)| {
        let Op::Decompress(mut request) = request(1, b"a") else { unreachable!() };
        change(&mut request.job);
        Op::Decompress(request)
    };
    for op in [
        with(|job| job.input = AlignedBuf::new(2)),
        with(|job| job.output = AlignedBuf::new(2)),
        with(|job| job.input_range = 0..4097),
        with(|job| job.input_range = core::ops::Range { start: 2, end: 1 }),
        with(|job| job.output_start = 4096),
        with(|job| job.output_start = u32::MAX),
    ] {
        rig.op(0, op);
        let outcome = DecompressOutcome::Refused(Refusal::DoesNotFit);
        assert_eq!(answers(&mut rig), [(0, 1, outcome, [0; 4])]);
    }
    rig.device.handle_op(rig.now, 0, request(2, b"a"));
    rig.device.handle_op(rig.now, 0, request(3, b"a"));
    rig.collect();
    let all = answers(&mut rig);
    assert!(all.iter().any(|(_, id, outcome, _)| {
        (*id, *outcome) == (3, DecompressOutcome::Refused(Refusal::TableFull))
    }));
    assert!(all.len() == 2 && rig.counter("decompress_refused") == 7);
}

#[test]
fn a_device_without_the_engine_refuses() {
    let mut rig = rig(None);
    assert_eq!(rig.device.capabilities().decompress, Err(Refusal::Disabled));
    rig.op(1, request(1, b"a"));
    let outcome = DecompressOutcome::Refused(Refusal::Disabled);
    assert_eq!(answers(&mut rig), [(1, 1, outcome, [0; 4])]);
}

/// The host's memory is never lost: answers survive a reset, and waiting jobs are refused.
#[test]
fn jobs_return_at_a_reset_and_when_their_host_quits() {
    let mut rig = rig(Some(DecompressConfig::default()));
    rig.device.handle_op(rig.now, 0, request(1, b"a"));
    assert!(rig.device.poll_frame(rig.now).is_none(), "one job is run");
    rig.device.handle_op(rig.now, 0, request(2, b"b"));
    rig.device.reset();
    rig.collect();
    assert!(matches!(rig.events[0], (0, Event::Reset)));
    let all = answers(&mut rig);
    assert!(matches!(all[0], (0, 1, DecompressOutcome::Done(_), [b'a', b'a', 0, 0])));
    assert_eq!(all[1..], [(0, 2, DecompressOutcome::Refused(Refusal::DeviceReset), [0; 4])]);
    rig.device.handle_op(rig.now, 0, request(3, b"c"));
    rig.device.handle_op(rig.now, 1, request(4, b"d"));
    rig.op(0, Op::Quiesce);
    let all = answers(&mut rig);
    assert!(all.contains(&(0, 3, DecompressOutcome::Refused(Refusal::Ended), [0; 4])));
    assert!(
        all.iter().any(|(_, id, outcome, _)| {
            *id == 4 && matches!(outcome, DecompressOutcome::Done(_))
        })
    );
    assert_eq!((rig.counter("decompress_jobs"), rig.counter("decompress_refused")), (2, 2));
}
