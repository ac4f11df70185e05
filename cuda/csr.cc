// SPDX-License-Identifier: Apache-2.0
//
// Rows of a scatter on the device: a counting sort of the edges by destination, built again at every run because the same
// pointer may hold new indices. Edges of a row end up in ascending order whatever order the threads took, so that two runs add
// in the same order. An index outside [0, rows) is left out: memory-safe, and no row reads it.
#include <algorithm>

#include "cuda/backend.h"
#include "cuda/op_ids.h"
#include "plugins/kit/error.h"

namespace keirin::cuda {
namespace {

// Rows up to kShort edges are ordered by a warp that ranks them; a longer one by a block that walks over all edges.
constexpr const char* kText = R"(
typedef long long i64;
#define KERNEL(n) extern "C" __global__ void __launch_bounds__(n)
__device__ __forceinline__ int destination(const void* index, int wide, int e, int rows) {
  const i64 r = wide ? ((const i64*)index)[e] : (i64)((const int*)index)[e];
  return r >= 0 && r < rows ? (int)r : -1;
}
KERNEL(256) csr_count(const void* index, int wide, int edges, int rows, int* count) {
  for (int e = blockIdx.x * 256 + threadIdx.x; e < edges; e += gridDim.x * 256) {
    const int r = destination(index, wide, e, rows);
    if (r >= 0) atomicAdd(&count[r], 1);
  }
}
// Exclusive sums of the counts, by one block; `count` becomes the place where the next edge of a row goes.
KERNEL(1024) csr_scan(int rows, int* count, int* row_ptr) {
  __shared__ int parts[32];
  int before = 0;
  for (int first = 0; first < rows; first += 1024) {
    const int r = first + threadIdx.x, lane = threadIdx.x % 32, wave = threadIdx.x / 32;
    const int own = r < rows ? count[r] : 0;
    int sum = own;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, d);
      if (lane >= d) sum += other;
    }
    __syncthreads();
    if (lane == 31) parts[wave] = sum;
    __syncthreads();
    int total = 0;
    for (int w = 0; w < 32; ++w) {
      if (w < wave) sum += parts[w];
      total += parts[w];
    }
    if (r < rows) {
      row_ptr[r] = before + sum - own;
      count[r] = before + sum - own;
    }
    before += total;
  }
  if (threadIdx.x == 0) row_ptr[rows] = before;
}
KERNEL(256) csr_fill(const void* index, int wide, int edges, int rows, int* next, int* unordered) {
  for (int e = blockIdx.x * 256 + threadIdx.x; e < edges; e += gridDim.x * 256) {
    const int r = destination(index, wide, e, rows);
    if (r >= 0) unordered[atomicAdd(&next[r], 1)] = e;
  }
}
#define SHORT_ROW 512
KERNEL(256) csr_order(int rows, const int* row_ptr, const int* unordered, int* perm) {
  const int lane = threadIdx.x % 32;
  for (int r = blockIdx.x * 8 + threadIdx.x / 32; r < rows; r += gridDim.x * 8) {
    const int begin = row_ptr[r], degree = row_ptr[r + 1] - begin;
    if (degree > SHORT_ROW) continue;
    for (int i = lane; i < degree; i += 32) {
      const int e = unordered[begin + i];
      int rank = 0;
      for (int j = 0; j < degree; ++j) rank += unordered[begin + j] < e;
      perm[begin + rank] = e;
    }
  }
}
KERNEL(1024) csr_order_long(const void* index, int wide, int edges, int rows, const int* row_ptr, int* perm) {
  __shared__ int parts[32];
  const int lane = threadIdx.x % 32, wave = threadIdx.x / 32;
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {
    int to = row_ptr[r];
    const int end = row_ptr[r + 1];
    if (end - to <= SHORT_ROW) continue;
    for (int first = 0; first < edges && to < end; first += 1024) {
      const int e = first + threadIdx.x;
      const bool mine = e < edges && destination(index, wide, e, rows) == r;
      const unsigned votes = __ballot_sync(0xffffffffu, mine);
      __syncthreads();
      if (lane == 0) parts[wave] = __popc(votes);
      __syncthreads();
      int at = to + __popc(votes & ((1u << lane) - 1u)), total = 0;
      for (int w = 0; w < 32; ++w) {
        if (w < wave) at += parts[w];
        total += parts[w];
      }
      if (mine) perm[at] = e;
      to += total;
    }
  }
}
)";

