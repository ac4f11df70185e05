// SPDX-License-Identifier: Apache-2.0
//
// Decoding what describes a value: dtype, layout, device, sizes, symbolic numbers.
#include <algorithm>

#include "core/capture/pt2/decoder.h"

namespace keirin::pt2 {
namespace {

struct DTypeNumber {
  int64_t number;
  DType dtype;       // kNone: known to torch, not to us
  const char* name;  // for the refusal
};

// The numbers of the file format, which are not those of c10::ScalarType.
constexpr DTypeNumber kDTypes[] = {
    {0, DType::kNone, "unknown"},
    {1, DType::k_u8, ""},
    {2, DType::k_i8, ""},
    {3, DType::k_i16, ""},
    {4, DType::k_i32, ""},
    {5, DType::k_i64, ""},
    {6, DType::k_f16, ""},
    {7, DType::k_f32, ""},
    {8, DType::k_f64, ""},
    {9, DType::kNone, "complex32"},
    {10, DType::k_c64, ""},
    {11, DType::k_c128, ""},
    {12, DType::k_bool, ""},
    {13, DType::k_bf16, ""},
    {28, DType::k_u16, ""},
    {29, DType::k_f8_e4m3fn, ""},
    {30, DType::k_f8_e5m2, ""},
    {31, DType::kNone, "float8_e4m3fnuz"},
    {32, DType::kNone, "float8_e5m2fnuz"},
    {33, DType::kNone, "float8_e8m0fnu"},
    {34, DType::k_u32, ""},
    {35, DType::k_u64, ""},
};

constexpr const char* kLayouts[] = {"unknown",    "sparse_coo", "sparse_csr", "sparse_csc",
                                    "sparse_bsr", "sparse_bsc", "mkldnn"};

}  // namespace

bool Decoder::dtype(const JsonRef& ref, DType* out) {
  int64_t number = 0;
  if (!read(ref, &number)) return false;
  auto row =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeNumber& r) { return r.number == number; });
  if (row == std::end(kDTypes)) return unknown(ref, "dtype number", std::to_string(number));
  if (row->dtype == DType::kNone)
    return fail(ref, Code::k_unsupported, std::string("tensors of dtype ") + row->name + " are not supported",
                "cast them before the export");
  *out = row->dtype;
  return true;
}

bool Decoder::layout(const JsonRef& ref, Layout* out) {
  int64_t number = 0;
  if (!read(ref, &number)) return false;
  if (number < 0 || number > 7) return unknown(ref, "layout number", std::to_string(number));
  if (number != 7)
    return fail(ref, Code::k_unsupported, std::string("tensors of layout ") + kLayouts[number] + " are not supported",
                "convert them to dense tensors before the export");
  *out = Layout::kStrided;
  return true;
}

bool Decoder::memory_format(const JsonRef& ref, MemoryFormat* out) {
  int64_t number = 0;
  if (!read(ref, &number)) return false;
  if (number < 1 || number > 4) return unknown(ref, "memory format number", std::to_string(number));
  *out = static_cast<MemoryFormat>(number);
  return true;
}

bool Decoder::device(const JsonRef& ref, Device* out) {
  JsonRef index;
  bool present = false;
  int64_t number = 0;
  JsonRef type;
  if (!member(ref, "type", &type) || !name(type, &out->type) || !optional(ref, "index", &index, &present)) return false;
  if (!present) return true;
  if (!read(index, &number)) return false;
  if (number < 0 || number > 0x7FFF) return fail(index, Code::k_corrupt, "a device index is " + std::to_string(number));
  out->index = number;
  return true;
}

bool Decoder::expression(const JsonRef& ref, ExprPtr* out, JsonRef* hint, bool* has_hint) {
  JsonRef text;
  if (!member(ref, "expr_str", &text) || !want(text, JsonType::kString) || !optional(ref, "hint", hint, has_hint))
    return false;
  auto [it, fresh] = expressions_.try_emplace(std::string(text.string()));
  if (fresh) {
    Result<ExprPtr> parsed = parse_srepr(text.string(), limits_.expr);
    if (!parsed.ok()) {
      const Message& m = parsed.status().message();
      return fail(text, parsed.status().code(), m.what + (m.where.empty() ? "" : ", " + m.where), m.advice);
    }
    it->second = parsed.value();
    if (!count(text, &num_expr_nodes_, limits_.expr_nodes, "terms in its sizes", it->second->nodes.size()))
      return false;
  }
  *out = it->second;
  return true;
}

