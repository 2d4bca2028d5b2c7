# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Makes a llama with weights from a seed, as a file of GGUF whose matrices are q8_0.

`llama.py FILE [3b|7b|small]` writes a model of 3.0 thousand million parameters, in 3.2 GB and less
than a minute; with `7b` one of 6.7 thousand million (Llama 2's shape), and with `small` one of 20
million. llama-quantize makes other types of it. Nothing but Python's own library is used, and no
more than a matrix of each kind is in memory.

A block of q8_0 is a scale of half precision and 32 whole numbers, which are random bytes here. One
matrix of a kind is made and written for each layer, turned round by the layer's number of rows:
layers differ, and the time is that of writing.
"""

import math
import random
import struct
import sys

F32, Q8_0, BLOCK = 0, 8, 32
# GGUF's types of values.
UINT, FLOAT, TEXT, LIST, INT = 4, 6, 8, 9, 5
ALIGNED = 32
# Width, layers, heads, heads of keys, width of the inner layer, vocabulary.
SIZES = {
    "3b": (3072, 28, 24, 8, 8192, 32000),
    "7b": (4096, 32, 32, 32, 11008, 32000),
    "small": (256, 4, 4, 2, 768, 32000),
}
SPECIAL, BYTES = 3, 256


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind: int, given) -> bytes:
    if kind == LIST:
        of, values = given
        return struct.pack("<IQ", of, len(values)) + b"".join(value(of, each) for each in values)
    return text(given) if kind == TEXT else struct.pack({UINT: "<I", FLOAT: "<f", INT: "<i"}[kind], given)


def described(width, layers, heads, keys, inner, vocabulary):
    """What the file says of the model."""
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(BYTES)]
    names += [f"t{word}" for word in range(vocabulary - len(names))]
    kinds = [2, 3, 3] + [6] * BYTES + [1] * (vocabulary - SPECIAL - BYTES)
    yield "general.architecture", TEXT, "llama"
    yield "general.file_type", UINT, 7
    for name, number in (
        ("context_length", 2048),
        ("embedding_length", width),
        ("block_count", layers),
        ("feed_forward_length", inner),
        ("attention.head_count", heads),
        ("attention.head_count_kv", keys),
        ("rope.dimension_count", width // heads),
        ("vocab_size", vocabulary),
    ):
        yield f"llama.{name}", UINT, number
    yield "llama.attention.layer_norm_rms_epsilon", FLOAT, 1e-5
    yield "tokenizer.ggml.model", TEXT, "llama"
    yield "tokenizer.ggml.tokens", LIST, (TEXT, names)
    yield "tokenizer.ggml.scores", LIST, (FLOAT, [0.0] * vocabulary)
    yield "tokenizer.ggml.token_type", LIST, (INT, kinds)
    for name, number in ("bos", 1), ("eos", 2), ("unknown", 0):
        yield f"tokenizer.ggml.{name}_token_id", UINT, number


def tensors(width, layers, heads, keys, inner, vocabulary):
    """Each tensor: name, kind of matrix or none for a norm, columns, rows."""
    group = width // heads * keys
    yield "token_embd.weight", "words", width, vocabulary
    yield "output_norm.weight", None, width, 1
    yield "output.weight", "output", width, vocabulary
    for layer in range(layers):
        for name, columns, rows in (
            ("attn_q", width, width),
            ("attn_k", width, group),
            ("attn_v", width, group),
            ("attn_output", width, width),
            ("ffn_gate", width, inner),
            ("ffn_up", width, inner),
            ("ffn_down", inner, width),
        ):
            yield f"blk.{layer}.{name}.weight", name, columns, rows
        for name in "attn_norm", "ffn_norm":
            yield f"blk.{layer}.{name}.weight", None, width, 1


def size(kind, columns, rows) -> int:
    return 4 * columns if kind is None else rows * columns // BLOCK * (BLOCK + 2)


def matrix(kind: str, columns: int, rows: int) -> bytes:
    """Whole numbers from -128 to 127, with the scale by which a product keeps its size."""
    scale = struct.pack("<e", (1.0 if kind == "words" else 1.0 / math.sqrt(columns)) / 74)
    numbers = random.Random(kind)
    blocks = rows * columns // BLOCK
    data = bytearray(blocks * (BLOCK + 2))
    data[0 :: BLOCK + 2] = scale[:1] * blocks
    data[1 :: BLOCK + 2] = scale[1:] * blocks
    for place in range(BLOCK):
        data[2 + place :: BLOCK + 2] = numbers.randbytes(blocks)
    return bytes(data)


def write(path: str, sizes) -> int:
    parts = list(tensors(*sizes))
    facts = list(described(*sizes))
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(parts), len(facts))
    head += b"".join(text(name) + struct.pack("<I", kind) + value(kind, given) for name, kind, given in facts)
    place = 0
    for name, kind, columns, rows in parts:
        shape = (columns,) if kind is None else (columns, rows)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, F32 if kind is None else Q8_0, place)
        place += size(kind, columns, rows) + -size(kind, columns, rows) % ALIGNED
    made = {}
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNED))
        for number, (_, kind, columns, rows) in enumerate(parts):
            if kind is None:
                data = struct.pack(f"<{columns}f", *([1.0] * columns))
            else:
                whole = made.get(kind) or made.setdefault(kind, matrix(kind, columns, rows))
                turned = (number * 37 % rows) * (len(whole) // rows)
                data = memoryview(whole)[turned:], memoryview(whole)[:turned]
            for part in (data,) if kind is None else data:
                file.write(part)
            file.write(bytes(-size(kind, columns, rows) % ALIGNED))
    return sum(columns * rows for _, _, columns, rows in parts)


if __name__ == "__main__":
    print(write(sys.argv[1], SIZES[(sys.argv[2:] or ["3b"])[0]]), "parameters")
