// SPDX-License-Identifier: Apache-2.0
//
// Compiling a graph of the file into steps, and running them.
#include "core/eager/program/frame.h"

#include <ATen/autocast_mode.h>

#include <set>

#include "core/eager/at_tensor.h"
#include "core/eager/program/schema_effects.h"

namespace keirin {
namespace {

using c10::IValue;

constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";

Status unsupported(const pt2::Node& node, std::string what) {
  return Status(Code::k_unsupported,
                Message{std::move(what), "node " + node.name + ", byte " + std::to_string(node.json_byte), {}, {}});
}

// An argument of a higher-order operator or a symbol operation, which have no schema.
std::vector<BoundArg> bind_without_schema(const pt2::Argument& arg) {
  const auto constant = [](IValue value) {
    return BoundArg{BoundArg::Kind::kConstant, std::move(value), {}, false, {}};
  };
  const auto named = [](const std::string& name) { return BoundArg{BoundArg::Kind::kName, {}, name, false, {}}; };
  const auto symbol = [&](const auto& s) { return s.is_name() ? named(s.name) : constant(s.value); };
  std::vector<BoundArg> out;
  if (const auto* tensor = arg.get<pt2::TensorArg>()) {
    out.push_back(named(tensor->name));
  } else if (const auto* tensors = arg.get<pt2::TensorsArg>()) {
    for (const auto& name : tensors->names) out.push_back(named(name));
  } else if (const auto* ints = arg.get<std::vector<pt2::SymIntArg>>()) {
    for (const auto& item : *ints) out.push_back(symbol(item));
  } else if (const auto* numbers = arg.get<std::vector<int64_t>>()) {
    for (const int64_t value : *numbers) out.push_back(constant(value));
  } else if (const auto* sym_int = arg.get<pt2::SymIntArg>()) {
    out.push_back(symbol(*sym_int));
  } else if (const auto* sym_float = arg.get<pt2::SymFloatArg>()) {
    out.push_back(symbol(*sym_float));
  } else if (const auto* sym_bool = arg.get<pt2::SymBoolArg>()) {
    out.push_back(symbol(*sym_bool));
  } else if (const auto* integer = arg.get<int64_t>()) {
    out.push_back(constant(*integer));
  } else if (const auto* real = arg.get<double>()) {
    out.push_back(constant(*real));
  } else if (const auto* truth = arg.get<bool>()) {
    out.push_back(constant(*truth));
  } else if (const auto* text = arg.get<std::string>()) {
    out.push_back(constant(*text));
  } else if (const auto* dtype = arg.get<DType>()) {
    out.push_back(constant(static_cast<int64_t>(scalar_type_of(*dtype))));
  } else if (arg.is<pt2::NoneArg>()) {
    out.push_back(constant({}));
  }
  return out;
}

// The tensors of an argument list, by name, with the dtypes that the file gives them.
void add_tensors(std::vector<OperatorSite::Tensor>& to, const pt2::Argument& arg, const pt2::Graph& graph, const std::string& prefix) {
  for (const std::string& name : arg.names())
    if (const auto meta = graph.tensor_values.find(name); meta != graph.tensor_values.end())
      to.push_back({prefix + name, meta->second.dtype});
}

// The same of a bound argument.
void add_tensors(std::vector<OperatorSite::Tensor>& to, const BoundArg& arg, const pt2::Graph& graph, const std::string& prefix) {
  for (const BoundArg& item : arg.items) add_tensors(to, item, graph, prefix);
  if (arg.kind != BoundArg::Kind::kName) return;
  if (const auto meta = graph.tensor_values.find(arg.name); meta != graph.tensor_values.end())
    to.push_back({prefix + arg.name, meta->second.dtype});
}

bool truth_of(const IValue& value) {
  return value.isTensor() ? value.toTensor().item().toBool() : value.toScalar().toBool();
}

}  // namespace

uint32_t Frame::define(const std::string& name) {
  const auto slot = static_cast<uint32_t>(num_slots_++);
  slot_of_[name] = slot;
  return slot;
}

Status Frame::add_argument(OperandList& operands, const pt2::Argument& arg) {
  for (const BoundArg& bound : bind_without_schema(arg)) {
    KRN_TRY(operands.add(bound, c10::AnyType::get(), [this](const std::string& name) -> Result<uint32_t> {
      const auto slot = slot_of_.find(name);
      if (slot == slot_of_.end()) return Status(Code::k_corrupt, "value \"" + name + "\" is read before it is defined");
      return slot->second;
    }));
  }
  return {};
}

Result<std::unique_ptr<Frame>> Frame::make(const pt2::Graph& graph, const DeviceMap& devices,
                                           const std::set<std::string>& written_after, const pt2::Segments* segments,
                                           const std::string& prefix) {
  auto frame = std::unique_ptr<Frame>(new Frame);
  for (const pt2::Argument& input : graph.inputs) {
    const std::vector<std::string> names = input.names();
    frame->define(names.size() == 1 ? names[0] : std::string());
  }
  frame->num_inputs_ = graph.inputs.size();
  const Making making{graph, devices, prefix, segments, LaterWrites(graph, written_after)};
  for (size_t i = 0; i < graph.nodes.size(); ++i) KRN_TRY(frame->add_node(i, making));
  for (const pt2::Argument& input : graph.inputs)
    for (const std::string& name : input.names())
      if (making.later.ever_of(name)) frame->written_inputs_.push_back(name);
  for (const pt2::Argument& output : graph.outputs) {
    const size_t before = frame->outputs_.size();
    KRN_TRY(frame->add_argument(frame->outputs_, output));
    if (frame->outputs_.size() != before + 1) return Status(Code::k_unsupported, "an output of the graph is a list");
  }
  KRN_TRY(frame->add_stretches(making));
  frame->mark_last_uses();
  return frame;
}

Status Frame::add_stretches(const Making& making) {
  if (making.segments == nullptr) return {};
  for (size_t i = 0; i < making.segments->all.size(); ++i) {
    const pt2::Segment& segment = making.segments->all[i];
    if (segment.graph != &making.graph) continue;
    Stretch stretch{i, segment.first, segment.end, {}, {}, {}, {}, {}};
    const auto add = [&](const std::vector<std::string>& names, std::vector<uint32_t>& slots) -> Status {
      for (const std::string& name : names) {
        const auto slot = slot_of_.find(name);
        if (slot == slot_of_.end()) return Status(Code::k_corrupt, "value \"" + name + "\" is not defined");
        slots.push_back(slot->second);
      }
      return {};
    };
    KRN_TRY(add(segment.tensors, stretch.tensors));
    KRN_TRY(add(segment.numbers, stretch.numbers));
    KRN_TRY(add(segment.tensor_results, stretch.tensor_results));
    KRN_TRY(add(segment.number_results, stretch.number_results));
    stretches_.push_back(std::move(stretch));
  }
  return {};
}

Status Frame::add_node(size_t number, const Making& making) {
  const pt2::Node& node = making.graph.nodes[number];
  writes_ = writes_ || keirin::writes(node);
  Step step;
  step.origin =
      "node " + node.name + " (" + node.target + ")" + (node.module_path.empty() ? "" : " of " + node.module_path);
  if (const SymbolOp symbol = find_symbol_op(node.target)) {
    step.kind = Kind::kSymbol;
    step.symbol = symbol;
    for (const pt2::NamedArgument& input : node.inputs) KRN_TRY(add_argument(step.operands, input.arg));
  } else if (node.target.starts_with(kHigherOrder)) {
    KRN_TRY(add_higher_order(number, making, step));
  } else {
    KRN_TRY_LET(const BoundCall call, bind_node(node, making.graph, making.devices));
    torch::jit::Stack constants;  // an argument that is none is None, which switches nothing off
    for (const BoundArg& arg : call.args) constants.push_back(arg.kind == BoundArg::Kind::kConstant ? arg.constant : IValue());
    if (may_draw_.empty() && keirin::may_draw(call.op, constants)) may_draw_ = call.op.schema().name();
    Care care = care_of(call.op.schema());
    for (const pt2::Argument& output : node.outputs)
      for (const std::string& name : output.names())
        if (care == Care::kStrides && making.later.of(name, number)) care = Care::kNone;
    step.site = OperatorSite{call.op, care, making.prefix + node.name, {}, {}};
    for (const BoundArg& arg : call.args) add_tensors(step.site->operands, arg, making.graph, making.prefix);
    for (const pt2::Argument& output : node.outputs)
      add_tensors(step.site->results, output, making.graph, making.prefix);
    KRN_TRY_LET(BoxedCall boxed, make_boxed_call(call, [this](const std::string& name) -> Result<uint32_t> {
                  const auto slot = slot_of_.find(name);
                  if (slot == slot_of_.end()) return Status(Code::k_corrupt, "value \"" + name + "\" is not defined");
                  return slot->second;
                }));
    step.operands = std::move(boxed.operands);
  }
  KRN_TRY(add_results(node, step));
  steps_.push_back(std::move(step));
  return {};
}

Status Frame::add_higher_order(size_t number, const Making& making, Step& step) {
  const pt2::Node& node = making.graph.nodes[number];
  const std::string name = node.target.substr(kHigherOrder.size());
  size_t num_bodies = 1;
  if (name == "cond") {
    step.kind = Kind::kCond;
    num_bodies = 2;
  } else if (name == "while_loop") {
    step.kind = Kind::kWhile;
    loops_ = true;
    num_bodies = 2;
  } else if (name == "wrap_with_set_grad_enabled") {
    step.kind = Kind::kNoScope;  // gradients are off for the whole run
  } else if (name == "wrap_with_autocast") {
    step.kind = Kind::kAutocast;
  } else {
    return unsupported(node, "higher-order operator " + name + " is not known");
  }
  // What goes in and comes out may be written outside of the inner graph afterwards, or by the next round of a loop.
  bool written_outside = step.kind == Kind::kWhile && keirin::writes(node);
  for (const std::string& name : all_names(node)) written_outside = written_outside || making.later.of(name, number);
  bool first = true;
  for (const pt2::NamedArgument& input : node.inputs) {
    if (const auto* body = input.arg.get<pt2::GraphArg>()) {
      std::set<std::string> written_after;
      for (const auto* list : {&body->graph->inputs, &body->graph->outputs})
        for (const pt2::Argument& each : *list)
          for (std::string& inner : each.names())
            if (written_outside) written_after.insert(std::move(inner));
      KRN_TRY_LET(auto frame,
                  Frame::make(*body->graph, making.devices, written_after, making.segments,
                              making.prefix + node.name + "/"));
      loops_ = loops_ || frame->loops();
      if (may_draw_.empty()) may_draw_ = frame->may_draw();
      step.bodies.push_back(std::move(frame));
    } else if (const auto* type = input.arg.get<std::string>();
               step.kind == Kind::kAutocast && first && type != nullptr) {
      // Follows the file's tensors to their device; for another kind of device it had no effect and has none.
      const DeviceMap& devices = making.devices;
      const bool moves = *type == "cpu" ? devices.cpu_moves : !devices.cpu_moves;
      const std::string to = moves ? c10::DeviceTypeName(devices.map({*type, {}}).type(), /*lower_case=*/true) : *type;
      KRN_TRY(add_argument(step.operands, {pt2::Argument::Value(to)}));
    } else if (step.kind != Kind::kNoScope || !first) {  // the flag of set_grad_enabled is of no use
      KRN_TRY(add_argument(step.operands, input.arg));
    }
    first = false;
  }
  if (step.bodies.size() != num_bodies)
    return unsupported(node, "higher-order operator " + name + " lacks an inner graph");
  const size_t leading = step.kind == Kind::kCond ? 1 : step.kind == Kind::kAutocast ? 4 : 0;
  for (const auto& body : step.bodies) {
    if (step.operands.size() == body->num_inputs() + leading) continue;
    return unsupported(node, "higher-order operator " + name + " passes " +
                                 std::to_string(step.operands.size() - leading) + " operands to an inner graph of " +
                                 std::to_string(body->num_inputs()));
  }
  return {};
}

Status Frame::add_results(const pt2::Node& node, Step& step) {
  const bool flat = step.kind != Kind::kOperator && step.kind != Kind::kSymbol;  // bodies return one value per name
  for (const pt2::Argument& output : node.outputs) {
    const std::vector<std::string> names = output.names();
    const bool is_list = output.is<pt2::TensorsArg>() || output.is<pt2::OptionalTensorsArg>();
    ResultSlots result{is_list && !flat, {}};
    for (const std::string& name : names) result.slots.push_back(define(name));
    if (is_list && flat) {
      for (const uint32_t slot : result.slots) step.results.push_back({false, {slot}});
      continue;
    }
    if (result.slots.empty() && !is_list) result.slots.push_back(kUnused);
    step.results.push_back(std::move(result));
  }
  return {};
}

void Frame::mark_last_uses() {
  std::set<uint32_t> live;
  outputs_.visit_slots([&](Operand& operand) { live.insert(operand.index); });
  auto stretch = stretches_.rbegin();
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    const auto number = static_cast<size_t>(steps_.rend() - step) - 1;
    while (stretch != stretches_.rend() && number < stretch->first) ++stretch;
    const bool inside = stretch != stretches_.rend() && number < stretch->end;
    for (ResultSlots& result : step->results) {
      for (uint32_t& slot : result.slots) {
        if (!live.contains(slot)) slot = kUnused;
      }
    }
    step->operands.visit_slots([&](Operand& operand) {
      const bool last = live.insert(operand.index).second;
      if (last && inside) stretch->dead.push_back(operand.index);
      if (last && operand.kind != Operand::Kind::kWrap) operand.kind = Operand::Kind::kTake;  // a number needs no emptying
    });
  }
}

