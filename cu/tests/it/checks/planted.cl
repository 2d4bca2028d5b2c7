// SPDX-License-Identifier: GPL-2.0 OR MIT
// Kernels with a bug each that hardware hides, and their correct twins. `planted.sh` compiles them.

#define ID __builtin_amdgcn_workitem_id_x()
#define BARRIER \
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); \
    __builtin_amdgcn_s_barrier(); \
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup")
#define DEVICE memory_scope_device
#define GROUP memory_scope_work_group
#define ADD(space, scope, at) __opencl_atomic_fetch_add((space atomic_uint *)(at), 1, memory_order_relaxed, scope)
#define KERNEL __attribute__((reqd_work_group_size(128, 1, 1))) kernel void

// memory: `out` has room for 100. Results are stored for all work-items: a compiler would move a load
// to where its result is used.
#define RESULT in[128 + ID]
KERNEL store_all(global uint *in, global uint *out) { out[ID] = ID; }
KERNEL store_100(global uint *in, global uint *out) {
    if (ID < 100) out[ID] = ID;
}
KERNEL load_all(global uint *in, global uint *out) {
    RESULT = out[ID] + 1;
}
KERNEL add_all(global uint *in, global uint *out) { ADD(global, DEVICE, out + ID); }
KERNEL misaligned(global uint *in, global uint *out) {
    ADD(global, DEVICE, ((global char *)out + 2));
}
// LDS: `in[0]` is 0 or an offset.
KERNEL lds(global uint *in, global uint *out) {
    local uint all[128];
    all[ID] = ID;
    BARRIER;
    RESULT = all[ID + in[0]];
}
KERNEL lds_wide(global uint *in, global uint *out) {
    local uint4 all[128];
    all[ID] = (uint4)(ID);
    BARRIER;
    uint4 value = all[ID + in[0]];
    RESULT = value.x + value.y + value.z + value.w;
}
// Scratch: the same.
KERNEL scratch(global uint *in, global uint *out) {
    volatile uint all[16];
    for (uint i = 0; i < 16; i++) all[i] = i;
    uint value = all[(ID & 15) + in[0]];
    if (ID < 100) out[ID] = value;
}

// race
KERNEL race(global uint *in, global uint *out) {
    local uint all[128];
    all[ID] = ID + 1;
    uint value = all[127 - ID];
    if (ID < 100) out[ID] = value;
}
KERNEL race_twin(global uint *in, global uint *out) {
    local uint all[128];
    all[ID] = ID + 1;
    BARRIER;
    uint value = all[127 - ID];
    if (ID < 100) out[ID] = value;
}
// The second barrier is missing: the next round's writes meet this round's reads.
KERNEL rounds(global uint *in, global uint *out) {
    local uint all[128];
    uint value = ID;
    for (uint i = 0; i < 4; i++) {
        all[ID] = value + i + 1;
        BARRIER;
        value += all[127 - ID];
    }
    if (ID < 100) out[ID] = value;
}
KERNEL rounds_twin(global uint *in, global uint *out) {
    local uint all[128];
    uint value = ID;
    for (uint i = 0; i < 4; i++) {
        all[ID] = value + i + 1;
        BARRIER;
        value += all[127 - ID];
        BARRIER;
    }
    if (ID < 100) out[ID] = value;
}
// All waves write the same, and count by atomic operations.
KERNEL same(global uint *in, global uint *out) {
    local uint flag, count;
    flag = 7;
    if (ID == 0) count = 0;
    BARRIER;
    ADD(local, GROUP, &count);
    BARRIER;
    if (ID < 100) out[ID] = count + flag;
}
// One plain increment among them.
KERNEL count(global uint *in, global uint *out) {
    local uint count;
    count = 0;
    BARRIER;
    if (ID == 127) count = 1;
    ADD(local, GROUP, &count);
    BARRIER;
    if (ID < 100) out[ID] = count;
}

