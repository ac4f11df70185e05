# SPDX-License-Identifier: Apache-2.0
"""Writes the small exported models of the importer's and the eager program's tests, each with inputs and Python's own outputs.

Not a test by itself. `make.py [FOLDER [NAME...]]` writes all of them or those named. Invariant: <name>.pt2 beside
<name>.safetensors, which holds in_0.., one set of out_<call>_<i> per call in order (state persists from call to call), and the inputs as the last call left them as after_<i>. Run it with a torch as old as
the oldest that the tests are to read; outputs are compared bit for bit only with the same LibTorch.
"""
import json
import math
import struct
import sys
import zipfile
from pathlib import Path

import torch
from torch import nn

kNames = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
          torch.int32: "I32", torch.bool: "BOOL", torch.uint8: "U8",
          torch.complex64: "C64", torch.int8: "I8", torch.int16: "I16"}


def save_tensors(path, tensors):
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        flat = tensor.detach().contiguous().flatten()
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        header[name] = {"dtype": kNames[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)]}
        blobs.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)) * 0.5)


class RangesEncoder(nn.Module):
    """An encoder layer over token and position embeddings, of any batch and length."""
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(40, 32), nn.Embedding(48, 32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)

    def forward(self, tokens):
        x = self.first(self.token(tokens) + self.position(torch.arange(tokens.shape[1])))
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.second(x + self.out(attended))
        return x + self.down(nn.functional.gelu(self.up(x)))


class RangesMasked(RangesEncoder):
    """The same over the tokens that a mask leaves, as models of language are called: its rows, and the mean of those that count."""
    def forward(self, tokens, mask):
        seen = mask.bool()
        x = self.first(self.token(tokens) + self.position(torch.arange(tokens.shape[1])))
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None, :])
        x = self.second(x + self.out(attended.transpose(1, 2).flatten(2)))
        x = x + self.down(nn.functional.gelu(self.up(x)))
        counts = mask.unsqueeze(-1).to(x.dtype)
        return x, (x * counts).sum(1) / counts.sum(1)


class RangesDistances(RangesEncoder):
    """Attention that is told how far apart two tokens are, by a logarithm of it, as encoders of language are."""
    def __init__(self):
        super().__init__()
        self.distances = nn.Embedding(32, 4)

    def forward(self, tokens):
        x = self.first(self.token(tokens))
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        places = torch.arange(tokens.shape[1])
        apart = places[None, :] - places[:, None]
        far = torch.abs(apart)
        logarithm = 8 + (torch.log(far.float() / 8) / math.log(16) * 8).to(torch.long)
        bucket = (apart > 0).to(torch.long) * 16 + torch.where(far < 8, far, torch.clamp(logarithm, max=15))
        scores = q @ k.transpose(-1, -2) + self.distances(bucket).permute(2, 0, 1)
        return self.second(x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))


class RangesClips(nn.Module):
    """Frames of clips of four, one clip after the other: what is mixed is mixed within a clip."""
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Linear(4, 4), nn.Linear(8, 8)

    def forward(self, x):
        mixed = self.mix(x.unflatten(0, (-1, 4)).transpose(1, 2)).transpose(1, 2).flatten(0, 1)
        return torch.relu(x + self.out(mixed))


class RangesConvnet(nn.Module):
    """Two convolutions with batch norms, a pool and a head, of any batch."""
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.norm_a, self.norm_b, self.head = nn.BatchNorm2d(16), nn.BatchNorm2d(16), nn.Linear(16, 5)

    def forward(self, x):
        x = torch.relu(self.norm_a(self.a(x)))
        x = torch.relu(self.norm_b(self.b(x)) + x[:, :, ::2, ::2])
        return self.head(x.mean((2, 3)))


class RangesGraph(nn.Module):
    """Two rounds of messages along edges, of any number of nodes and edges."""
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x, edges):
        for layer in self.a, self.b:
            messages = layer(x)[edges[0]]
            x = torch.relu(torch.zeros(x.shape[0], 16).index_add(0, edges[1], messages))
        return x


