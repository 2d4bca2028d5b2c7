# SPDX-License-Identifier: GPL-2.0 OR MIT
"""JAX on all GPUs at once, against one vectorized computation of its CPU back end.

Usage: parallel.py [CHECK...]. Prints a line for each check. The GPUs' results go through RCCL, or
through what stands for it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy
from checks import Wrong, check, equal, main, near, part, register
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

GPUS, CPU = jax.devices("rocm"), jax.devices("cpu")[0]
COUNT = len(GPUS)
AXIS = "gpus"


def numbers(*shape, seed=1):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def compared(got, wanted, allowed):
    said = []
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        devices = one.devices()
        if devices != set(GPUS):
            raise Wrong(f"a result is on {devices} instead of all GPUs")
        pair = numpy.asarray(one), numpy.asarray(other)
        said.append(near(*pair, allowed) if allowed else equal(*pair))
    return "; ".join(said)


def compare(function, arguments, allowed):
    """A function of one GPU's part, on all of them; exact without `allowed`."""
    got = jax.pmap(function, axis_name=AXIS, devices=GPUS)(*arguments)
    with jax.default_device(CPU):
        wanted = jax.jit(jax.vmap(function, axis_name=AXIS))(*(jax.device_put(part, CPU) for part in arguments))
    return compared(got, wanted, allowed)


def parallel(name, function, *arguments, allowed=None):
    register(name, functools.partial(compare, function, arguments, allowed))


A = numbers(COUNT, 24, 40)
WHOLE = numpy.random.default_rng(3).integers(-1000, 1000, (COUNT, 24, 40)).astype(numpy.int32)

part("gpus")


@check
def several():
    if COUNT < 2:
        raise Wrong(f"there is {COUNT} GPU")
    return f"{COUNT} GPUs"


parallel("mapped", lambda a: jnp.tanh(a @ a.T), A, allowed=1e-5)
parallel("index", lambda a: a + lax.axis_index(AXIS), WHOLE)
parallel("sum", lambda a: lax.psum(a, AXIS), WHOLE)
parallel("sum_of_singles", lambda a: lax.psum(a, AXIS), A, allowed=1e-6)
parallel("mean", lambda a: lax.pmean(a, AXIS), A, allowed=1e-6)
parallel("greatest", lambda a: (lax.pmax(a, AXIS), lax.pmin(a, AXIS)), A)
parallel("gathered", lambda a: lax.all_gather(a, AXIS), A)
parallel("scattered", lambda a: lax.psum_scatter(a, AXIS, tiled=True), WHOLE)
parallel("normalized", lambda a: a / jnp.sqrt(lax.psum(jnp.sum(a * a), AXIS)), A, allowed=1e-5)


def step(weights, pictures, labels):
    """A step of a network whose pictures are divided among the GPUs."""

    def loss(weights):
        hidden = jnp.tanh(pictures @ weights[0])
        return jnp.mean((hidden @ weights[1] - labels) ** 2)

    value, slopes = jax.value_and_grad(loss)(weights)
    slopes = lax.pmean(slopes, AXIS)
    return [weight - 0.1 * slope for weight, slope in zip(weights, slopes, strict=True)], lax.pmean(value, AXIS)


@check
def trained():
    pictures, labels = numbers(COUNT, 16, 12, seed=4), numbers(COUNT, 16, 3, seed=5)
    begin = [numpy.stack([0.3 * numbers(*shape, seed=6)] * COUNT) for shape in ((12, 20), (20, 3))]
    results = []
    for run, device in (
        (jax.pmap(step, axis_name=AXIS, devices=GPUS), None),
        (jax.jit(jax.vmap(step, axis_name=AXIS)), CPU),
    ):
        weights, losses = begin, []
        with jax.default_device(device):
            for _ in range(8):
                weights, loss = run(weights, pictures, labels)
                losses.append(float(loss[0]))
        results.append((weights, losses))
    (got, _), (wanted, losses) = results
    if not losses[-1] < 0.9 * losses[0]:
        raise Wrong(f"the CPU learns nothing: {losses[0]} to {losses[-1]}")
    return f"losses {losses[0]:.3f} to {losses[-1]:.3f}: {compared(got, wanted, 1e-4)}"


@check
def sharded():
    """A product whose factors are divided among the GPUs by the sum's index."""
    mesh = Mesh(numpy.array(GPUS), (AXIS,))
    a, b = numbers(32, 16 * COUNT), numbers(16 * COUNT, 24, seed=2)
    placed = [
        jax.device_put(factor, NamedSharding(mesh, PartitionSpec(*axes)))
        for factor, axes in ((a, (None, AXIS)), (b, (AXIS, None)))
    ]
    return compared(jax.jit(lambda a, b: jnp.sin(a @ b))(*placed), numpy.sin(a @ b), 1e-4)


if __name__ == "__main__":
    main()
