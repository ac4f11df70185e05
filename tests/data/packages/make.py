# SPDX-License-Identifier: Apache-2.0
"""Writes small exported models that call operators of Python packages, each with inputs and what the package answered.

Not a test by itself. The form is that of ../import/make.py. Needs transformers, torchvision, bitsandbytes and
torch_scatter beside torch; `make.py [FOLDER [NAME...]]` writes all models or those named.
"""
import importlib.util
import sys
from pathlib import Path

import torch
from torch import nn

spec = importlib.util.spec_from_file_location("make_import", Path(__file__).parent.parent / "import" / "make.py")
make_import = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_import)


class GroupedMm(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(4, 6, 8)), nn.Parameter(torch.randn(4, 5, 8))

    def forward(self, x, ends):
        import transformers.integrations.moe  # noqa: F401, registers the operator

        hidden = torch.relu(torch.ops.transformers.grouped_mm_fallback(x, self.up, ends))
        return torch.ops.transformers.grouped_mm_fallback(hidden, self.down.transpose(1, 2), offs=ends)


class GroupedProduct(nn.Module):
    """What transformers calls where LibTorch has it; its operator is of no package."""

    def __init__(self):
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.randn(4, 8, 16).bfloat16()) for _ in range(2))

    def forward(self, x, ends):
        hidden = torch.relu(torch._grouped_mm(x, self.up, offs=ends))
        return torch._grouped_mm(hidden, self.down.transpose(1, 2), offs=ends)


class Nms(nn.Module):
    def forward(self, boxes, scores):
        import torchvision

        kept = torchvision.ops.nms(boxes, scores, 0.4)
        return kept, torchvision.ops.nms(boxes.double(), scores.double(), 0.9), boxes[kept]


class RoiAlign(nn.Module):
    def forward(self, x, rois):
        from torchvision.ops import roi_align

        return (roi_align(x, rois, (3, 2), 0.5, 2, True), roi_align(x, rois, (2, 3), 0.7, -1, False),
                roi_align(x.double(), rois.double(), (2, 2), 1.0, 0, True))


class Scatter(nn.Module):
    def forward(self, x, rough, index, borders, wide):
        ops = torch.ops.torch_scatter_twin if torch.compiler.is_exporting() else torch.ops.torch_scatter
        out = [getattr(ops, f"scatter_{word}")(x, index, 0, None, 7) for word in ("sum", "mul", "mean")]
        out += [getattr(ops, f"segment_{word}_csr")(x, borders, None) for word in ("sum", "mean")]
        out += [getattr(ops, f"segment_{word}_coo")(x, index.sort()[0], None, 7) for word in ("sum", "mean")]
        for word in ("min", "max"):
            out += getattr(ops, f"scatter_{word}")(rough, index, -2, None, 7)
            out += getattr(ops, f"scatter_{word}")((x * 3).long(), wide, 1, None, 6)
            out += getattr(ops, f"segment_{word}_csr")(rough, borders, None)
            out += getattr(ops, f"segment_{word}_coo")(rough, index.sort()[0], None, 7)
        out += [ops.gather_coo(x, index.sort()[0], None), ops.gather_csr(x[:5], borders, None)]
        out += [ops.segment_sum_csr(x.reshape(2, 6, 4), torch.tensor([[0, 2, 2, 6], [1, 3, 4, 5]]), None)]
        return tuple(out)


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        import bitsandbytes  # noqa: F401

        ops = torch.ops.bitsandbytes
        weight = torch.randn(6, 64)
        for kind in ("nf4", "fp4"):
            packed, absmax = ops.quantize_4bit(weight, 64, kind, torch.uint8)
            self.register_buffer(f"{kind}_packed", packed)
            self.register_buffer(f"{kind}_absmax", absmax)
        rows, stats, _ = ops.int8_vectorwise_quant(weight)
        self.register_buffer("rows", rows)
        self.register_buffer("stats", stats)
        self.register_buffer("code", torch.linspace(-1, 1, 256))
        coded, scales = ops.quantize_blockwise(weight[0, :60].contiguous(), self.code, 32)
        self.register_buffer("coded", coded)
        self.register_buffer("scales", scales)
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x):
        ops = torch.ops.bitsandbytes
        quantized, scale, _ = ops.int8_vectorwise_quant(x)
        clipped, smaller, columns = ops.int8_vectorwise_quant(x, 1.5)
        products = ops.int8_linear_matmul(quantized, self.rows)
        return (ops.dequantize_4bit(self.nf4_packed, self.nf4_absmax, 64, "nf4", [6, 64], torch.float32),
                ops.dequantize_4bit(self.fp4_packed, self.fp4_absmax, 64, "fp4", [6, 64], torch.float32),
                ops.gemm_4bit(x, self.nf4_packed, [6, 64], self.nf4_absmax, 64, "nf4", self.bias),
                ops.dequantize_blockwise(self.coded, self.scales, self.code, 32, torch.float32),
                quantized, scale, clipped, smaller, columns, products,
                ops.int8_scaled_mm(quantized, self.rows, scale, self.stats, self.bias, torch.float32),
                ops.int8_vectorwise_dequant(self.rows, self.stats))


