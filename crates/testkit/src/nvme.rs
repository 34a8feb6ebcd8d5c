//! NVMe/TCP PDUs as bytes, for scripted peers.

use abi::crypto::CryptoProvider;
use wire::nvme::pdu::{HEADER_BYTES_MAX, PduHeader, PduRules};

/// Returns the bytes of a PDU with `data`, formatted by the receiver's rules, with correct digests
/// if these are enabled. Returns `None` if `header` and `data` do not form a valid PDU.
#[must_use]
pub fn pdu(
    header: &PduHeader,
    data: &[u8],
    rules: &PduRules,
    crypto: &dyn CryptoProvider,
) -> Option<Vec<u8>> {
    let mut room = [0; HEADER_BYTES_MAX];
    let common = header.write(u32::try_from(data.len()).ok()?, rules, &mut room)?;
    let bare = usize::from(common.kind.header_len());
    let mut out = room.get(..bare)?.to_vec();
    if common.header_bytes as usize > bare {
        let digest = crypto.crc32c(0, &out);
        out.extend(digest.to_le_bytes());
    }
    if !data.is_empty() {
        out.resize(common.data().start as usize, 0);
        out.extend(data);
    }
    if common.data_digest().is_some() {
        out.extend(crypto.crc32c(0, data).to_le_bytes());
    }
    assert_eq!(out.len(), common.plen as usize, "the header says how long it is");
    Some(out)
}
