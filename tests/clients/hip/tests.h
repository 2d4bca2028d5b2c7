// SPDX-License-Identifier: GPL-2.0 OR MIT
// What the HIP programs with many tests share: memory of a GPU, and a list of tests by name.
#pragma once

#include "check.h"

#include <functional>
#include <map>
#include <vector>

namespace {

// Memory of a GPU, with the contents that the program put there.
template <typename T> class Buffer {
public:
    explicit Buffer(std::size_t count) : count(count)
    {
        CHECK(hipMalloc(&data, count * sizeof(T)));
        CHECK(hipMemset(data, 0, count * sizeof(T)));
    }

    explicit Buffer(const std::vector<T> &from) : Buffer(from.size())
    {
        CHECK(hipMemcpy(data, from.data(), count * sizeof(T), hipMemcpyHostToDevice));
    }

    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    ~Buffer() { CHECK(hipFree(data)); }

    std::vector<T> read() const
    {
        std::vector<T> copy(count);
        CHECK(hipMemcpy(copy.data(), data, count * sizeof(T), hipMemcpyDeviceToHost));
        return copy;
    }

    T *data = nullptr;
    std::size_t count;
};

inline void expect(bool right, const std::string &what)
{
    if (!right)
        fail(what);
}

template <typename T> void same(const std::vector<T> &found, const std::vector<T> &want, const std::string &what)
{
    expect(found.size() == want.size(), what + ": another number of elements");
    for (std::size_t i = 0; i < want.size(); i++)
        expect(found[i] == want[i], what + ": element " + std::to_string(i));
}

// An attribute of the GPU that is in use.
inline int attribute(hipDeviceAttribute_t which)
{
    int device, value;
    CHECK(hipGetDevice(&device));
    CHECK(hipDeviceGetAttribute(&value, which, device));
    return value;
}

__device__ inline unsigned index() { return blockIdx.x * blockDim.x + threadIdx.x; }

using Tests = std::map<std::string, std::function<void()>>;

// Runs the tests that are named, or all, and says "right" after each and "ok" at the end.
inline int run(const Tests &tests, int argc, char **argv)
{
    std::vector<std::string> names(argv + 1, argv + argc);
    if (names.empty())
        for (const auto &test : tests)
            names.push_back(test.first);
    for (const auto &name : names) {
        auto test = tests.find(name);
        if (test == tests.end())
            fail("there is no test " + name);
        test->second();
        std::printf("%s: right\n", name.c_str());
    }
    std::printf("ok\n");
    return 0;
}

} // namespace
