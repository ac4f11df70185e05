# SPDX-License-Identifier: Apache-2.0
"""Graphs in 64-bit floats: what answers and gradients are measured against, and how far roundings move them."""
from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
from torch._functorch.autograd_function import autograd_function_apply
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch.amp import autocast_mode


class Double(torch.fx.Interpreter):
    """Runs a graph in 64-bit floats, whatever it says."""

    @staticmethod
    def widened(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.double()
        return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = torch.utils._pytree.tree_map(self.widened, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        if "_cudnn_attention" in getattr(n.target, "__name__", ""):  # takes what it is given for 16 bits wide
            return self._run_in_own_dtype(n)
        try:
            return super().run_node(n)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            if n.op != "call_function":
                raise
            return self._run_in_own_dtype(n)  # some kernels of a GPU know narrow floats alone (attention's backward)

    def _run_in_own_dtype(self, n: torch.fx.Node) -> Any:
        args, kwargs = torch.fx.node.map_arg((n.args, n.kwargs), self._in_own_dtype)
        return torch.utils._pytree.tree_map(self.widened, n.target(*args, **kwargs))

    def _in_own_dtype(self, node: torch.fx.Node) -> Any:
        value, own = self.env[node], node.meta.get("val", node.meta.get("example_value"))
        narrow = isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor) and value.is_floating_point()
        return value.to(own.dtype) if narrow else value


class DoubleModule(Double):
    """Dynamo's graph of what the user wrote, before any capture: autograd differentiates what it answers. Raises what it cannot widen."""

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.widened(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in (autocast_mode._enter_autocast, autocast_mode._exit_autocast):
            return None
        if isinstance(target, TagActivationCheckpoint):  # computed again or not, it is the same
            return DoubleModule(args[0]).run(*args[1:])
        if target is autograd_function_apply:
            return self._wide(_differentiated_by(*args, **kwargs))
        if isinstance(target, torch._ops.HigherOrderOperator):
            raise TypeError(f"{target} in 64-bit floats")
        return self._wide(super().call_function(target, args, kwargs))

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in ("half", "bfloat16", "float"):
            return args[0].double()
        args, kwargs = torch.utils._pytree.tree_map(self.widened, (args, kwargs))
        return self._wide(super().call_method(target, args, kwargs))

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise TypeError(f"the module {target} in 64-bit floats")

    def _wide(self, results: Any) -> Any:
        return torch.utils._pytree.tree_map(self.widened, results)


def _differentiated_by(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, *operands: Any, **words: Any) -> Any:
    """A user's torch.autograd.Function, both ways as Dynamo wrote them down."""
    def run(gm: torch.fx.GraphModule, arguments: list[Any]) -> Any:
        count = sum(node.op == "placeholder" for node in gm.graph.nodes)
        return DoubleModule(gm).run(*[None] * (count - len(arguments)), *arguments)  # before torch 2.11 with a context that is not there

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            outputs, ctx.kept = run(forward, list(arguments))
            ctx.mark_non_differentiable(*[outputs[i] for i in words.get("non_differentiable_idx", ())])
            return outputs

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return run(backward, [*gradients, *ctx.kept])
    return Function.apply(*operands)


class Rounded(Double):
    """The same with each operator's result off by what its own dtype costs, up or down as a seed has it: how far right answers may be from
    64 bits. What RefereeRunner::round_results is to a file (core/eager/program/referee.cc)."""

    _PRODUCTS = ("conv", "mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "einsum", "_grouped_mm",
                 "scaled_dot_product", "_scaled_dot_product", "_flash", "_efficient")

    def __init__(self, gm: torch.fx.GraphModule, seed: int, tf32: bool):
        super().__init__(gm)
        self._seed, self._tf32, self._count = seed, tf32, 0

    @staticmethod
    def name_of(node: torch.fx.Node) -> str:
        return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")

    @classmethod
    def is_product(cls, node: torch.fx.Node) -> bool:
        return node.op in ("call_function", "call_method") and cls.name_of(node).startswith(cls._PRODUCTS)

    def run_node(self, n: torch.fx.Node) -> Any:
        results = super().run_node(n)
        if n.op not in ("call_function", "call_method") or n.target is operator.getitem:
            return results
        operands = torch.utils._pytree.tree_leaves(torch.fx.node.map_arg((n.args, n.kwargs), lambda node: self.env[node]))
        read = {each.untyped_storage().data_ptr() for each in operands if isinstance(each, torch.Tensor)}
        is_product = self.is_product(n)

        def off(value: Any, own: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not isinstance(own, torch.Tensor) or value.dtype != torch.float64:
                return value
            if own.dtype == torch.float64 or not own.is_floating_point() or value.untyped_storage().data_ptr() in read:
                return value
            coarse = is_product and own.dtype == torch.float32 and self._tf32
            error = value / 2048 if coarse else (value.to(own.dtype).double() - value) * (8 if is_product else 1)
            self._count += 1
            place = torch.arange(value.numel(), dtype=torch.float64, device=value.device).view(value.shape)
            sign = (place * 12.9898 + 78.233 * self._seed + 3.7 * self._count).sin().sign()
            return value + error.nan_to_num(0, 0, 0) * sign

        own = n.meta.get("val", n.meta.get("example_value"))
        if isinstance(results, (tuple, list)) and isinstance(own, (tuple, list)):
            return type(results)(off(each, its) for each, its in zip(results, own))
        return off(results, own)


class RoundedModule(Rounded, DoubleModule):
    """The same of Dynamo's graph."""
