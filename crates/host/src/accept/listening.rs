//! Listeners, and their set-up offload.
//!
//! Called by the application through [`crate::Host`]. With set-up offload the device answers a
//! listener's SYNs (AccelTCP section 4.1). It does so even while it is overloaded: passing a SYN on
//! and sending the host's answer costs the device as much as answering itself (`outboard-lab bench
//! connections`), and a SYN flood must not reach the host.

use alloc::boxed::Box;

use abi::setup::{ListenId, SetupListen};
use abi::{Op, Refusal};
use wire::{IPV4_BYTES, IPV6_BYTES, TCP_BYTES};

use super::{Accept, drop_half_open};
use crate::api::{ListenConfig, ListenError, ListenerId, ListenerOption};
use crate::config::TcpConfig;
use crate::l5p::tls::TlsServer;
use crate::net::outbox::Outbox;
use crate::storage::files::Files;
use crate::stream::Streams;
use crate::tcp::conn::{SEGMENT_MIN, TcpEnv};
use crate::tcp::listen::ListeningPort;

impl Accept {
    /// Listens on a port.
    ///
    /// # Errors
    /// [`ListenError`]: the port is in use, or the address cannot be listened on.
    pub(crate) fn listen(
        streams: &mut Streams,
        out: &Outbox,
        listen: ListenConfig,
    ) -> Result<ListenerId, ListenError> {
        let ListenConfig { addr, port, backlog } = listen;
        if port == 0 || addr.is_some_and(|a| !out.net.is_ours(a)) {
            return Err(ListenError::BadAddress);
        }
        let overlaps = |l: &ListeningPort| {
            l.port == port && (l.addr == addr || l.addr.is_none() || addr.is_none())
        };
        if streams.listeners.iter().any(overlaps) {
            return Err(ListenError::InUse(port));
        }
        let listener = ListeningPort::new(addr, port, backlog.max(1));
        streams.listeners.insert(listener).ok_or(ListenError::BadAddress)
    }

    /// As [`Self::listen`], for TLS. If the device does not encrypt, the host reads the files that
    /// are opened from now on, because it encrypts them.
    ///
    /// # Errors
    /// As [`Self::listen`].
    pub(crate) fn listen_tls(
        &mut self,
        streams: &mut Streams,
        out: &Outbox,
        files: &mut Files,
        listen: ListenConfig,
        server: TlsServer,
    ) -> Result<ListenerId, ListenError> {
        let id = Self::listen(streams, out, listen)?;
        self.tls_servers.insert(id.0, server);
        if !out.offloads.l5o.is_ok_and(|limits| limits.tls_tx) {
            files.offload = files.offload.and(Err(Refusal::Encrypted));
        }
        Ok(id)
    }

    /// Removes a listener, and drops its half-open connections.
    pub(crate) fn unlisten(
        &mut self,
        streams: &mut Streams,
        out: &mut Outbox,
        listener: ListenerId,
    ) {
        let Some(state) = streams.listeners.remove(listener.0) else { return };
        if state.on_device {
            out.ops.push_back(Op::Unlisten { listener: ListenId(listener.0) });
        }
        self.tls_servers.remove(&listener.0);
        for slot in streams.table.syn_cache.slots_of_listener(listener.0) {
            drop_half_open(streams, slot);
        }
    }

    /// Sets an option of a listener, for connections established from now on.
    pub(crate) fn set_option(
        &self,
        streams: &mut Streams,
        out: &mut Outbox,
        config: &TcpConfig,
        listener: ListenerId,
        option: ListenerOption,
    ) {
        let Some(state) = streams.listeners.get_mut(listener.0) else { return };
        match option {
            ListenerOption::SetupOffload(on) => {
                state.setup_offload = if on { self.setup } else { Err(Refusal::Disabled) };
            }
            ListenerOption::DeferAccept(on) => state.defer = on,
            ListenerOption::TeardownOffload(on) => state.teardown = on,
            ListenerOption::MaxSegment(bytes) => state.max_segment = bytes.max(SEGMENT_MIN),
            ListenerOption::HandOverCleartext(on) => state.cleartext = on,
        }
        self.install_on_device(streams, out, config, listener.0);
    }

    /// Handles the device's refusal of a listener.
    pub(crate) fn handle_refused(
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        listener: ListenId,
        why: Refusal,
    ) {
        let Some(state) = streams.listeners.get_mut(listener.0) else {
            cx.out.counters.events_ignored += 1;
            return;
        };
        (state.setup_offload, state.on_device) = (Err(why), false);
        cx.out.counters.setup_listeners_refused += 1;
    }

    /// Installs the listeners again with the segment sizes that the link's new MTU allows.
    pub(crate) fn handle_mtu_change(&self, streams: &mut Streams, cx: &mut TcpEnv<'_>) {
        for listener in streams.listeners.names() {
            if streams.listeners.get_mut(listener).is_some_and(|state| state.on_device) {
                self.install_on_device(streams, cx.out, cx.config, listener);
            }
        }
    }

    /// Installs the listeners again after a reset of the device.
    pub(crate) fn handle_device_reset(&mut self, streams: &mut Streams, cx: &mut TcpEnv<'_>) {
        self.device_reset = Some(cx.now);
        for listener in streams.listeners.names() {
            let Some(state) = streams.listeners.get_mut(listener) else { continue };
            state.on_device = false;
            if state.setup_offload.is_ok() {
                self.install_on_device(streams, cx.out, cx.config, listener);
            }
        }
    }

    /// Installs the listeners on all addresses again, after the local addresses have changed.
    pub(crate) fn handle_new_addrs(&self, streams: &mut Streams, cx: &mut TcpEnv<'_>) {
        for listener in streams.listeners.names() {
            let state = streams.listeners.get(listener);
            if state.is_some_and(|state| state.addr.is_none() && state.setup_offload.is_ok()) {
                self.install_on_device(streams, cx.out, cx.config, listener);
            }
        }
    }

    /// Installs a listener on the device, replaces it there, or removes it.
    fn install_on_device(
        &self,
        streams: &mut Streams,
        out: &mut Outbox,
        config: &TcpConfig,
        name: u32,
    ) {
        let Some(state) = streams.listeners.get_mut(name) else { return };
        let listener = ListenId(name);
        if state.on_device {
            out.ops.push_back(Op::Unlisten { listener });
        }
        let addrs = match state.addr {
            Some(addr) => [addr].into(),
            None => streams.table.local_addrs(),
        };
        state.on_device = state.setup_offload.is_ok() && !addrs.is_empty();
        if !state.on_device {
            return;
        }
        let (mtu, most) = (out.net.mtu, state.max_segment);
        #[expect(clippy::cast_possible_truncation, reason = "40 and 60")]
        let mss = |ip: usize| mtu.saturating_sub((ip + TCP_BYTES) as u16).min(most);
        out.ops.push_back(Op::Listen(Box::new(SetupListen {
            listener,
            addrs,
            port: state.port,
            window: config.first_window(),
            window_scale: config.window_scale(),
            mss: [mss(IPV4_BYTES), mss(IPV6_BYTES)],
            sack: config.sack,
            ecn: config.ecn,
            defer_accept: state.defer,
            secret: self.device_secret,
        })));
    }
}
