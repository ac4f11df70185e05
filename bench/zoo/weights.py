# SPDX-License-Identifier: Apache-2.0
"""How a model's weights are drawn, found without keeping (or, for large models, ever making) the weights.

While a model is built, a dispatch mode watches the calls that fill a large tensor. It notes the distribution and skips the work, so
that a model of the 7B width is built in seconds and without its gigabytes. Small tensors are filled as usual and measured.

No tensor is left constant: a zero bias hides a lost bias, and a zero head hides the whole network.
"""
import math
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
kLarge = 1 << 16  # elements


def _normal(mean: float, std: float) -> dict[str, Any]:
    return {"kind": "normal", "mean": float(f"{mean:.6g}"), "std": float(f"{std:.6g}")}


def _uniform(low: float, high: float) -> dict[str, Any]:
    return {"kind": "uniform", "low": float(f"{low:.6g}"), "high": float(f"{high:.6g}")}


class FillRecorder(TorchDispatchMode):
    """Skips in-place fills of large floating tensors and keeps their rules. A call that reads such a tensor has it drawn first."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped: dict[int, tuple[torch.Tensor, dict[str, Any]]] = {}  # by address; holding the tensor keeps it taken

    def rule(self, tensor: torch.Tensor) -> dict[str, Any] | None:
        return self._skipped.get(tensor.untyped_storage().data_ptr(), (None, None))[1]

    def _note(self, tensor: torch.Tensor, rule: dict[str, Any]) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.numel() * tensor.element_size() == storage.nbytes():  # a view's fill says nothing about the whole
            self._skipped[storage.data_ptr()] = (tensor, rule)
        return tensor

    def _change(self, tensor: torch.Tensor, change: Callable[[str, float], float]) -> torch.Tensor:
        rule = self.rule(tensor)
        return self._note(tensor, {k: v if k == "kind" else float(f"{change(k, v):.6g}") for k, v in rule.items()})

    def _draw_now(self, argument: Any) -> None:
        if isinstance(argument, torch.Tensor) and self.rule(argument) is not None:
            tensor, rule = self._skipped.pop(argument.untyped_storage().data_ptr())
            if rule["kind"] == "normal":
                tensor.normal_(rule["mean"], rule["std"])
            elif rule["kind"] == "uniform":
                tensor.uniform_(rule["low"], rule["high"])
            else:
                tensor.fill_(rule["value"])

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        target = args[0] if args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point() else None
        known = target is not None and self.rule(target) is not None
        if target is not None and (known or target.numel() >= kLarge):
            if func is aten.normal_.default:
                return self._note(target, _normal(*(list(args[1:]) + [0.0, 1.0][len(args) - 1 :])))
            if func is aten.uniform_.default:
                return self._note(target, _uniform(*(list(args[1:]) + [0.0, 1.0][len(args) - 1 :])))
            if func in (aten.fill_.Scalar, aten.zero_.default):
                return self._note(target, {"kind": "constant", "value": float(args[1]) if len(args) > 1 else 0.0})
        if known:
            # A truncated normal is drawn as erfinv of a uniform, scaled and clamped; it is noted as the normal that it nearly is.
            if func is aten.erfinv_.default:
                return self._note(target, _normal(0.0, math.sqrt(0.5)))
            if func is aten.mul_.Tensor and not isinstance(args[1], torch.Tensor):
                return self._change(target, lambda key, value: value * float(args[1]))
            if func is aten.add_.Tensor and not isinstance(args[1], torch.Tensor):
                return self._change(target, lambda key, value: value + (0.0 if key == "std" else float(args[1])))
            if func is aten.clamp_.default:
                return target
        if not func.is_view:
            torch.utils._pytree.tree_map(self._draw_now, (args, kwargs))
        return func(*args, **kwargs)


def build(make, dtype: torch.dtype, seed: int) -> tuple[torch.nn.Module, FillRecorder]:
    """The model in eval mode, with the rules of the tensors whose filling was skipped."""
    torch.manual_seed(seed)
    kept = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    recorder = FillRecorder()
    try:
        with torch.no_grad(), recorder:
            model = make().eval()
    finally:
        torch.set_default_dtype(kept)
    return model.requires_grad_(False), recorder


def rule_of(name: str, tensor: torch.Tensor, recorder: FillRecorder) -> dict[str, Any]:
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "running_mean":
        return _normal(0.0, 0.1)
    if leaf == "running_var":
        return _uniform(0.5, 1.5)
    rule = recorder.rule(tensor)
    if rule is None:
        rule = _measured(tensor)
    return rule if rule["kind"] != "constant" else _loosened(tensor, rule["value"])


def _measured(tensor: torch.Tensor) -> dict[str, Any]:
    values = tensor.detach().double()
    std = values.std(correction=0).item() if values.numel() else 0.0
    mean = values.mean().item() if values.numel() else 0.0
    if std == 0.0:
        return {"kind": "constant", "value": mean}
    # A tensor whose extremes are those of a uniform draw is one: excess kurtosis -1.2, against a normal's 0.
    kurtosis = ((values - mean) ** 4).mean().item() / std**4
    if values.numel() >= 64 and kurtosis < 2.1:
        return _uniform(mean - math.sqrt(3.0) * std, mean + math.sqrt(3.0) * std)
    return _normal(mean, std)


def _loosened(tensor: torch.Tensor, value: float) -> dict[str, Any]:
    """A constant becomes a spread around itself; a constant matrix or filter gets the scale that keeps a layer's variance."""
    if tensor.dim() >= 2 and tensor.numel() > max(tensor.shape):
        fan_in = tensor.numel() // tensor.shape[0]
        return _normal(value, 1.0 / math.sqrt(fan_in))
    return _normal(value, 0.02) if value == 0.0 else _uniform(value - 0.1 * abs(value), value + 0.1 * abs(value))
