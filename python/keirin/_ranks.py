# SPDX-License-Identifier: Apache-2.0
"""Ranks of one job answer a training step alike: all by the compiled one, or all by eager.

Rank 0 decides first and races; the others compile and judge only what it chose, and nobody changes over until all could. What is said goes
through the job's own store and not through collectives: a decision may run beside steps, whose collectives have an order of their own.
"""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Callable

import torch
import torch.distributed as dist
import torch.fx

from keirin._errors import NotCaptured

_BEGIN_SECONDS, _DECIDE_SECONDS, _POLL_SECONDS = 30, 900, 0.02
_times: dict[str, int] = {}  # how often a step of these words was decided here: two of one kind are told apart by their order
_lock = threading.Lock()


def name_of(gm: torch.fx.GraphModule, args: list[object]) -> str:
    """The same on all ranks that trace the same function for the same sizes in the same order."""
    sizes = [(tuple(each.shape), str(each.dtype)) if isinstance(each, torch.Tensor) else each for each in args]
    digest = hashlib.sha256(f"{gm.code}{sizes}".encode()).hexdigest()[:24]
    with _lock:
        _times[digest] = _times.get(digest, 0) + 1
        return f"keirin/{digest}/{_times[digest]}"


def agree(name: str, decide: Callable[[bool], bool]) -> bool:
    """Whether the compiled step is to answer. `decide(race)` compiles and judges, races if asked, and says whether that was won; it may
    raise what keeps the step eager, and so does this."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return decide(True)
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set(f"{name}/began", "1")
    elif not _wait(store, f"{name}/began", _BEGIN_SECONDS):
        raise NotCaptured("rank 0 decides about no step like this one: its graph or its sizes are others")
    elif _read(store, f"{name}/verdict") == "eager":
        raise NotCaptured("rank 0 chose eager, and all ranks answer alike")
    won = False
    try:
        won = decide(rank == 0)
    finally:  # also where it raises: nobody may wait for this rank
        store.set(f"{name}/{rank}", "compiled" if won else "eager")
        if rank == 0 and not won:
            store.set(f"{name}/verdict", "eager")
    if rank == 0 and won:
        store.set(f"{name}/verdict", "compiled")
    if not won:
        return False
    for other in range(dist.get_world_size()):
        if _read(store, f"{name}/{other}") != "compiled":
            raise NotCaptured(f"rank {other} cannot or does not answer by the compiled step, and all ranks answer alike")
    return True


def _read(store: "dist.Store", key: str) -> str:
    if not _wait(store, key, _DECIDE_SECONDS):
        raise NotCaptured(f"another rank did not decide within {_DECIDE_SECONDS} seconds")
    return store.get(key).decode()


def _wait(store: "dist.Store", key: str, seconds: float) -> bool:
    """Asks again and again: a wait inside of the store would keep it from the job's own threads."""
    end = time.monotonic() + seconds
    while not store.check([key]):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True
