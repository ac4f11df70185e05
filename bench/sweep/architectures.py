# SPDX-License-Identifier: Apache-2.0
"""The architectures of the sweep: how each is built from its configuration, small and with random weights, and what it is called with.

Nothing is downloaded. A row is a name and what differs from the rest of its library; `build` imports that library alone. Dropout is off, so
that two calls may be compared.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass
class Built:
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


# ---- transformers: the class of the model, and of its configuration what the small sizes below do not say. Each size is set where the
# configuration has a field of that name.

_SMALL = dict(
    hidden_size=64, d_model=64, n_embd=64, dim=64, emb_dim=64, embedding_size=64, num_hidden_layers=2, num_layers=2, n_layer=2, n_layers=2,
    encoder_layers=2, decoder_layers=2, num_decoder_layers=2, num_attention_heads=4, n_head=4, n_heads=4, num_heads=4,
    encoder_attention_heads=4,
    decoder_attention_heads=4, num_key_value_heads=2, intermediate_size=128, encoder_ffn_dim=128, decoder_ffn_dim=128, d_ff=128, d_kv=16,
    d_inner=128, ffn_dim=128, hidden_dim=128, vocab_size=256, head_dim=16, max_position_embeddings=128, n_positions=128, image_size=32,
    patch_size=8, num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, use_cache=False,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, sliding_window=16)

_TEXT, _TEXT_PAIR, _IMAGE, _SOUND = "text", "text and text", "image", "sound"

TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "AlbertModel": (_TEXT, {}), "ArceeModel": (_TEXT, {}), "BartModel": (_TEXT_PAIR, {}), "BertModel": (_TEXT, {}),
    "BertGenerationEncoder": (_TEXT, {}),
    "BigBirdModel": (_TEXT, {"attention_type": "original_full"}), "BioGptModel": (_TEXT, {}), "BitNetModel": (_TEXT, {}),
    "BlenderbotSmallModel": (_TEXT_PAIR, {}), "BloomModel": (_TEXT, {}), "CamembertModel": (_TEXT, {}), "CanineModel": (_TEXT, {}),
    "CodeGenModel": (_TEXT, {"n_ctx": 128, "rotary_dim": 8}), "CohereModel": (_TEXT, {}), "Cohere2Model": (_TEXT, {}),
    "ConvBertModel": (_TEXT, {}), "CTRLModel": (_TEXT, {"dff": 128}), "Data2VecTextModel": (_TEXT, {}), "DebertaModel": (_TEXT, {}),
    "DebertaV2Model": (_TEXT, {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}),
    "DiffLlamaModel": (_TEXT, {}), "DistilBertModel": (_TEXT, {}), "ElectraModel": (_TEXT, {}), "ErnieModel": (_TEXT, {}),
    "Ernie4_5Model": (_TEXT, {}),
    "EsmModel": (_TEXT, {"position_embedding_type": "rotary"}), "Exaone4Model": (_TEXT, {}), "FalconModel": (_TEXT, {}),
    "FlaubertModel": (_TEXT, {}),
    "FNetModel": (_TEXT, {}), "FunnelModel": (_TEXT, {"block_sizes": [1, 1], "d_head": 16}), "GemmaModel": (_TEXT, {}),
    "Gemma2Model": (_TEXT, {"query_pre_attn_scalar": 16}), "GlmModel": (_TEXT, {}), "Glm4Model": (_TEXT, {}), "GPT2Model": (_TEXT, {}),
    "GPTBigCodeModel": (_TEXT, {}), "GPTNeoModel": (_TEXT, {"attention_types": [[["global", "local"], 1]], "window_size": 16}),
    "GPTNeoXModel": (_TEXT, {}), "GPTJModel": (_TEXT, {"rotary_dim": 8}), "GraniteModel": (_TEXT, {}), "GraniteMoeModel": (_TEXT, {}),
    "HeliumModel": (_TEXT, {}), "IBertModel": (_TEXT, {}), "JetMoeModel": (_TEXT, {"kv_channels": 16}),
    "LEDModel": (_TEXT_PAIR, {"attention_window": 16}),
    "LlamaModel": (_TEXT, {}), "LongformerModel": (_TEXT, {"attention_window": 16}), "LongT5Model": (_TEXT_PAIR, {"local_radius": 7}),
    "M2M100Model": (_TEXT_PAIR, {}), "MambaModel": (_TEXT, {"state_size": 8}),
    "Mamba2Model": (_TEXT, {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 16}),
    "MarianModel": (_TEXT_PAIR, {}), "MBartModel": (_TEXT_PAIR, {}), "MegatronBertModel": (_TEXT, {}), "MistralModel": (_TEXT, {}),
    "MixtralModel": (_TEXT, {}), "MobileBertModel": (_TEXT, {"intra_bottleneck_size": 32, "true_hidden_size": 32}),
    "ModernBertModel": (_TEXT, {}),
    "MPNetModel": (_TEXT, {}), "MptModel": (_TEXT, {"max_seq_len": 128, "expansion_ratio": 2}),
    "MraModel": (_TEXT, {"max_position_embeddings": 512}), "MT5Model": (_TEXT_PAIR, {}),
    "MvpModel": (_TEXT_PAIR, {}), "NemotronModel": (_TEXT, {}), "NystromformerModel": (_TEXT, {}), "OlmoModel": (_TEXT, {}),
    "Olmo2Model": (_TEXT, {}),
    "OlmoeModel": (_TEXT, {}), "OpenAIGPTModel": (_TEXT, {}), "OPTModel": (_TEXT, {"word_embed_proj_dim": 64}),
    "PegasusModel": (_TEXT_PAIR, {}), "PersimmonModel": (_TEXT, {}),
    "PhiModel": (_TEXT, {}), "Phi3Model": (_TEXT, {}), "PhimoeModel": (_TEXT, {}), "PLBartModel": (_TEXT_PAIR, {}),
    "Qwen2Model": (_TEXT, {}), "Qwen2MoeModel": (_TEXT, {"shared_expert_intermediate_size": 64}),
    "Qwen3Model": (_TEXT, {}), "RemBertModel": (_TEXT, {"input_embedding_size": 32, "output_embedding_size": 32}),
    "RobertaModel": (_TEXT, {}),
    "RobertaPreLayerNormModel": (_TEXT, {}), "RoCBertModel": (_TEXT, {"enable_pronunciation": False, "enable_shape": False}),
    "RoFormerModel": (_TEXT, {}),
    "RwkvModel": (_TEXT, {"attention_hidden_size": 64, "context_length": 64}), "SmolLM3Model": (_TEXT, {}),
    "SqueezeBertModel": (_TEXT, {}), "StableLmModel": (_TEXT, {}), "Starcoder2Model": (_TEXT, {}),
    "SwitchTransformersModel": (_TEXT_PAIR, {}), "T5Model": (_TEXT_PAIR, {}), "UMT5Model": (_TEXT_PAIR, {}),
    "XGLMModel": (_TEXT, {"attention_heads": 4}),
    "XLMModel": (_TEXT, {}), "XLMRobertaModel": (_TEXT, {}), "XLNetModel": (_TEXT, {}),
    "XmodModel": (_TEXT, {"default_language": "en_XX"}), "YosoModel": (_TEXT, {}),
    "ASTModel": ("spectrogram", {"max_length": 64, "num_mel_bins": 32}), "BeitModel": (_IMAGE, {}), "CLIPVisionModel": (_IMAGE, {}),
    "CLIPTextModel": (_TEXT, {}), "ConvNextModel": (_IMAGE, {"num_stages": 2, "hidden_sizes": [16, 32], "depths": [1, 1]}),
    "ConvNextV2Model": (_IMAGE, {"num_stages": 2, "hidden_sizes": [16, 32], "depths": [1, 1]}), "Data2VecVisionModel": (_IMAGE, {}),
    "DeiTModel": (_IMAGE, {}),
    "Dinov2Model": (_IMAGE, {}), "DPTModel": (_IMAGE, {"neck_hidden_sizes": [16, 16, 16, 16], "backbone_out_indices": [0, 1, 1, 1]}),
    "FocalNetModel": (_IMAGE, {"patch_size": 4, "embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [2, 2],
          "focal_windows": [3, 3]}),
    "IJepaModel": (_IMAGE, {}),
    "LevitModel": (_IMAGE, {"image_size": 64, "patch_size": 16, "hidden_sizes": [32, 48, 64], "depths": [1, 1, 1],
          "num_attention_heads": [2, 3, 4]}),
    "MobileNetV2Model": (_IMAGE, {}),
    "MobileViTModel": (_IMAGE, {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64], "patch_size": 2,
          "image_size": 64}), "PoolFormerModel": (_IMAGE, {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1], "image_size": 64}),
    "PvtV2Model": (_IMAGE, {"num_attention_heads": [1, 2, 4, 4], "hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1],
          "image_size": 64}),
    "RegNetModel": (_IMAGE, {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1], "embedding_size": 16, "groups_width": 8}),
    "ResNetModel": (_IMAGE, {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1], "embedding_size": 16}),
    "SegformerModel": (_IMAGE, {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1], "image_size": 64, "num_attention_heads": [1,
          2, 4, 4]}),
    "SiglipVisionModel": (_IMAGE, {}),
    "SwinModel": (_IMAGE, {"patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "num_layers": 2}),
    "Swinv2Model": (_IMAGE, {"patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "num_layers": 2}),
    "ViTModel": (_IMAGE, {}), "ViTMAEModel": (_IMAGE, {"mask_ratio": 0.0}),
    "ViTMSNModel": (_IMAGE, {}), "HubertModel": (_SOUND, {}), "Wav2Vec2Model": (_SOUND, {}), "WavLMModel": (_SOUND, {}),
    "UniSpeechModel": (_SOUND, {}), "SEWModel": (_SOUND, {"squeeze_factor": 2}),
    "ApertusModel": (_TEXT, {}), "DeepseekV3Model": (_TEXT, {"n_group": 2, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 32,
          "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "num_key_value_heads": 4,
          "first_k_dense_replace": 1}),
    "DogeModel": (_TEXT, {}), "Dots1Model": (_TEXT, {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}),
    "FalconMambaModel": (_TEXT, {"state_size": 8}), "GptOssModel": (_TEXT, {}), "Glm4MoeModel": (_TEXT, {"first_k_dense_replace": 1}),
    "HunYuanDenseV1Model": (_TEXT, {}), "JambaModel": (_TEXT, {"mamba_d_state": 8, "mamba_dt_rank": 8, "attn_layer_period": 2,
          "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}),
    "Lfm2Model": (_TEXT, {"layer_types": ["conv", "full_attention"]}), "LiltModel": (_TEXT, {"hidden_size": 96}), "LukeModel": (_TEXT, {}),
    "MarkupLMModel": (_TEXT, {}), "MinistralModel": (_TEXT, {}), "Qwen3MoeModel": (_TEXT, {}), "Qwen3NextModel": (_TEXT, {
          "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
          "layer_types": ["linear_attention", "full_attention"]}),
    "RecurrentGemmaModel": (_TEXT, {"lru_width": 64, "attention_window_size": 16, "block_types": ["recurrent", "attention"]}),
    "SeedOssModel": (_TEXT, {}), "SplinterModel": (_TEXT, {}), "XLMRobertaXLModel": (_TEXT, {}),
    "xLSTMModel": (_TEXT, {"qk_dim_factor": 0.5}), "Dinov2WithRegistersModel": (_IMAGE, {}), "DINOv3ViTModel": (_IMAGE, {}),
    "MobileNetV1Model": (_IMAGE, {"initializer_range": 0.2}),
    "MobileViTV2Model": (_IMAGE, {"image_size": 64, "patch_size": 2, "initializer_range": 0.2}),
    "PvtModel": (_IMAGE, {"image_size": 64, "hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1],
          "num_attention_heads": [1, 2, 2, 4]}),
    "SwiftFormerModel": (_IMAGE, {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [16, 32, 48, 64]}),
    "Swin2SRModel": (_IMAGE, {"patch_size": 1, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "num_layers": 2}),
    "VitDetModel": (_IMAGE, {}), "EfficientNetModel": (_IMAGE, {"image_size": 64,
          "width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640, "initializer_range": 0.5}),
    "TextNetModel": (_IMAGE, {"image_size": 64}), "BitModel": (_IMAGE, {"image_size": 64, "hidden_sizes": [64, 64, 128, 128],
          "depths": [1, 1, 1, 1], "embedding_size": 32, "num_groups": 8}),
    "Data2VecAudioModel": (_SOUND, {}), "UniSpeechSatModel": (_SOUND, {}), "Wav2Vec2ConformerModel": (_SOUND, {}),
    "WhisperEncoder": ("mel", {"max_source_positions": 32, "num_mel_bins": 16}),
}
_WAVES = dict(conv_dim=(16, 16), conv_kernel=(10, 3), conv_stride=(5, 2), num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
              num_feat_extract_layers=2,
              mask_time_prob=0.0, mask_feature_prob=0.0, layerdrop=0.0, apply_spec_augment=False)


def _transformers(name: str, tokens: int) -> Built:
    import transformers
    kind, more = TRANSFORMERS[name]
    cls = getattr(transformers, name, None) or __import__("transformers.models.whisper.modeling_whisper", fromlist=[name]).WhisperEncoder
    known = cls.config_class()
    names = getattr(known, "attribute_map", {})
    small = {key: value for key, value in {**_SMALL, **(_WAVES if kind == _SOUND else {})}.items()
             if (key in vars(known) or key in names) and key not in more and names.get(key) not in more}
    drops = {key: 0.0 for key, value in vars(known).items() if ("drop" in key or key.endswith("pdrop")) and isinstance(value, float)}
    module = cls(cls.config_class(**{**small, **drops, **more}))
    ids = torch.randint(3, 200, (2, tokens))
    inputs = {
        _TEXT: lambda: {"input_ids": ids},
        _TEXT_PAIR: lambda: {"input_ids": ids, "decoder_input_ids": ids.flip(1)[:, :tokens // 2].contiguous()},
        _IMAGE: lambda: {"pixel_values": torch.randn(2, 3, more.get("image_size", 32), more.get("image_size", 32))},
        _SOUND: lambda: {"input_values": torch.randn(2, 2000)}, "spectrogram": lambda: {"input_values": torch.randn(2, 64, 32)},
        "mel": lambda: {"input_features": torch.randn(2, 16, 64)},
    }[kind]()
    return Built(module, (), inputs)


# ---- timm: the model, and the size of its image where that is not the model's own.

TIMM: dict[str, int | None] = {
    "test_vit": None, "test_resnet": None, "test_convnext": None, "test_efficientnet": None, "test_nfnet": None, "test_mambaout": None,
    "beit_base_patch16_224": None,
    "botnet26t_256": None, "bat_resnext26ts": None, "cait_xxs24_224": None, "coat_tiny": None, "convit_tiny": None,
    "convmixer_768_32": 64, "convnext_atto": 96,
    "convnextv2_atto": 96, "crossvit_9_240": None, "cs3darknet_focus_s": 128, "davit_tiny": 224, "deit3_small_patch16_224": None,
    "densenet121": 64, "dla46_c": 96, "dpn48b": 96,
    "edgenext_xx_small": 128, "efficientformer_l1": 224, "efficientformerv2_s0": 224, "efficientnet_b0": 96, "efficientvit_b0": 96,
    "efficientvit_m0": 224, "eva02_tiny_patch14_224": None,
    "fastvit_t8": 128, "fasternet_t0": 96, "focalnet_tiny_srf": 96, "gcvit_xxtiny": 224, "ghostnet_050": 96, "hardcorenas_a": 96,
    "hgnet_tiny": 96, "hrnet_w18_small": 96, "inception_next_atto": 96,
    "inception_v3": 128, "inception_v4": 128, "levit_128s": 224, "mambaout_femto": 96, "coatnet_nano_rw_224": None,
    "maxvit_pico_rw_256": None, "caformer_s18": 96, "poolformer_s12": 96,
    "gmixer_12_224": None, "mixer_s32_224": None, "resmlp_12_224": None, "gmlp_ti16_224": None, "mobilenetv3_small_050": 96,
    "mobilenetv2_050": 96, "mnasnet_small": 96, "mobilevit_xxs": 128, "mvitv2_tiny": 224,
    "nest_tiny": 224, "pit_ti_224": None, "pvt_v2_b0": 96, "rdnet_tiny": 96, "regnetx_002": 96, "regnety_002": 96,
    "repghostnet_050": 96, "repvit_m0_9": 96, "res2net50_14w_8s": 64, "resnest14d": 64, "resnet18": 96,
    "seresnet18": 96, "resnetv2_18": 96, "rexnet_100": 96, "selecsls42": 96, "skresnet18": 96, "sequencer2d_s": 224, "shvit_s1": 224,
    "starnet_s1": 96, "swin_tiny_patch4_window7_224": None, "swinv2_cr_tiny_224": None,
    "swiftformer_xs": 96, "tiny_vit_5m_224": None, "tnt_s_patch16_224": None, "tresnet_m": 64, "twins_pcpvt_small": 224, "vgg11": 64,
    "visformer_tiny": 224, "vit_tiny_patch16_224": None, "test_vit_relpos": None,
    "volo_d1_224": None, "eca_vovnet39b": 64, "ese_vovnet19b_dw": 64, "xcit_nano_12_p16_224": None, "xception41": 96,
}


def _timm(name: str) -> Built:
    import timm
    module = timm.create_model(name, pretrained=False, num_classes=10)
    for each in module.modules():
        for word in ("drop_prob", "drop_rate"):
            if isinstance(getattr(each, word, None), float):
                setattr(each, word, 0.0)
    channels, *size = module.pretrained_cfg["input_size"]
    if TIMM[name]:
        size = [TIMM[name]] * 2
    return Built(module, (torch.randn(2, channels, *size),), {})


# ---- torchvision: the function, and the size of its image.

TORCHVISION: dict[str, int] = {
    "alexnet": 96, "convnext_tiny": 64, "densenet121": 64, "efficientnet_b0": 64, "efficientnet_v2_s": 64, "googlenet": 64,
    "inception_v3": 96, "mnasnet0_5": 64, "mobilenet_v2": 64,
    "mobilenet_v3_small": 64, "mobilenet_v3_large": 64, "maxvit_t": 224, "regnet_x_400mf": 64, "regnet_y_400mf": 64, "resnet18": 64,
    "resnet50": 64, "resnext50_32x4d": 64, "wide_resnet50_2": 64,
    "shufflenet_v2_x0_5": 64, "squeezenet1_1": 64, "swin_t": 64, "swin_v2_t": 64, "vgg11_bn": 64, "vit_b_32": 224,
    "segmentation.fcn_resnet50": 64, "segmentation.deeplabv3_mobilenet_v3_large": 64,
    "segmentation.lraspp_mobilenet_v3_large": 64, "video.r3d_18": 32, "video.mc3_18": 32, "video.swin3d_t": 64,
    "optical_flow.raft_small": 128,
}


def _torchvision(name: str) -> Built:
    import torchvision
    *folders, function = name.split(".")
    place = torchvision.models
    for folder in folders:
        place = getattr(place, folder)
    more = {"weights": None} | ({"weights_backbone": None} if folders == ["segmentation"] else {})
    if function in ("googlenet", "inception_v3"):
        more |= {"aux_logits": False, "init_weights": False}
    module, size = getattr(place, function)(**more), TORCHVISION[name]
    for each in module.modules():
        if isinstance(each, torchvision.ops.StochasticDepth):
            each.p = 0.0
    if folders == ["video"]:
        return Built(module, (torch.randn(2, 3, 8, size, size),), {})
    if folders == ["optical_flow"]:
        return Built(module, (torch.rand(1, 3, size, size) * 2 - 1, torch.rand(1, 3, size, size) * 2 - 1), {"num_flow_updates": 2})
    return Built(module, (torch.randn(2, 3, size, size),), {})


# ---- torch_geometric: layers of a kind in a network of two of them, and networks of its own.

_LAYERS: dict[str, dict[str, Any]] = {
    "GCNConv": {}, "SAGEConv": {}, "GATConv": {"heads": 2, "concat": False}, "GATv2Conv": {"heads": 2, "concat": False},
    "TransformerConv": {"heads": 2, "concat": False}, "GraphConv": {}, "TAGConv": {},
    "SGConv": {"K": 2}, "ChebConv": {"K": 2}, "ARMAConv": {}, "LEConv": {}, "ClusterGCNConv": {}, "GENConv": {}, "MFConv": {},
    "ResGatedGraphConv": {}, "SuperGATConv": {"heads": 2, "concat": False},
    "FiLMConv": {}, "EGConv": {"num_heads": 4}, "GeneralConv": {}, "HypergraphConv": {}, "FeaStConv": {"heads": 2},
}
_NETWORKS: dict[str, dict[str, Any]] = {
    "GIN": {}, "PNA": {"aggregators": ["mean", "max"], "scalers": ["identity", "amplification"], "deg": None}, "EdgeCNN": {},
}
TORCH_GEOMETRIC = [*_LAYERS, *_NETWORKS]


class _Layers(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x, edges)), edges)


def _torch_geometric(name: str) -> Built:
    import torch_geometric.nn as geometric
    targets = torch.cat([torch.arange(100), torch.randint(0, 100, (300,))])  # each node has an edge
    x, edges = torch.randn(100, 16), torch.stack([torch.randint(0, 100, (400,)), targets])
    if name in _NETWORKS:
        more = dict(_NETWORKS[name])
        if "deg" in more:
            more["deg"] = torch.bincount(torch.bincount(edges[1], minlength=100))
        return Built(getattr(geometric, name)(16, 32, 2, 8, **more), (x, edges), {})
    layer = getattr(geometric, name)
    return Built(_Layers(layer(16, 32, **_LAYERS[name]), layer(32, 8, **_LAYERS[name])), (x, edges), {})


# ---- all of them

_BUILD = {"transformers": (_transformers, TRANSFORMERS), "timm": (_timm, TIMM), "torchvision": (_torchvision, TORCHVISION),
          "torch_geometric": (_torch_geometric, TORCH_GEOMETRIC)}
NAMES = [f"{library}/{name}" for library, (_, names) in _BUILD.items() for name in names]


TOKENS = 32  # of a text; most architectures bear 128


def build(name: str, tokens: int = TOKENS) -> Built:
    """The architecture `LIBRARY/NAME`, always with the same weights and inputs."""
    library, which = name.split("/")
    torch.manual_seed(0)
    built = _BUILD[library][0](which, *([tokens] if library == "transformers" else []))
    for each in built.module.modules():
        if isinstance(each, nn.modules.dropout._DropoutNd):
            each.p = 0.0
        if isinstance(each, nn.MultiheadAttention):
            each.dropout = 0.0
    return built
