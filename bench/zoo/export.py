# SPDX-License-Identifier: Apache-2.0
"""Exports the zoo: `python export.py` writes every model in all its sizes to models/, or only the names given.

Runs offline, with random weights that are not stored; README.md says how to make the environment. The same versions of the
packages give the same bytes.
"""
import argparse
import time
import warnings
from pathlib import Path

import torch

import archive
import graphs
import language
import others
import strangers
import tables
import unet
import vision
import weights
from case import Case

kSeed = 20260
f32, bf16 = torch.float32, torch.bfloat16
kSmallDecoder = {"layers": 2, "width": 512, "heads": 8, "inner": 1408, "vocabulary": 8000}
kNarrowDecoder = {"layers": 2, "width": 128, "heads": 4, "inner": 352, "vocabulary": 1000}
k7B = {"layers": 8, "width": 4096, "heads": 32, "inner": 11008, "vocabulary": 32000}

# `small` is sized for two CPU cores, `full` for a data-centre GPU, `tiny` for an emulated processor; `others` widens coverage and is sized
# as `small`.
kSmall = {
    "mlp": lambda: tables.mlp(),
    "resnet50": lambda: vision.resnet50(8, f32),
    "resnet50_dynamic": lambda: vision.resnet50(8, f32, dynamic=True),
    "vit_b16": lambda: vision.vit_b16(2, f32),
    "bert": lambda: language.bert(4, 128, 4, f32),
    "bert_dynamic": lambda: language.bert(4, 128, 4, f32, dynamic=True),
    "xlnet": lambda: language.xlnet(2, 128, 2, f32),
    "decoder_prefill": lambda: language.decoder_prefill(1, 64, f32, **kSmallDecoder),
    "decoder_decode": lambda: language.decoder_decode(128, 100, f32, **kSmallDecoder),
    "decoder_generate": lambda: language.decoder_generate(128, 64, f32, **kSmallDecoder),
    "decoder_growing": lambda: language.decoder_growing(9, 20, 128, f32, **kSmallDecoder),
    "gcn": lambda: graphs.gcn(),
    "gat": lambda: graphs.gat(),
    "graph_diffusion": lambda: graphs.graph_diffusion(128, 4),
    "sage": lambda: graphs.sage(2000, 8000),
    "sage_dynamic": lambda: graphs.sage_dynamic(1000, 1500),
    "unet": lambda: unet.unet(1, 32, f32, channels=64, scales=(1, 2, 4), blocks=1, attention_from=1),
    "unet_dynamic": lambda: unet.unet(1, 32, f32, dynamic=True, channels=64, scales=(1, 2, 4), blocks=1, attention_from=1),
    "detector": lambda: vision.detector(256, f32),
    "dlrm": lambda: tables.dlrm(256, 10000, 16, (256, 64), (256, 128)),
    "lstm": lambda: tables.lstm(8, 32, 512, f32),
    "ppo_vit": lambda: vision.ppo_vit(8, 128, 4),
}
kTiny = {
    "mlp": lambda: tables.mlp(),
    "resnet50": lambda: vision.resnet50(1, f32, size=64),
    "vit_b16": lambda: vision.vit(1, 64, f32, num_layers=4, num_heads=3, hidden_dim=192, mlp_dim=768),
    "bert": lambda: language.bert(2, 32, 2, f32, hidden_size=128, num_attention_heads=2, intermediate_size=512),
    "xlnet": lambda: language.xlnet(1, 32, 2, f32, width=128, heads=4),
    "decoder_prefill": lambda: language.decoder_prefill(1, 16, f32, **kNarrowDecoder),
    "decoder_decode": lambda: language.decoder_decode(32, 20, f32, **kNarrowDecoder),
    "gcn": lambda: graphs.gcn(graphs.kFewNodes),
    "gat": lambda: graphs.gat(graphs.kFewNodes),
    "graph_diffusion": lambda: graphs.graph_diffusion(64, 2, graphs.kFewNodes),
    "sage": lambda: graphs.sage(100, 400),
    "unet": lambda: unet.unet(1, 16, f32, channels=32, scales=(1, 2), blocks=1, attention_from=1),
    "dlrm": lambda: tables.dlrm(32, 1000, 16, (64, 32), (64, 32)),
    "lstm": lambda: tables.lstm(1, 4, 64, f32),
    "ppo_vit": lambda: vision.ppo_vit(2, 64, 2),
}
kFull = {
    "resnet50": lambda: vision.resnet50(128, bf16),
    "resnet50_dynamic": lambda: vision.resnet50(128, bf16, dynamic=True),
    "vit_b16": lambda: vision.vit_b16(64, bf16),
    "bert": lambda: language.bert(64, 128, 12, bf16),
    "bert_dynamic": lambda: language.bert(64, 128, 12, bf16, dynamic=True),
    "t5_dynamic": lambda: language.t5(8, 128, bf16),
    "xlnet": lambda: language.xlnet(32, 128, 12, bf16),
    "decoder_prefill": lambda: language.decoder_prefill(4, 512, bf16, **k7B),
    "decoder_decode": lambda: language.decoder_decode(1024, 1000, bf16, **k7B),
    "decoder_generate": lambda: language.decoder_generate(1024, 512, bf16, **k7B | {"layers": 32}),
    "gcn": lambda: graphs.gcn(),
    "gat": lambda: graphs.gat(),
    "graph_diffusion": lambda: graphs.graph_diffusion(256, 6),
    "sage": lambda: graphs.sage(40000, 400000),
    "unet": lambda: unet.unet(4, 64, bf16, channels=320, scales=(1, 2, 4, 4), blocks=2, attention_from=1),
    "dlrm": lambda: tables.dlrm(8192, 100000, 64, (512, 256), (1024, 1024, 512, 256)),
    "lstm": lambda: tables.lstm(64, 128, 1024, bf16),
    "ppo_vit": lambda: vision.ppo_vit(8, 256, 6),
}


kSizes = {"tiny": kTiny, "small": kSmall, "full": kFull, "others": others.kOthers, "strangers": strangers.kStrangers}
kKept = ("tiny", "small", "full", "others")  # in the repository


def export(case: Case, path: Path) -> None:
    model, recorder = weights.build(case.build, case.dtype, kSeed)
    examples = tuple(torch.zeros(i.shape, dtype=i.dtype) for i in case.inputs)
    with torch.no_grad():
        program = torch.export.export(model, examples, dynamic_shapes=case.dynamic_shapes)
    init = {"version": 1, "seed": kSeed, "inputs": [i.rule for i in case.inputs]}
    path.parent.mkdir(parents=True, exist_ok=True)
    archive.write(program, init, lambda name, tensor: weights.rule_of(name, tensor, recorder), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="models to export; all by default")
    parser.add_argument("--size", choices=["tiny", "small", "full", "others", "strangers"], help="only this folder")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "models")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    for size, cases in kSizes.items():
        for name, make in cases.items():
            if size not in ([options.size] if options.size else kKept) or (options.names and name not in options.names):
                continue
            start = time.time()
            path = options.out / size / f"{name}.pt2"
            export(make(), path)
            print(f"{size}/{name}: {path.stat().st_size / 1024:.0f} KiB in {time.time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
