// SPDX-License-Identifier: Apache-2.0
#include "core/api/buckets.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>

#include "abi/planted.h"
#include "core/api/free_sizes.h"
#include "core/api/session_impl.h"
#include "core/api/signature.h"
#include "core/capture/import/importer.h"
#include "core/passes/pad_safety.h"

namespace keirin {
namespace {

using Tensors = std::vector<TensorRef>;

std::optional<int64_t> whole(std::string_view word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::pair<std::string, std::string> halves(const std::string& word, char at) {
  const size_t place = word.find(at);
  return place == std::string::npos ? std::pair(word, std::string()) : std::pair(word.substr(0, place), word.substr(place + 1));
}

Status refused(const std::string& what, const std::string& option, const std::string& advice) {
  return Status(Code::k_invalid_input, {what, "option " + option, "nothing was loaded", advice});
}

Result<size_t> input_of(const Signature& signature, const std::string& name, const std::string& option) {
  Result<size_t> position = input_position(signature, name);
  if (position.ok()) return position;
  return refused(position.status().message().what, option, position.status().message().advice);
}

constexpr const char* kPolicies = "give exact, multiple:K, pow2 or list:A,B,C, as in x[0]=multiple:8";

// Sums, products and whole powers: what agrees at three sizes agrees at all.
bool is_polynomial(const pt2::Expr& expr) {
  return std::ranges::all_of(expr.nodes, [](const pt2::ExprNode& node) {
    switch (node.op) {
      case pt2::ExprOp::kInteger:
      case pt2::ExprOp::kSymbol:
      case pt2::ExprOp::kAdd:
      case pt2::ExprOp::kMul:
      case pt2::ExprOp::kIdentity: return true;
      default: return false;
    }
  });
}

// Strides of these sizes without gaps, axes in the order that `like` has.
std::vector<int64_t> dense_like(const std::vector<int64_t>& sizes, const std::vector<int64_t>& like) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return like[a] > like[b]; });
  std::vector<int64_t> strides(sizes.size(), 1);
  int64_t step = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = step;
    step *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return strides;
}

template <class T>
bool all_below(const T* data, const int64_t* sizes, const int64_t* strides, int64_t rank, int64_t limit) {
  if (rank == 0) return *data >= 0 && *data < limit;
  for (int64_t i = 0; i < sizes[0]; ++i)
    if (!all_below(data + i * strides[0], sizes + 1, strides + 1, rank - 1, limit)) return false;
  return true;
}

// Whether one of the numbers is NaN, as bits: beyond infinity, but for the sign.
template <class Word>
bool any_above(const Word* words, const int64_t* sizes, const int64_t* strides, int64_t rank, Word infinity) {
  constexpr Word kMagnitude = static_cast<Word>(~Word{0}) >> 1;
  if (rank > 1) {
    for (int64_t i = 0; i < sizes[0]; ++i)
      if (any_above(words + i * strides[0], sizes + 1, strides + 1, rank - 1, infinity)) return true;
    return false;
  }
  const int64_t n = rank == 0 ? 1 : sizes[0], step = rank == 0 ? 1 : strides[0];
  bool found = false;
  const auto look = [&](int64_t apart) {
    for (int64_t i = 0; i < n; ++i) found |= static_cast<Word>(words[i * apart] & kMagnitude) > infinity;
  };
  if (step == 1) look(1);  // by vectors
  else look(step);
  return found;
}

bool has_nan(const Tensor& t) {
  const auto any = [&]<class Word>(Word infinity) {
    return any_above(static_cast<const Word*>(t.data()), t.sizes(), t.strides(), t.rank(), infinity);
  };
  switch (t.dtype()) {
    case DType::k_f32: return any(uint32_t{0x7f800000});
    case DType::k_f64: return any(uint64_t{0x7ff0000000000000});
    case DType::k_f16: return any(uint16_t{0x7c00});
    case DType::k_bf16: return any(uint16_t{0x7f80});
    default: return is_float(t.dtype());  // nobody can tell: as if there were one
  }
}

}  // namespace

