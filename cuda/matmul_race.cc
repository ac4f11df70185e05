// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul_race.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "cuda/code_store.h"
#include "cuda/driver.h"

namespace keirin::cuda {
namespace {

constexpr int kRuns = 3;                          // timed; the best counts
constexpr size_t kColdBytes = size_t{128} << 20;  // more than any second-level cache
constexpr unsigned char kFill = 0x3c;             // a small number in every float dtype: zeros would run at a higher clock

// Device memory and a stream for one race.
class Track {
 public:
  explicit Track(const Driver& driver) : driver_(driver), allowed_(driver) {
    ok_ = driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
    for (CUevent& event : events) ok_ = ok_ && driver_.cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
  }
  ~Track() {
    if (stream) driver_.cuStreamSynchronize(stream);
    for (CUdeviceptr p : memory_) driver_.cuMemFree(p);
    for (CUevent event : events)
      if (event) driver_.cuEventDestroy(event);
    if (stream) driver_.cuStreamDestroy(stream);
  }
  Track(const Track&) = delete;

  bool ok() const { return ok_; }
  void* memory(size_t bytes) {
    if (!ok_ || bytes == 0) return nullptr;
    CUdeviceptr p = 0;
    ok_ = driver_.cuMemAlloc(&p, bytes) == CUDA_SUCCESS;
    if (!ok_) return nullptr;
    memory_.push_back(p);
    ok_ = driver_.cuMemsetD8Async(p, kFill, bytes, stream) == CUDA_SUCCESS;
    return reinterpret_cast<void*>(p);
  }

  CUstream stream = nullptr;
  CUevent events[2] = {};

 private:
  const Driver& driver_;
  const AllocateWhileRecording allowed_;
  std::vector<CUdeviceptr> memory_;
  bool ok_ = false;
};

class Race {
 public:
  Race(const CublasLt& api, const Driver& driver, const Product& product, size_t workspace_bytes)
      : api_(api), driver_(driver), product_(product), track_(driver), workspace_bytes_(workspace_bytes) {
    a_ = track_.memory(product.a_bytes);
    b_ = track_.memory(product.b_bytes);
    d_ = track_.memory(product.d_bytes);
    c_ = product.c_bytes ? track_.memory(product.c_bytes) : d_;
    workspace_ = track_.memory(workspace_bytes);
    cold_ = track_.memory(kColdBytes);
    // The address is part of the descriptor; every run of the step sets its own.
    if (void* bias = track_.memory(product.bias_bytes))
      api_.cublasLtMatmulDescSetAttribute(product.desc, lt::kDescBiasPointer, &bias, sizeof bias);
  }
  bool ready() const { return track_.ok(); }

  // Microseconds of the best run, or a negative number if it does not run.
  float time(const lt::Heuristic& guess) {
    if (guess.workspace_bytes > workspace_bytes_ || !run(guess)) return -1;  // the first also loads the library's code
    float best = -1;
    for (int r = 0; r < kRuns; ++r) {
      float ms = 0;
      driver_.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(cold_), kFill, kColdBytes, track_.stream);
      driver_.cuEventRecord(track_.events[0], track_.stream);
      if (!run(guess)) return -1;
      driver_.cuEventRecord(track_.events[1], track_.stream);
      if (driver_.cuEventSynchronize(track_.events[1]) != CUDA_SUCCESS ||
          driver_.cuEventElapsedTime(&ms, track_.events[0], track_.events[1]) != CUDA_SUCCESS)
        return -1;
      best = best < 0 ? ms * 1000 : std::min(best, ms * 1000);
    }
    return best;
  }

 private:
  bool run(const lt::Heuristic& guess) {
    const float one = 1, zero = 0;
    const double one64 = 1, zero64 = 0;
    const void* alpha = product_.f64 ? static_cast<const void*>(&one64) : &one;
    const void* none = product_.f64 ? static_cast<const void*>(&zero64) : &zero;
    return api_.cublasLtMatmul(api_.handle, product_.desc, alpha, a_, product_.a, b_, product_.b, product_.c_bytes ? alpha : none, c_, product_.c, d_,
                               product_.d, &guess.algo, workspace_, guess.workspace_bytes, track_.stream) == 0;
  }

  const CublasLt& api_;
  const Driver& driver_;
  const Product& product_;
  Track track_;
  void *a_, *b_, *c_, *d_, *workspace_, *cold_;
  size_t workspace_bytes_;
};

Choice first_guess(std::span<const lt::Heuristic> found) { return {found[0].algo, found[0].workspace_bytes, 0, 0}; }

Choice run_race(const CublasLt& api, const Product& product, std::span<const lt::Heuristic> found) {
  std::string ignored;
  const Driver* driver = Driver::get(ignored);
  Choice best = first_guess(found);
  if (!driver || found.size() == 1) return best;
  static std::mutex one_at_a_time;  // races on one device would time each other
  std::lock_guard lock(one_at_a_time);
  size_t workspace = 0;
  for (const lt::Heuristic& guess : found) workspace = std::max(workspace, guess.workspace_bytes);
  Race race(api, *driver, product, workspace);
  if (!race.ready()) return best;
  for (size_t i = 0; i < found.size(); ++i) {
    const float us = race.time(found[i]);
    // A later guess must win clearly: the library orders them by its own model, and the clock is coarse.
    if (us > 0 && (best.microseconds == 0 || us < best.microseconds * 0.97f))
      best = {found[i].algo, found[i].workspace_bytes, static_cast<int32_t>(i), us};
  }
  return best;
}

}  // namespace

Choice choose_algorithm(const CublasLt& api, const std::string& key, const Product& product, std::span<const lt::Heuristic> found, bool timed) {
  if (!timed) return first_guess(found);
  const std::string name = kChoicePrefix + std::to_string(api.cublasLtGetVersion()) + " " + key;
  Choice choice;
  const std::vector<char> known = code_store().recall(name);
  if (known.size() == sizeof choice) {
    std::memcpy(&choice, known.data(), sizeof choice);
    return choice;
  }
  choice = run_race(api, product, found);
  const char* bytes = reinterpret_cast<const char*>(&choice);
  code_store().remember(name, std::vector<char>(bytes, bytes + sizeof choice));
  return choice;
}

}  // namespace keirin::cuda
