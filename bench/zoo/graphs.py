# SPDX-License-Identifier: Apache-2.0
"""Graph networks from torch_geometric's layers.

Self-loops and edge weights are inputs, made once per graph by whoever loads it: computed inside, their number would depend on data.
"""
import torch
from torch import nn
from torch.nn import functional as F

from case import Case, edges, edges_of, integers, normal, uniform

kCora = {"nodes": 2708, "count": 10556, "features": 1433, "classes": 7}
kFewNodes = {"nodes": 200, "count": 800, "features": 64, "classes": 7}


class Gcn(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.conv1 = GCNConv(features, hidden, add_self_loops=False, normalize=False)
        self.conv2 = GCNConv(hidden, classes, add_self_loops=False, normalize=False)

    def forward(self, x, edge_index, edge_weight):
        return self.conv2(F.relu(self.conv1(x, edge_index, edge_weight)), edge_index, edge_weight)


def gcn(of: dict[str, int] = kCora) -> Case:
    graph = edges(of["nodes"], of["count"], self_loops=True)
    inputs = [normal(of["nodes"], of["features"]), graph, uniform(graph.shape[1], low=0.05, high=0.5)]
    return Case(lambda: Gcn(of["features"], 16, of["classes"]), inputs)


class Gat(nn.Module):
    def __init__(self, features: int, hidden: int, heads: int, classes: int) -> None:
        super().__init__()
        from torch_geometric.nn import GATConv

        self.conv1 = GATConv(features, hidden, heads, add_self_loops=False)
        self.conv2 = GATConv(hidden * heads, classes, 1, concat=False, add_self_loops=False)

    def forward(self, x, edge_index):
        return self.conv2(F.elu(self.conv1(x, edge_index)), edge_index)


def gat(of: dict[str, int] = kCora) -> Case:
    graph = edges(of["nodes"], of["count"], self_loops=True)
    return Case(lambda: Gat(of["features"], 8, 8, of["classes"]), [normal(of["nodes"], of["features"]), graph])


class Sage(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        from torch_geometric.nn import SAGEConv

        self.conv1, self.conv2 = SAGEConv(features, hidden), SAGEConv(hidden, classes)

    def forward(self, x, edge_index):
        return self.conv2(F.relu(self.conv1(x, edge_index)), edge_index)


def sage(nodes: int, count: int) -> Case:
    """The sampled neighbourhood of one mini-batch of Reddit."""
    return Case(lambda: Sage(602, 256, 41), [normal(nodes, 602), edges(nodes, count)])


def sage_dynamic(nodes: int, count: int) -> Case:
    """Any such neighbourhood."""
    dims = {"nodes": torch.export.Dim("nodes", min=8, max=16384), "edges": torch.export.Dim("edges", min=8, max=65536)}
    shapes = ({0: dims["nodes"]}, {1: dims["edges"]})
    return Case(lambda: Sage(602, 256, 41), [normal(nodes, 602), edges_of(0, count)], dynamic_shapes=shapes)


class GraphDiffusion(nn.Module):
    """Predicts the noise in noisy node features at a diffusion step, by message passing that knows the step."""

    def __init__(self, features: int, hidden: int, depth: int) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.enter, self.leave = nn.Linear(features, hidden), nn.Linear(hidden, features)
        self.step = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.convs = nn.ModuleList(GCNConv(hidden, hidden, add_self_loops=False, normalize=False) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(depth))
        frequency = torch.exp(torch.arange(hidden // 2, dtype=torch.float32) * (-9.21 / (hidden // 2)))
        self.register_buffer("frequency", frequency, persistent=False)

    def forward(self, x, edge_index, edge_weight, time):
        angle = time.float()[:, None] * self.frequency
        step = self.step(torch.cat([angle.sin(), angle.cos()], dim=-1))
        h = self.enter(x)
        for conv, norm in zip(self.convs, self.norms):
            h = h + F.silu(conv(norm(h) + step, edge_index, edge_weight))
        return self.leave(h)


def graph_diffusion(hidden: int, depth: int, of: dict[str, int] = kCora) -> Case:
    graph = edges(of["nodes"], of["count"], self_loops=True)
    inputs = [normal(of["nodes"], of["features"]), graph, uniform(graph.shape[1], low=0.05, high=0.5)]
    return Case(lambda: GraphDiffusion(of["features"], hidden, depth), inputs + [integers(1, high=1000)])
