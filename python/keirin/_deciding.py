# SPDX-License-Identifier: Apache-2.0
"""When calls of new sizes are decided: one thread at a time does it in the background, beside calls that eager answers."""
from __future__ import annotations

import atexit
import collections
import logging
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable

import torch

from keirin._errors import Error, invalid_input

log = logging.getLogger("keirin")
_one_at_a_time = threading.Lock()
_ATTEMPTS, _REST_SECONDS = 4, 5
_LONG_SECONDS = 1e9
_WHEN = ("background", "now", "asked")


def check_when(when: str) -> None:
    if when not in _WHEN:
        raise invalid_input(f"compile is {when!r}", "give one of: " + ", ".join(_WHEN))


def progress_of(progress: Callable[[str, float], None] | bool | None) -> Callable[[str, float], None] | None:
    """Every callback also is where the thread in the background stops when the interpreter ends: what it runs cannot be ended."""

    def line(stage: str, done: float) -> None:
        if sys.stderr.isatty() or "ipykernel" in sys.modules:
            print(f"\r  {stage}  {done * 100:3.0f} %   ", end="", file=sys.stderr, flush=True)
        else:
            log.info("%s %.0f %%", stage, done * 100)

    told = line if progress is True else progress or None

    def callback(stage: str, done: float) -> None:
        if _worker.ending and threading.current_thread() is _worker.thread:
            _worker.parked.set()
            while True:  # a daemon thread: the process ends around it
                time.sleep(3600)
        if told:
            told(stage, done)

    return callback


class _Worker:
    """Runs tasks one after another on a daemon thread, which starts with the first and ends with the last: a thread keeps the team of
    OpenMP's that its operators had, and where all teams have more threads than there are processors, none spins between two operators
    any more, so that every call in the process would be slower for good."""

    def __init__(self) -> None:
        self.tasks: collections.deque[Callable[[], None]] = collections.deque()
        self.idle = threading.Condition()
        self.open = 0
        self.ending = False
        self.parked = threading.Event()
        self.thread: threading.Thread | None = None

    def submit(self, task: Callable[[], None]) -> None:
        with self.idle:
            self.open += 1
            self.tasks.append(task)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="keirin", daemon=True)
                self.thread.start()

    def _run(self) -> None:
        while True:
            with self.idle:
                if not self.tasks:
                    self.thread = None
                    return
                task = self.tasks.popleft()
            if not self.ending:
                try:
                    task()
                except Exception:
                    log.exception("a decision failed")
            del task
            with self.idle:
                self.open -= 1
                self.idle.notify_all()

    def wait(self, timeout: float | None) -> bool:
        with self.idle:
            return self.idle.wait_for(lambda: self.open == 0, timeout)

    def end(self) -> None:
        """The thread holds memory of libraries that are about to be torn down: it finishes its step first."""
        self.ending = True
        end = time.monotonic() + 60
        while self.open and not self.parked.is_set() and time.monotonic() < end:
            time.sleep(0.01)


_worker = _Worker()
_beside_calls: "weakref.WeakSet[Decider]" = weakref.WeakSet()  # those whose model decides on a thread of its own


def _end() -> None:
    _worker.end()
    for each in list(_beside_calls):
        each.model.end_deciding()


atexit.register(_end)


def _forked() -> None:
    global _worker, _one_at_a_time
    _one_at_a_time = threading.Lock()
    _worker = _Worker()  # the thread is the parent's


os.register_at_fork(after_in_child=_forked)


def submit(task: Callable[[], None]) -> None:
    """Runs it on the thread in the background, after what was submitted before."""
    _worker.submit(task)


def one_at_a_time() -> threading.Lock:
    """Held by whoever measures: two races would measure each other."""
    return _one_at_a_time


def wait(timeout: float | None = None) -> bool:
    """Waits until nothing is being decided in the background; False if `timeout` seconds were too few."""
    end = time.monotonic() + (timeout if timeout is not None else _LONG_SECONDS)
    return _worker.wait(timeout) and all(each.model.settle(max(0.0, end - time.monotonic())) for each in list(_beside_calls))


def key_of(inputs: list[torch.Tensor]) -> tuple[Any, ...]:
    return tuple((tuple(each.shape), each.stride(), each.dtype) for each in inputs)


