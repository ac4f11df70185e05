// SPDX-License-Identifier: Apache-2.0
//
// The primitives of the Decoder: typed reads, members and unions, and how a failure is worded.
#include "core/capture/pt2/decoder.h"

#include <limits>

namespace keirin::pt2 {

bool Decoder::fail(const JsonRef& ref, Code code, std::string what, std::string advice) {
  if (status.ok()) status = Status(code, {std::move(what), ref.where(), "nothing was loaded", std::move(advice)});
  return false;
}

bool Decoder::unknown(const JsonRef& ref, const char* noun, std::string_view value) {
  return fail(ref, Code::k_unsupported,
              "this reader knows no " + std::string(noun) + " \"" + std::string(value.substr(0, 200)) + "\"",
              "save the model with a torch release that this version of Keirin knows");
}

bool Decoder::want(const JsonRef& ref, JsonType type) {
  if (ref.type() == type) return true;
  return fail(ref, Code::k_corrupt,
              std::string("found ") + json_type_name(ref.type()) + " where " + json_type_name(type) + " belongs");
}

bool Decoder::optional(const JsonRef& ref, std::string_view key, JsonRef* out, bool* present) {
  *present = false;
  if (!want(ref, JsonType::kObject)) return false;
  ref.members([&](std::string_view name, const JsonRef& at) {
    if (name != key) return true;
    *out = at;
    *present = !at.is_null();
    return false;
  });
  return true;
}

bool Decoder::member(const JsonRef& ref, std::string_view key, JsonRef* out) {
  if (!want(ref, JsonType::kObject)) return false;
  bool found = !ref.members([&](std::string_view name, const JsonRef& at) {
    if (name != key) return true;
    *out = at;
    return false;
  });
  return found || fail(ref, Code::k_corrupt, "the field \"" + std::string(key) + "\" is missing");
}

bool Decoder::tag(const JsonRef& ref, std::string_view* key, JsonRef* out) {
  if (!want(ref, JsonType::kObject)) return false;
  if (ref.count() != 1)
    return fail(ref, Code::k_corrupt, "a union holds " + std::to_string(ref.count()) + " fields, not one");
  ref.members([&](std::string_view name, const JsonRef& at) {
    *key = name;
    *out = at;
    return false;
  });
  return true;
}

bool Decoder::read(const JsonRef& ref, bool* out) {
  if (!want(ref, JsonType::kBool)) return false;
  *out = ref.boolean();
  return true;
}

bool Decoder::read(const JsonRef& ref, int64_t* out) {
  if (!want(ref, JsonType::kInt)) return false;
  *out = ref.integer();
  return true;
}

bool Decoder::read(const JsonRef& ref, double* out) {
  if (ref.type() == JsonType::kInt) return *out = static_cast<double>(ref.integer()), true;
  if (ref.type() == JsonType::kString) {
    std::string_view text = ref.string();
    if (text == "Infinity") return *out = std::numeric_limits<double>::infinity(), true;
    if (text == "-Infinity") return *out = -std::numeric_limits<double>::infinity(), true;
    if (text == "NaN") return *out = std::numeric_limits<double>::quiet_NaN(), true;
  }
  if (!want(ref, JsonType::kFloat)) return false;
  *out = ref.real();
  return true;
}

bool Decoder::read(const JsonRef& ref, std::string* out) {
  if (!want(ref, JsonType::kString)) return false;
  *out = ref.string();
  return true;
}

bool Decoder::name(const JsonRef& ref, std::string* out) {
  return read(ref, out) && (!out->empty() || fail(ref, Code::k_corrupt, "a name is empty"));
}

bool Decoder::count(const JsonRef& ref, uint64_t* counter, uint64_t limit, const char* noun, uint64_t more) {
  *counter += more;
  if (*counter <= limit) return true;
  return fail(ref, Code::k_exhausted, "the program has more than " + std::to_string(limit) + " " + noun,
              "raise the limit if the file is trusted");
}

}  // namespace keirin::pt2
