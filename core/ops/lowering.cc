// SPDX-License-Identifier: Apache-2.0
#include "core/ops/lowering.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "abi/planted.h"

namespace keirin {
namespace {

bool fits_bf16(double v) {
  float f = static_cast<float>(v);
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return static_cast<double>(f) == v && (bits & 0xffffu) == 0;
}

bool fits_f16(double v) {
  if (v == 0 || std::isinf(v)) return true;
  int exponent;
  double m = std::frexp(v, &exponent);     // v = m * 2^exponent, 0.5 <= |m| < 1
  int bits = std::min(11, exponent + 24);  // below 2^-14 the spacing is 2^-24
  return exponent <= 16 && bits > 0 && std::ldexp(m, bits) == std::trunc(std::ldexp(m, bits));
}

// Whether a number survives storage in `dtype`; a NaN does.
bool fits(double v, DType dtype) {
  if (v != v) return true;
  if (dtype == DType::k_bf16) return fits_bf16(v);
  if (dtype == DType::k_f16) return fits_f16(v);
  return true;
}

}  // namespace

void Lowering::decline(std::string why) {
  if (failed()) return;
  declined_ = true;
  why_ = std::move(why);
}

void Lowering::wrong_kind(std::string_view name, std::string_view wanted) {
  if (failed()) return;
  malformed_ = Status(Code::k_invalid_input, Message{"argument " + std::string(name) + " is no " + std::string(wanted),
                                                     "call of " + std::string(call_.op), "the call was not lowered",
                                                     "bind the arguments by the operator's schema"});
}

template <class T>
T Lowering::take(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  decline(result.status().message().what);
  return T{};
}

const AtenArg* Lowering::find(std::string_view name) const {
  for (size_t i = 0; i < call_.names->size() && i < call_.args->size(); ++i)
    if ((*call_.names)[i] == name) return &(*call_.args)[i];
  return nullptr;
}

bool Lowering::given(std::string_view name) const {
  const AtenArg* arg = find(name);
  return arg != nullptr && !std::holds_alternative<AtenArg::None>(arg->value);
}

template <class T>
T Lowering::get(std::string_view name, std::string_view wanted, T fallback) {
  if (!given(name)) return fallback;
  if (const T* value = std::get_if<T>(&find(name)->value)) return *value;
  wrong_kind(name, wanted);
  return fallback;
}

ValueId Lowering::tensor(std::string_view name) {
  if (failed()) return kNone;
  if (!given(name)) return wrong_kind(name, "tensor"), kNone;
  const auto& value = find(name)->value;
  const bool is_number = std::holds_alternative<int64_t>(value) || std::holds_alternative<double>(value) ||
                         std::holds_alternative<bool>(value);
  if (is_number)
    return decline("a number where the recipe needs a tensor"), kNone;  // legal, and it would promote as a number
  return tensor_or_none(name);
}

ValueId Lowering::tensor_or_none(std::string_view name) {
  return failed() ? kNone : get<AtenArg::Value>(name, "tensor", {kNone, false}).id;
}

Values Lowering::tensors(std::string_view name) {
  if (given(name))
    if (const auto* one = std::get_if<AtenArg::Value>(&find(name)->value)) return {one->id};
  return get<AtenArg::Values>(name, "list of tensors", {});
}

Lowering::Operand Lowering::number(double v) { return {kNone, DType::k_f64, true, false, 0, v}; }
Lowering::Operand Lowering::number(int64_t v) { return {kNone, DType::k_i64, true, true, v, 0}; }

Lowering::Operand Lowering::as_operand(ValueId v) const {
  Operand operand;
  if (v == kNone) return operand;
  operand.id = v;
  operand.dtype = builder_.type(v).dtype;
  operand.is_zero_dim = builder_.type(v).rank() == 0;
  return operand;
}

Lowering::Operand Lowering::operand(std::string_view name) {
  if (failed()) return {};
  if (!given(name)) return wrong_kind(name, "tensor or number"), Operand{};
  const auto& value = find(name)->value;
  if (const auto* i = std::get_if<int64_t>(&value)) return number(*i);
  if (const auto* d = std::get_if<double>(&value)) return number(*d);
  if (const auto* b = std::get_if<bool>(&value)) return {kNone, DType::k_bool, true, true, *b, 0};
  const auto* tensor = std::get_if<AtenArg::Value>(&value);
  if (tensor == nullptr) return wrong_kind(name, "tensor or number"), Operand{};
  const Op* from = tensor->wrapped_number ? producer(tensor->id) : nullptr;
  if (from == nullptr || from->code != OpCode::k_full) {
    Operand operand = as_operand(tensor->id);
    if (tensor->wrapped_number) decline("a wrapped number that is not known here");
    return operand;
  }
  DType dtype = dtype_of(tensor->id);
  return {kNone, dtype, true, !is_float(dtype), from->i(AttrKey::k_value_i), from->d(AttrKey::k_value_d)};
}

int64_t Lowering::integer(std::string_view name, int64_t fallback) {
  if (given(name))
    if (const auto* b = std::get_if<bool>(&find(name)->value)) return *b;
  return get<int64_t>(name, "integer", fallback);
}

double Lowering::real(std::string_view name, double fallback) {
  if (!given(name)) return fallback;
  Operand v = operand(name);
  if (!failed() && !v.is_number()) wrong_kind(name, "number");
  return v.as_double();
}

bool Lowering::flag(std::string_view name, bool fallback) { return get<bool>(name, "bool", fallback); }

std::string Lowering::word(std::string_view name, std::string fallback) {
  return get<std::string>(name, "string", fallback);
}

Dims Lowering::ints(std::string_view name) {
  if (!given(name)) return {};
  const auto& value = find(name)->value;
  if (const auto* one = std::get_if<int64_t>(&value)) return {*one};
  if (const auto* none = std::get_if<std::vector<double>>(&value); none && none->empty()) return {};
  if (const auto* none = std::get_if<AtenArg::Values>(&value); none && none->empty()) return {};
  return get<Dims>(name, "list of integers", {});
}

std::vector<double> Lowering::reals(std::string_view name) {
  if (!given(name)) return {};
  if (const auto* whole = std::get_if<Dims>(&find(name)->value)) return {whole->begin(), whole->end()};
  if (const auto* none = std::get_if<AtenArg::Values>(&find(name)->value); none && none->empty()) return {};
  return get<std::vector<double>>(name, "list of numbers", {});
}

std::optional<DType> Lowering::dtype(std::string_view name) {
  if (!given(name)) return std::nullopt;
  DType d = get<DType>(name, "dtype", DType::kNone);
  if (dtype_class(d) == DTypeClass::x) decline("dtype " + std::string(dtype_name(d)) + " is carried, not computed in");
  return d;
}

DType Lowering::hinted_dtype(size_t result, DType fallback) const {
  if (call_.result_hints == nullptr || result >= call_.result_hints->size()) return fallback;
  DType d = (*call_.result_hints)[result].dtype;
  return dtype_class(d) == DTypeClass::x ? fallback : d;
}

int64_t Lowering::axis(int64_t dim, int64_t rank) {
  int64_t n = std::max<int64_t>(rank, 1);
  if (dim < -n || dim >= n) decline("dim " + std::to_string(dim) + " is not an axis of rank " + std::to_string(rank));
  return failed() ? 0 : dim < 0 ? dim + n : dim;
}

Dims Lowering::axes(Dims dims, int64_t rank) {
  if (dims.empty())
    for (int64_t i = 0; i < rank; ++i) dims.push_back(i);
  for (int64_t& d : dims) d = axis(d, rank);
  if (rank == 0) return {};
  std::sort(dims.begin(), dims.end());
  if (std::adjacent_find(dims.begin(), dims.end()) != dims.end()) decline("a dim appears twice");
  return dims;
}

DType Lowering::result_type(std::initializer_list<Operand> operands) const {
  Promotion promotion;
  for (const Operand& o : operands)
    o.is_number() && !KRN_PLANTED(number_promotes) ? promotion.add_number(o.dtype) : promotion.add_tensor(o.dtype, o.is_zero_dim);
  return promotion.result();
}

const Op* Lowering::producer(ValueId v) const {
  if (v == kNone || builder_.graph().values[v].producer == kNone) return nullptr;
  return &builder_.graph().ops[builder_.graph().values[v].producer];
}

Values Lowering::rows(OpCode code, Values operands, Attrs attrs) {
  if (failed()) return {};
  return take(builder_.emit(code, std::move(operands), std::move(attrs)));
}

ValueId Lowering::row(OpCode code, Values operands, Attrs attrs) {
  Values results = rows(code, std::move(operands), std::move(attrs));
  return results.empty() ? kNone : results[0];
}

ValueId Lowering::cast(ValueId v, DType dtype) {
  if (failed()) return kNone;
  return take(builder_.cast(v, dtype));
}

ValueId Lowering::to_bool(ValueId v) { return cast(v, DType::k_bool); }

ValueId Lowering::expand(ValueId v, const Dims& sizes) {
  if (failed()) return kNone;
  return take(builder_.expand_to(v, sizes));
}

ValueId Lowering::reshape(ValueId v, Dims sizes) {
  if (failed()) return kNone;
  return take(builder_.reshape(v, std::move(sizes)));
}

ValueId Lowering::permute(ValueId v, Dims dims) {
  if (failed()) return kNone;
  return take(builder_.permute(v, std::move(dims)));
}

ValueId Lowering::transpose(ValueId v, int64_t a, int64_t b) {
  Dims dims;
  for (int64_t i = 0; i < rank(v); ++i) dims.push_back(i);
  a = axis(a, rank(v));
  b = axis(b, rank(v));
  if (!failed() && !dims.empty()) std::swap(dims[a], dims[b]);
  return permute(v, dims);
}

ValueId Lowering::slice(ValueId v, int64_t dim, int64_t start, int64_t end, int64_t step) {
  if (failed()) return kNone;
  if (dim < rank(v) && start == 0 && end == sizes(v)[dim] && step == 1) return v;
  return row(OpCode::k_slice, {v},
             {{AttrKey::k_dim, dim}, {AttrKey::k_start, start}, {AttrKey::k_end, end}, {AttrKey::k_step, step}});
}

ValueId Lowering::cat(Values values, int64_t dim) {
  if (values.size() == 1) return values[0];
  return row(OpCode::k_cat, std::move(values), {{AttrKey::k_dim, dim}});
}

ValueId Lowering::unsqueeze(ValueId v, int64_t dim) {
  Dims s = sizes(v);
  if (failed()) return kNone;
  s.insert(s.begin() + dim, 1);
  return reshape(v, s);
}

ValueId Lowering::full(const Operand& number, DType dtype, const Dims& sizes) {
  if (!number.is_number()) decline("a number that is a tensor");
  if (failed()) return kNone;
  if (is_float(dtype)) return take(builder_.full(number.as_double(), dtype, sizes));
  if (number.is_integer) return take(builder_.full_i(number.i, dtype, sizes));
  if (dtype == DType::k_bool) return take(builder_.full_i(number.d != 0, dtype, sizes));
  if (!(std::abs(number.d) < 9.2e18)) decline("a number that no integer holds");
  return failed() ? kNone : take(builder_.full_i(static_cast<int64_t>(number.d), dtype, sizes));
}

ValueId Lowering::iota(int64_t start, int64_t n, int64_t step, DType dtype) {
  return row(OpCode::k_iota, {},
             {{AttrKey::k_sizes, Dims{n}},
              {AttrKey::k_dtype, static_cast<int64_t>(dtype)},
              {AttrKey::k_start, start},
              {AttrKey::k_step, step}});
}

ValueId Lowering::reduce(OpCode code, ValueId v, Dims dims, bool keepdim) {
  return row(code, {v}, {{AttrKey::k_dims, std::move(dims)}, {AttrKey::k_keepdim, keepdim}});
}

Dims Lowering::broadcast(std::initializer_list<Dims> shapes) {
  Dims out;
  for (const Dims& shape : shapes) {
    if (shape.size() > out.size()) out.insert(out.begin(), shape.size() - out.size(), 1);
    for (size_t i = 0; i < shape.size(); ++i) {
      int64_t& o = out[out.size() - 1 - i];
      int64_t s = shape[shape.size() - 1 - i];
      if (o != s && o != 1 && s != 1) decline("sizes do not broadcast");
      if (o == 1) o = s;
    }
  }
  return out;
}

ValueId Lowering::pointwise(OpCode code, std::initializer_list<Operand> operands, DType dtype, bool in_compute) {
  if (failed()) return kNone;
  DType compute = dtype;
  Dims out;
  for (const Operand& o : operands) {
    if (in_compute && o.is_number() && !fits(o.as_double(), dtype) && !KRN_PLANTED(number_rounded)) compute = compute_dtype(dtype);
    if (!o.is_number()) out = broadcast({out, sizes(o.id)});
  }
  Values ready;
  for (const Operand& o : operands) {
    // A number keeps stride 0, so that it has no say in the order of memory.
    ValueId v = o.is_number() ? full(o, compute, {}) : cast(o.id, compute);
    ready.push_back(expand(v, out));
  }
  ValueId result = row(code, ready);
  return compute != dtype && dtype_of(result) == compute ? cast(result, dtype) : result;
}

ValueId Lowering::select(ValueId condition, const Operand& a, const Operand& b, DType dtype) {
  Dims out = broadcast({sizes(condition), sizes(a.id), sizes(b.id)});
  auto ready = [&](const Operand& o) { return expand(o.is_number() ? full(o, dtype, {}) : cast(o.id, dtype), out); };
  return row(OpCode::k_select, {expand(condition, out), ready(a), ready(b)});
}

ValueId Lowering::with_number(OpCode code, ValueId v, double value) {
  return row(code, {v, expand(full(number(value), dtype_of(v), {}), sizes(v))});
}

}  // namespace keirin