Result<BucketPolicy> BucketPolicy::parse(const std::string& word) {
  BucketPolicy out;
  out.word_ = word;
  const auto [kind, rest] = halves(word, ':');
  const auto wrong = [&] { return refused("a size cannot be padded to \"" + word + "\"", "--bucket", kPolicies); };
  if (kind == "exact" && rest.empty()) return out;
  if (kind == "pow2" && rest.empty()) {
    out.kind_ = Kind::kPowers;
    return out;
  }
  if (kind == "multiple") {
    const std::optional<int64_t> multiple = whole(rest);
    if (!multiple || *multiple < 1 || *multiple > (int64_t{1} << 40)) return wrong();
    out.kind_ = Kind::kMultiple;
    out.multiple_ = *multiple;
    return out;
  }
  if (kind != "list") return wrong();
  out.kind_ = Kind::kList;
  std::istringstream stream(rest);
  for (std::string each; std::getline(stream, each, ',');) {
    const std::optional<int64_t> size = whole(each);
    if (!size || *size < 1) return wrong();
    out.list_.push_back(*size);
  }
  if (out.list_.empty()) return wrong();
  std::sort(out.list_.begin(), out.list_.end());
  return out;
}

int64_t BucketPolicy::next(int64_t size, int64_t most) const {
  int64_t to = size;
  if (kind_ == Kind::kMultiple) to = (size + multiple_ - 1) / multiple_ * multiple_;
  if (kind_ == Kind::kPowers) {
    for (to = 1; to < size;) to *= 2;
  }
  if (kind_ == Kind::kList) {
    const auto at = std::lower_bound(list_.begin(), list_.end(), size);
    to = at == list_.end() ? size : *at;
  }
  // The last bucket ends where the export does.
  if (most > 0 && to > most) to = kind_ == Kind::kList ? size : std::max(size, most);
  return to;
}

Result<std::unique_ptr<Buckets>> Buckets::make(const Session::Impl& session) {
  if (session.options.buckets.empty()) {
    if (!session.options.pads.empty())
      return refused("pads say what stands in padding, and nothing is padded", "--pad", "give a --bucket for a size as well");
    return std::unique_ptr<Buckets>();
  }
  std::unique_ptr<Buckets> out(new Buckets(session));
  KRN_TRY(out->read_program());
  KRN_TRY(out->read_policies());
  KRN_TRY(out->read_fills());
  KRN_TRY(out->prove());
  out->asked_.assign(out->sizes_.size(), 0);
  out->ran_.assign(out->sizes_.size(), 0);
  return out;
}

Buckets::Extent Buckets::extent_of(const pt2::SymInt& size) const {
  if (size.is_literal()) return {size.value, -1, nullptr};
  if (const std::string* symbol = size.expr->bare_symbol())
    for (size_t k = 0; k < sizes_.size(); ++k)
      if (sizes_[k].symbol == *symbol) return {0, static_cast<int>(k), nullptr};
  return {0, -1, size.expr};
}

Result<int64_t> Buckets::value_of(const Extent& extent, const Sizes& sizes) const {
  if (extent.size >= 0) return sizes[static_cast<size_t>(extent.size)];
  if (!extent.expr) return extent.number;
  pt2::SymbolValues values;
  for (size_t k = 0; k < sizes.size(); ++k) values[sizes_[k].symbol] = sizes[k];
  return pt2::evaluate_int(*extent.expr, values);
}

