//! The handshake of NVMe/TCP's secure channel, as target and initiator see it.
//!
//! NVM Express over TCP, section 3.6.1.3: before the first PDU both ends agree on keys by TLS 1.3
//! with a pre-shared key. [`super::target`] and [`super::initiator`] run a [`Handshake`] over the
//! plain bytes of a connection, and hand the keys that it ends with to
//! [`host::Host::attach_tls`]. Who has the pre-shared keys, and which library speaks TLS, is the
//! business of whoever implements [`Handshakes`]; in tests that may be a script.

use host::TlsKeys;

/// A TLS handshake over a plain connection, until its keys are known.
pub trait Handshake: Send {
    /// Takes bytes that came, and appends to `out` what has to be sent, whatever it returns. To be
    /// called once with nothing received when the connection is there (a client begins), and then
    /// with bytes that came: those that it did not use come again, with more after them.
    ///
    /// Bytes behind the handshake's last record are never used: they are sealed under the keys that
    /// were agreed on. After [`Progress::Done`] or [`Progress::Failed`] it is not called again.
    fn advance(&mut self, received: &[u8], out: &mut Vec<u8>) -> Progress;
}

/// What a call of [`Handshake::advance`] led to. `used` counts bytes of what it was given.
#[derive(Debug)]
pub enum Progress {
    /// More has to come.
    More {
        /// How many bytes were used.
        used: usize,
    },
    /// Both ends have the keys. What is in `out` is sent in the clear, as it is; everything behind
    /// it is sealed.
    Done {
        /// How many bytes were used.
        used: usize,
        /// The keys, and whose.
        agreed: Box<Agreed>,
    },
    /// There will be no keys. An alert for the peer may be in `out`; then the connection ends.
    Failed {
        /// How many bytes were used.
        used: usize,
    },
}

/// What a handshake ends with.
#[derive(Debug)]
pub struct Agreed {
    /// Keys of both directions.
    pub keys: TlsKeys,
    /// The identity of the pre-shared key, as `NVMe1R01 HOSTNQN SUBNQN DIGEST`.
    pub identity: Vec<u8>,
}

/// Makes handshakes: one for each connection.
pub trait Handshakes: Send + Sync {
    /// A handshake with an initiator that has connected to us. None where there are no keys, or no
    /// memory: the connection ends.
    fn server(&self) -> Option<Box<dyn Handshake>>;

    /// A handshake with a target that we have connected to. None as for [`Self::server`].
    fn client(&self) -> Option<Box<dyn Handshake>>;
}
