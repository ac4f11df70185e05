# SPDX-License-Identifier: Apache-2.0
#
# Writes the golden cases of this folder: ATen calls with small inputs and what LibTorch answers, values and strides. Needs
# Python with torch; the tests read the JSON alone. Run: python tests/data/ops/generate.py
import json
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {torch.bool: "bool", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
          torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
generator = torch.Generator().manual_seed(20)


def t(*shape, dtype=torch.float32, low=-2.0, high=2.0):
    """Uniform values on a grid of 1/64: short in decimal and exact in bf16."""
    x = torch.rand(shape, generator=generator) * (high - low) + low
    return (torch.round(x * 64) / 64).to(dtype)


def pos(*shape, dtype=torch.float32):
    return t(*shape, dtype=dtype, low=0.25, high=2.0)


def ints(*shape, high=5, low=0, dtype=torch.int64):
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def bools(*shape):
    return torch.rand(shape, generator=generator) > 0.5


def cl(*shape, **kw):
    return t(*shape, **kw).contiguous(memory_format=torch.channels_last)


def number(v):
    if isinstance(v, float) and (v != v or v in (float("inf"), float("-inf"))):
        return "nan" if v != v else "inf" if v > 0 else "-inf"
    return v


def tensor_json(x):
    flat = x.reshape(-1)
    data = [number(float("%.8g" % v)) for v in flat.double().tolist()] if x.is_floating_point() else [int(v) for v in flat.tolist()]
    out = {"dtype": DTYPES[x.dtype], "sizes": list(x.shape), "data": data}
    if not x.is_contiguous() or x.stride() != torch.empty(x.shape, device="meta").stride():
        out["strides"] = list(x.stride())
    return out


class Case:
    def __init__(self):
        self.inputs = []

    def tensor(self, x):
        for i, y in enumerate(self.inputs):
            if y is x:
                return i
        self.inputs.append(x)
        return len(self.inputs) - 1

    def arg(self, v, type_name):
        if v is None:
            return {"none": True}
        if isinstance(v, torch.Tensor):
            return {"tensor": self.tensor(v)}
        if isinstance(v, torch.dtype):
            return {"dtype": DTYPES[v]}
        if isinstance(v, (torch.layout, torch.device, torch.memory_format)):
            return {"none": True}
        if type_name == "Tensor":  # a number where the schema wants a tensor: a wrapped 0-d constant
            return {"wrapped": v, "dtype": "bool" if isinstance(v, bool) else "i64" if isinstance(v, int) else "f64"}
        if isinstance(v, bool):
            return {"bool": v}
        if isinstance(v, int):
            return {"double": float(v)} if type_name.startswith("float") else {"int": v}
        if isinstance(v, float):
            return {"double": number(v)}
        if isinstance(v, str):
            return {"string": v}
        if isinstance(v, (list, tuple)):
            if "Tensor" in type_name:
                return {"tensors": [None if x is None else self.tensor(x) for x in v]}
            if all(isinstance(x, bool) for x in v) and v:
                return {"bools": list(v)}
            if "float" in type_name or any(isinstance(x, float) for x in v):
                return {"doubles": [float(x) for x in v]}
            return {"ints": list(v)}
        raise TypeError(f"{v!r} as {type_name}")


CASES = {}


def case(family, op, *args, strides=True, **kwargs):
    name, _, overload = op.partition(".")
    fn = getattr(getattr(torch.ops.aten, name), overload or "default")
    bound = Case()
    listed = []
    for i, a in enumerate(fn._schema.arguments):
        if i < len(args):
            value = args[i]
        elif a.name in kwargs:
            value = kwargs[a.name]
        elif a.has_default_value():
            value = a.default_value
        else:
            value = None
        if a.name == "dtype" and isinstance(value, int) and not isinstance(value, bool):
            value = None
        if value is not None:  # an absent argument is None
            listed.append({"name": a.name, **bound.arg(value, str(a.type))})
    result = fn(*args, **kwargs)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    row = {"op": "aten::" + op, "args": listed, "inputs": [tensor_json(x) for x in bound.inputs],
           "results": [tensor_json(x) for x in results]}
    if not strides:
        row["strides"] = False
    CASES.setdefault(family, []).append(row)


def pointwise():
    f = "pointwise"
    x, y = t(2, 3), t(2, 3)
    x[0, 0] = float("nan"); x[1, 2] = float("inf")
    for op in "neg abs sign exp sin cos tanh sigmoid erf expm1 floor ceil trunc round isnan relu silu mish hardsigmoid hardswish log_sigmoid square nan_to_num isinf isfinite logical_not exp2".split():
        case(f, op, x if op not in ("sin", "cos") else y)
    for op in "sqrt rsqrt log log1p log2 reciprocal".split():
        case(f, op, pos(2, 3))
        case(f, op, ints(3, low=1))
    for op in "add.Tensor mul.Tensor div.Tensor maximum lt.Tensor".split():
        case(f, op, x, y)
        case(f, op, t(2, 1, 3), t(4, 1))                       # broadcasting
        case(f, op, ints(2, 3), t(3, low=0.5))                 # integer with float
        case(f, op, t(2, 3, dtype=torch.bfloat16), t(3, low=0.5))  # bf16 with f32
        case(f, op, t(2, 3, dtype=torch.bfloat16), pos(dtype=torch.float32))  # a 0-d tensor does not promote
    for op in "add.Tensor mul.Tensor div.Tensor sub.Tensor".split():
        case(f, op, t(4), 0.3)
        case(f, op, t(4, dtype=torch.bfloat16), 0.3)           # a number stays f32 in the kernel
        case(f, op, ints(4), 0.5)
        case(f, op, cl(2, 3, 2, 2), cl(2, 3, 2, 2))
        case(f, op, cl(2, 3, 2, 2), t(3, 1, 1))
        case(f, op, t(3, 4).t(), 2.0)
        case(f, op, t(3, 4).t(), t(4, 3))
    for op in "sub.Tensor minimum eq.Tensor ge.Tensor gt.Tensor".split():
        case(f, op, x, y)
    case(f, "add.Tensor", ints(4, dtype=torch.int32), 2)
    case(f, "add.Tensor", bools(4), bools(4))
    case(f, "mul.Tensor", bools(4), 3)
    case(f, "add.Tensor", x, y, alpha=0.5)
    case(f, "add.Tensor", t(5, dtype=torch.bfloat16), t(5, dtype=torch.bfloat16), alpha=0.3)
    case(f, "add.Tensor", ints(4), ints(4), alpha=3)
    case(f, "sub.Tensor", ints(4, dtype=torch.uint8), ints(4, dtype=torch.uint8))
    case(f, "add.Tensor", ints(4, dtype=torch.uint8), ints(4, dtype=torch.int8))
    case(f, "rsub.Scalar", t(4), 1)
    case(f, "div.Tensor", ints(4), ints(4, low=1))
    case(f, "div.Tensor_mode", t(6), pos(6), rounding_mode="trunc")
    case(f, "fmod.Scalar", t(8), 0.75)
    case(f, "remainder.Scalar", t(8), 0.75)
    case(f, "remainder.Tensor", t(8), t(8, low=0.25) * torch.tensor([1, -1] * 4))
    for e in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 1.7):
        case(f, "pow.Tensor_Scalar", pos(5), e)
    case(f, "pow.Tensor_Scalar", ints(4), 2)
    case(f, "pow.Tensor_Scalar", ints(4), 2.0)
    case(f, "pow.Tensor_Tensor", pos(4), t(4))
    case(f, "pow.Scalar", 1.5, t(4))
    case(f, "gt.Scalar", ints(5), 2.5)
    case(f, "ne.Scalar", t(5, dtype=torch.bfloat16), 0.3)
    case(f, "le.Tensor", bools(4), bools(4))
    for op in "logical_and logical_or logical_xor".split():
        case(f, op, ints(5, high=2), bools(5))
    for op in "bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor __and__.Tensor".split():
        case(f, op, ints(5), ints(5)); case(f, op, bools(5), bools(5))
    case(f, "bitwise_not", ints(4)); case(f, "bitwise_not", bools(4))
    case(f, "clamp", x, -0.5, 0.75); case(f, "clamp", x, None, 0.5); case(f, "clamp", ints(5), 1.5, None)
    case(f, "clamp.Tensor", t(4), t(4, high=0), None)
    case(f, "clamp_min", t(4), 0); case(f, "min.other", t(4), t(4))
    case(f, "where.self", bools(2, 1), t(2, 3), t(3, dtype=torch.float64))
    case(f, "where.ScalarOther", bools(4), t(4), 0.0); case(f, "where.ScalarSelf", bools(4), 1.0, ints(4))
    case(f, "masked_fill.Scalar", t(2, 3), bools(2, 1), float("-inf"))
    case(f, "masked_fill.Tensor", ints(2, 3), bools(3), torch.tensor(7))
    case(f, "addcmul", t(4), t(4), t(4), value=0.3); case(f, "addcdiv", t(4), t(4), pos(4), value=-0.5)
    case(f, "addcmul", t(4, dtype=torch.bfloat16), t(4, dtype=torch.bfloat16), t(4, dtype=torch.bfloat16), value=0.3)
    case(f, "lerp.Scalar", t(4), t(4), 0.3); case(f, "lerp.Scalar", t(4), t(4), 0.75); case(f, "lerp.Tensor", t(4), t(4), t(4, low=0, high=1))
    case(f, "gelu", y); case(f, "gelu", y, approximate="tanh"); case(f, "leaky_relu", x, 0.1)
    case(f, "leaky_relu", t(4, dtype=torch.bfloat16), 0.1)
    case(f, "elu", t(6), 0.7); case(f, "selu", t(6)); case(f, "celu", t(6), 1.3); case(f, "softplus", t(6, low=-8, high=24), 2, 10)
    case(f, "hardtanh", t(6), -0.5, 0.5); case(f, "relu6", t(6, high=9)); case(f, "threshold", t(6), 0.25, -3)
    case(f, "prelu", t(2, 3, 2), pos(3)); case(f, "glu", t(2, 6), -1); case(f, "dropout", t(3), 0.5, False)


