//! Quiescing: handed-over connections are reset, and the answer follows after all frames.

use super::*;

/// Returns whether the host was told that the device has nothing left to send.
fn quiesced(rig: &mut Rig) -> bool {
    let events = core::mem::take(&mut rig.events);
    events.iter().any(|(_, event)| matches!(event, Event::Quiesced))
}

#[test]
fn connections_are_reset() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[64]));
    assert_eq!(sent_lines(&mut rig), ["FP. 1000+64 5000"]);
    rig.op(0, Op::Quiesce);
    // A peer that has the segment expects the number after it, one that has not the number before
    // it.
    assert_eq!(sent_lines(&mut rig), ["R. 1000+0 5000", "R. 1065+0 5000"]);
    assert!(quiesced(&mut rig));
    assert_eq!(gauges(&rig), (0, 0));
    assert_eq!(changed_counters(&mut rig), ["teardown_aborted +1"]);
    // One answer for each request.
    rig.collect();
    assert!(!quiesced(&mut rig));
    rig.op(0, Op::Quiesce);
    assert!(quiesced(&mut rig));
}

/// The answer waits for frames that the link has not taken.
#[test]
fn the_answer_comes_last() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[64]));
    sent_lines(&mut rig);
    rig.device.handle_op(rig.now, 0, Op::Quiesce);
    let ask = |rig: &mut Rig| {
        core::iter::from_fn(|| rig.device.poll_event()).any(|(_, e)| matches!(e, Event::Quiesced))
    };
    assert!(!ask(&mut rig), "two resets wait");
    let frame = rig.device.poll_frame(rig.now).unwrap();
    assert!(!ask(&mut rig), "one waits");
    rig.device.unpoll_frame(frame);
    rig.device.poll_frame(rig.now).unwrap();
    assert!(!ask(&mut rig), "the link had no room for the first: one waits still");
    rig.device.poll_frame(rig.now).unwrap();
    assert!(ask(&mut rig));
}

/// A host whose device was reset asks again.
#[test]
fn a_reset_forgets_the_question() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[64]));
    sent_lines(&mut rig);
    rig.device.handle_op(rig.now, 0, Op::Quiesce);
    rig.device.reset();
    rig.collect();
    assert!(!quiesced(&mut rig));
    rig.op(0, Op::Quiesce);
    assert!(quiesced(&mut rig));
}
