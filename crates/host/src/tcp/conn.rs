//! A connection: the transmission control block, and what an application does to it.
//!
//! The work is done by role in the sibling modules. Here is what belongs to a connection and how
//! one begins, is written to, read from and ends. Calls of the application never send; they leave
//! work for [`Connection::output`].

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

use super::congestion::{Congestion, WindowUse};
use super::delivery::DeliveryRate;
use super::flight::Flight;
use super::rack::Rack;
use super::rcv::Receive;
use super::recovery::{Phase, Undo};
use super::rtt::Rtt;
use super::spans::SpanMap;
use super::state::{State, StateEvent};
use super::timers::{Retransmit, Timers};
use super::transform::TxTransforms;
use crate::api::SocketError;
use crate::config::TcpConfig;
use crate::net::outbox::Outbox;
use crate::storage::files::Files;
use crate::storage::source::Source;

/// What every role needs while it works on a connection.
pub(crate) struct Cx<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a TcpConfig,
    pub(crate) out: &'a mut Outbox,
    pub(crate) files: &'a mut Files,
}

/// What both sides agreed on at the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// RFC 7323 timestamps are on every segment.
    pub(crate) timestamps: bool,
    /// RFC 2018 selective acknowledgments.
    pub(crate) sack: bool,
    /// RFC 3168.
    pub(crate) ecn: bool,
    /// Shift of the windows that the peer offers.
    pub(crate) peer_scale: u8,
    /// Segment size that the peer can take, before options are taken off.
    pub(crate) peer_mss: u16,
    /// What our timestamps are ahead of our clock.
    pub(crate) ts_offset: u32,
    /// The peer's latest timestamp, and when it came.
    pub(crate) ts_recent: TsRecent,
}

/// Flags of a connection, packed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Modes {
    pub(crate) no_delay: bool,
    pub(crate) cork: bool,
    /// The application holds it.
    pub(crate) held: bool,
    /// Something happened that the application should hear of.
    pub(crate) notify: bool,
    /// The application ran out of room to write.
    pub(crate) wants_room: bool,
    /// The connection's session has something to do though nothing was received: noted here so that
    /// an acknowledgment need not look at it.
    pub(crate) session_waits: bool,
    /// `TCP_TEARDOWN_OFFLOAD`: the device is to tear it down.
    pub(crate) teardown: bool,
    /// `SHUT_RD`: what is received is discarded.
    pub(crate) read_shut: bool,
    /// A transmit may wait for an acknowledgment that makes it longer.
    pub(crate) defer: bool,
}

/// How far the files of a send stream are released, for which a connection outlives its end.
#[derive(Debug)]
enum Release {
    /// The stream may need its bytes.
    NotYet,
    /// The connection is over, and the device is still to send these.
    AwaitsDevice(Box<FileRanges>),
    /// Files and device hold nothing for it.
    Done,
}

/// Ranges of files: which, the first byte and the bytes of each.
#[derive(Debug)]
struct FileRanges(Vec<(FileId, u64, u64)>);

