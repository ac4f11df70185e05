#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What callers of `keirin serve` notice while models are compiled, added and replaced under load.

    python bench/serve/swap.py --keirin build/keirin [--seconds 30] [--share 0.6] [--json FILE]
    python bench/serve/swap.py --show FILE

A server with BERT and ResNet-50, in sizes of one or two, begins with an empty cache. `keirin load` asks both from the server's first second
on, at times that do not wait for answers (a stall is charged to all that would have come meanwhile), at a share of what the server can
answer with eager alone, as a run of requests without pause has shown. Phases, told apart by when a request was meant to begin:

    first      from the first request until both models are decided for all sizes that are asked
    before     `--seconds` of peace
    spinning   `--seconds` beside processes of the idle policy that touch no memory: what any work that gives way costs on this machine
    loading    a third model is opened, compiled, verified, raced and put in (one request to /v2/repository, answered when it is done)
    between    `--seconds` of peace
    replacing  the same of a new version of BERT, whose weights are others, in place of the one that is asked
    after      `--seconds` of peace

For each: requests, p50, p99, p99.9, the slowest and failures, for both models together; the ratio of p99 to that of `before`; and how many
requests compiled, which has to be 0. It fails where a request failed or compiled. Standard library only. The load is made on the same
processors as the answers.
"""
import argparse
import http.client
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

kZoo = Path(__file__).resolve().parent.parent / "zoo/models/small"
kServed = {"bert": ("bert_dynamic", [[1, 16], [2, 32]]), "resnet50": ("resnet50_dynamic", [[1], [2]])}
kThird = ("third", "decoder_prefill")
kPhases = ("first", "before", "spinning", "loading", "between", "replacing", "after")
kCalibration = 4  # seconds


def with_other_weights(path: Path, to: Path):
    """The same model whose weights are drawn with another seed."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w", zipfile.ZIP_STORED) as new:
        for record in old.infolist():
            content = old.read(record)
            if record.filename.endswith("extra/keirin_init.json"):
                init = json.loads(content)
                init["seed"] += 1
                content = json.dumps(init).encode()
            new.writestr(record, content)


class Server:
    def __init__(self, keirin: str, folder: Path, name: str, words: list):
        self.log, port = folder / f"{name}.log", folder / f"{name}.port"
        models = [f"{model}={kZoo / file}.pt2" for model, (file, _) in kServed.items()]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([keirin, "serve", *models, "--port", "0", "--port-file", str(port), "--cache",
                                             str(folder / f"{name}-cache"), *words], stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + 120
        while not (port.exists() and port.read_text().endswith("\n")):
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start: {self.log.read_text()}")
            time.sleep(0.01)
        self.port = int(port.read_text())
        self.url = f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=900)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read().decode()
            if answer.status != 200:
                raise SystemExit(f"{path}: {answer.status} {body}")
            return body
        finally:
            connection.close()

    def ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        finally:
            connection.close()

    def metric(self, name: str, labels: str = "") -> float:
        lines = [line for line in self.ask("GET", "/metrics").splitlines() if line.startswith(name) and labels in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)


class Load:
    """One `keirin load` for each model, at the same time."""

    def __init__(self, words, server: Server, folder: Path, rates: dict, seconds: float, callers: int):
        self.files, self.processes = {}, []
        for seed, (model, (file, kinds)) in enumerate(kServed.items()):
            self.files[model] = folder / f"load-{model}-{time.monotonic()}.json"
            sizes = [word for kind in kinds for word in ("--at", ",".join(map(str, kind)))]
            self.processes.append(subprocess.Popen(
                [words.keirin, "load", f"{kZoo / file}.pt2", "--name", model, "--url", server.url, "--rate", str(rates[model]), "--seconds",
                 str(seconds), "--callers", str(callers), "--seed", str(words.seed + seed), *sizes, "--each", "--json",
                 str(self.files[model]), "--no-cache"], stdout=subprocess.DEVNULL))

    def results(self) -> dict:
        for process in self.processes:
            process.wait()
        return {model: json.loads(path.read_text()) for model, path in self.files.items()}

    def end_early(self):
        for process in self.processes:  # it tells of what it has asked
            process.send_signal(signal.SIGINT)


def capacity(words, server: Server, folder: Path) -> dict:
    """Requests a second of each model where both are asked without pause: two callers each, so that none waits for its caller."""
    load = Load(words, server, folder, dict.fromkeys(kServed, 1000), 60, 2)
    while server.metric("keirin_calls_total") == 0:
        time.sleep(0.1)
    time.sleep(kCalibration)
    load.end_early()
    return {model: result["answered_per_s"] for model, result in load.results().items()}


