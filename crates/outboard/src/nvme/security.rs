//! Security of an initiator's connections, and explanations if it fails.
//!
//! Called by [`super::session`] before it starts, and with the loss if it cannot connect.

use std::sync::Arc;

use apps::nvme::SecureChannelError;
use apps::nvme::handshake::NvmeTlsHandshakeFactory;
use apps::nvme::initiator::{AssociationLoss, InitiatorConfig};
use host::nvme::NvmeTransportEnd;
use host::{SocketError, TlsAlert, TlsClient};
use wire::nvme::nqn::Nqn;

use super::args::ConnectArgs;
use super::psk::PskStore;
use crate::tls::{self, ServerTrust, TrustedRoots};
use cli::Failure;

/// Security of the connections.
pub(super) enum InitiatorSecurity {
    Plain,
    /// TLS with certificates.
    Tls(TlsClient, Arc<ServerTrust>),
    /// TLS with a pre-shared key.
    Psk(Arc<PskStore>),
}

impl InitiatorSecurity {
    /// Returns the security of the options, for connections to a subsystem.
    ///
    /// # Errors
    /// Fails if an option is missing, or if a file cannot be read or is invalid.
    pub(super) fn new(args: &ConnectArgs, subsystem: &Nqn) -> Result<Self, Failure> {
        let asked = &args.security;
        if let Some(psks) = PskStore::initiator(asked, args.hostnqn.map(|nqn| nqn.0), subsystem)? {
            return Ok(Self::Psk(psks));
        }
        if !asked.tls {
            return Ok(Self::Plain);
        }
        if asked.tls_ca.is_none() && !asked.insecure {
            let line = "--tls requires --tls-ca FILE, --tls-psk-file FILE, or --insecure to \
                        accept any certificate";
            return Err(Failure::Usage(line.to_owned()));
        }
        let roots = asked.tls_ca.as_deref().map_or(TrustedRoots::Any, TrustedRoots::File);
        let trust = ServerTrust::new(roots)?;
        let name = asked.tls_name.clone().unwrap_or_else(|| args.target.0.addr.into());
        Ok(Self::Tls(tls::nvme_client(&trust, name)?, trust))
    }

    /// Applies the security to an initiator's configuration.
    pub(super) fn configure(&self, config: &mut InitiatorConfig) {
        match self {
            Self::Plain => {}
            Self::Tls(client, _) => config.tls = Some(client.clone()),
            Self::Psk(psks) => {
                config.psk = Some(Arc::clone(psks) as Arc<dyn NvmeTlsHandshakeFactory>)
            }
        }
    }

    /// Explains why there is no connection, and what to do about it.
    pub(super) fn explain(&self, loss: &AssociationLoss) -> String {
        // The received bytes were not a TLS record.
        let no_record = NvmeTransportEnd::Lost(SocketError::Tls(TlsAlert::UnexpectedMessage));
        match (self, loss) {
            (Self::Tls(_, trust), _) if trust.last_error().is_some() => {
                let why = trust.last_error().unwrap_or_default();
                format!("{why}; check --tls-ca and --tls-name")
            }
            (Self::Tls(..), AssociationLoss::Connection(how)) if *how == no_record => {
                "target does not use TLS; try without --tls".to_owned()
            }
            (
                Self::Tls(..),
                AssociationLoss::Connection(NvmeTransportEnd::Lost(SocketError::TlsHandshake)),
            ) => {
                format!("{loss}; the target may require a pre-shared key, see --tls-psk-file")
            }
            (Self::Plain, AssociationLoss::Insecure(why)) => {
                format!("{why}; see --tls and --tls-psk-file")
            }
            (Self::Psk(_), AssociationLoss::Insecure(SecureChannelError::Plain)) => {
                "target does not use TLS; try without a pre-shared key".to_owned()
            }
            (Self::Psk(psks), AssociationLoss::Insecure(why)) => {
                let why = match (why, psks.last_failure()) {
                    (SecureChannelError::Handshake(None), Some(why)) => why.to_string(),
                    _ => why.to_string(),
                };
                format!("{why}; check that both ends have the same key for this --hostnqn")
            }
            _ => loss.to_string(),
        }
    }
}
