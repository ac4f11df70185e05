// SPDX-License-Identifier: Apache-2.0
//
// Products through a library of lt_library.h: bias, ReLU and tanh-GELU as its epilogues, a residual as beta * C.
#pragma once

#include <mutex>
#include <optional>

#include "plugins/gpu/lt_library.h"
#include "plugins/gpu/product.h"

namespace keirin::gpu {

// Its guesses are raced by lt_race.h. Opens the library when it is first asked; never destroyed.
class LtProducts final : public ProductLibrary {
 public:
  explicit LtProducts(const lt::Vendor& vendor) : vendor_(vendor) {}
  bool usable(std::string& why_not) const override { return table(why_not) != nullptr; }
  bool takes(uint8_t dtype, std::string& why_not) const override;
  std::unique_ptr<codegen::Step> make(const codegen::AnchorDesc& anchor, const ProductProblem& problem, bool tf32,
                                      Pick pick, double* seconds) const override;

 private:
  const lt::Table* table(std::string& why_not) const;
  bool proposes_any(uint8_t dtype) const;

  const lt::Vendor& vendor_;
  mutable std::once_flag once_;
  mutable std::optional<lt::Opened> opened_;
  mutable std::mutex mutex_;
  mutable std::optional<bool> taken_[256];  // by dtype
};

}  // namespace keirin::gpu
