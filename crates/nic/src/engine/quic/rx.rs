//! Received datagrams: routing, decryption and ordering.
//!
//! Called by [`crate::Device`] for each UDP datagram while any entry receives. Datagrams that are
//! not decrypted, such as handshake packets, stateless resets and forgeries, are not changed and
//! are delivered at once.
//!
//! *Order.* A decrypted packet is delivered at once if it is the next, or below those delivered.
//! Otherwise it waits in its connection's [`structures::ReorderWindow`] until the missing packets
//! have arrived or a bound set by the host is reached. Then gaps are abandoned, oldest first, and
//! no more than the bound requires, so a packet that is late after a lost one is still awaited.
//! Packet numbers may have permanent gaps (RFC 9000 section 12.3), which the time bound ends.
//!
//! *Workers.* [`QuicEngine::prepare`] makes a packet decryptable before the packets that arrived
//! before it were processed: it assumes that they change neither the meaning of its packet number
//! nor its keys. [`QuicEngine::receive`] checks the assumption, in the order of arrival. If it was
//! wrong, the packet is encrypted again and processed as if it had not been decrypted.

use abi::{PacketBuf, ReceivedFrame};
use alloc::sync::Arc;
use base::{Instant, internal_error};
use wire::UDP_BYTES;

use super::jobs::QuicOpenPacket;
use super::keys::{QuicAhead, QuicDecryptFailure};
use super::table::{QuicEntry, QuicEntryKind, QuicReceiver, ReorderState, RouteLookup};
use super::{QuicDatagram, QuicEngine, WaitingDatagram};
use crate::pipeline::headers::u16_at;
use crate::pipeline::rx::{RxTransport, TransportPosition};
use structures::WindowPosition;
use structures::slab::SlabKey;

/// Minimum size of a datagram for workers. To pass a smaller one to another core takes longer than
/// to decrypt it.
const AHEAD_BYTES_MIN: usize = 512;

/// Reason for which gaps are abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GapGiveUpReason {
    Packets,
    Bytes,
    Time,
    Full,
}

/// The entry that a datagram belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuicEntryMatch {
    key: SlabKey,
    id_len: usize,
    /// Queue of the host that has the connection and gets the datagram.
    pub(crate) queue: usize,
}

impl QuicEngine {
    /// Returns whether any entry receives.
    pub(crate) fn has_routes(&self) -> bool {
        self.table.routes() > 0
    }

    /// Returns the entry of a datagram, or `None` if the datagram is to be passed on unchanged.
    pub(crate) fn find(
        &mut self,
        received: &ReceivedFrame,
        at: &TransportPosition,
    ) -> Option<QuicEntryMatch> {
        let (found, good) = self.find_route(received, at);
        if found == RouteLookup::NotOurs {
            return None;
        }
        match found {
            _ if !good => self.counters.quic_rx_bad_udp += 1,
            RouteLookup::NotOurs | RouteLookup::NotShort => self.counters.quic_rx_not_short += 1,
            RouteLookup::Unknown => self.counters.quic_rx_unknown_id += 1,
            RouteLookup::Entry(key, id_len) => {
                let queue = self.table.get(key)?.queue;
                return Some(QuicEntryMatch { key, id_len, queue });
            }
        }
        None
    }

    /// Routes a datagram, and returns whether its UDP header is correct.
    fn find_route(&self, received: &ReceivedFrame, at: &TransportPosition) -> (RouteLookup, bool) {
        let bytes = received.packet.as_slice();
        let packet = bytes.get(at.l4 + UDP_BYTES..at.end).unwrap_or_default();
        let found = self.table.find_packet(&at.tuple, packet);
        // A zero checksum means none (RFC 768); the packet's tag covers the payload.
        let whole = u16_at(bytes, at.l4 + 4).map(usize::from) == Some(at.end - at.l4);
        (found, whole && received.checksum != abi::Checksum::Bad && received.segment_size == 0)
    }

