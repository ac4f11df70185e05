# SPDX-License-Identifier: Apache-2.0
"""No thread of ours keeps a team of OpenMP's. Where all teams of a process have more threads than there are processors, none of them spins
between two operators any more, and whoever calls pays a wake-up for each."""
import time
from pathlib import Path

import pytest
import torch

import keirin


def threads() -> list[str]:
    """Names of the threads of this process, ours begin with "keirin"; those of a team are called as the one that started them."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except (FileNotFoundError, ProcessLookupError):  # gone meanwhile
            pass
    return names


@pytest.mark.cpu_only("of processors' threads")
def test_a_decision_in_the_background_leaves_no_team():
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).eval()
        x = torch.randn(64, 512)
        call = torch.compile(model, backend="keirin", options={"force": "compiled", "race_seconds": 0.2})
        with torch.no_grad():
            model(x)
            torch.compile(model, backend="aot_eager")(x)  # Dynamo's threads, and those of what else starts with it
            torch.compiler.reset()
            before = [name for name in threads() if not name.startswith("keirin")]
            for rows in (64, 80):
                y = torch.randn(rows, 512)
                for _ in range(8):
                    call(y)
                assert keirin.wait(120)
                for _ in range(8):
                    call(y)
        end = time.monotonic() + 10
        while True:
            after = threads()
            others = [name for name in after if not name.startswith("keirin")]
            ours = [name for name in after if name.startswith("keirin")]
            if len(others) <= len(before) and len(ours) == len(set(ours)) or time.monotonic() > end:
                break
            time.sleep(0.05)
        assert len(others) <= len(before), (before, after)
        assert len(ours) == len(set(ours)), after
    finally:
        torch.set_num_threads(number)
