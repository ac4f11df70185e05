# SPDX-License-Identifier: Apache-2.0
"""The tests of a build folder as ci/mutate uses them: what each takes, which mutants it reaches, which are near a file. A test of
GoogleTest is taken apart into its cases (instances of one parametrised case stay together)."""
import collections
import concurrent.futures
import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

kMostSeconds = 150  # a case that takes longer with no mutant is not used
kUnused = {"device", "soak", "zoo", "package", "slow"}  # labels: they need another machine, or hours
kPlaces = {"core/capture/import": "tests/unit/import", "core/base": "tests/unit/base"}  # else tests/unit mirrors core and plugins


class Test:
    """A test of ctest. `cases`: what --gtest_filter takes, or "" alone for a program of another kind; with the seconds each takes, whether
    it passes with no mutant, and the mutants that it reaches."""

    def __init__(self, name: str, command: list[str], environment: list[str], place: str, folder: str, alone: bool):
        self.name, self.command, self.environment, self.place, self.folder, self.alone = name, command, environment, place, folder, alone
        self.mark = ""
        self.start = 0.0  # seconds before the first case
        self.cases: dict[str, tuple[float, bool, list[int]]] = {}

    def sound(self, cases=None) -> list[str]:
        return [case for case in cases or self.cases if self.cases[case][1]]

    def seconds(self, cases: list[str]) -> float:
        return self.start + sum(max(0.0, self.cases[case][0] - self.start) for case in cases)


