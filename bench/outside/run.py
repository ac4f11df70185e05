# SPDX-License-Identifier: Apache-2.0
"""Is Keirin's eager baseline the truth? Checks `eager_ms` of `keirin bench` against programs that share nothing with it.

For each zoo model, in turns within one run: Python's own module (the one that was exported), the same as TorchScript in a plain
LibTorch program, and Keirin's call before it has compiled anything. Where one of the outsiders is more than 3 % faster than eager_ms,
its time is the baseline, and the table says so. With the machine to itself:

    cmake --build build --target keirin_outside
    python bench/outside/run.py --keirin build/keirin --json outside.json

Needs the environment that bench/zoo/README.md describes.
"""
import argparse
import json
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

    def __init__(self, *words):
        self.process = subprocess.Popen([str(w) for w in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

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
    row = {"model": model}
    runners, outsiders = {}, {}
    with torch.inference_mode():
        runners["python"] = lambda seconds: python_median(module, inputs, seconds)
        torch.jit.script(Inputs(inputs)).save(str(folder / "inputs.ts"))
        pt2 = Path(export.__file__).parent / "models" / "small" / f"{model}.pt2"
        programs = {"keirin_call": ("keirin", pt2)}
        try:
            torch.jit.trace(module, inputs, check_trace=False).save(str(folder / "model.ts"))
            programs["libtorch"] = ("libtorch", folder / "model.ts")
        except Exception as error:  # a module that cannot be traced is checked by Python's alone
            row["libtorch_failed"] = str(error).splitlines()[0][:120]
        for name, words in programs.items():
            runners[name] = outsiders[name] = Outsider(options.timer, *words, folder / "inputs.ts", options.threads)
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
    out = folder / "bench.json"
    subprocess.run([options.keirin, "bench", model, "--threads", str(options.threads), "--quiet", "--json", str(out)], capture_output=True, check=False)
    bench = json.loads(out.read_text())["rows"][0]
    row |= {name + "_ms": statistics.median(values) for name, values in samples.items() if values}
    row |= {"eager_ms": bench["eager_ms"], "chosen_ms": bench["chosen_ms"], "chosen": bench["chosen"], "verified": bench["verified"]}
    outside = min(v for k, v in row.items() if k in ("python_ms", "libtorch_ms"))
    row["baseline"] = "eager_ms" if bench["eager_ms"] <= outside * 1.03 else "outside"
    row["baseline_ms"] = min(bench["eager_ms"], outside) if row["baseline"] == "outside" else bench["eager_ms"]
    row["speedup"] = row["baseline_ms"] / bench["chosen_ms"]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names of the zoo; the 14 families by default")
    parser.add_argument("--keirin", default="build/keirin")
    parser.add_argument("--timer", default="build/keirin_outside")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    rows = []
    print("| model | keirin bench eager_ms | keirin call | LibTorch program | Python module | fastest outsider / eager_ms | baseline | chosen over baseline |")
    print("|---|---|---|---|---|---|---|---|")
    for model in options.models or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows.append(row := measure(model, options, Path(folder)))
            except Exception as error:
                print(f"| {model} | failed: {type(error).__name__}: {str(error)[:120]} |", flush=True)
                continue
        cell = lambda name: f"{row[name]:.3f}" if name in row else "-"  # noqa: E731
        outside = min(v for k, v in row.items() if k in ("python_ms", "libtorch_ms"))
        print(f"| {model} | {cell('eager_ms')} | {cell('keirin_call_ms')} | {cell('libtorch_ms')} | {cell('python_ms')} | "
              f"{outside / row['eager_ms']:.3f} | {row['baseline']} | {row['speedup']:.2f}x |", flush=True)
    if options.json:
        machine = {"cpu": platform.processor() or platform.machine(), "torch": torch.__version__, "threads": options.threads}
        Path(options.json).write_text(json.dumps({"schema": "keirin/outside/1", "machine": machine, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
