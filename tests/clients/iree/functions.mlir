// SPDX-License-Identifier: GPL-2.0 OR MIT
// Functions as models have them, for IREE. inputs.py has their inputs.

func.func @matmul_f32(%a: tensor<128x256xf32>, %b: tensor<256x64xf32>) -> tensor<128x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<128x64xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<128x64xf32>) -> tensor<128x64xf32>
  %product = linalg.matmul ins(%a, %b : tensor<128x256xf32>, tensor<256x64xf32>)
      outs(%start : tensor<128x64xf32>) -> tensor<128x64xf32>
  return %product : tensor<128x64xf32>
}

func.func @matmul_f16(%a: tensor<128x256xf16>, %b: tensor<256x64xf16>) -> tensor<128x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<128x64xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<128x64xf32>) -> tensor<128x64xf32>
  %product = linalg.matmul ins(%a, %b : tensor<128x256xf16>, tensor<256x64xf16>)
      outs(%start : tensor<128x64xf32>) -> tensor<128x64xf32>
  return %product : tensor<128x64xf32>
}

func.func @convolution(%image: tensor<1x18x18x8xf32>, %weights: tensor<3x3x8x16xf32>) -> tensor<1x16x16x16xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<1x16x16x16xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<1x16x16x16xf32>) -> tensor<1x16x16x16xf32>
  %sum = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
      ins(%image, %weights : tensor<1x18x18x8xf32>, tensor<3x3x8x16xf32>)
      outs(%start : tensor<1x16x16x16xf32>) -> tensor<1x16x16x16xf32>
  return %sum : tensor<1x16x16x16xf32>
}

func.func @softmax(%x: tensor<16x100xf32>) -> tensor<16x100xf32> {
  %empty = tensor.empty() : tensor<16x100xf32>
  %shares = linalg.softmax dimension(1) ins(%x : tensor<16x100xf32>) outs(%empty : tensor<16x100xf32>)
      -> tensor<16x100xf32>
  return %shares : tensor<16x100xf32>
}

func.func @activation(%x: tensor<1000xf32>) -> tensor<1000xf32> {
  %empty = tensor.empty() : tensor<1000xf32>
  %result = linalg.generic {
      indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]
  } ins(%x : tensor<1000xf32>) outs(%empty : tensor<1000xf32>) {
  ^bb0(%in: f32, %out: f32):
    %tanh = math.tanh %in : f32
    %exp = math.exp %tanh : f32
    %erf = math.erf %exp : f32
    linalg.yield %erf : f32
  } -> tensor<1000xf32>
  return %result : tensor<1000xf32>
}
