//! What the proxy counts.

use abi::Refusal;
use host::{SocketError, SpliceEnd, SpliceError};

base::counters! {
    /// Counters of one proxy.
    pub struct Counters {
        /// Clients accepted.
        proxy_accepted,
        /// Clients reset at once: `connections_max` were there.
        proxy_refused_full: alarm,
        /// Clients for which a pool was found.
        proxy_routed,
        /// Clients that ended before they had asked for anything.
        proxy_ended_early,
        /// Clients that sent no whole head in time.
        proxy_timeouts_head,
        /// ClientHellos that were none, or longer than we read.
        proxy_hellos_malformed: alarm,
        /// ClientHellos for which there is no pool.
        proxy_hellos_unrouted,
        /// Responses of our own, by their status.
        proxy_400,
        /// No route.
        proxy_404,
        /// CONNECT.
        proxy_405,
        /// Heads that did not come in time.
        proxy_408,
        /// Request lines that are too long.
        proxy_414,
        /// Heads that are too large.
        proxy_431,
        /// Transfer codings that are not known.
        proxy_501,
        /// Backends that could not be connected to, or ended before they answered.
        proxy_502: alarm,
        /// No backend that is up, or none with room.
        proxy_503: alarm,
        /// Backends that did not answer in time.
        proxy_504: alarm,
        /// Versions other than HTTP/1.
        proxy_505,
        /// Connections to backends begun, checks apart.
        proxy_connects,
        /// Backends that refused a connection.
        proxy_connects_refused,
        /// Backends that did not answer in time.
        proxy_connects_timed_out,
        /// Backends that could not be reached, or ended at once.
        proxy_connects_failed,
        /// Connections to backends that our own side could not begin: no port, no route, no room.
        proxy_connects_local: alarm,
        /// Other backends tried after one could not be connected to.
        proxy_retries,
        /// Clients for whom no backend was up.
        proxy_no_backend_up: alarm,
        /// Clients for whom no backend had room.
        proxy_no_backend_room: alarm,
        /// Health checks that were good.
        proxy_checks_good,
        /// Health checks that were bad.
        proxy_checks_bad: alarm,
        /// Backends that came up.
        proxy_backends_came_up,
        /// Backends that went down.
        proxy_backends_went_down: alarm,
        /// Bytes from clients to backends by this host.
        proxy_relayed_bytes_up,
        /// Bytes from backends to clients by this host.
        proxy_relayed_bytes_down,
        /// Bytes from clients to backends by the device.
        proxy_spliced_bytes_up,
        /// Bytes from backends to clients by the device.
        proxy_spliced_bytes_down,
        /// Connections that the host relays to their end.
        proxy_relayed,
        /// Connections that the device relays.
        proxy_spliced,
        /// Not spliced: one of both was closing already.
        proxy_splice_refused_not_connected,
        /// Not spliced: switched off.
        proxy_splice_refused_disabled,
        /// Not spliced: the device has no such engine.
        proxy_splice_refused_not_supported,
        /// Not spliced: its table is full.
        proxy_splice_refused_table_full: alarm,
        /// Not spliced: more was on its way than it keeps.
        proxy_splice_refused_does_not_fit,
        /// Not spliced: the connections' options differ.
        proxy_splice_refused_options_differ,
        /// Not spliced: it is busy.
        proxy_splice_refused_overloaded: alarm,
        /// Not spliced: for another reason.
        proxy_splice_refused_other,
        /// Spliced connections that both sides closed.
        proxy_splices_closed,
        /// Spliced connections that one side reset.
        proxy_splices_reset,
        /// Spliced connections that were idle for too long.
        proxy_splices_idle,
        /// Spliced connections that ended with the device.
        proxy_splices_lost: alarm,
        /// Relayed connections that both sides closed.
        proxy_relays_closed,
        /// Relayed connections that the client reset or left.
        proxy_relays_reset_by_client,
        /// Relayed connections that the backend reset or left.
        proxy_relays_reset_by_backend,
        /// Relayed connections that were idle for too long: reset.
        proxy_relays_idle,
        /// Bytes that came after a response of our own and were thrown away.
        proxy_discarded_bytes,
        /// Tables taken over, the first among them.
        proxy_tables,
        /// Tables of which nothing was taken: a listener could not be opened.
        proxy_tables_refused: alarm,
        /// Ports that a later table opened.
        proxy_ports_opened,
        /// Ports that a later table closed.
        proxy_ports_closed,
        /// Times that a port of a later table could not be opened.
        proxy_ports_refused: alarm,
        /// Lines of the access log that nobody took in time.
        proxy_log_dropped: alarm,
    }
}

impl Counters {
    /// Counts a response of our own.
    pub(crate) fn count_status(&mut self, code: u16) {
        match code {
            400 => self.proxy_400 += 1,
            404 => self.proxy_404 += 1,
            405 => self.proxy_405 += 1,
            408 => self.proxy_408 += 1,
            414 => self.proxy_414 += 1,
            431 => self.proxy_431 += 1,
            501 => self.proxy_501 += 1,
            502 => self.proxy_502 += 1,
            503 => self.proxy_503 += 1,
            504 => self.proxy_504 += 1,
            _ => self.proxy_505 += 1,
        }
    }

    /// Counts a connection that could not be made.
    pub(crate) fn count_failed_connect(&mut self, error: SocketError) {
        match error {
            SocketError::Refused | SocketError::Reset => self.proxy_connects_refused += 1,
            SocketError::TimedOut => self.proxy_connects_timed_out += 1,
            _ => self.proxy_connects_failed += 1,
        }
    }

    /// Counts why two connections are not spliced.
    pub(crate) fn count_splice_refused(&mut self, error: SpliceError) {
        let SpliceError::Refused(refusal) = error else {
            self.proxy_splice_refused_not_connected += 1;
            return;
        };
        match refusal {
            Refusal::Disabled => self.proxy_splice_refused_disabled += 1,
            Refusal::NotSupported => self.proxy_splice_refused_not_supported += 1,
            Refusal::TableFull => self.proxy_splice_refused_table_full += 1,
            Refusal::DoesNotFit => self.proxy_splice_refused_does_not_fit += 1,
            Refusal::OptionsDiffer => self.proxy_splice_refused_options_differ += 1,
            Refusal::Overloaded => self.proxy_splice_refused_overloaded += 1,
            _ => self.proxy_splice_refused_other += 1,
        }
    }

    /// Counts how a splice ended.
    pub(crate) fn count_splice_end(&mut self, end: Option<SpliceEnd>) {
        match end {
            Some(SpliceEnd::Closed) => self.proxy_splices_closed += 1,
            Some(SpliceEnd::Reset(_)) => self.proxy_splices_reset += 1,
            Some(SpliceEnd::IdleTimeout) => self.proxy_splices_idle += 1,
            Some(SpliceEnd::Unspliced) | None => self.proxy_splices_lost += 1,
        }
    }
}
