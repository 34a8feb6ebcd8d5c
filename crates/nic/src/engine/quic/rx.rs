//! Datagrams that came in: whose they are, opened, and in order.
//!
//! Called by [`crate::Device`] for each UDP datagram while any entry receives. What is not opened
//! is not changed, and goes on at once: a handshake, a stateless reset, a forgery.
//!
//! *Order.* An opened packet is delivered if it is the next, or behind what was delivered; else it
//! waits in its connection's [`structures::ReorderWindow`] until those before it have come, or a
//! bound of the host's is reached. Then gaps are given up, oldest first, and no more of them than
//! the bound asks for: a packet that is late behind one that is lost is waited for all the same.
//! Packet numbers may have gaps for ever (RFC 9000, section 12.3): time ends them.

use abi::Received;
use base::{Instant, internal_error};
use wire::UDP_BYTES;

use super::keys::Unopened;
use super::table::{Entry, Found, Order, Receive, Way};
use super::{Datagram, QuicEngine, Waiting};
use crate::pipeline::headers::u16_at;
use crate::pipeline::rx::TransportAt;
use structures::WindowPosition;
use structures::slab::Key;

/// Why a connection's gaps are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GiveUp {
    Packets,
    Bytes,
    Time,
    Full,
}

/// The entry that a datagram is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    key: Key,
    id_len: usize,
    /// The queue of the host that has the connection, which gets the datagram.
    pub(crate) queue: usize,
}

impl QuicEngine {
    /// Whether any datagram could be for an entry.
    pub(crate) fn receives(&self) -> bool {
        self.table.routes() > 0
    }

    /// Whose datagram this is; none where it goes on as it came.
    pub(crate) fn find(&mut self, received: &Received, at: &TransportAt) -> Option<Hit> {
        let bytes = received.packet.as_slice();
        let packet = bytes.get(at.l4 + UDP_BYTES..at.end).unwrap_or_default();
        let found = self.table.find_packet(&at.tuple, packet);
        if found == Found::NotOurs {
            return None;
        }
        // A sum of zero is one that nobody made (RFC 768): the packet's own tag covers it.
        let whole = u16_at(bytes, at.l4 + 4).map(usize::from) == Some(at.end - at.l4);
        let good = whole && received.checksum != abi::Checksum::Bad && received.segment_size == 0;
        match found {
            _ if !good => self.counters.quic_rx_bad_udp += 1,
            Found::NotOurs | Found::NotShort => self.counters.quic_rx_not_short += 1,
            Found::Unknown => self.counters.quic_rx_unknown_id += 1,
            Found::Entry(key, id_len) => {
                let queue = self.table.get(key)?.queue;
                return Some(Hit { key, id_len, queue });
            }
        }
        None
    }

