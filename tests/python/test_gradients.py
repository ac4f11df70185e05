# SPDX-License-Identifier: Apache-2.0
"""Gradients of compiled training steps: each beside eager's own error."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import keirin
from conftest import NOW, compiled, reasons
from of_training import BACKGROUND, Heads, answered, notes, same_within_eagers_error, steps


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8 * 16, 10)

    def forward(self, x):
        return self.head(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1))


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x, source, target):
        h = F.relu(self.first(x))
        return self.second(torch.zeros_like(h).index_add(0, target, h[source]))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 20)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu")

    def forward(self, ids):
        return F.log_softmax(self.head(self.layer(self.words(ids))), -1)


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(30, 8, mode="sum") for _ in range(2))
        self.bottom, self.top = nn.Linear(4, 8), nn.Linear(8 + 3, 1)

    def forward(self, x, ids, offsets):
        rows = torch.stack([F.relu(self.bottom(x)), *(table(ids, offsets) for table in self.tables)], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        a, b = torch.tril_indices(3, 3, -1)
        return torch.sigmoid(self.top(torch.cat([rows[:, 0], products[:, a, b]], 1)))


class Activations(nn.Module):
    def forward(self, x):
        y = torch.tanh(x) + F.silu(x) + F.gelu(x, approximate="tanh") + F.leaky_relu(x, 0.1) + F.hardtanh(x) + torch.sigmoid(x)
        return y + F.softmax(x, -1) + x[:, 1:2] + x.select(1, 0).unsqueeze(1) + F.mse_loss(x, x * x)


class Pooled(nn.Module):
    """Images whose channels lie last, down to one number each, and a tensor that is made of numbers."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool, self.norm, self.head = nn.Conv2d(3, 8, 2, 2), nn.AdaptiveAvgPool2d(1), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        y = self.norm(self.conv(x.contiguous(memory_format=torch.channels_last)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(self.pool(F.gelu(y)).flatten(1)) * torch.tensor([1.0, -2.0, 0.5, 3.0], device=x.device)


