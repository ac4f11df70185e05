# SPDX-License-Identifier: Apache-2.0
"""One architecture of the sweep in this process: inference and training through torch.compile(backend="keirin"), and inference through
.pt2.

    python bench/sweep/one.py timm/resnet18 [--parts inference,training,pt2] [--device cuda] [--tokens 112] [--measure]

Prints one line of JSON: by part, "runs" (an answer came, eager's at worst), "verified" (it is as near to 64-bit floats as eager's,
gradients one by one; or the same as Dynamo's own backend "eager", where the module answers otherwise while it is traced), nodes of the
graphs and how many of them are compiled, calls that the runtime answered, what stayed eager and why.
Compiled code is made to answer, whatever its race would say, so that it is looked at; with --measure it is raced as for a user, and
"gain" is eager's time over that of what answers then, with "gain_low" and "gain_high" (quartiles over blocks that take turns).
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from typing import Any, Callable

import torch
from torch.utils import _pytree as pytree

import architectures
import keirin
from keirin import _dynamo, _training

_PARTS = ("inference", "training", "pt2")


def forced_on(device: str) -> tuple[dict[str, Any], ...]:
    """The plan that compiles all it can; where that is not there or not right for some graph, any plan."""
    forced = {"compile": "now", "race_seconds": 0, "force": "compiled"}
    return {**forced, "only_candidate": f"{device}/all"}, forced


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def built_on(device: str, name: str, tokens: int) -> architectures.Built:
    """Made on the processor, so that weights and inputs are the same on each device."""
    built = architectures.build(name, tokens)

    def moved(value: Any) -> Any:
        return pytree.tree_map(lambda each: each.to(device) if isinstance(each, torch.Tensor) else each, value)

    return architectures.Built(built.module.to(device), moved(built.args), moved(built.kwargs))


def floats_of(answer: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(answer) if isinstance(each, torch.Tensor) and each.is_floating_point() and each.numel()]


def widened(value: Any) -> Any:
    return pytree.tree_map(lambda each: each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each, value)


def unrounded(device: str, call: Callable[[], Any]) -> Any:
    """What eager answers where nothing is rounded to TF32: nearest to the truth of a model that does not run in 64-bit floats."""
    if device != "cuda":
        return None
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return call()


def extent(values: torch.Tensor) -> float:
    """The largest of them by its amount; 0 of none, as the gradient of a weight that has no elements (DINOv3's register tokens)."""
    return float(values.abs().max()) if values.numel() else 0.0


def far(mine: list[torch.Tensor], eager: list[torch.Tensor], wide: list[torch.Tensor] | None, names: list[str]) -> str:
    """What is not right, in words; empty: all is. Without `wide` the answer has to be eager's but for roundings."""
    if len(mine) != len(eager):
        return f"{len(mine)} tensors where eager returns {len(eager)}"
    truth = wide if wide is not None and [each.shape for each in wide] == [each.shape for each in eager] else eager
    largest = max(map(extent, truth), default=0.0)
    errors = []
    for a, b, its, name in zip(mine, eager, truth, names):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name} is {a.dtype} {list(a.shape)} where eager's is {b.dtype} {list(b.shape)}"
        if bool((torch.isnan(a) != torch.isnan(b)).any()):
            return f"{name} has NaNs elsewhere than eager's"
        scale = max(extent(its.nan_to_num(0, 0, 0)), 1e-3 * largest, 1e-30)
        errors.append((extent((a.double() - its).nan_to_num(0)) / scale, extent((b.double() - its).nan_to_num(0)) / scale, name))
    usual = max((own for _, own, _ in errors), default=0.0)
    wrong = [f"{name}: {error:.2e}, eager's {own:.2e}" for error, own, name in errors if error > 4 * max(own, usual) + 1e-4]
    return "; ".join(wrong[:3])


# Of a graph, by program: its nodes and those compiled, None where nothing was decided.
Counts = list[tuple[int, int] | None]


def is_decided(programs: Counts) -> bool:
    """A step whose one half was not decided is eager's as a whole."""
    return None not in programs


