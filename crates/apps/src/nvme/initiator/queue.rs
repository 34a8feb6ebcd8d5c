//! One queue: a connection and its open commands.
//!
//! Called by [`super::Initiator`] and by the set-up. A command is open from its transmission until
//! its completion has arrived *and* its buffer was returned by the transport. Everything that the
//! controller sends is checked against the open commands: a completion or R2T for another command,
//! an R2T beyond the data or out of order, and a success without all data end the connection by a
//! terminate request; the transport does the same for unexpected data. Data digests are only
//! reported here.
//!
//! Command identifiers are reused as late as possible, so that a late or duplicate completion
//! refers to one that is not open.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use base::{Duration, Instant};
use bytes::Bytes;
use host::nvme::{NvmeDataMatch, NvmeTransportEnd, NvmeTransportEvent};
use host::{Host, SocketId};
use wire::nvme::command::{NvmeCommand, NvmeCompletion, Sgl};
use wire::nvme::pdu::{PduFault, at};

use super::command::CommandData;
use super::counters::InitiatorCounters;
use crate::nvme::channel::NvmeChannel;
use crate::pattern_inspection::{ConnectionRules, PatternInspection};

/// Identifiers per command that may be open.
const IDENTIFIERS: u16 = 4;
/// Offset of the command identifier in a completion queue entry.
const CQE_CID: u32 = 12;

/// Origin of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandOrigin {
    /// The set-up.
    SetUp,
    KeepAlive,
    /// An Asynchronous Event Request, which completes when an event occurs and has no timeout.
    AsyncEvent,
    /// Abort of a command on any queue.
    Abort,
    /// A user's request, by its serial number.
    Request(u64),
}

/// Data transfer of a command.
#[derive(Debug)]
enum DataTransfer {
    None,
    /// In-capsule data, which was sent.
    Sent,
    /// To the controller on R2Ts; `asked` bytes were requested so far.
    Out {
        data: Bytes,
        asked: usize,
    },
    /// From the controller.
    In {
        len: u32,
        received: u32,
        buffer: Option<AlignedBuf>,
        pages: usize,
    },
}

#[derive(Debug)]
struct OpenCommand {
    owner: CommandOrigin,
    /// Time at which the command is late.
    deadline: Option<Instant>,
    moves: DataTransfer,
    digest_ok: bool,
    is_denied: bool,
    completion: Option<NvmeCompletion>,
    aborted: bool,
}

/// A completed command.
#[derive(Debug)]
pub(super) struct CommandDone {
    pub(super) owner: CommandOrigin,
    pub(super) completion: NvmeCompletion,
    pub(super) buffer: Option<AlignedBuf>,
    /// All received data had the right digests.
    pub(super) digest_ok: bool,
    /// The received data contains a denied pattern.
    pub(super) is_denied: bool,
}

/// Event of a queue.
#[derive(Debug)]
pub(super) enum InitiatorQueueEvent {
    /// ICReq and ICResp are exchanged: commands can be sent.
    Ready,
    Answer(CommandDone),
    Ended(NvmeTransportEnd),
}

/// A command that was not completed in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LateCommand {
    pub(super) owner: CommandOrigin,
    pub(super) cid: u16,
    /// Second report: an Abort did not help.
    pub(super) again: bool,
}

/// A queue of the initiator.
#[derive(Debug)]
pub(super) struct InitiatorQueue {
    pub(super) channel: NvmeChannel,
    /// Queue ID; zero is the admin queue.
    pub(super) id: u16,
    /// Maximum number of open commands: the entries minus one.
    commands_max: u16,
    /// Largest in-capsule data in bytes.
    in_capsule: usize,
    open: Vec<Option<OpenCommand>>,
    free: VecDeque<u16>,
    in_flight: usize,
    /// Deadlines of open commands and their identifiers.
    deadlines: BTreeSet<(Instant, u16)>,
    /// Connect has completed.
    pub(super) live: bool,
    /// This end has terminated the connection; commands and data that still arrive are ignored.
    terminated: bool,
    /// Rules about patterns, if received data is inspected.
    rules: ConnectionRules,
    /// Origin of the command in whose context the controller violated the protocol, or that timed
    /// out.
    culprit: Option<CommandOrigin>,
}

impl InitiatorQueue {
    /// Creates a queue of `entries`, of which one stays unused, over a connection that is being
    /// opened.
    pub(super) fn new(channel: NvmeChannel, id: u16, entries: u16, in_capsule: usize) -> Self {
        let most = entries.saturating_sub(1).max(1);
        let identifiers = most.saturating_mul(IDENTIFIERS);
        Self {
            channel,
            id,
            commands_max: most,
            in_capsule,
            open: (0..identifiers).map(|_| None).collect(),
            free: (0..identifiers).collect(),
            in_flight: 0,
            deadlines: BTreeSet::new(),
            live: false,
            terminated: false,
            rules: ConnectionRules::default(),
            culprit: None,
        }
    }

