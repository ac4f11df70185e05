// SPDX-License-Identifier: Apache-2.0
//
// Writes one case: operands in a layout, then the row. It is what the generators of the kinds of rows share; it knows layouts
// and no operator.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/ops/builder.h"
#include "tests/conformance/case.h"

namespace keirin::conformance {

enum class Layout { kContiguous, kShifted, kStrided, kTransposed, kPermuted, kExpanded, kNumbers };
const char* layout_name(Layout layout);
// Whether the layout differs from contiguous at that rank.
bool has_layout(Layout layout, size_t rank);

class Sheet {
 public:
  Sheet(OpCode row, DType dtype, const std::string& variant, Layout layout, Law law);

  // An operand of those sizes in the case's layout. kNumbers: the second and later ones are one number.
  ValueId operand(DType dtype, const Dims& sizes, Feed feed = {});
  // Always row-major: what steers the row (an index, offsets).
  ValueId plain(DType dtype, const Dims& sizes, Feed feed = {});
  ValueId constant(DType dtype, const Dims& sizes, Feed feed = {});

  // Emits the row and makes its results the outputs. Aborts if the table's rules refuse it: the generator is wrong then.
  Case finish(ValueIds operands, Attrs attrs = {});

 private:
  ValueId input(Type type, Feed feed);
  void see(int feed, std::vector<int64_t> from);

  Case case_;
  Builder builder_;
  Layout layout_;
  uint32_t num_constants_ = 0;
  int num_operands_ = 0;
};

inline constexpr DType kFloats[] = {DType::k_f32, DType::k_bf16, DType::k_f16, DType::k_f64};
inline constexpr DType kMain[] = {DType::k_f32, DType::k_bf16, DType::k_f16, DType::k_f64,
                                  DType::k_i64, DType::k_i32,  DType::k_bool};
inline constexpr DType kAll[] = {DType::k_f32, DType::k_bf16, DType::k_f16, DType::k_f64, DType::k_i64,
                                 DType::k_i32, DType::k_i16,  DType::k_i8,  DType::k_u8,  DType::k_bool};
inline constexpr Layout kLayouts[] = {Layout::kShifted, Layout::kStrided, Layout::kTransposed, Layout::kPermuted,
                                      Layout::kExpanded};

}  // namespace keirin::conformance
