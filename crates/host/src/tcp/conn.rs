//! A connection: the transmission control block, and the calls of the application on it.
//!
//! The work is done in the sibling modules, one for each function. This file has the state of a
//! connection and its creation, writes, close and end, and the device's echoes and resets. Calls of
//! the application never send; they leave work for [`TcpConnection::output`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use abi::l5o::L5oId;
use abi::teardown::LateData;
use abi::{FileFault, FileId, FlowId, Op, Refusal, TransmitOutcome};
use base::{Duration, Instant, SeqNum, internal_error};
use bytes::Bytes;
use tcp_rules::challenge::ChallengeLimiter;
use tcp_rules::paws::TsRecent;
use wire::Tuple;

use super::congestion::{Congestion, CwndUsage};
use super::delivery::DeliveryRate;
use super::path_mtu::MtuSearch;
use super::rack::Rack;
use super::rcv::TcpReceiveState;
use super::recovery::{CongestionEpisode, CwndReduction, CwndUndo, TailLossProbe};
use super::rtt::TcpRttEstimator;
use super::scoreboard::RetransmitQueue;
use super::spans::SpanMap;
use super::state::{TcpState, TcpStateEvent};
use super::timers::{RetransmitPurpose, TcpTimers};
use super::transform::TxTransforms;
use crate::api::SocketError;
use crate::config::TcpConfig;
use crate::net::outbox::Outbox;
use crate::storage::files::Files;
use crate::storage::source::StreamSource;

/// Environment of a connection's methods: time, configuration, output, files.
pub(crate) struct TcpEnv<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a TcpConfig,
    pub(crate) out: &'a mut Outbox,
    pub(crate) files: &'a mut Files,
}

/// Options that both ends agreed on in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// Every segment carries RFC 7323 timestamps.
    pub(crate) timestamps: bool,
    /// RFC 2018 selective acknowledgments.
    pub(crate) sack: bool,
    /// Explicit congestion notification (RFC 3168).
    pub(crate) ecn: bool,
    /// Shift of the windows in the peer's segments.
    pub(crate) peer_scale: u8,
    /// Largest segment that the peer accepts, its options included.
    pub(crate) peer_mss: u16,
    /// Offset of our timestamps from our clock in milliseconds.
    pub(crate) ts_offset: u32,
    /// The peer's latest timestamp and when it came: TS.Recent.
    pub(crate) ts_recent: TsRecent,
}

/// Flags of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnFlags {
    pub(crate) no_delay: bool,
    pub(crate) cork: bool,
    /// The application holds the socket.
    pub(crate) held_by_app: bool,
    /// A change of readiness has not been reported to the application.
    pub(crate) notify_app: bool,
    /// The application filled the send buffer, and is to be notified when a third of it is free.
    pub(crate) wants_send_room: bool,
    /// The session above has work to do though nothing was received. Kept here so that an
    /// acknowledgment need not look into the session.
    pub(crate) session_has_work: bool,
    /// `TCP_TEARDOWN_OFFLOAD`: the device is asked to tear the connection down.
    pub(crate) teardown: bool,
    /// A transmit may wait for an acknowledgment that makes it longer; see `defers` in
    /// [`super::output`].
    pub(crate) defer: bool,
}

/// Ranges of files: file, offset and length of each.
#[derive(Debug)]
struct FileRanges(Vec<(FileId, u64, u64)>);

