#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which of LibTorch's operators answer otherwise where an operand of theirs lies otherwise in memory: those that a plan must hand what
eager hands them (core/eager/rows/call_table.h).

    python tests/programs/layouts.py [--device cuda] [--only NAME]      # half a minute; needs expecttest

PyTorch's own samples (op_db of torch.testing) and some layers are run forward and backward. Each operator that LibTorch calls in it is
called again with one operand at a time laid out in three other ways: its last two axes turned, gaps between its elements, channels
innermost. Named are operators whose results differ, that raise, or that end the process. What is drawn, and results that are views, are
left out.
"""
from __future__ import annotations

import argparse
import collections
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

kLeftOut = ("rand", "bernoulli", "dropout", "multinomial", "normal", "uniform", "exponential", "geometric", "cauchy", "empty", "poisson",
            "as_strided", "set_", "resize", "linalg_", "eig", "svd", "qr", "lu", "sort", "topk")  # drawn, by memory, or not unique
kCalls, kSamples, kSeconds = 12, 6, 20  # of one operator; of one row of op_db; for a sample


def turned(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 1 else t


def gapped(t: torch.Tensor) -> torch.Tensor:
    return t.new_zeros([*t.shape[:-1], t.shape[-1] * 2])[..., ::2].copy_(t)


def innermost(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous(memory_format={4: torch.channels_last, 5: torch.channels_last_3d}.get(t.dim(), torch.contiguous_format))


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]


def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    wide = torch.complex128 if a.is_complex() else torch.float64
    return a.shape == b.shape and torch.allclose(a.to(wide), b.to(wide), 1e-3, 1e-4, equal_nan=True)


class Asking(TorchDispatchMode):
    def __init__(self, say: Any) -> None:
        super().__init__()
        self._say, self._calls = say, collections.Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        out, schema, name = func(*args, **(kwargs or {})), func._schema, str(func)
        shown = schema.is_mutable or any(word in schema.name for word in kLeftOut) or any(result.alias_info for result in schema.returns)
        if shown or self._calls[name] >= kCalls:
            return out
        self._calls[name] += 1
        wanted, (leaves, spec) = tensors_of(out), tree_flatten((args, kwargs or {}))
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided or leaf.numel() < 2 or not leaf.is_contiguous():
                continue
            for lay in (turned, gapped, innermost):
                other = lay(leaf.detach())
                if other.stride() == leaf.stride():
                    continue
                self._say(("asks", name, f"operand {i} {lay.__name__}"))
                again_args, again_kwargs = tree_unflatten([*leaves[:i], other, *leaves[i + 1:]], spec)
                try:
                    got = tensors_of(func(*again_args, **again_kwargs))
                except Exception as error:  # LibTorch says so: a plan would fall back
                    self._say(("found", name, f"operand {i} {lay.__name__} raises: {str(error).splitlines()[0][:90]}"))
                    continue
                if not all(map(alike, got, wanted)):
                    self._say(("found", name, f"operand {i} {lay.__name__} {tuple(leaf.shape)}: other results"))
        return out


def layers() -> list[tuple[nn.Module, torch.Tensor]]:
    rows, image, volume = torch.randn(5, 3, 8), torch.randn(2, 4, 5, 6), torch.randn(2, 4, 5, 6, 7)
    return [(nn.LSTM(8, 6, 2, bidirectional=True), rows), (nn.GRU(8, 6), rows), (nn.RNN(8, 6), rows), (nn.LSTMCell(8, 6), rows[0]),
            (nn.TransformerEncoderLayer(8, 2, 16), rows), (nn.GroupNorm(2, 4), image), (nn.BatchNorm2d(4), image),
            (nn.Conv2d(4, 6, 3), image), (nn.ConvTranspose2d(4, 6, 3), image), (nn.Conv3d(4, 6, 3), volume), (nn.MaxPool3d(2), volume)]


def runs(index: int, device: str) -> Iterator[Any]:
    """What is run for row `index`, a function without arguments each: forward and backward."""
    from torch.testing._internal.common_methods_invocations import op_db

    def whole(forward: Any, inputs: Any) -> None:
        outputs = [t for t in tensors_of(forward()) if t.requires_grad]
        asked = [t for t in tensors_of(inputs) if t.requires_grad]
        if outputs and asked:
            torch.autograd.grad([t.abs().sum() for t in outputs], asked, allow_unused=True)

    if index < len(op_db):
        op = op_db[index]
        for sample, _ in zip(op.sample_inputs(device, torch.float32, requires_grad=op.supports_autograd), range(kSamples)):
            yield lambda s=sample: whole(lambda: op(s.input, *s.args, **s.kwargs), (s.input, s.args, s.kwargs))
        return
    module, x = layers()[index - len(op_db)]
    module, x = module.to(device), x.to(device).requires_grad_()
    yield lambda: whole(lambda: module(x), (x, list(module.parameters())))


def out_of_time(*_: Any) -> None:
    raise TimeoutError


def ask(rows: list[int], device: str, pipe: Any) -> None:
    warnings.filterwarnings("ignore")
    signal.signal(signal.SIGALRM, out_of_time)
    for index in rows:
        pipe.send(("row", str(index), ""))
        torch.manual_seed(index)
        try:
            for run in runs(index, device):
                signal.alarm(kSeconds)
                with Asking(pipe.send):
                    run()
        except Exception:  # a sample that this torch or device cannot run
            pass
        finally:
            signal.alarm(0)
    pipe.close()


def search(rows: list[int], device: str) -> tuple[dict[str, str], set[str]]:
    """By operator, the first that was found; and which were asked. A child dies with what ends the process, and the next goes on."""
    found: dict[str, str] = {}
    asked: set[str] = set()
    while rows:
        here, there = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("spawn").Process(target=ask, args=(rows, device, there))
        child.start()
        there.close()
        row, last = rows[0], ("", "")
        try:
            while True:
                kind, name, what = here.recv()
                if kind == "row":
                    row = int(name)
                elif kind == "asks":
                    last = (name, what)
                    asked.add(name)
                else:
                    found.setdefault(name, what)
        except EOFError:
            child.join()
        rows = [r for r in rows if r > row]
        if child.exitcode:
            found.setdefault(last[0], f"{last[1]} ends the process ({child.exitcode})")
    return found, asked


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--only", default="", help="rows of op_db whose name holds this, without the layers")
    given = arguments.parse_args()
    from torch.testing._internal.common_methods_invocations import op_db

    rows = [i for i in range(len(op_db) + len(layers())) if not given.only or (i < len(op_db) and given.only in op_db[i].name)]
    found, asked = search(rows, given.device)
    for name in sorted(found):
        print(f"{name}: {found[name]}")
    print(f"LAYOUTS operators={len(asked)} found={len(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