std::vector<IValue> Frame::run(std::vector<IValue> inputs, const Running& running) const {
  Slots slots = std::move(inputs);
  slots.resize(num_slots_);
  torch::jit::Stack stack;
  stack.reserve(16);
  auto stretch = running.segments != nullptr ? stretches_.begin() : stretches_.end();
  for (size_t i = 0; i < steps_.size();) {
    if (stretch == stretches_.end() || i < stretch->first) {
      run_step(steps_[i++], slots, stack, running);
      continue;
    }
    if (!run_stretch(*stretch, slots, running)) {
      for (; i < stretch->end; ++i) run_step(steps_[i], slots, stack, running);
      running.segments->called(stretch->number);
    }
    i = (stretch++)->end;
  }
  std::vector<IValue> outputs;
  outputs.reserve(outputs_.size());
  outputs_.push_all(slots, outputs);
  return outputs;
}

bool Frame::run_stretch(const Stretch& stretch, Slots& slots, const Running& running) const {
  if (!running.segments->wants(stretch.number)) return false;
  SegmentInputs inputs;
  inputs.tensors.reserve(stretch.tensors.size());
  for (const uint32_t slot : stretch.tensors) {
    if (!slots[slot].isTensor() || !slots[slot].toTensor().defined()) return false;
    inputs.tensors.push_back(from_at(slots[slot].toTensor()));
  }
  for (const uint32_t slot : stretch.numbers) {
    const IValue& value = slots[slot];
    if (value.isInt()) inputs.numbers.emplace_back(value.toInt());
    else if (value.isDouble()) inputs.numbers.emplace_back(value.toDouble());
    else if (value.isBool()) inputs.numbers.emplace_back(value.toBool());
    else
      return false;
  }
  *running.at = steps_[stretch.first].origin;
  SegmentResults results;
  Result<bool> answered = running.segments->answer(stretch.number, inputs, results);
  if (!answered.ok()) throw SegmentFailed{answered.status()};
  if (!*answered) return false;
  TORCH_CHECK(results.tensors.size() == stretch.tensor_results.size(), "a segment returned other tensors");
  TORCH_CHECK(results.numbers.size() == stretch.number_results.size(), "a segment returned other numbers");
  inputs = {};
  for (const uint32_t slot : stretch.dead) slots[slot] = {};
  for (size_t i = 0; i < results.tensors.size(); ++i) slots[stretch.tensor_results[i]] = to_at(results.tensors[i]);
  for (size_t i = 0; i < results.numbers.size(); ++i)
    std::visit([&](auto number) { slots[stretch.number_results[i]] = number; }, results.numbers[i]);
  return true;
}

