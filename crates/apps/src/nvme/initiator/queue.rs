//! One queue: a connection, and the commands that are open on it.
//!
//! Called by [`super::Initiator`] and the set-up. A command is open from when it is sent until its
//! completion has come *and* its buffer is back from the transport. Everything that the controller
//! sends is checked against what is open: completions and R2Ts for commands that are not, R2Ts
//! beyond the data or not in its order, and commands that succeed without all of their data ends
//! the connection by a terminate request; the transport does the same for data that nobody awaits.
//! Digests of data are not judged here, but said.
//!
//! Identifiers are used again as late as can be, so that a late or doubled completion hits one that
//! is not open.

use std::collections::{BTreeSet, VecDeque};

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use base::{Duration, Instant};
use bytes::Bytes;
use host::nvme::{Ended, Incoming};
use host::{Host, SocketId};
use wire::nvme::command::{Command, Completion, Sgl};
use wire::nvme::pdu::{Fault, at};

use super::command::Data;
use super::counters::InitiatorCounters;
use crate::nvme::channel::Channel;

/// Identifiers for each command that may be open.
const IDENTIFIERS: u16 = 4;
/// Where the identifier is in a completion queue entry.
const CQE_CID: u32 = 12;

/// Whose a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The set-up's.
    SetUp,
    KeepAlive,
    /// It is answered when something happens, and has no time-out.
    AsyncEvent,
    /// Of a command of a queue.
    Abort,
    /// A user's, by its number.
    Request(u64),
}

/// Bytes that a command moves.
#[derive(Debug)]
enum Moves {
    None,
    /// In the capsule, and away.
    Sent,
    /// To the controller, as it asks for them: so many so far.
    Out {
        data: Bytes,
        asked: usize,
    },
    /// To us.
    In {
        len: u32,
        received: u32,
        buffer: Option<AlignedBuf>,
        pages: usize,
    },
}

#[derive(Debug)]
struct Open {
    owner: Owner,
    /// When it is late.
    deadline: Option<Instant>,
    moves: Moves,
    digest_ok: bool,
    completion: Option<Completion>,
    aborted: bool,
}

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) owner: Owner,
    pub(super) completion: Completion,
    pub(super) buffer: Option<AlignedBuf>,
    /// All data came with the digests that it has.
    pub(super) digest_ok: bool,
}

/// What happened on a queue.
#[derive(Debug)]
pub(super) enum Happened {
    /// Commands can be sent.
    Ready,
    Answer(Answer),
    Ended(Ended),
}

/// A command that was not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Late {
    pub(super) owner: Owner,
    pub(super) cid: u16,
    /// That was said before, and it was to be aborted.
    pub(super) again: bool,
}

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) channel: Channel,
    /// Zero is the admin queue.
    pub(super) id: u16,
    /// Most commands that may be open: one less than its entries.
    most: u16,
    /// Most bytes of data in a capsule.
    in_capsule: usize,
    open: Vec<Option<Open>>,
    free: VecDeque<u16>,
    in_flight: usize,
    /// When which command is late.
    deadlines: BTreeSet<(Instant, u16)>,
    /// Connect was answered.
    pub(super) live: bool,
    /// We have ended the connection: what still comes does not count.
    terminated: bool,
    /// The command that the controller broke the protocol with, or that it never answered.
    culprit: Option<Owner>,
}

impl Queue {
    /// A queue of `entries`, of which one is never used, over a connection that is being opened.
    pub(super) fn new(channel: Channel, id: u16, entries: u16, in_capsule: usize) -> Self {
        let most = entries.saturating_sub(1).max(1);
        let identifiers = most.saturating_mul(IDENTIFIERS);
        Self {
            channel,
            id,
            most,
            in_capsule,
            open: (0..identifiers).map(|_| None).collect(),
            free: (0..identifiers).collect(),
            in_flight: 0,
            deadlines: BTreeSet::new(),
            live: false,
            terminated: false,
            culprit: None,
        }
    }

    pub(super) const fn socket(&self) -> SocketId {
        self.channel.socket()
    }

    /// Commands that are open.
    pub(super) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Commands that may be sent.
    pub(super) const fn room(&self) -> usize {
        (self.most as usize).saturating_sub(self.in_flight)
    }

    /// Whether data is to come for a command.
    pub(super) fn awaits_data(&self) -> bool {
        self.open.iter().flatten().any(|open| matches!(open.moves, Moves::In { .. }))
    }

    /// SQSIZE: one less than its entries.
    pub(super) const fn sqsize(&self) -> u16 {
        self.most
    }

    /// What a controller takes once the queue is connected. Fabrics commands may always have some.
    pub(super) const fn set_in_capsule(&mut self, bytes: usize) {
        self.in_capsule = bytes;
    }

