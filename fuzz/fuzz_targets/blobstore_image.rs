#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (fuzzing::target("blobstore_image").run)(bytes));