def reductions():
    f = "reduce"
    for op in "sum mean amax amin prod max min any all".split():
        case(f, op, t(2, 3)) if op not in ("amax", "amin") else case(f, op, t(2, 3), [])
    for op in "sum.dim_IntList mean.dim amax amin".split():
        case(f, op, t(2, 3, 4), [1]); case(f, op, t(2, 3, 4), [-1, 0], True); case(f, op, t(2, 3, dtype=torch.bfloat16), [1])
    case(f, "sum.dim_IntList", ints(2, 3, dtype=torch.int32), [0]); case(f, "sum", bools(5)); case(f, "sum", t(3), dtype=torch.float64)
    case(f, "mean.dim", cl(2, 3, 2, 2), [2, 3], True); case(f, "prod.dim_int", t(2, 3), 1)
    case(f, "max.dim", t(2, 4), 1); case(f, "min.dim", ints(3, 4), 0, True); case(f, "argmax", t(2, 4)); case(f, "argmax", t(2, 4), -1, True)
    case(f, "argmin", ints(6, high=3)); case(f, "any.dim", bools(2, 3), 1); case(f, "all.dim", t(2, 3), 0)
    case(f, "var.correction", t(2, 5), [1], correction=1); case(f, "var.correction", t(2, 5), None, correction=0, keepdim=True)
    case(f, "std.correction", t(2, 5), [1]); case(f, "std", t(6)); case(f, "var_mean.correction", t(2, 5), [0, 1], correction=0)
    case(f, "linalg_vector_norm", t(2, 3), 2, [1]); case(f, "linalg_vector_norm", t(2, 3), 1); case(f, "linalg_vector_norm", t(2, 3), float("inf"), [0], True)
    case(f, "norm.ScalarOpt_dim", t(2, 3), 2, [1], True); case(f, "logsumexp", t(2, 4), [1]); case(f, "logsumexp", t(2, 4), [0, 1], True)
    for op in ("softmax.int", "log_softmax.int"):
        case(f, op, t(2, 5), -1); case(f, op, t(2, 3, 2), 1); case(f, op, t(4, dtype=torch.bfloat16), 0, torch.float32); case(f, op, t(2, 4, dtype=torch.bfloat16), 1)
    case(f, "cumsum", t(2, 4), 1); case(f, "cumsum", ints(2, 3, dtype=torch.int32), 0); case(f, "cumsum", bools(5), 0); case(f, "count_nonzero", ints(6, high=2))
    case(f, "amax", t(2, 0, 3), [0])


