// SPDX-License-Identifier: Apache-2.0
//
// L2: loop kernels, what lies between the tensor graph and generated text. A kernel computes for each point of its outer axes
// one row, in stages. The concrete sizes and strides stand here, but generated code takes them as arguments: `structure_key`
// erases them, and kernels of equal keys share one compiled function, whatever their sizes.
//
//   for each point of the outer axes (parallel):
//     stage 0: for i in inner: ...        map: stores;  reduce: a scalar of the row
//     stage 1: for i in inner: ...        may read the scalars of earlier stages and rows that earlier stages stored
//
// A row may have serial axes too (its elements are serial x inner, in that order): every stage then loops over both.
//
// Column class (`column` set): the serial axes are reduced while `inner` stays a vector axis:
//   for each point of the outer axes, for each block of inner (parallel):
//     acc[i] = reduce over the serial axes (dense, or the edges of a CSR row) of expr;   then the map stages per i
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/codegen/kernel/expr.h"

namespace keirin::codegen {

enum class AxisKind : uint8_t {
  kOuter,    // parallel
  kSerial,   // column class: reduced in order, dense; row class: part of the row
  kSegment,  // positions p in [row_ptr[o], row_ptr[o + 1]) of the kernel's CSR, o = index of the last outer axis; the axis'
             // index, in coordinates and accesses, is perm[p]
  kInner,    // the row: vectorised; exactly one, the last
};

struct Axis {
  int64_t size = 1;
  AxisKind kind = AxisKind::kOuter;
  bool operator==(const Axis&) const = default;
};

// Linear form over the axes: offset + sum of coeff[a] * index[a].
struct Linear {
  int64_t offset = 0;
  std::vector<int64_t> coeff;  // one per axis
  bool operator==(const Linear&) const = default;
};

// One way of reading or writing a buffer. The element index is `index` plus, for each indirection, stride * loaded value.
struct Access {
  uint32_t buffer = 0;   // number in Kernel::buffers
  uint8_t dtype = 0;     // storage dtype, dtypes.def
  Linear index;
  struct Indirect {      // a gather: the value of DAG node `node` (kI64), checked to lie in [0, limit)
    int32_t node;
    int64_t stride;
    int64_t limit;
    bool inside = false; // wherever the kernel is at: nothing to check (bounds.h)
    bool operator==(const Indirect&) const = default;
  };
  std::vector<Indirect> indirects;
  struct Guard {         // the access is inside only where 0 <= form < limit; outside, a load gives `fill`, a store is skipped
    Linear form;
    int64_t limit;
    bool operator==(const Guard&) const = default;
  };
  std::vector<Guard> guards;
  double fill = 0;
  bool operator==(const Access&) const = default;
};

// kDeviations: the sum of squares of the differences from the mean of all, in one pass. Partial results are (count, mean, sum), which
// join: Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983). Of the column class, in f32, without a CSR.
enum class Monoid : uint8_t { kSum, kProd, kMax, kMin, kAny, kAll, kArgMax, kArgMin, kDeviations };

struct Stage {
  bool reduce = false;
  // A map stage of the row class that runs once for each row, not for each element: its nodes read scalars, outer coordinates
  // and accesses that do not move along the row.
  bool once = false;
  // Map: `stores` pairs a DAG node with the access it is written to. Reduce: `value` is folded by `monoid` over inner (row
  // class) or over the serial and segment axes (column class); later stages read it as kScalar with this stage's number.
  // kArgMax and kArgMin give the position in the reduced axes, counted row-major, as i64; the first of equals, NaN wins.
  // An empty row gives the monoid's start (0, 1, -inf, +inf, false, true; for integers the least and greatest i64).
  struct Store {
    int32_t node;
    uint32_t access;  // number in Kernel::accesses
    bool operator==(const Store&) const = default;
  };
  std::vector<Store> stores;
  Monoid monoid = Monoid::kSum;
  Kind accumulator = Kind::kF32;
  int32_t value = -1;
  bool operator==(const Stage&) const = default;
};

struct Buffer {
  uint32_t id = 0;        // the executable's buffer
  uint8_t dtype = 0;
  bool written = false;
  bool operator==(const Buffer&) const = default;
};

// CSR over the destination of a scatter, built at run time from an index tensor and cached by its content.
struct Csr {
  uint32_t index_buffer = 0;  // i64 or i32 destination of each source position, contiguous; the executable's buffer
  uint8_t index_dtype = 6;
  int64_t index_offset = 0;   // elements from the buffer's base
  int64_t num_rows = 0;
  int64_t num_edges = 0;
  // The executable's buffers that hold, while a run lasts, i32 row_ptr[num_rows + 1] and i32 perm[num_edges] (stable order).
  // A step before the kernel fills their entries of RunContext::buffers.
  uint32_t row_ptr_buffer = 0;
  uint32_t perm_buffer = 0;
  bool operator==(const Csr&) const = default;
};

struct Kernel {
  std::string name;            // "k3_row_layer_norm": for people
  std::vector<Axis> axes;      // outer.., serial.., segment?, inner
  bool column = false;
  bool has_csr = false;
  Csr csr;                     // with has_csr: the segment axis' index is the source position perm[p]
  std::vector<Buffer> buffers;
  std::vector<Access> accesses;
  Dag dag;
  std::vector<Stage> stages;
  bool operator==(const Kernel&) const = default;
};

// A whole number in the DAG that may come from a size (the row length in an index that was flattened, say): an argument like the
// sizes, so that another size shares the code. 0 and 1 stay, since they are folded, and what needs more than 32 bits.
bool is_argument(const Node& node);

// What decides the generated code: axes' kinds, dtypes, the DAG, stages, per access which strides are 0, 1 or general along
// inner and 0 or not along the others, guards' shape, which indices are checked. No sizes, no strides' values, no buffer ids, no names.
std::string structure_key(const Kernel& kernel);

// The run-time arguments that go with structure_key, in a fixed order that the printers and the LLVM builder share: axis sizes,
// then for each access: offset, coefficient per axis; for each indirect: stride, limit; for each guard: offset, coefficient
// per axis, limit; then each literal of the DAG that is_argument. All i64. Pointers come apart from these: one per Kernel::buffers, then
// row_ptr and perm if has_csr.
std::vector<int64_t> size_arguments(const Kernel& kernel);

}  // namespace keirin::codegen
