// SPDX-License-Identifier: Apache-2.0
//
// How many members an aggregate has, so that a table can be compared with a struct: the most values that its braces
// take.
#pragma once

#include <cstddef>
#include <utility>

namespace keirin::test {

struct AnyValue {
  template <class T>
  operator T() const;
};
template <class T, size_t... I>
constexpr bool takes_values(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), AnyValue{})...}; };
}
template <class T, size_t N = 64>
constexpr size_t count_members() {
  if constexpr (takes_values<T>(std::make_index_sequence<N>())) return N;
  else return count_members<T, N - 1>();
}

}  // namespace keirin::test