bool Decoder::sym_int(const JsonRef& ref, SymInt* out) {
  std::string_view key;
  JsonRef at, hint, number;
  if (!tag(ref, &key, &at)) return false;
  if (key == "as_int") return read(at, &out->value);
  if (key != "as_expr") return unknown(at, "integer tag", key);
  bool has_hint = false;
  if (!expression(at, &out->expr, &hint, &has_hint)) return false;
  if (!has_hint) return true;
  if (!tag(hint, &key, &number)) return false;
  if (key != "as_int") return fail(hint, Code::k_corrupt, "the hint of an integer is not an integer");
  return read(number, &out->hint.emplace());
}

bool Decoder::sym_float(const JsonRef& ref, SymFloat* out) {
  std::string_view key;
  JsonRef at, hint, number;
  if (!tag(ref, &key, &at)) return false;
  if (key == "as_float") return read(at, &out->value);
  if (key != "as_expr") return unknown(at, "float tag", key);
  bool has_hint = false;
  if (!expression(at, &out->expr, &hint, &has_hint)) return false;
  if (!has_hint) return true;
  if (!tag(hint, &key, &number)) return false;
  if (key != "as_float" && key != "as_int") return fail(hint, Code::k_corrupt, "the hint of a float is not a number");
  return read(number, &out->hint.emplace());
}

bool Decoder::sym_bool(const JsonRef& ref, SymBool* out) {
  std::string_view key;
  JsonRef at, hint, value;
  if (!tag(ref, &key, &at)) return false;
  if (key == "as_bool") return read(at, &out->value);
  if (key != "as_expr") return unknown(at, "boolean tag", key);
  bool has_hint = false;
  if (!expression(at, &out->expr, &hint, &has_hint)) return false;
  if (!has_hint) return true;
  if (!tag(hint, &key, &value)) return false;
  if (key != "as_bool") return fail(hint, Code::k_corrupt, "the hint of a boolean is not a boolean");
  return read(value, &out->hint.emplace());
}

bool Decoder::sizes(const JsonRef& ref, const char* noun, std::vector<SymInt>* out) {
  if (!want(ref, JsonType::kArray)) return false;
  if (ref.count() > limits_.rank)
    return fail(
        ref, Code::k_corrupt,
        "a tensor has " + std::to_string(ref.count()) + " dimensions, the limit is " + std::to_string(limits_.rank));
  out->reserve(ref.count());
  return ref.items([&](const JsonRef& item) {
    SymInt& size = out->emplace_back();
    if (!sym_int(item, &size)) return false;
    if ((size.is_literal() && size.value < 0) || (size.hint && *size.hint < 0))
      return fail(item, Code::k_corrupt, std::string("a ") + noun + " is negative");
    return true;
  });
}

bool Decoder::tensor_meta(const JsonRef& ref, TensorMeta* out) {
  JsonRef type, dims, strides, offset, place, form;
  if (!member(ref, "dtype", &type) || !dtype(type, &out->dtype)) return false;
  if (!member(ref, "layout", &form) || !layout(form, &out->layout)) return false;
  if (!member(ref, "sizes", &dims) || !sizes(dims, "size", &out->sizes)) return false;
  if (!member(ref, "strides", &strides) || !sizes(strides, "stride", &out->strides)) return false;
  if (out->sizes.size() != out->strides.size())
    return fail(strides, Code::k_corrupt,
                "a tensor has " + std::to_string(out->sizes.size()) + " sizes and " +
                    std::to_string(out->strides.size()) + " strides");
  if (!member(ref, "storage_offset", &offset) || !sym_int(offset, &out->storage_offset)) return false;
  if (out->storage_offset.is_literal() && out->storage_offset.value < 0)
    return fail(offset, Code::k_corrupt, "a storage offset is negative");
  if (!member(ref, "device", &place) || !device(place, &out->device)) return false;
  return read_member(ref, "requires_grad", &out->requires_grad);
}

}  // namespace keirin::pt2
