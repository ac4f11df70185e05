# SPDX-License-Identifier: Apache-2.0
"""Training through torch.compile(backend="keirin"): gradients are as near to fp64 as eager's, and everything around them is eager's."""
import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import keirin
from conftest import NOW, PLACE, compiled, reasons
from keirin import _training
from keirin._library import native, words_of
from of_training import answered, gradients, notes, steps

BACKGROUND = {key: value for key, value in NOW.items() if key != "compile"}


def same_within_eagers_error(model, fast, inputs, calls=2):
    """The compiled gradients of the last call, against fp64, beside eager's. What is zero but for roundings is compared by the largest."""
    for _ in range(calls):
        out, mine = gradients(fast, model, inputs)
    eager_out, eager = gradients(model, model, inputs)
    wide = copy.deepcopy(model).double()
    _, reference = gradients(wide, wide, [x.double() if x.is_floating_point() else x for x in inputs])
    torch.testing.assert_close(out, eager_out)
    assert mine.keys() == eager.keys() == reference.keys()
    largest = max(float(each.abs().max()) for each in reference.values())
    for name, truth in reference.items():
        own = float((eager[name].double() - truth).abs().max())
        error = float((mine[name].double() - truth).abs().max())
        assert error <= 4 * own + 1e-6 * max(float(truth.abs().max()), 1e-2 * largest), f"{name}: {error}, eager {own}"


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


class Residual(nn.Module):
    """Images in and out, as eager lays them out: a block of a network, compiled alone."""

    def __init__(self, drop=0.0):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 3, 3, padding=1)
        self.drop = drop

    def forward(self, x):
        return F.relu(x + self.second(F.dropout(F.relu(self.norm(self.first(x))), self.drop)))


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
    options = {key: value for key, value in NOW.items() if key != "compile"}
    step, x = torch.compile(make(), backend="keirin", options=options), inputs()
    step(*x).sum().backward()
    assert keirin.wait(120) and not reasons(), keirin.explain()
    assert len(steps()) == 1


def test_gradients_of_a_perceptron(mlp):
    same_within_eagers_error(mlp, compiled(mlp), (torch.randn(4, 16),))
    assert answered() == 1 and not notes() and not reasons()
    step = steps()[0]
    assert step.forward.handle.answered >= 1 and step.backward.handle.answered >= 1
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
    assert all(step.forward.handle.answered for step in steps())


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


def test_dropout_and_second_derivatives_where_sizes_are_symbols():
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 8))
    fast = torch.compile(model, backend="keirin", dynamic=True, options=NOW)

    def run(call, rows):
        x = torch.linspace(-1, 1, rows * 8).view(rows, 8).requires_grad_()
        torch.manual_seed(3)
        return torch.autograd.grad(call(x).square().sum(), [x, *model.parameters()])
    for rows in (5, 7, 5, 7):
        for mine, eager in zip(run(fast, rows), run(model, rows)):
            torch.testing.assert_close(mine, eager)
    assert answered() == 2, keirin.explain()
    model[1].p = 0.0
    x = torch.randn(5, 8, requires_grad=True)
    for _ in range(2):
        grad, = torch.autograd.grad(fast(x).square().sum(), x, create_graph=True)
        mine = torch.autograd.grad(grad.square().sum(), x)
    grad, = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    torch.testing.assert_close(mine, torch.autograd.grad(grad.square().sum(), x))
    assert answered() == 3, keirin.explain()


def test_the_first_call_does_not_wait_and_halves_are_never_mixed(mlp):
    fast = torch.compile(mlp, backend="keirin", options=BACKGROUND)
    x = torch.randn(4, 16)
    early = fast(x)  # eager's forward, whose backward comes after the change
    assert answered() == 0
    assert keirin.wait(120)
    late = fast(x)
    assert answered() == 1, keirin.explain()
    found = []
    for out in (early, late):
        mlp.zero_grad()
        out.square().sum().backward()
        found.append([each.grad.clone() for each in mlp.parameters()])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b)