    /// Sends a command, which is late after `timeout` if it has one. To be called where there is
    /// [`Self::room`]; else the data comes back.
    pub(super) fn send(
        &mut self,
        now: Instant,
        host: &mut Host,
        (owner, timeout): (Owner, Option<Duration>),
        command: Command,
        data: Data,
        counters: &mut InitiatorCounters,
    ) -> Result<(), Data> {
        if self.room() == 0 {
            return Err(data);
        }
        let Some(cid) = self.free.pop_front() else { return Err(data) };
        let mut capsule = Bytes::new();
        let (sgl, moves) = match data {
            Data::None => (Sgl::NONE, Moves::None),
            Data::Out(bytes) if bytes.len() <= self.in_capsule => {
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                counters.nvmei_in_capsule += 1;
                capsule = bytes;
                (Sgl::InCapsule { offset: 0, len }, Moves::Sent)
            }
            Data::Out(data) => {
                let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
                (Sgl::Transport { len }, Moves::Out { data, asked: 0 })
            }
            Data::In { buffer, len } => {
                let pages = buffer.len() / PAGE_BYTES;
                if let Some(buffer) =
                    self.channel.transport.expect(host, (cid, cid), 0, len, buffer)
                {
                    self.free.push_back(cid);
                    return Err(Data::In { buffer, len });
                }
                (Sgl::Transport { len }, Moves::In { len, received: 0, buffer: None, pages })
            }
        };
        let (digest_ok, completion, aborted) = (true, None, false);
        let deadline = timeout.map(|timeout| now + timeout);
        self.deadlines.extend(deadline.map(|at| (at, cid)));
        if let Some(place) = self.open.get_mut(usize::from(cid)) {
            *place = Some(Open { owner, deadline, moves, digest_ok, completion, aborted });
        }
        self.in_flight += 1;
        let entry = Command { cid, ..command }.with_data(sgl).to_bytes();
        self.channel.transport.send_command(now, host, &entry, capsule);
        Ok(())
    }

