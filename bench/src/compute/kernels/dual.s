// SPDX-License-Identifier: GPL-2.0 OR MIT
// gfx1100, waves of 32. A chain of 32 fused multiplications and additions in dual instructions, s0
// times.
loop:
  v_dual_fmac_f32 v8, v0, v4 :: v_dual_fmac_f32 v9, v1, v5
  v_dual_fmac_f32 v10, v2, v6 :: v_dual_fmac_f32 v11, v3, v7
  v_dual_fmac_f32 v12, v0, v4 :: v_dual_fmac_f32 v13, v1, v5
  v_dual_fmac_f32 v14, v2, v6 :: v_dual_fmac_f32 v15, v3, v7
  v_dual_fmac_f32 v8, v0, v4 :: v_dual_fmac_f32 v9, v1, v5
  v_dual_fmac_f32 v10, v2, v6 :: v_dual_fmac_f32 v11, v3, v7
  v_dual_fmac_f32 v12, v0, v4 :: v_dual_fmac_f32 v13, v1, v5
  v_dual_fmac_f32 v14, v2, v6 :: v_dual_fmac_f32 v15, v3, v7
  v_dual_fmac_f32 v8, v0, v4 :: v_dual_fmac_f32 v9, v1, v5
  v_dual_fmac_f32 v10, v2, v6 :: v_dual_fmac_f32 v11, v3, v7
  v_dual_fmac_f32 v12, v0, v4 :: v_dual_fmac_f32 v13, v1, v5
  v_dual_fmac_f32 v14, v2, v6 :: v_dual_fmac_f32 v15, v3, v7
  v_dual_fmac_f32 v8, v0, v4 :: v_dual_fmac_f32 v9, v1, v5
  v_dual_fmac_f32 v10, v2, v6 :: v_dual_fmac_f32 v11, v3, v7
  v_dual_fmac_f32 v12, v0, v4 :: v_dual_fmac_f32 v13, v1, v5
  v_dual_fmac_f32 v14, v2, v6 :: v_dual_fmac_f32 v15, v3, v7
  s_sub_u32 s0, s0, 1
  s_cmp_lg_u32 s0, 0
  s_cbranch_scc1 loop
  s_endpgm
