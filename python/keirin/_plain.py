# SPDX-License-Identifier: Apache-2.0
"""What Python runs of a half of a training step: the traced operators, by whatever strides they meet.

A trace knows its tensors' strides by LibTorch's own account of them, which kernels do not always keep to (a batch norm's), and in 64-bit
floats other kernels answer. What reads memory by the strides that were traced is given them, or a copy: as the runtime does it
(core/eager/program/boxed_call.h), which also keeps the random state of an attention on the GPU.
"""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.fx

from keirin._rewrites import STATE, copied, states_move

aten = torch.ops.aten


def _in_rows(value: Any) -> Any:
    lies_otherwise = isinstance(value, torch.Tensor) and value.dim() == 4 and value.size(-1) > 1 and value.stride(-1) != 1
    return value.contiguous() if lies_otherwise else value


def _aligned(bias: Any) -> Any:
    """A bias whose rows begin at pieces of 16 bytes, in which the kernels read it: `aligned_bias` of core/eager/program/boxed_call.cc."""
    if not isinstance(bias, torch.Tensor):
        return bias
    piece, last = max(1, 16 // bias.element_size()), bias.dim() - 1
    strides, sizes = bias.stride(), list(bias.shape)
    if (strides[last] == 1 or sizes[last] <= 1) and all(sizes[d] <= 1 or strides[d] % piece == 0 for d in range(last)):
        return bias
    once = bias
    for d in range(last):
        if strides[d] == 0 and sizes[d]:
            once = once.narrow(d, 0, 1)
    padded = once.new_empty([*once.shape[:last], -(-sizes[last] // piece) * piece])
    return padded.narrow(last, 0, sizes[last]).copy_(once).expand(sizes)


def _attention(target: Any, state_moves: bool) -> Callable[..., Any]:
    operands = [each.name in STATE for each in target._schema.arguments]
    results = [each.name in STATE for each in target._schema.returns]
    biases = [each.name == "attn_bias" for each in target._schema.arguments]

    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(_aligned(each) if bias else _in_rows(each) for each, bias in zip(args, biases))
        if not state_moves:
            return target(*args, **kwargs)
        if not torch.cuda.is_current_stream_capturing():
            args = tuple(each.cpu() if moves else each for each, moves in zip(args, operands))
        answers = target(*args, **kwargs)
        return tuple(each.to(args[0].device) if moves else each for each, moves in zip(answers, results))
    return call


def _group_norm_backward(target: Any) -> Callable[..., Any]:
    """Its kernels read gradient and image as if both lay alike."""
    def call(grad: torch.Tensor, image: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, *rest: Any) -> Any:
        form = torch._prims_common.suggest_memory_format(image) if image.device.type == "cpu" else torch.contiguous_format
        grad, image = (each.contiguous(memory_format=form) for each in (grad, image))
        return target(grad, image, mean.contiguous(), rstd.contiguous(), *rest)
    return call


def plain_of(half: torch.fx.GraphModule) -> torch.fx.GraphModule:
    plain = copied(half)
    for node in plain.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        target, name = node.target, node.target.__name__
        if target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
            continue
        if name.startswith("_scaled_dot_product_") and "_attention_math" not in name:
            node.target = _attention(target, states_move(node))
        elif target is aten.native_group_norm_backward.default:
            node.target = _group_norm_backward(target)
        if node.target is not target:
            node.target.__name__ = name
    plain.recompile()
    return plain
