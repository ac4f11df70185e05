// SPDX-License-Identifier: Apache-2.0
//
// MIOpen's objects as libraries of its name in the tests have them: what the descriptors say, and whether it fits together, with MIOpen's
// numbers from its documentation, stated here by themselves. Includers give `MIOPEN_WRONG`, the status of what does not fit, and a
// `Handle`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#define MIOPEN extern "C" __attribute__((visibility("default")))

struct Tensor {
  int type = -1;
  std::vector<int> sizes, strides;
};
struct Conv {
  std::vector<int> padding, stride, dilation;
  int mode = -1, groups = 1, deterministic = 0, math_type = 0;
};
struct Handle;
struct Fusion {
  const Tensor* x = nullptr;
  const Conv* conv = nullptr;
  const Tensor *w = nullptr, *bias = nullptr;
  int activation = 0;
  const Handle* compiled_on = nullptr;
};
struct Arguments {
  const void *w = nullptr, *bias = nullptr;
};
struct Solution {
  float ms;
  size_t workspace_bytes;
  uint64_t id;
  int algorithm;
};

namespace miopen_standin {

enum : int { kOk = 0, kBad = 3, kUnsupported = 8 };
enum : int { kHalf = 0, kFloat = 1, kBfloat16 = 5, kLogistic = 1, kTanh = 2, kRelu = 3 };

inline bool lies(const Tensor& t, bool last) {
  int64_t step = 1;
  for (int d : last ? std::vector<int>{1, 3, 2, 0} : std::vector<int>{3, 2, 1, 0}) {
    if (t.strides[static_cast<size_t>(d)] != step) return false;
    step *= t.sizes[static_cast<size_t>(d)];
  }
  return true;
}

// Whether the four belong together.
inline bool sound(const Tensor* w, const Tensor* x, const Conv* c, const Tensor* y) {
  for (const Tensor* t : {w, x, y})
    if (!t || t->sizes.size() != 4 || t->type != x->type || (t->type != kHalf && t->type != kFloat && t->type != kBfloat16)) return false;
  const auto all = [&](bool last) { return lies(*w, last) && lies(*x, last) && lies(*y, last); };
  if (!all(false) && !all(true)) return false;
  if (!c || c->mode != 0 || c->deterministic != 1 || c->stride.size() != 2 || c->groups < 1) return false;
  if (x->sizes[1] != w->sizes[1] * c->groups || w->sizes[0] % c->groups != 0 || y->sizes[0] != x->sizes[0] || y->sizes[1] != w->sizes[0])
    return false;
  for (size_t d = 0; d < 2; ++d)
    if (y->sizes[d + 2] != (x->sizes[d + 2] + 2 * c->padding[d] - c->dilation[d] * (w->sizes[d + 2] - 1) - 1) / c->stride[d] + 1)
      return false;
  return true;
}

}  // namespace miopen_standin

MIOPEN int miopenGetVersion(size_t* major, size_t* minor, size_t* patch) { return *major = 3, *minor = 2, *patch = 0, 0; }
MIOPEN int miopenCreateTensorDescriptor(Tensor** t) { return *t = new Tensor, 0; }
MIOPEN int miopenSetTensorDescriptor(Tensor* t, int type, int rank, const int* sizes, const int* strides) {
  return t->type = type, t->sizes.assign(sizes, sizes + rank), t->strides.assign(strides, strides + rank), 0;
}
MIOPEN int miopenDestroyTensorDescriptor(Tensor* t) { return delete t, 0; }
MIOPEN int miopenCreateConvolutionDescriptor(Conv** c) { return *c = new Conv, 0; }
MIOPEN int miopenInitConvolutionNdDescriptor(Conv* c, int axes, const int* padding, const int* stride, const int* dilation, int mode) {
  return c->padding.assign(padding, padding + axes), c->stride.assign(stride, stride + axes), c->dilation.assign(dilation, dilation + axes),
         c->mode = mode, 0;
}
MIOPEN int miopenSetConvolutionGroupCount(Conv* c, int groups) { return c->groups = groups, 0; }
MIOPEN int miopenSetConvolutionAttribute(Conv* c, int attribute, int value) {
  if (attribute == 1) return c->deterministic = value, 0;
  return attribute == 3 ? (c->math_type = value, 0) : MIOPEN_WRONG;
}
MIOPEN int miopenDestroyConvolutionDescriptor(Conv* c) { return delete c, 0; }
MIOPEN int miopenCreateFusionPlan(Fusion** plan, int direction, Tensor* x) {
  return direction != 0 ? MIOPEN_WRONG : (*plan = new Fusion{.x = x}, 0);
}
MIOPEN int miopenDestroyFusionPlan(Fusion* plan) { return delete plan, 0; }
MIOPEN int miopenCreateOpConvForward(Fusion* plan, void** op, Conv* c, Tensor* w) { return plan->conv = c, plan->w = w, *op = plan, 0; }
MIOPEN int miopenCreateOpBiasForward(Fusion* plan, void** op, Tensor* bias) { return plan->bias = bias, *op = plan, 0; }
MIOPEN int miopenCreateOpActivationForward(Fusion* plan, void** op, int mode) { return plan->activation = mode, *op = plan, 0; }
MIOPEN int miopenCreateOperatorArgs(Arguments** a) { return *a = new Arguments, 0; }
MIOPEN int miopenDestroyOperatorArgs(Arguments* a) { return delete a, 0; }
MIOPEN int miopenSetOpArgsConvForward(Arguments* a, void*, const float* alpha, const float* beta, const void* w) {
  return *alpha != 1 || *beta != 0 ? MIOPEN_WRONG : (a->w = w, 0);
}
MIOPEN int miopenSetOpArgsBiasForward(Arguments* a, void*, const float* alpha, const float* beta, const void* bias) {
  return *alpha != 1 || *beta != 0 ? MIOPEN_WRONG : (a->bias = bias, 0);
}
MIOPEN int miopenSetOpArgsActivForward(Arguments*, void*, const float*, const float*, double alpha, double beta, double) {
  return alpha != 1 || beta != 1 ? MIOPEN_WRONG : 0;
}
