// SPDX-License-Identifier: Apache-2.0
//
// Where tensors live: the numbered buffers of an executable and, for each tensor that is stored at all, its buffer, offset and
// strides. A tensor without storage exists only inside kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/codegen/region/region.h"

namespace keirin::codegen {

struct BufferInfo {
  enum class Role : uint8_t { kInput, kOutput, kTemp } role = Role::kTemp;
  int index = 0;      // which input or output
  int64_t bytes = 0;  // temps: what the memory planner must give
  bool operator==(const BufferInfo&) const = default;
};

struct Storage {
  int buffer = -1;
  int64_t offset = 0;  // elements
  Dims strides;
  // Only for what is stored into rows of a larger tensor: the 1-d index tensor that names the row along `row_axis`, and how many
  // rows there are.
  int row_index = -1;
  int row_axis = 0;
  int64_t num_rows = 0;
};

class Layout {
 public:
  // One buffer per input and output of the region; inputs are stored as their types say.
  explicit Layout(const FlatRegion& region);

  bool stored(int tensor) const { return tensor < static_cast<int>(of_.size()) && of_[tensor].buffer >= 0; }
  const Storage& at(int tensor) const { return of_[tensor]; }
  void place(int tensor, Storage storage);
  // A temp of its own, in the strides that the tensor wishes if they are dense, else row-major.
  void place_in_temp(const FlatRegion& region, int tensor);
  void drop(int tensor) { of_[tensor].buffer = -1; }
  int add_temp(int64_t bytes);
  int output_buffer(int output) const { return num_inputs_ + output; }

  std::vector<BufferInfo> buffers;

 private:
  std::vector<Storage> of_;
  int num_inputs_ = 0;
};

// Whether the strides are a permutation of row-major: every element once, no holes.
bool is_dense(const Dims& sizes, const Dims& strides);

// The storage of `tensor` as a strided view of one stored tensor, through moves that need no copy; nullopt if there is none.
struct StridedView {
  int base = -1;
  int64_t offset = 0;
  Dims strides;
};
bool resolve_view(const FlatRegion& region, const Layout& layout, int tensor, StridedView& out);
// The tensor at the root of a chain of views.
int view_base(const FlatRegion& region, int tensor);

// Groups of equal products for a reshape: result dims [a0, a1) hold the same elements as operand dims [b0, b1).
struct ReshapeGroup {
  int a0, a1, b0, b1;
};
std::vector<ReshapeGroup> reshape_groups(const Dims& result, const Dims& operand);

}  // namespace keirin::codegen