class Suite:
    def __init__(self, root: Path, build: Path, state: Path, jobs: int):
        self.root, self.folder, self.state, self.jobs = root, build, state, jobs
        listed = json.loads(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True,
                                           check=True).stdout)
        graph = listed["backtraceGraph"]
        self.tests: dict[str, Test] = {}
        self.unbuilt = any(not test.get("command") for test in listed["tests"])  # ctest tells no command of a test that is not built
        for test in listed["tests"]:
            given = {p["name"]: p["value"] for p in test.get("properties", [])}
            fixture = given.get("FIXTURES_REQUIRED") or given.get("FIXTURES_SETUP")
            if not test.get("command") or fixture or kUnused & set(given.get("LABELS", [])):
                continue
            node, files = test.get("backtrace"), []
            while node is not None:
                files.append(graph["files"][graph["nodes"][node]["file"]])
                node = graph["nodes"][node].get("parent")
            lists = [Path(f) for f in files if f.endswith("CMakeLists.txt")]
            folder = str(lists[0].parent.relative_to(root)) if lists and lists[0].is_relative_to(root) else ""
            self.tests[test["name"]] = Test(test["name"], self.bounded(test["command"]), given.get("ENVIRONMENT", []),
                                            given.get("WORKING_DIRECTORY", str(build)), folder, bool(given.get("RUN_SERIAL")))
        self.sources: dict[str, set[str]] = collections.defaultdict(set)
        self.objects: dict[str, str] = {}  # of the sources that are compiled here
        for entry in json.loads((build / "compile_commands.json").read_text()):
            path = Path(entry["file"])
            output = entry.get("output") or re.search(r" -o (\S+)", entry["command"]).group(1)
            target = re.search(r"CMakeFiles/([^/]+)\.dir/", output)
            if target:
                self.sources[target.group(1)].add(path.stem)
            if path.is_relative_to(root):
                self.objects[str(path.relative_to(root))] = output
        self.inputs: dict[str, set[str]] = {}
        self.one_place = threading.Condition()  # of `jobs` places; a test that wants to be alone takes all
        self.free = jobs

    @staticmethod
    def bounded(command: list[str]) -> list[str]:
        out = [re.sub(r"^--count=\d+$", "--count=60", re.sub(r"^--every=\d+$", "--every=20", word)) for word in command]
        return out + ["--every=20"] if Path(command[0]).name == "conformance" and "--every=20" not in out else out

    # ---- running

    def start_one(self, test: Test, words: list[str], limit: float, own: str, settings: dict[str, str], output) -> tuple[str, float]:
        env = dict(os.environ, **dict(e.split("=", 1) for e in test.environment if e))
        env.update(KEIRIN_CACHE=own + "/cache", TMPDIR=own, GTEST_FAIL_FAST="1", OMP_NUM_THREADS=env.get("OMP_NUM_THREADS", "2"))
        for name in ("KEIRIN_TRUST_COUNTS", "KEIRIN_MUTANT", "KEIRIN_MUTANT_REACHED"):
            env.pop(name, None)
        env.update(settings)
        begin = time.monotonic()
        process = subprocess.Popen([*test.command, *words], env=env, cwd=test.place, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        ended = "hangs"
        try:
            ended = "passed" if process.wait(timeout=limit) == 0 else "failed"
        except subprocess.TimeoutExpired:
            pass
        finally:
            if ended != "passed":
                try:
                    os.killpg(process.pid, signal.SIGKILL)  # and what it had started
                except ProcessLookupError:
                    pass
            process.wait()
        return ended, time.monotonic() - begin

    def run(self, test: Test, cases: list[str], limit: float, settings: dict[str, str]) -> tuple[str, float, str]:
        """"passed", "failed" or "hangs"; the seconds; the case that failed first."""
        places = self.jobs if test.alone else 1
        with self.one_place:
            self.one_place.wait_for(lambda: self.free >= places)
            self.free -= places
        try:
            with tempfile.TemporaryDirectory(prefix="keirin-mutant-") as own, tempfile.TemporaryFile() as output:
                words = [] if cases == [""] else ["--gtest_filter=" + ":".join(cases)]
                ended, took = self.start_one(test, words, limit, own, settings, output)
                output.seek(0)
                failed = re.search(rb"\[  FAILED  \] ([^\s,]+)", output.read()) if ended == "failed" else None
                return ended, took, failed.group(1).decode() if failed else ""
        finally:
            with self.one_place:
                self.free += places
                self.one_place.notify_all()

    # ---- with no mutant

    def measure(self, names: list[str], mutants: int) -> None:
        """What each case takes and reaches, once for each build of its test."""
        file = self.state / "measured.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        shared = [self.folder / "keirin", self.folder / "keirin-worker", *sorted((self.folder / "plugins").glob("*/*.so"))]
        plugins = hashlib.sha1(b"".join(hashlib.sha1(p.read_bytes()).digest() for p in shared if p.exists())).hexdigest()

        def one(test: Test, case: str) -> None:
            with tempfile.NamedTemporaryFile(prefix="keirin-reached-") as reached:
                reached.truncate(mutants + 1)
                ended, took, _ = self.run(test, [case], kMostSeconds, {"KEIRIN_MUTANT_REACHED": reached.name})
                found = [number for number, mark in enumerate(reached.read()) if mark]
                test.cases[case] = (round(took, 3), ended == "passed", found)
                if ended != "passed":
                    print(f"  {test.name} {case} is not used: with no mutant it fails, or takes more than {kMostSeconds} s", flush=True)

        wanted = []
        for name in names:
            test = self.tests[name]
            binary = Path(test.command[0])
            test.mark = f"{plugins} {hashlib.sha1(binary.read_bytes()).hexdigest()}"
            kept = known.get(name, {})
            if kept.get("mark") == test.mark:
                test.start, test.cases = kept["start"], {case: tuple(found) for case, found in kept["cases"].items()}
                continue
            cases = self.cases_of(test)
            wanted += [(test, case) for case in cases]
        print(f"{len(wanted)} cases to measure with no mutant", flush=True)
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(lambda pair: one(*pair), wanted))
        for name in names:
            test = self.tests[name]
            known[name] = {"mark": test.mark, "start": test.start, "cases": test.cases}
        file.write_text(json.dumps(known))

    def cases_of(self, test: Test) -> list[str]:
        test.cases, test.start = {}, 0.0
        if b"Running main() from" not in Path(test.command[0]).read_bytes():
            return [""]  # a main of its own
        with tempfile.TemporaryDirectory(prefix="keirin-mutant-") as own, tempfile.TemporaryFile() as output:
            ended, test.start = self.start_one(test, ["--gtest_list_tests"], kMostSeconds, own, {}, output)
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()
        if ended != "passed" or not lines or not lines[0].startswith("Running main()"):
            test.start = 0.0
            return [""]
        out, suite = [], ""
        for line in lines[1:]:
            word = line.split("#")[0].strip()
            if line and not line.startswith(" "):
                suite = word
            elif word and "DISABLED_" not in suite + word:
                case = suite + (word.split("/")[0] + "/*" if "/" in word else word)
                if case not in out:
                    out.append(case)
        return out or [""]

    # ---- which tests

    def near(self, path: str) -> list[list[Test]]:
        """By stage: tests of the file, of its folder, all others."""
        place, stem = Path(path).parent, Path(path).stem
        under = next((place.relative_to(top) for top in ("core", "plugins") if place.is_relative_to(top)), place)
        folder = kPlaces.get(str(place), str(Path("tests/unit") / under))
        while not any(t.folder == folder for t in self.tests.values()) and folder != "tests/unit":
            folder = str(Path(folder).parent)
        stages: list[list[Test]] = [[], [], []]
        for test in self.tests.values():
            here = test.folder == folder and self.sources[Path(test.command[0]).name] & {stem, stem + "_test"}
            stages[0 if here else 1 if test.folder.startswith(folder) else 2].append(test)
        return stages

    def targets(self, tests: list[Test]) -> list[str]:
        out = {Path(t.command[0]).name for t in tests if Path(t.command[0]).is_relative_to(self.folder)}
        return sorted(out | {t for t in ("keirin_cpu", "keirin_reference", "keirin-worker") if t in self.sources})

    def made_of(self, test: Test, path: str) -> bool:
        """Whether the test, or a plugin that it loads, is linked from that file."""
        target = Path(test.command[0]).name
        if target not in self.inputs:
            listed = subprocess.run(["ninja", "-C", self.folder, "-t", "inputs", target], capture_output=True, text=True)
            self.inputs[target] = set(listed.stdout.splitlines())
        return not path.endswith(".cc") or str(self.root / path) in self.inputs[target]
