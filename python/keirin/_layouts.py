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

from keirin._updates import writes

aten = torch.ops.aten

devices = {"cuda"}  # whose libraries want weights channels-last too: what the backward reads of them is laid out once, in the forward

_CONVOLUTIONS = (torch.conv2d, F.conv2d, torch.conv_transpose2d, F.conv_transpose2d)
_GROUP_NORMS = (torch.group_norm, F.group_norm)
_DRAWS = ("drop", "rand", "bernoulli", "uniform", "exponential", "poisson", "multinomial", "gumbel", "normal_")  # parts of names
_VIEWS = ("view", "view_as", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "squeeze", "unsqueeze", "getitem", "chunk",
          "split", "unbind", "expand", "narrow", "select", "movedim", "detach", "contiguous", "swapaxes", "identity")


def _example(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None


def _is_image(node: Any) -> bool:
    return isinstance(_example(node), torch.Tensor) and _example(node).dim() == 4


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


class _GroupNorm(torch.autograd.Function):
    """A group norm of an image where it lies: eager's on a GPU answers with channels first.

    Each channel has a mean and a variance of its own, as columns of a matrix of pixels; those of a group are made of them, exactly. Each half
    reads the image twice: for sums of channels, and for what is made of each pixel. The result is made again in the backward, not kept.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, num_groups: int, eps: float,
                dtype: torch.dtype) -> torch.Tensor:
        ctx.groups = groups = x.shape[0], num_groups, x.shape[1] // num_groups
        wide = _wide(x)
        variances, means = (each.reshape(groups) for each in torch.var_mean(wide, (2, 3), correction=0))
        between, mean = torch.var_mean(means, 2, correction=0, keepdim=True)
        inverse = torch.rsqrt(variances.mean(2, keepdim=True) + between + eps)
        ctx.save_for_backward(x, weight, mean, inverse)
        factor = inverse if weight is None else inverse * _wide(weight).view(groups[1:])
        offset = -mean * factor if bias is None else _wide(bias).view(groups[1:]) - mean * factor
        return (wide * _of_channels(factor, x) + _of_channels(offset, x)).to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        wide, out = _wide(x), _wide(gradient)
        sums = out.sum((2, 3)).view(ctx.groups)
        products = ((out * wide).sum((2, 3)).view(ctx.groups) - mean * sums) * inverse  # of the gradient and what is normed
        of_weight = None if weight is None else products.sum(0).view_as(weight).to(weight.dtype)
        of_bias = sums.sum(0).view(-1).to(x.dtype if weight is None else weight.dtype)
        scale = 1.0 if weight is None else _wide(weight).view(ctx.groups[1:])
        size = wide[0].numel() // ctx.groups[1]
        # Expanded first, so that there is a value for each channel: beside pixels those of groups would be read in runs of a few channels.
        slope = (products * scale).sum(2, keepdim=True).expand(ctx.groups) * (-inverse * inverse / size)
        offset = (sums * scale).sum(2, keepdim=True).expand(ctx.groups) * (-inverse / size) - mean * slope
        of_x = out * _of_channels(inverse * scale, x) + wide * _of_channels(slope, x) + _of_channels(offset, x)
        return of_x.to(x.dtype), of_weight, of_bias if ctx.needs_input_grad[2] else None, None, None, None


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _of_channels(value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What there is for each group, or each channel of it, beside the image."""
    return value.expand(*value.shape[:2], x.shape[1] // value.shape[1]).reshape(*x.shape[:2], 1, 1)


def _group_norm(dtype: torch.dtype, x: torch.Tensor, num_groups: int, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
                eps: float = 1e-5, cudnn_enabled: bool = True) -> torch.Tensor:
    return _GroupNorm.apply(x, weight, bias, num_groups, eps, dtype)


def in_channels_last(gm: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """A copy of Dynamo's graph; None where there is nothing to win, or where the caller would see it."""
    convolutions = [node for node in gm.graph.nodes if node.op == "call_function" and node.target in _CONVOLUTIONS and _is_image(node)]
    returned = next(node for node in reversed(gm.graph.nodes) if node.op == "output").all_input_nodes
    bases = [_base(node) for node in returned]
    # Random numbers are drawn in the order of memory, and results that share memory would not any more.
    if len(convolutions) < 2 or any(map(_draws_in_order, gm.graph.nodes)) or len(set(bases)) != len(bases):
        return None
    if any(not isinstance(_example(node), torch.Tensor) or not _example(node).is_contiguous() for node in returned):
        return None
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "output":
            for each in returned:
                if each.op != "placeholder":
                    copies[each] = graph.call_method("contiguous", (copies[each],))
        copies[node] = copy = graph.node_copy(node, lambda each: copies[each])
        if node in convolutions and len(node.args) > 1 and _is_image(node.args[0]):
            with graph.inserting_before(copy):
                image = graph.call_method("contiguous", (copy.args[0],), {"memory_format": torch.channels_last})
                weight = copy.args[1]
                if _is_image(node.args[1]) and _example(node.args[1]).device.type in devices:
                    weight = graph.call_method("contiguous", (weight,), {"memory_format": torch.channels_last})
            copy.args = (image, weight, *copy.args[2:])
        if node.op == "call_function" and node.target in _GROUP_NORMS and _is_image(node):
            copy.target, copy.args = _group_norm, (_example(node).dtype, *copy.args)
    return torch.fx.GraphModule(gm, graph)


def lay_out_gradients(joint: torch.fx.GraphModule, num_outputs: int) -> None:
    """Of AOTAutograd's joint graph of forward and backward: a parameter's gradient lies as the parameter does, or autograd copies it."""
    output = next(node for node in reversed(joint.graph.nodes) if node.op == "output")
    results = list(output.args[0])
    primals = [node for node in joint.graph.nodes if node.op == "placeholder"]
    for i, primal in zip(range(num_outputs, len(results)), primals):
        gradient, fake = results[i], primal.meta.get("val")
        if not isinstance(gradient, torch.fx.Node) or not isinstance(fake, torch.Tensor) or not fake.is_contiguous():
            continue
        if gradient.meta["val"].is_contiguous():
            continue
        with joint.graph.inserting_before(output):
            results[i] = joint.graph.call_function(aten.clone.default, (gradient,), {"memory_format": torch.contiguous_format})
        results[i].meta = {**gradient.meta, "val": gradient.meta["val"].clone(memory_format=torch.contiguous_format)}
    output.args = (tuple(results) if isinstance(output.args[0], tuple) else results,)
    joint.recompile()
