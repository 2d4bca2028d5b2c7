// SPDX-License-Identifier: GPL-2.0 OR MIT
// Loaded into a HIP program, it makes all of its device memory managed memory, which may be more
// than the GPU has.
#include "beneath.h"

#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

// vkfd's own call: what SVM memory has been through.
struct snapshot { uint32_t op, index; uint64_t handle, buffer; uint32_t capacity, count; uint64_t total; };
#define SNAPSHOT _IOWR('K', 0xe2, struct snapshot)
enum { SVM = 5 };
struct svm {
	uint64_t ranges, bytes, notifiers, vram_pages, migrations_in, pages_in, migrations_out, pages_out, evictions;
	uint64_t rest[8];
};
// The driver writes a whole record: one of another size would be written past its end.
_Static_assert(sizeof(struct svm) == SVM_INFO_BYTES, "struct svm is uapi's SvmInfo");

typedef int status;
enum { FOR_ALL = 1 };

#define BUFFERS 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { void *at; size_t bytes; } buffers[BUFFERS];
static size_t allocations, total, now, most;
static int kfd = -1;

static void note(void *at, size_t bytes)
{
	pthread_mutex_lock(&lock);
	if (kfd < 0)
		kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
	allocations++;
	total += bytes;
	for (size_t i = 0; i < BUFFERS; i++) {
		if (buffers[i].at)
			continue;
		buffers[i].at = at;
		buffers[i].bytes = bytes;
		now += bytes;
		most = now > most ? now : most;
		break;
	}
	pthread_mutex_unlock(&lock);
}

static void forget(void *at)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < BUFFERS; i++) {
		if (buffers[i].at != at)
			continue;
		now -= buffers[i].bytes;
		buffers[i].at = NULL;
		break;
	}
	pthread_mutex_unlock(&lock);
}

status hipMalloc(void **out, size_t bytes)
{
	// Of nothing, HIP makes nothing; of managed memory it is an error.
	if (!bytes) {
		*out = NULL;
		return 0;
	}
	status result = ((status(*)(void **, size_t, unsigned))beneath("hipMallocManaged"))(out, bytes, FOR_ALL);
	if (result == 0)
		note(*out, bytes);
	return result;
}

status hipFree(void *at)
{
	// Before another thread may be given the same address.
	if (at)
		forget(at);
	return ((status(*)(void *))beneath("hipFree"))(at);
}

__attribute__((destructor)) static void tell(void)
{
	if (!allocations)
		return;
	struct svm svm = {0};
	struct snapshot snapshot = {.op = SVM, .buffer = (uintptr_t)&svm, .capacity = 1};
	if (ioctl(kfd, SNAPSHOT, &snapshot) != 0)
		perror("managed: what became of it is not known");
	fprintf(stderr, "managed: %zu allocations, %zu bytes, at most %zu at once; %llu pages went to the GPU, ", allocations,
		total, most, (unsigned long long)svm.pages_in);
	fprintf(stderr, "its memory was too little %llu times\n", (unsigned long long)svm.evictions);
}
