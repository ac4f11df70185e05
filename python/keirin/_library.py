# SPDX-License-Identifier: Apache-2.0
"""Loads the native module over the torch of this environment, and turns keyword options into its words."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Mapping

import torch  # first: it loads LibTorch, which the native module is linked to

_VARIABLE = "KEIRIN_ALLOW_TORCH"


def _load() -> Any:
    """The module's C++ is bound to one LibTorch, so another one is refused before it is loaded: it might crash, or worse, not crash."""
    built_for = (Path(__file__).parent / "torch_version.txt").read_text().strip()

    def release(version: str) -> str:
        return ".".join(version.split("+")[0].split(".")[:2])

    if release(torch.__version__) != release(built_for) and os.environ.get(_VARIABLE) != torch.__version__:
        raise ImportError(f"keirin was built for torch {release(built_for)} and is not tested with torch {torch.__version__}: install "
                          f"torch=={built_for}, or set {_VARIABLE}={torch.__version__} to try it")
    from keirin import _native
    return _native


native = _load()


def words_of(options: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Options as core/api/options.def has them. Paths are made absolute, as the command does."""
    rows = {row["name"]: row for row in native.option_rows()}

    def word(name: str, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if value != "" and (isinstance(value, os.PathLike) or (name in rows and rows[name]["kind"] == "path")):
            return os.path.abspath(os.fspath(value))
        return str(value)

    out = []
    for name, value in options.items():
        if value is None:
            continue
        many = isinstance(value, (list, tuple)) and name in rows
        out.append((name, [word(name, each) for each in value] if many else [word(name, value)]))
    return out


def device_word(device: torch.device) -> str:
    return device.type if device.index is None else f"{device.type}:{device.index}"
