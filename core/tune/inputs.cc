// SPDX-License-Identifier: Apache-2.0
#include "core/tune/inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/ir/rows.h"
#include "core/passes/facts.h"
#include "core/tune/elements.h"

namespace keirin {
namespace {

// ---- facts: what a reader of a value needs its elements to be. Walked backwards, merged by strength.

struct Fact {
  enum Strength { kNothing, kMaskLike, kDomain, kOpaqueInteger, kIndex };
  Strength strength = kNothing;
  InputHint hint;
};

enum class Domain { kAll, kPositive, kNonzero };

Domain domain_from(std::string_view name) {
  if (name == "pos" || name == "nonneg") return Domain::kPositive;
  if (name == "nonzero") return Domain::kNonzero;
  return Domain::kAll;
}

// The column `domain` of the operator table.
Domain domain_of(OpCode code) {
  switch (code) {
#define KRN_SCALAR(id, name, arity, dtypes, result, domain, tolerance) \
  case OpCode::k_##name: return domain_from(#domain);
#define KRN_REDUCE(...)
#define KRN_MOVE(...)
#define KRN_FACTORY(...)
#define KRN_COMPOSITE(...)
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
    default: return Domain::kAll;
  }
}

// Operators outside the table that check the numbers they are given: on a GPU by an assertion, which ends the process's use of the
// device. What reaches them is computed, so no input of a model that has one is drawn.
bool refuses_numbers(const Op& op) {
  if (op.code != OpCode::kOpaque) return false;
  const std::string& name = op.s(AttrKey::k_aten);
  for (const char* known : {"binary_cross_entropy", "multinomial", "bernoulli", "poisson", "nll_loss", "cross_entropy_loss", "ctc_loss"})
    if (name.find(std::string("::") + known) != std::string::npos || name.find(std::string("::_") + known) != std::string::npos)
      return name.find("with_logits") == std::string::npos;
  return false;
}

InputHint integers(double low, double high, std::string why) {
  return {InputHint::kIntegers, low, std::max(high, low + 1), std::move(why)};
}

class Facts {
 public:
  explicit Facts(const Graph& graph) : graph_(graph), facts_(graph.values.size()) {
    for (size_t i = graph.ops.size(); i-- > 0;) read_op(graph.ops[i]);
  }

  InputHint hint(ValueId value) const {
    const DType dtype = graph_.type(value).dtype;
    const Fact& fact = facts_[value];
    const bool wants_integers = fact.hint.kind == InputHint::kIntegers || fact.hint.kind == InputHint::kAscending ||
                                fact.hint.kind == InputHint::kArange || fact.hint.kind == InputHint::kMask;
    if (dtype == DType::k_bool) return {InputHint::kMask, 0, 1, "a mask takes both values"};
    if (is_float(dtype)) {
      if (fact.strength != Fact::kNothing && (fact.hint.kind == InputHint::kPositive || wants_integers)) return fact.hint;
      return {InputHint::kNormal, 0, 1, "no fact"};
    }
    if (fact.strength != Fact::kNothing && wants_integers) return fact.hint;
    return dtype_class(dtype) == DTypeClass::i ? integers(0, 8, "no fact: small and not negative")
                                               : InputHint{InputHint::kNormal, 0, 1, "no fact"};
  }

 private:
  int64_t size(ValueId v, int64_t dim) const {
    const Dims& sizes = graph_.type(v).sizes;
    return dim >= 0 && dim < static_cast<int64_t>(sizes.size()) ? sizes[static_cast<size_t>(dim)] : 1;
  }

  void add(ValueId v, Fact::Strength strength, InputHint hint) {
    if (v == kNone) return;
    Fact& fact = facts_[v];
    if (strength > fact.strength) {
      fact = {strength, std::move(hint)};
    } else if (strength == fact.strength && hint.kind == InputHint::kIntegers && fact.hint.kind == InputHint::kIntegers) {
      fact.hint.a = std::max(fact.hint.a, hint.a);  // both readers must be content
      fact.hint.b = std::max(fact.hint.a + 1, std::min(fact.hint.b, hint.b));
      fact.hint.unknown_meaning |= hint.unknown_meaning;
    }
  }