    pub(super) const fn socket(&self) -> SocketId {
        self.channel.socket()
    }

    /// Returns the number of open commands.
    pub(super) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the number of commands that can be sent now.
    pub(super) const fn room(&self) -> usize {
        (self.commands_max as usize).saturating_sub(self.in_flight)
    }

    /// Returns whether a command expects data from the controller.
    pub(super) fn awaits_data(&self) -> bool {
        self.open.iter().flatten().any(|open| matches!(open.moves, DataTransfer::In { .. }))
    }

    /// Returns SQSIZE: the entries minus one.
    pub(super) const fn sqsize(&self) -> u16 {
        self.commands_max
    }

    /// Sets the limit of in-capsule data after Connect; Connect itself always uses in-capsule data.
    pub(super) const fn set_in_capsule(&mut self, bytes: usize) {
        self.in_capsule = bytes;
    }

    /// Sends a command, which is late after `timeout` if that is given. Returns the data if there
    /// is no [`Self::room`].
    pub(super) fn send(
        &mut self,
        now: Instant,
        host: &mut Host,
        (owner, timeout): (CommandOrigin, Option<Duration>),
        command: NvmeCommand,
        data: CommandData,
        counters: &mut InitiatorCounters,
    ) -> Result<(), CommandData> {
        if self.room() == 0 {
            return Err(data);
        }
        let Some(cid) = self.free.pop_front() else { return Err(data) };
        let mut capsule = Bytes::new();
        let (sgl, moves) = match data {
            CommandData::None => (Sgl::NONE, DataTransfer::None),
            CommandData::Out(bytes) if bytes.len() <= self.in_capsule => {
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                counters.nvmei_in_capsule += 1;
                capsule = bytes;
                (Sgl::InCapsule { offset: 0, len }, DataTransfer::Sent)
            }
            CommandData::Out(data) => {
                let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
                (Sgl::Transport { len }, DataTransfer::Out { data, asked: 0 })
            }
            CommandData::In { buffer, len } => {
                let pages = buffer.len() / PAGE_BYTES;
                if let Some(buffer) =
                    self.channel.transport.expect(host, (cid, cid), 0, len, buffer)
                {
                    self.free.push_back(cid);
                    return Err(CommandData::In { buffer, len });
                }
                (Sgl::Transport { len }, DataTransfer::In { len, received: 0, buffer: None, pages })
            }
        };
        let (digest_ok, completion, aborted) = (true, None, false);
        let deadline = timeout.map(|timeout| now + timeout);
        self.deadlines.extend(deadline.map(|at| (at, cid)));
        if let Some(place) = self.open.get_mut(usize::from(cid)) {
            *place = Some(OpenCommand {
                owner,
                deadline,
                moves,
                digest_ok,
                is_denied: false,
                completion,
                aborted,
            });
        }
        self.in_flight += 1;
        let entry = NvmeCommand { cid, ..command }.with_data(sgl).to_bytes();
        self.channel.transport.send_command(now, host, &entry, capsule);
        Ok(())
    }

    /// Begins to inspect the data that is received, if there are rules.
    pub(super) fn start_inspection(
        &mut self,
        now: Instant,
        host: &mut Host,
        rules: ConnectionRules,
    ) {
        if let Some(patterns) = rules.patterns() {
            self.channel.transport.start_inspection(now, host, Arc::clone(patterns));
        }
        self.rules = rules;
    }

