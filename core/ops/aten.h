// SPDX-License-Identifier: Apache-2.0
//
// From an ATen call to rows of the table: the recipes (`add`'s alpha, `gelu`'s approximate, `.Scalar` forms, promotion,
// broadcasting). Torch-free: the importer binds arguments by schema first.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"
#include "core/ops/builder.h"

namespace keirin {

// One bound argument, in schema order, defaults filled in. Symbolic sizes are numbers already.
struct AtenArg {
  struct None {};
  struct Value {
    ValueId id;
    bool wrapped_number = false;
  };                                    // wrapped: a `full` of rank 0 that stands for a number in promotion
  using Values = ValueIds;  // Tensor[]; Tensor?[] with kNone for absent ones
  std::variant<None, Value, Values, int64_t, double, bool, std::string, Dims, std::vector<double>, std::vector<bool>,
               DType>
      value;
};

struct AtenCall {
  std::string_view op;  // "aten::add.Tensor"; no dot for the default overload
  const std::vector<AtenArg>* args = nullptr;
  const std::vector<std::string>* names = nullptr;  // names of the arguments, parallel to args
  // What the file says about the results: a hint (dtype of factories, sizes where the rule needs them).
  const std::vector<Type>* result_hints = nullptr;
  // LibTorch's kernels on the device multiply by the reciprocal of a divisor that is a number, as those for GPUs do
  // (aten/src/ATen/native/cuda/BinaryDivTrueKernel.cu). That may round otherwise than the quotient: log(64 / 8) / log(16) * 8 is less
  // than 6.
  bool by_reciprocal = false;
};

// Appends the rows that compute `call` and returns its results, one per ATen result; a Tensor[] result stands as its
// elements (in-place and out variants are asked for under their functional name). A result that the table does not
// compute (the indices of max_pool2d_with_indices, the saved statistics of native_layer_norm) is kNone: if somebody
// reads it, the caller makes the call opaque. A result may be an operand itself (dropout in eval, `to` without effect).
// nullopt: not in the table, the caller makes it opaque; `why_opaque` says why, for the report. An error status: the
// arguments are not bound as the schema says. Memory-format arguments change strides only and are ignored here.
Result<std::optional<ValueIds>> lower_aten(Builder& builder, const AtenCall& call, std::string* why_opaque = nullptr);

// Whether lower_aten has a recipe of that name, "aten::add.Tensor".
bool knows_aten_op(std::string_view op);
// Names that lower_aten knows, for docs and tests.
std::vector<std::string_view> known_aten_ops();

// Writes the decomposition of a `body` composite as a Graph whose inputs are the op's present operands in order.
// `by_channel`: statistics of a group norm are made of those of its channels, which are columns where images lie channels-last.
Result<Graph> decompose(const Graph& graph, const Op& op, bool by_channel = false);

}  // namespace keirin
