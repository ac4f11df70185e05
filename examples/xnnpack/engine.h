// SPDX-License-Identifier: Apache-2.0
//
// XNNPACK, opened at run time: a table of the functions that are used, found by name. Any thread.
#pragma once

#include <xnnpack.h>

#include <memory>

#include "plugins/kit/plugin.h"
#include "threads.h"

namespace xnnpack_plugin {

#define XNNPACK_FUNCTIONS(F)                                                                                                     \
  F(xnn_initialize) F(xnn_create_subgraph) F(xnn_delete_subgraph) F(xnn_define_tensor_value) F(xnn_create_runtime_v2)            \
  F(xnn_setup_runtime) F(xnn_invoke_runtime) F(xnn_delete_runtime) F(xnn_define_convolution_2d) F(xnn_define_fully_connected)    \
  F(xnn_define_max_pooling_2d) F(xnn_define_average_pooling_2d) F(xnn_define_global_average_pooling_2d) F(xnn_define_softmax)    \
  F(xnn_define_static_reshape) F(xnn_define_add2) F(xnn_define_subtract) F(xnn_define_multiply2) F(xnn_define_divide)            \
  F(xnn_define_maximum2) F(xnn_define_minimum2) F(xnn_define_clamp) F(xnn_define_abs) F(xnn_define_negate) F(xnn_define_sigmoid) \
  F(xnn_define_square_root) F(xnn_define_floor) F(xnn_define_ceiling) F(xnn_define_bankers_rounding)

struct Engine {
#define DECLARE(name) decltype(&::name) name = nullptr;
  XNNPACK_FUNCTIONS(DECLARE)
#undef DECLARE
};

// Opened and initialised once per process, never closed. Throws kit::Error(unsupported) with the reason.
const Engine& engine();

// The host's threads as XNNPACK takes them; null where it computes on the caller's thread: in a process that compiles and does not run, and
// where somebody else brought this XNNPACK into the process, bound to a pool of theirs. It has to outlive a runtime that was given it.
std::unique_ptr<pthreadpool> host_threads();

// Throws what XNNPACK refused; `what` says what was tried.
void check(xnn_status status, const char* what);
krn_code code_of(xnn_status status) noexcept;
const char* text_of(xnn_status status) noexcept;

}  // namespace xnnpack_plugin
