#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own samples of its operators (op_db of torch.testing) as cases for the runner, each with neighbours that make a region pay:
floating inputs x become min(x, |x|), which is x, and floating results y become max(y, 2y), which rounds nothing.

    tests/programs/opdb.py                                   writes tests/data/opdb.tar.xz again
    tests/programs/opdb.py --out FOLDER --only linalg        as files, the operators whose name holds this

What is left out (random operators, what cannot be exported, sparse results, large samples) is counted by reason. Called with the
recorded inputs in their one layout. Equal versions of torch give equal bytes.
"""
import argparse
import collections
import logging
import multiprocessing
import random
import re
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from torch.utils import _pytree as pytree

import generate
import record

logging.disable(logging.ERROR)  # torch logs the graph of each export that fails

kDtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64}
kSamples = {"f32": 2, "bf16": 1, "i64": 1}
kMostElements = 1500  # of inputs and outputs together
kSeconds = 60
kRandom = ("rand", "normal", "bernoulli", "dropout", "exponential", "geometric", "cauchy", "uniform", "multinomial", "empty", "svd_lowrank",
           "pca_lowrank", "fractional", "new_empty", "rrelu", "gumbel", "log_normal", "item")

_op_db: list[Any] = []


def op_db() -> list[Any]:
    if not _op_db:
        from torch.testing._internal.common_methods_invocations import op_db as all_of_them

        _op_db.extend(all_of_them)
    return _op_db


class Sample(torch.nn.Module):
    """An operator on a sample's tensors, which are arguments, and its other arguments, which are constants."""

    def __init__(self, op: Any, spec: Any, leaves: list[Any], places: list[int]) -> None:
        super().__init__()
        self._op, self._spec, self._leaves, self._places = op, spec, leaves, places

    def __deepcopy__(self, memo: dict) -> "Sample":
        return Sample(self._op, self._spec, list(self._leaves), list(self._places))

    def answer(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors):
            leaves[place] = torch.minimum(tensor, tensor.abs()) if tensor.is_floating_point() else tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        out = [t for t in pytree.tree_leaves(self._op(*args, **kwargs)) if isinstance(t, torch.Tensor)]
        return tuple(torch.maximum(t, t * 2) if t.is_floating_point() and t.layout == torch.strided else t for t in out)


def sample_module(op: Any, sample: Any) -> tuple[torch.nn.Module, list[torch.Tensor], str]:
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[i].detach() for i in places]
    for i in places:
        leaves[i] = None
    names = [f"x{i}" for i in range(len(tensors))]
    scope: dict[str, Any] = {}
    exec(f"def forward(self, {', '.join(names)}):\n    return self.answer({', '.join(names)})\n", scope)
    module = type("Program", (Sample,), {
        "forward": scope["forward"],
        "__deepcopy__": lambda self, memo: type(self)(self._op, self._spec, list(self._leaves), list(self._places))})
    shown = list(leaves)
    for name, place in zip(names, places):
        shown[place] = name
    args, kwargs = pytree.tree_unflatten(shown, spec)
    text = ", ".join([str(a) for a in args] + [f"{k}={v}" for k, v in kwargs.items()])
    return module(op, spec, leaves, places), tensors, re.sub(r"0x[0-9a-f]+", "", text)


def reset(seed: int) -> None:
    import numpy

    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % (1 << 32))


def timed_out(_: int, __: Any) -> None:
    raise TimeoutError


