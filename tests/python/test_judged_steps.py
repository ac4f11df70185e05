# SPDX-License-Identifier: Apache-2.0
"""Which training steps answer: what is waited for, judged and raced."""
import copy

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import keirin
from conftest import NOW, PLACE, compiled
from keirin import _training
from keirin._library import words_of
from of_training import BACKGROUND, answered, gradients, notes, same_within_eagers_error, steps


def test_the_first_call_does_not_wait_and_halves_are_never_mixed(mlp):
    fast = torch.compile(mlp, backend="keirin", options=BACKGROUND)
    x = torch.randn(4, 16)
    early = fast(x)  # eager's forward, whose backward comes after the change
    assert answered() == 0
    assert keirin.wait(120)
    late = fast(x)
    assert answered() == 1, keirin.explain()
    found = []
    for out in (early, late):
        mlp.zero_grad()
        out.square().sum().backward()
        found.append([each.grad.clone() for each in mlp.parameters()])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("what, place", [("output 0", 0), ("the gradient of argument 0", 1), ("the gradient of argument 4", 5)])
def test_what_was_traced_wrong_is_found_and_eager_answers(mlp, monkeypatch, what, place):
    """Both halves agree with what was traced, in 64-bit floats too: only the module itself tells."""
    def planted(joint):
        output = next(node for node in reversed(joint.graph.nodes) if node.op == "output")
        results = list(output.args[0])
        with joint.graph.inserting_before(output):
            wrong = joint.graph.call_function(torch.ops.aten.mul.Scalar, (results[place], 1 + 1e-4))
        wrong.meta = dict(results[place].meta)
        results[place] = wrong
        output.args = (results,)
        joint.recompile()
    monkeypatch.setattr(_training, "forget_running", planted)
    fast = compiled(mlp)
    x = torch.randn(4, 16, requires_grad=True)
    for _ in range(2):
        fast(x).sum().backward()
    assert answered() == 0 and any(f"wrong_result: {what}" in note for note in notes()), notes()


@pytest.mark.parametrize("options", [NOW, BACKGROUND])
def test_what_is_wrong_channels_last_alone_is_laid_out_as_eagers(options, monkeypatch):
    """As where a library's kernels for images that lie so are wrong, or round more."""
    original, asked = _training.in_channels_last, []

    def wrong(gm):
        other = original(gm)
        for node in other.graph.nodes:
            if node.target is torch.conv2d and not asked:
                with other.graph.inserting_after(node):
                    asked.append(other.graph.call_function(torch.mul, (node, 1 + 1e-3)))
                node.replace_all_uses_with(asked[0], lambda user: user is not asked[0])
        other.recompile()
        return other
    monkeypatch.setattr(_training, "in_channels_last", wrong)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    fast, x = torch.compile(model, backend="keirin", options=options), torch.randn(2, 3, 8, 8)
    gradients(fast, model, (x,))
    assert keirin.wait(60)
    same_within_eagers_error(model, fast, (x,))
    assert asked and answered() == 2 and not notes(), keirin.explain()
    assert "laid out as eager's, since with images channels-last: wrong_result" in keirin.explain()


def test_a_module_that_knows_no_doubles_is_judged_by_what_was_traced(mlp, monkeypatch):
    def knows_none(self, *args):
        raise RuntimeError("no kernel for Double")
    monkeypatch.setattr(_training.DoubleModule, "run", knows_none)
    fast = compiled(mlp)
    x = torch.randn(4, 16)
    for _ in range(2):
        fast(x).sum().backward()
    assert answered() == 1 and notes() == ["RuntimeError: no kernel for Double"]
    assert "judged by what was traced, not by the module itself: RuntimeError: no kernel for Double" in keirin.explain()


class Twice(torch.autograd.Function):
    """With a backward that is not its derivative, and a result that has no gradient."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        signs = x.sign()
        ctx.mark_non_differentiable(signs)
        return x * factor, signs

    @staticmethod
    def backward(ctx, gradient, _):
        x, = ctx.saved_tensors
        return gradient * ctx.factor * torch.tanh(x).square(), None


def test_a_function_with_a_backward_of_its_own_is_judged_by_itself(mlp):
    def step(x):
        y, signs = Twice.apply(mlp.first(x), 3.0)
        return mlp.second(y), signs
    fast = compiled(step)
    x = torch.randn(4, 16)
    for call in (fast, fast, step):
        mlp.zero_grad()
        out, _ = call(x)
        out.square().sum().backward()
        found = [each.grad.clone() for each in mlp.parameters()]
        if call is fast:
            mine = found
    for a, b in zip(mine, found):
        torch.testing.assert_close(a, b)
    assert answered() == 1 and not notes(), notes()


class Casts(nn.Module):
    """Says its dtypes itself, in all ways there are."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            y = self.first(x)
        y = y.float() + y.to(torch.float32).type_as(x) + torch.ones(16, dtype=torch.bfloat16, device=x.device).half()
        y = y.masked_fill(y > 3, torch.finfo(y.dtype).max / 1e37) + torch.full((16,), 0.1, device=x.device)
        self.seen += y.detach().mean(0)
        return torch.utils.checkpoint.checkpoint(lambda z: torch.tanh(self.second(z)), y, use_reentrant=False).double()


