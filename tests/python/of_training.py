# SPDX-License-Identifier: Apache-2.0
"""What tests of training ask of the steps that torch.compile(backend="keirin") has made."""
import torch

from conftest import graphs
from keirin import _training


def steps():
    return [graph for graph in graphs() if isinstance(graph, _training.Step)]


def answered():
    """Calls whose forward and backward were the compiled ones."""
    return sum(step.answered for step in steps())


def notes():
    return [note for step in steps() for note in step._notes]


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