// Flags in LDS: waves that spin on them, and one that looks once.
#define FLAG(type, test) \
    local uint data; \
    local type flag; \
    if (ID == 0) flag = data = 0; \
    BARRIER; \
    if (ID < 64) { \
        if (ID == 0) { \
            data = in[1] + 7; \
            __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); \
            flag = 1; \
        } \
    } else { \
        test; \
        __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"); \
        if (ID < 100) out[ID] = data; \
    }
KERNEL flag_volatile(global uint *in, global uint *out) { FLAG(volatile uint, while (flag == 0)) }
KERNEL flag(global uint *in, global uint *out) {
    FLAG(uint, while (__opencl_atomic_load((local atomic_uint *)&flag, memory_order_relaxed, GROUP) == 0))
}
KERNEL flag_once(global uint *in, global uint *out) { FLAG(volatile uint, if (flag == 0) return) }

// Barriers: the waves wait at two.
KERNEL barriers(global uint *in, global uint *out) {
    local uint all[128];
    all[ID] = ID;
    uint value;
    if (ID < 64) {
        BARRIER;
        value = all[127 - ID] * 3;
    } else {
        value = all[ID] + 7;
        BARRIER;
    }
    if (ID < 100) out[ID] = value;
}
// Lanes go around it, and on.
KERNEL barrier_lanes(global uint *in, global uint *out) {
    local uint all[128];
    all[ID] = ID;
    uint value = 0;
    if (ID & 1) {
        BARRIER;
        value = all[127 - ID];
    }
    if (ID < 100) out[ID] = value;
}
// All lanes come, and EXEC is restored behind the barrier: it ends a branch that all take.
KERNEL barrier_branch(global uint *in, global uint *out) {
    local uint all[128];
    all[ID] = ID;
    if (in[ID] == 0) {
        if (ID & 1) all[ID] = 3;
        BARRIER;
    }
    if (ID < 100) out[ID] = all[127 - ID];
}
// Lanes, and a wave, that have ended are not waited for.
KERNEL barrier_ended(global uint *in, global uint *out) {
    local uint all[128];
    all[ID] = ID;
    if (ID < 32 || ID >= 100) return;
    BARRIER;
    out[ID] = all[131 - ID];
}

// race in memory: several work-groups. `in` has room for 256.
#define N __builtin_amdgcn_workgroup_id_x()
#define AT(at) ((global atomic_uint *)(at))
#define STORE(at, order) __opencl_atomic_store(AT(at), 1, memory_order_##order, DEVICE)
#define LOAD(at, order) __opencl_atomic_load(AT(at), memory_order_##order, DEVICE)
#define FENCE(order) __builtin_amdgcn_fence(order, "agent")
KERNEL overlap(global uint *in, global uint *out) {
    if (ID < 32) out[ID] = N + ID + 1;
}
KERNEL overlap_twin(global uint *in, global uint *out) {
    if (ID < 32) out[N * 32 + ID] = N + ID + 1;
}
KERNEL same_words(global uint *in, global uint *out) {
    if (ID < 32) out[ID] = ID + 1;
}
KERNEL neighbours(global uint *in, global uint *out) {
    if (ID < 32) {
        in[N * 32 + ID] = ID + 1;
        out[N * 32 + ID] = in[(N ^ 1) * 32 + ID];
    }
}
KERNEL waves(global uint *in, global uint *out) {
    in[ID] = ID + 1;
    uint value = in[127 - ID];
    if (ID < 100) out[ID] = value;
}
KERNEL waves_twin(global uint *in, global uint *out) {
    in[ID] = ID + 1;
    BARRIER;
    uint value = in[127 - ID];
    if (ID < 100) out[ID] = value;
}
// Each group has a byte of each word.
KERNEL bytes(global uint *in, global uint *out) { ((global uchar *)in)[4 * ID + N] = N + 1; }
KERNEL counter(global uint *in, global uint *out) { ADD(global, DEVICE, out); }
KERNEL counter_init(global uint *in, global uint *out) {
    if (N == 0 && ID == 0) out[0] = 0;
    ADD(global, DEVICE, out);
}
// Group 0 writes, and the others wait for its flag.
#define BARE __builtin_amdgcn_s_barrier()
#define HANDOVER(store, load, barrier) \
    if (N == 0) { \
        in[ID] = ID + 7; \
        barrier; \
        if (ID == 0) STORE(in + 200, store); \
    } else { \
        if (ID == 0) \
            while (LOAD(in + 200, load) == 0) \
                ; \
        barrier; \
        if (ID < 32) out[N * 32 + ID] = in[ID]; \
    }
KERNEL handover(global uint *in, global uint *out) { HANDOVER(release, acquire, BARRIER) }
KERNEL handover_relaxed(global uint *in, global uint *out) { HANDOVER(relaxed, relaxed, BARE) }
// Its caches may have what was there before.
KERNEL handover_stale(global uint *in, global uint *out) {
    if (ID == 0) {
        if (N == 0) {
            in[0] = 7;
            STORE(in + 200, release);
        } else {
            while (LOAD(in + 200, relaxed) == 0)
                ;
            out[N] = in[0];
        }
    }
}
// The data may come behind the flag.
KERNEL handover_early(global uint *in, global uint *out) {
    if (ID == 0) {
        if (N == 0) {
            in[0] = 7;
            STORE(in + 200, relaxed);
        } else {
            while (LOAD(in + 200, acquire) == 0)
                ;
            out[N] = in[0];
        }
    }
}
// The flag is answered by another value.
KERNEL answer(global uint *in, global uint *out) {
    if (ID == 0 && N == 0) STORE(in + 200, relaxed);
    if (ID == 0 && N == 1) {
        while (LOAD(in + 200, relaxed) == 0)
            ;
        __opencl_atomic_store(AT(in + 200), 2, memory_order_relaxed, DEVICE);
    }
}
// The last group adds.
KERNEL ticket(global uint *in, global uint *out) {
    if (ID == 0) {
        in[N] = N + 1;
        FENCE(__ATOMIC_RELEASE);
        uint before = ADD(global, DEVICE, in + 200);
        FENCE(__ATOMIC_ACQUIRE);
        if (before == 2) out[0] = in[0] + in[1] + in[2];
    }
}
KERNEL ticket_relaxed(global uint *in, global uint *out) {
    if (ID == 0) {
        in[N] = N + 1;
        uint before = ADD(global, DEVICE, in + 200);
        if (before == 2) out[0] = in[0] + in[1] + in[2];
    }
}
#define LOCKED(at) \
    uint none = 0; \
    while (!__opencl_atomic_compare_exchange_strong( \
        AT(in + 200), &none, 1, memory_order_acquire, memory_order_relaxed, DEVICE)) \
        none = 0; \
    out[at] += N + 1; \
    __opencl_atomic_store(AT(in + 200), 0, memory_order_release, DEVICE)
KERNEL lock(global uint *in, global uint *out) {
    if (ID == 0) {
        LOCKED(1);
    }
}
// One more of them without the lock.
KERNEL lock_twice(global uint *in, global uint *out) {
    if (ID == 0) {
        LOCKED(1);
        out[1] += 1;
    }
}
// All groups wait for each other.
#define ALL_GROUPS(first, last, barrier) \
    if (ID < 32) in[N * 32 + ID] = ID + 1; \
    first; \
    barrier; \
    if (ID == 0) { \
        ADD(global, DEVICE, in + 200); \
        while (LOAD(in + 200, relaxed) < 3) \
            ; \
    } \
    barrier; \
    last; \
    if (ID < 32) out[N * 32 + ID] = in[(N ^ 1) * 32 + ID]
KERNEL all_groups(global uint *in, global uint *out) {
    ALL_GROUPS(FENCE(__ATOMIC_RELEASE), FENCE(__ATOMIC_ACQUIRE), BARRIER);
}
KERNEL all_groups_early(global uint *in, global uint *out) { ALL_GROUPS(, , BARE); }

// waits: the compiler does not know these loads.
#if defined(__gfx1100__)
#define LOAD_GLOBAL "global_load_b32"
#define LOAD_LDS "ds_load_b32"
#define LOAD_SCALAR "s_load_b32"
#else
#define LOAD_GLOBAL "global_load_dword"
#define LOAD_LDS "ds_read_b32"
#define LOAD_SCALAR "s_load_dword"
#endif
#define WAIT_GLOBAL "\ns_waitcnt vmcnt(0)"
#define WAIT_LDS "\ns_waitcnt lgkmcnt(0)"
#define EARLY(wait) \
    uint value; \
    __asm__ volatile(LOAD_GLOBAL " %0, %1, off" wait : "=&v"(value) : "v"(in + ID)); \
    RESULT = value + 1
KERNEL early_load(global uint *in, global uint *out) { EARLY(""); }
KERNEL early_load_twin(global uint *in, global uint *out) { EARLY(WAIT_GLOBAL); }
// Two loads: a count of 1 leaves the second.
#define EARLY_COUNT(used) \
    uint first, second; \
    __asm__ volatile(LOAD_GLOBAL " %0, %2, off\n" LOAD_GLOBAL " %1, %2, off offset:4\ns_waitcnt vmcnt(1)" \
                     : "=&v"(first), "=&v"(second) : "v"(in + (ID & 63))); \
    uint value = used + 1; \
    __asm__ volatile("s_waitcnt vmcnt(0)"); \
    RESULT = value
KERNEL early_count(global uint *in, global uint *out) { EARLY_COUNT(second); }
KERNEL early_count_twin(global uint *in, global uint *out) { EARLY_COUNT(first); }
KERNEL early_overwrite(global uint *in, global uint *out) {
    uint value;
    __asm__ volatile(LOAD_GLOBAL " %0, %1, off\nv_mov_b32 %0, 5" : "=&v"(value) : "v"(in + ID));
    __asm__ volatile("s_waitcnt vmcnt(0)");
    RESULT = value;
}
#define EARLY_LDS(wait) \
    local uint all[128]; \
    all[ID] = ID; \
    BARRIER; \
    uint value; \
    __asm__ volatile(LOAD_LDS " %0, %1" wait : "=&v"(value) : "v"(all + ID)); \
    RESULT = value + 1
KERNEL early_lds(global uint *in, global uint *out) { EARLY_LDS(""); }
KERNEL early_lds_twin(global uint *in, global uint *out) { EARLY_LDS(WAIT_LDS); }
#define EARLY_SCALAR(wait) \
    uint value; \
    __asm__ volatile(LOAD_SCALAR " %0, %1, 0x0" wait : "=&s"(value) : "s"(in)); \
    RESULT = value + 1
KERNEL early_scalar(global uint *in, global uint *out) { EARLY_SCALAR(""); }
KERNEL early_scalar_twin(global uint *in, global uint *out) { EARLY_SCALAR(WAIT_LDS); }

// hazards: a vector operation writes the register that DPP reads.
#define NEIGHBOUR(between) \
    uint value; \
    __asm__ volatile("v_mov_b32 %0, %1\n" between "v_mov_b32_dpp %0, %0 row_shr:1 row_mask:0xf bank_mask:0xf" \
                     : "=&v"(value) : "v"(ID)); \
    if (ID < 100) out[ID] = value
KERNEL neighbour(global uint *in, global uint *out) { NEIGHBOUR(""); }
KERNEL neighbour_twin(global uint *in, global uint *out) { NEIGHBOUR("s_nop 1\n"); }

// A sum by compare-and-swap. Its first load is a guess, which a cache may answer.
#define GUESS(guess) \
    global uint *sum = (global uint *)in; \
    uint seen = guess; \
    uint next; \
    do next = seen * 3 + 1; \
    while (!__opencl_atomic_compare_exchange_strong((global atomic_uint *)sum, &seen, next, memory_order_relaxed, \
                                                    memory_order_relaxed, memory_scope_device))
KERNEL guess(global uint *in, global uint *out) { GUESS(*sum); }
// The same load decides by itself.
KERNEL guess_believed(global uint *in, global uint *out) {
    uint first = *in;
    if (ID == 0) ADD(global, DEVICE, in);
    if (ID < 100) out[ID] = first;
}
// What is compared with was loaded elsewhere.
KERNEL guess_elsewhere(global uint *in, global uint *out) { GUESS(sum[128] + sum[0]); }

// init: nothing has written `in`, or all.
KERNEL decide(global uint *in, global uint *out) {
    if (in[ID] > 5) ADD(global, DEVICE, out);
}
KERNEL decide_one(global uint *in, global uint *out) {
    if (in[0] == 5) out[1] = 1;
}
KERNEL compute(global uint *in, global uint *out) {
    uint value = in[ID] * 3 + 1;
    if (ID < 100) out[ID] = value;
}
KERNEL address(global uint *in, global uint *out) {
    uint value = in[128 + (in[ID] & 15)];
    if (ID < 100) out[ID] = value;
}
// Only the low halves were written, and only they count.
KERNEL part(global uint *in, global uint *out) {
    global ushort *halves = (global ushort *)in;
    uint value = (*(global volatile uint *)&halves[2 * ID] & 0xffff) * 3;
    if (ID < 100) out[ID] = value > 7 ? value : 1;
}
// Moved, in words and in bytes, and nothing is said.
KERNEL move(global uint *in, global uint *out) {
    uint value = in[ID];
    if (ID < 100) out[ID] = value;
}
KERNEL lds_unwritten(global uint *in, global uint *out) {
    local uint all[128];
    if (ID < 64) all[ID] = ID;
    BARRIER;
    uint value = all[ID] * 3;
    if (ID < 100) out[ID] = value;
}
KERNEL lds_written(global uint *in, global uint *out) {
    local uint all[128];
    all[127 - ID] = ID;
    BARRIER;
    uint value = all[ID] * 3;
    if (ID < 100) out[ID] = value;
}
// `in[0]` is 16, or less.
KERNEL scratch_unwritten(global uint *in, global uint *out) {
    volatile uint all[16];
    for (uint i = 0; i < in[0]; i++) all[i] = i;
    uint value = all[ID & 15] * 3;
    if (ID < 100) out[ID] = value;
}
KERNEL registers(global uint *in, global uint *out) {
    uint value;
    __asm__ volatile("; %0 is not written" : "=v"(value));
    if (ID < 100) out[ID] = value * 5;
}
KERNEL scalars(global uint *in, global uint *out) {
    uint value;
    __asm__ volatile("s_mov_b32 %0, s40" : "=s"(value) : : "s40");
    if (value == 5) out[ID & 63] = 1;
}
