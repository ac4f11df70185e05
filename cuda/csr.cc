// SPDX-License-Identifier: Apache-2.0
//
// Rows of a scatter on the device: a counting sort of the edges by destination, kept by content, because the same pointer may
// hold new indices. One cooperative launch compares the index with a kept copy and sorts again only if it differs; nothing
// waits. Edges of a row end up in ascending order whatever order the threads took, so that two runs add in the same order. An
// index outside [0, rows) is left out: memory-safe, and no row reads it.
//
// The invariant: arrays belong to one stream, or to one recorded launch, so that whoever reads them is ordered with whoever sorts.
#include <algorithm>
#include <mutex>
#include <vector>

#include "cuda/backend.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::cuda {
namespace {

constexpr int kThreads = 1024;

// Rows up to SHORT_ROW edges are ordered by a warp that ranks them; a longer one by a block that walks over all edges.
constexpr const char* kText = R"(
typedef long long i64;
#define THREADS 1024
#define SHORT_ROW 512
// Zero when made. `ticket` and `gone` are zero again after every launch.
struct State { int valid, changed; unsigned ticket, gone; };
struct Arrays { State* state; void* kept; int* row_ptr; int* perm; int* next; int* unordered; };

template <class T> __device__ __forceinline__ int destination(const T* index, int e, int rows) {
  const T r = index[e];
  return r >= 0 && r < rows ? (int)r : -1;
}
// All blocks are resident, so that waiting for them ends.
__device__ void meet(State* s, unsigned& meetings) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(&s->ticket, 1u);
    const unsigned all = ++meetings * gridDim.x;
    while (*(volatile unsigned*)&s->ticket < all) {}
    __threadfence();
  } else {
    ++meetings;
  }
  __syncthreads();
}
// Exclusive sums of the counts, by one block; `next` becomes the place where the next edge of a row goes.
__device__ void scan(int rows, int* next, int* row_ptr) {
  __shared__ int parts[32];
  const int lane = threadIdx.x % 32, wave = threadIdx.x / 32;
  int before = 0;
  for (int first = 0; first < rows; first += THREADS * 4) {
    int own[4], sum = 0;
    for (int j = 0; j < 4; ++j) {
      const int r = first + threadIdx.x * 4 + j;
      own[j] = r < rows ? next[r] : 0;
      sum += own[j];
    }
    const int mine = sum;
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
    int at = before + sum - mine;
    for (int j = 0; j < 4; ++j) {
      const int r = first + threadIdx.x * 4 + j;
      if (r < rows) row_ptr[r] = next[r] = at;
      at += own[j];
    }
    before += total;
  }
  if (threadIdx.x == 0) row_ptr[rows] = before;
}
__device__ void order_short(int rows, const int* row_ptr, const int* unordered, int* perm) {
  const int lane = threadIdx.x % 32, waves = THREADS / 32;
  for (int r = blockIdx.x * waves + threadIdx.x / 32; r < rows; r += gridDim.x * waves) {
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
template <class T> __device__ void order_long(const T* index, int edges, int rows, const int* row_ptr, int* perm) {
  __shared__ int parts[32];
  const int lane = threadIdx.x % 32, wave = threadIdx.x / 32;
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {
    int to = row_ptr[r];
    const int end = row_ptr[r + 1];
    if (end - to <= SHORT_ROW) continue;
    for (int first = 0; first < edges && to < end; first += THREADS) {
      const int e = first + threadIdx.x;
      const bool mine = e < edges && destination(index, e, rows) == r;
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
template <class T> __device__ void rows_of(const T* index, int edges, int rows, Arrays a) {
  State* const s = a.state;
  const int first = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
  unsigned meetings = 0;
  T* const kept = (T*)a.kept;
  int differs = !s->valid;
  for (int e = first; e < edges; e += step) {
    const T now = index[e];
    if (kept[e] != now) kept[e] = now, differs = 1;
  }
  if (__syncthreads_or(differs) && threadIdx.x == 0) atomicOr(&s->changed, 1);
  meet(s, meetings);
  if (*(volatile int*)&s->changed) {
    for (int r = first; r < rows; r += step) a.next[r] = 0;
    meet(s, meetings);
    for (int e = first; e < edges; e += step) {
      const int r = destination(index, e, rows);
      if (r >= 0) atomicAdd(&a.next[r], 1);
    }
    meet(s, meetings);
    if (blockIdx.x == 0) scan(rows, a.next, a.row_ptr);
    meet(s, meetings);
    for (int e = first; e < edges; e += step) {
      const int r = destination(index, e, rows);
      if (r >= 0) a.unordered[atomicAdd(&a.next[r], 1)] = e;
    }
    meet(s, meetings);
    order_short(rows, a.row_ptr, a.unordered, a.perm);
    if (edges > SHORT_ROW) order_long(index, edges, rows, a.row_ptr, a.perm);
  }
  // The last to leave, past every meeting, prepares the next launch.
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(&s->gone, 1u) == gridDim.x - 1) s->valid = 1, s->changed = 0, s->ticket = 0, s->gone = 0;
  }
}
extern "C" __global__ void __launch_bounds__(THREADS) csr_rows(const void* index, int wide, int edges, int rows, const __grid_constant__ Arrays a) {
  if (wide) rows_of((const i64*)index, edges, rows, a);
  else rows_of((const int*)index, edges, rows, a);
}
)";

// The kept copy and what was made of it, in device memory of their own.
class Slot {
 public:
  // As the kernel's parameter.
  struct Arrays {
    char *state, *kept, *row_ptr, *perm, *next, *unordered;
  };

  // Null with the driver's code in `result` if there is no memory.
  static std::unique_ptr<Slot> make(const Driver& driver, int64_t rows, int64_t edges, int64_t index_bytes, CUresult& result) {
    std::unique_ptr<Slot> slot(new Slot(driver));
    const int64_t parts[] = {16, edges * index_bytes, 4 * (rows + 1), 4 * edges, 4 * rows, 4 * edges};
    int64_t total = 0, at[6];
    for (int i = 0; i < 6; ++i) at[i] = total, total += (parts[i] + 255) / 256 * 256;
    const AllocateWhileRecording allowed(driver);
    CUstream stream = nullptr;
    result = driver.cuMemAlloc(&slot->memory_, static_cast<size_t>(total));
    if (result != CUDA_SUCCESS) return nullptr;
    result = driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS) result = driver.cuMemsetD8Async(slot->memory_, 0, 256, stream);
    if (result == CUDA_SUCCESS) result = driver.cuStreamSynchronize(stream);
    if (stream) driver.cuStreamDestroy(stream);
    if (result != CUDA_SUCCESS) return nullptr;
    char* const base = reinterpret_cast<char*>(slot->memory_);
    slot->arrays = {base + at[0], base + at[1], base + at[2], base + at[3], base + at[4], base + at[5]};
    slot->bytes = total;
    return slot;
  }
  ~Slot() {
    const AllocateWhileRecording allowed(driver_);
    if (memory_) driver_.cuMemFree(memory_);  // waits for its readers
  }
  Slot(const Slot&) = delete;

  Arrays arrays{};
  int64_t bytes = 0;

 private:
  explicit Slot(const Driver& driver) : driver_(driver) {}
  const Driver& driver_;
  CUdeviceptr memory_ = 0;
};

class CsrStep final : public codegen::Step {
 public:
  CsrStep(const codegen::Csr& csr, const Gpu& gpu, const CodeTarget& target, bool load) : csr_(csr) {
    std::string ignored;
    driver_ = Driver::get(ignored);
    rows_ = static_cast<int>(csr.num_rows);
    edges_ = static_cast<int>(csr.num_edges);
    wide_ = csr.index_dtype == kit::kDType_i64;
    blocks_ = static_cast<unsigned>(std::clamp<int64_t>((csr.num_edges + kThreads - 1) / kThreads, 1, gpu.facts.num_units));
    const std::string name = csr_code_name(target);
    code_store().compile_text(name, kText, target);
    if (load) function_ = code_store().load_function(name, "csr_rows");
  }

  krn_code run(const codegen::RunContext& context) const override {
    if (!function_ || !driver_) {
      kit::set_error(context.err, KRN_STATUS_internal, describe() + " was compiled without a device and cannot run");
      return KRN_STATUS_internal;
    }
    const auto stream = reinterpret_cast<CUstream>(context.run->stream.native);
    CUresult result = CUDA_SUCCESS;
    if (const Slot* slot = slot_for(stream, result)) {
      const void* index = static_cast<char*>(context.buffers[csr_.index_buffer]) + csr_.index_offset * (wide_ ? 8 : 4);
      context.buffers[csr_.row_ptr_buffer] = slot->arrays.row_ptr;
      context.buffers[csr_.perm_buffer] = slot->arrays.perm;
      int wide = wide_, edges = edges_, rows = rows_;
      Slot::Arrays arrays = slot->arrays;
      void* parameters[] = {&index, &wide, &edges, &rows, &arrays};
      result = driver_->cuLaunchCooperativeKernel(function_, blocks_, 1, 1, kThreads, 1, 1, 0, stream, parameters);
    }
    if (result == CUDA_SUCCESS) return KRN_STATUS_ok;
    kit::set_error(context.err, code_of(result), describe() + ": its memory or its launch was refused");
    return code_of(result);
  }

  std::string describe() const override {
    return "csr of " + std::to_string(csr_.num_edges) + " edges into " + std::to_string(csr_.num_rows) + " rows";
  }
  int64_t constant_bytes() const override {
    std::lock_guard lock(mutex_);
    int64_t bytes = 0;
    for (const auto& [stream, slot] : slots_) bytes += slot->bytes;
    return bytes;
  }

 private:
  // A stream's own, made when it first comes by. A recording gets a new one for every launch: nobody knows on which streams it
  // will be replayed.
  const Slot* slot_for(CUstream stream, CUresult& result) const {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    result = driver_->cuStreamIsCapturing(stream, &capture);
    if (result != CUDA_SUCCESS) return nullptr;
    const bool recording = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    std::lock_guard lock(mutex_);
    if (!recording)
      for (const auto& [owner, slot] : slots_)
        if (owner == Owner{stream, false}) return slot.get();
    std::unique_ptr<Slot> slot = Slot::make(*driver_, rows_, edges_, wide_ ? 8 : 4, result);
    if (!slot) return nullptr;
    slots_.emplace_back(Owner{stream, recording}, std::move(slot));
    return slots_.back().second.get();
  }

  struct Owner {
    CUstream stream;
    bool recording;
    bool operator==(const Owner&) const = default;
  };

  codegen::Csr csr_;
  const Driver* driver_;
  int rows_, edges_;
  bool wide_;
  unsigned blocks_;
  CUfunction function_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<Owner, std::unique_ptr<Slot>>> slots_;
};

}  // namespace

std::string csr_code_name(const CodeTarget& target) { return "csr 2 " + target.identity(); }

std::unique_ptr<codegen::Step> make_csr_step(const codegen::Csr& csr, const Gpu& gpu, const CodeTarget& target, bool load) {
  return std::make_unique<CsrStep>(csr, gpu, target, load);
}

}  // namespace keirin::cuda
