/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * SVM: a GPU uses memory of the process at the address where the CPU has it. The memory moves to the GPU, is used there, and comes back when the
 * CPU touches it.
 *
 *   cc -o svm svm.c $(pkg-config --cflags --libs vkfd) && ./svm
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <vkfd.h>

#define BYTES (8ul << 20)

static void check(const char *what, int error)
{
	if (error) {
		fprintf(stderr, "%s: %s\n", what, vkfd_last_error());
		exit(1);
	}
}

static uint64_t vram_free(vkfd_client *client)
{
	struct vkfd_gpu_info gpu = { .size = sizeof(gpu) };

	check("vkfd_gpu", vkfd_gpu(client, 0, &gpu));
	return gpu.vram_free;
}

int main(void)
{
	vkfd_client *client;
	uint64_t before, there;
	uint32_t *memory;
	size_t i;

	check("vkfd_open_embedded", vkfd_open_embedded(1, 0, &client));
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	memset(memory, 1, BYTES);

	check("vkfd_svm_access", vkfd_svm_access(client, memory, BYTES, VKFD_ALL_GPUS, VKFD_SVM_MIGRATE));
	before = vram_free(client);
	check("vkfd_svm_prefetch", vkfd_svm_prefetch(client, memory, BYTES, 0));
	there = vram_free(client);
	printf("on the GPU: %llu KiB of its memory are used\n", (unsigned long long)(before - there) >> 10);

	/* The same pointer, on the GPU. */
	check("vkfd_fill", vkfd_fill(client, 0, (uintptr_t)memory, 0x22222222, BYTES / 2, 60000));

	/* And on the CPU, which brings the memory back where it has to. */
	for (i = 0; i < BYTES / sizeof(*memory); i++)
		if (memory[i] != (i < BYTES / sizeof(*memory) / 2 ? 0x22222222u : 0x01010101u)) {
			fprintf(stderr, "word %zu is %#x\n", i, memory[i]);
			return 1;
		}
	printf("the CPU sees what the GPU wrote at the same address\n");

	check("vkfd_svm_access", vkfd_svm_access(client, memory, BYTES, VKFD_ALL_GPUS, VKFD_SVM_NONE));
	munmap(memory, BYTES);
	vkfd_close(client);
	return 0;
}
