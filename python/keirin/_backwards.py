# SPDX-License-Identifier: Apache-2.0
"""Operators of libraries whose gradients read values.

AOTAutograd traces a backward without values, and one in Python may ask for them: how many tokens each expert of a mixture was given.
Eager's backward of such an operator is one operator here, which runs when the values are there. It is handed what the forward answered, so
that nothing is computed or drawn a second time.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from keirin._errors import NotCaptured
from keirin._rewrites import copied


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Gradients are recorded, although an operator is called below where that is done."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
    excluded = torch._C._dispatch_tls_local_exclude_set() - keys
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        yield


def placed(found: list[torch.Tensor], wanted: list[torch.Tensor], given: Iterable[torch.Tensor] = ()) -> list[torch.Tensor]:
    """What was found, in memory as is wanted and each in its own: cuDNN's gradients of weights are parts of one. Nor is it that of `given`,
    which a backward may hand on as it is."""
    out: list[torch.Tensor] = []
    storages = {each.untyped_storage().data_ptr() for each in given}
    for each, its in zip(found, wanted, strict=True):
        own = each.untyped_storage().data_ptr() not in storages
        out.append(each if own and each.stride() == its.stride() else its.copy_(each))
        storages.add(out[-1].untyped_storage().data_ptr())
    return out


class _Answered(TorchDispatchMode):
    """An operator answers what it answered before."""

    def __init__(self, operator: Any, answers: list[torch.Tensor]):
        super().__init__()
        self._operator, self._answers, self.calls = operator, answers, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not self._operator:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        answers = tuple(each.detach() for each in self._answers)
        return answers if len(answers) > 1 else answers[0]


def _gradients(operator: Any, gradients: list[torch.Tensor], answers: list[torch.Tensor], wanted: list[bool], args: Any,
               kwargs: Any) -> list[torch.Tensor | None]:
    """Eager's, of the operands that want one."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    flags = iter(wanted)
    leaves = [each.detach().requires_grad_(next(flags)) if isinstance(each, torch.Tensor) else each for each in leaves]
    with recording():
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        with _Answered(operator, answers) as answered:
            results = pytree.tree_leaves(operator(*args, **kwargs))
        if answered.calls != 1:
            raise NotCaptured(f"the gradients of {operator} are not of what it answers alone")
        floats = [each for each in results if each.is_floating_point() or each.is_complex()]
        pairs = [(each, gradient) for each, gradient in zip(floats, gradients, strict=True) if each.requires_grad]
        leaves = [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
        return list(torch.autograd.grad([each for each, _ in pairs], leaves, [gradient for _, gradient in pairs], allow_unused=True))


def _like_operands(wanted: list[bool], args: Any, kwargs: Any) -> list[torch.Tensor]:
    tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    return [torch.empty_like(each, memory_format=torch.contiguous_format) for each, is_wanted in zip(tensors, wanted) if is_wanted]


_made: set[Any] = set()


@functools.cache
def _backward_of(operator: Any) -> Any:
    """The operator that computes the gradients of this one."""
    schema = str(operator._schema)
    operands = schema[schema.index("(") + 1:schema.rindex(") ->")]

    def run(gradients: list[torch.Tensor], answers: list[torch.Tensor], wanted: list[bool], *args: Any, **kwargs: Any) -> Any:
        likes = _like_operands(wanted, args, kwargs)
        found = _gradients(operator, gradients, answers, wanted, args, kwargs)
        given = [each for each in pytree.tree_leaves((gradients, answers, args, kwargs)) if isinstance(each, torch.Tensor)]
        return placed([torch.zeros_like(like) if each is None else each for each, like in zip(found, likes)], likes, given)

    def fake(gradients: list[torch.Tensor], answers: list[torch.Tensor], wanted: list[bool], *args: Any, **kwargs: Any) -> Any:
        return _like_operands(wanted, args, kwargs)

    name = f"keirin_{operator.namespace}::{operator._schema.name.split('::')[1]}_backward"
    own = torch.library.custom_op(name, run, mutates_args=(), schema=f"(Tensor[] gradients_, Tensor[] answers_, bool[] wanted_, {operands})"
                                                                     " -> Tensor[]")
    own.register_fake(fake)
    _made.add(own._opoverload)
    return own


class _Function(torch.autograd.Function):
    """The operator, with its gradients as another one. `spec`: of its arguments, which are the leaves."""

    @staticmethod
    def forward(ctx: Any, operator: Any, spec: Any, differentiable: tuple[bool, ...], *leaves: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        answers = pytree.tree_leaves(operator(*args, **kwargs))
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        ctx.operator, ctx.spec, ctx.num_operands = operator, spec, len(tensors)
        ctx.rest = [None if isinstance(each, torch.Tensor) else (each,) for each in leaves]
        ctx.save_for_backward(*tensors, *(each.clone() for each in answers))  # who calls may write what was answered
        ctx.mark_non_differentiable(*[each for each, is_differentiable in zip(answers, differentiable) if not is_differentiable])
        return tuple(answers)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        saved = list(ctx.saved_tensors)
        operands, answers = iter(saved[:ctx.num_operands]), saved[ctx.num_operands:]
        args, kwargs = pytree.tree_unflatten([next(operands) if each is None else each[0] for each in ctx.rest], ctx.spec)
        needs = ctx.needs_input_grad[3:]
        wanted = [need for need, each in zip(needs, ctx.rest) if each is None]
        given = [gradient for gradient, answer in zip(gradients, answers) if answer.is_floating_point() or answer.is_complex()]
        found = iter(_backward_of(ctx.operator)(given, answers, wanted, *args, **kwargs))
        return None, None, None, *(next(found) if need else None for need in needs)


def rewrite_answers(joint: torch.fx.GraphModule, num_outputs: int) -> None:
    """Of AOTAutograd's joint graph, in which nothing is written any more: what was answered is kept and no copy of it, unless its memory is
    the caller's, who may write it."""
    output = next(node for node in reversed(joint.graph.nodes) if node.op == "output")
    shown = {_memory_of(each) for each in output.args[0][:num_outputs]}
    for node in joint.graph.nodes:
        for copy in node.args[1] if node.target in _made else ():
            if _memory_of(copy.args[0]) in shown:
                copy.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            else:
                copy.replace_all_uses_with(copy.args[0])
                joint.graph.erase_node(copy)
    joint.recompile()


def _memory_of(node: Any) -> int | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _call(operator: Any, differentiable: tuple[bool, ...], *args: Any, **kwargs: Any) -> Any:
    leaves, spec = pytree.tree_flatten(_in_order(operator, args, kwargs))
    answers = _Function.apply(operator, spec, differentiable, *leaves)
    return answers if len(answers) > 1 else answers[0]


def _in_order(operator: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """As the dispatcher hands them on, which may have been given by name."""
    known = dict(zip((each.name for each in operator._schema.arguments), args)) | kwargs
    values = [(each, known.get(each.name, each.default_value)) for each in operator._schema.arguments]
    return (tuple(value for each, value in values if not each.kwarg_only), {each.name: value for each, value in values if each.kwarg_only})


def _operator_of(node: torch.fx.Node) -> Any:
    """That of a library's, which makes new tensors and says whether it draws numbers; None of any other node."""
    target = node.target
    if isinstance(target, torch._ops.OpOverloadPacket) and target.overloads() == ["default"]:
        target = target.default
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target._overloadname != "default":
        return None
    schema, returns = target._schema, target._schema.returns
    if schema.is_mutable or not returns or any(str(each.type) != "Tensor" or each.alias_info is not None for each in returns):
        return None
    return target


def _hint(size: Any) -> Any:
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _fresh(value: Any) -> Any:
    """What is like it where nothing is known of values, and records gradients if it can."""
    if not isinstance(value, torch.Tensor):
        return _hint(value)
    sizes, strides = ([_hint(each) for each in of] for of in (value.shape, value.stride()))
    can = value.is_floating_point() or value.is_complex()
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device, requires_grad=can)


def _reads_values(operator: Any, node: torch.fx.Node) -> tuple[bool, ...] | None:
    """Where its gradients cannot be traced: which of its results have one. None where they can, or where that is not why."""
    kinds = {each.meta["example_value"].device.type for each in node.all_input_nodes
             if isinstance(each.meta.get("example_value"), torch.Tensor)}
    if any(torch.is_autocast_enabled(kind) and
           torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), f"Autocast{kind.upper()}") for kind in kinds):
        return None  # its operands would be cast in between
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta.get("example_value"))
    with FakeTensorMode(), torch.enable_grad():
        args, kwargs = _in_order(operator, *pytree.tree_map(_fresh, (args, kwargs)))
        try:
            results = pytree.tree_leaves(operator(*args, **kwargs))
        except Exception:  # the graph as a whole will say it
            return None
        floats = [each for each in results if each.is_floating_point() or each.is_complex()]
        wanted = [each.requires_grad for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        try:
            _gradients(operator, [torch.empty_like(each) for each in floats], [each.detach() for each in results], wanted, args, kwargs)
        except NotCaptured:
            return None
        except Exception:
            return tuple(each.requires_grad for each in results)
    return None


def as_operators(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Dynamo's graph with such calls as two operators, one each way: a copy, if there are any."""
    found = {}
    for i, node in enumerate(gm.graph.nodes):
        operator = _operator_of(node)
        if operator is not None and (differentiable := _reads_values(operator, node)):
            found[i] = operator, differentiable
    if not found:
        return gm
    out = copied(gm)
    for i, node in enumerate(out.graph.nodes):
        if i in found:
            node.target, node.args = _call, (*found[i], *node.args)
    out.recompile()
    return out
