# SPDX-License-Identifier: Apache-2.0
"""What tests of training ask of the steps that torch.compile(backend="keirin") has made."""
import copy

import torch
from torch import nn

from conftest import NOW, graphs
from keirin import _training

BACKGROUND = {key: value for key, value in NOW.items() if key != "compile"}


def steps():
    return [graph for graph in graphs() if isinstance(graph, _training.Step)]


def answered():
    """Calls whose forward and backward were the compiled ones."""
    return sum(step.answered for step in steps())


def notes():
    """Why a step is not compiled, or not judged by the module itself."""
    return [note for step in steps() for note in (*step._notes, *filter(None, [step.referee]))]


def count_slow(monkeypatch):
    """A list that grows by one whenever a half is run by Python."""
    slow, original = [], _training.plain_of

    def counted(gm):
        plain = torch.fx.GraphModule(gm, copy.copy(original(gm).graph))
        forward = plain.forward
        plain.forward = lambda *args: (slow.append(1), forward(*args))[1]
        return plain
    monkeypatch.setattr(_training, "plain_of", counted)
    return slow


def first_of(outputs):
    return outputs[0] if isinstance(outputs, tuple) else outputs


def gradients(call, model, inputs, seed=0):
    """Gradients by parameter and input, of a loss that is not linear in the outputs."""
    model.zero_grad()
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    torch.manual_seed(seed)
    out = first_of(call(*leaves))
    (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    found = {name: each.grad for name, each in model.named_parameters()}
    found |= {f"input {i}": leaf.grad for i, leaf in enumerate(leaves) if leaf.is_floating_point()}
    return out.detach(), {name: each.clone() for name, each in found.items() if each is not None}


def same_within_eagers_error(model, fast, inputs, calls=2):
    """The compiled gradients of the last call, against fp64, beside eager's. What is zero but for roundings is compared by the largest."""
    for _ in range(calls):
        out, mine = gradients(fast, model, inputs)
    eager_out, eager = gradients(model, model, inputs)
    wide = copy.deepcopy(model).double()
    _, reference = gradients(wide, wide, [x.double() if x.is_floating_point() else x for x in inputs])
    torch.testing.assert_close(out, eager_out)
    assert mine.keys() == eager.keys() == reference.keys()
    largest = max(float(each.abs().max()) for each in reference.values())
    for name, truth in reference.items():
        own = float((eager[name].double() - truth).abs().max())
        error = float((mine[name].double() - truth).abs().max())
        assert error <= 4 * own + 1e-6 * max(float(truth.abs().max()), 1e-2 * largest), f"{name}: {error}, eager {own}"


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(16, 32), nn.Linear(32, 4), nn.Linear(32, 3)

    def forward(self, x):
        hidden = torch.tanh(self.trunk(x))
        return self.left(hidden), self.right(hidden)
