//! Keys of the records in a send stream, and the expected state of the device's contexts.
//!
//! A connection's send stream holds runs of records by their content; the keys stay here until the
//! last of their records is acknowledged. A run becomes bytes in one of two ways: the device
//! completes it ([`TlsTxKeys::part`]), or the host encrypts it ([`TlsTxKeys::encrypt`]) and the
//! stream holds the result.
//!
//! [`ExpectedTxState`] is the driver's shadow of the context (Autonomous NIC Offloads, section
//! 4.2): it tells whether a transmit continues where the last one ended, or must carry the prefix
//! of its record.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::TransmitPart;
use abi::crypto::TAG_BYTES;
use abi::l5o::{L5oContent, L5oId, RecordRange};
use wire::tls::TlsRecordRun;

use super::record::TlsRecordKeys;

/// Records of a send stream whose content is the source of a span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordRun {
    /// Index of the keys.
    pub(crate) epoch: u32,
    /// Number of the first record.
    pub(crate) number: u64,
    /// Content type.
    pub(crate) kind: u8,
    /// Layout of the records.
    pub(crate) run: TlsRecordRun,
    /// Bytes before the content of each record.
    pub(crate) front: u32,
}

impl RecordRun {
    /// Removes the first `count` records. Returns the bytes of their content.
    pub(crate) fn forget(&mut self, count: u64) -> u64 {
        let content =
            (count * u64::from(self.run.record_content_bytes)).min(self.run.content_bytes);
        self.number += count;
        self.run.content_bytes -= content;
        content
    }
}

#[derive(Debug)]
struct KeyEpoch {
    keys: Arc<TlsRecordKeys>,
    /// The device's context, if it has one.
    context: Option<L5oId>,
    /// Position of the first byte that the context encrypts.
    begin: u64,
    /// Position after the last record, once there are newer keys.
    end: Option<u64>,
}

/// Expected state of the device.
#[derive(Debug, Default)]
struct ExpectedTxState {
    context: Option<L5oId>,
    position: u64,
    /// The device has seen all content of the record before `position`, on which its tag depends.
    whole: bool,
}

/// Evidence that the device has accepted a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContextProof {
    None,
    /// The transmit `tag` needs `context`: its echo tells whether the device has the context.
    Asked {
        context: L5oId,
        tag: u32,
    },
    /// The device has completed a transmit with the context.
    Echoed(L5oId),
}

/// Keys of a send stream, oldest first.
#[derive(Debug)]
pub(crate) struct TlsTxKeys {
    epochs: VecDeque<KeyEpoch>,
    /// Index of the oldest keys.
    oldest: u32,
    expected: ExpectedTxState,
    proof: ContextProof,
}

impl TlsTxKeys {
    pub(crate) const fn new() -> Self {
        Self {
            epochs: VecDeque::new(),
            oldest: 0,
            expected: ExpectedTxState { context: None, position: 0, whole: false },
            proof: ContextProof::None,
        }
    }

    /// Adds new keys for records from `position` on.
    pub(crate) fn push(&mut self, keys: Arc<TlsRecordKeys>, context: Option<L5oId>, position: u64) {
        if let Some(last) = self.epochs.back_mut() {
            last.end = Some(position);
        }
        self.epochs.push_back(KeyEpoch { keys, context, begin: position, end: None });
    }

    /// Returns whether these are the newest keys.
    pub(crate) fn has(&self, keys: &Arc<TlsRecordKeys>) -> bool {
        self.epochs.back().is_some_and(|epoch| Arc::ptr_eq(&epoch.keys, keys))
    }

    /// Returns the index of the newest keys.
    pub(crate) fn newest(&self) -> u32 {
        (self.oldest + u32::try_from(self.epochs.len()).unwrap_or(0)).saturating_sub(1)
    }

    /// Returns the position at which the newest keys begin; 0 if no older keys are kept.
    pub(crate) fn newest_begin(&self) -> u64 {
        let before = self.epochs.len().checked_sub(2).and_then(|at| self.epochs.get(at));
        before.and_then(|epoch| epoch.end).unwrap_or(0)
    }

    /// Returns the number of keys with unacknowledged records.
    pub(crate) fn kept(&self) -> usize {
        self.epochs.len()
    }

    fn epoch(&self, epoch: u32) -> Option<&KeyEpoch> {
        self.epochs.get(epoch.checked_sub(self.oldest)? as usize)
    }

    /// Returns the device's context for new records.
    pub(crate) fn context(&self) -> Option<L5oId> {
        self.epochs.back()?.context
    }

    /// Sets a new context for new records, after the device has lost all others.
    pub(crate) fn renew(&mut self, context: L5oId) {
        if let Some(last) = self.epochs.back_mut() {
            last.context = Some(context);
            last.begin = u64::MAX;
        }
    }

    /// Returns whether the device is known to have accepted a context, and so cannot refuse it
    /// later: a transmit that needs it has left, or the peer has acknowledged, before `una`, bytes
    /// that it encrypted.
    pub(crate) fn is_proven(&self, context: L5oId, una: u64) -> bool {
        let acked = |epoch: &KeyEpoch| epoch.context == Some(context) && epoch.begin < una;
        self.proof == ContextProof::Echoed(context) || self.epochs.iter().any(acked)
    }

