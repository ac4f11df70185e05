# SPDX-License-Identifier: Apache-2.0
"""Keirin: runs PyTorch models on the faster right one of compiled and eager.

    model = keirin.load("model.pt2"); model(x)
    fast = torch.compile(model, backend="keirin"); fast(x)
"""
from __future__ import annotations

from typing import Any

from keirin._deciding import wait
from keirin._errors import Error
from keirin._library import native as _native, words_of as _words_of
from keirin._bench import Bench, bench
from keirin._export import export
from keirin._model import Model, load

__version__: str = _native.version
__all__ = ["Bench", "Error", "Model", "bench", "explain", "export", "load", "options", "plugins", "wait"]


def explain(model: Model | None = None) -> str:
    """What was chosen and why: of a loaded model, or of all graphs that torch.compile gave to the backend in this process."""
    if model is not None:
        return model.explain()
    import sys
    dynamo = sys.modules.get("keirin._dynamo")
    texts = [graph.text() for graph in dynamo.graphs()] if dynamo else []
    return "".join(texts) or "no graph was compiled in this process\n"


def plugins(**options: Any) -> list[dict[str, Any]]:
    """Every plugin that was found: its name, whether it is used, if not why, and its devices."""
    return _native.plugins(_words_of(options))


def options() -> dict[str, str]:
    """The options that load, bench and torch.compile(options=...) take by name, with what they allow and mean: docs/options.md."""
    # `compile` is not among them: load() and torch.compile have a word of their own for when something is decided, and bench decides now.
    return {row["name"]: f"{row['text']} ({row['values']})" for row in _native.option_rows() if row["name"] != "compile"}