    /// Opens a datagram and gives it back if it is to be delivered now, before what
    /// [`QuicEngine::poll_datagram`] has.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        hit: Hit,
        received: Received,
        at: &TransportAt,
    ) -> Option<Datagram> {
        let (l3, l4, end) = (at.l3, at.l4, at.end);
        let mut datagram = Datagram { received, opened: None, l3, l4, end };
        let entry = self.table.get_mut(hit.key);
        let Some(Entry { name, keys, way: Way::Receive(receive), .. }) = entry else {
            internal_error!(self.counters.nic_internal_errors, "a route to no receiving entry");
            return Some(datagram);
        };
        let packet = datagram.received.packet.as_mut_slice();
        let packet = packet.get_mut(at.l4 + UDP_BYTES..at.end).unwrap_or_default();
        let len = packet.len() as u64;
        let opened = keys.open(&mut receive.numbers, packet, hit.id_len, &mut self.scratch);
        let number = match opened {
            Ok(number) => number,
            Err(why) => {
                let c = &mut self.counters;
                *match why {
                    Unopened::TooShort => &mut c.quic_rx_too_short,
                    Unopened::UnknownKeys => &mut c.quic_rx_unknown_keys,
                    Unopened::BadTag => &mut c.quic_rx_bad_tag,
                } += 1;
                return Some(datagram);
            }
        };
        self.counters.quic_rx_opened += 1;
        self.counters.quic_rx_opened_bytes += len;
        datagram.opened = Some((*name, number));
        // What is behind it in its frame would lie between it and the next one.
        datagram.received.packet.truncate(end);
        self.arrange(now, hit.key, number, datagram)
    }

    /// Delivers a datagram, or lets it wait.
    fn arrange(
        &mut self,
        now: Instant,
        key: Key,
        number: u64,
        datagram: Datagram,
    ) -> Option<Datagram> {
        let Some(order) = order_of(self.table.get_mut(key)) else { return Some(datagram) };
        match order.window.position(number) {
            WindowPosition::Behind => self.counters.quic_behind += 1,
            WindowPosition::Taken => self.counters.quic_duplicates += 1,
            WindowPosition::Next => {
                order.window.advance_past(number);
                if order.window.waiting() > 0 {
                    self.release(now, key);
                }
            }
            WindowPosition::Beyond => {
                let floor = order.window.floor_for(number);
                self.give_up_below(now, key, floor, GiveUp::Packets);
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

    /// The same behind others that were just delivered, for a number that the window reaches.
    fn arrange_within(&mut self, now: Instant, key: Key, number: u64, datagram: Datagram) {
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
        self.release(now, key);
    }

    /// Has a datagram wait; where that is one too many, gaps are given up until it is not.
    fn wait(&mut self, now: Instant, key: Key, number: u64, datagram: Datagram) {
        let full = self.waiting.len() >= self.config.waiting_max as usize;
        let Some(order) = order_of(self.table.get_mut(key)) else {
            internal_error!(self.counters.nic_internal_errors, "a window of no entry");
            return;
        };
        let bytes = datagram.bytes();
        let first = order.window.waiting() == 0;
        let bounds = order.bounds;
        let place = self.waiting.insert(Waiting { datagram, arrived: now });
        order.window.insert(number, place.index());
        order.bytes = order.bytes.saturating_add(bytes);
        self.waiting_bytes += u64::from(bytes);
        self.counters.quic_waited += 1;
        if first {
            self.alarms.set(key.index(), now + bounds.time);
        }
        if full {
            self.give_up_first(now, key, GiveUp::Full);
        }
        let too_many = |order: &mut Order| order.bytes > bounds.bytes;
        while order_of(self.table.get_mut(key)).is_some_and(too_many) {
            self.give_up_first(now, key, GiveUp::Bytes);
        }
    }

    /// Delivers those that follow what was delivered without a gap.
    fn release(&mut self, now: Instant, key: Key) {
        while let Some(place) = order_of(self.table.get_mut(key)).and_then(|o| o.window.pop_next())
        {
            self.counters.quic_reordered += 1;
            self.let_go(now, key, place);
        }
        self.settle_alarm(key);
    }

    /// Gives the oldest gap up: those that wait for nothing else are delivered.
    fn give_up_first(&mut self, now: Instant, key: Key, why: GiveUp) {
        let order = order_of(self.table.get_mut(key));
        let first = order.and_then(|order| order.window.values().next());
        if let Some((number, _)) = first {
            self.give_up_below(now, key, number, why);
        }
    }

    /// Gives those gaps up that lie below a number: those that wait for nothing else are delivered.
    fn give_up_below(&mut self, now: Instant, key: Key, floor: u64, why: GiveUp) {
        let c = &mut self.counters;
        *match why {
            GiveUp::Packets => &mut c.quic_gap_given_up_packets,
            GiveUp::Bytes => &mut c.quic_gap_given_up_bytes,
            GiveUp::Time => &mut c.quic_gap_given_up_time,
            GiveUp::Full => &mut c.quic_gap_given_up_full,
        } += 1;
        let next =
            |order: &mut Order| order.window.pop_below(floor).or_else(|| order.window.pop_next());
        while let Some(place) = order_of(self.table.get_mut(key)).and_then(next) {
            self.let_go(now, key, place);
        }
        self.settle_alarm(key);
    }

    /// Delivers all that wait, in order, for a connection that goes.
    pub(super) fn deliver_waiting(&mut self, now: Instant, key: Key) {
        while let Some(place) = order_of(self.table.get_mut(key)).and_then(|o| o.window.pop_first())
        {
            self.let_go(now, key, place);
        }
        self.settle_alarm(key);
    }

    /// Takes a datagram that waited, whose place in the window is free again, to the others that
    /// are ready.
    fn let_go(&mut self, now: Instant, key: Key, place: u32) {
        let waiting = self.waiting.key_at(place).and_then(|key| self.waiting.remove(key));
        let Some(Waiting { datagram, arrived }) = waiting else {
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

    /// Nobody has to be woken for a connection of which nothing waits.
    fn settle_alarm(&mut self, key: Key) {
        if order_of(self.table.get_mut(key)).is_none_or(|order| order.window.waiting() == 0) {
            self.alarms.clear(key.index());
        }
    }

    /// When a packet will have waited for too long.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.alarms.next()
    }

    /// Gives up the gaps that a packet has waited for too long for.
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
                    // All below it goes with it, whenever it came.
                    (overdue, next) = (Some(number), None);
                } else {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
            }
            if let Some(next) = next {
                self.alarms.set(index, next);
            }
            if let Some(number) = overdue {
                self.give_up_below(now, key, number, GiveUp::Time);
            }
        }
    }

    /// The next datagram to be delivered, and its queue.
    pub(crate) fn poll_datagram(&mut self) -> Option<(usize, Datagram)> {
        self.ready.pop_front()
    }

    /// Notes that a datagram was appended to the frame before it.
    pub(crate) const fn count_merged(&mut self) {
        self.counters.quic_rx_merged += 1;
    }
}

fn order_of(entry: Option<&mut Entry>) -> Option<&mut Order> {
    match entry.map(|entry| &mut entry.way) {
        Some(Way::Receive(receive)) => {
            let Receive { order, .. } = &mut **receive;
            order.as_mut()
        }
        _ => None,
    }
}
