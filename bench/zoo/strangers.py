# SPDX-License-Identifier: Apache-2.0
"""Architectures that nothing was looked at for before they were first measured: what a stranger gets, against every peer.

Their files are not kept: `export.py --size strangers` writes them. Replace the list once it has been worked on, for then it tells no more
than the others do.
"""
import torch
from torch import nn
from torch.nn import functional as F

from case import Case, integers, normal
from others import _graph_pair, _picture, _text, _timm, _translation


class Generator(nn.Module):
    """Noise to a picture by transposed convolutions (DCGAN)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        sizes = [(128, width * 8, 1, 0), (width * 8, width * 4, 2, 1), (width * 4, width * 2, 2, 1), (width * 2, width, 2, 1)]
        layers = [nn.Sequential(nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False), nn.BatchNorm2d(b), nn.ReLU())
                  for a, b, stride, padding in sizes]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.layers(z)


class PointNet(nn.Module):
    """A set of points to a class: shared products, a maximum over the points."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(*[nn.Sequential(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())
                                      for a, b in ((3, 64), (64, 128), (128, 1024))])
        self.head = nn.Sequential(nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.head(self.points(x).amax(2)), 1)


class Forecast(nn.Module):
    """N-BEATS: blocks that explain a series, each what those before it left over."""

    def __init__(self, past: int = 336, ahead: int = 96, width: int = 512, blocks: int = 6) -> None:
        super().__init__()
        self.past = past
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.Linear(past, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, past + ahead))
            for _ in range(blocks)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = 0
        for block in self.blocks:
            back, forward = block(x).split([self.past, 96], 1)
            x, total = x - back, total + forward
        return total


class TabTransformer(nn.Module):
    """Categories attend to each other, numbers join at the end."""

    def __init__(self, columns: int = 26, numbers: int = 13, width: int = 32) -> None:
        super().__init__()
        self.table = nn.Embedding(columns * 1000, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(numbers)
        self.head = nn.Sequential(nn.Linear(columns * width + numbers, 256), nn.SELU(), nn.Linear(256, 1))

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.head(torch.cat([self.encoder(self.table(categories)).flatten(1), self.norm(numbers)], 1)))


class Autoencoder(nn.Module):
    """A variational autoencoder in evaluation: mean, deviation and the picture of the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.GroupNorm(8, 64),
                                  nn.LeakyReLU(0.2),
                                  nn.Conv2d(64, 128, 4, 2, 1), nn.GroupNorm(8, 128), nn.LeakyReLU(0.2), nn.Flatten())
        self.code = nn.Linear(128 * 64, 256)
        self.up = nn.Sequential(nn.Linear(128, 128 * 64), nn.Unflatten(1, (128, 8, 8)), nn.Upsample(scale_factor=2),
                                nn.Conv2d(128, 64, 3, 1, 1), nn.ELU(),
                                nn.Upsample(scale_factor=2), nn.Conv2d(64, 32, 3, 1, 1), nn.ELU(), nn.Upsample(scale_factor=2),
                                nn.Conv2d(32, 3, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, log_variance = self.code(self.down(x)).chunk(2, 1)
        return torch.sigmoid(self.up(mean)), mean, (0.5 * log_variance).exp()


class Flow(nn.Module):
    """A neural differential equation by eight steps of the midpoint rule."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(width + 1, 2 * width), nn.Softplus(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k in range(8):
            time = torch.full_like(x[:, :1], k / 8)
            middle = x + self.field(torch.cat([x, time], 1)) / 16
            x = x + self.field(torch.cat([middle, time + 1 / 16], 1)) / 8
        return x


class Heart(nn.Module):
    """A residual network over a signal with squeezed channels."""

    def __init__(self, width: int = 64, blocks: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv1d(12, width, 15, 2, 7)
        self.first = nn.ModuleList([nn.Conv1d(width, width, 7, padding=3) for _ in range(blocks)])
        self.second = nn.ModuleList([nn.Conv1d(width, width, 7, padding=3) for _ in range(blocks)])
        self.gates = nn.ModuleList([nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, width), nn.Sigmoid())
                                    for _ in range(blocks)])
        self.head = nn.Linear(width, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        for first, second, gate in zip(self.first, self.second, self.gates):
            y = second(F.silu(first(x)))
            x = F.max_pool1d(F.relu(x + y * gate(y.mean(2))[:, :, None]), 2)
        return self.head(x.mean(2))


def _decoder(model: str, config: str, **options) -> Case:
    shared = {"vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 2, "num_attention_heads": 8}
    return _text(model, config, 8000, mask=False, use_cache=False, **shared, **options)


kStrangers = {
    **{name: lambda name=name: _timm(name) for name in (
        "resnest14d", "tf_mixnet_s", "lcnet_050", "visformer_tiny", "levit_128s", "twins_pcpvt_small", "resmlp_12_224",
        "efficientformer_l1",
        "fastvit_t8", "inception_next_tiny", "pit_ti_224", "dla34", "selecsls42b")},
    "squeezenet": lambda: _picture("squeezenet1_1"),
    "mnasnet": lambda: _picture("mnasnet0_5"),
    "googlenet": lambda: _picture("googlenet", init_weights=False, aux_logits=False),
    "vgg11_bn": lambda: _picture("vgg11_bn"),
    "swin_v2_t": lambda: _picture("swin_v2_t"),
    "gpt_neox": lambda: _decoder("GPTNeoXModel", "GPTNeoXConfig"),
    "llama": lambda: _decoder("LlamaModel", "LlamaConfig", num_key_value_heads=4),
    "stablelm": lambda: _decoder("StableLmModel", "StableLmConfig", num_key_value_heads=8),
    "olmo2": lambda: _decoder("Olmo2Model", "Olmo2Config", num_key_value_heads=8),
    "granite": lambda: _decoder("GraniteModel", "GraniteConfig", num_key_value_heads=4),
    "cohere": lambda: _decoder("CohereModel", "CohereConfig", num_key_value_heads=8),
    "roformer": lambda: _text("RoFormerModel", "RoFormerConfig", 50000, num_hidden_layers=2),
    "nystromformer": lambda: _text("NystromformerModel", "NystromformerConfig", 30000, num_hidden_layers=2),
    "convbert": lambda: _text("ConvBertModel", "ConvBertConfig", 30522, num_hidden_layers=2),
    "megatron_bert": lambda: _text("MegatronBertModel", "MegatronBertConfig", 29056, num_hidden_layers=2),
    "marian": lambda: _translation("MarianModel", "MarianConfig", d_model=512, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=2048,
                                   decoder_ffn_dim=2048, encoder_attention_heads=8, decoder_attention_heads=8, pad_token_id=7999,
                                   decoder_start_token_id=7999, decoder_vocab_size=8000),
    **{name: lambda layer=layer: _graph_pair(layer) for name, layer in (
        ("graph_conv", "GraphConv"), ("sg_conv", "SGConv"), ("le_conv", "LEConv"), ("gen_conv", "GENConv"), ("mf_conv", "MFConv"))},
    "generator": lambda: Case(Generator, [normal(8, 128, 1, 1)]),
    "pointnet": lambda: Case(PointNet, [normal(8, 3, 1024)]),
    "forecast": lambda: Case(Forecast, [normal(32, 336)]),
    "tab_transformer": lambda: Case(TabTransformer, [integers(64, 26, high=26000), normal(64, 13)]),
    "autoencoder": lambda: Case(Autoencoder, [normal(4, 3, 64, 64)]),
    "flow": lambda: Case(Flow, [normal(64, 256)]),
    "heart": lambda: Case(Heart, [normal(4, 12, 2000)]),
}
