//! Fuzzes a [`NvmeTransport`] of either role with PDUs from any peer: the results are the same with
//! a device that parses PDUs, verifies digests and places data, and without one.

use std::collections::BTreeMap;
use std::sync::Arc;

use abi::aligned::AlignedBuf;
use base::Instant;
use crypto::Provider;
use host::nvme::{NvmeInitiatorParams, NvmeTargetParams, NvmeTransport, NvmeTransportEvent};
use host::{Application, Host, ListenConfig, Notice};
use wire::nvme::pdu::PduRules;

use crate::input::FuzzInput;
use crate::net::{FuzzNetwork, FuzzSubject, PORT};
use crate::script;

/// Number of tags with a registered buffer; the length of each is [`AWAITED`].
const TAGS: u16 = 4;
/// Bytes of data that are awaited for each tag.
const AWAITED: u32 = 8192;

/// A transport, and what it reported.
#[derive(Default)]
pub(crate) struct TransportReports {
    transport: Option<NvmeTransport>,
    ready: bool,
    /// Reports of data by tag.
    data: BTreeMap<u16, Vec<String>>,
    /// All other reports except of buffers.
    other_reports: Vec<String>,
    /// Contents of the buffers that the transport returned complete.
    buffers: BTreeMap<u16, Vec<u8>>,
    /// Number of buffers that were registered.
    awaited: u16,
}

impl TransportReports {
    fn turn(&mut self, now: Instant, host: &mut Host) {
        let Some(transport) = &mut self.transport else { return };
        while let Some(incoming) = transport.poll(now, host) {
            match incoming {
                NvmeTransportEvent::Buffer { tag, buffer } => {
                    assert!(tag < self.awaited, "an unregistered buffer: {tag}");
                    let before = self.buffers.insert(tag, buffer.as_slice().to_vec());
                    assert!(before.is_none(), "buffer {tag} came twice");
                    continue;
                }
                NvmeTransportEvent::Ready => {
                    self.ready = true;
                    for tag in 0..TAGS {
                        let back =
                            transport.expect(host, (tag, tag), 0, AWAITED, AlignedBuf::new(2));
                        assert!(back.is_none());
                    }
                    self.awaited = TAGS;
                }
                NvmeTransportEvent::Ended(_) => self.ready = true,
                _ => {}
            }
            let shown = format!("{incoming:?}");
            match incoming {
                NvmeTransportEvent::ReadData { cccid: tag, .. }
                | NvmeTransportEvent::WriteData { ttag: tag, .. } => {
                    self.data.entry(tag).or_default().push(shown);
                }
                _ => self.other_reports.push(shown),
            }
        }
    }
}

impl Application for TransportReports {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        if let Notice::Accepted(_, socket) = notice {
            let in_capsule_max = 8192;
            let (header_digest, data_digest) = (true, true);
            let params = NvmeTargetParams {
                header_digest,
                data_digest,
                cpda: 0,
                maxh2cdata: 8192,
                in_capsule_max,
            };
            self.transport = Some(NvmeTransport::serve(socket, Arc::new(Provider), params));
        }
        self.turn(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.transport.as_ref().and_then(NvmeTransport::poll_timeout)
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.turn(now, host);
    }
}

impl FuzzSubject for TransportReports {
    fn is_ready(&self) -> bool {
        self.ready
    }
}

/// Runs this fuzz target.
pub fn run(data: &[u8]) {
    let [with, without] = [true, false].map(|offload| outcome(data, offload));
    assert_eq!(with.other_reports, without.other_reports, "with a device, and without");
    // A digest that the device did not verify is verified when the buffer is back. Its report comes
    // later than without a device, and never if the connection ends before.
    for (tag, said) in &with.data {
        let other = without.data.get(tag).map_or(&[][..], |all| all);
        assert!(other.starts_with(said), "tag {tag}: {said:?}, and without a device {other:?}");
    }
    for (tag, bytes) in &with.buffers {
        let other = without.buffers.get(tag);
        assert!(other.is_none_or(|other| other == bytes), "buffer {tag} has other bytes");
    }
}

/// Runs an input: a byte of flags, the fates of frames, and the peer's script.
fn outcome(data: &[u8], offload: bool) -> TransportReports {
    let mut input = FuzzInput(data);
    let flags = input.byte();
    let fates = FuzzInput(input.take(usize::from(flags >> 4)));
    let (initiates, begins) = (flags & 1 != 0, flags & 8 == 0);
    let (header_digest, data_digest) = (flags & 2 != 0, flags & 4 != 0);
    let rules = PduRules { header_digest, data_digest, pda: 0, plen_max: u32::MAX };
    let first = if initiates { script::response(&rules) } else { script::request(&rules) };
    let first = if begins { script::pdu(&first, &[], &PduRules::NONE) } else { Vec::new() };
    let talk = script::stream(first, &mut input, &rules);
    let mut net = FuzzNetwork::new(offload, !initiates, [talk], fates, |host, now, remote| {
        let mut seen = TransportReports { ready: !begins, ..TransportReports::default() };
        if initiates {
            let params = NvmeInitiatorParams { header_digest, data_digest, hpda: 0, maxr2t: 0 };
            let socket = host.connect(now, remote).ok();
            seen.transport =
                socket.map(|socket| NvmeTransport::initiate(socket, Arc::new(Provider), params));
        } else {
            let _ = host.listen(ListenConfig { addr: None, port: PORT, backlog: 4 });
        }
        seen
    });
    net.run();
    net.net.server.app
}
