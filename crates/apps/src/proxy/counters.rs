//! Counters of the proxy.

use abi::Refusal;
use host::{SocketError, SpliceEnd, SpliceError};

base::counters! {
    /// Counters of one proxy.
    pub struct ProxyCounters {
        /// Clients accepted.
        proxy_accepted,
        /// Clients reset at once, because `connections_max` were connected.
        proxy_refused_full: alarm,
        /// Clients for which a pool was found.
        proxy_routed,
        /// Clients that closed or reset before they had sent a request.
        proxy_ended_early,
        /// Clients that did not send a whole head in time.
        proxy_timeouts_head,
        /// ClientHellos that were invalid, or longer than the limit.
        proxy_hellos_malformed: alarm,
        /// ClientHellos for which no pool was found.
        proxy_hellos_unrouted,
        /// 400 Bad Request: malformed requests.
        proxy_400,
        /// 403 Forbidden: denied patterns.
        proxy_403,
        /// 404 Not Found: no route.
        proxy_404,
        /// 405 Method Not Allowed: CONNECT.
        proxy_405,
        /// 408 Request Timeout: heads that did not arrive in time.
        proxy_408,
        /// 414 URI Too Long: request lines above the limit.
        proxy_414,
        /// 417 Expectation Failed: unknown expectations.
        proxy_417,
        /// 431 Request Header Fields Too Large: heads above the limit.
        proxy_431,
        /// 501 Not Implemented: unknown transfer codings.
        proxy_501,
        /// 502 Bad Gateway: backends that could not be connected to, or closed without a response.
        proxy_502: alarm,
        /// 503 Service Unavailable: no backend is up, none has room, or the connection failed
        /// locally.
        proxy_503: alarm,
        /// 504 Gateway Timeout: backends that did not connect or respond in time.
        proxy_504: alarm,
        /// 505 HTTP Version Not Supported.
        proxy_505,
        /// Clients that sent a pattern of a denying rule.
        proxy_denied,
        /// Attempts to connect to a backend, without health checks.
        proxy_connects,
        /// Backends that refused or reset the connection.
        proxy_connects_refused,
        /// Backends that did not accept the connection in time.
        proxy_connects_timed_out,
        /// Connections to backends that failed for another reason.
        proxy_connects_failed,
        /// Connections to backends that could not begin for a local reason: no port, no route, no
        /// memory.
        proxy_connects_local: alarm,
        /// Attempts with another backend after a failed one.
        proxy_retries,
        /// Clients for which no backend was up.
        proxy_no_backend_up: alarm,
        /// Clients for which no backend had room.
        proxy_no_backend_room: alarm,
        /// Successful health checks.
        proxy_checks_good,
        /// Failed health checks.
        proxy_checks_bad: alarm,
        /// Backends that came up.
        proxy_backends_came_up,
        /// Backends that went down.
        proxy_backends_went_down: alarm,
        /// Bytes from clients to backends that this host relayed.
        proxy_relayed_bytes_up,
        /// Bytes from backends to clients that this host relayed.
        proxy_relayed_bytes_down,
        /// Bytes from clients to backends that the device relayed.
        proxy_spliced_bytes_up,
        /// Bytes from backends to clients that the device relayed.
        proxy_spliced_bytes_down,
        /// Connections that this host relays to their end.
        proxy_relayed,
        /// Connections that the device relays.
        proxy_spliced,
        /// Not spliced: one of the two connections was already closing.
        proxy_splice_refused_not_connected,
        /// Not spliced: disabled.
        proxy_splice_refused_disabled,
        /// Not spliced: the device has no splice engine.
        proxy_splice_refused_not_supported,
        /// Not spliced: the engine's table is full.
        proxy_splice_refused_table_full: alarm,
        /// Not spliced: more bytes were in flight than the device can hold.
        proxy_splice_refused_does_not_fit,
        /// Not spliced: the TCP options of the two connections differ.
        proxy_splice_refused_options_differ,
        /// Not spliced: for another reason.
        proxy_splice_refused_other,
        /// Spliced connections that both sides closed.
        proxy_splices_closed,
        /// Spliced connections that one side reset.
        proxy_splices_reset,
        /// Spliced connections that were idle for too long.
        proxy_splices_idle,
        /// Spliced connections that ended with the device or with the program.
        proxy_splices_lost: alarm,
        /// Relayed connections that both sides closed.
        proxy_relays_closed,
        /// Connections that the client reset while they were relayed or the backend was being
        /// connected to.
        proxy_relays_reset_by_client,
        /// Relayed connections that the backend reset, or closed without a response.
        proxy_relays_reset_by_backend,
        /// Relayed connections that were reset because they were idle for too long.
        proxy_relays_idle,
        /// Bytes that arrived after a response of the proxy's own and were discarded.
        proxy_discarded_bytes,
        /// Tables applied, including the first.
        proxy_tables,
        /// Tables refused as a whole, because a listener could not be opened.
        proxy_tables_refused: alarm,
        /// Listeners that a later table opened.
        proxy_ports_opened,
        /// Listeners that a later table closed.
        proxy_ports_closed,
        /// Listeners of a later table that could not be opened.
        proxy_ports_refused: alarm,
        /// Lines of the access log that were dropped because the queue was full.
        proxy_log_dropped: alarm,
    }
}

impl ProxyCounters {
    /// Counts a response of the proxy's own by its status code.
    pub(crate) fn count_status(&mut self, code: u16) {
        match code {
            400 => self.proxy_400 += 1,
            403 => self.proxy_403 += 1,
            404 => self.proxy_404 += 1,
            405 => self.proxy_405 += 1,
            408 => self.proxy_408 += 1,
            414 => self.proxy_414 += 1,
            417 => self.proxy_417 += 1,
            431 => self.proxy_431 += 1,
            501 => self.proxy_501 += 1,
            502 => self.proxy_502 += 1,
            503 => self.proxy_503 += 1,
            504 => self.proxy_504 += 1,
            505 => self.proxy_505 += 1,
            _ => debug_assert!(false, "no counter for status {code}"),
        }
    }

    /// Counts a failed attempt to connect to a backend.
    pub(crate) fn count_failed_connect(&mut self, error: SocketError) {
        match error {
            SocketError::Refused | SocketError::Reset => self.proxy_connects_refused += 1,
            SocketError::TimedOut => self.proxy_connects_timed_out += 1,
            _ => self.proxy_connects_failed += 1,
        }
    }

    /// Counts the reason for which two connections are not spliced.
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
            _ => self.proxy_splice_refused_other += 1,
        }
    }

    /// Counts the end of a splice.
    pub(crate) fn count_splice_end(&mut self, end: Option<SpliceEnd>) {
        match end {
            Some(SpliceEnd::Closed) => self.proxy_splices_closed += 1,
            Some(SpliceEnd::Reset(_)) => self.proxy_splices_reset += 1,
            Some(SpliceEnd::IdleTimeout) => self.proxy_splices_idle += 1,
            Some(SpliceEnd::Unspliced) | None => self.proxy_splices_lost += 1,
        }
    }
}
