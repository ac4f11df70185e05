# SPDX-License-Identifier: Apache-2.0
"""One denoising step of a latent diffusion U-Net: residual blocks with group norm, attention where the picture is small.

Without text conditioning: its cross-attention is the same work as the self-attention that is here, on fewer keys.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

from case import Case, integers, normal


class ResBlock(nn.Module):
    def __init__(self, inner: int, outer: int, time_width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(time_width, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class SpatialAttention(nn.Module):
    def __init__(self, channels: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, 3, self.heads, channels // self.heads, height * width).transpose(-1, -2)
        mixed = F.scaled_dot_product_attention(qkv[:, 0], qkv[:, 1], qkv[:, 2])
        return x + self.out(mixed.transpose(-1, -2).reshape(batch, channels, height, width))


class Stage(nn.Module):
    def __init__(self, inner: int, outer: int, time_width: int, attends: bool) -> None:
        super().__init__()
        self.block = ResBlock(inner, outer, time_width)
        self.attention = SpatialAttention(outer) if attends else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.attention(self.block(x, time))


class Unet(nn.Module):
    def __init__(self, channels: int, scales: tuple[int, ...], blocks: int, attention_from: int) -> None:
        super().__init__()
        self.channels, time_width = channels, 4 * channels
        self.time = nn.Sequential(nn.Linear(channels, time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.enter = nn.Conv2d(4, channels, 3, padding=1)
        self.down, self.shrink, self.up, self.grow = (nn.ModuleList() for _ in range(4))
        widths, now = [channels], channels
        for level, scale in enumerate(scales):
            for _ in range(blocks):
                self.down.append(Stage(now, channels * scale, time_width, level >= attention_from))
                now = channels * scale
                widths.append(now)
            if level + 1 < len(scales):
                self.shrink.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                widths.append(now)
        self.middle1, self.middle2 = Stage(now, now, time_width, True), Stage(now, now, time_width, False)
        for level, scale in reversed(list(enumerate(scales))):
            for _ in range(blocks + 1):
                self.up.append(Stage(now + widths.pop(), channels * scale, time_width, level >= attention_from))
                now = channels * scale
            if level:
                self.grow.append(nn.Conv2d(now, now, 3, padding=1))
        self.norm, self.leave = nn.GroupNorm(32, now), nn.Conv2d(now, 4, 3, padding=1)
        self.levels, self.blocks = len(scales), blocks

    def embed(self, step: torch.Tensor) -> torch.Tensor:
        half = self.channels // 2
        frequency = torch.exp(torch.arange(half, dtype=torch.float32, device=step.device) * (-math.log(10000.0) / half))
        angle = step.float()[:, None] * frequency
        return torch.cat([angle.cos(), angle.sin()], dim=-1)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        time = self.time(self.embed(step).to(x.dtype))
        x = self.enter(x)
        kept = [x]
        for level in range(self.levels):
            for block in range(self.blocks):
                x = self.down[level * self.blocks + block](x, time)
                kept.append(x)
            if level + 1 < self.levels:
                x = self.shrink[level](x)
                kept.append(x)
        x = self.middle2(self.middle1(x, time), time)
        for level in range(self.levels):
            for block in range(self.blocks + 1):
                x = self.up[level * (self.blocks + 1) + block](torch.cat([x, kept.pop()], dim=1), time)
            if level + 1 < self.levels:
                x = self.grow[level](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.leave(F.silu(self.norm(x)))


def unet(batch: int, size: int, dtype: torch.dtype, dynamic: bool = False, **shape) -> Case:
    shapes = None
    if dynamic:  # what is halved between levels comes back whole
        step = 2 ** (len(shape["scales"]) - 1)
        height, width = (step * torch.export.Dim(name, min=2, max=64) for name in ("height", "width"))
        shapes = ({2: height, 3: width}, None)
    return Case(lambda: Unet(**shape), [normal(batch, 4, size, size, dtype=dtype), integers(batch, high=1000)], dtype, shapes)
