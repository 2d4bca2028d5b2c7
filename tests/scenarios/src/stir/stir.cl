// SPDX-License-Identifier: GPL-2.0 OR MIT
// A kernel that reads and writes all of its memory all the time: each word goes `rounds` steps of a linear congruential
// generator further, every step from memory and to memory. `cargo xtask kernels` compiles it to stir.gfx900.co.

#define GROUP 256

__attribute__((reqd_work_group_size(GROUP, 1, 1)))
kernel void stir(global volatile uint *words, ulong count, ulong rounds, ulong stride)
{
    ulong first = __builtin_amdgcn_workgroup_id_x() * GROUP + __builtin_amdgcn_workitem_id_x();
    for (ulong round = 0; round < rounds; round++)
        for (ulong i = first; i < count; i += stride)
            words[i] = words[i] * 1664525u + 1013904223u;
}
