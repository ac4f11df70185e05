# SPDX-License-Identifier: Apache-2.0
"""The `keirin` command of a wheel: the program beside this file, with the torch of this environment on its path."""
import os
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("keirin: there is no torch in this environment: pip install torch")
    library = str(Path(spec.origin).parent / "lib")
    environment = dict(os.environ)
    environment["LD_LIBRARY_PATH"] = ":".join(each for each in (library, os.environ.get("LD_LIBRARY_PATH")) if each)
    program = str(Path(__file__).parent / "keirin")
    os.execve(program, [program] + sys.argv[1:], environment)
