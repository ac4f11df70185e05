# SPDX-License-Identifier: Apache-2.0
"""keirin.load, export, bench, explain, plugins, options and errors."""
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import keirin
from conftest import NOW, PLACE

numpy = pytest.importorskip("numpy")
COMPILED = {key: value for key, value in NOW.items() if key != "compile"}


def load(path, **options):
    return keirin.load(path, **{**PLACE, **options})


@pytest.fixture
def path(mlp, tmp_path):
    return keirin.export(mlp, (torch.randn(4, 16),), tmp_path / "mlp.pt2")


def test_the_answer_is_eagers_before_and_after_compiling(mlp, path):
    x = torch.randn(4, 16)
    model = load(path, compile="asked", **COMPILED)
    with torch.no_grad():
        wanted = mlp(x)
    assert torch.equal(model(x), wanted)
    assert model.report() == []
    model.compile(x)
    assert model.report()[0]["chosen"] not in ("eager", "replay"), model.explain()
    assert model.report()[0]["verified"]
    torch.testing.assert_close(model(x), wanted)
    assert torch.get_default_device().type in model.explain()


def test_the_batch_is_free(mlp, path):
    model = load(path, compile="now", **COMPILED)
    for batch in (2, 7):
        x = torch.randn(batch, 16)
        with torch.no_grad():
            torch.testing.assert_close(model(x), mlp(x))
    assert [report["inputs"] for report in model.report()] == [["f32[2,16]"], ["f32[7,16]"]]
    assert model.signature["inputs"][0]["sizes"][0]["symbol"]


def test_what_a_star_takes_has_free_sizes(tmp_path):
    class Star(torch.nn.Module):
        def forward(self, x, *rest, last):
            return (x + rest[0].sum() * rest[1][:3].sum() + last.sum(0)).relu()

    def inputs(rows, terms):
        return (torch.randn(rows, 4), torch.randn(terms), torch.randn(terms + 1)), {"last": torch.randn(7, rows, 4)}

    free = torch.export.Dim.AUTO
    args, kwargs = inputs(3, 5)
    sizes = {"x": {0: free}, "rest": ({0: free}, {0: free}), "last": {1: free}}
    torch.export.save(torch.export.export(Star(), args, kwargs, dynamic_shapes=sizes), tmp_path / "star.pt2")
    model = load(tmp_path / "star.pt2", compile="now", **COMPILED)
    for rows, terms in ((3, 5), (5, 8), (2, 4)):
        args, kwargs = inputs(rows, terms)
        torch.testing.assert_close(model(*args, **kwargs), Star()(*args, **kwargs))
    args, kwargs = inputs(5, 8)
    with pytest.raises(keirin.Error, match="rest"):
        model(args[0], args[1], args[2][:2], **kwargs)


def test_the_background_swaps_the_plan_in(mlp, path):
    model = load(path, **COMPILED)
    x = torch.randn(4, 16)
    first = model(x)
    assert keirin.wait(120)
    assert len(model.report()) == 1
    torch.testing.assert_close(model(x), first)


def test_numpy_in_numpy_out(mlp, path):
    x = numpy.random.default_rng(0).standard_normal((4, 16), dtype=numpy.float32)
    model = load(path, compile="asked")
    y = model(x)
    assert isinstance(y, numpy.ndarray)
    with torch.no_grad():
        numpy.testing.assert_array_equal(y, mlp(torch.from_numpy(x).to(torch.get_default_device())).cpu().numpy())
    x.flags.writeable = False
    numpy.testing.assert_array_equal(model(x), y)
    assert isinstance(model(torch.from_numpy(x.copy()).to(torch.get_default_device())), torch.Tensor)


class Structured(torch.nn.Module):
    def forward(self, batch, *, scale=None, flag=True):
        a, (b, c) = batch["a"], batch["rest"]
        out = {"sum": a + b + c, "pair": (a * scale, [b])}
        return out if flag else out["sum"]


def test_names_and_structures_are_pythons(tmp_path):
    batch = lambda n: {"a": torch.randn(n, 3), "rest": (torch.randn(n, 3), torch.randn(n, 3))}  # noqa: E731
    path = keirin.export(Structured(), (batch(4),), tmp_path / "s.pt2", kwargs={"scale": torch.tensor(2.0)}, dynamic=None)
    model = load(path, compile="asked")
    given = batch(4)
    wanted = Structured()(given, scale=torch.tensor(2.0))
    for got in (model(given, scale=torch.tensor(2.0)), model(batch=given, scale=torch.tensor(2.0))):
        assert list(got) == ["sum", "pair"] and isinstance(got["pair"], tuple) and isinstance(got["pair"][1], list)
        assert torch.equal(got["sum"], wanted["sum"]) and torch.equal(got["pair"][0], wanted["pair"][0])


@pytest.mark.parametrize("call, words", [
    (lambda m, x: m(), "the argument x is missing"),
    (lambda m, x: m(x, x), "2 arguments were given by position, the model takes 1"),
    (lambda m, x: m(x, y=x), "the model takes no argument y"),
    (lambda m, x: m([x]), "another structure"),
    (lambda m, x: m("text"), "is a str and not a tensor"),
    (lambda m, x: m(x.double()), "f64"),
    (lambda m, x: m(x[0]), "rank 1"),
    (lambda m, x: m(torch.randn(4, 15)), "15"),
])
def test_bad_calls_are_refused_in_words(path, call, words):
    model = load(path, compile="asked")
    with pytest.raises(keirin.Error, match=words) as raised:
        call(model, torch.randn(4, 16))
    assert raised.value.code == "invalid_input"
    assert "nothing was run" in str(raised.value) or "input" in str(raised.value)