def views():
    f = "view"
    x = t(2, 3, 4)
    case(f, "view", x, [6, -1]); case(f, "reshape", x.transpose(1, 2), [2, 12]); case(f, "reshape", x.transpose(0, 1), [3, 2, 2, 2])
    case(f, "flatten.using_ints", x, 1, -1); case(f, "unflatten.int", x, -1, [2, -1]); case(f, "squeeze", t(1, 2, 1)); case(f, "squeeze.dim", t(1, 2, 1), 0)
    case(f, "squeeze.dims", t(1, 2, 1), [0, 1]); case(f, "unsqueeze", x, -1); case(f, "permute", x, [2, 0, 1]); case(f, "transpose.int", x, 0, -1)
    case(f, "t", t(2, 3)); case(f, "movedim.int", x, 0, 2); case(f, "expand", t(3, 1), [2, -1, 4]); case(f, "expand_as", t(1, 3), t(2, 3)); case(f, "repeat", t(2, 3), [2, 1, 2])
    case(f, "repeat_interleave.self_int", t(2, 2), 3, 1)
    case(f, "select.int", x, 1, -1); case(f, "slice.Tensor", x, 2, 1, 9223372036854775807, 2); case(f, "slice.Tensor", x, 1, -2, None); case(f, "narrow", x, 2, 1, 2)
    case(f, "slice_scatter", t(2, 6), t(2, 2), 1, 1, 5, 2); case(f, "select_scatter", t(2, 3), t(2), 1, -1)
    case(f, "split.Tensor", x, 3, 2); case(f, "split_with_sizes", x, [1, 3], 2); case(f, "chunk", t(7), 3); case(f, "unbind.int", x, 1)
    case(f, "cat", [t(2, 3), t(2, 1)], 1); case(f, "cat", [ints(3), t(2)], 0); case(f, "cat", [cl(2, 2, 2, 2), cl(2, 3, 2, 2)], 1); case(f, "stack", [t(2, 3), t(2, 3)], -1)
    case(f, "cat", [t(0), t(2, 3)], 0); case(f, "pad", t(2, 3), [1, -1, 0, 2], "constant", 1.5); case(f, "constant_pad_nd", ints(3), [1, 1], 4); case(f, "constant_pad_nd", cl(1, 2, 2, 2), [1, 1, 1, 1])
    case(f, "roll", t(3, 4), [1, -1], [0, 1]); case(f, "roll", t(2, 3), [4]); case(f, "flip", x, [0, 2]); case(f, "diff", t(5)); case(f, "diff", ints(2, 4), 1, -1, ints(2, 1))
    case(f, "meshgrid.indexing", [ints(2), ints(3)], indexing="xy"); case(f, "meshgrid", [ints(2), ints(3)])
    case(f, "pixel_shuffle", t(1, 8, 2, 3), 2); case(f, "pixel_unshuffle", t(1, 2, 4, 2), 2); case(f, "channel_shuffle", t(1, 6, 2, 2), 3)
    case(f, "_to_copy", t(5), dtype=torch.bfloat16); case(f, "_to_copy", t(5), dtype=torch.int32); case(f, "_to_copy", ints(5), dtype=torch.float16); case(f, "_to_copy", t(4), dtype=torch.bool)
    case(f, "to.dtype", cl(1, 2, 2, 2), torch.float64); case(f, "type_as", ints(3), t(1)); case(f, "clone", x.transpose(0, 1), strides=False)
    case(f, "_to_copy", ints(4, low=-300, high=300), dtype=torch.uint8)


