// SPDX-License-Identifier: Apache-2.0
#include "core/eager/program/library_settings.h"

#include <ATen/Context.h>

#include "core/eager/tensor_services.h"

namespace keirin {

std::map<std::string, std::string> library_settings(Device device) {
  at::Context& context = at::globalContext();
  std::map<std::string, std::string> out;
  const auto add = [&](const char* name, auto value) { out[name] = std::to_string(static_cast<int64_t>(value)); };
  out["numeric_modes"] = std::to_string(numeric_modes(device));
  add("deterministic_warn_only", context.deterministicAlgorithmsWarnOnly());
  add("deterministic_fill", context.deterministicFillUninitializedMemory());
  add("sdp_flash", context.userEnabledFlashSDP());
  add("sdp_math", context.userEnabledMathSDP());
  if (device.kind == Device::kCpu) {
    add("rnn_precision", context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::RNN));
    add("mkldnn", context.userEnabledMkldnn());
    add("mkldnn_deterministic", context.deterministicMkldnn());
    add("nnpack", context.userEnabledNNPACK());
    add("f16_reduction", context.allowFP16ReductionCPU());
    return out;
  }
  add("rnn_precision", context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::RNN));
  add("cudnn", context.userEnabledCuDNN());
  add("cudnn_benchmark", context.benchmarkCuDNN());
  add("cudnn_benchmark_limit", context.benchmarkLimitCuDNN());
  add("cudnn_deterministic", context.deterministicCuDNN());
  add("f16_reduction", context.allowFP16ReductionCuBLAS());
  add("bf16_reduction", context.allowBF16ReductionCuBLAS());
  add("f16_accumulation", context.allowFP16AccumulationCuBLAS());
  add("blas", context.blasPreferredBackend());
  add("linalg", context.linalgPreferredBackend());
  add("sdp_efficient", context.userEnabledMemEfficientSDP());
  add("sdp_cudnn", context.userEnabledCuDNNSDP());
  for (const at::SDPBackend backend : context.sDPPriorityOrder())
    out["sdp_order"] += std::to_string(static_cast<int>(backend)) + " ";
  return out;
}

Tf32Settings tf32_settings(Device device) {
  if (device.kind == Device::kCpu) return {};
  const auto rounds = [](at::Float32Op op) {
    return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) == at::Float32Precision::TF32;
  };
  return {rounds(at::Float32Op::CONV), rounds(at::Float32Op::MATMUL), rounds(at::Float32Op::RNN)};
}

}  // namespace keirin
