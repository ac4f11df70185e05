# SPDX-License-Identifier: Apache-2.0
"""torch.compile(model, backend="keirin"): a graph of Dynamo's becomes the program that torch.export writes, which the one importer reads.

Capture runs in the foreground, where Dynamo is; it costs what torch.export does. Weights are not copied: the program takes them as
inputs, and the session holds the caller's own tensors there. Whatever cannot be captured or compiled is answered by the graph itself,
with the reason in keirin.explain(). Graphs that record gradients are _training.py's.
"""
from __future__ import annotations

import itertools
import logging
import operator
import re
import struct
import threading
import weakref
from typing import Any, Callable

import torch
import torch._dynamo.exc
import torch._guards
import torch.fx
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch.fx._lazy_graph_module import _LazyGraphModule

from keirin import _deciding, _recurrent, _training, _updates
from keirin._aten import bytes_of, saved
from keirin._errors import Error, NotCaptured, invalid_input
from keirin._inputs import check_tensors, device_of
from keirin._judged import judged
from keirin._library import device_word, native, words_of
from keirin._lowered import lowered
from keirin._rewrites import say_default_device

log = logging.getLogger("keirin")
_numbers = itertools.count()
_graphs: "weakref.WeakSet[Graph | _training.Step | _training.SizedSteps | Declined]" = weakref.WeakSet()
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div, torch.rsub,
               "add", "sub", "mul", "div")  # methods, as Dynamo writes `x * y` where a default device is set
_MOST_REBINDINGS = 4  # how often a graph is decided again because its weights are others or were written


