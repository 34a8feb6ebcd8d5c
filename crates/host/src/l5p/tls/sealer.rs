//! The keys that a send stream's records are sealed with, and what the device's contexts expect.
//!
//! A connection's stream holds runs of records by their content; the keys stay here until the last
//! of their records is acknowledged. Two ways lead from a run to the wire: the device completes it
//! ([`Sealer::part`]), or the host seals it ([`Sealer::seal`]) and the stream holds the result.
//!
//! The driver's shadow of the paper's section 4.2 is [`Expected`]: it tells whether a transmit
//! continues where the last one ended, or has to bring what precedes it in its record.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::Part;
use abi::crypto::TAG_BYTES;
use abi::l5o::{Content, L5oId, Sealed};
use wire::tls::Run;

use super::record::Keys;

/// Records of a send stream that are made from a span's source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Records {
    /// Which keys.
    pub(crate) epoch: u32,
    /// Number of the first.
    pub(crate) number: u64,
    /// What they carry.
    pub(crate) kind: u8,
    /// Where they lie.
    pub(crate) run: Run,
    /// Bytes before the content of each.
    pub(crate) front: u32,
}

impl Records {
    /// Forgets the first `count`; gives the bytes of their content.
    pub(crate) fn forget(&mut self, count: u64) -> u64 {
        let content = (count * u64::from(self.run.record_content)).min(self.run.content);
        self.number += count;
        self.run.content -= content;
        content
    }
}

#[derive(Debug)]
struct Epoch {
    keys: Arc<Keys>,
    /// The device's context, where it has one.
    context: Option<L5oId>,
    /// Position of the first byte that the context seals.
    begin: u64,
    /// Position behind the last record, once there are newer keys.
    end: Option<u64>,
}

/// Where a context of the device stands.
#[derive(Debug, Default)]
struct Expected {
    context: Option<L5oId>,
    position: u64,
    /// It has seen everything that the record's tag depends on.
    whole: bool,
}

/// Evidence that the device has accepted a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    None,
    /// The transmit `tag` needs `context`: its echo tells if the device has that.
    Asked {
        context: L5oId,
        tag: u32,
    },
    /// The device has completed a transmit with it.
    Echoed(L5oId),
}

/// Keys of a send stream, oldest first.
#[derive(Debug)]
pub(crate) struct Sealer {
    epochs: VecDeque<Epoch>,
    /// Number of the oldest.
    oldest: u32,
    expected: Expected,
    proof: Proof,
}

impl Sealer {
    pub(crate) const fn new() -> Self {
        Self {
            epochs: VecDeque::new(),
            oldest: 0,
            expected: Expected { context: None, position: 0, whole: false },
            proof: Proof::None,
        }
    }

    /// New keys for what follows `position`.
    pub(crate) fn push(&mut self, keys: Arc<Keys>, context: Option<L5oId>, position: u64) {
        if let Some(last) = self.epochs.back_mut() {
            last.end = Some(position);
        }
        self.epochs.push_back(Epoch { keys, context, begin: position, end: None });
    }

    /// Whether these are the newest keys.
    pub(crate) fn has(&self, keys: &Arc<Keys>) -> bool {
        self.epochs.back().is_some_and(|epoch| Arc::ptr_eq(&epoch.keys, keys))
    }

    /// The epoch of the newest keys.
    pub(crate) fn newest(&self) -> u32 {
        (self.oldest + u32::try_from(self.epochs.len()).unwrap_or(0)).saturating_sub(1)
    }

    /// Position where the newest keys begin; 0 if there were no others since what is kept.
    pub(crate) fn newest_begin(&self) -> u64 {
        let before = self.epochs.len().checked_sub(2).and_then(|at| self.epochs.get(at));
        before.and_then(|epoch| epoch.end).unwrap_or(0)
    }

    /// Returns the number of keys with records that are not acknowledged.
    pub(crate) fn kept(&self) -> usize {
        self.epochs.len()
    }

    fn epoch(&self, epoch: u32) -> Option<&Epoch> {
        self.epochs.get(epoch.checked_sub(self.oldest)? as usize)
    }

    /// The device's context for what is written now.
    pub(crate) fn context(&self) -> Option<L5oId> {
        self.epochs.back()?.context
    }

    /// A context for what is written now, where the device has lost all others.
    pub(crate) fn renew(&mut self, context: L5oId) {
        if let Some(last) = self.epochs.back_mut() {
            last.context = Some(context);
            last.begin = u64::MAX;
        }
    }

    /// Returns whether the device is known to have a context, which it then refuses no more: a
    /// transmit that needs it has left, or the peer has acknowledged, before `una`, bytes that it
    /// sealed.
    pub(crate) fn is_proven(&self, context: L5oId, una: u64) -> bool {
        let acked = |epoch: &Epoch| epoch.context == Some(context) && epoch.begin < una;
        self.proof == Proof::Echoed(context) || self.epochs.iter().any(acked)
    }

