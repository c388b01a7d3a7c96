#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| criswitch_fuzz::gate::check(data));
