// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// Two processes that share a GPU's memory by HIP's IPC handles. The program runs itself as its child (fork and exec, so that the child has a HIP
// of its own), which opens the handle, reads all of the memory with the GPU, and writes other bytes into it; the first reads those, also
// when the child has gone. Memory that was freed is not opened any more. Both see one number of free bytes.
//
// Usage: hip_ipc [GPUS]      prints what it did; exit code 0, or 1 with what was wrong
//        hip_ipc unmapped    lets a GPU read registered memory that was unmapped: the runtime ends the program
//        hip_ipc unseen      the same by a system call, which no library sees: the GPU goes on with the pages
#include <hip/hip_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

namespace {

constexpr size_t WORDS = (3 << 20) / 4 + 1024;
constexpr size_t BYTES = WORDS * 4;

uint32_t word(uint32_t seed, size_t place) { return seed * 2654435761u + static_cast<uint32_t>(place) * 40503u; }

void fill(uint32_t *device, uint32_t seed)
{
    std::vector<uint32_t> words(WORDS);
    for (size_t i = 0; i < WORDS; i++)
        words[i] = word(seed, i);
    CHECK(hipMemcpy(device, words.data(), BYTES, hipMemcpyHostToDevice));
}

void expect(const char *who, const uint32_t *device, uint32_t seed)
{
    std::vector<uint32_t> words(WORDS, 0xeeeeeeee);
    CHECK(hipMemcpy(words.data(), device, BYTES, hipMemcpyDeviceToHost));
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != word(seed, i))
            fail(std::string(who) + ": word " + std::to_string(i) + " is " + std::to_string(words[i]) + " instead of " +
                 std::to_string(word(seed, i)));
}

size_t available()
{
    size_t left = 0, all = 0;
    CHECK(hipMemGetInfo(&left, &all));
    return left;
}

void all_of(int fd, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(fd, static_cast<char *>(to) + done, bytes - done);
        if (got <= 0)
            fail("the other process has gone");
        done += static_cast<size_t>(got);
    }
}

void say(int fd, const void *what, size_t bytes)
{
    if (write(fd, what, bytes) != static_cast<ssize_t>(bytes))
        fail("the other process does not listen");
}

// What the child does with the memory of GPU `gpu`: reads handles from one descriptor and answers on the other.
int child(int gpu, int from, int to)
{
    CHECK(hipSetDevice(gpu));
    hipIpcMemHandle_t handle;
    all_of(from, &handle, sizeof handle);
    uint32_t *shared = nullptr;
    CHECK(hipIpcOpenMemHandle(reinterpret_cast<void **>(&shared), handle, hipIpcMemLazyEnablePeerAccess));
    expect("the child", shared, 7);
    fill(shared, 8);
    // Of its own GPU queue, on the same memory, from device to device.
    uint32_t *own = nullptr;
    CHECK(hipMalloc(reinterpret_cast<void **>(&own), BYTES));
    CHECK(hipMemcpy(own, shared, BYTES, hipMemcpyDeviceToDevice));
    expect("the child's copy", own, 8);
    CHECK(hipFree(own));
    CHECK(hipIpcCloseMemHandle(shared));
    CHECK(hipDeviceSynchronize());
    char done = 1;
    say(to, &done, 1);
    // Freed by its owner meanwhile.
    all_of(from, &handle, sizeof handle);
    if (hipIpcOpenMemHandle(reinterpret_cast<void **>(&shared), handle, hipIpcMemLazyEnablePeerAccess) == hipSuccess)
        fail("memory that was freed is opened");
    size_t left = available();
    say(to, &left, sizeof left);
    std::printf("child ok\n");
    std::fflush(stdout);
    return 0;
}

void parent(const char *program, int gpu)
{
    int there[2], back[2];
    if (pipe(there) != 0 || pipe(back) != 0)
        fail("pipe");
    // Before HIP is used: a child of a process with a runtime would have a copy of the runtime's state until it executes.
    pid_t pid = fork();
    if (pid == 0) {
        std::string numbers[] = {std::to_string(gpu), std::to_string(there[0]), std::to_string(back[1])};
        close(there[1]);
        close(back[0]);
        execl(program, program, "child", numbers[0].c_str(), numbers[1].c_str(), numbers[2].c_str(), nullptr);
        std::_Exit(127);
    }
    close(there[0]);
    close(back[1]);
    CHECK(hipSetDevice(gpu));
    uint32_t *memory = nullptr;
    CHECK(hipMalloc(reinterpret_cast<void **>(&memory), BYTES));
    fill(memory, 7);
    hipIpcMemHandle_t handle;
    CHECK(hipIpcGetMemHandle(&handle, memory));
    say(there[1], &handle, sizeof handle);
    char done = 0;
    all_of(back[0], &done, 1);
    expect("the parent", memory, 8);
    CHECK(hipFree(memory));
    say(there[1], &handle, sizeof handle);
    size_t theirs = 0;
    all_of(back[0], &theirs, sizeof theirs);
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || status != 0)
        fail("the child ended with " + std::to_string(status));
    std::printf("GPU %d: %zu bytes went to another process and back\n", gpu, BYTES);
}

int unmapped(bool seen)
{
    constexpr size_t SIZE = 1 << 20;
    void *memory = mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    std::memset(memory, 7, SIZE);
    CHECK(hipHostRegister(memory, SIZE, 0));
    void *there = nullptr, *device = nullptr;
    CHECK(hipHostGetDevicePointer(&there, memory, 0));
    CHECK(hipMalloc(&device, SIZE));
    CHECK(hipMemcpyDtoD(device, there, SIZE));
    std::printf("the first copy is done\n");
    std::fflush(stdout);
    if (seen)
        munmap(memory, SIZE);
    else
        syscall(SYS_munmap, memory, SIZE);
    CHECK(hipMemcpyDtoD(device, there, SIZE));
    CHECK(hipDeviceSynchronize());
    char byte = 0;
    CHECK(hipMemcpy(&byte, static_cast<char *>(device) + 5, 1, hipMemcpyDeviceToHost));
    std::printf("still there: %d\n", byte);
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 5 && std::strcmp(argv[1], "child") == 0)
        return child(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
    if (argc == 2 && (std::strcmp(argv[1], "unmapped") == 0 || std::strcmp(argv[1], "unseen") == 0))
        return unmapped(std::strcmp(argv[1], "unmapped") == 0);
    int gpus = argc > 1 ? std::atoi(argv[1]) : 1;
    for (int gpu = 0; gpu < gpus; gpu++)
        parent("/proc/self/exe", gpu);
    std::printf("ok\n");
    return 0;
}
