# SPDX-License-Identifier: Apache-2.0
"""Keirin beside Python's eager module, every mode of torch.compile, AOTInductor, ONNX Runtime and OpenVINO, on zoo models, as one table.

The Python variants of a model are built in one process from the module that the zoo's file was exported from, with weights as the
library initialises them and inputs drawn by the file's rules, and timed in turns (A B C A B C ...): host clock round one call and a
synchronisation, medians over the rounds. `keirin bench` runs as its own process right before. The baseline of every ratio is Python's
eager module. Results are kept as JSON with the machine, after every model, and with how far each mode's outputs are from eager's. A mode
that raises, that takes longer than --bound, or in which the process dies is a row that says so, and the model's other modes are measured
without it. `onnxruntime` (of torch.onnx.export, which needs onnxscript) and `openvino` run on the CPU, with as many threads as torch and
in the module's own precision. There each sample is taken after 30 ms of rest and a call that does not count.

    python bench/peers/run.py --device cuda --size full --keirin build/keirin --json peers.json --markdown peers.md

The mode `keirin` is Keirin from Python: torch.compile(backend="keirin"), of the package that is installed or in PYTHONPATH. Where
`keirin bench` did not run too (no --keirin), it is what the table compares.

With --cold nothing is timed but building: every model and mode in a process of its own, several at once, on caches that start empty;
with --keirin then `keirin bench --costs`, one model after the other, whose cache starts empty as well.
With --keep-caches and --packages a measurement after it finds what was built. With --together SECONDS all models' variants are built
at once, each model's in its process, and timed once all are or the seconds are over: one model after the other, nothing beside it. The
mode `keirin`, which races, is built then, too.

    python bench/peers/run.py --device cuda --size full --modes default --jobs 1 --keirin build/keirin --cold cold.json
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if "--show" not in sys.argv:  # printing a file needs nothing but Python
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "zoo"))
    import export
    from check import draw

BUILT = "built"  # what a process notes while it waits to be timed
FAMILIES = ["resnet50", "vit_b16", "bert", "xlnet", "decoder_prefill", "decoder_decode", "unet", "gcn", "gat", "sage",
            "graph_diffusion", "dlrm", "lstm", "ppo_vit"]


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def load(model: str, size: str, device: str):
    """The module that was exported, and inputs as the file draws them, on the device."""
    case = export.kSizes[size][model]()
    torch.manual_seed(0)
    torch.set_default_dtype(case.dtype)
    with torch.no_grad(), torch.device(device):
        module = case.build().eval().to(device)
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator().manual_seed(0)
    return module, tuple(draw(i.rule, list(i.shape), i.dtype, generator).to(device) for i in case.inputs)


def with_graph(module, inputs):
    """Eager recorded into a CUDA graph; the inputs are the recording's own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            module(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(*inputs)
    return graph.replay


def ahead_of_time(module, inputs, package: Path):
    """AOTInductor: exported, compiled into a package unless that is there, loaded from it."""
    if not package.exists():
        torch._inductor.aoti_compile_and_package(torch.export.export(module, inputs), package_path=str(package))
    return torch._inductor.aoti_load_package(str(package))


