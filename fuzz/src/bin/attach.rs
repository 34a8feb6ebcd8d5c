//! Fuzzes the messages that attach a program: see `fuzz::attach`.
#![cfg_attr(fuzzing, no_main)]
#![forbid(unsafe_code)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::attach::run(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    fuzz::replay(fuzz::attach::run)
}
