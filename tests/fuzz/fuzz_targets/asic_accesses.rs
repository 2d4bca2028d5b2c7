// SPDX-License-Identifier: GPL-2.0 OR MIT
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vkfd_hunt::fuzz::asic_accesses(data));
