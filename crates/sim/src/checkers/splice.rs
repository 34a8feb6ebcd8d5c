//! Spliced pairs: compares what the proxy's device sends on one connection with what the peer of
//! the other connection sent.
//!
//! Called by [`super::frames`], which follows both connections and still applies its own rules to
//! the peers' frames. For the frames of the device these rules apply, with sequence numbers
//! translated as the host specified when the pair began:
//!
//! - it sends exactly the bytes that the other peer sent, at the same position, and ends its
//!   direction where the other peer did;
//! - it acknowledges only bytes that were acknowledged before, or what the other peer has
//!   acknowledged;
//! - it advertises no larger window than was advertised before, or than the other peer advertises;
//! - SACK blocks cover bytes that the receiver has sent, and are those of the other peer;
//! - it echoes timestamps that the receiver has sent.
//!
//! At the end, no more pairs were reset than peers have reset.
//!
//! Bytes beyond the receiver's window are allowed: the window that the host had advertised stays
//! valid for the other peer, whose own bytes were checked against it. Not checked: frames relayed
//! for a client whose connection is over while a SYN cookie may begin another.

use abi::splice::{Splice, SpliceId, SpliceSide};
use wire::tcp::{TcpFlags, TcpHeader};

use super::frames::{Ends, FrameChecker, ObservedStream, position, window};

/// Translation between the sequence numbers of a connection and those of the other one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplicedStream {
    /// Number of the pair in this run.
    pub(super) number: u64,
    /// Queue of the proxy's host, which numbers its pairs itself.
    queue: usize,
    id: SpliceId,
    /// The proxy's host has been notified of the end: an acknowledgment may then be the host's own,
    /// of a SYN that the peer did not send.
    pub(super) closed: bool,
    other: Ends,
    other_serial: u64,
    here: Bases,
    there: Bases,
    /// Right edge of the window that was advertised to the peer when the pair began.
    edge: u64,
}

/// Positions in a connection's two streams when the pair began: in the proxy's own and in its
/// peer's.
#[derive(Clone, Copy, Debug)]
struct Bases {
    own: u64,
    peer: u64,
}

/// Begins a pair. Returns whether it can be watched.
pub(super) fn begin(wire: &mut FrameChecker, queue: usize, splice: &Splice) -> bool {
    let [a, b] = &splice.sides;
    let found = [a, b].map(|side| {
        let ends = ends(wire, side);
        bases(wire, &ends, side).map(|(bases, serial)| (ends, bases, serial))
    });
    let [Some(a_found), Some(b_found)] = found else { return false };
    let number = wire.pairs;
    for ((side, this), other) in [((a, a_found), b_found), ((b, b_found), a_found)] {
        let (here, there) = (this.1, other.1);
        let edge = here.peer + u64::from(side.own_window);
        let (id, other, other_serial) = (splice.id, other.0, other.2);
        let closed = false;
        let spliced =
            SplicedStream { number, queue, id, closed, other, other_serial, here, there, edge };
        if let Some(flow) = wire.flows.get_mut(&this.0) {
            flow.spliced = Some(spliced);
            // The reset may still be on its way.
            wire.resets.extend(flow.reset_by_peer.then_some(number));
        }
    }
    true
}

/// Ends a pair, or all pairs of a queue at a reset of its device, once the host is notified.
pub(super) fn close(wire: &mut FrameChecker, queue: usize, id: Option<SpliceId>) {
    for spliced in wire.flows.values_mut().filter_map(|flow| flow.spliced.as_mut()) {
        spliced.closed |= spliced.queue == queue && id.is_none_or(|id| spliced.id == id);
    }
}

fn ends(wire: &FrameChecker, side: &SpliceSide) -> Ends {
    let (ours, peer) = (side.tuple.local, side.tuple.remote);
    if ours.port == wire.server_port { (peer, ours) } else { (ours, peer) }
}

/// Returns the index of the proxy's stream in a connection.
fn own(wire: &FrameChecker, ends: &Ends, side: &SpliceSide) -> usize {
    usize::from(ends.1 == side.tuple.local && ends.1.port == wire.server_port)
}

fn bases(wire: &FrameChecker, ends: &Ends, side: &SpliceSide) -> Option<(Bases, u64)> {
    let flow = wire.flows.get(ends).filter(|flow| flow.both && !flow.over)?;
    let index = own(wire, ends, side);
    let (own, peer) = (&flow.streams[index], &flow.streams[1 - index]);
    let bases = Bases { own: position(own, side.snd_nxt)?, peer: position(peer, side.rcv_nxt)? };
    Some((bases, flow.serial))
}

