#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a wrong program small: takes out lines and outputs while the runner still finds the same kind of difference.

    tests/programs/reduce.py p00123 -- build/programs --cpu=build/plugins/keirin_cpu

The name says from which seed the program is drawn (p: the archive's). Prints the smallest program and what differs; what it shows is
a row for named.py.
"""
import argparse
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import generate
import record


def drawn(name: str) -> generate.Writing:
    match = re.fullmatch(r"p(\d+)|s(\d+)_(\d+)", name)
    if not match:
        raise SystemExit(f"{name} is not the name of a drawn program")
    seed, index = (generate.kSeed, int(match[1])) if match[1] else (int(match[2]), int(match[3]))
    rng = random.Random(f"{seed}/{index}")
    for _ in range(20):
        writing = generate.Writing(rng)
        program = writing.write()
        if program is not None:
            return writing, program
    raise SystemExit(f"{name} cannot be drawn again")


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("name")
    parse.add_argument("--kind",
                       help="of difference, as the runner's --list has it: 'compiled with contiguous, called with contiguous: values'")
    parse.add_argument("runner", nargs="+")
    o = parse.parse_args()
    generate.start()
    writing, program = drawn(o.name)
    names = [f"x{i}" for i in range(len(program.inputs))]

    def fails(lines: list[str], returned: list[str], scratch: Path) -> dict[str, str]:
        source = f"def forward(self, {', '.join(names)}):\n" + "".join(f"    {line}\n" for line in lines)
        source += f"    return {', '.join(returned)}\n"
        try:
            small = record.Program(o.name, source, generate.module_of(source, writing.buffers, writing.weights), program.inputs)
            record.write_folder(record.files_of(record.record(small, random.Random(o.name)), scratch).items(), scratch)
        except Exception:
            return {}
        listed = scratch / "list"
        subprocess.run([*o.runner, f"--cases={scratch}", f"--only={o.name}", f"--list={listed}", "--shown=0"], capture_output=True)
        out = {}
        for line in listed.read_text().splitlines():
            _, kind, where, *what = line.split("\t") + [""]
            out[kind if kind == "refused" else f"{where.split(', call ')[0]}: {kind}"] = what[0] or where
        return out

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        body = [line[4:] for line in program.source.splitlines()[1:]]
        lines, returned = body[:-1], split_outputs(body[-1].removeprefix("return "))
        first = fails(lines, returned, folder)
        if not first:
            print(f"{o.name} is right")
            return 1
        kind = o.kind or next(iter(first))
        if kind not in first:
            print(f"{o.name} fails with: {', '.join(first)}")
            return 1
        shrunk = True
        while shrunk:
            shrunk = False
            for part in (returned, lines):
                for i in reversed(range(len(part))):
                    if part is returned and len(part) == 1:
                        break
                    kept = part.pop(i)
                    if kind in fails(lines, returned, folder):
                        shrunk = True
                    else:
                        part.insert(i, kept)
        what = fails(lines, returned, folder)
        source = "".join(f"    {line}\n" for line in lines) + f"    return {', '.join(returned)}"
        used = [f"{n}" for n in (writing.buffers | writing.weights) if f"self.{n}" in source]
        print(f"{o.name}: {kind}: {what.get(kind)}\n  {program.extra['note']}  (used: {', '.join(used)})\n{source}")
    return 0


def split_outputs(text: str) -> list[str]:
    parts, depth, at = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            parts.append(text[at:i].strip())
            at = i + 1
    parts.append(text[at:].strip())
    return [p for p in parts if p]


if __name__ == "__main__":
    sys.exit(main())
