//! Dispatch of received packets.
//!
//! Called for [`abi::Event::Received`]. The checksum and the addresses of a packet are checked
//! before anything else in it is used. Packets for no service are counted.

use abi::link::RxFrame;
use abi::setup::HandshakeSegment;
use abi::steering::{SegmentHandOver, SteeredFrame, SteeringReason};
use abi::{Checksum, Op, ReceivedFrame};
use core::ops::Range;
use tcp_rules::black_hole::minimum_mtu;
use wire::checksum::pseudo_header;
use wire::frame::{FrameHeaderError, IpPacket, ParsedFrame, protocol};
use wire::tcp::TcpHeader;
use wire::{Endpoint, Tuple};

use super::Services;
use crate::accept::Accept;
use crate::api::SocketError;
use crate::l5p::L5pConnection;
use crate::net::icmp::{IcmpErrorKind, IcmpTcpError};
use crate::net::outbox::Outbox;
use crate::net::{arp, icmp};
use crate::stream::table::{SplicePhase, TupleOwner};
use crate::tcp::conn::TcpEnv;
use crate::tcp::input::RxTcpSegment;
use crate::tcp::state::TcpState;

impl Services {
    #[inline]
    pub(super) fn handle_received(&mut self, cx: &mut TcpEnv<'_>, received: ReceivedFrame) {
        cx.out.counters.received_frames += 1;
        let frame = received.packet.as_slice();
        match wire::frame::parse(frame) {
            Ok(ParsedFrame::Arp { at }) => {
                arp::handle_arp(cx.out, cx.now, &frame[at..]);
                self.offer_to_auto_addrs(cx, frame, received.checksum);
            }
            Ok(ParsedFrame::Ip(ip)) if ip.protocol == protocol::TCP => {
                self.handle_tcp(cx, received, &ip);
                return;
            }
            Ok(ParsedFrame::Ip(ip)) if self.is_for_auto_addrs(cx, frame, &ip) => {
                self.offer_to_auto_addrs(cx, frame, received.checksum);
                if ip.protocol == protocol::ICMPV6 {
                    self.handle_other_ip(cx, frame, &ip);
                }
            }
            Ok(ParsedFrame::Ip(ip)) if ip.protocol == protocol::UDP => {
                self.udp.handle_frame(cx.out, cx.now, received, &ip);
                return;
            }
            Ok(ParsedFrame::Ip(ip)) => self.handle_other_ip(cx, frame, &ip),
            Err(FrameHeaderError::Fragment) => {
                self.reassembly.handle_fragment(cx.out, cx.now, frame);
            }
            Err(_) => cx.out.counters.received_malformed += 1,
        }
        cx.out.recycle.push_back(received.packet);
    }

    fn handle_other_ip(&mut self, cx: &mut TcpEnv<'_>, frame: &[u8], ip: &IpPacket) {
        match ip.protocol {
            protocol::ICMP | protocol::ICMPV6 => {
                if let Some(error) = icmp::handle_icmp(cx.out, cx.now, ip, frame) {
                    self.handle_icmp_error(cx, &error);
                }
            }
            _ => cx.out.counters.received_unknown_protocol += 1,
        }
    }

