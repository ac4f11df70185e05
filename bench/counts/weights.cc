// SPDX-License-Identifier: Apache-2.0
//
// The instructions of products and convolutions as steps of a plan: by LibTorch with the weight as a model has it, and with the weight laid
// out once (core/eager/rows/laid_out.h). For an emulator that counts (README.md beside this file); prints a table.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "core/eager/rows/graph_calls.h"
#include "core/eager/tensor_services.h"
#include "core/ops/builder.h"
#include "core/tune/instructions.h"

namespace keirin {
namespace {

struct Shape {
  const char* what;
  OpCode code;
  Dims x, weight;
  int64_t stride;
};

const Shape kShapes[] = {
    {"linear 1x128 to 128", OpCode::k_linear, {1, 128}, {128, 128}, 0},
    {"linear 1x2048 to 1000", OpCode::k_linear, {1, 2048}, {1000, 2048}, 0},
    {"linear 4x128 to 128", OpCode::k_linear, {4, 128}, {128, 128}, 0},
    {"linear 16x64 to 256", OpCode::k_linear, {16, 64}, {256, 64}, 0},
    {"linear 8x256 to 256", OpCode::k_linear, {8, 256}, {256, 256}, 0},
    {"linear 64x512 to 512", OpCode::k_linear, {64, 512}, {512, 512}, 0},
    {"conv 1x1 256 to 128, 16x16", OpCode::k_conv, {1, 256, 16, 16}, {128, 256, 1, 1}, 1},
    {"conv 3x3 64 to 64, 56x56", OpCode::k_conv, {1, 64, 56, 56}, {64, 64, 3, 3}, 1},
    {"conv 3x3 512 to 512, 2x2", OpCode::k_conv, {1, 512, 2, 2}, {512, 512, 3, 3}, 1},
    {"conv 7x7 3 to 64, 64x64, stride 2", OpCode::k_conv, {1, 3, 64, 64}, {64, 3, 7, 7}, 2},
};

Result<uint64_t> instructions_of(const PreparedCall& call, const std::vector<TensorRef>& operands, const InstructionCount& count) {
  std::vector<TensorRef> results;
  uint64_t before = 0;
  for (int i = 0; i < 3; ++i) {  // the last one counts
    before = count.now();
    KRN_TRY(call.run(operands, results));
  }
  return count.now() - before;
}

// A row of the table. `last` lays convolutions out channels-last, as plans have them.
Result<uint64_t> count_shape(const Shape& shape, bool last, bool laid_out, TensorServices& services, const InstructionCount& count) {
  const auto type = [&](const Dims& sizes) {
    return Type{DType::k_f32, sizes, last && sizes.size() == 4 ? channels_last_strides(sizes) : contiguous_strides(sizes)};
  };
  Graph graph;
  Builder build(graph);
  std::vector<TensorRef> operands, constants;
  for (const Dims& sizes : {shape.x, shape.weight, Dims{shape.weight[0]}}) {
    const Type each = type(sizes);
    KRN_TRY_LET(TensorRef tensor, services.allocate({each.dtype, each.sizes.vec(), each.strides.vec(), {}}));
    auto* data = static_cast<float*>(tensor->data());
    for (int64_t i = 0; i < each.num_elements(); ++i) data[i] = static_cast<float>(i % 17) / 17.0F - 0.5F;
    operands.push_back(tensor);
    if (operands.size() > 1) constants.push_back(tensor);
  }
  const ValueId x = graph.add_input(type(shape.x), 0), weight = graph.add_constant(type(shape.weight), 0, ValueKind::kConstant),
                bias = graph.add_constant(type({shape.weight[0]}), 1, ValueKind::kConstant);
  Attrs attrs;
  if (shape.code == OpCode::k_conv) {
    const int64_t padding = shape.weight[2] / 2;
    attrs = {{AttrKey::k_stride, Dims{shape.stride, shape.stride}},
             {AttrKey::k_padding, Dims{padding, padding}},
             {AttrKey::k_dilation, Dims{1, 1}},
             {AttrKey::k_groups, int64_t{1}},
             {AttrKey::k_transposed, false},
             {AttrKey::k_output_padding, Dims{0, 0}}};
  }
  KRN_TRY(build.emit1(shape.code, {x, weight, bias}, attrs).status());
  KRN_TRY_LET(const auto call, GraphCalls(nullptr).prepare(graph, 0, laid_out ? constants : std::vector<TensorRef>()));
  return instructions_of(*call, operands, count);
}

int run() {
  const auto count = InstructionCount::of_environment();
  if (!count || !count->address()) return std::fputs("nobody counts instructions here: see bench/counts/README.md\n", stderr), 2;
  const auto services = make_tensor_services();
  services->keep_to_this_thread();
  std::puts("| | as the model has it | channels-last | weight laid out once |\n|---|---:|---:|---:|");
  for (const Shape& shape : kShapes) {
    std::string line = std::string("| ") + shape.what;
    for (const auto& [last, laid_out] : {std::pair{false, false}, std::pair{true, false}, std::pair{true, true}}) {
      const Result<uint64_t> counted = count_shape(shape, last, laid_out, *services, *count);
      if (!counted.ok()) return std::fprintf(stderr, "%s: %s\n", shape.what, counted.status().text().c_str()), 1;
      line += shape.code == OpCode::k_linear && last && !laid_out ? " | -" : " | " + std::to_string(*counted);
    }
    std::puts((line + " |").c_str());
  }
  return 0;
}

}  // namespace
}  // namespace keirin

int main() { return keirin::run(); }
