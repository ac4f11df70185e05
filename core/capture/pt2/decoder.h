// SPDX-License-Identifier: Apache-2.0
//
// Turns JSON into the structs of schema.h. One Decoder reads one program or one payload config; every method answers
// false after the first failure, whose Status, with path and byte, is kept in `status`.
// Unknown members of objects are skipped (a newer minor version), unknown union tags and enum values are refused.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/capture/pt2/json.h"
#include "core/capture/pt2/schema.h"

namespace keirin::pt2 {

class Decoder {
 public:
  explicit Decoder(const Limits& limits) : limits_(limits) {}

  Status status;

  bool program(const JsonRef& ref, Program* out);
  bool tensor_meta(const JsonRef& ref, TensorMeta* out);

  // Always false.
  bool fail(const JsonRef& ref, Code code, std::string what, std::string advice = "save the file again");

  bool want(const JsonRef& ref, JsonType type);
  // The member `key`; false with a Status if it is missing. `optional` leaves *out a null reference instead.
  bool member(const JsonRef& ref, std::string_view key, JsonRef* out);
  bool optional(const JsonRef& ref, std::string_view key, JsonRef* out, bool* present);
  // The one member of a union.
  bool tag(const JsonRef& ref, std::string_view* key, JsonRef* out);

  bool read(const JsonRef& ref, bool* out);
  bool read(const JsonRef& ref, int64_t* out);
  bool read(const JsonRef& ref, double* out);  // a number, or one of the strings Infinity, -Infinity, NaN
  bool read(const JsonRef& ref, std::string* out);
  template <class T>
  bool read_member(const JsonRef& ref, std::string_view key, T* out) {
    JsonRef at;
    return member(ref, key, &at) && read(at, out);
  }
  bool name(const JsonRef& ref, std::string* out);  // a string that is not empty

 private:
  bool count(const JsonRef& ref, uint64_t* counter, uint64_t limit, const char* noun, uint64_t more);
  bool unknown(const JsonRef& ref, const char* noun, std::string_view value);

  // decode_values.cc
  bool dtype(const JsonRef& ref, DType* out);
  bool layout(const JsonRef& ref, Layout* out);
  bool memory_format(const JsonRef& ref, MemoryFormat* out);
  bool device(const JsonRef& ref, Device* out);
  bool expression(const JsonRef& ref, ExprPtr* out, JsonRef* hint, bool* has_hint);
  bool sym_int(const JsonRef& ref, SymInt* out);
  bool sym_float(const JsonRef& ref, SymFloat* out);
  bool sym_bool(const JsonRef& ref, SymBool* out);
  bool sizes(const JsonRef& ref, const char* noun, std::vector<SymInt>* out);

  // decode_arguments.cc
  bool argument(const JsonRef& ref, Argument* out);
  bool scalar_argument(std::string_view tag, const JsonRef& ref, Argument* out, bool* known);
  bool list_argument(std::string_view tag, const JsonRef& ref, Argument* out, bool* known);
  bool symbol_argument(std::string_view tag, const JsonRef& ref, Argument* out, bool* known);
  bool nested_argument(std::string_view tag, const JsonRef& ref, Argument* out, bool* known);
  bool read(const JsonRef& ref, SymIntArg* out);
  bool read(const JsonRef& ref, SymFloatArg* out);
  bool read(const JsonRef& ref, SymBoolArg* out);
  bool optional_tensor(const JsonRef& ref, std::optional<std::string>* out);
  template <class T>
  bool list(const JsonRef& ref, Argument* out);
  template <class T>
  bool lists(const JsonRef& ref, Argument* out);
  template <class T, class V>
  bool name_or(const JsonRef& ref, std::string_view literal, T* out, V* value);

  // decode_graph.cc
  bool graph(const JsonRef& ref, Graph* out);
  bool node(const JsonRef& ref, Node* out);
  bool metadata(const JsonRef& ref, Node* out);
  bool arguments(const JsonRef& ref, std::vector<Argument>* out);
  template <class T>
  bool values(const JsonRef& ref, std::string_view key, Named<T>* out, bool (Decoder::*read_one)(const JsonRef&, T*));

  // decode_program.cc
  bool schema_version(const JsonRef& ref, Program* out);
  bool input_spec(const JsonRef& ref, const Argument& graph_input, InputSpec* out);
  bool output_spec(const JsonRef& ref, OutputSpec* out);
  bool constant(const JsonRef& ref, Constant* out);
  bool signature(const JsonRef& ref, Program* out);
  bool call_signature(const JsonRef& ref, Program* out);
  bool ranges(const JsonRef& ref, Program* out);
  bool texts(const JsonRef& ref, std::vector<std::string>* out);
  bool tree(const JsonRef& ref, std::string_view key, const JsonRef& fields, TreeSpec* out);

  const Limits& limits_;
  std::map<std::string, ExprPtr, std::less<>> expressions_;  // equal texts share one tree
  uint64_t num_nodes_ = 0, num_values_ = 0, num_expr_nodes_ = 0;
  uint32_t graph_depth_ = 0;
};

}  // namespace keirin::pt2