/// Checks a segment that the proxy sends on a connection whose stream `own` is the proxy's. Returns
/// the position of that stream when the pair began; `None` if the connection is not spliced or not
/// checked.
///
/// # Errors
/// Something that the other peer cannot have sent.
pub(super) fn check_segment(
    wire: &FrameChecker,
    ends: &Ends,
    own: usize,
    segment: &TcpHeader,
    payload: &[u8],
) -> Result<Option<u64>, String> {
    let Some(flow) = wire.flows.get(ends) else { return Ok(None) };
    let Some(pair) = flow.spliced else { return Ok(None) };
    let Some(other) = wire.flows.get(&pair.other) else { return Ok(None) };
    if other.serial != pair.other_serial
        || (wire.cookies && (flow.over || other.over || pair.closed))
    {
        return Ok(None);
    }
    // The proxy opened one of the two connections and accepted the other, so stream indices are
    // swapped.
    let source = &other.streams[own];
    let (ours, theirs) = (&flow.streams[own], &flow.streams[1 - own]);
    let Bases { own: base, peer: peer_base } = pair.here;
    let fin = segment.flags.has(TcpFlags::FIN);
    if let Some(at) = position(ours, segment.seq).filter(|_| fin || !payload.is_empty()) {
        check_bytes(source, (at + pair.there.peer).checked_sub(base), payload, fin)?;
        if at < base && theirs.acknowledged < base.min(at + payload.len() as u64) {
            return Err(String::from("relayed bytes where the host's own were not acknowledged"));
        }
    }
    if segment.flags.has(TcpFlags::ACK) {
        let passed = |position: u64| (position + peer_base).saturating_sub(pair.there.own);
        if let Some(ack) = position(theirs, segment.ack) {
            let acknowledged = passed(source.acknowledged).max(peer_base);
            if ack > acknowledged {
                return Err(format!(
                    "an acknowledgment of {ack}, the other peer's is {acknowledged}"
                ));
            }
            let (edge, most) = (ack + window(ours, theirs, segment), passed(source.edge));
            if edge > most.max(pair.edge) {
                return Err(format!("a window to {edge}, the other peer's ends at {most}"));
            }
        }
    }
    check_sack(theirs, source, &pair, segment)?;
    if let Some(ts) = segment.options.timestamps {
        if !theirs.tsvals.contains(&ts.echo) {
            return Err(format!("an echo of {}, which the receiver has not sent", ts.echo));
        }
    }
    Ok(Some(base))
}

/// Checks relayed SACK blocks: `theirs` is the receiver's stream, `source` the other peer's.
fn check_sack(
    theirs: &ObservedStream,
    source: &ObservedStream,
    pair: &SplicedStream,
    segment: &TcpHeader,
) -> Result<(), String> {
    let sent = theirs.sent.len() as u64 + u64::from(theirs.fin_at.is_some());
    for block in segment.options.sack() {
        let edges = position(theirs, block.start).zip(position(theirs, block.end));
        let Some((start, end)) = edges.filter(|&(start, end)| start < end && end <= sent) else {
            return Err(format!("a SACK block of bytes that were never sent: {block:?}, {sent}"));
        };
        if start < pair.here.peer {
            return Err(format!("a SACK block {start}..{end} from before the splice"));
        }
        let there = |position: u64| (position + pair.there.own).checked_sub(pair.here.peer);
        let known = there(start).zip(there(end)).is_some_and(|b| source.sacked.contains(&b));
        if !known {
            return Err(format!("a SACK block {start}..{end} that the other peer has not sent"));
        }
    }
    Ok(())
}

/// Compares relayed bytes with those that the other peer sent at that position.
fn check_bytes(
    source: &ObservedStream,
    at: Option<u64>,
    payload: &[u8],
    fin: bool,
) -> Result<(), String> {
    let Some(at) = at.and_then(|at| usize::try_from(at).ok()) else {
        return Err(String::from("relayed bytes from before the beginning"));
    };
    let end = at + payload.len();
    if !payload.is_empty() && source.sent.get(at..end) != Some(payload) {
        return Err(format!("relayed bytes at {at}..{end} that the other peer did not send"));
    }
    if fin && source.fin_at != Some(end) {
        return Err(format!("a relayed FIN at {end}, the other peer's is at {:?}", source.fin_at));
    }
    Ok(())
}