  void pass_on(const Op& op, size_t operand) {
    const Fact& fact = facts_[op.results[0]];
    if (fact.strength != Fact::kNothing && operand < op.operands.size()) add(op.operands[operand], fact.strength, fact.hint);
  }

  bool is_number(ValueId v) const {
    const Op* op = v == kNone || graph_.values[v].producer == kNone ? nullptr : &graph_.ops[graph_.values[v].producer];
    if (op == nullptr) return false;
    return op->code == OpCode::k_full || ((op->code == OpCode::k_expand || op->code == OpCode::k_reshape) && is_number(op->operands[0]));
  }

  // An index computed by arithmetic: smaller operands keep it in range, as far as a walk without values can say. Where it is computed of
  // two (a row and a column), each has a range of its own, which eager checks and nothing here tells.
  void pass_on_smaller(const Op& op) {
    const Fact& fact = facts_[op.results[0]];
    if (fact.strength != Fact::kIndex || fact.hint.kind != InputHint::kIntegers) return;
    InputHint hint = integers(0, std::floor(fact.hint.b * 0.5), fact.hint.why + ", computed");
    hint.unknown_meaning =
        fact.hint.unknown_meaning || std::none_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return is_number(v); });
    for (const ValueId v : op.operands) add(v, Fact::kIndex, hint);
  }

  void index_of(const Op& op, ValueId index, int64_t rows, bool scatters) {
    const std::string why = "index of " + std::string(op_name(op.code)) + ": " + std::to_string(rows) + " rows";
    // Without a reduction two writes to one row have no order: every row once.
    InputHint hint = integers(0, static_cast<double>(rows), why);
    if (scatters && op.s(AttrKey::k_reduce) == "none") hint.kind = InputHint::kArange;
    hint.may_be_refused = only_takes_;
    add(index, Fact::kIndex, std::move(hint));
  }

  void read_op(const Op& op) {
    if (op.results.empty() && op.code != OpCode::kOpaque) return;
    switch (op.code) {
      case OpCode::kOpaque: return read_opaque(op);
      case OpCode::k_take:
      case OpCode::k_gather:
        pass_on(op, 0);
        return index_of(op, op.operands[1], size(op.operands[0], op.i(AttrKey::k_dim)), false);
      case OpCode::k_scatter:
      case OpCode::k_index_reduce:
        return index_of(op, op.operands[1], size(op.operands[0], op.i(AttrKey::k_dim)), true);
      case OpCode::k_embedding_bag: return read_bag(op);
      case OpCode::k_grouped_matmul:
        return add(op.operands[2], Fact::kIndex,
                   {InputHint::kAscending, 1, static_cast<double>(size(op.operands[0], 0)), "ends of the groups of grouped_matmul"});
      case OpCode::k_batch_norm:
        return add(op.operands[4], Fact::kDomain, {InputHint::kPositive, 0, 1, "variance of batch_norm"});
      case OpCode::k_cat:
        for (size_t i = 0; i < op.operands.size(); ++i) pass_on(op, i);
        return;
      case OpCode::k_slice_scatter:
        pass_on(op, 0);
        return pass_on(op, 1);
      case OpCode::k_cast: return read_cast(op);
      case OpCode::k_select:
        pass_on(op, 1);
        return pass_on(op, 2);
      case OpCode::k_cumsum: return read_sums(op);
      case OpCode::k_clamp: return pass_on(op, 0);
      case OpCode::k_maximum:
      case OpCode::k_minimum:
        pass_on(op, 0);
        return pass_on(op, 1);
      case OpCode::k_add: return pass_on_smaller(op);
      case OpCode::k_mul:
        if (facts_[op.results[0]].hint.unknown_meaning) pass_on_smaller(op);
        break;
      case OpCode::k_eq:
      case OpCode::k_ne: return read_comparison(op);
      default: break;
    }
    const OpRow* row = find_row(op.code);
    if (row && row->kind == RowKind::kMove) return pass_on(op, 0);
    read_domain(op);
  }

