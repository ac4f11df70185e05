# SPDX-License-Identifier: Apache-2.0
"""Operators of libraries whose backward reads values: they are called as they are inside of a compiled step, and so is their backward."""
import copy

import pytest
import torch
from torch import nn

import keirin
from conftest import compiled, reasons
from keirin import _backwards
from of_training import BACKGROUND, answered, gradients, notes, same_within_eagers_error, steps

_calls: list[str] = []


def _each(ends):
    begin = 0
    for i, end in enumerate(ends.tolist()):
        if begin < end:
            yield i, slice(begin, end)
        begin = end


@torch.library.custom_op("of_tests::grouped", mutates_args=())
def grouped(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The rows of each group by the weights of it, as transformers multiplies the tokens of experts."""
    _calls.append("forward")
    out = rows.new_zeros(rows.shape[0], weights.shape[2])
    for i, own in _each(ends):
        out[own] = rows[own] @ weights[i]
    return out


@grouped.register_fake
def _(rows, weights, ends):
    return rows.new_empty(rows.shape[0], weights.shape[2])


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.ends = inputs[2]


def _grouped_backward(ctx, gradient):
    _calls.append("backward")
    rows, weights = ctx.saved_tensors
    of_rows, of_weights = torch.zeros_like(rows), torch.zeros_like(weights)
    for i, own in _each(ctx.ends):
        of_rows[own] = gradient[own] @ weights[i].T
        of_weights[i] = rows[own].T @ gradient[own]
    return of_rows, of_weights, None


grouped.register_autograd(_grouped_backward, setup_context=_keep)


class Experts(nn.Module):
    def __init__(self, trained=True):
        super().__init__()
        self.into, self.router = nn.Linear(6, 8), nn.Linear(8, 3)
        self.up, self.bias = nn.Parameter(torch.randn(3, 8, 12) / 3, requires_grad=trained), nn.Parameter(torch.randn(3, 12))
        self.down, self.out = nn.Parameter(torch.randn(3, 12, 8) / 3), nn.Linear(8, 5)

    def forward(self, x):
        x = torch.tanh(self.into(x))
        share, expert = self.router(x).softmax(-1).max(-1)
        expert, order = expert.sort()
        ends = torch.histc(expert.float(), 3, 0, 2).cumsum(0).int()
        hidden = torch.ops.of_tests.grouped(x[order], weights=self.up, ends=ends)
        hidden.add_(self.bias[expert])  # eager does not keep what the operator answered
        rows = torch.ops.of_tests.grouped(torch.nn.functional.gelu(hidden), self.down, ends)
        return self.out(torch.zeros_like(x).index_add(0, order, rows * share[order].unsqueeze(1)) + x)


def called(half):
    return [str(node.target) for node in half.gm.graph.nodes if "of_tests" in str(node.target)]


@pytest.mark.parametrize("trained", (True, False))
def test_it_is_one_step_with_eagers_gradients(trained):
    model = Experts(trained)
    same_within_eagers_error(model, compiled(model), (torch.randn(20, 6),), calls=3)
    step, = steps()
    assert answered() == 2 and not reasons() + notes(), keirin.explain()
    assert called(step.forward) == ["of_tests.grouped.default"] * 2
    assert called(step.backward) == ["keirin_of_tests.grouped_backward.default"] * 2


def test_no_forward_is_made_again():
    model = Experts()
    fast = compiled(model)
    x = torch.randn(20, 6)
    for _ in range(2):
        gradients(fast, model, (x,))
    _calls.clear()
    gradients(fast, model, (x,))
    assert answered() == 2 and _calls == ["forward"] * 2 + ["backward"] * 2


def test_other_values_and_an_expert_without_rows():
    model = Experts()
    other, fast = copy.deepcopy(model), compiled(model)
    for _ in range(4):
        x = torch.randn(5, 6)
        mine, its = gradients(fast, model, (x,)), gradients(other, other, (x,))
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
    assert answered() == 3, keirin.explain()


def test_in_the_background():
    model = Experts()
    fast = torch.compile(model, backend="keirin", options=BACKGROUND)
    gradients(fast, model, (torch.randn(20, 6),))
    assert keirin.wait(120)
    same_within_eagers_error(model, fast, (torch.randn(20, 6),))
    assert answered() == 2, keirin.explain()


@torch.library.custom_op("of_tests::split_by_sign", mutates_args=())
def split_by_sign(x: torch.Tensor, shift: torch.Tensor, *, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x * scale + shift, (x > 0).to(x.dtype), x > 0


@split_by_sign.register_fake
def _(x, shift, *, scale=1.0):
    return torch.empty_like(x), torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


def _keep_signs(ctx, inputs, keyword_only_inputs, output):
    ctx.mark_non_differentiable(output[1])
    ctx.positive, ctx.scale = output[2], keyword_only_inputs["scale"]


def _split_backward(ctx, gradient, _, __):
    if not bool(ctx.positive.any()):
        return None, None
    return gradient if ctx.scale == 1 else gradient * ctx.scale, None


split_by_sign.register_autograd(_split_backward, setup_context=_keep_signs)


@pytest.mark.parametrize("scale", (1.0, 2.0))
def test_results_without_gradients_and_gradients_that_are_none_or_handed_on(scale):
    class Signs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.shift = nn.Linear(6, 6), nn.Buffer(torch.randn(6))

        def forward(self, x):
            y, signs, positive = torch.ops.of_tests.split_by_sign(self.layer(x), scale=scale, shift=self.shift)
            return torch.sin(y) * 2 + 1, signs, positive
    model = Signs()
    other, fast = copy.deepcopy(model), compiled(model)
    for x in (torch.randn(4, 6), torch.randn(4, 6), torch.randn(4, 6)):
        y, signs, positive = fast(x)
        assert not signs.requires_grad and torch.equal(signs, positive.float())
        torch.testing.assert_close(gradients(fast, model, (x,)), gradients(other, other, (x,)))
    assert answered() == 4, keirin.explain()
    with torch.no_grad():
        model.layer.weight.zero_(), model.layer.bias.fill_(-1)
    model.zero_grad()
    fast(torch.randn(4, 6))[0].sum().backward()
    assert not any(each.grad.any() for each in model.parameters()) and answered() == 5


@pytest.mark.parametrize("view", (False, True))
def test_what_the_caller_writes_is_not_what_was_kept(view):
    def rows_of(x, weights, ends):
        rows = torch.ops.of_tests.grouped(x * 2, weights, ends)
        return rows.view(-1) if view else rows
    weights, ends = torch.randn(2, 4, 3, requires_grad=True), torch.tensor([2, 5], dtype=torch.int32)
    x = torch.randn(5, 4, requires_grad=True)
    fast = compiled(rows_of)
    for _ in range(3):
        found, wanted = [torch.autograd.grad(call(x, weights, ends).mul_(3).square().sum(), (x, weights)) for call in (fast, rows_of)]
        torch.testing.assert_close(found, wanted)
    assert answered() == 2, keirin.explain()


def test_what_can_be_traced_is_left_alone(mlp):
    compiled(mlp)(torch.randn(4, 16)).sum().backward()
    gm = steps()[-1]._gm
    assert _backwards.as_operators(gm) is gm
