// SPDX-License-Identifier: Apache-2.0
//
// Builds loop kernels by hand for tests: axes, accesses and nodes in the fewest words, and runs one on both roads, generated
// and interpreted, over buffers of random numbers. Red zones on both sides of each buffer catch a store that leaves it.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "plugins/codegen/llvm/code_cache.h"
#include "plugins/codegen/llvm/spills.h"
#include "tests/unit/cpu/kernel_interpreter.h"

namespace keirin::test {

enum TestDtype : uint8_t { kBool = 1, kU8 = 2, kI8 = 3, kI16 = 4, kI32 = 5, kI64 = 6, kF16 = 7, kBf16 = 8, kF32 = 9, kF64 = 10 };

inline codegen::Kind kind_for(uint8_t dtype) {
  if (dtype == kBool) return codegen::Kind::kBool;
  if (dtype == kF64) return codegen::Kind::kF64;
  return is_real(dtype) ? codegen::Kind::kF32 : codegen::Kind::kI64;
}

struct KernelMaker {
  codegen::Kernel k;

  KernelMaker() { k.name = "test"; }
  KernelMaker& outer(int64_t n) { return axis(n, codegen::AxisKind::kOuter); }
  KernelMaker& serial(int64_t n) { return axis(n, codegen::AxisKind::kSerial); }
  KernelMaker& inner(int64_t n) { return axis(n, codegen::AxisKind::kInner); }
  KernelMaker& axis(int64_t n, codegen::AxisKind kind) {
    k.axes.push_back({n, kind});
    return *this;
  }
  uint32_t buffer(uint8_t dtype, bool written = false) {
    k.buffers.push_back({static_cast<uint32_t>(k.buffers.size()), dtype, written});
    return static_cast<uint32_t>(k.buffers.size()) - 1;
  }
  uint32_t access(uint32_t buffer, std::vector<int64_t> coeff, int64_t offset = 0) {
    codegen::Access a;
    a.buffer = buffer;
    a.dtype = k.buffers[buffer].dtype;
    a.index = {offset, std::move(coeff)};
    k.accesses.push_back(a);
    return static_cast<uint32_t>(k.accesses.size()) - 1;
  }
  int32_t load_access(uint32_t access) {
    return k.dag.add({codegen::Prim::kLoad, kind_for(k.accesses[access].dtype), -1, -1, -1, access});
  }
  int32_t load(uint8_t dtype, std::vector<int64_t> coeff, int64_t offset = 0) {
    return load_access(access(buffer(dtype), std::move(coeff), offset));
  }
  int32_t op(codegen::Prim prim, int32_t a, int32_t b = -1, int32_t c = -1) {
    using codegen::Prim;
    const bool compares = (prim >= Prim::kLt && prim <= Prim::kIsNan);
    const codegen::Kind kind = compares ? codegen::Kind::kBool : k.dag.nodes[prim == Prim::kSelect ? b : a].kind;
    return k.dag.add({prim, kind, a, b, c, 0});
  }
  int32_t real(double v, codegen::Kind kind = codegen::Kind::kF32) {
    return k.dag.add({codegen::Prim::kLiteral, kind, -1, -1, -1, std::bit_cast<uint64_t>(v)});
  }
  int32_t whole(int64_t v) {
    return k.dag.add({codegen::Prim::kLiteral, codegen::Kind::kI64, -1, -1, -1, static_cast<uint64_t>(v)});
  }
  int32_t convert(int32_t a, codegen::Kind to) { return k.dag.add({codegen::Prim::kConvert, to, a, -1, -1, 0}); }
  int32_t coord(uint64_t axis) { return k.dag.add({codegen::Prim::kCoord, codegen::Kind::kI64, -1, -1, -1, axis}); }
  int32_t reduce(codegen::Monoid monoid, int32_t value, codegen::Kind accumulator = codegen::Kind::kF32) {
    codegen::Stage s;
    s.reduce = true;
    s.monoid = monoid;
    s.value = value;
    s.accumulator = accumulator;
    k.stages.push_back(s);
    const bool arg = monoid == codegen::Monoid::kArgMax || monoid == codegen::Monoid::kArgMin;
    return k.dag.add({codegen::Prim::kScalar, arg ? codegen::Kind::kI64 : accumulator, -1, -1, -1, k.stages.size() - 1});
  }
  uint32_t store(int32_t node, uint8_t dtype, std::vector<int64_t> coeff, bool once = false) {
    const uint32_t a = access(buffer(dtype, true), std::move(coeff));
    codegen::Stage s;
    s.once = once;
    s.stores.push_back({node, a});
    k.stages.push_back(s);
    return a;
  }
};

// A buffer with red zones.
class Storage {
 public:
  Storage(uint8_t dtype, int64_t elements)
      : dtype_(dtype), elements_(elements), bytes_(2 * kZone + elements * element_bytes(dtype), 0xa5) {}
  void* data() { return bytes_.data() + kZone; }
  void fill_random(std::mt19937& random, int64_t below) {
    for (int64_t i = 0; i < elements_; ++i) {
      const double real = std::normal_distribution<double>(0, 2)(random);
      write_element(
          data(), i, dtype_, real,
          below > 0 ? static_cast<int64_t>(random() % static_cast<uint64_t>(below)) : static_cast<int64_t>(random()) - (1ll << 31));
    }
  }
  bool zones_intact() const {
    for (size_t i = 0; i < kZone; ++i) {
      if (bytes_[i] != 0xa5 || bytes_[bytes_.size() - 1 - i] != 0xa5) return false;
    }
    return true;
  }
  uint8_t dtype() const { return dtype_; }
  int64_t elements() const { return elements_; }