  void read_opaque(const Op& op) {
    // The smallest axis around bounds what an unknown index may be.
    int64_t least = 8;
    for (const ValueId v : op.operands)
      if (v != kNone)
        for (const int64_t s : graph_.type(v).sizes)
          if (s > 0) least = std::min(least, s);
    for (const ValueId v : op.operands)
      if (v != kNone && is_int(graph_.type(v).dtype)) {
        InputHint hint = integers(0, static_cast<double>(least), "read by " + op.s(AttrKey::k_aten));
        hint.unknown_meaning = true;
        add(v, Fact::kOpaqueInteger, std::move(hint));
      }
  }

  void read_bag(const Op& op) {
    index_of(op, op.operands[1], size(op.operands[0], 0), false);
    if (op.operands.size() < 3 || op.operands[2] == kNone) return;
    const double last = op.b(AttrKey::k_include_last_offset) ? 1 : 0;
    add(op.operands[2], Fact::kIndex,
        {InputHint::kAscending, last, static_cast<double>(graph_.type(op.operands[1]).num_elements()), "offsets of embedding_bag"});
  }

  // Sums that ascend up to a bound are those of terms that are as small as there are many.
  void read_sums(const Op& op) {
    const Fact& fact = facts_[op.results[0]];
    if (fact.strength != Fact::kIndex || fact.hint.kind != InputHint::kAscending) return pass_on(op, 0);
    const int64_t terms = std::max<int64_t>(size(op.operands[0], op.i(AttrKey::k_dim)), 1);
    add(op.operands[0], Fact::kIndex, integers(0, std::floor(fact.hint.b / static_cast<double>(terms)) + 1, fact.hint.why + ", summed"));
  }

  void read_cast(const Op& op) {
    pass_on(op, 0);
    const DType from = graph_.type(op.operands[0]).dtype, to = graph_.type(op.results[0]).dtype;
    if (is_int(from) && !is_int(to))
      add(op.operands[0], Fact::kMaskLike, {InputHint::kMask, 0, 1, "an integer read as a mask"});
  }

  void read_comparison(const Op& op) {
    for (const ValueId v : op.operands)
      if (is_int(graph_.type(v).dtype)) add(v, Fact::kMaskLike, {InputHint::kMask, 0, 1, "an integer read as a mask"});
  }

  void read_domain(const Op& op) {
    const Domain domain = domain_of(op.code);
    if (domain == Domain::kAll) return;
    const size_t operand = domain == Domain::kNonzero && op.operands.size() > 1 ? 1 : 0;
    add(op.operands[operand], Fact::kDomain,
        {InputHint::kPositive, 0, 1, "domain of " + std::string(op_name(op.code))});
  }

  static bool reads_index_unchecked(const Op& op) {
    return op.code == OpCode::k_gather || op.code == OpCode::k_scatter || op.code == OpCode::k_index_reduce ||
           op.code == OpCode::k_embedding_bag || op.code == OpCode::k_grouped_matmul || op.code == OpCode::kOpaque;
  }

  const Graph& graph_;
  const bool only_takes_ = std::none_of(graph_.ops.begin(), graph_.ops.end(), reads_index_unchecked);  // of all that reads an index
  std::vector<Fact> facts_;
};

// ---- values

