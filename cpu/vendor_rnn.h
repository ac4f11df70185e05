// SPDX-License-Identifier: Apache-2.0
//
// LSTM and GRU by oneDNN, one primitive for each layer. Weights must be constants: their gates are rearranged when the step is
// made. Sequences come batched, dense, in f32.
#pragma once

#include <memory>
#include <string>

#include "plugins/codegen/backend.h"

namespace keirin::cpu {

bool rnn_takes(const codegen::AnchorDesc& anchor, std::string& why_not);
std::unique_ptr<codegen::Step> make_rnn(const codegen::AnchorDesc& anchor, const codegen::CompileContext& context);

}  // namespace keirin::cpu