def test_nothing_is_stale_after_an_optimiser_wrote_the_weights(mlp):
    other = copy.deepcopy(mlp)
    fast = compiled(mlp)
    mine, eager = (torch.optim.Adam(model.parameters(), lr=0.05) for model in (mlp, other))
    for step in range(6):
        x = torch.randn(4, 16)
        for call, model, optimiser in ((fast, mlp, mine), (other, other, eager)):
            optimiser.zero_grad()
            call(x).square().sum().backward()
            optimiser.step()
    assert answered() == 5
    for a, b in zip(mlp.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


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


@pytest.mark.parametrize("options", [NOW, BACKGROUND], ids=["now", "background"])
def test_dropout_draws_eagers_bits(options):
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 64), nn.Linear(64, 8)

        def forward(self, x):
            return F.dropout(self.b(F.dropout(self.a(x), 0.25).relu().t().contiguous().t()).t(), 0.5)
    model = Drops()
    fast = torch.compile(model, backend="keirin", options=options)
    x = torch.randn(6, 8)

    def run(call):
        outs = []
        for _ in range(5):
            model.zero_grad()
            out = call(x)
            out.square().sum().backward()
            outs.append((out.detach(), model.a.weight.grad.clone()))
            assert keirin.wait(120)
        return outs, torch.get_rng_state()
    torch.manual_seed(3)
    mine, state = run(fast)
    assert answered() == 4, keirin.explain()
    torch.manual_seed(3)
    eager, eagers = run(model)
    assert torch.equal(state, eagers)
    for (a, da), (b, db) in zip(mine, eager):
        assert torch.equal(a == 0, b == 0)
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(da, db)


def test_draws_that_are_repeated_are_eagers():
    """By steps on a GPU from a recording: of other forms, one behind the other, from the generator that eager draws from; what somebody
    keeps of a step before stays what it was."""
    device = torch.get_default_device()
    like = [torch.empty(6, 8, device=device), torch.empty(8, 6, device=device).t(), torch.empty(6, 8, dtype=torch.bfloat16, device=device)]

    def draw():
        return [torch.native_dropout(each, 0.3, True)[1] for each in like] + [torch.rand(5, device=device), like[0].new_empty(4).bernoulli_(0.5)]
    repeated = native.RepeatedDraws(draw, device)
    torch.manual_seed(3)
    kept, mine = [], []
    for step in range(12):
        drawn = repeated.draw()
        mine.append([each.clone() for each in drawn])
        if step % 5 == 3:
            kept.append((step, drawn))
        del drawn
    behind = torch.rand(1)
    torch.manual_seed(3)
    eager = [draw() for _ in mine]
    assert torch.equal(torch.rand(1), behind)
    for own, other in [*zip(mine, eager), *((drawn, eager[step]) for step, drawn in kept)]:
        for a, b in zip(own, other):
            assert a.dtype is b.dtype and a.stride() == b.stride() and torch.equal(a, b)


def test_what_cannot_be_drawn_is_raised():
    def draw():
        raise ValueError("nothing to draw from")
    with pytest.raises(ValueError, match="nothing to draw from"):
        native.RepeatedDraws(draw, torch.get_default_device()).draw()


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


def test_hooks(mlp):
    fast = compiled(mlp)
    x = torch.randn(4, 16)
    fast(x).sum().backward()
    seen = []
    handle = mlp.second.weight.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
    after = mlp.second.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    mlp.zero_grad()
    out = fast(x)
    out.register_hook(lambda grad: grad * 3)
    out.square().sum().backward()
    handle.remove(), after.remove()
    mine = mlp.second.weight.grad.clone()
    mlp.zero_grad()
    (3 * mlp(x).square().sum()).backward()
    torch.testing.assert_close(mine, 2 * mlp.second.weight.grad)
    torch.testing.assert_close(seen[0], mlp.second.weight.grad)
    torch.testing.assert_close(seen[1], mine)
    assert answered() >= 1


def test_checkpoint():
    from torch.utils.checkpoint import checkpoint

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(lambda y, layer=layer: F.gelu(layer(y)), x, use_reentrant=False)
            return x
    model = Deep()
    same_within_eagers_error(model, compiled(model), (torch.randn(4, 8),))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_around_a_compiled_module(mlp, reentrant):
    from torch.utils.checkpoint import checkpoint
    fast = compiled(mlp)
    x = torch.randn(4, 16, requires_grad=True)
    for _ in range(2):
        mlp.zero_grad()
        x.grad = None
        checkpoint(fast, x, use_reentrant=reentrant).square().sum().backward()
    mine = [x.grad, *(each.grad for each in mlp.parameters())]
    y = x.detach().requires_grad_()
    mlp.zero_grad(set_to_none=True)
    mlp(y).square().sum().backward()
    for a, b in zip(mine, [y.grad, *(each.grad for each in mlp.parameters())]):
        torch.testing.assert_close(a, b)
    assert (answered() > 0) == reentrant  # the other kind compares what both forwards save


