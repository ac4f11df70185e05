// SPDX-License-Identifier: Apache-2.0
//
// What generated text stands on: a dialect's spelling of threads, shared memory, barriers and 16-bit conversions, and below that one
// common part in terms of those words.
#include "plugins/codegen/text/c_printer.h"
#include "plugins/codegen/text/text.h"

namespace keirin::codegen {

const Dialect kHostDialect = {"host", 32, text::host};

std::string print_prelude(const Dialect& dialect) { return std::string(dialect.prelude) + std::string(text::common); }

}  // namespace keirin::codegen
