# SPDX-License-Identifier: Apache-2.0
"""What a family file hands to the exporter: a model to build, and its inputs.

A Case holds no tensors and builds nothing by itself, so that listing the zoo costs nothing. An input is a shape, a dtype and the
rule by which its values are drawn; the rule travels in the file, so the data that a model is measured on is never stored.
"""
from dataclasses import dataclass
from typing import Any, Callable

import torch


@dataclass(frozen=True)
class Input:
    shape: tuple[int, ...]
    dtype: torch.dtype
    rule: dict[str, Any]


def normal(*shape: int, dtype: torch.dtype = torch.float32, mean: float = 0.0, std: float = 1.0) -> Input:
    return Input(shape, dtype, {"kind": "normal", "mean": mean, "std": std})


def uniform(*shape: int, dtype: torch.dtype = torch.float32, low: float = 0.0, high: float = 1.0) -> Input:
    return Input(shape, dtype, {"kind": "uniform", "low": low, "high": high})


def integers(*shape: int, high: int, low: int = 0) -> Input:
    """Whole numbers in [low, high)."""
    return Input(shape, torch.int64, {"kind": "integers", "low": low, "high": high})


def constant(*shape: int, value: float, dtype: torch.dtype = torch.int64) -> Input:
    return Input(shape, dtype, {"kind": "constant", "value": value})


def arange(length: int, start: int = 0, step: int = 1) -> Input:
    return Input((length,), torch.int64, {"kind": "arange", "start": start, "step": step})


def edges(nodes: int, count: int, self_loops: bool = False) -> Input:
    """[2, count] node numbers; with self_loops the last `nodes` columns are (0, 0), (1, 1), ..."""
    total = count + (nodes if self_loops else 0)
    return Input((2, total), torch.int64, {"kind": "edges", "nodes": nodes, "self_loops": self_loops})


def edges_of(input: int, count: int) -> Input:
    """[2, count] numbers of rows of the input at that position, however many it has."""
    return Input((2, count), torch.int64, {"kind": "edges", "rows_of": input, "self_loops": False})


@dataclass(frozen=True)
class Case:
    build: Callable[[], torch.nn.Module]  # reads torch's default dtype for its weights
    inputs: list[Input]
    dtype: torch.dtype = torch.float32
    dynamic_shapes: Any = None