def graphs_of(known: set[Any], device: str) -> tuple[list[Counts], int, list[str]]:
    """What was decided of each; calls that were answered; why something is eager."""
    counts: list[Counts] = []
    answered = 0
    reasons: list[str] = []
    for graph in _dynamo.graphs():
        if graph in known:
            continue
        if graph.reason:
            reasons.append(graph.reason)
            continue
        if isinstance(graph, _training.SizedSteps):
            continue
        models = (
            [half.model if half.handle is not None else None for half in (graph.forward, graph.backward)]
            if isinstance(graph, _training.Step)
            else [graph._bindings[-1].model]
        )
        answered += graph.answered if isinstance(graph, _training.Step) else graph._handle.answered
        reasons += graph._notes if isinstance(graph, _training.Step) else graph._bindings[-1].reasons
        counts.append([])
        for model in models:
            rows = json.loads(model.report_json()) if model is not None else []
            counts[-1].append((rows[-1]["nodes"], rows[-1]["nodes_compiled"]) if rows else None)
            if rows:
                reasons += [f"{step['name']}: {step['note']}" for step in rows[-1]["steps"] if step.get("reason") == "opaque"]
                reasons += [f"as a whole: {each}" for each in rows[-1]["reasons"] if "as a whole" in each]
                # What of the plan of all was lost, or put back to eager.
                of_all = [each.removeprefix(f"{device}/all") for each in rows[-1]["reasons"] if each.startswith(f"{device}/all")]
                reasons += [f"in part{each}" for each in of_all if each.startswith((": ", " without "))]
                reasons += [
                    f"{each['name']}: {each['reason']} {each['note']}"
                    for each in rows[-1]["candidates"]
                    if each["name"] == f"{device}/all" and each["reason"] in ("wrong_result", "not_verified")
                ]
    return counts, answered, sorted(set(reasons))


def gain_of(eager: Callable[[], Any], fast: Callable[[], Any], seconds: float, device: str) -> dict[str, float]:
    def take(call: Callable[[], Any], calls: int) -> float:
        wait_for(device)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        wait_for(device)
        return (time.perf_counter() - begin) / calls

    calls = max(1, int(seconds / 40 / max(take(eager, 2), 1e-6)))
    ratios = []
    for block in range(20):
        order = (eager, fast) if block % 2 == 0 else (fast, eager)
        times = {call: take(call, calls) for call in order}
        ratios.append(times[eager] / times[fast])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"gain": round(middle, 4), "gain_low": round(low, 4), "gain_high": round(high, 4)}


def inference(built: architectures.Built, measure: bool, device: str) -> dict[str, Any]:
    model = built.module.eval()
    with torch.no_grad():
        eager = floats_of(model(*built.args, **built.kwargs))
        try:
            wide = floats_of(copy.deepcopy(model).double()(*widened(built.args), **widened(built.kwargs)))
        except Exception:  # it makes floats of its own dtype
            wide = unrounded(device, lambda: floats_of(model(*built.args, **built.kwargs)))

        def answers(options: dict[str, Any] | None) -> tuple[list[torch.Tensor], list[str], list[torch.Tensor]]:
            fast = compiled_by(model, options)
            for _ in range(3):
                mine = floats_of(fast(*built.args, **built.kwargs))
            return mine, [f"output {i}" for i in range(len(mine))], eager

        row = row_of(answers, wide, device)
        if measure:
            torch.compiler.reset()
            fast = torch.compile(model, backend="keirin", options={"compile": "now", "race_seconds": 1})
            for _ in range(3):
                fast(*built.args, **built.kwargs)
            row |= gain_of(lambda: model(*built.args, **built.kwargs), lambda: fast(*built.args, **built.kwargs), 3, device)
    return row


def compiled_by(model: torch.nn.Module, options: dict[str, Any] | None) -> Callable[..., Any]:
    """Keirin; without options what Dynamo traced, as it is."""
    return torch.compile(model, backend="eager") if options is None else torch.compile(model, backend="keirin", options=options)


def row_of(answers: Callable[[dict[str, Any] | None], Any], wide: list[torch.Tensor] | None, device: str) -> dict[str, Any]:
    why: list[str] = []
    first: list[Counts] = []
    for options in forced_on(device):
        torch.compiler.reset()
        known = set(_dynamo.graphs())
        mine, names, eager = answers(options)
        wrong = far(mine, eager, wide, names)
        counts, answered, reasons = graphs_of(known, device)
        if len(first) == len(counts):  # another plan answers for the graphs that have none of all; the others are what they were
            counts = [before if is_decided(before) else now for before, now in zip(first, counts)]
        first = counts
        if wrong:  # a module may say something else while it is traced
            torch.compiler.reset()
            traced, _, _ = answers(None)
            if not far(mine, traced, None, names):
                reasons.append(f"Dynamo's own backend \"eager\" answers the same, which the module itself does not: {wrong}")
                wrong = ""
        row = {
            "runs": True,
            "verified": not wrong,
            "wrong": wrong,
            "nodes": sum(program[0] for programs in counts for program in programs if program),
            "nodes_compiled": sum(program[1] for programs in counts if is_decided(programs) for program in programs if program),
            "answered": answered,
            "reasons": reasons + why,
        }
        why = [reason for reason in reasons if f"{device}/all" in reason]
        if wrong or not why:
            break
    return row


