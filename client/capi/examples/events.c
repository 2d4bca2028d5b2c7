/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Waiting: work on two GPUs at a time, looked at without waiting, and waited for by KFD's events, which lets the thread sleep.
 *
 *   cc -o events events.c $(pkg-config --cflags --libs vkfd) && ./events [triple.gfx900.co]
 */
#include <stdio.h>
#include <stdlib.h>
#include <vkfd.h>

#define GPUS 2
#define WORDS (1u << 18)

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
	vkfd_client *client;
	vkfd_buffer *buffers[GPUS];
	vkfd_queue *queues[GPUS];
	vkfd_fence *fences[GPUS];
	vkfd_code *codes[GPUS];
	uint32_t gpu, i;
	size_t bytes;
	FILE *object;

	check("vkfd_open_embedded", vkfd_open_embedded(GPUS, 0, &client));
	object = fopen(argc > 1 ? argv[1] : "triple.gfx900.co", "rb");
	if (!object) {
		perror("the code object");
		return 1;
	}
	bytes = fread(file, 1, sizeof(file), object);
	fclose(object);

	for (gpu = 0; gpu < GPUS; gpu++) {
		/* In each GPU's own memory, which the CPU sees as well. */
		check("vkfd_alloc_vram", vkfd_alloc_vram(client, gpu, WORDS * sizeof(uint32_t), &buffers[gpu]));
		uint32_t *words = vkfd_buffer_cpu(buffers[gpu]);
		for (i = 0; i < WORDS; i++)
			words[i] = i + gpu;
		check("vkfd_code_load", vkfd_code_load(client, gpu, file, bytes, &codes[gpu]));
		check("vkfd_queue_new", vkfd_queue_new(client, gpu, &queues[gpu]));
	}
	for (gpu = 0; gpu < GPUS; gpu++) {
		struct {
			uint64_t words;
			uint32_t count;
		} args = { vkfd_buffer_gpu_va(buffers[gpu]), WORDS };
		struct vkfd_launch launch = {
			.size = sizeof(launch),
			.grid = { WORDS },
			.group = { 64 },
			.args = &args,
			.args_bytes = sizeof(args),
		};
		check("vkfd_launch", vkfd_launch(queues[gpu], codes[gpu], "triple", &launch, &fences[gpu]));
	}
	/* Both run now. Whatever else there is to do could be done here, and vkfd_fence_done() asked meanwhile. */
	for (gpu = 0; gpu < GPUS; gpu++) {
		check("vkfd_fence_wait", vkfd_fence_wait(fences[gpu], 60000));
		if (!vkfd_fence_done(fences[gpu])) {
			fprintf(stderr, "waited for, and not done\n");
			return 1;
		}
		uint32_t *words = vkfd_buffer_cpu(buffers[gpu]);
		for (i = 0; i < WORDS; i++)
			if (words[i] != 3 * (i + gpu)) {
				fprintf(stderr, "GPU %u, word %u is %u\n", gpu, i, words[i]);
				return 1;
			}
	}
	printf("%d GPUs have tripled %u words each\n", GPUS, WORDS);

	for (gpu = 0; gpu < GPUS; gpu++) {
		vkfd_fence_free(fences[gpu]);
		vkfd_queue_free(queues[gpu]);
		vkfd_code_free(codes[gpu]);
		check("vkfd_free", vkfd_free(buffers[gpu]));
	}
	vkfd_close(client);
	return 0;
}
