# SPDX-License-Identifier: Apache-2.0
"""Writes many mutants into one source, each behind a switch (keirin_mutant.h), so that one build tries them all: an expression becomes
(on(N) ? (mutated) : (original)), a statement that may be left out { if (!on(N)) statement }. What the compiler does not take is
found by asking it: culprits() tells which mutants an error stands in. Where two mutants share a place, the inner one lives in the
original branch of the outer one: only one is ever on."""
import re

from mutation.sites import Site

kHeader = "keirin_mutant.h"  # at the root of the copy


def mutated(text: bytes, site: Site) -> str:
    """The outer range with the change in it, in parentheses where it is an expression, so that no neighbour binds closer."""
    start, end = site.outer
    out = (text[start:site.start] + site.new.encode() + text[site.end:end]).decode()
    return out if site.how == "statement" else f"({out})"


def alone(text: bytes, site: Site) -> bytes:
    """The source with this mutant and no switch."""
    if site.how == "text":
        return text[:site.start] + site.new.encode() + text[site.end:]
    start, end = site.outer
    return text[:start] + mutated(text, site).encode() + text[end:]


def schemata(text: bytes, numbered: list[tuple[int, Site]], depth: int) -> bytes:
    """The source with all of them; `depth` folders lie between it and the root."""
    words = sorted({word for _, site in numbered for word in site.constants})

    def plain(begin: int, end: int) -> str:
        out, at = [], begin
        for start, stop, word in words:
            if begin <= start and stop <= end:
                out += [text[at:start].decode(), word]
                at = stop
        return "".join(out) + text[at:end].decode()

    def switch(number: int, site: Site, original: str) -> str:
        on = f"::keirin_mutant::on({number})"
        if site.how == "statement":
            out = f"{{ if (!{on}) {original} }}"
        elif site.how == "truth":
            out = f"({on} ? static_cast<bool>({mutated(text, site)}) : static_cast<bool>({original}))"
        else:
            out = f"({on} ? {mutated(text, site)} : ({original}))"
        return f"/*<{number}*/{out}/*{number}>*/"

    def render(begin: int, end: int, inside: list[tuple[int, Site]]) -> str:
        out, at = [], begin
        while inside:
            number, site = inside[0]
            within = [each for each in inside[1:] if each[1].outer[0] < site.outer[1]]
            inside = inside[1 + len(within):]
            out += [plain(at, site.outer[0]), switch(number, site, render(*site.outer, within))]
            at = site.outer[1]
        return "".join(out) + plain(at, end)

    widest_first = sorted(numbered, key=lambda each: (each[1].outer[0], -each[1].outer[1]))
    return f'#include "{"../" * depth}{kHeader}"\n{render(0, len(text), widest_first)}'.encode()


def culprits(text: str, path: str, output: str) -> set[int]:
    """The mutants of this source (as schemata() wrote it) in which the compiler's errors stand, or the notes that lead to them."""
    lines = text.split("\n")
    for word in ("error", "note"):
        found: set[int] = set()
        for line, column in re.findall(rf"{re.escape(path)}:(\d+):(\d+): (?:fatal )?{word}", output):
            before = "\n".join(lines[:int(line) - 1]) + "\n" + lines[int(line) - 1][:int(column) - 1]
            opened: list[int] = []
            for begun, ended in re.findall(r"/\*(?:<(\d+)|(\d+)>)\*/", before):
                if begun:
                    opened.append(int(begun))
                else:
                    opened = [n for n in opened if n != int(ended)]
            found |= set(opened[-1:]) if word == "error" else set(opened)
        if found:
            return found
    return set()
