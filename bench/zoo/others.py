# SPDX-License-Identifier: Apache-2.0
"""Further architectures, one file each, for coverage: operators and idioms that the measured families do not use.

Nothing is tuned for them: they tell what a stranger gets.
"""
from operator import attrgetter

import torch
from torch import nn
from torch.nn import functional as F

from case import Case, constant, edges, integers, normal


def _picture(name: str, size: int = 224, **options) -> Case:
    import torchvision

    return Case(lambda: torchvision.models.get_model(name, weights=None, **options), [normal(1, 3, size, size)])


class Segmentation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        import torchvision

        self.model = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)["out"]


class Detection(nn.Module):
    """A detector of one stage up to its heads: what follows, non-maximum suppression, has shapes that depend on data."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import torchvision

        whole = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None)
        self.backbone, self.head = whole.backbone, whole.head

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.head(list(self.backbone(x).values())).values())


def _timm(name: str) -> Case:
    import timm

    return Case(lambda: timm.create_model(name, pretrained=False), [normal(1, 3, 224, 224)])


class FirstOutput(nn.Module):
    """A transformers model of `config`, reduced to its first output."""

    def __init__(self, model: str, config: str, options: dict) -> None:
        super().__init__()
        import transformers

        self.model = attrgetter(model)(transformers)(getattr(transformers, config)(**options))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(*inputs, return_dict=False)[0]


def _text(model: str, config: str, vocabulary: int, mask: bool = True, **options) -> Case:
    inputs = [integers(2, 64, high=vocabulary)] + ([constant(2, 64, value=1)] if mask else [])
    return Case(lambda: FirstOutput(model, config, options), inputs)


def _signal(model: str, config: str, shape: tuple[int, ...], **options) -> Case:
    return Case(lambda: FirstOutput(model, config, options), [normal(*shape)])


class Translation(nn.Module):
    """An encoder and a decoder of transformers, from tokens of both to the decoder's states."""

    def __init__(self, model: str, config: str, options: dict) -> None:
        super().__init__()
        import transformers

        self.model = getattr(transformers, model)(getattr(transformers, config)(**options))

    def forward(self, tokens: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, decoder_input_ids=written, use_cache=False, return_dict=False)[0]


def _translation(model: str, config: str, **options) -> Case:
    inputs = [integers(2, 64, high=8000), integers(2, 32, high=8000)]
    return Case(lambda: Translation(model, config, {"vocab_size": 8000} | options), inputs)


def _experts(model: str, config: str, **options) -> Case:
    shared = {"vocab_size": 8000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
    return _text(model, config, 8000, mask=False, num_key_value_heads=4, use_cache=False, **shared, **options)


def _video() -> nn.Module:
    import torchvision

    return torchvision.models.video.r3d_18(weights=None)


class GraphPair(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.first(x, edge_index)), edge_index)


def _gin() -> Case:
    def build() -> nn.Module:
        from torch_geometric.nn import GINConv

        def inner(a, b):
            return nn.Sequential(nn.Linear(a, 64), nn.ReLU(), nn.Linear(64, b))

        return GraphPair(GINConv(inner(128, 64)), GINConv(inner(64, 10)))

    return Case(build, [normal(1000, 128), edges(1000, 5000)])


def _gatv2() -> Case:
    def build() -> nn.Module:
        from torch_geometric.nn import GATv2Conv

        return GraphPair(GATv2Conv(128, 16, 4, add_self_loops=False), GATv2Conv(64, 10, 1, add_self_loops=False))

    return Case(build, [normal(1000, 128), edges(1000, 5000, self_loops=True)])


