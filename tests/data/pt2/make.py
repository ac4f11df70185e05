# SPDX-License-Identifier: Apache-2.0
#
# Writes the small .pt2 files beside it with torch.export. Run it with a Python that has torch; the files are committed,
# so that the tests need none. Stack traces are replaced, because they would hold the paths of this machine.
import collections
import pathlib

import torch
import torch.nn as nn
from torch.export import Dim, export, save

HERE = pathlib.Path(__file__).parent
torch.manual_seed(0)


def graph_modules(module):
    return [m for m in module.modules() if isinstance(m, torch.fx.GraphModule)]


def write(name, program, **kwargs):
    for module in graph_modules(program.graph_module):
        for node in module.graph.nodes:
            node.meta.pop("stack_trace", None)
            if node.op == "call_function":
                node.meta["stack_trace"] = 'File "model.py", line 1, in forward'
    save(program, HERE / f"{name}.pt2", **kwargs)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.b = nn.Linear(3, 2)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Cond(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(4))
        self.register_buffer("k", torch.ones(4), persistent=False)

    def forward(self, x):
        self.n.add_(1)
        return x + self.n + self.k


class Structured(nn.Module):
    def forward(self, d, *, scale, flag=True, k=3):
        return {"o": d["a"] * scale + k, "p": [d["b"][0], None]}


Pair = collections.namedtuple("Pair", "p q")
torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="Pair")


class Named(nn.Module):
    def forward(self, a, l, f=1.5):
        return Pair(a + l[0] * f, collections.OrderedDict(z=l[1]))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x):
        y, (h, c) = self.l(x)
        return y, h, c


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(6, 4)
        self.o = nn.Linear(4, 6, bias=False)
        self.o.weight = self.e.weight
        base = torch.arange(12.0).reshape(3, 4)
        self.register_buffer("tail", base[1:])
        self.register_buffer("turned", base.t())

    def forward(self, i):
        return self.o(self.e(i)) + self.tail.sum() + self.turned.sum() + torch.tensor([1.0])


class Guarded(nn.Module):
    def forward(self, x, y, n):
        return x[:, : y.shape[0]].sum() + y.sum(), x.reshape(n, -1)


class Sliced(nn.Module):
    def forward(self, x, k):
        return x[:, :k].sum(1), torch.arange(k) * x[0, 0]


class Unbacked(nn.Module):
    def forward(self, x):
        u = x.sum().to(torch.int64).item()
        torch._check(u >= 0)
        torch._check(u < 100)
        return torch.zeros(u) + 1


x = torch.randn(2, 4)
write("mlp", export(Mlp(), (x,), dynamic_shapes={"x": {0: Dim("b", min=2, max=64)}}), extra_files={"keirin_init.json": '{"seed": 1}'})
write("cond", export(Cond(), (x,)))
write("counter", export(Counter(), (x,)))
write("counter_core", export(Counter(), (x,)).run_decompositions())
write("structured", export(Structured(), ({"a": torch.randn(2), "b": (torch.randn(3),)},), {"scale": torch.randn(2), "flag": False, "k": 5}))
write("named", export(Named(), (torch.randn(2), [torch.randn(2), torch.randn(3)])))
write("lstm", export(Lstm().eval(), (torch.randn(2, 5, 3),), dynamic_shapes={"x": {0: Dim("b", min=1, max=9)}}))
write("tied", export(Tied(), (torch.tensor([1, 2]),)))
write("guarded", export(Guarded(), (torch.randn(4, 8), torch.randn(6), 2), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO}, Dim.DYNAMIC)))
write("sliced", export(Sliced(), (torch.randn(4, 8), 5), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO}, Dim.DYNAMIC)))
write("unbacked", export(Unbacked(), (torch.ones(4),)))
with torch._subclasses.fake_tensor.FakeTensorMode():
    write("fake", export(nn.Linear(4, 4), (torch.randn(2, 4),)))
