// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/rocm/kernel_texts.h"

#include <cmath>

#include "plugins/codegen/kernel/registers.h"
#include "plugins/codegen/text/c_printer.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/gpu/library_tail.h"
#include "plugins/gpu/rnn.h"
#include "plugins/gpu/stem.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "rocm/device.h"
#include "rocm/gpu_driver.h"
#include "tests/unit/cpu/kernel_interpreter.h"

namespace keirin::test {
namespace {

constexpr size_t kKernelsOfModule = 8;

codegen::AnchorDesc first_convolution(uint8_t dtype) {
  codegen::AnchorDesc a;
  a.op = kit::kOp_conv;
  const auto dense = [&](uint32_t buffer, std::vector<int64_t> sizes) {
    codegen::TensorDesc t;
    t.buffer = buffer, t.dtype = dtype, t.strides.assign(sizes.size(), 1), t.sizes = std::move(sizes);
    for (size_t i = t.sizes.size() - 1; i-- > 0;) t.strides[i] = t.strides[i + 1] * t.sizes[i + 1];
    return t;
  };
  a.operands = {dense(0, {2, 3, 32, 32}), dense(1, {8, 3, 7, 7}), codegen::TensorDesc{}};
  a.results = {dense(2, {2, 8, 13, 13})};
  a.results[0].strides = {8 * 169, 1, 8 * 13, 8};
  a.stride = {2, 2}, a.padding = {0, 0}, a.dilation = {1, 1};
  return a;
}

}  // namespace

std::vector<codegen::Schedule> rocm_schedules(const codegen::Kernel& kernel, const std::string& arch, bool all) {
  const gpu::Gpu gpu = rocm::imagine_gpu(arch);
  if (!all) {
    // Cases have short rows, which a large device takes element by element: what long ones get a small device gives to these. That is
    // compiled as well where it fills the registers.
    constexpr int kMany = 100;
    codegen::GpuFacts small = gpu.facts;
    small.num_units = 2, small.threads_per_unit = 32;
    std::vector<codegen::Schedule> out = {codegen::choose_schedule(kernel, gpu.facts), codegen::choose_schedule(kernel, small)};
    if (codegen::registers_needed(kernel, out[1]) < kMany) out.pop_back();
    return out;
  }
  return schedules_for(kernel, false, gpu.facts);
}

std::vector<ModuleText> generated_texts(const std::string& arch, int64_t length, bool all) {
  const codegen::Dialect& dialect = rocm::gpu_driver(rocm::wave_of(arch)).words().dialect;
  std::vector<ModuleText> out;
  int number = 0;
  for (const KernelCase& c : kernel_cases(length))
    for (const codegen::Schedule& s : rocm_schedules(c.kernel, arch, all)) {
      if (out.empty() || out.back().symbols.size() >= kKernelsOfModule)
        out.push_back({codegen::print_prelude(dialect), {}, true});
      out.back().symbols.push_back("k" + std::to_string(number++));
      out.back().text += codegen::print_kernel(c.kernel, s, dialect, out.back().symbols.back());
    }
  return out;
}

std::optional<gpu::TextKernel> own_kernel_for(const AnchorCase& c, const std::string& arch, std::string& why_not) {
  return gpu::own_kernel(c.anchor, rocm::imagine_gpu(arch), KRN_NUMERICS_DEFAULT, why_not);
}

gpu::TextKernel rnn_kernel_for(const RnnCase& c, const std::string& arch, int units) {
  gpu::Gpu gpu = rocm::imagine_gpu(arch);
  if (units > 0) gpu.facts.num_units = units;
  std::string why_not;
  if (!gpu::rnn_taken(c.anchor, gpu, KRN_NUMERICS_DEFAULT, why_not)) throw kit::Error(KRN_STATUS_unsupported, c.name + ": " + why_not);
  return gpu::rnn_kernel(c.anchor, 0, c.direction, gpu, KRN_NUMERICS_DEFAULT);
}

gpu::TextKernel tail_kernel(uint8_t dtype) {
  codegen::AnchorDesc a;
  a.operands.resize(3), a.results.resize(1);
  const auto tensor = [dtype](uint32_t buffer, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
    codegen::TensorDesc t;
    t.buffer = buffer, t.dtype = dtype, t.sizes = std::move(sizes), t.strides = std::move(strides);
    return t;
  };
  a.results[0] = tensor(0, {kTailRows, kTailColumns}, {kTailStride, 1});
  a.operands[2] = tensor(1, {kTailColumns}, {1});
  a.post_ops = {{kit::kOp_add, a.results[0]}, {kit::kOp_relu, {}}};
  a.post_ops[0].operand.buffer = 2;
  std::string why_not;
  return *gpu::library_tail(a, {kTailRows * kTailColumns, kTailColumns, kTailStride, 1, kTailColumns}, why_not);
}

Tail::Tail(uint8_t dtype) {
  const auto filled = [dtype](int64_t elements, int64_t step) {
    std::vector<char> out(static_cast<size_t>(elements * element_bytes(dtype)));
    for (int64_t i = 0; i < elements; ++i) write_element(out.data(), i, dtype, static_cast<double>(i * step % 33 - 16) / 8, 0);
    return out;
  };
  constexpr int64_t kElements = kTailRows * kTailStride;
  y = filled(kElements, 7), bias = filled(kTailColumns, 5), residual = filled(kElements, 11);
  write_element(y.data(), 3, dtype, NAN, 0);
  want = y;
  const auto value = [dtype](const std::vector<char>& from, int64_t i) { return read_element(from.data(), i, dtype).real; };
  for (int64_t i = 0; i < kElements; ++i) {
    if (i % kTailStride >= kTailColumns) continue;  // between the rows nothing is touched
    const double sum = value(y, i) + value(bias, i % kTailStride) + value(residual, i);
    write_element(want.data(), i, dtype, sum < 0 ? 0 : sum, 0);
  }
}

std::vector<ModuleText> own_texts(const std::string& arch) {
  const gpu::Driver& driver = rocm::gpu_driver(rocm::wave_of(arch));
  std::vector<ModuleText> out;
  const auto add = [&](const gpu::TextKernel& kernel) {
    out.push_back({gpu::whole_text(kernel, driver), {}, false});
    for (const auto& launch : kernel.launches) out.back().symbols.push_back(launch.symbol);
  };
  std::string why_not;
  for (const AnchorCase& c : anchor_cases())
    if (const auto kernel = own_kernel_for(c, arch, why_not)) add(*kernel);
  for (const RnnCase& c : rnn_cases()) add(rnn_kernel_for(c, arch, 0));
  for (uint32_t op : {kit::kOp_lstm, kit::kOp_gru})  // the most that a block may hold
    for (uint8_t dtype : {kit::kDType_bf16, kit::kDType_f16, kit::kDType_f32})
      for (int64_t hidden : {512, 1024}) {
        const gpu::Gpu gpu = rocm::imagine_gpu(arch);
        const codegen::AnchorDesc a = rnn_anchor(op, dtype, 5, 64, 24, hidden);
        if (gpu::rnn_taken(a, gpu, KRN_NUMERICS_DEFAULT, why_not)) add(gpu::rnn_kernel(a, 0, 0, gpu, KRN_NUMERICS_DEFAULT));
      }
  for (uint8_t dtype : {kit::kDType_bf16, kit::kDType_f32})
    if (const auto stem = gpu::stem_of(first_convolution(dtype), KRN_NUMERICS_DEFAULT)) add(stem->regroup);
  for (uint8_t dtype : {kit::kDType_bf16, kit::kDType_f16, kit::kDType_f32}) add(tail_kernel(dtype));
  out.push_back({gpu::csr_text(driver), {"csr_rows"}, false});
  return out;
}

}  // namespace keirin::test