// SplitMix64: a counter through a bijection, so that streams of different seeds do not meet.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  void skip(uint64_t numbers) { state_ += numbers * kStep; }
  uint64_t next() {
    uint64_t z = (state_ += kStep);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  double normal() {
    const double radius = std::sqrt(-2 * std::log1p(-uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15ull;
  uint64_t state_;
};

double edge_value(DType dtype, int64_t i) {
  if (!is_float(dtype)) {
    const double values[] = {0, 1, static_cast<double>(largest_integer(dtype)), dtype == DType::k_u8 ? 255.0 : -1.0};
    return values[i % 4];
  }
  const double inf = std::numeric_limits<double>::infinity();
  const double largest = dtype == DType::k_f16 ? 65504.0 : dtype == DType::k_f64 ? 1.7976931348623157e308 : 3.3895e38;
  const double values[] = {0.0, -0.0, 1, std::nan(""), inf, -inf, largest, -largest, ulp_at(dtype, 0)};
  return values[i % 9];
}

// How many random numbers the elements before element `i` take.
uint64_t numbers_before(const InputHint& hint, int64_t i) {
  switch (hint.kind) {
    case InputHint::kNormal:
    case InputHint::kPositive: return 2 * static_cast<uint64_t>(i);
    case InputHint::kUniform:
    case InputHint::kIntegers: return static_cast<uint64_t>(i);
    case InputHint::kMask: return static_cast<uint64_t>(std::max<int64_t>(i - 2, 0));
    default: return 0;
  }
}

void store_hinted(const InputHint& hint, DType dtype, int64_t i, int64_t n, Random* random, void* at) {
  switch (hint.kind) {
    case InputHint::kNormal: return store_element(dtype, at, hint.a + hint.b * random->normal());
    case InputHint::kUniform: return store_element(dtype, at, hint.a + (hint.b - hint.a) * random->uniform());
    case InputHint::kPositive: return store_element(dtype, at, std::abs(random->normal()) + 0.1);
    case InputHint::kIntegers: {
      const auto low = static_cast<int64_t>(hint.a), high = std::max(static_cast<int64_t>(hint.b), low + 1);
      return store_integer(dtype, at, low + static_cast<int64_t>(random->next() % static_cast<uint64_t>(high - low)));
    }
    case InputHint::kAscending: {
      const int64_t parts = hint.a != 0 ? std::max<int64_t>(n - 1, 1) : n;  // a: the last one is the end
      return store_integer(dtype, at, static_cast<int64_t>(hint.b) * i / parts);
    }
    case InputHint::kMask: return store_integer(dtype, at, static_cast<int64_t>(i < 2 ? i == 0 : random->next() >> 63));
    case InputHint::kConstant: return store_element(dtype, at, hint.a);
    case InputHint::kArange: return store_integer(dtype, at, hint.b > 0 ? i % static_cast<int64_t>(hint.b) : i);
    case InputHint::kEdges: return store_element(dtype, at, edge_value(dtype, i));
  }
}

std::optional<Range> range_of(const InputHint& hint, const Type& type) {
  switch (hint.kind) {
    case InputHint::kIntegers: return Range{hint.a, hint.b - 1};
    case InputHint::kAscending: return Range{0, hint.b};
    case InputHint::kMask: return Range{0, 1};
    case InputHint::kConstant: return Range{hint.a, hint.a};
    case InputHint::kArange: return Range{0, hint.b > 0 ? hint.b - 1 : std::max<double>(static_cast<double>(type.num_elements()) - 1, 0)};
    default: return std::nullopt;
  }
}

// The index that an operator picks rows by, and how many there are.
struct Picked {
  ValueId index = kNone;
  int64_t rows = 0;
};
Picked picked_by(const Graph& graph, const Op& op) {
  switch (op.code) {
    case OpCode::k_take: case OpCode::k_gather: case OpCode::k_scatter: case OpCode::k_index_reduce:
      return {op.operands[1], graph.type(op.operands[0]).sizes.at(static_cast<size_t>(op.i(AttrKey::k_dim)))};
    case OpCode::k_embedding_bag: return {op.operands[1], graph.type(op.operands[0]).sizes.at(0)};
    default: return {};
  }
}

// By value: an integer that a float became, or that is computed of one.
std::vector<uint8_t> made_of_floats(const Graph& graph) {
  std::vector<uint8_t> made(graph.values.size(), 0);
  for (const Op& op : graph.ops) {
    if (op.code == OpCode::kOpaque) continue;  // an index that it returns, as those of the largest elements, is one of its own
    const bool casts = op.code == OpCode::k_cast && is_float(graph.type(op.operands[0]).dtype);
    const bool any = casts || std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return v != kNone && made[v]; });
    for (const ValueId v : op.results) made[v] = any && is_int(graph.type(v).dtype);
  }
  return made;
}

// Where an index is computed of floats and may name no row for some values that the hints allow, inputs that it is computed of are better
// not drawn: eager raises on a processor, but on a GPU an assertion fails, and with it the process's use of the device ends.
void doubt_indices(const Graph& graph, std::vector<InputHint>& hints) {
  const std::vector<uint8_t> made = made_of_floats(graph);
  const auto picks_by_these = [&](const Op& op) {
    const ValueId index = picked_by(graph, op).index;
    return index != kNone && made[index];
  };
  if (std::none_of(graph.ops.begin(), graph.ops.end(), picks_by_these)) return;
  Graph known = graph;
  std::vector<std::optional<Range>> ranges;
  for (size_t i = 0; i < hints.size(); ++i) ranges.push_back(range_of(hints[i], graph.type(graph.inputs[i])));
  find_ranges(known, ranges);
  std::vector<uint8_t> doubtful(graph.values.size(), 0);
  for (size_t o = graph.ops.size(); o-- > 0;) {
    const Op& op = graph.ops[o];
    if (picks_by_these(op)) {
      const Picked picked = picked_by(graph, op);
      const std::optional<Range>& range = known.values[picked.index].range;
      if (!range || range->may_be_nan || range->low < 0 || range->high >= static_cast<double>(picked.rows)) doubtful[picked.index] = 1;
    }
    if (std::any_of(op.results.begin(), op.results.end(), [&](ValueId v) { return doubtful[v] != 0; }))
      for (const ValueId v : op.operands)
        if (v != kNone) doubtful[v] = 1;
  }
  for (size_t i = 0; i < hints.size(); ++i) {
    if (!doubtful[graph.inputs[i]] || hints[i].unknown_meaning) continue;
    hints[i].unknown_meaning = true;
    hints[i].why = "an index is computed of it, which may name no row";
  }
}

}  // namespace

