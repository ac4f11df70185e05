# SPDX-License-Identifier: Apache-2.0
"""The keyword options, for type checkers. Made by ci/python_options; docs/options.md says what each means."""
from __future__ import annotations

import os
from typing import Literal, Sequence, TypedDict, Union

Path = Union[str, "os.PathLike[str]"]


class Options(TypedDict, total=False):
    device: str
    threads: float
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-performance"]
    budget_seconds: float
    race_seconds: float
    leave_one_out: bool
    sample_rate: float
    plans: Literal["on", "shadow", "off"]
    shadow_rate: float
    fallback: Literal["allow", "warn", "forbid"]
    numerics: Literal["default", "strict", "fast"]
    error_budget: float
    memory_limit: float
    plugin_paths: Sequence[Path]
    plugins: Sequence[str]
    load_libraries: Sequence[str]
    cache_dir: Path
    trust: Literal["own", "native"]
    use_cache: bool
    compile_in: Literal["child", "process"]
    run_in: Literal["process", "worker"]
    run_deadline_seconds: float
    compile_deadline_seconds: float
    verify: bool
    force: Literal["eager", "compiled"]
    only_candidate: str
    limits: bool
    measure_again: bool
    disabled_passes: Sequence[str]
    max_shapes: float
    ranges: bool
    plan_memory: float
    buckets: Sequence[str]
    pads: Sequence[str]
    repro_dir: str
    dump_dir: str
    imagine: str
    launches_dir: str
