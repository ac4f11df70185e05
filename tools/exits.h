// SPDX-License-Identifier: Apache-2.0
//
// How the `keirin` command ends. Documented in docs/options.md, made of tools/exits.def; scripts rely on the numbers.
#pragma once

namespace keirin::tools {

enum Exit : int {
#define KRN_EXIT(name, code, text) name = code,
#include "tools/exits.def"
#undef KRN_EXIT
};

}  // namespace keirin::tools
