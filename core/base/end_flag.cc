// SPDX-License-Identifier: Apache-2.0
#include "core/base/end_flag.h"

namespace keirin {
namespace {

thread_local std::atomic<bool>* t_flag = nullptr;

}  // namespace

void end_when(std::atomic<bool>* flag) { t_flag = flag; }
std::atomic<bool>* end_flag() { return t_flag; }
bool is_to_end() { return t_flag != nullptr && t_flag->load(std::memory_order_relaxed); }

}  // namespace keirin