    /// Takes the packet of a frame, as number `frame` of a set, to be decrypted by workers. Returns
    /// `None`, and leaves the packet in the frame, if it cannot be decrypted or is short.
    pub(crate) fn prepare(
        &self,
        received: &mut ReceivedFrame,
        transport: &RxTransport,
        frame: usize,
    ) -> Option<QuicOpenPacket> {
        let RxTransport::Udp(at) = transport else { return None };
        let range = at.l4 + UDP_BYTES..at.end;
        if !self.has_routes() || range.len() < AHEAD_BYTES_MIN {
            return None;
        }
        let (RouteLookup::Entry(key, id_len), true) = self.find_route(received, at) else {
            return None;
        };
        let entry = self.table.get(key)?;
        let QuicEntryKind::Receive(receive) = &entry.kind else { return None };
        let bytes = received.packet.as_slice().get(range.clone())?;
        let header = entry.keys.unprotect(bytes, id_len).ok()?;
        let (number, keys) = entry.keys.select(&receive.numbers, &header).ok()?;
        let text = range.start + header.as_slice().len()..range.end;
        let ahead = QuicAhead { keys: Arc::clone(keys), header, number, opened: None };
        let packet = core::mem::replace(&mut received.packet, PacketBuf::empty());
        Some(QuicOpenPacket { packet, text, ahead, frame })
    }

    /// Returns the packet of a frame that workers had. The frame is the next to be received.
    pub(crate) fn put_back(&mut self, received: &mut ReceivedFrame, opened: QuicOpenPacket) {
        received.packet = opened.packet;
        self.ahead = Some(opened.ahead);
    }

    /// Decrypts a datagram. Returns it if it is to be delivered now, before those in
    /// [`QuicEngine::poll_datagram`].
    pub(super) fn receive(
        &mut self,
        now: Instant,
        hit: QuicEntryMatch,
        received: ReceivedFrame,
        at: &TransportPosition,
        ahead: Option<QuicAhead>,
    ) -> Option<QuicDatagram> {
        let (l3, l4, end) = (at.l3, at.l4, at.end);
        let mut datagram = QuicDatagram { received, decrypted: None, l3, l4, end };
        let entry = self.table.get_mut(hit.key);
        let Some(QuicEntry { name, keys, kind: QuicEntryKind::Receive(receive), .. }) = entry
        else {
            internal_error!(self.counters.nic_internal_errors, "a route to no receiving entry");
            return Some(datagram);
        };
        let packet = datagram.received.packet.as_mut_slice();
        let packet = packet.get_mut(at.l4 + UDP_BYTES..at.end).unwrap_or_default();
        let len = packet.len() as u64;
        let is_ahead = ahead.is_some();
        let known = ahead.and_then(|ahead| keys.accept(&mut receive.numbers, packet, ahead));
        self.counters.quic_rx_ahead_wrong += u64::from(is_ahead && known.is_none());
        let opened = known.unwrap_or_else(|| {
            keys.decrypt(&mut receive.numbers, packet, hit.id_len, &mut self.scratch)
        });
        let number = match opened {
            Ok(number) => number,
            Err(why) => {
                let c = &mut self.counters;
                *match why {
                    QuicDecryptFailure::TooShort => &mut c.quic_rx_too_short,
                    QuicDecryptFailure::UnknownKeys => &mut c.quic_rx_unknown_keys,
                    QuicDecryptFailure::BadTag => &mut c.quic_rx_bad_tag,
                } += 1;
                return Some(datagram);
            }
        };
        self.counters.quic_rx_opened += 1;
        self.counters.quic_rx_opened_bytes += len;
        datagram.decrypted = Some((*name, number));
        // Trailing bytes of the frame would separate it from a merged datagram.
        datagram.received.packet.truncate(end);
        self.arrange(now, hit.key, number, datagram)
    }