    /// Dispatches a TCP segment by its tuple.
    #[inline]
    fn handle_tcp(&mut self, cx: &mut TcpEnv<'_>, received: ReceivedFrame, ip: &IpPacket) {
        let Some((segment, tuple, payload)) = check_tcp(cx.out, &received, ip) else {
            cx.out.recycle.push_back(received.packet);
            return;
        };
        let streams = &mut self.streams;
        let (hash, place) = streams.table.look_up(&tuple);
        streams.teardown.ack_teardowns(received.teardowns_taken);
        if place.is_none() && streams.teardown.may_be_untaken(hash) {
            cx.out.counters.hand_over_frames_returned += 1;
            let returned = steered(received, SteeringReason::TornDown);
            cx.out.ops.push_back(Op::Return(returned));
            return;
        }
        if let Some((queue, reason)) = self.other_owner(&received, &segment, place) {
            return hand_over(cx.out, received, tuple, (queue, reason));
        }
        let streams = &mut self.streams;
        let mut arrival = RxTcpSegment {
            segment,
            packets: packets_in(payload.len(), received.segment_size),
            packet: received.packet,
            payload,
            metadata: received.metadata,
            ce: ip.ecn == 3,
        };
        match received.handshake {
            Some(HandshakeSegment::First(established)) => {
                let on = (&tuple, hash);
                match self.accept.accept_established(streams, cx, established, on, place, arrival) {
                    Some(other) => arrival = other,
                    None => return,
                }
            }
            Some(HandshakeSegment::Later) if place.is_none() => {
                // Not a reset: the retransmitted first segment establishes the connection.
                cx.out.counters.tcp_first_segment_missing += 1;
                cx.out.recycle.push_back(arrival.packet);
                return;
            }
            Some(HandshakeSegment::Later) | None => {}
        }
        match place {
            Some(TupleOwner::Connection(index))
                if streams.table.splice_phase(index) != SplicePhase::No =>
            {
                let (checksum, size) = (received.checksum, received.segment_size);
                self.splices.handle_segment(streams, cx, index, arrival, checksum, size);
            }
            Some(TupleOwner::Connection(index)) => streams.deliver(cx, index, arrival),
            Some(TupleOwner::HalfOpen(slot)) => {
                self.accept.handle_half_open(streams, cx, slot, arrival);
            }
            Some(TupleOwner::TimeWait(slot)) => {
                self.accept.handle_time_wait(streams, cx, slot, &tuple, arrival);
            }
            None if received.steered == SteeringReason::TornDown
                && !segment.flags.opens_connection() =>
            {
                // Another segment, which arrived later, has ended the connection on the device.
                cx.out.counters.hand_over_frames_late += 1;
                cx.out.recycle.push_back(arrival.packet);
            }
            None => self.accept.handle_unknown(streams, cx, (&tuple, hash), arrival),
        }
    }

    /// Returns the queue that gets a segment for which this host has no connection, and the reason:
    /// another queue's host may have one, because the entry of the segment's flow was moved
    /// ([`abi::steering`]).
    #[inline]
    fn other_owner(
        &self,
        received: &ReceivedFrame,
        segment: &TcpHeader,
        place: Option<TupleOwner>,
    ) -> Option<(usize, SteeringReason)> {
        let own = self.own_queue.as_ref().filter(|own| own.steering.has_moved())?;
        let has_connection = match place {
            None => false,
            Some(TupleOwner::HalfOpen(slot)) => {
                Accept::is_for_half_open(&self.streams, slot, segment)
            }
            Some(TupleOwner::Connection(_) | TupleOwner::TimeWait(_)) => true,
        };
        let begins = matches!(received.handshake, Some(HandshakeSegment::First(_)));
        let searched =
            matches!(received.steered, SteeringReason::Returned | SteeringReason::TornDown);
        if has_connection || begins || searched {
            return None;
        }
        let owners = own.steering.owners(received.flow_hash);
        if owners.current != own.index {
            return Some((owners.current, SteeringReason::Returned));
        }
        // The current queue's host answers SYNs.
        let former = owners.former.filter(|_| !segment.flags.opens_connection())?;
        Some((former, SteeringReason::Former))
    }

    /// Handles an ICMP error. It is ignored unless it refers to bytes in flight (RFC 5927).
    fn handle_icmp_error(&mut self, cx: &mut TcpEnv<'_>, error: &IcmpTcpError) {
        let streams = &mut self.streams;
        let counted = match streams.table.find(&error.tuple) {
            Some(TupleOwner::Connection(index)) => {
                let id = streams.table.id_of(index);
                streams.with(cx, id, |conn, cx| conn.handle_icmp(cx, error)).unwrap_or(false)
            }
            _ => false,
        };
        if !counted {
            cx.out.counters.icmp_ignored += 1;
        }
    }
}

/// Returns a frame as received, to be handed to a device for this reason.
fn steered(received: ReceivedFrame, reason: SteeringReason) -> SteeredFrame {
    let ReceivedFrame { packet, checksum, segment_size, .. } = received;
    SteeredFrame { frame: RxFrame { packet, checksum, segment_size }, reason }
}

