#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every known-bad plugin fails the check that is meant for it and no other, and every check has such a plugin.

Prints a line for each check: the plugins that it caught. Usage: diagonal.py CHECKS FOLDER [--whole] [--gpu EMULATED]

CHECKS is the program, FOLDER holds the plugins. Each plugin is tried on the checks of its own group, and with --whole on all of them.
With --gpu they are plugins of a GPU: that of the emulated HIP, which is in the folder EMULATED (tests/standin/emulated).
"""
import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

kHere = Path(__file__).resolve().parent
kGuid = "fb000000-0000-0000-0000-000000000000"
kDeadline = 4  # seconds, which a plugin that hangs takes
# The fault of the first two shows in an answer that is there when the call returns; the third works on the host's threads.
kOnlyInline = {"shares_scratch", "runs_one_at_a_time", "needs_threads"}


def emulated_machine(folder: Path, libraries: Path) -> dict[str, str]:
    """A machine with an AMD GPU whose driver is the emulated one, as the environment of who is to see it."""
    subprocess.run([kHere.parent / "standin/machine", folder], check=True)
    path = f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return {"KEIRIN_HARDWARE_ROOT": str(folder), "LD_LIBRARY_PATH": path, "STANDIN_ARCH": "gfx1100"}


def try_plugin(checks: str, library: Path, pattern: str, environment: dict[str, str]) -> list[dict]:
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch, "told.json")
        subprocess.run([checks, f"--library={library}", f"--guid={kGuid}", "--version=0.1.0", "--quick", "--jobs=1",
                        f"--deadline={kDeadline}", f"--check={pattern}", f"--json={told}"], stdout=subprocess.DEVNULL, check=False,
                       env=os.environ | environment)
        return json.loads(told.read_text())["checks"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("checks")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--gpu", type=Path)
    args = parser.parse_args()
    rows = re.findall(r'^KRN_(FAULT|BUILT|GPU)\((\w+), "([^"]+)"\)', (kHere / "faults.def").read_text(), re.M)
    every = [row["name"] for row in json.loads(subprocess.check_output([args.checks, "--list"]))]
    of_gpus = {check for kind, _, check in rows if kind == "GPU"}
    wrong = [f"no known-bad plugin is meant for {check}" for check in every if check not in {check for _, _, check in rows}]
    wrong += [f"{name} is meant for {check}, which is not a check" for _, name, check in rows if check not in every]
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        environment = emulated_machine(Path(scratch, "machine"), args.gpu.resolve()) if args.gpu else {}

        def library_of(name: str) -> Path:
            if not args.gpu:
                return args.folder / name / f"lib{name}.so"
            library = Path(scratch, name, f"lib{name}_on_gpu.so")
            library.parent.mkdir(exist_ok=True)
            return Path(shutil.copy(args.folder / "good/libgood.so", library))

        good = {row["name"]: row for row in try_plugin(args.checks, library_of("good"), "*", environment)}
        passed = {name for name, row in good.items() if row["outcome"] == "passed"}
        if args.gpu:
            faults = [(name, check) for kind, name, check in rows if kind != "BUILT" and name not in kOnlyInline and check in passed]
            wrong += [f"the good plugin on {name}: {good[name]['outcome']}: {good[name]['reason']}" for name in of_gpus - passed]
        else:
            faults = [(name, check) for kind, name, check in rows if kind != "GPU"]
        for name, row in good.items():
            elsewhere = row["outcome"] == "not offered" and (args.gpu or name in of_gpus)
            if row["outcome"] != "passed" and not elsewhere:
                wrong.append(f"the good plugin on {name}: {row['outcome']}: {row['reason']}")
        asked = [(library_of(name), "*" if args.whole else meant[0]) for name, meant in faults]
        told = pool.map(lambda task: try_plugin(args.checks, *task, environment), asked)
        caught: dict[str, list[str]] = {}
        for (name, meant), answers in zip(faults, told):
            failed = {row["name"]: row["reason"] for row in answers if row["outcome"] == "failed"}
            for check in failed:
                caught.setdefault(check, []).append(name)
            if meant not in failed:
                wrong.append(f"{name}: {meant} does not catch it")
            wrong += [f"{name} is meant for {meant}, and fails {check}: {reason}" for check, reason in failed.items() if check != meant]
    for check in every:
        print(f"{check:32} {' '.join(caught.get(check, [])) or '-'}")
    print(f"{len(faults)} known-bad plugins{' on the emulated GPU' if args.gpu else ''}, {len(passed)} of {len(every)} checks, each plugin "
          f"on {'all of them' if args.whole else 'its group'}")
    for text in wrong:
        print("WRONG", text)
    return 1 if wrong else 0


sys.exit(main())
