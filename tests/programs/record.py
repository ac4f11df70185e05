# SPDX-License-Identifier: Apache-2.0
"""Turns a PyTorch module into a case: a `.pt2` file, and what Python's eager module answers for inputs in several memory layouts.

The truth is the module itself, run on fresh deep copies, never our code nor the exported program: where the exported program
answers otherwise in Python, that is the exporter's error, and the case, or that layout of its inputs, is left out. Invariant: equal
programs give equal bytes. README.md describes the files.
"""
import copy
import io
import json
import lzma
import random
import struct
import sys
import tarfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

kRoot = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(kRoot / "bench/zoo"))
import archive  # noqa: E402

kNames = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
          torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL", torch.uint8: "U8"}
kCalls = 2
kNoiseRuns = 2
kMostElements = 1 << 16  # beyond, who shares memory with whom is not asked element by element


class Left(Exception):
    """Why a program is no case."""


@dataclass
class Variant:
    """Inputs as views of base storages, so that offsets, strides and aliases are told and not only values."""
    name: str
    storages: list[torch.Tensor]                             # 1-d, whole storages
    views: list[tuple[int, list[int], list[int], int]]       # storage, sizes, strides, offset

    def inputs(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        own = [s.clone() for s in self.storages]
        made: dict[Any, torch.Tensor] = {}
        out = []
        for storage, sizes, strides, offset in self.views:
            key = (storage, tuple(sizes), tuple(strides), offset)
            if key not in made:  # the same tensor twice is one object
                made[key] = own[storage].as_strided(sizes, strides, offset)
            out.append(made[key])
        return own, out


@dataclass
class Program:
    name: str
    source: str
    module: torch.nn.Module
    inputs: list[torch.Tensor]
    variants: list[Variant] | None = None   # none: those that `variants_of` finds
    why: str = ""
    strict: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


def row_major(tensor: torch.Tensor) -> tuple[list[int], list[int]]:
    sizes = list(tensor.shape)
    strides, n = [0] * len(sizes), 1
    for d in reversed(range(len(sizes))):
        strides[d] = n
        n *= max(sizes[d], 1)
    return sizes, strides


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).flatten()


def contiguous(inputs: list[torch.Tensor]) -> Variant:
    return Variant("contiguous", [_flat(t) for t in inputs], [(i, *row_major(t), 0) for i, t in enumerate(inputs)])


def variants_of(inputs: list[torch.Tensor], written: list[bool], rng: random.Random) -> list[Variant]:
    out = [contiguous(inputs)]

    def add(name: str, change: Callable[[int, torch.Tensor], tuple[torch.Tensor, list[int], int] | None]) -> None:
        storages, views, changed = [], [], False
        for i, t in enumerate(inputs):
            made = change(i, t)
            if made is None:
                storages.append(_flat(t))
                views.append((i, *row_major(t), 0))
            else:
                changed = True
                storage, strides, offset = made
                storages.append(storage)
                views.append((i, list(t.shape), strides, offset))
        if changed:
            out.append(Variant(name, storages, views))

    def transposed(_: int, t: torch.Tensor):
        if t.dim() < 2 or t.numel() < 2:
            return None
        order = list(range(t.dim()))
        a, b = rng.sample(order, 2) if t.dim() > 2 else (0, 1)
        order[a], order[b] = order[b], order[a]
        back = t.permute(order).contiguous()
        return _flat(back), list(back.permute(order).stride()), 0

    def expanded(i: int, t: torch.Tensor):
        axes = [d for d in range(t.dim()) if t.shape[d] > 1]
        if written[i] or not axes or t.numel() == 0:
            return None
        axis = rng.choice(axes)
        one = t.narrow(axis, 0, 1).contiguous()
        return _flat(one), list(one.expand(t.shape).stride()), 0

    def offset(_: int, t: torch.Tensor):
        # Values around the view are its neighbours' kind: whoever reads or writes outside is seen.
        if t.dim() > 0 and t.numel() > 0 and rng.random() < 0.5:
            d = rng.randrange(t.dim())
            before, after = rng.randint(1, 2), rng.randint(0, 2)
            wide = list(t.shape)
            wide[d] += before + after
            whole = t.flatten()[torch.arange(max(1, torch.Size(wide).numel())) % t.numel()].reshape(wide).clone()
            part = whole.narrow(d, before, t.shape[d])
            part.copy_(t)
            return _flat(whole), list(part.stride()), part.storage_offset()
        before, after = rng.randint(1, 5), rng.randint(0, 3)
        whole = torch.ones(before + t.numel() + after, dtype=t.dtype)
        whole[before:before + t.numel()] = t.flatten()
        return whole, row_major(t)[1], before

    add("transposed", transposed)
    add("expanded", expanded)
    add("offset", offset)
    pairs = [(i, j) for i in range(len(inputs)) for j in range(i + 1, len(inputs))
             if inputs[i].dtype == inputs[j].dtype and inputs[i].shape == inputs[j].shape and inputs[i].numel() > 0]
    if pairs:
        i, j = rng.choice(pairs)
        base = contiguous(inputs)
        views = list(base.views)
        views[j] = (i, *views[i][1:])
        out.append(_without_unused(Variant("aliased", base.storages, views)))
        n = inputs[i].numel()
        if n > 1:
            shift = rng.randint(1, n - 1)
            storage = torch.cat([_flat(inputs[i]), _flat(inputs[j])[n - shift:]])
            storages = list(base.storages)
            storages[i] = storage
            views = list(base.views)
            views[j] = (i, *views[j][1:3], shift)
            out.append(_without_unused(Variant("overlapping", storages, views)))
    return out


