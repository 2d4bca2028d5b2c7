# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Files of small models for stable-diffusion.cpp, with weights from a seed.

`transformer` is Stable Diffusion 3's architecture (MMDiT) with its 24 blocks and a small width.
`reader` is the encoder of its text (T5) with the full width, and few heads, words and layers.
`autoencoder` is its tiny autoencoder (TAESD), as it is.
"""

import json
import math
import struct
from pathlib import Path

import numpy

WIDTH, BLOCKS = 192, 24
# Of a patch's side, of the latent picture, of a token of the text, of the whole text, of a time.
PATCH, CHANNELS, TEXT, POOLED, TIMES = 2, 16, 4096, 2048, 256
# Positions of patches on a side.
SIDE = 32
COLOURS = 64
# Of the text's reader: all heads, the commonest words, layers.
READING, WORDS, LAYERS = 256, 4096, 2


def linear(name: str, inner: int, outer: int, gain: float = 1.0) -> dict:
    """A matrix, and an offset for each of its results."""
    return {f"{name}.weight": ((outer, inner), gain / math.sqrt(inner)), f"{name}.bias": ((outer,), 0.1)}


def convolution(name: str, inner: int, outer: int, side: int = 3, gain: float = 1.0, offset: bool = True) -> dict:
    weight = {f"{name}.weight": ((outer, inner, side, side), gain / math.sqrt(inner * side * side))}
    return {**weight, **({f"{name}.bias": ((outer,), 0.1)} if offset else {})}


def transformer() -> dict:
    """Each tensor's shape, and the spread of its weights; none for ones."""
    whole = {"pos_embed": ((1, SIDE * SIDE, WIDTH), 0.5)}
    whole |= convolution("x_embedder.proj", CHANNELS, WIDTH, PATCH)
    for name, inner in ("t_embedder", TIMES), ("y_embedder", POOLED):
        whole |= linear(f"{name}.mlp.0", inner, WIDTH) | linear(f"{name}.mlp.2", WIDTH, WIDTH)
    whole |= linear("context_embedder", TEXT, WIDTH)
    for block in range(BLOCKS):
        for side in "context_block", "x_block":
            name = f"joint_blocks.{block}.{side}"
            last = side == "context_block" and block == BLOCKS - 1
            whole |= linear(f"{name}.attn.qkv", WIDTH, 3 * WIDTH, 1.5)
            whole |= linear(f"{name}.adaLN_modulation.1", WIDTH, (2 if last else 6) * WIDTH, 0.5)
            if not last:
                whole |= linear(f"{name}.attn.proj", WIDTH, WIDTH)
                whole |= linear(f"{name}.mlp.fc1", WIDTH, 4 * WIDTH) | linear(f"{name}.mlp.fc2", 4 * WIDTH, WIDTH)
    whole |= linear("final_layer.linear", WIDTH, PATCH * PATCH * CHANNELS)
    whole |= linear("final_layer.adaLN_modulation.1", WIDTH, 2 * WIDTH, 0.5)
    return {f"model.diffusion_model.{name}": tensor for name, tensor in whole.items()}


def reader() -> dict:
    """The same, of T5's encoder."""
    whole = {"shared.weight": ((WORDS, TEXT), 1.0), "encoder.final_layer_norm.weight": ((TEXT,), None)}
    for layer in range(LAYERS):
        attention, forward = (f"encoder.block.{layer}.layer.{part}" for part in (0, 1))
        whole |= {f"{name}.layer_norm.weight": ((TEXT,), None) for name in (attention, forward)}
        for part, inner, outer in ("q", TEXT, READING), ("k", TEXT, READING), ("v", TEXT, READING), ("o", READING, TEXT):
            # The queries and the keys are not scaled by the heads' width.
            gain = 0.4 if part in "qk" else 1.0
            whole[f"{attention}.SelfAttention.{part}.weight"] = ((outer, inner), gain / math.sqrt(inner))
        for part, inner, outer in ("wi_0", TEXT, 2 * READING), ("wi_1", TEXT, 2 * READING), ("wo", 2 * READING, TEXT):
            whole[f"{forward}.DenseReluDense.{part}.weight"] = ((outer, inner), 1 / math.sqrt(inner))
    # Of the first layer for all: each head's preference for a distance.
    whole["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = ((32, READING // 64), 0.5)
    return {f"text_encoders.t5xxl.transformer.{name}": tensor for name, tensor in whole.items()}


def autoencoder() -> dict:
    """The same. Numbers without weights are functions, and doublings of the size."""
    whole = {}
    for side, blocks, sizes in ("encoder", (1, 3, 4, 5, 7, 8, 9, 11, 12, 13), (2, 6, 10)), (
        "decoder",
        (2, 3, 4, 7, 8, 9, 12, 13, 14, 17),
        (6, 11, 16),
    ):
        name = f"{side}.layers"
        for block in blocks:
            for part in 0, 2, 4:
                whole |= convolution(f"{name}.{block}.conv.{part}", COLOURS, COLOURS)
        for size in sizes:
            whole |= convolution(f"{name}.{size}", COLOURS, COLOURS, offset=False)
    whole |= convolution("encoder.layers.0", 3, COLOURS) | convolution("encoder.layers.14", COLOURS, CHANNELS)
    return whole | convolution("decoder.layers.0", CHANNELS, COLOURS) | convolution("decoder.layers.18", COLOURS, 3, gain=0.25)


def write(path: Path, tensors: dict, kind, seed: int) -> None:
    """A file of safetensors: the length of a description, the description, the weights. Vectors and
    positions are of single precision in each."""
    numbers = numpy.random.default_rng(seed)
    head, data = {}, []
    place = 0
    for name, (shape, spread) in tensors.items():
        of = kind if len(shape) in (2, 4) else numpy.float32
        values = numpy.ones(shape) if spread is None else (numbers.random(shape, dtype=numpy.float32) - 0.5) * 3.4 * spread
        weights = values.astype(of).tobytes()
        named = {numpy.float32: "F32", numpy.float16: "F16"}[of]
        head[name] = {"dtype": named, "shape": shape, "data_offsets": [place, place + len(weights)]}
        place += len(weights)
        data.append(weights)
    described = json.dumps(head).encode()
    described += b" " * (-len(described) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(described)) + described)
        file.writelines(data)