# Of no library that anybody has: tests/unit/api/own_operator.cc registers it for C++.
@torch.library.custom_op("keirin_test::bent", mutates_args=())
def bent(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.tanh(x * factor) + x


@bent.register_fake
def _(x, factor):
    return torch.empty_like(x)


class OwnOperator(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return torch.relu(self.b(bent(torch.relu(self.a(x)) * 0.5, 0.75)) + 1)


class Parts(nn.Module):
    """Operators that are made of others, views among them that are written through; kl_div has a part without a row."""
    def forward(self, x, y):
        both = torch.hstack([x, y * 2])
        near = torch.nn.functional.cosine_similarity(x, y, dim=1)
        dot = torch.tensordot(x, y, dims=([1], [1]))
        turned = torch.swapaxes(both, 0, 1)
        turned.mul_(near)
        first, second = torch.tensor_split(both, 2, dim=1)
        second.add_(1)
        apart = torch.nn.functional.l1_loss(x, y)
        loss = torch.nn.functional.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean")
        return both, first, dot.mT, torch.fliplr(x), apart, loss


class InPlace(nn.Module):
    def forward(self, x):
        y = x + 1
        y.relu_()
        y.mul_(2).add_(x.sum())
        z = y.bfloat16()
        z.add_(y)
        w = y.clone()
        w[:, 1:3] = 0
        w.t()[0].sub_(y[:, 0])
        v = w.view(-1)
        v.exp_()
        return y, z, w, v


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("cache", torch.zeros(4, 3))

    def forward(self, x, at):
        before = self.steps.clone()
        self.steps.add_(1)
        self.cache.index_copy_(0, at, x)
        self.cache[3:4].copy_(x[:1])
        return self.cache * self.steps, before


class WritesInput(nn.Module):
    def forward(self, x, y):
        x.mul_(y)
        return x + 1


class Opaque(nn.Module):
    def forward(self, x):
        q, r = torch.linalg.qr(x)
        return q @ r, torch.cummax(x, 0)[1], torch.linalg.det(x)


class OpaqueInPlace(nn.Module):
    def forward(self, x):
        y = x * 0.5
        y.erfinv_()
        y[1:].lgamma_()
        values, indices = torch.sort(y, 1)
        values[0].neg_()
        return y, values, indices


class UnknownView(nn.Module):
    def forward(self, x):
        y = x + 1
        torch.diagonal(y).add_(1)
        return y


class Inside(nn.Module):
    """Weights that are parts of one storage, one of them transposed."""

    def __init__(self):
        super().__init__()
        whole = torch.randn(7, 5)
        self.register_buffer("low", whole[1:4])
        self.register_buffer("high", whole.t()[:, 3:6])

    def forward(self, x):
        return x @ self.low + 1, x @ self.high.t(), x * 0.3 + torch.ones(3, dtype=torch.int64) * 2.5


class Kept(nn.Module):
    """A flag that decides the answer's sizes; in the file it is a number of the kind that may come from data."""

    def forward(self, x):
        return x.sum(1, keepdim=True) * x


class ComputedSizes(nn.Module):
    """Numbers that are computed from a size in all the ways that a file can hold; in it a flag is known that came from data."""

    def forward(self, x):
        n = x.shape[0]
        chosen = torch.sym_ite(torch.sym_not(n < 3), n, n * 2)
        either = torch.sym_ite(n > 100, n, n + n)
        root = torch.sym_int(torch._sym_sqrt(n))
        return (x * chosen, x.new_ones(either), x.new_ones(n >> 1), x.new_ones(n << 2), x.new_ones(n | 1), x.new_ones((n & 3) + 1),
                x.new_ones(root + 1), x * n**-0.5, x * (n / 3))


class Strided(nn.Module):
    """An explicit offset counts from the beginning of the storage, which is the operand's own here."""

    def forward(self, x):
        return (x + 1).as_strided((4, 4), (4, 1), 0) * 3


class Exchange(nn.Module):
    """Without writes in place the second buffer's new content is the first buffer itself, which is written as well, and before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.arange(3.0))
        self.register_buffer("b", torch.arange(3.0) + 10)

    def forward(self, x):
        old = self.b.clone()
        self.b.copy_(self.a)
        self.a.copy_(old)
        return x + self.a - 2 * self.b


class Swap(nn.Module):
    """Writes that read each other's old content, and an input that is returned."""

    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(3))
        self.register_buffer("b", torch.ones(3))

    def forward(self, x):
        old = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(old)
        x.add_(1)
        return x, self.a.view(3, 1), old


class Control(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        from torch._higher_order_ops.while_loop import while_loop

        with torch.autocast("cpu", torch.bfloat16):
            y = self.linear(x)
        z = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        i, w = while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))
        return y, z, w, i


class Scope(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            y = self.linear(x)
        return y * 2 + x


class Dynamic(nn.Module):
    def forward(self, x, y):
        n = x.shape[0]
        z = torch.arange(n).to(x.dtype).view(n, 1) / n
        return (x + z).reshape(-1), torch.cat([x, y])[:3], torch.full((n * 2,), 1.5)


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                                 nn.Dropout(0.5), nn.Flatten(), nn.Linear(8 * 16, 5))

    def forward(self, x):
        return torch.softmax(self.net(x), -1)


class TrainNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids)), self.embed.weight[0]


class Pivots(nn.Module):
    """Integers of which not every one is legal: LAPACK reads and writes by them and checks nothing."""

    def forward(self, factors, pivots, right):
        return torch.linalg.ldl_solve(factors, pivots, right)


class Complex(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x), torch.fft.rfft(x).conj(), x + 1


class WideComplex(nn.Module):
    def forward(self, x):
        return x + 1, torch.fft.rfft(x.double())


class Views(nn.Module):
    """Views that only some strides of their operand allow, of values that nobody writes afterwards."""

    def forward(self, x):
        y = x + 1
        y.relu_().mul_(2)
        with torch.no_grad():
            inner = y.view(2, 6) * 3
        return (y.view(-1), y.view(6, 2) + 1, torch.ops.aten._unsafe_view(y, [12]), y.view_as(torch.zeros(4, 3)), inner,
                torch.view_as_complex((x * 2).view(3, 2, 2)), y.view(torch.int16))


class WrittenView(nn.Module):
    """A copy instead of the view would leave `y` as it was."""

    def forward(self, x):
        y = x + 1
        y.view(-1).add_(1)
        return y * 2


class WrittenBase(nn.Module):
    """A copy instead of the view would not see what is written to `y` afterwards."""

    def forward(self, x):
        y = x + 1
        z = y.view(-1)
        with torch.no_grad():
            y.t().add_(1)
        return z * 2


class Moved(nn.Module):
    """Names its device in every way; the file is rewritten so that it says it was made on a GPU."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = x.to("cpu") + torch.arange(4, device=x.device) + torch.full((4,), 0.5, device="cpu") + x.new_zeros(4)
        with torch.autocast("cpu", torch.bfloat16):
            z = self.linear(y)
        return y, z, torch.zeros_like(y, device="cpu"), y.to(device="cpu", dtype=torch.float64)


def rewrite(path, *replacements):
    """The same file with other words in its program."""
    with zipfile.ZipFile(path) as old:
        records = [(info, old.read(info)) for info in old.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for info, data in records:
            if info.filename.endswith(".json"):
                for old_text, new_text in replacements:
                    data = data.replace(old_text.encode(), new_text.encode())
            new.writestr(zipfile.ZipInfo(info.filename, info.date_time), data)


def batch(low=2, high=64):
    return torch.export.Dim("batch", min=low, max=high)


class Deep(nn.Module):
    """Many layers, hardly two of which have the same sizes."""
    def __init__(self):
        super().__init__()
        widths = [8, *torch.randint(4, 13, (96,)).tolist()]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, widths[1:]))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class HiddenRelu(nn.Module):
    """What the relu computes reaches the answer only if it is infinite: an error in it does not show."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x):
        hidden = self.b(torch.relu(self.a(x)))
        return x * 2 + torch.isposinf(hidden).sum()


class HeadOfZeros(nn.Module):
    """As a head may be initialised: it answers zeros, whatever the layers before it compute."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(torch.relu(self.b(torch.relu(self.a(x)))))


class CountedSizes(nn.Module):
    """Its sizes are computed as tensors, which are looked at while it is traced."""

    def forward(self, x):
        rows = torch.div(x.size(1), 4, rounding_mode="trunc")
        return torch.relu(x.view(x.size(0), rows, 4) * 2).sum(1) + torch.ones(int(rows) * 2)


class Counted(nn.Module):
    """Indices that are counted where the model says, some of them returned or drawn."""

    def forward(self, x):
        a, b = torch.tril_indices(3, 3, -1)
        rows, kept = (torch.arange(2.0) * 1).to(torch.int64), torch.arange(3) + 1
        order = torch.randperm(3)
        return x[:, a, b] * 2, x[rows], x[:, order].sort(1)[0], kept


class Windows(nn.Module):
    """The overlapping windows of sliding attention: of memory in another order than the tensor's axes, and of a part of a row."""

    def forward(self, x):
        heads = (x * 2).transpose(0, 1)
        return heads.as_strided((3, 3, 4, 2), (2, 12, 6, 1)) + 1, (x + 1).as_strided((5, 3), (7, 2)) * 2


