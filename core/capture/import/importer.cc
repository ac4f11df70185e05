// SPDX-License-Identifier: Apache-2.0
//
// The walk over the program's nodes. Numbers (sizes and what is computed from them) are evaluated while importing,
// because a Graph is made for one shape class; tensors become values.
#include "core/capture/import/importer.h"

#include <ATen/TensorUtils.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "abi/planted.h"
#include "core/capture/import/aliases.h"
#include "core/capture/record/recorder.h"
#include "core/eager/at_tensor.h"
#include "core/eager/program/package_ops.h"
#include "core/eager/program/schema_effects.h"
#include "core/eager/program/symbol_ops.h"
#include "core/eager/rows/call_table.h"
#include "core/eager/weights/input_rules.h"
#include "core/ops/aten.h"

namespace keirin {
namespace {

using c10::IValue;
using c10::TypeKind;
using InKind = pt2::InputSpec::Kind;
using OutKind = pt2::OutputSpec::Kind;

struct Entry {
  bool is_tensor = false;
  AliasId alias = 0;
  Dims strides;   // as eager has them where a run was observed, else as the file says
  IValue number;  // int, float, bool or None
};
using Scope = std::unordered_map<std::string, Entry>;

// Operators that show memory and not values: what they answer depends on where their operand lies.
bool reads_memory(const std::string& op) { return op.starts_with("aten::as_strided"); }

// The axes in the order in which memory holds them, the outermost first; nothing if it has gaps or holds an element for several places.
std::optional<Dims> memory_order(const Dims& sizes, const Dims& strides) {
  Dims order(sizes.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::pair(strides[a], sizes[a]) > std::pair(strides[b], sizes[b]);
  });
  int64_t expected = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const int64_t d = order[i];
    if (sizes[d] != 1 && strides[d] != expected) return std::nullopt;
    expected *= sizes[d];
  }
  return order;
}

// Whether tensors of these forms may be made for a try: floats, because what integers mean to an operator (pivots) is not known, and few.
bool may_have_elements(const std::vector<at::Tensor>& forms) {
  constexpr int64_t kMost = 1 << 24;
  return std::all_of(forms.begin(), forms.end(), [](const at::Tensor& form) { return form.is_floating_point() && form.numel() <= kMost; });
}