class CsrStep final : public codegen::Step {
 public:
  CsrStep(const codegen::Csr& csr, const Gpu& gpu, const CodeTarget& target, bool load) : csr_(csr) {
    std::string ignored;
    driver_ = Driver::get(ignored);
    rows_ = static_cast<int>(csr.num_rows);
    edges_ = static_cast<int>(csr.num_edges);
    wide_ = csr.index_dtype == dtype_i64;
    blocks_ = static_cast<unsigned>(std::clamp<int64_t>((csr.num_edges + 255) / 256, 1, int64_t{gpu.facts.num_units} * 16));
    row_blocks_ = static_cast<unsigned>(std::clamp<int64_t>((csr.num_rows + 7) / 8, 1, int64_t{gpu.facts.num_units} * 16));
    long_blocks_ = static_cast<unsigned>(std::clamp<int64_t>(csr.num_rows, 1, gpu.facts.num_units * 2));
    const std::string name = csr_code_name(target);
    code_store().compile_text(name, kText, target);
    if (!load) return;
    count_ = code_store().load_function(name, "csr_count");
    scan_ = code_store().load_function(name, "csr_scan");
    fill_ = code_store().load_function(name, "csr_fill");
    order_ = code_store().load_function(name, "csr_order");
    order_long_ = code_store().load_function(name, "csr_order_long");
  }

  krn_code run(const codegen::RunContext& context) const override {
    if (!count_ || !driver_) {
      kit::set_error(context.err, KRN_STATUS_internal, describe() + " was compiled without a device and cannot run");
      return KRN_STATUS_internal;
    }
    const void* index = static_cast<char*>(context.buffers[csr_.index_buffer]) + csr_.index_offset * (wide_ ? 8 : 4);
    auto* row_ptr = static_cast<int32_t*>(context.buffers[csr_.row_ptr_buffer]);
    auto* perm = static_cast<int32_t*>(context.buffers[csr_.perm_buffer]);
    auto* next = static_cast<int32_t*>(context.buffers[workspace_]);
    int32_t* unordered = next + rows_ + 1;
    const auto stream = reinterpret_cast<CUstream>(context.run->stream.native);
    CUresult result = driver_->cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(next), 0, sizeof(int32_t) * (rows_ + size_t{1}), stream);
    auto launch = [&](CUfunction f, unsigned blocks, unsigned threads, auto... arguments) {
      if (result != CUDA_SUCCESS) return;
      void* pointers[] = {&arguments...};
      result = driver_->cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, nullptr);
    };
    const int wide = wide_;
    launch(count_, blocks_, 256, index, wide, edges_, rows_, next);
    launch(scan_, 1, 1024, rows_, next, row_ptr);
    launch(fill_, blocks_, 256, index, wide, edges_, rows_, next, unordered);
    launch(order_, row_blocks_, 256, rows_, static_cast<const int32_t*>(row_ptr), static_cast<const int32_t*>(unordered), perm);
    // Only where a row may be long at all.
    if (edges_ > 512) launch(order_long_, long_blocks_, 1024, index, wide, edges_, rows_, static_cast<const int32_t*>(row_ptr), perm);
    if (result == CUDA_SUCCESS) return KRN_STATUS_ok;
    kit::set_error(context.err, code_of(result), describe() + ": a launch failed");
    return code_of(result);
  }

  std::string describe() const override {
    return "csr of " + std::to_string(csr_.num_edges) + " edges into " + std::to_string(csr_.num_rows) + " rows";
  }
  int64_t workspace_bytes() const override { return 4 * (csr_.num_rows + 1 + csr_.num_edges); }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }

 private:
  codegen::Csr csr_;
  const Driver* driver_;
  int rows_, edges_;
  bool wide_;
  unsigned blocks_, row_blocks_, long_blocks_;
  uint32_t workspace_ = 0;
  CUfunction count_ = nullptr, scan_ = nullptr, fill_ = nullptr, order_ = nullptr, order_long_ = nullptr;
};

}  // namespace

std::string csr_code_name(const CodeTarget& target) { return "csr 1 " + target.identity(); }

std::unique_ptr<codegen::Step> make_csr_step(const codegen::Csr& csr, const Gpu& gpu, const CodeTarget& target, bool load) {
  return std::make_unique<CsrStep>(csr, gpu, target, load);
}

}  // namespace keirin::cuda
