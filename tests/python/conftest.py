# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share. They run the installed wheel (ci/python_tests); none needs a GPU, and with --device cuda
they run on one: tensors and modules are made there."""
import atexit
import os
import shutil
import tempfile

# A cache of this run alone, set before anything is imported: what an earlier run kept would be answered without compiling.
os.environ["KEIRIN_CACHE"] = tempfile.mkdtemp(prefix="keirin-tests-")
atexit.register(shutil.rmtree, os.environ["KEIRIN_CACHE"], ignore_errors=True)

import pytest
import torch

# Compiled code answers although no race was held, so that a test sees it, and sees it soon. It is still verified.
NOW = {"compile": "now", "race_seconds": 0, "force": "compiled"}


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, x):
        return torch.softmax(self.second(torch.nn.functional.gelu(self.first(x))) * 2 + 1, -1)


PLACE: dict[str, str] = {}  # an option of keirin.load and keirin.bench


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where tensors and modules are made")


def pytest_configure(config):
    config.addinivalue_line("markers", "cpu_only(reason): says nothing of a GPU")
    if (device := config.getoption("device")) != "cpu":
        PLACE["device"] = device


@pytest.fixture(autouse=True)
def fresh(request):
    if PLACE and (mark := request.node.get_closest_marker("cpu_only")):
        pytest.skip(mark.args[0])
    torch.set_default_device(PLACE.get("device"))
    torch.manual_seed(0)
    torch.compiler.reset()
    from keirin import _dynamo
    global _earlier
    _earlier = {graph.name for graph in _dynamo.graphs()}
    # torch.compile(dynamic=True) sets these for the process while a call lasts. Where calls of several threads overlap, the last one to end
    # puts back what another had set, all sizes are symbols from then on, and reset() leaves it so.
    with torch._dynamo.config.patch(assume_static_by_default=True, automatic_dynamic_shapes=True):
        yield
    import keirin
    assert keirin.wait(120), "something is still being decided"


_earlier: set[str] = set()


@pytest.fixture
def mlp():
    return Mlp().eval()


def graphs():
    """Those of this test: an earlier test's may wait for the garbage collector."""
    from keirin import _dynamo
    return [graph for graph in _dynamo.graphs() if graph.name not in _earlier]


def compiled(model, **options):
    return torch.compile(model, backend="keirin", options={**NOW, **options})


def answered():
    """Calls that the runtime answered, of all graphs that are alive."""
    return sum(graph._handle.answered for graph in graphs() if graph._handle is not None)


def reasons():
    return [graph.reason for graph in graphs() if graph.reason]