/// Hands a segment without a connection over to another queue.
fn hand_over(
    out: &mut Outbox,
    received: ReceivedFrame,
    tuple: Tuple,
    (queue, reason): (usize, SteeringReason),
) {
    if !received.metadata.is_dispensable() {
        // The other queue's connection would take the plaintext for records.
        out.counters.tcp_handed_over_dropped += 1;
        out.recycle.push_back(received.packet);
        return;
    }
    out.counters.tcp_handed_over += 1;
    let frame = steered(received, reason);
    out.ops.push_back(Op::HandOver(SegmentHandOver { queue, tuple, frame }));
}

/// Checks the checksum, header and addresses of a TCP segment. Returns `None`, after counting, if
/// they are wrong.
#[inline]
fn check_tcp(
    out: &mut Outbox,
    received: &ReceivedFrame,
    ip: &IpPacket,
) -> Option<(TcpHeader, Tuple, Range<usize>)> {
    let frame = received.packet.as_slice();
    let counters = &mut out.counters;
    if !out.net.is_ours(ip.destination) {
        counters.received_not_ours += 1;
        return None;
    }
    let good = match received.checksum {
        Checksum::Good | Checksum::Partial => true,
        Checksum::Bad => false,
        Checksum::Unchecked => {
            counters.checksum_software += 1;
            let len = ip.end - ip.l4;
            let mut sum = pseudo_header(ip.source, ip.destination, protocol::TCP, len);
            sum.add(&frame[ip.l4..ip.end]);
            sum.finish() == 0
        }
    };
    if !good {
        counters.received_bad_checksum += 1;
        return None;
    }
    counters.tcp_in_segs += 1;
    let Ok((segment, header_len)) = TcpHeader::parse(&frame[ip.l4..ip.end]) else {
        counters.tcp_in_errs += 1;
        return None;
    };
    // A multicast or unspecified source is invalid (RFC 1122 section 4.2.3.10).
    if ip.source.is_multicast() || ip.source.is_unspecified() {
        counters.tcp_in_errs += 1;
        return None;
    }
    let tuple = Tuple {
        local: Endpoint { addr: ip.destination, port: segment.destination },
        remote: Endpoint { addr: ip.source, port: segment.source },
    };
    Some((segment, tuple, ip.l4 + header_len..ip.end))
}

/// Returns the number of packets that were coalesced into a frame with this payload.
fn packets_in(payload: usize, segment_size: u16) -> u8 {
    if segment_size == 0 {
        return 1;
    }
    u8::try_from(payload.div_ceil(usize::from(segment_size))).unwrap_or(u8::MAX)
}

impl L5pConnection {
    /// Handles an ICMP error (RFC 1191, RFC 8201, RFC 5461). Returns whether it refers to bytes in
    /// flight.
    fn handle_icmp(&mut self, cx: &mut TcpEnv<'_>, error: &IcmpTcpError) -> bool {
        let ahead = error.seq.distance(self.seq(self.snd.una));
        let in_flight = ahead >= 0 && u64::from(ahead.unsigned_abs()) < self.snd.nxt - self.snd.una;
        if !in_flight {
            return false;
        }
        match error.kind {
            IcmpErrorKind::TooBig(mtu) => self.lower_mtu(cx, mtu),
            // RFC 5461: hard errors abort a connection attempt only; an established connection
            // keeps retransmitting.
            IcmpErrorKind::Refused if self.state == TcpState::SynSent => {
                self.abort(cx, SocketError::Refused);
            }
            IcmpErrorKind::Unreachable if self.state == TcpState::SynSent => {
                self.abort(cx, SocketError::Unreachable);
            }
            IcmpErrorKind::Refused | IcmpErrorKind::Unreachable => {}
        }
        true
    }

    fn lower_mtu(&mut self, cx: &mut TcpEnv<'_>, mtu: u32) {
        // RFC 8201 section 4 and RFC 791: never below the minimum that every link must carry.
        let least = minimum_mtu(self.tuple.local.addr);
        self.handle_packet_too_big(cx, u16::try_from(mtu).unwrap_or(u16::MAX).max(least));
    }
}