/// The sending half of a connection. Positions count from the SYN, which is 0; the first byte is 1.
#[derive(Debug)]
pub(crate) struct TcpSendState<T: TxTransforms> {
    pub(crate) iss: SeqNum,
    /// Position of the first unacknowledged byte; 0 until the SYN is acknowledged.
    pub(crate) una: u64,
    /// Position of the next byte to send: SND.NXT.
    pub(crate) nxt: u64,
    /// Position of the right edge of the peer's window.
    pub(crate) edge: u64,
    /// Largest window that the peer has offered, in bytes.
    pub(crate) wnd_max: u32,
    /// Position of the segment that last updated the window: RFC 9293 SND.WL1.
    pub(crate) wl1: u64,
    /// Payload bytes of a full segment.
    pub(crate) mss: u32,
    pub(crate) spans: SpanMap<T::Unit>,
    /// Makes the bytes of the units in `spans`.
    pub(crate) transforms: T,
    /// The application has closed this direction: a FIN follows the last byte.
    pub(crate) fin: bool,
    pub(crate) flight: RetransmitQueue,
    pub(crate) rtt: TcpRttEstimator,
    pub(crate) rack: Rack,
    pub(crate) cc: Congestion,
    /// Boxed, since most connections never need it.
    pub(crate) episode: Option<Box<CongestionEpisode>>,
    /// Congestion state before the last reduction. Boxed, since most connections never need it.
    pub(crate) undo: Option<Box<CwndUndo>>,
    /// An outstanding tail loss probe. Boxed, since most connections never need it.
    pub(crate) probe: Option<Box<TailLossProbe>>,
    /// Path MTU discovery. Boxed, since most connections never need it.
    pub(crate) mtu_search: Option<Box<MtuSearch>>,
    pub(crate) next_tag: u32,
    /// Transmits with tags before this one were handed over before the device was reset or a
    /// context was lost: that they were dropped is no error.
    pub(crate) void_tags_before: u32,
    /// The acknowledgment number in the last transmit that may wait for a disk, with the tag of the
    /// transmit.
    pub(crate) carried_ack: Option<(u32, SeqNum)>,
    /// The congestion window limited sending in the last call of `output`.
    pub(crate) cwnd_limited: bool,
    /// Use of the congestion window in the last round trip.
    pub(crate) usage: CwndUsage,
    /// The next new data carries CWR, which tells the peer that the window was reduced (RFC 3168).
    pub(crate) send_cwr: bool,
    pub(crate) last_sent: Instant,
    /// Time before which pacing holds the next segment back.
    pub(crate) pace_at: Instant,
    /// Pacing limited sending in the last call of `output`.
    pub(crate) pacing_limited: bool,
    /// End of the last segment that was less than full: Minshall's variant of Nagle's algorithm.
    pub(crate) small_segment_end: u64,
    /// Keep-alive probes sent since the peer's last answer.
    pub(crate) probes: u8,
    /// Zero-window probes since the window closed: the exponent of their back-off.
    pub(crate) window_probes: u8,
    /// Duplicate acknowledgments in a row; counted only without SACK.
    pub(crate) dup_acks: u8,
    /// Position acknowledged when the last recovery ended, used as RFC 6582's recover: duplicate
    /// acknowledgments at it begin no new recovery.
    pub(crate) recover: u64,
    /// Time at which the peer last made progress, for the user time-out (RFC 5482).
    pub(crate) progress_at: Instant,
    /// Acknowledged bytes of a file that have not been reported to the device.
    pub(crate) unreported_acked: AckedFileRange,
    /// File ranges of a connection that has ended, which the device has yet to send. It stays in
    /// CLOSED until they are released. Boxed, since most connections never need it.
    awaited_files: Option<Box<FileRanges>>,
    /// The host is reading a file for this stream.
    pub(crate) host_reads_file: bool,
    pub(crate) resent_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) rate: DeliveryRate,
}

impl<T: TxTransforms> TcpSendState<T> {
    /// Returns whether there is no congestion: Linux's phase Open.
    pub(crate) const fn is_open(&self) -> bool {
        self.episode.is_none()
    }

    /// Returns whether lost ranges are being retransmitted.
    pub(crate) fn is_recovering(&self) -> bool {
        use CongestionEpisode::{Loss, Recovery};
        matches!(self.episode.as_deref(), Some(Recovery(_) | Loss(_)))
    }

    /// Returns the reduction of the window that is in progress.
    pub(crate) fn reduction(&mut self) -> Option<&mut CwndReduction> {
        match self.episode.as_deref_mut() {
            Some(CongestionEpisode::Recovery(reduction) | CongestionEpisode::Cwr(reduction)) => {
                Some(reduction)
            }
            Some(CongestionEpisode::Loss(_)) | None => None,
        }
    }