def _graph_pair(layer: str, heads: int = 0) -> Case:
    def build() -> nn.Module:
        import torch_geometric.nn

        make = getattr(torch_geometric.nn, layer)
        return GraphPair(make(128, 64 // heads, heads), make(64, 10, 1)) if heads else GraphPair(make(128, 64), make(64, 10))

    return Case(build, [normal(1000, 128), edges(1000, 5000)])


kOthers = {
    "mobilenet_v3_small": lambda: _picture("mobilenet_v3_small"),
    "efficientnet_b0": lambda: _picture("efficientnet_b0"),
    "convnext_tiny": lambda: _picture("convnext_tiny"),
    "densenet121": lambda: _picture("densenet121"),
    "regnet_y_400mf": lambda: _picture("regnet_y_400mf"),
    "shufflenet_v2": lambda: _picture("shufflenet_v2_x1_0"),
    "swin_t": lambda: _picture("swin_t"),
    "deeplabv3_resnet50": lambda: Case(Segmentation, [normal(1, 3, 160, 160)]),
    "retinanet_resnet50": lambda: Case(lambda: Detection("retinanet_resnet50_fpn"), [normal(1, 3, 256, 256)]),
    "mixer_s16": lambda: _timm("mixer_s16_224"),
    "deit_tiny": lambda: _timm("deit_tiny_patch16_224"),
    "distilbert": lambda: _text("DistilBertModel", "DistilBertConfig", 30522, n_layers=2),
    "roberta": lambda: _text("RobertaModel", "RobertaConfig", 50265, num_hidden_layers=2),
    "albert": lambda: _text("AlbertModel", "AlbertConfig", 30000, num_hidden_layers=2, hidden_size=768, num_attention_heads=12),
    "electra": lambda: _text("ElectraModel", "ElectraConfig", 30522, num_hidden_layers=2),
    "t5_encoder": lambda: _text("T5EncoderModel", "T5Config", 32128, num_layers=2),
    "gpt2": lambda: _text("GPT2Model", "GPT2Config", 50257, mask=False, n_layer=2, use_cache=False),
    "whisper_encoder": lambda: _signal(
        "models.whisper.modeling_whisper.WhisperEncoder", "WhisperConfig", (1, 80, 3000), encoder_layers=2
    ),
    "clip_vision": lambda: _signal("CLIPVisionModel", "CLIPVisionConfig", (1, 3, 224, 224), num_hidden_layers=2),
    "segformer": lambda: _signal("SegformerForSemanticSegmentation", "SegformerConfig", (1, 3, 128, 128)),
    "wav2vec2": lambda: _signal("Wav2Vec2Model", "Wav2Vec2Config", (1, 8000), num_hidden_layers=2),
    "gin": _gin,
    "gatv2": _gatv2,
    "mixtral": lambda: _experts("MixtralModel", "MixtralConfig", num_local_experts=8),
    "qwen3_moe": lambda: _experts(
        "Qwen3MoeModel", "Qwen3MoeConfig", moe_intermediate_size=256, num_experts=16, num_experts_per_tok=4, head_dim=32
    ),
    "mamba": lambda: _text("MambaModel", "MambaConfig", 8000, mask=False, vocab_size=8000, hidden_size=256, num_hidden_layers=2,
                           use_cache=False),
    "bart": lambda: _translation(
        "BartModel", "BartConfig", d_model=512, encoder_layers=2, decoder_layers=2, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048
    ),
    "t5": lambda: _translation("T5Model", "T5Config", num_layers=2),
    "fcos_resnet50": lambda: Case(lambda: Detection("fcos_resnet50_fpn"), [normal(1, 3, 256, 256)]),
    "yolos": lambda: _signal(
        "YolosForObjectDetection", "YolosConfig", (1, 3, 224, 224), num_hidden_layers=2, hidden_size=192, num_attention_heads=3,
        intermediate_size=768, image_size=[224, 224], num_detection_tokens=20
    ),
    "r3d_18": lambda: Case(_video, [normal(1, 3, 8, 112, 112)]),
    "edgenext": lambda: _timm("edgenext_xx_small"),
    "mobilevitv2": lambda: _timm("mobilevitv2_050"),
    "transformer_conv": lambda: _graph_pair("TransformerConv", 4),
    "gated_graph": lambda: _graph_pair("ResGatedGraphConv"),
}