def gradients(model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> tuple[list[torch.Tensor], list[str]]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    outputs = [each for each in floats_of(call(*args, **kwargs)) if each.requires_grad]
    sum((out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=out.device).view_as(out)).mean() for out in outputs).backward()
    found = [(name, each.grad) for name, each in model.named_parameters() if each.grad is not None]
    return [grad for _, grad in found], [f"gradient of {name}" for name, _ in found]


def training(built: architectures.Built, measure: bool, device: str) -> dict[str, Any]:
    model = built.module.train()
    eager, _ = gradients(model, model, built.args, built.kwargs)
    try:
        double = copy.deepcopy(model).double()
        wide, _ = gradients(double, double, widened(built.args), widened(built.kwargs))
        del double
    except Exception:
        wide = unrounded(device, lambda: gradients(model, model, built.args, built.kwargs)[0])

    def answers(options: dict[str, Any] | None) -> tuple[list[torch.Tensor], list[str], list[torch.Tensor]]:
        fast = compiled_by(model, options)
        for _ in range(3):
            mine, names = gradients(model, fast, built.args, built.kwargs)
        return mine, names, eager

    row = row_of(answers, wide, device)
    if measure:
        torch.compiler.reset()
        fast = torch.compile(model, backend="keirin", options={"compile": "now", "race_seconds": 1})
        for _ in range(3):
            gradients(model, fast, built.args, built.kwargs)
        row |= gain_of(
            lambda: gradients(model, model, built.args, built.kwargs), lambda: gradients(model, fast, built.args, built.kwargs), 4, device
        )
    return row


def pt2(built: architectures.Built, measure: bool, device: str) -> dict[str, Any]:
    model = built.module.eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        eager = floats_of(model(*built.args, **built.kwargs))
        path = keirin.export(model, built.args, os.path.join(folder, "model.pt2"), kwargs=built.kwargs, dynamic=None)
        forced = forced_on(device)
        for options in forced:
            loaded = keirin.load(path, **{**options, "compile": "asked", "device": device})
            try:
                loaded.compile(*built.args, **built.kwargs)
                break
            except keirin.Error:
                if options is forced[-1]:
                    raise
        mine = floats_of(loaded(*built.args, **built.kwargs))
        try:
            wide = floats_of(copy.deepcopy(model).double()(*widened(built.args), **widened(built.kwargs)))
        except Exception:
            wide = None
        report = loaded.report()[-1]
        wrong = far(mine, eager, wide, [f"output {i}" for i in range(len(mine))])
        reasons = sorted({f"operator {step['name']}: opaque" for step in report["steps"] if step.get("reason") == "opaque"})
        row = {
            "runs": True,
            "verified": not wrong,
            "wrong": wrong,
            "nodes": report["nodes"],
            "nodes_compiled": report["nodes_compiled"],
            "reasons": reasons,
        }
        if measure:
            raced = keirin.load(path, compile="asked", race_seconds=1, device=device)
            raced.compile(*built.args, **built.kwargs)
            row |= gain_of(lambda: model(*built.args, **built.kwargs), lambda: raced(*built.args, **built.kwargs), 3, device)
        return row


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("name")
    arguments.add_argument("--parts", default=",".join(_PARTS))
    arguments.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments.add_argument("--tokens", type=int, default=architectures.TOKENS)
    arguments.add_argument("--measure", action="store_true")
    asked = arguments.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    for part in asked.parts.split(","):
        begin = time.perf_counter()
        try:
            torch.compiler.reset()
            built = built_on(asked.device, asked.name, asked.tokens)
            row = {"inference": inference, "training": training, "pt2": pt2}[part](built, asked.measure, asked.device)
        except Exception as error:
            row = {"runs": False, "verified": False, "error": f"{type(error).__name__}: {error}".split("\n")[0][:300]}
        print(json.dumps({"part": part, **row, "seconds": round(time.perf_counter() - begin, 1)}), flush=True)
    os._exit(0)  # nothing that libraries do at their end is looked at here


if __name__ == "__main__":
    main()
