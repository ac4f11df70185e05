// SPDX-License-Identifier: Apache-2.0
//
// The reader of the rules, and the counter-based generator behind them.
#include "core/eager/weights/initial_values.h"

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/half.h"

namespace keirin {
namespace {

using Json = nlohmann::json;

struct KindRow {
  const char* name;
  InitRule::Kind kind;
  const char* a;
  const char* b;  // null: none
};

constexpr KindRow kKinds[] = {
    {"normal", InitRule::Kind::kNormal, "mean", "std"},        {"uniform", InitRule::Kind::kUniform, "low", "high"},
    {"constant", InitRule::Kind::kConstant, "value", nullptr}, {"integers", InitRule::Kind::kIntegers, "low", "high"},
    {"arange", InitRule::Kind::kArange, "start", "step"},      {"edges", InitRule::Kind::kEdges, "nodes", "self_loops"},
};

Status corrupt(std::string what) { return Status(Code::k_corrupt, Message{std::move(what), kInitRecord, {}, {}}); }

Result<double> read_number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_boolean()) return found->get<bool>() ? 1.0 : 0.0;
  if (found == object.end() || !found->is_number())
    return corrupt(std::string("a rule lacks the number \"") + key + "\"");
  return found->get<double>();
}

Result<InitRule> parse_rule(const Json& object) {
  if (!object.is_object()) return corrupt("a rule is not an object");
  const std::string kind = object.value("kind", Json()).is_string() ? object["kind"].get<std::string>() : "";
  for (const KindRow& row : kKinds) {
    if (kind != row.name) continue;
    InitRule rule{row.kind, 0, 0};
    if (row.kind == InitRule::Kind::kEdges && object.contains("rows_of")) {
      if (!object["rows_of"].is_number_unsigned()) return corrupt("rows_of is not the position of an input");
      rule.rows_of = object["rows_of"].get<int>();
    } else {
      KRN_TRY_LET(rule.a, read_number(object, row.a));
    }
    if (row.b != nullptr) {
      KRN_TRY_LET(rule.b, read_number(object, row.b));
    }
    return rule;
  }
  return corrupt("unknown kind of rule \"" + kind + "\"");
}

// splitmix64's finaliser: every bit of the result depends on every bit of the input.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t key_of(uint64_t seed, std::string_view name) {
  uint64_t key = mix(seed);
  for (const char c : name) key = mix(key ^ static_cast<unsigned char>(c));
  return key;
}

class Generator {
 public:
  Generator(const InitRule& rule, uint64_t key, int64_t row) : rule_(rule), key_(key), row_(row) {}

  double operator()(int64_t i) const {
    switch (rule_.kind) {
      case InitRule::Kind::kNormal:
        return rule_.a + rule_.b * normal(i);
      case InitRule::Kind::kUniform:
        return rule_.a + (rule_.b - rule_.a) * uniform(i);
      case InitRule::Kind::kConstant:
        return rule_.a;
      case InitRule::Kind::kIntegers:
        return rule_.a + std::floor((rule_.b - rule_.a) * uniform(i));
      case InitRule::Kind::kArange:
        return rule_.a + rule_.b * static_cast<double>(i);
      case InitRule::Kind::kEdges:
        break;
    }
    const int64_t column = i % row_;
    const int64_t loops = rule_.b != 0 ? static_cast<int64_t>(rule_.a) : 0;
    if (column >= row_ - loops) return static_cast<double>(column - (row_ - loops));
    return std::floor(rule_.a * uniform(i));
  }

 private:
  uint64_t bits(int64_t i) const { return mix(key_ + static_cast<uint64_t>(i) * 0xd1342543de82ef95ull); }
  double uniform(int64_t i) const { return static_cast<double>(bits(i) >> 11) * 0x1p-53; }
  // The sum of four 16-bit uniforms, scaled to variance 1: near enough to a normal for weights, exact on every machine.
  double normal(int64_t i) const {
    const uint64_t b = bits(i);
    const auto sum = static_cast<double>((b & 0xffff) + (b >> 16 & 0xffff) + (b >> 32 & 0xffff) + (b >> 48));
    return (sum - 131070.0) * 2.6428799e-05;  // 1 / sqrt(4 * (2^32 - 1) / 12)
  }
  InitRule rule_;
  uint64_t key_;
  int64_t row_;
};

