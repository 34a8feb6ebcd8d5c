//! Encryption: turns content into TLS records, or any range of them, in a buffer of the device.
//!
//! Called by [`crate::engine::l5o`] with transmits in the order of their flow. [`TlsTxState`] is
//! the dynamic state of Autonomous NIC Offloads, table 4, of constant size. Invariant: the output
//! is header, encrypted text or tag. If a tag cannot be computed, the whole range is refused, and
//! no plaintext is left in the buffer.

use abi::crypto::{AuthSum, TAG_BYTES};
use abi::l5o::RecordRange;
use base::SeqNum;
use wire::tls::{CONTENT_BYTES_MAX, NONCE_BYTES, TlsRecordRun};

use super::{FRONT, TlsDeviceKeys, TlsRangeCipher};
use crate::engine::payload_reader::PayloadReader;

/// Maximum content of a run, far below the overflow of 64-bit sums.
const RUN_CONTENT_MAX: u64 = 1 << 48;

/// Dynamic state of a TLS transmit context.
#[derive(Debug)]
pub(crate) struct TlsTxState {
    /// Position in the stream.
    pub(crate) position: TlsTxPosition,
    /// For records of which only a part is sent.
    pub(crate) cipher: TlsRangeCipher,
}

/// Position of a TLS transmit context in the stream.
#[derive(Clone, Debug)]
pub(crate) struct TlsTxPosition {
    /// Sequence number of the next byte expected.
    pub(crate) tcpsn: SeqNum,
    /// Number of the record to which the byte at `tcpsn` belongs.
    pub(crate) number: u64,
    /// Bytes of that record before `tcpsn`.
    pub(crate) offset: u32,
    /// Authentication sum over the record's text before `tcpsn`; `None` if some of it was not seen.
    pub(crate) sum: Option<AuthSum>,
}

impl TlsTxPosition {
    /// Returns the position at the start of record `number`.
    pub(super) fn at_record(tcpsn: SeqNum, number: u64) -> Self {
        Self { tcpsn, number, offset: 0, sum: Some(AuthSum::default()) }
    }
}

/// Error: the range reaches a tag, and the preceding bytes of the record are not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoTlsSum;

/// Additional work that encrypting a range took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EncryptEffort {
    /// The range was not the next one of its context.
    pub(crate) out_of_order: bool,
    /// The authentication sum was rebuilt from the prefix.
    pub(crate) rebuilt: bool,
    /// The authentication sum could not be rebuilt and was not needed.
    pub(crate) skipped: bool,
}

/// Encryption of one range.
pub(crate) struct RangeEncryptor<'a> {
    /// Keys of the context.
    pub(crate) keys: &'a TlsDeviceKeys,
    /// Description of the range, accepted by [`RangeEncryptor::check`].
    pub(crate) sealed: &'a RecordRange,
    /// Memory for a prefix and a content type.
    pub(crate) scratch: &'a mut [u8; CONTENT_BYTES_MAX + 1],
}

/// A record to be built.
pub(super) struct TlsTxRecord {
    number: u64,
    kind: u8,
    content: u32,
    front: u32,
    text: u32,
    nonce: [u8; NONCE_BYTES],
}

