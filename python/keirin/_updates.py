# SPDX-License-Identifier: Apache-2.0
"""An optimiser's step, as Dynamo writes it down: parameters and state stand in the graph as attributes, gradients are arguments, and
nothing, or only new state, is returned.

It becomes a graph that takes all of them as arguments, so that a plan packs and folds nothing of what it is there to write, and so that
it can be decided on copies, beside calls. Operators over lists of tensors are said tensor by tensor: what is fused then is the whole
chain of one parameter, and not one link of all chains.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

_LISTS = "_foreach_"


def _held(gm: torch.fx.GraphModule) -> list[tuple[torch.fx.Node, torch.Tensor]]:
    found = []
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value: Any = gm
            for word in node.target.split("."):
                value = getattr(value, word)
            if isinstance(value, torch.Tensor):
                found.append((node, value))
    return found


def is_update(gm: torch.fx.GraphModule) -> bool:
    """Dynamo makes attributes of parameters for an optimiser alone; those of a module that is called are arguments."""
    return any(isinstance(tensor, torch.nn.Parameter) for _, tensor in _held(gm))


def with_arguments(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The graph with what it held as arguments behind its own, and these tensors."""
    held = _held(gm)
    bound = list({id(tensor): tensor for _, tensor in held}.values())
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {node: graph.node_copy(node) for node in gm.graph.nodes if node.op == "placeholder"}
    placed = {id(tensor): graph.placeholder(f"held_{i}") for i, tensor in enumerate(bound)}
    copies.update({node: placed[id(tensor)] for node, tensor in held})
    for node in gm.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    return torch.fx.GraphModule(gm, graph), bound


def said_singly(gm: torch.fx.GraphModule, arguments: list[torch.Tensor]) -> torch.fx.GraphModule:
    """The same update without operators over lists and with exact counts, for a program."""
    return torch.fx.GraphModule(gm, _Copy(gm, arguments).graph)


class _Copy:
    def __init__(self, gm: torch.fx.GraphModule, arguments: list[torch.Tensor]):
        self.graph = torch.fx.Graph()
        self._copies: dict[torch.fx.Node, Any] = {}
        self._counts: set[torch.fx.Node] = set()
        given = iter(arguments)
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                self._copies[node] = copy = self.graph.node_copy(node)
                tensor = next(given)
                if isinstance(tensor, torch.Tensor) and tensor.dim() == 0 and tensor.dtype == torch.float32:
                    self._counts.add(copy)
            else:
                self._copies[node] = self._copy(node)
        self.graph.lint()

    def _copy(self, node: torch.fx.Node) -> Any:
        if node.op == "call_function" and getattr(node.target, "__name__", "").startswith(_LISTS):
            return self._singly(node)
        if node.op == "call_function" and node.target is operator.getitem and isinstance(self._copies[node.args[0]], list):
            return self._copies[node.args[0]][node.args[1]]
        if node.op == "call_method" and node.target == "item" and self._copies[node.args[0]].op == "placeholder":
            # A rate that was another number in an earlier call: Dynamo hands it over as a tensor of 64 bits, and a tensor it stays.
            return self._copies[node.args[0]]
        if node.op == "output":
            return self.graph.node_copy(node, lambda n: self._copies[n])
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: self._copies[n])
        args, kwargs = self._exact(name, args, kwargs)
        copy = self.graph.create_node(node.op, node.target, args, kwargs)
        copy.meta = dict(node.meta)
        return self._counted(name, args, copy)

    def _exact(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Counts of steps are read as 64 bits, as Python's own floats in eager's optimisers are: in 32, the 1 - 0.999 ** step of a first
        step has three digits less than anything that it is multiplied with."""
        written = args[0] if writes(name) else None
        return torch.fx.map_arg(
            (args, kwargs), lambda n: self.graph.call_method("double", (n,)) if n in self._counts and n is not written else n
        )

    def _counted(self, name: str, args: Any, answer: torch.fx.Node) -> torch.fx.Node:
        if writes(name) and args[0] in self._counts:
            self._counts.add(answer)
        return answer

    def _singly(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """One operator over lists as one operator for each tensor, as LibTorch's own slow path has it."""
        name = node.target.__name__[len(_LISTS) :]
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: self._copies[n])
        count = next(len(each) for each in args if isinstance(each, (list, tuple)))

        def of(i: int, value: Any) -> Any:
            return value[i] if isinstance(value, (list, tuple)) else value

        answers = []
        for i in range(count):
            one, named = self._exact(name, tuple(of(i, each) for each in args), {key: of(i, each) for key, each in kwargs.items()})
            answers.append(self._counted(name, one, _factored(self.graph, name, one, named) or _one(self.graph, name, one, named)))
        return answers


def writes(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in ("iadd", "isub", "imul", "itruediv")


def _one(graph: torch.fx.Graph, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Node:
    if not isinstance(args[0], torch.fx.Node):  # a number to the power of each
        return graph.call_function(getattr(torch, name), args, kwargs)
    if writes(name) and not hasattr(torch.Tensor, name):
        return graph.call_method("copy_", (args[0], graph.call_method(name.rstrip("_"), args, kwargs)))
    return graph.call_method(name, args, kwargs)


def _factored(graph: torch.fx.Graph, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Node | None:
    """What takes a factor aside: the operator of one tensor wants a number there, and lists may have tensors."""
    first = name.rstrip("_")
    ends = "_" if name.endswith("_") else ""
    if first in ("addcmul", "addcdiv"):
        value = args[3] if len(args) > 3 else kwargs.get("value", 1)
        if not isinstance(value, torch.fx.Node):
            return graph.call_method(name, args[:3], {"value": value})
        term = graph.call_method(first[3:], (args[1], args[2]))
        return graph.call_method("add" + ends, (args[0], graph.call_method("mul", (term, value))))
    if first in ("add", "sub") and isinstance(alpha := kwargs.get("alpha"), torch.fx.Node):
        return graph.call_method(name, (args[0], graph.call_method("mul", (args[1], alpha))))
    return None
