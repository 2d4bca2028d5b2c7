// SPDX-License-Identifier: GPL-2.0 OR MIT
// The kernels of the client library, in OpenCL C without a runtime's library: workgroups of 256 work-items, the grid
// in whole workgroups. `cargo xtask kernels` compiles them for each target; the results lie beside this file.
//
// Each kernel walks its operands with a stride of the whole grid, so that any grid computes the same. Sums and checksums are
// combined by atomic operations on results that `fill64` or `crc32_begin` have prepared in a dispatch before.

#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#pragma clang fp contract(off)

#define GROUP 256
#define GLOBAL_KERNEL __attribute__((reqd_work_group_size(GROUP, 1, 1))) kernel void

static uint lane(void) { return __builtin_amdgcn_workitem_id_x(); }
static uint group_x(void) { return __builtin_amdgcn_workgroup_id_x(); }
static uint group_y(void) { return __builtin_amdgcn_workgroup_id_y(); }
static ulong first(void) { return (ulong)group_x() * GROUP + lane(); }

// All work-items of the group arrive, and see each other's LDS.
static void meet(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Sets 64-bit words.
GLOBAL_KERNEL fill64(global ulong *dst, ulong count, ulong value, ulong stride)
{
    for (ulong i = first(); i < count; i += stride)
        dst[i] = value;
}

// Numbers 64-bit words.
GLOBAL_KERNEL iota64(global ulong *dst, ulong count, ulong start, ulong stride)
{
    for (ulong i = first(); i < count; i += stride)
        dst[i] = start + i;
}

// Copies 64-bit words.
GLOBAL_KERNEL copy64(global ulong *dst, global const ulong *src, ulong count, ulong stride)
{
    for (ulong i = first(); i < count; i += stride)
        dst[i] = src[i];
}

// Adds 64-bit words to the one at `out`, wrapping.
GLOBAL_KERNEL sum64(global const ulong *src, ulong count, global ulong *out, ulong stride)
{
    local ulong partial[GROUP];
    ulong sum = 0;
    for (ulong i = first(); i < count; i += stride)
        sum += src[i];
    partial[lane()] = sum;
    for (uint reach = GROUP / 2; reach > 0; reach /= 2) {
        meet();
        if (lane() < reach)
            partial[lane()] += partial[lane() + reach];
    }
    if (lane() == 0)
        __opencl_atomic_fetch_add((global atomic_ulong *)out, partial[0], memory_order_relaxed,
                                  memory_scope_all_svm_devices);
}

// y = a * x + y on 32-bit floats, rounding twice.
GLOBAL_KERNEL saxpy(global const float *x, global float *y, ulong count, ulong stride, float a)
{
    for (ulong i = first(); i < count; i += stride)
        y[i] = a * x[i] + y[i];
}

// c = a * b on row-major matrices of 32-bit floats; products are added in the order of k. Tiles of 16 by 16 through LDS.
#define TILE 16
GLOBAL_KERNEL matmul(global const float *a, global const float *b, global float *c, ulong m, ulong n, ulong k)
{
    local float tile_a[TILE][TILE], tile_b[TILE][TILE];
    uint tx = lane() % TILE, ty = lane() / TILE;
    ulong row = (ulong)group_y() * TILE + ty, column = (ulong)group_x() * TILE + tx;
    float sum = 0;
    for (ulong depth = 0; depth < k; depth += TILE) {
        tile_a[ty][tx] = row < m && depth + tx < k ? a[row * k + depth + tx] : 0;
        tile_b[ty][tx] = depth + ty < k && column < n ? b[(depth + ty) * n + column] : 0;
        meet();
        for (uint i = 0; i < TILE; i++)
            sum += tile_a[ty][i] * tile_b[i][tx];
        meet();
    }
    if (row < m && column < n)
        c[row * n + column] = sum;
}

// Looks at pages whose 64-bit words say where they belong: page in bits 63:40, version in bits 39:12, index in bits 11:0. Of
// each page: the oldest version and the newest, how many words are zero, and how many belong elsewhere.
#define WORDS 512
GLOBAL_KERNEL watch(global const ulong *src, ulong pages, global uint *out, ulong groups)
{
    local atomic_uint found[4];
    for (ulong page = group_x(); page < pages; page += groups) {
        if (lane() < 4)
            __opencl_atomic_store(&found[lane()], lane() == 0 ? 0xffffffffu : 0, memory_order_relaxed,
                                  memory_scope_work_group);
        meet();
        for (uint i = lane(); i < WORDS; i += GROUP) {
            ulong word = src[page * WORDS + i];
            uint version = (uint)(word >> 12) & 0x0fffffffu;
            if (word == 0) {
                __opencl_atomic_fetch_add(&found[2], 1, memory_order_relaxed, memory_scope_work_group);
            } else if (word >> 40 != page || (word & 0xfff) != i) {
                __opencl_atomic_fetch_add(&found[3], 1, memory_order_relaxed, memory_scope_work_group);
            } else {
                __opencl_atomic_fetch_min(&found[0], version, memory_order_relaxed, memory_scope_work_group);
                __opencl_atomic_fetch_max(&found[1], version, memory_order_relaxed, memory_scope_work_group);
            }
        }
        meet();
        if (lane() < 4)
            out[4 * page + lane()] = __opencl_atomic_load(&found[lane()], memory_order_relaxed, memory_scope_work_group);
        meet();
    }
}

// CRC-32 (IEEE 802.3), reflected: bit 31 is x^0. A checksum is linear but for its constants, so pieces are computed apart,
// moved to their place by multiplication with x^(8 * bytes behind them), and added (XOR) in any order.
#define POLYNOMIAL 0xedb88320u

// a * b modulo the polynomial.
static uint multiply(uint a, uint b)
{
    uint product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        product ^= a >> bit & 1 ? b : 0;
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

// `crc` moved up by `bytes` bytes of zeros.
static uint shift(uint crc, ulong bytes)
{
    uint power = 0x00800000u; // x^8
    for (; bytes != 0; bytes >>= 1) {
        if (bytes & 1)
            crc = multiply(power, crc);
        power = multiply(power, power);
    }
    return crc;
}

struct segment { ulong va, bytes; };

// What a segment's checksum is without its bytes: the initial value behind all of them, and the final inversion.
GLOBAL_KERNEL crc32_begin(global const struct segment *segments, ulong count, global uint *out, ulong stride)
{
    for (ulong i = first(); i < count; i += stride)
        out[i] = ~shift(0xffffffffu, segments[i].bytes);
}

#define PIECE 4096

// Adds the pieces of the segments from `group_y` on, `step` apart, to their checksums.
GLOBAL_KERNEL crc32_add(global const struct segment *segments, ulong count, global uint *out, ulong step, ulong stride)
{
    local uint table[4][256];
    uint entry = lane();
    for (int bit = 0; bit < 8; bit++)
        entry = entry >> 1 ^ (entry & 1 ? POLYNOMIAL : 0);
    table[0][lane()] = entry;
    meet();
    for (int i = 1; i < 4; i++) {
        entry = entry >> 8 ^ table[0][entry & 0xff];
        table[i][lane()] = entry;
    }
    meet();

    for (ulong index = group_y(); index < count; index += step) {
        struct segment segment = segments[index];
        uint sum = 0;
        for (ulong piece = first(); piece * PIECE < segment.bytes; piece += stride) {
            ulong at = piece * PIECE, left = segment.bytes - at;
            left = left > PIECE ? left - PIECE : 0;
            ulong end = segment.bytes - left;
            global const uchar *bytes = (global const uchar *)segment.va;
            uint crc = 0;
            for (; (segment.va + at & 3) != 0 && at < end; at++)
                crc = crc >> 8 ^ table[0][(crc ^ bytes[at]) & 0xff];
            for (; end - at >= 4; at += 4) {
                crc ^= *(global const uint *)(bytes + at);
                crc = table[3][crc & 0xff] ^ table[2][crc >> 8 & 0xff] ^ table[1][crc >> 16 & 0xff] ^ table[0][crc >> 24];
            }
            for (; at < end; at++)
                crc = crc >> 8 ^ table[0][(crc ^ bytes[at]) & 0xff];
            sum ^= shift(crc, left);
        }
        // By compare and swap: results may be in the host's memory, and PCIe has no atomic XOR.
        global atomic_uint *result = (global atomic_uint *)&out[index];
        uint old = __opencl_atomic_load(result, memory_order_relaxed, memory_scope_all_svm_devices);
        while (sum != 0 && !__opencl_atomic_compare_exchange_strong(result, &old, old ^ sum, memory_order_relaxed,
                                                                    memory_order_relaxed,
                                                                    memory_scope_all_svm_devices))
            ;
    }
}
