// SPDX-License-Identifier: Apache-2.0
//
// MIOpen's functions that the AMD plugin calls, on the host: a plain loop over what the descriptors say, with MIOpen's numbers from its
// documentation, stated here by themselves. Like MIOpen it wants a fusion plan to run on the handle that compiled it, and takes no two
// threads on a handle. It counts its calls; what it refuses is set by the test (miopen_test.cc).
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "plugins/kit/tables.h"
#include "tests/standin/emulated/streams.h"
#include "tests/unit/cpu/kernel_interpreter.h"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace kit = keirin::kit;

// `fuses`: 0 nothing, 1 a bias, 2 a bias and an activation. `slip`: what this solution writes is wrong where x is not finite.
FAKE std::atomic<int> fake_miopen_fuses, fake_miopen_asked, fake_miopen_ran, fake_miopen_fused, fake_miopen_last,
    fake_miopen_slip, fake_miopen_wrong;
#ifndef FAKE_MIOPEN_FUSES
#define FAKE_MIOPEN_FUSES 2
#endif
std::atomic<int> fake_miopen_fuses{FAKE_MIOPEN_FUSES}, fake_miopen_asked{0}, fake_miopen_ran{0}, fake_miopen_fused{0},
    fake_miopen_last{0}, fake_miopen_slip{0}, fake_miopen_wrong{0};

int wrong() { return ++fake_miopen_wrong, 3; }
#define MIOPEN_WRONG wrong()
#include "tests/standin/miopen_objects.h"

struct Handle {
  std::atomic<bool> busy{false};
  std::set<uint64_t> compiled;
};

namespace {

using namespace miopen_standin;

constexpr Solution kSolutions[] = {
    {0.1f, 0, 85, 3}, {0.2f, 256, 11, 1}, {0.3f, 0, 12, 5}, {0.4f, size_t{1} << 30, 13, 0}, {0.5f, 64, 14, 0}};

uint8_t dtype_of(int type) { return type == 0 ? kit::kDType_f16 : type == 5 ? kit::kDType_bf16 : kit::kDType_f32; }

double get(const Tensor& t, const void* data, int a, int b, int i, int j) {
  return keirin::test::read_element(
             data, int64_t{a} * t.strides[0] + b * t.strides[1] + i * t.strides[2] + j * t.strides[3], dtype_of(t.type))
      .real;
}

void convolve(const Tensor& tw, const void* w, const Tensor& tx, const void* x, const Conv& c, const Tensor& ty,
              void* y, const void* bias, int activation, bool slips) {
  const int per_group = tw.sizes[0] / c.groups;
  for (int n = 0; n < ty.sizes[0]; ++n)
    for (int o = 0; o < ty.sizes[1]; ++o)
      for (int i = 0; i < ty.sizes[2]; ++i)
        for (int j = 0; j < ty.sizes[3]; ++j) {
          double sum = bias ? keirin::test::read_element(bias, o, dtype_of(tx.type)).real : 0;
          for (int k = 0; k < tw.sizes[1]; ++k)
            for (int r = 0; r < tw.sizes[2]; ++r)
              for (int s = 0; s < tw.sizes[3]; ++s) {
                const int row = i * c.stride[0] - c.padding[0] + r * c.dilation[0],
                          column = j * c.stride[1] - c.padding[1] + s * c.dilation[1];
                if (row < 0 || column < 0 || row >= tx.sizes[2] || column >= tx.sizes[3]) continue;
                sum += get(tx, x, n, o / per_group * tw.sizes[1] + k, row, column) * get(tw, w, o, k, r, s);
              }
          if (activation == 3) sum = sum < 0 ? 0 : sum;  // NaN stays
          if (activation == 2) sum = std::tanh(sum);
          if (activation == 1) sum = 1 / (1 + std::exp(-sum));
          if (slips && !std::isfinite(sum)) sum = 0;
          keirin::test::write_element(
              y, int64_t{n} * ty.strides[0] + o * ty.strides[1] + i * ty.strides[2] + j * ty.strides[3],
              dtype_of(ty.type), sum, 0);
        }
}

const Solution* solution(uint64_t id) {
  for (const Solution& s : kSolutions)
    if (s.id == id) return &s;
  return nullptr;
}

// One thread at a time.
class Use {
 public:
  explicit Use(Handle* handle) : handle_(handle) {
    if (handle_->busy.exchange(true)) ++fake_miopen_wrong;
  }
  ~Use() { handle_->busy = false; }