def cases_of(task: tuple[int, str]) -> tuple[list[str], list[tuple[str, bytes]]]:
    """Why samples of one operator are left out, and the files of those that are not."""
    index, scratch = task
    op = op_db()[index]
    name = (op.name + ("_" + op.variant_test_name if op.variant_test_name else "")).replace(".", "_")
    if any(word in op.name for word in kRandom):
        return ["the operator is random"], []
    left, files = [], []
    signal.signal(signal.SIGALRM, timed_out)
    for short, dtype in kDtypes.items():
        if not op.supports_dtype(dtype, "cpu"):
            continue
        reset(index)
        signal.alarm(kSeconds)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
        except BaseException as error:
            left.append(f"no samples: {type(error).__name__}")
            continue
        finally:
            signal.alarm(0)
        small = [s for s in samples if sum(t.numel() for t in pytree.tree_leaves((s.input, s.args, s.kwargs))
                                           if isinstance(t, torch.Tensor)) <= kMostElements]
        if not small:
            left.append("the samples are large or there is none")
            continue
        # The first and one from the middle: op_db lists the plain case first and odd ones later.
        chosen = list(dict.fromkeys([0, len(small) // 2]))[:kSamples[short]]
        for k, at in enumerate(chosen):
            signal.alarm(kSeconds)
            try:
                files += one(op, f"{name}.{short}.{k}", small[at], index * 10 + k, Path(scratch))
            except record.Left as why:
                left.append(str(why))
            except TimeoutError:
                left.append("no end after a minute")
            except Exception as error:
                left.append(f"the recording fails: {type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}")
                print(f"{name}.{short}.{k}: {left[-1]}", file=sys.stderr)
            finally:
                signal.alarm(0)
    return left, files


def one(op: Any, name: str, sample: Any, seed: int, scratch: Path) -> list[tuple[str, bytes]]:
    module, tensors, text = sample_module(op.op, sample)
    if not tensors:
        raise record.Left("a sample without tensors")
    if any(t.layout != torch.strided or t.is_quantized for t in tensors):
        raise record.Left("an input is sparse or quantized")
    inputs = [t.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg() for t in tensors]
    answers = []
    for other in (1, 2):  # who draws random numbers shows it
        reset(other)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answers.append(module(*[t.clone() for t in inputs]))
    if not answers[0]:
        raise record.Left("no output is a tensor")
    if any(t.dtype == torch.complex32 for t in (*inputs, *answers[0])):
        raise record.Left("complex numbers of 16 bits are in no file format")
    for a, b in zip(*answers):
        if a.layout != torch.strided or a.is_quantized:
            raise record.Left("an output is sparse or quantized")
        if a.shape != b.shape or record.distance(a, b) > 1e-3:
            raise record.Left("the operator is random")
    if sum(t.numel() for t in answers[0]) > kMostElements:
        raise record.Left("the samples are large or there is none")
    program = record.Program(name, f"{op.name}({text})"[:2000], module, inputs, variants=[record.contiguous(inputs)],
                             extra={"note": "; ".join(f"x{i}: {str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
                                                      for i, t in enumerate(inputs))})
    return sorted(record.files_of(record.record(program, random.Random(seed), finite=False), scratch).items())


def start() -> None:
    generate.start()
    warnings.simplefilter("ignore")
    op_db()


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--out", type=Path, default=record.kRoot / "tests/data/opdb.tar.xz")
    parse.add_argument("--only", default="")
    parse.add_argument("--jobs", type=int, default=2)
    o = parse.parse_args()
    began, left, files, operators, tried = time.time(), collections.Counter(), [], set(), 0
    indices = [i for i, op in enumerate(op_db()) if o.only in op.name]
    with tempfile.TemporaryDirectory() as scratch, multiprocessing.get_context("spawn").Pool(o.jobs, start) as pool:
        for done, (index, (why, made)) in enumerate(zip(indices, pool.imap(cases_of, [(i, scratch) for i in indices]))):
            left.update(why)
            files += made
            tried += len(why) + len(made) // 3
            if made:
                operators.add(op_db()[index].name)
            if (done + 1) % 50 == 0:
                print(f"{done + 1} of {len(indices)} operators, {len(files) // 3} cases, {time.time() - began:.0f} s", file=sys.stderr,
                      flush=True)
    for why, count in left.most_common():
        print(f"left out {count}: {why}")
    if o.out.suffix == ".xz":
        record.write_archive(files, o.out)
        print(f"{o.out}: {o.out.stat().st_size} bytes")
    else:
        record.write_folder(files, o.out)
    print(f"OPDB cases={len(files) // 3} operators={len(operators)} left_out={sum(left.values())} seconds={time.time() - began:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