class Decider:
    """Of one native model: what was met, what is being decided, and why something is not. `has_ranges`: the model has free sizes and was
    opened with the option `compile` background. It makes ranges of them on a thread of its own, which is told what was met."""

    def __init__(self, native_model: Any, when: str, max_shapes: int, has_ranges: bool = False):
        self.model, self.when, self.max_shapes = native_model, when, max_shapes
        self.has_ranges = has_ranges and not native_model.why_not_beside_calls()
        if self.has_ranges:
            _beside_calls.add(self)
        self.reasons: list[str] = []
        self.effects: dict[str, Any] | None = None
        self._met: set[tuple[Any, ...]] = set()
        self._lock = threading.Lock()

    def meet(self, inputs: list[torch.Tensor], then: Callable[[list[torch.Tensor]], None] | None = None) -> bool:
        """Sees to it that calls like this one are decided. True if that was just begun; `then` runs on a thread that decides, with what it
        was decided on: in the background copies of the inputs."""
        if self.when == "asked":
            return False
        if self.has_ranges and self.effects is not None:
            if not self.why_not_beside_calls():
                self.model.meet(inputs)  # each time: it may have let go of the plan for these sizes
            return False
        key = key_of(inputs)
        if key in self._met:
            return False
        with self._lock:
            if key in self._met:
                return False
            full = len(self._met) >= self.max_shapes
            if not full:
                self._met.add(key)
        if full:
            self._because(f"{self.max_shapes} kinds of calls were decided (max_shapes); eager answers calls of others")
            return False
        try:
            self.look(inputs)
        except Exception as error:  # eager's own, on these inputs: the call will raise it
            with self._lock:
                self._met.discard(key)
            log.debug("eager refuses these inputs: %s", error)
            return False
        if self.when == "background" and (why := self.why_not_beside_calls()):
            self._because(why + ": eager answers; compile it with compile=\"now\"")
            return False
        if self.has_ranges:
            self.model.meet(inputs)
        if self.when == "now":
            self._try(inputs, then)
        else:
            own = [each.detach().clone(memory_format=torch.preserve_format) for each in inputs]
            _worker.submit(lambda: self._try(own, then))
        return True

    def look(self, inputs: list[torch.Tensor]) -> dict[str, Any]:
        """What a call does besides answering: one eager run that leaves no mark, once."""
        if self.effects is None:
            self.effects = self.model.effects(inputs)
            if self.effects["written_weights"]:
                self.model.set_exclusive()
        return self.effects

    def decide(self, inputs: list[torch.Tensor], patient: bool = False) -> None:
        """Now, on this thread; raises what eager raises. `patient`: waits where another process has the device."""
        self.look(inputs)
        with self._lock:
            self._met.add(key_of(inputs))
        self._compile(inputs, patient)

    def _compile(self, inputs: list[torch.Tensor], patient: bool) -> None:
        """A decision leaves no mark, on the generators either: its own draws are nobody's."""
        def once() -> None:
            with one_at_a_time():
                if not (self.effects or {}).get("draws_random"):
                    return self.model.compile(inputs)
                with torch.random.fork_rng(devices=sorted({each.device.index for each in inputs if each.device.type == "cuda"})):
                    self.model.compile(inputs)
        for _ in range(_ATTEMPTS - 1 if patient else 0):
            try:
                return once()
            except Error as error:
                if error.code != "exhausted":  # another process races on this device
                    raise
            time.sleep(_REST_SECONDS)
        once()

    def why_not_beside_calls(self) -> str | None:
        """Deciding runs the model and puts back what it wrote and drew. Calls of other threads must not be in between."""
        effects = self.effects or {}
        if effects.get("written_weights"):
            return "the model writes " + effects["written_weights"][0] + ", which calls beside it use"
        if effects.get("draws_random"):
            return "the model draws random numbers, whose generator calls beside it use"
        if effects.get("in_segments"):
            return "sizes or branches depend on data, and deciding about that runs the model as a whole"
        return None

    def _try(self, inputs: list[torch.Tensor], then: Callable[[list[torch.Tensor]], None] | None) -> None:
        try:
            if not self.has_ranges:
                self._compile(inputs, patient=self.when == "background")
        except Error as error:
            self._because(error.in_a_line())
            return
        except Exception as error:
            self._because(f"eager raises on these inputs: {error}".split("\n")[0])
            return
        if then:
            then(inputs)

    def _because(self, reason: str) -> None:
        with self._lock:
            if reason in self.reasons:
                return
            self.reasons.append(reason)
        log.info("%s: %s", self.model.name, reason)

    def text(self) -> str:
        return "".join(f"not compiled: {reason}\n" for reason in self.reasons)