def test_files_that_are_none_are_refused(tmp_path):
    (tmp_path / "text.pt2").write_text("no archive")
    with pytest.raises(keirin.Error) as raised:
        load(tmp_path / "text.pt2")
    assert raised.value.code == "corrupt" and "nothing was loaded" in str(raised.value)
    with pytest.raises(keirin.Error, match="absent.pt2"):
        load(tmp_path / "absent.pt2")


def test_options_are_checked_and_the_nearest_is_named(path):
    with pytest.raises(keirin.Error, match='no option is called "treads": the nearest is "threads"'):
        load(path, treads=2)
    with pytest.raises(keirin.Error, match="reduce-overhead"):
        load(path, mode="fastest")
    with pytest.raises(keirin.Error, match="background, now, asked"):
        load(path, compile="later")
    with pytest.raises(keirin.Error, match="takes one value"):
        load(path, threads=[1, 2])


def test_a_plugin_that_is_absent_is_named(path):
    with pytest.raises(keirin.Error, match="no_such_plugin"):
        load(path, plugins=["no_such_plugin"])


def test_the_types_of_the_options_are_those_of_the_table():
    from keirin import _options
    root = Path(__file__).resolve().parents[2]
    made = subprocess.run([sys.executable, root / "ci/python_options"], capture_output=True, text=True, check=True).stdout
    assert Path(_options.__file__).read_text() == made
    assert set(_options.Options.__annotations__) == set(keirin.options())


def test_plugins_are_listed():
    found = {plugin["name"]: plugin for plugin in keirin.plugins()}
    name = torch.get_default_device().type
    assert found[name]["used"], found[name]["reason"]


@pytest.mark.cpu_only("an index out of range ends a context of CUDA's")
def test_errors_of_pytorch_stay_pytorchs(tmp_path):
    class Index(torch.nn.Module):
        def forward(self, x, i):
            return x.index_select(0, i)
    path = keirin.export(Index(), (torch.randn(3, 2), torch.tensor([0, 1])), tmp_path / "i.pt2", dynamic=None)
    model = load(path, compile="asked")
    with pytest.raises(IndexError):
        model(torch.randn(3, 2), torch.tensor([0, 9]))


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return x + self.count


def test_a_model_that_writes_its_buffer_keeps_counting(tmp_path):
    path = keirin.export(Counter(), (torch.zeros(2),), tmp_path / "c.pt2", dynamic=None)
    model = load(path, **COMPILED)  # in the background: refused, and said
    assert [model(torch.zeros(2))[0].item() for _ in range(3)] == [1, 2, 3]
    assert "writes count" in model.explain()
    model = load(path, compile="now", **COMPILED)
    assert [model(torch.zeros(2))[0].item() for _ in range(4)] == [1, 2, 3, 4]
    assert len(model.report()) == 1


def test_threads_call_while_the_background_decides(mlp, path):
    model = load(path, **COMPILED)
    x = torch.randn(5, 16)
    with torch.no_grad():
        wanted = mlp(x)
    wrong = []

    def caller():
        for _ in range(200):
            if not torch.allclose(model(x), wanted, atol=1e-5):
                wrong.append(1)
    threads = [threading.Thread(target=caller) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert keirin.wait(120) and model.report()


def test_the_random_generator_is_the_callers(mlp, path):
    """A decision in the background puts generators back where models draw; nobody else's numbers may repeat."""
    torch.manual_seed(1)
    wanted = [torch.rand(1).item() for _ in range(2000)]
    torch.manual_seed(1)
    model = load(path, **COMPILED)
    got = []
    model(torch.ones(3, 16))
    while not keirin.wait(0) or len(got) < 2000:
        got.append(torch.rand(1).item())
        if len(got) == 2000:
            break
    assert got == wanted[:len(got)]


def test_bench_measures_a_module(mlp):
    stages = []
    report = keirin.bench(mlp, (torch.randn(64, 16),), race_seconds=1,
                          progress=lambda stage, done: stages.append((stage, done)), **PLACE)
    assert report["inputs"] == ["f32[64,16]"] and report["verified"]
    assert any("verify" in stage for stage, _ in stages) and all(0 <= done <= 1 for _, done in stages)
    assert report["model"] in str(report) and ("x of eager" in str(report)) == (not report.get("disturbed"))


def test_export_wants_a_module(tmp_path):
    with pytest.raises(keirin.Error, match="not a torch.nn.Module"):
        keirin.export(lambda x: x, (torch.ones(1),), tmp_path / "f.pt2")


def test_explain_of_a_process_without_graphs():
    code = "import keirin; assert keirin.explain() == 'no graph was compiled in this process\\n'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_progress_callback_that_raises_ends_nothing(mlp, path, capfd):
    def bad(stage, done):
        raise ValueError("mine")
    model = load(path, compile="now", progress=bad, **COMPILED)
    model(torch.randn(3, 16))
    assert model.report()
