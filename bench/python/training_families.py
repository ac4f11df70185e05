# SPDX-License-Identifier: Apache-2.0
"""The zoo's families as models to train: `small` for two cores, `full` for a data-centre GPU, where four copies of each with gradients and
the optimiser's state have to fit beside each other. Weights are f32; what the zoo runs in bf16 trains under autocast there. The decoder is
trained on all positions; one step of decoding is nothing to train. Needs what bench/zoo/README.md installs."""
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "zoo"))
import graphs  # noqa: E402
import language  # noqa: E402
import tables  # noqa: E402
import unet  # noqa: E402
import vision  # noqa: E402
from check import draw  # noqa: E402

f32 = torch.float32
kSeed = 20260
kSmall = {
    "mlp": tables.mlp,
    "resnet50": lambda: vision.resnet50(4, f32, size=128),
    "vit_b16": lambda: vision.vit(2, 224, f32, num_layers=4, num_heads=6, hidden_dim=384, mlp_dim=1536),
    "bert": lambda: language.bert(4, 64, 2, f32, hidden_size=256, num_attention_heads=4, intermediate_size=1024),
    "xlnet": lambda: language.xlnet(2, 64, 2, f32, width=256, heads=4),
    "decoder": lambda: language.decoder_training(2, 64, f32, layers=2, width=256, heads=4, inner=704, vocabulary=4000),
    "gcn": graphs.gcn,
    "gat": graphs.gat,
    "graph_diffusion": lambda: graphs.graph_diffusion(64, 2),
    "sage": lambda: graphs.sage(2000, 8000),
    "unet": lambda: unet.unet(1, 32, f32, channels=32, scales=(1, 2), blocks=1, attention_from=1),
    "dlrm": lambda: tables.dlrm(256, 2000, 16, (256, 64), (256, 128)),
    "lstm": lambda: tables.lstm(8, 16, 256, f32),
    "ppo_vit": lambda: vision.ppo_vit(8, 128, 4),
}
kFull = {
    "mlp": tables.mlp,
    "resnet50": lambda: vision.resnet50(64, f32),
    "vit_b16": lambda: vision.vit_b16(32, f32),
    "bert": lambda: language.bert(32, 128, 12, f32),
    "xlnet": lambda: language.xlnet(16, 128, 12, f32),
    "decoder": lambda: language.decoder_training(4, 512, f32, layers=4, width=2048, heads=16, inner=5504, vocabulary=32000),
    "gcn": graphs.gcn,
    "gat": graphs.gat,
    "graph_diffusion": lambda: graphs.graph_diffusion(256, 6),
    "sage": lambda: graphs.sage(40000, 400000),
    "unet": lambda: unet.unet(4, 64, f32, channels=192, scales=(1, 2, 4), blocks=2, attention_from=1),
    "dlrm": lambda: tables.dlrm(8192, 100000, 64, (512, 256), (1024, 1024, 512, 256)),
    "lstm": lambda: tables.lstm(64, 128, 1024, f32),
    "ppo_vit": lambda: vision.ppo_vit(64, 256, 6),
}
kSizes = {"small": kSmall, "full": kFull}
kAutocast = ("resnet50", "vit_b16", "bert", "xlnet", "decoder", "unet", "lstm")  # on a GPU


def first_of(outputs):
    return outputs[0] if isinstance(outputs, tuple) else outputs


def loss(outputs, target):
    return F.mse_loss(first_of(outputs).float(), target)


def build(size, name, device):
    """The model in training mode, its inputs and a target of its first output's shape."""
    case = kSizes[size][name]()
    torch.manual_seed(kSeed)
    generator = torch.Generator().manual_seed(kSeed)
    with torch.no_grad():
        model = case.build()
    model = model.train().requires_grad_(True).to(device)
    inputs = tuple(draw(each.rule, list(each.shape), each.dtype, generator).to(device) for each in case.inputs)
    with torch.no_grad():
        sizes = first_of(model.eval()(*inputs)).shape
    return model.train(), inputs, torch.randn(sizes, device=device)
