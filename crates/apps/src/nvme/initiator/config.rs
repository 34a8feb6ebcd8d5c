//! What an initiator is told, and what it says of itself.

use std::sync::Arc;

use abi::crypto::CryptoProvider;
use base::Duration;
use host::TlsClient;
use wire::nvme::nqn::Nqn;

use super::command::Loss;
use super::recovery::BackOff;
use crate::nvme::handshake::Handshakes;

/// How an initiator connects, and what it puts up with.
pub struct Config {
    /// Who we are.
    pub host: Nqn,
    /// The same as a UUID: of every association of the host the same.
    pub host_id: [u8; 16],
    /// Whose namespaces are wanted; or [`Nqn::discovery`].
    pub subsystem: Nqn,
    /// TLS with certificates on every connection, or none.
    pub tls: Option<TlsClient>,
    /// TLS with pre-shared keys on every connection instead.
    pub psk: Option<Arc<dyn Handshakes>>,
    /// Sums digests that the device does not.
    pub crypto: Arc<dyn CryptoProvider>,
    /// Headers shall have digests: a controller that gives none is not used. So with data.
    pub header_digest: bool,
    /// Data shall have digests.
    pub data_digest: bool,
    /// I/O queues: the controller may give fewer.
    pub queues: u16,
    /// Entries of an I/O queue, 2 or more: one less commands can be open on it.
    pub queue_entries: u16,
    /// Requests that may be open, those that wait for a queue among them.
    pub requests_max: usize,
    /// How long the controller lives without a sign of us; zero for ever.
    pub keep_alive: Duration,
    /// From the first SYN until all queues stand; the time that the controller needs to get ready
    /// comes on top.
    pub setup_timeout: Duration,
    /// Until a command is to be aborted; and once more, until the association is given up.
    pub command_timeout: Duration,
    /// When to connect again.
    pub back_off: BackOff,
    /// How often a command is sent again whose data came with a wrong digest.
    pub digest_retries: u8,
    /// How often a command is sent again of which the controller says that its fault may pass.
    pub status_retries: u8,
    /// How many associations a command may cost, by what the controller does against the protocol.
    pub protocol_retries: u8,
    /// How many associations a command may cost in another way: it was never answered, or was open
    /// when its connection ended, or when the controller was lost as a whole. After that it fails
    /// with [`super::Error::Lost`].
    pub loss_retries: u8,
}

impl Config {
    /// The defaults of Linux, where it has them: `loss_retries` is its nvme_max_retries.
    #[must_use]
    pub fn new(
        host: Nqn,
        host_id: [u8; 16],
        subsystem: Nqn,
        crypto: Arc<dyn CryptoProvider>,
    ) -> Self {
        Self {
            host,
            host_id,
            subsystem,
            tls: None,
            psk: None,
            crypto,
            header_digest: false,
            data_digest: false,
            queues: 1,
            queue_entries: 128,
            requests_max: 1024,
            keep_alive: Duration::from_secs(5),
            setup_timeout: Duration::from_secs(15),
            command_timeout: Duration::from_secs(30),
            back_off: BackOff::default(),
            digest_retries: 3,
            status_retries: 5,
            protocol_retries: 2,
            loss_retries: 5,
        }
    }
}

impl core::fmt::Debug for Config {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Config").field("subsystem", &self.subsystem).finish_non_exhaustive()
    }
}

/// What an initiator is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It was not told to connect.
    Idle,
    /// It connects, for the first time or again.
    Connecting,
    /// Its queues stand.
    Live,
    /// It waits before it connects again.
    Waiting,
    /// It has given up.
    Failed(Loss),
    /// It was closed.
    Closed,
}

/// Something that happened beyond requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All queues stand.
    Connected,
    /// The association was lost, or did not come to be; it is tried again.
    Lost(Loss),
    /// The same, and it is not tried again.
    Failed(Loss),
    /// The namespaces, or what is known of them, may have changed.
    NamespacesChanged,
    /// The discovery log has changed.
    DiscoveryChanged,
}