Status Buckets::read_program() {
  const pt2::Program& program = session_.model->program;
  const auto no = [&](const std::string& why) {
    return Status(Code::k_unsupported, {"sizes cannot be padded: " + why, session_.name, "nothing was loaded", "leave --bucket out"});
  };
  if (session_.chain) return no("sizes or branches depend on data");
  if (const std::string why = session_.why_not_beside_calls(); !why.empty()) return no(why);
  KRN_TRY_LET(const ExampleShapes shapes, example_shapes(program, {}));
  const std::vector<SizeReport> free = session_.free_sizes(shapes.specs);
  for (size_t k = 0; k < free.size(); ++k) sizes_.push_back({free[k].name, shapes.symbols[k], {}, free[k].min, free[k].max});
  for (const pt2::InputSpec& input : program.inputs) {
    if (input.kind != pt2::InputSpec::Kind::kUserInput) continue;
    const auto* tensor = input.arg.get<pt2::TensorArg>();
    if (!tensor) return no("an input is a number");
    const pt2::TensorMeta& meta = program.graph.tensor_values.find(tensor->name)->second;
    Input& in = inputs_.emplace_back();
    in.dtype = meta.dtype;
    for (const pt2::SymInt& size : meta.sizes) in.extents.push_back(extent_of(size));
  }
  for (size_t k = 0; k < sizes_.size(); ++k) find_in_expression(k);
  for (const pt2::OutputSpec& output : program.outputs) {
    if (output.is_mutation()) return no("a call writes state or an input");
    const auto* tensor = output.arg.get<pt2::TensorArg>();
    if (!tensor) return no("an output is not a tensor");
    Output& out = outputs_.emplace_back();
    for (const pt2::SymInt& size : program.graph.tensor_values.find(tensor->name)->second.sizes) out.extents.push_back(extent_of(size));
  }
  return {};
}

// Of a size that no extent is: an extent that tells it.
void Buckets::find_in_expression(size_t k) {
  Extent* found = nullptr;
  for (Input& input : inputs_)
    for (Extent& extent : input.extents) {
      if (extent.size == static_cast<int>(k)) return;
      if (found || !extent.expr || extent.expr->symbols != std::vector<std::string>{sizes_[k].symbol}) continue;
      const Result<int64_t> of_three = pt2::evaluate_int(*extent.expr, {{sizes_[k].symbol, 3}});
      if (of_three.ok() && symbol_of_size(*extent.expr, *of_three) == 3) found = &extent;
    }
  if (found) found->of = static_cast<int>(k);
}

Result<size_t> Buckets::size_number(const std::string& word, const std::string& option) const {
  std::string all;
  for (const Size& size : sizes_) all += (all.empty() ? "" : ", ") + size.name;
  for (size_t k = 0; k < sizes_.size(); ++k)
    if (sizes_[k].name == word) return k;
  const std::string advice = sizes_.empty() ? "export the model with dynamic shapes" : "name one of the free sizes: " + all;
  const size_t bracket = word.rfind('[');
  std::optional<int64_t> dim;
  if (bracket != std::string::npos && word.back() == ']')
    dim = whole(std::string_view(word).substr(bracket + 1, word.size() - bracket - 2));
  if (!dim) return refused("\"" + word + "\" is not a size of an input", option, advice);
  const Signature signature = signature_of(session_.model->program);
  KRN_TRY_LET(const size_t input, input_of(signature, word.substr(0, bracket), option));
  const std::vector<Extent>& extents = inputs_[input].extents;
  if (*dim < 0 || *dim >= static_cast<int64_t>(extents.size()) || extents[static_cast<size_t>(*dim)].size < 0)
    return refused("\"" + word + "\" is not a free size", option, advice);
  return static_cast<size_t>(extents[static_cast<size_t>(*dim)].size);
}

Status Buckets::read_policies() {
  std::set<size_t> given;
  for (const std::string& word : session_.options.buckets) {
    const auto [name, policy] = halves(word, '=');
    KRN_TRY_LET(const size_t k, size_number(name, "--bucket"));
    KRN_TRY_LET(sizes_[k].policy, BucketPolicy::parse(policy));
    if (!given.insert(k).second) return refused("two buckets are given for " + sizes_[k].name, "--bucket", "give one");
  }
  return {};
}

