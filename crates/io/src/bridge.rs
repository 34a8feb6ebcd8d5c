//! Two links joined into one, using the forwarding table of a bridge (IEEE 802.1Q section 8.8) for
//! the machine's own traffic, without forwarding.
//!
//! For a proxy whose clients and backends are on different networks. Device and host see one link.
//! A frame leaves by the link on which its destination address was last seen as a source; frames to
//! group addresses and to unknown stations leave by both. No frame is forwarded from one link to
//! the other. The source address is trusted: a station that forges another's link address attracts
//! that station's frames to its own link, as with any bridge.
//!
//! Called like any [`Link`], by a device's thread. The table is bounded; a station that has lost
//! its entry costs an additional frame on the other link, nothing else.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use abi::PacketPool;
use abi::link::{LinkCaps, RxFrame, TxFrame};
use base::Instant;

use crate::link::{Link, LinkTxStatus};
use crate::notify;

/// Entries of the forwarding table.
const STATIONS: usize = 4096;

base::counters! {
    /// Counters of a bridge, besides those of its links.
    pub struct BridgeCounters {
        /// Frames sent on both links: to a group, or to an unknown station.
        bridge_tx_both,
        /// Frames sent on both links that only one of them accepted.
        bridge_tx_half: alarm,
    }
}

/// A link address, and the link on which it was last seen.
#[derive(Clone, Copy, Debug)]
struct Station {
    address: [u8; 6],
    link: usize,
}

/// Two links that appear as one.
pub struct Bridge {
    links: [Box<dyn Link>; 2],
    /// Forwarding table, indexed by the low bits of the address; the station seen last keeps the
    /// entry.
    stations: Vec<Option<Station>>,
    /// The link that is asked first for the next frame.
    next: usize,
    /// Readable while one of the links is; `None` if neither has a descriptor.
    readable: Option<OwnedFd>,
    /// Changes of the links that `readable` has.
    known_changes: u32,
    counters: BridgeCounters,
}

impl Bridge {
    /// Joins two links. The result has the capabilities that both have.
    ///
    /// # Errors
    /// If no file descriptor is left.
    pub fn new(links: [Box<dyn Link>; 2]) -> io::Result<Self> {
        let readable = readable(&links)?;
        let (stations, counters) = (vec![None; STATIONS], BridgeCounters::default());
        Ok(Self { links, stations, next: 0, readable, known_changes: 0, counters })
    }

    /// Polls the descriptors of links that were opened again. An epoll forgets a descriptor whose
    /// file was closed.
    fn take_changes(&mut self) {
        let changes = self.changes();
        if changes == self.known_changes {
            return;
        }
        if let (Ok(Some(new)), Some(old)) = (readable(&self.links), &self.readable) {
            if notify::replace_descriptor(&new, old).is_ok() {
                self.known_changes = changes;
            }
        }
    }

    fn learn(&mut self, frame: &[u8], link: usize) {
        let Some(&address) = frame.get(6..).and_then(|rest| rest.first_chunk::<6>()) else {
            return;
        };
        self.stations[station_index(address)] = Some(Station { address, link });
    }

    /// Returns the link on which the destination of a frame was last seen.
    fn link_of_destination(&self, frame: &TxFrame) -> Option<usize> {
        let &address = frame.headers().first_chunk::<6>()?;
        self.stations[station_index(address)].filter(|s| s.address == address).map(|s| s.link)
    }
}

/// Returns the index of an address in the table. A group address is never a source, so none is
/// found.
fn station_index(address: [u8; 6]) -> usize {
    let [.., a, b, c] = address;
    (usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)) % STATIONS
}

/// Returns a descriptor that polls readable when one of the links does, or has changed; `None` if
/// they have no descriptors.
fn readable(links: &[Box<dyn Link>; 2]) -> io::Result<Option<OwnedFd>> {
    let all: Vec<RawFd> = links
        .iter()
        .flat_map(|link| [link.pollable(), link.pollable_changes()])
        .flatten()
        .collect();
    if all.is_empty() { Ok(None) } else { notify::epoll_any_of(&all).map(Some) }
}

impl Link for Bridge {
    fn capabilities(&self) -> LinkCaps {
        let [a, b] = [self.links[0].capabilities(), self.links[1].capabilities()];
        LinkCaps {
            segmentation: a.segmentation && b.segmentation,
            udp_segmentation: a.udp_segmentation && b.udp_segmentation,
            checksum: a.checksum && b.checksum,
            mtu: a.mtu.min(b.mtu),
        }
    }

    fn changes(&self) -> u32 {
        self.links[0].changes().wrapping_add(self.links[1].changes())
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        if let Some(link) = self.link_of_destination(frame) {
            return self.links[link].transmit(now, frame);
        }
        self.counters.bridge_tx_both += 1;
        let [first, second] = &mut self.links;
        // The first link may keep the payload.
        let sent = [first.transmit(now, &mut frame.clone()), second.transmit(now, frame)];
        match sent {
            [LinkTxStatus::Sent, LinkTxStatus::Sent] => LinkTxStatus::Sent,
            // One link has sent it: `Full` would make the caller send it there a second time.
            [LinkTxStatus::Sent, _] | [_, LinkTxStatus::Sent] => {
                self.counters.bridge_tx_half += 1;
                LinkTxStatus::Sent
            }
            [status, _] => status,
        }
    }

