# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Models of ONNX on ONNX Runtime's ROCm provider against its CPU provider.

Usage: operators.py [CHECK...]. Prints a line for each check. A check is a graph that is made here.
No node of it may run on the CPU instead of the GPU.
"""

import functools

import numpy
import onnxruntime
from checks import equal, main, near, part, register
from onnx import TensorProto, helper, numpy_helper

F32, F16, I64 = numpy.float32, numpy.float16, numpy.int64
KINDS = {F32: TensorProto.FLOAT, F16: TensorProto.FLOAT16, I64: TensorProto.INT64}


def numbers(*shape, seed=1, kind=F32):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(kind)


def graph(nodes, inputs, constants):
    """The bytes of a model whose last node gives the result `y`."""
    kinds = {name: KINDS[array.dtype.type] for name, array in inputs.items()}
    places = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in inputs.items()]
    result = helper.make_empty_tensor_value_info("y")
    fixed = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    made = helper.make_graph(nodes, "check", places, [result], fixed)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


def session(model, provider):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if provider != "CPUExecutionProvider":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    made = onnxruntime.InferenceSession(model, options, providers=[provider])
    assert provider in made.get_providers(), made.get_providers()
    return made


def compare(nodes, inputs, constants, allowed):
    model = graph(nodes, inputs, constants)
    got, wanted = (
        session(model, provider).run(["y"], inputs)[0] for provider in ("ROCMExecutionProvider", "CPUExecutionProvider")
    )
    return near(got, wanted, allowed) if allowed else equal(got, wanted)


def model(name, nodes, inputs, constants=None, allowed=None):
    """A check of nodes, each `(operation, inputs, outputs, attributes)`."""
    made = [helper.make_node(kind, taken, given, **more) for kind, taken, given, more in nodes]
    register(name, functools.partial(compare, made, inputs, constants or {}, allowed))


def operation(name, kind, inputs, constants=None, allowed=None, **attributes):
    taken = [*inputs, *(constants or {})]
    model(name, [(kind, taken, ["y"], attributes)], inputs, constants, allowed)


A, B = numbers(37, 129), numbers(37, 129, seed=2)
IMAGE = numbers(2, 8, 20, 24, seed=3)

part("elementwise")
operation("add", "Add", {"a": A, "b": B})
operation("multiply_halves", "Mul", {"a": A.astype(F16), "b": B.astype(F16)})
operation("divide", "Div", {"a": A, "b": B + 4 * numpy.sign(B)}, allowed=1e-6)
operation("exponential", "Exp", {"a": A}, allowed=2e-6)
operation("error_function", "Erf", {"a": A}, allowed=2e-6)
operation("tanh", "Tanh", {"a": A}, allowed=2e-6)
operation("sigmoid", "Sigmoid", {"a": A}, allowed=2e-6)
operation("leaky_relu", "LeakyRelu", {"a": A}, alpha=0.1)
operation("clip", "Clip", {"a": A}, {"low": numpy.array(-0.5, F32), "high": numpy.array(0.7, F32)})
operation("cast", "Cast", {"a": A}, to=TensorProto.FLOAT16)
part("reductions")
operation("sum", "ReduceSum", {"a": A}, {"axes": numpy.array([1], I64)}, allowed=1e-5)
operation("mean", "ReduceMean", {"a": A}, allowed=1e-5, axes=[0])
operation("largest", "ReduceMax", {"a": A}, axes=[1])
operation("place_of_largest", "ArgMax", {"a": A}, axis=1)
operation("softmax", "Softmax", {"a": A}, allowed=2e-6, axis=1)
operation("softmax_of_columns", "Softmax", {"a": A}, allowed=2e-6, axis=0)
operation(
    "layer_normalization",
    "LayerNormalization",
    {"a": A},
    {"scale": numbers(129, seed=10), "bias": numbers(129, seed=11)},
    allowed=1e-5,
    axis=-1,
)
part("shapes")
operation("transpose", "Transpose", {"a": IMAGE}, perm=[3, 0, 2, 1])
operation("gather", "Gather", {"a": A}, {"at": numpy.array([[3, 1], [36, 0]], I64)}, axis=0)
operation("concatenate", "Concat", {"a": A, "b": B}, axis=1)
operation("expand", "Expand", {"a": A[:, :1]}, {"shape": numpy.array([3, 37, 129], I64)})
operation("pad", "Pad", {"a": A}, {"pads": numpy.array([1, 2, 3, 4], I64)})
part("products")
operation("matmul", "MatMul", {"a": A, "b": numbers(129, 65, seed=4)}, allowed=1e-5)
operation("matmul_halves", "MatMul", {"a": A.astype(F16), "b": numbers(129, 64, seed=4, kind=F16)}, allowed=5e-3)
operation("matmul_in_batches", "MatMul", {"a": numbers(5, 17, 33), "b": numbers(5, 33, 19, seed=5)}, allowed=1e-5)
operation(
    "gemm", "Gemm", {"a": A}, {"b": numbers(129, 48, seed=6), "c": numbers(48, seed=7)}, allowed=1e-5, alpha=0.5, beta=2.0
)
part("images")
operation("convolution", "Conv", {"a": IMAGE}, {"w": numbers(12, 8, 3, 3, seed=8)}, allowed=1e-5, pads=[1, 1, 1, 1])
operation("convolution_strides", "Conv", {"a": IMAGE}, {"w": numbers(12, 8, 3, 3, seed=8)}, allowed=1e-5, strides=[2, 2])
operation("max_pool", "MaxPool", {"a": IMAGE}, kernel_shape=[2, 2], strides=[2, 2])
operation("average_pool", "AveragePool", {"a": IMAGE}, allowed=2e-6, kernel_shape=[3, 3])
part("models")
WIDE, HEADS = 64, 4
WEIGHTS = {name: numbers(WIDE, WIDE, seed=20 + at) / 8 for at, name in enumerate(("query", "key", "value", "out"))}
WEIGHTS |= {"up": numbers(WIDE, 4 * WIDE, seed=30) / 8, "down": numbers(4 * WIDE, WIDE, seed=31) / 16}
SHAPES = {"split": numpy.array([2, 10, HEADS, WIDE // HEADS], I64), "join": numpy.array([2, 10, WIDE], I64)}
SCALE = {"scale": numpy.array((WIDE // HEADS) ** -0.5, F32)}
ATTENTION = []
for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
    ATTENTION += [
        ("MatMul", ["x", name], [letter + "1"], {}),
        ("Reshape", [letter + "1", "split"], [letter + "2"], {}),
        ("Transpose", [letter + "2"], [letter], {"perm": [0, 2, 3, 1] if letter == "k" else [0, 2, 1, 3]}),
    ]
ATTENTION += [
    ("MatMul", ["q", "k"], ["scores"], {}),
    ("Mul", ["scores", "scale"], ["scaled"], {}),
    ("Softmax", ["scaled"], ["weights"], {"axis": -1}),
    ("MatMul", ["weights", "v"], ["mixed"], {}),
    ("Transpose", ["mixed"], ["turned"], {"perm": [0, 2, 1, 3]}),
    ("Reshape", ["turned", "join"], ["joined"], {}),
    ("MatMul", ["joined", "out"], ["attended"], {}),
    ("Add", ["x", "attended"], ["z"], {}),
    ("MatMul", ["z", "up"], ["wide"], {}),
    ("Relu", ["wide"], ["active"], {}),
    ("MatMul", ["active", "down"], ["narrow"], {}),
    ("Add", ["z", "narrow"], ["y"], {}),
]
model("transformer_block", ATTENTION, {"x": numbers(2, 10, WIDE, seed=9)}, WEIGHTS | SHAPES | SCALE, allowed=1e-5)

if __name__ == "__main__":
    main()