 private:
  static constexpr size_t kZone = 256;
  uint8_t dtype_;
  int64_t elements_;
  std::vector<uint8_t> bytes_;
};

// Runs compiled code as the launcher does: arguments, blocks, extra pointers, scratch.
inline int32_t run_generated(const codegen::Kernel& k, codegen::native::KernelFunction f, std::vector<void*> pointers,
                             const int32_t* rows, const int32_t* order, int64_t block_wanted, int64_t num_slices = 1) {
  using namespace codegen::native;
  int32_t error = 0;
  pointers.push_back(const_cast<int32_t*>(rows));
  pointers.push_back(const_cast<int32_t*>(order));
  pointers.push_back(&error);
  std::vector<int64_t> arguments = codegen::size_arguments(k);
  const int64_t n = k.axes.back().size;
  const int64_t block = splits_rows(k) ? std::min(block_wanted, std::max<int64_t>(n, 1)) : n;
  const int64_t num_blocks = splits_rows(k) ? (n + block - 1) / block : 1;
  arguments.push_back(block);
  arguments.push_back(num_blocks);
  int64_t units = num_blocks;
  for (const auto& axis : k.axes) units *= axis.kind == codegen::AxisKind::kOuter ? axis.size : 1;
  std::vector<char> scratch(static_cast<size_t>(scratch_bytes(k, block)) + 64);
  for (int64_t s = 0; s < num_slices; ++s) {
    f(pointers.data(), arguments.data(), units * s / num_slices, units * (s + 1) / num_slices, scratch.data());
  }
  return error;
}

// Elements each buffer must have so that every access (without indirections) stays inside.
inline std::vector<int64_t> extents(const codegen::Kernel& k, int64_t gather_extent) {
  std::vector<int64_t> out(k.buffers.size(), 1);
  for (const auto& a : k.accesses) {
    int64_t last = a.index.offset;
    for (size_t i = 0; i < k.axes.size(); ++i) last += std::max<int64_t>(0, a.index.coeff[i] * (k.axes[i].size - 1));
    for (const auto& i : a.indirects) last += i.stride * (std::max(i.limit, gather_extent) - 1);
    out[a.buffer] = std::max(out[a.buffer], last + 1);
  }
  return out;
}

}  // namespace keirin::test