def _without_unused(variant: Variant) -> Variant:
    used = sorted({v[0] for v in variant.views})
    return Variant(variant.name, [variant.storages[u] for u in used], [(used.index(v[0]), *v[1:]) for v in variant.views])


def element_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The addresses of all bytes of all elements."""
    at = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride()):
        at = at.unsqueeze(-1) + torch.arange(size) * stride
    width = tensor.element_size()
    return (tensor.data_ptr() + at.reshape(-1, 1) * width + torch.arange(width)).flatten().unique()


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() == 0 or b.numel() == 0 or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    if max(a.numel(), b.numel()) > kMostElements:
        return True
    return bool(torch.isin(element_bytes(a), element_bytes(b)).any())


def _inexact(func: Any, args: Any, kwargs: Any, result: torch.Tensor, in_f64: torch.Tensor | None) -> torch.Tensor:
    """By how much another right implementation's result may differ, as factors of the unit in the last place at the result."""
    exact = torch.zeros((), dtype=torch.float64)
    if result.dtype == torch.float64:  # nothing wider to compare with: short numbers were not rounded
        scaled = result * 2.0**20
        if bool(((scaled == scaled.round()) & (result.abs() < 2.0**30)).all()):
            return exact
    elif in_f64 is not None and in_f64.shape == result.shape and torch.equal(in_f64.double(), result.double()):
        return exact
    unit = torch.finfo(result.dtype).eps
    scale = 2.0 if result.dtype in (torch.float32, torch.float64) else 1.0
    noise = result.double().abs() * unit * scale
    name = func.__name__ if hasattr(func, "__name__") else str(func)
    if any(word in name for word in ("sum", "mean", "mm", "conv", "norm", "softmax", "var", "std", "prod", "dot", "pool", "logsumexp",
                                     "linalg", "index_add", "scatter", "interpolate", "upsample", "grid", "fft", "inverse", "solve",
                                     "det", "svd", "eig", "qr", "lu", "cholesky", "erf", "gamma", "attention", "cdist", "einsum",
                                     "mv", "lerp", "addc", "sub", "add")):
        parts = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel()]
        largest = max([float(t.double().abs().max()) for t in parts], default=0.0)
        if largest < float("inf"):
            noise = noise + unit * scale * largest
    return noise


