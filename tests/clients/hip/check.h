// SPDX-License-Identifier: GPL-2.0 OR MIT
// The exit of HIP clients after an unexpected result.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

[[noreturn]] void fail(const std::string &what)
{
    std::printf("FAILED: %s\n", what.c_str());
    std::fflush(stdout);
    std::_Exit(1);
}

void check(hipError_t status, const char *call, int line)
{
    if (status != hipSuccess)
        fail(std::string(call) + " in line " + std::to_string(line) + ": " + hipGetErrorString(status));
}

#define CHECK(call) check((call), #call, __LINE__)

} // namespace
