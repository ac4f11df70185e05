// SPDX-License-Identifier: Apache-2.0
//
// A node of the file against its operator's schema: every parameter gets its argument, its default, or one of the
// widenings that eager itself allows (int to float, one int to int[n], number to 0-d Tensor, ...). Anything else is a
// refusal. Names stay names: who runs or imports the node decides what they stand for.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/tensor.h"
#include "core/capture/pt2/schema.h"

namespace keirin {

struct BoundArg {
  enum class Kind : uint8_t { kConstant, kName, kList };
  Kind kind = Kind::kConstant;
  c10::IValue constant;         // kConstant; a whole list if nothing in it is a name
  std::string name;             // kName
  bool wrap = false;            // kName of a number whose parameter is a Tensor
  std::vector<BoundArg> items;  // kList; an absent optional tensor is a constant None
};

struct BoundCall {
  c10::OperatorHandle op;
  std::vector<BoundArg> args;  // in schema order
};

// Where the file's devices go. A file made on the CPU alone moves as a whole; in a mixed one what is on the CPU stays.
struct DeviceMap {
  Device target;
  bool cpu_moves = true;
  c10::Device map(const pt2::Device& device) const;
};
DeviceMap make_device_map(const pt2::Graph& graph, Device target);

// "torch.ops.aten.add.Tensor" -> the operator; `unsupported` if this process has none of that name and
// core/eager/program/package_ops has no stand-in.
Result<c10::OperatorHandle> find_operator(const std::string& target);

Result<BoundCall> bind_node(const pt2::Node& node, const pt2::Graph& graph, const DeviceMap& devices);

// A number as eager passes it where a Tensor is wanted: 0-d, does not promote.
at::Tensor wrap_number(const c10::IValue& number);

}  // namespace keirin