class Noise(TorchDispatchMode):
    """Moves every inexact floating result a little, as another right implementation might: what an output then moves is its tolerance."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        schema = func._schema
        writes = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        is_view = not any(writes) and any(r.alias_info is not None for r in schema.returns)
        name = func.__name__
        if is_view or name.startswith(("detach", "clone", "alias", "copy_", "fill", "zero", "empty", "full", "ones", "lift", "_to_copy",
                                       "set_", "resize", "arange", "_local_scalar", "is_", "rand", "bernoulli")):
            return func(*args, **kwargs)
        leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not leaves:
            return func(*args, **kwargs)
        in_f64 = None
        if any(t.is_floating_point() for t in leaves):
            up = pytree.tree_map(lambda t: t.detach().clone().double() if isinstance(t, torch.Tensor) and t.is_floating_point() else
                                 t.clone() if isinstance(t, torch.Tensor) else t, (args, kwargs))
            try:
                in_f64 = func(*up[0], **up[1])
            except Exception:
                in_f64 = None
        out = func(*args, **kwargs)
        got = pytree.tree_leaves(out)
        wanted = pytree.tree_leaves(in_f64) if in_f64 is not None else [None] * len(got)
        if len(wanted) != len(got):
            wanted = [None] * len(got)
        fresh = []
        for g, w in zip(got, wanted):
            if not isinstance(g, torch.Tensor) or not g.is_floating_point() or g.numel() == 0:
                fresh.append(g)
                continue
            noise = _inexact(func, args, kwargs, g, w if isinstance(w, torch.Tensor) and w.is_floating_point() else None)
            if float(noise.max()) != 0:
                sign = torch.randint(0, 2, g.shape, generator=self._generator) * 2.0 - 1
                moved = g.double() + noise * sign
                moved = torch.where(g.isfinite(), moved, g.double()).to(g.dtype)
                if not any(s == 0 and n > 1 for s, n in zip(g.stride(), g.shape)):
                    g.copy_(moved)
            fresh.append(g)
        return out


def observe(module: Callable, variant: Variant, buffers: Callable[[], dict[str, torch.Tensor]], mode: Any = None) -> list[dict[str, Any]]:
    """What `kCalls` calls in a row with the same tensors answer and leave behind. A call that raises ends the list."""
    storages, inputs = variant.inputs()
    calls = []
    for _ in range(kCalls):
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if mode is None:
                    result = module(*inputs)
                else:
                    with mode:
                        result = module(*inputs)
        except Exception as error:  # eager's refusal is an answer, too
            calls.append({"raises": f"{type(error).__name__}: {error}"[:200]})
            break
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        for output in outputs:
            if output is not None and not isinstance(output, torch.Tensor):
                raise Left("an output is not a tensor")
            if isinstance(output, torch.Tensor) and (output.layout != torch.strided or output.is_quantized):
                raise Left("an output is sparse or quantized")
        held = buffers()
        named = [(f"o{i}", o) for i, o in enumerate(outputs) if o is not None]
        others = [(f"i{i}", t) for i, t in enumerate(inputs)] + [(f"b:{name}", b) for name, b in held.items()]
        shares = []
        for a, (left, x) in enumerate(named):
            for right, y in named[a + 1:] + others:
                if share_memory(x, y):
                    shares.append([left, right, y.data_ptr() - x.data_ptr()])
        calls.append({"outputs": [None if o is None else (o.detach().clone(), list(o.stride())) for o in outputs],
                      "storages": [s.clone() for s in storages],
                      "buffers": {name: b.detach().clone() for name, b in held.items()}, "shares": shares})
        if any(o is not None and (o.is_neg() or o.is_conj()) for o in outputs):
            raise Left("an output is a lazy conjugate or negative")
    return calls


def values_of(call: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    if "raises" in call:
        return []
    return ([(f"output {i}", o[0]) for i, o in enumerate(call["outputs"]) if o is not None] +
            [(f"storage {i}", s) for i, s in enumerate(call["storages"])] + [(f"buffer {n}", b) for n, b in call["buffers"].items()])


def _real(t: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference; infinite where one is not a number and the other is."""
    if a.numel() == 0:
        return 0.0
    x, y = _real(a).double(), _real(b).double()
    same = (x == y) | (x.isnan() & y.isnan())
    d = torch.where(same, torch.zeros_like(x), (x - y).abs())
    return float("inf") if bool(d.isnan().any()) else float(d.max())