def indexing():
    f = "index"
    x = t(4, 3, 2)
    case(f, "index_select", x, 1, ints(5, high=3)); case(f, "embedding", t(5, 3), ints(2, 2)); case(f, "gather", t(3, 4), 1, ints(2, 3, high=4))
    case(f, "index.Tensor", x, [ints(5, high=4, low=-4)]); case(f, "index.Tensor", x, [None, ints(2, 2, high=3)]); case(f, "index.Tensor", x, [ints(3, high=4), ints(3, high=3)])
    case(f, "index.Tensor", x, [ints(2, 1, high=4), ints(3, high=3)]); case(f, "index.Tensor", x, [ints(2, high=4), None, ints(2, high=2)], strides=False)
    case(f, "index.Tensor", x, [None, ints(2, high=3), ints(2, high=2)]); case(f, "index.Tensor", x, [torch.tensor(2)])
    case(f, "index_put", t(4, 3), [ints(2, high=4)], t(2, 3)); case(f, "index_put", t(4, 3), [ints(5, high=4), ints(5, high=3)], t(5), True)
    case(f, "index_put", t(4, 3), [bools(4, 3)], torch.tensor(9.0)); case(f, "index_put", t(4, 3), [None, torch.tensor([2, 0])], t(1))
    case(f, "scatter.src", t(3, 4), 1, torch.tensor([[0, 1], [3, 2]]), t(2, 2)); case(f, "scatter.value", t(3, 4), 0, torch.tensor([[2, 1, 0]]), 5.0)
    case(f, "scatter_add", t(3, 4), 0, ints(2, 4, high=3), t(2, 4))
    for r in ("sum", "prod", "mean", "amax", "amin"):
        case(f, "scatter_reduce.two", t(3, 4), 0, ints(3, 4, high=3), t(3, 4), r); case(f, "scatter_reduce.two", t(3, 4), 0, ints(3, 4, high=3), t(3, 4), r, include_self=False)
    case(f, "scatter_reduce.two", ints(3, low=-5), 0, ints(4, high=3), ints(4, low=-5), "mean")
    case(f, "index_add", t(3, 2), 0, ints(4, high=3), t(4, 2), alpha=2); case(f, "index_copy", t(3, 2), 1, torch.tensor([1, 0]), t(3, 2)); case(f, "index_fill.int_Scalar", t(3, 2), 0, torch.tensor([2]), 4.0)
    case(f, "take_along_dim", t(3, 4), ints(3, 1, high=4), 1)


def factories():
    f = "factory"
    case(f, "arange", 5); case(f, "arange.start", 2, 7); case(f, "arange.start_step", 1, 10, 3, dtype=torch.float32); case(f, "arange.start_step", 5, 0, -2)
    case(f, "zeros", [2, 3]); case(f, "ones", [2], dtype=torch.int64); case(f, "full", [2, 2], 1.5); case(f, "full", [2], 3); case(f, "full", [2], True)
    case(f, "full_like", t(2, dtype=torch.bfloat16), 0.3); case(f, "zeros_like", ints(3)); case(f, "new_ones", t(1), [2, 2], dtype=torch.bool); case(f, "new_full", ints(1), [2], 4)
    case(f, "scalar_tensor", 2.5); case(f, "eye", 3); case(f, "eye.m", 2, 4); case(f, "tril", t(3, 4)); case(f, "triu", t(2, 3, 3), 1); case(f, "tril", bools(3, 3), -1); case(f, "fill.Scalar", t(2), 3)


