// SPDX-License-Identifier: Apache-2.0
//
// Regions whose right answers are known without an oracle, and the memory that one run of them needs.
#include <algorithm>
#include <cmath>

#include "core/ops/builder.h"
#include "tests/certify/trial.h"

namespace keirin::certify {
namespace {

template <class T>
T value_of(Result<T> made, const char* what) {
  if (!made.ok()) throw NotOffered{std::string(what) + ": " + made.status().text()};
  return std::move(made).value();
}

void finish(Region& region, ValueId output) {
  region.graph.outputs.push_back({output, kNone, kNone});
  region.outputs = {region.graph.type(output)};
  region.bytes = value_of(write_region(region.graph), "a region of the probe list cannot be written");
  for (const ValueId v : region.bytes.inputs) region.inputs.push_back(region.graph.type(v));
}

// Exact in f32, and so are sums and products of two: answers are equal or wrong.
float number(int seed, int64_t i) { return static_cast<float>((i * 37 + seed * 11) % 129 - 64) / 8; }

float apply(OpCode row, float a, float b) {
  switch (row) {
    case OpCode::k_relu: return a <= 0 ? 0 : a;
    case OpCode::k_neg: return -a;
    case OpCode::k_add: return a + b;
    default: return a * b;
  }
}

}  // namespace

Type f32(Dims sizes, Dims strides) {
  if (strides.empty()) strides = contiguous_strides(sizes);
  return {DType::k_f32, std::move(sizes), std::move(strides)};
}

krn_region Region::view() const {
  krn_region out{};
  out.hdr.size = sizeof(out);
  out.graph = {bytes.bytes.data(), bytes.bytes.size()};
  std::copy(bytes.hash.begin(), bytes.hash.end(), out.hash);
  out.consts = 1;
  return out;
}

Region region_of(OpCode row, const Type& in, const Type& out) {
  Region region;
  region.row = row;
  Builder builder(region.graph);
  ValueIds operands{region.graph.add_input(in, 0)};
  if (row == OpCode::k_add || row == OpCode::k_mul) operands.push_back(region.graph.add_input(in, 1));
  const ValueId made = value_of(builder.emit1(row, operands), "an operator of the probe list cannot be built");
  region.graph.values[made].type.strides = out.strides;
  finish(region, made);
  return region;
}

Region linear_region(int64_t rows, int64_t depth, int64_t columns) {
  Region region;
  region.row = OpCode::k_linear;
  Builder builder(region.graph);
  const ValueId x = region.graph.add_input(f32({rows, depth}), 0);
  const ValueId w = region.graph.add_constant(f32({columns, depth}), 0, ValueKind::kConstant);
  const ValueId b = region.graph.add_constant(f32({columns}), 1, ValueKind::kConstant);
  finish(region, value_of(builder.emit1(OpCode::k_linear, {x, w, b}), "an operator of the probe list cannot be built"));
  return region;
}

bool Said::all_of(size_t num_nodes) const {
  std::vector<bool> taken(num_nodes, false);
  for (const Claim& claim : claims)
    for (const uint32_t node : claim.nodes)
      if (node < num_nodes) taken[node] = true;
  return std::find(taken.begin(), taken.end(), false) == taken.end();
}

Arguments::Arguments(const Region& region, const krn_needs& needs, Place inputs_at, Place outputs_at) {
  inputs.reserve(region.inputs.size());
  outputs.reserve(region.outputs.size());
  for (const Type& type : region.inputs) in.push_back(inputs.emplace_back(type, inputs_at).view(KRN_TENSOR_READ_ONLY));
  for (const Type& type : region.outputs) out.push_back(outputs.emplace_back(type, outputs_at).view(0));
  run.hdr.size = sizeof(run);
  run.inputs = in.data();
  run.outputs = out.data();
  run.num_inputs = static_cast<uint32_t>(in.size());
  run.num_outputs = static_cast<uint32_t>(out.size());
  run.run_id = 1;
  if (const Gpu* gpu = Gpu::here()) run.stream = gpu->stream();
  give_workspace(needs);
}

void Arguments::give_workspace(const krn_needs& needs) {
  workspace.emplace(f32({static_cast<int64_t>((needs.workspace_bytes + 3) / 4)}), Place::kRed);
  run.workspace = workspace->data();
  run.workspace_bytes = needs.workspace_bytes;
}

const krn_run& Arguments::ready() {
  for (Memory& input : inputs) input.put();
  for (Memory& output : outputs) output.put();
  workspace->put();
  return run;
}

void Arguments::feed(OpCode row, const std::function<float(int64_t)>& value) {
  for (size_t k = 0; k < inputs.size(); ++k)
    for (int64_t i = 0; i < inputs[k].size(); ++i) inputs[k].set(i, value(i + static_cast<int64_t>(k) * 1000));
  for (Memory& output : outputs) output.fill(0);
  work_out(row);
}

void Arguments::work_out(OpCode row) {
  expected.resize(static_cast<size_t>(outputs[0].size()));
  if (row == OpCode::k_linear) {
    const int64_t depth = inputs[1].type().sizes[1], columns = inputs[1].type().sizes[0];
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto r = static_cast<int64_t>(i) / columns, c = static_cast<int64_t>(i) % columns;
      double sum = inputs[2].get(c);
      for (int64_t k = 0; k < depth; ++k) sum += static_cast<double>(inputs[0].get(r * depth + k)) * inputs[1].get(c * depth + k);
      expected[i] = static_cast<float>(sum);
    }
    return;
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto k = static_cast<int64_t>(i);
    expected[i] = apply(row, inputs[0].get(k), inputs.size() > 1 ? inputs[1].get(k) : 0);
  }
}

void Arguments::feed(OpCode row, int seed) {
  feed(row, [seed](int64_t i) { return number(seed, i); });
}

void Arguments::expect_right() {
  outputs[0].fetch();
  compare();
}

void Arguments::compare() const {
  for (size_t i = 0; i < expected.size(); ++i) {
    const float got = outputs[0].get(static_cast<int64_t>(i)), want = expected[i];
    if ((std::isnan(got) && std::isnan(want)) || got == want) continue;
    fail("element {} of {} is {}, not {}", i, expected.size(), got, want);
  }
}

}  // namespace keirin::certify