std::vector<InputHint> infer_inputs(const Graph& graph) {
  const Facts facts(graph);
  std::vector<InputHint> hints;
  for (const ValueId v : graph.inputs) hints.push_back(facts.hint(v));
  doubt_indices(graph, hints);
  const auto strict = std::find_if(graph.ops.begin(), graph.ops.end(), refuses_numbers);
  if (strict == graph.ops.end()) return hints;
  for (InputHint& hint : hints) {
    hint.unknown_meaning = true;
    hint.why = "the model has " + strict->s(AttrKey::k_aten) + ", which refuses numbers outside of its domain";
  }
  return hints;
}

Result<TensorRef> make_tensor(const Type& type, const InputHint& hint, TensorServices& services, Device device,
                              uint64_t seed) {
  KRN_TRY_LET(TensorRef tensor, services.allocate({type.dtype, type.sizes.vec(), type.strides.vec(), Device{}}));
  const int64_t n = type.num_elements();
  services.parallel_for(n, kElementsOfSlice, [&](int64_t begin, int64_t end) {
    Random random(seed);
    random.skip(numbers_before(hint, begin));
    each_element(*tensor, begin, end, [&](int64_t i, void* at) { store_hinted(hint, type.dtype, i, n, &random, at); });
  });
  if (device == Device{}) return tensor;
  return services.to_device(tensor, device);
}

