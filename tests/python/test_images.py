# SPDX-License-Identifier: Apache-2.0
"""Images in training steps: norms and pools by formulas of their own, and all else that lies channels-last, with eager's gradients."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import keirin
from conftest import PLACE, compiled
from keirin import _images
from keirin._layouts import _format_of
from of_training import answered, notes, steps


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    monkeypatch.setattr(_images, "devices", {"cpu", "cuda"})
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


class Between(nn.Module):
    """Something between two convolutions, so that it is done channels-last."""

    def __init__(self, what, channels=12):
        super().__init__()
        self.first, self.what, self.second = nn.Conv2d(3, channels, 3, padding=1), what, nn.Conv2d(channels, 4, 1)

    def forward(self, x):
        return self.second(self.what(self.first(x)))


def calls_of():
    step, = steps()
    return " ".join(str(node.target) for half in (step.forward, step.backward) for node in half.gm.graph.nodes)


def as_eager(model, x):
    wide, eager, fast = copy.deepcopy(model).double(), copy.deepcopy(model), compiled(model)
    for _ in range(2):
        model.zero_grad()
        mine = fast(x)
        mine.square().sum().backward()
    own, exact = eager(x), wide(x.double())
    own.square().sum().backward(), exact.square().sum().backward()
    torch.testing.assert_close(mine, own, rtol=1e-4, atol=1e-5)
    for a, b, c in zip(model.parameters(), eager.parameters(), wide.parameters()):
        far, size = (b.grad - c.grad).abs().max().item(), c.grad.abs().max().item()
        assert (a.grad - c.grad).abs().max().item() <= 4 * far + 1e-5 * size and _format_of(a.grad) == _format_of(b.grad)
    assert answered() and not notes(), keirin.explain()


@pytest.mark.parametrize("groups, affine", ((1, True), (4, True), (12, False), (3, False)))
def test_group_norms(groups, affine):
    norm = nn.GroupNorm(groups, 12, affine=affine)
    with torch.no_grad():
        for each in norm.parameters():
            each.normal_()
    as_eager(Between(nn.Sequential(norm, nn.SiLU())), torch.randn(3, 3, 9, 7))
    assert "group_norm" not in calls_of() and "var_mean" in calls_of()


def test_a_model_that_is_channels_last():
    model = Between(nn.GroupNorm(4, 12)).to(memory_format=torch.channels_last)
    x = torch.randn(3, 3, 9, 7).to(memory_format=torch.channels_last)
    as_eager(model, x)
    assert "group_norm" not in calls_of() and model(x).is_contiguous(memory_format=torch.channels_last)


def test_a_group_norm_of_half_precision():
    model = Between(nn.GroupNorm(4, 12))
    eager, fast = copy.deepcopy(model), compiled(model)
    kind = PLACE.get("device", "cpu").split(":")[0]
    x = torch.randn(2, 3, 8, 8)
    for _ in range(2):
        model.zero_grad(), eager.zero_grad()
        with torch.autocast(kind, torch.bfloat16):
            mine, own = fast(x), eager(x)
        assert mine.dtype == own.dtype
        mine.float().square().sum().backward(), own.float().square().sum().backward()
    for a, b in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=5e-2, atol=5e-2 * b.grad.abs().max().item())
    assert answered(), keirin.explain()


POOLS = [dict(kernel_size=3, stride=2, padding=1), dict(kernel_size=2), dict(kernel_size=3, stride=1, padding=1),
         dict(kernel_size=(2, 3), stride=(3, 1), padding=(1, 0)), dict(kernel_size=5, stride=3, padding=2)]


@pytest.mark.parametrize("words", POOLS, ids=str)
def test_max_pools(words):
    as_eager(Between(nn.MaxPool2d(**words)), torch.randn(2, 3, 11, 10))
    assert "max_pool" not in calls_of()


@pytest.mark.parametrize("words", POOLS, ids=str)
def test_max_pools_of_equal_and_special_elements(words):
    """Of equal ones the first has the gradient, of NaN the last, and of a window of -inf the first inside."""
    pool = nn.MaxPool2d(**words)
    x = torch.randint(0, 3, (2, 4, 11, 10)).float()
    x[0, 0, 2, 3] = x[0, 1, 2:4, 3:5] = x[1, 2, 0, 0] = torch.nan
    if not PLACE:  # eager's channels-last kernel on GPUs gives such a window's gradient to the first pixel of all
        x[0, 2] = x[1, 0, :6, :6] = -torch.inf
    x[1, 3, 5] = torch.inf
    mine, own = (x.clone().contiguous(memory_format=torch.channels_last).requires_grad_() for _ in range(2))
    kernel, stride, padding = (_images._pair(each) for each in (pool.kernel_size, pool.stride, pool.padding))
    found, wanted = _images._MaxPool.apply(mine, kernel, stride, padding), pool(own)
    weight = torch.randn_like(wanted)
    torch.testing.assert_close(found, wanted, equal_nan=True, rtol=0, atol=0)
    found.backward(weight), wanted.backward(weight)
    torch.testing.assert_close(mine.grad, own.grad, rtol=1e-6, atol=1e-6)


MEANS = [*POOLS, dict(kernel_size=3, stride=1, padding=1, count_include_pad=False),
         dict(kernel_size=3, stride=2, padding=1, ceil_mode=True),
         dict(kernel_size=(4, 2), stride=3, padding=(2, 0), ceil_mode=True, count_include_pad=False), dict(kernel_size=(11, 10)),
         dict(kernel_size=7, stride=1, padding=3), dict(kernel_size=3, stride=2, padding=1, divisor_override=5)]


@pytest.mark.parametrize("words", MEANS, ids=str)
def test_means_of_windows(words):
    as_eager(Between(nn.AvgPool2d(**words)), torch.randn(2, 3, 11, 10))
    assert "avg_pool2d_backward" not in calls_of()


def _attention(y):
    heads = y.flatten(2).transpose(1, 2).reshape(2, -1, 3, 4).transpose(1, 2)
    return y + F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2).transpose(1, 2).reshape(y.shape)


def _sampled(y):
    turned = torch.eye(2, 3, dtype=y.dtype, device=y.device).mul(0.7).expand(2, 2, 3)
    return F.grid_sample(y, F.affine_grid(turned, (2, 12, 7, 6), False), align_corners=False)


OTHERS = {
    "adaptive mean": nn.AdaptiveAvgPool2d((3, 4)),
    "adaptive max": nn.AdaptiveMaxPool2d((3, 4)),
    "norm of windows": nn.LPPool2d(2, 3, 2),
    "max, dilated": nn.MaxPool2d(3, 2, 1, dilation=2),
    "max, ceiled": nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "nearest": nn.Upsample(scale_factor=2),
    "nearest to": nn.Upsample((15, 17)),
    "bilinear": nn.Upsample((15, 17), mode="bilinear"),
    "bilinear by corners": nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
    "bicubic": nn.Upsample((15, 17), mode="bicubic"),
    "smaller": lambda y: F.interpolate(y, (5, 4), mode="bilinear", antialias=True),
    "area": lambda y: F.interpolate(y, (5, 4), mode="area"),
    "batch norm": nn.BatchNorm2d(12),
    "batch norm in use": nn.BatchNorm2d(12).eval(),
    "instance norm": nn.InstanceNorm2d(12, affine=True),
    "neighbours": nn.LocalResponseNorm(4),
    "reflection": nn.ReflectionPad2d(2),
    "replication": nn.ReplicationPad2d((1, 2, 0, 3)),
    "zeros around": nn.ZeroPad2d(2),
    "shuffle": nn.Sequential(nn.PixelShuffle(2), nn.Conv2d(3, 12, 1)),
    "unshuffle": nn.Sequential(nn.ConstantPad2d((0, 0, 0, 1), 0.5), nn.PixelUnshuffle(2), nn.Conv2d(48, 12, 1)),
    "channels": nn.ChannelShuffle(3),
    "one slope each": nn.PReLU(12),
    "softmax": nn.Softmax2d(),
    "depthwise": nn.Conv2d(12, 12, 3, 2, 1, groups=12),
    "groups, dilated": nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=3),
    "reflected": nn.Conv2d(12, 12, 3, padding=1, padding_mode="reflect"),
    "transposed": nn.ConvTranspose2d(12, 12, 3, 2, 1, 1),
    "gated": nn.Sequential(nn.GLU(1), nn.Conv2d(6, 12, 1)),
    "roll": lambda y: torch.roll(y, (1, -2), (2, 3)),
    "flip": lambda y: y.flip(3),
    "turned": lambda y: torch.rot90(y, 1, (2, 3)),
    "patches": lambda y: F.fold(F.unfold(y, 3, padding=1), y.shape[2:], 3, padding=1),
    "sums": lambda y: y.cumsum(2),
    "mean of rows": lambda y: y - y.mean(3, keepdim=True),
    "largest channel": lambda y: y - y.amax(1, keepdim=True),
    "sampled": _sampled,
    "rows of places": lambda y: y + F.layer_norm(y.flatten(2).transpose(1, 2), (12,)).transpose(1, 2).reshape(y.shape),
    "attention": _attention,
}


class Does(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return self.what(x)


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_done_to_images_between_convolutions(what):
    """LibTorch's own kernels answer most of these, and are not all right wherever images lie: the reference has channels first."""
    its = OTHERS[what]
    its = copy.deepcopy(its).to(PLACE.get("device", "cpu")) if isinstance(its, nn.Module) else Does(its)
    as_eager(Between(its), torch.randn(2, 3, 11, 10))


def test_gradients_of_doubles_are_doubles():
    x = torch.randn(2, 4, 9, 9, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    for mine, eager in ((lambda y: _images._MaxPool.apply(y, (3, 3), (2, 2), (1, 1)), nn.MaxPool2d(3, 2, 1)),
                        (lambda y: _images._GroupNorm.apply(y, None, None, 2, 1e-5, y.dtype), nn.GroupNorm(2, 4, affine=False))):
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        found, wanted = mine(leaves[0]), eager(leaves[1])
        weight = torch.randn_like(wanted)
        found.backward(weight), wanted.backward(weight)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("words", (dict(kernel_size=3, dilation=2), dict(kernel_size=3, stride=2, ceil_mode=True), dict(kernel_size=7)),
                         ids=str)
def test_other_max_pools_are_eagers(words):
    as_eager(Between(nn.MaxPool2d(**words)), torch.randn(2, 3, 14, 15))
    assert "max_pool" in calls_of()


def test_a_pool_that_shows_its_indices_is_eagers():
    class Shown(nn.Module):
        def forward(self, x):
            y, places = F.max_pool2d(x, 2, return_indices=True)
            return F.max_unpool2d(y, places, 2)
    as_eager(Between(Shown()), torch.randn(2, 3, 8, 8))