    /// Returns the next event. To be called until it returns `None` after each notice about the
    /// socket.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        host: &mut Host,
        counters: &mut InitiatorCounters,
        inspection: &mut PatternInspection,
    ) -> Option<InitiatorQueueEvent> {
        loop {
            let (rules, open) = (&self.rules, &mut self.open);
            let incoming = self.channel.poll(now, host, &mut |found: NvmeDataMatch| {
                let is_denied = !inspection.admits_match(rules, found.pattern);
                let open = open.get_mut(usize::from(found.cccid)).and_then(Option::as_mut);
                open.into_iter().for_each(|open| open.is_denied |= is_denied);
            })?;
            let about = self.origin_of(&incoming);
            let happened = match incoming {
                NvmeTransportEvent::Buffer { tag, buffer } if self.terminated => {
                    self.keep_buffer(tag, buffer);
                    Ok(None)
                }
                NvmeTransportEvent::Ended(how) => {
                    self.culprit = self.culprit.or_else(|| self.culprit_of_transport());
                    return Some(InitiatorQueueEvent::Ended(how));
                }
                _ if self.terminated => Ok(None),
                NvmeTransportEvent::Ready => return Some(InitiatorQueueEvent::Ready),
                NvmeTransportEvent::Response(entry) => {
                    self.complete(host, NvmeCompletion::parse(&entry))
                }
                NvmeTransportEvent::ReadData { cccid, len, success, digest_ok, .. } => {
                    self.handle_read_data(host, cccid, len, success, digest_ok)
                }
                NvmeTransportEvent::Buffer { tag, buffer } => self.handle_buffer(tag, buffer),
                NvmeTransportEvent::R2t { cccid, ttag, offset, len } => {
                    counters.nvmei_r2ts += 1;
                    self.answer_r2t(now, host, (cccid, ttag), offset, len)
                }
                // The transport accepts these PDUs only from an initiator.
                NvmeTransportEvent::Command { .. } | NvmeTransportEvent::WriteData { .. } => {
                    Err(PduFault::SEQUENCE)
                }
            };
            match happened {
                Ok(Some(answer)) => return Some(InitiatorQueueEvent::Answer(answer)),
                Ok(None) => {}
                // `NvmeTransportEvent::NvmeTransportEnd` follows.
                Err(fault) => {
                    counters.nvmei_protocol_errors += 1;
                    (self.terminated, self.culprit) = (true, about);
                    self.channel.transport.terminate(now, host, fault);
                }
            }
        }
    }

    /// Returns the origin of the command that a PDU or buffer belongs to.
    fn origin_of(&self, incoming: &NvmeTransportEvent) -> Option<CommandOrigin> {
        let cid = match incoming {
            NvmeTransportEvent::Response(entry) => NvmeCompletion::parse(entry).cid,
            NvmeTransportEvent::ReadData { cccid, .. } | NvmeTransportEvent::R2t { cccid, .. } => {
                *cccid
            }
            NvmeTransportEvent::Buffer { tag, .. } => *tag,
            _ => return None,
        };
        self.open.get(usize::from(cid))?.as_ref().map(|open| open.owner)
    }

    /// Returns the origin of the command for whose data the transport ended the connection.
    fn culprit_of_transport(&self) -> Option<CommandOrigin> {
        let cid = self.channel.transport.faulty_command()?;
        self.open.get(usize::from(cid))?.as_ref().map(|open| open.owner)
    }

    /// Returns the origin of the command that ends the association, if it is known.
    pub(super) const fn culprit(&self) -> Option<CommandOrigin> {
        self.culprit
    }

    fn open_mut(&mut self, cid: u16) -> Option<&mut OpenCommand> {
        self.open.get_mut(usize::from(cid))?.as_mut()
    }

    /// Handles a completion that was received, or implied by the SUCCESS flag.
    fn complete(
        &mut self,
        host: &mut Host,
        completion: NvmeCompletion,
    ) -> Result<Option<CommandDone>, PduFault> {
        let cid = completion.cid;
        let unknown = PduFault::field(at::ENTRY + CQE_CID);
        let received = self.channel.transport.received(cid);
        let open = self.open_mut(cid).filter(|open| open.completion.is_none());
        let open = open.ok_or(unknown)?;
        open.completion = Some(completion);
        if let DataTransfer::In { buffer: None, len, .. } = open.moves {
            // Check now rather than when the buffer is returned: the device may hold it for a
            // while, and another error must not end the connection first.
            if completion.status.is_success() && received.is_some_and(|bytes| bytes < len) {
                return Err(PduFault::SEQUENCE);
            }
            // All expected data has arrived, or will not arrive.
            self.channel.transport.reclaim(host, cid);
            return Ok(None);
        }
        self.finish(cid)
    }

    fn handle_read_data(
        &mut self,
        host: &mut Host,
        cid: u16,
        bytes: u32,
        success: bool,
        right: bool,
    ) -> Result<Option<CommandDone>, PduFault> {
        let open = self.open_mut(cid).ok_or_else(|| PduFault::field(at::CCCID))?;
        open.digest_ok &= right;
        if let DataTransfer::In { received, .. } = &mut open.moves {
            *received = received.saturating_add(bytes);
        }
        if !success {
            return Ok(None);
        }
        let status = wire::nvme::status::NvmeStatus::SUCCESS;
        self.complete(host, NvmeCompletion { result: 0, sqhd: 0, cid, status })
    }

    fn handle_buffer(
        &mut self,
        cid: u16,
        back: AlignedBuf,
    ) -> Result<Option<CommandDone>, PduFault> {
        self.keep_buffer(cid, back);
        self.finish(cid)
    }

    fn keep_buffer(&mut self, cid: u16, back: AlignedBuf) {
        if let Some(DataTransfer::In { buffer, .. }) =
            self.open_mut(cid).map(|open| &mut open.moves)
        {
            *buffer = Some(back);
        }
    }

    /// Answers an R2T. R2Ts have to be in the order of the data and without holes, as Linux
    /// requires: then all data was requested if its end was.
    fn answer_r2t(
        &mut self,
        now: Instant,
        host: &mut Host,
        (cid, ttag): (u16, u16),
        offset: u32,
        len: u32,
    ) -> Result<Option<CommandDone>, PduFault> {
        let open = self.open_mut(cid).filter(|open| open.completion.is_none());
        let DataTransfer::Out { data, asked } =
            &mut open.ok_or_else(|| PduFault::field(at::CCCID))?.moves
        else {
            return Err(PduFault::field(at::CCCID));
        };
        let from = offset as usize;
        let end = from.checked_add(len as usize).filter(|&end| end <= data.len());
        let end = end.filter(|_| from == *asked).ok_or(PduFault::OUT_OF_RANGE)?;
        *asked = end;
        let bytes = data.slice(from..end);
        self.channel.transport.send_write_data(now, host, (cid, ttag), offset, bytes, true);
        Ok(None)
    }

    /// Closes a command if its completion has arrived and its buffer was returned.
    fn finish(&mut self, cid: u16) -> Result<Option<CommandDone>, PduFault> {
        let Some(place) = self.open.get_mut(usize::from(cid)) else { return Ok(None) };
        let Some(OpenCommand { completion: Some(completion), moves, .. }) = place.as_ref() else {
            return Ok(None);
        };
        let whole = match moves {
            DataTransfer::None | DataTransfer::Sent => true,
            DataTransfer::Out { data, asked } => *asked == data.len(),
            DataTransfer::In { len, received, .. } => len == received,
        };
        // Success without all of the data is a protocol error.
        if completion.status.is_success() && !whole {
            return Err(PduFault::SEQUENCE);
        }
        let completion = *completion;
        let Some(OpenCommand { owner, moves, digest_ok, is_denied, deadline, .. }) = place.take()
        else {
            return Ok(None);
        };
        if let Some(at) = deadline {
            self.deadlines.remove(&(at, cid));
        }
        self.in_flight -= 1;
        self.free.push_back(cid);
        let buffer = match moves {
            DataTransfer::In { buffer, .. } => buffer,
            _ => None,
        };
        Ok(Some(CommandDone { owner, completion, buffer, digest_ok, is_denied }))
    }

    /// Returns the time at which [`Self::poll`] or [`Self::poll_late`] has work to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let late = self.deadlines.first().map(|deadline| deadline.0);
        [self.channel.transport.poll_timeout(), late].into_iter().flatten().min()
    }

    /// Returns the next late command. Each is reported twice: the second time after `patience`.
    pub(super) fn poll_late(&mut self, now: Instant, patience: Duration) -> Option<LateCommand> {
        let (_, cid) = self.deadlines.first().copied().filter(|&(at, _)| at <= now)?;
        self.deadlines.pop_first();
        let open = self.open.get_mut(usize::from(cid))?.as_mut()?;
        let again = core::mem::replace(&mut open.aborted, true);
        open.deadline = (!again).then_some(now + patience);
        self.deadlines.extend(open.deadline.map(|at| (at, cid)));
        let owner = open.owner;
        if again {
            self.culprit = Some(owner);
        }
        Some(LateCommand { owner, cid, again })
    }

    /// Abandons an ended connection. Returns the origins of the open commands with their buffers;
    /// buffers that the device still has are replaced by new ones.
    pub(super) fn reclaim_commands(
        &mut self,
        now: Instant,
        host: &mut Host,
        counters: &mut InitiatorCounters,
    ) -> Vec<(CommandOrigin, Option<AlignedBuf>)> {
        // Otherwise data for reclaimed buffers would be reported as a protocol error of the
        // controller.
        self.channel.transport.abandon();
        let awaited =
            |open: &OpenCommand| matches!(open.moves, DataTransfer::In { buffer: None, .. });
        for cid in 0..u16::try_from(self.open.len()).unwrap_or(u16::MAX) {
            if self.open_mut(cid).is_some_and(|open| awaited(open)) {
                self.channel.transport.reclaim(host, cid);
            }
        }
        while let Some(incoming) = self.channel.poll(now, host, &mut |_| {}) {
            if let NvmeTransportEvent::Buffer { tag, buffer } = incoming {
                self.keep_buffer(tag, buffer);
            }
        }
        self.in_flight = 0;
        self.deadlines.clear();
        let open = self.open.iter_mut().filter_map(Option::take);
        let back = open.map(|open| {
            let buffer = match open.moves {
                DataTransfer::In { buffer, pages, .. } => Some(buffer.unwrap_or_else(|| {
                    counters.nvmei_buffers_replaced += 1;
                    AlignedBuf::new(pages.max(1))
                })),
                _ => None,
            };
            (open.owner, buffer)
        });
        back.collect()
    }
}
