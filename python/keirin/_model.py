# SPDX-License-Identifier: Apache-2.0
"""A .pt2 file as a callable with the arguments and results of the module that it was exported from."""
from __future__ import annotations

import json
import os
import zipfile
from typing import Any, Callable

import torch
from torch.utils import _pytree as pytree

from keirin import _deciding
from keirin._errors import invalid_input
from keirin._library import native, words_of


class _Call:
    """How arguments become the flat inputs of a program and its flat outputs results: the file's own in_spec and out_spec."""

    def __init__(self, path: str, device: torch.device):
        self._device = device
        program = self._program(path)
        signature = next(entry["signature"] for entry in program["module_call_graph"] if entry["fqn"] == "")
        self.in_spec = pytree.treespec_loads(signature["in_spec"])
        self.out_spec = pytree.treespec_loads(signature["out_spec"])
        self.names = list(signature.get("forward_arg_names") or [])
        # By leaf: None for a tensor or number of the caller's, else the one value that the program takes there, in a list.
        self.constants: list[list[Any] | None] = []
        self.numbers: list[bool] = []
        for spec in program["signature"]["input_specs"]:
            if "constant_input" in spec:
                value = spec["constant_input"]["value"]
                kind, content = next(iter(value.items()))
                self.constants.append([None if kind == "as_none" else content])
                self.numbers.append(False)
            elif "user_input" in spec:
                arg = spec["user_input"]["arg"]
                self.constants.append(None if "as_none" not in arg else [None])
                self.numbers.append("as_tensor" not in arg)

    @staticmethod
    def _program(path: str) -> dict[str, Any]:
        with zipfile.ZipFile(path) as archive:  # the native reader has refused whatever is no .pt2 file
            name = next(n for n in archive.namelist() if "/models/" in n and n.endswith(".json"))
            return json.loads(archive.read(name))["graph_module"]

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[torch.Tensor], bool]:
        """The flat inputs, and whether one of them was numpy's."""
        positions, by_name = self.in_spec.children()
        args, kwargs = list(args), dict(kwargs)
        if len(args) > positions.num_children:
            raise invalid_input(f"{len(args)} arguments were given by position, the model takes {positions.num_children}", self._takes())
        for i in range(len(args), positions.num_children):
            name = self.names[i] if i < len(self.names) else None
            if name not in kwargs:
                raise invalid_input(f"the argument {name or i} is missing", self._takes())
            args.append(kwargs.pop(name))
        wanted = list(by_name.context or [])
        if unknown := [name for name in kwargs if name not in wanted]:
            raise invalid_input(f"the model takes no argument {unknown[0]}", self._takes())
        if missing := [name for name in wanted if name not in kwargs]:
            raise invalid_input(f"the argument {missing[0]} is missing", self._takes())
        leaves, spec = pytree.tree_flatten((tuple(args), {name: kwargs[name] for name in wanted}))
        if spec != self.in_spec:
            raise invalid_input(f"the arguments have another structure than the export's: {spec} and not {self.in_spec}", self._takes())
        return self._inputs(leaves)

    def _inputs(self, leaves: list[Any]) -> tuple[list[torch.Tensor], bool]:
        inputs, numpy = [], False
        for i, leaf in enumerate(leaves):
            constant = self.constants[i]
            if constant is not None:
                if leaf != constant[0]:
                    raise invalid_input(f"argument leaf {i} is {leaf!r}, the model was exported for {constant[0]!r}", "export it again")
                continue
            if isinstance(leaf, torch.Tensor):
                inputs.append(leaf)
            elif type(leaf).__module__ == "numpy" and hasattr(leaf, "__array__"):
                numpy = True
                array = leaf.__array__()
                tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
                inputs.append(tensor if self.numbers[i] else tensor.to(self._device))  # an array is on no device
            elif self.numbers[i] and isinstance(leaf, int):
                inputs.append(torch.tensor(leaf))
            else:
                raise invalid_input(f"argument leaf {i} is a {type(leaf).__name__} and not a tensor or a numpy array", self._takes())
        return inputs, numpy

    def unflatten(self, outputs: list[torch.Tensor | None], numpy: bool) -> Any:
        if numpy:
            outputs = [each.cpu().numpy() if isinstance(each, torch.Tensor) and each.dtype != torch.bfloat16 else each for each in outputs]
        return pytree.tree_unflatten(outputs, self.out_spec)

    def _takes(self) -> str:
        positions, by_name = self.in_spec.children()
        names = [self.names[i] if i < len(self.names) else str(i) for i in range(positions.num_children)]
        return "give " + (", ".join(names + list(by_name.context or [])) or "no arguments")


class Model:
    """A loaded model. Calls come from any thread; eager answers each until something faster and right was found for its sizes."""

    def __init__(self, native_model: Any, path: str, when: str, max_shapes: int):
        self._native = native_model
        self._call = _Call(path, torch.device(native_model.device))
        free = any(not isinstance(size, int) for port in native_model.signature()["inputs"] for size in port["sizes"])
        self._decider = _deciding.Decider(native_model, when, max_shapes, when == "background" and free)
        if not self._decider.has_ranges:
            native_model.end_deciding()  # by its own thread

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs, numpy = self._call.flatten(args, kwargs)
        if not self._decider.has_ranges:  # else the model meets what it is called with
            self._decider.meet(inputs)
        with torch.no_grad():
            return self._call.unflatten(self._native.call(inputs), numpy)

    def compile(self, *args: Any, **kwargs: Any) -> "Model":
        """Decides for calls like this one now: captures, compiles, verifies, measures. The arguments keep their values."""
        inputs, _ = self._call.flatten(args, kwargs)
        self._decider.decide(inputs)
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing is being decided in the background; False if `timeout` seconds were too few."""
        return _deciding.wait(timeout)

    @property
    def name(self) -> str:
        return self._native.name

    @property
    def signature(self) -> dict[str, Any]:
        """Inputs and outputs, flat: name, dtype, sizes; a free size is a dict with its symbol and range."""
        return self._native.signature()

    def example_inputs(self, seed: int = 0, sizes: list[int] | None = None) -> list[torch.Tensor]:
        """Legal flat inputs at the sizes of the export, or at `sizes` of the free ones."""
        return self._native.example_inputs(seed, sizes or [])

    def explain(self) -> str:
        return self._native.explain() + self._decider.text()

    def report(self) -> list[dict[str, Any]]:
        """One report per decided shape: docs/report.md."""
        return json.loads(self._native.report_json())

    def __repr__(self) -> str:
        names = ", ".join(f"{port['name']}: {port['dtype']}" for port in self.signature["inputs"])
        return f"keirin.Model({self.name}: {names})"


def load(path: str | os.PathLike[str], *, compile: str = "background", progress: Callable[[str, float], None] | bool | None = None,
         **options: Any) -> Model:
    """Loads a .pt2 file, which torch.export.save or keirin.export wrote.

    `compile` says when calls of new sizes are decided: "background" (eager answers meanwhile), "now" (the first call waits), "asked" (by
    Model.compile alone). `progress` is told what is being done and how far it is; True shows a line. `options`: docs/options.md.
    """
    path = os.fspath(path)
    _deciding.check_when(compile)
    own = {"compile": "background"} if compile == "background" else {}
    model = native.load(path, words_of({**options, **own}), _deciding.progress_of(progress))
    return Model(model, path, compile, int(options.get("max_shapes", 8)))