Status Buckets::read_fills() {
  const Signature signature = signature_of(session_.model->program);
  for (const std::string& word : session_.options.pads) {
    const auto [name, value] = halves(word, '=');
    KRN_TRY_LET(const size_t i, input_of(signature, name, "--pad"));
    Input& input = inputs_[i];
    if (value.ends_with(']')) {
      KRN_TRY_LET(const size_t k, size_number(value, "--pad"));
      if (!is_int(input.dtype))
        return refused(name + " holds no integers, so that no position can stand in its padding", "--pad", "give a number");
      input.first_of = static_cast<int>(k);
      sizes_[k].needs_row = true;
      continue;
    }
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), input.fill);
    const bool fits = is_float(input.dtype) || (input.fill == std::trunc(input.fill) && std::fabs(input.fill) < 0x1p31);
    if (value.empty() || error != std::errc() || end != value.data() + value.size() || !fits)
      return refused("\"" + value + "\" cannot stand in the padding of " + name + ", which is " + std::string(dtype_name(input.dtype)),
                     "--pad", "give a number that it can hold, or a free size as in edges=x[0], for its first padded position");
  }
  for (Input& input : inputs_) {
    if (input.first_of >= 0) continue;
    KRN_TRY_LET(input.filled, scalar(input.dtype, input.fill));
  }
  return {};
}

Result<TensorRef> Buckets::scalar(DType dtype, double value) const {
  TensorServices& services = session_.runtime.tensors();
  KRN_TRY_LET(const TensorRef number, services.allocate({DType::k_f64, {}, {}, {}}));
  *static_cast<double*>(number->data()) = value;
  KRN_TRY_LET(const TensorRef cast, services.cast(number, dtype));
  return services.to_device(cast, session_.device);
}

// Two graphs of the program, as it is at two sets of sizes.
Status Buckets::prove_pair(const Sizes& small, const Sizes& large) {
  const auto graph_at = [&](const Sizes& sizes) -> Result<Captured> {
    KRN_TRY_LET(ExampleShapes shapes, example_shapes(session_.model->program, sizes));
    for (TensorSpec& spec : shapes.specs) spec.device = session_.device;
    return import_graph(session_.model->program, session_.weights, shapes.specs, session_.device);
  };
  KRN_TRY_LET(const Captured a, graph_at(small));
  KRN_TRY_LET(const Captured b, graph_at(large));
  std::vector<PadFill> fills;
  for (const Input& input : inputs_)
    fills.push_back(input.first_of < 0 ? PadFill{input.fill, false}
                                       : PadFill{static_cast<double>(small[static_cast<size_t>(input.first_of)]), true});
  KRN_TRY_LET(const PadProof proof, prove_pad_safe(a.graph, b.graph, fills));
  if (proof.cut.size() != outputs_.size()) return Status(Code::k_unsupported, "the graph has other outputs than the program");
  for (size_t i = 0; i < proof.cut.size(); ++i) {
    Output& output = outputs_[i];
    output.cut.resize(proof.cut[i].size());
    for (size_t d = 0; d < proof.cut[i].size(); ++d) output.cut[d] = output.cut[d] || proof.cut[i][d];
    output.or_nan = output.or_nan || proof.or_nan[i];
  }
  for (const PadProof::Bound& bound : proof.bounds) {
    size_t k = 0;
    while (k < small.size() && (small[k] != bound.extent || large[k] == small[k])) ++k;
    if (k == small.size()) return Status(Code::k_unsupported, "an index goes into an axis whose size is computed");
    std::vector<int>& below = inputs_[bound.input].below;
    if (std::ranges::find(below, static_cast<int>(k)) == below.end()) below.push_back(static_cast<int>(k));
  }
  return {};
}

