//! Spliced pairs: what the proxy's device sends on one connection, held against what the peer of
//! the other has sent.
//!
//! Called by [`super::wire`], which follows both connections. Its own rules hold for the peers'
//! frames as ever. For the device's these hold, with numbers mapped as the host said when the pair
//! began:
//!
//! - it sends the very bytes that the other peer sent, at the place where that peer sent them, and
//!   ends its direction where the other peer ended;
//! - it acknowledges what was acknowledged before, or what the other peer has acknowledged;
//! - it offers no more than was offered before, or than the other peer offers;
//! - SACK blocks name bytes that the receiver has sent, and are those that the other peer sent;
//! - it echoes timestamps that the receiver has sent.
//!
//! And at the end: no more pairs were reset than peers have reset.
//!
//! Bytes beyond the receiver's window are allowed: what the host had offered holds for the other
//! peer, whose own bytes were measured by it. Not checked: what is relayed for a client
//! whose connection is over while cookies may make another of it.

use abi::splice::{Splice, SpliceId, SpliceSide};
use wire::tcp::{Flags, Segment};

use super::wire::{Ends, Stream, Wire, position, window};

/// How the numbers of a connection lie to those of the other one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spliced {
    /// Which pair of the world's.
    pub(super) number: u64,
    id: SpliceId,
    /// The proxy's host knows that it has ended: an acknowledgment may be the host's, of a SYN that
    /// is not the peer's.
    pub(super) closed: bool,
    other: Ends,
    other_serial: u64,
    here: Bases,
    there: Bases,
    /// The right edge that was offered to the peer when the pair began.
    edge: u64,
}

/// Where the two streams of a connection were when the pair began: the proxy's own, and its peer's.
#[derive(Clone, Copy, Debug)]
struct Bases {
    own: u64,
    peer: u64,
}

/// A pair begins. Says whether it is watched from here on.
pub(super) fn begin(wire: &mut Wire, splice: &Splice) -> bool {
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
        let spliced = Spliced { number, id, closed: false, other, other_serial, here, there, edge };
        if let Some(flow) = wire.flows.get_mut(&this.0) {
            flow.spliced = Some(spliced);
            // It may still be on its way.
            wire.resets.extend(flow.reset_by_peer.then_some(number));
        }
    }
    true
}

/// The proxy's host hears that a pair has ended, or that all have, in a reset of the device.
pub(super) fn close(wire: &mut Wire, id: Option<SpliceId>) {
    for spliced in wire.flows.values_mut().filter_map(|flow| flow.spliced.as_mut()) {
        spliced.closed |= id.is_none_or(|id| spliced.id == id);
    }
}

fn ends(wire: &Wire, side: &SpliceSide) -> Ends {
    let (ours, peer) = (side.tuple.local, side.tuple.remote);
    if ours.port == wire.server_port { (peer, ours) } else { (ours, peer) }
}

/// Which of a connection's streams is the proxy's.
fn own(wire: &Wire, ends: &Ends, side: &SpliceSide) -> usize {
    usize::from(ends.1 == side.tuple.local && ends.1.port == wire.server_port)
}

fn bases(wire: &Wire, ends: &Ends, side: &SpliceSide) -> Option<(Bases, u64)> {
    let flow = wire.flows.get(ends).filter(|flow| flow.both && !flow.over)?;
    let index = own(wire, ends, side);
    let (own, peer) = (&flow.streams[index], &flow.streams[1 - index]);
    let bases = Bases { own: position(own, side.snd_nxt)?, peer: position(peer, side.rcv_nxt)? };
    Some((bases, flow.serial))
}

/// Looks at a segment that the proxy sends on a connection, of which stream `own` is its own. Gives
/// where its stream was when the pair began; nothing where there is no pair.
///
/// # Errors
/// What no peer can have sent.
pub(super) fn look(
    wire: &Wire,
    ends: &Ends,
    own: usize,
    segment: &Segment,
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
    // The proxy opened one of both and accepted the other.
    let source = &other.streams[own];
    let (ours, theirs) = (&flow.streams[own], &flow.streams[1 - own]);
    let Bases { own: base, peer: peer_base } = pair.here;
    let fin = segment.flags.has(Flags::FIN);
    if let Some(at) = position(ours, segment.seq).filter(|_| fin || !payload.is_empty()) {
        check_bytes(source, (at + pair.there.peer).checked_sub(base), payload, fin)?;
        if at < base && theirs.acknowledged < base.min(at + payload.len() as u64) {
            return Err(String::from("relayed bytes where the host's own were not acknowledged"));
        }
    }
    if segment.flags.has(Flags::ACK) {
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

/// Looks at relayed SACK blocks: `theirs` is the receiver's stream, `source` that of the other
/// peer.
fn check_sack(
    theirs: &Stream,
    source: &Stream,
    pair: &Spliced,
    segment: &Segment,
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

/// Compares what is relayed with what the other peer sent at that place.
fn check_bytes(source: &Stream, at: Option<u64>, payload: &[u8], fin: bool) -> Result<(), String> {
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
