# SPDX-License-Identifier: Apache-2.0
"""Second derivatives of compiled training steps: eager's."""
import pytest
import torch
from torch import nn

import keirin
from conftest import NOW, compiled
from of_training import Heads, answered


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
