# SPDX-License-Identifier: Apache-2.0
"""Training: a graph of Dynamo's that records gradients, as a forward and a backward of ATen operators that the one importer reads.

AOTAutograd writes both down without decompositions, and its min-cut decides what is kept between them; each half is a program with a
session of its own. Calls are eager's, with eager's own backward, until both halves are there, right, and together faster: then whole calls
change over. A forward therefore always meets the backward that was made with it. All tensors are inputs of the programs, weights too: an
optimiser may write them between two calls and nothing is stale.
"""
from __future__ import annotations

import contextlib
import itertools
import logging
import operator
import threading
from typing import Any, Callable, Iterator, NamedTuple

import torch
import torch._functorch.config as functorch_config
import torch.fx
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.exc import RestartAnalysis
from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from keirin import _backwards, _deciding, _draws, _ranks, _recurrent
from keirin._aten import AtenProgram
from keirin._double import Double, DoubleModule, Rounded
from keirin._errors import Error, NotCaptured
from keirin._inputs import check_tensors, device_of
from keirin._layouts import in_channels_last, lay_out_gradients
from keirin._library import device_word, native, words_of
from keirin._plain import plain_of
from keirin._rewrites import (copied, forget_running, keep_casts, rewrite_attention, rewrite_bags, rewrite_counted, rewrite_devices,
                              rewrite_pools)

log = logging.getLogger("keirin")