uint16_t bf16_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T, class Convert>
void fill(TensorServices& services, void* data, int64_t n, const Generator& generator, Convert&& convert) {
  services.parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) static_cast<T*>(data)[i] = convert(generator(i));
  });
}

template <class T>
void fill(TensorServices& services, void* data, int64_t n, const Generator& generator) {
  fill<T>(services, data, n, generator, [](double v) { return static_cast<T>(v); });
}

Status fill_any(TensorServices& services, Tensor& tensor, int64_t n, const Generator& generator) {
  void* data = tensor.data();
  switch (tensor.dtype()) {
    case DType::k_bool:
      fill<uint8_t>(services, data, n, generator, [](double v) { return uint8_t(v != 0); });
      break;
    case DType::k_u8:
      fill<uint8_t>(services, data, n, generator);
      break;
    case DType::k_i8:
      fill<int8_t>(services, data, n, generator);
      break;
    case DType::k_i16:
      fill<int16_t>(services, data, n, generator);
      break;
    case DType::k_i32:
      fill<int32_t>(services, data, n, generator);
      break;
    case DType::k_i64:
      fill<int64_t>(services, data, n, generator);
      break;
    case DType::k_f16:
      fill<Float16>(services, data, n, generator);
      break;
    case DType::k_bf16:
      fill<uint16_t>(services, data, n, generator, [](double v) { return bf16_bits(static_cast<float>(v)); });
      break;
    case DType::k_f32:
      fill<float>(services, data, n, generator);
      break;
    case DType::k_f64:
      fill<double>(services, data, n, generator);
      break;
    default:
      return Status(Code::k_unsupported,
                    "a rule cannot draw values of dtype " + std::string(dtype_name(tensor.dtype())));
  }
  return {};
}

}  // namespace

Result<InitRule> rule_at(const std::vector<InitRule>& rules, size_t i, const std::vector<TensorSpec>& inputs) {
  InitRule rule = rules.at(i);
  if (rule.rows_of < 0) return rule;
  const auto of = static_cast<size_t>(rule.rows_of);
  if (of >= inputs.size() || inputs[of].sizes.empty())
    return corrupt("input " + std::to_string(of) + ", whose rows a rule names, has none");
  rule.a = static_cast<double>(inputs[of].sizes[0]);
  return rule;
}

Result<InitialValues> parse_initial_values(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return corrupt("it is not a JSON object");
  InitialValues rules;
  KRN_TRY_LET(const double version, read_number(json, "version"));
  if (version != 1)
    return Status(Code::k_version,
                  Message{"version " + std::to_string(int64_t(version)) + " of the rules", kInitRecord, {}, {}});
  if (!json.contains("seed") || !json["seed"].is_number_integer()) return corrupt("the seed is not an integer");
  rules.seed = json["seed"].get<uint64_t>();
  const Json tensors = json.value("tensors", Json::object());
  if (!tensors.is_object()) return corrupt("\"tensors\" is not an object");
  for (const auto& [name, rule] : tensors.items()) {
    KRN_TRY_LET(rules.tensors[name], parse_rule(rule));
  }
  const Json inputs = json.value("inputs", Json::array());
  if (!inputs.is_array()) return corrupt("\"inputs\" is not an array");
  for (const Json& rule : inputs) {
    KRN_TRY_LET(const InitRule parsed, parse_rule(rule));
    rules.inputs.push_back(parsed);
  }
  return rules;
}

Result<TensorRef> draw(TensorServices& services, const TensorSpec& spec, const InitRule& rule, uint64_t seed,
                       std::string_view name) {
  TensorSpec dense{spec.dtype, spec.sizes, {}, {}};
  KRN_TRY_LET(TensorRef tensor, services.allocate(dense));
  int64_t n = 1;
  for (const int64_t size : spec.sizes) n *= size;
  const int64_t row = spec.sizes.empty() ? 1 : std::max<int64_t>(spec.sizes.back(), 1);
  KRN_TRY(fill_any(services, *tensor, n, Generator(rule, key_of(seed, name), row)));
  if (spec.strides.empty()) return tensor;
  KRN_TRY_LET(TensorRef strided, services.allocate(spec));
  KRN_TRY(services.copy(strided, tensor));
  return strided;
}

}  // namespace keirin