void Frame::run_step(const Step& step, Slots& slots, torch::jit::Stack& stack, const Running& running) const {
  *running.at = step.origin;
  stack.clear();
  step.operands.push_all(slots, stack);
  const auto tail = [&](size_t from) {
    return std::vector<IValue>(stack.begin() + static_cast<long>(from), stack.end());
  };
  switch (step.kind) {
    case Kind::kOperator:
      if (running.operators != nullptr) running.operators->run(*step.site, stack);
      else
        step.site->call(stack);
      break;
    case Kind::kSymbol: {
      IValue value = step.symbol(stack);
      stack.assign(1, std::move(value));
      break;
    }
    case Kind::kCond: {
      const bool taken = truth_of(stack[0]);
      if (running.segments != nullptr && running.segments->wants_other_branch())
        run_other_branch(step, taken, stack, running);
      stack = step.bodies[taken ? 0 : 1]->run(tail(1), running);
      break;
    }
    case Kind::kWhile:
      run_while(step, stack, running);
      break;
    case Kind::kNoScope:
      stack = step.bodies[0]->run(std::move(stack), running);
      break;
    case Kind::kAutocast:
      run_autocast(step, stack, running);
      break;
  }
  TORCH_CHECK(stack.size() >= step.results.size(), "the operator returned ", stack.size(), " values, the file names ",
              step.results.size());
  for (size_t i = 0; i < step.results.size(); ++i) {
    const ResultSlots& result = step.results[i];
    if (!result.is_list) {
      if (result.slots[0] != kUnused) slots[result.slots[0]] = std::move(stack[i]);
      continue;
    }
    const c10::List<IValue> list = stack[i].toList();
    TORCH_CHECK(list.size() == result.slots.size(), "the operator returned a list of ", list.size(),
                ", the file names ", result.slots.size());
    for (size_t k = 0; k < list.size(); ++k) {
      if (result.slots[k] != kUnused) slots[result.slots[k]] = list.get(k);
    }
  }
}

