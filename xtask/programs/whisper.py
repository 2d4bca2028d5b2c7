# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Makes small models of whisper.cpp with weights from a seed, and sounds for them to listen to.

`whisper.py DIRECTORY` writes `f32.bin`, `f16.bin`, `chirp.wav` and `noise.wav` there. The models
have Whisper's architecture and English vocabulary, two layers of each kind, and a width of 128.
The positions have larger weights than the tokens: otherwise such a model repeats its last token,
because its tokens' weights are also those of its output. A few tokens have larger weights than the
others. Without them the likeliest two are often as near as the rounding of two processors.
"""

import math
import random
import struct
import sys
from array import array
from pathlib import Path

MAGIC = 0x67676D6C
F32, F16 = 0, 1
# Token 50257 and those after it are Whisper's own.
WORDS, TOKENS, BLANK = 50257, 51864, 220
WIDTH, HEADS, LAYERS, MELS = 128, 2, 2, 80
# Each how many-th token is a likely one, and the part of their weights that the others have.
LIKELY, OTHERS = 1601, 0.2
# Encoder's positions: half a minute of sound. Decoder's: twice what it writes, and a little.
SOUND, TEXT = 1500, 112
SPECTRUM = 201
VOCABULARY = "decoder.token_embedding.weight"
RATE, SECONDS = 16000, 4


def filters() -> bytes:
    """A triangle for each band of the spectrum, closer together below, as ears have them."""
    places = [(SPECTRUM - 1) * (math.exp(2.5 * band / (MELS + 1)) - 1) / (math.exp(2.5) - 1) for band in range(MELS + 2)]
    rows = []
    for low, middle, high in zip(places, places[1:], places[2:]):
        rows += [max(0.0, min((x - low) / (middle - low), (high - x) / (high - middle))) * 0.02 for x in range(SPECTRUM)]
    return struct.pack(f"<2i{len(rows)}f", MELS, SPECTRUM, *rows)


def words() -> bytes:
    """The vocabulary. whisper.cpp looks for the blank by its text."""
    texts = [b" " if word == BLANK else f" w{word}".encode() for word in range(WORDS)]
    return struct.pack("<i", WORDS) + b"".join(struct.pack("<i", len(text)) + text for text in texts)


def shapes():
    """Each tensor: name, sizes from the innermost on, and the spread of its weights. A matrix has
    the model's type; a spread of None is a norm's weight, one."""
    wide = 4 * WIDTH
    yield "encoder.positional_embedding", (WIDTH, SOUND), 0.5
    for name, inner in ("conv1", MELS), ("conv2", WIDTH):
        yield f"encoder.{name}.weight", (3, inner, WIDTH), 2 / math.sqrt(3 * inner)
        yield f"encoder.{name}.bias", (1, WIDTH), 0.1
    yield "decoder.positional_embedding", (WIDTH, TEXT), 2.0
    yield VOCABULARY, (WIDTH, TOKENS), 0.5
    for part, last in ("encoder", "ln_post"), ("decoder", "ln"):
        yield f"{part}.{last}.weight", (WIDTH,), None
        yield f"{part}.{last}.bias", (WIDTH,), 0.1
        for layer in range(LAYERS):
            block = f"{part}.blocks.{layer}"
            for attention in ("attn", "cross_attn") if part == "decoder" else ("attn",):
                yield f"{block}.{attention}_ln.weight", (WIDTH,), None
                yield f"{block}.{attention}_ln.bias", (WIDTH,), 0.1
                for name in "query", "key", "value", "out":
                    yield f"{block}.{attention}.{name}.weight", (WIDTH, WIDTH), 2.5 / math.sqrt(WIDTH)
                    if name != "key":
                        yield f"{block}.{attention}.{name}.bias", (WIDTH,), 0.1
            yield f"{block}.mlp_ln.weight", (WIDTH,), None
            yield f"{block}.mlp_ln.bias", (WIDTH,), 0.1
            for name, inner, outer in ("0", WIDTH, wide), ("2", wide, WIDTH):
                yield f"{block}.mlp.{name}.weight", (inner, outer), 2 / math.sqrt(inner)
                yield f"{block}.mlp.{name}.bias", (outer,), 0.1


def weights(spread, count: int, kind: int, seed: str) -> bytes:
    """Of 65,536 values that are evenly spread, as many as are wanted. The seed is the tensor's
    name, so that models of two types have the same weights."""
    code = "e" if kind == F16 else "f"
    if spread is None:
        return struct.pack(f"<{count}{code}", *([1.0] * count))
    places = array("H", random.Random(seed).randbytes(2 * count))
    if kind == F16:
        table = array("H", struct.pack("<65536e", *(spread * (place / 32767.5 - 1) for place in range(65536))))
        return array("H", map(table.__getitem__, places)).tobytes()
    return array("f", [spread * (place / 32767.5 - 1) for place in places]).tobytes()


def unequal(likely: bytes, others: bytes) -> bytes:
    """The tokens' weights: each LIKELY-th of one, and the rest of the other."""
    row = len(likely) // TOKENS
    data = bytearray(others)
    for token in range(LIKELY, WORDS, LIKELY):
        data[row * token : row * token + row] = likely[row * token : row * token + row]
    return bytes(data)


def model(path: Path, kind: int) -> None:
    sizes = [TOKENS, SOUND, WIDTH, HEADS, LAYERS, TEXT, WIDTH, HEADS, LAYERS, MELS, kind]
    with path.open("wb") as file:
        file.write(struct.pack("<12i", MAGIC, *sizes) + filters() + words())
        for name, shape, spread in shapes():
            of = kind if name.endswith("weight") and len(shape) > 1 else F32
            file.write(struct.pack("<3i", len(shape), len(name), of) + struct.pack(f"<{len(shape)}i", *shape))
            data = weights(spread, math.prod(shape), of, name)
            if name == VOCABULARY:
                data = unequal(data, weights(OTHERS * spread, math.prod(shape), of, name))
            file.write(name.encode() + data)


def sound(path: Path, values) -> None:
    """A file of 16-bit values."""
    data = array("h", (round(20000 * value) for value in values)).tobytes()
    form = struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    path.write_bytes(b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + form + b"data" + struct.pack("<I", len(data)) + data)


def main() -> None:
    at = Path(sys.argv[1])
    model(at / "f32.bin", F32)
    model(at / "f16.bin", F16)
    times = [step / RATE for step in range(RATE * SECONDS)]
    sound(at / "chirp.wav", (math.sin(2 * math.pi * (200 + 350 * time) * time) * (0.5 + 0.5 * math.sin(9 * time)) for time in times))
    noise = random.Random("noise")
    sound(at / "noise.wav", (noise.uniform(-1, 1) * (0.6 + 0.4 * math.sin(23 * time)) for time in times))


main()