    /// Bytes that may be sent beyond the congestion window: RFC 3042 limited transmit, a segment
    /// for each of the first two duplicate acknowledgments. Zero with SACK, where the pipe shrinks
    /// instead.
    pub(crate) fn limited_transmit(&self) -> u64 {
        if self.is_open() { u64::from(self.dup_acks.min(2)) * u64::from(self.mss) } else { 0 }
    }

    /// Destroys every context that the device has for the send stream.
    fn destroy_contexts(&mut self, out: &mut Outbox) {
        let contexts = self.transforms.take_contexts();
        out.ops.extend(contexts.map(|context| Op::L5oDestroy { context }));
    }

    /// Makes the host read files and make units that the device no longer can.
    fn read_on_host(&mut self, out: &mut Outbox) {
        self.spans.read_on_host(&mut self.transforms);
        self.transforms.add_to_counters(out);
    }
}

/// Acknowledged bytes of a file; `len` is 0 if there are none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckedFileRange {
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    /// At most the send window.
    pub(crate) len: u32,
}

impl AckedFileRange {
    pub(crate) const NONE: Self = Self { file: FileId(0), offset: 0, len: 0 };

    /// Tells the device that it need no longer hold these bytes.
    pub(crate) fn report(self, files: &mut Files, out: &mut Outbox) {
        if self.len > 0 {
            files.release(out, self.file, self.offset, self.len.into(), true);
        }
    }
}

/// A TCP connection (TCB).
#[derive(Debug)]
pub(crate) struct TcpConnection<T: TxTransforms> {
    pub(crate) tuple: Tuple,
    pub(crate) flow: FlowId,
    pub(crate) state: TcpState,
    pub(crate) error: Option<SocketError>,
    pub(crate) modes: ConnFlags,
    /// Response to data that arrives after the application has closed the connection.
    pub(crate) late_data: LateData,
    pub(crate) options: Negotiated,
    pub(crate) snd: TcpSendState<T>,
    pub(crate) rcv: TcpReceiveState,
    pub(crate) timers: TcpTimers,
    /// Purpose for which the retransmission timer is set.
    pub(crate) retransmit_for: RetransmitPurpose,
    /// Acknowledgment number last sent: RFC 7323 Last.ACK.sent.
    pub(crate) last_ack_sent: SeqNum,
    /// The timestamp of ours that the peer last echoed: the peer's TS.Recent.
    pub(crate) ts_echoed: u32,
    /// Interval of keep-alive probes in milliseconds; zero if they are off.
    pub(crate) keep_alive_ms: u32,
    /// User time-out in milliseconds (RFC 5482).
    pub(crate) user_timeout_ms: u32,
    pub(crate) challenges: ChallengeLimiter,
}

/// Parameters of a new connection.
pub(crate) struct ConnParams {
    pub(crate) tuple: Tuple,
    pub(crate) flow: FlowId,
    pub(crate) iss: SeqNum,
    pub(crate) irs: SeqNum,
    /// Window that we offered, in bytes.
    pub(crate) window: u32,
    pub(crate) scale: u8,
    /// Window that the peer offered in bytes.
    pub(crate) peer_window: u32,
    pub(crate) options: Negotiated,
    /// MTU of the path: largest IP packet in bytes.
    pub(crate) mtu: u16,
}

impl<T: TxTransforms> TcpConnection<T> {
    /// Returns a connection whose handshake is complete.
    pub(crate) fn established(begin: ConnParams, config: &TcpConfig, now: Instant) -> Self {
        let mut conn = Self::new(begin, config, now);
        conn.begin_with_base_size(config.mtu_probing);
        conn.state = TcpState::Established;
        conn.snd.una = 1;
        conn.snd.nxt = 1;
        conn.snd.edge += 1;
        conn.snd.wl1 = 1;
        conn
    }

