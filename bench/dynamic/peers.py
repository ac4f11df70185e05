# SPDX-License-Identifier: Apache-2.0
"""The traffic of keirin_sizes through other compilers, each call beside Python's eager module on the same inputs, in turns.

    build/keirin_sizes --sizes 100 --most 8,128 --json sizes.json bench/zoo/models/small/bert_dynamic.pt2
    python bench/dynamic/peers.py --traffic sizes.json bench/zoo/models/small/bert_dynamic.pt2

Sizes come from the JSON file, weights and values from the model's own rules. A peer is built once, for any size: torch.compile with
dynamic=True, which compiles within calls when a guard fails, and on a GPU also with its recordings (reduce-overhead); ONNX Runtime (of
torch.onnx.export, which needs onnxscript) and OpenVINO on processors, of the exported program. What is not installed, or refuses the
model, is a row that says so. The peer and eager each have a thread of their own, since LibTorch keeps what cuDNN planned for a thread.
Printed for each: seconds to build, time of all calls and of eager's, the p99 of a call over eager's at its size, calls that took more than
ten times eager's (as those that compile do) and answers that are not eager's.
"""
import argparse
import concurrent.futures
import functools
import importlib.metadata
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / name) for name in ("zoo", "peers")]
import archive  # noqa: E402
from check import draw  # noqa: E402
from worker import error_of, leaves, on_device  # noqa: E402

FAR_OFF = {torch.bfloat16: 1e-1, torch.float16: 1e-2, torch.float32: 1e-3}  # of an output's largest element, as keirin_sizes has it
STALL = 10
PAUSE = 0.003  # before each call: threads that wait for more to do look for it a while


