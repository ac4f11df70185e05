// SPDX-License-Identifier: Apache-2.0
//
// Decoding the Argument union. Each group answers `known = false` for a tag that is not its own.
#include "core/capture/pt2/decoder.h"

namespace keirin::pt2 {

template <class T>
bool Decoder::list(const JsonRef& ref, Argument* out) {
  std::vector<T> items;
  if (!want(ref, JsonType::kArray)) return false;
  items.reserve(ref.count());
  bool done = ref.items([&](const JsonRef& item) {
    T value{};
    if (!read(item, &value)) return false;
    items.push_back(std::move(value));
    return true;
  });
  out->value = std::move(items);
  return done;
}

template <class T>
bool Decoder::lists(const JsonRef& ref, Argument* out) {
  std::vector<std::vector<T>> items;
  if (!want(ref, JsonType::kArray)) return false;
  bool done = ref.items([&](const JsonRef& item) {
    Argument inner;
    if (!list<T>(item, &inner)) return false;
    items.push_back(std::get<std::vector<T>>(std::move(inner.value)));
    return true;
  });
  out->value = std::move(items);
  return done;
}

template <class T, class V>
bool Decoder::name_or(const JsonRef& ref, std::string_view literal, T* out, V* value) {
  std::string_view key;
  JsonRef at;
  if (!tag(ref, &key, &at)) return false;
  if (key == "as_name") return name(at, &out->name);
  if (key == literal) return read(at, value);
  return unknown(at, "symbol tag", key);
}

bool Decoder::read(const JsonRef& ref, SymIntArg* out) { return name_or(ref, "as_int", out, &out->value); }
bool Decoder::read(const JsonRef& ref, SymFloatArg* out) { return name_or(ref, "as_float", out, &out->value); }
bool Decoder::read(const JsonRef& ref, SymBoolArg* out) { return name_or(ref, "as_bool", out, &out->value); }

bool Decoder::optional_tensor(const JsonRef& ref, std::optional<std::string>* out) {
  std::string_view key;
  JsonRef at, text;
  if (!tag(ref, &key, &at)) return false;
  if (key == "as_none") return true;
  if (key != "as_tensor") return unknown(at, "optional tensor tag", key);
  return member(at, "name", &text) && name(text, &out->emplace());
}

bool Decoder::scalar_argument(std::string_view tag, const JsonRef& ref, Argument* out, bool* known) {
  auto& v = out->value;
  if (tag == "as_none") return v = NoneArg{}, true;
  if (tag == "as_tensor") {
    JsonRef text;
    return member(ref, "name", &text) && name(text, &v.emplace<TensorArg>().name);
  }
  if (tag == "as_int") return read(ref, &v.emplace<int64_t>());
  if (tag == "as_float") return read(ref, &v.emplace<double>());
  if (tag == "as_bool") return read(ref, &v.emplace<bool>());
  if (tag == "as_string") return read(ref, &v.emplace<std::string>());
  if (tag == "as_scalar_type") return dtype(ref, &v.emplace<DType>());
  if (tag == "as_memory_format") return memory_format(ref, &v.emplace<MemoryFormat>());
  if (tag == "as_layout") return layout(ref, &v.emplace<Layout>());
  if (tag == "as_device") return device(ref, &v.emplace<Device>());
  if (tag == "as_operator") return name(ref, &v.emplace<OperatorArg>().target);
  if (tag == "as_complex") {
    ComplexArg& c = v.emplace<ComplexArg>();
    return read_member(ref, "real", &c.real) && read_member(ref, "imag", &c.imag);
  }
  *known = false;
  return true;
}

bool Decoder::list_argument(std::string_view tag, const JsonRef& ref, Argument* out, bool* known) {
  if (tag == "as_ints") return list<int64_t>(ref, out);
  if (tag == "as_floats") return list<double>(ref, out);
  if (tag == "as_bools") return list<bool>(ref, out);
  if (tag == "as_strings") return list<std::string>(ref, out);
  if (tag == "as_int_lists") return lists<int64_t>(ref, out);
  if (tag == "as_float_lists") return lists<double>(ref, out);
  *known = false;
  return true;
}

bool Decoder::symbol_argument(std::string_view tag, const JsonRef& ref, Argument* out, bool* known) {
  auto& v = out->value;
  if (tag == "as_sym_int") return read(ref, &v.emplace<SymIntArg>());
  if (tag == "as_sym_float") return read(ref, &v.emplace<SymFloatArg>());
  if (tag == "as_sym_bool") return read(ref, &v.emplace<SymBoolArg>());
  if (tag == "as_sym_ints") return list<SymIntArg>(ref, out);
  if (tag == "as_sym_floats") return list<SymFloatArg>(ref, out);
  if (tag == "as_sym_bools") return list<SymBoolArg>(ref, out);
  *known = false;
  return true;
}

bool Decoder::nested_argument(std::string_view tag, const JsonRef& ref, Argument* out, bool* known) {
  auto tensors = [this](const JsonRef& items, std::vector<std::string>* names) {
    return want(items, JsonType::kArray) && items.items([&](const JsonRef& item) {
      JsonRef text;
      return member(item, "name", &text) && name(text, &names->emplace_back());
    });
  };
  auto& v = out->value;
  if (tag == "as_tensors") return tensors(ref, &v.emplace<TensorsArg>().names);
  if (tag == "as_optional_tensor") {
    std::optional<std::string> one;
    if (!optional_tensor(ref, &one)) return false;
    if (one)
      v = TensorArg{std::move(*one)};
    else
      v = NoneArg{};
    return true;
  }
  if (tag == "as_optional_tensors") {
    auto& names = v.emplace<OptionalTensorsArg>().names;
    return want(ref, JsonType::kArray) &&
           ref.items([&](const JsonRef& item) { return optional_tensor(item, &names.emplace_back()); });
  }
  if (tag == "as_nested_tensors") {
    auto& names = v.emplace<NestedTensorsArg>().names;
    return want(ref, JsonType::kArray) &&
           ref.items([&](const JsonRef& item) { return tensors(item, &names.emplace_back()); });
  }
  if (tag == "as_string_to_argument") {
    auto& items = v.emplace<DictArg>().items;
    return want(ref, JsonType::kObject) && ref.members([&](std::string_view key, const JsonRef& at) {
      items.push_back({std::string(key), {}});
      return argument(at, &items.back().value);
    });
  }
  if (tag == "as_graph") {
    JsonRef body;
    auto inner = std::make_shared<Graph>();
    GraphArg& g = v.emplace<GraphArg>();
    if (!read_member(ref, "name", &g.name) || !member(ref, "graph", &body) || !graph(body, inner.get())) return false;
    g.graph = std::move(inner);
    return true;
  }
  *known = false;
  return true;
}

bool Decoder::argument(const JsonRef& ref, Argument* out) {
  using Group = bool (Decoder::*)(std::string_view, const JsonRef&, Argument*, bool*);
  std::string_view key;
  JsonRef at;
  if (!tag(ref, &key, &at)) return false;
  if (key == "as_custom_obj" || key == "as_opaque_obj")
    return fail(at, Code::k_unsupported, "the program passes a custom object",
                "export a model whose inputs and constants are tensors");
  for (Group group :
       {&Decoder::scalar_argument, &Decoder::symbol_argument, &Decoder::list_argument, &Decoder::nested_argument}) {
    bool known = true;
    if (!(this->*group)(key, at, out, &known)) return false;
    if (known) return true;
  }
  return unknown(at, "argument tag", key);
}

}  // namespace keirin::pt2
