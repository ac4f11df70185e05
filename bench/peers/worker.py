# SPDX-License-Identifier: Apache-2.0
"""What of the regression matrix lives in Python: somebody else's compiler as a variant (peer:NAME, a name of kPeers), and training steps
(train.py). Speaks the words of tools/matrix/worker.h over descriptor 3, so that a row is taken in the same sitting, in turns with eager's.
A peer loads the zoo's file as Keirin does, with weights and inputs drawn by the file's rules, and is refused (`wrong_result`) where its
outputs are further from an fp64 run than eager's own, times a margin.

    bench/peers/worker matrix-worker 3<>SOCKET       one model and one variant a process
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import socket
import struct
import sys
import time
from pathlib import Path

kChannel = 3
kHeader = struct.Struct("<IIIIQ8Q")  # core/host/worker/channel.cc: magic, blobs, file, number, head's bytes, blobs' bytes
kMagic = 0x314E524B
kMaxMessageBytes = 16 << 20
kProtocol = 1
kInputSets = 3  # in rotation
kLeastValueNs = 200_000  # shorter calls are timed in batches
kWakeNs = 1_000_000  # untimed calls before a slot: this process has slept
kWakeDeviceNs = 10_000_000  # a GPU has worked for another process meanwhile
kWindow, kLeastWindow = 5, 2  # calls: two windows that agree are steady
kWindowNs = 500_000_000  # long calls: as many as fill this
kLongCallNs = 50_000_000  # waking up is nothing to such calls
kMargin, kRoundings = 16, 64  # of eager's own error, and roundings of the dtype beside it


class Refusal(Exception):
    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


def compiled(module, inputs, folder, **options):
    import torch

    return torch.compile(module, **options)


def ahead_of_time(module, inputs, folder):
    import torch

    package = Path(folder) / "model.pt2"
    if not package.exists():
        torch._inductor.aoti_compile_and_package(torch.export.export(module, inputs), package_path=str(package))
    return torch._inductor.aoti_load_package(str(package))


def with_library(name):
    """The adapter of that name in bench/peers/run.py, where its package is installed."""

    def build(module, inputs, folder):
        for package in {"onnxruntime": ("onnxruntime", "onnxscript"), "openvino": ("openvino",)}[name]:
            if importlib.util.find_spec(package) is None:
                raise Refusal("unsupported", f"the Python package {package} is not installed")
        sys.argv.append("--show")  # without the zoo's packages, which that file wants for its own models
        import run

        run.torch = __import__("torch")
        call = getattr(run, f"with_{name}")(module, inputs)
        return lambda *_: call()  # its inputs are those that it was built with

    return build


kPeers = {
    "torch.compile": compiled,
    "torch.compile.reduce-overhead": lambda *words: compiled(*words, mode="reduce-overhead"),
    "aotinductor": ahead_of_time,
    "onnxruntime": with_library("onnxruntime"),
    "openvino": with_library("openvino"),
}


def on_device(program, device: str):
    """The program with its weights, constants and operators that name a device on that one."""
    if device == "cpu":
        return program
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, device)


def now() -> int:
    return time.perf_counter_ns()


def waited_ns() -> int:
    """How long this process's threads stood ready while others had the processor."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/self/task/{task}/schedstat").read_text().split()[1])
    return total


