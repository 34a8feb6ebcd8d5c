//! Configuration, states and events of an initiator.

use std::sync::Arc;

use abi::crypto::CryptoProvider;
use base::Duration;
use host::TlsClient;
use wire::nvme::nqn::Nqn;

use super::command::AssociationLoss;
use super::recovery::BackOff;
use crate::nvme::handshake::NvmeTlsHandshakeFactory;
use crate::pattern_rules::PatternRules;

/// Configuration of an initiator.
#[derive(Clone)]
pub struct InitiatorConfig {
    /// Host NQN.
    pub host: Nqn,
    /// Host identifier, a UUID: the same in all associations of this host.
    pub host_id: [u8; 16],
    /// NQN of the subsystem, or [`Nqn::discovery`].
    pub subsystem: Nqn,
    /// TLS with certificates on every connection; ignored if `psk` is set.
    pub tls: Option<TlsClient>,
    /// TLS with pre-shared keys on every connection.
    pub psk: Option<Arc<dyn NvmeTlsHandshakeFactory>>,
    /// Rules about patterns in data that is read. A Read whose data contains a denied pattern fails
    /// with [`super::NvmeRequestError::DeniedPattern`].
    pub pattern_rules: Option<Arc<PatternRules>>,
    /// Computes digests that the device does not.
    pub crypto: Arc<dyn CryptoProvider>,
    /// Require header digests. The association fails if the controller does not grant them.
    pub header_digest: bool,
    /// Require data digests, likewise.
    pub data_digest: bool,
    /// Number of I/O queues; the controller may grant fewer.
    pub queues: u16,
    /// Entries of an I/O queue, at least 2. One entry stays unused.
    pub queue_entries: u16,
    /// Maximum number of open requests, including those that wait for a queue.
    pub requests_max: usize,
    /// Keep alive timeout (KATO) after which the controller ends the association; zero disables it.
    pub keep_alive: Duration,
    /// Time limit of the set-up. It starts with the first connect, again when the controller has
    /// been enabled (plus CAP.TO), and again when the controller is ready.
    pub setup_timeout: Duration,
    /// Time after which a command is aborted, and after which again the association is given up.
    pub command_timeout: Duration,
    /// Delays between attempts to connect.
    pub back_off: BackOff,
    /// Retries of a command whose data had a wrong digest.
    pub digest_retries: u8,
    /// Retries of a command that failed with a transient status.
    pub status_retries: u8,
    /// Associations that a command may end by protocol errors of the controller, before it fails.
    pub protocol_retries: u8,
    /// Associations that a command may end in other ways before it fails with
    /// [`super::NvmeRequestError::Lost`]: it was not answered, or it was open when its connection
    /// ended or the whole controller was lost.
    pub loss_retries: u8,
}

impl InitiatorConfig {
    /// Creates a configuration with Linux's defaults if it has them; `loss_retries` is its
    /// nvme_max_retries.
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
            pattern_rules: None,
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

impl core::fmt::Debug for InitiatorConfig {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("InitiatorConfig")
            .field("subsystem", &self.subsystem)
            .finish_non_exhaustive()
    }
}

/// State of an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitiatorState {
    /// [`super::Initiator::connect`] has not been called.
    Idle,
    /// Connecting, for the first time or again.
    Connecting,
    /// All queues are connected.
    Live,
    /// Waiting before the next attempt to connect.
    Waiting,
    /// Given up, for this reason.
    Failed(AssociationLoss),
    /// Closed by the user.
    Closed,
}

/// An event other than the completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitiatorEvent {
    /// All queues are connected.
    Connected,
    /// The association was lost or could not be established; the initiator will retry.
    Lost(AssociationLoss),
    /// The association was lost or could not be established; the initiator has given up.
    Failed(AssociationLoss),
    /// The namespaces or their attributes may have changed.
    NamespacesChanged,
    /// The discovery log has changed.
    DiscoveryChanged,
}
