# SPDX-License-Identifier: Apache-2.0
"""Image classifiers and the actor-critic with a small vision transformer."""
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from case import Case, normal, uniform


def resnet50(batch: int, dtype: torch.dtype, dynamic: bool = False, size: int = 224) -> Case:
    shapes = ({0: torch.export.Dim("batch", min=1, max=256)},) if dynamic else None
    return Case(torchvision.models.resnet50, [normal(batch, 3, size, size, dtype=dtype)], dtype, shapes)


def vit_b16(batch: int, dtype: torch.dtype) -> Case:
    return Case(torchvision.models.vit_b_16, [normal(batch, 3, 224, 224, dtype=dtype)], dtype)


def vit(batch: int, size: int, dtype: torch.dtype, **shape) -> Case:
    """Torchvision's vision transformer in other sizes than vit_b16's."""
    build = lambda: torchvision.models.VisionTransformer(image_size=size, patch_size=16, **shape)
    return Case(build, [normal(batch, 3, size, size, dtype=dtype)], dtype)


class Detector(nn.Module):
    """A detector of two stages: of all places and anchors those whose score is high go on, as many as there are, and are classified."""

    kStride, kAnchors, kWidth, kClasses = 16, 3, 256, 20

    def __init__(self, size: int) -> None:
        super().__init__()
        whole = torchvision.models.resnet18()
        self.backbone = nn.Sequential(whole.conv1, whole.bn1, whole.relu, whole.maxpool, whole.layer1, whole.layer2, whole.layer3)
        self.score, self.delta = (nn.Conv2d(self.kWidth, k * self.kAnchors, 1) for k in (1, 4))
        widths = (self.kWidth, 1024, 1024)
        hidden = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.classify = nn.Sequential(*hidden, nn.Linear(widths[-1], self.kClasses))
        steps = torch.arange(size // self.kStride) * float(self.kStride) + self.kStride / 2
        y, x = torch.meshgrid(steps, steps, indexing="ij")
        sizes = torch.tensor([32.0, 64.0, 128.0])
        anchors = [torch.stack([x, y, s.expand_as(x), s.expand_as(x)], dim=-1) for s in sizes]
        self.register_buffer("anchors", torch.stack(anchors, dim=-2).reshape(-1, 4))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        features = self.backbone(image)
        scores = self.score(features).permute(0, 2, 3, 1).reshape(-1)
        deltas = self.delta(features).permute(0, 2, 3, 1).reshape(-1, 4)
        kept = (scores > scores.mean() + scores.std()).nonzero().squeeze(1)
        place, delta = self.anchors[kept], deltas[kept]
        centre, half = place[:, :2] + delta[:, :2] * place[:, 2:], place[:, 2:] * delta[:, 2:].clamp(max=4.0).exp() / 2
        boxes = torch.cat([centre - half, centre + half], dim=1)
        rows = features.permute(0, 2, 3, 1).reshape(-1, self.kWidth)[kept // self.kAnchors]
        return boxes, scores[kept], self.classify(rows)


def detector(size: int, dtype: torch.dtype) -> Case:
    return Case(lambda: Detector(size), [normal(1, 3, size, size, dtype=dtype)], dtype)


class Block(nn.Module):
    """A pre-norm transformer encoder block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class PpoVit(nn.Module):
    """Four stacked 84x84 frames to action log-probabilities and a state value."""

    def __init__(self, width: int, depth: int, heads: int, actions: int = 18) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, width, 14, stride=14)
        self.state = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 37, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.actor = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, actions))
        self.critic = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self.patch(frames / 255.0).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.state.expand(frames.shape[0], -1, -1), tokens], dim=1) + self.position
        state = self.norm(self.blocks(tokens))[:, 0]
        return F.log_softmax(self.actor(state), dim=-1), self.critic(state).squeeze(-1)


def ppo_vit(batch: int, width: int, depth: int) -> Case:
    return Case(lambda: PpoVit(width, depth, heads=width // 32), [uniform(batch, 4, 84, 84, low=0.0, high=255.0)])
