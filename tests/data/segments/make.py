#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the small exported models whose sizes or branches depend on data: what the tests of segments open.

`make.py [FOLDER [NAME...]]` writes all of them or those named, without weights: like the files of the zoo they hold rules by which
weights and inputs are drawn. Run it with the Python of the zoo (bench/zoo/README.md).
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench/zoo"))

import torch
from torch import nn
from torch.nn import functional as F

import archive


class Branch(nn.Module):
    """A branch inside a branch; both read weights and a buffer of the model, and one returns an operand as it is."""

    def __init__(self, width=64):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.yes = nn.Linear(width, width)
        self.no = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.last = nn.Linear(width, width)
        self.register_buffer("shift", torch.full((width,), 0.25))

    def forward(self, x, limit):
        h = torch.tanh(self.first(x)) + self.shift

        def inner_yes(h):
            return (torch.relu(self.yes(h)) * self.shift + h, h.clone())

        def inner_no(h):
            return (self.no(h), h + 1)

        def outer_yes(h):
            return torch.cond(h.sum() > 0, inner_yes, inner_no, (h,))

        def outer_no(h):
            return (torch.sigmoid(h) * h, h - self.shift)

        a, b = torch.cond(limit.sum() > 0, outer_yes, outer_no, (h,))
        return self.last(a * 2 + b), b


class Loop(nn.Module):
    """As many rounds of a block as the input says."""

    def __init__(self, width=64):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x, rounds):
        def more(i, h):
            return (i < rounds).all()

        def body(i, h):
            return i + 1, h + self.down(F.gelu(self.up(self.norm(h)))) * 0.5

        start = torch.zeros_like(rounds)
        i, h = torch._higher_order_ops.while_loop(more, body, (start, torch.relu(x)))
        return self.norm(h) * 2, i


class Select(nn.Module):
    """The rows that a network scores above a limit go through a second network and are written back."""

    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.score = nn.Linear(width, 1)
        self.expert = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.LayerNorm(width))
        self.head = nn.Linear(width, 8)

    def forward(self, x, limit):
        h = self.embed(x)
        chosen = self.score(h).squeeze(-1) > limit
        at = chosen.nonzero().squeeze(-1)
        rows = self.expert(h.index_select(0, at)) + h[chosen]
        h = h.index_copy(0, at, rows)
        kept = torch.masked_select(torch.softmax(self.head(h), -1), chosen.unsqueeze(-1))
        return h, rows, kept * 2 + 1


class Sized(nn.Module):
    """A number out of a tensor is a size, within limits that the model checks."""

    def __init__(self, width=32):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh())

    def forward(self, x, count):
        h = torch.relu(self.first(x)) + 0.5
        n = count.max().item()
        torch._check(n >= 2)
        torch._check(n <= x.shape[0])
        part = h.narrow(0, 0, n)
        return self.second(part) * 2 + torch.arange(n).unsqueeze(1), torch.arange(3.0 * n).view(n, 3) * h.sum()


class Written(nn.Module):
    """Views of a tensor that is written behind the place where a size comes from data; the input and a buffer are written too."""

    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.register_buffer("seen", torch.zeros(width))

    def forward(self, x):
        h = torch.relu(self.first(x)) + 0.5
        top = h[:2]
        flat = h.view(-1)
        at = (x.sum(1) > 0).nonzero().squeeze(-1)
        flat.mul_(2.0)
        self.seen.add_(h.mean(0))
        picked = h.index_select(0, at) * top.sum() + self.seen
        top.add_(1.0)
        x.add_(1.0)
        return picked, h * 3, top


class Gat(nn.Module):
    """Two layers of PyTorch Geometric's GATv2: loops are removed and added inside, so that the number of edges depends on data."""

    def __init__(self, features, hidden, heads, classes):
        super().__init__()
        from torch_geometric.nn import GATv2Conv
        self.first = GATv2Conv(features, hidden, heads=heads)
        self.second = GATv2Conv(hidden * heads, classes, heads=1)

    def forward(self, x, edges):
        return self.second(F.elu(self.first(x, edges)), edges)


