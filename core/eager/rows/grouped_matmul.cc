// SPDX-License-Identifier: Apache-2.0
#include "core/eager/rows/grouped_matmul.h"

namespace keirin {
namespace {

// Multiply-adds of all rows with all groups that cost a device less than it takes to ask it where the groups end.
constexpr double kFewProducts = 1 << 30;

// Whether LibTorch has a kernel that reads the ends on the device. What it leaves in rows of no group is whatever was there.
bool has_kernel(const at::Tensor& x, const at::Tensor& weights) {
  constexpr int64_t kAligned = 8;  // elements of 16 bytes
  const bool rows = weights.stride(2) == 1 && weights.stride(1) % kAligned == 0;
  const bool columns = weights.stride(1) == 1 && weights.stride(2) % kAligned == 0;
  return !x.is_cpu() && x.scalar_type() == at::kBFloat16 && x.stride(1) == 1 && x.stride(0) % kAligned == 0 && (rows || columns) &&
         x.size(1) % kAligned == 0 && weights.size(2) % kAligned == 0 && x.numel() > 0 && weights.numel() > 0;
}

}  // namespace

at::Tensor grouped_matmul_of_all(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& ends) {
  const int64_t groups = weights.size(0), rows = x.size(0);
  if (groups == 0) return at::zeros({rows, weights.size(2)}, x.options());
  const at::Tensor group = at::arange(rows, ends.options()).unsqueeze(1).ge(ends).sum(1);  // as many ends as lie before it
  const at::Tensor all = at::bmm(x.unsqueeze(0).expand({groups, rows, x.size(1)}), weights);
  const at::Tensor index = group.clamp_max(groups - 1).view({1, rows, 1}).expand({1, rows, weights.size(2)});
  return all.gather(0, index).squeeze(0).masked_fill(group.ge(groups).unsqueeze(1), 0);
}

at::Tensor grouped_matmul(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& ends) {
  const double products = static_cast<double>(weights.numel()) * static_cast<double>(x.size(0));
  if (!x.is_cpu() && products <= kFewProducts) return grouped_matmul_of_all(x, weights, ends);
  if (has_kernel(x, weights)) {
    const at::Tensor grouped = at::_grouped_mm(x, weights, ends.to(at::kInt));
    const at::Tensor row = at::arange(x.size(0), ends.options()).unsqueeze(1);
    return grouped.masked_fill_(row.ge(ends.select(0, -1)), 0);
  }
  const at::Tensor known = ends.to(at::kCPU, at::kLong).contiguous();
  at::Tensor output = at::zeros({x.size(0), weights.size(2)}, x.options());
  int64_t begin = 0;
  for (int64_t group = 0; group < known.numel(); ++group) {
    const int64_t end = known.const_data_ptr<int64_t>()[group];
    if (end == begin) continue;
    at::Tensor rows = output.slice(0, begin, end);
    at::mm_out(rows, x.slice(0, begin, end), weights[group]);
    begin = end;
  }
  return output;
}

}  // namespace keirin
