#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call through torch.compile(backend="keirin") costs above Dynamo's own guards, in microseconds.

    ci/python_tests  # once: it makes what follows
    PYTHONPATH=build/python-installed "$(ci/python)/bin/python" bench/python/call_cost.py

"dynamo" is a backend whose function hands back one and the same tuple. What Keirin adds is looking at arguments and weights, the session,
the plan with its kernels of four elements, and the results. "runtime" is that plan alone, called from Python without Dynamo.
Blocks are interleaved, and figures are medians over blocks.
"""
import statistics
import time

import torch

import keirin

kBlocks, kCalls = 40, 300
kOptions = {"compile": "now", "force": "compiled", "race_seconds": 0}


def module_class():
    """A class of its own for each variant: Dynamo keeps what it compiled at the code of `forward`."""
    space = {"torch": torch}
    exec("""
class Sum(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(4)) for _ in range(weights))

    def forward(self, x):
        out = torch.relu(x * 2 + 1)
        if len(self.weights):
            out = out + torch.stack(list(self.weights)).sum(0)
        return out
""", space)
    return space["Sum"]


def nothing(gm, inputs):
    answer = gm.forward(*inputs)
    return lambda *args: answer


def main():
    torch.set_num_threads(1)
    print(f"{'weights':>8} {'dynamo':>8} {'eager':>8} {'keirin':>8} {'above dynamo':>13}   us a call, medians of {kBlocks} blocks")
    with torch.inference_mode():
        for weights in (0, 20, 160):
            x, calls = torch.randn(4), {}
            for name, how in (("dynamo", {"backend": nothing}), ("eager", {"backend": "eager"}),
                              ("keirin", {"backend": "keirin", "options": kOptions})):
                calls[name] = torch.compile(module_class()(weights).eval(), **how)
                for _ in range(10):
                    calls[name](x)
            times = {name: [] for name in calls}
            for block in range(kBlocks):
                for name in list(calls) if block % 2 == 0 else reversed(list(calls)):
                    call, begin = calls[name], time.perf_counter()
                    for _ in range(kCalls):
                        call(x)
                    times[name].append((time.perf_counter() - begin) / kCalls * 1e6)
            median = {name: statistics.median(each) for name, each in times.items()}
            above = statistics.median(a - b for a, b in zip(times["keirin"], times["dynamo"]))
            print(f"{weights:8} {median['dynamo']:8.2f} {median['eager']:8.2f} {median['keirin']:8.2f} {above:13.2f}")
    from keirin._dynamo import graphs
    for graph in graphs():
        if graph._handle is None or graph._handle.answered < kCalls:
            print(f"{graph.name} was not answered by the runtime: {graph.text()}")


if __name__ == "__main__":
    main()
