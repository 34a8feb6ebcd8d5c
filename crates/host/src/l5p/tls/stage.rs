//! Stages of a session, and the events that lead from one to another.
//!
//! [`super::HostTlsSession`] enters each stage through [`TlsStage::next`]. Closing our direction is
//! independent of the stage: the application may do it at any time, and close_notify waits in the
//! queue behind the data written before it.

use alloc::boxed::Box;

use super::handshake::RustlsHandshake;
use super::open_state::TlsOpenState;
use super::record::TlsAlert;
use crate::api::SocketError;

/// Stage of a session; each but the last may fail.
pub(super) enum TlsStage {
    /// A client that has not sent its first message.
    Begin(Box<RustlsHandshake>),
    /// A server that has received nothing: a client that does not speak TLS is passed to the
    /// application.
    Detect(Box<RustlsHandshake>),
    Handshake(Box<RustlsHandshake>),
    /// There are keys.
    Open(Box<TlsOpenState>),
    /// As `TlsOpenState`, but received records are ignored.
    PeerClosed(Box<TlsOpenState>),
    /// Nothing is sent or received.
    Failed {
        error: SocketError,
        /// The stage before was `PeerClosed`.
        peer_closed: bool,
    },
}

/// Events that move a session from one stage to another.
pub(super) enum TlsStageEvent {
    /// A client sends its first message.
    Begun,
    /// A server received its first bytes, which are not text.
    Record,
    /// The handshake returned keys.
    Keys(Box<TlsOpenState>),
    /// The peer sent close_notify.
    CloseNotify,
    /// Everything was sent for an application that has closed the socket: received records are
    /// neither read nor answered.
    Unwanted,
    /// An alert was sent or received, or an error of this host occurred.
    Failure(SocketError),
}

impl TlsStage {
    /// Stage of a session that could not begin, or received an event that its stage does not
    /// handle.
    pub(super) const BROKEN: Self =
        Self::Failed { error: SocketError::Tls(TlsAlert::InternalError), peer_closed: false };

    /// Returns the stage that an event leads to; `None` if the stage does not handle the event.
    pub(super) fn next(self, event: TlsStageEvent) -> Option<Self> {
        Some(match (self, event) {
            (Self::Begin(handshake), TlsStageEvent::Begun)
            | (Self::Detect(handshake), TlsStageEvent::Record) => Self::Handshake(handshake),
            (Self::Handshake(_), TlsStageEvent::Keys(open)) => Self::Open(open),
            (Self::Open(open), TlsStageEvent::CloseNotify | TlsStageEvent::Unwanted) => {
                Self::PeerClosed(open)
            }
            (Self::Handshake(_), TlsStageEvent::Unwanted) => {
                Self::Failed { error: SocketError::Closed, peer_closed: false }
            }
            (Self::Failed { .. }, _) => return None,
            (stage, TlsStageEvent::Failure(error)) => {
                Self::Failed { error, peer_closed: matches!(stage, Self::PeerClosed(_)) }
            }
            _ => return None,
        })
    }

    /// Returns the state with the keys, if there are any.
    pub(super) const fn open(&self) -> Option<&TlsOpenState> {
        match self {
            Self::Open(open) | Self::PeerClosed(open) => Some(open),
            Self::Begin(_) | Self::Detect(_) | Self::Handshake(_) | Self::Failed { .. } => None,
        }
    }

    /// Returns [`Self::open`], mutable.
    pub(super) const fn open_mut(&mut self) -> Option<&mut TlsOpenState> {
        match self {
            Self::Open(open) | Self::PeerClosed(open) => Some(open),
            Self::Begin(_) | Self::Detect(_) | Self::Handshake(_) | Self::Failed { .. } => None,
        }
    }

    /// Returns whether the peer's direction is closed for the application.
    pub(super) const fn is_peer_closed(&self) -> bool {
        matches!(self, Self::PeerClosed(_) | Self::Failed { peer_closed: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};

    use super::super::api::{TlsDirection, TlsKeys, TlsVersion};
    use super::*;
    use abi::crypto::Suite;

    fn handshake() -> Box<RustlsHandshake> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        Box::new(RustlsHandshake::client(Arc::new(config), name).unwrap())
    }

    fn open() -> Box<TlsOpenState> {
        let direction = || TlsDirection::new(&[1; 32], [2; 12], 0);
        let keys = TlsKeys {
            version: TlsVersion::Tls13,
            suite: Suite::Aes128Gcm,
            tx: direction(),
            rx: direction(),
            crypto: Arc::new(crypto::Provider),
        };
        Box::new(TlsOpenState::attached(&keys, &crypto::Provider).unwrap())
    }

    const fn name(stage: &TlsStage) -> &'static str {
        match stage {
            TlsStage::Begin(_) => "BEGIN",
            TlsStage::Detect(_) => "DETECT",
            TlsStage::Handshake(_) => "HANDSHAKE",
            TlsStage::Open(_) => "OPEN",
            TlsStage::PeerClosed(_) => "PEER_CLOSED",
            TlsStage::Failed { .. } => "FAILED",
        }
    }

    fn stages() -> [TlsStage; 6] {
        [
            TlsStage::Begin(handshake()),
            TlsStage::Detect(handshake()),
            TlsStage::Handshake(handshake()),
            TlsStage::Open(open()),
            TlsStage::PeerClosed(open()),
            TlsStage::BROKEN,
        ]
    }

    fn events() -> [(TlsStageEvent, &'static str); 5] {
        [
            (TlsStageEvent::Begun, "first message"),
            (TlsStageEvent::Record, "first bytes are no text"),
            (TlsStageEvent::Keys(open()), "keys"),
            (TlsStageEvent::CloseNotify, "close_notify received"),
            (TlsStageEvent::Unwanted, "socket closed, all sent"),
        ]
    }

    /// Returns the table as a Mermaid diagram. A failure leads from every other stage to FAILED.
    fn diagram() -> String {
        let mut out = String::from("stateDiagram-v2\n");
        for at in 0..stages().len() {
            for (event, label) in events() {
                let [from, to] = [(); 2].map(|()| stages().into_iter().nth(at).unwrap());
                if let Some(to) = to.next(event) {
                    out += &format!("    {} --> {}: {label}\n", name(&from), name(&to));
                }
            }
        }
        out
    }

    /// The diagram in docs/engines/tls-states.md equals the table.
    #[test]
    fn tls_transitions_are_documented() {
        testkit::state_diagram::assert_documented(&diagram());
    }

    /// A failure ends every other stage, and remembers whether the peer had closed.
    #[test]
    fn a_failure_ends_every_stage() {
        for stage in stages() {
            let from = name(&stage);
            match stage.next(TlsStageEvent::Failure(SocketError::TlsHandshake)) {
                Some(TlsStage::Failed { error, peer_closed }) => {
                    assert_eq!(error, SocketError::TlsHandshake);
                    assert_eq!(peer_closed, from == "PEER_CLOSED");
                }
                Some(to) => panic!("{from} --> {}", name(&to)),
                None => assert_eq!(from, "FAILED"),
            }
        }
    }
}