def give_way():
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def quantile(values: list, q: float) -> float:
    return values[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def rows_of(results: dict, times: dict) -> list:
    """`times`: for each phase when it began, in Unix time, and "end"."""
    rows, order = [], [*kPhases, "end"]
    for phase, following in zip(kPhases, order[1:]):
        begin, end = times[phase], times[following]
        row = {"phase": phase, "seconds": end - begin, "ms": {}}
        for model in (*kServed, "all"):
            each = [(ms, failed) for name, result in results.items() if model in (name, "all") for at, ms, _, failed in result["each"]
                    if begin <= result["began"] + at < end]
            ms = sorted(ms for ms, failed in each if not failed)
            row["ms"][model] = {"requests": len(each), "failed": sum(failed for _, failed in each), "p50": quantile(ms, 0.5),
                                "p99": quantile(ms, 0.99), "p99.9": quantile(ms, 0.999), "max": ms[-1] if ms else float("nan")}
        rows.append(row)
    return rows


def show(found: dict):
    before = next(row for row in found["rows"] if row["phase"] == "before")["ms"]
    print(f"{found['machine']}; {', '.join(f'{m}: {r:.1f} requests/s' for m, r in found['rates'].items())}, {found['share']:.0%} of what "
          f"eager answers")
    print()
    print("| phase | model | seconds | requests | failed | p50 ms | p99 ms | p99.9 ms | slowest ms | p99 over `before` |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in found["rows"]:
        for model, ms in row["ms"].items():
            if model == "all":
                continue
            print(f"| {row['phase']} | {model} | {row['seconds']:.0f} | {ms['requests']} | {ms['failed']} | {ms['p50']:.1f} "
                  f"| {ms['p99']:.1f} | {ms['p99.9']:.1f} | {ms['max']:.1f} | {ms['p99'] / before[model]['p99']:.2f}x |")
    print()
    print(f"Failed: {found['failed']}; compiles on requests: {found['request_compiles']}; answered by plans in the last phase: "
          f"{found['by_plan_last']:.0%}.")


def measure(words) -> dict:
    keep = threading.Event()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        eager = Server(words.keirin, folder, "eager", ["--compile", "never", "--threads", str(words.threads)])
        most = capacity(words, eager, folder)
        eager.end()
        rates = {model: words.share * rate for model, rate in most.items()}
        print("eager answers " + ", ".join(f"{model} {rate:.1f}/s" for model, rate in most.items()), flush=True)

        repository = folder / "repository"
        repository.mkdir()
        third, file = kThird
        (repository / f"{third}.pt2").write_bytes((kZoo / f"{file}.pt2").read_bytes())
        with_other_weights(kZoo / f"{kServed['bert'][0]}.pt2", repository / "bert.pt2")
        shapes = folder / "shapes.json"
        # Decided one after another beside the requests, which eager answers meanwhile; and what is loaded before it is put in.
        shapes.write_text(json.dumps({third: [[]], **{model: kinds for model, (_, kinds) in kServed.items()}}))
        server = Server(words.keirin, folder, "server", ["--compile", "background", "--threads", str(words.threads), "--no-ranges",
                                                         "--race-limit", str(words.race_limit), "--repository", str(repository), "--warm",
                                                         str(shapes)])
        load = Load(words, server, folder, rates, words.most_seconds, 16)
        times = {}

        def wait(seconds):
            if any(process.poll() is not None for process in load.processes):
                raise SystemExit("the load ended early: give --most-seconds more")
            keep.wait(seconds)

        end = time.monotonic() + words.most_seconds
        while not server.ready():
            if time.monotonic() > end:
                raise SystemExit("the models were not decided: give --most-seconds more")
            wait(0.2)
        times["before"] = time.time()
        wait(words.seconds)
        times["spinning"] = time.time()
        spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=give_way) for _ in range(os.cpu_count())]
        try:
            wait(words.seconds)
        finally:
            for process in spinning:
                process.kill()
                process.wait()
        times["loading"] = time.time()
        server.ask("POST", f"/v2/repository/models/{third}/load")
        times["between"] = time.time()
        wait(words.seconds)
        times["replacing"] = time.time()
        server.ask("POST", "/v2/repository/models/bert/load")
        times["after"] = time.time()
        plans = [server.metric("keirin_calls_total", 'path="compiled"'), server.metric("keirin_calls_total")]
        wait(words.seconds)
        plans = [server.metric("keirin_calls_total", 'path="compiled"') - plans[0], server.metric("keirin_calls_total") - plans[1]]
        times["end"] = time.time()
        found = {"schema": "keirin/serve-swap/1", "machine": f"{platform.machine()}, {os.cpu_count()} cores", "rates": rates,
                 "share": words.share, "capacity": most, "threads": words.threads, "seconds": words.seconds,
                 "by_plan_last": plans[0] / max(1, plans[1]), "request_compiles": server.metric("keirin_request_compiles_total")}
        load.end_early()
        results = load.results()
        times["first"] = min(result["began"] for result in results.values())
        server.end()
        found["rows"] = rows_of(results, times)
        found["failed"] = sum(row["ms"]["all"]["failed"] for row in found["rows"])
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keirin", default="build/keirin")
    parser.add_argument("--seconds", type=float, default=30, help="of each phase of peace")
    parser.add_argument("--most-seconds", type=float, default=600, help="of all phases together")
    parser.add_argument("--share", type=float, default=0.6, help="of what eager can answer")
    parser.add_argument("--threads", type=int, default=1, help="of one call")
    parser.add_argument("--race-limit", type=float, default=2, help="seconds of a race")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=Path, help="print the table of an earlier run")
    words = parser.parse_args()
    found = json.loads(words.show.read_text()) if words.show else measure(words)
    if words.json:
        words.json.write_text(json.dumps(found, indent=1) + "\n")
    show(found)
    return 1 if found["failed"] or found["request_compiles"] else 0


if __name__ == "__main__":
    sys.exit(main())