def twins_of_torch_scatter():
    """Operators of the same schemas that can be exported: the package's read memory while they are traced."""
    twins = torch.library.Library("torch_scatter_twin", "DEF")

    def define(name, fake):
        schema = str(getattr(torch.ops.torch_scatter, name).default._schema)
        twins.define(schema.removeprefix("torch_scatter::"))
        torch.library.register_fake(f"torch_scatter_twin::{name}", fake, lib=twins)

    def like(src, size, dim):
        sizes = list(src.shape)
        sizes[dim] = size
        return src.new_empty(sizes)

    for word in ("sum", "mul", "mean", "min", "max"):
        both = word in ("min", "max")

        def results(out, both=both):
            return (out, out.new_empty(out.shape, dtype=torch.int64)) if both else out

        define(f"scatter_{word}", lambda x, i, d, o, n, r=results: r(like(x, n, d)))
        if word != "mul":
            define(f"segment_{word}_coo", lambda x, i, o, n, r=results: r(like(x, n, i.dim() - 1)))
            define(f"segment_{word}_csr", lambda x, p, o, r=results: r(like(x, p.shape[-1] - 1, p.dim() - 1)))
    define("gather_coo", lambda x, i, o: like(x, i.shape[-1], i.dim() - 1))
    define("gather_csr", lambda x, p, o: like(x, 12, p.dim() - 1))
    return twins


def cases():
    torch.manual_seed(0)
    yield "grouped_mm", GroupedMm, (torch.randn(9, 6), torch.tensor([2, 2, 6, 8], dtype=torch.int32))
    torch.manual_seed(0)
    yield "grouped_product", GroupedProduct, (torch.randn(9, 8).bfloat16(), torch.tensor([2, 2, 6, 9], dtype=torch.int32))
    torch.manual_seed(0)
    corners = torch.rand(40, 2) * 20
    boxes = torch.cat([corners, corners + torch.rand(40, 2) * 12], 1)
    yield "nms", Nms, (boxes, (torch.rand(40) * 8).round() / 8)
    starts = torch.rand(6, 2) * 10
    regions = torch.cat([torch.randint(0, 2, (6, 1)).float(), starts, starts + torch.rand(6, 2) * 9 + 1], 1)
    regions[4, 1:] = torch.tensor([30.0, 30, 40, 40])  # outside
    regions[5, 1:] = torch.tensor([5.0, 6, 5.2, 6])    # without height
    yield "roi_align", RoiAlign, (torch.randn(2, 3, 9, 11), regions)
    torch.manual_seed(0)
    x = torch.randn(12, 4)
    rough = x.clone()
    rough[3, 1], rough[5] = float("nan"), rough[6]  # no number, and two that are equal
    index = torch.tensor([0, 5, 2, 2, 1, 3, 3, 5, 0, 2, 5, 5])
    yield "scatter", Scatter, (x, rough, index, torch.tensor([0, 3, 3, 8, 10, 12]), torch.randint(0, 5, (12, 4)))
    torch.manual_seed(0)
    yield "quantized", Quantized, (torch.randn(3, 64),)


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    for name, make, args in cases():
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        if name == "scatter":
            import torch_scatter  # noqa: F401
            twins = twins_of_torch_scatter()  # as long as they are kept
        torch.manual_seed(0)
        make_import.write(folder, name, make().eval(), args, None, 1)
        if name == "scatter":
            make_import.rewrite(folder / "scatter.pt2", ("torch_scatter_twin", "torch_scatter"))
            del twins


if __name__ == "__main__":
    main()
