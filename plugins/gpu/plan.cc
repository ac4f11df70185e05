// SPDX-License-Identifier: Apache-2.0
//
// What can be said of a problem without its library.
#include "plugins/gpu/plan.h"

#include <algorithm>

#include "plugins/kit/error.h"
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
  return out + (tf32 ? "t" : "") + (new_filter ? "n" : "") + (result == kX ? "x" : result == kW ? "w" : "");
}

std::string ConvProblem::family() const {
  std::string out;
  const auto list = [&](const std::vector<int64_t>& dims) {
    for (const int64_t v : dims) out += std::to_string(v) + ",";
    out += ";";
  };
  const auto image = [&](const ConvTensor& t) {
    out += std::to_string(int{t.dtype}) + ":" + std::to_string(t.sizes[1]);
    for (const int64_t size : t.sizes) out += size == 1 ? "1" : "n";  // what is broadcast
    if (is_packed(t, true)) out += "l;";
    else if (is_packed(t, false)) out += "r;";
    else list(t.sizes), list(t.strides);
  };
  image(x), image(y);
  out += std::to_string(int{w.dtype}) + ":";
  list(w.sizes), list(w.strides);
  list(stride), list(padding), list(dilation);
  for (const ConvStage& stage : stages) {
    out += "/" + std::to_string(int{stage.op});
    if (!stage.operand.sizes.empty()) image(stage.operand);
  }
  return out + (tf32 ? "t" : "") + (new_filter ? "n" : "") + (result == kX ? "x" : result == kW ? "w" : "");
}

double ConvProblem::volume() const {
  double out = 1;
  for (const int64_t size : x.sizes) out *= static_cast<double>(size);
  return out;
}

namespace {

class PlansNothing final : public PlanLibrary {
 public:
  const char* name() const override { return "none"; }
  bool supports(const ConvProblem&, std::string& why_not) const override { return why_not = kWhy, false; }
  bool supports(const HeadsProblem&, std::string& why_not) const override { return why_not = kWhy, false; }
  void prepare(std::span<const ConvProblem>, std::span<const HeadsProblem>) const override {}
  std::shared_ptr<const LibraryPlan> plan(const ConvProblem&) const override { throw kit::Error(KRN_STATUS_unsupported, kWhy); }
  std::shared_ptr<const LibraryPlan> plan(const HeadsProblem&) const override { throw kit::Error(KRN_STATUS_unsupported, kWhy); }

 private:
  static constexpr const char* kWhy = "the library plans nothing while a call waits";
};

}  // namespace

const PlanLibrary& PlanLibrary::at_once() const {
  static const PlansNothing nothing;
  return nothing;
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

std::vector<int64_t> packed_strides(const std::vector<int64_t>& sizes, bool channels_last) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  if (channels_last) strides[1] = 1, step = sizes[1];
  for (size_t d = sizes.size(); d-- > 0;)
    if (!channels_last || d != 1) strides[d] = step, step *= sizes[d];
  return strides;
}

bool is_packed(const ConvTensor& t, bool channels_last) {
  const std::vector<int64_t> want = packed_strides(t.sizes, channels_last);
  for (size_t d = 0; d < want.size(); ++d)
    if (t.sizes[d] != 1 && t.strides[d] != want[d]) return false;
  return true;
}

std::vector<const ConvTensor*> tensors_of(const ConvProblem& p) {
  std::vector<const ConvTensor*> out{&p.x, &p.w, &p.y};
  for (const ConvStage& stage : p.stages)
    if (!stage.operand.sizes.empty()) out.push_back(&stage.operand);
  return out;
}
std::vector<const ConvTensor*> tensors_of(const HeadsProblem& p) { return {&p.q, &p.k, &p.v, &p.o}; }

size_t result_of(const ConvProblem& p) { return p.result; }
size_t result_of(const HeadsProblem&) { return 3; }
size_t fed_of(const ConvProblem& p) { return p.fed(); }
size_t fed_of(const HeadsProblem&) { return 0; }

int64_t bytes_of(const ConvTensor& t) {
  int64_t last = 0;
  for (size_t d = 0; d < t.sizes.size(); ++d) last += (t.sizes[d] - 1) * t.strides[d];
  return (last + 1) * (t.dtype == kit::kDType_f32 ? 4 : 2);
}

namespace {

struct FloatBits {
  uint32_t exponent, mantissa, sign, large, nan;  // of one element; what is large keeps its products with 0x3c3c... finite in f32
  bool wide;
};

FloatBits bits_of(uint8_t dtype) {
  switch (dtype) {
    case kit::kDType_f32: return {0x7f800000u, 0x007fffffu, 0x80000000u, 0x46464646u, 0x7fc00000u, true};
    case kit::kDType_f16: return {0x7c00u, 0x03ffu, 0x8000u, 0x6464u, 0x7e00u, false};
    default: return {0x7f80u, 0x007fu, 0x8000u, 0x4646u, 0x7fc0u, false};
  }
}

}  // namespace

uint32_t EdgeCase::bits(uint8_t dtype) const {
  const FloatBits b = bits_of(dtype);
  const uint32_t element = (value == kLarge ? b.large : value == kInfinity ? b.exponent : b.nan) | (negative ? b.sign : 0);
  return b.wide ? element : element << 16 | element;
}

bool EdgeCase::shown_by(uint32_t element, uint8_t dtype) const {
  const FloatBits b = bits_of(dtype);
  const bool finite = (element & b.exponent) != b.exponent;
  const bool is_nan = !finite && (element & b.mantissa) != 0;
  return shows == kNoNan ? !is_nan : shows == kNotFinite ? !finite : is_nan;
}

std::vector<EdgeCase> edge_cases(const ConvProblem& p) {
  std::vector<EdgeCase> out{{EdgeCase::kLarge, false, EdgeCase::kNoNan}, {EdgeCase::kLarge, true, EdgeCase::kNoNan}};
  for (size_t d = 0; d < p.stride.size(); ++d) {
    const int64_t reach = p.dilation[d] * (p.w.sizes[d + 2] - 1);
    const int64_t size = p.x.sizes[d + 2];
    if (p.padding[d] > reach || reach >= size) return out;  // a window may hold nothing of x
    // No window may begin at an end of x, and the taps at a kernel's ends may meet nothing of it.
    if (p.result == ConvProblem::kX && (p.stride[d] != 1 || p.dilation[d] != 1)) return out;
    if (p.result == ConvProblem::kW && size + p.padding[d] - reach < p.stride[d]) return out;
  }
  out.push_back({EdgeCase::kNan, false, EdgeCase::kIsNan});
  if (std::all_of(p.stages.begin(), p.stages.end(),
                  [](const ConvStage& s) { return s.op == ConvStage::kAdd || s.op == ConvStage::kMul; }))
    for (bool negative : {false, true}) out.push_back({EdgeCase::kInfinity, negative, EdgeCase::kNotFinite});
  return out;
}
std::vector<EdgeCase> edge_cases(const HeadsProblem&) { return {}; }

}  // namespace keirin::gpu