def _bits_of(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def _value_of(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<q", bits))[0]


def _with_numbers(gm: torch.fx.GraphModule, examples: list[Any]) -> list[Any]:
    """Dynamo hands on numbers that may vary in tensors, with dynamic=True those of a module, as a norm's eps, too. What tensors are
    calculated with may stay one; what an operator takes as a number is the program's."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return [each.item() if isinstance(each, torch.Tensor) and _is_setting(node) else each
            for node, each in zip(placeholders, examples, strict=True)]


def _is_setting(node: torch.fx.Node) -> bool:
    argument = node.meta.get("grapharg")
    if argument is None or not argument.pass_arg_as_tensor or argument.is_tensor:
        return False
    numbers = [user for user in node.users if user.target == "item"]
    return len(numbers) == len(node.users) and any(user.target not in _ARITHMETIC for number in numbers for user in number.users)


class _Program:
    """What a Dynamo graph is once it is a program: its bytes, and where its inputs and results come from."""

    def __init__(self, gm: torch.fx.GraphModule, examples: list[Any], is_update: bool):
        self._is_update = is_update
        self._numel: dict[torch.fx.Node, Any] = {}  # of the program's inputs
        self.roles: list[tuple[str, int]] = []
        self.outputs: list[tuple[str, int, Any]] = []
        self.names: list[str] = []        # of the weights, in the order of their arguments
        self.weights: list[int] = []      # arguments
        self.inputs: list[int] = []       # arguments
        self.positions: dict[int, int] = {}  # argument: position among the program's inputs
        graph = torch.fx.Graph()
        self._copy(gm, graph, examples)
        self.bytes = self._export(torch.fx.GraphModule(gm, graph), examples)

    def let_weights_vary(self, names: list[str] | None = None) -> None:
        """From now on they, or those of these names, are inputs like others, as they are to the file."""
        varying = {i for i, name in zip(self.weights, self.names) if names is None or name in names}
        self.roles = [("input", 0) if i in varying else role for i, role in enumerate(self.roles)]
        self.inputs = sorted([*self.inputs, *varying])
        self.weights, self.names = ([each for i, each in zip(self.weights, of) if i not in varying] for of in (self.weights, self.names))

    def _copy(self, gm: torch.fx.GraphModule, graph: torch.fx.Graph, examples: list[Any]) -> None:
        copies: dict[torch.fx.Node, Any] = {}
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        tensors = [(node, examples[i]) for i, node in enumerate(placeholders) if isinstance(examples[i], torch.Tensor)]
        self.dynamic: list[dict[int, Any]] = []
        for i, node in enumerate(placeholders):
            if not isinstance(examples[i], torch.Tensor):
                continue
            # By a name that reads well: guards of sizes and reports name it.
            word = re.sub(r"\W", "_", _weight_name(node).split(".")[-1])
            copies[node] = graph.placeholder(f"{word if word.isidentifier() else 'x'}_{i}")
            self._numel[copies[node]] = examples[i].numel()
            self.positions[i] = len(self.positions)
            fake = node.meta.get("example_value")
            sizes = fake.shape if isinstance(fake, torch.Tensor) else ()
            self.dynamic.append({d: torch.export.Dim.AUTO for d, size in enumerate(sizes) if isinstance(size, torch.SymInt)})
        for i, node in enumerate(placeholders):
            if isinstance(examples[i], torch.Tensor):
                static = isinstance(examples[i], torch.nn.Parameter) or getattr(examples[i], "_dynamo_static_input_type", None) is not None
                self.roles.append(("weight" if static and not self._is_update and not self.dynamic[self.positions[i]] else "input", 0))
                (self.weights if self.roles[-1][0] == "weight" else self.inputs).append(i)
                if self.roles[-1][0] == "weight":
                    self.names.append(f"{_weight_name(node)}#{i}")
            elif isinstance(examples[i], float):
                copies.update((user, examples[i]) for user in node.users)  # _is_setting: each is its item()
                self.roles.append(("float", _bits_of(examples[i])))
            elif isinstance(examples[i], (int, torch.SymInt)) and not isinstance(examples[i], bool):
                copies[node], role = self._size(graph, copies, node, tensors, examples[i])
                self.roles.append(role)
            else:
                raise NotCaptured(f"the graph takes {node.target}, which is a {type(examples[i]).__name__}")
        for node in gm.graph.nodes:
            if node.op == "placeholder" or node in copies:
                continue
            if node.op == "output":
                self._results(graph, node, copies, placeholders)
            else:
                copies[node] = graph.node_copy(node, lambda n: copies[n])

    def _size(self, graph: torch.fx.Graph, copies: dict[torch.fx.Node, Any], node: torch.fx.Node, tensors: list[Any],
              example: Any) -> tuple[Any, tuple[str, int]]:
        """A number that is the size of an input is read there; any other one is the program's, which then is for this value alone."""
        symbol = node.meta.get("example_value")
        for tensor, _ in tensors:
            fake = tensor.meta.get("example_value")
            if not isinstance(symbol, torch.SymInt) or not isinstance(fake, torch.Tensor):
                continue
            for d, size in enumerate(fake.shape):
                if isinstance(size, torch.SymInt) and size.node.expr == symbol.node.expr:
                    return graph.call_function(torch.ops.aten.sym_size.int, (copies[tensor], d)), ("unused", 0)
        # Not int(): that would have Dynamo compile the graph once for each value.
        value = example.node.hint if isinstance(example, torch.SymInt) else example
        if value is None:
            raise NotCaptured(f"the graph takes {node.target}, a number that depends on data")
        return value, ("number", int(value))

    def _results(self, graph: torch.fx.Graph, node: torch.fx.Node, copies: dict[torch.fx.Node, Any],
                 placeholders: list[torch.fx.Node]) -> None:
        results, returned = node.args[0], []
        for result in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(result, torch.fx.Node) and result.op == "placeholder":
                self.outputs.append(("argument", placeholders.index(result), None))
            elif isinstance(result, torch.fx.Node):
                value = result.meta.get("example_value")
                if not isinstance(value, (torch.Tensor, torch.SymInt)):
                    raise NotCaptured(f"the graph returns {result.name}, which is a {type(value).__name__}")
                self.outputs.append(("tensor" if isinstance(value, torch.Tensor) else "number", len(returned), None))
                returned.append(copies[result])
            elif isinstance(result, (tuple, list, dict)):
                raise NotCaptured("the graph returns a structure inside of its results")
            else:
                self.outputs.append(("object", 0, result))
        if not self._is_update and not any(kind == "tensor" for kind, _, _ in self.outputs):
            raise NotCaptured("the graph computes no tensor that it returns")
        if not returned:  # a file has a result: the smallest of the arguments, which nobody looks at
            returned.append(min((node for node in graph.nodes if node.op == "placeholder"), key=lambda node: self._numel[node]))
        graph.output(tuple(returned))

    def _export(self, gm: torch.fx.GraphModule, examples: list[Any]) -> bytes:
        inputs = tuple(each.detach() for each in examples if isinstance(each, torch.Tensor))
        shapes = tuple(each or None for each in self.dynamic) if any(self.dynamic) else None
        # Not inside of Dynamo's own tracing: the export has fake tensors and symbols of its own.
        with torch._guards.tracing(None), torch.inference_mode(False), torch.no_grad():
            if self._is_update and not shapes:
                try:
                    return bytes_of(gm, *lowered(gm, list(inputs)), writes=True)
                except Exception as reason:  # NotLowered, or what a call does not do without values
                    log.debug("an update is exported as a whole: %s", reason)
            program = torch.export.export(gm, inputs, dynamic_shapes=shapes, strict=False)
            program._example_inputs = None  # they would be written too, the weights among them
            return saved(program)


def _weight_name(node: torch.fx.Node) -> str:
    """The name in a state_dict, from where Dynamo says that the tensor comes from."""
    source = getattr(node, "_dynamo_source", None)
    text = source.name if source is not None and isinstance(source.name, str) else source.name() if source is not None else node.name
    parts = re.findall(r"\['([^']*)'\]|\.(\w+)", text)
    words = [quoted or plain for quoted, plain in parts if (quoted or plain) not in ("_modules", "_parameters", "_buffers")]
    return ".".join(words[1:] if len(words) > 1 else words)


def _device_of(gm: torch.fx.GraphModule, examples: list[Any]) -> torch.device:
    """Of the tensors that it takes, or where it takes none (a mask that is made of sizes alone) of those that it makes."""
    takes_some = any(isinstance(each, torch.Tensor) for each in examples)
    return device_of(examples if takes_some else [node.meta.get("example_value") for node in gm.graph.nodes])


def _marks_of(weights: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Where each lies and how often it was written, as far as that is counted."""
    return [(each.data_ptr(), each._version if not each.is_inference() else 0) for each in weights]


class Graph:
    """One graph of Dynamo's, and what answers its calls."""

    def __init__(self, gm: torch.fx.GraphModule, examples: list[Any], when: str, options: dict[str, Any],
                 unfrozen: _training.Unfrozen | None = None, is_update: bool = False):
        self._gm, self._when, self._options, self._unfrozen, self._is_update = gm, when, options, unfrozen, is_update
        if not is_update:  # whose rates and steps vary
            examples = _with_numbers(gm, examples)
        self._tensors = tuple(i for i, each in enumerate(examples) if isinstance(each, torch.Tensor))
        self._race: dict[str, Any] | None = None
        self.referee = "nothing is decided yet"  # why it was not judged by Dynamo's graph; empty: it was
        self.name = f"graph {next(_numbers)}"
        self.reason: str | None = None
        self._lock = threading.Lock()
        self._bindings: list[_deciding.Decider] = []
        self._handle: Any = None
        self._bound: list[tuple[int, int]] | None = None
        self._moved = False  # its weights were other tensors once
        _graphs.add(self)
        try:
            check_tensors(examples)
            device = _device_of(gm, examples)
            self._refuse(examples, device)
            self._program = _Program(_updates.said_singly(gm, examples) if is_update else gm, examples, is_update)
            self._callable, self._handle = native.graph_callable(self._program.roles, self._program.outputs, self._answer)
            self._bind([examples[i] for i in self._program.weights], device_word(device))
        except Exception as error:
            self._stay_eager(_why_not(error))

    @staticmethod
    def _refuse(examples: list[Any], device: torch.device) -> None:
        kinds = {device.type, *(each.device.type for each in examples if isinstance(each, torch.Tensor))}
        if any(map(torch.is_autocast_enabled, kinds)):
            raise NotCaptured("autocast is on, and is not compiled yet")

    def _stay_eager(self, reason: str) -> None:
        self.reason = reason
        log.warning("%s is answered by eager: %s", self.name, reason)

    def _bind(self, weights: list[torch.Tensor], device: str) -> None:
        """A session over these weights as they are now."""
        held = [(self._program.positions[i], name, tensor) for i, name, tensor in zip(self._program.weights, self._program.names, weights)]
        # No samples: they are compared with eager after the reply, when the caller may have written the weights, and a plugin that
        # was right would be quarantined.
        options = {"device": device, **self._options, "sample_rate": 0}
        has_ranges = self._when == "background" and any(self._program.dynamic) and not self._is_update
        if has_ranges:
            options["compile"] = "background"
        model = native.open_program(self._program.bytes, self.name, held, words_of(options), _deciding.progress_of(None))
        if self._is_update:
            model.keep_memory_in_place()
            model.let_inputs_belong_together()  # a root is taken of what sums of squares keep above zero
        self._bindings.append(_deciding.Decider(model, self._when, int(options.get("max_shapes", 8)), has_ranges))
        self._bound = _marks_of(weights)

    def take_callable(self) -> Callable[..., Any]:
        """For Dynamo, once: what is called owns this graph, and this graph must not own it."""
        callable, self._callable = self._callable, None
        return callable

    def _answer(self, *args: Any) -> Any:
        """What the native callable hands on: calls before the plan is there, of other sizes, with other weights, that record gradients."""
        if self._unfrozen is not None and self._records(args):
            return self._unfrozen(args)
        self._meet(args)
        return self.eager(*args)

    @property
    def eager(self) -> Callable[..., Any]:
        return self._gm.forward

    def _meet(self, args: tuple[Any, ...]) -> None:
        if self.reason:
            return
        try:
            if not self._same_numbers(args) or self._records(args):
                return
            weights = [args[i] for i in self._program.weights]
            bound = _marks_of(weights)
            with self._lock:
                decider = self._bindings[-1]
                state = set((decider.effects or {}).get("written_weights", ()))
                changed = any(a[0] != b[0] or (a[1] != b[1] and name not in state)
                              for a, b, name in zip(bound, self._bound, self._program.names))
                elsewhere = any(a[0] != b[0] for a, b in zip(bound, self._bound))
                if elsewhere and self._moved:
                    # Several modules of one code, as the layers of a model around a graph break, call one graph in turns.
                    decider, weights = self._let_vary(None, args), []
                elif changed:
                    self._moved |= elsewhere
                    if len(self._bindings) > _MOST_REBINDINGS:
                        decider._because(f"its weights changed {_MOST_REBINDINGS} times after they were compiled")
                        return
                    self._handle.uninstall()
                    self._bind(weights, device_word(device_of(list(args))))
                    decider = self._bindings[-1]
            begun = self._ask(decider, weights, args)
            if not begun and self._when == "background" and (written := (decider.effects or {}).get("written_weights")):
                # Calls beside the decision write them. As inputs it has copies of its own, as a plan has the caller's.
                with self._lock:
                    if decider is self._bindings[-1]:
                        decider = self._let_vary(written, args)
                    weights = [args[i] for i in self._program.weights]
                self._ask(decider, weights, args)
        except Exception as error:  # a call is answered whatever happens here
            self._handle.uninstall()
            self._stay_eager(f"{type(error).__name__}: {error}".split("\n")[0])

    def _ask(self, decider: _deciding.Decider, weights: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
        def then(inputs: list[torch.Tensor]) -> None:
            own = list(args)
            for i, each in zip(self._program.inputs, inputs):
                own[i] = each
            self._install(decider, weights, own)
        return decider.meet([args[i] for i in self._program.inputs], then)

    def _let_vary(self, names: list[str] | None, args: tuple[Any, ...]) -> _deciding.Decider:
        """Another session, to which these weights, or all, are inputs."""
        self._program.let_weights_vary(names)
        self._handle.set_roles(self._program.roles)
        self._bind([args[i] for i in self._program.weights], device_word(device_of(list(args))))
        return self._bindings[-1]

    def _records(self, args: tuple[Any, ...]) -> bool:
        return torch.is_grad_enabled() and native.records(args, self._tensors)

    def _same_numbers(self, args: tuple[Any, ...]) -> bool:
        for i, (kind, number) in enumerate(self._program.roles):
            if (kind == "number" and args[i] != number) or (kind == "float" and _bits_of(args[i].item()) != number):
                own = _value_of(number) if kind == "float" else number
                self._bindings[-1]._because(f"argument {i} is a number, and the program was made for {own}: eager answers other ones")
                return False
        return True

    def _install(self, decider: _deciding.Decider, weights: list[torch.Tensor], args: list[Any]) -> None:
        effects = decider.effects or {}
        state = [name in effects.get("written_weights", ()) for name in self._program.names]
        written = [self._program.inputs[i] for i in effects.get("written_inputs", ())]
        if wrong := self._what_is_wrong(decider, weights, args, state, written):
            self._handle.uninstall()  # of another size it was right
            self._stay_eager(wrong)
            return
        if self._is_update and not self._wins(decider.model, written, args):
            return
        with self._lock:
            if decider is self._bindings[-1]:
                self._handle.install(decider.model, weights, state, written)

    def _what_is_wrong(self, decider: _deciding.Decider, weights: list[torch.Tensor], args: list[Any], state: list[bool],
                       written: list[int]) -> str:
        """A session judges by the program that it was given: whether that is Dynamo's graph is found here."""
        if any(state) or (decider.effects or {}).get("draws_random"):
            self.referee = "it writes its weights" if any(state) else "it draws random numbers"
            return ""
        fast, handle = native.graph_callable(self._program.roles, self._program.outputs, self.eager)
        handle.install(decider.model, weights, state, written)

        def captured(*own: Any) -> list[Any]:
            """What the session answers until it has a plan."""
            results = decider.model.call([own[i] for i in self._program.inputs])
            return [results[i] if kind == "tensor" else own[i] if kind == "argument" else value for kind, i, value in self._program.outputs]
        try:
            with _deciding.one_at_a_time():
                wrong, self.referee = judged(self._gm, captured if decider.has_ranges else fast, args, written, self._options)
        except torch.OutOfMemoryError:
            wrong, self.referee = "", "not enough memory"
        except Exception as error:
            wrong = f"it cannot be judged: {type(error).__name__}: {error}".split("\n")[0]
        return wrong

    def _wins(self, model: Any, written: list[int], args: list[Any]) -> bool:
        """An update as a program has more operators than Dynamo's graph, which answers where no plan does: the two are raced on copies."""
        limit, force = float(self._options.get("race_seconds", 30)), self._options.get("force", "")
        if force or limit <= 0:
            return force != "eager"
        fast, handle = native.graph_callable(self._program.roles, self._program.outputs, self.eager)
        handle.install(model, [], [], written)
        own, others = ([each.detach().clone() if isinstance(each, torch.Tensor) else each for each in args] for _ in range(2))
        wait = torch.cuda.synchronize if device_of(args).type == "cuda" else None
        with _deciding.one_at_a_time(), torch.no_grad():
            self._race = native.race([("eager", lambda: self.eager(*own)), ("compiled", lambda: fast(*others))], limit, wait)
        return self._race["winner"] == 1

    def text(self) -> str:
        if self.reason:
            return f"{self.name}: eager: {self.reason}\n"
        decider = self._bindings[-1]
        decided = decider.model.explain()
        raced = _training.race_text("update", self._race) if self._race else ""
        answered = f"{self.name}: {self._handle.answered} calls answered by the runtime\n"
        if self.referee and self._handle.answered:
            answered += f"judged by what was captured, not by the module itself: {self.referee}\n"
        return answered + raced + (decided or "nothing is decided yet\n") + decider.text()


def _why_not(error: Exception) -> str:
    """Why a graph could not be captured. Raises what is the caller's to know: an option that does not exist."""
    if isinstance(error, NotCaptured):
        return str(error)
    if isinstance(error, Error):
        if error.code == "invalid_input" and "option" in str(error).split("\n")[0]:
            raise error
        return error.in_a_line()
    log.debug("a capture failed", exc_info=error)
    return f"capture failed: {type(error).__name__}: {error}".split("\n")[0]  # of torch's, in words of its own


class Declined:
    """A graph that records gradients and stays eager."""

    _handle = None

    def __init__(self, name: str, reason: str):
        self.name, self.reason = name, reason
        log.warning("%s is answered by eager: %s", name, reason)

    def text(self) -> str:
        return f"{self.name}: eager: {self.reason}\n"


def _unfrozen(gm: torch.fx.GraphModule, when: str, memory_budget: float, options: dict[str, Any]) -> _training.Unfrozen:
    return _training.Unfrozen(gm, int(options.get("max_shapes", 8)), lambda examples: _step(gm, examples, when, memory_budget, options))


def _step(gm: torch.fx.GraphModule, examples: list[Any], when: str, memory_budget: float, options: dict[str, Any]) -> Callable[..., Any]:
    name = f"graph {next(_numbers)}"
    if _has_symbols(examples):
        steps = _training.SizedSteps(gm, examples, name, int(options.get("max_shapes", 8)),
                                     lambda gm, examples: _step(gm, examples, when, memory_budget, options))
        _graphs.add(steps)
        return steps
    try:
        step = _training.Step(gm, examples, name, when, memory_budget, options, _unfrozen(gm, when, memory_budget, options))
    except torch._dynamo.exc.RestartAnalysis:  # Dynamo traces again, with a number that it took for constant
        raise
    except Exception as error:
        gm._keirin_graph = declined = Declined(name, _why_not(error))  # lives as long as the graph
        _graphs.add(declined)
        return gm.forward
    _graphs.add(step)
    return step


def _has_symbols(examples: list[Any]) -> bool:
    return any(not isinstance(each, torch.Tensor) or any(isinstance(size, torch.SymInt) for size in (*each.shape, *each.stride()))
               for each in examples)


def backend(gm: torch.fx.GraphModule, example_inputs: list[Any], *, mode: str | None = None,
            options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """What torch.compile calls for each graph.

    `options`: those of docs/options.md; "compile": "background", "now" or "asked"; and for graphs that record gradients "memory_budget":
    the share, 0 to 1, of what eager keeps for the backward that may be kept here; the rest is computed again.
    """
    options = dict(options or {})
    when = options.pop("compile", "background")
    memory_budget = float(options.pop("memory_budget", 1))
    _deciding.check_when(when)
    if not 0 <= memory_budget <= 1:
        raise invalid_input(f"memory_budget is {memory_budget}", "give a number from 0 to 1")
    if mode is not None:
        options.setdefault("mode", {"max-autotune-no-cudagraphs": "max-autotune"}.get(mode, mode))
    native.check_options(words_of(options))
    _LazyGraphModule.force_recompile(gm)  # its forward is called as it is
    say_default_device(gm)
    if torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in example_inputs):
        return _step(gm, example_inputs, when, memory_budget, options)
    if _updates.is_update(gm):
        return _update(gm, example_inputs, when, options)
    graph = Graph(gm, example_inputs, when, options, _unfrozen(gm, when, memory_budget, options))
    if graph.reason is not None:
        gm._keirin_graph = graph  # lives as long as the graph
        return gm.forward
    return graph.take_callable()


def _update(gm: torch.fx.GraphModule, examples: list[Any], when: str, options: dict[str, Any]) -> Callable[..., Any]:
    plain, bound = _updates.with_arguments(gm)
    graph = Graph(plain, [*examples, *bound], when, options, is_update=True)
    if graph.reason is not None:
        gm._keirin_graph = graph
        return gm.forward
    call = graph.take_callable()
    return lambda *args: call(*args, *bound)


def graphs() -> list[Any]:
    return sorted(_graphs, key=lambda graph: int(graph.name.split()[-1]))


class _Recurrent(int):
    """torch._dynamo.config.allow_rnn: true where this backend will get the graph, to which nn.LSTM and nn.GRU are operators. Where
    gradients are recorded they would be unrolled, but for those that training steps call as one operator. What other backends of the
    process compile stays as it was. PyTorch writes its configuration down as JSON, where this is 0."""

    def __bool__(self) -> bool:
        if torch.is_grad_enabled() and not _recurrent.is_one_operator(_recurrent.asked_about()):
            return False
        function = getattr(getattr(InstructionTranslator.current_tx(), "output", None), "compiler_fn", None)
        while function not in (None, backend):  # torch.compile wraps it
            function = getattr(function, "_torchdynamo_orig_backend", None) or getattr(function, "compiler_fn", None)
        return function is backend


if torch._dynamo.config.allow_rnn is False:  # else somebody decided about it
    torch._dynamo.config.allow_rnn = _Recurrent()
