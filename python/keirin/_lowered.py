# SPDX-License-Identifier: Apache-2.0
"""A graph of framework calls as one of ATen operators, as torch.export would trace it, for graphs that say the same hundreds of times.

What an optimiser does to one parameter it does to all: a call is traced once for each kind of its operands, and its other occurrences are
written down. torch.export traces each of thousands of calls while Dynamo waits.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


class NotLowered(Exception):
    """The graph has something that only a whole trace shows."""


class _Cell:
    """A tensor, and the node that last wrote it."""

    def __init__(self, node: torch.fx.Node):
        self.node = node


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        self.made.append((func, args, kwargs or {}, answer))
        return answer


class _Place:
    """Among the operands and the answers of the calls before, in this order."""

    def __init__(self, number: int):
        self.number = number


def lowered(gm: torch.fx.GraphModule, arguments: list[torch.Tensor]) -> tuple[torch.fx.Graph, list[torch.fx.Node]]:
    """The graph, whose nodes know what they answer (meta["val"]) and nothing else, and what it returns."""
    return _Lowering(gm, arguments).result


class _Lowering:
    def __init__(self, gm: torch.fx.GraphModule, arguments: list[torch.Tensor]):
        self._graph = torch.fx.Graph()
        self._mode = FakeTensorMode()
        self._fakes: dict[Any, torch.Tensor] = {}
        self._kinds: dict[Any, tuple[list[tuple[Any, Any, Any, torch.Tensor, int | None]], int]] = {}
        cells: dict[torch.fx.Node, _Cell] = {}
        given = iter(arguments)
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                copy = self._graph.placeholder(node.target)
                copy.meta = {"val": self._fake(next(given))}
                cells[node] = _Cell(copy)
            elif node.op == "output":
                returned = [cells[each].node for each in node.args[0]]
            elif node.op in ("call_function", "call_method"):
                cells[node] = self._call(node, cells)
            else:
                raise NotLowered(f"{node.op} {node.target}")
        self._graph.output(tuple(returned))
        self.result = self._graph, returned

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout != torch.strided:
            raise NotLowered(type(tensor).__name__)
        spec = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if spec not in self._fakes:
            with self._mode:
                self._fakes[spec] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return self._fakes[spec]

    def _call(self, node: torch.fx.Node, cells: dict[torch.fx.Node, _Cell]) -> _Cell:
        operands: list[_Cell] = []

        def place(each: torch.fx.Node) -> _Place:
            cell = cells[each]
            if not any(cell is other for other in operands):
                operands.append(cell)
            return _Place(next(i for i, other in enumerate(operands) if other is cell))
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), place)
        specs = tuple((v.shape, v.stride(), v.dtype, v.device) for v in (cell.node.meta["val"] for cell in operands))
        kind = (node.op, node.target, _as_key((args, kwargs)), specs)
        if kind not in self._kinds:
            self._kinds[kind] = self._trace(node, args, kwargs, [cell.node.meta["val"] for cell in operands])
        calls, answer = self._kinds[kind]
        for func, its_args, its_kwargs, value, written in calls:
            args, kwargs = _with_places((its_args, its_kwargs), lambda each: operands[each.number].node)
            copy = self._graph.call_function(func, args, kwargs)
            copy.meta = {"val": value}
            if written is None:
                operands.append(_Cell(copy))
            else:
                operands[written].node = copy
        return operands[answer]

    def _trace(self, node: torch.fx.Node, args: Any, kwargs: Any, values: list[torch.Tensor]) -> Any:
        with self._mode, torch.no_grad():
            own = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in values]  # each another object
            real_args, real_kwargs = _with_places((args, kwargs), lambda each: own[each.number])
            with _Calls() as calls:
                if node.op == "call_method":
                    answer = getattr(real_args[0], node.target)(*real_args[1:], **real_kwargs)
                else:
                    answer = node.target(*real_args, **real_kwargs)
        known = list(own)

        def number_of(tensor: Any) -> int | None:
            return next((i for i, each in enumerate(known) if each is tensor), None)

        def place(tensor: torch.Tensor) -> _Place:
            number = number_of(tensor)
            if number is None:
                raise NotLowered(f"{node.target} makes a tensor of its own")
            return _Place(number)
        out = []
        for func, its_args, its_kwargs, result in calls.made:
            if func.namespace == "prim":  # where a fake tensor says that it lies
                continue
            if not isinstance(result, torch.Tensor):
                raise NotLowered(f"{func} answers no tensor")
            named = torch.utils._pytree.tree_map_only(torch.Tensor, place, (its_args, its_kwargs))
            written = number_of(result)
            if written is None:
                known.append(result)
            out.append((func, *named, result, written))
        answered = number_of(answer)
        if answered is None:
            raise NotLowered(f"{node.target} answers no tensor")
        return out, answered


def _with_places(values: Any, fn: Any) -> Any:
    return torch.utils._pytree.tree_map_only(_Place, fn, values)


def _as_key(value: Any) -> Any:
    """Hashable, and equal where the same is said of the same places: 1, 1.0 and True are not."""
    if isinstance(value, _Place):
        return ("place", value.number)
    if isinstance(value, (list, tuple)):
        return tuple(_as_key(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, _as_key(each)) for name, each in value.items())
    return (type(value), repr(value) if isinstance(value, float) else value)
