#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a training step takes (zero_grad, forward, loss, backward, AdamW) through torch.compile(backend="keirin"), beside eager and
Inductor.

    ci/python_tests  # once: it makes what follows
    PYTHONPATH=build/python-installed "$(ci/python)/bin/python" bench/python/training_step.py [--models mlp,cnn] [--device cuda]
        [--families small|full] [--inductor [default,reduce-overhead]] [--force] [--update] [--gaps] [--json FILE] [--shares] [--memory]

Blocks of all are interleaved; a ratio is the median over blocks of eager's time by its own, with the quartiles. On a GPU a block
is several steps in a row, as training makes them, behind one that is not timed: that one finds the processor's caches full of what another
did, which says much where the device waits for the first launch. "nodes" are operators of
both halves that are compiled, of all; what answers is what the race of forward and backward chose (--force: the compiled step). "first s"
is Keirin's first step, tracing, compiling, verifying and racing included; the note below a row has everybody's. --families trains the zoo's
models instead of the small ones (training_families.py), those that the zoo runs in bf16 under autocast on a GPU. --update compiles the
optimiser's step as well, for Keirin and Inductor. --json keeps the rows with the machine (bench/results/training.py prints them). --gaps,
on a GPU, says below a row how long the device works in one step of each, how long it is idle, and the longest wait between two kernels;
--json then keeps each kernel's time. --shares says instead which operators eager's steps spend their time in; --memory how much the peak of
a step grows with the batch (mlp, norms, cnn, encoder), eager and forced to the compiled step, each in a process of its own.
"""
import argparse
import copy
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

import keirin
from keirin import _dynamo, _training
from training_models import answers_of, kModels, nodes_of, optimiser_of, step_of

kBlocks = 30
kLeastSteps = 4  # of a block on a GPU


def seconds_of(step, calls):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / calls


def name_of(mode):
    return "inductor" if mode == "default" else f"inductor {mode}"


def prepare(name, asked):
    """Model, inputs, target, and what else the step is made of."""
    if asked.families:
        import training_families as families
        narrow = asked.device == "cuda" and name in families.kAutocast
        around = {"around": lambda: torch.autocast("cuda", torch.bfloat16)} if narrow else {}
        return *families.build(asked.families, name, asked.device), {"loss_of": families.loss, **around}
    make, sample = kModels[name]
    torch.manual_seed(0)
    model, (inputs, target) = make().to(asked.device), sample()
    return model, [each.to(asked.device) for each in inputs], target.to(asked.device), {}


def measure(name, asked, options):
    torch.compiler.reset()
    model, inputs, target, more = prepare(name, asked)
    hows = {"eager": None, "keirin": {"backend": "keirin", "options": options}}
    for mode in asked.inductor.split(",") if asked.inductor else ():
        hows[name_of(mode)] = {"backend": "inductor", "mode": mode}
    known = set(_dynamo.graphs())
    steps, first = {}, {}
    for how, words in hows.items():
        its = copy.deepcopy(model)
        steps[how] = step_of(its, optimiser_of(its), inputs, target, words, asked.update, **more)
        first[how] = seconds_of(steps[how], 1)
        for _ in range(3):
            steps[how]()
    made = [graph for graph in _dynamo.graphs() if graph not in known]
    on_gpu = asked.device == "cuda"
    calls = max(kLeastSteps if on_gpu else 1, int(asked.block_seconds / seconds_of(steps["eager"], 3)))
    times = {how: [] for how in hows}
    for block in range(kBlocks):
        for how in list(hows) if block % 2 == 0 else reversed(list(hows)):
            if on_gpu:
                steps[how]()
            times[how].append(seconds_of(steps[how], calls))
    row = {"model": name, "eager_ms": statistics.median(times["eager"]) * 1e3, "first_s": first["keirin"]}
    for how in hows:
        if how != "eager":
            low, middle, high = statistics.quantiles([a / b for a, b in zip(times["eager"], times[how])], n=4)
            row[how] = {"gain": middle, "low": low, "high": high, "first_s": first[how]}
    row["nodes_compiled"], row["nodes"] = nodes_of(made)
    row["answered_by"] = answers_of(made, kBlocks)
    row["notes"] = ["first step: " + ", ".join(f"{how} {taken:.1f} s" for how, taken in first.items())]
    if asked.gaps:
        row["kernels"] = {}
        for how, step in steps.items():
            line, row["kernels"][how] = gaps(how, step)
            row["notes"].append(line)
    row["notes"] += [line for graph in made if isinstance(graph, _training.Step) for line in graph.text().splitlines()[1:]
                    if not line.startswith((graph.name, "|", "  ", "steps of "))]
    return row


def idle_of(spans):
    """Of the (begin, end) of all that a device did in a step: how long it worked, how long it waited in between, and the longest wait with
    the numbers of the spans around it."""
    order = sorted(range(len(spans)), key=lambda i: spans[i])
    worked, waited, longest, until, last = 0, 0, (0, None, None), spans[order[0]][0], None
    for i in order:
        begin, end = spans[i]
        if begin > until:
            waited += begin - until
            longest = max(longest, (begin - until, last, i), key=lambda wait: wait[0])
        worked += max(0, end - max(begin, until))
        if end >= until:
            until, last = end, i
    return worked, waited, longest


def gaps(how, step, times=9):
    """A line about the device's time in a step, of medians, and [kernel, launches, us] of the last of them by time. The profiler watches
    the device alone; the whole is taken without it, as it makes the host slower: a wait under it may be longer than without."""
    whole = statistics.median(seconds_of(step, 1) for _ in range(times)) * 1e3
    seen = []
    for _ in range(times):
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
            torch.cuda.synchronize()
        events = [each for each in profile.events() if each.device_type == torch.autograd.DeviceType.CUDA]
        worked, waited, (longest, before, behind) = idle_of([(each.time_range.start, each.time_range.end) for each in events])
        around = f"{events[before].name[:40]} and {events[behind].name[:40]}" if before is not None else "none"
        seen.append((worked / 1e3, waited / 1e3, longest / 1e3, around, len(events)))
    worked, waited = (statistics.median(row[i] for row in seen) for i in (0, 1))
    _, _, longest, around, kernels = sorted(seen, key=lambda row: row[2])[times // 2]
    by_name = {}
    for each in events:
        launches, us = by_name.get(each.name, (0, 0.0))
        by_name[each.name] = launches + 1, us + each.time_range.end - each.time_range.start
    line = (f"{how}: {whole:.2f} ms, of which the device works {worked:.2f} in {kernels} launches and is idle {whole - worked:.2f}; under "
            f"the profiler it waits {waited:.2f} between them, longest {longest:.2f}, between {around}")
    return line, sorted(([name, *rest] for name, rest in by_name.items()), key=lambda row: -row[2])


def shares(name):
    """The operators that take most of an eager step, each without those that it calls."""
    make, sample = kModels[name]
    torch.manual_seed(0)
    model, (inputs, target) = make(), sample()
    step = step_of(model, optimiser_of(model), inputs, target, None, False)
    for _ in range(3):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(10):
            step()
    rows = sorted(profile.key_averages(), key=lambda row: -row.self_cpu_time_total)
    whole = sum(row.self_cpu_time_total for row in rows)
    print(f"{name:>16}  " + ", ".join(f"{row.key} {row.self_cpu_time_total / whole:.1%}" for row in rows[:8]), flush=True)


def status_bytes(word):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(word))


def peak_of(name, how, times, options):
    """Bytes that this process has grown by at the peak of a step, with so many batches as one: model, optimiser, compilers and the step."""
    malloc = ctypes.CDLL(None)
    make, sample = kModels[name]
    torch.manual_seed(0)
    before = status_bytes("VmRSS")
    model, (inputs, target) = make(), sample()
    inputs, target = [each.repeat(times, *[1] * (each.dim() - 1)) for each in inputs], target.repeat(times)
    words = {"backend": "keirin", "options": options} if how == "keirin" else None
    step = step_of(model, optimiser_of(model), inputs, target, words, how == "keirin")
    for _ in range(4):
        step()
    gc.collect()
    malloc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins again
    for _ in range(3):
        step()
    return status_bytes("VmHWM") - before


def memory(name):
    """What a step takes at its peak: how much the peak grows with the batch, as compilers and weights do not."""
    def child(how, times):
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed is given back: the mark is of what is in use
        words = [sys.executable, __file__, "--peak", name, how, str(times)]
        return int(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    few, many = 8, 40
    grows = {how: child(how, many) - child(how, few) for how in ("eager", "keirin")}
    print(f"{name:>16}  {many - few} batches more take eager {grows['eager'] / 1e6:.1f} MB, compiled {grows['keirin'] / 1e6:.1f} MB: "
          f"{grows['keirin'] / grows['eager']:.2f}x", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--models", help="all by default")
    arguments.add_argument("--families", choices=("small", "full"), help="the zoo's models, in that size")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--inductor", nargs="?", const="default", help="beside Inductor in these modes; a minute a model")
    arguments.add_argument("--update", action="store_true", help="the optimiser's step is compiled too")
    arguments.add_argument("--force", action="store_true", help="the compiled step answers, whatever its race says")
    arguments.add_argument("--race-seconds", type=float, default=2)
    arguments.add_argument("--block-seconds", type=float, default=0.1)
    arguments.add_argument("--json", type=Path, help="keeps what was measured")
    arguments.add_argument("--gaps", action="store_true", help="on a GPU: how long the device waits in a step, and where")
    arguments.add_argument("--shares", action="store_true")
    arguments.add_argument("--memory", action="store_true")
    arguments.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if not asked.models:
        import training_families
        asked.models = ",".join(training_families.kSizes[asked.families] if asked.families else kModels)
    forced = {"compile": "now", "race_seconds": 0, "force": "compiled", "only_candidate": f"{asked.device}/all"}
    if asked.peak:
        name, how, times = asked.peak
        return print(peak_of(name, how, int(times), forced))
    options = {"compile": "now", "race_seconds": asked.race_seconds, **({"force": "compiled"} if asked.force else {})}
    if asked.shares or asked.memory:
        for name in asked.models.split(","):
            (shares if asked.shares else memory)(name)
        return None
    rows = []
    peers = [name_of(mode) for mode in asked.inductor.split(",")] if asked.inductor else []
    heads = " ".join(f"{how:>24}" for how in ("keirin", *peers))
    print(f"{'model':>16} {'eager ms':>9} {heads} {'nodes':>9} {'first s':>8}  answered by")
    for name in asked.models.split(","):
        rows.append(row := measure(name, asked, options))
        ratios = [f"{row[how]['gain']:.2f}x [{row[how]['low']:.2f}, {row[how]['high']:.2f}]" for how in ("keirin", *peers)]
        print(f"{name:>16} {row['eager_ms']:9.3f} " + " ".join(f"{each:>24}" for each in ratios) +
              f" {row['nodes_compiled']:4}/{row['nodes']:<4} {row['first_s']:8.1f}  "
              f"{', '.join(row['answered_by']) or 'eager: no graph records gradients'}", flush=True)
        print("".join(f"{'':>16} {note}\n" for note in row["notes"]), end="", flush=True)
        if asked.json:
            names = (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
            machine = {"processor": next(names, platform.machine()), "threads": torch.get_num_threads(), "torch": torch.__version__,
                       "keirin": keirin.__version__} | ({"gpu": torch.cuda.get_device_name()} if asked.device == "cuda" else {})
            kept = {"schema": "keirin/training/1", "command": [Path(word).name for word in sys.argv[1:]], "machine": machine, "rows": rows}
            asked.json.write_text(json.dumps(kept, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
