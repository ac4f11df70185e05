// SPDX-License-Identifier: Apache-2.0
//
// Rows that are sorted by group, each multiplied by its group's weights, as LibTorch computes it: what transformers' operator and the
// table's row mean. Any floating dtype, because the referee asks in fp64.
#pragma once

#include <ATen/ATen.h>

namespace keirin {

// x [T, K], weights [E, K, N], ends [E]: group e is rows from ends[e - 1] on, up to ends[e]; rows of no group are zero. A host is asked
// where groups end; a device only where all products of all rows would cost more than the question, and LibTorch has no kernel. Throws what
// ATen throws. Any thread.
at::Tensor grouped_matmul(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& ends);

// The same by all products of all rows, of which each row keeps its own: nothing is read on the host, and launches can be recorded. `ends`
// ascend.
at::Tensor grouped_matmul_of_all(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& ends);

}  // namespace keirin
