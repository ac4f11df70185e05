# SPDX-License-Identifier: Apache-2.0
"""A training step whose images lie channels-last, as libraries' convolutions have them.

Tensors between forward and backward are laid out as eager lays them out in what was traced. With channels first each convolution of a step
moves its operands there and back, since what is kept between them has to be as eager's. So a graph of convolutions is traced once more with
its images channels-last, group norms as sums of channels, and what the caller sees (results, gradients) is laid out as eager's again.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

from keirin import _images
from keirin._updates import writes

aten = torch.ops.aten

_CONVOLUTIONS = (torch.conv2d, F.conv2d, torch.conv_transpose2d, F.conv_transpose2d)
_DRAWS = ("drop", "rand", "bernoulli", "uniform", "exponential", "poisson", "multinomial", "gumbel", "normal_")  # parts of names
_VIEWS = ("view", "view_as", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "squeeze", "unsqueeze", "getitem", "chunk",
          "split", "unbind", "expand", "narrow", "select", "movedim", "detach", "contiguous", "swapaxes", "identity")


def _example(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None


def _is_image(node: Any) -> bool:
    return isinstance(_example(node), torch.Tensor) and _example(node).dim() == 4


def _format_of(tensor: Any) -> torch.memory_format | None:
    """None: neither of the two that steps are laid out in."""
    if not isinstance(tensor, torch.Tensor):
        return None
    if tensor.is_contiguous():
        return torch.contiguous_format
    return torch.channels_last if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) else None


def _name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """Whose memory it may be, or be a view of."""
    while node.op in ("call_method", "call_function") and node.args and isinstance(node.args[0], torch.fx.Node):
        if _name(node) not in _VIEWS and not writes(_name(node)) and not node.kwargs.get("inplace"):
            break
        node = node.args[0]
    return node


def _draws_in_order(node: torch.fx.Node) -> bool:
    """Whether it draws random numbers for what may lie in another order of memory."""
    example = _example(node)
    is_drawn = any(word in _name(node) for word in _DRAWS) or _name(node) in ("normal", "rrelu")
    return is_drawn and isinstance(example, torch.Tensor) and sum(size > 1 for size in example.shape) > 2


def in_channels_last(gm: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """A copy of Dynamo's graph; None where there is nothing to win, or where the caller would see it."""
    convolutions = [node for node in gm.graph.nodes if node.op == "call_function" and node.target in _CONVOLUTIONS and _is_image(node)]
    returned = next(node for node in reversed(gm.graph.nodes) if node.op == "output").all_input_nodes
    bases = [_base(node) for node in returned]
    # Random numbers are drawn in the order of memory, and results that share memory would not any more.
    if len(convolutions) < 2 or any(map(_draws_in_order, gm.graph.nodes)) or len(set(bases)) != len(bases):
        return None
    if any(_format_of(_example(node)) is None for node in returned):
        return None
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "output":
            for each in returned:
                if each.op != "placeholder":
                    copies[each] = graph.call_method("contiguous", (copies[each],), {"memory_format": _format_of(_example(each))})
        copies[node] = copy = graph.node_copy(node, lambda each: copies[each])
        if node in convolutions and len(node.args) > 1 and _is_image(node.args[0]):
            with graph.inserting_before(copy):
                image = graph.call_method("contiguous", (copy.args[0],), {"memory_format": torch.channels_last})
                weight = copy.args[1]
                if _is_image(node.args[1]) and _example(node.args[1]).device.type in _images.devices:
                    weight = graph.call_method("contiguous", (weight,), {"memory_format": torch.channels_last})
            copy.args = (image, weight, *copy.args[2:])
        if node.op == "call_function" and _is_image(node) and (own := _images.own_of(node, _example(node))) is not None:
            copy.target, copy.args = own, (_example(node).dtype, *copy.args)
    return torch.fx.GraphModule(gm, graph)


def lay_out_gradients(joint: torch.fx.GraphModule, num_outputs: int) -> None:
    """Of AOTAutograd's joint graph of forward and backward: a parameter's gradient lies as the parameter does, or autograd copies it."""
    output = next(node for node in reversed(joint.graph.nodes) if node.op == "output")
    results = list(output.args[0])
    primals = [node for node in joint.graph.nodes if node.op == "placeholder"]
    for i, primal in zip(range(num_outputs, len(results)), primals):
        gradient, fake = results[i], primal.meta.get("val")
        if not isinstance(gradient, torch.fx.Node) or (form := _format_of(fake)) is None or gradient.meta["val"].is_contiguous(
                memory_format=form):
            continue
        with joint.graph.inserting_before(output):
            results[i] = joint.graph.call_function(aten.clone.default, (gradient,), {"memory_format": form})
        results[i].meta = {**gradient.meta, "val": gradient.meta["val"].clone(memory_format=form)}
    output.args = (tuple(results) if isinstance(output.args[0], tuple) else results,)
    joint.recompile()
