//! Fuzzes the device's side of a carrier: see `fuzz::carrier_device`.
#![cfg_attr(fuzzing, no_main)]
#![forbid(unsafe_code)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::carrier_device::run(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    fuzz::replay(fuzz::carrier_device::run)
}
