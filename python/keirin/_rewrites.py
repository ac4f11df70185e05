# SPDX-License-Identifier: Apache-2.0
"""What is said otherwise before AOTAutograd and in its joint graph of forward and backward, so that the importer knows it.

A pool over a whole image is a mean, whose result AOTAutograd shows through its memory (as_strided) where the image is channels-last. An
embedding bag keeps for its backward what differs between dtypes and devices (which bag each index is in, or nothing at all). The
backward here finds the bags in the offsets, so the forward keeps nothing. An attention that drops nothing keeps the state of a generator
all the same, in memory that nobody filled, of the processor's for some of GPUs' kernels: its backward, which does not look, gets zeros. One
that drops keeps it on the GPU, as the runtime does (core/eager/program/boxed_call.h).
What a model for a GPU counts on the processor and then indexes with (torch.tril_indices without a device) is counted on the GPU, as in
files (core/capture/pt2/counted_values.h), but here before it is kept between the two.
"""
from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch._dynamo.variables.torch_function import torch_function_mode_stack_state_mgr
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils.checkpoint import CheckpointPolicy

from keirin._draws import draws_numbers, dropped_by

aten = torch.ops.aten


class _Writer:
    """Appends operators in front of a node, with what it is known of and what they answer."""

    def __init__(self, at: torch.fx.Node):
        self._at, self._graph = at, at.graph

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        with self._graph.inserting_before(self._at):
            node = self._graph.call_function(target, args, kwargs)
        values = pytree.tree_map(lambda each: each.meta["val"] if isinstance(each, torch.fx.Node) else each, (args, kwargs))
        mode = next(each.fake_mode for each in pytree.tree_leaves([n.meta["val"] for n in self._at.all_input_nodes])
                    if hasattr(each, "fake_mode"))
        with mode:
            answer = target(*values[0], **values[1])
        node.meta = {**self._at.meta, "val": answer}
        return node


def say_default_device(gm: torch.fx.GraphModule) -> None:
    """In Dynamo's graph, in place: what is made without a device (a range) is made where the caller's default is. Neither Dynamo's backends
    nor another thread have that default: a mode of torch functions, which Dynamo puts away while they run."""
    contexts = [mode for mode in getattr(torch_function_mode_stack_state_mgr, "stack", []) if isinstance(mode, DeviceContext)]
    if contexts:
        device = contexts[-1].device
    elif (device := torch.get_default_device()) == torch.device("cpu"):
        return
    for part in gm.modules():
        if not isinstance(part, torch.fx.GraphModule):
            continue
        moved: set[torch.fx.Node] = set()
        for node in part.graph.nodes:
            is_made = node.op == "call_function" and node.target in _device_constructors() and node.kwargs.get("device") is None
            if is_made:
                node.kwargs = {**node.kwargs, "device": device}
            fake = node.meta.get("example_value")
            follows = node.target not in ("to", "cpu") and not moved.isdisjoint(node.all_input_nodes)
            # By Dynamo's own account it, and what is made of it, is the processor's.
            if isinstance(fake, torch.Tensor) and (is_made or follows):
                node.meta["example_value"] = fake.to(device)
                moved.add(node)
        part.recompile()


_POOLS = {F.adaptive_avg_pool1d: 1, F.adaptive_avg_pool2d: 2, torch._C._nn.adaptive_avg_pool2d: 2, F.adaptive_avg_pool3d: 3,
          torch._C._nn.adaptive_avg_pool3d: 3}  # and over how many dimensions


def rewrite_pools(gm: torch.fx.GraphModule) -> None:
    """In Dynamo's graph, in place: eager takes the same mean, and its result differs in the stride of a dimension of one element."""
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in _POOLS:
            continue
        over, size = _POOLS[node.target], _argument(node, 1, node.kwargs.get("output_size"))
        image = node.args[0].meta.get("example_value") if node.args and isinstance(node.args[0], torch.fx.Node) else None
        whole = size == 1 or (isinstance(size, (tuple, list)) and list(size) == [1] * over)
        if whole and isinstance(image, torch.Tensor) and image.dim() == over + 2:
            node.target, node.args, node.kwargs = torch.mean, (node.args[0], [-1 - d for d in range(over)]), {"keepdim": True}
    gm.recompile()


