# SPDX-License-Identifier: Apache-2.0
"""How tensors lie in memory inside of a training step, and what the caller sees of it."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import keirin
from conftest import PLACE, compiled
from of_training import answered, count_slow, gradients, notes, same_within_eagers_error, steps


class Images(nn.Module):
    """Convolutions, and what is then done with an image that has its channels first."""

    def __init__(self, end):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.end = nn.Conv2d(8, 8, 3, stride=2, padding=1), end

    def forward(self, x):
        return self.end(self.second(F.relu(self.norm(self.first(x)))))


ENDS = {
    "an image": (lambda y: y, True),
    "a mean": (lambda y: y.mean((2, 3)), True),
    "rows": (lambda y: y.flatten(1), True),
    "a view": (lambda y: y.view(y.shape[0], -1) * 2, False),  # of channels first alone
    "an image and its rows": (lambda y: (y, y.flatten(2)), False),  # of one memory
    "a dropped image": (lambda y: F.dropout(y, 0.3), False),  # drawn in the order of memory
    "a dropped sequence": (lambda y: F.dropout(y.flatten(2).transpose(1, 2), 0.3), False),
    "dropped rows": (lambda y: F.dropout(y.flatten(1), 0.3), True),
    "paths that are dropped": (lambda y: y * y.new_empty(y.shape[0], 1, 1, 1).bernoulli_(0.7), True),
    "an image and itself, written": (lambda y: (y, y.relu_()), False),
    "a transposed image": (lambda y: y.transpose(1, 2), False),
}


@pytest.mark.parametrize("end", ENDS)
def test_images_lie_channels_last_inside_of_a_step(end, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # eager's own answers would differ by its roundings
    how, moves = ENDS[end]
    model = Images(how).train()
    eager = copy.deepcopy(model)
    fast = compiled(model)
    x = torch.randn(2, 3, 12, 10)
    for _ in range(2):
        _, mine = gradients(fast, model, (x,))
    wide = copy.deepcopy(eager).double()
    _, own = gradients(eager, eager, (x,))
    if "dropped" not in end:
        _, reference = gradients(wide, wide, (x.double(),))
        for name, exact in reference.items():
            far = (own[name] - exact).abs().max().item()
            assert (mine[name] - exact).abs().max().item() <= 4 * far + 1e-4 * exact.abs().max().item(), name
    torch.manual_seed(3)
    theirs = eager(x)
    torch.manual_seed(3)
    ours = fast(x)
    for a, b in zip(*[each if isinstance(each, tuple) else (each,) for each in (theirs, ours)]):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
        assert a.stride() == b.stride()
    if isinstance(ours, tuple):
        assert ours[0].data_ptr() == ours[1].data_ptr()
    assert answered() and not notes(), keirin.explain()
    step = steps()[-1]
    lies = [node.meta["val"].is_contiguous(memory_format=torch.channels_last) for node in step.forward.gm.graph.nodes
            if node.target is torch.ops.aten.convolution.default]
    assert all(lies) == moves, end


def test_batch_norms_of_half_precision_keep_what_eager_keeps():
    """Tracers say that statistics are of half precision, too."""
    model = Images(lambda y: y.mean((2, 3))).train()
    fast = compiled(model)
    for _ in range(2):
        with torch.autocast(torch.get_default_device().type, torch.bfloat16):
            out = fast(torch.randn(2, 3, 12, 10))
        out.float().square().mean().backward()
    assert answered() and not notes(), keirin.explain()
    assert "wrong_result" not in steps()[-1].forward.text(), keirin.explain()


def test_a_step_of_a_channels_last_model_is_laid_out_as_it_is(monkeypatch):
    slow = count_slow(monkeypatch)
    model = Images(lambda y: y).train().to(memory_format=torch.channels_last)
    eager = copy.deepcopy(model)
    fast = compiled(model)
    for _ in range(2):
        x = torch.randn(2, 3, 12, 10).to(memory_format=torch.channels_last).requires_grad_()
        _, mine = gradients(fast, model, (x,))
        _, own = gradients(eager, eager, (x,))
        assert {name: each.stride() for name, each in mine.items()} == {name: each.stride() for name, each in own.items()}
        assert fast(x).stride() == eager(x).stride()
    assert answered() and not notes(), keirin.explain()
    assert not slow, "the calls are the runtime's"


class NormedImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, 16), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))


class Looking(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)

    def forward(self, x):
        q, k, v = self.qkv(x).view(x.shape[0], 3, 2, 8, -1).transpose(-1, -2).unbind(1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(x.shape))


@pytest.mark.parametrize("make", [NormedImages, Looking])
def test_what_reads_images_as_they_lie_is_judged_as_they_lie(make):
    """LibTorch's kernels of group norms and of attention read memory as if it lay as in what was traced: in 64-bit floats it does not."""
    model = make().train()
    eager = copy.deepcopy(model)
    fast = compiled(model)
    near = 2e-2 if PLACE else 2e-3  # a GPU's convolutions are TF32
    for _ in range(2):
        x = torch.randn(2, 16, 6, 7)
        _, mine = gradients(fast, model, (x,))
        _, own = gradients(eager, eager, (x,))
        for name, each in own.items():
            torch.testing.assert_close(mine[name], each, rtol=near, atol=near)
    assert answered() and not notes(), keirin.explain()
    step = steps()[-1]
    for half in (step.forward, step.backward):
        assert "native_group_norm" not in half.text() and "not verified" not in half.text(), half.text()


