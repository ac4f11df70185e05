// SPDX-License-Identifier: Apache-2.0
//
// The compiler's type of an IEEE half, for conversions: arithmetic may be done in float or in half.
#pragma once

namespace keirin {

#if defined(__aarch64__) && !defined(__clang__) && __GNUC__ < 13
using Float16 = __fp16;  // that compiler has _Float16 in C only
#else
using Float16 = _Float16;
#endif

}  // namespace keirin
