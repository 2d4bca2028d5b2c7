// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The fuzz targets on bytes by chance, for every run of the tests.

use proptest::prelude::*;
use vkfd_virtio_gpu::fuzz;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        fuzz::codecs(&bytes);
    }

    #[test]
    fn any_guest_leaves_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..900)) {
        fuzz::device(&bytes);
    }

    #[test]
    fn any_guest_whose_calls_are_forwarded_leaves_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..900)) {
        fuzz::forward(&bytes);
    }

    #[test]
    fn any_hostile_guest_is_kept_out(bytes in proptest::collection::vec(any::<u8>(), 0..900)) {
        fuzz::hostile(&bytes);
    }
}