void Frame::run_other_branch(const Step& step, bool taken, const torch::jit::Stack& stack, const Running& running) {
  const Frame& other = *step.bodies[taken ? 1 : 0];
  if (other.writes() || other.loops()) return;  // a loop may find no end on such data
  try {
    other.run(std::vector<IValue>(stack.begin() + 1, stack.end()), running);
  } catch (...) {  // data that the branch is not for
  }
}

void Frame::run_while(const Step& step, torch::jit::Stack& stack, const Running& running) {
  const size_t carried = step.bodies[1]->num_outputs();
  while (truth_of(step.bodies[0]->run(stack, running).at(0))) {
    std::vector<IValue> next = step.bodies[1]->run(stack, running);
    std::move(next.begin(), next.end(), stack.begin());
  }
  stack.resize(carried);
}

void Frame::run_autocast(const Step& step, torch::jit::Stack& stack, const Running& running) {
  const auto device = c10::Device(stack[0].toStringRef()).type();
  const at::ScalarType dtype = stack[1].isNone() ? at::autocast::get_autocast_dtype(device) : stack[1].toScalarType();
  const bool enabled = stack[2].toBool();
  struct Scope {
    Scope(c10::DeviceType type, at::ScalarType to, bool on)
        : device(type), was_on(at::autocast::is_autocast_enabled(type)), was(at::autocast::get_autocast_dtype(type)) {
      at::autocast::increment_nesting();
      at::autocast::set_autocast_enabled(device, on);
      at::autocast::set_autocast_dtype(device, to);
    }
    ~Scope() {
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(device, was_on);
      at::autocast::set_autocast_dtype(device, was);
    }
    c10::DeviceType device;
    bool was_on;
    at::ScalarType was;
  };
  std::vector<IValue> operands(stack.begin() + 4, stack.end());
  const Scope scope(device, dtype, enabled);
  stack = step.bodies[0]->run(std::move(operands), running);
}

}  // namespace keirin