def differs(a: list[dict[str, Any]], b: list[dict[str, Any]], tolerances: list[list[float]]) -> str:
    """What of two observations is not the same, or nothing."""
    if len(a) != len(b):
        return "one of them raises"
    for k, (x, y) in enumerate(zip(a, b)):
        if ("raises" in x) != ("raises" in y):
            return "one of them raises"
        if "raises" in x:
            continue
        if len(x["outputs"]) != len(y["outputs"]) or x["shares"] != y["shares"] or set(x["buffers"]) != set(y["buffers"]):
            return "outputs, buffers or shared memory"
        for p, q in zip(x["outputs"], y["outputs"]):
            if (p is None) != (q is None) or (p is not None
                                              and (p[0].dtype != q[0].dtype or p[0].shape != q[0].shape or strides(*p) != strides(*q))):
                return "dtype, sizes or strides"
        for (name, p), (_, q), tolerance in zip(values_of(x), values_of(y), tolerances[k]):
            if p.dtype != q.dtype or p.shape != q.shape or distance(p, q) > tolerance:
                return f"the content of {name.split(' ')[0]}s"
    return ""


def strides(tensor: torch.Tensor, strides: list[int]) -> list[int]:
    """Those that an element's place depends on: along one element or none there is none."""
    if tensor.numel() == 0:
        return []
    return [s if n > 1 else 0 for n, s in zip(tensor.shape, strides)]


def tolerances_of(module: torch.nn.Module, variant: Variant, truth: list[dict[str, Any]], seed: int) -> list[list[float]]:
    worst = [[0.0] * len(values_of(call)) for call in truth]
    for run in range(kNoiseRuns):
        own = copy.deepcopy(module)
        noisy = observe(own, variant, lambda: dict(own.named_buffers()), Noise(seed * 100 + run))
        if len(noisy) != len(truth) or any(("raises" in a) != ("raises" in b) for a, b in zip(noisy, truth)):
            raise Left("chaotic: whether it raises depends on rounding")
        for k, call in enumerate(truth):
            for i, ((_, a), (_, b)) in enumerate(zip(values_of(call), values_of(noisy[k]))):
                if a.shape != b.shape:
                    raise Left("chaotic: a size depends on rounding")
                worst[k][i] = max(worst[k][i], distance(a, b))
    out = []
    for k, call in enumerate(truth):
        row = []
        for i, (_, value) in enumerate(values_of(call)):
            if worst[k][i] == 0:
                row.append(0.0)
                continue
            if not (value.is_floating_point() or value.is_complex()):
                raise Left("chaotic: an integer depends on rounding")
            real = _real(value).double()
            finite = real[real.isfinite()]
            largest = float(finite.abs().max()) if finite.numel() else 0.0
            unit = torch.finfo(value.dtype).eps
            tolerance = 8 * worst[k][i] + 4 * unit * largest
            if not tolerance < (0.25 if unit > 1e-4 else 0.01) * max(largest, 1e-30):
                raise Left("chaotic: rounding decides a good part of a number")
            row.append(float(f"{tolerance:.3g}"))
        out.append(row)
    return out


