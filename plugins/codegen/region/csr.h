// SPDX-License-Identifier: Apache-2.0
//
// The host's way to a Csr: built from an index tensor in host memory, kept by content. The same pointer may hold new indices, so
// every run compares with a kept copy and builds again on difference.
#pragma once

#include <memory>

#include "plugins/codegen/backend.h"

namespace keirin::codegen {

// Its run returns KRN_STATUS_invalid_input if an index lies outside [0, num_rows): eager then raises its own error.
std::unique_ptr<Step> make_host_csr(const Csr& csr);

}  // namespace keirin::codegen