def test_a_module_that_says_its_dtypes_is_judged_by_itself():
    model = Casts()
    other = copy.deepcopy(model)
    fast = compiled(model)
    x = torch.randn(4, 16)
    for _ in range(3):
        fast(x).sum().backward()
        other(x).sum().backward()
    assert answered() == 2 and not notes(), notes()
    torch.testing.assert_close(model.seen, other.seen, rtol=2e-2, atol=2e-2)


def test_where_eager_is_faster_eager_answers(mlp):
    fast = compiled(mlp, force="eager")
    x = torch.randn(4, 16)
    for _ in range(3):
        fast(x).sum().backward()
    assert answered() == 0


def test_the_race_decides(mlp):
    fast = torch.compile(mlp, backend="keirin", options={"compile": "now", "race_seconds": 0.3})
    x = torch.randn(4, 16)
    for _ in range(3):
        fast(x).sum().backward()
    race = steps()[0].race
    assert race["rows"][0]["name"] == "eager" and race["rows"][1]["name"] == "compiled"
    assert answered() == (2 if race["rows"][1]["outcome"] == "accept" else 0)
    assert "forward and backward: " + ("disturbed" if race["rows"][1]["outcome"] == "disturbed" else "eager") in keirin.explain()


def test_less_memory_is_kept_where_less_is_allowed():
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32))])
    x = torch.randn(64, 32)
    kept = []
    for budget in (1.0, 0.0):
        torch.compiler.reset()
        fast = compiled(model, memory_budget=budget)
        same_within_eagers_error(model, fast, (x,))
        forward = [step for step in steps() if step.answered][-1].forward
        names = {node.name for node in forward.inputs}
        returned = next(node for node in reversed(forward.gm.graph.nodes) if node.op == "output").args[0]
        kept.append(sum(node.meta["val"].numel() for node in returned[1:] if node.name not in names))
    assert kept[1] < kept[0] / 2
    with pytest.raises(Exception, match="memory_budget is 2"):
        compiled(model, memory_budget=2)(x)


def rounded_half(model, inputs):
    fast = compiled(model)
    fast(*inputs).sum().backward()
    step = steps()[-1]
    arguments = [*model.parameters(), *inputs]
    named = {tuple(each.shape): each for each in arguments}
    return step.forward, [named[tuple(node.meta["val"].shape)] for node in step.forward.inputs]


def test_roundings_move_numbers_by_what_their_dtypes_cost(mlp):
    half, arguments = rounded_half(mlp, (torch.randn(4, 16),))
    with torch.no_grad():
        exact = _training._in_double(half, arguments)[0]
        moved = {}
        for tf32 in (False, True):
            runs = [_training._rounded(seed, tf32)(half, arguments)[0] for seed in (1, 2)]
            assert not torch.equal(*runs) and torch.equal(runs[0], _training._rounded(1, tf32)(half, arguments)[0])
            moved[tf32] = max((each - exact).abs().max().item() for each in runs)
    scale = exact.abs().max().item()
    assert 1e-8 * scale < moved[False] < 1e-5 * scale < moved[True] < 1e-2 * scale


@pytest.mark.parametrize("off, right", [(1e-7, True), (3e-4, True), (1e-2, False)])
def test_a_step_is_right_as_far_as_roundings_explain(off, right):
    """Roundings that move a number by 1e-4 explain an answer that is four times as far, and no more."""
    wide = torch.randn(64, dtype=torch.float64)
    eager = wide.float()
    mine = (wide * (1 + off)).float()
    asked = []

    def rounded(seed, tf32):
        asked.append((seed, tf32))
        return [wide * (1 + 1e-4)]
    judged = _training.native.judge([wide], [eager], [mine], ["output 0"], 0, words_of({"device": PLACE.get("device", "cpu")}), rounded)
    assert judged["right"] == right and bool(asked) == (off > 1e-6)
    assert right or "roundings move it by" in judged["reason"]
