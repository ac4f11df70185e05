# SPDX-License-Identifier: Apache-2.0
"""Loads zoo files as a stranger would, draws weights and inputs by the file's own rules, and runs each once.

Reads nothing but the file: a rule that is missing or a graph that torch cannot read back fails here. Fails too when an output is not
finite or hardly varies, since such a model could not tell a right compiler from a wrong one.
"""
import argparse
import sys
from pathlib import Path

import torch

import archive


def draw(rule: dict, shape: list[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    kind = rule["kind"]
    if kind == "normal":
        return torch.empty(shape).normal_(rule["mean"], rule["std"], generator=generator).to(dtype)
    if kind == "uniform":
        return torch.empty(shape).uniform_(rule["low"], rule["high"], generator=generator).to(dtype)
    if kind == "constant":
        return torch.full(shape, rule["value"], dtype=dtype)
    if kind == "integers":
        return torch.randint(rule["low"], rule["high"], shape, generator=generator).to(dtype)
    if kind == "arange":
        return (rule["start"] + rule["step"] * torch.arange(shape[0])).to(dtype)
    if kind == "edges":
        pairs = torch.randint(0, rule["nodes"], shape, generator=generator)
        if rule["self_loops"]:
            pairs[:, -rule["nodes"] :] = torch.arange(rule["nodes"])
        return pairs.to(dtype)
    raise ValueError(f"unknown rule {kind!r}")


def check(path: Path) -> str:
    generator = torch.Generator().manual_seed(archive.read_init(path)["seed"])
    program, inputs = archive.read(path, lambda rule, shape, dtype: draw(rule, shape, dtype, generator))
    with torch.no_grad():
        outputs = torch.utils._pytree.tree_leaves(program.module()(*inputs))
    if not outputs:
        raise ValueError("no outputs")
    report = []
    for i, out in enumerate(outputs):
        values = out.double()
        if not torch.isfinite(values).all():
            raise ValueError(f"output {i} is not finite")
        spread = values.std(correction=0).item()
        if values.numel() > 1 and spread <= 1e-6 * max(1.0, values.abs().max().item()):
            raise ValueError(f"output {i} is constant: {values.mean().item():g}")
        if values.dim() and values.shape[0] > 1 and torch.equal(values[0].expand_as(values), values):
            raise ValueError(f"output {i} does not depend on its first dimension")
        report.append(f"{list(out.shape)} std {spread:.3g}")
    return ", ".join(report)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="files to check; all small models by default")
    options = parser.parse_args()
    failed = 0
    for path in options.files or sorted((Path(__file__).parent / "models" / "small").glob("*.pt2")):
        try:
            print(f"ok    {path.stem}: {check(path)}", flush=True)
        except Exception as error:  # one bad file must not hide the others
            failed += 1
            print(f"FAIL  {path.stem}: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
