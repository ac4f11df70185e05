// SPDX-License-Identifier: Apache-2.0
//
// MIOpen's functions that the AMD plugin calls, over cuDNN: a problem has one solution, the plan that the NVIDIA plugin's library of
// convolutions gives for it; a fusion plan compiles where that library has one for the whole. Without cuDNN nothing has a solution.
// Groups, strides, padding, dilation and layouts come from the descriptors alone.
#include <memory>
#include <span>
#include <string>

#include "abi/plugin.h"
#include "cuda/cudnn.h"
#include "plugins/kit/tables.h"

#define MIOPEN_WRONG miopen_standin::kBad
#include "tests/standin/miopen_objects.h"

struct Handle {
  keirin::gpu::Stream stream = nullptr;
};

namespace {

using namespace keirin;
using namespace miopen_standin;

constexpr uint64_t kOnly = 85;  // a number of the solution's
constexpr int kDirect = 1;

uint8_t dtype_of(int type) { return type == kHalf ? kit::kDType_f16 : type == kBfloat16 ? kit::kDType_bf16 : kit::kDType_f32; }

gpu::ConvTensor tensor_of(const Tensor& t) {
  return {dtype_of(t.type), {t.sizes.begin(), t.sizes.end()}, {t.strides.begin(), t.strides.end()}};
}

gpu::ConvProblem problem_of(const Tensor& w, const Tensor& x, const Conv& c, const Tensor& y) {
  gpu::ConvProblem p;
  p.x = tensor_of(x), p.w = tensor_of(w), p.y = tensor_of(y);
  p.stride.assign(c.stride.begin(), c.stride.end());
  p.padding.assign(c.padding.begin(), c.padding.end());
  p.dilation.assign(c.dilation.begin(), c.dilation.end());
  p.tf32 = c.math_type == 0 && x.type == kFloat;
  return p;
}

std::shared_ptr<const gpu::LibraryPlan> plan_of(const gpu::ConvProblem& p) {
  std::string ignored;
  try {
    return cuda::cudnn().supports(p, ignored) ? cuda::cudnn().plan(p) : nullptr;
  } catch (const std::exception&) {
    return nullptr;
  }
}

int run(const gpu::LibraryPlan& plan, gpu::Stream stream, std::span<void* const> addresses, void* workspace) {
  std::string ignored;
  return plan.run(stream, addresses, workspace, ignored) == KRN_STATUS_ok ? kOk : kBad;
}

// The whole that a fusion plan stands for, with a result of these sizes.
gpu::ConvProblem problem_of(const Fusion& f, const Tensor& y) {
  gpu::ConvProblem p = problem_of(*f.w, *f.x, *f.conv, y);
  if (f.bias) p.stages.push_back({gpu::ConvStage::kAdd, tensor_of(*f.bias)});
  using Op = gpu::ConvStage;
  if (f.activation) p.stages.push_back({f.activation == kRelu ? Op::kRelu : f.activation == kTanh ? Op::kTanh : Op::kSigmoid, {}});
  return p;
}

// A fusion plan is told its result when it runs; its sizes follow from the others.
Tensor result_of(const Fusion& f) {
  Tensor y;
  y.type = f.x->type;
  y.sizes = {f.x->sizes[0], f.w->sizes[0]};
  for (size_t d = 0; d < 2; ++d)
    y.sizes.push_back((f.x->sizes[d + 2] + 2 * f.conv->padding[d] - f.conv->dilation[d] * (f.w->sizes[d + 2] - 1) - 1) / f.conv->stride[d] +
                      1);
  y.strides.resize(4);
  int step = 1;
  for (int d : lies(*f.x, false) && lies(*f.w, false) ? std::vector<int>{3, 2, 1, 0} : std::vector<int>{1, 3, 2, 0})
    y.strides[static_cast<size_t>(d)] = step, step *= y.sizes[static_cast<size_t>(d)];
  return y;
}

}  // namespace

MIOPEN int miopenCreate(Handle** handle) { return *handle = new Handle, kOk; }
MIOPEN int miopenSetStream(Handle* handle, void* stream) {
  return handle ? (handle->stream = static_cast<gpu::Stream>(stream), kOk) : kBad;
}

MIOPEN int miopenConvolutionForwardGetSolution(Handle*, Tensor* w, Tensor* x, Conv* c, Tensor* y, size_t most, size_t* count,
                                               Solution* out) {
  if (!sound(w, x, c, y)) return kBad;
  const auto plan = plan_of(problem_of(*w, *x, *c, *y));
  *count = plan && most > 0 ? 1 : 0;
  if (*count) out[0] = {1, static_cast<size_t>(plan->workspace_bytes()), kOnly, kDirect};
  return kOk;
}
MIOPEN int miopenConvolutionForwardGetSolutionWorkspaceSize(Handle*, Tensor* w, Tensor* x, Conv* c, Tensor* y, uint64_t id, size_t* bytes) {
  if (!sound(w, x, c, y) || id != kOnly) return kBad;
  const auto plan = plan_of(problem_of(*w, *x, *c, *y));
  return plan ? (*bytes = static_cast<size_t>(plan->workspace_bytes()), kOk) : kBad;
}
MIOPEN int miopenConvolutionForwardCompileSolution(Handle*, Tensor* w, Tensor* x, Conv* c, Tensor* y, uint64_t id) {
  return sound(w, x, c, y) && id == kOnly && plan_of(problem_of(*w, *x, *c, *y)) ? kOk : kBad;
}
MIOPEN int miopenConvolutionForwardImmediate(Handle* handle, Tensor* tw, const void* w, Tensor* tx, const void* x, Conv* c, Tensor* ty,
                                             void* y, void* workspace, size_t workspace_bytes, uint64_t id) {
  if (!sound(tw, tx, c, ty) || id != kOnly) return kBad;
  const auto plan = plan_of(problem_of(*tw, *tx, *c, *ty));
  if (!plan || workspace_bytes < static_cast<size_t>(plan->workspace_bytes())) return kBad;
  void* const addresses[] = {const_cast<void*>(x), const_cast<void*>(w), y};
  return run(*plan, handle->stream, addresses, workspace);
}

MIOPEN int miopenCompileFusionPlan(Handle* handle, Fusion* plan) {
  if (!plan->conv || !plan->w) return kBad;
  if (plan->bias && plan->bias->sizes != std::vector<int>{1, plan->w->sizes[0], 1, 1}) return kBad;
  if (!plan_of(problem_of(*plan, result_of(*plan)))) return kUnsupported;
  return plan->compiled_on = handle, kOk;
}
MIOPEN int miopenFusionPlanGetWorkSpaceSize(Handle*, Fusion* plan, size_t* bytes, int) {
  const auto made = plan_of(problem_of(*plan, result_of(*plan)));
  return made ? (*bytes = static_cast<size_t>(made->workspace_bytes()), kOk) : kBad;
}
MIOPEN int miopenExecuteFusionPlan(Handle* handle, Fusion* plan, Tensor* tx, const void* x, Tensor* ty, void* y, Arguments* a) {
  if (plan->compiled_on != handle || !sound(plan->w, tx, plan->conv, ty) || !a->w || (plan->bias != nullptr) != (a->bias != nullptr))
    return kBad;
  const auto made = plan_of(problem_of(*plan, *ty));
  if (!made || made->workspace_bytes() > 0) return kBad;
  void* const addresses[] = {const_cast<void*>(x), const_cast<void*>(a->w), y, const_cast<void*>(a->bias)};
  return run(*made, handle->stream, {addresses, a->bias ? 4u : 3u}, nullptr);
}