    /// Returns a datagram that is to be delivered now, or queues it.
    fn arrange(
        &mut self,
        now: Instant,
        key: SlabKey,
        number: u64,
        datagram: QuicDatagram,
    ) -> Option<QuicDatagram> {
        let Some(order) = order_of(self.table.get_mut(key)) else { return Some(datagram) };
        match order.window.position(number) {
            WindowPosition::Behind => self.counters.quic_behind += 1,
            WindowPosition::Taken => self.counters.quic_duplicates += 1,
            WindowPosition::Next => {
                order.window.advance_past(number);
                if order.window.waiting() > 0 {
                    self.release_ready(now, key);
                }
            }
            WindowPosition::Beyond => {
                let floor = order.window.floor_for(number);
                self.give_up_below(now, key, floor, GapGiveUpReason::Packets);
                self.arrange_within(now, key, number, datagram);
                return None;
            }
            WindowPosition::Ahead => {
                self.wait(now, key, number, datagram);
                return None;
            }
        }
        Some(datagram)
    }

    /// Queues a datagram behind others that were just released. Its number lies in the window.
    fn arrange_within(&mut self, now: Instant, key: SlabKey, number: u64, datagram: QuicDatagram) {
        let entry = self.table.get_mut(key).map(|entry| (entry.queue, order_of(Some(entry))));
        let Some((queue, Some(order))) = entry else {
            internal_error!(self.counters.nic_internal_errors, "a window of no entry");
            return;
        };
        if order.window.position(number) == WindowPosition::Ahead {
            return self.wait(now, key, number, datagram);
        }
        order.window.advance_past(number);
        self.ready.push_back((queue, datagram));
        self.release_ready(now, key);
    }

    /// Makes a datagram wait, and abandons gaps if a bound is exceeded.
    fn wait(&mut self, now: Instant, key: SlabKey, number: u64, datagram: QuicDatagram) {
        let full = self.waiting.len() >= self.config.waiting_datagrams_max as usize;
        let Some(order) = order_of(self.table.get_mut(key)) else {
            internal_error!(self.counters.nic_internal_errors, "a window of no entry");
            return;
        };
        let bytes = datagram.bytes();
        let first = order.window.waiting() == 0;
        let bounds = order.bounds;
        let place = self.waiting.insert(WaitingDatagram { datagram, arrived: now });
        order.window.insert(number, place.index());
        order.bytes = order.bytes.saturating_add(bytes);
        self.waiting_bytes += u64::from(bytes);
        self.counters.quic_waited += 1;
        if first {
            self.alarms.set(key.index(), now + bounds.time);
        }
        if full {
            self.give_up_first(now, key, GapGiveUpReason::Full);
        }
        let too_many = |order: &mut ReorderState| order.bytes > bounds.bytes;
        while order_of(self.table.get_mut(key)).is_some_and(too_many) {
            self.give_up_first(now, key, GapGiveUpReason::Bytes);
        }
    }

    /// Releases the datagrams that follow the delivered ones without a gap.
    fn release_ready(&mut self, now: Instant, key: SlabKey) {
        while let Some(place) = order_of(self.table.get_mut(key)).and_then(|o| o.window.pop_next())
        {
            self.counters.quic_reordered += 1;
            self.make_ready(now, key, place);
        }
        self.clear_idle_alarm(key);
    }

    /// Abandons the oldest gap and releases the datagrams that waited only for it.
    fn give_up_first(&mut self, now: Instant, key: SlabKey, why: GapGiveUpReason) {
        let order = order_of(self.table.get_mut(key));
        let first = order.and_then(|order| order.window.values().next());
        if let Some((number, _)) = first {
            self.give_up_below(now, key, number, why);
        }
    }

