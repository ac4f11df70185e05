# SPDX-License-Identifier: Apache-2.0
"""A graph of ATen operators, as AOTAutograd makes them, as the program that the importer reads.

Nothing is traced again: the nodes stand in the file as they are, with the sizes, dtypes and strides that their tensors had when the graph
was made. All tensors are inputs of the program, weights among them: an optimiser writes those between two calls, so nothing may be packed
or folded from what they hold.
"""
from __future__ import annotations

import io
import operator
import threading
import unittest.mock
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch._export.serde import serialize
from torch._export.verifier import TrainingIRVerifier, Verifier
from torch.export.exported_program import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (ConstantArgument, ExportGraphSignature, InputKind, InputSpec, OutputKind, OutputSpec,
                                          SymIntArgument, TensorArgument)

from keirin._errors import NotCaptured


class AtenProgram:
    """Its bytes, and where its inputs and results come from, in the words of native.graph_callable."""

    def __init__(self, gm: torch.fx.GraphModule):
        self.roles: list[tuple[str, int]] = []
        self.outputs: list[tuple[str, int, Any]] = []
        self.inputs: list[int] = []       # arguments that are inputs of the program, in its order
        self._graph = torch.fx.Graph()
        self._copies: dict[torch.fx.Node, Any] = {}
        self._placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self._constants: dict[str, tuple[str, torch.Tensor]] = {}  # attribute, and the tensor there, by placeholder
        self._copy_constants(gm)
        self._copy_inputs()
        for node in gm.graph.nodes:
            if node.op == "output":
                returned = self._results(node)
            elif node.op == "call_function":
                self._check(node)
                self._keep(node, self._graph.node_copy(node, lambda n: self._copies[n]))
            elif node not in self._copies:
                raise NotCaptured(f"the graph reads {node.target}, which is not a tensor")
        self.bytes = self._save(gm, returned)

    def _keep(self, node: torch.fx.Node, copy: torch.fx.Node) -> None:
        self._copies[node] = copy
        copy.meta = {"val": node.meta["val"]} if "val" in node.meta else {}

    @staticmethod
    def _check(node: torch.fx.Node) -> None:
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            raise NotCaptured(f"the graph calls {target}, which is not one operator")
        if isinstance(target, torch._ops.OpOverload) and "val" not in node.meta:
            raise NotCaptured(f"nothing is known of what {target} answers")

    def _copy_constants(self, gm: torch.fx.GraphModule) -> None:
        """Tensors that a function makes of Python's numbers (torch.tensor) stand in the graph as attributes; nothing writes them."""
        for node in gm.graph.nodes:
            value = getattr(gm, node.target, None) if node.op == "get_attr" else None
            if isinstance(value, torch.Tensor):
                self._copies[node] = copy = self._graph.placeholder(f"c_{len(self._constants)}")
                copy.meta = {"val": node.meta.get("val", value)}
                self._constants[copy.name] = (node.target, value)

    def _copy_inputs(self) -> None:
        sizes: dict[Any, tuple[torch.fx.Node, int]] = {}  # where a symbol is the size of an input
        for i, node in enumerate(self._placeholders):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                self._keep(node, self._graph.placeholder(f"x_{i}"))
                self.inputs.append(i)
                for d, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt):
                        sizes.setdefault(size.node.expr, (node, d))
        for i, node in enumerate(self._placeholders):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                self.roles.append(("input", 0))
            elif isinstance(value, torch.SymInt) and value.node.expr in sizes:
                tensor, d = sizes[value.node.expr]
                copy = self._graph.call_function(torch.ops.aten.sym_size.int, (self._copies[tensor], d))
                self._keep(node, copy)
                self.roles.append(("unused", 0))
            elif isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
                # Not int(): that would have Dynamo compile the graph once for each value.
                number = value.node.hint if isinstance(value, torch.SymInt) else value
                if number is None:
                    raise NotCaptured(f"the graph takes {node.name}, a number that depends on data")
                self._copies[node] = number
                self.roles.append(("number", int(number)))
            else:
                raise NotCaptured(f"the graph takes {node.name}, which is a {type(value).__name__}")

    def _results(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        returned: list[torch.fx.Node] = []
        for result in node.args[0]:
            if not isinstance(result, torch.fx.Node):
                self.outputs.append(("object", 0, result))
            elif result.op == "placeholder":
                self.outputs.append(("argument", self._placeholders.index(result), None))
            else:
                value = result.meta.get("val")
                if not isinstance(value, (torch.Tensor, torch.SymInt)):
                    raise NotCaptured(f"the graph returns {result.name}, which is a {type(value).__name__}")
                self.outputs.append(("tensor" if isinstance(value, torch.Tensor) else "number", len(returned), None))
                returned.append(self._copies[result])
        if not any(kind == "tensor" for kind, _, _ in self.outputs):
            raise NotCaptured("the graph computes no tensor")
        self._graph.output(tuple(returned))
        return returned

    def _save(self, gm: torch.fx.GraphModule, returned: list[torch.fx.Node]) -> bytes:
        return bytes_of(gm, self._graph, returned, self._constants)


def bytes_of(root: torch.nn.Module, graph: torch.fx.Graph, returned: list[torch.fx.Node],
             constants: dict[str, tuple[str, torch.Tensor]] | None = None, writes: bool = False) -> bytes:
    """Of a graph of ATen operators, whose nodes know what they answer: the file. `constants`: as AtenProgram has them. `writes`: some write
    their operands."""
    constants = constants or {}

    def argument(node: torch.fx.Node) -> Any:
        return (TensorArgument if isinstance(node.meta["val"], torch.Tensor) else SymIntArgument)(name=node.name)
    names = [node.name for node in graph.nodes if node.op == "placeholder" and node.name not in constants]
    lifted = [InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=name), target) for name, (target, _) in constants.items()]
    signature = ExportGraphSignature(lifted + [InputSpec(InputKind.USER_INPUT, TensorArgument(name=name), None) for name in names],
                                     [OutputSpec(OutputKind.USER_OUTPUT, argument(node), None) for node in returned])
    takes, gives = pytree.tree_structure(((0,) * len(names), {})), pytree.tree_structure((0,) * len(returned))
    call = ModuleCallSignature([], [], takes, gives, names)
    program = ExportedProgram(root=torch.fx.GraphModule(root, graph), graph=graph, graph_signature=signature, state_dict={},
                              range_constraints=_ranges(graph), module_call_graph=[ModuleCallEntry("", call)],
                              constants=dict(constants.values()), verifiers=[TrainingIRVerifier if writes else Verifier])
    program._guards_code = []  # Dynamo's, which it looks at itself
    return saved(program)


_saving = threading.Lock()


def saved(program: ExportedProgram) -> bytes:
    """As torch.export.save has it, without a test on the way: that what it made can be sorted, for which it makes a deep copy that nobody
    gets. That took most of its time."""
    file = io.BytesIO()
    with _saving, unittest.mock.patch.object(serialize, "canonicalize", lambda *args, **kwargs: None, create=True):
        torch.export.save(program, file)
    return file.getvalue()


def _ranges(graph: torch.fx.Graph) -> dict[Any, Any]:
    ranges: dict[Any, Any] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                known = size.node.shape_env.var_to_range
                ranges.update({symbol: known[symbol] for symbol in size.node.expr.free_symbols if symbol in known})
    return ranges