def contractions():
    f = "contraction"
    case(f, "matmul", t(3), t(3)); case(f, "matmul", t(2, 3), t(3)); case(f, "matmul", t(3), t(3, 2)); case(f, "matmul", t(2, 3), t(3, 4)); case(f, "matmul", t(2, 2, 3), t(3, 4))
    case(f, "matmul", t(2, 2, 3), t(3)); case(f, "matmul", t(2, 1, 2, 3), t(3, 3, 2)); case(f, "matmul", t(3), t(2, 3, 2)); case(f, "matmul", t(2, 3), t(2, 3, 2))
    case(f, "mm", t(2, 3), t(4, 3).t()); case(f, "mm", ints(2, 3), ints(3, 2)); case(f, "bmm", t(2, 2, 3), t(2, 3, 2)); case(f, "linear", t(2, 2, 3), t(4, 3), t(4)); case(f, "linear", t(3), t(4, 3))
    case(f, "linear", t(2, 8, dtype=torch.bfloat16), t(3, 8, dtype=torch.bfloat16), t(3, dtype=torch.bfloat16))
    case(f, "addmm", t(4), t(2, 3), t(3, 4)); case(f, "addmm", t(2, 4), t(2, 3), t(3, 4), beta=0.5, alpha=2); case(f, "baddbmm", t(2, 2, 2), t(2, 2, 3), t(2, 3, 2), beta=2)
    case(f, "outer", t(3), t(2)); case(f, "einsum", "ibh,hnd->ibnd", [t(2, 3, 4), t(4, 2, 2)], strides=False); case(f, "einsum", "ibnd,jbnd->bnij", [t(2, 2, 2, 3), t(3, 2, 2, 3)], strides=False)
    case(f, "einsum", "bnij,jbnd->ibnd", [t(2, 2, 2, 3), t(3, 2, 2, 2)], strides=False)
    case(f, "conv2d", t(1, 2, 4, 4), t(3, 2, 3, 3), t(3), [1, 1], [1, 1]); case(f, "conv2d", t(2, 4, 4, 4), t(4, 2, 2, 2), None, [2, 2], [0, 0], [1, 1], 2); case(f, "conv2d", cl(1, 2, 5, 5), t(2, 2, 3, 3), None, [2, 1], [2, 1], [2, 1])
    case(f, "conv2d", t(2, 4, 4), t(3, 2, 2, 2)); case(f, "conv1d", t(2, 2, 6), t(3, 2, 3), t(3), [2], [1]); case(f, "conv3d", t(1, 1, 3, 3, 3), t(2, 1, 2, 2, 2)); case(f, "conv2d.padding", t(1, 1, 4, 4), t(1, 1, 3, 3), None, [1, 1], "same")
    case(f, "conv_transpose2d.input", t(1, 2, 3, 3), t(2, 2, 3, 3), t(2), [2, 2], [1, 1], [1, 1]); case(f, "conv_transpose1d", t(1, 4, 3), t(4, 1, 2), None, [2], [0], [0], 2, [2])
    case(f, "convolution", t(1, 2, 3, 3), t(2, 2, 2, 2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    q, k, v = t(1, 2, 3, 4), t(1, 2, 5, 4), t(1, 2, 5, 4)
    op = "scaled_dot_product_attention"
    case(f, op, q, k, v); case(f, op, q, k, v, bools(3, 5) | (torch.arange(5) == 0)); case(f, op, q, k, v, t(1, 1, 3, 5), strides=False); case(f, op, q, q, q, None, 0.0, True)
    case(f, op, t(1, 4, 3, 2), t(1, 2, 3, 2), t(1, 2, 3, 2), None, 0.0, False, scale=0.25, enable_gqa=True, strides=False); case(f, op, t(2, 3, 4), t(2, 3, 4), t(2, 3, 4), strides=False)


def layers():
    f = "layer"
    x = t(2, 4, 3, 3)
    case(f, "batch_norm", x, pos(4), t(4), t(4), pos(4), False, 0.1, 1e-5, False); case(f, "batch_norm", cl(2, 4, 2, 2), None, None, t(4), pos(4), False, 0.1, 1e-3, False)
    case(f, "batch_norm", t(2, 4, 2, 2, dtype=torch.bfloat16), pos(4), t(4), t(4), pos(4), False, 0.1, 1e-5, False); case(f, "batch_norm", t(3, 4), pos(4), t(4), t(4), pos(4), False, 0.1, 1e-5, False)
    case(f, "layer_norm", t(2, 3, 4), [4], pos(4), t(4)); case(f, "layer_norm", t(2, 3, 4), [3, 4]); case(f, "layer_norm", t(2, 8, dtype=torch.bfloat16), [8], pos(8, dtype=torch.bfloat16), t(8, dtype=torch.bfloat16))
    case(f, "group_norm", x, 2, pos(4), t(4)); case(f, "group_norm", cl(2, 4, 2, 2), 2, pos(4), t(4)); case(f, "group_norm", t(2, 4), 4); case(f, "instance_norm", x, pos(4), t(4), None, None, True, 0.1, 1e-5, False, strides=False)
    case(f, "rms_norm", t(2, 8), [8], pos(8), 1e-6); case(f, "rms_norm", t(2, 8), [8])
    case(f, "max_pool2d", x, [2, 2]); case(f, "max_pool2d", t(1, 1, 5, 5), [3], [2], [1], [1], True); case(f, "max_pool2d", cl(1, 2, 5, 5), [2, 2], [1, 1], [0, 0], [2, 2]); case(f, "max_pool1d", t(2, 3, 7), [3], [2], [1])
    case(f, "avg_pool2d", x, [2, 2], [1, 1]); case(f, "avg_pool2d", t(1, 1, 5, 5), [3, 3], [2, 2], [1, 1], True, False); case(f, "avg_pool2d", t(1, 1, 5, 5), [3, 3], [2, 2], [1, 1], True, True); case(f, "avg_pool2d", t(1, 5, 5), [2, 2], [2, 2], [0, 0], False, True, 3)
    case(f, "adaptive_avg_pool2d", t(1, 2, 5, 7), [2, 3]); case(f, "adaptive_avg_pool2d", x, [1, 1], strides=False); case(f, "adaptive_avg_pool1d", t(2, 2, 6), [4])
    case(f, "upsample_nearest2d", t(1, 1, 2, 3), [4, 6]); case(f, "upsample_nearest2d.vec", t(1, 1, 2, 3), None, [2.0, 1.5]); case(f, "upsample_nearest2d", t(1, 1, 5, 5), [3, 7]); case(f, "upsample_nearest1d", t(1, 2, 3), [7])
    case(f, "upsample_bilinear2d", t(1, 2, 3, 3), [5, 7], False); case(f, "upsample_bilinear2d", t(1, 1, 3, 3), [6, 5], True); case(f, "upsample_bilinear2d.vec", cl(1, 2, 3, 3), None, False, [2.0, 2.0])

    def weights(gates, hidden, width, layers, directions, biases):
        out = []
        for layer in range(layers):
            for _ in range(directions):
                out += [t(gates * hidden, width if layer == 0 else hidden * directions), t(gates * hidden, hidden)]
                if biases:
                    out += [t(gates * hidden), t(gates * hidden)]
        return out

    case(f, "lstm.input", t(3, 2, 2), [t(1, 2, 2), t(1, 2, 2)], weights(4, 2, 2, 1, 1, True), True, 1, 0.0, False, False, False)
    case(f, "lstm.input", t(2, 3, 2), [t(4, 2, 2), t(4, 2, 2)], weights(4, 2, 2, 2, 2, True), True, 2, 0.0, False, True, True, strides=False)
    case(f, "gru.input", t(3, 2, 2), t(2, 2, 2), weights(3, 2, 2, 1, 2, False), False, 1, 0.0, False, True, False)
    case(f, "mse_loss", t(2, 3), t(2, 3)); case(f, "one_hot", ints(4, high=3), 5)
    w, at, off = t(6, 3), ints(7, high=6), torch.tensor([0, 3, 3])
    for mode in (0, 1, 2):
        case(f, "embedding_bag", w, at, off, False, mode)
    case(f, "embedding_bag", w, at, torch.tensor([0, 2, 7]), False, 0, False, None, True)
    case(f, "_weight_norm", t(4, 3, 5), pos(4, 1, 1), 0); case(f, "_weight_norm", t(4, 3, 5), pos(1, 1, 5), 2); case(f, "_weight_norm", t(3, 4, dtype=torch.bfloat16), pos(3, 1, dtype=torch.bfloat16), 0)
    batch = [None, None, True, 0.1, 1e-5, False]  # statistics of the batch
    case(f, "batch_norm", t(2, 4, 3, 3), pos(4), t(4), *batch); case(f, "batch_norm", t(1, 6, 4), None, None, *batch); case(f, "batch_norm", t(5, 3), pos(3), None, *batch)
    case(f, "batch_norm", cl(2, 4, 3, 2), pos(4), t(4), *batch); case(f, "batch_norm", t(3, 2, 4, dtype=torch.bfloat16), pos(2), t(2), *batch); case(f, "batch_norm", t(1, 2, 3, 2, 2, dtype=torch.float64), None, None, *batch)


def backward():
    f, half = "backward", torch.bfloat16
    g, x = t(3, 4), t(3, 4)
    case(f, "threshold_backward", g, x, 0); case(f, "threshold_backward", g, x, 0.5); case(f, "threshold_backward", g, torch.tensor([[float("nan"), -1.0, 0.0, 1.0]] * 3), 0)
    case(f, "hardtanh_backward", g, x, -1, 1); case(f, "tanh_backward", g, torch.tanh(x)); case(f, "sigmoid_backward", g, torch.sigmoid(x)); case(f, "silu_backward", g, x)
    case(f, "gelu_backward", g, x); case(f, "gelu_backward", g, 3 * x, approximate="tanh"); case(f, "gelu_backward", t(2, 8, dtype=half), t(2, 8, dtype=half))
    case(f, "tanh_backward", t(2, 8, dtype=half), torch.tanh(t(2, 8, dtype=half))); case(f, "silu_backward", t(2, 8, dtype=half), t(2, 8, dtype=half))
    case(f, "leaky_relu_backward", g, x, 0.1, False); case(f, "leaky_relu_backward", g, x, 0.1, True)
    case(f, "native_dropout_backward", g, bools(3, 4), 1 / 0.9); case(f, "native_dropout_backward", t(2, 8, dtype=half), bools(2, 8), 2.0)
    case(f, "_softmax_backward_data", g, torch.softmax(x, 1), 1, torch.float32); case(f, "_softmax_backward_data", t(2, 3, 4), torch.softmax(t(2, 3, 4), 1), -2, torch.float32)
    case(f, "_log_softmax_backward_data", g, torch.log_softmax(x, 1), 1, torch.float32); case(f, "_log_softmax_backward_data", t(2, 8, dtype=half), torch.log_softmax(t(2, 8, dtype=half), 1), 1, half)
    case(f, "_safe_softmax", torch.tensor([[1.0, 2.0, float("-inf")], [float("-inf")] * 3]), -1); case(f, "_safe_softmax", t(2, 3, 4), 1)
    for reduction in (0, 1, 2):
        case(f, "mse_loss_backward", t() if reduction else g, x, t(3, 4), reduction)
    log, classes = torch.log_softmax(t(5, 4), 1), torch.tensor([1, 0, -100, 3, 1])
    for reduction in (1, 2):
        total = torch.tensor(4.0)
        case(f, "nll_loss_forward", log, classes, None, reduction, -100); case(f, "nll_loss_backward", t(), log, classes, None, reduction, -100, total)
    case(f, "nll_loss_forward", log, ints(5, high=4), None, 1, 2); case(f, "nll_loss_backward", t(), log, torch.tensor([2, 1, 2, 0, 3]), None, 1, 2, torch.tensor(3.0))

    def statistics(x, dims, eps=1e-5):
        return x.mean(dims, keepdim=True), torch.rsqrt(x.var(dims, unbiased=False, keepdim=True) + eps)
    for sizes, normed in (((2, 3, 4), [4]), ((2, 3, 4), [3, 4]), ((4,), [4])):
        x = t(*sizes)
        w, b = pos(*normed), t(*normed)
        dims = list(range(-len(normed), 0))
        case(f, "native_layer_norm", x, normed, w, b, 1e-5); case(f, "native_layer_norm_backward", t(*sizes), x, normed, *statistics(x, dims), w, b, [True, True, True])
    case(f, "native_layer_norm", t(2, 3, 4), [4], None, None, 1e-3)
    x = t(2, 8, dtype=half)
    case(f, "native_layer_norm", x, [8], pos(8), t(8), 1e-5)
    case(f, "native_layer_norm_backward", t(2, 8, dtype=half), x, [8], *(each.to(half) for each in statistics(x.float(), [-1])), pos(8, dtype=half), t(8, dtype=half), [True, True, True])
    for x in (t(2, 4, 3, 3), t(5, 4), cl(2, 4, 3, 2), t(3, 4, 5)):
        mean, inverse = (each.reshape(4) for each in statistics(x, [d for d in range(x.dim()) if d != 1]))
        case(f, "_native_batch_norm_legit_functional", x, pos(4), t(4), t(4), pos(4), True, 0.1, 1e-5, strides=False)
        case(f, "_native_batch_norm_legit_functional", x, None, None, t(4), pos(4), True, 0.3, 1e-3, strides=False)
        for trains in (True, False):
            case(f, "native_batch_norm_backward", torch.empty_like(x).copy_(t(*x.shape)), x, pos(4), t(4), pos(4), mean, inverse, trains, 1e-5, [True, True, True], strides=False)
    case(f, "select_backward", t(3, 2), [3, 4, 2], 1, 2); case(f, "select_backward", t(3, 4), [3, 4, 2], -1, -1); case(f, "slice_backward", t(3, 2, 2), [3, 4, 2], 1, 1, 3, 1)
    case(f, "slice_backward", t(3, 2), [3, 4], 1, 0, 2**63 - 1, 2); case(f, "slice_backward", t(2, 4), [3, 4], 0, -2, 2**63 - 1, 1)
    case(f, "embedding_dense_backward", t(4, 3), ints(4), 5, -1, False); case(f, "embedding_dense_backward", t(2, 3, 2), ints(2, 3), 5, 1, False)
    everything = [True, True, True]
    for grad, x, w, rest in (
            (t(2, 4, 5, 5), t(2, 3, 5, 5), t(4, 3, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
            (t(1, 4, 3, 3), t(1, 2, 6, 5), t(4, 1, 3, 2), ([2, 2], [1, 1], [1, 1], False, [0, 0], 2)),
            (t(1, 2, 3, 4), t(1, 2, 7, 8), t(2, 2, 3, 3), ([1, 1], [0, 0], [2, 2], False, [0, 0], 1)),
            (t(2, 3, 4), t(2, 2, 9), t(3, 2, 4), ([2], [1], [1], False, [0], 1)),
            (t(1, 2, 3, 2, 2), t(1, 2, 3, 4, 3), t(2, 2, 1, 3, 2), ([1, 1, 1], [0, 0, 0], [1, 1, 1], False, [0, 0, 0], 1)),
            (t(1, 4, 6, 7), t(1, 3, 3, 4), t(3, 4, 2, 3), ([2, 2], [0, 1], [1, 1], True, [0, 0], 1)),
            (t(2, 4, 8), t(2, 4, 4), t(4, 2, 3), ([2], [1], [1], True, [1], 2)),
            (cl(2, 4, 4, 4), cl(2, 2, 4, 4), cl(4, 2, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1))):
        case(f, "convolution_backward", grad, x, w, [grad.shape[1]], *rest, everything, strides=False)
    case(f, "_adaptive_avg_pool2d_backward", t(2, 3, 1, 1), t(2, 3, 4, 5), strides=False); case(f, "_adaptive_avg_pool2d_backward", t(3, 1, 1), t(3, 2, 2), strides=False)


def experts():
    f, half = "contraction", torch.bfloat16
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    case(f, "_grouped_mm", t(5, 4), t(3, 4, 8), ends); case(f, "_grouped_mm", t(5, 4), t(3, 8, 4).transpose(1, 2), ends, None, torch.float32)
    case(f, "_grouped_mm", t(5, 8, dtype=half), t(3, 8, 8, dtype=half), ends)
    f = "reduce"
    case(f, "histc", ints(7, high=4).float(), 4, 0, 3); case(f, "histc", t(3, 5), 7, -1, 1.5); case(f, "histc", t(9, dtype=torch.float64), 3, 0, 1)
    case(f, "histc", torch.tensor([0.0, 1.0, 2.0, 3.0, float("nan"), float("inf"), -0.5, 3.5]), 3, 0, 3)
    f = "pointwise"
    far = torch.tensor([-2**53, 2**53, 2**53 - 1, 2**51 + 1, -1, 0, 6, 7, -7])  # the tests read doubles
    case(f, "floor_divide", ints(9, low=-20, high=20), 7); case(f, "floor_divide", ints(5, low=-9, high=9, dtype=torch.int32), 2)
    for divisor in (2, 3, 7, 10**9 + 7, 2**50):
        case(f, "floor_divide", far, divisor)
    case(f, "floor_divide", torch.tensor([-2**31, 2**31 - 1, -5], dtype=torch.int32), 3)


def group_norms():
    f, half = "backward", torch.bfloat16
    for x, groups in ((t(2, 6, 3, 4), 3), (t(1, 4, 5), 4), (t(3, 4), 1), (cl(2, 4, 3, 3), 2)):
        sizes = [x.shape[0], x.shape[1], x[0, 0].numel()]
        w, b, g = pos(x.shape[1]), t(x.shape[1]), torch.empty_like(x).copy_(t(*x.shape))
        _, mean, rstd = torch.native_group_norm(x, w, b, *sizes, groups, 1e-5)
        case(f, "native_group_norm", x, w, b, *sizes, groups, 1e-5, strides=False); case(f, "native_group_norm", x, None, None, *sizes, groups, 1e-5, strides=False)
        case(f, "native_group_norm_backward", g, x, mean, rstd, w, *sizes, groups, [True, True, True], strides=False)
    x, w, b = t(2, 4, 3, dtype=half), pos(4), t(4)
    case(f, "native_group_norm", x, w, b, 2, 4, 3, 2, 1e-3)
    _, mean, rstd = torch.native_group_norm(x, w, b, 2, 4, 3, 2, 1e-3)
    case(f, "native_group_norm_backward", t(2, 4, 3, dtype=half), x, mean, rstd, w, 2, 4, 3, 2, [True, True, True])


for write in (pointwise, reductions, views, indexing, factories, contractions, layers, backward, experts, group_norms):
    write()
for family, rows in CASES.items():
    with open(os.path.join(HERE, family + ".json"), "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "\n]\n")
    print(family, len(rows))
