# SPDX-License-Identifier: Apache-2.0
"""Writes the cases of tests/miscompiles: public reports of compilers for PyTorch that answered wrongly, as small exported models.

Each is written anew after the report that `reports.txt` names; nothing of a report's code is copied. Beside <name>.pt2 lies
<name>.safetensors with in_0.. and out_0_0..; a model of changing sizes has a second set, in2_0.. and out2_0... Outputs in floats
are returned a second time behind two small operators, so that no region is too small to be compiled. Run: python tests/data/miscompiles/make.py
"""
import importlib.util
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

kHere = Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("make_import", kHere.parent / "import/make.py")
_import = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_import)
_import.kNames |= {torch.int8: "I8", torch.int16: "I16"}

kNan, kInf = float("nan"), float("inf")


class Case(nn.Module):
    """A function as a module. Arguments have names, as guards on sizes need them."""

    def __init__(self, body, **tensors):
        super().__init__()
        self.body = body
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, a, b=None, c=None, d=None, e=None):
        out = self.body(self, *(x for x in (a, b, c, d, e) if x is not None))
        out = out if isinstance(out, tuple) else (out,)
        return out + tuple(torch.tanh(-y) for y in out if y.is_floating_point())


def randn(*sizes, dtype=torch.float32):
    return torch.randn(sizes).to(dtype)


def accumulate_at_index(_, x, y):
    at = x + 10
    y[at] += y[at]
    return y.clone()


def log_then_log_in_place(_, x):
    y = torch.log(x)
    x.log_()
    return y


def copy_then_write_source(_, dst, src):
    dst[0:, :] = src[0:, :]
    src.add_(1)
    return src.clone()


def doubled_then_overwritten(_, x):
    y = x * 2
    y.sub_(-4)
    x[:, 2:5] = 2
    return y


def two_views_of_one(_, x):
    z = x + 1
    a = z.view(-1)
    out = a + 1
    return out, (z + 1).view(2, 4)


def column_accumulates(_, x):
    y = torch.zeros_like(x)
    y[:, 0] += x[:, 2].abs()
    return y.sum(0), y


def residual_layer_norm(_, x, skip, weight, bias):
    return F.layer_norm(x + skip, (x.shape[-1],), weight, bias, 1e-5)


def layer_norm_by_hand(_, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-12)


def norm_in_bf16(_, t0, t1, t2, t3, t4):
    t = torch.addmm(t0, t1, t2).norm()
    v = t3.var(dim=0).var()
    return v + t + torch.relu(t4), t * 0.5


def rotary(_, x, position):
    angle = position[:, None].float() * torch.tensor([1.0, 0.1, 0.01, 0.001])
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def floor_mean_resize(self, x):
    y = torch.floor(x / self.p.abs())
    return y, y.mean(2), F.interpolate(y.unsqueeze(2), size=[1, 2, 10], mode="trilinear", align_corners=False)


def int8_distributes(_, x, y):
    return x * 6 + y * 6, (x + y) * 6


