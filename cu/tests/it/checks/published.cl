// SPDX-License-Identifier: GPL-2.0 OR MIT
// Bugs that others have published, as small kernels of our own with the same pattern, and their
// repaired twins. `published.rs` says where each was published; `planted.sh` compiles them.

#define ID __builtin_amdgcn_workitem_id_x()
#define BARE __builtin_amdgcn_s_barrier()
#define FENCE(order, scope) __builtin_amdgcn_fence(order, scope)
#define BARRIER \
    FENCE(__ATOMIC_RELEASE, "workgroup"); \
    BARE; \
    FENCE(__ATOMIC_ACQUIRE, "workgroup")
#define KERNEL(name) __attribute__((reqd_work_group_size(128, 1, 1))) kernel void name(global uint *in, global uint *out)
#define RESULT in[128 + ID]
#define NOTHING

// Cholesky's step: all read the diagonal element, and the first work-item replaces it by its root.
#define CHOLESKY(between) \
    local float a[128]; \
    a[ID] = (float)(4 + in[ID]); \
    BARRIER; \
    for (uint k = 0; k < 4; k++) { \
        float root = __builtin_amdgcn_sqrtf(a[k]); \
        between; \
        if (ID == 0) a[k] = root + 1; \
        BARRIER; \
        if (ID > k) a[ID] = a[ID] / root; \
        BARRIER; \
    } \
    RESULT = (uint)a[ID]
KERNEL(cholesky) { CHOLESKY(NOTHING); }
KERNEL(cholesky_twin) { CHOLESKY(BARRIER); }

// A pivot: LDS has a column, which is read, and then the row of the wave that has the pivot.
#define PIVOT(between) \
    local uint common[128]; \
    common[ID] = in[ID] + ID; \
    BARRIER; \
    uint column = common[127 - ID]; \
    between; \
    if (ID < 64) common[ID] = column * 3 + 1; \
    BARRIER; \
    RESULT = column + common[ID & 63]
KERNEL(pivot) { PIVOT(NOTHING); }
KERNEL(pivot_twin) { PIVOT(BARRIER); }

// Two reductions in one piece of LDS: the second begins while waves read the first one's result.
#define REDUCE(start, result) \
    part[ID] = start; \
    BARRIER; \
    for (uint step = 64; step > 0; step >>= 1) { \
        if (ID < step) part[ID] += part[ID + step]; \
        BARRIER; \
    } \
    result = part[0]
#define REDUCTIONS(between) \
    local uint part[128]; \
    uint first, second; \
    REDUCE(in[ID] + 1, first); \
    between; \
    REDUCE(in[ID] + first + ID + 1, second); \
    RESULT = first + second
KERNEL(reductions) { REDUCTIONS(NOTHING); }
KERNEL(reductions_twin) { REDUCTIONS(BARRIER); }

// Offsets: each work-item sums the counts before its own, and then replaces its own.
#define OFFSETS(between) \
    local uint counts[128]; \
    counts[ID] = in[ID] + 1; \
    BARRIER; \
    uint offset = 0; \
    for (uint i = 0; i < ID; i++) offset += counts[i]; \
    between; \
    counts[ID] = offset; \
    BARRIER; \
    RESULT = counts[127 - ID]
KERNEL(offsets) { OFFSETS(NOTHING); }
KERNEL(offsets_twin) { OFFSETS(BARRIER); }

// Jacobi's rotations: a half makes them, all apply them, and the next round makes new ones.
#define ROTATIONS(between) \
    local float cosine[64]; \
    float value = (float)(1 + in[ID]); \
    for (uint round = 0; round < 3; round++) { \
        if (ID < 64) cosine[ID] = value / (float)(2 + round); \
        BARRIER; \
        value = value * cosine[ID / 2] + 1; \
        between; \
    } \
    RESULT = (uint)value
KERNEL(rotations) { ROTATIONS(NOTHING); }
KERNEL(rotations_twin) { ROTATIONS(BARRIER); }

// A fence is no barrier: the last work-item writes, and the others read.
#define SCAN(order) \
    local uint last; \
    if (ID == 127) last = in[ID] + 9; \
    order; \
    RESULT = last + ID
KERNEL(scan) { SCAN(FENCE(__ATOMIC_SEQ_CST, "workgroup")); }
KERNEL(scan_twin) { SCAN(BARRIER); }

// A wide store, whose data the next instruction replaces. gfx942 has wait states of its own for a
// scalar offset.
#if defined(__gfx942__)
#define OVERWRITE(between) \
    uint offset = (ID & 31) * 16; \
    __asm__ volatile( \
        "v_mov_b32 v20, 1\n v_mov_b32 v21, 2\n v_mov_b32 v22, 3\n v_mov_b32 v23, 4\n s_mov_b32 s40, 0\n" \
        "s_mov_b64 s[36:37], %1\n s_mov_b32 s38, 0x1000\n s_mov_b32 s39, 0x27000\n s_nop 4\n" \
        "buffer_store_dwordx4 v[20:23], %0, s[36:39], s40 offen\n" between \
        "v_pk_mul_f32 v[20:21], v[22:23], v[22:23]\n s_waitcnt vmcnt(0)" \
        : : "v"(offset), "s"(in) : "v20", "v21", "v22", "v23", "s36", "s37", "s38", "s39", "s40", "memory")