Result<std::vector<TensorRef>> make_inputs(const Graph& graph, TensorServices& services, const InputOptions& options) {
  const std::vector<InputHint> hints = infer_inputs(graph);
  std::vector<TensorRef> tensors;
  for (size_t i = 0; i < hints.size(); ++i) {
    const bool known = i < options.overrides.size() && options.overrides[i];
    const uint64_t seed = Random(options.seed * 0x10001 + options.set * 0x101 + i).next();
    Result<TensorRef> tensor = make_tensor(graph.type(graph.inputs[i]), known ? *options.overrides[i] : hints[i], services,
                                           options.device, seed);
    if (!tensor.ok()) return std::move(tensor).status().at("input " + std::to_string(i));
    tensors.push_back(std::move(*tensor));
  }
  return tensors;
}

namespace {

// fn(value, a number in [0, 1) that is the element's own) of each element, whose values are given, in `dtype` and in the strides of
// `tensor`.
template <class Fn>
Result<TensorRef> varied(const TensorRef& tensor, const std::vector<double>& values, DType dtype, TensorServices& services, uint64_t seed,
                         Fn fn) {
  TensorSpec spec = spec_of(*tensor);
  spec.dtype = dtype;
  spec.device = {};
  KRN_TRY_LET(const TensorRef copy, services.allocate(spec));
  each_element_parallel(*copy, services, [&](int64_t i, void* at) {
    uint64_t bits = (seed + 1) * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(i) * 0xbf58476d1ce4e5b9;  // splitmix64
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    store_element(dtype, at, fn(values[static_cast<size_t>(i)], static_cast<double>(bits >> 33) * 0x1p-31));
  });
  return services.to_device(copy, tensor->device());
}

// What lies on a device of its own is not taken to the host for it: of a hundred million weights that took seconds.
Result<TensorRef> changed_there(const TensorRef& tensor, TensorServices::Change how, double share, TensorServices& services,
                                uint64_t seed) {
  if (tensor->device().kind == Device::kCpu) return Status(Code::k_unsupported, "it lies in host memory");
  return services.change(tensor, how, share, seed);
}

}  // namespace

Result<TensorRef> near_to(const TensorRef& tensor, TensorServices& services, uint64_t seed) {
  constexpr double kNear = 0x1p-5;
  if (!is_float(tensor->dtype())) return services.clone(tensor);
  if (Result<TensorRef> there = changed_there(tensor, TensorServices::Change::kSmaller, kNear, services, seed); there.ok()) return there;
  KRN_TRY_LET(const std::vector<double> values, read_values(tensor, services));
  const bool zeros = std::ranges::all_of(values, [](double value) { return value == 0; });
  return varied(tensor, values, tensor->dtype(), services, seed,
                [zeros](double value, double r) { return zeros ? kNear / 8 * (1 + r) : value * (1 - kNear * r); });
}

Result<TensorRef> off_by_roundings(const TensorRef& tensor, TensorServices& services, uint64_t seed) {
  if (!is_float(tensor->dtype())) return tensor;
  const double half = ulp_at(tensor->dtype(), 1) / 2;
  if (Result<TensorRef> there = changed_there(tensor, TensorServices::Change::kRounding, half, services, seed); there.ok()) return there;
  KRN_TRY_LET(const std::vector<double> values, read_values(tensor, services));
  return varied(tensor, values, DType::k_f64, services, seed,
                [half](double value, double share) { return value * (share < 0.5 ? 1 - half : 1 + half); });
}

Result<TensorRef> with_refused_index(const TensorRef& tensor, const InputHint& hint, TensorServices& services) {
  const int64_t n = num_elements(*tensor);
  if (!hint.may_be_refused || hint.unknown_meaning || !is_int(tensor->dtype()) || n == 0) return TensorRef();
  if (hint.b > static_cast<double>(largest_integer(tensor->dtype()))) return TensorRef();
  KRN_TRY_LET(TensorRef out, services.clone(tensor));
  each_element(*out, [&](int64_t i, void* at) {
    if (i == n - 1) store_integer(out->dtype(), at, static_cast<int64_t>(hint.b));
  });
  return out;
}

}  // namespace keirin