class Detector(nn.Module):
    """A backbone, the best anchors, suppression of overlapping boxes, and a head on the regions that are left."""

    def __init__(self, channels=32, best=200):
        super().__init__()
        self.best = best
        self.backbone = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1), nn.BatchNorm2d(2 * channels), nn.ReLU())
        self.logits = nn.Conv2d(2 * channels, 3, 1)
        self.deltas = nn.Conv2d(2 * channels, 12, 1)
        self.head = nn.Sequential(nn.Linear(2 * channels * 49, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.classes = nn.Linear(256, 5)

    def forward(self, image):
        import torchvision
        features = self.backbone(image)
        height, width = features.shape[-2:]
        scores = torch.sigmoid(self.logits(features)).flatten()
        deltas = self.deltas(features).view(3, 4, -1).permute(0, 2, 1).reshape(-1, 4)
        y, x = torch.meshgrid(torch.arange(height) * 4.0, torch.arange(width) * 4.0, indexing="ij")
        centres = torch.stack([x, y], -1).reshape(1, -1, 2).expand(3, -1, -1).reshape(-1, 2) + deltas[:, :2]
        sizes = torch.exp(deltas[:, 2:].clamp(max=2)) * 12
        boxes = torch.cat([centres - sizes, centres + sizes], 1)
        score, at = scores.topk(self.best)
        boxes = boxes[at].clamp(0, 4.0 * width)
        large = (boxes[:, 2] - boxes[:, 0] > 4) & (boxes[:, 3] - boxes[:, 1] > 4)
        boxes, score = boxes[large], score[large]
        keep = torchvision.ops.nms(boxes, score, 0.5)
        boxes, score = boxes[keep], score[keep]
        regions = torchvision.ops.roi_align(features, [boxes], 7, spatial_scale=0.25)
        found = torch.softmax(self.classes(self.head(regions.flatten(1))), -1)
        sure = found.max(1).values > 0.2
        return boxes[sure], found[sure] * score[sure].unsqueeze(1)


def rule_of(name, tensor):
    if tensor.dim() < 2:
        kind = {"running_var": (0.5, 1.5), "weight": (0.9, 1.1)}.get(name.rsplit(".", 1)[-1], (-0.1, 0.1))
        return {"kind": "uniform", "low": kind[0], "high": kind[1]}
    bound = float(f"{(3 / max(1, tensor[0].numel())) ** 0.5:.4g}")
    return {"kind": "uniform", "low": -bound, "high": bound}


def normal(mean=0.0, std=1.0):
    return {"kind": "normal", "mean": mean, "std": std}


def integers(low, high):
    return {"kind": "integers", "low": low, "high": high}


def edges_of(nodes):
    return {"kind": "edges", "nodes": nodes, "self_loops": 0}


def cases():
    batch, count = torch.export.Dim("batch", min=1, max=4096), torch.export.Dim("edges", min=2, max=200000)
    yield "branch", Branch, (torch.randn(16, 64), torch.ones(1)), {"x": {0: batch}, "limit": None}, [normal(), normal()]
    yield "loop", Loop, (torch.randn(16, 64), torch.tensor([3])), None, [normal(), integers(0, 6)]
    yield "select", Select, (torch.randn(256, 64), torch.zeros(1)), {"x": {0: batch}, "limit": None}, [normal(), normal(0, 0.01)]
    yield "sized", Sized, (torch.randn(64, 32), torch.tensor([3, 9])), {"x": {0: batch}, "count": None}, [normal(), integers(2, 60)]
    yield "written", Written, (torch.randn(12, 16),), {"x": {0: batch}}, [normal()]
    graph = torch.randint(0, 400, (2, 1600))
    yield "gat", lambda: Gat(128, 8, 8, 7), (torch.randn(400, 128), graph), {"x": None, "edges": {1: count}}, [normal(), edges_of(400)]
    cora = torch.randint(0, 2708, (2, 10556))
    yield "gat_cora", lambda: Gat(1433, 8, 8, 7), (torch.randn(2708, 1433), cora), {"x": None, "edges": {1: count}}, [normal(), edges_of(2708)]
    yield "detector", Detector, (torch.randn(1, 3, 128, 128),), None, [normal()]


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    for name, make, args, dynamic, inputs in cases():
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        torch.manual_seed(0)
        model = make().eval()
        program = torch.export.export(model, args, dynamic_shapes=dynamic)
        archive.write(program, {"version": 1, "seed": 20260, "inputs": inputs}, rule_of, folder / f"{name}.pt2")


if __name__ == "__main__":
    main()
