// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a call, as the words of the `keirin` command get and leave them: files, or inputs drawn from what the
// model's file and graph say. What was drawn without knowing what it means runs in a child process first: it may take a
// process down.
#pragma once

#include <string>
#include <vector>

#include "core/api/session.h"
#include "tools/options.h"

namespace keirin::tools {

// "8,128"; nothing for an empty text.
Result<std::vector<int64_t>> parse_sizes(const std::string& text);

// Inputs of a call, on the session's device: those of `--inputs` and `--input`, by position or name, or drawn ones where there is none
// or where `sizes` names free sizes. `model` is the session's file. Blocks for a start of this program and two eager
// calls where integers were drawn whose meaning nothing says; `invalid_input` if that process did not answer.
Result<std::vector<TensorRef>> inputs_for(Session& session, Runtime& runtime, const std::string& model,
                                          const CommonOptions& common, const std::vector<int64_t>& sizes = {});
// What that process does: calls eager on drawn inputs. Their memory is checked by the C library when it is freed.
Status try_drawn(Session& session, const std::vector<int64_t>& sizes);

// `unsupported` if `--outputs` could not hold what the model returns: to be asked before anything runs.
Status check_outputs(const Session& session);
// The key of an output, its position where it has none.
std::string output_name(const Signature& signature, size_t position);
// Outputs under their names; one that is None is left out.
Status write_outputs(const std::string& path, const Signature& signature, const std::vector<TensorRef>& outputs, TensorServices& services);

// Lines of the report that begin with "warning: ", on standard error.
void print_warnings(const ModelReport& report);

}  // namespace keirin::tools
