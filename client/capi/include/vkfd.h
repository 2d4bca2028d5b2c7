/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * vkfd.h - register scattered CPU memory as one contiguous GPU range, on any KFD.
 *
 * Functions that return int return 0, or a negative error number; vkfd_last_error() then has the reason in words, and for a
 * list of ranges which one is at fault. Every function may be called from any thread. A client may be closed before its
 * buffers: they keep it open until they are freed.
 */
#ifndef VKFD_H
#define VKFD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A process's connection to a KFD. */
typedef struct vkfd_client vkfd_client;
/* A contiguous range of GPU memory. */
typedef struct vkfd_buffer vkfd_buffer;

/* What the driver can do; see vkfd_caps(). */
#define VKFD_CAP_VKFD (1u << 0)       /* the driver is vkfd */
#define VKFD_CAP_BATCH (1u << 1)      /* many ranges in one call: the batch command */
#define VKFD_CAP_BATCH_FLAG (1u << 2) /* many ranges in one call: the batch flag */
#define VKFD_CAP_READ_ONLY (1u << 3)  /* memory that the process may only read can be registered */
#define VKFD_CAP_XNACK (1u << 4)      /* XNACK can be switched on */

struct vkfd_caps {
	uint32_t size;       /* in: sizeof(struct vkfd_caps); out: bytes filled */
	uint32_t flags;      /* VKFD_CAP_* */
	uint64_t max_ranges; /* ranges a batch may have; 0: not told */
	uint64_t max_bytes;  /* bytes that may be registered now; 0: not told */
	uint32_t gpus;       /* GPUs that the process can use */
	uint32_t reserved;
};

/* Flags of vkfd_register_ranges(). */
#define VKFD_READ_ONLY (1u << 0)  /* the GPU only reads */
#define VKFD_EXECUTABLE (1u << 1) /* the GPU may execute */
#define VKFD_COHERENT (1u << 2)   /* fine-grained coherence with the CPU */
#define VKFD_PER_RANGE (1u << 3)  /* one call a range even where the driver has batches (to compare) */

/* Opens the system's KFD (/dev/kfd). -ENOENT when there is none. */
int vkfd_open(vkfd_client **out);

/*
 * Starts vkfd with `gpus` software GPUs of `vram_bytes` each inside this process and opens it; 0 takes the default. The machine
 * ends with the client. -ENOSYS when the library was built without it.
 */
int vkfd_open_embedded(uint32_t gpus, uint64_t vram_bytes, vkfd_client **out);

/* Closes a client; NULL is ignored. */
void vkfd_close(vkfd_client *client);

/* Tells what the driver can do. Fills at most out->size bytes, so that the structure can grow. */
int vkfd_caps(const vkfd_client *client, struct vkfd_caps *out);

/*
 * Registers `count` CPU ranges, whole pages each, as one contiguous GPU range in the order of the list, mapped on all GPUs. The
 * list is not copied where the driver has the batch command; an HsaMemoryRange array has the same layout and can be cast.
 * Pages are not pinned. Ranges may overlap. With one call a range where the driver has no batch: the result is the same.
 */
int vkfd_register_ranges(vkfd_client *client, const struct iovec *ranges, size_t count, uint32_t flags,
			 vkfd_buffer **out);

/*
 * The same at a GPU address of the caller's choice, for programs that manage GPU addresses themselves, such as a VMM whose guest
 * chooses them. -EADDRINUSE when another buffer is there.
 */
int vkfd_register_ranges_at(vkfd_client *client, uint64_t gpu_va, const struct iovec *ranges, size_t count,
			    uint32_t flags, vkfd_buffer **out);

/* Allocates VRAM of a GPU (an index from 0), mapped on all GPUs and for the CPU. */
int vkfd_alloc_vram(vkfd_client *client, uint32_t gpu, uint64_t bytes, vkfd_buffer **out);

/* A buffer's first GPU address. */
uint64_t vkfd_buffer_gpu_va(const vkfd_buffer *buffer);

/* A buffer's bytes. */
uint64_t vkfd_buffer_len(const vkfd_buffer *buffer);

/* Where the CPU sees an allocated buffer; NULL for a registered one. */
void *vkfd_buffer_cpu(const vkfd_buffer *buffer);

/*
 * Copies between GPU addresses by the copy engine of a GPU (an index from 0) and waits, at most `timeout_ms`. -ETIME when the time
 * is up, -EFAULT when the engine stopped on a page fault; the next copy has a new queue.
 */
int vkfd_copy(vkfd_client *client, uint32_t gpu, uint64_t dst, uint64_t src, uint64_t bytes, uint32_t timeout_ms);

/* Unmaps and frees a buffer; NULL is ignored. The buffer is gone also when this fails. */
int vkfd_free(vkfd_buffer *buffer);

/* The message of this thread's last failed call; "" when none failed. Valid until its next failure. */
const char *vkfd_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* VKFD_H */