def test_autocast_and_a_grad_scaler(monkeypatch):
    torch.manual_seed(0)
    slow = []  # halves that Python ran
    original = _training.plain_of

    def counted(gm):
        plain = torch.fx.GraphModule(gm, copy.copy(original(gm).graph))
        forward = plain.forward
        plain.forward = lambda *args: (slow.append(1), forward(*args))[1]
        return plain
    monkeypatch.setattr(_training, "plain_of", counted)
    device = torch.get_default_device().type
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))
    other = copy.deepcopy(model)
    fast = compiled(model)
    for call, net in ((fast, model), (other, other)):
        torch.manual_seed(1)
        scaler, optimiser = torch.amp.GradScaler(device, init_scale=256.0), torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimiser.zero_grad()
            with torch.autocast(device, torch.bfloat16):
                out = call(torch.randn(4, 16))
                assert out.dtype == torch.bfloat16
                loss = out.float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
    assert answered() == 3, keirin.explain()
    assert len(slow) == 2, "what eager would say, once for each half; the calls are the runtime's"
    for a, b in zip(model.parameters(), other.parameters()):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)


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


def test_no_grad_in_between(mlp):
    fast = compiled(mlp)
    x = torch.randn(4, 16)
    for _ in range(3):
        mlp.zero_grad()
        fast(x).sum().backward()
        with torch.no_grad():
            assert not fast(x).requires_grad
            mlp.first.weight.mul_(0.9)
            torch.testing.assert_close(fast(x), mlp(x))
    assert answered() == 2


def test_a_step_inside_of_the_compiled_function(mlp):
    def loss_of(x, target):
        return F.cross_entropy(mlp(x), target)
    fast = torch.compile(loss_of, backend="keirin", options=NOW)
    x, target = torch.randn(6, 16), torch.tensor([1, 0, -100, 3, 7, 2])
    for _ in range(3):
        mlp.zero_grad()
        loss = fast(x, target)
        loss.backward()
    mine = [each.grad.clone() for each in mlp.parameters()]
    mlp.zero_grad()
    eager = loss_of(x, target)
    eager.backward()
    torch.testing.assert_close(loss, eager)
    for a, b in zip(mine, mlp.parameters()):
        torch.testing.assert_close(a, b.grad)
    assert answered() == 2


def test_inputs_that_are_written():
    def bump(x, w):
        x.mul_(2)
        return (x * w).relu()
    fast = torch.compile(bump, backend="keirin", options=NOW)
    w = torch.randn(4, requires_grad=True)
    for _ in range(3):
        x = torch.randn(3, 4)
        mine, eager = x.clone(), x.clone()
        a, = torch.autograd.grad(fast(mine, w).sum(), w)
        b, = torch.autograd.grad(bump(eager, w).sum(), w)
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(mine, eager)
    assert answered() == 2


def test_outputs_that_are_views_or_inputs():
    def odd(x, w):
        y = (x * w).relu()
        return y.t(), y.view(-1), x, y.detach(), x.shape[0]
    fast = torch.compile(odd, backend="keirin", options=NOW)
    x, w = torch.randn(3, 4), torch.randn(4, requires_grad=True)
    for _ in range(3):
        turned, flat, same, constant, rows = fast(x, w)
        assert same is x and rows == 3 and not constant.requires_grad
        a, = torch.autograd.grad((turned.square().sum() + flat.sum()), w)
        turned, flat, _, other, _ = odd(x, w)
        b, = torch.autograd.grad((turned.square().sum() + flat.sum()), w)
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(constant, other)
    assert answered() == 2, keirin.explain()


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


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(16, 32), nn.Linear(32, 4), nn.Linear(32, 3)

    def forward(self, x):
        hidden = torch.tanh(self.trunk(x))
        return self.left(hidden), self.right(hidden)


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


def test_a_second_derivative_where_the_loss_does_not_ask_a_head():
    model = Heads()
    fast = compiled(model)
    x = torch.randn(4, 16, requires_grad=True)

    def penalty(call):
        grad, = torch.autograd.grad(call(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), [x, model.left.weight])
    penalty(fast)
    for mine, eager in zip(penalty(fast), penalty(model)):
        torch.testing.assert_close(mine, eager)
    assert answered() == 1