    /// Returns a connection that we open; its SYN is sent by [`Self::output`].
    pub(crate) fn new(begin: ConnParams, config: &TcpConfig, now: Instant) -> Self {
        let ConnParams { tuple, flow, iss, irs, window, scale, peer_window, options, mtu } = begin;
        let mss = segment_size(mtu, &tuple, &options);
        let cc = Congestion::new(config, mss, iss.0, now);
        Self {
            tuple,
            flow,
            state: TcpState::SynSent,
            error: None,
            modes: ConnFlags { held_by_app: true, defer: config.defer, ..ConnFlags::default() },
            late_data: LateData::Reset,
            options,
            snd: TcpSendState {
                iss,
                una: 0,
                nxt: 0,
                edge: u64::from(peer_window),
                wnd_max: peer_window,
                wl1: 0,
                mss,
                spans: SpanMap::new(),
                transforms: T::default(),
                fin: false,
                flight: RetransmitQueue::new(),
                rtt: TcpRttEstimator::new(),
                rack: Rack::new(),
                cc,
                episode: None,
                undo: None,
                probe: None,
                mtu_search: None,
                next_tag: 0,
                void_tags_before: 0,
                carried_ack: None,
                cwnd_limited: false,
                usage: CwndUsage::default(),
                send_cwr: false,
                last_sent: now,
                pace_at: Instant::ZERO,
                pacing_limited: false,
                small_segment_end: 0,
                probes: 0,
                window_probes: 0,
                dup_acks: 0,
                recover: 0,
                progress_at: now,
                unreported_acked: AckedFileRange::NONE,
                awaited_files: None,
                host_reads_file: false,
                resent_bytes: 0,
                file_bytes: 0,
                rate: DeliveryRate::default(),
            },
            rcv: TcpReceiveState::new(irs, scale, window).with_last_arrival(now),
            timers: TcpTimers::new(),
            retransmit_for: RetransmitPurpose::TimeOut,
            last_ack_sent: irs + 1,
            ts_echoed: 0,
            keep_alive_ms: 0,
            user_timeout_ms: whole_millis(config.user_timeout),
            challenges: ChallengeLimiter::new(),
        }
    }

    /// Returns the sequence number of a position of the send stream.
    pub(crate) fn seq(&self, position: u64) -> SeqNum {
        #[expect(clippy::cast_possible_truncation, reason = "sequence numbers are modulo 2^32")]
        let low = position as u32;
        self.snd.iss + low
    }

    /// Returns the position after everything that is queued: data, and the FIN if there is one.
    pub(crate) fn send_end(&self) -> u64 {
        self.snd.spans.end() + u64::from(self.snd.fin)
    }

    /// Returns whether our FIN has been acknowledged.
    pub(crate) fn fin_acked(&self) -> bool {
        self.snd.fin && self.snd.una == self.send_end()
    }

    /// Returns the free bytes of host memory in the send buffer.
    pub(crate) fn send_room(&self, config: &TcpConfig) -> usize {
        config.send_bytes_max.saturating_sub(self.snd.spans.memory())
    }

    /// Appends as many bytes as fit the send buffer; returns how many.
    pub(crate) fn write(&mut self, mut bytes: Bytes, config: &TcpConfig) -> usize {
        let taken = bytes.len().min(self.send_room(config));
        bytes.truncate(taken);
        self.snd.spans.push_memory(bytes);
        self.modes.wants_send_room = self.send_room(config) == 0;
        taken
    }

    /// Appends bytes of a session without checking for room: the session did before it made them.
    pub(crate) fn write_unbounded(&mut self, bytes: Bytes) {
        if self.state.may_write() && !self.snd.fin && !bytes.is_empty() {
            self.snd.spans.push_memory(bytes);
        }
    }

    /// Appends `len` bytes of a file.
    pub(crate) fn write_file(&mut self, source: StreamSource, len: u64) {
        self.snd.spans.push_plain(source, len);
    }

    /// Closes our direction: a FIN follows the bytes written so far.
    pub(crate) fn shutdown(&mut self) {
        if self.state.may_write() && !self.snd.fin {
            self.snd.fin = true;
            self.state = self.state.next(TcpStateEvent::Close).unwrap_or(self.state);
            if self.state == TcpState::Closed {
                // RFC 9293 section 3.10.4: an attempt to open that is not complete is deleted.
                self.error = Some(SocketError::Closed);
                self.timers.stop_all();
            }
        }
    }

