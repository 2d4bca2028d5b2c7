// SPDX-License-Identifier: GPL-2.0 OR MIT
// Loaded into a HIP program, it makes all device memory host memory. An allocation is scattered
// pieces that one call of batch userptr registers as one range of GPU addresses. The CPU sees the
// same pages at the same addresses in a row.
#include "beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

// From linux/kfd_ioctl.h, and from the posts of batch userptr.
struct alloc { uint64_t va, size, handle, mmap_offset; uint32_t gpu_id, flags; };
struct map { uint64_t handle, gpu_ids; uint32_t count, done; };
struct list { uint32_t count, reserved; struct { uint64_t start, size; } ranges[]; };
#define ALLOC _IOWR('K', 0x16, struct alloc)
#define FREE _IOW('K', 0x17, uint64_t)
#define MAP _IOWR('K', 0x18, struct map)
#define UNMAP _IOWR('K', 0x19, struct map)
enum { USERPTR = 1u << 2, BATCH = 1u << 22, NO_SUBSTITUTE = 1u << 28, EXECUTABLE = 1u << 30 };
#define WRITABLE (1u << 31)

// The needed part of HIP.
typedef int status;
enum { SUCCESS = 0, OUT_OF_MEMORY = 2 };
enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3 };
typedef void *stream;

#define REAL(name, ...) ((status(*)(__VA_ARGS__))beneath(#name))

#define PAGE 4096
// A piece has one to this many pages; of a buffer that would have more than so many of them, more.
#define PIECE 16
#define PIECES 4096
#define BUFFERS 4096
// Programs write past their buffers, and with HIP's own memory nobody notices: it is cut from
// blocks of 2 MiB. rocSPARSE, asked for a sum of matrices without columns, writes a row's start for
// each row, and hipSPARSE's tests have room for 100. A buffer is longer than the request by
// `SLACK`, and a gap without mappings follows it. Accesses further behind it are page faults.
#define SLACK (16 * PAGE)
#define GAP (256 * PAGE)

