#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small exported models whose answers hang on single roundings: what the tests of sensitive models open.

`make.py [FOLDER]` writes them without weights: like the files of the zoo they hold rules by which weights and inputs are drawn. Run
it with the Python of the zoo (bench/zoo/README.md).
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench/zoo"))

import torch
from torch import nn

import archive


class Iterated(nn.Module):
    """The logistic map between two layers: an error of one rounding doubles at every other step, until nothing is left."""

    def __init__(self, width=64, steps=64):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.last = nn.Linear(width, width)
        self.steps = steps

    def forward(self, x):
        h = torch.sigmoid(self.first(x))
        for _ in range(self.steps):
            h = 3.9 * h * (1 - h)
        return self.last(h)


class Routed(nn.Module):
    """A mixture of experts: each token goes to the expert that scores best, and in bf16 many scores are nearly equal."""

    def __init__(self, width=64, experts=8):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.gate = nn.Linear(width, experts)
        self.first = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.second = nn.Parameter(torch.randn(experts, 2 * width, width) / (2 * width) ** 0.5)

    def forward(self, x):
        h = x + torch.nn.functional.gelu(self.up(x))
        scores = torch.softmax(self.gate(h), -1)
        best = torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(h.dtype)
        all_experts = torch.einsum("ted,edf->tef", torch.nn.functional.gelu(torch.einsum("td,edf->tef", h, self.first)), self.second)
        return h + (all_experts * (best * scores).unsqueeze(-1)).sum(1)


def rule_of(name, tensor):
    bound = float(f"{(3 / max(1, tensor[0].numel() if tensor.dim() < 3 else tensor.shape[1])) ** 0.5:.4g}")
    return {"kind": "uniform", "low": -bound, "high": bound}


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    normal = {"kind": "normal", "mean": 0.0, "std": 1.0}
    for name, make, dtype, rows in (("iterated", Iterated, torch.float32, 32), ("routed", Routed, torch.bfloat16, 512)):
        torch.manual_seed(0)
        program = torch.export.export(make().eval().to(dtype), (torch.randn(rows, 64, dtype=dtype),))
        archive.write(program, {"version": 1, "seed": 20260, "inputs": [normal]}, rule_of, folder / f"{name}.pt2")


if __name__ == "__main__":
    main()