def with_onnxruntime(module, inputs):
    """Exported, optimised as it is by default, and called with memory of torch's on both sides."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:  # the weights lie beside the graph
        path = f"{folder}/model.onnx"
        torch.onnx.export(module, inputs, path, dynamo=True, external_data=True, optimize=True, verbose=False)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {i.name: onnxruntime.OrtValue.ortvalue_from_numpy(x.numpy()) for i, x in zip(session.get_inputs(), inputs, strict=True)}
    names = [o.name for o in session.get_outputs()]
    return lambda: [torch.from_numpy(y.numpy()) for y in session.run_with_ort_values(names, feed)]


def with_openvino(module, inputs):
    """Converted from the exported program, tuned for one call at a time."""
    import openvino

    core = openvino.Core()
    precision = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[next(module.parameters()).dtype]
    compiled = core.compile_model(openvino.convert_model(torch.export.export(module, inputs)), "CPU",
                                  {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                                   "INFERENCE_PRECISION_HINT": precision})
    request, feed = compiled.create_infer_request(), [x.numpy() for x in inputs]
    return lambda: [torch.from_numpy(y) for y in request.infer(feed, share_inputs=True, share_outputs=True).to_tuple()]


def flat(outputs) -> list:
    """The tensors of what a call returned, in order."""
    return [t for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]


def distance(outputs, eager) -> float | None:
    """The largest difference, relative to eager's largest element; None where a mode keeps its outputs to itself or has others."""
    if [tuple(t.shape) for t in flat(outputs)] != [tuple(t.shape) for t in flat(eager)]:
        return None
    pairs = [(a.double().cpu(), b.double().cpu()) for a, b in zip(flat(outputs), flat(eager)) if b.numel()]
    return max((((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item() for a, b in pairs), default=0.0)


@contextlib.contextmanager
def bounded(seconds: float):
    """Raises TimeoutError in the body once the time is over; 0 is not a bound."""
    def over(*_):
        raise TimeoutError(f"not built in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def own_function(mode: str, module):
    """A call of the module, in code that no other mode has: where one mode gives code up (a module that begins with nn.LSTM), Dynamo
    leaves it to Python in all of them."""
    names: dict = {"module": module}
    exec(f"def {mode.replace('-', '_')}(*inputs):\n    return module(*inputs)", names)
    return names[mode.replace("-", "_")]


def variants(module, inputs, device: str, modes: list[str], bound: float, until: float, package: Path, begin):
    """name -> (callable, seconds to build, distance from eager) or (None, reason). `begin` is told each name before anything of it runs. A
    mode may take
    `bound` seconds, and none may build past the time of day `until`; 0: no limit. Nothing is reset between modes: what was compiled
    before would be compiled again when it is timed."""
    out = {"eager": (lambda: module(*inputs), 0.0, 0.0)}
    expected = module(*inputs)
    for mode in modes:
        begin(mode)
        start = time.perf_counter()
        try:
            left = max(until - time.time(), 0.001) if until else 0
            with bounded(min(filter(None, (bound, left)), default=0)):
                if mode == "eager_graph":
                    call = with_graph(module, inputs)
                elif mode == "onnxruntime":
                    call = with_onnxruntime(module, inputs)
                elif mode == "openvino":
                    call = with_openvino(module, inputs)
                else:
                    if mode == "aoti":
                        built = ahead_of_time(module, inputs, package)
                    else:
                        its = {"mode": None if mode == "default" else mode}
                        if mode == "keirin":
                            its = {"backend": "keirin", "options": {"compile": "now"}}
                        built = torch.compile(own_function(mode, module), **its)
                    for _ in range(3):
                        built(*inputs)
                    call = lambda built=built: built(*inputs)  # noqa: E731
                synchronize(device)
            out[mode] = (call, time.perf_counter() - start, distance(call(), expected))
        except Exception as error:  # a peer that cannot do a model is a row of the table
            late = until and time.time() >= until
            out[mode] = (None, "not built before the time for building was over" if late else reason_of(error))
    return out


def reason_of(error: Exception) -> str:
    """All that it says, but for the advice how to debug PyTorch."""
    lines = [line.strip() for line in str(error).split("Set TORCHDYNAMO_VERBOSE")[0].splitlines() if line.strip()]
    return f"{type(error).__name__}: {' / '.join(lines)}"[:400]


def time_in_turns(calls: dict, device: str, seconds: float, begin) -> dict[str, float]:
    """Median milliseconds of each; a sample is a batch of at least 2 ms or one call."""
    def sample(call, repeat):
        if device == "cpu":  # each run time has threads of its own, which look for work for a while after a call
            time.sleep(0.03)
            call()
        synchronize(device)
        start = time.perf_counter()
        for _ in range(repeat):
            call()
            synchronize(device)
        return (time.perf_counter() - start) / repeat * 1e3

    repeat = {}
    for name, call in calls.items():
        begin(name)
        for _ in range(3):
            once = sample(call, 1)
        repeat[name] = max(1, int(2.0 / max(once, 1e-3)))
    begin("timing")
    samples = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while len(samples["eager"]) < 7 or (time.perf_counter() < end and len(samples["eager"]) < 60):
        for name, call in calls.items():
            samples[name].append(sample(call, repeat[name]))
    return {name: statistics.median(values) for name, values in samples.items()}


def keirin_row(command: str, model: str, size: str, device: str, extra: list[str]) -> dict:
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        try:
            file = Path(export.__file__).parent / "models" / size / f"{model}.pt2"
            done = subprocess.run([command, "bench", str(file), "--device", device, "--quiet", "--json", out.name] + extra,
                                  capture_output=True, text=True, timeout=600)
            row = json.load(open(out.name))["rows"][0]
            return {"error": f"disturbed: {row['disturbed']}"} if row.get("disturbed") else row
        except subprocess.TimeoutExpired:
            return {"error": "killed after 600 s"}
        except Exception:
            return {"error": (done.stderr or done.stdout).strip()[-400:]}


def run_alone(command: list[str], note: Path, limit: float) -> str:
    """Runs it as a session of its own; "" or why it was ended or ended by itself. `limit` counts from the last change of `note`,
    but not while the process waits for its turn."""
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
        changed, before = time.monotonic(), None
        while child.poll() is None:
            time.sleep(0.05)
            now = note.stat().st_mtime_ns if note.exists() else None
            if now != before:
                changed, before = time.monotonic(), now
            if limit and time.monotonic() - changed > limit and note.exists() and note.read_text() != BUILT:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)  # with the compile workers that it started
                child.wait()
                return f"killed after {limit:.0f} s"
        if child.returncode == 0:
            return ""
        errors.seek(0)
        last = [line.strip() for line in errors.read().splitlines() if line.strip()][-1:]
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"code {child.returncode}"
        return f"ended with {how}" + (f": {last[0][:300]}" if last else "")


def python_row(model: str, options, gate: str = "") -> dict:
    """The Python variants of a model, in a process that may die: then without the mode that it died in."""
    failed = {}
    while True:
        with tempfile.TemporaryDirectory() as folder:
            note, out = Path(folder) / "note", Path(folder) / "row.json"
            modes = [m for m in options.modes if m not in failed]
            command = [sys.executable, __file__, model, "--device", options.device, "--size", options.size, "--modes", ",".join(modes),
                       "--seconds", str(options.seconds), "--bound", str(options.bound), "--threads", str(options.threads),
                       "--packages", options.packages or folder, "--alone", str(out), "--note", str(note), "--gate", gate, "--until",
                       str(options.until)]
            why = run_alone(command, note, options.bound + 60 if options.bound else 0)
            at = note.read_text() if note.exists() else "start"
            row = json.loads(out.read_text()) if out.exists() else {}
        if not why and row:
            row["failed"] = row.get("failed", {}) | failed
            return row
        why = why or "wrote nothing"
        if at not in modes:
            return {"error": f"{at}: {why}", "failed": failed}
        failed[at] = why


def measure_alone(model: str, options) -> dict:
    """What python_row's child does; what raises here ends it, and the note says in which mode."""
    begin = Path(options.note).write_text if options.note else lambda _: None
    begin("load")
    module, inputs = load(model, options.size, options.device)
    with torch.no_grad():
        folder = Path(options.packages)
        folder.mkdir(parents=True, exist_ok=True)
        package = folder / f"{model}.pt2"
        # Keirin races while it builds: with a gate, once nothing builds beside it.
        later = [mode for mode in options.modes if mode == "keirin" and options.gate]
        first = [mode for mode in options.modes if mode not in later]
        built = variants(module, inputs, options.device, first, options.bound, options.until, package, begin)
        if options.gate:
            built_file(options.gate).touch()
            begin(BUILT)
            while not Path(options.gate).exists():
                time.sleep(0.05)
        if later:
            built |= variants(module, inputs, options.device, later, options.bound, 0, package, begin)
        row = {"build_s": {k: v[1] for k, v in built.items() if v[0]}, "failed": {k: v[1] for k, v in built.items() if not v[0]},
               "distance": {k: v[2] for k, v in built.items() if v[0]}}
        if options.seconds > 0:
            row["ms"] = time_in_turns({k: v[0] for k, v in built.items() if v[0]}, options.device, options.seconds, begin)
    return row


def bench(model: str, options, python=python_row) -> dict:
    row = {"model": model}
    if options.keirin:
        row["keirin"] = keirin_row(options.keirin, model, options.size, options.device, options.keirin_option)
    return row | python(model, options)


def built_file(gate: str) -> Path:
    return Path(gate + ".built")


def bench_together(models: list[str], options):
    """The rows of bench(), each as soon as it is measured, of processes that built what they time all at once."""
    options.until = time.time() + options.together
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(len(models)) as pool:
        gates = {model: f"{folder}/{model}" for model in models}
        rows = {model: pool.submit(python_row, model, options, gates[model]) for model in models}
        while not all(rows[model].done() or built_file(gates[model]).exists() for model in models):
            time.sleep(0.1)

        def let_through(model: str, _) -> dict:
            Path(gates[model]).touch()
            return rows[model].result()

        for model in models:
            yield bench(model, options, let_through)


def ours(row: dict) -> float | None:
    """Milliseconds of Keirin: of its command, else of its Python package."""
    return row.get("keirin", {}).get("chosen_ms") or row.get("ms", {}).get("keirin")


def markdown(rows: list[dict], modes: list[str]) -> str:
    """Worst ratio of Keirin over the best peer first."""
    lines = []
    if not any(row.get("keirin") for row in rows):  # then the mode is the column behind the others
        modes = [mode for mode in modes if mode != "keirin"]
    for row in rows:
        ms, keirin = row.get("ms", {}), row.get("keirin", {})
        eager = ms.get("eager")
        best = min((v for k, v in ms.items() if k not in ("eager", "keirin")), default=None)
        mine = ours(row)
        ratio = best / mine if best and mine else 0.0
        cells = [row["model"], f"{eager:.3f}" if eager else "-"]
        cells += [f"{ms[m]:.3f} ({eager / ms[m]:.2f}x)" if m in ms else "failed" if m in row.get("failed", {}) else "not run"
                  for m in modes]
        cells += [f"{mine:.3f} ({eager / mine:.2f}x)" if mine and eager else keirin.get("error", "-")[:60], keirin.get("chosen", "-"),
                  f"{ratio:.2f}x" if ratio else "-", str(keirin.get("verified", "-"))]
        lines.append((ratio, "| " + " | ".join(cells) + " |"))
    head = ["model", "eager ms"] + modes + ["keirin", "chosen", "over best peer", "verified"]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + [line for _, line in sorted(lines)]) + "\n"


def failures(rows: list[dict]) -> str:
    """What did not run, with its reason."""
    lines = [f"- {r['model']}, {mode}: {why}" for r in rows
             for mode, why in (r.get("failed", {}) | {k: r[k] for k in ["error"] if k in r}).items()]
    return "".join(line[:300] + "\n" for line in lines)


def summary(rows: list[dict], modes: list[str]) -> str:
    """Geometric means over the models that Python's eager module, one compiled peer and Keirin ran."""
    peers = [m for m in modes if m not in ("eager_graph", "keirin")]
    rows = [r for r in rows if ours(r) and "eager" in r.get("ms", {}) and set(peers) & set(r["ms"])]
    if not rows or not peers:
        return ""
    mean = lambda f: statistics.geometric_mean([f(r) for r in rows])  # noqa: E731
    best = lambda r: min(r["ms"][m] for m in peers if m in r["ms"])  # noqa: E731
    best_of_all = lambda r: min(v for k, v in r["ms"].items() if k != "keirin")  # noqa: E731
    return (f"Geometric means over {len(rows)} models: {mean(lambda r: r['ms']['eager'] / ours(r)):.2f}x over Python's eager module "
            f"(the best of {', '.join(peers)}: {mean(lambda r: r['ms']['eager'] / best(r)):.2f}x), "
            f"{mean(lambda r: best(r) / ours(r)):.2f}x over that best, {mean(lambda r: best_of_all(r) / ours(r)):.2f}x over the best of "
            "all.\n")


def machine_of(options) -> dict:
    machine = {"cpu": platform.processor(), "cpus": os.cpu_count(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    return machine | ({"gpu": torch.cuda.get_device_name(0)} if options.device == "cuda" else {})


def models_of(options) -> list[str]:
    return options.models or (FAMILIES if options.size in ("small", "full") else list(export.kSizes[options.size]))


def cold(options) -> dict:
    """Seconds that each mode takes to build each model, every cache empty at first; `jobs` processes at once, one for each pair."""
    models = models_of(options)
    rows = {model: {"model": model, "build_s": {}, "failed": {}} for model in models}
    out = {"schema": "keirin/cold/1", "modes": options.modes, "at_once": options.jobs, "machine": machine_of(options),
           "rows": list(rows.values())}
    with tempfile.TemporaryDirectory() as folder:
        if not options.keep_caches:
            os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}

        def one(model: str, mode: str):
            row, note = Path(folder) / f"{model}-{mode}.json", Path(folder) / f"{model}-{mode}.note"
            command = [sys.executable, __file__, model, "--device", options.device, "--size", options.size, "--modes", mode,
                       "--seconds", "0", "--bound", str(options.bound), "--packages", options.packages or folder, "--alone", str(row),
                       "--note", str(note)]
            why = run_alone(command, note, options.bound + 60 if options.bound else 0)
            return json.loads(row.read_text()) if row.exists() else {"error": why or "wrote nothing"}

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            made = {pool.submit(one, model, mode): (model, mode) for mode in options.modes for model in models}
            for each in concurrent.futures.as_completed(made):
                (model, mode), row = made[each], each.result()
                if mode in row.get("build_s", {}):
                    rows[model]["build_s"][mode] = row["build_s"][mode]
                else:
                    rows[model]["failed"][mode] = row.get("failed", {}).get(mode) or row.get("error", "")
                print(model, mode, rows[model]["build_s"].get(mode) or rows[model]["failed"][mode], flush=True)
                Path(options.cold).write_text(json.dumps(out, indent=1))  # a run that is cut short loses nothing
    for model in models if options.keirin else []:
        rows[model]["keirin"] = keirin_row(options.keirin, model, options.size, options.device, ["--costs"] + options.keirin_option)
        Path(options.cold).write_text(json.dumps(out, indent=1))
    return out


def cold_markdown(out: dict) -> str:
    """Keirin's largest share of the fastest peer's seconds first."""
    lines = []
    for row in out["rows"]:
        peers, keirin = row["build_s"], row.get("keirin", {})
        ours = keirin.get("compile_s", 0)
        share = ours / min(peers.values()) if ours and peers else 0.0
        cells = [row["model"]] + [f"{peers[m]:.2f}" if m in peers else "failed" for m in out["modes"]]
        cells += [f"{ours:.2f}" if ours else keirin.get("error", "-")[:60], f"1/{1 / share:.1f}" if share else "-",
                  keirin.get("chosen", "-")]
        lines.append((share, "| " + " | ".join(cells) + " |"))
    head = ["model"] + [f"{m} s" for m in out["modes"]] + ["keirin s", "share", "chosen"]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + [line for _, line in sorted(lines, reverse=True)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names of the zoo; by default the 14 families, or all of another size")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", choices=["small", "full", "others", "strangers"], default="small")
    parser.add_argument("--keirin", help="the keirin command to run beside; none: peers alone")
    parser.add_argument("--keirin-option", action="append", default=[], help="passed on to keirin bench")
    parser.add_argument("--modes", default="",
                        help="comma-separated: eager_graph,default,reduce-overhead,max-autotune,aoti,onnxruntime,openvino")
    parser.add_argument("--bound", type=float, default=0, help="seconds that one mode may take to build one model; 0: any number")
    parser.add_argument("--cold", help="only build, on empty caches, and write the seconds to this file")
    parser.add_argument("--jobs", type=int, default=7, help="processes of --cold at once")
    parser.add_argument("--packages", default="", help="folder of AOTInductor's packages: those there are loaded, others are made there")
    parser.add_argument("--keep-caches", action="store_true",
                        help="--cold uses the caches that TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR name")
    parser.add_argument("--together", type=float, default=0, metavar="SECONDS",
                        help="build all models at once, for at most so long, then time each")
    parser.add_argument("--seconds", type=float, default=3.0, help="least time spent timing one model")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json")
    parser.add_argument("--append", action="store_true", help="keep the rows of other models that --json has already")
    parser.add_argument("--markdown")
    parser.add_argument("--alone", help="for its own use: one model's Python variants, the row to this file")
    parser.add_argument("--note", help="for its own use: the file that names what is under way")
    parser.add_argument("--until", type=float, default=0, help="for its own use: the time of day after which nothing is built")
    parser.add_argument("--gate", default="", help="for its own use: the file whose existence allows timing")
    parser.add_argument("--show", help="measure nothing: print the table of this JSON file")
    options = parser.parse_args()
    if options.show:
        shown = json.loads(Path(options.show).read_text())
        if shown["schema"].startswith("keirin/cold/"):
            print(cold_markdown(shown))
            return 0
        rows = shown["rows"]
        modes = list(dict.fromkeys(m for r in rows for m in list(r.get("ms", {})) + list(r.get("failed", {})) if m != "eager"))
        print(markdown(rows, modes) + "\n" + failures(rows) + summary(rows, modes))
        return 0
    options.modes = [m for m in options.modes.split(",") if m]
    if options.cold:
        print(cold_markdown(cold(options)))
        return 0
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.alone:
        Path(options.alone).write_text(json.dumps(measure_alone(options.models[0], options)))
        return 0
    models = models_of(options)
    before = Path(options.json) if options.append and options.json else None
    rows = [r for r in json.loads(before.read_text())["rows"] if r["model"] not in models] if before and before.exists() else []
    machine = machine_of(options)
    for row in bench_together(models, options) if options.together else (bench(model, options) for model in models):
        rows.append(row)
        print(markdown(rows[-1:], options.modes).splitlines()[-1], flush=True)
        if options.json:  # a run that is cut short loses nothing
            Path(options.json).write_text(json.dumps({"schema": "keirin/peers/1", "machine": machine, "rows": rows}, indent=1))
    table = markdown(rows, options.modes) + "\n" + failures(rows) + summary(rows, options.modes)
    if options.markdown:
        Path(options.markdown).write_text(table)
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
