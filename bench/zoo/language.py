# SPDX-License-Identifier: Apache-2.0
"""Encoders from transformers, and a decoder of our own in two forms: prefill, and one step of decode on a static cache.

The decoder is written here because the cache must be plain buffers that the graph changes in place, the form that a C++ service
keeps between calls. It has the shape of a Llama block: RMS norm, rotary positions, gated feed-forward.
"""
import torch
from torch import nn
from torch.nn import functional as F

from case import Case, arange, constant, integers, normal


class Bert(nn.Module):
    def __init__(self, layers: int, **shape) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.model = BertModel(BertConfig(num_hidden_layers=layers, **shape))

    def forward(self, input_ids, attention_mask, token_type_ids):
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return out.last_hidden_state, out.pooler_output


def bert(batch: int, length: int, layers: int, dtype: torch.dtype, dynamic: bool = False, **shape) -> Case:
    shapes = None
    if dynamic:
        dims = {0: torch.export.Dim("batch", min=1, max=256), 1: torch.export.Dim("length", min=2, max=512)}
        shapes = (dims, dims, dims)
    inputs = [integers(batch, length, high=30522), constant(batch, length, value=1), integers(batch, length, high=2)]
    return Case(lambda: Bert(layers, **shape), inputs, dtype, shapes)


class T5(nn.Module):
    """The encoder of T5-small: what it adds to its scores is looked up by distances, whose number follows the length."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5EncoderModel

        self.model = T5EncoderModel(T5Config())

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def t5(batch: int, length: int, dtype: torch.dtype) -> Case:
    dims = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=512)}
    return Case(T5, [integers(batch, length, high=32128), constant(batch, length, value=1)], dtype, (dims, dims))


class Xlnet(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        from transformers import XLNetConfig, XLNetModel

        model = XLNetModel(XLNetConfig(d_model=width, n_head=heads, d_inner=4 * width, n_layer=layers))
        self.model = model.to(torch.get_default_dtype())  # its projections are made in f32 whatever the default is

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_mems=False).last_hidden_state


def xlnet(batch: int, length: int, layers: int, dtype: torch.dtype, width: int = 768, heads: int = 12) -> Case:
    return Case(lambda: Xlnet(layers, width, heads), [integers(batch, length, high=32000)], dtype)


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, cache: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        if cache:
            for name in ("k_cache", "v_cache"):
                self.register_buffer(name, torch.empty(1, heads, cache, width // heads).normal_())

    def forward(self, x, cos, sin, position, mask):
        batch, length, width = x.shape
        q, k, v = (f(x).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if position is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            self.k_cache.index_copy_(2, position, k)
            self.v_cache.index_copy_(2, position, v)
            mixed = F.scaled_dot_product_attention(q, self.k_cache, self.v_cache, attn_mask=mask)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, width))


class DecoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, cache: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.attention = Attention(width, heads, cache)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin, position, mask):
        x = x + self.attention(self.norm1(x), cos, sin, position, mask)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Logits of the last position. With a cache, a call is one token at `position`."""

    def __init__(self, layers: int, width: int, heads: int, inner: int, vocabulary: int, cache: int) -> None:
        super().__init__()
        self.cache = cache
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, inner, cache) for _ in range(layers))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        frequency = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        self.register_buffer("frequency", frequency, persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                weight.normal_(0.0, 0.02)

    def visible(self, position: torch.Tensor) -> torch.Tensor:
        return (torch.arange(self.cache, device=position.device) <= position)[None]

    def forward(self, tokens: torch.Tensor, position: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(tokens)
        at = torch.arange(tokens.shape[1], device=tokens.device) if position is None else position
        angle = torch.outer(at.float(), self.frequency).repeat(1, 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        mask = None if position is None else self.visible(position)
        for layer in self.layers:
            x = layer(x, cos, sin, position, mask)
        return self.head(self.norm(self.scored(x)))

    def scored(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -1:]


class Learner(Decoder):
    """Logits of all positions, as training has it."""

    def scored(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Generator(Decoder):
    """One file for a prompt and for the tokens after it: a call writes as many rows of the cache as it has tokens."""

    def visible(self, position: torch.Tensor) -> torch.Tensor:
        return torch.arange(self.cache, device=position.device) <= position[:, None]


def decoder_prefill(batch: int, length: int, dtype: torch.dtype, **shape) -> Case:
    return Case(lambda: Decoder(cache=0, **shape), [integers(batch, length, high=shape["vocabulary"])], dtype)


def decoder_training(batch: int, length: int, dtype: torch.dtype, **shape) -> Case:
    return Case(lambda: Learner(cache=0, **shape), [integers(batch, length, high=shape["vocabulary"])], dtype)


def decoder_decode(cache: int, position: int, dtype: torch.dtype, **shape) -> Case:
    inputs = [integers(1, 1, high=shape["vocabulary"]), constant(1, value=position)]
    return Case(lambda: Decoder(cache=cache, **shape), inputs, dtype)


def decoder_generate(cache: int, prompt: int, dtype: torch.dtype, **shape) -> Case:
    length = torch.export.Dim("length", min=1, max=cache)
    inputs = [integers(1, prompt, high=shape["vocabulary"]), arange(prompt)]
    return Case(lambda: Generator(cache=cache, **shape), inputs, dtype, ({1: length}, {0: length}))


class Growing(nn.Module):
    """A decoder whose cache is as long as its text: each layer's keys and values go in, and come out with those of the new tokens behind.

    The first place of a cache belongs to no token. It is there so that a prompt is a call like the others.
    """

    def __init__(self, layers: int, width: int, heads: int, inner: int, vocabulary: int) -> None:
        super().__init__()
        self.whole = Decoder(layers, width, heads, inner, vocabulary, cache=0)

    def forward(self, tokens: torch.Tensor, *cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, length, known = self.whole.embed(tokens), tokens.shape[1], cache[0].shape[2]
        at = torch.arange(known, known + length, device=tokens.device)
        angle = torch.outer(at.float(), self.whole.frequency).repeat(1, 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        visible = torch.arange(known + length, device=tokens.device) <= at[:, None]
        grown = []
        for layer, k_cache, v_cache in zip(self.whole.layers, cache[::2], cache[1::2], strict=True):
            of = layer.attention
            y = layer.norm1(x)
            q, k, v = (f(y).view(1, length, of.heads, -1).transpose(1, 2) for f in (of.q, of.k, of.v))
            k, v = torch.cat([k_cache, rotate(k, cos, sin)], dim=2), torch.cat([v_cache, v], dim=2)
            mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), k, v, attn_mask=visible)
            x = x + of.o(mixed.transpose(1, 2).reshape(1, length, -1))
            y = layer.norm2(x)
            x = x + layer.down(F.silu(layer.gate(y)) * layer.up(y))
            grown += [k, v]
        return self.whole.head(self.whole.norm(x[:, -1:])), *grown


def decoder_growing(length: int, known: int, most: int, dtype: torch.dtype, **shape) -> Case:
    tokens, cache = torch.export.Dim("tokens", min=1, max=most), torch.export.Dim("cache", min=1, max=most)
    heads, size, count = shape["heads"], shape["width"] // shape["heads"], 2 * shape["layers"]
    inputs = [integers(1, length, high=shape["vocabulary"]), *(normal(1, heads, known, size, dtype=dtype) for _ in range(count))]
    return Case(lambda: Growing(**shape), inputs, dtype, ({1: tokens}, tuple({2: cache} for _ in range(count))))
