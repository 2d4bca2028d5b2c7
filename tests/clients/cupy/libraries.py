# SPDX-License-Identifier: GPL-2.0 OR MIT
"""CuPy on the ROCm libraries, against NumPy and SciPy: products, factorizations, Fourier
transforms, random numbers, sparse matrices, images.

Usage: libraries.py [CHECK...]. Prints a line for each check.
"""

import cupy
import cupyx.scipy.ndimage
import cupyx.scipy.signal
import cupyx.scipy.sparse
import cupyx.scipy.sparse.linalg
import cupyx.scipy.special
import numpy
import scipy.ndimage
import scipy.signal
import scipy.sparse
import scipy.special
from checks import Wrong, check, equal, main, near, part

F32, F64 = numpy.float32, numpy.float64


def numbers(*shape, seed=1, kind=F32):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(kind)


def complexes(*shape, seed=1):
    return (numbers(*shape, seed=seed) + 1j * numbers(*shape, seed=seed + 100)).astype(numpy.complex64)


def heavy(size, kind=F64):
    """A matrix that is easily solved."""
    a = numbers(size, size, kind=kind)
    return a @ a.T + size * numpy.eye(size, dtype=kind)


part("products")


@check
def product():
    a, b = numbers(120, 75), numbers(75, 90, seed=2)
    return near(cupy.asnumpy(cupy.asarray(a) @ cupy.asarray(b)), a @ b, 1e-5)


@check
def product_doubles():
    a, b = numbers(60, 75, kind=F64), numbers(75, 40, seed=2, kind=F64)
    return near(cupy.asnumpy(cupy.asarray(a) @ cupy.asarray(b)), a @ b, 1e-13)


@check
def product_halves():
    a, b = (numbers(64, 64, seed=seed).astype(numpy.float16) for seed in (1, 2))
    return near(cupy.asnumpy(cupy.asarray(a) @ cupy.asarray(b)), a.astype(F32) @ b.astype(F32), 2e-3)


@check
def product_complex():
    a, b = complexes(40, 30), complexes(30, 50, seed=2)
    return near(cupy.asnumpy(cupy.asarray(a) @ cupy.asarray(b)), a @ b, 1e-5)


@check
def products_in_batches():
    a, b = numbers(6, 33, 20), numbers(6, 20, 17, seed=2)
    return near(cupy.asnumpy(cupy.matmul(cupy.asarray(a), cupy.asarray(b))), a @ b, 1e-5)


@check
def sums_of_products():
    a, b = numbers(8, 9, 10), numbers(10, 9, 7, seed=2)
    how = "ijk,kjl->li"
    return near(cupy.asnumpy(cupy.einsum(how, cupy.asarray(a), cupy.asarray(b))), numpy.einsum(how, a, b), 1e-5)


@check
def vectors():
    a, b = numbers(5000), numbers(5000, seed=2)
    return near(cupy.asnumpy(cupy.dot(cupy.asarray(a), cupy.asarray(b))), numpy.dot(a, b), 1e-4)


part("solvers")


@check
def solve():
    a, b = heavy(40), numbers(40, 3, seed=2, kind=F64)
    return near(cupy.asnumpy(cupy.linalg.solve(cupy.asarray(a), cupy.asarray(b))), numpy.linalg.solve(a, b), 1e-10)


@check
def inverse():
    a = heavy(24)
    return near(cupy.asnumpy(cupy.linalg.inv(cupy.asarray(a))), numpy.linalg.inv(a), 1e-10)


@check
def cholesky():
    a = heavy(32)
    return near(cupy.asnumpy(cupy.linalg.cholesky(cupy.asarray(a))), numpy.linalg.cholesky(a), 1e-11)


@check
def orthogonal():
    a = numbers(30, 20, kind=F64)
    q, r = (cupy.asnumpy(part) for part in cupy.linalg.qr(cupy.asarray(a)))
    near(q.T @ q, numpy.eye(20), 1e-11)
    return near(q @ r, a, 1e-11)