def stolen_ns() -> int:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def leaves(outputs) -> list:
    import torch

    return [leaf for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def as_double(value):
    import torch

    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def in_double(module):
    """The exported module with its weights, and the operators that name a narrower float, in 64 bits."""
    import torch

    def wide(value):
        return torch.float64 if isinstance(value, torch.dtype) and value in (torch.float32, torch.float16, torch.bfloat16) else value

    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.args, node.kwargs = (torch.fx.node.map_aggregate(words, wide) for words in (node.args, node.kwargs))
            part.recompile()
    return module.double()


def error_of(outputs, referee, least: float = 1e-30) -> float:
    """The largest distance, relative to the referee's largest element, which counts as `least` at least; infinite where shapes differ or a
    value is not finite."""
    import torch

    ours, theirs = leaves(outputs), leaves(referee)
    if [tuple(t.shape) for t in ours] != [tuple(t.shape) for t in theirs]:
        return float("inf")
    worst = 0.0
    for a, b in zip(ours, theirs):
        if not b.numel():
            continue
        apart = ((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(max(least, 1e-30))).item()
        worst = max(worst, apart if torch.isfinite(a.double()).all() else float("inf"))
    return worst


def check_error(what: str, its: float, eager: float, dtypes) -> None:
    """Refuses an error that is larger than eager's, with a margin and some roundings of these dtypes."""
    import torch

    bound = kMargin * eager + kRoundings * max((torch.finfo(each).eps for each in dtypes), default=0)
    if not its <= bound:
        raise Refusal("wrong_result", f"{what}: its error is {its:.2g}, eager's {eager:.2g}, the bound {bound:.2g}")


def with_torch():
    try:
        import torch
    except ImportError as error:
        raise Refusal("unsupported", f"{sys.executable} has no torch: {error}") from error
    return torch


def parts_of_package(folder: str) -> dict:
    """Keirin's Python package in that folder, by what its code is."""
    files = sorted(file for ending in ("py", "so") for file in Path(folder, "keirin").glob(f"*.{ending}"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return {"package keirin": digest.hexdigest()[:16]}


class Worker:
    def __init__(self) -> None:
        self.call = self.inputs = None
        self.calls_per_value, self.next, self.wakes = 1, 0, True
        self.wait, self.wake_ns = lambda: None, kWakeNs  # until the device is done

    def answer(self, question: dict) -> dict:
        word = question.get("ask")
        if word == "hello":
            return self.hello(question)
        if word == "open":
            return self.open(question)
        if self.call is None:
            raise Refusal("invalid_input", "nothing is open")
        if word == "warm":
            return self.warm(question)
        if word == "slot":
            return self.slot(question)
        if word == "device":
            return {"disturbed": ""}  # the side of Keirin tells
        raise Refusal("unsupported", f'no question is called "{word}"')

    def hello(self, question: dict) -> dict:
        parts = {"python": sys.version.split()[0]}
        for package in ("torch", "triton", "onnxruntime", "onnxscript", "openvino"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                parts[f"package {package}"] = importlib.metadata.version(package)
        if package := question.get("package"):
            parts |= parts_of_package(package)
        return {"protocol": kProtocol, "parts": parts}

    def open(self, question: dict) -> dict:
        begin = now()
        case, folder = question["case"].split("/"), question.get("cache", "")
        folder = Path(folder) / "peers" / "-".join([*case, question["variant"]]).replace(":", "-") if folder else Path.cwd()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
        torch = with_torch()
        if question.get("threads", 0) > 0:
            torch.set_num_threads(question["threads"])
        if "@" in case[1] or case[4] != "single":
            raise Refusal("unsupported", "this worker is asked for the sizes of the export and one caller only")
        device = question.get("device", "cpu")
        if device != "cpu":
            if not torch.cuda.is_available():
                raise Refusal("unsupported", f"this Python's torch has no {device}")
            device = device.replace("rocm", "cuda")
            self.wait, self.wake_ns = torch.cuda.synchronize, kWakeDeviceNs
        if case[3] == "train":
            import train

            self.call, told = train.prepare(question, device)
            self.inputs = [()] * kInputSets
        else:
            told = self.open_peer(question, case, device, folder)
        answer = {"disturbed": "", "counts": {}, "fallbacks": []} | told
        return answer | {"build_ns": now() - begin, "threads": torch.get_num_threads()}

    def open_peer(self, question: dict, case: list, device: str, folder: Path) -> dict:
        import torch

        name = question["variant"].removeprefix("peer:")
        if name not in kPeers:
            raise Refusal("unsupported", f'no peer is called "{name}"; there are {", ".join(kPeers)}')
        zoo = Path(__file__).resolve().parent.parent / "zoo"
        sys.path[:0] = [str(zoo), str(Path(__file__).resolve().parent)]
        import archive
        from check import draw

        path = zoo / "models" / case[1] / f"{case[0]}.pt2"
        if not path.exists():
            raise Refusal("invalid_input", f"the zoo has no {path.name} in size {case[1]}")
        self.mode = torch.inference_mode()
        self.mode.__enter__()  # for good: one model a process
        sets = []
        for _ in range(kInputSets):
            generator = torch.Generator().manual_seed(archive.read_init(path)["seed"] + len(sets))
            program, inputs = archive.read(path, lambda rule, shape, dtype: draw(rule, shape, dtype, generator))
            if not sets:
                first = on_device(program, device)
            sets.append(tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs))
        module = first.module()
        try:
            call = kPeers[name](module, sets[0], folder)
            outputs = call(*sets[0])
        except Refusal:
            raise
        except Exception as error:  # what it cannot build it does not offer
            raise Refusal("unsupported", f"{type(error).__name__}: {error}".split("\n")[0][:500]) from error
        self.call, self.inputs = call, sets
        if question.get("verify", True):
            self.verify(first, module, outputs, sets[0])
        return {"chosen": name}

    def verify(self, program, module, outputs, inputs) -> None:
        import copy

        exact = in_double(copy.deepcopy(program).module())(*[as_double(x) for x in inputs])
        kinds = [t.dtype for t in leaves(outputs) if t.is_floating_point()]
        check_error("the answer", error_of(outputs, exact), error_of(module(*inputs), exact), kinds)

    def timed(self, calls: int) -> int:
        begin = now()
        for _ in range(calls):
            self.call(*self.inputs[self.next % kInputSets])
            self.next += 1
        self.wait()
        return (now() - begin) // calls

    def warm(self, question: dict) -> dict:
        from statistics import median

        agree, most_calls = question.get("agree", 0.01), question.get("most_calls", 200)
        begin = now()
        first, ns, settled = self.timed(1), [], False
        window = min(max(kWindowNs // max(first, 1), kLeastWindow), kWindow)
        while not settled and len(ns) < most_calls and now() - begin < question.get("most_ns", 30_000_000_000):
            ns.append(max(self.timed(1), 1))
            if len(ns) >= 2 * window:
                settled = abs(math.log(median(ns[-window:]) / median(ns[-2 * window : -window]))) <= agree
        steady = median(ns[-window:])
        self.calls_per_value, self.wakes = max(1, math.ceil(kLeastValueNs / steady)), steady < kLongCallNs
        return {"first_ns": first, "calls": len(ns) + 1, "settled": settled, "settle_ns": now() - begin - first}

    def slot(self, question: dict) -> dict:
        wake = now()
        while self.wakes and now() - wake < self.wake_ns:
            self.timed(1)
        fill, least = question.get("fill_ns", 20_000_000), question.get("least", 5)
        waited, stolen, begin, ns, took = waited_ns(), stolen_ns(), now(), [], 0
        while took < fill or (len(ns) < least and took < question.get("most_ns", math.inf)):
            ns.append(self.timed(self.calls_per_value))
            took = now() - begin
        return {
            "ns": ns,
            "calls": self.calls_per_value,
            "lasted_ns": now() - begin,
            "waited_ns": max(waited_ns() - waited, 0),
            "stolen_ns": max(stolen_ns() - stolen, 0),
            "used_ns": 0,
        }


def receive(channel: socket.socket) -> dict | None:
    """The next question; None once the other side is gone."""

    def exactly(size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            chunk = channel.recv(size - len(data))
            if not chunk:
                return None
            data += chunk
        return data

    header = exactly(kHeader.size)
    if header is None:
        return None
    magic, _, _, _, head_bytes, *blobs = kHeader.unpack(header)
    if magic != kMagic or head_bytes > kMaxMessageBytes or any(blobs):
        return None
    head = exactly(head_bytes)
    return None if head is None else json.loads(head)


def send(channel: socket.socket, head: dict) -> None:
    data = json.dumps(head).encode()
    channel.sendall(kHeader.pack(kMagic, 0, 0, 0, len(data), *[0] * 8) + data)


def answer_all(channel: socket.socket, worker) -> None:
    """Until the other side is gone. What the worker raises is its answer."""
    while (question := receive(channel)) is not None:
        try:
            send(channel, worker.answer(question))
        except Refusal as refusal:
            send(channel, {"error": {"code": refusal.code, "what": str(refusal)}})
        except Exception as error:
            send(channel, {"error": {"code": "internal", "what": f"{type(error).__name__}: {error}".split("\n")[0][:500]}})


def main() -> int:
    try:
        channel = socket.socket(fileno=kChannel)
    except OSError:
        print("bench/peers/worker is started by `keirin matrix`, with a socket as descriptor 3", file=sys.stderr)
        return 2
    sys.modules["worker"] = sys.modules[__name__]  # whose Refusal train.py raises
    answer_all(channel, Worker())
    return 0


if __name__ == "__main__":
    sys.exit(main())
