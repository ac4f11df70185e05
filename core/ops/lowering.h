// SPDX-License-Identifier: Apache-2.0
//
// What a recipe works with: the arguments of one ATen call by name, and the rows of the table. The first problem
// sticks: afterwards every function does nothing and answers kNone or an empty value, so a recipe reads as a formula
// and lower_aten looks once at the end. Private to core/ops.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/aten.h"
#include "core/ops/promote.h"
#include "core/ops/table.h"

namespace keirin {

using Values = ValueIds;

class Lowering {
 public:
  // A tensor or a number, as promotion sees it.
  struct Operand {
    ValueId id = kNone;  // kNone for a number
    DType dtype = DType::kNone;
    bool is_zero_dim = false;
    bool is_integer = false;  // number: which of the two fields holds it
    int64_t i = 0;
    double d = 0;
    bool is_number() const { return id == kNone; }
    double as_double() const { return is_integer ? static_cast<double>(i) : d; }
  };

  Lowering(Builder& builder, const AtenCall& call) : builder_(builder), call_(call) {}

  // ---- outcome
  bool failed() const { return declined_ || !malformed_.ok(); }
  void decline(std::string why);  // the call is fine, the table has no exact way to say it
  const std::string& why() const { return why_; }
  const Status& malformed() const { return malformed_; }

  // ---- arguments; an argument of another kind than asked for makes the call malformed
  bool given(std::string_view name) const;  // neither missing nor None
  ValueId tensor(std::string_view name);
  ValueId tensor_or_none(std::string_view name);
  Values tensors(std::string_view name);
  Operand operand(std::string_view name);
  int64_t integer(std::string_view name, int64_t fallback = 0);
  double real(std::string_view name, double fallback = 0);
  bool flag(std::string_view name, bool fallback = false);
  std::string word(std::string_view name, std::string fallback = {});
  Dims ints(std::string_view name);
  std::vector<double> reals(std::string_view name);
  std::optional<DType> dtype(std::string_view name);
  DType hinted_dtype(size_t result, DType fallback) const;

  // ---- types
  Type type(ValueId v) const { return v == kNone ? Type{} : builder_.type(v); }
  Dims sizes(ValueId v) const { return type(v).sizes; }
  int64_t rank(ValueId v) const { return type(v).rank(); }
  DType dtype_of(ValueId v) const { return type(v).dtype; }
  int64_t axis(int64_t dim, int64_t rank);  // wraps a negative one; rank 0 counts as 1
  Dims axes(Dims dims, int64_t rank);       // wrapped and ascending; empty means all
  Operand as_operand(ValueId v) const;
  static Operand number(double v);
  static Operand number(int64_t v);
  DType result_type(std::initializer_list<Operand> operands) const;
  const Op* producer(ValueId v) const;
  bool by_reciprocal() const { return call_.by_reciprocal; }

  // ---- rows
  ValueId row(OpCode code, Values operands, Attrs attrs = {});
  Values rows(OpCode code, Values operands, Attrs attrs = {});
  ValueId cast(ValueId v, DType dtype);
  ValueId to_bool(ValueId v);
  ValueId expand(ValueId v, const Dims& sizes);
  ValueId reshape(ValueId v, Dims sizes);
  ValueId permute(ValueId v, Dims dims);
  ValueId transpose(ValueId v, int64_t a, int64_t b);
  ValueId slice(ValueId v, int64_t dim, int64_t start, int64_t end, int64_t step = 1);
  ValueId cat(Values values, int64_t dim);
  ValueId unsqueeze(ValueId v, int64_t dim);
  ValueId full(const Operand& number, DType dtype, const Dims& sizes);
  ValueId iota(int64_t start, int64_t n, int64_t step = 1, DType dtype = DType::k_i64);
  ValueId reduce(OpCode code, ValueId v, Dims dims, bool keepdim);

  // ATen's element-wise rule: broadcasts, brings all to `dtype`, emits, and keeps the row's result dtype. With
  // `in_compute` a half-precision row whose numbers do not fit the storage dtype runs in f32 and is cast back: ATen
  // keeps scalars in f32.
  ValueId pointwise(OpCode code, std::initializer_list<Operand> operands, DType dtype, bool in_compute = true);
  ValueId binary(OpCode code, ValueId a, ValueId b) { return row(code, {a, b}); }  // sizes and dtypes are equal already
  ValueId select(ValueId condition, const Operand& a, const Operand& b, DType dtype);
  ValueId with_number(OpCode code, ValueId v, double number);  // the number as a constant of v's dtype
  Dims broadcast(std::initializer_list<Dims> shapes);

 private:
  const AtenArg* find(std::string_view name) const;
  void wrong_kind(std::string_view name, std::string_view wanted);
  template <class T>
  T take(Result<T> result);
  template <class T>
  T get(std::string_view name, std::string_view wanted, T fallback);

  Builder& builder_;
  const AtenCall& call_;
  bool declined_ = false;
  std::string why_;
  Status malformed_;
};

// A recipe answers the call's results in order. A Tensor[] result stands as its elements. kNone for a result that the
// table does not compute; the caller makes the call opaque if somebody reads it.
using Recipe = Values (*)(Lowering&);
struct RecipeRow {
  std::string_view op;
  Recipe recipe;
};

std::span<const RecipeRow> pointwise_recipes();
std::span<const RecipeRow> activation_recipes();
std::span<const RecipeRow> reduce_recipes();
std::span<const RecipeRow> view_recipes();
std::span<const RecipeRow> join_recipes();
std::span<const RecipeRow> index_recipes();
std::span<const RecipeRow> factory_recipes();
std::span<const RecipeRow> contraction_recipes();
std::span<const RecipeRow> network_recipes();
std::span<const RecipeRow> backward_recipes();

}  // namespace keirin