def _argument(node: torch.fx.Node, position: int, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else default


def _is_plain(bag: torch.fx.Node) -> bool:
    """No weights of samples, no padding, the sum or mean of each bag, and sizes that are known."""
    wanted = ((3, False, (False,)), (4, 0, (0, 1)), (5, False, (False,)), (6, None, (None,)), (7, False, (False,)), (8, -1, (-1,)))
    return (all(_argument(bag, position, default) in allowed for position, default, allowed in wanted)
            and isinstance(bag.args[1].meta["val"].shape[0], int) and isinstance(bag.args[2].meta["val"].shape[0], int))


STATE = ("philox_seed", "philox_offset")
_GENERATOR_RESULTS = (*STATE, "rng_state", "unused")  # of the schemas of attention


def states_move(node: torch.fx.Node) -> bool:
    """Whether the state of what this attention drops lies in host memory, or on the GPU where the call is recorded."""
    if not dropped_by(node) or "efficient" not in node.target.name() or torch.version.hip:
        return False
    return node.args[0].meta["val"].device.type == "cuda"


def rewrite_attention(joint: torch.fx.GraphModule) -> None:
    for node in list(joint.graph.nodes):
        if states_move(node):
            device, names = node.args[0].meta["val"].device, [each.name for each in node.target._schema.returns]
            node.meta["val"] = tuple(each.to(device) if name in STATE else each for name, each in zip(names, node.meta["val"]))
            for item in node.users:
                item.meta["val"] = node.meta["val"][item.args[1]]
        if dropped_by(node) != 0:
            continue
        names = [each.name for each in node.target._schema.returns]
        for item in list(node.users):
            if item.target is not operator.getitem or names[item.args[1]] not in _GENERATOR_RESULTS:
                continue
            fake = item.meta["val"]
            zeros = _Writer(item)(aten.zeros.default, list(fake.shape), dtype=fake.dtype, device=node.args[0].meta["val"].device)
            item.replace_all_uses_with(zeros)
            joint.graph.erase_node(item)
    joint.recompile()


def copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same nodes under the same names, for another use; what is known of their values is shared."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in gm.graph.nodes:
        copies[node] = graph.node_copy(node, lambda each: copies[each])
    other = torch.fx.GraphModule(gm, graph)
    other.meta = dict(gm.meta)
    return other


_ARANGES = (aten.arange.default, aten.arange.start, aten.arange.start_step)
_ZEROS = (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default)


def rewrite_counted(joint: torch.fx.GraphModule) -> None:
    """Rows that are picked by counting are a slice, and their gradient is that of a slice: what shifts positions in XLNet. The backward
    would be given the count as any index, and sort it."""
    for node in list(joint.graph.nodes):
        if node.target is aten.index_select.default and (within := _counted(node.args[2], node.args[0], node.args[1])):
            write = _Writer(node)
            part = write(aten.slice.Tensor, *node.args[:2], *within)
            _replace(node, write(aten.clone.default, part, memory_format=torch.contiguous_format))
        elif node.target is aten.index_add.default and node.args[0].target in _ZEROS and node.kwargs.get("alpha", 1) == 1:
            into, dim, index, rows = node.args
            if within := _counted(index, into, dim):
                shape = into.meta["val"].shape
                sides = [0, 0] * (len(shape) - 1 - dim % len(shape)) + [within[0], shape[dim] - within[1]]
                _replace(node, _Writer(node)(aten.constant_pad_nd.default, rows, sides, 0))
    joint.recompile()


def _counted(index: torch.fx.Node, of: torch.fx.Node, dim: int) -> tuple[int, int] | None:
    """From where to where an index of this dimension counts, if it does one by one, and not over its end."""
    if index.target not in _ARANGES or index.meta["val"].is_floating_point() or of.meta["val"].dim() == 0:
        return None
    first, step = index.args[0] if index.target is not aten.arange.default else 0, index.args[2] if len(index.args) > 2 else 1
    length, size = index.meta["val"].shape[0], of.meta["val"].shape[dim]
    known = all(type(each) is int for each in (first, step, length, size))
    return (first, first + length) if known and step == 1 and 0 <= first <= size - length else None


def _replace(node: torch.fx.Node, other: torch.fx.Node) -> None:
    mine, its = node.meta["val"], other.meta["val"]
    if (mine.shape, mine.stride(), mine.dtype) == (its.shape, its.stride(), its.dtype):
        node.replace_all_uses_with(other)
        node.graph.erase_node(node)
    else:
        node.graph.erase_node(other)


def forget_running(joint: torch.fx.GraphModule) -> None:
    """A batch norm in training does not look at the running statistics in its backward, which is handed them all the same: they would be
    kept beside those that the forward returns, in memory of their own."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.native_batch_norm_backward.default):
        if node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])
    joint.recompile()


def keep_casts(joint: torch.fx.GraphModule) -> None:
    """A weight in the narrow dtype that products take is kept for the backward, as autocast keeps it. By itself the min-cut has some made
    again, because the weight is there anyway."""
    for node in joint.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        source = node.args[0]
        if source.op != "placeholder" or source.name.startswith("tangents"):
            continue
        if source.meta["val"].is_floating_point() and node.meta["val"].element_size() < source.meta["val"].element_size():
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _devices(node: torch.fx.Node) -> set[torch.device]:
    return {each.device for each in pytree.tree_leaves(node.meta.get("val")) if isinstance(each, torch.Tensor)}


def rewrite_devices(joint: torch.fx.GraphModule) -> None:
    """What is made of nothing but numbers on the processor, and read by operators of a GPU alone: not the caller's, nor drawn there."""
    processor = {torch.device("cpu")}
    device = next((each for node in joint.graph.nodes for each in _devices(node) if each.type == "cuda"), None)
    made: dict[torch.fx.Node, None] = {}
    for node in joint.graph.nodes:
        is_operator = isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
        if is_operator and _devices(node) == processor and not draws_numbers(node):
            if all(each in made or not _devices(each) for each in node.all_input_nodes):
                made[node] = None
    if device is None:
        return
    known = 0
    while known != len(made):
        known = len(made)
        for node in [*reversed(made), *made]:
            stays = any(user not in made and _devices(user) != {device} for user in node.users)
            if node in made and (stays or any(_devices(each) and each not in made for each in node.all_input_nodes)):
                del made[node]
    for node in made:
        if isinstance(node.target, torch._ops.OpOverload) and any(each.name == "device" for each in node.target._schema.arguments):
            node.kwargs = {**node.kwargs, "device": device, **({"pin_memory": False} if "pin_memory" in node.kwargs else {})}
        mode = next(each.fake_mode for each in pytree.tree_leaves(node.meta["val"]) if isinstance(each, torch.Tensor))
        args, kwargs = pytree.tree_map(lambda each: each.meta["val"] if isinstance(each, torch.fx.Node) else each, (node.args, node.kwargs))
        with mode:
            node.meta["val"] = node.target(*args, **kwargs)
    joint.recompile()


def rewrite_bags(joint: torch.fx.GraphModule) -> None:
    for bag in joint.graph.find_nodes(op="call_function", target=aten._embedding_bag.default):
        items = list(bag.users)
        rest = [user for item in items if item.args[1] > 0 for user in item.users]
        if not _is_plain(bag) or any(user.target is not aten._embedding_bag_backward.default for user in rest):
            continue
        for backward in dict.fromkeys(rest):
            gradient = _gradient(_Writer(backward), backward.args[0], *bag.args[:3], mode=_argument(bag, 4, 0))
            backward.replace_all_uses_with(gradient)
            joint.graph.erase_node(backward)
        write = _Writer(bag)
        whole = write(aten.embedding_bag.padding_idx, *bag.args[:3], False, _argument(bag, 4, 0), False, None, False, None)
        first = next((item for item in items if item.args[1] == 0), None)
        if first is not None:
            answer = write(lambda answers: answers[0], whole)
            answer.target, answer.args = first.target, (whole, 0)
            first.replace_all_uses_with(answer)
        for item in items:
            joint.graph.erase_node(item)
        joint.graph.erase_node(bag)
    joint.recompile()


def _gradient(write: _Writer, gradient: torch.fx.Node, weight: torch.fx.Node, ids: torch.fx.Node, offsets: torch.fx.Node,
              mode: int) -> torch.fx.Node:
    fake, count = weight.meta["val"], ids.meta["val"].shape[0]
    device = {"device": fake.device}
    begins = write(aten.ones.default, [offsets.meta["val"].shape[0]], dtype=torch.int64, **device)
    marks = write(aten.index_add.default, write(aten.zeros.default, [count + 1], dtype=torch.int64, **device), 0, offsets, begins)
    # Never below the first bag, whatever the offsets: the judge tries others than the caller's.
    bags = write(aten.slice.Tensor, write(aten.clamp_min.default, write(aten.sub.Tensor, write(aten.cumsum.default, marks, 0), 1), 0), 0, 0,
                 count)
    rows = write(aten.index_select.default, gradient, 0, bags)
    if mode == 1:
        each = write(aten.ones.default, [count], dtype=fake.dtype, **device)
        sizes = write(aten.index_add.default, write(aten.zeros.default, [offsets.meta["val"].shape[0]], dtype=fake.dtype, **device), 0,
                      bags, each)
        rows = write(aten.div.Tensor, rows, write(aten.unsqueeze.default, write(aten.index_select.default, sizes, 0, bags), 1))
    zeros = write(aten.zeros.default, list(fake.shape), dtype=fake.dtype, **device)
    return write(aten.index_add.default, zeros, 0, ids, rows)
