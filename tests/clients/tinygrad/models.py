# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Models on tinygrad's AMD device and on its CPU's, in one program, compared.

Usage: models.py MODEL.... A MODEL is transformer, unet, resnet or, for two GPUs, sharded. Prints for each what was compared and how long it took on both; exit code 0, or 1 with what was wrong.
"""

import contextlib
import ctypes
import os
import sys
import time

# LLVM compiles for both devices; a compiler of C is not needed.
os.environ["DEV"] = "AMD:LLVM;CPU:LLVM"

# tinygrad looks for it by ldconfig, which has not run in a root of unpacked packages.
with contextlib.suppress(OSError):
    ctypes.CDLL("libatomic.so.1", ctypes.RTLD_GLOBAL)

import memory
import numpy
from networks import ResNet, UNet, seeded
from tinygrad import Tensor, nn
from tinygrad.helpers import Context
from tinygrad.llm.model import Transformer, TransformerConfig

TOKENS = 8


def transformer(gpus):
    """Tokens that a transformer generates greedily, with its cache of keys and values."""
    config = TransformerConfig(
        num_blocks=2, dim=64, hidden_dim=128, n_heads=4, n_kv_heads=2, norm_eps=1e-5, vocab_size=256, head_dim=16,
        rope_theta=10_000.0, rope_dim=16, v_head_dim=16, max_context=64,
    )
    model = seeded(Transformer(config), 1)
    tokens = []
    for token in model.generate([1, 2, 3, 4, 5]):
        tokens.append(int(token))
        if len(tokens) == TOKENS:
            break
    return {"tokens": numpy.array(tokens)}


def unet(gpus):
    """Two steps of diffusion."""
    model = seeded(UNet(), 2)
    generator = numpy.random.default_rng(3)
    image = Tensor(generator.standard_normal((1, 4, 8, 8)).astype(numpy.float32))
    context = Tensor(generator.standard_normal((1, 5, 16)).astype(numpy.float32))
    for step in (700.0, 350.0):
        image = (image - 0.1 * model(image, step, context)).realize()
    return {"image": image.numpy()}


def resnet(gpus):
    """Two steps of training."""
    model = seeded(ResNet(), 4)
    weights = nn.state.get_parameters(model)
    optimizer = nn.optim.SGD(weights, lr=0.05, momentum=0.9)
    generator = numpy.random.default_rng(5)
    images = Tensor(generator.standard_normal((4, 3, 12, 12)).astype(numpy.float32))
    labels = Tensor(generator.integers(0, 10, 4).astype(numpy.int32))
    if len(gpus) > 1:
        for weight in weights + [part for part in nn.state.get_state_dict(model).values() if part not in weights]:
            weight.to_(gpus)
        images, labels = images.shard(gpus, axis=0), labels.shard(gpus, axis=0)
    losses = []
    with Tensor.train():
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(images).sparse_categorical_crossentropy(labels).backward()
            optimizer.step()
            losses.append(loss.item())
    return {"losses": numpy.array(losses), "weights": numpy.concatenate([weight.numpy().ravel() for weight in weights])}


def sharded(gpus):
    """A product whose rows, and one whose sums, lie on several GPUs: these exchange what they have."""
    generator = numpy.random.default_rng(6)
    left, right = (generator.standard_normal((96, 96)).astype(numpy.float32) for _ in range(2))
    rows = Tensor(left).shard(gpus, axis=0) @ Tensor(right).shard(gpus, axis=None)
    sums = Tensor(left).shard(gpus, axis=1) @ Tensor(right).shard(gpus, axis=0)
    return {"rows": rows.numpy(), "sums": sums.numpy()}


MODELS = {"transformer": transformer, "unet": unet, "resnet": resnet, "sharded": sharded}


def on(device, model, gpus):
    """What a model gives on a device, and the seconds that took."""
    # The first device is where tensors are.
    with Context(DEV=device):
        begun = time.monotonic()
        given = model(gpus)
        return given, time.monotonic() - begun


def compare(name):
    several = name in ("sharded",)
    amd, amd_took = on("AMD:LLVM;CPU:LLVM", MODELS[name], ("AMD:0", "AMD:1") if several else ())
    cpu, cpu_took = on("CPU:LLVM;AMD:LLVM", MODELS[name], ("CPU:0", "CPU:1") if several else ())
    for part, expected in cpu.items():
        got = amd[part]
        if not numpy.isfinite(expected).all() or numpy.ptp(expected) == 0:
            print(f"FAILED: {name}: the {part} of the CPU say nothing: {expected}")
            return False
        if expected.dtype.kind == "i":
            right, how = numpy.array_equal(got, expected), f"{list(map(int, got))}, and {list(map(int, expected))} on the CPU"
        else:
            wrong = numpy.abs(got - expected).max() / numpy.abs(expected).max()
            right, how = wrong <= 1e-4, f"differ by {wrong:.1e} of the largest"
        if not right:
            print(f"FAILED: {name}: the {part}: {how}")
            return False
        print(f"{name}: {expected.size} {part}: " + ("equal" if expected.dtype.kind == "i" else how))
    print(f"{name}: {amd_took:.1f} s, on the CPU {cpu_took:.1f} s: {amd_took / cpu_took:.1f} times", flush=True)
    return True


def main() -> int:
    memory.place()
    for name in sys.argv[1:]:
        if not compare(name):
            return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
