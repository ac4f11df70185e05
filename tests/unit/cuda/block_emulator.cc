// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/cuda/block_emulator.h"

namespace keirin::test {

HostModule::HostModule(const std::string& text, std::string& error) {
  if (const std::vector<char> code = compile_for_host(text, error); !code.empty()) code_ = std::make_unique<HostCode>(code, error);
}

std::string HostModule::launch(const std::string& symbol, int64_t blocks, int threads, const void* sizes, const void* pointers,
                               int cluster) {
  const auto function = reinterpret_cast<void (*)(const void*, const void*)>(code_->symbol(symbol));
  if (!function) return "no symbol " + symbol;
  const Grid grid{
      .blocks = blocks, .threads = threads, .wave = code_->wave(), .together = cluster, .one_barrier = true, .shared = code_->shared()};
  return run_grid(grid, code_->host(), [&] { function(sizes, pointers); });
}

const codegen::Dialect& host_dialect(int wave) {
  static const std::string text = "#define KRN_WAVE 64\n" + std::string(codegen::kHostDialect.prelude);
  static const codegen::Dialect wide = {"host", 64, text};
  return wave == 64 ? wide : codegen::kHostDialect;
}

std::vector<char> pack_sizes(const codegen::Kernel& kernel, const codegen::Schedule& schedule) {
  std::vector<int64_t> all = codegen::size_arguments(kernel);
  all.insert(all.end(), {schedule.splits, schedule.split_length, 0});
  std::vector<char> out;
  for (int64_t v : all) {
    const auto narrow = static_cast<int32_t>(v);
    const char* bytes = schedule.wide ? reinterpret_cast<const char*>(&v) : reinterpret_cast<const char*>(&narrow);
    out.insert(out.end(), bytes, bytes + (schedule.wide ? 8 : 4));
  }
  return out;
}

}  // namespace keirin::test