Status Buckets::prove() {
  constexpr int kPairs = 3;
  KRN_TRY_LET(const ExampleShapes shapes, example_shapes(session_.model->program, {}));
  Sizes exported;
  for (const SizeReport& size : session_.free_sizes(shapes.specs)) exported.push_back(size.value);
  std::vector<size_t> padding;
  for (size_t k = 0; k < sizes_.size(); ++k)
    if (sizes_[k].policy.pads()) padding.push_back(k);
  const auto no = [&](const std::string& which, const std::string& why) {
    return Status(Code::k_unsupported, {which + " cannot be padded: " + why, session_.name, "nothing was loaded",
                                        "leave its --bucket out, or make it exact; docs/serve.md says what can be proved"});
  };
  for (const auto& [name, meta] : session_.model->program.graph.tensor_values)
    for (const pt2::SymInt& size : meta.sizes)
      if (size.expr && !is_polynomial(*size.expr))
        for (const size_t k : padding)
          if (std::ranges::find(size.expr->symbols, sizes_[k].symbol) != size.expr->symbols.end())
            return no(sizes_[k].name, "a size is computed of it, and not by sums and products alone: " + size.expr->text);
  for (const auto& [name, size] : session_.model->program.graph.sym_int_values)
    if (size.expr && !is_polynomial(*size.expr))
      for (const size_t k : padding)
        if (std::ranges::find(size.expr->symbols, sizes_[k].symbol) != size.expr->symbols.end())
          return no(sizes_[k].name, "a number is computed of it, and not by sums and products alone: " + size.expr->text);
  // Sizes that are nobody else's, in both orders, so that no two of them are taken for one another. Where a guard wants multiples, these.
  const auto pair_at = [&](size_t place, int pair, int64_t scale, int64_t& small, int64_t& large) {
    const auto n = static_cast<int64_t>(place), all = static_cast<int64_t>(padding.size());
    static constexpr int64_t kFirst[kPairs] = {5, 7, 9};
    small = scale * (kFirst[pair] + 6 * (pair % 2 == 0 ? n : all - 1 - n));
    large = scale * (kFirst[pair] + 6 * all + 18 * n + 5 + 7 * pair);
    const Size& size = sizes_[padding[place]];
    small = std::max(small, size.least + pair);
    large = std::max(large, small + 1 + n);
    if (size.most > 0 && large > size.most) {
      large = size.most - pair % 2;
      small = std::min(small, large - 1 - n - pair / 2);
    }
    return small >= std::max<int64_t>(size.least, 1) && large > small;
  };
  // Each size alone, so that what forbids it is told; then all together.
  for (size_t place = 0; place <= padding.size(); ++place) {
    const bool together = place == padding.size();
    if (together && padding.size() < 2) break;
    std::string which;
    for (size_t i = 0; i < padding.size(); ++i)
      if (together || i == place) which += (which.empty() ? "" : " with ") + sizes_[padding[i]].name;
    for (int pair = 0; pair < kPairs; ++pair) {
      Status status;
      for (int64_t scale = 1; scale <= 64; scale *= 2) {
        Sizes small = exported, large = exported;
        bool there = true;
        for (size_t i = 0; i < padding.size(); ++i) {
          int64_t a = 0, b = 0;
          there = there && pair_at(i, pair, scale, a, b);
          small[padding[i]] = a;
          // What names a padded position needs one.
          large[padding[i]] = together || i == place || sizes_[padding[i]].needs_row ? b : a;
        }
        if (!there) return no(which, "the export allows too few sizes");
        status = prove_pair(small, large);
        if (status.ok() || status.code() == Code::k_unsupported) break;  // else a guard refuses these sizes
      }
      if (!status.ok()) return no(which, status.message().what);
    }
  }
  if (session_.device.kind == Device::kCpu) return {};
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (!inputs_[i].below.empty())
      return no("a size", "input " + std::to_string(i) + " holds indices into a padded axis, and only on the CPU can a call look at them");
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (outputs_[i].or_nan)
      return no("a size", "padding may make NaN of a number of output " + std::to_string(i) + ", and only on the CPU can a call look");
  return {};
}