@check
def singular_values():
    a = numbers(20, 14, kind=F64)
    u, s, v = (cupy.asnumpy(part) for part in cupy.linalg.svd(cupy.asarray(a), full_matrices=False))
    near(u * s @ v, a, 1e-10)
    return near(s, numpy.linalg.svd(a, compute_uv=False), 1e-10)


@check
def eigenvalues():
    a = heavy(16)
    values, vectors = (cupy.asnumpy(part) for part in cupy.linalg.eigh(cupy.asarray(a)))
    near(a @ vectors, vectors * values, 1e-10)
    return near(values, numpy.linalg.eigvalsh(a), 1e-10)


@check
def determinant():
    a = heavy(12)
    return near(cupy.asnumpy(cupy.linalg.det(cupy.asarray(a))), numpy.linalg.det(a), 1e-10)


part("fourier")


@check
def fourier():
    a = complexes(4, 256)
    x = cupy.asarray(a)
    near(cupy.asnumpy(cupy.fft.ifft(cupy.fft.fft(x))), a, 1e-5)
    return near(cupy.asnumpy(cupy.fft.fft(x)), numpy.fft.fft(a), 1e-5)


@check
def fourier_odd():
    a = complexes(3, 189)
    return near(cupy.asnumpy(cupy.fft.fft(cupy.asarray(a))), numpy.fft.fft(a), 1e-5)


@check
def fourier_real():
    a = numbers(5, 300, kind=F64)
    return near(cupy.asnumpy(cupy.fft.rfft(cupy.asarray(a))), numpy.fft.rfft(a), 1e-12)


@check
def fourier_planes():
    a = complexes(24, 32)
    return near(cupy.asnumpy(cupy.fft.fft2(cupy.asarray(a))), numpy.fft.fft2(a), 1e-5)


part("random")


def spread(got, mean, variance):
    """Whether so many numbers have this mean and variance."""
    size = len(got)
    if len(numpy.unique(got)) < size * 0.99:
        raise Wrong("they are not random")
    if abs(got.mean() - mean) > 5 * (variance / size) ** 0.5 or abs(got.var() / variance - 1) > 20 / size**0.5:
        raise Wrong(f"mean {got.mean()}, variance {got.var()}")
    return f"{size} values with mean {got.mean():.3f} and variance {got.var():.3f}"


@check
def random_uniform():
    cupy.random.seed(7)
    return spread(cupy.asnumpy(cupy.random.random_sample(20000)), 0.5, 1 / 12)


@check
def random_normal():
    cupy.random.seed(8)
    got = cupy.asnumpy(cupy.random.normal(3, 2, 20000))
    cupy.random.seed(8)
    return equal(cupy.asnumpy(cupy.random.normal(3, 2, 20000)), got) + "; " + spread(got, 3, 4)


@check
def random_generator():
    got = cupy.asnumpy(cupy.random.default_rng(9).standard_exponential(20000))
    return spread(got, 1, 1)


@check
def permutation():
    got = cupy.asnumpy(cupy.random.permutation(5000))
    if (got == numpy.arange(5000)).all():
        raise Wrong("nothing has moved")
    return equal(numpy.sort(got), numpy.arange(5000))


part("sparse")


def sparse(seed=3, rows=90, columns=70):
    return scipy.sparse.random(rows, columns, density=0.08, format="csr", dtype=F64, random_state=seed)


@check
def sparse_times_vector():
    a, b = sparse(), numbers(70, kind=F64)
    return near(cupy.asnumpy(cupyx.scipy.sparse.csr_matrix(a) @ cupy.asarray(b)), a @ b, 1e-13)


@check
def sparse_times_matrix():
    a, b = sparse(), numbers(70, 5, kind=F64)
    return near(cupy.asnumpy(cupyx.scipy.sparse.csr_matrix(a) @ cupy.asarray(b)), a @ b, 1e-13)