impl RangeEncryptor<'_> {
    /// Returns whether a description is consistent and fits `keys`.
    pub(crate) fn check(keys: &TlsDeviceKeys, sealed: &RecordRange) -> bool {
        let TlsRecordRun { content_bytes: content, overhead, .. } = sealed.run;
        let record_content = sealed.run.record_content_bytes;
        let sizes = (1..=CONTENT_BYTES_MAX).contains(&(record_content as usize))
            && overhead as usize == keys.framing().overhead()
            && content <= RUN_CONTENT_MAX;
        if !sizes || sealed.len == 0 {
            return false;
        }
        let run = &sealed.run;
        let (skip, end) = (sealed.skip, u64::from(sealed.skip) + u64::from(sealed.len));
        let inside = skip < run.record_content_len(0) + overhead && end <= run.wire_len();
        if !inside || sealed.number.checked_add(run.records()).is_none() {
            return false;
        }
        let front = keys.front();
        let before = run.content_before(run.position(u64::from(skip)), front);
        let within = run.content_before(run.position(end), front) - before;
        let whole_prefix = sealed.prefix == 0 || u64::from(sealed.prefix) == before;
        let bytes = u64::from(sealed.prefix) + within;
        whole_prefix && sealed.content.len() as u64 == bytes
    }

    /// Encrypts the range into `out`, which has the range's length. `source` yields prefix and
    /// content.
    ///
    /// # Errors
    /// [`NoTlsSum`]; the content of `out` is then unspecified and must not be sent.
    pub(crate) fn run(
        &mut self,
        state: &mut TlsTxState,
        tcpsn: SeqNum,
        source: &mut PayloadReader<'_>,
        out: &mut [u8],
    ) -> Result<EncryptEffort, NoTlsSum> {
        let TlsTxState { position: state, cipher } = state;
        let expected = state.tcpsn == tcpsn;
        let mut effort = EncryptEffort { out_of_order: !expected, ..EncryptEffort::default() };
        let (run, first, skip) = (&self.sealed.run, self.sealed.number, self.sealed.skip);
        let (mut index, mut offset, mut rest) = (0_u64, skip, out);
        let here = expected && state.number == first && state.offset == skip;
        let mut sum = state.sum.filter(|_| here);
        // If this call fails, the sum must not be used for a later range.
        state.sum = None;
        let record = self.record(first, run.record_content_len(0));
        if skip <= record.front {
            sum = Some(AuthSum::default());
            source.skip(self.sealed.prefix);
        } else {
            self.obtain_sum(cipher, &record, &mut sum, source, &mut effort);
        }
        while !rest.is_empty() {
            let record = self.record(first + index, run.record_content_len(index));
            let wire = record.wire();
            let take = ((wire - offset) as usize).min(rest.len());
            let (piece, after) = rest.split_at_mut(take);
            if take == wire as usize {
                record.encrypt(self.keys, source, piece);
                sum = Some(AuthSum::default());
            } else {
                self.encrypt_partial(cipher, &record, offset, &mut sum, source, piece)?;
            }
            rest = after;
            #[expect(clippy::cast_possible_truncation, reason = "at most a record")]
            let end = offset + take as u32;
            let done = end == wire;
            (index, offset) = if done { (index + 1, 0) } else { (index, end) };
            if done {
                sum = Some(AuthSum::default());
            }
        }
        effort.skipped = sum.is_none();
        *state =
            TlsTxPosition { tcpsn: tcpsn + self.sealed.len, number: first + index, offset, sum };
        Ok(effort)
    }

    fn record(&self, number: u64, content: u32) -> TlsTxRecord {
        TlsTxRecord::new(self.keys, self.sealed.kind, number, content)
    }

    /// Obtains the authentication sum over the record's text before the range, if possible: the
    /// context's own, or one rebuilt from the prefix (section 4.2).
    fn obtain_sum(
        &mut self,
        cipher: &mut TlsRangeCipher,
        record: &TlsTxRecord,
        sum: &mut Option<AuthSum>,
        source: &mut PayloadReader<'_>,
        effort: &mut EncryptEffort,
    ) {
        let text = (self.sealed.skip - record.front).min(record.text);
        let content = text.min(record.content);
        // A record without content has and needs no prefix.
        if sum.is_some() || self.sealed.prefix != content {
            return source.skip(self.sealed.prefix);
        }
        let scratch = &mut self.scratch[..text as usize];
        source.copy(&mut scratch[..content as usize]);
        if text > content {
            scratch[content as usize] = record.kind;
        }
        let mut made = AuthSum::default();
        cipher.encrypt(self.keys, &record.nonce, &mut made, 0, scratch);
        (*sum, effort.rebuilt) = (Some(made), true);
    }

    /// Builds a part of a record, from byte `offset` on.
    fn encrypt_partial(
        &self,
        cipher: &mut TlsRangeCipher,
        record: &TlsTxRecord,
        offset: u32,
        sum: &mut Option<AuthSum>,
        source: &mut PayloadReader<'_>,
        out: &mut [u8],
    ) -> Result<(), NoTlsSum> {
        let framing = self.keys.framing;
        let end = offset as usize + out.len();
        let (text_at, tag_at) = (record.front as usize, (record.front + record.text) as usize);
        if end > tag_at && sum.is_none() {
            return Err(NoTlsSum);
        }
        let mut front = [0; FRONT];
        framing.write_full_header(record.kind, record.content as usize, &record.nonce, &mut front);
        let mut at = offset as usize;
        let mut rest = out;
        if at < text_at {
            let take = (text_at - at).min(rest.len());
            let (here, after) = rest.split_at_mut(take);
            here.copy_from_slice(&front[at..at + take]);
            (at, rest) = (at + take, after);
        }
        if at < tag_at && !rest.is_empty() {
            let take = (tag_at - at).min(rest.len());
            let (here, after) = rest.split_at_mut(take);
            #[expect(clippy::cast_possible_truncation, reason = "at most a record")]
            let from = (at - text_at) as u32;
            let content = (record.content.saturating_sub(from) as usize).min(take);
            source.copy(&mut here[..content]);
            here[content..].fill(record.kind);
            match sum {
                Some(sum) => cipher.encrypt(self.keys, &record.nonce, sum, from, here),
                None => self.keys.aead.apply_keystream(&record.nonce, u64::from(from), here),
            }
            (at, rest) = (at + take, after);
        }
        if let (Some(sum), false) = (sum, rest.is_empty()) {
            let tag = self.tag(record, sum);
            let from = at - tag_at;
            rest.copy_from_slice(&tag[from..from + rest.len()]);
        }
        Ok(())
    }

    fn tag(&self, record: &TlsTxRecord, sum: &AuthSum) -> [u8; TAG_BYTES] {
        let framing = self.keys.framing;
        let (aad, used) = framing.aad(record.number, record.kind, record.text as usize);
        self.keys.aead.finish(&record.nonce, &aad[..used], u64::from(record.text), sum)
    }
}

