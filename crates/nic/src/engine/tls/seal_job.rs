//! Encryption of whole records that workers may do beside the device.
//!
//! Records are independent of each other if they are whole. [`RangeSplit`] divides a range into the
//! rest of a record that began earlier, whole records, and the beginning of a last one.
//! [`crate::engine::l5o`] encrypts the two parts of records itself, because their tags depend on
//! bytes sent before or later, and makes [`TlsSealJob`]s of the whole ones. A job owns its memory
//! and shares keys; record numbers are assigned before, in the order of the stream.

use abi::aligned::AlignedBuf;
use abi::l5o::{L5oContent, RecordRange};
use abi::link::{FramePayload, FramePayloads};
use alloc::sync::Arc;
use base::SeqNum;
use bytes::Bytes;
use wire::tls::TlsRecordRun;

use super::encrypt::{TlsTxPosition, TlsTxRecord};
use super::{TlsDeviceKeys, TlsTxState};
use crate::engine::payload_reader::PayloadReader;

/// Adjacent whole records.
#[derive(Clone, Copy)]
pub(crate) struct WholeRecords {
    kind: u8,
    /// Number of the first record.
    number: u64,
    run: TlsRecordRun,
}

/// Encryption of adjacent whole records.
pub(crate) struct TlsSealJob {
    pub(crate) keys: Arc<TlsDeviceKeys>,
    pub(crate) records: WholeRecords,
    /// Content of the records.
    pub(crate) content: FramePayloads,
    /// Buffer for the records, not shared before the job has ended.
    pub(crate) buffer: Arc<AlignedBuf>,
    /// Index among the parts of the payload.
    pub(crate) part: usize,
}

/// A range of records, divided. Parts of records are described like ranges of a host, without
/// content.
pub(crate) struct RangeSplit {
    /// The rest of a record that began before the range.
    pub(crate) head: Option<RecordRange>,
    /// The whole records, of which there is at least one.
    pub(crate) whole: WholeRecords,
    /// The beginning of a record that ends after the range.
    pub(crate) tail: Option<RecordRange>,
}

impl RangeSplit {
    /// Divides a range that [`super::RangeEncryptor::check`] has accepted. Returns `None` if no
    /// record is whole.
    pub(crate) fn new(range: &RecordRange) -> Option<Self> {
        let RecordRange { ref run, skip, len, kind, number, .. } = *range;
        let first = u64::from(skip > 0);
        let end = run.position(u64::from(skip) + u64::from(len));
        let records = end.index.checked_sub(first).filter(|&records| records > 0)?;
        let part = |index: u64, skip: u32, len: u64| RecordRange {
            context: range.context,
            content: L5oContent::Host(Bytes::new()),
            prefix: if index == 0 { range.prefix } else { 0 },
            number: number + index,
            kind,
            run: sub_run(run, index, run.records()),
            skip,
            len: u32::try_from(len).unwrap_or(u32::MAX),
        };
        let head_len = run.record_start(1).saturating_sub(skip.into());
        let head = (skip > 0).then(|| part(0, skip, head_len));
        let tail = (end.offset > 0).then(|| part(end.index, 0, end.offset.into()));
        let run = sub_run(run, first, records);
        let whole = WholeRecords { kind, number: number + first, run };
        Some(Self { head, whole, tail })
    }
}

/// Returns at most `records` records of a run, from that of index `first` on.
fn sub_run(run: &TlsRecordRun, first: u64, records: u64) -> TlsRecordRun {
    let content = |records: u64| records.saturating_mul(u64::from(run.record_content_bytes));
    let left = run.content_bytes.saturating_sub(content(first));
    TlsRecordRun { content_bytes: left.min(content(records)), ..*run }
}

impl WholeRecords {
    /// Calls `f` with pieces of these records of at most `bytes_max` bytes, or of one record.
    pub(crate) fn cut(&self, bytes_max: usize, mut f: impl FnMut(Self)) {
        let record = u64::from(self.run.record_content_bytes) + u64::from(self.run.overhead);
        let step = (bytes_max as u64 / record.max(1)).max(1);
        let mut first = 0;
        while first < self.run.records() {
            let run = sub_run(&self.run, first, step);
            f(Self { kind: self.kind, number: self.number + first, run });
            first += step;
        }
    }

    /// Returns the number of the record after the last.
    pub(crate) const fn end(&self) -> u64 {
        self.number + self.run.records()
    }

    /// Returns the length of all content in bytes.
    pub(crate) fn content_len(&self) -> u32 {
        u32::try_from(self.run.content_bytes).unwrap_or(u32::MAX)
    }

    /// Returns the length of the records in bytes.
    pub(crate) fn wire_len(&self) -> usize {
        usize::try_from(self.run.wire_len()).unwrap_or(usize::MAX)
    }
}

impl TlsTxState {
    /// Moves to the start of record `number`, whose first byte is `tcpsn`.
    pub(crate) fn move_to_record(&mut self, tcpsn: SeqNum, number: u64) {
        self.position = TlsTxPosition::at_record(tcpsn, number);
    }
}

impl TlsSealJob {
    /// Returns the length of the records in bytes.
    pub(crate) fn len(&self) -> usize {
        self.records.wire_len()
    }

    /// Encrypts the records. Returns whether they are complete.
    pub(crate) fn run(&mut self) -> bool {
        let len = self.len();
        let room = Arc::get_mut(&mut self.buffer).map(|buffer| buffer.as_mut_slice());
        let Some(mut rest) = room.and_then(|room| room.get_mut(..len)) else { return false };
        let WholeRecords { kind, number, ref run } = self.records;
        let mut source = PayloadReader::new(&self.content);
        for index in 0..run.records() {
            let content = run.record_content_len(index);
            let record = TlsTxRecord::new(&self.keys, kind, number + index, content);
            let (out, after) = rest.split_at_mut(record.wire() as usize);
            record.encrypt(&self.keys, &mut source, out);
            rest = after;
        }
        true
    }

    /// Returns the index of the encrypted part in the payload, and the part.
    pub(crate) fn into_part(self) -> (usize, FramePayload) {
        let len = u32::try_from(self.len()).unwrap_or(0);
        (self.part, FramePayload::Block { block: self.buffer, start: 0, len })
    }
}