struct buffer { char *at; size_t bytes; uint64_t handle; struct list *list; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer buffers[BUFFERS];
static size_t allocations, pieces, total;
static uint32_t gpu;
static int kfd = -1;

static uint32_t gpu_id(void)
{
	for (int node = 0; node < 64; node++) {
		char path[96];
		unsigned id = 0;
		snprintf(path, sizeof path, "/sys/devices/virtual/kfd/kfd/topology/nodes/%d/gpu_id", node);
		FILE *file = fopen(path, "r");
		if (!file)
			break;
		if (fscanf(file, "%u", &id) != 1)
			id = 0;
		fclose(file);
		if (id)
			return id;
	}
	return 0;
}

// The buffer that an address is in; with `lock`.
static struct buffer *find(const void *at)
{
	for (size_t i = 0; i < BUFFERS; i++)
		if (buffers[i].at && (const char *)at >= buffers[i].at && (const char *)at < buffers[i].at + buffers[i].bytes)
			return &buffers[i];
	return NULL;
}

static int is_ours(const void *at)
{
	pthread_mutex_lock(&lock);
	int found = find(at) != NULL;
	pthread_mutex_unlock(&lock);
	return found;
}

static void unmap_pieces(struct list *list, uint32_t first)
{
	for (uint32_t i = first; i < list->count; i++)
		munmap((void *)list->ranges[i].start, list->ranges[i].size + PAGE);
	free(list);
}

// Maps a file's pages in pieces that are no neighbours, the last one first.
static struct list *scatter(int file, size_t bytes)
{
	static uint32_t seed = 1;
	size_t most = 2 * (bytes / PAGE) / PIECES;
	most = most < PIECE ? PIECE : most;
	struct list *list = calloc(1, sizeof *list + bytes / PAGE * sizeof list->ranges[0]);
	if (!list)
		return NULL;
	for (size_t at = 0; at < bytes;) {
		size_t size = (1 + (seed = seed * 1664525 + 1013904223) / 65536 % most) * PAGE;
		list->ranges[list->count].start = at;
		list->ranges[list->count++].size = size < bytes - at ? size : bytes - at;
		at += size;
	}
	for (uint32_t i = list->count; i-- > 0;) {
		size_t size = list->ranges[i].size, from = list->ranges[i].start;
		char *room = mmap(NULL, size + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		list->ranges[i].start = (uintptr_t)room;
		if (room == MAP_FAILED || mmap(room, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, from) == MAP_FAILED) {
			unmap_pieces(list, room == MAP_FAILED ? i + 1 : i);
			return NULL;
		}
	}
	return list;
}

// A buffer's pages in a row.
static char *in_a_row(int file, size_t bytes)
{
	char *room = mmap(NULL, bytes + GAP, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return NULL;
	if (mmap(room, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED)
		return room;
	munmap(room, bytes + GAP);
	return NULL;
}

// One range of GPU addresses, of the buffer's pieces.
static int add(struct buffer *buffer, size_t bytes)
{
	struct alloc alloc = {(uintptr_t)buffer->at, bytes, 0, (uintptr_t)buffer->list, gpu,
			      USERPTR | BATCH | NO_SUBSTITUTE | EXECUTABLE | WRITABLE};
	if (ioctl(kfd, ALLOC, &alloc) != 0)
		return 0;
	struct map map = {alloc.handle, (uintptr_t)&gpu, 1, 0};
	if (ioctl(kfd, MAP, &map) != 0) {
		ioctl(kfd, FREE, &alloc.handle);
		return 0;
	}
	buffer->bytes = bytes;
	buffer->handle = alloc.handle;
	return 1;
}

// What fails leaves nothing behind.
static status make(struct buffer *buffer, size_t bytes)
{
	int file = memfd_create("batched", MFD_CLOEXEC);
	if (file < 0)
		return OUT_OF_MEMORY;
	buffer->list = ftruncate(file, bytes) == 0 ? scatter(file, bytes) : NULL;
	buffer->at = buffer->list ? in_a_row(file, bytes) : NULL;
	close(file);
	if (buffer->at && add(buffer, bytes))
		return SUCCESS;
	int error = errno;
	if (buffer->at)
		munmap(buffer->at, bytes + GAP);
	if (buffer->list)
		unmap_pieces(buffer->list, 0);
	memset(buffer, 0, sizeof *buffer);
	errno = error;
	return OUT_OF_MEMORY;
}

status hipMalloc(void **out, size_t bytes)
{
	*out = NULL;
	if (!bytes)
		return SUCCESS;
	bytes = (bytes + PAGE - 1) / PAGE * PAGE + SLACK;
	pthread_mutex_lock(&lock);
	if (kfd < 0) {
		// The runtime gets the process its place on the GPU.
		REAL(hipInit, unsigned)(0);
		kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
		gpu = gpu_id();
	}
	struct buffer *buffer = NULL;
	for (size_t i = 0; i < BUFFERS && !buffer; i++)
		buffer = buffers[i].at ? NULL : &buffers[i];
	status result = buffer ? make(buffer, bytes) : OUT_OF_MEMORY;
	if (result == SUCCESS) {
		*out = buffer->at;
		allocations++;
		pieces += buffer->list->count;
		total += bytes;
	} else {
		perror("batched: hipMalloc");
	}
	pthread_mutex_unlock(&lock);
	return result;
}

status hipFree(void *at)
{
	if (!is_ours(at))
		return REAL(hipFree, void *)(at);
	status result = REAL(hipDeviceSynchronize, void)();
	pthread_mutex_lock(&lock);
	struct buffer *buffer = find(at);
	struct map map = {buffer->handle, (uintptr_t)&gpu, 1, 0};
	ioctl(kfd, UNMAP, &map);
	ioctl(kfd, FREE, &buffer->handle);
	unmap_pieces(buffer->list, 0);
	munmap(buffer->at, buffer->bytes + GAP);
	memset(buffer, 0, sizeof *buffer);
	pthread_mutex_unlock(&lock);
	return result;
}

// HIP does not know the memory. The CPU does.

// What the stream was asked for before is done. HIP's own stream comes after all others.
static status wait_for(stream stream)
{
	return stream ? REAL(hipStreamSynchronize, void *)(stream) : REAL(hipDeviceSynchronize, void)();
}

status hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, stream stream)
{
	if (!is_ours(to) && !is_ours(from))
		return REAL(hipMemcpyAsync, void *, const void *, size_t, int, void *)(to, from, bytes, kind, stream);
	status result = wait_for(stream);
	memmove(to, from, bytes);
	return result;
}

// As the driver's interface calls it.

status hipMemcpyHtoDAsync(void *to, const void *from, size_t bytes, stream stream)
{
	return hipMemcpyAsync(to, from, bytes, HOST_TO_DEVICE, stream);
}

status hipMemcpyDtoHAsync(void *to, const void *from, size_t bytes, stream stream)
{
	return hipMemcpyAsync(to, from, bytes, DEVICE_TO_HOST, stream);
}

status hipMemcpyDtoDAsync(void *to, const void *from, size_t bytes, stream stream)
{
	return hipMemcpyAsync(to, from, bytes, DEVICE_TO_DEVICE, stream);
}

status hipMemcpy(void *to, const void *from, size_t bytes, int kind)
{
	return hipMemcpyAsync(to, from, bytes, kind, NULL);
}

status hipMemcpyWithStream(void *to, const void *from, size_t bytes, int kind, stream stream)
{
	if (!is_ours(to) && !is_ours(from))
		return REAL(hipMemcpyWithStream, void *, const void *, size_t, int, void *)(to, from, bytes, kind, stream);
	return hipMemcpyAsync(to, from, bytes, kind, stream);
}

status hipMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind, stream stream)
{
	status result = SUCCESS;
	for (size_t row = 0; row < height && result == SUCCESS; row++)
		result = hipMemcpyAsync((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind, stream);
	return result;
}

status hipMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind)
{
	return hipMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, NULL);
}

status hipMemsetAsync(void *at, int value, size_t bytes, stream stream)
{
	if (!is_ours(at))
		return REAL(hipMemsetAsync, void *, int, size_t, void *)(at, value, bytes, stream);
	status result = wait_for(stream);
	memset(at, value, bytes);
	return result;
}

status hipMemsetD8Async(void *at, unsigned char value, size_t count, stream stream)
{
	return hipMemsetAsync(at, value, count, stream);
}

status hipMemsetD16Async(void *at, unsigned short value, size_t count, stream stream)
{
	if (!is_ours(at))
		return REAL(hipMemsetD16Async, void *, unsigned short, size_t, void *)(at, value, count, stream);
	status result = wait_for(stream);
	for (size_t i = 0; i < count; i++)
		((unsigned short *)at)[i] = value;
	return result;
}

status hipMemsetD32Async(void *at, int value, size_t count, stream stream)
{
	if (!is_ours(at))
		return REAL(hipMemsetD32Async, void *, int, size_t, void *)(at, value, count, stream);
	status result = wait_for(stream);
	for (size_t i = 0; i < count; i++)
		((int *)at)[i] = value;
	return result;
}

status hipMemset(void *at, int value, size_t bytes)
{
	return hipMemsetAsync(at, value, bytes, NULL);
}

status hipMemset2DAsync(void *at, size_t pitch, int value, size_t width, size_t height, stream stream)
{
	status result = SUCCESS;
	for (size_t row = 0; row < height && result == SUCCESS; row++)
		result = hipMemsetAsync((char *)at + row * pitch, value, width, stream);
	return result;
}

status hipMemset2D(void *at, size_t pitch, int value, size_t width, size_t height)
{
	return hipMemset2DAsync(at, pitch, value, width, height, NULL);
}

__attribute__((destructor)) static void tell(void)
{
	if (allocations)
		fprintf(stderr, "batched: %zu allocations are %zu pieces, %zu bytes\n", allocations, pieces, total);
}
