# SPDX-License-Identifier: Apache-2.0
"""Graphs that record no gradients are judged by what Dynamo wrote down, before any capture."""
import pytest
import torch
from torch import nn

import keirin
from conftest import NOW, answered, compiled
from keirin import _dynamo, _judged


def bump(x):
    x.add_(1)
    return x * 2


@pytest.mark.parametrize("when, dynamic", [("now", False), ("background", False), ("background", True)])
def test_what_was_captured_wrong_is_found_and_eager_answers(mlp, monkeypatch, when, dynamic):
    """What is compiled agrees with the program that was captured, in 64-bit floats too: only Dynamo's graph tells."""
    original = _dynamo._Program._export

    def planted(self, gm, examples):
        output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
        with gm.graph.inserting_before(output):
            output.args = ((gm.graph.call_function(torch.mul, (output.args[0][0], 1 + 1e-4)),),)
        gm.recompile()
        return original(self, gm, examples)
    monkeypatch.setattr(_dynamo._Program, "_export", planted)
    fast = torch.compile(mlp, backend="keirin", dynamic=dynamic, options={**NOW, "compile": when})
    x = torch.randn(4, 16)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(fast(x), mlp(x))
            assert keirin.wait(120)
    assert answered() == 0 and "eager: wrong_result: output 0" in keirin.explain(), keirin.explain()


def test_a_write_that_was_not_captured_is_found(monkeypatch):
    original = _dynamo._Program._copy

    def planted(self, gm, graph, examples):
        original(self, gm, graph, examples)
        for node in list(graph.nodes):
            if node.target == "add_":
                node.target = "add"
    monkeypatch.setattr(_dynamo._Program, "_copy", planted)
    fast, x, other = compiled(bump), torch.ones(4), torch.ones(4)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(fast(x), bump(other)) and torch.equal(x, other)
    assert answered() == 0 and "eager: wrong_result: eager writes an argument" in keirin.explain(), keirin.explain()


def test_a_graph_that_knows_no_doubles_is_judged_by_what_was_captured(mlp, monkeypatch):
    def knows_none(self, *args):
        raise RuntimeError("no kernel for Double")
    monkeypatch.setattr(_judged.DoubleModule, "run", knows_none)
    fast, x = compiled(mlp), torch.randn(4, 16)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), mlp(x))
    assert answered() == 1, keirin.explain()
    assert "judged by what was captured, not by the module itself: RuntimeError: no kernel for Double" in keirin.explain()


class Rounds(nn.Module):
    """Far from 64 bits where it begins: what it answers next to nothing says little of it."""

    def forward(self, x, table):
        y = x.clone()
        for _ in range(3):
            y = y @ table
            y = y - y.mean(-1, keepdim=True)
        return (y * 1e3).sin(), y.argmax(-1), x


def test_what_roundings_explain_is_right():
    fast, x, table = compiled(Rounds()), torch.randn(16, 32), torch.randn(32, 32)
    with torch.no_grad():
        for _ in range(2):
            fast(x, table)
    assert answered() == 1 and "judged by" not in keirin.explain(), keirin.explain()


def test_who_writes_its_statistics_is_judged_by_them():
    class Norm(nn.Module):
        def forward(self, x, mean, variance):
            return nn.functional.batch_norm(x, mean, variance, training=True)
    fast, module = compiled(Norm()), Norm()
    x, given, other = torch.randn(8, 4), [torch.zeros(4), torch.ones(4)], [torch.zeros(4), torch.ones(4)]
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x, *given), module(x, *other))
            torch.testing.assert_close(given, other)
    assert "judged by" not in keirin.explain(), keirin.explain()


def test_what_has_no_room_for_copies_is_judged_by_what_was_captured(monkeypatch):
    args = [torch.ones(4), torch.empty(1 << 50, device="meta")]
    assert _judged._has_room(args, [0]) and not _judged._has_room(args, [1])
    monkeypatch.setattr(_judged, "_has_room", lambda args, written: not written)
    fast, x, other = compiled(bump), torch.ones(4), torch.ones(4)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(fast(x), bump(other)) and torch.equal(x, other)
    assert answered() == 1 and "not enough memory for copies of what it writes" in keirin.explain(), keirin.explain()


def test_what_is_wrong_of_a_second_size_is_not_answered_of_any(mlp, monkeypatch):
    original, calls = _dynamo.judged, []

    def second(*args):
        calls.append(args)
        return original(*args) if len(calls) == 1 else ("wrong_result: planted", "")
    monkeypatch.setattr(_dynamo, "judged", second)
    fast = torch.compile(mlp, backend="keirin", dynamic=True, options=NOW)
    with torch.no_grad():
        for rows, at_once in ((4, 0), (4, 1), (6, 1), (6, 1), (4, 1)):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(fast(x), mlp(x))
            assert answered() == at_once, keirin.explain()
    assert "eager: wrong_result: planted" in keirin.explain()