std::optional<Sizes> Buckets::sizes_of(const Tensors& inputs) const {
  if (inputs.size() != inputs_.size()) return std::nullopt;
  Sizes sizes(sizes_.size(), -1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& known = inputs_[i];
    if (!inputs[i] || inputs[i]->dtype() != known.dtype || inputs[i]->rank() != static_cast<int64_t>(known.extents.size()))
      return std::nullopt;
    for (size_t d = 0; d < known.extents.size(); ++d) {
      const Extent& extent = known.extents[d];
      const int k = std::max(extent.size, extent.of);
      if (k < 0 || sizes[static_cast<size_t>(k)] >= 0) continue;
      const int64_t size = inputs[i]->sizes()[d];
      const std::optional<int64_t> value = extent.size >= 0 ? std::optional(size) : symbol_of_size(*extent.expr, size);
      if (!value) return std::nullopt;
      sizes[static_cast<size_t>(k)] = *value;
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t d = 0; d < inputs_[i].extents.size(); ++d) {
      const Result<int64_t> value = value_of(inputs_[i].extents[d], sizes);
      if (!value.ok() || *value != inputs[i]->sizes()[d]) return std::nullopt;
    }
  return sizes;
}

Sizes Buckets::bucket_of(const Sizes& sizes) const {
  Sizes to;
  for (size_t k = 0; k < sizes.size(); ++k) to.push_back(sizes[k] < 1 ? sizes[k] : sizes_[k].policy.next(sizes[k], sizes_[k].most));
  if (to == sizes) return to;
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (!sizes_[k].needs_row || to[k] > sizes[k]) continue;
    to[k] = sizes_[k].policy.next(sizes[k] + 1, sizes_[k].most);
    const bool none = to[k] <= sizes[k] || (sizes_[k].most > 0 && to[k] > sizes_[k].most);
    if (none) return sizes;
  }
  return to;
}

bool Buckets::in_bounds(const Tensors& inputs, const Sizes& sizes) const {
  for (size_t i = 0; i < inputs.size(); ++i)
    for (const int k : inputs_[i].below) {
      const Tensor& t = *inputs[i];
      const auto below = [&]<class T>(const T* data) {
        return all_below(data, t.sizes(), t.strides(), t.rank(), sizes[static_cast<size_t>(k)]);
      };
      if (t.dtype() == DType::k_i64 ? !below(static_cast<const int64_t*>(t.data()))
                                    : t.dtype() != DType::k_i32 || !below(static_cast<const int32_t*>(t.data())))
        return false;
    }
  return true;
}

Result<TensorRef> Buckets::padded(const Input& input, const TensorRef& tensor, const Sizes& from, const Sizes& to) const {
  TensorServices& services = session_.runtime.tensors();
  const TensorSpec small = spec_of(*tensor);
  TensorSpec large{small.dtype, {}, {}, small.device};
  for (const Extent& extent : input.extents) {
    KRN_TRY_LET(const int64_t size, value_of(extent, to));
    large.sizes.push_back(size);
  }
  if (large.sizes == small.sizes) return tensor;
  const std::vector<int64_t> strides = contiguous_strides(large.sizes).vec();
  KRN_TRY_LET(const TensorRef out, services.allocate(large));
  TensorRef fill = input.filled;
  if (!fill) {
    KRN_TRY_LET(fill, scalar(input.dtype, static_cast<double>(from[static_cast<size_t>(input.first_of)])));
  }
  const auto part = [&](const std::vector<int64_t>& sizes, int64_t offset) {
    return services.view(out, {large.dtype, sizes, strides, large.device}, offset * dtype_bytes(large.dtype));
  };
  // What is kept, and behind it along each axis that grew a slab.
  KRN_TRY_LET(const TensorRef kept, part(small.sizes, 0));
  KRN_TRY(services.copy(kept, tensor));
  std::vector<int64_t> slab = large.sizes;
  for (size_t d = 0; d < slab.size(); ++d) {
    if (large.sizes[d] == small.sizes[d]) continue;
    slab[d] = large.sizes[d] - small.sizes[d];
    KRN_TRY_LET(const TensorRef rest, part(slab, small.sizes[d] * strides[d]));
    KRN_TRY_LET(const TensorRef same, services.view(fill, {large.dtype, slab, std::vector<int64_t>(slab.size(), 0), large.device}, 0));
    KRN_TRY(services.copy(rest, same));
    slab[d] = small.sizes[d];
  }
  return out;
}

