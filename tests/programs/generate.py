#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws small eager PyTorch programs and records what Python answers: views, writes through them, aliases, state, dtypes.

A program is written statement by statement, and each statement is run on the way: what raises, grows or gives NaN is drawn
again. Equal seeds give equal bytes.

    tests/programs/generate.py                                     writes tests/data/programs.tar.xz again
    tests/programs/generate.py --count 300 --seed 7 --out FOLDER   a fresh seed, for the runner's --cases=FOLDER
"""
import argparse
import collections
import copy
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F

import record

kSeed, kCount = 20261, 3200
kMostElements = 96
kLargest = 64.0

kF = [torch.float32]
kDtypes = [torch.float32] * 14 + [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int64, torch.int32, torch.bool]
kShapes = [(4,), (6,), (8,), (2, 3), (3, 4), (4, 4), (4, 3), (2, 6), (1, 5), (5, 1), (2, 3, 4), (3, 2, 2), (1, 4, 3), (2, 2, 2, 3),
           (1, 2, 3, 3), (2, 4, 2, 2), (), (1,), (2, 8), (3, 3), (6, 2), (0, 3), (2, 0)]
kConstants = ["0.5", "2", "-1", "1", "3", "0.25", "-2", "1.5"]


def drawn(rng: random.Random, shape, dtype) -> torch.Tensor:
    n = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.tensor([rng.random() < 0.5 for _ in range(n)], dtype=dtype).reshape(shape)
    if not dtype.is_floating_point:
        return torch.tensor([rng.randint(-4, 6) for _ in range(n)], dtype=dtype).reshape(shape)
    return torch.tensor([rng.randint(-12, 12) / 4 for _ in range(n)], dtype=torch.float64).to(dtype).reshape(shape)


def is_plain(t: torch.Tensor) -> bool:
    """Whether decisions on its values do not hang on rounding: all are multiples of 1/64."""
    return not t.is_floating_point() or bool((t.double() * 64 == (t.double() * 64).round()).all())


class Writing:
    """One program while it is written: its lines, and its variables as they are after these lines."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.at: dict[str, torch.Tensor] = {}
        self.self = types.SimpleNamespace()
        self.buffers: dict[str, torch.Tensor] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self.names = 0
        self.rare = rng.random() < 0.35

    # --- choices ---

    def dims(self, t: torch.Tensor) -> int:
        return self.rng.randrange(t.dim())

    def pick(self, test=lambda t: True, recent=True) -> str:
        names = [n for n, t in self.at.items() if test(t)]
        if not names:
            raise LookupError
        if recent and self.rng.random() < 0.7:
            names = names[-6:]
        return self.rng.choice(names)

    def floating(self, test=lambda t: True) -> str:
        return self.pick(lambda t: t.is_floating_point() and test(t))

    def integer(self, test=lambda t: True) -> str:
        return self.pick(lambda t: t.dtype in (torch.int64, torch.int32) and test(t))

    def number(self, t: torch.Tensor) -> str:
        return self.rng.choice(kConstants) if t.is_floating_point() else str(self.rng.choice([1, 2, 3, -1, 0]))

    def fitting(self, name: str, same=False) -> str:
        """A variable that broadcasts to this one."""
        t = self.at[name]

        def fits(u: torch.Tensor) -> bool:
            if u.shape == t.shape:
                return True
            if same:
                return False
            try:
                return torch.broadcast_shapes(u.shape, t.shape) == t.shape
            except RuntimeError:
                return False
        return self.pick(fits)

    def new(self) -> str:
        self.names += 1
        return f"v{self.names}"

    # --- a view of a variable, as an expression ---

    def view(self, name: str, deep: int | None = None) -> str:
        r, t = self.rng, self.at[name]
        d = self.dims(t) if t.dim() else 0
        n = t.shape[d] if t.dim() else 1
        kinds = ["unsqueeze", "reshape", "flatten", "detach", "alias", "view"]
        if t.dim():
            kinds += ["slice"] * 4 + ["select", "narrow", "expand_front", "steps", "half", "slice_neg"]
        if t.dim() >= 2:
            kinds += ["transpose", "permute", "diagonal", "movedim", "T", "transpose", "mT"]
        if t.dim() >= 1 and 1 in t.shape:
            kinds += ["squeeze", "expand"]
        # A program with a write through one of these is run eagerly as a whole: in every third program, so that the others are compiled.
        if not self.rare:
            kinds = [k for k in kinds if k != "diagonal"]
        elif t.numel() >= 2:
            kinds += ["as_strided"] * 2
        if n >= 2:
            kinds += ["unflatten"] + (["unfold"] if self.rare else [])
        kind = r.choice(kinds)
        before = ":, " * d
        a = r.randrange(n) if n else 0
        b = r.randint(min(a + 1, n), n) if n else 0
        if kind == "slice":
            return f"{name}[{before}{a}:{b}]"
        if kind == "slice_neg":
            return f"{name}[{before}-{max(n - a, 1)}:]"
        if kind == "steps":
            return f"{name}[{before}{r.choice(['', str(a)])}::{r.randint(2, 3)}]"
        if kind == "half":
            return f"{name}[{before}{max(n // 2, 0)}:]"
        if kind == "select":
            return f"{name}[{before}{a}]" if r.random() < 0.5 else f"{name}.select({d}, {r.choice([a, -1])})"
        if kind == "narrow":
            return f"{name}.narrow({d}, {a}, {b - a})"
        if kind == "unsqueeze":
            return f"{name}.unsqueeze({r.randint(-1, t.dim())})"
        if kind == "squeeze":
            return r.choice([f"{name}.squeeze()", f"{name}.squeeze({list(t.shape).index(1)})"])
        if kind == "expand":
            return f"{name}.expand({', '.join(str(r.choice([2, 3])) if s == 1 else '-1' for s in t.shape)})"
        if kind == "expand_front":
            return f"{name}.expand({r.choice([2, 3])}, {', '.join(['-1'] * t.dim())})"
        if kind == "transpose":
            return f"{name}.{r.choice(['transpose', 'swapaxes'])}({d}, {self.dims(t)})"
        if kind == "permute":
            order = list(range(t.dim()))
            r.shuffle(order)
            return f"{name}.permute({', '.join(map(str, order))})"
        if kind == "T":
            return f"{name}.{r.choice(['T', 't()']) if t.dim() == 2 else 'mT'}"
        if kind == "mT":
            return f"{name}.mT"
        if kind == "movedim":
            return f"{name}.movedim({d}, {self.dims(t)})"
        if kind == "diagonal":
            e = self.dims(t)
            return f"{name}.diagonal({r.choice([0, 0, 1, -1])}, {d}, {e})"
        if kind == "unfold":
            size = r.randint(1, n)
            return f"{name}.unfold({d}, {size}, {r.randint(1, size)})"
        if kind == "unflatten":
            parts = [p for p in range(1, n + 1) if n % p == 0]
            p = r.choice(parts)
            return f"{name}.unflatten({d}, ({p}, {n // p}))"
        if kind == "flatten":
            return r.choice([f"{name}.flatten()", f"{name}.ravel()", f"{name}.reshape(-1)"]
                            + ([f"{name}.flatten({d}, -1)"] if t.dim() else []))
        if kind in ("reshape", "view"):
            sizes, rest = [], t.numel()
            for _ in range(r.randint(0, 2)):
                parts = [p for p in range(1, rest + 1) if rest % p == 0] or [1]
                p = r.choice(parts)
                sizes.append(p)
                rest //= p
            sizes.append(rest)
            return f"{name}.{kind}({', '.join(map(str, sizes))})"
        if kind == "as_strided":
            # Within the storage, from its beginning or from where the view begins, as Python has it.
            total = t.untyped_storage().nbytes() // t.element_size()
            explicit = r.random() < 0.6
            offset = r.randrange(max(total // 2, 1)) if explicit else t.storage_offset()
            if explicit and r.random() < 0.5:
                offset = 0
            room = total - offset
            n1 = r.randint(1, max(1, min(4, room)))
            s1 = r.randint(1, max(1, (room - 1) // max(n1 - 1, 1)))
            room -= (n1 - 1) * s1
            if r.random() < 0.5 and room > 1:
                n2 = r.randint(1, min(3, room))
                s2 = r.randint(1, max(1, (room - 1) // max(n2 - 1, 1)))
                return f"{name}.as_strided(({n1}, {n2}), ({s1}, {s2}){f', {offset}' if explicit else ''})"
            return f"{name}.as_strided(({n1},), ({s1},){f', {offset}' if explicit else ''})"
        if kind == "detach":
            return f"{name}.detach()"
        return f"{name}[...]"

    # --- statements: each answers lines ---

    def s_view(self) -> list[str]:
        name = self.pick()
        line = f"{self.new()} = {self.view(name)}"
        return [line]

    def s_views(self) -> list[str]:
        name = self.pick(lambda t: t.dim() > 0 and t.numel() > 1)
        t, r = self.at[name], self.rng
        d = self.dims(t)
        n = t.shape[d]
        a, b = self.new(), self.new()
        if n >= 2 and r.random() < 0.6:
            k = r.randint(1, n - 1)
            return [f"{a}, {b} = {name}.{r.choice(['split', 'split_with_sizes'])}(({k}, {n - k}), {d})" if r.random() < 0.5 else
                    f"{a}, {b} = {name}.{r.choice(['chunk', 'tensor_split'])}(2, {d})"]
        return [f"{a}, *{b}s = {name}.unbind({d})"]

    def s_maybe_copy(self) -> list[str]:
        name = self.pick()
        t, r = self.at[name], self.rng
        own = str(t.dtype)
        forms = [".contiguous()", f".to({own})", f".to({own}, copy=True)", ".clone()",
                 ".reshape(%s)" % ", ".join(map(str, t.shape)) if t.dim() else
                 ".reshape(())", ".to(memory_format=torch.preserve_format)", f".type_as({name})", f".to({name})", ".view_as(%s)" % name,
                 ".clone(memory_format=torch.contiguous_format)", ".to(memory_format=torch.contiguous_format)"]
        if t.dim() == 4:
            forms += [".contiguous(memory_format=torch.channels_last)", ".to(memory_format=torch.channels_last)",
                      ".clone(memory_format=torch.channels_last)"] * 3
        if t.dtype == torch.float32:
            forms.append(".float()")
        alike = [n for n, u in self.at.items() if u.numel() == t.numel() and n != name]
        if alike:
            other = r.choice(alike)
            forms += [f".view_as({other})", f".reshape_as({other})", f".type_as({other})", f".to({other})"]
        return [f"{self.new()} = {name}{r.choice(forms)}"]

    def s_other_form(self) -> list[str]:
        """The same tensor with other sizes, or the same bits as another dtype."""
        name = self.pick(lambda t: t.dim() > 0)
        t, r = self.at[name], self.rng
        forms = [f"{name}.unsqueeze_(0)", f"{name}.squeeze_()", f"{name}.transpose_(0, -1)"] if name.startswith("v") else []
        if t.dtype == torch.float32:
            forms += [f"{self.new()} = {name}.view(torch.int32)"]
        if t.dtype == torch.float64:
            forms += [f"{self.new()} = {name}.view(torch.int64) >> 48"]
        if t.dtype == torch.bool:
            forms += [f"{self.new()} = {name}.view(torch.uint8)"]
        if t.dtype in (torch.float16, torch.bfloat16):
            forms += [f"{self.new()} = {name}.view(torch.int16) >> 8"]
        return [r.choice(forms) if forms else f"{self.new()} = {name}.view({t.dtype})"]

    def s_dtype(self) -> list[str]:
        name = self.pick(is_plain)
        forms = [".double()", ".half()", ".bfloat16()", ".float()", ".float()", ".to(torch.float64)", ".to(torch.float32)",
                 ".to(torch.float32)",
                 ".to(torch.int64)", ".int()", ".long()", ".bool()", ".to(torch.float32, copy=True)"]
        form = self.rng.choice(forms + [f".type_as({self.pick()})"])
        if form in (".half()", ".bfloat16()", ".double()") and self.rng.random() < 0.5:
            form = ".float()"
        return [f"{self.new()} = {name}{form}"]

    def s_elementwise(self) -> list[str]:
        r = self.rng
        name = self.pick(lambda t: t.dtype != torch.bool)
        t = self.at[name]
        if r.random() < 0.5:
            other = self.fitting(name)
            op = r.choice(["{a} + {b}", "{a} * {b}", "{a} - {b}", "torch.maximum({a}, {b})", "torch.minimum({a}, {b})", "{a} + {b}.abs()",
                           "torch.add({a}, {b}, alpha=2)", "torch.where({b} > 0, {a}, {a} * 2)", "{a}.masked_fill({b} > 1, 0.5)"])
            if "masked_fill" in op and not t.is_floating_point():
                op = "{a} + {b}"
            return [f"{self.new()} = " + op.format(a=name, b=other)]
        c = self.number(t)
        forms = ["{a} + {c}", "{a} * {c}", "{a} - {c}", "{c} - {a}", "{a}.abs()", "-{a}", "{a}.relu()", "torch.relu({a}) + 1",
                 "{a}.clamp(-2, 3)",
                 "torch.square({a})", "{a}.sign()", "{a} + 0", "{a} * 1"]
        if t.is_floating_point():
            forms += ["{a} / 2", "{a} / 4", "{a}.clamp_min(0.5)", "F.hardtanh({a})", "F.leaky_relu({a}, 0.25)"]
            if is_plain(t):
                forms += ["{a}.floor()", "{a}.round()", "{a}.trunc()", "{a}.ceil()", "{a} // 2", "{a} % 2", "torch.fmod({a}, 1.5)",
                          "{a}.frac()"]
        return [f"{self.new()} = " + r.choice(forms).format(a=name, c=c)]

    def s_inexact(self) -> list[str]:
        name = self.floating()
        form = self.rng.choice(["torch.sigmoid({a})", "torch.tanh({a})", "({a} * 0.25).exp()", "F.gelu({a})", "F.silu({a})",
                                "({a}.abs() + 0.5).sqrt()",
                                "({a}.abs() + 1).log()", "({a}.abs() + 0.5).rsqrt()", "{a}.sin()", "{a} / 3", "{a} * 0.3",
                                "F.softplus({a})",
                                "({a}.abs() + 1).reciprocal()", "F.elu({a})"])
        return [f"{self.new()} = " + form.format(a=name)]

    def s_integers(self) -> list[str]:
        r = self.rng
        name = self.integer()
        if r.random() < 0.4:
            other = self.pick(lambda t: t.dtype == self.at[name].dtype and t.shape == self.at[name].shape)
            op = r.choice(["{a} & {b}", "{a} | {b}", "{a} ^ {b}", "{a} // ({b}.abs() + 1)", "{a} % ({b}.abs() + 1)",
                           "torch.div({a}, {b}.abs() + 1, rounding_mode='trunc')", "torch.remainder({a}, -2 - {b}.abs())"])
            return [f"{self.new()} = " + op.format(a=name, b=other)]
        op = r.choice(["{a} // 2", "{a} // -3", "{a} % 3", "{a} % -3", "{a} >> 1", "{a} << 2", "~{a}", "{a} & 3", "{a} | 1", "{a} ^ 5",
                       "{a} / 2",
                       "torch.fmod({a}, 3)", "torch.div({a}, 2, rounding_mode='floor')", "{a}.float()", "{a}.bool()",
                       "torch.floor_divide({a}, 3)",
                       "{a} * 2", "{a}.clamp(0, 3)", "{a}.remainder(2)"])
        return [f"{self.new()} = " + op.format(a=name)]

    def s_bools(self) -> list[str]:
        r = self.rng
        if r.random() < 0.55:
            name = self.pick(is_plain)
            c = self.number(self.at[name])
            op = r.choice(["{a} > {c}", "{a} <= {c}", "{a} == {c}", "{a} != {c}", "{a} < {c}", "{a} >= {c}"])
            return [f"{self.new()} = " + op.format(a=name, c=c)]
        name = self.pick(lambda t: t.dtype == torch.bool)
        op = r.choice(["~{a}", "{a}.logical_not()", "{a}.float()", "{a} * 2", "{a} + 1", "{a} & True", "{a} ^ True", "{a}.any()",
                       "{a}.all()", "{a}.sum()",
                       "{a}.long()", "torch.where({a}, 1.5, -0.5)"])
        return [f"{self.new()} = " + op.format(a=name)]

    def s_where(self) -> list[str]:
        name = self.pick(lambda t: t.dim() > 0)
        mask = self.pick(lambda t: t.dtype == torch.bool and t.shape == self.at[name].shape)
        other = self.rng.choice([self.fitting(name), self.number(self.at[name])])
        return [f"{self.new()} = torch.where({mask}, {name}, {other})"]

    def s_reduction(self) -> list[str]:
        r = self.rng
        name = self.pick(lambda t: t.dim() > 0 and t.numel() > 0)
        t = self.at[name]
        d = r.choice([self.dims(t), -1])
        keep = r.choice(["", ", keepdim=True"])
        forms = [f"{name}.sum({d}{keep})", f"{name}.sum()", f"{name}.cumsum({d})", f"{name}.flip({d})", f"{name}.prod({d})"]
        if t.dtype != torch.bool:
            forms += [f"{name}.amax({d}{keep})", f"{name}.amin({d}{keep})", f"{name}.max()", f"{name}.amax({d}{keep})"]
            if is_plain(t):
                forms += [f"{name}.argmax({d}{keep})", f"{name}.argmin({d}{keep})", f"{name}.max({d}).indices",
                          f"{name}.sort({d}, stable=True).indices",
                          f"{name}.max({d}).values", f"{name}.argsort({d}, stable=True)", f"{name}.topk(1, {d}).values"]
        if t.is_floating_point():
            forms += [f"{name}.mean({d}{keep})", f"{name}.mean()", f"{name}.var({d}, unbiased=False)", f"{name}.logsumexp({d}{keep})",
                      f"{name}.norm(dim={d})", f"{name}.softmax({d})", f"{name}.log_softmax({d})", f"{name}.sort({d}).values"]
        return [f"{self.new()} = {r.choice(forms)}"]

    def s_join(self) -> list[str]:
        r = self.rng
        name = self.pick(lambda t: t.dim() > 0)
        t = self.at[name]
        d = self.dims(t)
        other = self.fitting(name, same=True)
        forms = [f"torch.cat([{name}, {other}], {d})", f"torch.stack([{name}, {other}], {d})", f"{name}.roll(1, {d})",
                 f"{name}.repeat({', '.join(['2'] + ['1'] * (t.dim() - 1))})",
                 f"F.pad({name}, ({r.randint(0, 2)}, {r.randint(-1, 1)}))", f"{name}.repeat_interleave(2, {d})", f"{name}.flip({d})",
                 f"torch.cat([{name}[:0], {other}])", f"{name}.broadcast_to(2, {', '.join(map(str, t.shape))})"]
        if t.dim() == 2:
            forms += [f"{name}.tril()", f"{name}.triu(1)", f"torch.block_diag({name})"]
        return [f"{self.new()} = {r.choice(forms)}"]

    def indices(self, n: int, count: int | None = None) -> str:
        r = self.rng
        return f"torch.tensor({[r.randrange(n) for _ in range(count or r.randint(1, 4))]})"

    def s_gather(self) -> list[str]:
        r = self.rng
        name = self.pick(lambda t: t.dim() > 0 and t.numel() > 0)
        t = self.at[name]
        d = self.dims(t)
        index = self.indices(t.shape[d])
        forms = [f"{name}.index_select({d}, {index})", f"{name}[{':, ' * d}{index}]",
                 f"{name}[{index.replace(str(t.shape[d]), '0')}]" if d == 0 else
                 f"{name}[{':, ' * d}{index}]", f"{name}.take({self.indices(t.numel())})"]
        if t.dim() == 1:
            forms.append(f"{name}.gather(0, {self.indices(t.shape[0], 3)})")
        if t.dim() == 2:
            forms += [f"{name}.gather(1, {self.indices(t.shape[1], 1)}.expand({t.shape[0]}, 2))",
                      f"{name}[{self.indices(t.shape[0], 2)}, {self.indices(t.shape[1], 2)}]",
                      f"F.embedding({self.indices(t.shape[0])}, {name})"]
        # An index that is data: made legal by the remainder.
        data = [n for n, u in self.at.items() if u.dtype == torch.int64 and 0 < u.numel() <= 8]
        if data and r.random() < 0.5:
            forms.append(f"{name}[{':, ' * d}{r.choice(data)} % {t.shape[d]}]")
        return [f"{self.new()} = {r.choice(forms)}"]

    def s_scatter(self) -> list[str]:
        r = self.rng
        name = self.pick(lambda t: t.dim() in (1, 2) and t.numel() > 0)
        t = self.at[name]
        d = self.dims(t)
        sizes = list(t.shape)
        c = self.number(t)
        count = r.randint(1, 3)
        sizes[d] = count
        index = f"{self.indices(t.shape[d], count)}" + (f".view({'1, -1' if d == 1 else '-1, 1'}).expand({', '.join(map(str, sizes))})"
                                                        if t.dim() == 2 else "")
        source = f"torch.full(({', '.join(map(str, sizes))},), {c}, dtype={t.dtype})"
        forms = [f"{name}.scatter_add({d}, {index}, {source})", f"{name}.scatter({d}, {index}, {c})",
                 f"{name}.index_add({d}, {self.indices(t.shape[d], count)}, {source})",
                 f"{name}.index_fill({d}, {self.indices(t.shape[d], count)}, {c})",
                 f"{name}.index_put(({self.indices(t.shape[0], 3)},), torch.tensor({c}, dtype={t.dtype}), accumulate=True)",
                 f"{name}.scatter_reduce({d}, {index}, {source}, 'amax')"]
        if t.dtype == torch.bool:
            forms = forms[1:2] + forms[3:4]
        return [f"{self.new()} = {r.choice(forms)}"]

    def s_linear(self) -> list[str]:
        r = self.rng
        name = self.floating(lambda t: t.dim() >= 1 and t.numel() > 0 and t.dtype == torch.float32)
        t = self.at[name]
        n = t.shape[-1]
        w = self.weight((r.randint(1, 4), n))
        forms = [f"F.linear({name}, self.{w})", f"F.layer_norm({name}, ({n},)) + 0.0", f"{name} @ self.{w}.t()",
                 f"F.rms_norm({name} + 4, ({n},))"]
        if t.dim() == 2:
            forms += [f"torch.mm({name}, {name}.t())", f"{name} @ {name}.T",
                      f"torch.addmm(self.{self.weight((t.shape[0],))}.unsqueeze(1), {name}, self.{w}.t())",
                      f"F.conv1d({name}.unsqueeze(0), self.{self.weight((2, t.shape[0], 1))})"]
        if t.dim() == 3:
            forms += [f"torch.bmm({name}, {name}.transpose(1, 2))", f"F.conv1d({name}, self.{self.weight((2, t.shape[1], 1))})"]
        if t.dim() == 4:
            forms = [f"F.conv2d({name}, self.{self.weight((2, t.shape[1], 1, 1))})", f"F.avg_pool2d({name}, 2)", f"F.max_pool2d({name}, 2)",
                     f"F.conv2d({name}, self.{self.weight((2, t.shape[1], 3, 3))}, padding=1)"]
        return [f"{self.new()} = {r.choice(forms)}"]

    def s_make(self) -> list[str]:
        r = self.rng
        name = self.pick()
        sizes = ", ".join(map(str, r.choice(kShapes[:14])))
        forms = [f"torch.zeros_like({name})", f"torch.ones({sizes})", f"torch.arange({r.randint(2, 8)})", f"{name}.new_zeros({sizes})",
                 f"torch.full_like({name}, 1)",
                 f"torch.arange({r.randint(2, 6)}, dtype=torch.float32)", f"torch.tensor([1.5, -2.0, 0.25])", f"torch.eye(3)",
                 f"torch.empty_like({name}).fill_(1)"]
        made = r.choice(forms)
        return [f"{self.new()} = {made}"]

    def target(self) -> str:
        """What is written in place: a variable, or a view of one on the spot."""
        name = self.pick(lambda t: t.numel() > 0)
        if self.rng.random() < 0.45:
            return self.view(name)
        return name

    def s_write(self) -> list[str]:
        r = self.rng
        target = self.target()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            t = eval(target, self.scope(), dict(self.at))
        if t.dtype == torch.bool:
            return [f"{target}.{r.choice(['logical_not_()', 'fill_(True)', 'zero_()', 'bitwise_xor_(torch.tensor(True))'])}"]
        c = self.number(t)
        forms = ["add_({c})", "mul_({c})", "sub_({c})", "fill_({c})", "zero_()", "relu_()", "clamp_(-1, 2)", "neg_()", "abs_()",
                 "clamp_(min=0)"] + ["copy_({o})", "add_({o})", "mul_({o})", "sub_({o})", "add_({o}, alpha=2)"] * 2
        forms += ["masked_fill_({m}, {c})"] if is_plain(t) else []
        if t.is_floating_point():
            forms += ["div_(2)", "lerp_({o2}, 0.5)", "addcmul_({o2}, {o2}, value=0.5)", "sigmoid_()", "tanh_()"]
            if is_plain(t):
                forms += ["floor_()", "round_()", "trunc_()"]
        form = r.choice(forms)
        others = [n for n, u in self.at.items() if self.broadcasts(u, t) and (u.dtype == t.dtype or r.random() < 0.3)]
        if "{o" in form and not others:
            form = "add_({c})"
        o = r.choice(others) if others else "0"
        if others and r.random() < 0.3:
            o = r.choice([f"{o} * 2", f"({o} + 1)", f"{o}.abs()"])
        same = [n for n, u in self.at.items() if u.shape == t.shape and u.dtype == t.dtype]
        return [f"{target}." + form.format(c=c, o=o, o2=r.choice(same) if same else target,
                                           m=f"{target} > 0.5" if r.random() < 0.5 else f"{target} <= 0")]

    @staticmethod
    def broadcasts(u: torch.Tensor, t: torch.Tensor) -> bool:
        try:
            return torch.broadcast_shapes(u.shape, t.shape) == t.shape
        except RuntimeError:
            return False

    def s_setitem(self) -> list[str]:
        r = self.rng
        name = self.pick(lambda t: t.dim() > 0 and t.numel() > 0 and t.dtype != torch.bool)
        t = self.at[name]
        d = self.dims(t)
        n = t.shape[d]
        before = ":, " * d
        c = self.number(t)
        a = r.randrange(n)
        b = r.randint(a + 1, n)
        forms = [f"{name}[{before}{a}:{b}] = {c}", f"{name}[{before}::2] = {c}", f"{name}[{before}{a}] = {c}",
                 f"{name}[{before}{a}:{b}] += {c}", f"{name}[{before}{a}] *= 2",
                 f"{name}[...] = {c}", f"{name}[{before}{self.indices(n, 2)}] = {c}", f"{name} += {c}"]
        if n >= 2:
            shift = [f"{name}[{before}1:] = {name}[{before}:-1]", f"{name}[{before}:-1] = {name}[{before}1:]",
                     f"{name}[{before}1:].copy_({name}[{before}:-1])",
                     f"{name}[{before}1:] += {name}[{before}:-1].clone()", f"{name}[{before}1:] = {name}[{before}:-1] * 2",
                     f"{name}[{before}:-1].add_({name}[{before}1:] + 0)",
                     f"{name}[{before}1:] = {name}[{before}:-1].clone()"]
            forms += shift
            if n % 2 == 0:
                forms.append(f"{name}[{before}::2] = {name}[{before}1::2]")
                forms.append(f"{name}[{before}::2], {name}[{before}1::2] = {name}[{before}1::2] * 1, {name}[{before}::2] * 1")
        if is_plain(t):
            forms += [f"{name}[{name} > 0.5] = {c}", f"{name}[{name} < 0] = 0"]
        if t.dim() == 2 and t.shape[0] == t.shape[1]:
            forms += [f"{name}.copy_({name}.t())", f"{name}[:] = {name}.T.clone()", f"{name}.fill_diagonal_({c})"]
        return [r.choice(forms)]

    def s_index_write(self) -> list[str]:
        r = self.rng
        name = self.pick(lambda t: t.dim() in (1, 2) and t.numel() > 0 and t.dtype != torch.bool)
        t = self.at[name]
        d = self.dims(t)
        sizes = list(t.shape)
        count = r.randint(1, 4)
        sizes[d] = count
        c = self.number(t)
        source = f"torch.full(({', '.join(map(str, sizes))},), {c}, dtype={t.dtype})"
        at = self.indices(t.shape[d], count)
        first = self.indices(t.shape[0], count)
        forms = [f"{name}.index_add_({d}, {at}, {source})", f"{name}.index_fill_({d}, {at}, {c})",
                 f"{name}.index_put_(({first},), torch.tensor({c}, dtype={t.dtype}), accumulate=True)",
                 f"{name}.index_put_(({first},), torch.tensor({c}, dtype={t.dtype}))"]
        if t.dim() == 1:
            forms += [f"{name}.scatter_add_(0, {at}, {source})", f"{name}.scatter_(0, {at}, {c})",
                      f"{name}.put_({at}, {source}, accumulate=True)"]
        if t.dim() == 2:
            forms.append(f"{name}.index_put_(({first}, {self.indices(t.shape[1], count)}), "
                         f"torch.tensor({c}, dtype={t.dtype}), accumulate={r.random() < 0.6})")
        if t.shape[d] > 1:
            forms.append(f"{name}.index_copy_({d}, torch.tensor({[t.shape[d] - 1, 0]}), {name}.narrow({d}, 0, 2).clone())")
        return [r.choice(forms)]

    def s_out(self) -> list[str]:
        r = self.rng
        name = self.pick(lambda t: t.numel() > 0 and t.dtype != torch.bool)
        t = self.at[name]
        same = [n for n, u in self.at.items() if u.shape == t.shape and u.dtype == t.dtype and n != name]
        lines, out = [], None
        if same and r.random() < 0.6:
            out = r.choice(same)
        else:
            out = self.new()
            lines.append(f"{out} = torch.empty_like({name})")
        c = self.number(t)
        forms = [f"torch.add({name}, {c}, out={out})", f"torch.mul({name}, {c}, out={out})", f"torch.neg({name}, out={out})",
                 f"torch.abs({name}, out={out})",
                 f"torch.maximum({name}, {name}, out={out})", f"torch.clamp({name}, -1, 1, out={out})",
                 f"torch.sub({name}, {name}, alpha=2, out={out})",
                 f"torch.add({name}, {name}, out={name})"]
        if t.dim() > 0:
            forms.append(f"torch.cumsum({name}, {self.dims(t)}, out={out})")
        form = r.choice(forms)
        if r.random() < 0.5:
            form = f"{self.new()} = {form}"
        return lines + [form]

    def s_state(self) -> list[str]:
        r = self.rng
        if not self.buffers:
            raise LookupError
        name = r.choice(list(self.buffers))
        b = self.at[f"self.{name}"]
        place = f"self.{name}"
        c = self.number(b)
        forms = [f"{place}.add_(1)", f"{place}.mul_({c})", f"{place} += {c}"]
        others = [n for n, u in self.at.items() if self.broadcasts(u, b) and not n.startswith("self.")]
        if others:
            o = r.choice(others)
            forms += [f"{place}.copy_({o})", f"{place}.add_({o})"]
        if b.dim() > 0 and b.shape[0] > 1:
            rows = [n for n, u in self.at.items() if self.broadcasts(u, b[0]) and not n.startswith("self.")]
            forms += [f"{place}[1:] = {place}[:-1].clone()", f"{place}[0] = {c}", f"{place}[1:] = {place}[:-1]", f"{place}.roll(1, 0)"]
            if rows:
                forms += [f"{place}[{r.randrange(b.shape[0])}] = {r.choice(rows)}"] * 2
        if r.random() < 0.08:
            forms = [f"{place} = {place} + 1", f"{place} = torch.relu({place}) + 1",
                     f"{place} = {place}.flip(0)" if b.dim() else f"{place} = {place} * 2"]
        form = r.choice(forms)
        if form.endswith("roll(1, 0)"):
            form = f"{self.new()} = {form}"
        if r.random() < 0.35:
            return [f"{self.new()} = {place} * 1", form]
        return [form]

    def weight(self, shape) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = drawn(self.rng, shape, torch.float32)
        setattr(self.self, name, self.weights[name])
        return name

    # --- the program ---

    def scope(self) -> dict:
        return {"torch": torch, "F": F, "self": self.self}

    def try_lines(self, lines: list[str]) -> bool:
        # Shared storages stay shared in the copy.
        held = {"at": self.at, "self": self.self}
        trial = copy.deepcopy(held)
        at, own = dict(trial["at"]), trial["self"]
        names = dict(at)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("error")
                for line in lines:
                    exec(line, {"torch": torch, "F": F, "self": own}, names)
        except Exception:
            return False
        for name, value in names.items():
            if isinstance(value, list):
                continue
            if not isinstance(value, torch.Tensor) or value.numel() > kMostElements or value.dim() > 5 or value.is_complex():
                return False
            if value.numel() and value.dtype != torch.bool and not float(value.double().abs().max()) <= kLargest:
                return False
            if name not in at or at[name] is not value:
                at[name] = value
        for name in self.buffers:
            at[f"self.{name}"] = getattr(own, name)
        self.at, self.self = at, own
        self.lines += lines
        return True

    def write(self) -> record.Program | None:
        r = self.rng
        shape, dtype = r.choice(kShapes), r.choice(kDtypes)
        inputs = []
        for i in range(r.choice([1, 2, 2, 2, 3])):
            if i and r.random() < 0.4:
                shape, dtype = r.choice(kShapes), r.choice(kDtypes)
            inputs.append(drawn(r, shape, dtype))
            self.at[f"x{i}"] = inputs[-1].clone()
        if r.random() < 0.06:  # two buffers that are views of one storage
            whole = drawn(r, (8,), torch.float32)
            self.buffers = {"b0": whole[:5], "b1": r.choice([whole[3:], whole[2:6].view(2, 2), whole[::2]])}
            own = copy.deepcopy(self.buffers)
            for name, b in own.items():
                setattr(self.self, name, b)
                self.at[f"self.{name}"] = b
        for i in range(0 if self.buffers else r.choice([0, 0, 0, 1, 1, 2])):
            b = drawn(r, r.choice([shape, shape, (), (4,), (3, 2)]),
                      r.choice([torch.float32, torch.float32, torch.float32, torch.int64, dtype]))
            if b.dtype == torch.bool or b.numel() == 0:
                b = torch.zeros(3)
            self.buffers[f"b{i}"] = b
            setattr(self.self, f"b{i}", b.clone())
            self.at[f"self.b{i}"] = getattr(self.self, f"b{i}")
        if r.random() < 0.55:  # a value of its own to work on: most writes should hit no input
            self.try_lines([f"{self.new()} = x0 {r.choice(['+ 1', '* 2', '+ 0', '- 0.5'])}"])
        kinds = ([self.s_view] * 8 + [self.s_views] + [self.s_maybe_copy] * 3 + [self.s_dtype] * 2 + [self.s_elementwise] * 7
                 + [self.s_inexact] * 1 +
                 [self.s_integers, self.s_bools, self.s_where] + [self.s_reduction] * 2 + [self.s_join, self.s_gather]
                 + [self.s_scatter, self.s_linear, self.s_make] +
                 [self.s_write] * 8 + [self.s_setitem] * 4 + [self.s_index_write] * 1 + [self.s_out] * 1 + [self.s_state] * 3)
        if r.random() < 0.1:
            kinds += [self.s_other_form] * 4
        target, tries = r.randint(4, 22), 0
        while len(self.lines) < target and tries < 120:
            tries += 1
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    lines = r.choice(kinds)()
            except (LookupError, ValueError, ZeroDivisionError, RuntimeError, TypeError, AttributeError):
                continue
            self.try_lines(lines)
        if len(self.lines) < 3:
            return None
        returned = self.returned(inputs)
        if returned is None:
            return None
        self.weights = {n: w for n, w in self.weights.items() if f"self.{n}" in "\n".join(self.lines)}
        returned = self.varied(inputs, returned)
        if not returned:
            return None
        source = self.source(inputs, f"return {', '.join(returned)}" + ("," if len(returned) == 1 and r.random() < 0.3 else ""))
        return record.Program("", source, module_of(source, self.buffers, self.weights), inputs,
                              extra={"note": self.described(inputs)})

    def source(self, inputs: list[torch.Tensor], last: str) -> str:
        body = "\n".join(f"    {line}" for line in self.lines + [last])
        return f"def forward(self, {', '.join(f'x{i}' for i in range(len(inputs)))}):\n{body}\n"

    def varied(self, inputs: list[torch.Tensor], returned: list[str]) -> list[str]:
        """Those that differ within themselves for other inputs, too: a plan with a constant output is not verified, so not compiled."""
        module = module_of(self.source(inputs, f"return [{', '.join(returned)}]"), self.buffers, self.weights)
        keeps = [True] * len(returned)
        for _ in range(3):
            others = [torch.tensor([self.rng.gauss(0, 1) for _ in range(t.numel())], dtype=t.dtype).reshape(t.shape)
                      if t.is_floating_point() else
                      drawn(self.rng, t.shape, t.dtype) for t in inputs]
            try:
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    outputs = copy.deepcopy(module)(*others)
            except Exception:
                return []
            for i, t in enumerate(outputs):
                keeps[i] &= t.numel() == 0 or bool((t != t.flatten()[0]).any()) or (t.numel() == 1 and bool(t.isfinite() & (t != 0)))
        return [text for text, keep in zip(returned, keeps) if keep or self.rng.random() < 0.07]

    def described(self, inputs: list[torch.Tensor]) -> str:
        def say(name, t):
            return f"{name}: {str(t.dtype).removeprefix('torch.')}[{', '.join(map(str, t.shape))}]"
        return "; ".join([say(f"x{i}", t) for i, t in enumerate(inputs)]
                         + [say(f"self.{n}", t) for n, t in (self.buffers | self.weights).items()])

    def returned(self, inputs) -> list[str] | None:
        r = self.rng

        def telling(t: torch.Tensor) -> bool:
            return t.numel() > 1 and bool((t != t.flatten()[0]).any())
        names = [n for n, t in self.at.items() if not n.startswith("self.")]
        good = [n for n in names if telling(self.at[n])]
        if not good:
            return None
        # What nothing else reads would otherwise be drawn for nothing.
        text = "\n".join(self.lines)
        unread = [n for n in good if len(re.findall(rf"\b{n}\b", text)) < 2]
        chosen = []
        for _ in range(r.choice([1, 2, 2, 3, 3, 4])):
            pool = good if r.random() < 0.93 else names
            name = r.choice(unread if unread and r.random() < 0.6 else pool[-6:] if r.random() < 0.7 else pool)
            t = self.at[name]
            form = r.random()
            if form < 0.3 and t.dtype != torch.bool:
                chosen.append(f"{name} * {r.choice(['2', '3'])}")
            elif form < 0.4 and t.dtype != torch.bool:
                chosen.append(f"torch.relu({name}) + 1")
            elif form < 0.5:
                chosen.append(self.view(name))
            else:
                chosen.append(name)
        extra = r.random()
        if extra < 0.10:
            chosen.append(r.choice([f"x{i}" for i in range(len(inputs))]))
        elif extra < 0.18:
            name = r.choice([f"x{i}" for i in range(len(inputs))])
            chosen.append(self.view(name))
        elif extra < 0.28:
            chosen.append(r.choice(chosen))  # the same tensor twice, or two equal expressions
        elif extra < 0.36:
            name = r.choice(good)
            if self.at[name].dtype != torch.bool:
                chosen += [f"torch.relu({name}) + 1", f"torch.relu({name}) + 1"]
        elif extra < 0.42 and self.buffers:
            chosen.append(f"self.{r.choice(list(self.buffers))}")
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trial = copy.deepcopy({"at": self.at, "self": self.self})
                made = [eval(c, {"torch": torch, "F": F, "self": trial["self"]}, dict(trial["at"])) for c in chosen]
        except Exception:
            return None
        if any(not isinstance(m, torch.Tensor) or m.numel() > kMostElements for m in made):
            return None
        return chosen


def module_of(source: str, buffers: dict[str, torch.Tensor], weights: dict[str, torch.Tensor]) -> torch.nn.Module:
    scope = {"torch": torch, "F": F, "nn": torch.nn}
    exec(source, scope)
    module = type("Program", (torch.nn.Module,), {"forward": scope["forward"]})()
    for name, tensor in weights.items():
        module.register_parameter(name, torch.nn.Parameter(tensor.clone(), requires_grad=False))
    memo: dict = {}
    for name, tensor in copy.deepcopy(buffers, memo).items():  # views of one storage stay that
        module.register_buffer(name, tensor)
    return module.eval()


def one(task) -> tuple[int, str, list[tuple[str, bytes]]]:
    seed, index, scratch = task
    rng = random.Random(f"{seed}/{index}")
    torch.manual_seed(0)
    program = None
    for _ in range(20):
        program = Writing(rng).write()
        if program is not None:
            break
    if program is None:
        return index, "no program was found", []
    program.name = f"p{index:05d}" if seed == kSeed else f"s{seed}_{index:05d}"
    try:
        case = record.record(program, rng)
        return index, "", sorted(record.files_of(case, Path(scratch)).items())
    except record.Left as left:
        return index, str(left), []
    except Exception as error:
        if os.environ.get("KEIRIN_PROGRAMS_DEBUG"):
            raise
        return index, f"the recording fails: {type(error).__name__}: {str(error)[:80]}", []


def start(threads: int = 1) -> None:
    os.nice(0)
    torch.set_num_threads(threads)
    import logging
    logging.disable(logging.WARNING)


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--count", type=int, default=kCount, help="programs to keep")
    parse.add_argument("--seed", type=int, default=kSeed)
    parse.add_argument("--jobs", type=int, default=2)
    parse.add_argument("--out", type=Path, default=record.kRoot / "tests/data/programs.tar.xz",
                       help="a folder, or an archive if it ends in .xz")
    parse.add_argument("--show", type=int, help="print the program of this index and leave")
    o = parse.parse_args()
    if o.show is not None:
        start()
        with tempfile.TemporaryDirectory() as scratch:
            rng = random.Random(f"{o.seed}/{o.show}")
            program = next(p for p in (Writing(rng).write() for _ in range(20)) if p)
            print(program.extra["note"], program.source, sep="\n")
            print(one((o.seed, o.show, scratch))[1] or "kept")
        return 0
    began, left, files, kept = time.time(), collections.Counter(), [], 0
    with tempfile.TemporaryDirectory() as scratch, multiprocessing.get_context("spawn").Pool(o.jobs, start) as pool:
        tasks = ((o.seed, i, scratch) for i in range(o.count * 4))
        for index, why, made in pool.imap(one, tasks, chunksize=8):
            if made:
                files += made
                kept += 1
            else:
                left[why] += 1
            if (index + 1) % 200 == 0:
                print(f"{index + 1} drawn, {kept} kept, {time.time() - began:.0f} s", file=sys.stderr, flush=True)
            if kept == o.count:
                pool.terminate()
                break
    for why, count in left.most_common():
        print(f"left out {count}: {why}")
    if o.out.suffix == ".xz":
        record.write_archive(files, o.out)
        print(f"{o.out}: {o.out.stat().st_size} bytes")
    else:
        record.write_folder(files, o.out)
    print(f"PROGRAMS kept={kept} left_out={sum(left.values())} seconds={time.time() - began:.0f}")
    return 0 if kept == o.count else 1


if __name__ == "__main__":
    sys.exit(main())