def needs(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise RuntimeError(f"the Python package {package} is not installed")


def with_torch_compile(program, inputs, mode="default"):
    return torch.compile(program.module(), dynamic=True, mode=mode)


def with_onnxruntime(program, inputs):
    needs("onnxruntime", "onnxscript")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        torch.onnx.export(program, inputs, path, dynamo=True, external_data=True, optimize=True, verbose=False)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda *given: [torch.from_numpy(y) for y in session.run(None, {n: x.numpy() for n, x in zip(names, given, strict=True)})]


def with_openvino(program, inputs):
    needs("openvino")
    import openvino

    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(openvino.convert_model(program), "CPU", hints).create_infer_request()
    return lambda *given: [torch.from_numpy(y) for y in request.infer([x.numpy() for x in given], share_inputs=True).to_tuple()]


PEERS = {  # and the devices that each is asked on
    "torch.compile dynamic": (with_torch_compile, ("cpu", "cuda")),
    "torch.compile dynamic reduce-overhead": (functools.partial(with_torch_compile, mode="reduce-overhead"), ("cuda",)),
    "onnxruntime": (with_onnxruntime, ("cpu",)),
    "openvino": (with_openvino, ("cpu",)),
}


class Traffic:
    """Inputs of drawn sizes: free sizes in the order in which the exported inputs have them first."""

    def __init__(self, program, rules: list, sizes: list, device: str):
        self.sizes, self.rules, self.device = sizes, rules, device
        names = set(program.graph_signature.user_inputs)
        self.metas = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
        self.symbols = list(dict.fromkeys(str(s) for meta in self.metas for s in meta.shape if not isinstance(s, int)))

    def inputs(self, i: int):
        value = dict(zip(self.symbols, self.sizes[i], strict=True))
        generator = torch.Generator().manual_seed(i)
        shapes = [[s if isinstance(s, int) else value[str(s)] for s in meta.shape] for meta in self.metas]
        drawn = (draw(archive.rule_at(self.rules, k, shapes), shapes[k], meta.dtype, generator) for k, meta in enumerate(self.metas))
        return tuple(x.to(self.device) for x in drawn)

    def wait(self):
        if self.device != "cpu":
            torch.cuda.synchronize()


def timed(call, inputs, wait):
    wait()
    start = time.perf_counter()
    with torch.no_grad():  # a thread's own
        outputs = call(*inputs)  # a recording's hold until its next call
    wait()
    return outputs, time.perf_counter() - start


def is_another(outputs, eager) -> bool:
    return error_of(outputs, eager) > max(FAR_OFF.get(each.dtype, FAR_OFF[torch.float32]) for each in leaves(eager))


def measure(name: str, build, program, eager, traffic: Traffic, budget: float) -> dict:
    with concurrent.futures.ThreadPoolExecutor(1) as of_peer, concurrent.futures.ThreadPoolExecutor(1) as of_eager:
        start = time.perf_counter()
        try:
            peer = of_peer.submit(build, program, traffic.inputs(0)).result()
            of_peer.submit(timed, peer, traffic.inputs(0), traffic.wait).result()
        except Exception as error:  # a row of the table
            return {"peer": name, "refused": str(error).strip().splitlines()[0][:200]}
        built, ours, theirs, wrong = time.perf_counter() - start, [], [], 0
        callers = {"peer": (of_peer, peer), "eager": (of_eager, eager)}
        of_eager.submit(timed, eager, traffic.inputs(0), traffic.wait).result()
        begun = time.perf_counter()
        for i in range(len(traffic.sizes)):
            if time.perf_counter() - begun > budget:
                break
            inputs, answers, seconds = traffic.inputs(i), {}, {}
            for who in ("peer", "eager")[:: -1 if i % 2 else 1]:
                time.sleep(PAUSE)
                thread, call = callers[who]
                answers[who], seconds[who] = thread.submit(timed, call, inputs, traffic.wait).result()
            ours.append(seconds["peer"])
            theirs.append(seconds["eager"])
            wrong += is_another(answers["peer"], answers["eager"])
    over = sorted(a / b for a, b in zip(ours, theirs))
    return {"peer": name, "calls": len(ours), "build_s": built, "s": sum(ours), "eager_s": sum(theirs), "ratio": sum(theirs) / sum(ours),
            "p99_over_eager": over[min(len(over) - 1, int(0.99 * len(over)))], "stalls": sum(r > STALL for r in over), "wrong": wrong}


def text_of(row: dict) -> str:
    if "refused" in row:
        return f"{row['peer']}: {row['refused']}"
    return (f"{row['peer']}: built in {row['build_s']:.1f} s; {row['calls']} calls in {row['s']:.2f} s, eager {row['eager_s']:.2f} s "
            f"({row['ratio']:.3f}x); p99 over eager's {row['p99_over_eager']:.2f}; {row['stalls']} calls of more than {STALL} times "
            f"eager's; {row['wrong']} answers not eager's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the .pt2 file that keirin_sizes was given")
    parser.add_argument("--traffic", type=Path, required=True, help="what keirin_sizes --json wrote")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), help="default: those that the device has")
    parser.add_argument("--budget", type=float, default=600, help="seconds of calls for each peer; those that are left are left out")
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    kept = json.loads(words.traffic.read_text())
    init = archive.read_init(words.model)
    generator = torch.Generator().manual_seed(init["seed"])
    program, _ = archive.read(words.model, lambda rule, shape, dtype: draw(rule, shape, dtype, generator))
    traffic = Traffic(program, init["inputs"], kept["traffic"], words.device)
    # With its number: assertions in it compare that.
    program = on_device(program, "cuda:0" if words.device == "cuda" else words.device)
    where = torch.cuda.get_device_name() if words.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{words.model.stem}: {len(traffic.sizes)} calls of {' x '.join(traffic.symbols)}, {where}")
    print(f"keirin: {kept['ms'] / 1e3:.2f} s, eager {kept['eager_ms'] / 1e3:.2f} s ({kept['eager_ms'] / kept['ms']:.3f}x); p99 over "
          f"eager's {kept['p99_over_eager']:.2f}; {kept['compiles_on_requests']} compiles on calls; {kept['wrong']} answers not eager's")
    rows = []
    with torch.no_grad():
        eager = program.module()
        for name in words.peers or [each for each, (_, devices) in PEERS.items() if words.device in devices]:
            rows.append(measure(name, PEERS[name][0], program, eager, traffic, words.budget))
            print(text_of(rows[-1]), flush=True)
    if words.json:
        there = [name for name in ("torch", "onnxruntime", "openvino") if importlib.util.find_spec(name)]
        versions = {name: importlib.metadata.version(name) for name in there}
        ours = {k: v for k, v in kept.items() if k not in ("row", "traffic", "calls_ms")}
        told = {"schema": "keirin/sizes-peers/1", "model": words.model.stem, "versions": versions, "rows": rows, "keirin": ours}
        words.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