/// The sending half.
#[derive(Debug)]
pub(crate) struct Send<T: TxTransforms> {
    pub(crate) iss: SeqNum,
    /// Position of the first unacknowledged byte; 0 until the SYN is acknowledged.
    pub(crate) una: u64,
    /// Position of the next byte to send.
    pub(crate) nxt: u64,
    /// Right edge of the peer's window.
    pub(crate) edge: u64,
    /// Largest window that the peer has offered.
    pub(crate) wnd_max: u32,
    /// Position of the segment that last updated the window: RFC 9293 SND.WL1.
    pub(crate) wl1: u64,
    /// Payload bytes of a full segment.
    pub(crate) mss: u32,
    pub(crate) spans: SpanMap<T::Unit>,
    /// Makes the units in it.
    pub(crate) transforms: T,
    /// The application has closed this direction: a FIN follows the last byte.
    pub(crate) fin: bool,
    pub(crate) flight: Flight,
    pub(crate) rtt: Rtt,
    pub(crate) rack: Rack,
    pub(crate) cc: Congestion,
    pub(crate) phase: Phase,
    /// Boxed, as most connections never need it.
    pub(crate) undo: Option<Box<Undo>>,
    /// A tail loss probe is out: the send position then, and whether it repeated old bytes.
    pub(crate) probe: Option<(u64, bool)>,
    pub(crate) next_tag: u32,
    /// Transmits with tags before this one met a reset of the device.
    pub(crate) void_before: u32,
    /// The last transmit that may wait for a disk, and the acknowledgment that it carries.
    pub(crate) carried: Option<(u32, SeqNum)>,
    /// The congestion window was what stopped sending.
    pub(crate) cwnd_limited: bool,
    /// Use of the congestion window in the last round trip.
    pub(crate) usage: WindowUse,
    /// The next new data tells the peer that the window was reduced: RFC 3168 CWR.
    pub(crate) send_cwr: bool,
    /// A CE mark was seen and the peer has not yet answered: RFC 3168 ECE.
    pub(crate) echo_ce: bool,
    pub(crate) last_sent: Instant,
    /// When pacing lets the next segment go.
    pub(crate) pace_at: Instant,
    /// Pacing was what stopped sending.
    pub(crate) paced: bool,
    /// End of the last segment that was less than full: Minshall's variant of Nagle's rule.
    pub(crate) small_end: u64,
    /// Keep-alive probes without an answer.
    pub(crate) probes: u8,
    /// Zero-window probes since the window closed: their back-off.
    pub(crate) window_probes: u8,
    /// Duplicate acknowledgments in a row, where there is no SACK.
    pub(crate) dup_acks: u8,
    /// What had been sent when the last recovery began: RFC 6582's recover.
    pub(crate) recover: u64,
    /// The last time the peer made progress, for the user time-out.
    pub(crate) progress_at: Instant,
    /// Acknowledged bytes of a file that the device has not been told of.
    pub(crate) unreported: AckedRange,
    release: Release,
    /// The host is reading a file for it.
    pub(crate) reading: bool,
    pub(crate) resent_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) rate: DeliveryRate,
}

impl<T: TxTransforms> Send<T> {
    /// Bytes that may leave beyond the congestion window: RFC 3042 limited transmit, a segment for
    /// each of the first two duplicates. With SACK the pipe shows what they stand for.
    pub(crate) fn limited_transmit(&self) -> u64 {
        if self.phase == Phase::Open {
            u64::from(self.dup_acks.min(2)) * u64::from(self.mss)
        } else {
            0
        }
    }

    /// Gives up every context of the device.
    fn destroy_contexts(&mut self, out: &mut Outbox) {
        let contexts = self.transforms.take_contexts();
        out.ops.extend(contexts.map(|context| Op::L5oDestroy { context }));
    }

    /// Makes the host do what the device does not do any more.
    fn read_on_host(&mut self, out: &mut Outbox) {
        self.spans.read_on_host(&mut self.transforms);
        self.transforms.count(out);
    }
}

