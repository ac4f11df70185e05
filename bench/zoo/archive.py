# SPDX-License-Identifier: Apache-2.0
"""Writes a `.pt2` file that holds a graph and no weights, and fills one in again for a trial in Python.

Invariants: every record is stored, floating weights are empty records of their own (tied ones share theirs, as in a file of
torch's), integers, booleans and small floating constants keep their data, and `extra/keirin_init.json` names a rule for every
weight that is empty and for every input. The same model exported twice gives the same bytes.
"""
import json
import zipfile
from pathlib import Path
from typing import Any, Callable

import torch
from torch._export.serde import schema, serialize

kSmallConstantBytes = 4096
kInitRecord = "extra/keirin_init.json"
kAlignment = 64


class Writer:
    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED)
        self._root = path.stem

    def add(self, name: str, data: bytes) -> None:
        info = zipfile.ZipInfo(f"{self._root}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
        if data:
            header = self._zip.fp.tell() + 30 + len(info.filename) + 4
            padding = -header % kAlignment
            info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
        self._zip.writestr(info, data)

    def close(self) -> None:
        self._zip.close()


def _dense(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _slim(program: dict[str, Any]) -> dict[str, Any]:
    """Drops what Python knew about each node, but for the module that it came from."""

    def visit(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                visit(item)
        elif isinstance(value, dict):
            metadata = value.get("metadata")
            if isinstance(metadata, dict) and "target" in value:
                stack = metadata.get("nn_module_stack", "")
                value["metadata"] = {"nn_module_stack": stack.rsplit(";", 1)[-1]} if stack else {}
            for item in value.values():
                visit(item)

    visit(program["graph_module"]["graph"])
    return program


def _keeps_data(tensor: torch.Tensor, kind: str) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return kind == "constants" and tensor.numel() * tensor.element_size() <= kSmallConstantBytes


def _raw(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().cpu().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _whole_storage(tensor: torch.Tensor) -> bytes:
    storage = tensor.detach().untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes() if storage.nbytes() else b""


def write(program: torch.export.ExportedProgram, init: dict[str, Any] | None, rule_of: Callable | None, path: Path) -> None:
    """`init` holds version, seed and inputs; `rule_of(name, tensor)` answers how an empty tensor is drawn. Without both every tensor
    keeps its data, and views of one storage stay that."""
    parameters = set(program.graph_signature.parameters)
    writer = Writer(path)
    writer.add("archive_format", b"pt2")
    writer.add("byteorder", b"little")
    rules: dict[str, Any] = {}
    for kind, prefix, named in (("weights", "weight_", program.state_dict), ("constants", "tensor_", program.constants)):
        config: dict[str, Any] = {}
        records: dict[Any, str] = {}
        for name, tensor in named.items():
            keeps = rule_of is None or _keeps_data(tensor, kind)
            # Names with one storage are tied; a tensor of no elements has no storage to share.
            storage = tensor.untyped_storage().data_ptr() if tensor.numel() else name
            if storage not in records:
                records[storage] = f"{prefix}{len(records)}"
                data = b"" if not keeps else _whole_storage(tensor) if rule_of is None else _raw(tensor)
                writer.add(f"data/{kind}/{records[storage]}", data)
            if not keeps:
                rules[name] = rule_of(name, tensor)
            meta = serialize._dataclass_to_dict(serialize.serialize_tensor_meta(tensor.detach()))
            config[name] = {"path_name": records[storage], "is_param": name in parameters, "use_pickle": False, "tensor_meta": meta}
        writer.add(f"data/{kind}/model_{kind}_config.json", _dense({"config": config}))
    writer.add("models/model.json", _dense(_slim(_program_json(program))))
    if init is not None:
        writer.add(kInitRecord, json.dumps({**init, "tensors": rules}, indent=1).encode())
    writer.add("archive_version", b"0")
    writer.add(".data/version", b"6")
    writer.close()


def _program_json(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """The program as torch writes it. Its weights are put aside first: torch pickles a copy of them on the way."""
    empty = {name: torch.empty_like(tensor, device="meta") for name, tensor in program.state_dict.items()}
    program._state_dict = {n: torch.nn.Parameter(t, False) if n in program.graph_signature.parameters else t for n, t in empty.items()}
    program._example_inputs = ((), {})
    return json.loads(serialize.serialize(program).exported_program)


class Reader:
    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path)
        self._root = self._zip.namelist()[0].split("/", 1)[0]

    def bytes(self, name: str) -> bytes:
        return self._zip.read(f"{self._root}/{name}")

    def json(self, name: str) -> Any:
        return json.loads(self.bytes(name))


def read_init(path: Path) -> dict[str, Any]:
    return Reader(path).json(kInitRecord)


def rule_at(rules: list[dict], i: int, shapes: list) -> dict:
    """The rule of input i among inputs of these shapes: of edges between the rows of another input, how many there are."""
    rule = rules[i]
    return rule | {"nodes": int(shapes[rule["rows_of"]][0])} if "rows_of" in rule else rule


def read(path: Path, draw: Callable) -> tuple[torch.export.ExportedProgram, list[torch.Tensor]]:
    """The program with every empty tensor drawn, and inputs for it; `draw(rule, shape, dtype)` makes one tensor."""
    reader, init = Reader(path), read_init(path)
    program = serialize._bytes_to_dataclass(schema.ExportedProgram, reader.bytes("models/model.json"))
    filled: dict[str, dict[str, torch.Tensor]] = {"weights": {}, "constants": {}}
    for kind, tensors in filled.items():
        drawn: dict[str, torch.Tensor] = {}
        for name, entry in reader.json(f"data/{kind}/model_{kind}_config.json")["config"].items():
            meta = serialize._dict_to_dataclass(schema.TensorMeta, entry["tensor_meta"])
            shape, dtype = [s.as_int for s in meta.sizes], serialize._SERIALIZE_TO_TORCH_DTYPE[meta.dtype]
            record = entry["path_name"]
            if record not in drawn:
                raw = reader.bytes(f"data/{kind}/{record}")
                if raw:
                    drawn[record] = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)
                else:
                    drawn[record] = draw(init["tensors"][name], shape, dtype)
            tensors[name] = torch.nn.Parameter(drawn[record], False) if entry["is_param"] else drawn[record]
    loaded = serialize.ExportedProgramDeserializer().deserialize(program, filled["weights"], filled["constants"])
    nodes = {n.name: n.meta["val"] for n in loaded.graph.nodes if n.op == "placeholder"}
    values = [nodes[name] for name in loaded.graph_signature.user_inputs]
    hints = [[s if isinstance(s, int) else s.node.hint for s in value.shape] for value in values]
    return loaded, [draw(rule_at(init["inputs"], i, hints), hints[i], value.dtype) for i, value in enumerate(values)]
