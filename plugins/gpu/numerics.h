// SPDX-License-Identifier: Apache-2.0
//
// What a policy lets a plan do to numbers.
#pragma once

#include <cstdint>
#include <string>

#include "abi/plugin.h"

namespace keirin::gpu {

struct Numerics {
  bool strict = false, fast = false;
  // f32 operands of convolutions, of products, of recurrent layers, may be rounded to TF32: where the framework rounds them so, and if
  // errors are allowed. Never under strict numerics.
  bool tf32_convolutions = false, tf32_products = false, tf32_recurrent = false;
  bool deterministic = false;  // equal problems get equal algorithms: nothing is chosen by its time

  Numerics(uint32_t numerics = KRN_NUMERICS_DEFAULT, uint32_t flags = 0)  // NOLINT: a level stands for itself
      : strict(numerics == KRN_NUMERICS_STRICT), fast(numerics == KRN_NUMERICS_FAST),
        tf32_convolutions(fast || (!strict && (flags & KRN_POLICY_TF32_CONVOLUTIONS))),
        tf32_products(fast || (!strict && (flags & KRN_POLICY_TF32_PRODUCTS))),
        tf32_recurrent(fast || (!strict && (flags & KRN_POLICY_TF32_RECURRENT))),
        deterministic(flags & KRN_POLICY_DETERMINISTIC) {}
  explicit Numerics(const krn_policy* policy) : Numerics(policy ? policy->numerics : KRN_NUMERICS_DEFAULT, policy ? policy->flags : 0) {}

  // Of the libraries' choices; what generated code depends on is in CodeTarget.
  std::string identity() const {
    return std::string(tf32_convolutions ? " tf32 convolutions" : "") + (tf32_products ? " tf32 products" : "") +
           (tf32_recurrent ? " tf32 recurrent" : "") +
           (deterministic ? " deterministic" : "");
  }
};

}  // namespace keirin::gpu
