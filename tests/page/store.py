# SPDX-License-Identifier: Apache-2.0
"""Stores of the matrix as a sitting would write them, with times drawn at a fixed seed: for tests of what reads them.

    python3 tests/page/store.py FOLDER --cells 1000
"""
import argparse
import hashlib
import json
import math
import random
from pathlib import Path

kHostile = '</script><script>window.harmed = true</script><img src=x onerror="window.harmed = true">\u202e'
kModels = ["mlp", "gcn", "gat", "dlrm", "sage", "ppo_vit", "decoder_decode", "decoder_prefill", "lstm", "unet", "graph_diffusion", "bert"]


class Log:
    """One file of records; a record is named by the SHA-256 of its line."""

    def __init__(self) -> None:
        self.lines = []

    def add(self, kind: str, **fields) -> str:
        line = json.dumps({"krn": "matrix/1", "kind": kind, **fields}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        self.lines.append(line)
        return hashlib.sha256(line.encode()).hexdigest()

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in self.lines))


def samples(log: Log, draw: random.Random, base: str, head: str, blocks: int, ratio: float, noise: float, milliseconds: float) -> None:
    for block in range(blocks):
        launch = block // 3
        bias = draw.gauss(0, noise / 3)
        for slot in range(4):
            is_base = (slot in (0, 3)) == (launch % 2 == 0)
            ns = milliseconds * 1e6 * math.exp(draw.gauss(0, noise)) * (1 if is_base else ratio * math.exp(bias))
            log.add("sample", run=base if is_base else head, launch=launch, block=block, slot=slot, measure="latency_ns", calls=1,
                    values=[int(ns)] * 3, kept=True)


def sitting(name: str, purpose: str, machine_class: str, when: float, cells: list, seed: int = 1, noise: float = 0.004) -> Log:
    """Cells are (case, variant, what it is against, ratio, status); a ratio beyond the gate is measured twice."""
    draw, log = random.Random(seed), Log()
    stacks = [log.add("stack", parts={"keirin": "0.1.0", "keirin build": build, "library libtorch_cpu.so": "518000000 bytes"}) for build in
              ("0f3c9a51d2b7e684", "91ab44e07c5d3f20" if purpose == "compare" else "0f3c9a51d2b7e684")]
    machine = log.add("machine", cpu="a processor", **{"class": machine_class})
    log.add("sitting", sitting=name, purpose=purpose, time=when, machine=machine, device="cpu", fitness="timing", base=stacks[0],
            head=stacks[-1], threads=2, warnings="", cells=[[c[0], c[1]] for c in cells], **{"class": machine_class})
    for case, variant, against, ratio, status in cells:
        if status == "cut off":
            continue
        milliseconds, confirms = math.exp(draw.uniform(-3, 3)), None
        for stage, blocks in (("screen", 12), ("confirm", 24)):
            if stage == "confirm" and (status != "ok" or abs(math.log(ratio)) < 0.015 or purpose == "selfcheck"):
                continue
            common = {"sitting": name, "case": case, "stage": stage, "counts": {"nodes": 100, "nodes_compiled": 90, "peak_bytes": 1 << 20}}
            base = log.add("run", side="base", variant=against, candidate="eager", build_ns=[40_000_000], first_ns=[2_000_000],
                           settle_ns=[15_000_000], calls_to_settle=[14], time=when, **common)
            head = log.add("run", side="head", variant=variant, candidate="cpu/all", base=base, status=status, gate=0.012,
                           at_fault="" if status in ("ok", "not_run") else "head", reasons=[] if status == "ok" else [f"head: {kHostile}"],
                           cold_ns=900_000_000, build_ns=[45_000_000, 44_000_000], first_ns=[2_500_000], settle_ns=[20_000_000],
                           calls_to_settle=[16], fallbacks=["aten::nms: unsupported, no row of the operator table"], time=when,
                           **({"confirms": confirms} if confirms else {}), **common)
            if status == "ok":
                samples(log, draw, base, head, blocks, ratio, noise, milliseconds)
            confirms = head
    return log


def write(folder: Path, cells: int) -> None:
    """A compare of two builds on two classes, 24 sittings of `run` with a step, a mark, a torn line and a hostile name."""
    draw, half = random.Random(7), max(cells // 4, 1)
    ratios = [1, 1, 1, 1, 1.002, 0.997, 1.02, 1.06, 1.2, 0.98, 0.93, 0.7]
    sizes = ["small"] + [f"v{i}" for i in range(1, half // len(kModels) + 1)]
    cases = [f"{model}/{size}/f32/infer/single/default" for size in sizes for model in kModels][:half]
    for machine_class in ("x86-avx512-2c-vm", "cuda-sm90-h200"):
        rows = [(case, variant, variant, draw.choice(ratios), draw.choices(["ok", "crashed", "not_run", "cut off"], [94, 1, 2, 3])[0])
                for case in cases for variant in ("compiled:cpu", "auto")]
        rows[0] = (kHostile, "auto", "auto", 1.06, "ok")
        rows[1] = (kHostile, "compiled:cpu", "compiled:cpu", 1.06, "crashed")
        sitting(f"compare-{machine_class}", "compare", machine_class, 1.79e9, rows, seed=11).write(folder / "log" / f"a-{machine_class}.jsonl")
    for i in range(24):
        log = sitting(f"run-{i}", "run", "x86-avx512-2c-vm", 1.78e9 + 86400 * i, [
            ("bert/small/f32/infer/single/default", "auto", "eager", 0.5 if i < 14 else 0.56, "ok"),
            ("gcn/small/f32/infer/single/default", "auto", "eager", 0.8, "ok"),
            (kHostile, "auto", "eager", 0.9, "ok")], seed=100 + i)
        if i == 14:
            heads = [line for line in log.lines if '"side":"head"' in line and "bert" in line and '"screen"' in line]
            log.add("mark", mark="step_accepted", of=hashlib.sha256(heads[0].encode()).hexdigest(), why="a new library", who="a person", time=1.79e9)
        log.write(folder / "log" / f"run-{i:02}.jsonl")
    (folder / "log/torn.jsonl").write_text('{"krn":"matrix/1","kind":"mark"')


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=40)
    options = parser.parse_args()
    write(options.folder, options.cells)
