// SPDX-License-Identifier: GPL-2.0 OR MIT
// The kernels that `vkfd bench compute` launches, in OpenCL C without a runtime's library. `cargo xtask kernels` compiles them for
// gfx900.

#define GROUP 256
#define LINE __attribute__((reqd_work_group_size(GROUP, 1, 1))) kernel void

static uint lane(void) { return __builtin_amdgcn_workitem_id_x(); }
static ulong first(void) { return (ulong)__builtin_amdgcn_workgroup_id_x() * GROUP + lane(); }

// Sets words of 16 bytes.
LINE fill(global uint4 *to, ulong count, ulong stride, uint value)
{
    for (ulong i = first(); i < count; i += stride)
        to[i] = (uint4)(value);
}

// Copies words of 16 bytes.
LINE copy(global uint4 *to, global const uint4 *from, ulong count, ulong stride)
{
    for (ulong i = first(); i < count; i += stride)
        to[i] = from[i];
}

// Does nothing.
LINE empty(void)
{
}

// Computes for long, and keeps nothing but the last value.
LINE busy(global float *to, uint turns)
{
    float a = lane(), b = 0.5f;
    for (uint i = 0; i < turns; i++)
        for (uint j = 0; j < 16; j++) {
            a = fma(a, 0.75f, b);
            b = fma(b, 0.5f, a);
        }
    to[first()] = a + b;
}

static void meet(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// c = a * b, of matrices whose sizes are multiples of 16: each work-item an element, tiles through LDS, as beginners' samples do it.
#define TILE 16
__attribute__((reqd_work_group_size(TILE, TILE, 1))) kernel void
matmul(global const float *a, global const float *b, global float *c, uint columns_of_a, uint columns_of_b)
{
    local float tile_a[TILE][TILE], tile_b[TILE][TILE];
    const uint tx = __builtin_amdgcn_workitem_id_x(), ty = __builtin_amdgcn_workitem_id_y();
    const uint bx = __builtin_amdgcn_workgroup_id_x(), by = __builtin_amdgcn_workgroup_id_y();
    float sum = 0;
    for (uint step = 0; step < columns_of_a / TILE; step++) {
        tile_a[ty][tx] = a[TILE * (columns_of_a * by + step) + columns_of_a * ty + tx];
        tile_b[ty][tx] = b[TILE * (columns_of_b * step + bx) + columns_of_b * ty + tx];
        meet();
        for (uint i = 0; i < TILE; i++)
            sum += tile_a[ty][i] * tile_b[i][tx];
        meet();
    }
    c[columns_of_b * (TILE * by + ty) + TILE * bx + tx] = sum;
}