    /// Aborts the connection: resets the peer if it has a connection too, and enters CLOSED.
    pub(crate) fn abort(&mut self, cx: &mut TcpEnv<'_>, error: SocketError) {
        let synchronized = self.state.is_synchronized() || self.state == TcpState::SynReceived;
        if synchronized && error != SocketError::Reset {
            self.send_reset(cx);
        }
        if self.state.is_synchronized() {
            cx.out.counters.tcp_estab_resets += 1;
        } else if self.state != TcpState::Closed {
            cx.out.counters.tcp_attempt_fails += 1;
        }
        self.finish(cx, Some(error));
    }

    /// Enters the state that an event leads to. The table must have a transition.
    pub(crate) fn enter(&mut self, out: &mut Outbox, event: TcpStateEvent) {
        match self.state.next(event) {
            Some(next) => self.state = next,
            None => internal_error!(out.counters.internal_errors, "an event in the wrong state"),
        }
    }

    /// Enters CLOSED: releases files and destroys the device's contexts.
    pub(crate) fn finish(&mut self, cx: &mut TcpEnv<'_>, error: Option<SocketError>) {
        self.enter(cx.out, TcpStateEvent::End);
        if self.error.is_none() {
            self.error = error.or(Some(SocketError::Closed));
        }
        self.timers.stop_all();
        self.release_files(cx);
        self.modes.notify_app = true;
    }

    /// Releases the file ranges of the send stream and destroys its contexts. Nothing is appended
    /// to the stream afterwards, so a second call has nothing to release.
    pub(crate) fn release_files(&mut self, cx: &mut TcpEnv<'_>) {
        if self.awaits_device() {
            return;
        }
        self.report_acked(cx);
        let (sent, end) = (self.snd.nxt, self.snd.spans.end());
        let mut spans = core::mem::replace(&mut self.snd.spans, SpanMap::new());
        // If a piece of a unit has left in part, the device holds all of its content.
        let sent = spans.piece_end(sent.min(end));
        let left = self.snd.flight.first_not_departed().map_or(sent, |(start, _)| start);
        spans.advance(left.min(end), |file, offset, len| {
            cx.files.release(cx.out, file, offset, len, true);
        });
        // The device holds bytes from when they leave. A release that overtook them would leave
        // them held forever.
        let mut waiting = Vec::new();
        spans.advance(sent, |file, offset, len| waiting.push((file, offset, len)));
        self.snd.awaited_files = (!waiting.is_empty()).then(|| Box::new(FileRanges(waiting)));
        // Bytes that were queued and never handed over need no report to the device.
        spans.advance(end, |file, offset, len| {
            cx.files.release(cx.out, file, offset, len, false);
        });
        self.release_awaited_files(cx);
        self.snd.destroy_contexts(cx.out);
    }

    /// Drops the context that the device refused, or all of them: the host then does their work.
    /// Returns the kinds of contexts that the connection had.
    pub(crate) fn drop_contexts(
        &mut self,
        cx: &mut TcpEnv<'_>,
        refused: Option<(L5oId, Refusal)>,
    ) -> T::Lost {
        let lost = self.snd.transforms.drop_contexts(cx.out, refused);
        if lost != T::Lost::default() {
            self.snd.read_on_host(cx.out);
            // The device drops bytes that need the context, so everything handed over counts as
            // lost and is retransmitted. Transmits that still wait for a disk are canceled: they
            // must not leave after their bytes were acknowledged.
            self.snd.void_tags_before = self.snd.next_tag;
            cx.out.ops.push_back(Op::Cancel { flow: self.flow });
            self.snd.transforms.note_all_canceled();
            self.snd.flight.mark_all_departed(cx.now);
            self.snd.flight.mark_lost(|_| true);
            self.rearm_retransmit(cx);
        }
        lost
    }

