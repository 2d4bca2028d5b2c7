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
/* A code object in a GPU's memory: kernels. */
typedef struct vkfd_code vkfd_code;
/* A compute queue: runs kernels in order. */
typedef struct vkfd_queue vkfd_queue;
/* A point in a queue's work. */
typedef struct vkfd_fence vkfd_fence;

/*
 * A GPU is named by its index, from 0 on. A set of GPUs has bit N for GPU N. Structures that begin with `size` may grow: it is
 * sizeof of the caller's form, and what the caller does not know is left out or has its default.
 */
#define VKFD_GPU(index) (1ull << (index))
#define VKFD_ALL_GPUS (~0ull)

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
#define VKFD_PER_RANGE (1u << 3)  /* one call per range even where the driver has batches (to compare) */

/* Opens the system's KFD (/dev/kfd). -ENOENT when there is none. */
int vkfd_open(vkfd_client **out);

/*
 * Starts vkfd with `gpus` software GPUs of `vram_bytes` each inside this process and opens it; 0 takes the default. The machine
 * ends with the client. -ENOSYS when the library was built without it.
 */
int vkfd_open_embedded(uint32_t gpus, uint64_t vram_bytes, vkfd_client **out);

/* What machine vkfd_open_machine() starts. Zeros are defaults. */
struct vkfd_machine {
	uint32_t size;       /* sizeof(struct vkfd_machine) */
	uint32_t gpus;       /* 1 to 32; 0: one */
	uint64_t vram_bytes; /* of each GPU, a multiple of 2 MiB; 0: 1 GiB */
	const char *target;  /* gfx900, gfx90a, gfx942, gfx1030 or gfx1100; NULL: gfx900 */
};

/* As vkfd_open_embedded(), with more choices. */
int vkfd_open_machine(const struct vkfd_machine *machine, vkfd_client **out);

/* Closes a client; NULL is ignored. */
void vkfd_close(vkfd_client *client);

/* Tells what the driver can do. Fills at most out->size bytes, so that the structure can grow. */
int vkfd_caps(const vkfd_client *client, struct vkfd_caps *out);

/* What a GPU is. */
struct vkfd_gpu_info {
	uint32_t size;               /* in: sizeof(struct vkfd_gpu_info); out: bytes filled */
	uint32_t gpu_id;             /* KFD's number of it */
	uint32_t gfx_target_version; /* major * 10000 + minor * 100 + stepping */
	uint32_t reserved;
	uint64_t vram_bytes;
	uint64_t vram_free; /* 0 where the driver does not say */
	char name[32];      /* such as gfx900 */
};

/* Tells what a GPU is. */
int vkfd_gpu(const vkfd_client *client, uint32_t gpu, struct vkfd_gpu_info *out);

/*
 * Switches XNACK, the retry of page faults, on or off for the process. With it GPUs may use memory that is not mapped on them yet. -EBUSY while
 * there are queues; -EPERM or -EOPNOTSUPP where the GPUs cannot.
 */
int vkfd_set_xnack(vkfd_client *client, int on);

/*
 * Registers `count` CPU ranges, whole pages each, as one contiguous GPU range in the order of the list, mapped on all GPUs. The
 * list is not copied where the driver has the batch command; an HsaMemoryRange array has the same layout and can be cast.
 * Pages are not pinned. Ranges may overlap. Where the driver has no batch, it is one call per range, with the same result.
 */
int vkfd_register_ranges(vkfd_client *client, const struct iovec *ranges, size_t count, uint32_t flags,
			 vkfd_buffer **out);

/*
 * The same at a GPU address of the caller's choice, for programs that manage GPU addresses themselves, such as a VMM whose guest
 * chooses them. -EADDRINUSE when another buffer is there.
 */
int vkfd_register_ranges_at(vkfd_client *client, uint64_t gpu_va, const struct iovec *ranges, size_t count,
			    uint32_t flags, vkfd_buffer **out);

/* The same for some of the GPUs only; `gpu_va` 0 takes a free address. vkfd_map() adds GPUs. */
int vkfd_register_ranges_on(vkfd_client *client, uint64_t gpus, uint64_t gpu_va, const struct iovec *ranges,
			    size_t count, uint32_t flags, vkfd_buffer **out);

/* Allocates VRAM of a GPU (an index from 0), mapped on all GPUs and for the CPU. */
int vkfd_alloc_vram(vkfd_client *client, uint32_t gpu, uint64_t bytes, vkfd_buffer **out);

/* Allocates system memory, coherent, mapped on all GPUs and for the CPU. */
int vkfd_alloc_gtt(vkfd_client *client, uint64_t bytes, vkfd_buffer **out);

/* Maps a buffer on those of `gpus` where it is not mapped. On failure it is mapped as before. */
int vkfd_map(vkfd_buffer *buffer, uint64_t gpus);

/* Unmaps a buffer from those of `gpus` where it is mapped: their accesses fault from then on. */
int vkfd_unmap(vkfd_buffer *buffer, uint64_t gpus);

