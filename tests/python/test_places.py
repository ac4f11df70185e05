# SPDX-License-Identifier: Apache-2.0
"""Where the tensors of a training step lie. On a GPU recorded launches read and write weights, gradients and an optimiser's state where
they are and take the memory of results again once nobody holds them: whatever a caller does with that memory, the numbers are eager's."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import PLACE, graphs
from keirin import _training
from of_training import notes

RACED = {"compile": "now", "race_seconds": 0.3}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(16, 64, bias=False), nn.BatchNorm1d(64), nn.Linear(64, 8)

    def forward(self, x):
        return self.second(F.gelu(self.norm(self.first(x))))


class Side:
    """A model in training, by eager or compiled."""

    def __init__(self, model, words):
        self.model = copy.deepcopy(model)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.call = torch.compile(self.model, **words) if words else self.model
        self.narrow = False  # under autocast
        self.change = torch.compile(self.optimiser.step, **words) if words else self.optimiser.step
        self.kept = []

    def loss(self, x, y):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.narrow):
            return F.cross_entropy(self.call(x), y)

    def step(self, x, y, **how):
        self.optimiser.zero_grad(**how)
        loss = self.loss(x, y)
        loss.backward()
        self.change()
        return loss


def plain(side, i, x, y):
    side.step(x, y)


def losses_are_kept(side, i, x, y):
    out = side.call(x)
    side.optimiser.zero_grad()
    F.cross_entropy(out, y).backward()
    side.change()
    side.kept.append(out)


def gradients_are_kept(side, i, x, y):
    side.step(x, y)
    if i % 7 < 2:
        side.kept += [each.grad for each in side.model.parameters()]


def gradients_stay(side, i, x, y):
    side.step(x, y, set_to_none=False)


def gradients_are_summed(side, i, x, y):
    side.optimiser.zero_grad()
    for part in range(3):
        side.loss(x + part, y).backward()
    side.change()


def two_forwards_before_their_backwards(side, i, x, y):
    side.optimiser.zero_grad()
    first, second = side.loss(x, y), side.loss(x * 2, y)
    first.backward()
    second.backward()
    side.change()


def a_backward_runs_twice(side, i, x, y):
    side.optimiser.zero_grad()
    loss = side.loss(x, y)
    loss.backward(retain_graph=True)
    loss.backward()
    side.change()


def an_optimiser_is_loaded(side, i, x, y):
    side.step(x, y)
    if i in (9, 20):
        side.optimiser.load_state_dict(copy.deepcopy(side.optimiser.state_dict()))


def weights_are_replaced(side, i, x, y):
    side.step(x, y)
    if i in (9, 20):
        for each in side.model.parameters():
            each.data = each.data.clone() * 1.01


def results_are_written(side, i, x, y):
    side.optimiser.zero_grad()
    out = side.call(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    with torch.no_grad():
        for each in side.model.parameters():
            each.grad.mul_(0.5)
    side.change()
    side.kept.append(out.detach().mul_(2))


def streams_change(side, i, x, y):
    if not PLACE:
        return side.step(x, y)
    stream = side.__dict__.setdefault("streams", [torch.cuda.Stream(), torch.cuda.Stream()])[i // 3 % 2]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        side.step(x, y)
    torch.cuda.current_stream().wait_stream(stream)
    return None


HABITS = [plain, losses_are_kept, gradients_are_kept, gradients_stay, gradients_are_summed, two_forwards_before_their_backwards,
          a_backward_runs_twice, an_optimiser_is_loaded, weights_are_replaced, results_are_written, streams_change]


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_the_numbers_are_eagers(habit):
    model = Net().train()
    sides = [Side(model, None), Side(model, {"backend": "keirin", "options": RACED})]
    batches = [(torch.randn(32, 16), torch.randint(0, 8, (32,))) for _ in range(30)]  # each lies elsewhere
    for i, (x, y) in enumerate(batches):
        for side in sides:
            habit(side, i, x, y)
    eager, mine = sides
    for (name, a), b in zip(eager.model.state_dict().items(), mine.model.state_dict().values()):
        torch.testing.assert_close(b, a, rtol=2e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}")
    assert len(mine.kept) == len(eager.kept)
    for a, b in zip(eager.kept, mine.kept):
        torch.testing.assert_close(b, a, rtol=2e-3, atol=2e-3)
    assert any(isinstance(each, _training.Step) for each in graphs())
    if PLACE:
        assert sum(each.answered for each in graphs() if isinstance(each, _training.Step)) > 20


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.head = nn.Linear(16, 3 * 64), nn.Linear(64, 8)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (2, 32)).transpose(1, 2) for each in self.lift(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)
        return self.head(mixed.transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize("narrow", (False, True))
def test_random_numbers_of_attention_lie_where_its_backward_reads_them(narrow):
    """Recorded, LibTorch's attention leaves their state on the device, where a backward that is not recorded must not look for it. cuDNN's,
    which a GPU takes in 16 bits, leaves it there always."""
    model = Attention().train()
    sides = [Side(model, None), Side(model, {"backend": "keirin", "options": RACED})]
    for i in range(12):
        x, y = torch.randn(8, 24, 16), torch.randint(0, 8, (8,))
        for side in sides:
            side.narrow = narrow
            torch.manual_seed(i)
            side.step(x, y)
    for a, b in zip(sides[0].model.parameters(), sides[1].model.parameters()):
        torch.testing.assert_close(b, a, rtol=2e-2 if narrow else 2e-3, atol=2e-3 if narrow else 2e-4)
    assert not notes() or set(notes()) == {"it draws random numbers otherwise than inputs could stand for"}  # judged by what was traced


def test_a_gradient_is_the_parameters_own():
    """No copy is made of it, as of eager's."""
    model = Net().train()
    call = torch.compile(model, backend="keirin", options={**RACED, "race_seconds": 0, "force": "compiled"})
    x, y = torch.randn(32, 16), torch.randint(0, 8, (32,))
    for _ in range(4):
        model.zero_grad()
        F.cross_entropy(call(x), y).backward()
    model.zero_grad()
    loss = F.cross_entropy(call(x), y)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss.backward()
    made = [child.name for each in profile.events() if each.name == "torch::autograd::AccumulateGrad" for child in each.cpu_children]
    assert made and "aten::copy_" not in made and "aten::clone" not in made