def test_a_step_that_is_dropped_gives_its_memory_back(mlp):
    fast = compiled(mlp)
    x = torch.randn(4, 16)
    for _ in range(3):
        fast(x).sum().backward()
    assert answered() == 2
    step = weakref.ref(steps()[0])
    del fast
    torch.compiler.reset()
    gc.collect()
    assert step() is None and not steps()


def test_a_backward_on_another_thread(mlp):
    fast = compiled(mlp)
    x = torch.randn(4, 16)
    fast(x).sum().backward()
    mlp.zero_grad()
    loss = fast(x).square().sum()
    thread = threading.Thread(target=loss.backward)
    thread.start(), thread.join()
    mine = [each.grad.clone() for each in mlp.parameters()]
    mlp.zero_grad()
    mlp(x).square().sum().backward()
    for a, b in zip(mine, mlp.parameters()):
        torch.testing.assert_close(a, b.grad)
    assert answered() == 1


def test_a_weight_written_between_forward_and_backward_is_refused_as_eager_does(mlp):
    fast = compiled(mlp)
    x = torch.randn(4, 16)
    fast(x).sum().backward()
    out = fast(x).square().sum()
    assert answered() == 1
    with torch.no_grad():
        mlp.second.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_sizes_that_change(mlp):
    fast = torch.compile(mlp, backend="keirin", dynamic=True, options=NOW)
    for batch in (4, 9, 4, 9, 5):
        x = torch.randn(batch, 16)
        _, mine = gradients(fast, mlp, (x,))
        _, eager = gradients(mlp, mlp, (x,))
        for name in eager:
            torch.testing.assert_close(mine[name], eager[name])
    assert len(steps()) == 3 and answered() == 2, keirin.explain()


def test_a_wrong_gradient_is_found_and_eager_answers(mlp, monkeypatch):
    def wrong(half, arguments):
        results = list(half.callable(*arguments))
        if half.name.endswith("backward"):
            results[0] = results[0] * (1 + 1e-4)
        return results
    monkeypatch.setattr(_training, "_compiled", wrong)
    fast = compiled(mlp)
    x = torch.randn(4, 16)
    for _ in range(2):
        fast(x).sum().backward()
    assert answered() == 0 and any("wrong_result: the gradient of" in note for note in notes()), notes()


def test_where_eager_is_faster_eager_answers(mlp):
    fast = compiled(mlp, force="eager")
    x = torch.randn(4, 16)
    for _ in range(3):
        fast(x).sum().backward()
    assert answered() == 0


def test_the_race_decides(mlp):
    fast = torch.compile(mlp, backend="keirin", options={"compile": "now", "race_seconds": 0.3})
    x = torch.randn(4, 16)
    for _ in range(3):
        fast(x).sum().backward()
    race = steps()[0].race
    assert race["rows"][0]["name"] == "eager" and race["rows"][1]["name"] == "compiled"
    assert answered() == (2 if race["rows"][1]["outcome"] == "accept" else 0)
    assert "forward and backward: eager" in keirin.explain()


def test_less_memory_is_kept_where_less_is_allowed():
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32))])
    x = torch.randn(64, 32)
    kept = []
    for budget in (1.0, 0.0):
        torch.compiler.reset()
        fast = compiled(model, memory_budget=budget)
        same_within_eagers_error(model, fast, (x,))
        forward = [step for step in steps() if step.answered][-1].forward
        names = {node.name for node in forward.inputs}
        returned = next(node for node in reversed(forward.gm.graph.nodes) if node.op == "output").args[0]
        kept.append(sum(node.meta["val"].numel() for node in returned[1:] if node.name not in names))
    assert kept[1] < kept[0] / 2
    with pytest.raises(Exception, match="memory_budget is 2"):
        compiled(model, memory_budget=2)(x)



def test_dropout_of_images_draws_eagers_bits():
    """Which element gets which number is a matter of strides: these convolutions stay as eager has them."""
    model, x = Residual(0.5), torch.randn(4, 3, 8, 8)
    fast = compiled(model)
    for seed in range(3):
        out, mine = gradients(fast, model, (x,), seed)
        eager_out, eager = gradients(model, model, (x,), seed)
        torch.testing.assert_close(out, eager_out)
        for name in eager:
            torch.testing.assert_close(mine[name], eager[name], rtol=1e-4, atol=1e-4)
    assert answered() == 2, keirin.explain()