/* Unmaps a buffer and maps it again where it was: for registered memory that was unmapped on the CPU and is there again. */
int vkfd_revalidate(vkfd_buffer *buffer);

/*
 * Which range of the registered list is at a GPU address, and how far into it; either pointer may be NULL. -EINVAL for an address outside of the
 * buffer, and for an allocated one.
 */
int vkfd_buffer_range_at(const vkfd_buffer *buffer, uint64_t gpu_va, size_t *range, uint64_t *offset);

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

/* Fills with a 32-bit word, as vkfd_copy() copies; address and bytes are multiples of 4. */
int vkfd_fill(vkfd_client *client, uint32_t gpu, uint64_t dst, uint32_t word, uint64_t bytes, uint32_t timeout_ms);

/* Unmaps and frees a buffer; NULL is ignored. The buffer is gone also when this fails. */
int vkfd_free(vkfd_buffer *buffer);

/*
 * Loads a code object: the ELF file that a compiler makes for that GPU's processor. An example:
 *
 *     clang -x cl -target amdgcn-amd-amdhsa -mcpu=gfx900 -nogpulib -O2 -o triple.gfx900.co triple.cl
 *
 * It must stay loaded until its launches are done. NULL is ignored when freeing.
 */
int vkfd_code_load(vkfd_client *client, uint32_t gpu, const void *file, size_t bytes, vkfd_code **out);
void vkfd_code_free(vkfd_code *code);

/*
 * A compute queue of a GPU. A page fault, or an instruction that the GPU does not execute, stops the queue for good:
 * free it and make another. Other queues and all buffers are as they were. NULL is ignored when freeing.
 */
int vkfd_queue_new(vkfd_client *client, uint32_t gpu, vkfd_queue **out);
void vkfd_queue_free(vkfd_queue *queue);

/* How a kernel is launched. */
struct vkfd_launch {
	uint32_t size;       /* sizeof(struct vkfd_launch) */
	uint32_t grid[3];    /* work-items in x, y and z; 0 counts as 1 */
	uint16_t group[3];   /* work-items of a work-group; 0 counts as 1 */
	uint16_t reserved;
	uint32_t lds_bytes;  /* LDS of a work-group beyond what the kernel declares */
	uint32_t args_bytes; /* at most 256 */
	const void *args;    /* as the compiler lays them out: each aligned to its size */
};

/*
 * Submits a kernel, which starts when everything before it in the queue is done. The arguments are copied. `out`, which may be NULL, is a fence to
 * wait for.
 */
int vkfd_launch(vkfd_queue *queue, const vkfd_code *code, const char *kernel, const struct vkfd_launch *launch,
		vkfd_fence **out);

/* Waits until everything that was submitted to a queue is done. Errors as of vkfd_copy(). */
int vkfd_queue_wait(vkfd_queue *queue, uint32_t timeout_ms);

/* Waits for one kernel: sleeping, by KFD's events. A fence may be waited for by several threads, and after its queue is gone. */
int vkfd_fence_wait(const vkfd_fence *fence, uint32_t timeout_ms);

/* Whether it is done: 1 or 0. Does not sleep. */
int vkfd_fence_done(const vkfd_fence *fence);

/* Frees a fence, not what it stands for; NULL is ignored. */
void vkfd_fence_free(vkfd_fence *fence);

/* SVM: GPUs use memory of the process, whole pages, at the addresses where the CPU has it. */
#define VKFD_SVM_NONE 0u     /* not at all: a fault is an error */
#define VKFD_SVM_IN_PLACE 1u /* where it is, without moving it */
#define VKFD_SVM_MIGRATE 2u  /* memory may move to the GPU */

#define VKFD_SYSTEM_MEMORY (~0u) /* a place: not on a GPU */

/* Says how GPUs may use memory. What must be mapped on them is when this returns. */
int vkfd_svm_access(vkfd_client *client, void *start, uint64_t bytes, uint64_t gpus, uint32_t access);

/* Says where memory should be when a GPU faults on it: on a GPU (an index) or VKFD_SYSTEM_MEMORY. */
int vkfd_svm_prefer(vkfd_client *client, void *start, uint64_t bytes, uint32_t place);

/* Moves memory to a place now. What cannot move stays where it is and is used there. */
int vkfd_svm_prefetch(vkfd_client *client, void *start, uint64_t bytes, uint32_t place);

/* A GPU's page fault, which ended a queue. */
struct vkfd_fault {
	uint32_t size;        /* in: sizeof(struct vkfd_fault); out: bytes filled */
	uint32_t gpu_id;      /* KFD's number of the GPU */
	uint64_t gpu_va;      /* the page's address */
	uint32_t not_present; /* 1: nothing is mapped there */
	uint32_t read_only;   /* 1: it was a write, and the page is mapped read-only */
};

/* The last page fault that a call of this thread met (it returned -EFAULT). -ENOENT when none did. */
int vkfd_last_fault(struct vkfd_fault *out);

/* The message of this thread's last failed call; "" when none failed. Valid until its next failure. */
const char *vkfd_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* VKFD_H */
