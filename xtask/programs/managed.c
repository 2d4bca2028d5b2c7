// SPDX-License-Identifier: GPL-2.0 OR MIT
// Loaded into a HIP program, it makes all of its device memory managed memory, which may be more
// than the GPU has.
#include "beneath.h"

#include <pthread.h>
#include <stddef.h>

typedef int status;
enum { FOR_ALL = 1 };

#define BUFFERS 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { void *at; size_t bytes; } buffers[BUFFERS];
static size_t allocations, total, now, most;

static void note(void *at, size_t bytes)
{
	pthread_mutex_lock(&lock);
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
	if (allocations)
		fprintf(stderr, "managed: %zu allocations, %zu bytes, at most %zu at once\n", allocations, total, most);
}
