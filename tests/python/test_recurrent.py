# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in training steps: one operator forward, one backward, with eager's results and gradients."""
import copy

import pytest
import torch
from torch import nn

import keirin
from conftest import compiled
from keirin import _backwards, _recurrent
from of_training import answered, steps


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    monkeypatch.setattr(_recurrent, "devices", {"cpu", "cuda"})


class Tagger(nn.Module):
    def __init__(self, kind, **words):
        super().__init__()
        self.into, self.layer = nn.Linear(6, 8), kind(8, 12, **words)
        self.out = nn.Linear(12 * (1 + self.layer.bidirectional), 5)

    def forward(self, x, hidden=None):
        y, last = self.layer(self.into(x).tanh(), hidden)
        states = last if isinstance(last, tuple) else (last,)
        return self.out(y), *(each.square() for each in states)


def hidden_of(model, batch):
    layer = model.layer
    shape = layer.num_layers * (1 + layer.bidirectional), *batch, 12
    states = [torch.randn(shape, requires_grad=True) for _ in range(2 if isinstance(layer, nn.LSTM) else 1)]
    return tuple(states) if len(states) == 2 else states[0]


def same_gradients(fast, model, other, x, hidden=()):
    mine, its = (x.clone().requires_grad_() for _ in range(2))
    found, wanted = fast(mine, *hidden), other(its, *hidden)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        assert a.stride() == b.stride()
    weights = [torch.randn_like(each) for each in wanted]
    states = list(hidden[0] if hidden and isinstance(hidden[0], tuple) else hidden)
    pairs = []
    for results, own, net in ((found, mine, model), (wanted, its, other)):
        loss = sum((each * weight).sum() for each, weight in zip(results, weights))
        pairs.append(torch.autograd.grad(loss, [own, *net.parameters(), *states]))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", (nn.LSTM, nn.GRU))
@pytest.mark.parametrize("words", ({}, {"num_layers": 2, "batch_first": True}, {"bidirectional": True, "bias": False}), ids=str)
def test_it_is_one_step_with_eagers_gradients(kind, words):
    torch.manual_seed(0)
    model = Tagger(kind, **words)
    other, fast = copy.deepcopy(model), compiled(model)
    for _ in range(3):
        same_gradients(fast, model, other, torch.randn(3, 4, 6))
    step, = steps()
    assert answered() == 2, keirin.explain()
    names = [str(node.target) for half in (step.forward, step.backward) for node in half.gm.graph.nodes if node.op == "call_function"]
    assert names.count("keirin.recurrent.default") == 1 and names.count("keirin.recurrent_backward.default") == 1


def test_what_eager_answers_in_one_memory_is_told_apart():
    whole = torch.randn(4, 3)
    found, wanted = [whole[:2], whole[2:], whole.t()], [torch.empty(2, 3), torch.empty(2, 3), torch.empty(3, 4)]
    out = _backwards.placed(found, wanted)
    for a, b, like in zip(out, found, wanted, strict=True):
        assert torch.equal(a, b) and a.stride() == like.stride()
    assert len({each.untyped_storage().data_ptr() for each in out}) == 3


@pytest.mark.parametrize("kind", (nn.LSTM, nn.GRU))
def test_states_that_are_given_have_gradients(kind):
    torch.manual_seed(0)
    model = Tagger(kind, num_layers=2)
    other, fast = copy.deepcopy(model), compiled(model)
    hidden = hidden_of(model, (4,))
    for _ in range(3):
        same_gradients(fast, model, other, torch.randn(3, 4, 6), (hidden,))
    assert answered() == 2, keirin.explain()


def test_without_a_batch():
    torch.manual_seed(0)
    model = Tagger(nn.LSTM)
    other, fast = copy.deepcopy(model), compiled(model)
    for _ in range(3):
        same_gradients(fast, model, other, torch.randn(3, 6))
    assert answered() == 2, keirin.explain()


@pytest.mark.parametrize("words", ({"num_layers": 2, "dropout": 0.5}, {"proj_size": 4}), ids=str)
def test_what_is_no_operator_is_left_to_eager_as_before(words):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 8), nn.LSTM(8, 16, **words)).train()
    fast = compiled(layers)
    fast(torch.randn(3, 4, 6))[0].sum().backward()
    assert not any("recurrent" in str(node.target) for step in steps() for node in step.forward.gm.graph.nodes)


def test_packed_sequences():
    torch.manual_seed(0)

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(6, 8, batch_first=True)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.layer(packed)[1].sin()
    model = Packed()
    other, fast = copy.deepcopy(model), compiled(model)
    x, lengths = torch.randn(3, 5, 6), torch.tensor([5, 3, 2], device="cpu")
    for _ in range(2):
        torch.testing.assert_close(fast(x, lengths), other(x, lengths))
        fast(x, lengths).sum().backward(), other(x, lengths).sum().backward()
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
