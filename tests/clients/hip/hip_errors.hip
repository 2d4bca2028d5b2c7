// SPDX-License-Identifier: GPL-2.0 OR MIT
// A HIP program whose kernel does something wrong: `hip_errors assert`, `trap` or `fault`. The runtime ends it; if it does not,
// it says "still there".

#include "check.h"

#include <cassert>
#include <cstring>

namespace {

__global__ void asserts(int n) { assert(n == 3 && "three"); }
__global__ void traps() { __builtin_trap(); }
__global__ void faults(int *p) { *p = 1; }

} // namespace

int main(int, char **argv)
{
    const std::string what = argv[1] != nullptr ? argv[1] : "";
    CHECK(hipSetDevice(0));
    if (what == "assert")
        asserts<<<1, 64>>>(4);
    else if (what == "trap")
        traps<<<1, 64>>>();
    else if (what == "fault")
        faults<<<1, 1>>>((int *)0x1000);
    std::printf("%s\n", hipGetErrorString(hipDeviceSynchronize()));
    std::printf("still there\n");
}
