// SPDX-License-Identifier: GPL-2.0 OR MIT
// Kernels of the tests, 512 bytes each, in the order of `Kernel` in kernels.rs. The bytes beside this file are
//   llvm-mc-19 -triple=amdgcn-amd-amdhsa -mcpu=gfx900 -filetype=obj gfx900.s -o gfx900.o
//   llvm-objcopy-19 -O binary -j .text gfx900.o gfx900.bin
// Each begins with the arguments' address in s[0:1], the work-group's index in s2 and the work-item's in v0, but for
// `scratch`: the scratch's buffer in s[0:3], arguments in s[4:5], work-group in s6, the wave's offset in s7.
        .text

// add(a, b, c, n, group): c[i] = a[i] + b[i]
        .p2align 9
        s_load_dwordx4 s[4:7], s[0:1], 0x0
        s_load_dwordx4 s[8:11], s[0:1], 0x10
        s_load_dword s12, s[0:1], 0x1c
        s_waitcnt lgkmcnt(0)
        s_mul_i32 s3, s2, s12
        v_add_u32 v1, s3, v0
        v_cmp_gt_u32 vcc, s10, v1
        s_and_saveexec_b64 s[14:15], vcc
        s_cbranch_execz 1f
        v_lshlrev_b32 v2, 2, v1
        global_load_dword v3, v2, s[4:5]
        global_load_dword v4, v2, s[6:7]
        s_waitcnt vmcnt(0)
        v_add_u32 v3, v3, v4
        global_store_dword v2, v3, s[8:9]
1:      s_endpgm

// reverse(data, group): each group's words in reverse, through LDS
        .p2align 9
        s_load_dwordx4 s[4:7], s[0:1], 0x0
        v_lshlrev_b32 v1, 2, v0
        s_waitcnt lgkmcnt(0)
        s_mul_i32 s3, s2, s6
        s_lshl_b32 s3, s3, 2
        v_add_u32 v2, s3, v1
        global_load_dword v3, v2, s[4:5]
        s_waitcnt vmcnt(0)
        ds_write_b32 v1, v3
        s_waitcnt lgkmcnt(0)
        s_barrier
        s_sub_u32 s7, s6, 1
        v_sub_u32 v4, s7, v0
        v_lshlrev_b32 v4, 2, v4
        ds_read_b32 v5, v4
        s_waitcnt lgkmcnt(0)
        global_store_dword v2, v5, s[4:5]
        s_endpgm

// scratch(out, group): out[i] = sum over k < 4 of (i + 17 k) << k, kept in scratch meanwhile
        .p2align 9
        s_load_dwordx4 s[8:11], s[4:5], 0x0
        s_waitcnt lgkmcnt(0)
        s_mul_i32 s12, s6, s10
        v_add_u32 v1, s12, v0
        .set k, 0
        .rept 4
        v_add_u32 v2, 17 * k, v1
        buffer_store_dword v2, off, s[0:3], s7 offset:4 * k
        .set k, k + 1
        .endr
        s_sleep 1
        v_mov_b32 v4, 0
        .set k, 3
        .rept 4
        buffer_load_dword v3, off, s[0:3], s7 offset:4 * k
        s_waitcnt vmcnt(0)
        v_lshl_add_u32 v4, v3, k, v4
        .set k, k - 1
        .endr
        v_lshlrev_b32 v1, 2, v1
        global_store_dword v1, v4, s[8:9]
        s_endpgm

// count(counter): adds the work-item's index plus one
        .p2align 9
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_add_u32 v1, 1, v0
        v_mov_b32 v2, 0
        s_waitcnt lgkmcnt(0)
        global_atomic_add v2, v1, s[4:5]
        s_endpgm

// meet(counter, groups, sleep, out): every group waits until all have come, then writes 1 to out[group]
        .p2align 9
        s_load_dwordx4 s[4:7], s[0:1], 0x0
        s_load_dwordx2 s[8:9], s[0:1], 0x10
        s_mov_b64 exec, 1
        v_mov_b32 v1, 1
        v_mov_b32 v2, 0
        s_waitcnt lgkmcnt(0)
        global_atomic_add v2, v1, s[4:5]
1:      global_load_dword v3, v2, s[4:5] glc
        s_waitcnt vmcnt(0)
        v_readfirstlane_b32 s10, v3
        s_cmp_ge_u32 s10, s6
        s_cbranch_scc1 2f
        s_cmp_eq_u32 s7, 0
        s_cbranch_scc1 1b
        s_sleep 1
        s_branch 1b
2:      s_lshl_b32 s3, s2, 2
        v_mov_b32 v2, s3
        global_store_dword v2, v1, s[8:9]
        s_endpgm

// forever(): never ends
        .p2align 9
1:      s_add_u32 s4, s4, 1
        s_branch 1b

// churn(data, rounds, group): so often, x = x * 1664525 + 1013904223 in memory
        .p2align 9
        s_load_dwordx4 s[4:7], s[0:1], 0x0
        s_waitcnt lgkmcnt(0)
        s_mul_i32 s3, s2, s7
        v_add_u32 v1, s3, v0
        v_lshlrev_b32 v1, 2, v1
        s_mov_b32 s8, 0x19660d
        s_mov_b32 s9, 0x3c6ef35f
1:      global_load_dword v2, v1, s[4:5]
        s_waitcnt vmcnt(0)
        v_mul_lo_u32 v2, v2, s8
        v_add_u32 v2, s9, v2
        global_store_dword v1, v2, s[4:5]
        s_waitcnt vmcnt(0)
        s_sub_u32 s6, s6, 1
        s_cmp_lg_u32 s6, 0
        s_cbranch_scc1 1b
        s_endpgm

// trap(): llvm.trap; the breakpoint before it does nothing without a debugger
        .p2align 9
        s_trap 3
        s_trap 2
        s_endpgm

// illegal()
        .p2align 9
        s_nop 0
        .long 0xffffffff
        s_endpgm

// message(event): interrupts the driver
        .p2align 9
        s_load_dword s4, s[0:1], 0x0
        s_waitcnt lgkmcnt(0)
        s_mov_b32 m0, s4
        s_nop 0
        s_sendmsg sendmsg(MSG_INTERRUPT)
        s_endpgm

// poke(address): writes 1 there
        .p2align 9
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_mov_b32 v1, 1
        v_mov_b32 v2, 0
        s_waitcnt lgkmcnt(0)
        global_store_dword v2, v1, s[4:5]
        s_endpgm
        .p2align 9