    /// Releases the file ranges that the device had yet to send when the connection ended, once no
    /// transmit is pending.
    fn release_awaited_files(&mut self, cx: &mut TcpEnv<'_>) {
        if self.awaits_device() && self.snd.flight.any_pending() {
            return;
        }
        for (file, offset, len) in self.snd.awaited_files.take().into_iter().flat_map(|f| f.0) {
            cx.files.release(cx.out, file, offset, len, true);
        }
        self.snd.flight = RetransmitQueue::new();
    }

    /// Returns whether the connection, though it has ended, has to stay for an echo of the device.
    pub(crate) const fn awaits_device(&self) -> bool {
        self.snd.awaited_files.is_some()
    }

    /// Reports acknowledged bytes of a file that have not been reported yet.
    pub(crate) fn report_acked(&mut self, cx: &mut TcpEnv<'_>) {
        core::mem::replace(&mut self.snd.unreported_acked, AckedFileRange::NONE)
            .report(cx.files, cx.out);
    }

    /// Handles the device's echo of a transmit: it has left, or was dropped.
    pub(crate) fn handle_echo(
        &mut self,
        cx: &mut TcpEnv<'_>,
        tag: u32,
        delay: Duration,
        outcome: TransmitOutcome,
    ) {
        self.snd.transforms.note_echo(tag, outcome == TransmitOutcome::Sent);
        if self.state == TcpState::Closed {
            self.snd.flight.echo(tag, delay);
            self.release_awaited_files(cx);
            return;
        }
        match outcome {
            TransmitOutcome::Sent => {
                self.handle_carried_ack_sent(tag);
                self.snd.rate.on_departed(cx.now, self.snd.nxt);
                let in_network = self.snd.flight.in_network();
                if self.snd.flight.echo(tag, delay) {
                    self.note_bbr_departure(tag, in_network);
                    self.rearm_retransmit(cx);
                }
            }
            // Handed over before the device was reset, it met a device that did not know the file.
            // Its bytes are sent again.
            TransmitOutcome::Dropped(_) if self.is_void_tag(tag) => {}
            // An earlier transmit of the flow was dropped; the echo of that one reports the cause,
            // if there is one.
            TransmitOutcome::Dropped(FileFault::FlowFailed) => {
                self.snd.flight.echo(tag, delay);
                self.snd.flight.mark_lost(|sent| sent.tag == tag);
                self.snd.transforms.forget_expected_positions();
                self.rearm_retransmit(cx);
            }
            // The device lacks the context that the transmit named.
            TransmitOutcome::Dropped(FileFault::Refused(Refusal::Encrypted)) => {
                self.drop_contexts(cx, None);
            }
            TransmitOutcome::Dropped(fault) => {
                // The order matters: the reset has to carry the position at which this transmit
                // began, which the peer expects next. Anywhere else in the window a reset is only
                // challenged (RFC 5961 section 3.2).
                self.fail_file(cx, fault);
                self.snd.flight.echo(tag, delay);
                self.release_awaited_files(cx);
            }
        }
    }

    /// Returns whether the transmit `tag` was handed over before the device was reset or a context
    /// lost.
    const fn is_void_tag(&self, tag: u32) -> bool {
        SeqNum(tag).lt(SeqNum(self.snd.void_tags_before))
    }

    /// Aborts the connection because a file failed: the peer must not take a truncated stream for a
    /// complete one.
    pub(crate) fn fail_file(&mut self, cx: &mut TcpEnv<'_>, fault: FileFault) {
        if self.state != TcpState::Closed {
            cx.out.counters.file_aborts += 1;
            self.abort(cx, SocketError::File(fault));
        }
    }

    /// Fills in bytes of a file that the host has read for the stream.
    pub(crate) fn handle_file_bytes(&mut self, cx: &mut TcpEnv<'_>, position: u64, bytes: Bytes) {
        self.snd.host_reads_file = false;
        if let Some(unread) = self.snd.spans.first_unread(position) {
            if unread.at == position {
                let len = self.snd.spans.fill(position, bytes, &mut self.snd.transforms);
                self.snd.transforms.add_to_counters(cx.out);
                // The span holds memory now and no longer refers to the file. If its bytes have
                // left, under a context that was lost since, the device still holds them.
                let sent = position < self.snd.nxt;
                cx.files.release(cx.out, unread.file, unread.offset, len, sent);
            }
        }
    }

