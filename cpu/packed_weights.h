// SPDX-License-Identifier: Apache-2.0
//
// Constant weights in oneDNN's own layouts, shared by every executable of the process that wants the same weight in the same
// layout. A weight is known by its address: weights neither move nor change while their model lives, and a pack dies with the
// last executable that holds it.
#pragma once

#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>

#include "plugins/codegen/backend.h"

namespace keirin::cpu {

constexpr uint32_t KRN_NONE_WEIGHT = 0xffffffffu;

const dnnl::engine& vendor_engine();

class PackedWeight {
 public:
  PackedWeight(const dnnl::memory::desc& layout, const codegen::CompileContext& context);
  ~PackedWeight();
  PackedWeight(const PackedWeight&) = delete;
  PackedWeight& operator=(const PackedWeight&) = delete;

  const dnnl::memory::desc& layout() const { return layout_; }
  void* data() const { return data_; }

 private:
  dnnl::memory::desc layout_;
  const krn_host_memory* host_memory_ = nullptr;  // where data_ came from; null: the C library
  krn_host* host_ = nullptr;
  void* data_ = nullptr;
};

// The values of a constant while the object lives; data() is null where the host has none (a child without weights).
class ConstantView {
 public:
  ConstantView(uint32_t weight, const codegen::CompileContext& context);
  ~ConstantView();
  ConstantView(const ConstantView&) = delete;
  ConstantView& operator=(const ConstantView&) = delete;
  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }  // that may be read from there; 0: the host does not say

 private:
  const codegen::CompileContext& context_;
  uint32_t weight_;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// The weight, which lies as `plain` says, in `layout`; null where the host does not have its values.
std::shared_ptr<const PackedWeight> pack_weight(const codegen::TensorDesc& weight, const dnnl::memory::desc& plain,
                                                const dnnl::memory::desc& layout, const codegen::CompileContext& context);

int64_t packed_weight_bytes();

}  // namespace keirin::cpu
