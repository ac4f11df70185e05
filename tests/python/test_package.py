# SPDX-License-Identifier: Apache-2.0
"""The wheel itself: what it holds, the command, other torches, and the examples of the pages."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import keirin

pytestmark = pytest.mark.cpu_only("the package is the same for all devices")

kPackage = Path(keirin.__file__).parent
kRoot = Path(__file__).resolve().parents[2]


def run(*words, **variables):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, env={**os.environ, **variables})


def test_it_holds_what_it_needs_and_no_torch():
    for name in ("keirin-worker", "keirin", "plugins/keirin_cpu/manifest.toml", "py.typed", "__init__.pyi", "_native.pyi"):
        assert (kPackage / name).exists(), name
    assert not [path for path in kPackage.rglob("*") if "libtorch" in path.name or "libc10" in path.name]


def test_the_command_runs():
    command = "import sys; from keirin._command import main; sys.argv = ['keirin', 'plugins']; main()"
    listed = run(sys.executable, "-c", command)
    assert listed.returncode == 0 and re.search(r"^cpu\S* .*used", listed.stdout, re.M), listed.stdout + listed.stderr


def test_it_may_be_moved_and_needs_no_compiler(tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(kPackage, moved / "keirin", symlinks=True)
    code = ("import torch, keirin; assert keirin.__file__.startswith(%r), keirin.__file__\n"
            "with torch.no_grad():\n"
            "    m = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Softmax(-1)).eval(); x = torch.randn(4, 8)\n"
            "    from keirin._dynamo import backend, graphs\n"
            "    f = torch.compile(m, backend=backend, options={'compile': 'now', 'race_seconds': 0, 'force': 'compiled'})\n"
            "    f(x); torch.testing.assert_close(f(x), m(x))\n"
            "    assert graphs()[0]._handle.answered == 1, keirin.explain()\n") % str(moved)
    done = run(sys.executable, "-c", code, PYTHONPATH=str(moved), PATH="/nowhere", KEIRIN_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("allowed", ["", "9.9.0"])
def test_another_torch_is_refused_or_allowed_by_name(allowed):
    code = "import torch; torch.__version__ = '9.9.0'; import keirin"
    done = run(sys.executable, "-c", code, KEIRIN_ALLOW_TORCH=allowed)
    assert (done.returncode == 0) == bool(allowed)
    if not allowed:
        last = done.stderr.strip().splitlines()[-1]
        assert "is not tested with torch 9.9.0" in last and "KEIRIN_ALLOW_TORCH=9.9.0" in last


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_examples_of_the_pages_run(page, tmp_path, monkeypatch):
    text = (kRoot / page).read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.S)
    assert examples, f"{page} has no example"
    monkeypatch.chdir(tmp_path)
    space = {}
    for example in examples:
        exec(compile(example, page, "exec"), space)
    torch.set_grad_enabled(True)


def test_the_page_on_exporting_runs(tmp_path):
    page = "docs/export.md"
    blocks = re.findall(r"^```(python|sh|text)\n(.*?)^```$", (kRoot / page).read_text(), re.M | re.S)
    assert [kind for kind, _ in blocks].count("sh") >= 2 and blocks[0][0] == "python"
    command = tmp_path / "keirin"  # as pip would make it
    command.write_text(f"#!{sys.executable}\nfrom keirin._command import main\nmain()\n")
    command.chmod(0o755)
    said = ""
    for kind, block in blocks:
        if kind == "text":
            for line in block.splitlines():
                pattern = ".*".join(re.escape(part) for part in re.sub(" +", " ", line).split("..."))
                assert any(re.fullmatch(pattern, re.sub(" +", " ", each)) for each in said.splitlines()), f"{line} is not in:\n{said}"
            continue
        words = [sys.executable, "-c", block] if kind == "python" else ["bash", "-euc", block]
        done = subprocess.run(words, cwd=tmp_path, env=dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}"), capture_output=True,
                              text=True)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
