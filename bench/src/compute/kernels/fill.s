// SPDX-License-Identifier: GPL-2.0 OR MIT
// gfx900. Stores 1 KiB at a time from s[4:5] on, s0 times; v3 is 16 bytes a lane.
loop:
  global_store_dwordx4 v3, v[4:7], s[4:5]
  s_add_u32 s4, s4, 0x400
  s_addc_u32 s5, s5, 0
  s_sub_u32 s0, s0, 1
  s_cmp_lg_u32 s0, 0
  s_cbranch_scc1 loop
  s_endpgm
