/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Recovering from a page fault: a part of registered memory is taken away under the GPU's feet. The error says where, the buffer says which range of
 * the list that is; memory is put there again, the buffer is validated, and the copy is tried again.
 *
 *   cc -o recover recover.c $(pkg-config --cflags --libs vkfd) && ./recover
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <vkfd.h>

#define PAGE 4096
#define PIECES 100
#define LOST 43

static void check(const char *what, int error)
{
	if (error) {
		fprintf(stderr, "%s: %s\n", what, vkfd_last_error());
		exit(1);
	}
}

int main(void)
{
	struct vkfd_fault fault = { .size = sizeof(fault) };
	struct iovec pieces[PIECES];
	vkfd_buffer *source, *target;
	vkfd_client *client;
	uint64_t bytes;
	size_t i, range;
	char *memory;
	int error;

	check("vkfd_open_embedded", vkfd_open_embedded(1, 0, &client));
	memory = mmap(NULL, 2 * PIECES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	for (i = 0; i < PIECES; i++) {
		pieces[i].iov_base = memory + 2 * i * PAGE;
		pieces[i].iov_len = PAGE;
		memset(pieces[i].iov_base, (int)i, PAGE);
	}
	check("vkfd_register_ranges", vkfd_register_ranges(client, pieces, PIECES, 0, &source));
	bytes = vkfd_buffer_len(source);
	check("vkfd_alloc_vram", vkfd_alloc_vram(client, 0, bytes, &target));

	/* A reservation in its place keeps the address: the next mapping of the program's could be put there. */
	if (mmap(pieces[LOST].iov_base, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	error = vkfd_copy(client, 0, vkfd_buffer_gpu_va(target), vkfd_buffer_gpu_va(source), bytes, 60000);
	if (error != -EFAULT) {
		fprintf(stderr, "the copy of memory that is not there returned %d\n", error);
		return 1;
	}
	printf("%s\n", vkfd_last_error());
	check("vkfd_last_fault", vkfd_last_fault(&fault));
	check("vkfd_buffer_range_at", vkfd_buffer_range_at(source, fault.gpu_va, &range, NULL));
	printf("that is range %zu\n", range);

	/* Something else is there from now on. */
	if (mmap(pieces[range].iov_base, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
	    MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	memset(pieces[range].iov_base, 0xee, PAGE);
	check("vkfd_revalidate", vkfd_revalidate(source));
	/* The copy queue that has stopped is gone; this call makes another. */
	check("vkfd_copy", vkfd_copy(client, 0, vkfd_buffer_gpu_va(target), vkfd_buffer_gpu_va(source), bytes, 60000));
	unsigned char *seen = vkfd_buffer_cpu(target);
	for (i = 0; i < bytes; i++)
		if (seen[i] != (i / PAGE == LOST ? 0xee : i / PAGE)) {
			fprintf(stderr, "byte %zu is %#x\n", i, seen[i]);
			return 1;
		}
	printf("and all bytes are right now\n");

	check("vkfd_free", vkfd_free(source));
	check("vkfd_free", vkfd_free(target));
	vkfd_close(client);
	return range != LOST;
}
