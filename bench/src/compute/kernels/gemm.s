// SPDX-License-Identifier: GPL-2.0 OR MIT
// gfx90a. C = A * B, f16 to f32: a wave has 64 rows of A (v0, v1: offsets of its lanes' elements in two halves of them) and 64 columns
// of B, which is transposed (v2, v3). 16 of k in each of s0 rounds. C is stored as its registers lie, at s[8:9]; v4 is 4 bytes a lane.
  v_accvgpr_write_b32 a0, 0
  v_accvgpr_write_b32 a1, 0
  v_accvgpr_write_b32 a2, 0
  v_accvgpr_write_b32 a3, 0
  v_accvgpr_write_b32 a4, 0
  v_accvgpr_write_b32 a5, 0
  v_accvgpr_write_b32 a6, 0
  v_accvgpr_write_b32 a7, 0
  v_accvgpr_write_b32 a8, 0
  v_accvgpr_write_b32 a9, 0
  v_accvgpr_write_b32 a10, 0
  v_accvgpr_write_b32 a11, 0
  v_accvgpr_write_b32 a12, 0
  v_accvgpr_write_b32 a13, 0
  v_accvgpr_write_b32 a14, 0
  v_accvgpr_write_b32 a15, 0
  v_accvgpr_write_b32 a16, 0
  v_accvgpr_write_b32 a17, 0
  v_accvgpr_write_b32 a18, 0
  v_accvgpr_write_b32 a19, 0
  v_accvgpr_write_b32 a20, 0
  v_accvgpr_write_b32 a21, 0
  v_accvgpr_write_b32 a22, 0
  v_accvgpr_write_b32 a23, 0
  v_accvgpr_write_b32 a24, 0
  v_accvgpr_write_b32 a25, 0
  v_accvgpr_write_b32 a26, 0
  v_accvgpr_write_b32 a27, 0
  v_accvgpr_write_b32 a28, 0
  v_accvgpr_write_b32 a29, 0
  v_accvgpr_write_b32 a30, 0
  v_accvgpr_write_b32 a31, 0
  v_accvgpr_write_b32 a32, 0
  v_accvgpr_write_b32 a33, 0
  v_accvgpr_write_b32 a34, 0
  v_accvgpr_write_b32 a35, 0
  v_accvgpr_write_b32 a36, 0
  v_accvgpr_write_b32 a37, 0
  v_accvgpr_write_b32 a38, 0
  v_accvgpr_write_b32 a39, 0
  v_accvgpr_write_b32 a40, 0
  v_accvgpr_write_b32 a41, 0
  v_accvgpr_write_b32 a42, 0
  v_accvgpr_write_b32 a43, 0
  v_accvgpr_write_b32 a44, 0
  v_accvgpr_write_b32 a45, 0
  v_accvgpr_write_b32 a46, 0
  v_accvgpr_write_b32 a47, 0
  v_accvgpr_write_b32 a48, 0
  v_accvgpr_write_b32 a49, 0
  v_accvgpr_write_b32 a50, 0
  v_accvgpr_write_b32 a51, 0
  v_accvgpr_write_b32 a52, 0
  v_accvgpr_write_b32 a53, 0
  v_accvgpr_write_b32 a54, 0
  v_accvgpr_write_b32 a55, 0
  v_accvgpr_write_b32 a56, 0
  v_accvgpr_write_b32 a57, 0
  v_accvgpr_write_b32 a58, 0
  v_accvgpr_write_b32 a59, 0
  v_accvgpr_write_b32 a60, 0
  v_accvgpr_write_b32 a61, 0
  v_accvgpr_write_b32 a62, 0
  v_accvgpr_write_b32 a63, 0
loop:
  global_load_dwordx4 v[8:11], v0, s[4:5]
  global_load_dwordx4 v[12:15], v1, s[4:5]
  global_load_dwordx4 v[16:19], v2, s[6:7]
  global_load_dwordx4 v[20:23], v3, s[6:7]
  s_waitcnt vmcnt(0)
  v_mfma_f32_32x32x8f16 a[0:15], v[8:9], v[16:17], a[0:15]
  v_mfma_f32_32x32x8f16 a[16:31], v[8:9], v[20:21], a[16:31]
  v_mfma_f32_32x32x8f16 a[32:47], v[12:13], v[16:17], a[32:47]
  v_mfma_f32_32x32x8f16 a[48:63], v[12:13], v[20:21], a[48:63]
  v_mfma_f32_32x32x8f16 a[0:15], v[10:11], v[18:19], a[0:15]
  v_mfma_f32_32x32x8f16 a[16:31], v[10:11], v[22:23], a[16:31]
  v_mfma_f32_32x32x8f16 a[32:47], v[14:15], v[18:19], a[32:47]
  v_mfma_f32_32x32x8f16 a[48:63], v[14:15], v[22:23], a[48:63]
  s_add_u32 s4, s4, 32
  s_addc_u32 s5, s5, 0
  s_add_u32 s6, s6, 32
  s_addc_u32 s7, s7, 0
  s_sub_u32 s0, s0, 1
  s_cmp_lg_u32 s0, 0
  s_cbranch_scc1 loop
  global_store_dword v4, a0, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a1, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a2, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a3, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a4, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a5, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a6, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a7, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a8, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a9, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a10, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a11, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a12, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a13, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a14, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a15, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a16, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a17, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a18, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a19, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a20, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a21, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a22, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a23, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a24, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a25, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a26, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a27, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a28, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a29, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a30, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a31, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a32, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a33, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a34, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a35, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a36, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a37, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a38, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a39, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a40, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a41, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a42, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a43, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a44, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a45, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a46, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a47, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a48, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a49, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a50, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a51, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a52, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a53, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a54, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a55, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a56, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a57, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a58, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a59, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a60, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a61, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a62, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  global_store_dword v4, a63, s[8:9]
  s_add_u32 s8, s8, 0x100
  s_addc_u32 s9, s9, 0
  s_endpgm
