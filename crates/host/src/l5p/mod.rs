//! Layer-5 protocols (L5Ps) that the host implements above TCP.
//!
//! TLS is a session between a connection and the application's socket: [`crate::stream`] lets it
//! work after each event of its connection, and the socket calls go to the session instead of the
//! connection. NVMe/TCP belongs to the application, which polls a [`crate::nvme::NvmeTransport`]
//! above the socket, plain or TLS; here are the PDUs of its send stream, and its receive offload.
//! TCP knows neither: its send stream asks [`transforms`] for the bytes of records and PDUs, and it
//! passes the metadata of received segments on without reading it.

pub(crate) mod inspect;
pub(crate) mod nvme_tcp;
pub(crate) mod tls;
pub(crate) mod transforms;

use transforms::L5pTransforms;

/// A connection with the transforms of these protocols.
pub(crate) type L5pConnection = crate::tcp::conn::TcpConnection<L5pTransforms>;

#[cfg(test)]
mod tests {
    use super::*;

    /// An idle connection needs at most 947 bytes, with slot, route and flow-table entry
    /// (`outboard-lab bench memory`).
    #[test]
    fn a_connection_is_small() {
        let bytes = size_of::<L5pConnection>();
        assert!(bytes <= 728, "{bytes} bytes");
    }
}
