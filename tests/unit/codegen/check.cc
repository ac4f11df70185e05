// SPDX-License-Identifier: Apache-2.0
//
// Every tensor lies in its own block with red zones, in the strides that the graph states.
#include "tests/unit/codegen/check.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/codegen/array.h"

namespace keirin::codegen::test {
namespace {

constexpr size_t kRedZone = 256;

struct Block {
  explicit Block(int64_t bytes) : memory(bytes + 2 * kRedZone, 0xA5), size(bytes) {}
  void* data() { return memory.data() + kRedZone; }
  bool intact() const {
    for (size_t i = 0; i < kRedZone; ++i) {
      if (memory[i] != 0xA5 || memory[kRedZone + size + i] != 0xA5) return false;
    }
    return true;
  }
  std::vector<uint8_t> memory;
  size_t size;
};

int64_t extent(const Tensor& t) {
  int64_t out = 1;
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    if (t.sizes[d] == 0) return 0;
    out += (t.sizes[d] - 1) * t.strides[d];
  }
  return out;
}

template <class F>
void each(const Tensor& t, F f) {
  for (int64_t i = 0; i < t.numel(); ++i) {
    int64_t rest = i, at = 0;
    for (size_t d = t.sizes.size(); d-- > 0;) at += rest % t.sizes[d] * t.strides[d], rest /= t.sizes[d];
    f(i, at);
  }
}

}  // namespace

std::vector<Values> random_inputs(const FlatRegion& region, uint32_t seed, int64_t limit) {
  std::mt19937 gen(seed);
  std::vector<Values> out;
  for (int t : region.inputs) {
    const Tensor& tensor = region.tensors[t];
    Values v(tensor.numel());
    for (double& x : v) {
      double u = std::uniform_real_distribution<double>(0, 1)(gen);
      x = tensor.dtype == kDType_bool ? u < 0.5 : is_integer(tensor.dtype) ? std::floor(u * static_cast<double>(limit)) : u * 4 - 2;
      x = through_dtype(x, tensor.dtype);
    }
    out.push_back(std::move(v));
  }
  return out;
}

Checked run_region(const RegionBuilder& builder, Backend& backend, const std::vector<Values>& inputs, const Grouping* grouping,
                   SizedPlans* sized) {
  std::vector<uint8_t> bytes = builder.bytes();
  FlatRegion region = read_region(bytes);
  Checked out;
  CompileContext context;
  out.executable = CompiledRegion::compile(bytes, backend, context, grouping, sized);
  const auto resumed = CompiledRegion::compile(bytes, backend, context, &out.executable->grouping());  // as an artifact does
  EXPECT_EQ(resumed->describe(), out.executable->describe());
  EXPECT_EQ(resumed->workspace_bytes(), out.executable->workspace_bytes());
  std::vector<Block> blocks;
  blocks.reserve(region.inputs.size() + region.outputs.size() + 1);
  std::vector<krn_tensor> in(region.inputs.size()), outs(region.outputs.size());
  for (size_t i = 0; i < in.size(); ++i) {
    const Tensor& t = region.tensors[region.inputs[i]];
    blocks.emplace_back(extent(t) * dtype_bytes(t.dtype));
    in[i] = {};
    in[i].data = blocks.back().data();
    each(t, [&](int64_t e, int64_t at) { store_element(in[i].data, at, t.dtype, inputs[i][e]); });
  }
  for (size_t o = 0; o < outs.size(); ++o) {
    const RegionOutput& output = region.outputs[o];
    const Tensor& t = region.tensors[output.tensor];
    outs[o] = {};
    if (output.alias_input >= 0) {
      outs[o].data = in[output.alias_input].data;
    } else {
      blocks.emplace_back(extent(t) * dtype_bytes(t.dtype));
      outs[o].data = blocks.back().data();
    }
  }
  blocks.emplace_back(out.executable->workspace_bytes());
  krn_run run{};
  run.inputs = in.data(), run.outputs = outs.data();
  run.num_inputs = static_cast<uint32_t>(in.size()), run.num_outputs = static_cast<uint32_t>(outs.size());
  run.workspace = blocks.back().data(), run.workspace_bytes = static_cast<uint64_t>(out.executable->workspace_bytes());
  out.code = out.executable->run(run, nullptr, nullptr, nullptr);
  for (const Block& b : blocks) EXPECT_TRUE(b.intact()) << "a kernel wrote outside a buffer:\n" << out.executable->describe();
  for (size_t o = 0; o < outs.size(); ++o) {
    const RegionOutput& output = region.outputs[o];
    Tensor t = region.tensors[output.tensor];
    if (output.alias_input >= 0) t.strides = region.tensors[region.inputs[output.alias_input]].strides;
    Values v(t.numel());
    each(t, [&](int64_t e, int64_t at) { v[e] = load_element(outs[o].data, at, t.dtype); });
    out.outputs.push_back(std::move(v));
  }
  return out;
}

Checked check(const RegionBuilder& builder, Backend& backend, std::vector<Values> inputs, double tolerance, const Grouping* grouping,
              SizedPlans* sized) {
  FlatRegion region = read_region(builder.bytes());
  if (inputs.empty()) inputs = random_inputs(region, 1);
  std::vector<Values> expected = evaluate(region, inputs);
  Checked got = run_region(builder, backend, inputs, grouping, sized);
  EXPECT_EQ(got.code, KRN_STATUS_ok);
  for (size_t o = 0; o < expected.size(); ++o) {
    int wrong = 0;
    for (size_t i = 0; i < expected[o].size(); ++i) {
      double want = expected[o][i], have = got.outputs[o][i];
      bool same = want == have || (want != want && have != have) || std::fabs(want - have) <= tolerance * (1 + std::fabs(want));
      if (!same && ++wrong <= 3) ADD_FAILURE() << "output " << o << " element " << i << ": " << have << ", want " << want;
    }
    if (wrong > 0) ADD_FAILURE() << wrong << " wrong elements\n" << got.executable->describe();
  }
  return got;
}

Checked check(const RegionBuilder& builder, std::vector<Values> inputs, double tolerance) {
  InterpBackend backend;
  return check(builder, backend, std::move(inputs), tolerance);
}

}  // namespace keirin::codegen::test
