# SPDX-License-Identifier: Apache-2.0
"""nn.LSTM and nn.GRU in training steps.

AOTAutograd would unroll them into some operators for each position. Where they are on a GPU their call in Dynamo's graph becomes one
operator here, in front of it, and so do its gradients: eager's own kernels, thousands of small launches that a recording makes one. Nothing
is kept between the two but what the call was given. The backward makes the forward again, because what the vendor's library keeps has a
size that only it knows.
"""
from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
import torch.fx

from keirin._backwards import placed, recording
from keirin._errors import NotCaptured
from keirin._rewrites import copied

devices = {"cuda"}  # where parts that eager launches one by one are worth a forward made twice


def _run(x: torch.Tensor, hidden: list[torch.Tensor], weights: list[torch.Tensor], has_biases: bool, layers: int, bidirectional: bool,
         batch_first: bool) -> list[torch.Tensor]:
    """The results of eager, the first with memory as eager's: position by position."""
    given = weights, has_biases, layers, 0.0, True, bidirectional, batch_first
    with torch.autocast(x.device.type, enabled=False), warnings.catch_warnings():
        # Here each weight is an operand of its own, as nothing that the user does would change.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        if len(hidden) == 2:
            return list(torch.lstm(x, tuple(hidden), *given))
        return list(torch.gru(x, hidden[0], *given))


def _like_eager(x: torch.Tensor, hidden: list[torch.Tensor], bidirectional: bool, batch_first: bool) -> list[torch.Tensor]:
    """What _run answers, not filled."""
    length, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    out = x.new_empty(length, batch, hidden[0].shape[2] * (2 if bidirectional else 1))
    states = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in hidden]
    return [out.transpose(0, 1) if batch_first else out, *states]


@torch.library.custom_op("keirin::recurrent", mutates_args=())
def recurrent(x: torch.Tensor, hidden: list[torch.Tensor], weights: list[torch.Tensor], has_biases: bool, layers: int, bidirectional: bool,
              batch_first: bool) -> list[torch.Tensor]:
    found = _run(x, hidden, weights, has_biases, layers, bidirectional, batch_first)
    return placed(found, _like_eager(x, hidden, bidirectional, batch_first))


@recurrent.register_fake
def _(x, hidden, weights, has_biases, layers, bidirectional, batch_first):
    return _like_eager(x, hidden, bidirectional, batch_first)


@torch.library.custom_op("keirin::recurrent_backward", mutates_args=())
def recurrent_backward(gradients: list[torch.Tensor], x: torch.Tensor, hidden: list[torch.Tensor], weights: list[torch.Tensor],
                       has_biases: bool, layers: int, bidirectional: bool, batch_first: bool) -> list[torch.Tensor]:
    """Of x, the hidden states and the weights."""
    given = [x, *hidden, *weights]
    with recording():
        leaves = [each.detach().requires_grad_() for each in given]
        states, others = leaves[1:1 + len(hidden)], leaves[1 + len(hidden):]
        results = _run(leaves[0], states, others, has_biases, layers, bidirectional, batch_first)
        found = torch.autograd.grad(results, leaves, gradients)
    return placed(list(found), [torch.empty_like(each, memory_format=torch.contiguous_format) for each in given])


@recurrent_backward.register_fake
def _(gradients, x, hidden, weights, has_biases, layers, bidirectional, batch_first):
    return [torch.empty_like(each, memory_format=torch.contiguous_format) for each in (x, *hidden, *weights)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    x, hidden, weights, *ctx.rest = inputs
    ctx.states = len(hidden)
    ctx.save_for_backward(x, *hidden, *weights)


def _gradients(ctx: Any, gradients: list[torch.Tensor]) -> tuple[Any, ...]:
    x, *others = ctx.saved_tensors
    found = recurrent_backward(list(gradients), x, others[:ctx.states], others[ctx.states:], *ctx.rest)
    return found[0], found[1:1 + ctx.states], found[1 + ctx.states:], None, None, None, None


recurrent.register_autograd(_gradients, setup_context=_keep)


def is_one_operator(module: Any) -> bool:
    """Whether a module's call can become one here, as far as the module tells."""
    return (isinstance(module, (torch.nn.LSTM, torch.nn.GRU)) and module.training and module.dropout == 0 and
            getattr(module, "proj_size", 0) == 0 and all(each.device.type in devices for each in module.parameters()))


def asked_about() -> Any:
    """The module about which Dynamo reads its configuration, two calls up; None elsewhere."""
    return sys._getframe(2).f_locals.get("value")


def as_operators(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Dynamo's graph with the calls of recurrent layers as single operators: a copy, if there are any. Throws NotCaptured where one is
    called otherwise, with a packed sequence: it would be unrolled."""
    if not any(node.target in (torch.lstm, torch.gru) for node in gm.graph.nodes):
        return gm
    out = copied(gm)
    for node in out.graph.nodes:
        if node.op != "call_function" or node.target not in (torch.lstm, torch.gru):
            continue
        wanted = tuple if node.target is torch.lstm else torch.fx.Node
        if len(node.args) != 9 or not isinstance(node.args[1], wanted) or not isinstance(node.args[2], (list, tuple)):
            raise NotCaptured("a recurrent layer over a packed sequence")
        node.target = _in_autocasts_dtype
    out.recompile()
    return out


def _in_autocasts_dtype(x: torch.Tensor, hidden: Any, weights: list[torch.Tensor], has_biases: bool, layers: int, dropout: float,
                        train: bool, bidirectional: bool, batch_first: bool) -> tuple[torch.Tensor, ...]:
    """As torch.lstm and torch.gru, in the dtype that autocast gives them."""
    states = list(hidden) if isinstance(hidden, (tuple, list)) else [hidden]
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        narrow = torch.float16 if kind == "cuda" else torch.get_autocast_dtype(kind)  # whatever autocast's is: cuDNN's are cast to that
        x, states, weights = x.to(narrow), [each.to(narrow) for each in states], [each.to(narrow) for each in weights]
    return tuple(recurrent(x, states, list(weights), has_biases, layers, bidirectional, batch_first))