KERNEL(overwrite) { OVERWRITE(""); }
KERNEL(overwrite_twin) { OVERWRITE("s_nop 1\n"); }
#endif

// A matrix operation of 16 passes, and a reader as many wait states behind it as are just too few.
#if defined(__gfx90a__) || defined(__gfx942__)
#define MATRIX(more) \
    uint value; \
    __asm__ volatile( \
        "v_mov_b32 v40, 0\n v_mov_b32 v41, 0\n s_nop 7\n" \
        "v_mfma_f32_32x32x2f32 v[0:15], v40, v41, 0\n" more "v_mov_b32 %0, v0\n s_nop 7\n s_nop 7" \
        : "=v"(value) : \
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", \
          "v40", "v41"); \
    RESULT = value
KERNEL(matrix) { MATRIX("s_nop 7\n s_nop 7\n s_nop 0\n"); }
KERNEL(matrix_twin) { MATRIX("s_nop 7\n s_nop 7\n s_nop 2\n"); }
#endif

// A release: what was stored is to be written back before the flag is, where groups have caches of
// their own between them and memory.
#define AT(at) ((global atomic_uint *)(at))
#define N __builtin_amdgcn_workgroup_id_x()
#if defined(__gfx1030__) || defined(__gfx1100__)
#define COMPLETE "s_waitcnt vmcnt(0)\n s_waitcnt_vscnt null, 0x0"
#else
#define COMPLETE "s_waitcnt vmcnt(0)"
#endif
#if defined(__gfx942__)
#define BACK "buffer_wbl2 sc1\n"
#define BACK_LATE COMPLETE "\n buffer_wbl2 sc1"
#else
#define BACK ""
#define BACK_LATE COMPLETE
#endif
#define RELEASE(how) \
    if (ID == 0) { \
        if (N == 0) { \
            in[0] = 7; \
            __asm__ volatile(how : : : "memory"); \
            __opencl_atomic_store(AT(in + 200), 1, memory_order_relaxed, memory_scope_device); \
        } else { \
            while (__opencl_atomic_load(AT(in + 200), memory_order_acquire, memory_scope_device) == 0) \
                ; \
            out[N] = in[0]; \
        } \
    }
KERNEL(unwritten) { RELEASE(COMPLETE) }
KERNEL(write_back_late) { RELEASE(BACK_LATE) }
KERNEL(write_back_twin) { RELEASE(BACK COMPLETE) }

// A scalar load of what another group has written: its cache is invalidated by an instruction of
// its own.
#if defined(__gfx1100__)
#define LOAD_SCALAR "s_load_b32"
#else
#define LOAD_SCALAR "s_load_dword"
#endif
#define SCALAR(invalidate) \
    if (N == 0) { \
        if (ID == 0) { \
            in[0] = 7; \
            __opencl_atomic_store(AT(in + 200), 1, memory_order_release, memory_scope_device); \
        } \
    } else { \
        while (__opencl_atomic_load(AT(in + 200), memory_order_acquire, memory_scope_device) == 0) \
            ; \
        uint value; \
        __asm__ volatile(invalidate LOAD_SCALAR " %0, %1, 0x0\n s_waitcnt lgkmcnt(0)" \
                         : "=&s"(value) : "s"(in) : "memory"); \
        if (ID == 0) out[N] = value; \
    }
KERNEL(scalar_stale) { SCALAR("") }
KERNEL(scalar_twin) { SCALAR("s_dcache_inv\n s_waitcnt lgkmcnt(0)\n") }

// A load that nothing waits for before the barrier: the other wave's store may come first.
#if defined(__gfx1100__)
#define LOAD_LDS "ds_load_b32"
#else
#define LOAD_LDS "ds_read_b32"
#endif
#define UNAWAITED(wait) \
    local uint all[128]; \
    all[ID] = in[ID]; \
    BARRIER; \
    uint value; \
    __asm__ volatile(LOAD_LDS " %0, %1\n" wait "s_barrier\n" : "=&v"(value) : "v"(all + (127 - ID)) : "memory"); \
    all[ID] = 1; \
    __asm__ volatile("s_waitcnt lgkmcnt(0)" : "+v"(value) : : "memory"); \
    RESULT = value
KERNEL(unawaited) { UNAWAITED(""); }
KERNEL(unawaited_twin) { UNAWAITED("s_waitcnt lgkmcnt(0)\n"); }
