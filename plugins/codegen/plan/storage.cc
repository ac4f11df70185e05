// SPDX-License-Identifier: Apache-2.0
//
// Placement of tensors in buffers, and views as strides.
#include "plugins/codegen/plan/storage.h"

#include <algorithm>
#include <numeric>

#include "abi/planted.h"

namespace keirin::codegen {

Layout::Layout(const FlatRegion& region) : of_(region.tensors.size()) {
  num_inputs_ = static_cast<int>(region.inputs.size());
  for (int i = 0; i < num_inputs_; ++i) {
    buffers.push_back({BufferInfo::Role::kInput, i, 0});
    of_[region.inputs[i]] = Storage{i, 0, region.tensors[region.inputs[i]].strides};
  }
  for (int o = 0; o < static_cast<int>(region.outputs.size()); ++o) buffers.push_back({BufferInfo::Role::kOutput, o, 0});
}

void Layout::place(int tensor, Storage storage) {
  if (tensor >= static_cast<int>(of_.size())) of_.resize(tensor + 1);
  of_[tensor] = std::move(storage);
}

int Layout::add_temp(int64_t bytes) {
  buffers.push_back({BufferInfo::Role::kTemp, 0, bytes});
  return static_cast<int>(buffers.size()) - 1;
}

void Layout::place_in_temp(const FlatRegion& region, int tensor) {
  const Tensor& t = region.tensors[tensor];
  Dims strides = is_dense(t.sizes, t.strides) ? t.strides : row_major(t.sizes);
  place(tensor, Storage{add_temp(t.numel() * dtype_bytes(t.dtype)), 0, std::move(strides)});
}

bool is_dense(const Dims& sizes, const Dims& strides) {
  std::vector<int> order;
  for (int i = 0; i < static_cast<int>(sizes.size()); ++i) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) { return strides[a] < strides[b]; });
  int64_t step = 1;
  for (int i : order) {
    if (strides[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}

std::vector<ReshapeGroup> reshape_groups(const Dims& result, const Dims& operand) {
  std::vector<ReshapeGroup> out;
  int a = 0, b = 0, na = static_cast<int>(result.size()), nb = static_cast<int>(operand.size());
  while (a < na || b < nb) {
    ReshapeGroup g{a, a, b, b};
    int64_t left = 1, right = 1;
    do {
      if ((left <= right && g.a1 < na) || g.b1 == nb) {
        left *= result[g.a1++];
      } else {
        right *= operand[g.b1++];
      }
    } while (left != right && (g.a1 < na || g.b1 < nb));
    a = g.a1;
    b = g.b1;
    out.push_back(g);
  }
  return out;
}

// Strides of the result dims of a group whose operand dims are stored with these strides, if one walk covers both.
static bool reshape_strides(const Dims& result, const ReshapeGroup& g, const Dims& sizes, const Dims& strides, Dims& out) {
  int b = g.b1 - 1;
  int64_t covered = 1, run = 1;  // elements of the current run of operand dims taken so far, and its length
  int64_t step = 0;
  for (int a = g.a1 - 1; a >= g.a0; --a) {
    if (result[a] == 1) {
      out[a] = 0;
      continue;
    }
    if (covered == run) {  // start a new run: operand dims that are contiguous with each other
      while (b >= g.b0 && sizes[b] == 1) --b;
      if (b < g.b0) return false;
      step = strides[b];
      run = sizes[b--];
      while (b >= g.b0 && (sizes[b] == 1 || strides[b] == step * run)) run *= sizes[b--];
      covered = 1;
    }
    out[a] = step * covered;
    covered *= result[a];
    if (covered > run || run % covered != 0) return false;
  }
  return true;
}

int view_base(const FlatRegion& region, int tensor) {
  for (;;) {
    const TensorNode* node = region.producer(tensor);
    if (!node || !is_view(node->op)) return tensor;
    tensor = node->operands[0];
  }
}

bool resolve_view(const FlatRegion& region, const Layout& layout, int tensor, StridedView& out) {
  if (layout.stored(tensor)) {
    out = StridedView{tensor, layout.at(tensor).offset, layout.at(tensor).strides};
    return true;
  }
  const TensorNode* node = region.producer(tensor);
  if (!node || !is_view(node->op)) return false;
  int x = node->operands[0];
  if (!resolve_view(region, layout, x, out)) return false;
  const Dims& from = region.tensors[x].sizes;
  const Dims& to = region.tensors[tensor].sizes;
  Dims strides(to.size());
  switch (node->op) {
    case kOp_relayout:
      return true;
    case kOp_expand:
      for (size_t i = 0; i < to.size(); ++i) strides[i] = from[i] == 1 && to[i] != 1 && !KRN_PLANTED(broadcast_stride) ? 0 : out.strides[i];
      break;
    case kOp_permute:
      for (size_t i = 0; i < to.size(); ++i) strides[i] = out.strides[node->attrs.dims[i]];
      break;
    case kOp_slice:
      strides = out.strides;
      out.offset += node->attrs.start * strides[node->attrs.dim];
      strides[node->attrs.dim] *= node->attrs.step;
      break;
    case kOp_flip:
      strides = out.strides;
      for (int64_t d : node->attrs.dims) {
        out.offset += (from[d] - 1) * strides[d];
        strides[d] = -strides[d];
      }
      break;
    case kOp_reshape:
      if (region.tensors[tensor].numel() == 0) return false;
      for (const ReshapeGroup& g : reshape_groups(to, from)) {
        if (!reshape_strides(to, g, from, out.strides, strides)) return false;
      }
      break;
    default:
      return false;
  }
  out.strides = std::move(strides);
  return true;
}

}  // namespace keirin::codegen
