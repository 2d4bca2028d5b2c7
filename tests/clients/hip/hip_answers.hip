// SPDX-License-Identifier: GPL-2.0 OR MIT
// A HIP program about what HIP answers: errors for what is wrong, which leave the program and its GPU as they were, and
// modules, whose code the program compiles while it runs. It says "right" after each test and "ok" at the end.
//
//        hip_answers [NAME...]

#include "tests.h"

#include <hip/hiprtc.h>

#include <cstring>

namespace {

// The call answers with this error, which is the last one then, and only once.
void answers(hipError_t found, hipError_t want, const std::string &what)
{
    expect(found == want, what + ": " + hipGetErrorName(found) + " instead of " + hipGetErrorName(want));
}

__global__ void add_one(int *data, unsigned n)
{
    if (index() < n)
        data[index()] += 1;
}

// The GPU still works.
void works(const std::string &after)
{
    (void)hipGetLastError();
    Buffer<int> data(1024);
    add_one<<<4, 256>>>(data.data, 1024);
    CHECK(hipGetLastError());
    CHECK(hipDeviceSynchronize());
    same(data.read(), std::vector<int>(1024, 1), "a kernel after " + after);
}

void last_error()
{
    (void)hipGetLastError();
    answers(hipSetDevice(99), hipErrorInvalidDevice, "a GPU that is not there");
    answers(hipPeekAtLastError(), hipErrorInvalidDevice, "the last error, looked at");
    answers(hipGetLastError(), hipErrorInvalidDevice, "the last error, taken");
    answers(hipGetLastError(), hipSuccess, "no error after it was taken");
    expect(std::strcmp(hipGetErrorName(hipErrorOutOfMemory), "hipErrorOutOfMemory") == 0, "the name of an error");
    expect(std::strlen(hipGetErrorString(hipErrorInvalidValue)) > 0, "the text of an error");
    works("errors");
}

void memory()
{
    void *data = nullptr;
    answers(hipMalloc(nullptr, 100), hipErrorInvalidValue, "memory without a place for its address");
    answers(hipMalloc(&data, std::size_t(1) << 50), hipErrorOutOfMemory, "more memory than there is");
    expect(data == nullptr, "no memory has no address");
    CHECK(hipMalloc(&data, 0));
    expect(data == nullptr, "memory of no size has no address");
    CHECK(hipFree(nullptr));
    int local = 0;
    answers(hipFree(&local), hipErrorInvalidValue, "memory that HIP did not allocate");
    CHECK(hipMalloc(&data, 4096));
    CHECK(hipFree(data));
    expect(hipFree(data) != hipSuccess, "memory that was freed");
    answers(hipHostRegister(nullptr, 100, 0), hipErrorInvalidValue, "registering nothing");
    expect(hipHostRegister(&local, 0, 0) != hipSuccess, "registering no bytes");
    answers(hipHostUnregister(&local), hipErrorHostMemoryNotRegistered, "memory that was not registered");
    Buffer<char> there(1000);
    char here[2000] = {};
    answers(hipMemcpy(nullptr, here, 10, hipMemcpyHostToDevice), hipErrorInvalidValue, "a copy to nowhere");
    answers(hipMemcpy(there.data, nullptr, 10, hipMemcpyHostToDevice), hipErrorInvalidValue, "a copy from nowhere");
    expect(hipMemcpy(there.data, here, 2000, hipMemcpyHostToDevice) != hipSuccess, "a copy beyond the end");
    answers(hipMemset(nullptr, 0, 10), hipErrorInvalidValue, "setting nothing");
    answers(hipMemcpy2D(there.data, 5, here, 20, 10, 2, hipMemcpyHostToDevice), hipErrorInvalidPitchValue,
            "a row that is longer than its pitch");
    works("wrong calls about memory");
}

void order()
{
    answers(hipStreamCreate(nullptr), hipErrorInvalidValue, "a stream without a place for it");
    hipStream_t stream;
    answers(hipStreamCreateWithFlags(&stream, 0x100), hipErrorInvalidValue, "a stream with flags that are none");
    hipEvent_t event, other;
    answers(hipEventCreateWithFlags(&event, 0x10000), hipErrorInvalidValue, "an event with flags that are none");
    answers(hipEventCreate(nullptr), hipErrorInvalidValue, "an event without a place for it");
    CHECK(hipEventCreate(&event));
    CHECK(hipEventCreate(&other));
    float took = 0;
    answers(hipEventElapsedTime(nullptr, event, other), hipErrorInvalidValue, "a time without a place for it");
    answers(hipEventElapsedTime(&took, event, other), hipErrorInvalidHandle, "a time between events that never were");
    answers(hipEventRecord(nullptr, nullptr), hipErrorInvalidHandle, "recording no event");
    CHECK(hipEventDestroy(event));
    CHECK(hipEventDestroy(other));
    answers(hipStreamWaitEvent(nullptr, nullptr, 0), hipErrorInvalidHandle, "waiting for no event");
    works("wrong calls about order");
}

void launches()
{
    (void)hipGetLastError();
    Buffer<int> data(10);
    add_one<<<0, 64>>>(data.data, 10);
    expect(hipGetLastError() != hipSuccess, "a launch of no work-groups");
    add_one<<<1, 0>>>(data.data, 10);
    expect(hipGetLastError() != hipSuccess, "a launch of empty work-groups");
    add_one<<<1, 2048>>>(data.data, 10);
    expect(hipGetLastError() != hipSuccess, "a launch of too large work-groups");
    add_one<<<1, 64, 1 << 20>>>(data.data, 10);
    expect(hipGetLastError() != hipSuccess, "a launch with too much LDS");
    same(data.read(), std::vector<int>(10, 0), "what is refused does not run");
    works("refused launches");
}

const char SOURCE[] = R"(
extern "C" __global__ void scale(int *data, int by, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        data[i] = data[i] * by + table[i % 4];
}
)";

