// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/llvm/arguments.h"

namespace keirin::codegen::native {

Arguments::Arguments(const Kernel& kernel) {
  const auto num_axes = static_cast<int32_t>(kernel.axes.size());
  int32_t next = num_axes;
  auto linear = [&] {
    LinearArguments form{next, next + 1};
    next += 1 + num_axes;
    return form;
  };
  for (const Access& access : kernel.accesses) {
    AccessArguments a;
    a.index = linear();
    for (size_t i = 0; i < access.indirects.size(); ++i, next += 2) a.indirects.push_back({next, next + 1});
    for (size_t i = 0; i < access.guards.size(); ++i) {
      LinearArguments form = linear();
      a.guards.push_back({form, next++});
    }
    accesses.push_back(std::move(a));
  }
  for (const Node& node : kernel.dag.nodes) literals.push_back(is_argument(node) ? next++ : -1);
  block = next;
  num_blocks = next + 1;
}

}  // namespace keirin::codegen::native
