# SPDX-License-Identifier: Apache-2.0
"""Models whose time goes to look-ups, steps and small matrices: DLRM, LSTM and the multilayer perceptron of the smoke test."""
import torch
from torch import nn
from torch.nn import functional as F

from case import Case, arange, integers, normal


def dense(*widths: int) -> nn.Sequential:
    layers = []
    for inner, outer in zip(widths, widths[1:]):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mlp() -> Case:
    return Case(lambda: dense(64, 128, 128, 10), [normal(16, 64)])


class Dlrm(nn.Module):
    """Dense features and 26 categorical ones, of `hot` values each, to a click probability; pairwise dot interaction."""

    def __init__(self, tables: int, rows: int, width: int, bottom: tuple[int, ...], top: tuple[int, ...]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = dense(13, *bottom, width)
        self.top = dense(width + tables * (tables + 1) // 2, *top, 1)
        row, column = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("pairs", row * (tables + 1) + column, persistent=False)
        for table in self.tables:
            table.weight.uniform_(-0.5, 0.5)

    def forward(self, features: torch.Tensor, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bottom(features))
        rows = torch.stack([x] + [table(values[i], offsets) for i, table in enumerate(self.tables)], dim=1)
        dots = torch.bmm(rows, rows.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return torch.sigmoid(self.top(torch.cat([x, dots], dim=1))).squeeze(1)


def dlrm(batch: int, rows: int, width: int, bottom: tuple[int, ...], top: tuple[int, ...], hot: int = 4) -> Case:
    inputs = [normal(batch, 13), integers(26, batch * hot, high=rows), arange(batch, step=hot)]
    return Case(lambda: Dlrm(26, rows, width, bottom, top), inputs)


class Lstm(nn.Module):
    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(width, width, layers, batch_first=True), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0])


def lstm(batch: int, length: int, width: int, dtype: torch.dtype) -> Case:
    return Case(lambda: Lstm(width, 2, 256), [normal(batch, length, width, dtype=dtype)], dtype)
