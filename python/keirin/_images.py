# SPDX-License-Identifier: Apache-2.0
"""Operators on images whose own formulas a training step has, since they keep images channels-last and little for the backward."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

devices = {"cuda"}  # where eager's kernels move more memory, and libraries want weights of convolutions channels-last too

# Of a max pool: elements of a window, which a byte names and each of which is a load, and windows around a pixel. Beyond it is eager's.
_MOST_PLACES, _MOST_WINDOWS = 25, 9


class _GroupNorm(torch.autograd.Function):
    """A group norm of an image where it lies: eager's on a GPU answers with channels first.

    Each channel has a mean and a variance of its own, as columns of a matrix of pixels; those of a group are made of them. Each half
    reads the image twice: for sums of channels, and for what is made of each pixel. The backward makes the result again.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, num_groups: int, eps: float,
                dtype: torch.dtype) -> torch.Tensor:
        ctx.groups = groups = x.shape[0], num_groups, x.shape[1] // num_groups
        wide = _wide(x)
        variances, means = (each.reshape(groups) for each in torch.var_mean(wide, (2, 3), correction=0))
        between, mean = torch.var_mean(means, 2, correction=0, keepdim=True)
        inverse = torch.rsqrt(variances.mean(2, keepdim=True) + between + eps)
        ctx.save_for_backward(x, weight, mean, inverse)
        factor = inverse if weight is None else inverse * _wide(weight).view(groups[1:])
        offset = -mean * factor if bias is None else _wide(bias).view(groups[1:]) - mean * factor
        return (wide * _of_channels(factor, x) + _of_channels(offset, x)).to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        wide, out = _wide(x), _wide(gradient)
        sums = out.sum((2, 3)).view(ctx.groups)
        products = ((out * wide).sum((2, 3)).view(ctx.groups) - mean * sums) * inverse  # of the gradient and what is normed
        of_weight = None if weight is None else products.sum(0).view_as(weight).to(weight.dtype)
        of_bias = sums.sum(0).view(-1).to(x.dtype if weight is None else weight.dtype)
        scale = 1.0 if weight is None else _wide(weight).view(ctx.groups[1:])
        size = x.shape[1:].numel() // ctx.groups[1]
        # Expanded first, so that there is a value for each channel: beside pixels those of groups would be read in runs of a few channels.
        slope = (products * scale).sum(2, keepdim=True).expand(ctx.groups) * (-inverse * inverse / size)
        offset = (sums * scale).sum(2, keepdim=True).expand(ctx.groups) * (-inverse / size) - mean * slope
        of_x = out * _of_channels(inverse * scale, x) + wide * _of_channels(slope, x) + _of_channels(offset, x)
        return of_x.to(x.dtype), of_weight, of_bias if ctx.needs_input_grad[2] else None, None, None, None


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _of_channels(value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What there is for each group, or each channel of it, beside the image."""
    return value.expand(*value.shape[:2], x.shape[1] // value.shape[1]).reshape(*x.shape[:2], 1, 1)


def _group_norm(dtype: torch.dtype, x: torch.Tensor, num_groups: int, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
                eps: float = 1e-5, cudnn_enabled: bool = True) -> torch.Tensor:
    return _GroupNorm.apply(x, weight, bias, num_groups, eps, dtype)


class _MaxPool(torch.autograd.Function):
    """A max pool that keeps where in its window each largest element is, in a byte. The backward gathers: the windows around a pixel are
    few, and its gradient is the sum of those that it is the largest of."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> torch.Tensor:
        ctx.sizes, ctx.kernel, ctx.stride, ctx.padding = x.shape[2:], kernel, stride, padding
        sizes = [(size + 2 * before - width) // step + 1 for size, before, width, step in zip(x.shape[2:], padding, kernel, stride)]
        behind = [(out - 1) * step + width - size - before
                  for out, step, width, size, before in zip(sizes, stride, kernel, x.shape[2:], padding)]
        padded = F.pad(x, (padding[1], max(behind[1], 0), padding[0], max(behind[0], 0)), value=-torch.inf)
        # Where the largest is if all inside is -inf: at the first inside, as eager's. Places are floats, exact here and cheap for a GPU.
        first = [(before - torch.arange(out, device=x.device, dtype=torch.float32) * step).clamp(min=0)
                 for before, out, step in zip(padding, sizes, stride)]
        place = (first[0][:, None] * kernel[1] + first[1]).expand(*x.shape[:2], *sizes)
        largest = None
        for n in range(kernel[0] * kernel[1]):
            begin = n // kernel[1], n % kernel[1]
            rows, columns = (slice(b, b + (out - 1) * step + 1, step) for b, out, step in zip(begin, sizes, stride))
            here = padded[:, :, rows, columns]
            if largest is None:
                largest = here
                continue
            is_larger = (here > largest) | (here != here)
            largest, place = torch.where(is_larger, here, largest), torch.where(is_larger, float(n), place)
        ctx.save_for_backward(place.to(torch.uint8).contiguous(memory_format=torch.channels_last))
        return largest.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        place, = ctx.saved_tensors
        # By axis: for each pixel the windows that it may be in, and where in them.
        axes = []
        for size, width, step, before, out in zip(ctx.sizes, ctx.kernel, ctx.stride, ctx.padding, gradient.shape[2:]):
            at = torch.arange(size, device=gradient.device, dtype=torch.float32) + before
            axes.append([])
            for back in range(-(-width // step)):
                window = ((at + 0.5) * (1 / step)).floor() - back
                offset = at - window * step
                inside = (window >= 0) & (window < out) & (offset < width)
                nowhere = -float(ctx.kernel[0] * ctx.kernel[1])
                axes[-1].append((window.clamp(0, out - 1).to(torch.int32), torch.where(inside, offset, nowhere)))
        total = None
        for rows, row_offset in axes[0]:
            for columns, column_offset in axes[1]:
                theirs, its = (each.index_select(2, rows).index_select(3, columns) for each in (place, gradient))
                mine = row_offset[:, None] * ctx.kernel[1] + column_offset
                part = torch.where(theirs.float() == mine, _wide(its), 0.0)
                total = part if total is None else total + part
        return total.to(gradient.dtype).contiguous(memory_format=torch.channels_last), None, None, None


def _max_pool(dtype: torch.dtype, x: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, *_: Any,
              **__: Any) -> torch.Tensor:
    return _MaxPool.apply(x, _pair(kernel_size), _pair(stride or kernel_size), _pair(padding))


class _AvgPool(torch.autograd.Function):
    """A mean of windows. The backward gathers as a max pool's does, an axis at a time: LibTorch's kernel for images that lie channels-last
    takes other windows than the forward where there is padding (pytorch/pytorch#188344)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *window: Any) -> torch.Tensor:
        ctx.sizes, ctx.window = x.shape[2:], window
        return F.avg_pool2d(x, *window)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        kernel, stride, padding, _, counts_padding, divisor = ctx.window
        total = _wide(gradient)
        for axis, (size, width, step, before) in enumerate(zip(ctx.sizes, kernel, stride, padding), 2):
            out = gradient.shape[axis]
            # Windows by their number: where each begins, and how many of its elements count. Numbers are floats, exact here.
            begin = torch.arange(out, device=gradient.device, dtype=torch.float32) * step - before
            end = (begin + width).clamp(max=size + before)
            if not divisor:
                count = end - begin if counts_padding else end.clamp(max=size) - begin.clamp(min=0)
                total = total / count.view(-1, *[1] * (3 - axis))
            at = torch.arange(size, device=gradient.device, dtype=torch.float32) + before
            inside = None
            for back in range(min(-(-width // step), out)):
                window = (((at + 0.5) * (1 / step)).floor().clamp(max=out - 1) - back)
                offset = at - window * step
                is_in = ((window >= 0) & (offset < width)).view(-1, *[1] * (3 - axis))
                part = torch.where(is_in, total.index_select(axis, window.clamp(min=0).to(torch.int32)), 0.0)
                inside = part if inside is None else inside + part
            total = inside
        if divisor:
            total = total / divisor
        return total.to(gradient.dtype).contiguous(memory_format=torch.channels_last), *[None] * len(ctx.window)


def _avg_pool(dtype: torch.dtype, x: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
              count_include_pad: bool = True, divisor_override: int | None = None) -> torch.Tensor:
    kernel = _pair(kernel_size)
    return _AvgPool.apply(x, kernel, _pair(stride or kernel), _pair(padding), ceil_mode, count_include_pad, divisor_override)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


_MAX_POOLS = (F.max_pool2d, torch.max_pool2d)
_GROUP_NORMS = (F.group_norm, torch.group_norm)


def own_of(node: torch.fx.Node, result: torch.Tensor) -> Callable[..., torch.Tensor] | None:
    """The formula for a call of Dynamo's graph whose result is an image: a function of its dtype and of what eager is given. None: there
    is none."""
    if result.device.type not in devices:
        return None
    if node.target in _GROUP_NORMS:
        return _group_norm
    if node.target is F.avg_pool2d and result.is_floating_point():
        return _avg_pool
    if node.target not in _MAX_POOLS or not result.is_floating_point():
        return None
    words = dict(zip(("kernel_size", "stride", "padding", "dilation", "ceil_mode"), node.args[1:])) | node.kwargs
    kernel = _pair(words["kernel_size"])
    stride = _pair(words.get("stride") or kernel)
    around = -(-kernel[0] // stride[0]) * -(-kernel[1] // stride[1])
    is_plain = _pair(words.get("dilation", 1)) == (1, 1) and not words.get("ceil_mode")
    return _max_pool if is_plain and kernel[0] * kernel[1] <= _MOST_PLACES and around <= _MOST_WINDOWS else None
