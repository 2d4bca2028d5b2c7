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
#define RESULT out[ID % 100]
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
    uint value = out[in[ID] & 15];
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
