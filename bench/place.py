# SPDX-License-Identifier: Apache-2.0
"""Where a figure was measured: rows of keirin bench say how far apart the processors were, which a hypervisor may move between two runs."""
from __future__ import annotations


def same_place(a: dict, b: dict) -> bool:
    """Of two rows, as core/tune/processors.h has it. A row that does not say where it was tells nothing."""
    a_ns, b_ns = a.get("processors_apart_ns"), b.get("processors_apart_ns")
    return not a_ns or not b_ns or max(a_ns, b_ns) < 1.5 * min(a_ns, b_ns)
