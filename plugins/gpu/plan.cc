// SPDX-License-Identifier: Apache-2.0
//
// What can be said of a problem without its library.
#include "plugins/gpu/plan.h"

#include <algorithm>

#include "plugins/kit/tables.h"

namespace keirin::gpu {

std::string ConvProblem::key() const {
  std::string out;
  auto list = [&](const std::vector<int64_t>& dims) {
    for (int64_t v : dims) out += std::to_string(v) + ",";
    out += ";";
  };
  auto tensor = [&](const ConvTensor& t) {
    out += std::to_string(int{t.dtype}) + ":";
    list(t.sizes), list(t.strides);
  };
  tensor(x), tensor(w), tensor(y);
  list(stride), list(padding), list(dilation);
  for (const ConvStage& stage : stages) {
    out += "/" + std::to_string(int{stage.op});
    tensor(stage.operand);
  }
  return out + (tf32 ? "t" : "") + (new_filter ? "n" : "");
}

std::string HeadsProblem::key() const {
  std::string out = "heads ";
  for (const ConvTensor* t : {&q, &k, &v, &o}) {
    out += std::to_string(int{t->dtype}) + ":";
    for (const auto* dims : {&t->sizes, &t->strides})
      for (int64_t d : *dims) out += std::to_string(d) + ",";
  }
  return out + std::to_string(scale) + (causal ? "c" : "");
}

std::vector<const ConvTensor*> tensors_of(const ConvProblem& p) {
  std::vector<const ConvTensor*> out{&p.x, &p.w, &p.y};
  for (const ConvStage& stage : p.stages)
    if (!stage.operand.sizes.empty()) out.push_back(&stage.operand);
  return out;
}
std::vector<const ConvTensor*> tensors_of(const HeadsProblem& p) { return {&p.q, &p.k, &p.v, &p.o}; }

size_t result_of(const ConvProblem&) { return 2; }
size_t result_of(const HeadsProblem&) { return 3; }

int64_t bytes_of(const ConvTensor& t) {
  int64_t last = 0;
  for (size_t d = 0; d < t.sizes.size(); ++d) last += (t.sizes[d] - 1) * t.strides[d];
  return (last + 1) * (t.dtype == kit::kDType_f32 ? 4 : 2);
}

bool passes_infinity_on(const ConvProblem& p) {
  for (size_t d = 0; d < p.stride.size(); ++d) {  // each window holds something of x
    const int64_t reach = p.dilation[d] * (p.w.sizes[d + 2] - 1);
    if (p.padding[d] > reach || reach >= p.x.sizes[d + 2]) return false;
  }
  return std::all_of(p.stages.begin(), p.stages.end(),
                     [](const ConvStage& s) { return s.op == ConvStage::kAdd || s.op == ConvStage::kMul; });
}
bool passes_infinity_on(const HeadsProblem&) { return false; }

}  // namespace keirin::gpu
