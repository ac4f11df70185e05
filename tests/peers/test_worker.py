# SPDX-License-Identifier: Apache-2.0
"""bench/peers/worker.py over its channel, as `keirin matrix` asks it: what it measures, and what it refuses."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

kRoot = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(kRoot / "bench/peers"))
import train  # noqa: E402
import training_models  # noqa: E402
import worker  # noqa: E402


class Asked:
    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, str(kRoot / "bench/peers/worker.py"), "matrix-worker"],
            pass_fds=(worker.kChannel,),
            preexec_fn=lambda: os.dup2(theirs.fileno(), worker.kChannel),
        )
        theirs.close()

    def ask(self, **question) -> dict:
        worker.send(self.ours, question)
        return worker.receive(self.ours)

    def close(self) -> int:
        self.ours.close()
        return self.process.wait(timeout=60)


@pytest.fixture
def asked():
    one = Asked()
    yield one
    assert one.close() == 0


def opening(variant: str, folder: Path, case: str = "mlp/small/f32/infer/single/default") -> dict:
    return {"ask": "open", "case": case, "variant": variant, "candidate": "", "threads": 1, "cache": str(folder), "verify": True}


@pytest.mark.parametrize("name", ["torch.compile", "aotinductor"])
def test_a_peer_is_verified_and_timed(asked, name, tmp_path):
    hello = asked.ask(ask="hello")
    assert hello["protocol"] == 1 and hello["parts"]["package torch"]
    opened = asked.ask(**opening(f"peer:{name}", tmp_path))
    assert opened.get("chosen") == name, opened
    warm = asked.ask(ask="warm", agree=0.5, most_calls=50)
    assert warm["calls"] >= 11 and warm["first_ns"] > 0
    slot = asked.ask(ask="slot", fill_ns=1_000_000, least=5)
    assert len(slot["ns"]) >= 5 and all(value > 0 for value in slot["ns"]) and slot["lasted_ns"] >= 1_000_000


def test_what_is_not_there_is_refused(asked, tmp_path):
    assert asked.ask(ask="slot")["error"]["code"] == "invalid_input"
    assert asked.ask(**opening("peer:nobody", tmp_path))["error"]["code"] == "unsupported"
    assert (
        asked.ask(**opening("peer:torch.compile", tmp_path, "nosuch/small/f32/infer/single/default"))["error"]["code"] == "invalid_input"
    )
    assert asked.ask(ask="sing")["error"]["code"] == "invalid_input"


def test_the_reference_is_in_double_where_operators_name_a_float():
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(torch.arange(4, dtype=torch.float32) / 3 + x.to(torch.float32))

    x = torch.rand(4)
    exact = worker.in_double(torch.export.export(Net(), (x,)).module())(x.double())
    assert exact.dtype == torch.float64 and not torch.equal(exact, exact.float().double())


def test_wrong_numbers_are_noticed():
    import torch

    exact = torch.ones(4, dtype=torch.float64)
    assert worker.error_of(torch.ones(4), exact) == 0
    assert worker.error_of(torch.full((4,), 1.5), exact) == 0.5
    assert worker.error_of(torch.tensor([1, 1, 1, float("nan")]), exact) == float("inf")
    assert worker.error_of(torch.ones(5), exact) == float("inf")


kStep = "mlp/small/f32/train/single/default"


@pytest.mark.parametrize("variant", ["eager", "auto", "peer:torch.compile"])
def test_a_training_step_is_verified_and_timed(asked, variant, tmp_path):
    import keirin

    package = str(Path(keirin.__file__).parents[1])
    assert len(asked.ask(ask="hello", package=package)["parts"]["package keirin"]) == 16
    (tmp_path / "cache").mkdir(mode=0o700)
    opened = asked.ask(**opening(variant, tmp_path / "cache", kStep), package=package)
    assert opened.get("chosen"), opened
    assert 0 < opened["errors"]["answer"] < 1e-4 and opened["threads"] == 1
    if variant == "auto":
        assert "step" in opened["chosen"] and opened["counts"]["nodes"] > 20 and opened["counts"]["nodes_compiled"] > 0
    warm = asked.ask(ask="warm", agree=0.5, most_calls=50)
    assert warm["calls"] >= 5 and warm["first_ns"] > 0
    assert len(asked.ask(ask="slot", fill_ns=1_000_000, least=5)["ns"]) >= 5


def test_what_cannot_be_trained_is_refused(asked, tmp_path):
    def refused(variant: str, case: str = kStep) -> dict:
        return asked.ask(**opening(variant, tmp_path, case), package="")["error"]

    assert refused("auto")["code"] == "unsupported" and "no Python package" in refused("auto")["what"]
    assert refused("peer:onnxruntime")["code"] == "unsupported"
    assert refused("eager", "nosuch/small/f32/train/single/default")["code"] == "invalid_input"
    assert refused("eager", "encoder_dropout/small/f32/train/single/default")["code"] == "unsupported"


@pytest.mark.parametrize("name", [name for name in training_models.kModels if "dropout" not in name])
@pytest.mark.parametrize("wrong", ["nothing", "gradient", "update"])
def test_a_wrong_step_is_noticed(name, wrong):
    import torch

    torch.manual_seed(0)
    make, sample = training_models.kModels[name]
    model, (inputs, target) = make(), sample()
    optimiser = training_models.optimiser_of(model)
    right = training_models.step_of(model, optimiser, inputs, target, None, False)

    def step():
        loss = right()
        each = next(model.parameters())
        with torch.no_grad():
            if wrong == "gradient":
                each.grad.view(-1)[each.grad.abs().argmax()] *= 1.001
            if wrong == "update":
                each.view(-1)[0] += 1e-2 * each.abs().max()
        return loss

    for _ in range(3):
        right()
    if wrong == "nothing":
        errors = train.verify(step, model, optimiser, inputs, target)
        assert 0 < errors["answer"] <= 2 * errors["eager"]
    else:
        with pytest.raises(worker.Refusal, match=f"the {wrong} of"):
            train.verify(step, model, optimiser, inputs, target)