class Constants(nn.Module):
    """Keeps for its backward what is constant and what is repeated in memory, and has gradients that are zero."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.kinds, self.dead = nn.Embedding(2, 16), nn.Parameter(torch.randn(16))
        self.register_buffer("ids", torch.zeros(1, 5, dtype=torch.long))

    def forward(self, x):
        h = self.first(x) + self.kinds(self.ids.expand(x.shape[0], 5)) + self.dead * torch.zeros(16)
        return F.softmax(self.second(torch.where(torch.ones_like(h) > 0, h.tanh(), h)), -1)


MODELS = {
    "constants": (Constants, lambda: (torch.randn(3, 5, 8),)),
    "pooled": (Pooled, lambda: (torch.randn(2, 3, 8, 8),)),
    "cnn": (Cnn, lambda: (torch.randn(4, 3, 8, 8),)),
    "graph": (Graph, lambda: (torch.randn(12, 16), torch.randint(0, 12, (40,)), torch.randint(0, 12, (40,)))),
    "tokens": (Tokens, lambda: (torch.randint(0, 20, (3, 7)),)),
    "bags": (Bags, lambda: (torch.randn(3, 4), torch.randint(0, 30, (9,)), torch.tensor([0, 2, 6]))),
    "activations": (Activations, lambda: (torch.randn(5, 8),)),
}


def test_attention_that_drops_nothing_draws_nothing():
    """Its operators are marked as drawing. Beside calls nothing that draws is decided about."""
    make, inputs = MODELS["tokens"]
    step, x = torch.compile(make(), backend="keirin", options=BACKGROUND), inputs()
    step(*x).sum().backward()
    assert keirin.wait(120) and not reasons(), keirin.explain()
    assert len(steps()) == 1


def test_gradients_of_a_perceptron(mlp):
    same_within_eagers_error(mlp, compiled(mlp), (torch.randn(4, 16),))
    assert answered() == 1 and not notes() and not reasons()
    step = steps()[0]
    assert step.answered >= 1 and not step.referee
    assert step.judgement["right"]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_small_models(name):
    make, inputs = MODELS[name]
    torch.manual_seed(1)
    model, x = make(), inputs()
    same_within_eagers_error(model, compiled(model), x)
    assert answered() == 1 and "as a whole in eager" not in keirin.explain(), keirin.explain()


@pytest.mark.parametrize("name", MODELS)
def test_sizes_that_are_symbols_are_steps_of_their_own(name):
    make, inputs = MODELS[name]
    torch.manual_seed(1)
    model, x = make(), inputs()
    fast = torch.compile(model, backend="keirin", dynamic=True, options=NOW)
    same_within_eagers_error(model, fast, x)
    assert answered() == 1 and not notes() and not reasons(), keirin.explain()
    assert all(step.answered for step in steps())


@pytest.mark.parametrize("when", ["now", "background"])
def test_batches_of_other_sizes_are_steps_too(mlp, when):
    fast = torch.compile(mlp, backend="keirin", options={**NOW, "compile": when})
    for _ in range(2):
        for batch in (4, 6, 9):  # a graph of its own, then one with a symbol
            same_within_eagers_error(mlp, fast, (torch.randn(batch, 16),), calls=1)
            assert keirin.wait(120)
    assert len(steps()) == 4 and answered() == 2 and not notes(), keirin.explain()  # the later graph takes the first size too
    for batch in range(20, 30):
        fast(torch.randn(batch, 16)).sum().backward()
        assert keirin.wait(120)
    assert len(steps()) == 4 + 8 and "max_shapes" in keirin.explain()  # inputs without gradients are a graph of their own


def test_buffers_of_batch_norm():
    torch.manual_seed(0)
    model = Cnn()
    other = copy.deepcopy(model)
    fast = compiled(model)
    for _ in range(4):
        x = torch.randn(4, 3, 8, 8)
        fast(x).sum().backward(), other(x).sum().backward()
    assert answered() == 3
    for name, value in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    assert model.norm.num_batches_tracked == 4
    backward = steps()[0].backward
    shapes = [tuple(node.meta["val"].shape) for node in backward.inputs]
    assert shapes.count((8,)) == 3, "weight, mean and inverse deviation of the batch, and no running statistics"


def test_gradients_add_up_and_a_graph_may_be_kept(mlp):
    fast = compiled(mlp)
    x = torch.randn(4, 16)
    fast(x).sum().backward()
    mlp.zero_grad()
    out = fast(x).square().sum()
    out.backward(retain_graph=True)
    once = mlp.first.weight.grad.clone()
    out.backward()
    torch.testing.assert_close(mlp.first.weight.grad, 2 * once)
    fast(x).square().sum().backward()
    torch.testing.assert_close(mlp.first.weight.grad, 3 * once)
    assert answered() == 2


def test_frozen_unused_and_shared_parameters():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen, self.unused, self.tied = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.also = self.tied
            self.frozen.requires_grad_(False)

        def forward(self, x):
            return self.also(F.relu(self.tied(F.gelu(self.frozen(x)))))
    model = Odd()
    same_within_eagers_error(model, compiled(model), (torch.randn(4, 8),))
    assert model.frozen.weight.grad is None and model.unused.weight.grad is None and answered() == 1


@pytest.mark.parametrize("frozen", ["the first layer", "all layers"])
def test_what_is_unfrozen_later_has_gradients(mlp, frozen):
    mlp.first.requires_grad_(False)
    if frozen == "all layers":
        mlp.requires_grad_(False)
    x = torch.randn(8, 16)

    def weights_gradients(call):
        mlp.zero_grad()
        out = call(x)
        if out.requires_grad:
            out.square().sum().backward()
        return {name: each.grad.clone() for name, each in mlp.named_parameters() if each.grad is not None}

    fast, found = compiled(mlp), []
    for unfrozen in ((), (mlp.second,), (mlp.first,), (mlp,)):
        for layer in unfrozen:
            layer.requires_grad_(True)
        for _ in range(2):
            mine = weights_gradients(fast)
        torch.testing.assert_close(mine, weights_gradients(mlp))
        found.append(len(mine))
    assert found == sorted(found) and found[-1] == len(list(mlp.parameters()))
    assert len(steps()) == len(set(found) - {0}) and answered() >= len(steps()), keirin.explain()
    mlp.first.requires_grad_(False)
    torch.testing.assert_close(weights_gradients(fast), weights_gradients(mlp))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(32, 96), nn.Linear(32, 4)

    def forward(self, x):
        q, k, v = self.into(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def test_attention_in_16_bits_is_not_cut():
    """A GPU's kernels return lengths beside their tensors, and take f64 for something else."""
    device = torch.get_default_device().type
    model = Attending()
    fast = compiled(model)
    for _ in range(3):
        with torch.autocast(device, torch.bfloat16):
            loss = fast(torch.randn(4, 16, 32)).float().square().sum()
        loss.backward()
    assert answered() == 2 * len(steps()) and not notes(), keirin.explain()  # Dynamo cuts where a default device is set
    for half in (steps()[-1].forward, steps()[-1].backward):
        assert "segments" not in half.text() and "not verified" not in half.text(), half.text()


