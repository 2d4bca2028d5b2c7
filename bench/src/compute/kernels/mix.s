// SPDX-License-Identifier: GPL-2.0 OR MIT
// gfx900. Four times: 4 fused multiplications and additions, an addition, a scalar one, a comparison, a load; all that s0 times.
loop:
  v_fma_f32 v8, v0, v1, v8
  v_fma_f32 v9, v0, v1, v9
  v_fma_f32 v10, v0, v1, v10
  v_fma_f32 v11, v0, v1, v11
  v_add_u32 v12, v12, v13
  s_add_u32 s6, s6, s7
  v_cmp_lt_f32 vcc, v0, v8
  global_load_dword v14, v2, s[4:5]
  v_fma_f32 v8, v0, v1, v8
  v_fma_f32 v9, v0, v1, v9
  v_fma_f32 v10, v0, v1, v10
  v_fma_f32 v11, v0, v1, v11
  v_add_u32 v12, v12, v13
  s_add_u32 s6, s6, s7
  v_cmp_lt_f32 vcc, v0, v8
  global_load_dword v14, v2, s[4:5]
  v_fma_f32 v8, v0, v1, v8
  v_fma_f32 v9, v0, v1, v9
  v_fma_f32 v10, v0, v1, v10
  v_fma_f32 v11, v0, v1, v11
  v_add_u32 v12, v12, v13
  s_add_u32 s6, s6, s7
  v_cmp_lt_f32 vcc, v0, v8
  global_load_dword v14, v2, s[4:5]
  v_fma_f32 v8, v0, v1, v8
  v_fma_f32 v9, v0, v1, v9
  v_fma_f32 v10, v0, v1, v10
  v_fma_f32 v11, v0, v1, v11
  v_add_u32 v12, v12, v13
  s_add_u32 s6, s6, s7
  v_cmp_lt_f32 vcc, v0, v8
  global_load_dword v14, v2, s[4:5]
  s_sub_u32 s0, s0, 1
  s_cmp_lg_u32 s0, 0
  s_cbranch_scc1 loop
  s_endpgm