@check
def sparse_product():
    a, b = sparse(), sparse(4, 70, 40)
    got = cupyx.scipy.sparse.csr_matrix(a) @ cupyx.scipy.sparse.csr_matrix(b)
    return near(cupy.asnumpy(got.toarray()), (a @ b).toarray(), 1e-13)


@check
def sparse_forms():
    a = sparse()
    coo = cupyx.scipy.sparse.csr_matrix(a).tocoo()
    return equal(cupy.asnumpy(coo.tocsc().T.toarray()), a.toarray().T)


@check
def sparse_solution():
    size = 64
    a = scipy.sparse.diags([-1, 2.5, -1], [-1, 0, 1], shape=(size, size), format="csr")
    b = numbers(size, kind=F64)
    got, code = cupyx.scipy.sparse.linalg.cg(cupyx.scipy.sparse.csr_matrix(a), cupy.asarray(b), rtol=1e-10)
    if code:
        raise Wrong(f"no solution: {code}")
    return near(cupy.asnumpy(got), numpy.linalg.solve(a.toarray(), b), 1e-8)


part("images")


@check
def gaussian_filter():
    a = numbers(40, 50, kind=F64)
    return near(
        cupy.asnumpy(cupyx.scipy.ndimage.gaussian_filter(cupy.asarray(a), 1.5)),
        scipy.ndimage.gaussian_filter(a, 1.5),
        1e-12,
    )


@check
def convolution():
    a, b = numbers(30, 40, kind=F64), numbers(5, 3, seed=2, kind=F64)
    got = cupyx.scipy.ndimage.convolve(cupy.asarray(a), cupy.asarray(b), mode="reflect")
    return near(cupy.asnumpy(got), scipy.ndimage.convolve(a, b, mode="reflect"), 1e-12)


@check
def rotation():
    a = numbers(30, 40, kind=F64)
    got = cupyx.scipy.ndimage.rotate(cupy.asarray(a), 30, order=1, reshape=False)
    return near(cupy.asnumpy(got), scipy.ndimage.rotate(a, 30, order=1, reshape=False), 1e-10)


@check
def labels():
    a = (numbers(40, 50) > 0.3).astype(numpy.int32)
    got, number = cupyx.scipy.ndimage.label(cupy.asarray(a))
    wanted, count = scipy.ndimage.label(a)
    equal(number, count)
    return equal(cupy.asnumpy(got), wanted)


@check
def median_filter():
    a = numbers(30, 31)
    return equal(
        cupy.asnumpy(cupyx.scipy.ndimage.median_filter(cupy.asarray(a), 3)), scipy.ndimage.median_filter(a, 3)
    )


@check
def signals():
    a, b = numbers(1000, kind=F64), numbers(31, seed=2, kind=F64)
    return near(
        cupy.asnumpy(cupyx.scipy.signal.fftconvolve(cupy.asarray(a), cupy.asarray(b))),
        scipy.signal.fftconvolve(a, b),
        1e-12,
    )


@check
def special_functions():
    a = numpy.linspace(0.1, 9, 2000)
    x = cupy.asarray(a)
    got = cupy.stack([cupyx.scipy.special.gamma(x), cupyx.scipy.special.erf(x), cupyx.scipy.special.j0(x)])
    wanted = numpy.stack([scipy.special.gamma(a), scipy.special.erf(a), scipy.special.j0(a)])
    return near(
        cupy.asnumpy(got) / numpy.abs(wanted).max(axis=1)[:, None],
        wanted / numpy.abs(wanted).max(axis=1)[:, None],
        1e-11,
    )


@check
def polynomial():
    a = numpy.linspace(-1, 1, 50)
    b = 3 * a**3 - a + 0.5
    return near(cupy.asnumpy(cupy.polyfit(cupy.asarray(a), cupy.asarray(b), 3)), numpy.polyfit(a, b, 3), 1e-9)


if __name__ == "__main__":
    main()
