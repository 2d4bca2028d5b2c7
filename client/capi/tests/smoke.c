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
	struct vkfd_machine machine = { .size = sizeof(machine), .target = "gfx1030" };
	struct vkfd_gpu_info gpu = { .size = sizeof(gpu) };
	struct vkfd_fault fault = { .size = sizeof(fault) };
	vkfd_client *client = NULL, *other = NULL;
	uint64_t offset;
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

	/* GPUs are chosen: what is mapped on one of them is not there for the other, until it is. */
	error = vkfd_register_ranges_on(client, VKFD_GPU(1), 0, ranges, PIECES, 0, &fixed);
	if (error)
		return failed("vkfd_register_ranges_on", error);
	error = vkfd_copy(client, 1, vkfd_buffer_gpu_va(target), vkfd_buffer_gpu_va(fixed), PAGE, 60000);
	if (error)
		return failed("a copy by the GPU that has it", error);
	error = vkfd_copy(client, 0, vkfd_buffer_gpu_va(target), vkfd_buffer_gpu_va(fixed), PAGE, 60000);
	if (error != -EFAULT || vkfd_last_fault(&fault) || fault.gpu_va != vkfd_buffer_gpu_va(fixed) || !fault.not_present)
		return failed("a copy by the GPU that has it not", error);
	error = vkfd_map(fixed, VKFD_ALL_GPUS);
	if (!error)
		error = vkfd_copy(client, 0, vkfd_buffer_gpu_va(target), vkfd_buffer_gpu_va(fixed), PAGE, 60000);
	if (error)
		return failed("vkfd_map", error);
	error = vkfd_unmap(fixed, VKFD_GPU(0));
	if (error)
		return failed("vkfd_unmap", error);
	error = vkfd_copy(client, 0, vkfd_buffer_gpu_va(target), vkfd_buffer_gpu_va(fixed), PAGE, 60000);
	if (error != -EFAULT)
		return failed("a copy after vkfd_unmap", error);
	error = vkfd_buffer_range_at(fixed, vkfd_buffer_gpu_va(fixed) + 5 * PAGE + 17, &i, &offset);
	if (error || i != 5 || offset != 17)
		return failed("vkfd_buffer_range_at", error);
	if (vkfd_buffer_range_at(fixed, vkfd_buffer_gpu_va(fixed) + PIECES * PAGE, NULL, NULL) != -EINVAL ||
	    vkfd_buffer_range_at(target, vkfd_buffer_gpu_va(target), NULL, NULL) != -EINVAL)
		return failed("addresses of no range", 0);
	if (vkfd_map(fixed, VKFD_GPU(2)) != -EINVAL || vkfd_map(fixed, 0) != -EINVAL)
		return failed("GPUs that are not there", 0);
	error = vkfd_free(fixed);
	if (error)
		return failed("vkfd_free", error);
	error = vkfd_gpu(client, 1, &gpu);
	if (error || strcmp(gpu.name, "gfx900") || gpu.gfx_target_version != 90000 || gpu.vram_bytes != 64 << 20)
		return failed("vkfd_gpu", error);
	error = vkfd_alloc_gtt(client, PAGE, &fixed);
	if (!error)
		error = vkfd_fill(client, 1, vkfd_buffer_gpu_va(fixed), 0x01020304, PAGE, 60000);
	if (error || *(uint32_t *)vkfd_buffer_cpu(fixed) != 0x01020304)
		return failed("vkfd_fill", error);
	vkfd_free(fixed);

	/* Other machines. */
	error = vkfd_open_machine(&machine, &other);
	if (!error)
		error = vkfd_gpu(other, 0, &gpu);
	if (error || strcmp(gpu.name, "gfx1030"))
		return failed("vkfd_open_machine", error);
	vkfd_close(other);
	machine.target = "gfx908";
	error = vkfd_open_machine(&machine, &other);
	if (error != -EINVAL || other || !strstr(vkfd_last_error(), "gfx908"))
		return failed("a target that is not there", error);

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
