#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a training step takes (zero_grad, forward, loss, backward, AdamW) through torch.compile(backend="keirin"), beside eager and Inductor.

    ci/python_tests  # once: it makes what follows
    PYTHONPATH=build/python-installed "$(ci/python)/bin/python" bench/python/training_step.py [--models mlp,cnn] [--inductor] [--force]

Blocks of the three are interleaved; a ratio is the median over blocks of eager's time by its own, with the quartiles. "nodes" are operators
of both halves that are compiled, of all; what answers is what the race of forward and backward chose (--force: the compiled step).
"""
import argparse
import copy
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

import keirin
from keirin import _dynamo, _training

kBlocks = 30


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        def block(a, b, stride):
            return nn.ModuleList([nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b),
                                  nn.Conv2d(a, b, 1, stride, bias=False)])
        self.stem, self.norm = nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32)
        self.blocks = nn.ModuleList([block(32, 32, 1), block(32, 64, 2), block(64, 128, 2)])
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        for first, norm, second, other, skip in self.blocks:
            x = F.relu(other(second(F.relu(norm(first(x))))) + skip(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Encoder(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.words, self.places = nn.Embedding(1000, 128), nn.Parameter(torch.randn(64, 128) * 0.02)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=dropout, batch_first=True, activation="gelu", norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(128, 1000)

    def forward(self, ids):
        return self.head(self.layers(self.words(ids) + self.places)).flatten(0, 1)


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.others = (nn.ModuleList([nn.Linear(64, 128), nn.Linear(128, 16)]) for _ in range(2))

    def forward(self, x, source, target):
        for i, (own, others) in enumerate(zip(self.own, self.others)):
            near = torch.zeros_like(x).index_add(0, target, x[source])
            x = own(x) + others(near)
            x = F.relu(x) if i == 0 else x
        return x


class Dlrm(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(2000, 16, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16 + 36, 64), nn.ReLU(), nn.Linear(64, 2))
        self.register_buffer("pairs", torch.tril_indices(9, 9, -1))

    def forward(self, x, ids, offsets):
        x = self.bottom(x)
        rows = torch.stack([x, *(table(each, offsets) for table, each in zip(self.tables, ids))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cells, self.head = nn.Embedding(500, 64), nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, ids):
        return self.head(F.relu(self.cells(self.words(ids))[0][:, -1]))


class Norms(nn.Module):
    """Little work in many operators."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(6))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + F.silu(norm(layer(x))) * 0.5
        return self.head(x)


def classes(n, k):
    return torch.randint(0, k, (n,))


kModels = {
    "mlp": (lambda: nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)), lambda: ((torch.randn(64, 256),), classes(64, 10))),
    "norms": (Norms, lambda: ((torch.randn(32, 64),), classes(32, 10))),
    "cnn": (Cnn, lambda: ((torch.randn(16, 3, 32, 32),), classes(16, 10))),
    "encoder": (lambda: Encoder(0.0), lambda: ((torch.randint(0, 1000, (4, 64)),), classes(256, 1000))),
    "encoder_dropout": (Encoder, lambda: ((torch.randint(0, 1000, (4, 64)),), classes(256, 1000))),
    "sage": (Sage, lambda: ((torch.randn(1000, 64), torch.randint(0, 1000, (5000,)), torch.randint(0, 1000, (5000,))), classes(1000, 16))),
    "dlrm": (Dlrm, lambda: ((torch.randn(128, 13), torch.randint(0, 2000, (8, 512)), torch.arange(0, 512, 4)), classes(128, 2))),
    "lstm": (Lstm, lambda: ((torch.randint(0, 500, (16, 20)),), classes(16, 10))),
}


def step_of(model, inputs, target, how):
    call = torch.compile(model, **how) if how else model
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        optimiser.zero_grad()
        loss = F.cross_entropy(call(*inputs), target)
        loss.backward()
        optimiser.step()
        return loss
    return step


def seconds_of(step, calls):
    begin = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - begin) / calls


def nodes_of(steps):
    reports = [json.loads(half.model.report_json()) for each in steps for half in (each.forward, each.backward) if half.handle is not None]
    last = [report[-1] for report in reports if report]
    return sum(report["nodes_compiled"] for report in last), sum(report["nodes"] for report in last)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--models", default=",".join(kModels))
    arguments.add_argument("--inductor", action="store_true", help="beside Inductor too; it compiles for a minute a model")
    arguments.add_argument("--force", action="store_true", help="the compiled step answers, whatever its race says")
    arguments.add_argument("--race-seconds", type=float, default=2)
    arguments.add_argument("--block-seconds", type=float, default=0.1)
    asked = arguments.parse_args()
    options = {"compile": "now", "race_seconds": asked.race_seconds, **({"force": "compiled"} if asked.force else {})}
    print(f"{'model':>16} {'eager ms':>9} {'keirin':>22} {'inductor':>22} {'nodes':>9} {'first s':>8}  answered by")
    for name in asked.models.split(","):
        make, sample = kModels[name]
        torch.manual_seed(0)
        torch.compiler.reset()
        model, (inputs, target) = make(), sample()
        hows = {"eager": None, "keirin": {"backend": "keirin", "options": options}, **({"inductor": {"backend": "inductor"}} if asked.inductor else {})}
        known = set(_dynamo.graphs())
        steps, first = {}, {}
        for how, words in hows.items():
            torch.compiler.reset()
            steps[how] = step_of(copy.deepcopy(model), inputs, target, words)
            first[how] = seconds_of(steps[how], 1)
            for _ in range(3):
                steps[how]()
        made = [graph for graph in _dynamo.graphs() if graph not in known]
        calls = max(1, int(asked.block_seconds / seconds_of(steps["eager"], 3)))
        times = {how: [] for how in hows}
        for block in range(kBlocks):
            for how in list(hows) if block % 2 == 0 else reversed(list(hows)):
                times[how].append(seconds_of(steps[how], calls))

        def ratio(how):
            if how not in times:
                return "-"
            low, middle, high = statistics.quantiles([a / b for a, b in zip(times["eager"], times[how])], n=4)
            return f"{middle:.2f}x [{low:.2f}, {high:.2f}]"
        trained = [graph for graph in made if isinstance(graph, _training.Step)]
        compiled, all_nodes = nodes_of(trained)
        answers = sorted({"compiled" if each.answered > kBlocks else "eager" for each in trained} | {"eager: " + each.reason for each in made if each.reason})
        print(f"{name:>16} {statistics.median(times['eager']) * 1e3:9.3f} {ratio('keirin'):>22} {ratio('inductor'):>22} {compiled:4}/{all_nodes:<4} "
              f"{first['keirin']:8.1f}  {', '.join(answers) or 'eager: no graph records gradients'}", flush=True)


if __name__ == "__main__":
    main()