class Keyed(nn.Module):
    """The gradient of a bias in front of a norm or of a softmax is nothing but roundings."""

    def __init__(self):
        super().__init__()
        self.into, self.norm = nn.Linear(24, 32), nn.BatchNorm1d(32)
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        x = F.relu(self.norm(self.into(x).transpose(1, 2)).transpose(1, 2))
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2) / 6, -1)
        return F.gelu(weights @ self.value(x))


def test_gradients_that_cancel_cost_no_region():
    model = Keyed().train()
    fast = compiled(model)
    for _ in range(3):
        fast(torch.randn(4, 20, 24)).square().mean().backward()
    assert answered() == 2 and not notes(), keirin.explain()
    text = steps()[-1].backward.text()
    assert "halved" not in text and "wrong" not in text and "not_verified" not in text, text


def test_an_output_that_nobody_differentiates():
    def two(x, w):
        return (x * w).tanh(), (x + w).sigmoid()
    fast = torch.compile(two, backend="keirin", options=NOW)
    x, w = torch.randn(3, 4), torch.randn(4, requires_grad=True)
    for _ in range(2):
        for k in (0, 1):
            a, = torch.autograd.grad(fast(x, w)[k].sum(), w)
            b, = torch.autograd.grad(two(x, w)[k].sum(), w)
            torch.testing.assert_close(a, b)
    assert answered() == 3


def test_a_head_that_the_loss_does_not_ask_is_left_alone():
    """It has no gradient, as in eager, and not zeros: weights decay and momenta go on under zeros."""
    sides = []
    for compile in (False, True):
        torch.manual_seed(1)
        model = Heads()
        call = compiled(model) if compile else model
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)
        asked = []
        for step in range(9):
            optimiser.zero_grad()
            left, right = call(torch.randn(8, 16))
            ((left.square().sum() if step % 3 != 1 else 0) + (right.square().sum() if step % 3 != 0 else 0)).backward()
            asked.append([name for name, each in model.named_parameters() if each.grad is not None])
            optimiser.step()
        sides.append((asked, dict(model.named_parameters())))
    (asked, eager), (mine, parameters) = sides
    assert mine == asked and len(asked[0]) == 4
    for name in eager:
        torch.testing.assert_close(parameters[name], eager[name], rtol=1e-4, atol=1e-5)
    assert answered() == 8, keirin.explain()


def test_gradients_of_convolutions_are_rows():
    """Also where the first one's input needs no gradient: that result is None."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, groups=2),
                        nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Flatten(), nn.Linear(256, 5))
    other = copy.deepcopy(net)
    fast = compiled(net)
    for _ in range(3):
        x = torch.randn(4, 3, 9, 9)
        for call, its in ((fast, net), (other, other)):
            its.zero_grad(set_to_none=True)
            call(x).square().mean().backward()
        for a, b in zip(net.parameters(), other.parameters()):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)
    assert answered() == 2, keirin.explain()
    assert "convolution_backward" not in keirin.explain()


def test_statistics_of_a_norm_have_the_versions_that_eager_gives_them():
    """Its kernels write them and tell nobody: a step of eager's that waits for its backward does not mind a compiled one in between."""
    model = nn.Sequential(nn.Linear(16, 8, bias=False), nn.BatchNorm1d(8)).train()
    eager = copy.deepcopy(model)
    fast = compiled(model)
    first = fast(torch.randn(4, 16)).square().mean()  # eager's, while the step is decided
    fast(torch.randn(4, 16)).square().mean().backward()
    first.backward()
    assert answered() == 1
    for _ in range(2):
        eager(torch.randn(4, 16))
    assert [each._version for each in model.buffers()] == [each._version for each in eager.buffers()]