class Rows(nn.Module):
    """Rows that an index picks: one that is past the end is refused, also where nothing but its own row comes of it."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(10, 8), nn.Linear(8, 4)

    def forward(self, index):
        return self.out(torch.relu(self.table(index)))


class Draws(nn.Module):
    """Drops numbers also in service."""

    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5, True) + 1


class DropsNothing(nn.Module):
    """A dropout that is switched off: it draws nothing, and the file still names it. It writes a value of its own."""

    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5, False).add(1).relu_() * 2


class MixesRows(nn.Module):
    """Any number of rows, and each answer hangs on all of them."""

    def forward(self, x):
        return x - x.mean(0)


class PicksRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8)

    def forward(self, index):
        return self.table(index).sum(1)


class RangesChain(nn.Module):
    """Two dozen walks over memory where one would do: whoever fuses them is many times as fast."""

    def forward(self, x):
        for _ in range(6):
            x = torch.relu(x * 1.25 + 0.5) - 0.75
        return x


class RangesTurned(nn.Module):
    """What is turned round is a copy, but of one row, of which it is the input itself."""

    def forward(self, x):
        return torch.relu(x) * 2, x.permute(1, 0, 2).contiguous()


class Pointwise(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1


def cases():
    yield "mlp", Mlp().eval(), (torch.randn(3, 8),), {"x": {0: batch()}}, 1
    yield "in_place", InPlace().eval(), (torch.randn(3, 4),), None, 1
    yield "counter", Counter().eval(), (torch.randn(2, 3), torch.tensor([1, 2])), None, 3
    yield "writes_input", WritesInput().eval(), (torch.randn(3, 4), torch.randn(4)), None, 2
    yield "own_operator", OwnOperator().eval(), (torch.randn(3, 8),), None, 1
    yield "parts", Parts().eval(), (torch.randn(3, 4), torch.randn(3, 4)), None, 1
    yield "opaque", Opaque().eval(), (torch.randn(4, 4),), None, 1
    yield "opaque_in_place", OpaqueInPlace().eval(), (torch.rand(3, 4),), None, 1
    yield "unknown_view", UnknownView().eval(), (torch.rand(3, 3),), None, 1
    yield "inside", Inside().eval(), (torch.randn(2, 3),), None, 1
    yield "swap", Swap().eval(), (torch.rand(3),), None, 3
    yield "control", Control().eval(), (torch.rand(3, 4),), None, 1
    yield "scope", Scope().eval(), (torch.rand(3, 4),), None, 1
    yield "dynamic", Dynamic().eval(), (torch.randn(6, 5), torch.randn(6, 5)), {"x": {0: batch()}, "y": {0: batch()}}, 1
    yield "conv", Conv().eval(), (torch.randn(2, 3, 8, 8),), None, 1
    yield "train_norm", TrainNorm().train(), (torch.randn(6, 3),), None, 2
    yield "tied", Tied().eval(), (torch.tensor([[1, 2, 3], [4, 5, 9]]),), None, 1
    torch.manual_seed(0)  # from here on a case does not depend on whether those before it were written
    half = torch.randn(16, 16)
    yield "pivots", Pivots().eval(), (*torch.linalg.ldl_factor(half + half.t()), torch.randn(16, 3)), None, 1
    torch.manual_seed(0)
    signal = torch.randn(3, 6)
    yield "complex", Complex().eval(), (signal,), None, 1
    yield "wide_complex", WideComplex().eval(), (signal,), None, 0
    for name, model in ("views", Views()), ("written_view", WrittenView()), ("written_base", WrittenBase()):
        torch.manual_seed(0)
        yield name, model.eval(), (torch.randn(3, 4),), None, 1
    torch.manual_seed(0)
    yield "moved", Moved().eval(), (torch.randn(3, 4),), None, 1
    torch.manual_seed(0)
    yield "deep", Deep().eval(), (torch.randn(3, 8),), None, 1
    torch.manual_seed(0)
    yield "hidden_relu", HiddenRelu().eval(), (torch.randn(3, 8),), None, 1
    torch.manual_seed(0)
    yield "head_of_zeros", HeadOfZeros().eval(), (torch.randn(3, 16),), None, 1
    torch.manual_seed(0)
    yield "counted_sizes", CountedSizes().eval(), (torch.randn(3, 8),), None, 1
    torch.manual_seed(0)
    yield "counted", Counted().eval(), (torch.randn(2, 3, 3),), None, 0
    torch.manual_seed(0)
    yield "windows", Windows().eval(), (torch.randn(8, 3, 2),), None, 1
    torch.manual_seed(0)
    yield "rows", Rows().eval(), (torch.tensor([1, 5, 9, 0]),), None, 1
    torch.manual_seed(0)
    yield "draws", Draws().eval(), (torch.randn(3, 4),), None, 0
    torch.manual_seed(0)
    yield "drops_nothing", DropsNothing().eval(), (torch.randn(3, 4),), None, 1
    torch.manual_seed(0)
    yield "both_free", Pointwise().eval(), (torch.randn(2, 3),), {"x": {0: batch(1, 4096), 1: torch.export.Dim("width", min=1, max=4096)}}, 1
    torch.manual_seed(0)
    yield "mixes_rows", MixesRows().eval(), (torch.randn(2, 3),), {"x": {0: batch(1, 64)}}, 1
    torch.manual_seed(0)
    yield "picks_rows", PicksRows().eval(), (torch.tensor([[1, 2], [3, 9]]),), {"index": {0: batch(1, 64)}}, 1
    torch.manual_seed(0)
    tokens = {0: batch(1, 16), 1: torch.export.Dim("length", min=2, max=48)}
    yield "ranges_encoder", RangesEncoder().eval(), (torch.randint(0, 40, (2, 6)),), {"tokens": tokens}, 1
    torch.manual_seed(0)
    masked = (torch.randint(0, 40, (2, 6)), torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]))
    yield "ranges_masked", RangesMasked().eval(), masked, {"tokens": tokens, "mask": tokens}, 1
    torch.manual_seed(0)
    yield "ranges_distances", RangesDistances().eval(), (torch.randint(0, 40, (2, 20)),), {"tokens": tokens}, 1
    torch.manual_seed(0)
    yield "ranges_clips", RangesClips().eval(), (torch.randn(12, 8),), {"x": {0: 4 * batch(1, 64)}}, 1
    torch.manual_seed(0)
    yield "ranges_convnet", RangesConvnet().eval(), (torch.randn(2, 3, 12, 12),), {"x": {0: batch(1, 32)}}, 1
    torch.manual_seed(0)
    nodes, edges = torch.export.Dim("nodes", min=2, max=256), torch.export.Dim("edges", min=2, max=1024)
    graph = (torch.randn(9, 8), torch.randint(0, 9, (2, 20)))
    yield "ranges_graph", RangesGraph().eval(), graph, {"x": {0: nodes}, "edges": {1: edges}}, 1
    torch.manual_seed(0)
    yield "ranges_chain", RangesChain().eval(), (torch.randn(3, 512),), {"x": {0: batch(1, 8192)}}, 1
    torch.manual_seed(0)
    turned = {0: batch(1, 64), 1: torch.export.Dim("width", min=2, max=32)}
    yield "ranges_turned", RangesTurned().eval(), (torch.randn(3, 4, 5),), {"x": turned}, 1


def write(folder, name, model, args, dynamic, calls, functional=False):
    program = torch.export.export(model, args, dynamic_shapes=dynamic)
    if functional:
        program = program.run_decompositions({})
    torch.export.save(program, folder / f"{name}.pt2")
    tensors = {f"in_{i}": arg.clone() for i, arg in enumerate(args)}
    with torch.no_grad():
        for call in range(calls):
            outputs = model(*args)
            for i, output in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
                tensors[f"out_{call}_{i}"] = output.clone()
    for i, arg in enumerate(args):
        tensors[f"after_{i}"] = arg
    save_tensors(folder / f"{name}.safetensors", tensors)


def main():
    torch.manual_seed(0)  # the first model is built before the loop seeds its inputs
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    for name, model, args, dynamic, calls in cases():
        torch.manual_seed(0)
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        write(folder, name, model, args, dynamic, calls)
        if name == "moved":
            rewrite(folder / f"{name}.pt2", ('"type": "cpu", "index": null', '"type": "cuda", "index": 0'),
                    ('{"as_string": "cpu"}', '{"as_string": "cuda"}'))
    torch.manual_seed(0)
    if len(sys.argv) > 2:
        return
    write(folder, "strided", Strided().eval(), (torch.rand(16),), None, 1)
    write(folder, "kept", Kept().eval(), (torch.rand(3, 4),), None, 1)
    rewrite(folder / "kept.pt2", ('"as_bool": true', '"as_sym_bool": {"as_bool": true}'))
    write(folder, "computed_sizes", ComputedSizes().eval(), (torch.rand(6, 4),), {"x": {0: torch.export.Dim.AUTO}}, 1)
    rewrite(folder / "computed_sizes.pt2", ('{"as_sym_bool": {"as_name": "lt"}}', '{"as_sym_bool": {"as_bool": false}}'))
    write(folder, "exchange_functional", Exchange().eval(), (torch.ones(3),), None, 3, functional=True)
    write(folder, "counter_functional", Counter().eval(), (torch.randn(2, 3), torch.tensor([1, 2])), None, 2, functional=True)


if __name__ == "__main__":
    main()
