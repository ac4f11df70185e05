# SPDX-License-Identifier: Apache-2.0
"""Whether what answers a graph that records no gradients answers as the graph does, in 64-bit floats beside eager's own error: what
captured the graph has no part in what judges it. The twin of Step._judge, which does it for training."""
from __future__ import annotations

import os
from typing import Any, Callable

import torch
import torch.fx
from torch.utils._python_dispatch import TorchDispatchMode

from keirin._double import Double, DoubleModule, RoundedModule
from keirin._library import native, words_of

_FREE_BYTES = 1 << 30  # copies that are made without asking what memory there is
_NORMS = ("batch_norm", "instance_norm")  # write their statistics, which their schemas do not say


class WritesAnArgument(Exception):
    pass


def _has_room(args: list[Any], written: list[int]) -> bool:
    """Whether half of the processor's free memory holds what is written thrice, once of it in 64-bit floats. A GPU says so itself."""
    needed = sum(args[i].numel() * (2 * args[i].element_size() + 8) for i in written if not args[i].is_cuda)
    return needed < _FREE_BYTES or needed < os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2


class _LeavesArguments(TorchDispatchMode):
    """Raises before an operator writes one of these."""

    def __init__(self, arguments: list[torch.Tensor]):
        super().__init__()
        self._of = {each.untyped_storage()._cdata for each in arguments}

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        schema, named = function._schema, kwargs or {}
        is_norm = any(word in schema.name for word in _NORMS) and any(each is True for each in args)
        for i, argument in enumerate(schema.arguments):
            value = args[i] if i < len(args) else named.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            written = written or (is_norm and argument.name.startswith("running"))
            if written and any(isinstance(each, torch.Tensor) and each.untyped_storage()._cdata in self._of
                               for each in torch.utils._pytree.tree_leaves(value)):
                raise WritesAnArgument(f"eager writes an argument ({schema.name}), the program does not")
        return function(*args, **named)


def judged(gm: torch.fx.GraphModule, mine: Callable[..., Any], args: list[Any], written: list[int],
           options: dict[str, Any]) -> tuple[str, str]:
    """What is wrong with `mine`, and why it was not judged; empty: nothing. `written`: positions of arguments that a call writes; no
    argument is written here. Neither may draw random numbers."""

    if not _has_room(args, written):
        return "", "not enough memory for copies of what it writes"

    def run(call: Callable[..., Any], prepared: Callable[[torch.Tensor], torch.Tensor]) -> tuple[list[str], list[torch.Tensor]]:
        own = [prepared(each.detach().clone()) if i in written else each for i, each in enumerate(args)]
        results = list(call(*own))
        named = {f"output {i}": each for i, each in enumerate(results)}
        named |= {f"what is written of argument {i}": own[i] for i in written}
        kept = {name: prepared(each.detach()) for name, each in named.items() if isinstance(each, torch.Tensor)}
        return list(kept), list(kept.values())

    def as_it_is(value: torch.Tensor) -> torch.Tensor:
        return value

    left = [each for i, each in enumerate(args) if isinstance(each, torch.Tensor) and i not in written]
    with torch.no_grad():
        try:
            with _LeavesArguments(left):
                names, eager = run(gm.forward, as_it_is)
        except WritesAnArgument as error:
            return f"wrong_result: {error}", ""
        try:
            _, referee = run(DoubleModule(gm).run, Double.widened)
        except Exception as error:  # an operator that knows no 64-bit floats, or no memory for them
            return "", f"{type(error).__name__}: {error}".split("\n")[0]
        own_names, answers = run(mine, as_it_is)
        if own_names != names:
            return f"wrong_result: it answers {own_names}, eager {names}", ""

        def rounded(seed: int, tf32: bool) -> list[torch.Tensor]:
            return run(RoundedModule(gm, seed, tf32).run, Double.widened)[1]

        judgement = native.judge(referee, eager, answers, names, _summands(gm), words_of(options), rounded)
    return "" if judgement["right"] else "wrong_result: " + judgement["reason"], ""


def _summands(gm: torch.fx.GraphModule) -> int:
    """Terms of the longest sum of products."""
    longest = 0
    for node in gm.graph.nodes:
        shapes = [each.meta["example_value"].shape for each in node.args
                  if isinstance(each, torch.fx.Node) and isinstance(each.meta.get("example_value"), torch.Tensor)]
        if not RoundedModule.is_product(node) or not shapes:
            continue
        terms = shapes[1][1:] if len(shapes) > 1 and "conv" in RoundedModule.name_of(node) else shapes[0][-1:]
        if all(isinstance(each, int) for each in terms):
            longest = max(longest, terms.numel())
    return longest