def test_gradients_of_channels_last_steps_lie_as_the_weights_do():
    model = Images(lambda y: y.mean((2, 3))).train()
    fast = compiled(model)
    for _ in range(2):
        model.zero_grad()
        fast(torch.randn(2, 3, 12, 10)).square().sum().backward()
    assert answered()
    assert all(each.grad.stride() == each.stride() for each in model.parameters())
    backward = steps()[-1].backward.gm
    grads = next(node for node in reversed(backward.graph.nodes) if node.op == "output").args[0]
    assert all(each.meta["val"].is_contiguous() for each in grads if each is not None)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x):
        heads = [each.unflatten(-1, (8, 32)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)]
        return self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


def test_heads_that_lie_between_each_other_share_nothing():
    """What the backward reads of query, key and value lies in one tensor, and each has more elements than could be looked at singly."""
    model = Heads().train()
    fast = compiled(model)
    for _ in range(2):
        gradients(fast, model, (torch.randn(16, 37, 256),))
    assert answered() and not notes(), keirin.explain()
    assert "share memory" not in steps()[-1].forward.text(), steps()[-1].forward.text()


class Sequence(nn.Module):
    """An image as a sequence of its places, as vision transformers have it, and what is asked of all of them."""

    def __init__(self, pool):
        super().__init__()
        self.places, self.norm, self.turn, self.pool = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8), nn.Linear(8, 8), pool

    def forward(self, x):
        rows = self.norm(self.places(x).flatten(2).transpose(1, 2))
        return self.pool(self.turn(rows).transpose(1, 2)).flatten(1)


class Volume(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.pool = nn.Conv3d(2, 4, 3, padding=1), nn.AdaptiveAvgPool3d(1)

    def forward(self, x):
        return self.pool(torch.tanh(self.first(x)).contiguous(memory_format=torch.channels_last_3d)).flatten(1)


@pytest.mark.parametrize("make, shape", [(lambda: Sequence(nn.AdaptiveAvgPool1d(1)), (2, 3, 8, 6)),
                                         (lambda: Sequence(lambda y: F.adaptive_avg_pool1d(y, (1,))), (2, 3, 8, 6)),
                                         (Volume, (2, 2, 4, 5, 6))])
def test_a_mean_of_all_places_is_shown_by_its_values(make, shape):
    """AOTAutograd shows it through its memory, which no graph says."""
    model = make().train()
    fast = compiled(model)
    same_within_eagers_error(model, fast, (torch.randn(shape),))
    assert answered() and not notes(), keirin.explain()
    step = steps()[-1]
    assert "runs as a whole in eager" not in step.forward.text() + step.backward.text(), keirin.explain()


class Stages(nn.Module):
    """From one stage's rows to an image, copied into order, and to the next one's rows: a norm keeps them as the convolution left them."""

    def __init__(self):
        super().__init__()
        self.norm1, self.places, self.norm2, self.turn = nn.LayerNorm(8), nn.Conv2d(8, 16, 3, 2, 1), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        image = self.norm1(x).reshape(x.shape[0], 8, 6, 8).permute(0, 3, 1, 2).contiguous()
        return self.turn(self.norm2(self.places(image).flatten(2).transpose(1, 2)))


def test_results_of_three_dimensions_lie_as_eagers_do():
    model = Stages().train()
    fast = compiled(model)
    same_within_eagers_error(model, fast, (torch.randn(2, 48, 8),))
    assert answered() and not notes(), keirin.explain()
    step = steps()[-1]
    assert "runs as a whole in eager" not in step.forward.text() + step.backward.text(), keirin.explain()


class Biased(nn.Module):
    """Attention with a bias that is learned, of rows that begin at no multiple of 16 bytes unless they are padded, as eager's are."""

    def __init__(self, length, turned):
        super().__init__()
        self.qkv, self.turned = nn.Linear(32, 96), turned
        self.bias = nn.Parameter(torch.randn(1, 4, length, length) * 0.1)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        bias = torch.tanh(self.bias)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.transpose(-1, -2) if self.turned else bias).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("length", [13, 16, 17])
def test_a_bias_of_attention_is_read_as_its_kernel_wants_it(length, turned):
    model = Biased(length, turned).train()
    fast = compiled(model)
    same_within_eagers_error(model, fast, (torch.randn(2, length, 32),))
    assert answered() and not notes(), keirin.explain()


class Pooled(nn.Module):
    """What a mean of neighbours has beyond its middle, as PoolFormer mixes places: over a whole image its gradients cancel."""

    def __init__(self):
        super().__init__()
        self.places, self.norm, self.pool = nn.Conv2d(3, 8, 2, 2), nn.GroupNorm(1, 8), nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.scale = nn.Parameter(1e-2 * torch.ones(8))

    def forward(self, x):
        image = self.places(x)
        rows = self.norm(image)
        return image + self.scale[:, None, None] * (self.pool(rows) - rows)


@pytest.mark.parametrize("side", [4, 6, 16])
def test_gradients_of_a_mean_of_neighbours_cancel_as_eagers_do(side, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = Pooled().train()
    fast = compiled(model)
    x = torch.randn(2, 3, side, side)
    same_within_eagers_error(model, fast, (x,))
    _, mine = gradients(fast, model, (x,))
    largest = max(each.abs().max() for each in mine.values())
    assert mine["norm.bias"].abs().max() <= 1e-5 * largest, "what the pool takes of one place it gives to others"
    assert answered() and not notes(), keirin.explain()
