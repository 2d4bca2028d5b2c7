# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Operations of TensorFlow on the GPU against TensorFlow's CPU kernels.

Usage: operations.py [CHECK...]. Prints a line for each check.
"""

import functools

import absent  # noqa: F401
import numpy
import tensorflow as tf
from checks import Wrong, check, equal, main, near, part, register

F32, I32 = numpy.float32, numpy.int32
GPU, CPU = "/device:GPU:0", "/device:CPU:0"


def numbers(*shape, seed=1, kind=F32):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(kind)


def integers(*shape, seed=2, below=1000, kind=I32):
    return numpy.random.default_rng(seed).integers(0, below, shape).astype(kind)


def on(device, function, arguments):
    """What the function gives there."""
    with tf.device(device):
        given = function(*(tf.identity(argument) for argument in arguments))
    if not given.device.endswith(device.removeprefix("/device:")):
        raise Wrong(f"{given.device} instead of {device}")
    return given.numpy()


def compare(function, arguments, allowed):
    got, wanted = on(GPU, function, arguments), on(CPU, function, arguments)
    return near(got, wanted, allowed) if allowed else equal(got, wanted)


def operation(name, function, *arguments, allowed=None):
    """Exact without `allowed`."""
    register(name, functools.partial(compare, function, arguments, allowed))


A, B = numbers(37, 129), numbers(37, 129, seed=3)
IMAGE, FILTERS = numbers(2, 16, 16, 8), numbers(3, 3, 8, 12, seed=4)
SQUARE = numbers(24, 24) @ numbers(24, 24).T + 24 * numpy.eye(24, dtype=F32)

part("elementwise")
operation("add", lambda a, b: a + b, A, B)
operation("arithmetic", lambda a, b: a * b - a / (1 + b * b), A, B, allowed=1e-6)
operation("exponential", lambda a: tf.exp(a), A, allowed=2e-6)
operation("tanh", lambda a: tf.tanh(a), A, allowed=2e-6)
operation("error_function", lambda a: tf.math.erf(a), A, allowed=2e-6)
operation("selection", lambda a, b: tf.where(a > b, a, b), A, B)
part("reductions")
operation("sum", lambda a: tf.reduce_sum(a, 1), A, allowed=1e-5)
operation("largest", lambda a: tf.reduce_max(a, 0), A)
operation("place_of_largest", lambda a: tf.argmax(a, 1), A)
operation("softmax", lambda a: tf.nn.softmax(a), A, allowed=2e-6)
operation("running_sums", lambda a: tf.cumsum(a, 1), A, allowed=1e-5)
part("shapes")
operation("transpose", lambda a: tf.transpose(a, [3, 0, 2, 1]), IMAGE)
operation("gather", lambda a: tf.gather(a, [3, 1, 36, 0]), A)
operation("concatenate", lambda a, b: tf.concat([a, b], 1), A, B)
operation("padding", lambda a: tf.pad(a, [[1, 2], [3, 4]]), A)
part("products")
operation("matmul", lambda a, b: tf.matmul(a, b, transpose_b=True), A, B, allowed=1e-5)
operation("matmul_in_batches", lambda a, b: tf.matmul(a, b), numbers(5, 17, 33), numbers(5, 33, 19), allowed=1e-5)
operation("cholesky", lambda a: tf.linalg.cholesky(a), SQUARE, allowed=1e-5)
part("images")
operation("convolution", lambda a, w: tf.nn.conv2d(a, w, 1, "SAME"), IMAGE, FILTERS, allowed=1e-5)
operation("max_pool", lambda a: tf.nn.max_pool2d(a, 2, 2, "VALID"), IMAGE)
operation("fourier", lambda a: tf.abs(tf.signal.rfft(a)), numbers(16, 128), allowed=1e-5)
part("models")


@check
def training():
    """Three steps of a perceptron's descent."""
    data, wanted = numbers(64, 20), numbers(64, 3, seed=5)

    def losses(device):
        with tf.device(device):
            first, second = tf.Variable(numbers(20, 32, seed=6) / 5), tf.Variable(numbers(32, 3, seed=7) / 5)
            said = []
            for _ in range(3):
                with tf.GradientTape() as tape:
                    given = tf.tanh(tf.constant(data) @ first) @ second
                    loss = tf.reduce_mean((given - wanted) ** 2)
                said.append(loss.numpy())
                for variable, slope in zip((first, second), tape.gradient(loss, (first, second)), strict=True):
                    variable.assign_sub(0.1 * slope)
            return numpy.array(said)

    got, right = losses(GPU), losses(CPU)
    if not right[2] < right[1] < right[0]:
        raise Wrong(f"the losses do not fall: {right}")
    return near(got, right, 1e-5)


if __name__ == "__main__":
    main()
