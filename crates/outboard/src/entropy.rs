//! Random seeds for QUIC endpoints.

use io::clock;

/// Returns a random seed of 32 bytes from the operating system.
pub(crate) fn entropy32() -> [u8; 32] {
    let words = [(); 4].map(|()| clock::entropy().to_le_bytes());
    let mut seed = [0; 32];
    for (to, from) in seed.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&from);
    }
    seed
}