std::string full_name(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// "aten::add_.Tensor" -> "aten::add.Tensor", "aten::__iand__.Scalar" -> "aten::__and__.Scalar".
std::string functional_name(const c10::OperatorHandle& op) {
  std::string name = op.operator_name().name;
  const std::string& overload = op.operator_name().overload_name;
  if (const size_t i = name.find("::__i"); i != std::string::npos && name.ends_with("__")) {
    name.erase(i + 4, 1);
  } else if (name.ends_with('_')) {
    name.pop_back();
  }
  return overload.empty() ? name : name + "." + overload;
}

// A clone keeps the strides of what is dense; what is expanded, or has gaps, comes out otherwise.
Dims strides_of_clone(const Type& type) {
  return at::empty_strided(type.sizes, type.strides, at::TensorOptions(at::kMeta)).clone().strides().vec();
}

class Importer {
 public:
  Importer(const pt2::Program& program, const WeightTable& weights, Device device, const ObservedRun* seen, SeenAt seen_at)
      : program_(program), weights_(weights), device_(device), seen_(seen), seen_at_(seen_at), builder_(captured_.graph),
        aliases_(builder_) {}

  Result<Captured> run(const std::vector<TensorSpec>& specs) {
    KRN_TRY(bind_inputs(specs));
    note_reads(program_.graph);
    const DeviceMap devices = make_device_map(program_.graph, device_);
    KRN_TRY(add_nodes(program_.graph, devices, scope_));
    KRN_TRY(add_outputs());
    captured_.graph.drop_dead();
    captured_.calls = std::move(calls_);
    return std::move(captured_);
  }

 private:
  Status bind_inputs(const std::vector<TensorSpec>& specs) {
    const InputRules rules(program_);
    std::vector<InputView> views;
    for (size_t i = 0; i < specs.size(); ++i) {
      if (i < rules.names().size() && rules.is_number(i)) {
        return Status(Code::k_unsupported, "input \"" + rules.names()[i] + "\" is a number, not a tensor");
      }
      views.push_back({specs[i].dtype, specs[i].sizes.data(), static_cast<int64_t>(specs[i].sizes.size()), 0});
    }
    KRN_TRY_LET(symbols_, rules.bind(views));
    size_t user = 0;
    for (const pt2::InputSpec& spec : program_.inputs) {
      if (spec.kind == InKind::kUserInput && user < specs.size() && spec.arg.is<pt2::TensorArg>()) {
        const TensorSpec& given = specs[user];
        const std::string& name = spec.arg.get<pt2::TensorArg>()->name;
        const Dims strides = given.strides.empty() ? contiguous_strides(given.sizes) : given.strides;
        const ValueId value =
            captured_.graph.add_input({given.dtype, given.sizes, strides}, static_cast<uint32_t>(user++), name);
        scope_[name] = {true, aliases_.fresh(value, value), strides, {}};
      } else if (const auto* tensor = spec.arg.get<pt2::TensorArg>()) {
        KRN_TRY(add_weight(tensor->name, spec.target));
      } else {
        for (const std::string& name : spec.arg.names()) scope_[name] = {};
      }
    }
    return {};
  }

  Status add_weight(const std::string& name, const std::string& target) {
    const auto position = weights_.find(target);
    if (!position) return Status(Code::k_invalid_input, "weight \"" + target + "\" has no value");
    const Weight& weight = weights_[*position];
    const Tensor& tensor = *weight.tensor;
    const Dims strides(tensor.strides(), tensor.strides() + tensor.rank());
    const auto tied = by_storage_.find({weight.storage, weight.byte_offset});
    if (tied != by_storage_.end() &&
        captured_.graph.type(tied->second.second).sizes == Dims(tensor.sizes(), tensor.sizes() + tensor.rank()) &&
        captured_.graph.type(tied->second.second).strides ==
            strides) {  // one storage, one value: writes are seen by both names
      scope_[name] = {true, tied->second.first, strides, {}};
      return {};
    }
    const Type type{tensor.dtype(), Dims(tensor.sizes(), tensor.sizes() + tensor.rank()), strides};
    const ValueId value = captured_.graph.add_constant(type, *position, ValueKind::kConstant, target);
    const AliasId alias = aliases_.fresh(value, value);
    storages_.emplace(weight.storage, value);
    by_storage_[{weight.storage, weight.byte_offset}] = {alias, value};
    scope_[name] = {true, alias, strides, {}};
    return {};
  }

  // Names of inner graphs are their own; a name that is read in any graph counts as read.
  void note_reads(const pt2::Graph& graph) {
    const auto note = [&](const pt2::Argument& arg) {
      for (std::string& name : arg.names()) read_.insert(std::move(name));
    };
    for (const pt2::Node& node : graph.nodes) {
      for (const pt2::NamedArgument& input : node.inputs) {
        note(input.arg);
        if (const auto* inner = input.arg.get<pt2::GraphArg>()) note_reads(*inner->graph);
      }
    }
    for (const pt2::Argument& output : graph.outputs) note(output);
  }

  Status add_nodes(const pt2::Graph& graph, const DeviceMap& devices, Scope& scope) {
    for (const pt2::Node& node : graph.nodes) {
      Status status;
      KRN_TRY(catch_torch([&] { status = add_node(node, graph, devices, scope); }));
      if (!status.ok()) {
        return std::move(status).at("node " + node.name + " (" + node.target + ")" +
                                    (node.module_path.empty() ? "" : " of " + node.module_path));
      }
    }
    return {};
  }

  Status add_node(const pt2::Node& node, const pt2::Graph& graph, const DeviceMap& devices, Scope& scope) {
    origin_ = node.module_path.empty() ? node.name : node.name + " @ " + node.module_path;
    builder_.set_origin(origin_);
    if (const SymbolOp symbol = find_symbol_op(node.target)) return add_symbol(node, symbol, scope);
    if (node.target.starts_with("torch.ops.higher_order.")) return add_scope(node, devices, scope);
    KRN_TRY_LET(BoundCall call, bind_node(node, graph, devices));
    KRN_TRY_LET(const bool done, add_plumbing(node, call, scope));
    if (done) return {};
    const size_t num_ops = captured_.graph.ops.size();
    KRN_TRY(add_call(node, graph, call, scope));
    keep_whole(node, num_ops);
    return {};
  }

  // What eager's libraries did not round, nobody rounds: of the operators from `first` on.
  void keep_whole(const pt2::Node& node, size_t first) {
    if (seen_ == nullptr || seen_->whole_products.empty()) return;
    for (size_t i = first; i < captured_.graph.ops.size(); ++i) {
      Op& op = captured_.graph.ops[i];
      const bool of_weight = op.code == OpCode::k_conv_grad_weight;
      if (!of_weight && op.code != OpCode::k_conv && op.code != OpCode::k_linear && op.code != OpCode::k_matmul) continue;
      if (seen_->whole_products.contains(whole_product_name(prefix_ + node.name, of_weight ? 1 : 0))) op.set(AttrKey::k_ieee, true);
    }
  }

  // ---- numbers

  Result<IValue> number(const BoundArg& arg, const Scope& scope) const {
    if (arg.kind == BoundArg::Kind::kConstant) return arg.constant;
    const auto entry = scope.find(arg.name);
    if (arg.kind != BoundArg::Kind::kName || entry == scope.end() || entry->second.is_tensor) {
      return Status(Code::k_unsupported, "a number depends on data: " + arg.name);
    }
    return entry->second.number;
  }

  static BoundArg bound(const pt2::Argument& arg) {
    const std::vector<std::string> names = arg.names();
    if (!names.empty()) return {BoundArg::Kind::kName, {}, names[0], false, {}};
    BoundArg out;
    if (const auto* i = arg.get<int64_t>()) out.constant = *i;
    if (const auto* d = arg.get<double>()) out.constant = *d;
    if (const auto* b = arg.get<bool>()) out.constant = *b;
    if (const auto* si = arg.get<pt2::SymIntArg>()) out.constant = si->value;
    if (const auto* sf = arg.get<pt2::SymFloatArg>()) out.constant = sf->value;
    if (const auto* sb = arg.get<pt2::SymBoolArg>()) out.constant = sb->value;
    return out;
  }

  Status add_symbol(const pt2::Node& node, SymbolOp symbol, Scope& scope) {
    std::vector<IValue> operands;
    for (const pt2::NamedArgument& input : node.inputs) {
      KRN_TRY_LET(IValue value, number(bound(input.arg), scope));
      operands.push_back(std::move(value));
    }
    define_number(node, symbol(operands), scope);
    return {};
  }

  static void define_number(const pt2::Node& node, IValue value, Scope& scope) {
    for (const pt2::Argument& output : node.outputs) {
      for (const std::string& name : output.names()) scope[name] = {false, 0, {}, value};
    }
  }

  Result<int64_t> evaluate(const pt2::SymInt& size) const {
    if (size.is_literal()) return size.value;
    auto value = pt2::evaluate_int(*size.expr, symbols_);
    if (value.ok()) return *value;
    return Status(Code::k_unsupported,
                  Message{"the size " + size.expr->text + " depends on data", {}, "the model runs eagerly", {}});
  }

  Result<Type> hint(const pt2::Graph& graph, const std::string& name) const {
    const auto meta = graph.tensor_values.find(name);
    if (meta == graph.tensor_values.end()) return Status(Code::k_corrupt, "value \"" + name + "\" has no type");
    Type type;
    type.dtype = meta->second.dtype;
    for (const pt2::SymInt& size : meta->second.sizes) {
      KRN_TRY_LET(const int64_t value, evaluate(size));
      type.sizes.push_back(value);
    }
    for (const pt2::SymInt& stride : meta->second.strides) {
      KRN_TRY_LET(const int64_t value, evaluate(stride));
      type.strides.push_back(value);
    }
    return type;
  }

  // ---- what is neither a row nor a call

  // Sizes read off tensors, and assertions that are decided here. True if the node is done.
  Result<bool> add_plumbing(const pt2::Node& node, const BoundCall& call, Scope& scope) {
    const std::string& op = call.op.operator_name().name;
    if (op == "aten::sym_size" || op == "aten::sym_stride" || op == "aten::sym_numel") {
      const Entry& entry = scope.at(call.args[0].name);
      KRN_TRY_LET(const ValueId value, aliases_.read(entry.alias));
      const Type& type = captured_.graph.type(value);
      if (op == "aten::sym_numel") {
        define_number(node, type.num_elements(), scope);
        return true;
      }
      if (call.args.size() != 2) return Status(Code::k_unsupported, op + " of all dimensions at once");
      KRN_TRY_LET(const IValue dim, number(call.args[1], scope));
      const Dims& list = op == "aten::sym_size" ? type.sizes : entry.strides;
      const int64_t i = dim.toInt() < 0 ? dim.toInt() + static_cast<int64_t>(list.size()) : dim.toInt();
      define_number(node, list.at(static_cast<size_t>(i)), scope);
      return true;
    }
    if (op == "aten::_assert_scalar") {
      KRN_TRY_LET(const IValue condition, number(call.args[0], scope));
      if (condition.toScalar().toBool()) return true;
      return Status(Code::k_invalid_input,
                    Message{"an assertion of the model fails at these sizes: " + call.args[1].constant.toStringRef(),
                            {},
                            "nothing was run",
                            {}});
    }
    if (is_package_op(op) && call.args.empty()) return true;  // a version that nobody reads
    // Both are true by construction: sizes were checked when the symbols were bound, dtypes when the types were
    // inferred.
    return op == "aten::_assert_tensor_metadata" || op.starts_with("aten::sym_constrain_range");
  }

  // A scope whose flag changes nothing here is its body.
  Status add_scope(const pt2::Node& node, const DeviceMap& devices, Scope& scope) {
    const bool is_grad = node.target.ends_with(".wrap_with_set_grad_enabled");
    const bool is_autocast = node.target.ends_with(".wrap_with_autocast");
    if (is_autocast && node.inputs.size() > 4) {
      const auto* enabled = node.inputs[2].arg.get<bool>();
      if (enabled == nullptr || *enabled) return Status(Code::k_unsupported, "autocast is on inside the model");
    } else if (!is_grad) {
      return Status(Code::k_unsupported, "control flow is not part of a Graph");
    }
    const size_t body_at = is_grad ? 1 : 4;
    const auto* body = node.inputs.size() > body_at ? node.inputs[body_at].arg.get<pt2::GraphArg>() : nullptr;
    if (body == nullptr) return Status(Code::k_corrupt, "the scope lacks its inner graph");
    std::vector<std::string> operands;
    for (size_t i = body_at + 1; i < node.inputs.size(); ++i) {
      for (std::string& name : node.inputs[i].arg.names()) operands.push_back(std::move(name));
    }
    const pt2::Graph& inner = *body->graph;
    if (operands.size() != inner.inputs.size()) return Status(Code::k_unsupported, "a scope that takes literals");
    Scope inside;
    for (size_t i = 0; i < operands.size(); ++i) {
      for (const std::string& name : inner.inputs[i].names()) inside[name] = scope.at(operands[i]);
    }
    const std::string outer = std::exchange(prefix_, prefix_ + node.name + "/");
    KRN_TRY(add_nodes(inner, devices, inside));
    prefix_ = outer;
    std::vector<std::string> results;
    for (const pt2::Argument& output : node.outputs) {
      for (std::string& name : output.names()) results.push_back(std::move(name));
    }
    if (results.size() != inner.outputs.size()) return Status(Code::k_unsupported, "a scope that returns literals");
    for (size_t i = 0; i < results.size(); ++i) {
      for (const std::string& name : inner.outputs[i].names()) scope[results[i]] = inside.at(name);
    }
    return {};
  }

  // ---- calls

  // Names in schema order; a list result stands as its elements.
  struct Results {
    std::vector<std::string> names;
    std::vector<OpaqueCall::Source> sources;
    std::vector<size_t> returns;  // number of the schema's return of each
    std::vector<Type> hints;
    std::vector<std::pair<std::string, int64_t>> numbers;  // sizes, which are none of these
  };

  Result<Results> results_of(const pt2::Node& node, const pt2::Graph& graph) const {
    using Kind = OpaqueCall::Source::Kind;
    Results results;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const pt2::Argument& output = node.outputs[i];
      const bool is_list = output.is<pt2::TensorsArg>() || output.is<pt2::OptionalTensorsArg>();
      const std::vector<std::string> names = output.names();
      const bool is_size = output.is<pt2::SymIntArg>() &&
                           std::ranges::all_of(names, [&](const std::string& name) { return graph.sym_int_values.contains(name); });
      if (!is_list && !is_size && !output.is<pt2::TensorArg>() && !output.is<pt2::NoneArg>()) {
        return Status(Code::k_unsupported, "the operator returns a number that depends on data");
      }
      uint32_t element = 0;
      for (const std::string& name : names) {
        if (is_size) {
          KRN_TRY_LET(const int64_t size, evaluate(graph.sym_int_values.at(name)));
          results.numbers.emplace_back(name, size);
          continue;
        }
        KRN_TRY_LET(Type type, hint(graph, name));
        if (const ObservedValue* seen = observed(name)) {
          if (seen_at_ == SeenAt::kOtherSizes) {
            lay_out_alike(type, *seen);
          } else {
            type.sizes = seen->sizes;  // the file's are a hint: a state of LSTM is filed with an axis that it has not
            type.strides = seen->strides;
          }
        }
        results.names.push_back(name);
        results.sources.push_back({is_list ? Kind::kElement : Kind::kReturn, static_cast<uint32_t>(i), element++});
        results.returns.push_back(i);
        results.hints.push_back(std::move(type));
      }
    }
    return results;
  }

  // Dense, with its axes in the same order of memory; else as the file says.
  static void lay_out_alike(Type& type, const ObservedValue& seen) {
    const std::optional<Dims> order = memory_order(seen.sizes, seen.strides);
    if (!order || order->size() != type.sizes.size()) return;
    int64_t step = 1;
    for (size_t i = order->size(); i-- > 0;) {
      const auto axis = static_cast<size_t>((*order)[i]);
      type.strides[axis] = step;
      step *= std::max<int64_t>(type.sizes[axis], 1);
    }
  }

  Status add_call(const pt2::Node& node, const pt2::Graph& graph, const BoundCall& call, Scope& scope) {
    const c10::FunctionSchema& schema = call.op.schema();
    KRN_TRY_LET(const Results results, results_of(node, graph));
    for (const auto& [name, value] : results.numbers) scope[name] = {false, 0, {}, value};
    const auto is_true = [&](size_t i) {
      return i < call.args.size() && call.args[i].constant.isBool() && call.args[i].constant.toBool();
    };
    std::vector<size_t> written;
    bool hidden = false;  // by no mark of the schema
    for (const size_t i : written_arguments(schema, is_true)) {
      if (call.args[i].kind == BoundArg::Kind::kName) {
        written.push_back(i);
        hidden = hidden || schema.arguments()[i].alias_info() == nullptr;
      }
      if (call.args[i].kind == BoundArg::Kind::kList) return Status(Code::k_unsupported, "the operator writes a list of tensors");
    }
    if (seen_ != nullptr && seen_->overlapping_writes.contains(prefix_ + node.name))
      return Status(Code::k_unsupported, "the operator writes memory that it reads in other places: the result depends on the order");
    if (reads_memory(schema.name())) KRN_TRY(check_memory(call, scope));
    const bool reshapes_in_place = call.op.hasTag(at::Tag::inplace_view);
    std::string why = hidden ? "it writes its running statistics" : "it writes several arguments";
    if (!hidden && written.size() <= 1) {
      KRN_TRY_LET(const auto lowered,
                  lower(call, written.empty() ? full_name(call.op) : functional_name(call.op), results, scope, &why));
      if (lowered) {
        if (written.empty() || reshapes_in_place) return define_results(call, results, *lowered, written, scope);
        if (lowered->size() == 1) return write_back(call.args[written[0]], lowered->at(0), results, scope);
        why = "its functional form returns several results";
      }
    }
    if (reshapes_in_place) return Status(Code::k_unsupported, "the operator changes a tensor's shape in place: " + why);
    if (reads_memory(schema.name())) return Status(Code::k_unsupported, "the operator shows memory and not values: " + why);
    if (written.empty()) {
      KRN_TRY_LET(const bool done, add_parts(node, call, results, scope, &why));
      if (done) return {};
    }
    return add_opaque(call, results, written, why, scope);
  }

  // What LibTorch makes an operator of that has no row (record_parts), and the tensors among its arguments, which are the program's inputs
  // in their order. Nothing where it cannot be had: `why` says it.
  Result<std::optional<pt2::Program>> parts_of(const BoundCall& call, const Results& results, const Scope& scope,
                                               std::vector<Entry>* tensors, std::string* why) {
    const std::optional<pt2::Program> none;
    if (knows_aten_op(full_name(call.op)) || !call.op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return none;
    Slots slots;                     // numbers, and places for the tensors
    std::vector<uint32_t> places;    // of the tensors
    std::vector<at::Tensor> forms;   // of the tensors, without elements
    std::map<std::string, uint32_t> slot_of;
    KRN_TRY_LET(const BoxedCall boxed, make_boxed_call(call, [&](const std::string& name) -> Result<uint32_t> {
                  const auto [at, is_new] = slot_of.emplace(name, static_cast<uint32_t>(slots.size()));
                  if (!is_new) return at->second;
                  const Entry& entry = scope.at(name);
                  slots.push_back(entry.number);
                  if (!entry.is_tensor) return at->second;
                  KRN_TRY_LET(const ValueId value, aliases_.read(entry.alias));
                  const Type& type = captured_.graph.type(value);
                  const Dims strides = entry.strides.empty() ? contiguous_strides(type.sizes) : entry.strides;
                  forms.push_back(at::empty_strided(type.sizes, strides, at::TensorOptions(scalar_type_of(type.dtype)).device(at::kMeta)));
                  places.push_back(at->second);
                  tensors->push_back(entry);
                  return at->second;
                }));
    // Numbers made of integers alone get LibTorch's default dtype between the parts, and fp64 where the operator runs whole in fp64.
    const bool makes_floats =
        std::any_of(results.hints.begin(), results.hints.end(), [](const Type& type) { return is_float(type.dtype); });
    if (makes_floats && std::none_of(forms.begin(), forms.end(), [](const at::Tensor& form) { return form.is_floating_point(); })) {
      *why += ", and it makes floats of integers";
      return none;
    }
    const auto arguments = [&](const std::vector<at::Tensor>& inputs) {
      for (size_t i = 0; i < inputs.size(); ++i) slots[places[i]] = inputs[i];
      torch::jit::Stack stack;
      boxed.operands.push_all(slots, stack);
      return stack;
    };
    Result<pt2::Program> parts = record_parts(call.op, forms, arguments);
    if (!parts.ok() && may_have_elements(forms)) {  // some operators have no kernel for tensors without
      std::vector<at::Tensor> ones;
      for (const at::Tensor& form : forms)
        ones.push_back(at::empty_strided(form.sizes(), form.strides(), form.options().device(at::kCPU)).fill_(1));
      parts = record_parts(call.op, ones, arguments);
    }
    if (parts.ok() && parts->outputs.size() == results.names.size()) return std::optional(std::move(*parts));
    if (!parts.ok()) *why += ", and its parts are not known: " + parts.status().message().what.substr(0, 100);
    return none;
  }

  // An operator without a row that LibTorch writes with others is what it is made of, if every part has rows: one step of LibTorch's is
  // better than several. False: nothing was added, and `why` says what stands in the way.
  Result<bool> add_parts(const pt2::Node& node, const BoundCall& call, const Results& results, Scope& scope, std::string* why) {
    std::vector<Entry> sources;
    KRN_TRY_LET(std::optional<pt2::Program> parts, parts_of(call, results, scope, &sources, why));
    if (!parts) return false;
    for (pt2::Node& part : parts->graph.nodes) part.name = node.name, part.module_path = node.module_path;  // for reports
    Scope inside;
    for (size_t i = 0; i < sources.size(); ++i) inside[parts->graph.inputs[i].names().at(0)] = sources[i];
    // Back to here where a part has no rows, or cannot be imported.
    Aliases::Saved saved = aliases_.save();
    const size_t num_values = captured_.graph.values.size(), num_ops = captured_.graph.ops.size(), num_calls = calls_->calls.size();
    const std::string origin = origin_, prefix = std::exchange(prefix_, prefix_ + node.name + "/");
    note_reads(parts->graph);
    const Status added = add_nodes(parts->graph, make_device_map(parts->graph, device_), inside);
    prefix_ = prefix;
    origin_ = origin;
    builder_.set_origin(origin);
    bool whole = added.ok() && calls_->calls.size() == num_calls;
    std::vector<Entry> entries;
    for (size_t i = 0; whole && i < results.names.size(); ++i) {
      const std::vector<std::string> names = parts->outputs[i].arg.names();
      const auto entry = names.size() == 1 ? inside.find(names[0]) : inside.end();
      whole = entry != inside.end() && entry->second.is_tensor;
      if (!whole) break;
      entries.push_back(entry->second);
      entries.back().strides = results.hints[i].strides;
      // A view where eager made one, and only there.
      const bool is_view = std::any_of(sources.begin(), sources.end(),
                                       [&](const Entry& s) { return aliases_.share_storage(s.alias, entries.back().alias); });
      if (const ObservedValue* seen = observed(results.names[i])) whole = is_view == !seen->view_of.empty();
    }
    if (!whole) {
      if (!added.ok()) *why += ", and a part of it cannot be imported: " + added.message().what;
      for (OpId op = num_ops; op < captured_.graph.ops.size(); ++op)
        if (const Op& part = captured_.graph.ops[op]; part.code == OpCode::kOpaque) {
          *why += ", and its part " + part.s(AttrKey::k_aten) + ": " + captured_.whys[part.call];
          break;
        }
      aliases_.go_back(std::move(saved));
      captured_.graph.values.resize(num_values);
      captured_.graph.ops.resize(num_ops);
      calls_->calls.erase(calls_->calls.begin() + static_cast<ptrdiff_t>(num_calls), calls_->calls.end());
      captured_.whys.resize(num_calls);
      return false;
    }
    for (size_t i = 0; i < entries.size(); ++i) scope[results.names[i]] = entries[i];
    return true;
  }

  // An explicit offset counts from the start of the storage, of which a value knows nothing: the operand has to be all of it.
  Status check_memory(const BoundCall& call, const Scope& scope) const {
    const Entry& entry = scope.at(call.args.at(0).name);
    const auto& parameters = call.op.schema().arguments();
    bool offset = false;
    for (size_t i = 0; i < call.args.size(); ++i)
      offset |=
          parameters[i].name() == "storage_offset" && !(call.args[i].kind == BoundArg::Kind::kConstant && call.args[i].constant.isNone());
    const ObservedValue* seen = observed(call.args[0].name);
    if (offset && (seen == nullptr || !seen->fills_storage))
      return Status(Code::k_unsupported, "the operator reads memory beyond its operand");
    if (!memory_order(captured_.graph.type(aliases_.last_value(entry.alias)).sizes, entry.strides))
      return Status(Code::k_unsupported, "the operator reads memory that is not dense");
    return {};
  }

  // What eager's tensor of these strides holds, in the order of its memory.
  Result<ValueId> memory_of(ValueId value, const Dims& strides) {
    const Type type = captured_.graph.type(value);
    KRN_TRY_LET(value, builder_.permute(value, *memory_order(type.sizes, strides)));
    return builder_.reshape(value, {type.num_elements()});
  }

  const ObservedValue* observed(const std::string& name) const {
    if (seen_ == nullptr) return nullptr;
    const auto found = seen_->values.find(prefix_ + name);
    return found == seen_->values.end() ? nullptr : &found->second;
  }

  Result<std::optional<ValueIds>> lower(const BoundCall& call, const std::string& name, const Results& results, const Scope& scope,
                                        std::string* why) {
    // Rows of products that nobody asks for are what a device would compute instead.
    if (device_.kind != Device::kCpu && name == "aten::_grouped_mm") {
      *why = "LibTorch's kernel for devices computes only what its data asks for";
      return std::optional<ValueIds>();
    }
    std::vector<AtenArg> args;
    std::vector<std::string> names;
    const auto& parameters = call.op.schema().arguments();
    for (size_t i = 0; i < call.args.size(); ++i) {
      KRN_TRY_LET(AtenArg arg, aten_arg(call.args[i], parameters[i].real_type(), scope));
      args.push_back(std::move(arg));
      names.push_back(parameters[i].name());
    }
    if (reads_memory(call.op.schema().name())) {
      const Entry& entry = scope.at(call.args.at(0).name);
      if (entry.strides != contiguous_strides(captured_.graph.type(aliases_.last_value(entry.alias)).sizes)) {
        KRN_TRY_LET(const ValueId value, aliases_.read(entry.alias));
        KRN_TRY_LET(const ValueId memory, memory_of(value, entry.strides));
        args[0] = AtenArg{AtenArg::Value{memory, false}};
      }
    }
    const size_t num_values = captured_.graph.values.size(), num_ops = captured_.graph.ops.size();
    KRN_TRY_LET(auto lowered, lower_aten(builder_, {name, &args, &names, &results.hints, device_.kind != Device::kCpu}, why));
    if (!lowered) return lowered;
    // A result that is None (a gradient that nobody asks for) has no name in the file; the table computes it all the same.
    if (std::all_of(results.sources.begin(), results.sources.end(),
                    [](const OpaqueCall::Source& source) { return source.kind == OpaqueCall::Source::Kind::kReturn; })) {
      ValueIds named;
      for (const size_t i : results.returns) named.push_back(i < lowered->size() ? lowered->at(i) : kNone);
      if (lowered->size() >= results.names.size()) lowered = std::move(named);
    }
    const bool complete = lowered->size() >= results.names.size();
    for (size_t i = 0; i < results.names.size(); ++i) {
      if (complete && (lowered->at(i) != kNone || !read_.contains(results.names[i]))) continue;
      captured_.graph.values.resize(num_values);
      captured_.graph.ops.resize(num_ops);
      *why = "a result is read that the table does not compute";
      return std::optional<ValueIds>();
    }
    return lowered;
  }

  Result<AtenArg> aten_arg(const BoundArg& arg, const c10::TypePtr& type, const Scope& scope) {
    if (arg.kind == BoundArg::Kind::kName) {
      const Entry& entry = scope.at(arg.name);
      if (!entry.is_tensor) return constant_arg(entry.number, type);
      KRN_TRY_LET(const ValueId value, aliases_.read(entry.alias));
      return AtenArg{AtenArg::Value{value, false}};
    }
    if (arg.kind == BoundArg::Kind::kConstant) return constant_arg(arg.constant, type);
    AtenArg::Values tensors;
    Dims ints;
    std::vector<double> doubles;
    for (const BoundArg& item : arg.items) {
      if (item.kind == BoundArg::Kind::kName && scope.at(item.name).is_tensor) {
        KRN_TRY_LET(const ValueId value, aliases_.read(scope.at(item.name).alias));
        tensors.push_back(value);
        continue;
      }
      KRN_TRY_LET(const IValue value, number(item, scope));
      if (value.isInt()) ints.push_back(value.toInt());
      if (value.isDouble()) doubles.push_back(value.toDouble());
      if (value.isNone()) tensors.push_back(kNone);
    }
    if (!ints.empty()) return AtenArg{ints};
    if (!doubles.empty()) return AtenArg{doubles};
    return AtenArg{tensors};
  }

  static AtenArg constant_arg(const IValue& value, const c10::TypePtr& declared) {
    c10::TypePtr type = declared;
    if (type->kind() == TypeKind::OptionalType) type = type->castRaw<c10::OptionalType>()->getElementType();
    if (value.isInt() && type->kind() == TypeKind::ScalarTypeType)
      return {dtype_of(static_cast<at::ScalarType>(value.toInt()))};
    if (value.isInt()) return {value.toInt()};
    if (value.isDouble()) return {value.toDouble()};
    if (value.isBool()) return {value.toBool()};
    if (value.isString()) return {value.toStringRef()};
    if (value.isIntList()) return {value.toIntVector()};
    if (value.isDoubleList()) return {value.toDoubleVector()};
    if (value.isBoolList()) {
      const auto list = value.toBoolList();
      return {std::vector<bool>(list.begin(), list.end())};
    }
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == 0) {  // a wrapped number
      return constant_arg(IValue(value.toTensor().item()), declared);
    }
    if (value.isList() && value.toListRef().empty()) return {AtenArg::Values{}};
    return {AtenArg::None{}};
  }

  // ---- results

  Status define_results(const BoundCall& call, const Results& results, const ValueIds& values,
                        const std::vector<size_t>& written, Scope& scope) {
    for (size_t i = 0; i < results.names.size(); ++i) {
      if (values[i] == kNone) continue;
      KRN_TRY_LET(const std::optional<Entry> source, alias_source(call, results, i, values[i], scope));
      Entry entry{true, 0, results.hints[i].strides, {}};
      entry.alias = source ? aliases_.view(source->alias, values[i]) : aliases_.fresh(values[i]);
      scope[results.names[i]] = entry;
    }
    if (!written.empty())
      scope[call.args[written[0]].name] = scope.at(results.names.at(0));  // the old name has the new shape
    return {};
  }

  // The operand whose storage a result shares in eager; none if it is fresh. Where a run was observed that is known; the rest is for
  // graphs that are imported without one: to find out what inputs are legal, or to compile ahead of the first call.
  Result<std::optional<Entry>> alias_source(const BoundCall& call, const Results& results, size_t result, ValueId value,
                                            const Scope& scope) {
    const std::optional<Entry> none;
    if (const ObservedValue* seen = observed(results.names[result])) {
      if (seen->view_of.empty()) return none;
      return std::optional(scope.at(seen->view_of.substr(prefix_.size())));
    }
    const c10::FunctionSchema& schema = call.op.schema();
    const size_t i = results.returns[result];
    const bool marked = i < schema.returns().size() && schema.returns()[i].alias_info() != nullptr;
    if (!marked && !returns_operand(schema.name())) return none;
    const BoundArg& self = call.args.at(0);
    if (self.kind != BoundArg::Kind::kName || !scope.at(self.name).is_tensor) return none;
    const std::optional<Entry> source = scope.at(self.name);
    KRN_TRY_LET(const ValueId from, aliases_.read(source->alias));
    const bool same = value == from;
    const std::string& op = schema.name();
    if (op.starts_with("aten::to") || returns_operand(op)) return same ? source : none;
    if (op == "aten::contiguous")
      return source->strides == contiguous_strides(captured_.graph.type(from).sizes) ? source : none;
    const bool sized_view = op == "aten::view" && schema.overload_name().empty();
    if (sized_view || op == "aten::reshape" || op == "aten::flatten" || op == "aten::reshape_as" ||
        op == "aten::unflatten") {
      const bool is_view =
          at::detail::computeStride(captured_.graph.type(from).sizes, source->strides, captured_.graph.type(value).sizes)
              .has_value();
      return is_view ? source : none;
    }
    return source;
  }

  // The written operand gets `value` in its own dtype and sizes; the result is the operand.
  Status write_back(const BoundArg& target, ValueId value, const Results& results, Scope& scope) {
    const Entry entry = scope.at(target.name);
    KRN_TRY_LET(const ValueId old, aliases_.read(entry.alias));
    const Type type = captured_.graph.type(old);
    KRN_TRY_LET(value, builder_.cast(value, KRN_PLANTED(write_back_uncast) ? builder_.type(value).dtype : type.dtype));
    KRN_TRY_LET(value, builder_.expand_to(value, type.sizes));
    KRN_TRY(aliases_.write(entry.alias, value));
    for (const std::string& name : results.names) scope[name] = entry;
    return {};
  }

  // ---- opaque

  Status add_opaque(const BoundCall& call, const Results& results, const std::vector<size_t>& written,
                    const std::string& why, Scope& scope) {
    ValueIds operands;
    std::vector<Dims> strides;
    std::map<std::string, uint32_t> slots;
    std::vector<BoundArg> args = call.args;
    const std::function<Status(BoundArg&)> resolve = [&](BoundArg& arg) -> Status {
      for (BoundArg& item : arg.items) KRN_TRY(resolve(item));
      if (arg.kind != BoundArg::Kind::kName) return {};
      const Entry& entry = scope.at(arg.name);
      if (!entry.is_tensor) {
        arg = {BoundArg::Kind::kConstant, arg.wrap ? IValue(wrap_number(entry.number)) : entry.number, {}, false, {}};
        return {};
      }
      if (slots.contains(arg.name)) return {};
      KRN_TRY_LET(const ValueId value, aliases_.read(entry.alias));
      slots[arg.name] = static_cast<uint32_t>(operands.size());
      operands.push_back(value);
      const Dims& sizes = captured_.graph.type(value).sizes;
      strides.push_back(entry.strides.size() == sizes.size() && memory_order(sizes, entry.strides) ? entry.strides : Dims());
      return {};
    };
    for (BoundArg& arg : args) KRN_TRY(resolve(arg));
    KRN_TRY_LET(BoxedCall boxed, make_boxed_call({call.op, args}, [&](const std::string& name) -> Result<uint32_t> {
                  return slots.at(name);
                }));
    OpaqueCall opaque{std::move(boxed), {}, {}, std::move(strides)};
    std::vector<Type> types;
    const c10::FunctionSchema& schema = call.op.schema();
    // A result that is a written argument is that argument's clone; it is not a result of the op.
    const auto returns_written = [&](size_t i) {
      const c10::AliasInfo* info = i < schema.returns().size() ? schema.returns()[i].alias_info() : nullptr;
      return info != nullptr && info->isWrite();
    };
    for (size_t i = 0; i < results.names.size(); ++i) {
      if (returns_written(results.returns[i])) continue;
      opaque.results.push_back(results.sources[i]);
      types.push_back(results.hints[i]);
    }
    const size_t num_returned = types.size();
    for (const size_t arg : written) {
      const auto slot = slots.find(call.args[arg].name);
      if (slot == slots.end()) continue;  // absent optional
      opaque.cloned.push_back(slot->second);
      opaque.results.push_back({OpaqueCall::Source::Kind::kClone, slot->second, 0});
      Type type = captured_.graph.type(operands[slot->second]);
      if (const Dims& lie = opaque.strides[slot->second]; !lie.empty()) type.strides = lie;
      type.strides = strides_of_clone(type);
      types.push_back(std::move(type));
    }
    const std::string name = full_name(call.op);
    const bool effects = call.op.hasTag(at::Tag::nondeterministic_seeded) || types.empty();
    const OpId op =
        captured_.graph.add_op(OpCode::kOpaque, std::move(operands), {{AttrKey::k_aten, name}}, std::move(types));
    captured_.graph.ops[op].call = static_cast<uint32_t>(calls_->calls.size());
    captured_.graph.ops[op].effects = effects;
    captured_.graph.ops[op].origin = origin_;
    captured_.whys.push_back(why);
    calls_->calls.push_back(std::move(opaque));
    return define_opaque(call, results, written, num_returned, op, returns_written, scope);
  }

  Status define_opaque(const BoundCall& call, const Results& results, const std::vector<size_t>& written,
                       size_t num_returned, OpId op, const std::function<bool(size_t)>& returns_written, Scope& scope) {
    const ValueIds values = captured_.graph.ops[op].results;
    size_t next = 0, clone = num_returned;
    for (size_t i = 0; i < results.names.size(); ++i) {
      if (returns_written(results.returns[i])) continue;
      const ValueId value = values[next++];
      KRN_TRY_LET(const std::optional<Entry> source, alias_source(call, results, i, value, scope));
      Entry entry{true, 0, results.hints[i].strides, {}};
      entry.alias = source ? aliases_.view(source->alias, value) : aliases_.fresh(value);
      scope[results.names[i]] = entry;
    }
    std::vector<Entry> targets;
    for (const size_t arg : written) {
      if (call.args[arg].kind != BoundArg::Kind::kName) continue;
      const Entry entry = scope.at(call.args[arg].name);
      KRN_TRY(aliases_.write(entry.alias, values[clone++]));
      targets.push_back(entry);
    }
    size_t target = 0;
    for (size_t i = 0; i < results.names.size(); ++i) {
      if (returns_written(results.returns[i]) && target < targets.size()) scope[results.names[i]] = targets[target++];
    }
    return {};
  }

  // ---- outputs

  Status add_outputs() {
    Graph& graph = captured_.graph;
    std::vector<Output> updates;
    for (const pt2::OutputSpec& spec : program_.outputs) {
      const std::vector<std::string> names = spec.arg.names();
      if (names.size() != 1 || !scope_.contains(names[0])) return Status(Code::k_unsupported, "an output is not a tensor");
      const Entry& entry = scope_.at(names[0]);
      if (!entry.is_tensor) {
        if (!entry.number.isInt()) return Status(Code::k_unsupported, "an output is a number");
        KRN_TRY_LET(const ValueId value, builder_.full_i(entry.number.toInt(), DType::k_i64, {}));
        graph.outputs.push_back({value, kNone, kNone});
        continue;
      }
      KRN_TRY_LET(const ValueId value, aliases_.read(entry.alias));
      if (spec.is_mutation()) {
        KRN_TRY_LET(const ValueId target, root_of(spec));
        updates.push_back({value, target, kNone});
      } else {
        graph.outputs.push_back({value, kNone, aliases_.identity(entry.alias)});
      }
    }
    for (const auto& [root, value] : aliases_.updates()) updates.push_back({value, root, kNone});
    for (const Output& update : updates) {
      for (const auto& [storage, value] : storages_)
        if (value == update.updates && storages_.count(storage) > 1)
          return Status(Code::k_unsupported, "a weight is written that shares memory with another one of another form");
      Value& target = graph.values[update.updates];
      if (target.kind == ValueKind::kConstant) target.kind = ValueKind::kState;
      graph.outputs.push_back(update);
    }
    return {};
  }

  Result<ValueId> root_of(const pt2::OutputSpec& spec) {
    for (const pt2::InputSpec& input : program_.inputs) {
      const bool by_name = spec.kind == OutKind::kUserInputMutation
                               ? input.kind == InKind::kUserInput && input.arg.names() == std::vector{spec.target}
                               : input.kind != InKind::kUserInput && input.target == spec.target;
      if (!by_name || !input.arg.is<pt2::TensorArg>()) continue;
      const ValueId root = aliases_.identity(scope_.at(input.arg.get<pt2::TensorArg>()->name).alias);
      if (root != kNone) return root;
    }
    return Status(Code::k_corrupt, "an output writes \"" + spec.target + "\", which is not an input");
  }

  const pt2::Program& program_;
  const WeightTable& weights_;
  Device device_;
  const ObservedRun* seen_;
  const SeenAt seen_at_;
  std::string prefix_;                       // of the names of the graph at hand in seen_
  Captured captured_;
  std::shared_ptr<CallTable> calls_ = std::make_shared<CallTable>();
  std::string origin_;                       // of the node at hand
  std::unordered_set<std::string> read_;  // values that a node or an output reads
  Builder builder_;
  Aliases aliases_;
  pt2::SymbolValues symbols_;
  Scope scope_;
  std::map<std::pair<uint32_t, int64_t>, std::pair<AliasId, ValueId>> by_storage_;
  std::multimap<uint32_t, ValueId> storages_;  // weights that are values of their own
};

}  // namespace

Result<Captured> import_graph(const pt2::Program& program, const WeightTable& weights,
                              const std::vector<TensorSpec>& input_specs, Device device, const ObservedRun* seen, SeenAt seen_at) {
  Result<Captured> captured = Status(Code::k_internal, "the importer did not run");
  KRN_TRY(catch_torch([&] { captured = Importer(program, weights, device, seen, seen_at).run(input_specs); }));
  return captured;
}

}  // namespace keirin