// Code for this GPU, compiled now.
std::vector<char> compiled(const std::string &source, bool is_right)
{
    hipDeviceProp_t about;
    CHECK(hipGetDeviceProperties(&about, 0));
    std::string arch = std::string("--offload-arch=") + about.gcnArchName;
    const char *options[] = {arch.c_str()};
    hiprtcProgram program;
    expect(hiprtcCreateProgram(&program, source.c_str(), "test.hip", 0, nullptr, nullptr) == HIPRTC_SUCCESS, "a program");
    bool is_compiled = hiprtcCompileProgram(program, 1, options) == HIPRTC_SUCCESS;
    std::size_t size = 0;
    if (is_compiled != is_right) {
        hiprtcGetProgramLogSize(program, &size);
        std::string log(size, ' ');
        hiprtcGetProgramLog(program, &log[0]);
        fail("the run-time compiler: " + log);
    }
    std::vector<char> code;
    if (is_compiled) {
        hiprtcGetCodeSize(program, &size);
        code.resize(size);
        hiprtcGetCode(program, code.data());
    }
    hiprtcDestroyProgram(&program);
    return code;
}

void modules()
{
    compiled("this is no program", false);
    auto code = compiled(std::string("__device__ int table[4] = {1, 2, 3, 4};") + SOURCE, true);
    hipModule_t module;
    hipFunction_t function;
    CHECK(hipModuleLoadData(&module, code.data()));
    CHECK(hipModuleGetFunction(&function, module, "scale"));
    hipFunction_t none;
    answers(hipModuleGetFunction(&none, module, "nothing"), hipErrorNotFound, "a function that a module does not have");
    hipDeviceptr_t table;
    std::size_t size = 0;
    CHECK(hipModuleGetGlobal(&table, &size, module, "table"));
    expect(size == 16, "the size of a module's variable");
    int last = 40;
    CHECK(hipMemcpyHtoD(static_cast<char *>(table) + 12, &last, sizeof last));
    unsigned n = 1024;
    int by = 3;
    std::vector<int> in(n), want(n);
    const int added[] = {1, 2, 3, 40};
    for (unsigned i = 0; i < n; i++)
        in[i] = int(i), want[i] = int(i) * 3 + added[i % 4];
    Buffer<int> data(in);
    void *arguments[] = {&data.data, &by, &n};
    CHECK(hipModuleLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr));
    same(data.read(), want, "a module's kernel");
    CHECK(hipModuleUnload(module));
    expect(hipModuleLoad(&module, "/no/such/file") != hipSuccess, "a module that is not there");
    works("modules");
}

const Tests TESTS = {
    {"last error", last_error}, {"memory", memory}, {"order", order}, {"launches", launches}, {"modules", modules},
};

} // namespace

int main(int argc, char **argv) { return run(TESTS, argc, argv); }