def test_a_second_derivative_is_eagers(mlp):
    fast = compiled(mlp)
    x = torch.randn(4, 16, requires_grad=True)
    fast(x).sum().backward()

    def penalty(call):
        grad, = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), [x, *mlp.parameters()])
    for mine, eager in zip(penalty(fast), penalty(mlp)):
        torch.testing.assert_close(mine, eager)
    assert answered() == 1


def test_a_second_derivative_that_eager_cannot_take_is_refused_with_a_word():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    fast = compiled(model)
    x = torch.randn(4, 8, requires_grad=True)
    for _ in range(2):
        out = fast(x).square().sum()
    assert answered() == 1
    with pytest.raises(RuntimeError, match="a second derivative of a compiled training step that writes its buffers"):
        torch.autograd.grad(out, x, create_graph=True)


def curve(call, model, data, loss_of, steps=200):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        x, y = data[step % len(data)]
        optimiser.zero_grad()
        loss = loss_of(call(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def small_transformer():
    return nn.Sequential(nn.Embedding(12, 16), nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), nn.Linear(16, 12))


CURVES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)),
            lambda: (torch.randn(16, 16), torch.randint(0, 4, (16,))), F.cross_entropy),
    "cnn": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                  nn.Linear(8, 4)),
            lambda: (torch.randn(8, 3, 8, 8), torch.randint(0, 4, (8,))), F.cross_entropy),
    "transformer": (small_transformer, lambda: (torch.randint(0, 12, (4, 6)), torch.randint(0, 12, (4, 6))),
                    lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten())),
}


@pytest.mark.parametrize("name", CURVES)
def test_two_hundred_steps_learn_as_eager_does(name):
    """The distance from eager's curve of the same seed is below that between eager's curves of different seeds."""
    make, sample, loss_of = CURVES[name]
    torch.manual_seed(0)
    data = [sample() for _ in range(4)]

    def run(seed, fast=False):
        torch.manual_seed(seed)
        model = make()
        return curve(compiled(model) if fast else model, model, data, loss_of)
    eager = torch.stack([run(seed) for seed in range(3)])
    mine = run(0, fast=True)
    assert answered() >= 199, keirin.explain()
    spread = (eager[1:] - eager[0]).abs().mean()
    distance = (mine - eager[0]).abs().mean()
    assert mine[-20:].mean() < mine[:20].mean() * 0.9 and distance < spread, (distance, spread)


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


def rounded_half(model, inputs):
    fast = compiled(model)
    fast(*inputs).sum().backward()
    step = steps()[-1]
    arguments = [*model.parameters(), *inputs]
    named = {tuple(each.shape): each for each in arguments}
    return step.forward, [named[tuple(node.meta["val"].shape)] for node in step.forward.inputs]


def test_roundings_move_numbers_by_what_their_dtypes_cost(mlp):
    half, arguments = rounded_half(mlp, (torch.randn(4, 16),))
    with torch.no_grad():
        exact = _training._in_double(half, arguments)[0]
        moved = {}
        for tf32 in (False, True):
            runs = [_training._rounded(seed, tf32)(half, arguments)[0] for seed in (1, 2)]
            assert not torch.equal(*runs) and torch.equal(runs[0], _training._rounded(1, tf32)(half, arguments)[0])
            moved[tf32] = max((each - exact).abs().max().item() for each in runs)
    scale = exact.abs().max().item()
    assert 1e-8 * scale < moved[False] < 1e-5 * scale < moved[True] < 1e-2 * scale


@pytest.mark.parametrize("off, right", [(1e-7, True), (3e-4, True), (1e-2, False)])
def test_a_step_is_right_as_far_as_roundings_explain(off, right):
    """Roundings that move a number by 1e-4 explain an answer that is four times as far, and no more."""
    wide = torch.randn(64, dtype=torch.float64)
    eager = wide.float()
    mine = (wide * (1 + off)).float()
    asked = []

    def rounded(seed, tf32):
        asked.append((seed, tf32))
        return [wide * (1 + 1e-4)]
    judged = _training.native.judge([wide], [eager], [mine], ["output 0"], 0, words_of({"device": PLACE.get("device", "cpu")}), rounded)
    assert judged["right"] == right and bool(asked) == (off > 1e-6)
    assert right or "roundings move it by" in judged["reason"]
