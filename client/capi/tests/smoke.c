/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Registers scattered pages as one range and copies them to VRAM, through the C interface alone. */
#include "vkfd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096
#define PIECES 64
#define VA 0x200000000000ull

static int failed(const char *what, int error)
{
	fprintf(stderr, "%s: %d: %s\n", what, error, vkfd_last_error());
	return 1;
}

int main(int argc, char **argv)
{
	struct iovec ranges[PIECES] = { { 0 } };
	struct vkfd_caps caps = { .size = sizeof(caps) };
	vkfd_client *client = NULL;
	vkfd_buffer *source = NULL, *target = NULL, *none = NULL, *fixed = NULL;
	unsigned char *memory, *seen;
	size_t i;
	int error;

	/* What works without any KFD: errors. */
	error = vkfd_register_ranges(NULL, ranges, 1, 0, &source);
	if (error != -EINVAL || source != NULL || strcmp(vkfd_last_error(), "client is NULL"))
		return failed("a NULL client", error);
	if (vkfd_free(NULL) || vkfd_buffer_len(NULL))
		return failed("a NULL buffer", 0);
	if (argc > 1 && !strcmp(argv[1], "errors-only"))
		return puts("errors ok") < 0;

	error = vkfd_open_embedded(2, 64 << 20, &client);
	if (error)
		return failed("vkfd_open_embedded", error);
	error = vkfd_caps(client, &caps);
	if (error || caps.size != sizeof(caps) || caps.gpus != 2 || !(caps.flags & VKFD_CAP_BATCH))
		return failed("vkfd_caps", error);

	/* Every second page, from the last to the first. */
	memory = mmap(NULL, 2 * PIECES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return failed("mmap", -errno);
	for (i = 0; i < PIECES; i++) {
		ranges[i].iov_base = memory + 2 * (PIECES - 1 - i) * PAGE;
		ranges[i].iov_len = PAGE;
		memset(ranges[i].iov_base, (int)(i + 1), PAGE);
	}
	error = vkfd_register_ranges(client, ranges, PIECES, 0, &source);
	if (error)
		return failed("vkfd_register_ranges", error);
	if (vkfd_buffer_len(source) != PIECES * PAGE || vkfd_buffer_cpu(source))
		return failed("the registered buffer", 0);
	error = vkfd_alloc_vram(client, 1, PIECES * PAGE, &target);
	if (error)
		return failed("vkfd_alloc_vram", error);
	seen = vkfd_buffer_cpu(target);
	error = vkfd_copy(client, 0, vkfd_buffer_gpu_va(target), vkfd_buffer_gpu_va(source), PIECES * PAGE, 60000);
	if (error)
		return failed("vkfd_copy", error);
	for (i = 0; i < PIECES * PAGE; i++)
		if (seen[i] != i / PAGE + 1)
			return failed("the copy", (int)i);

	/* A GPU address of the caller's choice. */
	error = vkfd_register_ranges_at(client, VA, ranges, PIECES, VKFD_READ_ONLY, &fixed);
	if (error || vkfd_buffer_gpu_va(fixed) != VA)
		return failed("vkfd_register_ranges_at", error);
	error = vkfd_register_ranges_at(client, VA + PAGE, ranges, PIECES, 0, &none);
	if (error != -EADDRINUSE || none)
		return failed("an address in use", error);
	error = vkfd_free(fixed);
	if (error)
		return failed("vkfd_free", error);

	/* An error names the range. */
	ranges[7].iov_len = 100;
	error = vkfd_register_ranges(client, ranges, PIECES, 0, &none);
	if (error != -EINVAL || none || !strstr(vkfd_last_error(), "range 7 at"))
		return failed("a bad range", error);

	/* A buffer outlives its client. */
	vkfd_close(client);
	error = vkfd_free(source);
	if (!error)
		error = vkfd_free(target);
	if (error)
		return failed("vkfd_free", error);
	munmap(memory, 2 * PIECES * PAGE);
	return puts("all ok") < 0;
}
