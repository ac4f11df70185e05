# SPDX-License-Identifier: Apache-2.0
"""Random numbers of a forward, drawn before it by eager's own operators from eager's generator, and handed to it as inputs.

So the bits are eager's, in eager's order, and what is compiled, judged and raced draws nothing: a decision beside calls would take numbers
that are theirs. Only draws that depend on sizes and probabilities can be taken out; others stay in the graph.
"""
from __future__ import annotations

import abc
import math
from typing import Any, Callable

import torch
import torch.fx

from keirin._library import native

aten = torch.ops.aten


def dropped_by(node: torch.fx.Node) -> float | None:
    """The share that an attention, or its backward, drops; None of any other node."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target.name().startswith("aten::_scaled_dot_product_"):
        return None
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            return _argument(node, position, argument.name, argument.default_value)
    return None


def draws_numbers(node: torch.fx.Node) -> bool:
    target = node.target
    return (isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
            and dropped_by(node) != 0)


def _is_static(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in (*value.shape, *value.stride()))


class Draw(abc.ABC):
    """One draw, into memory that is laid out as eager's is: strides say which element gets which number."""

    def __init__(self, fake: torch.Tensor, dtype: torch.dtype):
        like = torch.empty_like(fake, dtype=dtype)
        self._sizes, self._strides, self._dtype, self._device = tuple(like.shape), tuple(like.stride()), dtype, fake.device

    def _memory(self) -> torch.Tensor:
        return torch.empty_strided(self._sizes, self._strides, dtype=self._dtype, device=self._device)

    @abc.abstractmethod
    def __call__(self) -> torch.Tensor: ...

    @abc.abstractmethod
    def aside(self) -> torch.Tensor:
        """What it may answer, of a generator that is nobody's."""

    def factors(self, drawn: torch.Tensor) -> torch.Tensor:
        """What stands for it in Dynamo's graph."""
        return drawn

    def _generator(self) -> torch.Generator:
        return torch.Generator(device=self._device).manual_seed(math.prod(self._sizes))


class Dropout(Draw):
    """Which elements stay."""

    def __init__(self, fake: torch.Tensor, p: float):
        super().__init__(fake, fake.dtype)
        self.p = p

    def __call__(self) -> torch.Tensor:
        if self._device.type == "cpu":
            return torch.empty_strided(self._sizes, self._strides, dtype=torch.bool).bernoulli_(1 - self.p)
        return torch.native_dropout(self._memory(), self.p, True)[1]  # the kernel that draws and multiplies in one

    def aside(self) -> torch.Tensor:
        return self._memory().bernoulli_(1 - self.p, generator=self._generator()).to(torch.bool)

    def factors(self, drawn: torch.Tensor) -> torch.Tensor:
        return drawn.to(self._dtype).div_(1 - self.p)


class Fill(Draw):
    """Numbers of a distribution, by the method of tensors that draws them."""

    def __init__(self, fake: torch.Tensor, method: str, numbers: tuple[Any, ...]):
        super().__init__(fake, fake.dtype)
        self.method, self._numbers = method, numbers

    def __call__(self) -> torch.Tensor:
        return getattr(self._memory(), self.method)(*self._numbers)

    def aside(self) -> torch.Tensor:
        return getattr(self._memory(), self.method)(*self._numbers, generator=self._generator())


# By the name of an operator: the method that draws as it does. What it is given says sizes and strides only.
_FILLS = {"bernoulli": "bernoulli_", "cauchy": "cauchy_", "exponential": "exponential_", "geometric": "geometric_",
         "log_normal": "log_normal_", "normal_functional": "normal_", "random": "random_", "uniform": "uniform_", "rand_like": "uniform_",
         "randn_like": "normal_"}


class Made(Draw):
    """What an operator makes of nothing."""

    def __init__(self, fake: torch.Tensor, call: Callable[[], torch.Tensor]):
        super().__init__(fake, fake.dtype)
        self._call = call

    def __call__(self) -> torch.Tensor:
        return self._call()

    def aside(self) -> torch.Tensor:
        if self._dtype.is_floating_point:
            return self._memory().normal_(generator=self._generator())
        return self._memory().bernoulli_(0.9, generator=self._generator())


def all_of(draws: list[Draw], device: torch.device) -> Callable[[], list[torch.Tensor]]:
    """Draws them in order. On a GPU by one recorded launch, into the memory of the call before: launches that were recorded to read them
    there can be repeated (core/eager/rows/replay_in_place.h)."""
    def one_by_one() -> list[torch.Tensor]:
        return [draw() for draw in draws]
    return native.RepeatedDraws(one_by_one, device).draw if device.type == "cuda" and draws else one_by_one


def _drops_nothing(node: torch.fx.Node) -> bool:
    if node.target is not aten.native_dropout.default:
        return False
    of = node.args[0].meta.get("val")
    return not 0 < node.args[1] < 1 or node.args[2] is False or (_is_static(of) and of.numel() == 0)


