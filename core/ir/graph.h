// SPDX-License-Identifier: Apache-2.0
//
// The Graph (L1): what a model means. Passes rewrite it, partition cuts it, bytes.h writes regions of it for plugins.
//
//  1. Functional. Values never change. Any order that respects data and effect edges is legal; ops are kept in one such order.
//  2. Types and shapes are explicit: no promotion, no implicit broadcast. In 0.x every dim is a number (capture substitutes
//     the sizes of one shape class). A scalar is a `full` of the compute dtype.
//  3. Integers wrap in their width. Division by zero stays eager's error.
//  4. Floats are IEEE-754; NaN, -0 and denormals are kept. Only exact rewrites are legal in `default`.
//  5. Reductions have an unspecified order, fixed by shape and device, never by the number of threads.
//  6. `observed` values are rounded to their dtype for all readers; the others may be kept in the compute dtype.
//  7. No aliasing inside. An output is fresh or `update(input)`: a new content for that input's storage.
//  8. Layout is not meaning: strides and encoding bind at region borders only.
//  9. An op with code kOpaque is any LibTorch operator; the eager side knows how to call it (`call`). An opaque op with
//     `effects` set keeps its order among the other ops with effects.
//
// Threads: a Graph is a value; concurrent reads are fine, writes need their own copy.
#pragma once

#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/shared_text.h"

namespace keirin {

using ValueId = uint32_t;
using OpId = uint32_t;
inline constexpr uint32_t kNone = 0xffffffffu;

enum class OpCode : uint16_t {
  kOpaque = 0,
#define KRN_SCALAR(id, name, ...) k_##name = id,
#define KRN_REDUCE(id, name, ...) k_##name = id,
#define KRN_MOVE(id, name, ...) k_##name = id,
#define KRN_FACTORY(id, name, ...) k_##name = id,
#define KRN_COMPOSITE(id, name, ...) k_##name = id,
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
};

enum class AttrKey : uint16_t {
#define KRN_ATTR(id, name, kind) k_##name = id,
#include "abi/attrs.def"
#undef KRN_ATTR
};

enum class Encoding : uint8_t { kContiguous = 0, kChannelsLast = 1, kStrided = 2 };

// The lists of a graph hold their first elements in themselves: every pass copies the ops that it keeps, and a list on the heap
// costs more than all else that is copied with it.
struct Dims : boost::container::small_vector<int64_t, 5> {
  using small_vector::small_vector;
  Dims() = default;
  Dims(const std::vector<int64_t>& list) : small_vector(list.begin(), list.end()) {}  // NOLINT: sizes of tensors come as those
  std::vector<int64_t> vec() const { return {begin(), end()}; }
  friend bool operator==(const Dims& a, const Dims& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }
};
using ValueIds = boost::container::small_vector<ValueId, 4>;
using AttrValue = std::variant<int64_t, double, bool, Dims, std::string>;

struct Attr {
  AttrKey key;
  AttrValue value;
  bool operator==(const Attr&) const = default;
};

using Attrs = boost::container::small_vector<Attr, 2>;

// The values a tensor can hold, as far as known: filled by the pass `infer` for integers, bools and constants.
struct Range {
  double low, high;
  bool may_be_nan = false;
  bool operator==(const Range&) const = default;
};

struct Type {
  DType dtype = DType::kNone;
  Dims sizes;
  Dims strides;  // in elements; as eager would lay the value out
  bool operator==(const Type&) const = default;
  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  int64_t num_elements() const;
  int64_t bytes() const { return num_elements() * dtype_bytes(dtype); }
  Encoding encoding() const;  // derived from the strides; a type that is both counts as contiguous
};

// Row-major strides; the strides of rank 4 or 5 with the channels innermost.
Dims contiguous_strides(const Dims& sizes);
Dims channels_last_strides(const Dims& sizes);

enum class ValueKind : uint8_t {
  kResult,    // produced by an op
  kInput,     // user input `index`
  kConstant,  // parameter, buffer or folded constant `index` of the model's constant table; never changes
  kState,     // mutable buffer or parameter `index` of the same table: it has an update(input) output
};

struct Value {
  Type type;
  ValueKind kind = ValueKind::kResult;
  bool observed = true;
  uint32_t producer = kNone;  // op, for kResult
  uint32_t index = 0;         // result number, input number or constant number
  std::optional<Range> range;
  SharedText name;            // for people; may be empty
  bool operator==(const Value&) const = default;
};

struct Op {
  OpCode code = OpCode::kOpaque;
  ValueIds operands;              // kNone where an optional operand is absent
  ValueIds results;
  Attrs attrs;                    // ascending by key
  uint32_t call = kNone;          // opaque: number of the call record that the eager side keeps for it
  bool effects = false;           // opaque: has effects (rng, assertion, mutation), keeps its order, is never dropped
  uint32_t body = kNone;          // composite: index into Graph::bodies, or kNone if not written out
  SharedText origin;              // "node @ module path" of the file; several nodes of one path: "node, node @ module path"

  const AttrValue* find(AttrKey key) const;
  int64_t i(AttrKey key) const;            // 0 if absent
  double d(AttrKey key) const;             // 0 if absent
  bool b(AttrKey key) const;               // false if absent
  const Dims& ints(AttrKey key) const;     // empty if absent
  const std::string& s(AttrKey key) const; // empty if absent
  void set(AttrKey key, AttrValue value);  // keeps the order
  void erase(AttrKey key);
  bool operator==(const Op&) const = default;
};

struct Output {
  ValueId value = kNone;
  // kNone: an output of the user's. Else the value (kInput or kState) whose storage receives `value` when the call ends.
  ValueId updates = kNone;
  // What the user's output is in eager: fresh, or a view of / the very input value (0.x: only identity is expressed).
  ValueId alias_of = kNone;
  bool operator==(const Output&) const = default;
};

class Graph {
 public:
  std::vector<Value> values;
  std::vector<Op> ops;  // topological order
  std::vector<ValueId> inputs;   // kInput values by user position; an unused one is still listed
  std::vector<Output> outputs;   // the user's outputs first, in order, then updates
  std::vector<Graph> bodies;     // decompositions of composites; their inputs stand for the present operands in order

  const Type& type(ValueId v) const { return values[v].type; }

  ValueId add_input(Type type, uint32_t index, SharedText name = {});
  ValueId add_constant(Type type, uint32_t index, ValueKind kind, SharedText name = {});
  // Appends an op whose results get `types`; returns its id. Attributes are sorted.
  OpId add_op(OpCode code, ValueIds operands, Attrs attrs, std::vector<Type> types);

  // Number of reads of each value, outputs included.
  std::vector<uint32_t> count_uses() const;
  // Replaces every read of `from` (outputs included) by `to`.
  void replace_uses(ValueId from, ValueId to);
  // Drops ops without readers and effects, and renumbers; values and ops keep their relative order. Returns whether anything went.
  bool drop_dead();
  bool operator==(const Graph&) const;
};

}  // namespace keirin