    fn flush(&mut self, now: Instant) -> bool {
        // Both: the second is not to wait for the first.
        let [first, second] = self.links.each_mut().map(|link| link.flush(now));
        first && second
    }

    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        self.take_changes();
        for link in [self.next, 1 - self.next] {
            if let Some(frame) = self.links[link].receive(now, pool) {
                self.learn(frame.packet.as_slice(), link);
                self.next = 1 - link;
                return Some(frame);
            }
        }
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.links.iter().filter_map(Link::poll_timeout).min()
    }

    fn pollable(&self) -> Option<RawFd> {
        self.readable.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        // Both links may use the same counter names.
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        for link in &self.links {
            link.visit(&mut |name, value| match sums.iter_mut().find(|(n, _)| *n == name) {
                Some((_, sum)) => *sum += value,
                None => sums.push((name, value)),
            });
        }
        sums.into_iter().for_each(|(name, value)| f(name, value));
        self.counters.visit(f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_link::{MemoryLink, MemoryLinkConfig, memory_link_pair};
    use abi::PacketHeader;
    use abi::link::FramePayloads;

    const OURS: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const NOW: Instant = Instant::ZERO;

    fn frame(to: [u8; 6], from: [u8; 6]) -> TxFrame {
        let mut bytes = [0; 60];
        bytes[..6].copy_from_slice(&to);
        bytes[6..12].copy_from_slice(&from);
        TxFrame {
            header: PacketHeader::from_bytes(&bytes, 14, 34).unwrap(),
            payload: FramePayloads::new(),
            segment_size: 0,
            checksum_partial: false,
        }
    }

    struct Rig {
        bridge: Bridge,
        far: [MemoryLink; 2],
        pool: PacketPool,
    }

    fn rig(frames_max: [usize; 2]) -> Rig {
        let ends = frames_max.map(|frames_max| {
            memory_link_pair(&MemoryLinkConfig { frames_max, ..MemoryLinkConfig::default() })
        });
        let [(near0, far0), (near1, far1)] = ends;
        let bridge = Bridge::new([Box::new(near0), Box::new(near1)]).unwrap();
        Rig { bridge, far: [far0, far1], pool: PacketPool::new(64) }
    }

    impl Rig {
        /// Returns how many frames each far end has received.
        fn got(&mut self) -> [usize; 2] {
            let pool = &mut self.pool;
            self.far.each_mut().map(|far| std::iter::from_fn(|| far.receive(NOW, pool)).count())
        }

        fn counted(&self) -> [u64; 2] {
            [self.bridge.counters.bridge_tx_both, self.bridge.counters.bridge_tx_half]
        }
    }

    #[test]
    fn a_station_is_reached_where_it_was_heard_and_only_there() {
        let mut rig = rig([8, 8]);
        let (client, backend) = ([2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]);
        assert_eq!(rig.bridge.transmit(NOW, &mut frame(client, OURS)), LinkTxStatus::Sent);
        assert_eq!((rig.got(), rig.counted()), ([1, 1], [1, 0]), "never heard: both");
        for (link, station) in [(0, client), (1, backend)] {
            assert_eq!(rig.far[link].transmit(NOW, &mut frame(OURS, station)), LinkTxStatus::Sent);
            assert!(rig.bridge.receive(NOW, &mut rig.pool).is_some());
        }
        assert_eq!(rig.got(), [0, 0], "nothing is carried across");
        for (station, expected) in [(client, [1, 0]), (backend, [0, 1]), ([0xff; 6], [1, 1])] {
            assert_eq!(rig.bridge.transmit(NOW, &mut frame(station, OURS)), LinkTxStatus::Sent);
            assert_eq!(rig.got(), expected, "{station:?}");
        }
        // The client moves to the other link.
        assert_eq!(rig.far[1].transmit(NOW, &mut frame(OURS, client)), LinkTxStatus::Sent);
        assert!(rig.bridge.receive(NOW, &mut rig.pool).is_some());
        assert_eq!(rig.bridge.transmit(NOW, &mut frame(client, OURS)), LinkTxStatus::Sent);
        assert_eq!((rig.got(), rig.counted()), ([0, 1], [2, 0]));
    }

    #[test]
    fn links_are_polled_in_turn() {
        let mut rig = rig([8, 8]);
        for link in [0, 0, 0, 1, 1] {
            let from = [2, 0, 0, 0, 2, u8::try_from(link).unwrap()];
            assert_eq!(rig.far[link].transmit(NOW, &mut frame(OURS, from)), LinkTxStatus::Sent);
        }
        let mut order = Vec::new();
        while let Some(frame) = rig.bridge.receive(NOW, &mut rig.pool) {
            order.push(frame.packet.as_slice()[11]);
        }
        assert_eq!(order, [0, 1, 0, 1, 0]);
    }

    #[test]
    fn a_full_link_causes_no_duplicates_on_the_other() {
        let mut rig = rig([1, 8]);
        let unknown = frame([2, 0, 0, 0, 3, 3], OURS);
        assert_eq!(rig.bridge.transmit(NOW, &mut unknown.clone()), LinkTxStatus::Sent);
        assert_eq!(rig.bridge.transmit(NOW, &mut unknown.clone()), LinkTxStatus::Sent);
        assert_eq!((rig.got(), rig.counted()), ([1, 2], [2, 1]));
    }

    #[test]
    fn frames_without_an_address_teach_nothing() {
        let mut rig = rig([8, 8]);
        rig.bridge.learn(&[0; 11], 1);
        rig.bridge.learn(&[], 1);
        assert!(rig.bridge.stations.iter().all(Option::is_none));
    }
}