def _draw_of(node: torch.fx.Node) -> Draw | None:
    """What draws as `node` does; None if that depends on data."""
    target, args = node.target, node.args
    of = args[0].meta.get("val") if args and isinstance(args[0], torch.fx.Node) else None
    if target is aten.native_dropout.default:
        return Dropout(of, args[1]) if _is_static(of) else None
    made = node.meta.get("val")
    if not _is_static(made) or node.kwargs.get("generator") is not None:
        return None
    if not node.all_input_nodes:
        return Made(made, lambda: target(*args, **node.kwargs))
    numbers = args[1:]
    depends = target in (aten.bernoulli.default, aten.bernoulli.Tensor) or not all(isinstance(each, (int, float)) for each in numbers)
    method = None if depends else _FILLS.get(target._schema.name.removeprefix("aten::"))
    return Fill(made, method, tuple(numbers)) if method else None


def take_out(gm: torch.fx.GraphModule) -> list[Draw]:
    """Replaces draws of `gm` that do not depend on data by inputs behind the others; how to draw these, in order. What comes after one that
    does depend on data stays: it would be drawn before that, in another order than eager's. (Not after an attention that drops inside of
    its kernel: there are many of those, and what stays is not fused.)"""
    draws: list[Draw] = []
    body = next(node for node in gm.graph.nodes if node.op != "placeholder")
    for node in [each for each in gm.graph.nodes if draws_numbers(each)]:
        if dropped_by(node) is not None or _drops_nothing(node):
            continue
        draw = _draw_of(node)
        if draw is None:
            break
        with gm.graph.inserting_before(body):
            drawn = gm.graph.placeholder(f"drawn_{len(draws)}")
        draws.append(draw)
        drawn.meta["val"] = node.meta["val"]
        if isinstance(draw, Dropout):
            drawn.meta["val"] = torch.empty_like(node.args[0].meta["val"], dtype=torch.bool)
            with gm.graph.inserting_before(node):
                kept = gm.graph.call_function(aten.mul.Tensor, (node.args[0], drawn))
                scaled = gm.graph.call_function(aten.mul.Scalar, (kept, 1 / (1 - draw.p)))
            kept.meta["val"] = scaled.meta["val"] = node.meta["val"][0]
            for item in list(node.users):
                item.replace_all_uses_with((scaled, drawn)[item.args[1]])
                gm.graph.erase_node(item)
        else:
            node.replace_all_uses_with(drawn)
        memory = node.args[0] if isinstance(draw, Fill) else None
        gm.graph.erase_node(node)
        if memory is not None and memory.op == "call_function" and not memory.users:
            gm.graph.erase_node(memory)  # what was to be filled
    gm.recompile()
    return draws


def without_draws(gm: torch.fx.GraphModule, draws: list[Draw]) -> torch.fx.GraphModule | None:
    """A copy of Dynamo's graph in which inputs behind the others stand for the draws; None unless these are all that is drawn."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node in placeholders:
        copies[node] = graph.node_copy(node)
    factors = [graph.placeholder(f"factors_{i}") for i in range(len(draws))]
    used = 0
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            continue
        kind = _drawn_by(node)
        if kind is not None:
            if used == len(draws) or not isinstance(draws[used], kind):
                return None
            copies[node] = factors[used]
            if kind is Dropout:
                copies[node] = graph.call_function(torch.mul, (copies[node.args[0]], factors[used]))
            elif node.target is torch.nn.functional.gumbel_softmax:
                copies[node] = graph.call_function(_gumbel_softmax, (copies[node.args[0]], factors[used], *node.args[1:]), node.kwargs)
            used += 1
            continue
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    return torch.fx.GraphModule(gm, graph) if used == len(draws) else None


def _gumbel_softmax(logits: torch.Tensor, drawn: torch.Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10,
                    dim: int = -1) -> torch.Tensor:
    soft = ((logits - drawn.log()) / tau).softmax(dim)
    if not hard:
        return soft
    return torch.zeros_like(logits).scatter_(dim, soft.max(dim, keepdim=True)[1], 1.0) - soft.detach() + soft


_FILLING = (torch.rand_like, torch.randn_like, torch.nn.functional.gumbel_softmax)
_IN_PLACE = set(_FILLS.values())


def _drawn_by(node: torch.fx.Node) -> type[Draw] | None:
    """Which draw this node of Dynamo's graph is, if inputs can stand for it."""
    if node.op == "call_function" and node.target in (torch.nn.functional.dropout, torch.dropout):
        p, training, in_place = (_argument(node, i, name, default) for i, name, default in
                                 ((1, "p", 0.5), (2, "training", True), (3, "inplace", False)))
        return Dropout if training and 0 < p < 1 and not in_place else None
    if node.op == "call_function" and node.target in _FILLING:
        return Fill
    # Of memory that nobody else reads: who does would not see what was drawn.
    if node.op == "call_method" and node.target in _IN_PLACE and len(node.args[0].users) == 1:
        return Fill
    return None


def _argument(node: torch.fx.Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)
