// SPDX-License-Identifier: GPL-2.0 OR MIT
// gfx900. Copies 1 KiB at a time from s[6:7] to s[4:5], s0 times; v3 is 16 bytes a lane.
loop:
  global_load_dwordx4 v[4:7], v3, s[6:7]
  s_add_u32 s6, s6, 0x400
  s_addc_u32 s7, s7, 0
  s_waitcnt vmcnt(0)
  global_store_dwordx4 v3, v[4:7], s[4:5]
  s_add_u32 s4, s4, 0x400
  s_addc_u32 s5, s5, 0
  s_sub_u32 s0, s0, 1
  s_cmp_lg_u32 s0, 0
  s_cbranch_scc1 loop
  s_endpgm