    /// Notes that an echo was requested for the transmit `tag`, which consists of `parts`.
    pub(crate) fn note_echo_asked(&mut self, tag: u32, parts: &[TransmitPart]) {
        let sealed = parts.iter().find_map(|part| match part {
            TransmitPart::Records(sealed) => Some(sealed.context),
            _ => None,
        });
        if let Some(context) = sealed.filter(|&context| self.proof != ContextProof::Echoed(context))
        {
            self.proof = ContextProof::Asked { context, tag };
        }
    }

    /// Notes that the transmit `tag` has left.
    pub(crate) fn note_echo(&mut self, tag: u32) {
        match self.proof {
            ContextProof::Asked { context, tag: asked } if asked == tag => {
                self.proof = ContextProof::Echoed(context);
            }
            _ => {}
        }
    }

    /// Drops keys whose records all lie before `position`, which is acknowledged. Passes their
    /// contexts to `gone`.
    pub(crate) fn acknowledged(&mut self, position: u64, mut gone: impl FnMut(L5oId)) {
        while let Some(KeyEpoch { end: Some(end), .. }) = self.epochs.front() {
            if *end > position {
                break;
            }
            if let Some(context) = self.epochs.pop_front().and_then(|epoch| epoch.context) {
                gone(context);
            }
            self.oldest += 1;
        }
    }

    /// Notes that the device lost `context`, or all contexts if `None`. Returns whether one of them
    /// was in use here.
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

    /// Returns every context that was requested and not lost.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = L5oId> + '_ {
        self.epochs.iter().filter_map(|epoch| epoch.context)
    }

    /// Forgets the expected state of the device: a transmit did not leave.
    pub(crate) fn distrust(&mut self) {
        self.expected = ExpectedTxState::default();
    }

    /// Forgets the expected state and the proof of the contexts, because the connection moves to
    /// another device.
    pub(crate) fn forget_device(&mut self) {
        self.distrust();
        self.proof = ContextProof::None;
    }

    /// Removes and returns every context.
    pub(crate) fn take_contexts(&mut self) -> impl Iterator<Item = L5oId> + '_ {
        self.epochs.iter_mut().filter_map(|epoch| epoch.context.take())
    }

    /// Returns whether the device completes these records.
    pub(crate) fn is_offloaded(&self, records: &RecordRun) -> bool {
        self.epoch(records.epoch).is_some_and(|epoch| epoch.context.is_some())
    }

    /// Encrypts the content of the first records, and returns the records.
    pub(crate) fn encrypt(&self, records: &RecordRun, mut content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let Some(epoch) = self.epoch(records.epoch) else {
            debug_assert!(false, "keys that were dropped before their records");
            return out;
        };
        let run = TlsRecordRun { content_bytes: content.len() as u64, ..records.run };
        out.reserve_exact(usize::try_from(run.wire_len()).unwrap_or(0));
        let mut number = records.number;
        while !content.is_empty() {
            let (text, rest) =
                content.split_at(content.len().min(run.record_content_bytes as usize));
            epoch.keys.seal(number, records.kind, text, &mut out);
            (number, content) = (number + 1, rest);
        }
        out
    }

    /// Returns the part of a transmit for the bytes `skip..skip + len` of `records`, which begin at
    /// `position` of the stream. `content_bytes` returns a range of their content. `None` if the
    /// device has no context for them.
    pub(crate) fn part(
        &mut self,
        records: &RecordRun,
        position: u64,
        (skip, len): (u64, u32),
        content: impl FnOnce(u64, u64) -> Option<L5oContent>,
    ) -> Option<TransmitPart> {
        let context = self.epoch(records.epoch)?.context?;
        let run = records.run;
        let (from, to) = (run.position(skip), run.position(skip + u64::from(len)));
        let at = position + skip;
        let text = run.content_before(from, records.front);
        let before = text - from.index * u64::from(run.record_content_bytes);
        // Nothing on which the tag depends precedes the range, or the device has seen all of it.
        let begins = from.offset <= records.front;
        let continues = self.expected.context == Some(context)
            && self.expected.whole
            && self.expected.position == at;
        let known = begins || continues;
        let record_len = run.record_content_len(from.index) + run.overhead;
        let tag_at = record_len - u32::try_from(TAG_BYTES).unwrap_or(0);
        let reaches_tag = u64::from(from.offset) + u64::from(len) > u64::from(tag_at);
        let prefix = if known || !reaches_tag { 0 } else { before };
        let content = content(text - prefix, run.content_before(to, records.front))?;
        let whole = known || prefix > 0 || to.index != from.index;
        self.expected =
            ExpectedTxState { context: Some(context), position: at + u64::from(len), whole };
        let skipped = from.index * u64::from(run.record_content_bytes);
        Some(TransmitPart::Records(Box::new(RecordRange {
            context,
            content,
            prefix: u32::try_from(prefix).ok()?,
            number: records.number + from.index,
            kind: records.kind,
            run: TlsRecordRun { content_bytes: run.content_bytes - skipped, ..run },
            skip: from.offset,
            len,
        })))
    }
}

#[cfg(test)]
pub(crate) mod tests;