    /// Handles the loss of the device's state: pending transmits count as sent, and files are read
    /// by the host from now on.
    pub(crate) fn handle_device_reset(&mut self, cx: &mut TcpEnv<'_>) {
        if self.awaits_device() {
            self.snd.flight.mark_all_departed(cx.now);
            self.release_awaited_files(cx);
        }
        if !self.state.is_synchronized() {
            return;
        }
        self.snd.void_tags_before = self.snd.next_tag;
        // Operations in the ring at the reset were executed after it, so contexts may exist again.
        self.snd.destroy_contexts(cx.out);
        self.snd.transforms.note_all_canceled();
        self.snd.read_on_host(cx.out);
        self.snd.flight.mark_all_departed(cx.now);
        self.snd.host_reads_file = false;
        self.rearm_retransmit(cx);
    }

    /// Destroys the device's contexts, returns its buffers and reports the last acknowledged file
    /// bytes, before the connection moves to another host. Nothing may be in flight.
    pub(crate) fn leave_device(&mut self, cx: &mut TcpEnv<'_>) {
        self.report_acked(cx);
        self.snd.destroy_contexts(cx.out);
        self.rcv.join_ready(&mut cx.out.recycle);
    }

    /// Returns the interval of keep-alive probes; zero if they are off.
    pub(crate) const fn keep_alive(&self) -> Duration {
        Duration::from_millis(self.keep_alive_ms as u64)
    }

    /// Returns the user time-out.
    pub(crate) const fn user_timeout(&self) -> Duration {
        Duration::from_millis(self.user_timeout_ms as u64)
    }

    /// Returns the bytes that were written and are not yet acknowledged.
    pub(crate) fn send_queue(&self) -> u64 {
        self.snd.spans.end() - self.snd.una.clamp(1, self.snd.spans.end())
    }

    /// Sets segment size and initial window by the options of the handshake.
    pub(crate) fn apply_negotiated_options(&mut self, cx: &TcpEnv<'_>) {
        self.snd.mss = segment_size(cx.out.net.mtu, &self.tuple, &self.options);
        self.begin_with_base_size(cx.config.mtu_probing);
        self.snd.cc.set_initial_cwnd(cx.config.initial_window * self.snd.mss);
    }
}

/// Returns a time in milliseconds; one that is too long is as good as infinite.
pub(crate) fn whole_millis(time: Duration) -> u32 {
    u32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

/// Returns the payload bytes of a full segment: RFC 9293 section 3.7.1, less the options that every
/// segment carries.
pub(crate) fn segment_size(mtu: u16, tuple: &Tuple, options: &Negotiated) -> u32 {
    let own = mtu.saturating_sub(header_bytes(tuple));
    u32::from(own.min(options.peer_mss).max(SEGMENT_MIN)) - timestamp_bytes(options)
}

/// Returns the bytes of a packet with data besides its payload.
pub(crate) fn segment_overhead(tuple: &Tuple, options: &Negotiated) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "12 bytes")]
    let timestamps = timestamp_bytes(options) as u16;
    header_bytes(tuple) + timestamps
}

/// Returns the bytes of the IP and TCP headers without options.
fn header_bytes(tuple: &Tuple) -> u16 {
    let ip = if tuple.local.addr.is_ipv4() { wire::IPV4_BYTES } else { wire::IPV6_BYTES };
    #[expect(clippy::cast_possible_truncation, reason = "60 bytes")]
    let headers = (ip + wire::TCP_BYTES) as u16;
    headers
}

/// Minimum segment size, in bytes, that is used toward a peer; smaller offers are raised to it,
/// since smaller segments cost too much (RFC 9293 MUST-67 wants 536 of us). Linux: `TCP_MIN_MSS`.
pub(crate) const SEGMENT_MIN: u16 = 88;

/// Returns the bytes of the timestamps option with its padding; 0 if it was not negotiated.
pub(crate) const fn timestamp_bytes(options: &Negotiated) -> u32 {
    if options.timestamps { 12 } else { 0 }
}
