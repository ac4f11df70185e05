# SPDX-License-Identifier: Apache-2.0
"""Is Keirin's eager baseline the truth? Checks it against programs that share nothing with it.

For each zoo model, in turns within one run: Python's own module (the one that was exported), the same as TorchScript in a plain
LibTorch program, Keirin's call before it has compiled anything, and its call with what `keirin bench` chose right before. The
lowest of the three eager medians is the baseline, whoever's it is. With the machine to itself:

    cmake --build build --target keirin_outside
    python bench/outside/run.py --keirin build/keirin --json outside.json

Needs the environment that bench/zoo/README.md describes.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "zoo"))
import export  # noqa: E402
from check import draw  # noqa: E402

torch.set_grad_enabled(False)  # some modules fill their own parameters in place

FAMILIES = ["resnet50", "vit_b16", "bert", "xlnet", "decoder_prefill", "decoder_decode", "unet", "gcn", "gat", "sage",
            "graph_diffusion", "dlrm", "lstm", "ppo_vit"]


class Inputs(torch.nn.Module):
    """Tensors in a form that a C++ program reads."""

    def __init__(self, tensors):
        super().__init__()
        for i, tensor in enumerate(tensors):
            self.register_buffer(f"input{i:03}", tensor)


class Outsider:
    """A timing program that answers one number for each number of seconds."""

    def __init__(self, *words, env):
        self.process = subprocess.Popen([str(w) for w in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, env=env)

    def __call__(self, seconds: float) -> float:
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the timing program ended")
        return float(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def python_median(module, inputs, seconds: float) -> float:
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        module(*inputs)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def measure(model: str, options, folder: Path) -> dict:
    case = export.kSmall[model]()
    torch.manual_seed(0)
    torch.set_default_dtype(case.dtype)
    module = case.build().eval()
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(draw(i.rule, list(i.shape), i.dtype, generator) for i in case.inputs)
    plugins = Path(options.keirin).resolve().parent / "plugins"  # of the build tree; an installed program finds its own
    env = os.environ | {"KEIRIN_CACHE": str(folder / "cache")} | ({"KEIRIN_PLUGIN_PATH": str(plugins)} if plugins.is_dir() else {})
    out = folder / "bench.json"
    subprocess.run([options.keirin, "bench", model, "--threads", str(options.threads), "--race-limit", str(options.race_limit), "--quiet",
                    "--json", str(out)], capture_output=True, check=False, env=env)
    bench = json.loads(out.read_text())["rows"][0]
    if bench["disturbed"]:
        sys.exit(f"{model}: keirin bench was disturbed: {bench['disturbed']}; give it the machine to itself")
    row = {"model": model} | {key: bench[key] for key in ("eager_ms", "chosen_ms", "chosen", "verified")}
    runners, outsiders = {}, {}
    with torch.inference_mode():
        runners["python"] = lambda seconds: python_median(module, inputs, seconds)
        torch.jit.script(Inputs(inputs)).save(str(folder / "inputs.ts"))
        pt2 = Path(export.__file__).parent / "models" / "small" / f"{model}.pt2"
        programs = {"keirin_eager": ("eager", pt2), "keirin_compiled": ("compiled", pt2)}
        try:
            torch.jit.trace(module, inputs, check_trace=False).save(str(folder / "model.ts"))
            programs["libtorch"] = ("libtorch", folder / "model.ts")
        except Exception as error:  # a module that cannot be traced is checked by Python's alone
            row["libtorch_failed"] = str(error).splitlines()[0][:120]
        for name, words in programs.items():
            runners[name] = outsiders[name] = Outsider(options.timer, *words, folder / "inputs.ts", options.threads, env=env)
        samples = {name: [] for name in runners}
        for name, runner in list(runners.items()):
            try:
                runner(options.seconds / 2)  # warm
            except RuntimeError as error:
                row[name + "_failed"] = str(error)
                del runners[name]
        for _ in range(options.rounds):
            for name, runner in runners.items():
                samples[name].append(runner(options.seconds))
        for outsider in outsiders.values():
            outsider.close()
    row |= {name + "_ms": statistics.median(values) for name, values in samples.items() if values}
    outside = min(row[key] for key in ("python_ms", "libtorch_ms") if key in row)
    row["outside_over_eager"] = outside / row["keirin_eager_ms"]
    row["baseline_ms"] = min(outside, row["keirin_eager_ms"])
    row["speedup"] = row["baseline_ms"] / row["keirin_compiled_ms"]
    return row


COLUMNS = {"eager_ms": "keirin bench eager_ms", "keirin_eager_ms": "Keirin eager", "libtorch_ms": "LibTorch program",
           "python_ms": "Python module", "keirin_compiled_ms": "Keirin compiled"}


def table_row(row: dict) -> str:
    cells = [f"{row[key]:.3f}" if key in row else "-" for key in COLUMNS]
    return f"| {row['model']} | {' | '.join(cells)} | {row['outside_over_eager']:.3f} | {row['speedup']:.2f}x | {row['chosen']} |"


HEAD = (f"| model | {' | '.join(COLUMNS.values())} | fastest outsider / Keirin eager | compiled over the lowest eager | chosen |\n"
        + "|---" * (len(COLUMNS) + 4) + "|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names of the zoo; the 14 families by default")
    parser.add_argument("--keirin", default="build/keirin")
    parser.add_argument("--timer", default="build/keirin_outside")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--race-limit", type=float, default=30, help="seconds, of keirin bench")
    parser.add_argument("--show", help="print the table of such a file and end")
    options = parser.parse_args()
    if options.show:
        rows = json.loads(Path(options.show).read_text())["rows"]
        print("\n".join([HEAD] + [table_row(row) for row in rows]))
        print(f"\nGeometric mean over {len(rows)} models: {statistics.geometric_mean(row['speedup'] for row in rows):.2f}x")
        return 0
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    rows = []
    print(HEAD)
    for model in options.models or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows.append(measure(model, options, Path(folder)))
                print(table_row(rows[-1]), flush=True)
            except Exception as error:
                print(f"| {model} | failed: {type(error).__name__}: {str(error)[:120]} |", flush=True)
        if options.json:  # after each, so that a run that is stopped leaves what it has
            machine = {"cpu": platform.processor() or platform.machine(), "torch": torch.__version__, "threads": options.threads}
            Path(options.json).write_text(json.dumps({"schema": "keirin/outside/2", "machine": machine, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