impl TlsTxRecord {
    pub(super) fn new(keys: &TlsDeviceKeys, kind: u8, number: u64, content: u32) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "one or none")]
        let inner = keys.framing.inner_type_len() as u32;
        Self {
            number,
            kind,
            content,
            front: keys.front(),
            text: content + inner,
            nonce: keys.framing.nonce(&keys.iv, number),
        }
    }

    /// Builds the whole record.
    pub(super) fn encrypt(
        &self,
        keys: &TlsDeviceKeys,
        source: &mut PayloadReader<'_>,
        out: &mut [u8],
    ) {
        let framing = keys.framing;
        let mut front = [0; FRONT];
        framing.write_full_header(self.kind, self.content as usize, &self.nonce, &mut front);
        let (head, rest) = out.split_at_mut(self.front as usize);
        head.copy_from_slice(&front[..self.front as usize]);
        let (aad, used) = framing.aad(self.number, self.kind, self.text as usize);
        let (aad, kind) = (&aad[..used], [self.kind]);
        let inner = &kind[..(self.text - self.content) as usize];
        if let Some(content) = source.contiguous(self.content as usize) {
            return keys.aead.seal_copy(&self.nonce, aad, content, inner, rest);
        }
        let (text, tag) = rest.split_at_mut(self.text as usize);
        let (content, last) = text.split_at_mut(self.content as usize);
        source.copy(content);
        last.copy_from_slice(inner);
        tag.copy_from_slice(&keys.aead.seal(&self.nonce, aad, text));
    }

    pub(super) const fn wire(&self) -> u32 {
        self.front + self.text + super::TAG
    }
}
