// SPDX-License-Identifier: GPL-2.0 OR MIT
// Loaded into a HIP program, it makes all of its device memory managed memory, which may be more than the GPU has.
#include "beneath.h"

#include <stdatomic.h>
#include <stddef.h>

typedef int status;
enum { FOR_ALL = 1 };

static _Atomic size_t allocations, total;

status hipMalloc(void **out, size_t bytes)
{
	// Of nothing, HIP makes nothing; of managed memory it is an error.
	if (!bytes) {
		*out = NULL;
		return 0;
	}
	allocations++;
	total += bytes;
	return ((status(*)(void **, size_t, unsigned))beneath("hipMallocManaged"))(out, bytes, FOR_ALL);
}

__attribute__((destructor)) static void tell(void)
{
	if (allocations)
		fprintf(stderr, "managed: %zu allocations, %zu bytes\n", allocations, total);
}
