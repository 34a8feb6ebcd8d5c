//! Identity of the machine, from which link addresses and interface identifiers are derived, so
//! that they are the same at each start: servers then lease the same addresses.

use std::hash::Hasher;

use io::clock;
use siphasher::sip::SipHasher24;

/// File with the identity (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";

/// A key derived from the machine's identity. The identity itself must not be exposed
/// (machine-id(5)).
pub(crate) struct MachineKey(String);

impl MachineKey {
    /// Reads the identity. Without one, each start has another key.
    pub(crate) fn read() -> Self {
        let id = std::fs::read_to_string(MACHINE_ID).unwrap_or_default();
        let id = id.trim().to_owned();
        Self(if id.is_empty() { clock::entropy().to_string() } else { id })
    }

    fn derive(&self, purpose: &str) -> u64 {
        let mut hasher = SipHasher24::new();
        hasher.write(self.0.as_bytes());
        hasher.write(purpose.as_bytes());
        hasher.finish()
    }

    /// Returns a link address for a link: locally administered (second bit).
    pub(crate) fn link_address(&self, link: &str) -> [u8; 6] {
        let [a, b, c, d, ..] = self.derive(link).to_be_bytes();
        [0x02, b'o', a, b, c, d]
    }

    /// Returns the secret of interface identifiers (RFC 7217).
    pub(crate) fn secret(&self) -> (u64, u64) {
        (self.derive("outboard RFC 7217 low"), self.derive("outboard RFC 7217 high"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_addresses_are_stable_and_differ() {
        let key = MachineKey("0123".to_owned());
        let again = MachineKey("0123".to_owned());
        let first = key.link_address("packet:eth0");
        assert_eq!(first, again.link_address("packet:eth0"));
        assert_ne!(first, key.link_address("packet:eth1"));
        assert_ne!(first, MachineKey("0124".to_owned()).link_address("packet:eth0"));
        assert_eq!(first[0] & 3, 2, "locally administered, of one station");
    }
}
