# SPDX-License-Identifier: Apache-2.0
"""The models whose training is measured, small, with inputs and targets, and what a training step of one is. Imports no Keirin by itself:
the matrix's workers (bench/peers/train.py) import that of the side which they measure."""
import contextlib
import json
import types

import torch
from torch import nn
from torch.nn import functional as F


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        def block(a, b, stride):
            return nn.ModuleList([nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b),
                                  nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b),
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
    "mlp": (lambda: nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)),
            lambda: ((torch.randn(64, 256),), classes(64, 10))),
    "norms": (Norms, lambda: ((torch.randn(32, 64),), classes(32, 10))),
    "cnn": (Cnn, lambda: ((torch.randn(16, 3, 32, 32),), classes(16, 10))),
    "encoder": (lambda: Encoder(0.0), lambda: ((torch.randint(0, 1000, (4, 64)),), classes(256, 1000))),
    "encoder_dropout": (Encoder, lambda: ((torch.randint(0, 1000, (4, 64)),), classes(256, 1000))),
    "sage": (Sage, lambda: ((torch.randn(1000, 64), torch.randint(0, 1000, (5000,)), torch.randint(0, 1000, (5000,))), classes(1000, 16))),
    "dlrm": (Dlrm, lambda: ((torch.randn(128, 13), torch.randint(0, 2000, (8, 512)), torch.arange(0, 512, 4)), classes(128, 2))),
    "lstm": (Lstm, lambda: ((torch.randint(0, 500, (16, 20)),), classes(16, 10))),
}


def optimiser_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def _with_own_code(model):
    """The model, its forward in a code object of its own. Dynamo keeps for a code object that its frames are skipped, for all backends:
    Inductor's graph break at a recurrent layer would keep the others from their compiled steps."""
    function = type(model).forward
    code = function.__code__.replace(co_name=f"forward_{id(model):x}")
    own = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    own.__kwdefaults__ = function.__kwdefaults__
    model.forward = types.MethodType(own, model)
    return model


def step_of(model, optimiser, inputs, target, how, update, loss_of=F.cross_entropy, around=contextlib.nullcontext):
    """zero_grad, forward, loss, backward, AdamW; returns the loss. `how`: words of torch.compile, for the optimiser too if `update`; None:
    eager. `around`: in which forward and loss run, an autocast."""
    call = torch.compile(_with_own_code(model), **how) if how else model
    change = torch.compile(optimiser.step, **how) if how and update else optimiser.step

    def step():
        torch.compiler.cudagraph_mark_step_begin()  # one step, or Inductor's recording of an update takes its gradients for overwritten
        optimiser.zero_grad()
        with around():
            loss = loss_of(call(*inputs), target)
        loss.backward()
        change()
        return loss
    return step


def nodes_of(graphs):
    """Operators of Keirin's graphs that are compiled, and all of them."""
    from keirin import _dynamo, _training
    halves = [half for each in graphs if isinstance(each, _training.Step) for half in (each.forward, each.backward)]
    models = [half.model for half in halves if half.handle is not None]
    models += [each._bindings[-1].model for each in graphs if isinstance(each, _dynamo.Graph) and each._bindings]
    last = [rows[-1] for rows in (json.loads(model.report_json()) for model in models) if rows]
    return sum(report["nodes_compiled"] for report in last), sum(report["nodes"] for report in last)


def answers_of(graphs, calls):
    """What answered nearly all of the calls of steps and updates."""
    from keirin import _dynamo, _training
    words = {"compiled step" if each.answered > calls else "eager step" for each in graphs if isinstance(each, _training.Step)}
    words |= {"compiled update" if each._handle.answered > calls else "eager update" for each in graphs
              if isinstance(each, _dynamo.Graph) and each._handle is not None and each._is_update}
    return sorted(words | {"eager: " + each.reason for each in graphs if each.reason})
