//! Fuzzes the host's side of a carrier: see `fuzz::carrier_host`.
#![cfg_attr(fuzzing, no_main)]
#![forbid(unsafe_code)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::carrier_host::run(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    fuzz::replay(fuzz::carrier_host::run)
}
