# SPDX-License-Identifier: Apache-2.0
"""What is said otherwise of a graph before it is read, seen on graphs alone: no device is needed."""
import pytest
import torch
from keirin._rewrites import forget_running, rewrite_counted, rewrite_devices
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


def rewritten(function, *inputs):
    """The operators of its graph after the rewrite, whose answers are as before."""
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    rewrite_counted(graph)
    for found, wanted in zip(graph(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        assert found.stride() == wanted.stride()
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def test_rows_that_are_counted_are_a_slice():
    def select(x, gradient):
        first, last = torch.index_select(x, 1, torch.arange(4)), torch.index_select(x.mT, -1, torch.arange(1, 4))
        into = x.new_zeros(3, 9).index_add(-1, torch.arange(2, 6), gradient)
        return first, last, into, torch.zeros(6, 4).index_add(0, torch.arange(3), gradient)
    targets = rewritten(select, torch.randn(5, 6), torch.randn(3, 4))
    assert targets.count("aten.slice.Tensor") == 2 and targets.count("aten.constant_pad_nd.default") == 2
    assert "aten.index_select.default" not in targets and "aten.index_add.default" not in targets


def test_rows_that_are_picked_otherwise_stay_indices():
    def select(x, gradient):
        odd, own = torch.index_select(x, 1, torch.arange(0, 6, 2)), x[:3, :4].clone().index_add(0, torch.arange(3), gradient)
        twice = x.new_zeros(3, 4).index_add(0, torch.arange(3), gradient, alpha=2)
        return odd, own, twice, torch.index_select(x, 0, torch.arange(3) + 1)
    targets = rewritten(select, torch.randn(5, 6), torch.randn(3, 4))
    assert targets.count("aten.index_select.default") == 2 and targets.count("aten.index_add.default") == 2
    assert "aten.slice.Tensor" not in targets[-8:] and "aten.constant_pad_nd.default" not in targets


def test_counting_over_the_end_stays_eagers_error():
    graph = make_fx(lambda x: torch.index_select(x, 0, torch.arange(7)), tracing_mode="fake")(torch.randn(5, 6))
    rewrite_counted(graph)
    with pytest.raises(IndexError):
        graph(torch.randn(5, 6))


@pytest.mark.parametrize("trains", (True, False))
def test_running_statistics_reach_the_backward_where_it_looks_at_them(trains):
    def backward(gradient, x, weight, mean, variance):
        _, saved, inverse = torch.native_batch_norm(x, weight, weight, mean.clone(), variance.clone(), trains, 0.1, 1e-5)
        return torch.ops.aten.native_batch_norm_backward(gradient, x, weight, mean, variance, saved, inverse, trains, 1e-5, [True] * 3)
    inputs = torch.randn(4, 3, 5), torch.randn(4, 3, 5), torch.randn(3), torch.randn(3), torch.rand(3)
    graph = make_fx(backward, tracing_mode="fake")(*inputs)
    forget_running(graph)
    node, = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.native_batch_norm_backward.default)
    assert [each is None for each in node.args[3:5]] == [trains] * 2
    for found, wanted in zip(graph(*inputs), backward(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
