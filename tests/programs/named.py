#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small programs with a name each: wrong answers that were found, made as short as they get, and their siblings.

    tests/programs/named.py                  writes tests/data/programs_named.tar.xz again
    tests/programs/named.py --out FOLDER     as files

A row of the table: a name, why it is there, the inputs, the body of forward, and buffers if it has some. Inputs are counted up in
quarters, so that no two elements are equal. A recorded program is left out with its reason; a row that is left out fails the command.
"""
import argparse
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch

import generate
import record


def quarters(*sizes: int, dtype: torch.dtype = torch.float32, first: float = -1.0) -> torch.Tensor:
    n = torch.Size(sizes).numel()
    if not dtype.is_floating_point:
        return (torch.arange(n) - 2).to(dtype).reshape(sizes)
    return (torch.arange(n, dtype=torch.float64) / 4 + first).to(dtype).reshape(sizes)


def flags(*sizes: int) -> torch.Tensor:
    return (torch.arange(torch.Size(sizes).numel()) % 3 == 0).reshape(sizes)


Q, B = quarters, flags
F16, BF16, F64, I64, I32 = torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32


def rows():
    # --- copies that are copies, and views that are views ---
    yield "to_copy_then_write", "to(copy=True) is a copy: the write may not reach its source", [Q(6)], """
        h = x0 + 1
        y = h.to(torch.float32, copy=True)
        y.add_(1)
        return h * 2, y"""
    yield "to_copy_of_input", "the same, of an input", [Q(6)], """
        y = x0.to(torch.float32, copy=True)
        y.mul_(3)
        return x0 * 2, y"""
    yield "to_copy_then_write_source", "and the other way round", [Q(6)], """
        h = x0 + 1
        y = h.to(torch.float32, copy=True)
        h.mul_(2)
        return h, y * 3"""
    yield "to_same_dtype_then_write", "to() of the same dtype is no copy: the write reaches its source", [Q(6)], """
        h = x0 + 1
        y = h.to(torch.float32)
        y.add_(1)
        return h * 2, y * 3"""
    yield "to_other_dtype_then_write", "to() of another dtype is a copy", [Q(6)], """
        h = x0 + 1
        y = h.to(torch.float64)
        y.add_(1)
        return h * 2, y * 3"""
    yield "to_channels_last_then_write", "to(memory_format=) copies where the layout changes", [Q(1, 2, 2, 3)], """
        h = x0 + 1
        y = h.to(memory_format=torch.channels_last)
        y.add_(1)
        return h * 2, y * 3"""
    yield "contiguous_channels_last_then_write", "contiguous(memory_format=) copies where the layout changes", [Q(2, 3, 2, 2)], """
        h = x0 + 1
        y = h.contiguous(memory_format=torch.channels_last)
        y.add_(1)
        return h * 2, y * 3"""
    yield "channels_last_twice_then_write", "the second one is no copy", [Q(2, 3, 2, 2)], """
        h = (x0 + 1).contiguous(memory_format=torch.channels_last)
        y = h.contiguous(memory_format=torch.channels_last)
        y.add_(1)
        return h * 2, y * 3"""
    yield "channels_last_back_then_write", "back to row-major: a copy again", [Q(2, 3, 2, 2)], """
        h = (x0 + 1).contiguous(memory_format=torch.channels_last)
        y = h.contiguous()
        y.add_(1)
        return h * 2, y * 3"""
    yield "channels_last_output", "the strides of an output", [Q(2, 3, 2, 2)], """
        return (x0 + 1).contiguous(memory_format=torch.channels_last), (x0 * 2).to(memory_format=torch.channels_last)"""
    yield "contiguous_of_transposed_then_write", "contiguous() of a transposed tensor is a copy", [Q(2, 3)], """
        h = x0 + 1
        y = h.t().contiguous()
        y.add_(1)
        return h * 2, y * 3"""
    yield "contiguous_of_contiguous_then_write", "contiguous() of a contiguous one is not", [Q(2, 3)], """
        h = x0 + 1
        y = h.contiguous()
        y.add_(1)
        return h * 2, y * 3"""
    yield "contiguous_of_input_then_write", "whether it is one depends on the call", [Q(2, 3)], """
        y = x0.contiguous()
        y.add_(1)
        return x0 * 2, y * 3"""
    yield "float_then_write", "float() of a float is no copy", [Q(2, 3)], """
        h = x0 * 2
        h.float().add_(1)
        return h * 2"""
    yield "type_as_then_write", "type_as() of the same dtype is no copy", [Q(2, 3), Q(2, 3)], """
        h = x0 * 2
        h.type_as(x1).add_(1)
        return h * 2"""
    yield "clone_then_write", "clone() always is", [Q(2, 3)], """
        h = x0 * 2
        y = h.clone()
        y.add_(1)
        return h * 2, y * 3"""
    yield "detach_then_write", "detach() never is", [Q(2, 3)], """
        h = x0 * 2
        h.detach().add_(1)
        return h * 2"""

    # --- as_strided ---
    yield "as_strided_of_slice_from_zero", "an explicit offset counts from the storage's beginning, not from the view's", [Q(10)], """
        h = x0 + 1
        return h[2:].as_strided((2, 4), (4, 1), 0) * 3"""
    yield "as_strided_of_slice", "without one it begins where the view begins", [Q(10)], """
        h = x0 + 1
        return h[2:].as_strided((2, 4), (4, 1)) * 3"""
    yield "as_strided_of_slice_from_one", "", [Q(12)], """
        h = x0 + 1
        return h[4:].as_strided((3, 2), (3, 2), 1) * 3"""
    yield "as_strided_of_transposed", "strides count in the storage", [Q(3, 4)], """
        h = x0 + 1
        return h.t().as_strided((2, 3), (4, 1), 1) * 3"""
    yield "as_strided_overlapping", "windows that share elements", [Q(6)], """
        h = x0 + 1
        return h.as_strided((4, 3), (1, 1)) * 2"""
    yield "as_strided_write", "written through", [Q(8)], """
        h = x0 + 1
        h.as_strided((2, 2), (4, 1), 1).mul_(3)
        return h * 2"""
    yield "as_strided_of_slice_write", "written through, from the storage's beginning", [Q(8)], """
        h = x0 + 1
        h[3:].as_strided((2, 2), (4, 1), 0).mul_(3)
        return h * 2"""
    yield "as_strided_of_input", "of an input, which may itself be a slice", [Q(8)], """
        return x0.as_strided((2, 2), (4, 1), 0) * 3, x0.as_strided((3,), (2,)) * 2"""
    yield "as_strided_of_select", "a selected row begins inside the storage", [Q(3, 4)], """
        h = x0 * 2
        return h[1].as_strided((2, 3), (4, 1), 0) + 1, h.select(0, 2).as_strided((2,), (2,)) + 1"""

    step = Q(8)
    yield "as_strided_of_tied_buffer", "the storage of a weight may be longer than the weight reaches", [Q(3, 4)], """
        return self.b.as_strided((4, 2), (1, 2), 2) * 2, x0 + self.b""", {"a": step[:5], "b": step[::2]}
    yield "as_strided_between_the_rows", "an input that is a part of a wider tensor: the elements beside it are the caller's, too", \
        [Q(2, 6)], """
        y = x0 + 1
        y.add_(1)
        return x0.as_strided((5,), (2,)) * 2, y"""

    # --- what is a view depends on how the inputs lie ---
    yield "reshape_then_write", \
        "reshape() is a view of a contiguous tensor and a copy of a transposed one; x0 + 1 keeps the strides of x0", \
        [Q(2, 3)], """
        h = x0 + 1
        y = h.reshape(-1)
        y.add_(1)
        return h * 2, y * 3"""
    yield "reshape_of_input_then_write", "the same, of an input", [Q(2, 3)], """
        y = x0.reshape(-1)
        y.add_(1)
        return x0 * 2, y * 3"""
    yield "flatten_then_write", "flatten() as well", [Q(2, 2, 3)], """
        h = x0 * 2
        y = h.flatten(1)
        y.add_(1)
        return h * 2, y * 3"""
    yield "reshape_of_transposed_then_write", "a copy, whatever the input", [Q(3, 4)], """
        h = x0 + 1
        y = h.t().reshape(-1)
        y.add_(1)
        return h * 2, y * 3"""
    yield "view_of_transposed_input", "Python refuses it where the call's tensor is transposed", [Q(3, 4)], """
        return x0.view(-1) * 2"""
    yield "strides_follow_the_input", "the strides of an elementwise result are those of its input", [Q(3, 4)], """
        return x0 + 1, torch.relu(x0)"""
    yield "strides_follow_the_input_4d", "", [Q(2, 3, 2, 2)], """
        return x0 * 2 + 1"""
    yield "strides_of_two_inputs", "of two inputs the first decides", [Q(3, 4), Q(3, 4)], """
        return x0 + x1 * 2"""
    yield "clone_keeps_strides", "", [Q(3, 4)], """
        return x0.clone() * 2, x0.t().clone() * 2"""
    yield "empty_like_keeps_strides", "", [Q(3, 4)], """
        y = torch.empty_like(x0)
        y.copy_(x0 * 2)
        return y"""
    yield "expanded_input_is_read", "compiled for a stride of 0, called with a contiguous tensor", [Q(3, 4)], """
        return x0 * 2 + 1"""
    yield "expanded_input_of_two", "", [Q(3, 4), Q(3, 4)], """
        return torch.relu(x0 - x1) * 2"""
    yield "expanded_input_is_summed", "", [Q(3, 4)], """
        return (x0 * 2).sum(0), (x0 + 1).amax(1)"""
    yield "expanded_input_is_returned", "the strides of a returned view", [Q(3, 4)], """
        return x0[1:], x0.t(), x0 * 2"""

    # --- inputs that are one tensor, or share memory ---
    yield "write_one_read_other", "called with one tensor as both", [Q(6), Q(6)], """
        x0.mul_(2)
        return x0 + x1"""
    yield "write_one_return_other", "", [Q(6), Q(6)], """
        x0.add_(1)
        return x1 * 2, x0 * 3"""
    yield "write_both", "", [Q(6), Q(6)], """
        x0.mul_(2)
        x1.add_(1)
        return x0 * 2 + x1"""
    yield "copy_between_inputs", "", [Q(6), Q(6)], """
        x0.copy_(x1 * 2)
        x1.add_(x0)
        return x0 + x1"""
    yield "write_part_read_other", "", [Q(8), Q(8)], """
        x0[2:6].mul_(2)
        return x1 * 2"""
    yield "row_written_from_other", "", [Q(3, 4), Q(3, 4)], """
        x0[0] = x1[2] * 2
        x0[1:] += x1[:2]
        return x0 * 2, x1 + 1"""
    yield "unwritten_aliases", "no write: aliases make no difference", [Q(6), Q(6)], """
        return x0 * 2 + x1, x0 - x1"""
    yield "buffer_copied_from_input", "", [Q(6), Q(6)], """
        self.b.copy_(x0)
        x1.mul_(2)
        return x0 + self.b""", {"b": Q(6)}

    # --- who shares memory with whom among outputs and inputs ---
    yield "equal_expressions", "two results of equal expressions are two tensors", [Q(6)], """
        return torch.relu(x0) + 1, torch.relu(x0) + 1"""
    yield "equal_sums", "", [Q(3, 4)], """
        return (x0 * 2).sum(1), (x0 * 2).sum(1)"""
    yield "equal_expressions_one_viewed", "", [Q(3, 4)], """
        return torch.relu(x0) + 1, (torch.relu(x0) + 1).t()"""
    yield "equal_expressions_one_written", "the write may not reach the other", [Q(6)], """
        a = torch.relu(x0) + 1
        b = torch.relu(x0) + 1
        b.mul_(2)
        return a, b"""
    yield "same_tensor_twice", "one tensor, twice", [Q(6)], """
        h = x0 * 2
        return h, h"""
    yield "tensor_and_its_view", "a view of another output", [Q(3, 4)], """
        h = x0 * 2
        return h, h[1:], h.t()"""
    yield "two_views_of_one", "both views of what is no output", [Q(3, 4)], """
        h = x0 * 2
        return h[:2], h[1:]"""
    yield "halves_of_one", "views of one tensor that share no element", [Q(3, 4)], """
        h = x0 * 2
        a, b = h.split(2, 1)
        return a, b"""
    yield "input_returned", "an output that is an input", [Q(6)], """
        return x0, x0 * 2"""
    yield "written_input_returned", "", [Q(6)], """
        x0.mul_(2)
        return x0, x0 + 1"""
    yield "view_of_input_returned", "", [Q(3, 4)], """
        return x0[1:], x0.t(), x0 * 2"""
    yield "view_of_written_input_returned", "", [Q(3, 4)], """
        x0.mul_(2)
        return x0[1:], x0 * 2"""
    yield "no_op_of_input_returned", "what returns its argument itself", [Q(3, 4)], """
        return x0.contiguous(), x0 * 2"""
    yield "to_of_input_returned", "", [Q(3, 4)], """
        return x0.to(torch.float32), x0 * 2"""
    yield "reshape_of_input_returned", "", [Q(3, 4)], """
        return x0.reshape(-1), x0 * 2"""
    yield "clone_of_input_returned", "a copy is a copy", [Q(3, 4)], """
        return x0.clone(), x0 * 2"""
    yield "view_of_clone_of_input_returned", "a view of a copy is not a view of the input", [Q(6), Q(3, 4)], """
        return x0.clone().expand(3, 6), x1.clone()[:, 2:], x0 * 2"""
    yield "part_of_clone_of_input_returned", "", [Q(3, 4)], """
        return x0.clone()[1:], x0 * 2"""
    yield "transposed_clone_of_input_returned", "", [Q(3, 4), Q(6)], """
        return x0.clone().t(), x1.clone()[...], x1.clone().expand(3, -1), x0 * 2"""
    yield "part_of_clone_of_buffer_returned", "", [Q(3)], """
        return self.s.clone()[1:], x0 * 2""", {"s": Q(4)}
    yield "part_of_clone_of_integer_buffer_returned", "", [Q(2, 3, 4)], """
        v = self.s.clone()
        h = v + x0[:, ::3].abs()
        return h, v[:, -2:]""", {"s": Q(2, 3, 4, dtype=I64)}
    yield "view_of_clone_of_state_returned", "nor of the state: the next call's write would change the answer of this one", [Q(3)], """
        old = self.s.clone()
        self.s.add_(x0)
        return old[1:], x0 * 2""", {"s": Q(3)}
    yield "view_of_plus_zero_returned", "", [Q(3, 4)], """
        return (x0 + 0)[1:], (x0 * 1).t(), x0 * 2"""
    yield "plus_zero_returned", "and a sum with nothing is a new tensor", [Q(3, 4)], """
        return x0 + 0, x0 * 1, x0 * 2"""
    yield "relu_twice_returned", "relu of relu is a new tensor", [Q(6)], """
        h = torch.relu(x0)
        return h, torch.relu(h)"""
    yield "clone_of_output_returned", "", [Q(6)], """
        h = x0 * 2
        return h, h.clone()"""
    yield "expand_returned", "an expanded output keeps its stride of 0", [Q(1, 4)], """
        h = x0 * 2
        return h.expand(3, 4), h"""
    yield "input_twice_returned", "", [Q(6)], """
        return x0, x0, x0 + 1"""
    yield "constants_returned", "two constants of the program are two tensors, and new ones in each call", [Q(4)], """
        return torch.arange(4) * 2, torch.arange(4) * 2, x0 * 2"""
    yield "written_constant", "a constant that is written is new in each call", [Q(4)], """
        c = torch.tensor([1.0, 2.0, 3.0, 4.0])
        c.add_(x0)
        return c * 2"""

    # --- what is seen in the state only ---
    yield "counter", "", [Q(3)], """
        self.n.add_(1)
        return x0 * 2 + 1""", {"n": torch.zeros(())}
    yield "counter_of_integers", "", [Q(3)], """
        self.n += 1
        return x0 * 2 + 1""", {"n": torch.tensor([3, 4])}
    yield "running_mean", "", [Q(3, 4)], """
        self.m.mul_(0.5).add_(x0.mean(0), alpha=0.5)
        return x0 * 2 + 1""", {"m": Q(4)}
    yield "state_holds_the_difference", "the output is the same with and without the write", [Q(3)], """
        y = x0 * 2
        self.last.copy_(y - x0)
        return y + 1""", {"last": Q(3)}
    yield "state_read_before_and_after", "", [Q(3)], """
        before = self.s * 1
        self.s.add_(x0)
        return before + 1, self.s * 2""", {"s": Q(3)}
    yield "state_written_twice", "", [Q(3)], """
        self.s.add_(x0)
        self.s.mul_(2)
        return x0 + self.s""", {"s": Q(3)}
    yield "state_returned", "an output that is a buffer", [Q(3)], """
        self.s.add_(x0)
        return self.s, x0 * 2""", {"s": Q(3)}
    yield "view_of_state_returned", "", [Q(3)], """
        self.s[1:].add_(x0)
        return self.s[:2], x0 * 2""", {"s": Q(4)}
    yield "state_and_its_view_returned", "the judge has to look at eager's answer before it puts the state back", [Q(3)], """
        self.s.copy_(x0 * 2)
        self.s[1:].add_(1)
        return self.s[...], x0 + 1""", {"s": Q(3, first=5.0)}
    yield "state_of_integers_and_its_view_returned", "the same; of integers the judge sees a difference", [Q(3)], """
        v = self.s[...]
        v[2:].neg_()
        return v, x0 + 1""", {"s": Q(4, dtype=I64)}
    yield "old_state_returned", "what the state was before the write", [Q(3)], """
        old = self.s * 1
        self.s.add_(x0)
        return old, x0 * 2""", {"s": Q(3)}
    yield "state_swapped", "", [Q(3)], """
        old = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(old)
        return x0 * 2 + 1""", {"a": Q(3), "b": Q(3, first=7.0)}
    yield "state_shifted", "a history: the oldest goes", [Q(3)], """
        self.h[1:] = self.h[:-1].clone()
        self.h[0] = x0
        return self.h * 2""", {"h": Q(4, 3)}
    yield "state_shifted_in_place", "the same without a copy: LibTorch copies overlapping memory by its own rule", [Q(3)], """
        self.h[:, 1:] = self.h[:, :-1]
        self.h[0] = x0
        return self.h * 2""", {"h": Q(4, 3)}
    yield "state_assigned", "self.s = ... in forward", [Q(3)], """
        self.s = self.s + x0
        return x0 * 2 + 1""", {"s": Q(3)}
    yield "input_written_only", "what the call is for is the write", [Q(6)], """
        y = x0 * 2
        x0.add_(1)
        return y"""
    yield "input_part_written_only", "", [Q(3, 4), Q(4)], """
        x0[1] = x1 * 2
        return x1 + 1"""
    yield "input_written_by_out", "", [Q(6), Q(6)], """
        torch.mul(x0, 2, out=x1)
        return x0 + 1"""
    whole = Q(8)
    yield "tied_buffers", "two buffers are views of one storage", [Q(5)], """
        self.low.add_(x0)
        return self.high * 2 + 1""", {"low": whole[:5], "high": whole[3:]}
    yield "tied_buffers_written_both", "", [Q(4)], """
        self.low.add_(x0)
        self.high.mul_(2)
        return self.low * 2""", {"low": Q(8)[:4], "high": Q(8)[2:6]}
    yield "batch_norm_of_eval", "", [Q(4, 3)], """
        return F.batch_norm(x0, self.m, self.v) * 2""", {"m": Q(3), "v": Q(3, first=1.0)}
    yield "dropout_of_eval", "returns its argument itself", [Q(4, 3)], """
        h = x0 * 2
        F.dropout(h, 0.5, training=False).add_(1)
        return h + 1"""
    both = Q(6)
    yield "tied_buffers_alike", "two names of one tensor's memory", [Q(6)], """
        self.p.add_(x0)
        return self.q * 2 + 1""", {"p": both[:], "q": both[:]}

    # --- shifts: source and target overlap. Python refuses what it can see to overlap in part, and only that. ---
    for place, what in (("h = x0 + 0", "own"), ("h = x0", "input")):
        for name, line in (("right", "h[1:] = h[:-1]"), ("left", "h[:-1] = h[1:]"), ("right_by_copy", "h[1:].copy_(h[:-1])"),
                           ("left_by_copy", "h[:-1].copy_(h[1:])"),
                           ("right_of_product", "h[1:] = h[:-1] * 2"), ("right_of_clone", "h[1:] = h[:-1].clone()")):
            yield f"shift_{name}_of_{what}", "", [Q(6)], f"""
        {place}
        {line}
        return h * 2, h + 1"""
    for name, line in (("rows_down", "h[1:] = h[:-1]"), ("rows_up", "h[:-1] = h[1:]"), ("columns_right", "h[:, 1:] = h[:, :-1]"),
                       ("columns_left", "h[:, :-1] = h[:, 1:]"), ("transposed", "h.copy_(h.t())"), ("flipped", "h.copy_(h.flip(0))"),
                       ("steps", "h[::2] = h[1::2]")):
        yield f"shift_{name}", "", [Q(4, 4)], f"""
        h = x0 + 0
        {line}
        return h * 2, h + 1"""

    # --- writes through views ---
    for name, view in (("slice", "h[1:3]"), ("steps", "h[::2]"), ("select", "h[1]"), ("transposed", "h.t()"), ("column", "h[:, 2]"),
                       ("diagonal", "h.diagonal()"), ("unfold", "h[0].unfold(0, 2, 2)"), ("narrow", "h.narrow(1, 1, 2)"),
                       ("flat", "h.view(-1)[5:9]"),
                       ("unflattened", "h.view(-1).unflatten(0, (2, 8))[1]"), ("squeezed", "h.unsqueeze(1).squeeze(1)[2]"),
                       ("movedim", "h.view(2, 2, 4).movedim(0, 2)[1]"), ("of_view", "h[1:].t()[::2]"), ("chunk", "h.chunk(2, 1)[1]"),
                       ("unbind", "h.unbind(1)[3]"), ("nothing", "h[2:2]"), ("all", "h[...]")):
        yield f"write_through_{name}", "", [Q(4, 4)], f"""
        h = x0 + 1
        y = {view}
        y.mul_(3)
        return h * 2, y + 1"""
        yield f"write_under_{name}", "the other way round: the view is read after its tensor was written", [Q(4, 4)], f"""
        h = x0 + 1
        y = {view}
        h.mul_(3)
        return h * 2, y + 1"""

    # --- indices, dtypes, forms with out= ---
    yield "index_put_accumulate_duplicates", "", [Q(6), Q(4)], """
        h = x0 + 1
        h.index_put_((torch.tensor([1, 1, 4, 1]),), x1, accumulate=True)
        return h * 2"""
    yield "index_put_of_input", "", [Q(6), Q(3)], """
        x0[torch.tensor([4, 0, 2])] = x1
        return x0 * 2"""
    yield "index_put_mask", "", [Q(6)], """
        h = x0 * 2
        h[h > 0] = -1
        return h + 1"""
    yield "masked_fill_in_place", "", [Q(6), B(6)], """
        h = x0 * 2
        h.masked_fill_(x1, 9)
        return h + 1"""
    yield "out_of_sum", "", [Q(3, 4)], """
        y = torch.empty(3)
        torch.sum(x0, 1, out=y)
        return y * 2"""
    yield "out_is_argument", "", [Q(6)], """
        h = x0 + 1
        torch.mul(h, h, out=h)
        return h * 2"""
    yield "out_is_a_view", "", [Q(6), Q(3)], """
        h = x0 + 1
        torch.neg(x1, out=h[1:4])
        return h * 2"""
    yield "write_casts_down", "a sum of f32 written into f16 is rounded", [Q(6, dtype=F16), Q(6)], """
        x0.add_(x1 * 0.5)
        return x0 * 2"""
    yield "write_casts_to_integers", "", [Q(6, dtype=I64), Q(6, dtype=I64)], """
        h = x0 + 1
        h.floor_divide_(2)
        h[1:3] = 7
        h.copy_(x1 * 1.75)
        return h * 2"""
    yield "integer_division", "towards minus infinity", [Q(8, dtype=I64), Q(8, dtype=I64)], """
        return x0 // 3, x0 % 3, x0 // -2, x0 % -2, torch.div(x1, 2, rounding_mode='trunc'), x0 >> 1, ~x0, x0 & x1"""
    yield "integers_of_32_bits", "", [Q(8, dtype=I32)], """
        return x0 // 3 + 1, x0 * 2, x0.sum(), x0.float() / 2"""
    yield "bools", "", [B(6), Q(6)], """
        return ~x0, x0 & (x1 > 0), x0 | (x1 > 0), x0.sum(), torch.where(x0, x1, 2 * x1), x0 * 2"""
    yield "bool_written", "", [B(6), Q(6)], """
        h = x1 > 0
        h.logical_not_()
        h[2:] |= x0[2:]
        return h, torch.where(h, x1, -x1)"""
    for dtype in ("f16", "bf16", "f64"):
        yield f"writes_in_{dtype}", "", [Q(3, 4, dtype={"f16": F16, "bf16": BF16, "f64": F64}[dtype])], """
        h = x0 + 1
        h[1:].mul_(2)
        h.t()[0].sub_(1)
        return h * 2, h.float()"""
    yield "zero_d", "", [Q(), Q(3)], """
        h = x0 + 1
        h.mul_(2)
        return h * 2, x1 * h"""
    yield "empty", "", [Q(0, 3), Q(2, 3)], """
        h = torch.cat([x0, x1 * 2])
        h[0:0].add_(1)
        return h * 2, x0 + 1"""
    yield "argmax_then_write", "", [Q(3, 4)], """
        h = x0 * 2
        at = h.argmax(1)
        h.neg_()
        return at, h"""
    yield "sort_then_write", "", [Q(3, 4)], """
        values, at = (-x0).sort(1)
        values[0].neg_()
        return values * 2, at"""
    yield "batch_norm_trains", "", [Q(4, 3)], """
        return F.batch_norm(x0, self.m, self.v, training=True)""", {"m": Q(3), "v": Q(3, first=1.0)}

    # --- sizes and branches that depend on data: a plan ends there and another begins ---
    yield "data_nonzero", "how many there are is a size of what follows", [Q(4, 3)], """
        h = x0 * 2
        at = (h.sum(1) > 0).nonzero().squeeze(-1)
        return h.index_select(0, at) * 3 + 1, at"""
    yield "data_nonzero_of_none", "", [Q(4, 3)], """
        h = x0 * 2
        at = (h.sum(1) > 100).nonzero().squeeze(-1)
        return h.index_select(0, at) * 3 + 1, at * 2, h + 1"""
    yield "data_masked", "two masks of one count", [Q(6), Q(6)], """
        m = x0 > 0
        a = x0[m] * 2
        b = x1[m] + a
        return torch.masked_select(x1 * 3, m) - a, b * 2"""
    yield "data_view_then_write", "a view from before, written behind", [Q(4, 3)], """
        h = x0 + 1
        v = h[1:]
        at = (x0.sum(1) > 0).nonzero().squeeze(-1)
        h.mul_(2)
        v.t()[0].sub_(1)
        return h.index_select(0, at) + 1, v * 2, h * 3"""
    yield "data_write_then_read", "written before, through a view; read behind", [Q(4, 3)], """
        h = x0 + 1
        h.view(-1)[2:5].mul_(3)
        n = h[h > 1]
        h.t()[1].add_(1)
        return n * 2 + 1, h * 2"""
    yield "data_input_written", "the input is written on both sides", [Q(4, 3), Q(4, 3)], """
        x0.add_(1)
        at = (x0.sum(1) > 2).nonzero().squeeze(-1)
        x0.mul_(2)
        return x1 * 2 + x0, x0.index_select(0, at) - 1"""
    yield "data_buffer_written", "so is a buffer, and the second call reads it", [Q(3)], """
        self.m.add_(x0)
        n = self.m[self.m > 0] * 2
        self.m.mul_(0.5)
        return n + 1, self.m * 3 + x0""", {"m": Q(3)}
    yield "data_put_by_mask", "", [Q(4, 3)], """
        h = x0 * 2
        m = h > 1
        h[m] = h[m] * 3 + 1
        h[h < -1] = 0
        return h + 1, h.t() * 2"""
    yield "data_outputs_are_views", "of what was made before, behind and given", [Q(4, 3)], """
        h = x0 * 2
        at = (h.sum(1) > 0).nonzero().squeeze(-1)
        y = h.index_select(0, at) + 1
        return h.t(), x0[1:], y.view(-1), y"""
    yield "data_item", "a number out of a tensor is a length", [Q(6), Q(2, dtype=I64)], """
        h = x0 + 1
        n = (x1.sum() + 6).item()
        torch._check(n >= 0)
        torch._check(n <= 6)
        return h.narrow(0, 0, n) * 2 + 1, torch.full((n, 2), 3.0) * h.sum()"""
    yield "data_unique", "", [Q(6)], """
        h = (x0 * 2).round()
        values, back = torch.unique(h, return_inverse=True)
        return values * 2 + 1, back + 1, h + values.sum()"""

    yield "out_into_filled", "out= takes the place of one number that fills a tensor: it has room for all of them", [Q(3, 4)], """
        self.m[...] = 2
        torch.add(self.n.view(torch.int64), 2, out=self.m)
        return x0 + 1, self.m[1:2] ^ self.m[1:2], self.m * 2""", {"m": Q(3, 4, dtype=I64), "n": Q(3, 4, dtype=I64)}
    yield "row_written_and_not_read", "rows that an index names are written into an input, and nobody reads it afterwards", \
        [Q(3, 3), Q(3, 3)], """
        v = x0 + 1
        x1.index_put_((torch.tensor([0]),), torch.tensor(-1.0))
        torch.neg(v, out=x0)
        return x0, torch.arange(6, dtype=torch.float32).abs_()"""
    yield "two_inputs_laid_out_again", "a recording made for other strides reads copies of both, at once", \
        [Q(1, 4, 3), Q(1, 4, 3), Q(1, 4, 3)], """
        v = x0 - 0.5
        x1.sub_(0.5)
        x2.add_(x1)
        return x0 * 3, v + x1, x2 * 2"""
    yield "data_between_buffer_and_write", "what is read before a place where the host looks at data is written behind it", [Q(5)], """
        before = self.m.index_put((torch.tensor([4, 4, 0]),), torch.tensor(-1.0), accumulate=True)
        v = x0 * 2
        v[v < 0] = 0
        self.m[0] = 1.5
        return before, before.detach(), v + 1""", {"m": Q(5)}
    yield "data_then_transposed_in_place", "behind such a place a tensor is given another form itself", [Q(2, 3)], """
        v = (torch.ones(1, 5).abs() + 1).reciprocal()
        v[v > 0.25] = 1.5
        w = v * 2
        v.transpose_(0, -1)
        return v.narrow(0, 1, 4) + x0.sum(), w * 3, v.trunc()"""


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--out", type=Path, default=record.kRoot / "tests/data/programs_named.tar.xz")
    parse.add_argument("--only", help="the rows whose name holds this")
    o = parse.parse_args()
    generate.start()
    files, names, failed = [], set(), 0
    with tempfile.TemporaryDirectory() as scratch:
        for row in rows():
            name, why, inputs, body = row[:4]
            assert name not in names, name
            names.add(name)
            if o.only and o.only not in name:
                continue
            lines = [line[8:] for line in body.splitlines() if line.strip()]
            arguments = ", ".join(f"x{i}" for i in range(len(inputs)))
            source = f"def forward(self, {arguments}):\n" + "\n".join("    " + line for line in lines) + "\n"
            module = generate.module_of(source, row[4] if len(row) > 4 else {}, {})
            program = record.Program(name, source, module, inputs, why=why)
            try:
                files += record.files_of(record.record(program, random.Random(name), may_raise=True), Path(scratch)).items()
            except Exception as left:
                failed += 1
                print(f"{name} is left out: {type(left).__name__}: {left}")
    if o.out.suffix == ".xz":
        record.write_archive(files, o.out)
    else:
        record.write_folder(files, o.out)
    print(f"NAMED programs={len(files) // 3} left_out={failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
