//! The proxy's own responses: HTTP statuses and TLS alerts, and closing the connection after them.

use base::Duration;
use wire::tls::fatal_alert;

use super::*;

/// Time limit for the client to acknowledge a response and to close.
const LINGER: Duration = Duration::from_secs(2);

impl<I: Copy + Eq> ProxyPair<I> {
    /// Responds to a request with an error, and closes.
    pub(super) fn answer<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        status: HttpStatus,
    ) -> PairAction {
        cx.shared.counters.count_status(status.code());
        self.status = ResponseStatusLine::of(status.code());
        cx.shared.clock.advance(cx.now);
        let line = status.line();
        let body = format!("{line}\n");
        let name = &cx.shared.config.server_name;
        let server = if name.is_empty() { String::new() } else { format!("Server: {name}\r\n") };
        let mut text = format!(
            "HTTP/1.1 {line}\r\n{server}Date: {}\r\nContent-Type: text/plain\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            cx.shared.clock.http(),
            body.len()
        );
        if !self.is_head {
            text.push_str(&body);
        }
        self.bytes[BACKEND] += text.len() as u64;
        self.send_and_close(cx, text.into_bytes())
    }

    /// Sends a TLS alert in place of a handshake, and closes.
    pub(super) fn answer_alert<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        description: u8,
    ) -> PairAction {
        self.send_and_close(cx, fatal_alert(description).to_vec())
    }

    fn send_and_close<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        bytes: Vec<u8>,
    ) -> PairAction {
        self.release_backend(cx);
        self.buffer = bytes;
        self.phase = ProxyPairPhase::Answering;
        self.send_closed = [false; 2];
        self.deadline = cx.now + LINGER;
        self.close_when_done(cx)
    }

    /// Takes the last steps, in order: send everything, shut down the sending direction, wait for
    /// all acknowledgments, wait for the client's FIN. Bytes that still arrive are discarded,
    /// because a reset in response to them could destroy the proxy's response on its way (RFC 9112
    /// section 9.6).
    pub(super) fn close_when_done<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
    ) -> PairAction {
        let client = self.client;
        if cx.host.readiness(client).error.is_some() {
            cx.host.close(cx.now, client);
            return self.end(cx, "answered", "by us");
        }
        loop {
            let bytes = cx.host.peek(client).len();
            if bytes == 0 {
                break;
            }
            cx.shared.counters.proxy_discarded_bytes += bytes as u64;
            cx.host.consume(client, bytes);
        }
        if !self.flush(cx, client) {
            return PairAction::Keep;
        }
        if !self.send_closed[CLIENT] {
            self.send_closed[CLIENT] = true;
            cx.host.shutdown(cx.now, client);
        }
        let ready = cx.host.readiness(client);
        if ready.drained && ready.peer_closed {
            cx.host.close(cx.now, client);
            return self.end(cx, "answered", "by us");
        }
        PairAction::Keep
    }
}
