# SPDX-License-Identifier: Apache-2.0
"""Random numbers of training steps: eager's bits, from eager's generator."""
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import keirin
from conftest import NOW, compiled, reasons
from keirin._library import native
from of_training import BACKGROUND, answered, gradients, steps


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


def lasting(model, fast, x, calls=5):
    """Outputs and a gradient of as many steps, and the generator's state behind them."""
    outs = []
    torch.manual_seed(3)
    for _ in range(calls):
        model.zero_grad()
        out = fast(x)
        out.square().sum().backward()
        outs.append((out.detach(), model.first.weight.grad.clone()))
        assert keirin.wait(120)
    return outs, torch.rand(1)


SAMPLES = {
    "gumbel": lambda h: F.gumbel_softmax(h, tau=0.7),
    "gumbel, hard": lambda h: F.gumbel_softmax(h, hard=True) * h,
    "jitter": lambda h: h * torch.empty_like(h).uniform_(0.9, 1.1),
    "latent": lambda h: h + torch.randn_like(h) * torch.exp(0.1 * h),
    "noise": lambda h: F.dropout(h + torch.empty_like(h).normal_(0, 0.1), 0.2) * torch.rand_like(h),
    "paths": lambda h: F.dropout(h, 0.5) * h.new_empty(h.shape[0], 1).bernoulli_(0.7),
    "exponential": lambda h: h * torch.empty_like(h, memory_format=torch.contiguous_format).exponential_(2.0).clamp(max=3),
}


class Sampled(nn.Module):
    def __init__(self, sample):
        super().__init__()
        self.first, self.second, self.sample = nn.Linear(8, 16), nn.Linear(16, 4), sample

    def forward(self, x):
        return self.second(self.sample(torch.tanh(self.first(x))))


@pytest.mark.parametrize("options", [NOW, BACKGROUND], ids=["now", "background"])
@pytest.mark.parametrize("sample", SAMPLES)
def test_what_sizes_and_numbers_draw_is_drawn_before(sample, options):
    model = Sampled(SAMPLES[sample])
    fast = torch.compile(model, backend="keirin", options=options)
    x = torch.randn(6, 8)
    mine, behind = lasting(model, fast, x)
    assert answered() == 4 and not reasons(), keirin.explain()
    assert steps()[-1].forward.draws and not steps()[-1].forward.draws_inside
    eager, eagers = lasting(model, model, x)
    assert torch.equal(behind, eagers)
    for (a, da), (b, db) in zip(mine, eager):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(da, db)


def test_what_data_draws_comes_in_eagers_order():
    model = Sampled(lambda h: F.dropout(F.dropout(h, 0.2) * torch.bernoulli(torch.sigmoid(h.detach())), 0.5))
    x = torch.randn(6, 8)
    fast = compiled(model)
    mine, behind = lasting(model, fast, x)
    assert answered() == 4 and len(steps()[-1].forward.draws) == 1, keirin.explain()
    eager, eagers = lasting(model, model, x)
    assert torch.equal(behind, eagers)
    for (a, da), (b, db) in zip(mine, eager):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(da, db)
    torch.compiler.reset()
    once = torch.compile(model, backend="keirin", options=BACKGROUND)
    once(x).sum().backward()
    assert any("depend on data" in reason for reason in reasons()), reasons()


def test_draws_that_are_repeated_are_eagers():
    """By steps on a GPU from a recording: of other forms, one behind the other, from the generator that eager draws from; what somebody
    keeps of a step before stays what it was."""
    device = torch.get_default_device()
    like = [torch.empty(6, 8, device=device), torch.empty(8, 6, device=device).t(), torch.empty(6, 8, dtype=torch.bfloat16, device=device)]

    def draw():
        masks = [torch.native_dropout(each, 0.3, True)[1] for each in like]
        return [*masks, torch.rand(5, device=device), like[0].new_empty(4).bernoulli_(0.5)]

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


class Residual(nn.Module):
    """Images in and out, as eager lays them out: a block of a network, compiled alone."""

    def __init__(self, drop=0.0):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 3, 3, padding=1)
        self.drop = drop

    def forward(self, x):
        return F.relu(x + self.second(F.dropout(F.relu(self.norm(self.first(x))), self.drop)))


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
