//! The socket view of a connection: readiness, options, and the figures that `outboard ss` prints.
//!
//! Methods of [`TcpConnection`], called by the host for the application.

use abi::Refusal;
use base::Instant;

use super::conn::{SEGMENT_MIN, TcpConnection, timestamp_bytes, whole_millis};
use super::recovery::CongestionEpisode;
use super::state::TcpState;
use super::transform::TxTransforms;
use crate::api::{Readiness, SocketInfo, SocketOption};
use crate::config::TcpConfig;

impl<T: TxTransforms> TcpConnection<T> {
    pub(crate) fn readiness(&self, config: &TcpConfig) -> Readiness {
        let readable = self.rcv.ready_bytes() > 0;
        Readiness {
            readable,
            writable: self.state.may_write()
                && self.state != TcpState::SynSent
                && !self.snd.fin
                && self.send_room(config) > 0,
            peer_closed: !readable && (self.rcv.is_finished() || self.rcv.read_shut),
            drained: self.snd.una >= self.send_end(),
            error: if self.state == TcpState::Closed { self.error } else { None },
        }
    }

    pub(crate) fn set_option(&mut self, option: SocketOption, now: Instant) {
        match option {
            SocketOption::NoDelay(on) => self.modes.no_delay = on,
            SocketOption::Cork(on) => self.modes.cork = on,
            SocketOption::KeepAlive(interval) => {
                self.keep_alive_ms = interval.map_or(0, whole_millis);
                self.arm_idle(now);
            }
            SocketOption::UserTimeout(timeout) => self.user_timeout_ms = whole_millis(timeout),
            SocketOption::TeardownOffload(on) => self.modes.teardown = on,
            SocketOption::Defer(on) => self.modes.defer = on,
            SocketOption::MaxSegment(bytes) => self.limit_segments(bytes, now),
        }
    }

    /// `TCP_MAXSEG`: limits segments to `bytes`, options included. Never raises the limit.
    fn limit_segments(&mut self, bytes: u16, now: Instant) {
        self.options.peer_mss = self.options.peer_mss.min(bytes.max(SEGMENT_MIN));
        // The peer's offer may be below the minimum: see `segment_size`.
        let most =
            u32::from(self.options.peer_mss.max(SEGMENT_MIN)) - timestamp_bytes(&self.options);
        self.snd.mss = self.snd.mss.min(most);
        if let (Some(search), Ok(most)) = (&mut self.snd.mtu_search, u16::try_from(most)) {
            search.limit(now, most);
        }
    }

    /// Returns the state of congestion control by its name in Linux.
    fn congestion_state(&self, disorder: bool) -> &'static str {
        match self.snd.episode.as_deref() {
            None if disorder => "Disorder",
            None => "Open",
            Some(CongestionEpisode::Cwr(_)) => "CWR",
            Some(CongestionEpisode::Recovery(_)) => "Recovery",
            Some(CongestionEpisode::Loss(_)) => "Loss",
        }
    }

    pub(crate) fn info(&self, config: &TcpConfig, file_offload: Result<(), Refusal>) -> SocketInfo {
        let (delivery_rate, delivery_rate_app_limited) = self.snd.rate.rate();
        let sacked = self.snd.flight.sacked();
        SocketInfo {
            congestion_state: self.congestion_state(sacked > 0 || self.snd.dup_acks > 0),
            sacked,
            lost: self.snd.flight.lost(),
            reordering: self.snd.rack.reordering(),
            rcv_mss: self.rcv.segment_size(),
            min_rtt: self.snd.rtt.min(),
            delivery_rate,
            delivery_rate_app_limited,
            pacing_rate: self.bbr_pacing_rate(),
            local: self.tuple.local,
            remote: self.tuple.remote,
            state: self.state.name(),
            send_queue: self.send_queue(),
            receive_queue: self.rcv.ready_bytes() as u64,
            cwnd: self.snd.cc.cwnd,
            ssthresh: self.snd.cc.ssthresh,
            srtt: self.snd.rtt.srtt(),
            rto: self.snd.rtt.rto(config),
            mss: u16::try_from(self.snd.mss).unwrap_or(u16::MAX),
            file_bytes_offloaded: self.snd.file_bytes,
            retransmitted_bytes: self.snd.resent_bytes,
            file_offload,
            tls: None,
            nvme: None,
            inspection: None,
        }
    }
}
