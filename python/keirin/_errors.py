# SPDX-License-Identifier: Apache-2.0
"""The exception that callers see, and the one that they do not."""


class Error(RuntimeError):
    """What Keirin refuses, in the words of the command: what, where, what was done instead, what to do.

    `code` is a name of abi/status.def: "invalid_input", "unsupported", "corrupt", ... What PyTorch itself raises on these inputs is
    raised as it is.
    """

    def __init__(self, text: str, code: str):
        super().__init__(text)
        self.code = code

    def in_a_line(self) -> str:
        return str(self).replace("\n ", ";")


def invalid_input(what: str, advice: str, where: str = "") -> Error:
    lines = ["invalid_input: " + what, where, "nothing was run", advice]
    return Error("\n  ".join(line for line in lines if line), "invalid_input")


class NotCaptured(Exception):
    """The reason why a graph stays eager."""
