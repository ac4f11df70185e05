# SPDX-License-Identifier: Apache-2.0
"""Ranks answer alike: what is said through the store, and DistributedDataParallel on two processes."""

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from keirin import _ranks
from keirin._errors import NotCaptured


@pytest.fixture
def job(monkeypatch):
    """Ranks as threads over one store: run(decide_of_rank, names) gives what agree() returned or raised, by rank."""
    store, here = dist.HashStore(), threading.local()
    store.set_timeout(timedelta(seconds=20))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: here.rank)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)

    def run(decides, names=None):
        monkeypatch.setattr(dist, "get_world_size", lambda: len(decides))
        found = [None] * len(decides)

        def one(rank):
            here.rank = rank
            try:
                found[rank] = _ranks.agree(names[rank] if names else "step", decides[rank])
            except Exception as error:
                found[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(decides))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return found

    return run


def test_all_change_over_and_rank_0_alone_races(job):
    raced = {}

    def decide(rank):
        return lambda race: raced.update({rank: race}) or True

    assert job([decide(rank) for rank in range(3)]) == [True, True, True]
    assert raced == {0: True, 1: False, 2: False}


def test_where_rank_0_chose_eager_nobody_else_compiles(job):
    asked = []
    found = job([lambda race: False, lambda race: asked.append(1) or True, lambda race: asked.append(2) or True])
    assert found[0] is False and not asked
    assert all(isinstance(each, NotCaptured) and "rank 0 chose eager" in str(each) for each in found[1:])


def test_where_one_rank_cannot_all_stay_eager(job):
    def fails(race):
        raise ValueError("no memory")

    found = job([lambda race: True, lambda race: True, fails])
    assert isinstance(found[2], ValueError)
    assert all(isinstance(each, NotCaptured) and "rank 2 cannot" in str(each) for each in found[:2])


def test_where_rank_0_fails_nobody_waits_for_it(job):
    def fails(race):
        raise NotCaptured("wrong_result")

    found = job([fails, lambda race: True])
    assert [type(each) for each in found] == [NotCaptured, NotCaptured] and "rank 0 chose eager" in str(found[1])


def test_a_step_that_rank_0_does_not_have(job, monkeypatch):
    monkeypatch.setattr(_ranks, "_BEGIN_SECONDS", 0.2)
    found = job([lambda race: False, lambda race: True], names=["one", "another"])
    assert found[0] is False and "rank 0 decides about no step like this one" in str(found[1])


def test_names_are_of_graph_sizes_and_order():
    def graph(body):
        return torch.fx.symbolic_trace(body)

    add, mul = graph(lambda x: x + 1), graph(lambda x: x * 2)
    x, y = torch.ones(3), torch.ones(4)
    first = _ranks.name_of(add, [x])
    others = [_ranks.name_of(add, [y]), _ranks.name_of(mul, [x]), _ranks.name_of(add, [x])]
    assert len({first, *others}) == 4 and others[2].split("/")[:2] == first.split("/")[:2]


def test_one_process_decides_alone():
    assert _ranks.agree("alone", lambda race: race) is True


@pytest.mark.parametrize("more", [[], ["--when", "background", "--race-seconds", "0.2"]], ids=["now", "raced in the background"])
def test_distributed_data_parallel_on_two_processes(more):
    script = Path(__file__).parent / "ddp.py"
    ended = subprocess.run([sys.executable, str(script), *more], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0 and ended.stdout.strip().endswith("DDP wrong=0"), ended.stdout + ended.stderr[-2000:]
    assert ended.stdout.count("DDP backend=gloo ranks=2 wrapped=") == 2
