# SPDX-License-Identifier: Apache-2.0
"""A training step (forward, backward, optimiser) as a case of the matrix: model, gradients and optimiser of bench/python/training_models.py
in the hands of eager, of Keirin's backend of torch.compile, or of another backend. Before it is timed it is compared with the same step in
64-bit floats, tensor by tensor, beside eager's own error. It is compared in each process, since each decides for itself what answers; what
is compiled comes from the sitting's cache.
"""

import contextlib
import copy
import sys
from pathlib import Path

import torch
from torch._dynamo.utils import counters

import worker

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
import training_models as models  # noqa: E402

kRaceSeconds = 5  # at most; a clear one takes less than one
kRaces = 2  # until one is undisturbed
kUntilAnswered = 3  # steps: the first is eager's, beside which it is decided
kPeers = {
    "peer:torch.compile": {"backend": "inductor"},
    "peer:torch.compile.reduce-overhead": {"backend": "inductor", "mode": "reduce-overhead"},
}
kSmallPart = 1e-3  # of the largest gradient: one below it may be nothing but roundings


def backend_of(folder: str):
    """Of Keirin's Python package of the side that is measured, and no other one: that of a build folder is registered nowhere."""
    if not folder:
        raise worker.Refusal("unsupported", "this side has no Python package of Keirin")
    sys.path.insert(0, folder)
    try:
        import keirin
        from keirin import _dynamo
    except ImportError as error:
        raise worker.Refusal("unsupported", f"Keirin's Python package in {folder} cannot be loaded: {error}".split("\n")[0]) from error
    if Path(keirin.__file__).parent.parent != Path(folder):
        raise worker.Refusal("unsupported", f"Keirin's Python package comes from {keirin.__file__}, not from {folder}")
    return _dynamo.backend


def how_of(question: dict) -> dict | None:
    variant, mode = question["variant"], question["case"].split("/")[5]
    if variant == "eager":
        return None
    if variant == "auto":
        backend = backend_of(question.get("package", ""))
        options = {"compile": "now", "race_seconds": kRaceSeconds, "mode": mode}
        return {"backend": backend, "options": options | ({"cache_dir": question["cache"]} if question.get("cache") else {})}
    if variant not in kPeers:
        raise worker.Refusal("unsupported", f"{variant} trains no model; eager, auto, {', '.join(kPeers)} do")
    return kPeers[variant]


def prepare(question: dict, device: str) -> tuple:
    """The step, and what an answer to `open` says of it."""
    name, sizes = question["case"].split("/")[:2]
    if name not in models.kModels or sizes != "small":
        raise worker.Refusal("invalid_input", f"no model {name} in size {sizes} is trained; there are {', '.join(models.kModels)}, small")
    if "dropout" in name:
        raise worker.Refusal("unsupported", "what it draws, a step in 64-bit floats does not draw alike: it cannot be verified")
    how = how_of(question)
    torch.manual_seed(0)
    make, sample = models.kModels[name]
    model, (inputs, target) = make().to(device), sample()
    inputs, target = tuple(each.to(device) for each in inputs), target.to(device)
    optimiser = models.optimiser_of(model)
    for _ in range(kRaces):
        torch.compiler.reset()
        counters.clear()
        known = graphs_of(question["variant"])
        step = models.step_of(model, optimiser, inputs, target, how, True)
        try:
            for _ in range(kUntilAnswered):
                step()
        except Exception as error:
            if question["variant"] not in kPeers:
                raise
            raise worker.Refusal("unsupported", f"{type(error).__name__}: {error}".split("\n")[0][:500]) from error  # not offered
        told = told_of(question["variant"], known)
        if not told["disturbed"]:
            break
    if told["disturbed"] and question.get("candidate"):  # which was found before
        raise worker.Refusal("exhausted", f"what answers was not decided: {told['disturbed']}")
    return step, told | {"errors": verify(step, model, optimiser, inputs, target)}


def graphs_of(variant: str) -> list:
    """Of Keirin's backend in this process."""
    if variant != "auto":
        return []
    from keirin import _dynamo

    return _dynamo.graphs()


