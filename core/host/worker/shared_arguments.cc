// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/shared_arguments.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "abi/graph.h"
#include "core/host/call/tensor_view.h"

namespace keirin {
namespace {

constexpr uint64_t kDeviceAlign = 512;

Type type_of(const krn_graph& graph, uint32_t value) {
  const krn_gtype* type = krn_graph_value_type(&graph, value);
  const int64_t *sizes = krn_graph_sizes(&graph, type), *strides = krn_graph_strides(&graph, type);
  return {static_cast<DType>(type->dtype), Dims(sizes, sizes + type->rank), Dims(strides, strides + type->rank)};
}

}  // namespace

uint64_t SharedArguments::place(uint64_t bytes) {
  const uint64_t offset = total_bytes_;
  total_bytes_ = zone_end(offset + bytes);
  return offset;
}

Result<SharedArguments> SharedArguments::of_region(std::span<const uint8_t> region, Device device) {
  krn_graph graph;
  if (krn_graph_open(region.data(), region.size(), &graph) != 0) return Status(Code::k_corrupt, "the region's bytes do not open");
  const krn_gfunction* function = krn_graph_function(&graph, 0);
  SharedArguments made;
  made.device_ = device;
  if (device.kind != Device::kCpu) made.align_ = kDeviceAlign;
  for (uint32_t i = 0; i < function->num_inputs; ++i) {
    const krn_ginput* input = krn_graph_input(&graph, function->first_input + i);
    Argument argument{type_of(graph, input->value)};
    if (input->flags & KRN_INPUT_WEIGHT) {
      argument.weight = input->weight;
    } else {
      argument.bytes = static_cast<uint64_t>(span_bytes(argument.type));
      argument.offset = made.place(argument.bytes);
    }
    made.inputs_.push_back(std::move(argument));
  }
  for (uint32_t i = 0; i < function->num_outputs; ++i) {
    const krn_goutput* output = krn_graph_output(&graph, function->first_output + i);
    Argument argument{type_of(graph, output->value)};
    if (output->alias_input != KRN_NONE) {
      argument = made.inputs_[output->alias_input];
      argument.alias = output->alias_input;
    } else {
      argument.bytes = static_cast<uint64_t>(span_bytes(argument.type));
      argument.offset = made.place(argument.bytes);
    }
    made.outputs_.push_back(std::move(argument));
  }
  made.total_bytes_ = std::max<uint64_t>(made.total_bytes_, 1);
  return made;
}

Status SharedArguments::map(int file, uint64_t offset) {
  void* const at = ::mmap(nullptr, total_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  if (at == MAP_FAILED)
    return Status(Code::k_exhausted, std::string("the arguments of a region cannot be shared with its worker: ") + ::strerror(errno));
  memory_ = std::shared_ptr<void>(at, [bytes = total_bytes_](void* p) { ::munmap(p, bytes); });
  return {};
}

void SharedArguments::mark_zones() {
  const auto mark = [this](const Argument& a) {
    const uint64_t end = a.offset + a.bytes;
    if (a.own()) ::memset(memory() + end, kPattern, zone_end(end) - end);
  };
  std::for_each(inputs_.begin(), inputs_.end(), mark);
  std::for_each(outputs_.begin(), outputs_.end(), mark);
}

std::string SharedArguments::overrun() const {
  return overrun([this](uint64_t begin, uint64_t) { return memory() + begin; });
}

std::string SharedArguments::overrun(const std::function<const char*(uint64_t begin, uint64_t end)>& zone) const {
  const auto find = [&](const std::vector<Argument>& arguments, const char* kind) -> std::string {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const uint64_t end = arguments[i].offset + arguments[i].bytes;
      if (!arguments[i].own()) continue;
      const auto spoilt = [](char c) { return static_cast<unsigned char>(c) != kPattern; };
      const char* const at = zone(end, zone_end(end));
      if (std::any_of(at, at + (zone_end(end) - end), spoilt))
        return std::string("wrote past the end of ") + kind + " " + std::to_string(i);
    }
    return {};
  };
  const std::string output = find(outputs_, "output");
  return output.empty() ? find(inputs_, "input") : output;
}

void SharedArguments::put(const krn_tensor* inputs) const {
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].bytes > 0) ::memcpy(memory() + inputs_[i].offset, inputs[i].data, inputs_[i].bytes);
}

void SharedArguments::take(const krn_tensor* outputs) const {
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (outputs_[i].bytes > 0) ::memcpy(outputs[i].data, memory() + outputs_[i].offset, outputs_[i].bytes);
}

krn_tensor SharedArguments::view(const Argument& a, uint32_t flags) const {
  krn_tensor view = view_of(a.type, device_, flags);
  view.data = memory() + a.offset;
  view.storage_bytes = a.bytes;
  return view;
}

}  // namespace keirin
