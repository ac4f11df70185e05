#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the tests: switches on the bugs of planted.txt one at a time and runs the tests that must notice, fastest first.

    tests/planted/run.py [--build build-planted] [--only id,id] [--any] [--counts file]
    tests/planted/run.py --table

The build is that of the preset `planted`. --any tries every test of the build, in the order of the time it takes, to find who
notices; without it only those that the row names. A bug counts as caught where a test fails, dies or runs out of time, and only
if the same test passes with no bug on. The last line is `planted caught=N of=M`; it fails where one is missed, where a row has
no place in the code, and where a place has no row.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

kRoot = Path(__file__).resolve().parent.parent.parent
kTable = Path(__file__).resolve().parent / "planted.txt"
kSources = ("core", "plugins", "cpu")
kMostSeconds = 600  # of one test with no bug on; with one, four times what it then took and a minute: a hang is noticed, too


def read_table() -> list[tuple[str, list[str], str]]:
    rows = []
    for line in kTable.read_text().splitlines():
        if line and not line.startswith("#"):
            name, tests, what = line.split(maxsplit=2)
            rows.append((name, tests.split(","), what))
    return rows


def planted_in_code() -> set[str]:
    found: set[str] = set()
    for folder in kSources:
        for path in (kRoot / folder).rglob("*.cc"):
            found |= set(re.findall(r"KRN_PLANTED\((\w+)\)", path.read_text()))
    return found


class Tests:
    """The programs of a build folder, as ctest would run them."""

    def __init__(self, build: Path):
        listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True)
        self.known = {}
        for test in json.loads(listed.stdout)["tests"]:
            given = {p["name"]: p["value"] for p in test.get("properties", [])}
            self.known[test["name"]] = (test.get("command", []), given.get("ENVIRONMENT", []), given.get("WORKING_DIRECTORY", build))
        self.passes: dict[str, tuple[bool, float]] = {}

    def run(self, name: str, bug: str, reached: Path, limit: float) -> tuple[bool, float]:
        """Whether it passed, and the seconds it took."""
        command, environment, folder = self.known[name]
        with tempfile.TemporaryDirectory(prefix="keirin-planted-") as own:
            env = dict(os.environ, **dict(e.split("=", 1) for e in environment))
            env.update(KEIRIN_PLANTED=bug, KEIRIN_PLANTED_REACHED=str(reached), KEIRIN_CACHE=own + "/cache", TMPDIR=own,
                       GTEST_FAIL_FAST="1", OMP_NUM_THREADS=env.get("OMP_NUM_THREADS", "2"))
            env.pop("KEIRIN_TRUST_COUNTS", None)  # what fails on purpose is not a count of the lane
            begin = time.monotonic()
            try:
                passed = subprocess.run(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, timeout=limit).returncode == 0
            except subprocess.TimeoutExpired:
                passed = False
            return passed, time.monotonic() - begin

    def passes_unplanted(self, name: str) -> bool:
        if name not in self.passes:
            self.passes[name] = self.run(name, "", Path(os.devnull), kMostSeconds)
        return self.passes[name][0]


def try_bug(tests: Tests, bug: str, names: list[str]) -> tuple[str, float, bool]:
    """Who caught it (empty: nobody), after how many seconds of tests, and whether its code was reached."""
    with tempfile.NamedTemporaryFile(prefix="keirin-reached-") as reached:
        seconds = 0.0
        for name in names:
            passed, took = tests.run(name, bug, Path(reached.name), 60 + 4 * tests.passes[name][1])
            seconds += took
            if not passed:
                return name, seconds, True
        return "", seconds, bool(Path(reached.name).read_text())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build-planted")
    parser.add_argument("--only", default="")
    parser.add_argument("--any", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--table", action="store_true", help="compare the table with the code, try nothing")
    parser.add_argument("--counts", help="a file that gets the counts as JSON")
    options = parser.parse_args()
    rows, places = read_table(), planted_in_code()
    status = 0
    for name in sorted({row[0] for row in rows} ^ places):
        status = 1
        where = f"in the code, but not in {kTable.name}" if name in places else f"in {kTable.name}, but not in the code"
        print(f"{name} stands {where}")
    if options.table:
        return status
    tests = Tests(kRoot / options.build)
    rows = [row for row in rows if not options.only or row[0] in options.only.split(",")]
    wanted = sorted(tests.known) if options.any else sorted({test for row in rows for test in row[1]})
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        sound = [name for name, passes in zip(wanted, pool.map(tests.passes_unplanted, wanted)) if passes]
        for name in sorted(set(wanted) - set(sound)):
            print(f"{name} fails with no bug on, so it says nothing")
        fastest = sorted(sound, key=lambda name: tests.passes[name][1])
        chosen = {bug: [name for name in fastest if options.any or name in named] for bug, named, _ in rows}
        first = list(zip(rows, pool.map(lambda row: try_bug(tests, row[0], chosen[row[0]]), rows)))
    caught: dict[str, str] = {}
    for (bug, _, what), (by, seconds, reached) in first:
        if not by:  # once more, alone: a test that measures says nothing beside others
            by, seconds, reached = try_bug(tests, bug, chosen[bug])
        verdict = f"caught by {by} after {seconds:.1f} s" if by else "MISSED" if reached else "MISSED, and its code was not reached"
        print(f"{bug}: {verdict}: {what}", flush=True)
        if by:
            caught[bug] = by
    number = len(caught)
    if options.counts:
        Path(options.counts).write_text(json.dumps({"caught": number, "of": len(rows), "by": caught}, indent=1) + "\n")
    print(f"planted caught={number} of={len(rows)}")
    return status or number != len(rows)


if __name__ == "__main__":
    sys.exit(main())