/// Acknowledged bytes of a file; none if it has no length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckedRange {
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl AckedRange {
    pub(crate) const NONE: Self = Self { file: FileId(0), offset: 0, len: 0 };

    /// Tells the device that it need not hold these bytes.
    pub(crate) fn report(self, files: &mut Files, out: &mut Outbox) {
        if self.len > 0 {
            files.release(out, self.file, self.offset, self.len, true);
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection<T: TxTransforms> {
    pub(crate) tuple: Tuple,
    pub(crate) flow: FlowId,
    pub(crate) state: State,
    pub(crate) error: Option<SocketError>,
    pub(crate) modes: Modes,
    /// The answer to data that comes once the application has closed the connection.
    pub(crate) late_data: LateData,
    pub(crate) options: Negotiated,
    pub(crate) snd: Send<T>,
    pub(crate) rcv: Receive,
    pub(crate) timers: Timers,
    /// What the retransmission timer stands for.
    pub(crate) retransmit_for: Retransmit,
    /// Acknowledgment number last sent: RFC 7323 Last.ACK.sent.
    pub(crate) last_ack_sent: SeqNum,
    /// What the peer last echoed of our timestamps: its TS.Recent.
    pub(crate) ts_echoed: u32,
    /// Interval of keep-alive probes; zero without them.
    pub(crate) keep_alive: Duration,
    pub(crate) user_timeout: Duration,
    pub(crate) challenges: ChallengeLimiter,
}

/// How a connection begins.
pub(crate) struct Begin {
    pub(crate) tuple: Tuple,
    pub(crate) flow: FlowId,
    pub(crate) iss: SeqNum,
    pub(crate) irs: SeqNum,
    /// Window that we offered, and its shift.
    pub(crate) window: u32,
    pub(crate) scale: u8,
    /// Window that the peer offered, in bytes.
    pub(crate) peer_window: u32,
    pub(crate) options: Negotiated,
    /// Largest packet above Ethernet that fits the path.
    pub(crate) mtu: u16,
}

impl<T: TxTransforms> Connection<T> {
    /// A connection whose handshake the SYN cache or a cookie has done.
    pub(crate) fn established(begin: Begin, config: &TcpConfig, now: Instant) -> Self {
        let mut conn = Self::new(begin, config, now);
        conn.state = State::Established;
        conn.snd.una = 1;
        conn.snd.nxt = 1;
        conn.snd.edge += 1;
        conn.snd.wl1 = 1;
        conn
    }

    /// A connection that we open; its SYN is sent by [`Self::output`].
    pub(crate) fn new(begin: Begin, config: &TcpConfig, now: Instant) -> Self {
        let Begin { tuple, flow, iss, irs, window, scale, peer_window, options, mtu } = begin;
        let mss = segment_size(mtu, &tuple, &options);
        Self {
            tuple,
            flow,
            state: State::SynSent,
            error: None,
            modes: Modes { held: true, defer: config.defer, ..Modes::default() },
            late_data: LateData::Reset,
            options,
            snd: Send {
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
                flight: Flight::new(),
                rtt: Rtt::new(),
                rack: Rack::new(),
                cc: Congestion::new(config, mss),
                phase: Phase::Open,
                undo: None,
                probe: None,
                next_tag: 0,
                void_before: 0,
                carried: None,
                cwnd_limited: false,
                usage: WindowUse::default(),
                send_cwr: false,
                echo_ce: false,
                last_sent: now,
                pace_at: Instant::ZERO,
                paced: false,
                small_end: 0,
                probes: 0,
                window_probes: 0,
                dup_acks: 0,
                recover: 0,
                progress_at: now,
                unreported: AckedRange::NONE,
                release: Release::NotYet,
                reading: false,
                resent_bytes: 0,
                file_bytes: 0,
                rate: DeliveryRate::default(),
            },
            rcv: Receive::new(irs, scale, window).heard_at(now),
            timers: Timers::new(),
            retransmit_for: Retransmit::TimeOut,
            last_ack_sent: irs + 1,
            ts_echoed: 0,
            keep_alive: Duration::ZERO,
            user_timeout: config.user_timeout,
            challenges: ChallengeLimiter::new(),
        }
    }

    /// Sequence number of a position of the send stream.
    pub(crate) fn seq(&self, position: u64) -> SeqNum {
        #[expect(clippy::cast_possible_truncation, reason = "sequence numbers are modulo 2^32")]
        let low = position as u32;
        self.snd.iss + low
    }

    /// Position behind everything that will be sent as things stand: data, and the FIN if there is
    /// one.
    pub(crate) fn send_end(&self) -> u64 {
        self.snd.spans.end() + u64::from(self.snd.fin)
    }

    /// Whether our FIN has been acknowledged.
    pub(crate) fn fin_acked(&self) -> bool {
        self.snd.fin && self.snd.una == self.send_end()
    }

    /// Room for host memory in the send buffer.
    pub(crate) fn send_room(&self, config: &TcpConfig) -> usize {
        config.send_bytes_max.saturating_sub(self.snd.spans.memory())
    }

    /// Appends bytes as far as there is room; gives how many.
    pub(crate) fn write(&mut self, mut bytes: Bytes, config: &TcpConfig) -> usize {
        let taken = bytes.len().min(self.send_room(config));
        bytes.truncate(taken);
        self.snd.spans.push_memory(bytes);
        self.modes.wants_room = self.send_room(config) == 0;
        taken
    }

    /// Appends bytes whether there is room or not: a session's, which asked for room before it made
    /// them.
    pub(crate) fn write_all(&mut self, bytes: Bytes) {
        if self.state.may_write() && !self.snd.fin && !bytes.is_empty() {
            self.snd.spans.push_memory(bytes);
        }
    }

    /// Appends part of a file.
    pub(crate) fn write_file(&mut self, source: Source, len: u64) {
        self.snd.spans.push_plain(source, len);
    }

    /// Closes our direction: a FIN follows what was written.
    pub(crate) fn shutdown(&mut self) {
        if self.state.may_write() && !self.snd.fin {
            self.snd.fin = true;
            self.state = self.state.next(StateEvent::Close).unwrap_or(self.state);
            if self.state == State::Closed {
                // RFC 9293 section 3.10.4: what was not yet opened is simply forgotten.
                self.error = Some(SocketError::Closed);
                self.timers.stop_all();
            }
        }
    }

    /// The connection is over: resets what the peer would wait for, and forgets everything.
    pub(crate) fn abort(&mut self, cx: &mut Cx<'_>, error: SocketError) {
        let synchronized = self.state.is_synchronized() || self.state == State::SynReceived;
        if synchronized && error != SocketError::Reset {
            self.send_reset(cx);
        }
        if self.state.is_synchronized() {
            cx.out.counters.tcp_estab_resets += 1;
        } else if self.state != State::Closed {
            cx.out.counters.tcp_attempt_fails += 1;
        }
        self.finish(cx, Some(error));
    }

    /// Enters the state that an event leads to, which there is.
    pub(crate) fn enter(&mut self, out: &mut Outbox, event: StateEvent) {
        match self.state.next(event) {
            Some(next) => self.state = next,
            None => internal_error!(out.counters.internal_errors, "an event in the wrong state"),
        }
    }

    /// Enters CLOSED: what the device holds for the connection is given up.
    pub(crate) fn finish(&mut self, cx: &mut Cx<'_>, error: Option<SocketError>) {
        self.enter(cx.out, StateEvent::End);
        if self.error.is_none() {
            self.error = error.or(Some(SocketError::Closed));
        }
        self.timers.stop_all();
        self.release_files(cx);
        self.modes.notify = true;
    }

    /// Tells files and device that nothing of the send stream is needed any more.
    /// Does so once: from then on nothing is appended to it.
    pub(crate) fn release_files(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.snd.release, Release::NotYet) {
            return;
        }
        self.report_acked(cx);
        let (sent, end) = (self.snd.nxt, self.snd.spans.end());
        let mut spans = core::mem::replace(&mut self.snd.spans, SpanMap::new());
        // The device holds the content of a piece that has left in part, too.
        let sent = spans.piece_end(sent.min(end));
        let left = self.snd.flight.first_waiting().map_or(sent, |(start, _)| start);
        spans.advance(left.min(end), |file, offset, len| {
            cx.files.release(cx.out, file, offset, len, true);
        });
        // The device holds bytes from when they leave: a release that overtook them would leave
        // them held for ever.
        let mut waiting = Vec::new();
        spans.advance(sent, |file, offset, len| waiting.push((file, offset, len)));
        self.snd.release = if waiting.is_empty() {
            Release::Done
        } else {
            Release::AwaitsDevice(Box::new(FileRanges(waiting)))
        };
        // What was queued and never handed over is released without a word to the device.
        spans.advance(end, |file, offset, len| {
            cx.files.release(cx.out, file, offset, len, false);
        });
        self.release_waiting(cx);
        self.snd.destroy_contexts(cx.out);
    }

    /// Loses the context that the device refused, or all of them: the host makes what the device
    /// was to make. Returns which contexts the connection had.
    pub(crate) fn lose_context(
        &mut self,
        cx: &mut Cx<'_>,
        refused: Option<(L5oId, Refusal)>,
    ) -> T::Lost {
        let lost = self.snd.transforms.lose(cx.out, refused);
        if lost != T::Lost::default() {
            self.snd.read_on_host(cx.out);
            // What it has of the file it will not send: what was handed over comes again. What
            // still waits for a disk must not leave after its bytes were acknowledged.
            self.snd.void_before = self.snd.next_tag;
            cx.out.ops.push_back(Op::Cancel { flow: self.flow });
            self.snd.transforms.note_all_left();
            self.snd.flight.depart_all(cx.now);
            self.snd.flight.mark_lost(|_| true);
            self.rearm_retransmit(cx);
        }
        lost
    }

    /// Releases what the device was still to send when the connection ended, once it has.
    fn release_waiting(&mut self, cx: &mut Cx<'_>) {
        if let Release::AwaitsDevice(ranges) = &mut self.snd.release {
            if self.snd.flight.any_pending() {
                return;
            }
            for (file, offset, len) in ranges.0.drain(..) {
                cx.files.release(cx.out, file, offset, len, true);
            }
            self.snd.release = Release::Done;
        }
        self.snd.flight = Flight::new();
    }

    /// Returns whether the connection, though it has ended, has to stay for an echo of the device.
    pub(crate) const fn awaits_device(&self) -> bool {
        matches!(self.snd.release, Release::AwaitsDevice(_))
    }

    /// Reports acknowledged bytes of a file that have not been reported yet.
    pub(crate) fn report_acked(&mut self, cx: &mut Cx<'_>) {
        core::mem::replace(&mut self.snd.unreported, AckedRange::NONE).report(cx.files, cx.out);
    }

    /// The device's echo: the transmit has left, or a file failed.
    pub(crate) fn handle_echo(
        &mut self,
        cx: &mut Cx<'_>,
        tag: u32,
        delay: Duration,
        outcome: TransmitOutcome,
    ) {
        self.snd.transforms.note_echo(tag, outcome == TransmitOutcome::Sent);
        if self.state == State::Closed {
            self.snd.flight.echo(tag, delay);
            self.release_waiting(cx);
            return;
        }
        match outcome {
            TransmitOutcome::Sent => {
                self.note_carried(tag);
                self.snd.rate.on_departed(cx.now, self.snd.nxt);
                if self.snd.flight.echo(tag, delay) {
                    self.rearm_retransmit(cx);
                }
            }
            // Handed over before the device was reset, and met a device that knows no file: it is
            // sent again.
            TransmitOutcome::Dropped(_) if self.is_void(tag) => {}
            // Behind one that was dropped, whose own end says what is wrong, if anything is.
            TransmitOutcome::Dropped(FileFault::FlowFailed) => {
                self.snd.flight.echo(tag, delay);
                self.snd.flight.mark_lost(|sent| sent.tag == tag);
                self.snd.transforms.distrust();
                self.rearm_retransmit(cx);
            }
            // The device has not the context that was thought to be there.
            TransmitOutcome::Dropped(FileFault::Refused(Refusal::Encrypted)) => {
                self.lose_context(cx, None);
            }
            TransmitOutcome::Dropped(fault) => {
                // In this order: the reset is of where this transmit was to begin, which is what
                // the peer expects. Elsewhere in the window it is only challenged (RFC 5961 3.2).
                self.fail_file(cx, fault);
                self.snd.flight.echo(tag, delay);
                self.release_waiting(cx);
            }
        }
    }

    /// Whether the transmit `tag` was handed over before the device was last reset.
    const fn is_void(&self, tag: u32) -> bool {
        SeqNum(tag).lt(SeqNum(self.snd.void_before))
    }

    /// A file that is being sent failed: the peer must not take what it has for the whole.
    pub(crate) fn fail_file(&mut self, cx: &mut Cx<'_>, fault: FileFault) {
        if self.state != State::Closed {
            cx.out.counters.file_aborts += 1;
            self.abort(cx, SocketError::File(fault));
        }
    }

    /// The host has read bytes of a file that the stream waits for.
    pub(crate) fn handle_file_bytes(&mut self, cx: &mut Cx<'_>, position: u64, bytes: Bytes) {
        self.snd.reading = false;
        if let Some(unread) = self.snd.spans.first_unread(position) {
            if unread.at == position {
                let len = self.snd.spans.fill(position, bytes, &mut self.snd.transforms);
                self.snd.transforms.count(cx.out);
                // The span holds memory now, and refers to the file no more. What left under a
                // context that was lost since, the device still holds.
                let sent = position < self.snd.nxt;
                cx.files.release(cx.out, unread.file, unread.offset, len, sent);
            }
        }
    }

    /// The device lost its state: what it had not yet sent never left, and files are read by the
    /// host from now on.
    pub(crate) fn handle_device_reset(&mut self, cx: &mut Cx<'_>) {
        if self.awaits_device() {
            self.snd.flight.depart_all(cx.now);
            self.release_waiting(cx);
        }
        if !self.state.is_synchronized() {
            return;
        }
        self.snd.void_before = self.snd.next_tag;
        // What was in the ring when it was reset it has made since.
        self.snd.destroy_contexts(cx.out);
        self.snd.transforms.note_all_left();
        self.snd.read_on_host(cx.out);
        self.snd.flight.depart_all(cx.now);
        self.snd.reading = false;
        self.rearm_retransmit(cx);
    }

    /// Bytes written and not yet acknowledged.
    pub(crate) fn send_queue(&self) -> u64 {
        self.snd.spans.end() - self.snd.una.clamp(1, self.snd.spans.end())
    }

    /// Takes over what the handshake agreed on: segment size and initial window.
    pub(crate) fn renegotiate(&mut self, cx: &Cx<'_>) {
        self.snd.mss = segment_size(cx.out.net.mtu, &self.tuple, &self.options);
        self.snd.cc.cwnd = cx.config.initial_window * self.snd.mss;
    }

    /// Lowers the segment size to what fits `mtu`: RFC 1191, RFC 8201.
    pub(crate) fn set_mtu(&mut self, mtu: u16) -> bool {
        let mss = segment_size(mtu, &self.tuple, &self.options);
        let lower = mss < self.snd.mss;
        if lower {
            self.snd.mss = mss;
        }
        lower
    }
}

/// Payload of a full segment: RFC 9293 section 3.7.1, less the options that every segment carries.
pub(crate) fn segment_size(mtu: u16, tuple: &Tuple, options: &Negotiated) -> u32 {
    let ip = if tuple.local.addr.is_ipv4() { wire::IPV4_BYTES } else { wire::IPV6_BYTES };
    #[expect(clippy::cast_possible_truncation, reason = "60 bytes")]
    let headers = (ip + wire::TCP_BYTES) as u16;
    let own = mtu.saturating_sub(headers);
    u32::from(own.min(options.peer_mss).max(SEGMENT_MIN)) - timestamp_bytes(options)
}

/// A peer that offers less than this cannot be served at a sensible cost (RFC 9293 MUST-67 wants
/// 536 of us): Linux's TCP_MIN_MSS.
pub(crate) const SEGMENT_MIN: u16 = 88;

/// Bytes of the timestamps option with its padding, on a connection that has it.
pub(crate) const fn timestamp_bytes(options: &Negotiated) -> u32 {
    if options.timestamps { 12 } else { 0 }
}
