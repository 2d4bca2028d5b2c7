# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Operations of JAX on the GPU against JAX's CPU back end.

Usage: operations.py [CHECK...]. Prints a line for each check. A check is a function of arrays that
XLA compiles for both; gradients are compared where a check has `gradient`.
"""

import functools

import jax
import jax.numpy as jnp
import jax.scipy
import numpy
from checks import equal, main, near, part, register
from jax import lax

GPU, CPU = jax.devices("rocm")[0], jax.devices("cpu")[0]
F32, F16, I32 = numpy.float32, numpy.float16, numpy.int32


def numbers(*shape, seed=1, kind=F32):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(kind)


def integers(*shape, seed=2, below=1000, kind=I32):
    return numpy.random.default_rng(seed).integers(0, below, shape).astype(kind)


def on(device, function, arguments):
    """What the function gives there, as arrays."""
    arguments = [jax.device_put(argument, device) for argument in arguments]
    with jax.default_device(device):
        given = jax.jit(function)(*arguments)
    given = jax.tree.leaves(given)
    assert all(array.devices() == {device} for array in given), [array.devices() for array in given]
    return [numpy.asarray(array) for array in given]


def compare(function, arguments, allowed, gradient):
    """Exact without `allowed`."""
    functions = [function]
    if gradient:
        functions.append(
            jax.grad(lambda *arguments: sum(jnp.sum(jnp.sin(part)) for part in jax.tree.leaves(function(*arguments))))
        )
    said = []
    for each in functions:
        for got, wanted in zip(on(GPU, each, arguments), on(CPU, each, arguments), strict=True):
            if got.dtype == jnp.bfloat16:
                got, wanted = got.astype(F32), wanted.astype(F32)
            said.append(near(got, wanted, allowed) if allowed else equal(got, wanted))
    return "; ".join(said)


def operation(name, function, *arguments, allowed=None, gradient=False):
    register(name, functools.partial(compare, function, arguments, allowed, gradient))


A, B = numbers(37, 129), numbers(37, 129, seed=2)
P, Q = integers(4001, below=1 << 30), integers(4001, seed=3, below=99) + 1
# Parts of an image, and filters.
IMAGE, FILTERS = numbers(2, 8, 16, 16), numbers(12, 8, 3, 3, seed=4)
SQUARE = numbers(24, 24) @ numbers(24, 24).T + 24 * numpy.eye(24, dtype=F32)

part("elementwise")
operation("add", lambda a, b: a + b, A, B)
operation("arithmetic", lambda a, b: a * b - a / (1 + b * b), A, B, allowed=1e-6, gradient=True)
operation("exponential", lambda a: jnp.exp(a), A, allowed=2e-6, gradient=True)
operation("logarithm", lambda a: jnp.log1p(a * a), A, allowed=2e-6, gradient=True)
operation("trigonometry", lambda a: jnp.sin(3 * a) + jnp.cos(a) * jnp.tan(a / 4), A, allowed=2e-6, gradient=True)
operation("tanh", lambda a: jnp.tanh(a), A, allowed=2e-6, gradient=True)
operation("powers", lambda a: jnp.power(jnp.abs(a) + 0.1, 1.7) + a**3, A, allowed=5e-6, gradient=True)
operation("roots", lambda a: jnp.sqrt(jnp.abs(a) + 1) + lax.rsqrt(a * a + 1), A, allowed=2e-6, gradient=True)
operation("error_function", lambda a: lax.erf(a) + lax.erf_inv(jnp.tanh(a) * 0.9), A, allowed=5e-6)
operation("gamma_function", lambda a: lax.lgamma(jnp.abs(a) + 0.5) + lax.digamma(jnp.abs(a) + 0.5), A, allowed=1e-5)
operation("bessel", lambda a: lax.bessel_i0e(a) + lax.bessel_i1e(a), A, allowed=5e-6)
operation("angles", lambda a, b: jnp.arctan2(a, b), A, B, allowed=2e-6)
operation("rounding", lambda a: jnp.stack([jnp.floor(5 * a), jnp.ceil(5 * a), jnp.round(5 * a), jnp.trunc(5 * a)]), A)
operation("signs", lambda a: jnp.stack([jnp.sign(a), jnp.abs(a), -a, jnp.nextafter(a, a + 1)]), A)
operation("whole_numbers", lambda p, q: (p // q) * 3 + p % q, P, Q)
operation("bits", lambda p, q: (p ^ q) | ((p & 255) << 3) | (p >> 5), P, Q)
operation("bit_counts", lambda p: lax.population_count(p) + lax.clz(p), P)
operation("comparisons", lambda a, b: jnp.stack([a < b, a >= b, a == b, (a > 0) & (b > 0)]), A, B)
operation("selection", lambda a, b: jnp.where(a > b, a, b * 2), A, B, allowed=1e-6, gradient=True)
operation("clamping", lambda a: jnp.clip(a, -0.5, 0.7), A)
operation("conversions", lambda a: (100 * a).astype(jnp.int8).astype(jnp.int32) + (10 * a).astype(jnp.int32), A)
operation("halves", lambda a, b: a * b + a, A.astype(F16), B.astype(F16), allowed=2e-3)
operation("brain_floats", lambda a, b: a * b, A.astype(jnp.bfloat16), B.astype(jnp.bfloat16))
operation("complex_numbers", lambda a, b: jnp.exp(lax.complex(a, b) / 3) * lax.complex(b, a), A, B, allowed=5e-6)
part("reductions")
operation("sums", lambda a: (a.sum(0), a.sum(1), a.sum()), A, allowed=1e-5, gradient=True)
operation("sums_of_whole_numbers", lambda p: p.sum(), P)
operation("means", lambda a: (a.mean(0), a.var(1), a.std()), A, allowed=1e-5, gradient=True)
operation("extremes", lambda a: (a.max(0), a.min(1), a.argmax(1), a.argmin(0)), A)
operation("logical_sums", lambda a: (jnp.any(a > 2, axis=1), jnp.all(a < 2, axis=0)), A)
operation("products", lambda a: jnp.prod(1 + a / 50, axis=1), A, allowed=1e-5, gradient=True)
operation("softmax", lambda a: jax.nn.softmax(a, axis=-1), A, allowed=5e-5, gradient=True)
operation("log_sum_exp", lambda a: jax.scipy.special.logsumexp(a, axis=1), A, allowed=2e-6, gradient=True)
operation("running_sums", lambda a: jnp.cumsum(a, axis=1), A, allowed=1e-5, gradient=True)
operation("running_products", lambda a: jnp.cumprod(1 + a / 50, axis=0), A, allowed=1e-5)
operation("running_extremes", lambda a: lax.cummax(a, axis=1), A)
operation("associative_scan", lambda a: lax.associative_scan(jnp.maximum, a, axis=0), A)
operation("windows", lambda a: lax.reduce_window(a, 0.0, lax.add, (3, 5), (1, 2), "SAME"), A, allowed=2e-6)
part("sorting")
operation("sort", lambda a: jnp.sort(a, axis=1), A)
operation("sort_long", lambda p: jnp.sort(p), P)
operation("order", lambda a: jnp.argsort(a, axis=1), A)
operation("sort_pairs", lambda p, q: lax.sort((q, p), num_keys=2), P, Q)
operation("largest", lambda a: lax.top_k(a, 9), A)
operation("search", lambda a, b: jnp.searchsorted(jnp.sort(a.ravel()), b.ravel()), A, B)
operation("median", lambda a: jnp.median(a, axis=1), A, allowed=1e-6)
part("indices")
operation("gather", lambda a, p: a[p[:50] % 37, p[50:100] % 129], A, P)
operation("take_rows", lambda a, p: jnp.take(a, p[:60] % 37, axis=0), A, P)
operation("scatter", lambda a, p: a.at[p[:20] % 37].set(7.0), A, P)
operation("scatter_sums", lambda q: jnp.zeros(100, jnp.int32).at[q].add(q), Q)
operation("segments", lambda a, q: jax.ops.segment_sum(a[:, 0], q[:37] % 5, 5), A, Q, allowed=1e-6)
operation("slices", lambda a: lax.dynamic_slice(a, (3, 7), (20, 60))[::-1, ::3], A, allowed=1e-6, gradient=True)
operation("updates", lambda a: lax.dynamic_update_slice(a, a[:5, :6] * 2, (11, 12)), A)
operation("padding", lambda a: lax.pad(a, 1.5, ((1, 2, 1), (-3, 4, 2))), A)
operation("joining", lambda a, b: jnp.concatenate([a, b[::-1]], axis=1).reshape(74, -1).T, A, B)
operation("broadcasting", lambda a: a[:, None, :20] + a[None, :, 20:40], A)
operation("iota", lambda a: jnp.arange(129) * 2 + jnp.tri(37, 129, k=4), A)
operation("one_hot", lambda q: jax.nn.one_hot(q[:50], 101), Q)
part("products")
operation("matmul", lambda a, b: a @ b.T, A, B, allowed=1e-5, gradient=True)
operation("matmul_halves", lambda a, b: a @ b.T, A.astype(F16), B.astype(F16), allowed=3e-3)
operation("matmul_brain_floats", lambda a, b: a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16).T, A, B, allowed=2e-2)
operation("matmul_complex", lambda a, b: lax.complex(a, b) @ lax.complex(b, a).T, A, B, allowed=1e-5)
operation(
    "matmul_in_batches", lambda a: jnp.einsum("bij,bkj->bik", a, a), numbers(5, 17, 23), allowed=1e-5, gradient=True
)
operation("vectors", lambda a, b: jnp.dot(a.ravel(), b.ravel()), A, B, allowed=1e-4)
operation("einsum", lambda a: jnp.einsum("ijk,kjl->il", a, a.transpose(2, 1, 0)), numbers(9, 8, 7), allowed=1e-5)
part("convolutions")
DIMENSIONS = ("NCHW", "OIHW", "NCHW")


def convolve(strides=(1, 1), **options):
    return lambda image, filters: lax.conv_general_dilated(
        image, filters, strides, "SAME", dimension_numbers=DIMENSIONS, **options
    )


operation("convolution", convolve(), IMAGE, FILTERS, allowed=1e-5, gradient=True)
operation("convolution_strides", convolve((2, 2)), IMAGE, FILTERS, allowed=1e-5)
operation("convolution_dilated", convolve(rhs_dilation=(2, 2)), IMAGE, FILTERS, allowed=1e-5)
operation("convolution_groups", convolve(feature_group_count=4), IMAGE, numbers(12, 2, 3, 3), allowed=1e-5)
operation("convolution_pointwise", convolve(), IMAGE, numbers(12, 8, 1, 1), allowed=1e-5)
operation(
    "convolution_line",
    lambda a, b: lax.conv_general_dilated(a, b, (1,), "SAME", dimension_numbers=("NCH", "OIH", "NCH")),
    numbers(2, 4, 50),
    numbers(6, 4, 5, seed=2),
    allowed=1e-5,
)
operation(
    "pooling",
    lambda a: lax.reduce_window(a, -numpy.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
    IMAGE,
    allowed=1e-6,
    gradient=True,
)
operation("resizing", lambda a: jax.image.resize(a, (2, 8, 25, 31), "bilinear"), IMAGE, allowed=1e-5)
part("fourier")
operation("fourier", lambda a, b: jnp.fft.fft(lax.complex(a[:, :128], b[:, :128])), A, B, allowed=1e-5)
operation("fourier_real", lambda a: jnp.fft.rfft(a[:, :120]), A, allowed=1e-5)
operation("fourier_back", lambda a: jnp.fft.irfft(jnp.fft.rfft(a[:, :64])), A, allowed=1e-5)
operation("fourier_planes", lambda a: jnp.fft.fft2(a[:32, :64]), A, allowed=1e-5)
part("solvers")
operation("cholesky", lambda a: jnp.linalg.cholesky(a), SQUARE, allowed=1e-5, gradient=True)
operation(
    "triangles",
    lambda a, b: lax.linalg.triangular_solve(a, b[:24, :24], left_side=True, lower=True),
    SQUARE,
    A,
    allowed=1e-4,
)
operation("solve", lambda a, b: jnp.linalg.solve(a, b[:24, :5]), SQUARE, A, allowed=1e-4)
operation("inverse", lambda a: jnp.linalg.inv(a), SQUARE, allowed=1e-4)
operation("determinant", lambda a: jnp.linalg.slogdet(a), SQUARE, allowed=1e-4)
operation("eigenvalues", lambda a: jnp.linalg.eigvalsh(a), SQUARE, allowed=1e-4)
operation("orthogonal", lambda a: jnp.abs(jnp.linalg.qr(a[:, :20])[1]), A, allowed=1e-4)
operation("singular_values", lambda a: jnp.linalg.svd(a[:, :20], compute_uv=False), A, allowed=1e-4)
part("random")
operation("random_bits", lambda a: jax.random.bits(jax.random.key(3), (2000,)), A)
operation("random_uniform", lambda a: jax.random.uniform(jax.random.key(4), (2000,)), A)
operation("random_normal", lambda a: jax.random.normal(jax.random.key(5), (2000,)), A, allowed=5e-6)
operation("random_choice", lambda a: jax.random.permutation(jax.random.key(6), 500), A)
part("control")
operation("loops", lambda a: lax.fori_loop(0, 9, lambda i, x: jnp.sin(x) + i * 0.1, a), A, allowed=1e-5)
operation(
    "loops_until",
    lambda a: lax.while_loop(lambda x: jnp.sum(x) < 5000, lambda x: x * 1.5 + 1, jnp.abs(a)),
    A,
    allowed=1e-5,
)
operation(
    "scans",
    lambda a: lax.scan(lambda c, x: (c * 0.9 + x, c.sum()), jnp.zeros(129), a),
    A,
    allowed=1e-5,
    gradient=True,
)
operation("branches", lambda a: lax.cond(a.sum() > 0, lambda x: x * 2, lambda x: x - 1, a), A)
operation("mapped", jax.vmap(lambda a, b: jnp.outer(a[:9], b[:7])), A, B)
operation(
    "second_derivative",
    jax.vmap(jax.hessian(lambda a: jnp.sum(jnp.sin(a[:3]) * a[1:4] ** 2))),
    A[:5, :4],
    allowed=1e-5,
)
operation(
    "attention",
    lambda a: jax.nn.dot_product_attention(a, a * 0.5, a + 1, is_causal=True),
    numbers(2, 12, 4, 16),
    allowed=1e-5,
    gradient=True,
)
operation(
    "normalization",
    lambda a: jax.nn.standardize(a, axis=-1) * 2 + jax.nn.gelu(a) + jax.nn.silu(a),
    A,
    allowed=1e-5,
    gradient=True,
)

if __name__ == "__main__":
    main()
