// SPDX-License-Identifier: Apache-2.0
#include "plugins/processor/machine.h"

#include <unistd.h>

#include <algorithm>

namespace keirin::processor {
namespace {

constexpr int kMostLanes = 16;  // longer vectors are used in part: the code generator's rows are cut for 512 bits

int usable_cores() {
  const long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? static_cast<int>(n) : 1;
}

codegen::TargetInfo figures(const Level& level, int lanes) {
  codegen::TargetInfo info;
  info.vector_bytes = 4 * lanes;
  info.num_threads = usable_cores();
  info.bytes_per_s = level.bytes_per_s * std::min(info.num_threads, 4);
  info.flops_per_s = level.gflops * 1e9 * info.num_threads;
  info.special_per_s = level.special * info.num_threads;
  info.launch_ns = 2000;
  info.max_score_bytes = 8 << 20;
  info.updates_rows = true;
  const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (l2 > 0) info.cache_bytes = l2;
  return info;
}

const Level* choose(const Isa& isa, const Found& found, std::string_view wanted, std::string& why_not) {
  std::string names;
  for (const Level& level : isa.levels) {
    if (!wanted.empty() && wanted != level.name) {
      names += (names.empty() ? "" : ", ") + std::string(level.name);
      continue;
    }
    if ((found.features & level.needs) == level.needs) return &level;
    if (!wanted.empty()) {
      why_not = "this processor, or the operating system, lacks what level " + std::string(wanted) + " needs";
      return nullptr;
    }
  }
  why_not = wanted.empty() ? isa.none : "no level is called \"" + std::string(wanted) + "\"; there are " + names;
  return nullptr;
}

}  // namespace

std::unique_ptr<Machine> make_machine(const Isa& isa, const Found& found, std::string_view wanted, std::string& why_not) {
  const Level* level = choose(isa, found, wanted, why_not);
  if (!level) return nullptr;
  auto m = std::make_unique<Machine>();
  m->name = found.name;
  m->arch = level->name;
  m->features = wanted.empty() ? found.features : level->needs;
  // A narrower level still has the machine's vector length, which its artifacts depend on.
  m->fingerprint = wanted.empty() || (level->needs & isa.vector_lengths) ? found.fingerprint : "none";
  m->native_bf16 = isa.bf16 && (m->features & isa.bf16) == isa.bf16;
  m->memory_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  int lanes = level->lanes, scale = 0;
  codegen::native::Masks masks = level->masks;
  if (level->needs & isa.vector_lengths) {
    scale = found.vector_bytes / 16;
    lanes = std::clamp(found.vector_bytes / 4, lanes, kMostLanes);
    // LLVM takes SVE for vectors of a known length from 256 bits on, and NEON, which has no masks, below.
    if (scale < 2) masks = codegen::native::Masks::kNone;
  }
  m->code = {isa.triple, level->cpu, level->features, lanes, masks, scale, true};
  m->info = figures(*level, lanes);
  if (masks == codegen::native::Masks::kNone) m->info.short_inner = lanes;
  return m;
}

}  // namespace keirin::processor
