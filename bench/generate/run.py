# SPDX-License-Identifier: Apache-2.0
"""A decoder that writes text: tokens a second of Keirin, of Python's eager module and of torch.compile, on one machine in one run.

The model is the zoo's `decoder_generate`: a prompt in one call, then one call a token, greedy, on a cache of fixed size that is
changed in place. Keirin's program (bench/generate/generate.cc) reports the referee's judgement of its logits and how far its text
and eager's are the same; Python's sides are timed only, on weights of the same shapes.

    python bench/generate/run.py --device cuda --size full --keirin build/keirin_generate --json generate.json
"""
import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "zoo"))
import export  # noqa: E402
from check import draw  # noqa: E402


def build(size: str, device: str):
    case = (export.kFull if size == "full" else export.kSmall)["decoder_generate"]()
    torch.manual_seed(0)
    torch.set_default_dtype(case.dtype)
    with torch.no_grad(), torch.device(device):
        module = case.build().eval().to(device)
    torch.set_default_dtype(torch.float32)
    return module, case.inputs[0]


def generate(call, prompt: torch.Tensor, count: int) -> tuple[float, float]:
    """Seconds of the prompt, seconds of the tokens after the first."""
    places = torch.arange(prompt.shape[1] + count, device=prompt.device)
    start = time.perf_counter()
    token = call(prompt, places[:prompt.shape[1]]).argmax(-1)
    token.item()
    first, start = time.perf_counter() - start, time.perf_counter()
    for i in range(count - 1):
        at = places[prompt.shape[1] + i].reshape(1).clone()
        token = call(token.view(1, 1), at).argmax(-1)
    token.item()
    return first, time.perf_counter() - start


def python_side(mode: str, module, prompt: torch.Tensor, count: int) -> dict:
    start = time.perf_counter()
    try:
        call = module
        if mode != "eager":
            torch._dynamo.reset()
            compiled = torch.compile(module, mode=None if mode == "default" else mode, dynamic=False)

            def call(tokens, position):
                torch.compiler.cudagraph_mark_step_begin()
                return compiled(tokens, position).clone()  # the next call may write where this one's answer lies
        with torch.no_grad():
            generate(call, prompt, 8)
            built = time.perf_counter() - start
            first, rest = generate(call, prompt, count)
        return {"prompt_ms": first * 1e3, "tokens_per_s": (count - 1) / rest, "compile_s": built}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", choices=["small", "full"], default="small")
    parser.add_argument("--keirin", help="the keirin_generate program; none: Python alone")
    parser.add_argument("--modes", default="eager,default,reduce-overhead", help="comma-separated; eager and modes of torch.compile")
    parser.add_argument("--tokens", type=int, default=0, help="200, or 40 of the small model")
    parser.add_argument("--json")
    options = parser.parse_args()
    count = options.tokens or (200 if options.size == "full" else 40)
    case = (export.kFull if options.size == "full" else export.kSmall)["decoder_generate"]()
    length, vocabulary = case.inputs[0].shape[1], case.inputs[0].rule["high"]
    out = {"schema": "keirin/generate/1", "device": torch.cuda.get_device_name(0) if options.device == "cuda" else "cpu",
           "torch": torch.__version__,
           "prompt": length, "tokens": count, "python": {}}
    if options.keirin:
        model = Path(__file__).resolve().parent.parent / "zoo" / "models" / options.size / "decoder_generate.pt2"
        done = subprocess.run([options.keirin, str(model), options.device, str(length), str(count), str(vocabulary)], capture_output=True,
                              text=True)
        if done.returncode != 0:
            print(done.stderr[-2000:], file=sys.stderr)
            return 1
        out["own"] = json.loads(done.stdout[done.stdout.index("{\"prompt\""):])
    module, tokens = build(options.size, options.device)
    prompt = draw(tokens.rule, list(tokens.shape), tokens.dtype, torch.Generator().manual_seed(0)).to(options.device)
    for mode in options.modes.split(","):
        out["python"][mode] = python_side(mode, module, prompt, count)
    if options.json:
        Path(options.json).write_text(json.dumps(out, indent=1))
    print("| side | prompt ms | tokens/s | over Python's eager | compile s |\n|---|---|---|---|---|")
    base = out["python"].get("eager", {}).get("tokens_per_s")
    sides = [(f"Python, {mode}", side) for mode, side in out["python"].items()]
    if options.keirin:
        sides += [("Keirin, eager", out["own"]["eager"]), ("Keirin, compiled", out["own"]["keirin"])]
    for name, side in sides:
        if "error" in side:
            print(f"| {name} | {side['error']} |")
            continue
        ratio = f"{side['tokens_per_s'] / base:.2f}x" if base else "-"
        print(f"| {name} | {side['prompt_ms']:.2f} | {side['tokens_per_s']:.1f} | {ratio} | {side.get('compile_s', 0):.1f} |")
    if options.keirin:
        own = out["own"]
        print(f"\nFed the same text, {own['same_tokens_fed_the_same']} of {count} tokens are the same; "
              "left alone, the texts are the same for "
              f"{own['same_text_up_to']} tokens; logits beside eager's: {own['logits_beside_eager']:.1e}.")
        for name, report in zip(("the prompt", "a token"), own["reports"]):
            print(f"plan of {name}: {report.get('chosen')}, verified {report.get('verified')}, error {report.get('max_error')} "
                  f"(eager's {report.get('eager_error')})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
