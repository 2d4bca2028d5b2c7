/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Runs a kernel of one's own over scattered memory of the process: a thousand pages from here and there are one range for the GPU.
 *
 *   cc -o kernel kernel.c $(pkg-config --cflags --libs vkfd) && ./kernel [triple.gfx900.co]
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <vkfd.h>

#define PAGE 4096
#define PAGES 1000
#define WORDS (PAGES * PAGE / sizeof(uint32_t))

static void check(const char *what, int error)
{
	if (error) {
		fprintf(stderr, "%s: %s\n", what, vkfd_last_error());
		exit(1);
	}
}

int main(int argc, char **argv)
{
	static unsigned char file[1 << 20];
	struct iovec pages[PAGES];
	vkfd_client *client;
	vkfd_buffer *buffer;
	vkfd_queue *queue;
	vkfd_code *code;
	size_t i, j, bytes;
	uint32_t *memory;
	FILE *object;

	check("vkfd_open_embedded", vkfd_open_embedded(1, 0, &client)); /* vkfd_open(&client) for /dev/kfd */

	object = fopen(argc > 1 ? argv[1] : "triple.gfx900.co", "rb");
	if (!object) {
		perror("the code object");
		return 1;
	}
	bytes = fread(file, 1, sizeof(file), object);
	fclose(object);
	check("vkfd_code_load", vkfd_code_load(client, 0, file, bytes, &code));

	/* Every second page, the last one first. */
	memory = mmap(NULL, 2 * PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	for (i = 0; i < PAGES; i++) {
		pages[i].iov_base = (char *)memory + 2 * (PAGES - 1 - i) * PAGE;
		pages[i].iov_len = PAGE;
		for (j = 0; j < PAGE / sizeof(uint32_t); j++)
			((uint32_t *)pages[i].iov_base)[j] = i * 10000 + j;
	}
	check("vkfd_register_ranges", vkfd_register_ranges(client, pages, PAGES, 0, &buffer));

	/* The kernel's arguments: a pointer and a count. */
	struct {
		uint64_t words;
		uint32_t count;
	} args = { vkfd_buffer_gpu_va(buffer), WORDS };
	struct vkfd_launch launch = {
		.size = sizeof(launch),
		.grid = { (WORDS + 63) / 64 * 64 },
		.group = { 64 },
		.args = &args,
		.args_bytes = sizeof(args),
	};
	check("vkfd_queue_new", vkfd_queue_new(client, 0, &queue));
	check("vkfd_launch", vkfd_launch(queue, code, "triple", &launch, NULL));
	check("vkfd_queue_wait", vkfd_queue_wait(queue, 60000));

	for (i = 0; i < PAGES; i++)
		for (j = 0; j < PAGE / sizeof(uint32_t); j++)
			if (((uint32_t *)pages[i].iov_base)[j] != 3 * (i * 10000 + j)) {
				fprintf(stderr, "page %zu, word %zu is wrong\n", i, j);
				return 1;
			}
	printf("%d scattered pages, tripled in place by a kernel\n", PAGES);

	vkfd_queue_free(queue);
	vkfd_code_free(code);
	check("vkfd_free", vkfd_free(buffer));
	vkfd_close(client);
	return 0;
}
