#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every known-bad plugin fails the check that is meant for it and no other, and every check has such a plugin.

Prints a line for each check: the plugins that it caught. Usage: diagonal.py CHECKS FOLDER [--whole]

CHECKS is the program, FOLDER holds the plugins. Each plugin is tried on the checks of its own group, and with --whole on all of them.
"""
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

kHere = Path(__file__).resolve().parent
kGuid = "fb000000-0000-0000-0000-000000000000"
kDeadline = 4  # seconds, which a plugin that hangs takes


def try_plugin(checks: str, folder: Path, name: str, pattern: str) -> list[dict]:
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch, "told.json")
        subprocess.run([checks, f"--library={folder}/{name}/lib{name}.so", f"--guid={kGuid}", "--version=0.1.0", "--quick", "--jobs=1",
                        f"--deadline={kDeadline}", f"--check={pattern}", f"--json={told}"], stdout=subprocess.DEVNULL, check=False)
        return json.loads(told.read_text())["checks"]


def main() -> int:
    checks, folder, whole = sys.argv[1], Path(sys.argv[2]), "--whole" in sys.argv
    faults = re.findall(r'^KRN_(?:FAULT|BUILT)\((\w+), "([^"]+)"\)', (kHere / "faults.def").read_text(), re.M)
    every = [row["name"] for row in json.loads(subprocess.check_output([checks, "--list"]))]
    wrong = [f"no known-bad plugin is meant for {check}" for check in every if check not in {check for _, check in faults}]
    wrong += [f"{name} is meant for {check}, which is not a check" for name, check in faults if check not in every]
    tasks = [("good", "*")] + [(name, "*" if whole else check[0]) for name, check in faults]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        told = dict(zip(tasks, pool.map(lambda task: try_plugin(checks, folder, *task), tasks)))
    for row in told[("good", "*")]:
        if row["outcome"] != "passed":
            wrong.append(f"the good plugin on {row['name']}: {row['outcome']}: {row['reason']}")
    caught: dict[str, list[str]] = {}
    for (name, meant), task in zip(faults, tasks[1:]):
        failed = {row["name"]: row["reason"] for row in told[task] if row["outcome"] == "failed"}
        for check in failed:
            caught.setdefault(check, []).append(name)
        if meant not in failed:
            wrong.append(f"{name}: {meant} does not catch it")
        wrong += [f"{name} is meant for {meant}, and fails {check}: {reason}" for check, reason in failed.items() if check != meant]
    for check in every:
        print(f"{check:32} {' '.join(caught.get(check, [])) or '-'}")
    print(f"{len(faults)} known-bad plugins, {len(every)} checks, each plugin on {'all of them' if whole else 'its group'}")
    for text in wrong:
        print("WRONG", text)
    return 1 if wrong else 0


sys.exit(main())