    /// Abandons the gaps below `floor` and releases the datagrams that waited only for them.
    fn give_up_below(&mut self, now: Instant, key: SlabKey, floor: u64, why: GapGiveUpReason) {
        let c = &mut self.counters;
        *match why {
            GapGiveUpReason::Packets => &mut c.quic_gap_given_up_packets,
            GapGiveUpReason::Bytes => &mut c.quic_gap_given_up_bytes,
            GapGiveUpReason::Time => &mut c.quic_gap_given_up_time,
            GapGiveUpReason::Full => &mut c.quic_gap_given_up_full,
        } += 1;
        let next = |order: &mut ReorderState| {
            order.window.pop_below(floor).or_else(|| order.window.pop_next())
        };
        while let Some(place) = order_of(self.table.get_mut(key)).and_then(next) {
            self.make_ready(now, key, place);
        }
        self.clear_idle_alarm(key);
    }

    /// Releases all waiting datagrams of a connection in order, because it is removed.
    pub(super) fn deliver_waiting(&mut self, now: Instant, key: SlabKey) {
        while let Some(place) = order_of(self.table.get_mut(key)).and_then(|o| o.window.pop_first())
        {
            self.make_ready(now, key, place);
        }
        self.clear_idle_alarm(key);
    }

    /// Moves a datagram, which has left the window, to the ready queue.
    fn make_ready(&mut self, now: Instant, key: SlabKey, place: u32) {
        let waiting = self.waiting.key_at(place).and_then(|key| self.waiting.remove(key));
        let Some(WaitingDatagram { datagram, arrived }) = waiting else {
            internal_error!(self.counters.nic_internal_errors, "a place of no datagram");
            return;
        };
        self.counters.quic_waited_ns += now.since(arrived).as_nanos();
        let bytes = datagram.bytes();
        self.waiting_bytes -= u64::from(bytes);
        if let Some(order) = order_of(self.table.get_mut(key)) {
            order.bytes -= bytes;
        }
        let queue = self.table.get(key).map_or(0, |entry| entry.queue);
        self.ready.push_back((queue, datagram));
    }

    /// Clears the deadline of a connection without waiting datagrams.
    fn clear_idle_alarm(&mut self, key: SlabKey) {
        if order_of(self.table.get_mut(key)).is_none_or(|order| order.window.waiting() == 0) {
            self.alarms.clear(key.index());
        }
    }

    /// Returns the next deadline of a waiting datagram.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.alarms.next()
    }

    /// Abandons gaps for which datagrams have waited too long.
    pub(crate) fn run_timers(&mut self, now: Instant) {
        while let Some(index) = self.alarms.pop(now) {
            let key = self.table.key_at(index);
            let found = key.and_then(|key| Some((key, order_of(self.table.get_mut(key))?)));
            let Some((key, order)) = found else {
                internal_error!(self.counters.nic_internal_errors, "an alarm of no window");
                continue;
            };
            let time = order.bounds.time;
            let mut overdue = None;
            let mut next: Option<Instant> = None;
            for (number, place) in order.window.values() {
                let waiting = self.waiting.key_at(place).and_then(|key| self.waiting.get(key));
                let Some(due) = waiting.map(|waiting| waiting.arrived + time) else {
                    internal_error!(self.counters.nic_internal_errors, "a place of no datagram");
                    continue;
                };
                if due <= now {
                    // All datagrams below it are released with it, regardless of their age.
                    (overdue, next) = (Some(number), None);
                } else {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
            }
            if let Some(next) = next {
                self.alarms.set(index, next);
            }
            if let Some(number) = overdue {
                self.give_up_below(now, key, number, GapGiveUpReason::Time);
            }
        }
    }

    /// Returns the next datagram to deliver, with its queue.
    pub(crate) fn poll_datagram(&mut self) -> Option<(usize, QuicDatagram)> {
        self.ready.pop_front()
    }

    /// Counts a datagram that was appended to the frame before it.
    pub(crate) const fn count_merged(&mut self) {
        self.counters.quic_rx_merged += 1;
    }
}

fn order_of(entry: Option<&mut QuicEntry>) -> Option<&mut ReorderState> {
    match entry.map(|entry| &mut entry.kind) {
        Some(QuicEntryKind::Receive(receive)) => {
            let QuicReceiver { order, .. } = &mut **receive;
            order.as_mut()
        }
        _ => None,
    }
}