Result<std::optional<PaddedCall>> Buckets::pad(const Tensors& inputs) const {
  const std::optional<Sizes> sizes = sizes_of(inputs);
  if (!sizes) return std::optional<PaddedCall>();
  PaddedCall call{{}, *sizes, bucket_of(*sizes), 1};
  if (call.to == call.from || !in_bounds(inputs, *sizes)) return std::optional<PaddedCall>();
  for (size_t i = 0; i < inputs.size(); ++i) {
    KRN_TRY_LET(TensorRef padded_input, padded(inputs_[i], inputs[i], call.from, call.to));
    call.inputs.push_back(std::move(padded_input));
  }
  const auto elements = [](const Tensors& tensors) {
    double sum = 0;
    for (const TensorRef& t : tensors)
      sum += std::accumulate(t->sizes(), t->sizes() + t->rank(), 1.0, [](double n, int64_t size) { return n * static_cast<double>(size); });
    return sum;
  };
  call.share = elements(inputs) / elements(call.inputs);
  return std::optional(std::move(call));
}

Result<Tensors> Buckets::cut(const Tensors& outputs, const Sizes& from) const {
  if (outputs.size() != outputs_.size()) return Status(Code::k_internal, "a padded call has other outputs than the model");
  TensorServices& services = session_.runtime.tensors();
  Tensors out;
  for (size_t i = 0; i < outputs.size(); ++i) {
    TensorSpec spec = spec_of(*outputs[i]);
    if (spec.strides.empty()) spec.strides = contiguous_strides(spec.sizes).vec();
    bool cuts = false;
    for (size_t d = 0; d < outputs_[i].cut.size(); ++d) {
      if (!outputs_[i].cut[d]) continue;
      KRN_TRY_LET(const int64_t size, value_of(outputs_[i].extents[d], from));
      cuts = cuts || size != spec.sizes[d];
      spec.sizes[d] = size;
    }
    TensorRef kept = outputs[i];
    if (cuts) {
      KRN_TRY_LET(kept, services.view(outputs[i], spec, 0));
    }
    if (outputs_[i].or_nan && has_nan(*kept)) return Status(Code::k_unsupported, "padding may have made NaN of a number");
    if (!cuts) {
      out.push_back(std::move(kept));
      continue;
    }
    const std::vector<int64_t> dense = dense_like(spec.sizes, spec.strides);
    if (dense != spec.strides) {
      KRN_TRY_LET(TensorRef copy, services.allocate({spec.dtype, spec.sizes, dense, spec.device}));
      KRN_TRY(services.copy(copy, kept));
      kept = std::move(copy);
    }
    out.push_back(std::move(kept));
  }
  return out;
}

Buckets::Trust Buckets::trust(const Sizes& to) const {
  const std::lock_guard lock(mutex_);
  if (!closed_.empty()) return Trust::kClosed;
  const auto found = trust_.find(to);
  return found == trust_.end() ? Trust::kUnknown : found->second;
}

bool Buckets::ask(const Sizes& to) {
  const std::lock_guard lock(mutex_);
  return closed_.empty() && trust_.emplace(to, Trust::kAsked).second;
}

bool Buckets::judged(const Sizes& to, const std::optional<std::string>& wrong) {
  const std::lock_guard lock(mutex_);
  if (!wrong) {
    trust_.erase(to);
    return true;
  }
  if (wrong->empty() || KRN_PLANTED(bucket_trusted)) {
    trust_[to] = Trust::kRight;
    return true;
  }
  if (!closed_.empty()) return false;
  closed_ = *wrong;
  return true;
}

void Buckets::count(const PaddedCall& call) {
  const std::lock_guard lock(mutex_);
  ++calls_;
  for (size_t k = 0; k < call.from.size(); ++k) asked_[k] += call.from[k], ran_[k] += call.to[k];
}

void Buckets::count_left() {
  const std::lock_guard lock(mutex_);
  ++left_;
}

BucketsReport Buckets::report() const {
  const std::lock_guard lock(mutex_);
  BucketsReport out{calls_, left_, closed_, {}};
  for (size_t k = 0; k < sizes_.size(); ++k)
    if (sizes_[k].policy.pads()) out.sizes.push_back({sizes_[k].name, sizes_[k].policy.word(), asked_[k], ran_[k]});
  return out;
}

}  // namespace keirin
