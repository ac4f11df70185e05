# SPDX-License-Identifier: Apache-2.0
"""Random numbers of a forward, drawn before it by eager's own operators from eager's generator, and handed to it as inputs.

So the bits are eager's, in eager's order, and what is compiled, judged and raced draws nothing: a decision beside calls would take numbers
that are theirs. Only draws that depend on sizes and probabilities can be taken out; others stay in the graph.
"""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.fx

from keirin._library import native

Draw = Callable[[], torch.Tensor]
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


class _Like:
    """Draws into memory that is laid out as eager's is: strides say which element gets which number."""

    def __init__(self, fake: torch.Tensor, dtype: torch.dtype, fill: Callable[[torch.Tensor], torch.Tensor]):
        like = torch.empty_like(fake, dtype=dtype)
        self._sizes, self._strides, self._dtype, self._device = tuple(like.shape), tuple(like.stride()), dtype, fake.device
        self._fill = fill

    def __call__(self) -> torch.Tensor:
        return self._fill(torch.empty_strided(self._sizes, self._strides, dtype=self._dtype, device=self._device))


class Dropout:
    """Which elements stay. `eager`: what eager multiplies with."""

    def __init__(self, fake: torch.Tensor, p: float):
        self.p, self._dtype = p, fake.dtype
        if fake.device.type == "cpu":
            self._draw = _Like(fake, torch.bool, lambda memory: memory.bernoulli_(1 - p))
        else:  # the kernel that draws and multiplies in one
            self._draw = _Like(fake, fake.dtype, lambda memory: torch.native_dropout(memory, p, True)[1])

    def __call__(self) -> torch.Tensor:
        return self._draw()

    def factors(self, mask: torch.Tensor) -> torch.Tensor:
        return mask.to(self._dtype).div_(1 - self.p)


def all_of(draws: list[Draw], device: torch.device) -> Callable[[], list[torch.Tensor]]:
    """Draws them in order. On a GPU by one recorded launch, into the memory of the call before: launches that were recorded to read them
    there can be repeated (core/eager/rows/replay_in_place.h)."""
    def one_by_one() -> list[torch.Tensor]:
        return [draw() for draw in draws]
    return native.RepeatedDraws(one_by_one, device).draw if device.type == "cuda" and draws else one_by_one


def _draw_of(node: torch.fx.Node) -> tuple[Draw, torch.Tensor] | None:
    """How to draw what `node` draws, and what it will be like; None if that depends on data."""
    target, args = node.target, node.args
    of = args[0].meta.get("val") if args and isinstance(args[0], torch.fx.Node) else None
    if target is aten.native_dropout.default:
        if _is_static(of) and 0 < args[1] < 1 and args[2] is not False and of.numel() > 0:
            return Dropout(of, args[1]), torch.empty_like(of, dtype=torch.bool)
    elif target is aten.bernoulli.p:
        if _is_static(of):
            return _Like(of, of.dtype, lambda memory, p=args[1]: memory.bernoulli_(p)), torch.empty_like(of)
    elif target in (aten.rand_like.default, aten.randn_like.default):
        if _is_static(of) and not node.kwargs:
            return _Like(of, of.dtype, lambda memory: target(memory)), torch.empty_like(of)
    elif not node.all_input_nodes and _is_static(node.meta.get("val")):
        return (lambda: target(*args, **node.kwargs)), node.meta["val"]
    return None


def take_out(gm: torch.fx.GraphModule) -> list[Draw]:
    """Replaces each draw of `gm` that does not depend on data by an input behind the others; how to draw these, in order."""
    draws: list[Draw] = []
    body = next(node for node in gm.graph.nodes if node.op != "placeholder")
    for node in [each for each in gm.graph.nodes if draws_numbers(each)]:
        found = _draw_of(node)
        if found is None:
            continue
        draw, like = found
        with gm.graph.inserting_before(body):
            drawn = gm.graph.placeholder(f"drawn_{len(draws)}")
        drawn.meta["val"] = like
        draws.append(draw)
        if isinstance(draw, Dropout):
            with gm.graph.inserting_before(node):
                kept = gm.graph.call_function(aten.mul.Tensor, (node.args[0], drawn))
                scaled = gm.graph.call_function(aten.mul.Scalar, (kept, 1 / (1 - draw.p)))
            kept.meta["val"] = scaled.meta["val"] = node.meta["val"][0]
            for item in list(node.users):
                item.replace_all_uses_with((scaled, drawn)[item.args[1]])
                gm.graph.erase_node(item)
        else:
            node.replace_all_uses_with(drawn)
        gm.graph.erase_node(node)
    gm.recompile()
    return draws


def without_draws(gm: torch.fx.GraphModule, draws: list[Draw]) -> torch.fx.GraphModule | None:
    """A copy of Dynamo's graph whose dropouts multiply with inputs behind the others; None unless these are all that is drawn."""
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
        if node.target in (torch.nn.functional.dropout, torch.dropout):
            p, training, in_place = (_argument(node, i, name, default) for i, name, default in
                                     ((1, "p", 0.5), (2, "training", True), (3, "inplace", False)))
            if training and 0 < p < 1:
                if in_place or used == len(draws):
                    return None
                copies[node] = graph.call_function(torch.mul, (copies[node.args[0]], factors[used]))
                used += 1
                continue
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    if used != len(draws) or not all(isinstance(draw, Dropout) for draw in draws):
        return None
    return torch.fx.GraphModule(gm, graph)


def _argument(node: torch.fx.Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def drawn_aside(like: torch.Tensor) -> torch.Tensor:
    """What a draw may answer, of a generator that is nobody's."""
    generator = torch.Generator(device=like.device).manual_seed(like.numel())
    memory = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    return memory.normal_(generator=generator) if like.is_floating_point() else memory.bernoulli_(0.9, generator=generator)
