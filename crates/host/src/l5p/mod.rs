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

use abi::Refusal;
use transforms::L5pTransforms;

/// Minimum of the bytes from which the time of a repeated request is computed: a TLS record.
const REQUEST_BYTES_MIN: u64 = 1 << 14;

/// A connection with the transforms of these protocols.
pub(crate) type L5pConnection = crate::tcp::conn::TcpConnection<L5pTransforms>;

/// Returns the bytes at which to request again a context that was refused after `carried` bytes of
/// its direction: twice as many if the device's table was full, as for QUIC, so that the requests
/// of a connection cost little however long there is no room. `None` for never.
pub(crate) fn next_request_at(why: Refusal, carried: u64) -> Option<u64> {
    (why == Refusal::TableFull).then(|| carried.max(REQUEST_BYTES_MIN).saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An idle connection needs at most 939 bytes, with slot, route and flow-table entry
    /// (`outboard-lab bench memory`).
    #[test]
    fn a_connection_is_small() {
        let bytes = size_of::<L5pConnection>();
        assert!(bytes <= 728, "{bytes} bytes");
    }
}
