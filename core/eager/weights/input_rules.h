// SPDX-License-Identifier: Apache-2.0
//
// What an exported program demands of its inputs: count, dtype, rank, fixed sizes, ranges of the symbolic ones, guards.
// Binding is derived: the first dimension that is a bare symbol binds it, every other occurrence is a check. Fails
// closed: a guard that could not be read pins the symbols to the sizes of the export.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"
#include "core/capture/pt2/schema.h"

namespace keirin {

// One flat input as the rules see it.
struct InputView {
  DType dtype = DType::kNone;
  const int64_t* sizes = nullptr;
  int64_t rank = 0;
  int64_t number = 0;  // the value, where the program takes a number (given as a 0-d i64 tensor)
};

// What the only symbol of a size has to be for the size to be that, where it grows evenly with it, as 4 * s and 8 * s + 1 do: an export
// names such sizes where a model halves and joins them again. Nothing where the size is none of its values, or does not grow so.
std::optional<int64_t> symbol_of_size(const pt2::Expr& expr, int64_t size);

class InputRules {
 public:
  explicit InputRules(const pt2::Program& program);

  // What the flat inputs are called; constant inputs of the program are not among them.
  const std::vector<std::string>& names() const { return names_; }
  bool is_number(size_t input) const { return inputs_[input].is_number; }

  // All checks of one call. Cheap for static programs and for sizes that the last call had too. Any thread.
  Status check(const std::vector<InputView>& inputs) const;
  // The same, and the values of the symbols.
  Result<pt2::SymbolValues> bind(const std::vector<InputView>& inputs) const;

 private:
  struct Input {
    DType dtype = DType::kNone;
    std::vector<pt2::SymInt> sizes;
    bool is_number = false;
    pt2::SymInt number;
  };
  struct GuardSize {
    std::string symbol;
    size_t input = 0;
    int64_t dim = 0;  // -1: the number itself
  };

  Status check_static(const std::vector<InputView>& inputs) const;
  // `leaves`: of each leaf of the arguments, constants among them, the position among the inputs; none for a constant.
  void add_guards(const pt2::Program& program, const std::vector<std::optional<size_t>>& leaves);
  Status check_symbol(size_t input, int64_t dim, const std::string& symbol, int64_t value) const;
  Status wrong_size(size_t input, int64_t dim, int64_t got, const std::string& wanted, const std::string& symbol,
                    std::string advice) const;

  std::string model_;
  std::vector<std::string> names_;
  std::vector<Input> inputs_;
  pt2::Named<pt2::RangeConstraint> ranges_;
  std::vector<std::pair<pt2::Guard, std::vector<GuardSize>>> guards_;
  std::string pinned_by_;  // the guard that could not be read; empty if none
  bool symbolic_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<int64_t> accepted_;  // the sizes and numbers of the last call that passed
};

}  // namespace keirin