    /// What happened next. To be called until there is nothing more, after each notice about the
    /// socket.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        host: &mut Host,
        counters: &mut InitiatorCounters,
    ) -> Option<Happened> {
        loop {
            let incoming = self.channel.poll(now, host)?;
            let about = self.about(&incoming);
            let happened = match incoming {
                Incoming::Buffer { tag, buffer } if self.terminated => {
                    self.keep_buffer(tag, buffer);
                    Ok(None)
                }
                Incoming::Ended(how) => {
                    self.culprit = self.culprit.or_else(|| self.culprit_of_transport());
                    return Some(Happened::Ended(how));
                }
                _ if self.terminated => Ok(None),
                Incoming::Ready => return Some(Happened::Ready),
                Incoming::Response(entry) => self.complete(host, Completion::parse(&entry)),
                Incoming::ReadData { cccid, len, success, digest_ok, .. } => {
                    self.take_data(host, cccid, len, success, digest_ok)
                }
                Incoming::Buffer { tag, buffer } => self.take_buffer(tag, buffer),
                Incoming::R2t { cccid, ttag, offset, len } => {
                    counters.nvmei_r2ts += 1;
                    self.give_data(now, host, (cccid, ttag), offset, len)
                }
                // The transport takes them from no controller.
                Incoming::Command { .. } | Incoming::WriteData { .. } => Err(Fault::SEQUENCE),
            };
            match happened {
                Ok(Some(answer)) => return Some(Happened::Answer(answer)),
                Ok(None) => {}
                // Its end follows.
                Err(fault) => {
                    counters.nvmei_protocol_errors += 1;
                    (self.terminated, self.culprit) = (true, about);
                    self.channel.transport.terminate(now, host, fault);
                }
            }
        }
    }

    /// Whose command something is about.
    fn about(&self, incoming: &Incoming) -> Option<Owner> {
        let cid = match incoming {
            Incoming::Response(entry) => Completion::parse(entry).cid,
            Incoming::ReadData { cccid, .. } | Incoming::R2t { cccid, .. } => *cccid,
            Incoming::Buffer { tag, .. } => *tag,
            _ => return None,
        };
        self.open.get(usize::from(cid))?.as_ref().map(|open| open.owner)
    }

    /// The owner of the command whose data the transport did not take.
    fn culprit_of_transport(&self) -> Option<Owner> {
        let cid = self.channel.transport.culprit()?;
        self.open.get(usize::from(cid))?.as_ref().map(|open| open.owner)
    }

    /// Whose command ends the association, where that is known.
    pub(super) const fn culprit(&self) -> Option<Owner> {
        self.culprit
    }

    fn open_mut(&mut self, cid: u16) -> Option<&mut Open> {
        self.open.get_mut(usize::from(cid))?.as_mut()
    }

    /// A completion has come, or was implied by SUCCESS.
    fn complete(
        &mut self,
        host: &mut Host,
        completion: Completion,
    ) -> Result<Option<Answer>, Fault> {
        let cid = completion.cid;
        let unknown = Fault::field(at::ENTRY + CQE_CID);
        let received = self.channel.transport.received(cid);
        let open = self.open_mut(cid).filter(|open| open.completion.is_none());
        let open = open.ok_or(unknown)?;
        open.completion = Some(completion);
        if let Moves::In { buffer: None, len, .. } = open.moves {
            // Said before the buffer is back: that may be with a device, and what comes meanwhile
            // must not end the connection for another reason.
            if completion.status.is_success() && received.is_some_and(|bytes| bytes < len) {
                return Err(Fault::SEQUENCE);
            }
            // All that was awaited has come, or never will.
            self.channel.transport.reclaim(host, cid);
            return Ok(None);
        }
        self.finish(cid)
    }

    fn take_data(
        &mut self,
        host: &mut Host,
        cid: u16,
        bytes: u32,
        success: bool,
        right: bool,
    ) -> Result<Option<Answer>, Fault> {
        let open = self.open_mut(cid).ok_or_else(|| Fault::field(at::CCCID))?;
        open.digest_ok &= right;
        if let Moves::In { received, .. } = &mut open.moves {
            *received = received.saturating_add(bytes);
        }
        if !success {
            return Ok(None);
        }
        let status = wire::nvme::status::Status::SUCCESS;
        self.complete(host, Completion { result: 0, sqhd: 0, cid, status })
    }

    fn take_buffer(&mut self, cid: u16, back: AlignedBuf) -> Result<Option<Answer>, Fault> {
        self.keep_buffer(cid, back);
        self.finish(cid)
    }

    fn keep_buffer(&mut self, cid: u16, back: AlignedBuf) {
        if let Some(Moves::In { buffer, .. }) = self.open_mut(cid).map(|open| &mut open.moves) {
            *buffer = Some(back);
        }
    }

    /// Answers an R2T. They have to come in the order of the data and without holes, as Linux has
    /// it: then a command whose data was asked for to the end was asked for all of it.
    fn give_data(
        &mut self,
        now: Instant,
        host: &mut Host,
        (cid, ttag): (u16, u16),
        offset: u32,
        len: u32,
    ) -> Result<Option<Answer>, Fault> {
        let open = self.open_mut(cid).filter(|open| open.completion.is_none());
        let Moves::Out { data, asked } = &mut open.ok_or_else(|| Fault::field(at::CCCID))?.moves
        else {
            return Err(Fault::field(at::CCCID));
        };
        let from = offset as usize;
        let end = from.checked_add(len as usize).filter(|&end| end <= data.len());
        let end = end.filter(|_| from == *asked).ok_or(Fault::OUT_OF_RANGE)?;
        *asked = end;
        let bytes = data.slice(from..end);
        self.channel.transport.send_write_data(now, host, (cid, ttag), offset, bytes, true);
        Ok(None)
    }

    /// A command is over: its completion is here, and its buffer.
    fn finish(&mut self, cid: u16) -> Result<Option<Answer>, Fault> {
        let Some(place) = self.open.get_mut(usize::from(cid)) else { return Ok(None) };
        let Some(Open { completion: Some(completion), moves, .. }) = place.as_ref() else {
            return Ok(None);
        };
        let whole = match moves {
            Moves::None | Moves::Sent => true,
            Moves::Out { data, asked } => *asked == data.len(),
            Moves::In { len, received, .. } => len == received,
        };
        // A success without all of the data is none.
        if completion.status.is_success() && !whole {
            return Err(Fault::SEQUENCE);
        }
        let completion = *completion;
        let Some(Open { owner, moves, digest_ok, deadline, .. }) = place.take() else {
            return Ok(None);
        };
        if let Some(at) = deadline {
            self.deadlines.remove(&(at, cid));
        }
        self.in_flight -= 1;
        self.free.push_back(cid);
        let buffer = match moves {
            Moves::In { buffer, .. } => buffer,
            _ => None,
        };
        Ok(Some(Answer { owner, completion, buffer, digest_ok }))
    }

    /// When [`Self::poll`] or [`Self::poll_late`] has something to do, whatever happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let late = self.deadlines.first().map(|deadline| deadline.0);
        [self.channel.transport.poll_timeout(), late].into_iter().flatten().min()
    }

    /// The next command that is late. It is said twice: `patience` later again.
    pub(super) fn poll_late(&mut self, now: Instant, patience: Duration) -> Option<Late> {
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
        Some(Late { owner, cid, again })
    }

    /// The connection is over: gives whose commands were open, with their buffers. Those that the
    /// device still has are replaced.
    pub(super) fn abandon(
        &mut self,
        now: Instant,
        host: &mut Host,
        counters: &mut InitiatorCounters,
    ) -> Vec<(Owner, Option<AlignedBuf>)> {
        // Data that still comes for what is taken back would be called the controller's fault.
        self.channel.transport.give_up();
        let awaited = |open: &Open| matches!(open.moves, Moves::In { buffer: None, .. });
        for cid in 0..u16::try_from(self.open.len()).unwrap_or(u16::MAX) {
            if self.open_mut(cid).is_some_and(|open| awaited(open)) {
                self.channel.transport.reclaim(host, cid);
            }
        }
        while let Some(incoming) = self.channel.poll(now, host) {
            if let Incoming::Buffer { tag, buffer } = incoming {
                self.keep_buffer(tag, buffer);
            }
        }
        self.in_flight = 0;
        self.deadlines.clear();
        let open = self.open.iter_mut().filter_map(Option::take);
        let back = open.map(|open| {
            let buffer = match open.moves {
                Moves::In { buffer, pages, .. } => Some(buffer.unwrap_or_else(|| {
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
