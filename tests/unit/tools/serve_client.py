#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients of `keirin serve` as they come: good ones, wrong ones, slow ones, many at once, and those that are there when the server is told
to end. Standard library only.

    serve_client.py [EMULATOR..] build/keirin
"""
import http.client
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

kData = Path(__file__).resolve().parent.parent.parent / "data/import"
kConnections = 2000
failures = []


def check(truth, what):
    if not truth:
        failures.append(what)
        print(f"FAILED: {what}", flush=True)


class Server:
    def __init__(self, keirin, *words, folder):
        self.port_file = Path(folder) / f"port{random.random()}"
        self.process = subprocess.Popen([*keirin, "serve", *words, "--port", "0", "--port-file", str(self.port_file), "--cache",
                                         str(Path(folder) / "cache")],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        end = time.monotonic() + 120
        while not (self.port_file.exists() and self.port_file.read_text().endswith("\n")):
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit("the server did not start:\n"
                                 + (self.process.stdout.read() if self.process.poll() is not None else "too slow"))
            time.sleep(0.02)
        self.port = int(self.port_file.read_text())

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path):
        status, _, body = self.ask("GET", path)
        return status, json.loads(body)

    def end(self, within=60):
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=within)
        return self.process.returncode, out


def mlp_body(rows):
    return json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 8],
                                   "data": [[(i + k) / 8 for k in range(8)] for i in range(rows)]}]})


def close_to(a, b):
    return len(a) == len(b) and all(abs(x - y) < 1e-4 for x, y in zip(a, b))


def protocol(server):
    status, body = server.get("/v2")
    check(status == 200 and body["name"] == "keirin" and "binary_tensor_data" in body["extensions"], "server metadata")
    check(server.get("/v2/health/live")[0] == 200, "live")
    check(server.get("/v2/health/ready")[0] == 200, "ready")
    status, body = server.get("/v2/models/m")
    check(status == 200 and body["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 8]}], f"model metadata: {body}")
    check(server.get("/v2/models/m/versions/1/ready")[0] == 200, "model ready")
    check(server.get("/v2/models/nobody")[0] == 404, "an unknown model")
    check(server.get("/v2/models/m/versions/2")[0] == 404, "an unknown version")
    check(server.get("/nothing")[0] == 404, "an unknown path")
    check(server.ask("DELETE", "/v2/models/m")[0] == 405, "an unknown method")
    status, _, text = server.ask("POST", "/v2/models/m/infer", mlp_body(3))
    answer = json.loads(text)
    check(status == 200 and answer["model_name"] == "m" and answer["outputs"][0]["shape"] == [3, 4], f"an answer in JSON: {text[:200]}")
    expected = answer["outputs"][0]["data"]
    name = answer["outputs"][0]["name"]
    # The same in binary, the other output form, keyed by an id.
    values = [(i + k) / 8 for i in range(3) for k in range(8)]
    head = json.dumps({"id": "q1", "inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 8], "parameters": {"binary_data_size": 96}}],
                       "outputs": [{"name": name, "parameters": {"binary_data": True}}]}).encode()
    status, headers, body = server.ask("POST", "/v2/models/m/infer", head + struct.pack("<24f", *values),
                                       {"Inference-Header-Content-Length": str(len(head))})
    length = int({k.lower(): v for k, v in headers.items()}.get("inference-header-content-length", 0))
    check(status == 200 and length > 0, f"an answer in binary: {status} {body[:200]}")
    check(json.loads(body[:length])["id"] == "q1" and close_to(struct.unpack("<12f", body[length:]), expected),
          "the same numbers in binary")
    # One connection, many requests.
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for _ in range(20):
        connection.request("POST", "/v2/models/m/infer", mlp_body(3))
        check(close_to(json.loads(connection.getresponse().read())["outputs"][0]["data"], expected), "a kept connection")
    connection.close()
    return expected


def bad_requests(server):
    for body in (b"", b"{", b"[]", b"\xff" * 100, b"[" * 100000, mlp_body(3).replace("FP32", "FP64").encode(),
                 mlp_body(3).replace("[3, 8]", "[3, 9]").encode(),
                 mlp_body(3).replace('"x"', '"y"').encode(), b"{}"):
        status, _, text = server.ask("POST", "/v2/models/m/infer", body)
        check(status == 400 and json.loads(text)["error"], f"{body[:30]} is refused: {status}")
    status, _, _ = server.ask("POST", "/v2/models/m/infer", mlp_body(3), {"Inference-Header-Content-Length": "many"})
    check(status == 400, "a length that is none")
    random.seed(3)
    for _ in range(200):  # what is no HTTP at all
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as wire:
            try:
                wire.sendall(bytes(random.randrange(256) for _ in range(random.randrange(1, 400))))
                wire.shutdown(socket.SHUT_WR)
                wire.recv(1000)
            except OSError:
                pass
    for text in (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20000 + b"\r\n",
                 b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
                 b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                 b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as wire:
            try:
                wire.sendall(text)
                answer = wire.recv(1000)
            except OSError:
                answer = b""
            check(not answer.startswith(b"HTTP/1.1 200"), f"{text[:40]} is no request: {answer[:40]}")
    check(server.ask("POST", "/v2/models/m/infer", mlp_body(2))[0] == 200, "it answers after all that")


def plans_are_switched(server, expected):
    path = "/v2/models/m/plans/setting"
    check("plans" in server.get("/v2")[1]["extensions"], "the extension is named")
    check(server.get(path) == (200, {"plans": "on"}), "plans are on")
    for plans in ("off", "shadow", "on"):
        status, _, body = server.ask("POST", path, json.dumps({"plans": plans}))
        check(status == 200 and json.loads(body) == {"plans": plans}, f"plans are switched {plans}: {body}")
        check(server.get(path) == (200, {"plans": plans}), f"and are {plans}")
        check(server.get("/v2/models/other/plans/setting") == (200, {"plans": "on"}), "another model's are as they were")
        status, _, body = server.ask("POST", "/v2/models/m/infer", mlp_body(3))
        check(status == 200 and close_to(json.loads(body)["outputs"][0]["data"], expected), f"the answer with plans {plans}")
        metrics_text = server.ask("GET", "/metrics")[2].decode()
        check(f'keirin_plans_setting{{model="m",plans="{plans}"}} 1' in metrics_text, f"the metrics say {plans}")
    check('reason="off"} 1' in metrics_text and 'keirin_shadow_total{model="m",result="wrong"} 0' in metrics_text, "calls are counted")
    for body in ('{"plans": "of"}', '{"plans": 1}', "[]", "", '{"plans": "on", "more": 1}', "{"):
        status, _, answer = server.ask("POST", path, body)
        check(status == 400 and "nothing was changed" in json.loads(answer)["error"], f"{body} is refused: {answer}")
    check(server.ask("POST", "/v2/models/nope/plans/setting", '{"plans": "off"}')[0] == 404, "no such model")
    check(server.get(path) == (200, {"plans": "on"}), "plans are on still")


def slow_clients(keirin, folder):
    server = Server(keirin, f"m={kData}/mlp.pt2", "--read-timeout", "1", "--idle-timeout", "2", folder=folder)
    body = mlp_body(3).encode()
    wires = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(50)]
    for i, wire in enumerate(wires):  # in the midst of the header, or of the body
        wire.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"
                     + (b"" if i % 2 else f"Content-Length: {len(body)}\r\n\r\n".encode() + body[:9]))
    check(server.ask("POST", "/v2/models/m/infer", body)[0] == 200, "slow clients keep nobody waiting")
    begin = time.monotonic()
    answers = []
    for wire in wires:
        try:
            answers.append(wire.recv(100))
        except OSError:
            answers.append(b"?")
    check(time.monotonic() - begin < 10, "slow clients are sent away")
    check(all(a == b"" or b" 408 " in a for a in answers), f"they are told so: {set(answers)}")
    idle = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    check(idle.recv(10) == b"", "who idles is sent away")
    code, out = server.end()
    check(code == 0, f"it ended with {code}: {out}")


def many_connections(server, expected):
    wires, refused = [], 0
    for _ in range(kConnections):
        try:
            wires.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        except OSError:
            refused += 1
    check(refused == 0, f"{refused} of {kConnections} connections were not accepted")
    body = mlp_body(3).encode()
    request = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    asked = random.sample(wires, 200)
    for wire in asked:
        wire.sendall(request)
    right = 0
    for wire in asked:
        answer = http.client.HTTPResponse(wire)
        answer.begin()
        right += close_to(json.loads(answer.read())["outputs"][0]["data"], expected)
    check(right == len(asked), f"{right} of {len(asked)} right answers among {len(wires)} connections")
    for wire in wires:
        wire.close()


def queue_and_deadline(keirin, folder):
    server = Server(keirin, f"m={kData}/mlp.pt2", "--queue", "1", "--workers", "1", folder=folder)
    statuses = []

    def flood():
        for _ in range(50):
            status, headers, text = server.ask("POST", "/v2/models/m/infer", mlp_body(40))
            statuses.append(status)
            if status == 503:
                check("queue is full" in json.loads(text)["error"] and headers.get("Retry-After") == "1", "503 says why")

    threads = [threading.Thread(target=flood) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(set(statuses) <= {200, 503} and 200 in statuses, f"a full queue: {sorted(set(statuses))}")
    hurried = json.loads(mlp_body(40))
    hurried["parameters"] = {"timeout": 1}
    status, _, text = server.ask("POST", "/v2/models/m/infer", json.dumps(hurried))
    check(status == 504, f"a microsecond is not enough: {status} {text[:100]}")
    text = server.ask("GET", "/metrics")[2].decode()
    check(f'keirin_requests_total{{model="m",code="200"}} {statuses.count(200)}' in text, "the metrics count the answers")
    check(f'keirin_expired_total{{model="m"}} 1' in text and f'keirin_refused_total{{model="m"}} {statuses.count(503)}' in text,
          "and what was refused")
    server.end()


def metrics(server):
    status, headers, body = server.ask("GET", "/metrics")
    text = body.decode()
    check(status == 200 and headers["Content-Type"].startswith("text/plain"), "metrics")
    kTypes = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            check(name not in kTypes, f"{name} has one type")
            kTypes[name] = kind
        elif not line.startswith("#"):
            name, value = line.split("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
            float(value)
            family = name
            for suffix in ("_bucket", "_sum", "_count"):
                if name.endswith(suffix) and name[: -len(suffix)] in kTypes:
                    family = name[: -len(suffix)]
            check(family in kTypes, f"{line} stands under a type")
    for name in ("keirin_calls_total", "keirin_call_seconds", "keirin_request_seconds", "keirin_queue_length", "keirin_plans",
                 "keirin_shape_classes",
                 "keirin_arena_bytes", "keirin_guard_misses_total", "keirin_verify_error_ratio", "keirin_breaker_open",
                 "keirin_compiles_total",
                 "keirin_compile_seconds", "keirin_cache_total"):
        check(name in kTypes, f"{name} is there")
    check("\nkeirin_request_compiles_total 0\n" in text, "no request compiled")


def ready_when_warm(keirin, folder):
    shapes = Path(folder) / "shapes.json"
    shapes.write_text(json.dumps({"m": [[2], [4]]}))
    server = Server(keirin, f"m={kData}/mlp.pt2", f"other={kData}/both_free.pt2", "--warm", str(shapes), "--race-limit", "0.1",
                    folder=folder)
    early = server.get("/v2/health/ready")[0]
    check(server.ask("POST", "/v2/models/m/infer", mlp_body(2))[0] == 200, "eager answers before it is ready")
    end = time.monotonic() + 200
    while server.get("/v2/health/ready")[0] != 200 and time.monotonic() < end:
        time.sleep(0.05)
    check(server.get("/v2/models/m/ready")[0] == 200, "it becomes ready")
    text = server.ask("GET", "/metrics")[2].decode()
    check(early == 503 or "warm" in text, "it was not ready at once")
    classes = [line for line in text.splitlines() if line.startswith('keirin_shape_classes{model="m"}')]
    check(classes and int(classes[0].split()[-1]) >= 2, f"what was declared is decided: {classes}")
    check("\nkeirin_request_compiles_total 0\n" in text, "no request compiled")
    server.end()


def buckets_are_served(keirin, folder):
    words = ["--bucket", "x[0]=multiple:8", "--only-candidate", "cpu/all", "--threads", "1"]
    server = Server(keirin, f"m={kData}/mlp.pt2", *words, folder=folder)

    def value(text, name):
        return [int(line.split()[-1]) for line in text.splitlines() if line.startswith(f'{name}{{model="m",size="x[0]"}}')]

    answers, asked, end = [], [0], time.monotonic() + 200
    while asked == [0] and time.monotonic() < end:  # eager answers until the bucket's plan is there and was looked at
        status, _, body = server.ask("POST", "/v2/models/m/infer", mlp_body(3))
        check(status == 200, "an answer")
        answers.append(json.loads(body)["outputs"][0])
        text = server.ask("GET", "/metrics")[2].decode()
        asked = value(text, "keirin_bucket_asked_total") or [0]
        time.sleep(0.05)
    check(asked == [3] and value(text, "keirin_bucket_ran_total") == [8], f"the metrics say what was padded: {asked}")
    check(answers[-1]["shape"] == answers[0]["shape"], "of the rows that were asked for")
    check(all(abs(a - b) < 1e-4 for a, b in zip(answers[-1]["data"], answers[0]["data"])), "and as eager answered")
    server.end()


def models_are_loaded(keirin, folder):
    """A new model, and new versions of one that is asked all the time."""
    store = Path(folder) / "repository"
    store.mkdir()
    server = Server(keirin, f"m={kData}/mlp.pt2", "--repository", str(store), "--race-limit", "0.1", "--threads", "1", folder=folder)
    check("model_repository" in server.get("/v2")[1]["extensions"], "the extension is named")
    check(server.ask("POST", "/v2/repository/models/more/load")[0] == 400, "a model that is not there")
    check(server.ask("POST", "/v2/repository/models/..%2Fmore/load")[0] in (400, 404), "nothing outside of the folder")
    for name in ("m", "more"):
        (store / f"{name}.pt2").write_bytes((kData / "mlp.pt2").read_bytes())
    states = {each["name"]: each["state"] for each in json.loads(server.ask("POST", "/v2/repository/index")[2])}
    check(states == {"m": "READY", "more": "UNAVAILABLE"}, f"the index: {states}")
    expected = json.loads(server.ask("POST", "/v2/models/m/infer", mlp_body(3))[2])["outputs"][0]["data"]
    stop, bad, asked = threading.Event(), [], [0]

    def client():
        while not stop.is_set():
            status, _, body = server.ask("POST", "/v2/models/m/infer", mlp_body(3))
            asked[0] += 1
            if status != 200 or not close_to(json.loads(body)["outputs"][0]["data"], expected):
                bad.append((status, body[:100]))

    threads = [threading.Thread(target=client) for _ in range(3)]
    for thread in threads:
        thread.start()
    status, _, body = server.ask("POST", "/v2/repository/models/more/load")
    check(status == 200, f"a third model is loaded: {body}")
    for _ in range(5):
        check(server.ask("POST", "/v2/repository/models/m/load")[0] == 200, "a new version is loaded")
    status, _, body = server.ask("POST", "/v2/models/more/infer", mlp_body(3))
    check(status == 200 and close_to(json.loads(body)["outputs"][0]["data"], expected), f"it answers: {body[:100]}")
    stop.set()
    for thread in threads:
        thread.join()
    check(asked[0] > 10 and not bad, f"{len(bad)} of {asked[0]} went wrong while versions changed: {bad[:2]}")
    (store / "m.pt2").write_text("no model")
    check(server.ask("POST", "/v2/repository/models/m/load")[0] >= 400, "a broken file is refused")
    check(server.ask("POST", "/v2/models/m/infer", mlp_body(3))[0] == 200, "and what is served stays")
    check(server.ask("POST", "/v2/repository/models/more/unload")[0] == 200, "it is taken out")
    check(server.ask("POST", "/v2/models/more/infer", mlp_body(3))[0] == 404, "and is gone")
    check("\nkeirin_request_compiles_total 0\n" in server.ask("GET", "/metrics")[2].decode(), "no request compiled")
    code, out = server.end()
    check(code == 0 and "0 failed" in out, f"it ended with {code}: {out}")
    fixed = Server(keirin, f"m={kData}/mlp.pt2", folder=folder)
    check(fixed.ask("POST", "/v2/repository/models/m/load")[0] == 404, "nothing is loaded without --repository")
    fixed.end()


def bundle_is_served(keirin, folder):
    words = ["--race-limit", "0.2", "--threads", "1", "--cache", str(Path(folder) / "cache")]
    sizes, bundle = Path(folder) / "sizes.json", Path(folder) / "m.krn"
    sizes.write_text("[[3], [5]]")
    build = [*keirin, "build", f"{kData}/mlp.pt2", "--shapes", str(sizes), "-o", str(bundle), "--json", "-", *words]
    run = subprocess.run(build, capture_output=True, text=True, timeout=300)
    check(run.returncode == 0, f"a bundle is built: {run.stderr}")
    kinds = json.loads(run.stdout)["kinds"]
    for options, taken in (([], True), (["--numerics", "strict"], False)):
        server = Server(keirin, f"m={bundle}", "--race-limit", "0.2", "--threads", "1", "--sample-rate", "0", *options, folder=folder)
        if taken:
            check(server.ask("POST", "/v2/models/m/infer", mlp_body(3))[0] == 200, "an answer")
            text = server.ask("GET", "/metrics")[2].decode()
            compiled = 'keirin_calls_total{model="m",path="compiled",reason=""} 1' in text
            check(compiled == (kinds[0]["chosen"] != "eager"), f"the first request is answered by what was chosen, {kinds[0]['chosen']}")
        end = time.monotonic() + 120
        while server.get("/v2/health/ready")[0] != 200 and time.monotonic() < end:
            time.sleep(0.02)
        text = server.ask("GET", "/metrics")[2].decode()
        check('keirin_shape_classes{model="m"} 2' in text, "ready when every declared kind is decided")
        check(server.ask("POST", "/v2/models/m/infer", mlp_body(5))[0] == 200, "an answer")
        code, out = server.end()
        check(code == 0 and ("where it was made" in out) != taken, f"it ended with {code} and says what does not fit: {out}")


def ends_with_nothing_lost(keirin, folder, words):
    """Clients ask without end, on kept and on fresh connections. Each request that a connection was there for has to be answered."""
    server = Server(keirin, f"m={kData}/mlp.pt2", *words, "--drain", "1", folder=folder)
    expected = json.loads(server.ask("POST", "/v2/models/m/infer", mlp_body(3))[2])["outputs"][0]["data"]
    lost, answered, after_end, told = [], [0], [0], threading.Event()

    def client(keep):
        connection = None
        while True:
            try:
                fresh = connection is None
                if fresh:
                    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
                    connection.connect()
            except OSError:
                if told.is_set():
                    return  # nobody listens any more
                lost.append("no connection before the end")
                return
            try:
                connection.request("POST", "/v2/models/m/infer", mlp_body(3))
                answer = connection.getresponse()
                body = json.loads(answer.read())
                if answer.status == 200 and close_to(body["outputs"][0]["data"], expected):
                    answered[0] += 1
                    after_end[0] += told.is_set()
                else:
                    lost.append(f"{answer.status} {body}")
                if not keep or answer.getheader("Connection") == "close":
                    connection.close()
                    connection = None
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                connection = None
                # A kept connection that idled may be closed under a request, which has not begun then: clients ask again.
                if fresh or not told.is_set():
                    lost.append(repr(error))

    threads = [threading.Thread(target=client, args=(i % 2 == 0,)) for i in range(12)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    # One that was in the midst of sending when the server was told to end, one that idles.
    body = mlp_body(3).encode()
    slow = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    slow.sendall(f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:10])
    idle = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    time.sleep(0.1)
    told.set()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    check(server.get("/v2/health/ready")[0] == 503, "not ready once it ends")
    time.sleep(1.5)  # past the drain
    slow.sendall(body[10:])
    answer = http.client.HTTPResponse(slow)
    answer.begin()
    check(answer.status == 200 and close_to(json.loads(answer.read())["outputs"][0]["data"], expected),
          "what had begun to arrive is answered")
    check(idle.recv(10) == b"", "who idles is closed")
    out, _ = server.process.communicate(timeout=60)
    for thread in threads:
        thread.join()
    check(server.process.returncode == 0, f"it ended with {server.process.returncode}: {out}")
    check(not lost, f"{len(lost)} of {answered[0]} lost: {lost[:3]}")
    check("0 connections cut off" in out and "0 failed" in out, out)
    check(after_end[0] > 0, "requests were answered while it ended")
    print(f"  {answered[0]} answered, {after_end[0]} of them after SIGTERM, {len(lost)} lost", flush=True)


def main():
    global kConnections
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # a descriptor for each, in both processes
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kConnections = min(kConnections, most - 200)
    keirin = [*sys.argv[1:-1], os.path.abspath(sys.argv[-1])]
    with tempfile.TemporaryDirectory() as folder:
        server = Server(keirin, f"m={kData}/mlp.pt2", f"other={kData}/both_free.pt2", folder=folder)
        expected = protocol(server)
        bad_requests(server)
        plans_are_switched(server, expected)
        many_connections(server, expected)
        metrics(server)
        code, out = server.end()
        check(code == 0, f"it ended with {code}: {out}")
        slow_clients(keirin, folder)
        queue_and_deadline(keirin, folder)
        ready_when_warm(keirin, folder)
        buckets_are_served(keirin, folder)
        models_are_loaded(keirin, folder)
        bundle_is_served(keirin, folder)
        ends_with_nothing_lost(keirin, folder, [])
        ends_with_nothing_lost(keirin, folder, ["--max-batch", "16", "--workers", "2"])
        for words in (["serve", "nope"], ["serve", f"{kData}/mlp.pt2", f"{kData}/mlp.pt2"],
                      ["serve", f"{kData}/mlp.pt2", "--address", "nowhere"]):
            check(subprocess.run([*keirin, *words], capture_output=True, timeout=60).returncode == 2, " ".join(words) + " ends with 2")
        # The load generator against the server, and in process.
        server = Server(keirin, f"mlp={kData}/mlp.pt2", folder=folder)
        for words in (["--url", f"http://127.0.0.1:{server.port}"], []):
            run = subprocess.run([*keirin, "load", f"{kData}/mlp.pt2", *words, "--rate", "200", "--seconds", "2", "--at", "3", "--at", "5",
                                  "--json", "-"],
                                 capture_output=True, text=True, timeout=120)
            load = json.loads(run.stdout) if run.returncode == 0 else {}
            check(run.returncode == 0 and load["failed"] == 0 and 300 < load["answered"] < 500 and load["ms"]["p50"] <= load["ms"]["p99.9"],
                  f"load: {run.stdout[:300]} {run.stderr[:300]}")
        server.end()
        run = subprocess.run([*keirin, "load", f"{kData}/mlp.pt2", "--url", f"http://127.0.0.1:{server.port}", "--rate", "50", "--seconds",
                              "0.2"], capture_output=True, text=True, timeout=60)
        check(run.returncode == 1 and "no connection" in run.stdout, f"nobody listens: {run.stdout}")
    print(f"serve_client: {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
