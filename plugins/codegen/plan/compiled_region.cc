// SPDX-License-Identifier: Apache-2.0
//
// The run side of an CompiledRegion: fill the table of addresses, then one indirect call for each step.
#include "plugins/codegen/plan/compiled_region.h"

#include "plugins/kit/error.h"

namespace keirin::codegen {

std::unique_ptr<CompiledRegion::RunTable> CompiledRegion::take_table() const {
  if (auto table = pool_.take()) return table;
  auto table = std::make_unique<RunTable>();
  table->buffers.resize(buffers_.size());
  table->keep.reserve(steps_.size());
  return table;
}

void CompiledRegion::return_table(std::unique_ptr<RunTable> table) const {
  table->keep.clear();
  pool_.give_back(std::move(table));
}

krn_code CompiledRegion::run(const krn_run& run, krn_host* host, const krn_host_threads* threads, krn_err* err) const {
  if (run.num_inputs != num_inputs_ || run.num_outputs != num_outputs_ ||
      run.workspace_bytes < static_cast<uint64_t>(workspace_bytes_) || (workspace_bytes_ > 0 && !run.workspace)) {
    kit::set_error(err, KRN_STATUS_invalid_input,
                   "run: the number of tensors or the workspace is not what the executable needs; ask needs");
    return KRN_STATUS_invalid_input;
  }
  std::unique_ptr<RunTable> table = take_table();
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const BufferInfo& info = buffers_[b];
    switch (info.role) {
      case BufferInfo::Role::kInput:
        table->buffers[b] = run.inputs[info.index].data;
        break;
      case BufferInfo::Role::kOutput:
        table->buffers[b] = run.outputs[info.index].data;
        break;
      case BufferInfo::Role::kTemp:
        table->buffers[b] = static_cast<char*>(run.workspace) + offsets_[b];
        break;
    }
  }
  RunContext context;
  context.buffers = table->buffers.data();
  context.keep = &table->keep;
  context.run = &run;
  context.threads = threads;
  context.host = host;
  context.err = err;
  krn_code code = KRN_STATUS_ok;
  for (size_t s = 0; s < steps_.size() && code == KRN_STATUS_ok; ++s) {
    code = steps_[s]->run(context);
    if (code == KRN_STATUS_invalid_input && s >= updates_from_) code = KRN_STATUS_internal;
  }
  return_table(std::move(table));
  return code;
}

int64_t CompiledRegion::constant_bytes() const {
  int64_t bytes = 0;
  for (const auto& step : steps_) bytes += step->constant_bytes();
  return bytes;
}

std::string CompiledRegion::describe() const {
  std::string out;
  for (const auto& step : steps_) out += step->describe() + "\n";
  return out;
}

}  // namespace keirin::codegen