def told_of(variant: str, known: list) -> dict:
    """What answers, and what is counted, of the graphs that were not known before."""
    told = {"chosen": variant.removeprefix("peer:"), "counts": {}, "fallbacks": [], "disturbed": ""}
    if variant == "eager":
        return told
    counts = told["counts"] = {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}
    if variant != "auto":
        return told
    graphs = [graph for graph in graphs_of(variant) if graph not in known]
    with contextlib.suppress(AttributeError):  # a package of another version keeps that elsewhere
        said = models.answers_of(graphs, 1)
        told["fallbacks"] = [each for each in said if each.startswith("eager: ")]
        told["chosen"] = ", ".join(each for each in said if not each.startswith("eager: ")) or "eager"
        compiled, nodes = models.nodes_of(graphs)
        counts |= {"nodes": nodes, "nodes_compiled": compiled, "nodes_eager": nodes - compiled}
    races = [race for graph in graphs for race in (getattr(graph, "race", None), getattr(graph, "_race", None)) if race]
    told["disturbed"] = next((race["disturbed"] for race in races if race["disturbed"]), "")
    return told


class Twin:
    """A copy of model and optimiser as they stand, in another dtype, that eager trains."""

    def __init__(self, model, optimiser, dtype) -> None:
        self.model = copy.deepcopy(model).to(dtype)
        self.optimiser = models.optimiser_of(self.model)
        self.optimiser.load_state_dict(copy.deepcopy(optimiser.state_dict()))

    def updated_by(self, gradients: dict) -> dict:
        """Its parameters after one step of the optimiser along these gradients."""
        for name, each in self.model.named_parameters():
            each.grad = gradients[name].to(each.dtype) if name in gradients else None
        self.optimiser.step()
        return parameters_of(self.model)


def parameters_of(model) -> dict:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def gradients_of(model) -> dict:
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def step_and_look(step, model) -> tuple:
    """One step: loss and buffers, gradients, parameters after it."""
    loss = step().detach().clone()
    state = {"loss": loss} | {f"buffer {name}": each.clone() for name, each in model.named_buffers() if each.is_floating_point()}
    return state, gradients_of(model), parameters_of(model)


def compare(what: str, mine: dict, eager: dict, exact: dict, exact_for_eager: dict, least: float) -> tuple[float, float]:
    """The worst error and the worst of eager's, each relative to the exact tensor's largest element; that counts as `least` at least.
    Raises where one is too far."""
    if mine.keys() != eager.keys():
        raise worker.Refusal("wrong_result", f"{what} of {', '.join(sorted(mine.keys() ^ eager.keys())[:3])} is there on one side only")
    worst = [0.0, 0.0]
    for name in mine:
        its = worker.error_of(mine[name], exact[name], least)
        own = worker.error_of(eager[name], exact_for_eager[name], least)
        worker.check_error(f"{what} of {name}", its, own, [mine[name].dtype])
        worst = [max(worst[0], its), max(worst[1], own)]
    return worst[0], worst[1]


def verify(step, model, optimiser, inputs, target) -> dict:
    """One more step: loss, buffers and gradients beside those of 64-bit floats, and the parameters after it beside what the optimiser makes
    of the same gradients in 64-bit floats. (Made of the exact gradients they would tell nothing: of a gradient that is all roundings AdamW
    takes the sign.)"""
    exact, eager = Twin(model, optimiser, torch.float64), Twin(model, optimiser, torch.float32)
    after_mine, after_eager = Twin(model, optimiser, torch.float64), Twin(model, optimiser, torch.float64)
    state, gradients, parameters = step_and_look(step, model)
    its_step = models.step_of(eager.model, eager.optimiser, inputs, target, None, False)
    its_state, its_gradients, its_parameters = step_and_look(its_step, eager.model)
    widened = tuple(worker.as_double(each) for each in inputs)
    exact_step = models.step_of(exact.model, exact.optimiser, widened, target, None, False)
    exact_state, exact_gradients, _ = step_and_look(exact_step, exact.model)
    largest = max((each.abs().max().item() for each in exact_gradients.values()), default=0.0)
    pairs = [
        compare("the value", state, its_state, exact_state, exact_state, 0),
        compare("the gradient", gradients, its_gradients, exact_gradients, exact_gradients, kSmallPart * largest),
        compare("the update", parameters, its_parameters, after_mine.updated_by(gradients), after_eager.updated_by(its_gradients), 0),
    ]
    return {"answer": max(mine for mine, _ in pairs), "eager": max(own for _, own in pairs)}
