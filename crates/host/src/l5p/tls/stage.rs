//! Stages of a session, and the events that lead from one to another.
//!
//! [`super::Session`] enters each stage through [`Stage::next`]. Closing our direction is
//! independent of the stage: the application may do it at any time, and close_notify waits in the
//! queue behind the data written before it.

use alloc::boxed::Box;

use super::handshake::Handshake;
use super::open::Open;
use super::record::Alert;
use crate::api::SocketError;

/// Stage of a session; each but the last may fail.
pub(super) enum Stage {
    /// A client that has not sent its first message.
    Begin(Box<Handshake>),
    /// A server that has received nothing: a client that does not speak TLS is passed to the
    /// application.
    Detect(Box<Handshake>),
    Handshake(Box<Handshake>),
    /// There are keys.
    Open(Box<Open>),
    /// As `Open`, but received records are ignored.
    PeerClosed(Box<Open>),
    /// Nothing is sent or received.
    Failed {
        error: SocketError,
        /// The stage before was `PeerClosed`.
        peer_closed: bool,
    },
}

/// Events that move a session from one stage to another.
pub(super) enum StageEvent {
    /// A client sends its first message.
    Begun,
    /// A server received its first bytes, which are not text.
    Record,
    /// The handshake returned keys.
    Keys(Box<Open>),
    /// The peer sent close_notify.
    CloseNotify,
    /// Everything was sent for an application that has closed the socket: received records are
    /// neither read nor answered.
    Unwanted,
    /// An alert was sent or received, or an error of this host occurred.
    Failure(SocketError),
}

impl Stage {
    /// Stage of a session that could not begin, or received an event that its stage does not
    /// handle.
    pub(super) const BROKEN: Self =
        Self::Failed { error: SocketError::Tls(Alert::InternalError), peer_closed: false };

    /// Returns the stage that an event leads to; `None` if the stage does not handle the event.
    pub(super) fn next(self, event: StageEvent) -> Option<Self> {
        Some(match (self, event) {
            (Self::Begin(handshake), StageEvent::Begun)
            | (Self::Detect(handshake), StageEvent::Record) => Self::Handshake(handshake),
            (Self::Handshake(_), StageEvent::Keys(open)) => Self::Open(open),
            (Self::Open(open), StageEvent::CloseNotify | StageEvent::Unwanted) => {
                Self::PeerClosed(open)
            }
            (Self::Handshake(_), StageEvent::Unwanted) => {
                Self::Failed { error: SocketError::Closed, peer_closed: false }
            }
            (Self::Failed { .. }, _) => return None,
            (stage, StageEvent::Failure(error)) => {
                Self::Failed { error, peer_closed: matches!(stage, Self::PeerClosed(_)) }
            }
            _ => return None,
        })
    }

    /// Returns the state with the keys, if there are any.
    pub(super) const fn open(&self) -> Option<&Open> {
        match self {
            Self::Open(open) | Self::PeerClosed(open) => Some(open),
            Self::Begin(_) | Self::Detect(_) | Self::Handshake(_) | Self::Failed { .. } => None,
        }
    }

    /// As [`Self::open`], mutable.
    pub(super) const fn open_mut(&mut self) -> Option<&mut Open> {
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

    fn handshake() -> Box<Handshake> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        Box::new(Handshake::client(Arc::new(config), name).unwrap())
    }

    fn open() -> Box<Open> {
        let direction = || TlsDirection::new(&[1; 32], [2; 12], 0);
        let keys = TlsKeys {
            version: TlsVersion::Tls13,
            suite: Suite::Aes128Gcm,
            tx: direction(),
            rx: direction(),
            crypto: Arc::new(crypto::Provider),
        };
        Box::new(Open::attached(&keys, &crypto::Provider).unwrap())
    }

    const fn name(stage: &Stage) -> &'static str {
        match stage {
            Stage::Begin(_) => "BEGIN",
            Stage::Detect(_) => "DETECT",
            Stage::Handshake(_) => "HANDSHAKE",
            Stage::Open(_) => "OPEN",
            Stage::PeerClosed(_) => "PEER_CLOSED",
            Stage::Failed { .. } => "FAILED",
        }
    }

    fn stages() -> [Stage; 6] {
        [
            Stage::Begin(handshake()),
            Stage::Detect(handshake()),
            Stage::Handshake(handshake()),
            Stage::Open(open()),
            Stage::PeerClosed(open()),
            Stage::BROKEN,
        ]
    }

    fn events() -> [(StageEvent, &'static str); 5] {
        [
            (StageEvent::Begun, "first message"),
            (StageEvent::Record, "first bytes are no text"),
            (StageEvent::Keys(open()), "keys"),
            (StageEvent::CloseNotify, "close_notify received"),
            (StageEvent::Unwanted, "socket closed, all sent"),
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

    /// The diagram in ARCHITECTURE.md equals the table.
    #[test]
    fn the_documents_have_the_transitions() {
        testkit::states::assert_documented(&diagram());
    }

    /// A failure ends every other stage, and remembers whether the peer had closed.
    #[test]
    fn a_failure_is_the_end() {
        for stage in stages() {
            let from = name(&stage);
            match stage.next(StageEvent::Failure(SocketError::TlsHandshake)) {
                Some(Stage::Failed { error, peer_closed }) => {
                    assert_eq!(error, SocketError::TlsHandshake);
                    assert_eq!(peer_closed, from == "PEER_CLOSED");
                }
                Some(to) => panic!("{from} --> {}", name(&to)),
                None => assert_eq!(from, "FAILED"),
            }
        }
    }
}
