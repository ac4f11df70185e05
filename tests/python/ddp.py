#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains on several ranks of this machine with DistributedDataParallel, wrapped before and after torch.compile(backend="keirin").

    python tests/python/ddp.py [--backend gloo|nccl] [--ranks 2] [--steps 8] [--when now|background] [--race-seconds 0]

Weights must be equal on all ranks and near to those of eager's DistributedDataParallel, and the ranks must have answered alike. The last
line counts. --race-seconds 0: the compiled step answers; else what its race on rank 0 says. What ranks gain says
bench/python/training_ranks.py.
"""

import argparse
import atexit
import os
import shutil
import sys
import tempfile
import time

if "KEIRIN_CACHE" not in os.environ:  # before keirin is imported; children have it too
    os.environ["KEIRIN_CACHE"] = tempfile.mkdtemp(prefix="keirin-ddp-")
    atexit.register(shutil.rmtree, os.environ["KEIRIN_CACHE"], ignore_errors=True)

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Network(nn.Module):
    """A class of its own: around a module of torch's Dynamo compiles nothing that DistributedDataParallel calls."""

    def __init__(self, width):
        super().__init__()
        self.first, self.norm, self.second, self.head = (
            nn.Linear(width, 4 * width),
            nn.LayerNorm(4 * width),
            nn.Linear(4 * width, width),
            nn.Linear(width, 8),
        )

    def forward(self, x):
        return self.head(torch.tanh(self.second(self.norm(nn.functional.gelu(self.first(x))))))


def network(width, device):
    torch.manual_seed(0)
    return Network(width).to(device)


def train(wrapped, asked, rank, device):
    """Weights after the steps, calls that compiled steps answered, and what the ranks said."""
    from keirin import _dynamo, _training
    import keirin

    torch.compiler.reset()
    known = set(_dynamo.graphs())
    options = {"compile": asked.when, "race_seconds": asked.race_seconds, **({} if asked.race_seconds else {"force": "compiled"})}
    net = network(asked.width, device)
    ids = [device.index] if device.type == "cuda" else None
    if wrapped == "before":
        call = torch.compile(DistributedDataParallel(net, device_ids=ids), backend="keirin", options=options)
    elif wrapped == "after":
        call = DistributedDataParallel(torch.compile(net, backend="keirin", options=options), device_ids=ids)
    else:
        call = DistributedDataParallel(net, device_ids=ids)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)

    def step():
        x, y = (
            torch.randn(asked.batch, asked.width, generator=generator).to(device),
            torch.randint(0, 8, (asked.batch,), generator=generator).to(device),
        )
        optimiser.zero_grad()
        nn.functional.cross_entropy(call(x), y).backward()
        optimiser.step()

    for i in range(asked.steps):
        step()
        if i == 0:
            assert keirin.wait(600)
    weights = torch.cat([each.detach().flatten() for each in net.parameters()])
    steps = [graph for graph in _dynamo.graphs() if graph not in known and isinstance(graph, _training.Step)]
    return weights, sum(each.answered for each in steps), [note for each in steps for note in each._notes]


def rank_main(rank, asked, meeting):
    device = torch.device("cuda", rank) if asked.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(asked.backend, init_method=f"file://{meeting}", rank=rank, world_size=asked.ranks)
    eager, _, _ = train("not", asked, rank, device)
    wrong = []
    for wrapped in ("before", "after"):
        mine, answered, notes = train(wrapped, asked, rank, device)
        told = [None] * asked.ranks
        dist.all_gather_object(told, (answered, notes))
        others = [torch.empty_like(mine) for _ in range(asked.ranks)]
        dist.all_gather(others, mine)
        if any(not torch.equal(each, mine) for each in others):
            wrong.append(f"wrapped {wrapped}: the ranks' weights differ")
        if not torch.allclose(mine, eager, rtol=1e-3, atol=1e-5):
            wrong.append(f"wrapped {wrapped}: weights are {float((mine - eager).abs().max()):.2e} from eager's")
        if len({count for count, _ in told}) > 1 or (answered == 0 and not asked.race_seconds):
            wrong.append(f"wrapped {wrapped}: the ranks answered {[count for count, _ in told]} calls by compiled steps: {told}")
        if rank == 0:
            print(f"DDP backend={asked.backend} ranks={asked.ranks} wrapped={wrapped} steps={asked.steps} answered={answered}", flush=True)
    if rank == 0:
        print(*wrong, sep="\n")
        print(f"DDP wrong={len(wrong)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    # A thread of gloo's lets go of the last tensors when it likes, for which it takes the interpreter's lock; in an interpreter that is
    # being torn down that ends the process (LibTorch 2.11, with nothing of Keirin's).
    time.sleep(0.5)
    if wrong:
        raise SystemExit(1)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=8)
    arguments.add_argument("--when", default="now", choices=["now", "background"])
    arguments.add_argument("--race-seconds", type=float, default=0)
    arguments.add_argument("--width", type=int, default=32)
    arguments.add_argument("--batch", type=int, default=8)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch.multiprocessing.spawn(rank_main, (asked, os.path.join(folder, "meeting")), nprocs=asked.ranks)
        except torch.multiprocessing.ProcessExitedException as error:  # it said what is wrong
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