def cases():
    """Name, module, arguments, sizes that change (else None), a second set of arguments (else None)."""
    def one(name, body, *args, dynamic=None, second=None, **tensors):
        return name, Case(body, **tensors), args, dynamic, second

    batch = torch.export.Dim("batch", min=2, max=4096)
    nans = torch.tensor([[1.0, kNan, 3.0, kInf], [kInf, kNan, kNan, 0.0], [-1.0, -2.0, -1.0, -2.0], [-kInf, 2.0, 2.0, kNan]])
    zeros = torch.tensor([0.0, -0.0, 0.0, -0.0, 1.0, kNan, -kInf])
    ramp = torch.arange(1, 17, dtype=torch.float32).reshape(1, 1, 4, 4)
    yield one("accumulate_at_index", accumulate_at_index, torch.tensor([[-10, -9]]), randn(2, 32))
    yield one("log_then_log_in_place", log_then_log_in_place, torch.rand(5) + 0.5)
    yield one("copy_then_write_source", copy_then_write_source, torch.zeros(3, 4), torch.arange(12.0).view(3, 4))
    yield one("doubled_then_overwritten", doubled_then_overwritten, torch.arange(-12, 12).reshape(4, 6))
    yield one("two_views_of_one", two_views_of_one, torch.zeros(4, 2))
    yield one("column_accumulates", column_accumulates, randn(2, 3))
    yield one("argmax_of_nan", lambda _, x: (x.argmax(1), x.argmin(1), x.amax(1)), nans)
    yield one("extreme_of_signed_zeros", lambda _, x: (torch.maximum(x, x.flip(0)), torch.minimum(x, x.flip(0))), zeros)
    yield one("copysign_of_negative_zero", lambda _, x: torch.copysign(x, -0.0), randn(6))
    yield one("avg_pool_skips_last_window", lambda _, x: F.avg_pool2d(x, 3, 3, 1, ceil_mode=True), torch.rand(1, 3, 2, 2))
    yield one("avg_pool_ceil_counts_padding", lambda _, x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=True), ramp)
    yield one("avg_pool_ceil_shape", lambda _, x: F.avg_pool2d(x, 4, 4, 2, ceil_mode=True), torch.ones(1, 1, 9, 9))
    yield one("avg_pool_ceil_dropped", lambda _, x: F.avg_pool2d(x, 4, 2, 0, ceil_mode=True), randn(1, 9, 9, 9))
    yield one("slice_with_steps", lambda _, x: x[:, ::2, ::2, :] * 2, randn(2, 5, 6, 3))
    yield one("slice_from_the_end", lambda _, x: x[:, :, 1:-1].relu(), randn(4, 3, 8), dynamic=({0: batch, 2: torch.export.Dim("width", min=4)},),
              second=(randn(3, 3, 13),))
    yield one("transposed_convolution", lambda s, x: F.conv_transpose2d(x, s.w, s.b, 3, 0, 2), randn(2, 3, 6, 6), w=randn(3, 4, 3, 3), b=randn(4))
    yield one("softplus_below_threshold", lambda _, x: F.softplus(x, 2, -100), randn(10, 20))
    yield one("bicubic_with_corners", lambda _, x: F.interpolate(x, size=(4, 6), mode="bicubic", align_corners=True), randn(1, 2, 4, 4))
    yield one("bilinear_with_corners", lambda _, x: F.interpolate(x, size=(64, 64), mode="bilinear", align_corners=True), randn(1, 3, 32, 32))
    yield one("wide_linear", lambda s, x: F.linear(x, s.w, s.b), randn(128, 20), w=randn(400, 20), b=randn(400))
    yield one("int8_distributes", int8_distributes, torch.tensor([5, 100, -128, 127], dtype=torch.int8), torch.tensor([4, 99, -1, 127], dtype=torch.int8))
    yield one("bf16_plus_f64_number", lambda _, x, y: torch.add(x, y), torch.tensor([[[0.1733]]], dtype=torch.bfloat16), torch.tensor(59.8794, dtype=torch.float64))
    yield one("norm_in_bf16", norm_in_bf16, randn(5, 4, dtype=torch.bfloat16), randn(5, 1024, dtype=torch.bfloat16), randn(1024, 4, dtype=torch.bfloat16),
              randn(3, 4, 5, 2), randn())
    yield one("floor_mean_resize", floor_mean_resize, randn(2, 3, 4, 5), p=torch.rand(3, 1, 5) + 0.25)
    yield one("layer_norm_by_hand", layer_norm_by_hand, randn(3, 200) * 5 + 3)
    yield one("residual_layer_norm_f16", residual_layer_norm, randn(4, 64, dtype=torch.float16), randn(4, 64, dtype=torch.float16), randn(64, dtype=torch.float16),
              randn(64, dtype=torch.float16))
    yield one("repeat_of_other_size", lambda _, x: x.repeat(2) + 1, randn(20), dynamic=({0: batch},), second=(randn(40),))
    yield one("size_times_tensor", lambda _, a, b: a.shape[0] * a * b, randn(4, 3), randn(4, 3), dynamic=({0: batch}, {0: batch}),
              second=(randn(8, 3), randn(8, 3)))
    yield one("diff_of_other_size", lambda _, x: torch.diff(x, dim=-1).sum(-1), randn(3, 4), dynamic=({0: batch},), second=(randn(5, 4),))
    yield one("linear_resize_to_one_part", lambda _, x: F.interpolate(x, scale_factor=1 / 300, mode="linear"), randn(1, 8, 3 * 300))
    yield one("product_of_nothing", lambda _, a, b: torch.matmul(a, b) + 1, torch.zeros(3, 0, dtype=torch.int64), torch.zeros(0, 4, dtype=torch.int64))
    yield one("cat_with_nothing", lambda _, a, b: torch.cat((a, b, a), 0) * 2, randn(2, 3), torch.zeros(0, 3))
    yield one("cos_of_nothing", lambda _, a, b: (a + b).cos().sum(0), torch.zeros(0, 16), randn(1, 16))
    yield one("rotary_in_bf16", rotary, randn(6, 8, dtype=torch.bfloat16), torch.arange(6))


def write(name, module, args, dynamic, second):
    module.eval()
    clone = lambda tensors: tuple(t.clone() for t in tensors)
    program = torch.export.export(module, clone(args), dynamic_shapes=dynamic)
    torch.export.save(program, kHere / f"{name}.pt2")
    tensors = {}
    for prefix, given, call in (("", args, "0_"), ("2", second, "")):
        if given is None:
            continue
        tensors |= {f"in{prefix}_{i}": t for i, t in enumerate(given)}
        with torch.no_grad():
            outputs = module(*clone(given))
        tensors |= {f"out{prefix}_{call}{i}": t for i, t in enumerate(outputs)}
    _import.save_tensors(kHere / f"{name}.safetensors", tensors)


def main():
    wanted = sys.argv[1:]
    for name, module, args, dynamic, second in cases():
        torch.manual_seed(0)
        if not wanted or name in wanted:
            write(name, module, args, dynamic, second)
            print(name)


if __name__ == "__main__":
    main()
