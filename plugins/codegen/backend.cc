// SPDX-License-Identifier: Apache-2.0
//
// What backends share: the default of their answers, and where their texts go.
#include "plugins/codegen/backend.h"

#include "plugins/codegen/kernel/rows.h"

namespace keirin::codegen {

bool Backend::supports(uint32_t /*op*/, uint8_t dtype, std::string& why_not) const {
  if (is_computable(dtype)) return true;
  why_not = "a dtype that is carried only, not computed in";
  return false;
}

std::vector<const Kernel*> all_of(std::span<const Together> steps) {
  std::vector<const Kernel*> out;
  for (const Together& step : steps) out.insert(out.end(), step.begin(), step.end());
  return out;
}

kit::Error not_compiled(const std::string& kernel) {
  return kit::Error(KRN_STATUS_unsupported, "no code was compiled yet for kernels like " + kernel);
}

TextSink text_sink(const CompileContext& context, std::string_view comment, std::string_view ending) {
  if (!context.options || !context.options->dump) return {};
  return [sink = context.options->dump, comment = std::string(comment), ending = std::string(ending)](
             const std::string& name, const std::string& text) {
    const std::string framed = comment + " " + name + ending + "\n" + text;
    sink->write(sink->ctx, framed.data(), framed.size());
  };
}

}  // namespace keirin::codegen
