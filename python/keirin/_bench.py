# SPDX-License-Identifier: Apache-2.0
"""Measuring from Python: the race of the runtime itself, as `keirin bench` holds it."""
from __future__ import annotations

import os
import tempfile
from typing import Any, Callable, Mapping, Sequence

import torch

from keirin._export import export
from keirin._model import Model, load


class Bench(dict):
    """The report of one model (docs/report.md) as a dict; printed, the lines that matter."""

    def __str__(self) -> str:
        verified = "verified" if self["verified"] else "NOT VERIFIED"
        if self.get("disturbed"):  # no figure of such a race may be shown
            return f"{self['model']}: {self['chosen']}, disturbed: {self['disturbed']}, {verified}"
        times = f"{self['eager_ms']:.3f} ms -> {self['chosen_ms']:.3f} ms"
        return f"{self['model']}: {self['chosen']}, {self['speedup']:.2f}x of eager ({times}), {verified}"


def bench(model: str | os.PathLike[str] | torch.nn.Module | Model, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *,
          progress: Callable[[str, float], None] | bool | None = None, **options: Any) -> Bench:
    """Measures a .pt2 file, a loaded model or a module against eager, here and now, and says what was chosen.

    Without `args` the inputs are drawn at the sizes of the export. A module is exported first and needs them.
    """
    if isinstance(model, torch.nn.Module):
        with tempfile.TemporaryDirectory() as folder:
            path = export(model, args, os.path.join(folder, type(model).__name__.lower() + ".pt2"), kwargs=kwargs)
            return bench(path, args, kwargs, progress=progress, **options)
    if not isinstance(model, Model):
        model = load(model, compile="asked", progress=progress, measure_again=True, **options)
    if args or kwargs:
        model.compile(*args, **dict(kwargs or {}))
    else:
        model._decider.decide(model.example_inputs())
    return Bench(model.report()[-1])
