//! How an initiator's connections are secured, and what to say where that fails.
//!
//! Called by [`super::session`] before it starts, and with the loss where it did not connect.

use std::sync::Arc;

use apps::nvme::initiator::Loss;
use host::nvme::Ended;
use host::{Alert, SocketError, TlsClient};

use super::args::ConnectArgs;
use crate::error::Failure;
use crate::tls::{self, Trust};

/// What secures the connections: nothing, or TLS.
#[derive(Debug)]
pub(super) struct Security {
    tls: Option<(TlsClient, Arc<Trust>)>,
}

impl Security {
    /// What was asked for.
    ///
    /// # Errors
    /// What is missing, or which file is wrong.
    pub(super) fn new(args: &ConnectArgs) -> Result<Self, Failure> {
        let asked = &args.security;
        if !asked.tls {
            return Ok(Self { tls: None });
        }
        if asked.tls_ca.is_none() && !asked.insecure {
            let line = "--tls: say whom to trust, by --tls-ca FILE; or take anybody, by --insecure";
            return Err(Failure::Usage(line.to_owned()));
        }
        let trust = Trust::new(asked.tls_ca.as_deref())?;
        let name = asked.tls_name.clone().unwrap_or_else(|| args.target.0.addr.into());
        let client = tls::nvme_client(&trust, name)?;
        Ok(Self { tls: Some((client, trust)) })
    }

    /// TLS with certificates.
    pub(super) fn tls(&self) -> Option<TlsClient> {
        self.tls.as_ref().map(|(client, _)| client.clone())
    }

    /// Why there is no connection, and what to do about it.
    pub(super) fn explain(&self, loss: &Loss) -> String {
        let refused = self.tls.as_ref().and_then(|(_, trust)| trust.refused());
        if let Some(why) = refused {
            return format!("{why}; see --tls-ca and --tls-name");
        }
        match loss {
            // What came was no record.
            Loss::Connection(Ended::Lost(SocketError::Tls(Alert::UnexpectedMessage))) => {
                format!("{loss}: perhaps the target does not speak TLS; try without --tls")
            }
            _ => loss.to_string(),
        }
    }
}
