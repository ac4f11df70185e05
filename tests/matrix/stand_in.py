#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker of the matrix without a model: speaks the words of tools/matrix/worker.h and says the times that it is told to, so that what a
sitting makes of them is known before it begins. Noise is drawn from names alone: the same words give the same times.

    stand_in.py [--build NAME] [--factor 1.1] [--slow CASE=1.1 ...] [--wrong CASE] [--hang CASE] [--lacks CASE] matrix-worker

CASE is the model of a case. --build tells two builds apart. --hang never answers when it is asked for times.
"""

import argparse
import os
import random
import select
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/peers"))
import worker  # noqa: E402

kCallNs = 1_000_000
kNoise = 0.002


class StandIn:
    def __init__(self, words: argparse.Namespace) -> None:
        self.words, self.factor, self.draw, self.model = words, 1.0, None, ""

    def answer(self, question: dict) -> dict:
        return getattr(self, question["ask"])(question)

    def hello(self, question: dict) -> dict:
        return {"protocol": worker.kProtocol, "parts": {"keirin": "stand-in", "keirin build": self.words.build}}

    def open(self, question: dict) -> dict:
        self.model = question["case"].split("/")[0]
        if self.model in self.words.lacks:
            raise worker.Refusal("unsupported", "it is made of nothing")
        if self.model in self.words.wrong and question["verify"]:
            raise worker.Refusal("wrong_result", "it is off by one")
        self.factor = self.words.factor * dict(self.words.slow).get(self.model, 1.0)
        if question["variant"] in ("eager", "replay"):
            self.factor = {"eager": 2.0, "replay": 1.5}[question["variant"]]
        self.draw = random.Random(f"{question['case']} {question['variant']} {self.words.build}")
        chosen = question["candidate"] or "cpu/all"
        errors = {"answer": 2e-6, "eager": 1e-6}
        found = {"chosen": chosen, "disturbed": "", "counts": {"nodes": 3}, "fallbacks": [], "errors": errors}
        return found | {"build_ns": 1000, "threads": 1}

    def warm(self, question: dict) -> dict:
        return {"first_ns": 2 * kCallNs, "calls": 11, "settled": True, "settle_ns": 10 * kCallNs}

    def slot(self, question: dict) -> dict:
        if self.model in self.words.hang:
            select.select([worker.kChannel], [], [])  # until whoever asked is gone
            sys.exit(1)
        ns = [int(kCallNs * self.factor * (1 + self.draw.uniform(-kNoise, kNoise))) for _ in range(5)]
        return {"ns": ns, "calls": 1, "lasted_ns": sum(ns), "waited_ns": 0, "stolen_ns": 0, "used_ns": sum(ns)}


def slow_case(text: str) -> tuple[str, float]:
    model, factor = text.split("=")
    return model, float(factor)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="one")
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--slow", type=slow_case, action="append", default=[])
    for word in ("--wrong", "--hang", "--lacks"):
        parser.add_argument(word, action="append", default=[])
    parser.add_argument("word", choices=["matrix-worker"])
    stand_in = StandIn(parser.parse_args())
    os.set_inheritable(worker.kChannel, False)
    worker.answer_all(socket.socket(fileno=worker.kChannel), stand_in)
    return 0


if __name__ == "__main__":
    sys.exit(main())
