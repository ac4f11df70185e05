#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What torch.compile(backend="keirin") gains for a training step on one GPU, and on several of one machine with DistributedDataParallel.

    PYTHONPATH=build/python-installed "$(ci/python)/bin/python" bench/python/training_ranks.py [--models decoder,resnet50] [--ranks 2]
        [--families full|small] [--backend nccl|gloo] [--wrapped after|before] [--json FILE]

One process a GPU. First each rank trains a model of its own, nothing shared; then all train one, wrapped after torch.compile or before it.
Blocks of eager and Keirin are interleaved, all ranks begin each together; a gain is the median over rank 0's blocks of eager's time by
Keirin's, with the quartiles. "share" is the gain of all by the gain of one.
"""
import argparse
import copy
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

from training_models import optimiser_of, step_of
from training_step import kBlocks, prepare, seconds_of


def gain_of(name, asked, shared):
    """Median and quartiles of what Keirin gains, eager's milliseconds, and the seconds of Keirin's first step."""
    torch.compiler.reset()
    theirs, inputs, target, more = prepare(name, asked)
    ours = copy.deepcopy(theirs)
    wrap = DistributedDataParallel if shared else (lambda call: call)
    words = {"backend": "keirin", "options": {"compile": "now", "race_seconds": asked.race_seconds}}
    fast = wrap(torch.compile(ours, **words)) if asked.wrapped == "after" else torch.compile(wrap(ours), **words)
    steps = {how: step_of(call, optimiser_of(model), inputs, target, None, False, **more)
             for how, call, model in (("eager", wrap(theirs), theirs), ("keirin", fast, ours))}
    first = seconds_of(steps["keirin"], 1)
    for _ in range(8):
        for step in steps.values():
            step()
    times = {how: [] for how in steps}
    for block in range(kBlocks):
        for how in list(steps) if block % 2 == 0 else reversed(list(steps)):
            dist.barrier()
            times[how].append(seconds_of(steps[how], asked.calls))
    low, middle, high = statistics.quantiles([a / b for a, b in zip(times["eager"], times["keirin"])], n=4)
    return {"gain": middle, "low": low, "high": high, "eager_ms": statistics.median(times["eager"]) * 1e3, "first_s": first}


def rank_main(rank, asked, meeting):
    asked.device = "cuda" if asked.backend == "nccl" else "cpu"
    if asked.device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(asked.backend, init_method=f"file://{meeting}", rank=rank, world_size=asked.ranks)
    rows = []
    for name in asked.models.split(","):
        of = {shared: gain_of(name, asked, shared) for shared in (False, True)}
        rows.append({"model": name, "one": of[False], "all": of[True], "share": of[True]["gain"] / of[False]["gain"]})
        if rank == 0:
            texts = (f"{each['eager_ms']:9.2f} ms {each['gain']:6.2f}x [{each['low']:.2f}, {each['high']:.2f}]" for each in of.values())
            print(f"{name:>12}  " + "  ".join(texts) + f"  {rows[-1]['share']:.2f}", flush=True)
    if rank == 0 and asked.json:
        gpu = {"gpu": torch.cuda.get_device_name()} if asked.device == "cuda" else {}
        machine = {"ranks": asked.ranks, "backend": asked.backend, "torch": torch.__version__} | gpu
        kept = {"schema": "keirin/ranks/1", "wrapped": asked.wrapped, "machine": machine, "rows": rows}
        asked.json.write_text(json.dumps(kept, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)  # as in tests/python/ddp.py


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--models", default="decoder,resnet50")
    arguments.add_argument("--families", choices=("small", "full"), default="full")
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    arguments.add_argument("--wrapped", choices=("after", "before"), default="after")
    arguments.add_argument("--race-seconds", type=float, default=1)
    arguments.add_argument("--calls", type=int, default=2, help="steps of a block")
    arguments.add_argument("--json", type=Path)
    asked = arguments.parse_args()
    print(f"{'model':>12}  {'one: eager':>12} {'gain':>7} {'':14}  {'all: eager':>12} {'gain':>7} {'':14}  share")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (asked, os.path.join(folder, "meeting")), nprocs=asked.ranks)


if __name__ == "__main__":
    main()
