//! Fuzzes rings in shared memory: see `fuzz::shared_ring`.
#![cfg_attr(fuzzing, no_main)]
#![forbid(unsafe_code)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::shared_ring::run(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    fuzz::replay(fuzz::shared_ring::run)
}