    /// Notes that the transmit `tag`, whose echo the device was asked for, consists of `parts`.
    pub(crate) fn note_echo_asked(&mut self, tag: u32, parts: &[Part]) {
        let sealed = parts.iter().find_map(|part| match part {
            Part::Sealed(sealed) => Some(sealed.context),
            _ => None,
        });
        if let Some(context) = sealed.filter(|&context| self.proof != Proof::Echoed(context)) {
            self.proof = Proof::Asked { context, tag };
        }
    }

    /// The transmit `tag` has left.
    pub(crate) fn note_echo(&mut self, tag: u32) {
        if let Proof::Asked { context, tag: asked } = self.proof
            && asked == tag
        {
            self.proof = Proof::Echoed(context);
        }
    }

    /// Everything before `position` was acknowledged: keys of which no record is left go. Gives the
    /// contexts that go with them.
    pub(crate) fn acknowledged(&mut self, position: u64, mut gone: impl FnMut(L5oId)) {
        while let Some(Epoch { end: Some(end), .. }) = self.epochs.front() {
            if *end > position {
                break;
            }
            if let Some(context) = self.epochs.pop_front().and_then(|epoch| epoch.context) {
                gone(context);
            }
            self.oldest += 1;
        }
    }

    /// The device has no contexts any more, or only `context` not. Says whether one was ours.
    pub(crate) fn lose(&mut self, context: Option<L5oId>) -> bool {
        let mut lost = false;
        for epoch in &mut self.epochs {
            if epoch.context.is_some() && context.is_none_or(|c| epoch.context == Some(c)) {
                epoch.context = None;
                lost = true;
            }
        }
        lost
    }

    /// Every context that the device was asked for, as far as it is not known to be gone.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = L5oId> + '_ {
        self.epochs.iter().filter_map(|epoch| epoch.context)
    }

    /// A transmit did not leave: no context is where it was thought to be.
    pub(crate) fn distrust(&mut self) {
        self.expected = Expected::default();
    }

    /// Gives up every context.
    pub(crate) fn take_contexts(&mut self) -> impl Iterator<Item = L5oId> + '_ {
        self.epochs.iter_mut().filter_map(|epoch| epoch.context.take())
    }

    /// Whether the device completes records of these.
    pub(crate) fn is_offloaded(&self, records: &Records) -> bool {
        self.epoch(records.epoch).is_some_and(|epoch| epoch.context.is_some())
    }

    /// Seals content of the first records, one after another.
    pub(crate) fn seal(&self, records: &Records, mut content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let Some(epoch) = self.epoch(records.epoch) else {
            debug_assert!(false, "keys that were dropped before their records");
            return out;
        };
        let run = Run { content: content.len() as u64, ..records.run };
        out.reserve_exact(usize::try_from(run.wire_len()).unwrap_or(0));
        let mut number = records.number;
        while !content.is_empty() {
            let (text, rest) = content.split_at(content.len().min(run.record_content as usize));
            epoch.keys.seal(number, records.kind, text, &mut out);
            (number, content) = (number + 1, rest);
        }
        out
    }

    /// The part of a transmit that is the bytes `skip..skip + len` of `records`, which begin at
    /// `position` of the stream. `content` gives a range of their content. None where the device
    /// has no context for them.
    pub(crate) fn part(
        &mut self,
        records: &Records,
        position: u64,
        (skip, len): (u64, u32),
        content: impl FnOnce(u64, u64) -> Option<Content>,
    ) -> Option<Part> {
        let context = self.epoch(records.epoch)?.context?;
        let run = records.run;
        let (from, to) = (run.place(skip), run.place(skip + u64::from(len)));
        let at = position + skip;
        let text = run.content_before(from, records.front);
        let before = text - from.index * u64::from(run.record_content);
        // Nothing that the tag depends on precedes the range, or the device has seen all of it.
        let begins = from.offset <= records.front;
        let continues = self.expected.context == Some(context)
            && self.expected.whole
            && self.expected.position == at;
        let known = begins || continues;
        let record_len = run.content_of(from.index) + run.overhead;
        let tag_at = record_len - u32::try_from(TAG_BYTES).unwrap_or(0);
        let reaches_tag = u64::from(from.offset) + u64::from(len) > u64::from(tag_at);
        let prefix = if known || !reaches_tag { 0 } else { before };
        let content = content(text - prefix, run.content_before(to, records.front))?;
        let whole = known || prefix > 0 || to.index != from.index;
        self.expected = Expected { context: Some(context), position: at + u64::from(len), whole };
        let skipped = from.index * u64::from(run.record_content);
        Some(Part::Sealed(Box::new(Sealed {
            context,
            content,
            prefix: u32::try_from(prefix).ok()?,
            number: records.number + from.index,
            kind: records.kind,
            run: Run { content: run.content - skipped, ..run },
            skip: from.offset,
            len,
        })))
    }
}

#[cfg(test)]
pub(crate) mod tests;
