#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker of the matrix without a model: speaks the words of tools/matrix/worker.h and says the times that it is told to, so that what a
sitting makes of them is known before it begins. Noise is drawn from names alone: the same words give the same times.

    stand_in.py [--build NAME] [--factor 1.1] [--slow CASE=1.1 ...] [--wrong CASE] [--hang CASE] [--lacks CASE] [--hot CASE] [--broken CASE]
        [--count NAME=5 ...] [--answers CANDIDATE] [--sleep SECONDS] [--cold compile=1.3 ...] matrix-worker

CASE is the model of a case; of --slow also the folder of the side that trains with its package, or a variant. --build tells two builds
apart. --hang never answers when it is asked for times, --hot says of all of them that the device was held down. --count says a count that
is not as the others', --answers which candidate a race finds. --sleep goes by before it can be asked; --cold is how many times longer
than others it says that it compiled, or that its first call took ("call").
"""

import argparse
import os
import random
import select
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/peers"))
import worker  # noqa: E402

kCallNs = 1_000_000
kNoise = 0.002
kCompileNs = 10_000


class StandIn:
    def __init__(self, words: argparse.Namespace) -> None:
        self.words, self.factor, self.draw, self.model = words, 1.0, None, ""

    def answer(self, question: dict) -> dict:
        return getattr(self, question["ask"])(question)

    def hello(self, question: dict) -> dict:
        parts = {"package": question["package"]} if question.get("package") else {"keirin": "stand-in", "keirin build": self.words.build}
        return {"protocol": worker.kProtocol, "parts": parts}

    def open(self, question: dict) -> dict:
        self.model = question["case"].split("/")[0]
        if self.model in self.words.lacks:
            raise worker.Refusal("unsupported", "it is made of nothing")
        if self.model in self.words.broken:
            raise worker.Refusal("internal", "it claimed what it cannot compile")
        if self.model in self.words.wrong and question["verify"]:
            raise worker.Refusal("wrong_result", "it is off by one")
        slow = dict(self.words.slow)
        self.factor = self.words.factor * slow.get(self.model, 1.0) * slow.get(Path(question.get("package", "")).parent.name, 1.0)
        self.factor *= slow.get(question["variant"], 1.0)
        if question["variant"] in ("eager", "replay"):
            self.factor = {"eager": 2.0, "replay": 1.5}[question["variant"]]
        self.draw = random.Random(f"{question['case']} {question['variant']} {self.words.build}")
        chosen = question["candidate"] or self.words.answers
        errors = {"answer": 2e-6, "eager": 1e-6}
        counts = {"nodes": 3, "steps": 2, "peak_bytes": 1_000_000, "instructions": 1_000_000}
        if question["imagine"]:
            counts = {"nodes": 3, "nodes_eager": 1, "kernels": 2, "launches": 2, "spilled": 0}
        counts |= dict(self.words.count)
        found = {"chosen": chosen, "disturbed": "", "counts": counts, "fallbacks": [], "errors": errors}
        return found | {"build_ns": self.cold("compile", kCompileNs), "threads": 1}

    def cold(self, part: str, ns: int) -> int:
        return int(ns * dict(self.words.cold).get(part, 1.0) * (1 + 10 * random.uniform(-kNoise, kNoise)))

    def warm(self, question: dict) -> dict:
        counts = {"allocations": 4, "allocated_bytes": 4096} | {k: v for k, v in self.words.count if k.startswith("alloc")}
        steady = {"calls": 11, "settled": True, "settle_ns": 10 * kCallNs, "counts": counts}
        return steady | {"first_ns": self.cold("call", 2 * kCallNs)}

    def slot(self, question: dict) -> dict:
        if self.model in self.words.hang:
            select.select([worker.kChannel], [], [])  # until whoever asked is gone
            sys.exit(1)
        ns = [int(kCallNs * self.factor * (1 + self.draw.uniform(-kNoise, kNoise))) for _ in range(5)]
        times = {"ns": ns, "calls": 1, "lasted_ns": sum(ns), "waited_ns": 0, "stolen_ns": 0, "used_ns": sum(ns)}
        return times | {"disturbed": "heat held the clock down" if self.model in self.words.hot else ""}


def number_of(text: str) -> tuple[str, int]:
    name, value = text.split("=")
    return name, int(value)


def slow_case(text: str) -> tuple[str, float]:
    model, factor = text.split("=")
    return model, float(factor)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="one")
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--slow", type=slow_case, action="append", default=[])
    parser.add_argument("--count", type=number_of, action="append", default=[])
    parser.add_argument("--answers", default="cpu/all")
    parser.add_argument("--sleep", type=float, default=0)
    parser.add_argument("--cold", type=slow_case, action="append", default=[])
    for word in ("--wrong", "--hang", "--lacks", "--hot", "--broken"):
        parser.add_argument(word, action="append", default=[])
    parser.add_argument("word", choices=["matrix-worker"])
    stand_in = StandIn(parser.parse_args())
    time.sleep(stand_in.words.sleep)
    os.set_inheritable(worker.kChannel, False)
    worker.answer_all(socket.socket(fileno=worker.kChannel), stand_in)
    return 0


if __name__ == "__main__":
    sys.exit(main())
