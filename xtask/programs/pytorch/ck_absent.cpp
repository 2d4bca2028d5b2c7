// SPDX-License-Identifier: GPL-2.0 OR MIT
// Takes the place of PyTorch's products by composable_kernel, which Debian's source is without.
// They are chosen by an option that is off unless a program sets it; then it gets an error.

#include <ATen/native/hip/ck_bgemm.h>
#include <ATen/native/hip/ck_gemm.h>
#include <c10/util/Exception.h>

namespace at::native {

#define ABSENT(function, arguments) \
  template <>                       \
  void function(arguments) {        \
    TORCH_CHECK(false, "this PyTorch was built without composable_kernel"); \
  }

ABSENT(gemm_internal_ck<double>, CUDABLAS_GEMM_ARGTYPES(double))
ABSENT(gemm_internal_ck<float>, CUDABLAS_GEMM_ARGTYPES(float))
ABSENT(gemm_internal_ck<at::Half>, CUDABLAS_GEMM_ARGTYPES(at::Half))
ABSENT(gemm_internal_ck<at::BFloat16>, CUDABLAS_GEMM_ARGTYPES(at::BFloat16))
ABSENT(bgemm_internal_ck<at::BFloat16>, CUDABLAS_BGEMM_ARGTYPES(at::BFloat16))

} // namespace at::native
