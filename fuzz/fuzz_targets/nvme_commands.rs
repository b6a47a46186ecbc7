#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (fuzzing::target("nvme_commands").run)(bytes));