def _partition(joint: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """By itself the min-cut keeps what a backward's product reads (a gelu's result) beside what it could be made of, which the backward
    needs as well (its operand). Where letting that be computed again keeps much less, it is."""
    rewrite_devices(joint)
    rewrite_attention(joint)
    rewrite_bags(joint)
    rewrite_counted(joint)
    forget_running(joint)
    _backwards.rewrite_answers(joint, kwargs["num_fwd_outputs"])
    keep_casts(joint)
    lay_out_gradients(joint, kwargs["num_fwd_outputs"])
    other = copied(joint)
    halves = min_cut_rematerialization_partition(joint, inputs, **kwargs)
    with functorch_config.patch(ban_recompute_materialized_backward=False):
        leaner = min_cut_rematerialization_partition(other, inputs, **kwargs)
    return leaner if _kept_bytes(leaner[0], kwargs) < 0.8 * _kept_bytes(halves[0], kwargs) else halves


def _kept_bytes(forward: torch.fx.GraphModule, kwargs: dict[str, Any]) -> int:
    """Of what the forward computes for the backward alone."""
    kept = dict.fromkeys(_returned(forward)[kwargs["num_fwd_outputs"]:])
    values = [each.meta["val"] for each in kept if isinstance(each, torch.fx.Node) and each.op != "placeholder"]
    return sum(each.numel() * each.element_size() for each in values if isinstance(each, torch.Tensor))


class Half:
    """Forward or backward: a graph of ATen operators, and the session that answers in its place."""

    def __init__(self, gm: torch.fx.GraphModule, name: str, device: torch.device, options: dict[str, Any]):
        self.gm, self.name = gm, name
        # As the other half knows them.
        self.results = [result.name if isinstance(result, torch.fx.Node) else None for result in _returned(gm)]
        self.draws = _draws.take_out(gm)
        self._draw_all = _draws.all_of(self.draws, device)
        self.plain = plain_of(gm)
        self.inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.callable: Callable[..., Any] = self.plain.forward
        self.how: How | None = None  # what runs it while a step is judged
        self.handle: Any = None
        self.must_vary = 0  # how many of the first results
        self.follows = False  # inputs are what the other half made of its own: logarithms of sums of its products
        self.fixed = threading.local()
        self._options = options

    @property
    def draws_inside(self) -> bool:
        return any(_draws.draws_numbers(node) for node in self.gm.graph.nodes)

    def drawn(self) -> list[torch.Tensor]:
        """In eager's order. What a decision holds fixed is not drawn."""
        fixed = getattr(self.fixed, "drawn", None)
        return self._draw_all() if fixed is None else fixed

    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        """For AOTAutograd: takes its arguments out of the list, so that nobody else holds them."""
        def call(arguments: list[Any]) -> list[Any]:
            if self.how is not None:
                results = self.how(self, [*arguments, *self.drawn()])
            else:
                results = self.callable(*arguments, *self.drawn()) if self.draws else self.callable(*arguments)
            arguments.clear()
            return list(results)
        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def _open(self, arguments: list[Any]) -> None:
        # What was traced says of some operators another dtype than they answer (the statistics of a layer norm under autocast).
        for node, value in zip(self.inputs, arguments):
            fake = node.meta["val"]
            if isinstance(value, torch.Tensor) and value.dtype != fake.dtype:
                node.meta["val"] = fake.to(value.dtype)
        self.program = program = AtenProgram(self.gm)
        self._positions = program.inputs
        # The graph itself answers what the session does not, and owns nothing of this.
        self.callable, self.handle = native.graph_callable(program.roles, program.outputs, self.plain.forward)
        self.model = native.open_program(program.bytes, self.name, [], words_of(self._options), _deciding.progress_of(None))
        self.model.keep_memory_in_place()
        if self.follows:
            self.model.let_inputs_belong_together()
        # What is kept may be a mask, a gradient may be of what nothing depends on; _judge sees to it that something was shown.
        self.model.let_results_be_constant(sum(kind in ("tensor", "number") for kind, _, _ in program.outputs[:self.must_vary]))
        self._decider = _deciding.Decider(self.model, "now", int(self._options.get("max_shapes", 8)))

    def decide(self, arguments: list[Any], patient: bool) -> None:
        """Compiles, verifies and races this half for arguments like these. Raises what keeps it eager."""
        if self.handle is None:
            self._open(arguments)
        self._decider.decide([arguments[i] for i in self._positions], patient)
        self.handle.install(self.model, [], [], [])

    def text(self) -> str:
        if self.handle is None:
            return ""
        return f"{self.name}:\n{self.model.explain()}{self._decider.text()}"


class WrongResult(NotCaptured):
    """What judged the step found it wrong."""


How = Callable[[Half, list[Any]], list[Any]]


def _plain(half: Half, arguments: list[Any]) -> list[Any]:
    return list(half.plain.forward(*arguments))


def _in_double(half: Half, arguments: list[Any]) -> list[Any]:
    return list(Double(half.plain).run(*[Double.widened(each) for each in arguments]))


def _rounded(seed: int, tf32: bool) -> How:
    return lambda half, arguments: list(Rounded(half.plain, seed, tf32).run(*[Double.widened(each) for each in arguments]))


class Answers(NamedTuple):
    """Of one call of a step, by any way to run it."""

    names: list[str]
    values: list[torch.Tensor]  # all it returns and writes, and the gradients
    tangents: dict[int, torch.Tensor]  # the gradients of its results that these are asked with

    def wide_tangents(self) -> dict[int, torch.Tensor]:
        return {i: each.double() for i, each in self.tangents.items()}


def _copies(args: list[Any]) -> list[Any]:
    """Leaves of their own, laid out alike."""
    return [each.detach().clone(memory_format=torch.preserve_format).requires_grad_(each.requires_grad)
            if isinstance(each, torch.Tensor) else each for each in args]


def _wide_copies(args: list[Any]) -> list[Any]:
    """Leaves in 64-bit floats, with channels first: not all of LibTorch's kernels are right where images lie channels-last."""
    return [(each.detach().double() if each.is_floating_point() else each.detach()).clone(memory_format=torch.contiguous_format)
            .requires_grad_(each.requires_grad) if isinstance(each, torch.Tensor) else each for each in args]


class Step:
    """One graph of Dynamo's that records gradients, and what answers its calls. Owned by what Dynamo compiled."""

    _handle = None

    def __init__(self, gm: torch.fx.GraphModule, examples: list[Any], name: str, when: str, memory_budget: float, options: dict[str, Any],
                 unfrozen: Unfrozen):
        self._gm, self._when, self._options, self.name, self._unfrozen = gm, when, options, name, unfrozen
        self._frozen = tuple(i for i, each in enumerate(examples) if isinstance(each, torch.Tensor) and not each.requires_grad)
        self.reason: str | None = None
        self.answered = 0
        self.referee = ""  # why it was not the module itself; empty: it was
        self.race: dict[str, Any] | None = None
        self._notes: list[str] = []
        self._lock = threading.Lock()
        self._met = False
        self._fast: Callable[..., Any] | None = None
        self._halves: dict[str, Half] = {}
        self._metadata: ViewAndMutationMeta | None = None
        self._num_arguments = len(examples)
        check_tensors(examples)
        self._device = device_of(examples)
        self._ambient = self._state_of()
        traced = copied(gm)
        rewrite_pools(traced)
        traced = _backwards.as_operators(_recurrent.as_operators(traced))
        self._moved_back = ""  # why its images do not lie channels-last after all
        self._as_eagers: Callable[[list[Any]], None] | None = None  # traces it once more, laid out as eager's
        if self._captured_channels_last(traced, examples, memory_budget):
            self._as_eagers = lambda args: self._capture(traced, args, memory_budget)
        else:
            self._capture(traced, examples, memory_budget)

    # ---- capture

    def _state_of(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """Autocast as it is around the graph: eager's calls of a decision, on another thread, run under the same."""
        kind = self._device.type
        dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

        @contextlib.contextmanager
        def ambient() -> Iterator[None]:
            with torch.enable_grad(), torch.autocast(kind, dtype=dtype, enabled=enabled):
                yield
        return ambient

    @contextlib.contextmanager
    def _bare(self) -> Iterator[None]:
        """As halves are called, whatever is around the step: the casts of autocast are in them."""
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            yield

    def _captured_channels_last(self, traced: torch.fx.GraphModule, examples: list[Any], memory_budget: float) -> bool:
        other = in_channels_last(traced)
        if other is None:
            return False
        try:
            self._capture(other, examples, memory_budget)
        except RestartAnalysis:
            raise
        except Exception:  # a view of an image that is one with channels first alone
            log.debug("%s cannot be traced channels-last", self.name, exc_info=True)
            self._halves.clear()
            return False
        return True

    def _capture(self, gm: torch.fx.GraphModule, examples: list[Any], memory_budget: float) -> None:
        with functorch_config.patch(activation_memory_budget=memory_budget, enable_autograd_cache=False, donated_buffer=False,
                                    force_non_lazy_backward_lowering=True):
            try:
                self._compiled = aot_module_simplified(gm, examples, fw_compiler=self._take_forward, bw_compiler=self._take_backward,
                                                       inference_compiler=self._take_inference, decompositions={},
                                                       partition_fn=_partition)
            except Exception as error:
                cause: BaseException | None = error
                while cause is not None and not isinstance(cause, (NotCaptured, Error)):
                    cause = cause.__cause__
                raise cause or error
        if len(self._halves) != 2:
            raise NotCaptured("AOTAutograd made no backward of it")
        self.forward, self.backward = self._halves["forward"], self._halves["backward"]
        self.forward.must_vary, self.backward.follows = self._metadata.num_forward, True
        if self._when == "background" and (self.forward.draws_inside or self.backward.draws_inside):
            raise NotCaptured("it draws random numbers that depend on data, whose generator calls beside a decision use: "
                              "compile it with compile=\"now\"")
        self._eager = self._gm if not self.forward.draws else _draws.without_draws(self._gm, self.forward.draws)
        if self._eager is None and self._when == "background":
            raise NotCaptured("it draws random numbers otherwise than inputs could stand for, whose generator calls beside a decision use: "
                              "compile it with compile=\"now\"")

    def _take_forward(self, gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        context = TracingContext.try_get()
        self._metadata = context.fw_metadata if context is not None else None
        if self._metadata is None or len(examples) != self._num_arguments:
            raise NotCaptured("inputs share memory that the graph writes")
        return self._take("forward", gm)

    def _take_backward(self, gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        self._metadata.bw_donated_idxs = []  # nothing that was kept is written: a graph may be kept and run again
        return self._take("backward", gm)

    def _take(self, name: str, gm: torch.fx.GraphModule) -> Callable[..., Any]:
        gm.recompile()
        self._halves[name] = half = Half(gm, f"{self.name} {name}", self._device, self._half_options())
        return half.boxed()

    def _take_inference(self, gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        raise NotCaptured("nothing that the graph returns has a gradient")

    def _half_options(self) -> dict[str, Any]:
        return {"device": device_word(self._device), **self._options, "sample_rate": 0}

    # ---- calls

    def __call__(self, *args: Any) -> Any:
        if native.records(args, self._frozen):
            return self._unfrozen(args)
        if self._fast is not None and not _keeps_for_others():
            self.answered += 1
            return self._fast(*args)
        self._meet(args)
        return self._gm.forward(*args)

    def _meet(self, args: tuple[Any, ...]) -> None:
        if self._when == "asked":
            return
        with self._lock:
            if self._met:
                return
            self._met = True
        own = _copies(list(args))
        if self._when == "background":
            return _deciding.submit(lambda: self._decide(own))
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            self._decide(own)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
            log.info("%s: %s", self.name, text)

    # ---- the decision

    def _decide(self, args: list[Any]) -> None:
        try:
            with self._ambient(), _no_hooks():
                def decide(race: bool) -> bool:
                    try:
                        drawn = self._decide_right(args)
                    except WrongResult as reason:
                        if self._as_eagers is None:
                            raise
                        # Libraries' kernels for images that lie otherwise may round otherwise (TF32), or be wrong.
                        self._moved_back = str(reason)
                        with compile_lock, torch._guards.tracing(TracingContext(None)):
                            self._as_eagers(args)
                        drawn = self._decide_right(args)
                    return not race or self._is_faster(args, drawn)
                if _ranks.agree(_ranks.name_of(self._gm, args), decide):
                    self._fast = self._compiled
                self._as_eagers = None
        except NotCaptured as reason:
            self._note(str(reason))
        except Error as error:
            self._note(error.in_a_line())
        except Exception as error:  # a call is answered whatever happens here
            self._note(f"{type(error).__name__}: {error}".split("\n")[0])
            log.debug("the decision of %s failed", self.name, exc_info=True)

    def _as_node(self) -> Callable[..., Any] | None:
        """The step as one node of autograd's, without AOTAutograd's wrappers around it, if all it returns are new tensors."""
        its, forward, backward = self._metadata, self.forward, self.backward
        results = [node.name if isinstance(node, torch.fx.Node) else None for node in _returned(forward.gm)]
        inputs = {node.name for node in forward.inputs}
        written = list(enumerate(its.mutated_inp_runtime_indices))
        num_written, names = len(written), {name: i for i, name in enumerate(forward.results) if i >= its.num_forward}
        others = (its.num_intermediate_bases, its.num_outputs_aliased, its.tokens, its.num_graphsafe_rng_states,
                  its.num_symints_saved_for_bw, its.num_tensors_saved_with_no_vc_check, its.num_opaque_objects_saved_for_bw,
                  its.num_backward_tokens,
                  its.grad_enabled_mutation is not None, its.num_forward != num_written + its.num_outputs)
        if any(others) or any(kind == "number" for kind, _, _ in (*forward.program.outputs, *backward.program.outputs)):
            return None
        infos = [its.input_info[i] for _, i in written]
        if any(info.requires_grad or info.mutates_metadata or not info.mutates_data for info in infos):
            return None
        if any(name in inputs or name is None for name in results[num_written:its.num_forward]):
            return None
        if {forward.inputs[i].name for _, i in written} & set(results[its.num_forward:]):
            return None  # what is kept would be the old value
        gradients = iter([i for i, info in enumerate(its.output_info) if info.requires_grad])
        kept, operands = list(names.values()), []
        tangents: dict[torch.fx.Node, int] = {}
        for node in backward.inputs:
            if node.name in names:
                operands.append(("kept", kept.index(names[node.name]), False))
                continue
            fake = node.meta["val"]
            last = not fake.is_contiguous()
            if last and not fake.is_contiguous(memory_format=torch.channels_last):
                return None
            tangents[node] = next(gradients)
            operands.append(("gradient", tangents[node], last))
        halves = [(half.model, half.program.outputs, half.plain.forward) for half in (forward, backward)]
        places = [(i, k, not _is_statistic(_returned(forward.gm)[k])) for k, i in written]
        returned, differentiable = list(range(num_written, its.num_forward)), [info.requires_grad for info in its.output_info]
        drawn = forward.drawn if forward.draws else None
        return native.step_callable(*halves, self._num_arguments, places, returned, differentiable, kept, operands,
                                    _sources(backward.gm, tangents), drawn, _again(self._gm, bool(written), bool(forward.draws)))

    def _decide_right(self, args: list[Any]) -> list[torch.Tensor]:
        """Compiles both halves and judges the step; the random numbers that it was given. Raises why it is not compiled."""
        drawn = [draw.aside() for draw in self.forward.draws]
        self._decide_halves([*args, *drawn])
        self._judge(args, drawn)
        return drawn

    def _decide_halves(self, arguments: list[Any]) -> None:
        patient = self._when == "background"
        with self._bare():
            self.forward.decide(arguments, patient)
            kept = dict(zip(self.forward.results, self.forward.callable(*arguments)))
            tangents = itertools.count()
            self.backward.decide([kept[node.name] if node.name in kept else self._tangent(node.meta["val"], next(tangents))
                                  for node in self.backward.inputs], patient)

    def _tangent(self, fake: torch.Tensor, seed: int) -> torch.Tensor:
        """As calls bring it: laid out as in what was traced."""
        generator = torch.Generator(device=self._device).manual_seed(seed)
        drawn = torch.randn(fake.shape, dtype=fake.dtype, device=self._device, generator=generator)
        return drawn if fake.is_contiguous() else torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype,
                                                                      device=self._device).copy_(drawn)

    def _judge(self, args: list[Any], drawn: list[torch.Tensor]) -> None:
        """Compares all that the step returns and writes, and each gradient, with 64-bit floats, beside eager's own error.

        Eager and the 64-bit floats are Dynamo's graph, differentiated by autograd: what traced it has no part in what judges it. Where that
        cannot be, they are what was traced.
        """
        traced, self._compiled = self._compiled, self._as_node() or self._compiled

        def by(how: How, given: dict[int, torch.Tensor] | None) -> Answers:
            copies = _copies(args) if how is _plain else _wide_copies(args)
            with self._held(drawn, how):
                return self._answers(traced, copies, given)

        def eager() -> Answers:
            return self._answers(self._eager.forward, [*_copies(args), *self._factors(drawn)], None)

        def wide(given: dict[int, torch.Tensor]) -> Answers:
            copies = [*_wide_copies(args), *map(Double.widened, self._factors(drawn))]
            with torch.autocast(self._device.type, enabled=False):
                return self._answers(DoubleModule(self._eager).run, copies, given)

        own, referee = None, None
        if self._eager is None or self.forward.draws_inside or self.backward.draws_inside:
            self.referee = "it draws random numbers otherwise than inputs could stand for"
        else:
            own = eager()
            try:
                referee = wide(own.wide_tangents())
            except Exception as error:  # an operator that knows no 64-bit floats, or no memory for them
                self.referee = f"{type(error).__name__}: {error}".split("\n")[0]
        if referee is None:
            own = by(_plain, None)
            try:
                referee = by(_in_double, own.wide_tangents())
            except Exception as error:
                self._note(f"each half was judged by itself, the step was not: {type(error).__name__}: {error}".split("\n")[0])
                return
        with self._held(drawn):
            mine = self._answers(self._compiled, _copies(args), own.tangents)
        if mine.names != own.names:
            raise WrongResult(f"wrong_result: it answers {mine.names}, eager {own.names}")
        exact: list[Answers] = []

        def rounded(seed: int, tf32: bool) -> list[torch.Tensor]:
            """What roundings do to what was traced, done to the referee's."""
            if not exact:
                exact.append(by(_in_double, own.wide_tangents()))
            moved = by(_rounded(seed, tf32), own.wide_tangents())
            return [truth + (off - at) if truth.is_floating_point() else truth
                    for truth, off, at in zip(referee.values, moved.values, exact[0].values)]

        self.judgement = native.judge(referee.values, own.values, mine.values, own.names, self._summands(),
                                      words_of(self._half_options()), rounded)
        if not self.judgement["right"]:
            raise WrongResult("wrong_result: " + self.judgement["reason"])
        if all(row["vacuous"] for row, name in zip(self.judgement["outputs"], own.names) if name.startswith("the gradient")):
            raise NotCaptured("all gradients are constant, which shows nothing of what computes them")

    @contextlib.contextmanager
    def _held(self, drawn: list[torch.Tensor], how: How | None = None) -> Iterator[None]:
        """Calls of the step that draw nothing, whose halves run so."""
        self.forward.fixed.drawn = drawn
        self.forward.how = self.backward.how = how
        try:
            yield
        finally:
            self.forward.fixed.drawn = self.forward.how = self.backward.how = None

    def _answers(self, call: Callable[..., Any], arguments: list[Any], tangents: dict[int, torch.Tensor] | None) -> Answers:
        """`arguments`: leaves, which the call may write. `tangents`: by result; None: some for each that has a gradient."""
        leaves = arguments[:self._num_arguments]
        wanted = [i for i, each in enumerate(leaves) if isinstance(each, torch.Tensor) and each.requires_grad]
        results = list(call(*arguments))
        if tangents is None:
            tensors = [(i, each) for i, each in enumerate(results) if isinstance(each, torch.Tensor)]
            tangents = {i: self._tangent(each, i) for i, each in tensors if each.requires_grad}
        with torch.autocast(self._device.type, enabled=False):
            gradients = torch.autograd.grad([results[i] for i in tangents], [leaves[i] for i in wanted], list(tangents.values()),
                                            allow_unused=True)
        named = {f"output {i}": each for i, each in enumerate(results)}
        named |= {f"what is written of argument {i}": leaves[i] for i in self._metadata.mutated_inp_runtime_indices}
        # Laid out as the leaf, as autograd keeps it.
        named |= {f"the gradient of argument {i}": torch.zeros_like(leaves[i]) if each is None else torch.empty_like(leaves[i]).copy_(each)
                  for i, each in zip(wanted, gradients)}
        kept = {name: each.detach() for name, each in named.items() if isinstance(each, torch.Tensor)}
        return Answers(list(kept), list(kept.values()), tangents)

    def _factors(self, drawn: list[torch.Tensor]) -> list[torch.Tensor]:
        """What eager's graph takes behind its arguments."""
        if self._eager in (None, self._gm):
            return []
        return [draw.factors(each) for draw, each in zip(self.forward.draws, drawn)]

    def _summands(self) -> int:
        """Terms of the longest sum of products."""
        longest = 0
        for half in self._halves.values():
            for node in half.gm.graph.nodes:
                if node.target in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default):
                    longest = max(longest, node.args[-2].meta["val"].shape[-1])
                elif node.target is torch.ops.aten.convolution.default:
                    longest = max(longest, node.args[1].meta["val"].shape[1:].numel())
        return longest

    def _is_faster(self, args: list[Any], drawn: list[torch.Tensor]) -> bool:
        """Forward and backward together, against eager's."""
        force, limit = self._options.get("force", ""), float(self._options.get("race_seconds", 30))
        if force == "eager" or limit <= 0:
            return force == "compiled"
        factors = self._factors(drawn)
        eager = self._eager or self._gm
        leaves = _copies(args)
        wanted = [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
        given: list[torch.Tensor] = []

        def step(call: Callable[..., Any], *more: Any) -> None:
            outputs = [each for each in call(*leaves, *more) if isinstance(each, torch.Tensor) and each.requires_grad]
            given.extend(torch.ones_like(each) for each in outputs[len(given):])
            torch.autograd.grad(outputs, wanted, given, allow_unused=True)

        wait = torch.cuda.synchronize if self._device.type == "cuda" else None
        self.forward.fixed.drawn = drawn if self._eager is not None else None
        try:
            with _deciding.one_at_a_time():
                calls = [("eager", lambda: step(eager.forward, *factors)), ("compiled", lambda: step(self._compiled))]
                self.race = native.race(calls, limit, wait)
        finally:
            self.forward.fixed.drawn = None
        return self.race["winner"] == 1 or force == "compiled"

    def text(self) -> str:
        lines = [f"{self.name}, a training step: {self.answered} calls answered by the compiled step\n"]
        if self._moved_back:
            lines.append(f"laid out as eager's, since with images channels-last: {self._moved_back}\n")
        if self.referee:
            lines.append(f"judged by what was traced, not by the module itself: {self.referee}\n")
        if self.race is not None:
            lines.append(race_text("forward and backward", self.race))
        lines += [f"not compiled: {note}\n" for note in self._notes]
        return "".join(lines) + self.forward.text() + self.backward.text()


class Unfrozen:
    """Calls of one graph in which more arguments record gradients than did when it was traced.

    Dynamo asks that of a call's tensors and not of a module's parameters: a layer that is unfrozen later had no gradient. Each set of
    arguments that record is a step of its own, traced in the call that brings it.
    """

    def __init__(self, gm: torch.fx.GraphModule, most: int, step_of: Callable[[list[Any]], Callable[..., Any]]):
        self._gm, self._most, self._step_of = gm, most, step_of
        self._steps: dict[tuple[int, ...], Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, args: tuple[Any, ...]) -> Any:
        key = tuple(i for i, each in enumerate(args) if isinstance(each, torch.Tensor) and each.requires_grad)
        with self._lock:
            if key not in self._steps and len(self._steps) < self._most:
                with torch._guards.tracing(TracingContext(None)):
                    self._steps[key] = self._step_of(list(args))
        return self._steps.get(key, self._gm.forward)(*args)


def race_text(what: str, race: dict[str, Any]) -> str:
    row = race["rows"][1]
    if row["outcome"] == "disturbed":
        return f"{what}: disturbed, {row['note']}\n"
    return (f"{what}: eager {row['baseline_ns'] / 1e3:.1f} us, compiled {row['ns'] / 1e3:.1f} us, "
            f"{row['gain']:.2f}x [{row['gain_low']:.2f}, {row['gain_high']:.2f}]: {row['outcome']} {row['note']}\n")


def _returned(gm: torch.fx.GraphModule) -> Any:
    return next(node for node in reversed(gm.graph.nodes) if node.op == "output").args[0]


def _is_statistic(node: torch.fx.Node) -> bool:
    """Of a batch norm, whose kernels write it and tell nobody."""
    return node.target is operator.getitem and "batch_norm" in str(node.args[0].target)


def _sources(gm: torch.fx.GraphModule, numbers: dict[torch.fx.Node, int]) -> list[list[int]]:
    """Of each result, the numbers of the inputs that it depends on, of those that have one."""
    reach: dict[torch.fx.Node, frozenset[int]] = {}
    for node in gm.graph.nodes:
        own = frozenset({numbers[node]} if node in numbers else ())
        reach[node] = own.union(*(reach[each] for each in node.all_input_nodes))
    return [sorted(reach[each]) if isinstance(each, torch.fx.Node) else [] for each in _returned(gm)]


def _again(gm: torch.fx.GraphModule, writes: bool, draws: bool) -> Callable[..., Any]:
    """Eager's gradients of a step, for who differentiates them again."""
    def again(arguments: list[torch.Tensor], gradients: list[torch.Tensor]) -> list[torch.Tensor | None]:
        if writes or draws:
            does = "writes its buffers" if writes else "draws random numbers"
            raise RuntimeError(f"a second derivative of a compiled training step that {does}"
                               " is not known, and eager cannot run the step twice: compile it with options={\"force\": \"eager\"}")
        with torch.enable_grad():
            outputs = [each for each in gm.forward(*arguments) if isinstance(each, torch.Tensor)]
            pairs = [(out, gradient) for out, gradient in zip(outputs, gradients) if out.requires_grad and gradient is not None]
            wanted = [each for each in arguments if each.requires_grad]
            found = iter(torch.autograd.grad([out for out, _ in pairs], wanted, [gradient for _, gradient in pairs], create_graph=True,
                                             allow_unused=True))
        return [next(found) if each.requires_grad else None for each in arguments]
    return again


def _keeps_for_others() -> bool:
    """Whether what is saved for the backward goes through somebody's hooks. A checkpoint compares it with what a second forward saves,
    which must not be another one's: under hooks all calls are eager's."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _no_hooks() -> contextlib.AbstractContextManager[Any]:
    """What a decision saves on the caller's thread is not what the caller's hooks are for (a checkpoint counts it)."""
    return torch.autograd.graph.saved_tensors_hooks(*[lambda each: each] * 2) if _keeps_for_others() else contextlib.nullcontext()


class SizedSteps:
    """A graph of Dynamo's whose sizes are symbols: a step for each set of sizes that it is called with, in which they are numbers.

    With symbols a step would be half of one: no node of its own, no mask of dropout whose size is known. Which sizes Dynamo takes for
    symbols depends on what it compiled before, so nothing may hang on it. New sizes are traced in the call that brings them, as Dynamo
    does for a graph.
    """

    _handle = None
    reason = None

    def __init__(self, gm: torch.fx.GraphModule, examples: list[Any], name: str, max_shapes: int,
                 step_of: Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]):
        self._gm, self.name, self._max_shapes, self._step_of = gm, name, max_shapes, step_of
        self._numbers = {i for i, node in enumerate(each for each in gm.graph.nodes if each.op == "placeholder")
                         if isinstance(examples[i], torch.Tensor) and node.users and all(_reads_number(user) for user in node.users)}
        self._tensors = [i for i, each in enumerate(examples) if isinstance(each, torch.Tensor) and i not in self._numbers]
        self._steps: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._others = False  # whether eager answered calls of further sizes
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        values = [each.item() if i in self._numbers else each for i, each in enumerate(args)]
        key = tuple((each.shape, each.stride()) if isinstance(each, torch.Tensor) else each for each in values)
        step = self._steps.get(key) or self._meet(key, values)
        return self._gm.forward(*args) if step is None else step(*[args[i] for i in self._tensors])

    def _meet(self, key: tuple[Any, ...], args: list[Any]) -> Callable[..., Any] | None:
        with self._lock:
            if key not in self._steps:
                if len(self._steps) >= self._max_shapes:
                    self._others = True
                    return None
                with torch._guards.tracing(torch._guards.TracingContext(None)):
                    self._steps[key] = self._step_of(_at_sizes(self._gm, args), [args[i] for i in self._tensors])
            return self._steps[key]

    def text(self) -> str:
        more = f"; {self._max_shapes} were decided (max_shapes), and eager answers calls of others" if self._others else ""
        return f"{self.name}: sizes differ between calls, and each of {len(self._steps)} sets of sizes is a step of its own{more}\n"


def _reads_number(node: torch.fx.Node) -> bool:
    """Dynamo gives a number with a fraction, once it was another one, as a tensor that the graph reads."""
    return node.op == "call_method" and node.target == "item"


def _at_sizes(gm: torch.fx.GraphModule, args: list[Any]) -> torch.fx.GraphModule:
    """A copy that takes the tensors alone: other arguments are numbers, which stand in it as they are in `args`."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, Any] = {}
    arguments = iter(args)
    for node in gm.graph.nodes:
        if node.op == "placeholder" and not isinstance(value := next(arguments), torch.Tensor):
            copies[node] = value
        elif _reads_number(node) and not isinstance(copies[node.args[0]], torch.fx.Node):
            copies[node] = copies[node.args[0]]
        else:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    return torch.fx.GraphModule(gm, graph)
