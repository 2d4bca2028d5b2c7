// SPDX-License-Identifier: GPL-2.0 OR MIT
// A kernel of one's own, for the examples: multiplies by three. `cargo xtask kernels` compiles it as
//   clang-19 -x cl -cl-std=CL2.0 -target amdgcn-amd-amdhsa -mcpu=gfx900 -nogpulib -O2 -o triple.gfx900.co triple.cl

__attribute__((reqd_work_group_size(64, 1, 1)))
kernel void triple(global uint *words, uint count)
{
    uint i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
    if (i < count)
        words[i] *= 3;
}
