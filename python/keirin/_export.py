# SPDX-License-Identifier: Apache-2.0
"""One call from a module to a .pt2 file."""
from __future__ import annotations

import os
from typing import Any, Mapping, Sequence

import torch
from torch.utils import _pytree as pytree

from keirin._errors import invalid_input


def export(module: torch.nn.Module, args: Sequence[Any] = (), path: str | os.PathLike[str] = "model.pt2", *,
           kwargs: Mapping[str, Any] | None = None, dynamic: bool | Sequence[int] | None = (0,), dynamic_shapes: Any = None) -> str:
    """Writes `module`, called with `args` and `kwargs`, as a .pt2 file for keirin.load, `keirin bench` and C++; returns the path.

    `dynamic` names the dimensions of every tensor that may have other sizes in calls: the first by default, all with True, none with
    None. Where the model allows one size only, that is what the file says. An example's dimension of size 1 or 0 stays as it is.
    `dynamic_shapes` is torch.export's own and takes its place. The module is exported as it is: call eval() first for inference.
    """
    if not isinstance(module, torch.nn.Module):
        raise invalid_input(f"a {type(module).__name__} is not a torch.nn.Module", "wrap a function in a module whose forward calls it")
    if isinstance(args, torch.Tensor):
        args = (args,)
    kwargs = dict(kwargs or {})
    if dynamic_shapes is None and dynamic not in (None, False):
        def shape(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return None
            dims = range(leaf.dim()) if dynamic is True else [d % leaf.dim() for d in dynamic if -leaf.dim() <= d < leaf.dim()]
            return {d: torch.export.Dim.AUTO for d in dims}
        shapes = (pytree.tree_map(shape, tuple(args)), pytree.tree_map(shape, kwargs))
        dynamic_shapes = shapes[0] if not kwargs else _by_name(module, shapes[0], shapes[1])
    with torch.no_grad():
        program = torch.export.export(module, tuple(args), kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    program._example_inputs = None  # a pickle that nobody reads
    torch.export.save(program, os.fspath(path))
    return os.fspath(path)


def _by_name(module: torch.nn.Module, positional: tuple[Any, ...], by_name: dict[str, Any]) -> dict[str, Any]:
    import inspect
    out: dict[str, Any] = {}
    rest = list(positional)
    for name, parameter in inspect.signature(module.forward).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            out[name] = tuple(rest)
            rest = []
        elif rest and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            out[name] = rest.pop(0)
    variadic = [n for n, p in inspect.signature(module.forward).parameters.items() if p.kind is inspect.Parameter.VAR_KEYWORD]
    named = {name: shape for name, shape in by_name.items() if name in inspect.signature(module.forward).parameters}
    out.update(named)
    if variadic and len(named) < len(by_name):
        out[variadic[0]] = {name: shape for name, shape in by_name.items() if name not in named}
    return out
