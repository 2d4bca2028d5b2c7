# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Operations of PyTorch on the GPU against PyTorch on the CPU.

Usage: operations.py [CHECK...]. Prints a line for each check. A check is a function of tensors;
gradients are compared where a check has `gradient`.
"""

import functools

import numpy
import torch
import torch.nn.functional as F
from checks import main, part, register
from device import CPU, GPU, compared, on, slopes


def numbers(*shape, seed=1):
    return torch.from_numpy(numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32))


def integers(*shape, seed=2, below=1000):
    return torch.from_numpy(numpy.random.default_rng(seed).integers(0, below, shape))


def compare(function, arguments, allowed, gradient):
    said = compared(on(GPU, function, *arguments), on(CPU, function, *arguments), allowed)
    if gradient:
        apart = compared(slopes(GPU, function, *arguments), slopes(CPU, function, *arguments), gradient)
        said = f"{said}; gradient: {apart}"
    return said


def operation(name, function, *arguments, allowed=None, gradient=None):
    register(name, functools.partial(compare, function, arguments, allowed, gradient))


A, B = numbers(37, 129), numbers(37, 129, seed=2)
P, Q = integers(4001, below=1 << 30), integers(4001, seed=3, below=99) + 1
IMAGE, FILTERS = numbers(2, 8, 16, 16), numbers(12, 8, 3, 3, seed=4)
SQUARE = numbers(24, 24) @ numbers(24, 24).T + 24 * torch.eye(24)

part("elementwise")
operation("add", lambda a, b: a + b, A, B)
operation("add_strided", lambda a, b: a.T[::2, 1:] + b.T[1::2, :-1].contiguous(), A[:, :128], B[:, :128])
operation("arithmetic", lambda a, b: a * b - a / (1 + b * b), A, B, allowed=1e-6, gradient=1e-5)
operation("addcmul", lambda a, b: torch.addcmul(a, a, b, value=0.3), A, B, allowed=1e-6, gradient=1e-5)
operation("exponential", lambda a: a.exp() + a.expm1(), A, allowed=2e-6, gradient=1e-5)
operation("logarithm", lambda a: (a * a).log1p(), A, allowed=2e-6, gradient=1e-5)
operation("trigonometry", lambda a: (3 * a).sin() + a.cos() * (a / 4).tan(), A, allowed=2e-6, gradient=1e-5)
operation("tanh", lambda a: a.tanh() + a.sigmoid(), A, allowed=2e-6, gradient=1e-5)
operation("powers", lambda a: (a.abs() + 0.1) ** 1.7 + a**3, A, allowed=5e-6, gradient=1e-5)
operation("roots", lambda a: (a.abs() + 1).sqrt() + (a * a + 1).rsqrt(), A, allowed=2e-6, gradient=1e-5)
operation("error_function", lambda a: a.erf() + (a.tanh() * 0.9).erfinv(), A, allowed=5e-6, gradient=1e-4)
operation("gamma_function", lambda a: (a.abs() + 0.5).lgamma() + (a.abs() + 0.5).digamma(), A, allowed=1e-5)
operation("bessel", lambda a: torch.special.i0e(a) + torch.special.i1e(a), A, allowed=5e-6)
operation("angles", lambda a, b: torch.atan2(a, b), A, B, allowed=2e-6, gradient=1e-5)
operation("rounding", lambda a: torch.stack([(5 * a).floor(), (5 * a).ceil(), (5 * a).round(), (5 * a).trunc()]), A)
operation("signs", lambda a: torch.stack([a.sign(), a.abs(), -a, torch.nextafter(a, a + 1)]), A)
operation("whole_numbers", lambda p, q: (p // q) * 3 + p % q, P, Q)
operation("bits", lambda p, q: (p ^ q) | ((p & 255) << 3) | (p >> 5), P, Q)
operation("comparisons", lambda a, b: torch.stack([a < b, a >= b, a == b, (a > 0) & (b > 0)]), A, B)
operation("selection", lambda a, b: torch.where(a > b, a, b * 2), A, B, allowed=1e-6, gradient=1e-5)
operation("clamping", lambda a: a.clamp(-0.5, 0.7), A)
operation("conversions", lambda a: (100 * a).to(torch.int32) + (10 * a).to(torch.int16), A)
operation("halves", lambda a, b: a.half() * b.half() + a.half(), A, B, allowed=2e-3)
operation("brain_floats", lambda a, b: a.bfloat16() * b.bfloat16(), A, B)
operation("doubles", lambda a, b: (a.double() * b.double()).exp(), A, B, allowed=1e-13)
operation("complex_numbers", lambda a, b: (torch.complex(a, b) / 3).exp() * torch.complex(b, a), A, B, allowed=5e-6)
part("reductions")
operation("sums", lambda a: (a.sum(0), a.sum(1), a.sum()), A, allowed=1e-5, gradient=1e-5)
operation("sums_of_whole_numbers", lambda p: p.sum(), P)
operation("means", lambda a: (a.mean(0), a.var(1), a.std()), A, allowed=1e-5, gradient=1e-4)
operation("extremes", lambda a: (a.max(0).values, a.min(1).values, a.argmax(1), a.argmin(0)), A)
operation("logical_sums", lambda a: ((a > 2).any(1), (a < 2).all(0), (a > 0).sum()), A)
operation("products", lambda a: (1 + a / 50).prod(1), A, allowed=1e-5, gradient=1e-5)
operation("norms", lambda a: (a.norm(), a.norm(1, dim=0), torch.linalg.vector_norm(a, 3)), A, allowed=1e-5)
operation("log_sum_exp", lambda a: a.logsumexp(1), A, allowed=2e-6, gradient=1e-5)
operation("running_sums", lambda a: a.cumsum(1), A, allowed=1e-5, gradient=1e-5)
operation("running_products", lambda a: (1 + a / 50).cumprod(0), A, allowed=1e-5)
operation("running_extremes", lambda a: a.cummax(1), A)
operation("histogram", lambda q: torch.bincount(q), Q)
part("sorting")
operation("sort", lambda a: a.sort(1).values, A)
operation("sort_long", lambda p: p.sort(stable=True), P)
operation("order", lambda a: a.argsort(1), A)
operation("largest", lambda a: a.topk(9), A)
operation("smallest", lambda a: a.kthvalue(5, dim=1), A)
operation("search", lambda a, b: torch.searchsorted(a.ravel().sort().values, b), A, B)
operation("median", lambda a: a.median(1).values, A)
operation("unique", lambda q: q.unique(return_inverse=True, return_counts=True), Q)
part("indices")
operation("gather", lambda a, p: a.gather(1, p[:3700].view(37, 100) % 129), A, P)
operation("take_rows", lambda a, p: a[p[:60] % 37], A, P)
operation("select_rows", lambda a, p: a.index_select(0, p[:60] % 37), A, P, allowed=1e-6, gradient=1e-5)
operation("scatter_sums", lambda q: torch.zeros(100, dtype=torch.int64, device=q.device).scatter_add_(0, q, q), Q)
operation("put", lambda a, p: a.index_put((p[:20] % 37, p[20:40] % 129), a[0, :20], accumulate=True), A, P, allowed=1e-6)
operation("masked", lambda a: a[a > 1], A)
operation("nonzero", lambda a: (a > 1).nonzero(), A)
operation("slices", lambda a: a[3:23, 7:67].flip(0)[:, ::3], A, allowed=1e-6, gradient=1e-5)
operation("padding", lambda a: F.pad(a[None], (3, 4, 1, 2), mode="reflect"), A, allowed=1e-6, gradient=1e-5)
operation("joining", lambda a, b: torch.cat([a, b.flip(0)], 1).reshape(74, -1).T.contiguous(), A, B)
operation("rolling", lambda a: a.roll((3, -7), (0, 1)) + a.tril(4), A)
operation("grid", lambda a: torch.arange(129, device=a.device) * 2 + torch.linspace(0, 1, 129, device=a.device), A)
operation("one_hot", lambda q: F.one_hot(q[:50], 101), Q)
operation("embedding", lambda a, q: F.embedding(q[:64] % 37, a), A, Q, allowed=1e-6, gradient=1e-5)
part("products")
operation("matmul", lambda a, b: a @ b.T, A, B, allowed=1e-5, gradient=1e-5)
operation("matmul_halves", lambda a, b: a.half() @ b.half().T, A, B, allowed=3e-3)
operation("matmul_brain_floats", lambda a, b: a.bfloat16() @ b.bfloat16().T, A, B, allowed=2e-2)
operation("matmul_doubles", lambda a, b: a.double() @ b.double().T, A, B, allowed=1e-13)
operation("matmul_complex", lambda a, b: torch.complex(a, b) @ torch.complex(b, a).T, A, B, allowed=1e-5)
operation("matmul_in_batches", lambda a: a @ a.transpose(1, 2), numbers(5, 17, 23), allowed=1e-5, gradient=1e-5)
operation("matmul_added", lambda a, b: torch.addmm(a[:, :37], a, b.T, beta=0.5), A, B, allowed=1e-5, gradient=1e-5)
operation("vectors", lambda a, b: a.ravel() @ b.ravel(), A, B, allowed=1e-4)
operation("matrix_vector", lambda a, b: a @ b[0], A, B, allowed=1e-5)
operation("einsum", lambda a: torch.einsum("ijk,kjl->il", a, a.permute(2, 1, 0)), numbers(9, 8, 7), allowed=1e-5)
part("convolutions")
operation("convolution", lambda i, f: F.conv2d(i, f, padding=1), IMAGE, FILTERS, allowed=1e-5, gradient=1e-4)
operation("convolution_strides", lambda i, f: F.conv2d(i, f, stride=2, padding=1), IMAGE, FILTERS, allowed=1e-5)
operation("convolution_dilated", lambda i, f: F.conv2d(i, f, padding=2, dilation=2), IMAGE, FILTERS, allowed=1e-5)
operation(
    "convolution_groups", lambda i, f: F.conv2d(i, f, padding=1, groups=4), IMAGE, numbers(12, 2, 3, 3), allowed=1e-5
)
operation("convolution_back", lambda i, f: F.conv_transpose2d(i, f, stride=2), IMAGE, numbers(8, 5, 3, 3), allowed=1e-5)
operation("convolution_line", lambda i, f: F.conv1d(i, f, padding=2), numbers(2, 4, 50), numbers(6, 4, 5), allowed=1e-5)
operation("pooling", lambda i: F.max_pool2d(i, 2), IMAGE, allowed=1e-6, gradient=1e-5)
operation("pooling_means", lambda i: F.avg_pool2d(i, 3, 2), IMAGE, allowed=1e-6, gradient=1e-5)
operation("pooling_adaptive", lambda i: F.adaptive_avg_pool2d(i, (3, 5)), IMAGE, allowed=1e-6, gradient=1e-5)
operation("resizing", lambda i: F.interpolate(i, (25, 31), mode="bilinear"), IMAGE, allowed=1e-5, gradient=1e-5)
operation("resizing_nearest", lambda i: F.interpolate(i, scale_factor=2), IMAGE, allowed=1e-6, gradient=1e-5)
part("fourier")
operation("fourier", lambda a, b: torch.fft.fft(torch.complex(a[:, :128], b[:, :128])), A, B, allowed=1e-5)
operation("fourier_real", lambda a: torch.fft.rfft(a[:, :120]), A, allowed=1e-5)
operation("fourier_back", lambda a: torch.fft.irfft(torch.fft.rfft(a[:, :64])), A, allowed=1e-5)
operation("fourier_planes", lambda a: torch.fft.fft2(a[:32, :64]), A, allowed=1e-5)
part("solvers")
operation("cholesky", torch.linalg.cholesky, SQUARE, allowed=1e-5)
operation(
    "triangles", lambda s, a: torch.linalg.solve_triangular(s.tril(), a[:24, :9], upper=False), SQUARE, A, allowed=1e-4
)
operation("solve", lambda s, a: torch.linalg.solve(s, a[:24, :5]), SQUARE, A, allowed=1e-4, gradient=1e-3)
operation("inverse", torch.linalg.inv, SQUARE, allowed=1e-4)
operation("determinant", torch.linalg.slogdet, SQUARE, allowed=1e-4)
operation("eigenvalues", torch.linalg.eigvalsh, SQUARE, allowed=1e-4)
operation("orthogonal", lambda a: torch.linalg.qr(a[:, :20])[1].abs(), A, allowed=1e-4)
operation("singular_values", lambda a: torch.linalg.svdvals(a[:, :20]), A, allowed=1e-4)

if __name__ == "__main__":
    main()