def export(program: Program) -> torch.export.ExportedProgram:
    last: Exception | None = None
    for strict in ((False, True) if not program.strict else (True,)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.export.export(copy.deepcopy(program.module), tuple(t.clone() for t in program.inputs), strict=strict)
        except Exception as error:
            last = error
    raise Left(f"the export fails: {type(last).__name__}")


@dataclass
class Case:
    program: Program
    exported: torch.export.ExportedProgram
    text: dict[str, Any]
    tensors: dict[str, torch.Tensor]


def record(program: Program, rng: random.Random, finite: bool = True, may_raise: bool = False) -> Case:
    variants = program.variants
    if variants is None:
        _, first = contiguous(program.inputs).inputs()
        before = [t._version for t in first]
        try:
            with torch.no_grad():
                copy.deepcopy(program.module)(*first)
            written = [t._version != b for t, b in zip(first, before)]
        except RuntimeError:
            written = [True] * len(first)
        variants = variants_of(program.inputs, written, rng)
    exported = export(program)
    unlifted = exported.module()
    state = dict(unlifted.named_buffers())
    fresh = {name: b.detach().clone() for name, b in state.items()}
    tensors: dict[str, torch.Tensor] = {}
    known: dict[Any, str] = {}

    def keep(tensor: torch.Tensor) -> str:
        flat = _real(tensor).detach().clone(memory_format=torch.contiguous_format)  # contiguous() may keep odd strides along one element
        key = (str(tensor.dtype), tuple(tensor.shape), archive._raw(flat))
        if key not in known:
            known[key] = f"t{len(known)}"
            tensors[known[key]] = flat
        return known[key]

    def told(tensor: torch.Tensor, tolerance: float) -> dict[str, Any]:
        out: dict[str, Any] = {"value": keep(tensor)}
        if tolerance:
            out["tolerance"] = tolerance
        if tensor.is_complex():
            out["complex"] = True
        return out

    texts, left_out = [], {}
    for variant in variants:
        own = copy.deepcopy(program.module)
        truth = observe(own, variant, lambda: dict(own.named_buffers()))
        if variant.name == "contiguous" and "raises" in truth[-1] and not may_raise:
            raise Left("eager raises")
        for call in truth:
            for _, value in values_of(call):
                if finite and not bool(value.isfinite().all()):
                    raise Left("a number is not finite")
        tolerances = tolerances_of(program.module, variant, truth, rng.randrange(1 << 30))
        for name, content in fresh.items():
            state[name].copy_(content)
        try:
            what = differs(truth, observe(unlifted, variant, lambda: dict(unlifted.named_buffers())), tolerances)
        except Left as left:
            what = str(left)
        with torch.no_grad():
            for name, content in fresh.items():
                state[name].copy_(content)
        if what and variant.name == "contiguous":
            raise Left("the exporter's program answers otherwise: " + what)
        if what:  # it was exported with contiguous inputs, and for these it is another program
            left_out[variant.name] = what
            continue
        calls = []
        for k, call in enumerate(truth):
            if "raises" in call:
                calls.append({"raises": call["raises"]})
                continue
            tolerance = iter(tolerances[k])
            calls.append({
                "outputs": [None if o is None else {**told(o[0], next(tolerance)), "strides": strides(*o)} for o in call["outputs"]],
                "storages": [told(s, next(tolerance)) for s in call["storages"]],
                "buffers": {n: told(b, next(tolerance)) for n, b in call["buffers"].items()}, "shares": call["shares"]})
        texts.append({"name": variant.name, "storages": [told(s, 0) for s in variant.storages],
                      "inputs": [{"storage": v[0], "sizes": v[1], "strides": v[2], "offset": v[3]} for v in variant.views], "calls": calls})
    text = {"version": 1, "name": program.name, "source": program.source, **({"why": program.why} if program.why else {}),
            **program.extra, **({"left_out": left_out} if left_out else {}), "variants": texts}
    return Case(program, exported, text, tensors)


def _safetensors(tensors: dict[str, torch.Tensor]) -> bytes:
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        if tensor.dtype not in kNames:
            raise Left(f"no file format for {tensor.dtype}")
        data = archive._raw(tensor)
        header[name] = {"dtype": kNames[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)]}
        blobs.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def files_of(case: Case, scratch: Path) -> dict[str, bytes]:
    name = case.program.name
    path = scratch / f"{name}.pt2"
    archive.write(case.exported, None, None, path)
    model = path.read_bytes()
    path.unlink()
    return {f"{name}.json": json.dumps(case.text, separators=(",", ":")).encode(), f"{name}.pt2": model,
            f"{name}.safetensors": _safetensors(case.tensors)}


def write_folder(files: Iterable[tuple[str, bytes]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files:
        (folder / name).write_bytes(data)


def write_archive(files: Iterable[tuple[str, bytes]], path: Path) -> None:
    """Sorted by kind, so that what is alike lies side by side; no dates, no owners."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(files, key=lambda file: (file[0].rsplit(".", 1)[1], file[0])):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 192 << 20}]
    path.write_bytes(lzma.compress(plain.getvalue(), format=lzma.FORMAT_XZ, filters=filters))
