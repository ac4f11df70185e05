# SPDX-License-Identifier: Apache-2.0
"""torch.compile(optimiser.step, backend="keirin"), and functions that hold a whole training step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import keirin
from conftest import NOW, answered, graphs, reasons
from keirin import _training
from keirin._lowered import lowered

OPTIMISERS = {
    "sgd": lambda p, **more: torch.optim.SGD(p, **{"lr": 0.05, **more}),
    "sgd, momentum": lambda p, **more: torch.optim.SGD(p, **{"lr": 0.05, **more}, momentum=0.9, weight_decay=0.01),
    "sgd, nesterov": lambda p, **more: torch.optim.SGD(p, **{"lr": 0.05, **more}, momentum=0.9, nesterov=True),
    "adam": lambda p, **more: torch.optim.Adam(p, **{"lr": 0.01, **more}),
    "adam, amsgrad": lambda p, **more: torch.optim.Adam(p, **{"lr": 0.01, **more}, amsgrad=True, weight_decay=0.01),
    "adamw": lambda p, **more: torch.optim.AdamW(p, **{"lr": 0.01, **more}),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.LayerNorm(24), nn.Linear(24, 4))


def trained(step_of, make, steps=20, rates=None):
    """A network after some steps, and its optimiser. `step_of`: from an optimiser to what is called in the place of its step."""
    net = network()
    optimiser = make(net.parameters())
    step = step_of(optimiser)
    generator = torch.Generator(torch.get_default_device()).manual_seed(1)
    for i in range(steps):
        optimiser.zero_grad()
        x = torch.randn(8, 16, generator=generator)
        F.cross_entropy(net(x), torch.arange(8) % 4).backward()
        if rates is not None:
            optimiser.param_groups[0]["lr"] = rates[i % len(rates)]
        step()
    return net, optimiser


def compiled(optimiser):
    return torch.compile(optimiser.step, backend="keirin", options=NOW)


def same(mine, eager):
    """Parameters and state, after steps that were taken one after the other."""

    def tensors(net, optimiser):
        state = optimiser.state_dict()["state"]
        return dict(net.named_parameters()) | {f"{i}.{key}": value for i, its in state.items() for key, value in its.items()}

    found, wanted = tensors(*mine), tensors(*eager)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("foreach", [False, True], ids=["single", "lists"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_twenty_steps_are_eagers(name, foreach):
    make = lambda p: OPTIMISERS[name](p, foreach=foreach)
    mine = trained(compiled, make)
    assert answered() >= 17 and not reasons(), keirin.explain()
    assert "opaque" not in keirin.explain()
    same(mine, trained(lambda optimiser: optimiser.step, make))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_capture_does_not_trace_each_parameter(name, monkeypatch):
    """Dynamo waits for it, and torch.export traces each of thousands of calls."""
    def refused(*args, **kwargs):
        raise AssertionError("an update was exported as a whole")
    monkeypatch.setattr(torch.export, "export", refused)
    kept = trained(compiled, OPTIMISERS[name], steps=4)
    assert kept and answered() >= 2 and not reasons(), keirin.explain()


def test_calls_of_one_kind_are_written_down():
    def update(counts, x, y):
        seen = [counts.add(1), counts.add(1.0), counts.add(True), x.mul(x), x.mul(y), y.mul(y)]
        part = x.view(-1)
        part.mul_(2)
        x.add_(y)
        y.sub_(x).neg_()
        return [*seen, part.add(1), x.add(1), y.add(1)]
    inputs = [torch.arange(3), torch.randn(2, 3), torch.randn(2, 3)]
    graph, returned = lowered(torch.fx.symbolic_trace(update), inputs)
    both = [[each.clone() for each in inputs] for _ in range(2)]
    answers = torch.fx.GraphModule(nn.Module(), graph)(*both[0]), update(*both[1])
    for found, wanted in zip([*answers[0], *both[0]], [*answers[1], *both[1]], strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert [node.meta["val"].dtype for node in returned] == [each.dtype for each in answers[1]]
    assert {str(node.target) for node in graph.nodes if node.op == "call_function"} >= {"aten.mul_.Tensor", "aten.sub_.Tensor"}


@pytest.mark.parametrize("name", ["sgd, nesterov", "adam", "adamw"])
def test_a_learning_rate_that_is_a_tensor(name):
    make = lambda p: OPTIMISERS[name](p, lr=torch.tensor(0.02))
    mine = trained(compiled, make)
    assert answered() >= 17 and not reasons(), keirin.explain()
    same(mine, trained(lambda optimiser: optimiser.step, make))


@pytest.mark.parametrize("foreach", [False, True], ids=["single", "lists"])
@pytest.mark.parametrize("name", ["sgd, momentum", "adam", "adamw"])
def test_a_learning_rate_that_changes_in_each_step(name, foreach):
    rates = [0.02, 0.015, 0.01, 0.03]
    make = lambda p: OPTIMISERS[name](p, foreach=foreach)
    mine = trained(compiled, make, rates=rates)
    assert answered() >= 15 and not reasons(), keirin.explain()
    assert len(graphs()) <= 4, "one graph for all rates but the first"
    same(mine, trained(lambda optimiser: optimiser.step, make, rates=rates))


def test_the_first_steps_of_adam_are_near_to_64_bits():
    """1 - 0.999 ** step has few digits in 32 bits; eager's optimiser computes it in Python's floats, and so must a compiled one."""

    def run(step_of, dtype):
        weight = nn.Parameter(torch.linspace(-1, 1, 64, dtype=dtype))
        optimiser = torch.optim.Adam([weight], lr=0.1)
        step = step_of(optimiser)
        for _ in range(4):
            weight.grad = torch.cos(torch.linspace(0, 9, 64, dtype=torch.float64)).to(dtype)
            step()
        return weight.detach().double(), step

    truth, _ = run(lambda o: o.step, torch.float64)
    dynamos, _ = run(lambda o: torch.compile(o.step, backend="eager"), torch.float32)
    mine, step = run(compiled, torch.float32)
    assert answered() >= 2, keirin.explain()
    assert float((mine - truth).abs().max()) <= float((dynamos - truth).abs().max())


def test_steps_beside_their_own_decision_are_eagers():
    """Deciding runs the update again and again, on copies: the weights that are being trained must not see it."""
    options = {key: value for key, value in NOW.items() if key != "compile"}
    make = OPTIMISERS["adamw"]
    mine = trained(lambda optimiser: torch.compile(optimiser.step, backend="keirin", options=options), make, steps=30)
    same(mine, trained(lambda optimiser: optimiser.step, make, steps=30))
    assert keirin.wait(120)


def test_an_update_that_eager_wins_stays_eager():
    optimiser = torch.optim.SGD(network().parameters(), lr=0.1)
    step = torch.compile(optimiser.step, backend="keirin", options={"compile": "now", "force": "eager"})
    for _ in range(3):
        for each in optimiser.param_groups[0]["params"]:
            each.grad = torch.ones_like(each)
        step()
    assert answered() == 0


def test_an_update_is_raced_against_dynamos_graph_and_the_race_leaves_no_mark():
    make = OPTIMISERS["adam"]
    mine = trained(lambda optimiser: torch.compile(optimiser.step, backend="keirin", options={"compile": "now", "race_seconds": 0.2}), make)
    raced = [graph for graph in graphs() if graph._race is not None]
    for graph in raced:
        assert [row["name"] for row in graph._race["rows"]] == ["eager", "compiled"]
        assert any(f"update: {word}" in graph.text() for word in ("eager", "disturbed")), graph.text()
        assert (graph._handle.answered > 0) == (graph._race["winner"] == 1)
    assert raced
    same(mine, trained(lambda optimiser: optimiser.step, make))


def test_parameters_without_gradients_and_two_groups():
    def run(step_of):
        net = network()
        optimiser = torch.optim.AdamW([{"params": net[0].parameters(), "lr": 0.1}, {"params": net[3].parameters()}], lr=0.01)
        step = step_of(optimiser)
        for i in range(5):
            optimiser.zero_grad()
            (net[3](torch.ones(2, 24) * i).square().mean() if i < 3 else net(torch.ones(2, 16) * i).square().mean()).backward()
            step()
        return net, optimiser, step

    *mine, step = run(compiled)
    same(mine, run(lambda optimiser: optimiser.step)[:2])
    assert answered() >= 2, keirin.explain()


@pytest.mark.parametrize("name", ["sgd, nesterov", "adam", "adamw"])
def test_a_whole_step_in_one_function(name):
    """Dynamo parts it at backward(): a training step, and an update."""

    def run(fast):
        net = network()
        optimiser = OPTIMISERS[name](net.parameters())

        def step(x, y):
            optimiser.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
            return loss.detach()

        call = torch.compile(step, backend="keirin", options=NOW) if fast else step
        generator = torch.Generator(torch.get_default_device()).manual_seed(1)
        losses = [call(torch.randn(8, 16, generator=generator), torch.arange(8) % 4) for _ in range(20)]
        return net, optimiser, torch.stack(losses)

    *mine, losses = run(True)
    steps = [graph for graph in graphs() if isinstance(graph, _training.Step)]
    assert steps and sum(step.answered for step in steps) >= 17, keirin.explain()
    assert answered() >= 17, keirin.explain()
    *eager, others = run(False)
    same(mine, eager)
    torch.testing.assert_close(losses, others, rtol=1e-4, atol=1e-5)
