# SPDX-License-Identifier: Apache-2.0
"""What is said otherwise of a graph before it is read, seen on graphs alone: no device is needed."""
import pytest
import torch
from keirin._rewrites import rewrite_devices
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


@pytest.fixture(autouse=True)
def factories_make_tensors_of_the_processors():
    with torch.device("cpu"):
        yield


def on_gpu(function):
    """Its graph for a tensor of a GPU's, and on which device each of its operators answers after the rewrite."""
    with FakeTensorMode():
        graph = make_fx(function)(torch.empty(2, 3, 3, device="cuda:0"))
    rewrite_devices(graph)
    answers = [(node.target, node.meta["val"]) for node in graph.graph.nodes if node.op == "call_function"]
    return graph, [(str(target), value.device.type) for target, value in answers if isinstance(value, torch.Tensor)]


def test_indices_that_are_counted_on_the_processor_are_counted_on_the_gpu():
    def pairs(x):
        a, b = torch.tril_indices(3, 3, -1)
        return x[:, a, b + 0]
    graph, devices = on_gpu(pairs)
    assert len(devices) >= 4 and all(device == "cuda" for _, device in devices), devices
    assert "device(type='cuda', index=0)" in graph.code


def test_what_the_caller_gets_or_draws_stays_on_the_processor():
    def returned(x):
        rows = torch.arange(2)
        return x[rows * 1], rows
    _, devices = on_gpu(returned)
    assert ("aten.arange.default", "cpu") in devices and ("aten.mul.Tensor", "cpu") in devices, devices

    def drawn(x):
        return x[torch.randperm(2)]
    _, devices = on_gpu(drawn)
    assert ("aten.randperm.default", "cpu") in devices, devices


def test_a_graph_of_the_processor_is_left_alone():
    with FakeTensorMode():
        graph = make_fx(lambda x: x[torch.arange(2)])(torch.empty(2, 3))
    before = graph.code
    rewrite_devices(graph)
    assert graph.code == before