 private:
  Handle* handle_;
};

}  // namespace

FAKE int miopenCreate(Handle** handle) { return *handle = new Handle, 0; }
FAKE int miopenSetStream(Handle* handle, void*) { return handle ? 0 : kBad; }

FAKE int miopenConvolutionForwardGetSolution(Handle* handle, Tensor* w, Tensor* x, Conv* c, Tensor* y, size_t most,
                                             size_t* count, Solution* out) {
  const Use use(handle);
  ++fake_miopen_asked;
  if (!sound(w, x, c, y)) return wrong();
  *count = 0;
  for (const Solution& s : kSolutions)
    if (*count < most) out[(*count)++] = s;
  return 0;
}
FAKE int miopenConvolutionForwardGetSolutionWorkspaceSize(Handle* handle, Tensor* w, Tensor* x, Conv* c, Tensor* y,
                                                          uint64_t id, size_t* bytes) {
  const Use use(handle);
  if (!sound(w, x, c, y)) return wrong();
  return solution(id) ? (*bytes = solution(id)->workspace_bytes, 0) : kBad;
}
FAKE int miopenConvolutionForwardCompileSolution(Handle* handle, Tensor* w, Tensor* x, Conv* c, Tensor* y, uint64_t id) {
  const Use use(handle);
  return !sound(w, x, c, y) || !solution(id) ? wrong() : (handle->compiled.insert(id), 0);
}
FAKE int miopenConvolutionForwardImmediate(Handle* handle, Tensor* tw, const void* w, Tensor* tx, const void* x,
                                           Conv* c, Tensor* ty, void* y, void* workspace, size_t workspace_bytes,
                                           uint64_t id) {
  const Use use(handle);
  const Solution* s = solution(id);
  if (!sound(tw, tx, c, ty) || !s || !handle->compiled.count(id) || workspace_bytes < s->workspace_bytes ||
      (s->workspace_bytes > 0 && !workspace))
    return wrong();
  for (const void* p : {w, x, static_cast<const void*>(y)})
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) return wrong();
  keirin::standin::wait_for_streams();
  if (s->workspace_bytes > 0) std::memset(workspace, 0x5a, s->workspace_bytes);
  ++fake_miopen_ran;
  fake_miopen_last = static_cast<int>(id);
  convolve(*tw, w, *tx, x, *c, *ty, y, nullptr, 0, static_cast<int>(id) == fake_miopen_slip);
  return 0;
}

FAKE int miopenCompileFusionPlan(Handle* handle, Fusion* plan) {
  const Use use(handle);
  if (fake_miopen_fuses < 1 || (plan->activation != 0 && fake_miopen_fuses < 2)) return kUnsupported;
  const int channels = plan->w->sizes[0];
  if (plan->bias && plan->bias->sizes != std::vector<int>{1, channels, 1, 1}) return wrong();
  return plan->compiled_on = handle, 0;
}
FAKE int miopenFusionPlanGetWorkSpaceSize(Handle*, Fusion*, size_t* bytes, int) { return *bytes = 0, 0; }
FAKE int miopenExecuteFusionPlan(Handle* handle, Fusion* plan, Tensor* tx, const void* x, Tensor* ty, void* y, Arguments* a) {
  const Use use(handle);
  if (plan->compiled_on != handle || !sound(plan->w, tx, plan->conv, ty) || !a->w ||
      (plan->bias != nullptr) != (a->bias != nullptr))
    return wrong();
  ++fake_miopen_fused;
  keirin::standin::wait_for_streams();
  convolve(*plan->w, a->w, *tx, x, *plan->conv, *ty, y, a->bias, plan->activation, false);
  return 0;
}
