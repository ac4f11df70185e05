// SPDX-License-Identifier: Apache-2.0
//
// COMPOSITE rows, each through the ATen operator that it was captured from.
#include <algorithm>
#include <bit>

#include "core/eager/at_tensor.h"
#include "core/eager/rows/grouped_matmul.h"
#include "core/eager/rows/row_calls.h"

namespace keirin {
namespace {

using at::Tensor;

std::optional<Tensor> optional(RowIn in, size_t i) {
  if (i >= in.size() || !in[i]->defined()) return std::nullopt;
  return *in[i];
}

RowRun make_conv(const RowSite& site) {
  const Op& op = site.op;
  return [stride = op.ints(AttrKey::k_stride), padding = op.ints(AttrKey::k_padding),
          dilation = op.ints(AttrKey::k_dilation), output_padding = op.ints(AttrKey::k_output_padding),
          groups = op.i(AttrKey::k_groups), transposed = op.b(AttrKey::k_transposed), ieee = op.b(AttrKey::k_ieee)](RowIn in, RowOut out) {
    const Dims none(stride.size(), 0), &extra = output_padding.empty() ? none : output_padding;
    if (!ieee) {
      out[0] = at::convolution(*in[0], *in[1], optional(in, 2), stride, padding, dilation, transposed, extra, groups);
      return;
    }
    const at::Context& settings = at::globalContext();
    const bool deterministic = settings.deterministicCuDNN() || settings.deterministicAlgorithms();
    out[0] = at::_convolution(*in[0], *in[1], optional(in, 2), stride, padding, dilation, transposed, extra, groups,
                              settings.benchmarkCuDNN(), deterministic, settings.userEnabledCuDNN(), /*allow_tf32=*/false);
  };
}

RowRun make_conv_grad_weight(const RowSite& site) {
  const Op& op = site.op;
  return [stride = op.ints(AttrKey::k_stride), padding = op.ints(AttrKey::k_padding), dilation = op.ints(AttrKey::k_dilation),
          kernel = op.ints(AttrKey::k_sizes), groups = op.i(AttrKey::k_groups)](RowIn in, RowOut out) {
    const Tensor &x = *in[0], &grad = *in[1];
    Dims sizes{grad.size(1), x.size(1) / groups};
    sizes.insert(sizes.end(), kernel.begin(), kernel.end());
    // Only its form is looked at.
    const Tensor weight = at::empty(sizes, x.options());
    out[0] = std::get<1>(at::convolution_backward(grad, x, weight, at::OptionalIntArrayRef(), stride, padding, dilation, false,
                                                  Dims(stride.size(), 0), groups, {false, true, false}));
  };
}

RowRun make_attention(const RowSite& site) {
  const AttrValue* scale = site.op.find(AttrKey::k_scale);
  const std::optional<double> factor = scale == nullptr ? std::nullopt : std::optional(std::get<double>(*scale));
  return [factor, causal = site.op.b(AttrKey::k_causal), gqa = site.op.b(AttrKey::k_gqa)](RowIn in, RowOut out) {
    // Without heads LibTorch's fused kernel ends the process: it divides by their number.
    std::vector<int64_t> sizes = in[0]->sizes().vec();
    sizes.back() = in[2]->size(-1);
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) out[0] = at::empty(sizes, in[0]->options());
    else out[0] = at::scaled_dot_product_attention(*in[0], *in[1], *in[2], optional(in, 3), 0.0, causal, factor, gqa);
  };
}

RowRun make_recurrent(const RowSite& site) {
  const Op& op = site.op;
  return [layers = op.i(AttrKey::k_layers), both = op.b(AttrKey::k_bidirectional),
          batch_first = op.b(AttrKey::k_batch_first), biases = op.b(AttrKey::k_has_biases),
          is_lstm = op.code == OpCode::k_lstm](RowIn in, RowOut out) {
    std::vector<Tensor> weights;
    for (size_t i = is_lstm ? 3 : 2; i < in.size(); ++i) weights.push_back(*in[i]);
    if (is_lstm) {
      const std::vector<Tensor> state = {in[1]->contiguous(), in[2]->contiguous()};  // an expanded zero is not what it takes
      std::tie(out[0], out[1], out[2]) =
          at::lstm(*in[0], state, weights, biases, layers, 0.0, false, both, batch_first);
    } else {
      std::tie(out[0], out[1]) = at::gru(*in[0], in[1]->contiguous(), weights, biases, layers, 0.0, false, both, batch_first);
    }
  };
}

RowRun make_max_pool(const RowSite& site) {
  const Op& op = site.op;
  const auto run = [&](auto pool) -> RowRun {
    return [pool, kernel = op.ints(AttrKey::k_kernel), stride = op.ints(AttrKey::k_stride),
            padding = op.ints(AttrKey::k_padding), dilation = op.ints(AttrKey::k_dilation),
            ceil = op.b(AttrKey::k_ceil_mode)](RowIn in, RowOut out) {
      out[0] = pool(*in[0], kernel, stride, padding, dilation, ceil);
    };
  };
  switch (op.ints(AttrKey::k_kernel).size()) {
    case 1:
      return run([](auto&&... args) { return at::max_pool1d(args...); });
    case 2:
      return run([](auto&&... args) { return at::max_pool2d(args...); });
    case 3:
      return run([](auto&&... args) { return at::max_pool3d(args...); });
    default:
      return nullptr;
  }
}

RowRun make_avg_pool(const RowSite& site) {
  const Op& op = site.op;
  const int64_t divisor = op.i(AttrKey::k_divisor);
  const std::optional<int64_t> own = divisor == 0 ? std::nullopt : std::optional(divisor);
  const auto run = [&](auto pool) -> RowRun {
    return [pool, own, kernel = op.ints(AttrKey::k_kernel), stride = op.ints(AttrKey::k_stride),
            padding = op.ints(AttrKey::k_padding), ceil = op.b(AttrKey::k_ceil_mode),
            count = op.b(AttrKey::k_count_include_pad)](RowIn in, RowOut out) {
      out[0] = pool(*in[0], kernel, stride, padding, ceil, count, own);
    };
  };
  switch (op.ints(AttrKey::k_kernel).size()) {
    case 1:
      return run([](const Tensor& x, const Dims& k, const Dims& s, const Dims& p, bool ceil, bool count,
                    std::optional<int64_t>) { return at::avg_pool1d(x, k, s, p, ceil, count); });
    case 2:
      return run([](auto&&... args) { return at::avg_pool2d(args...); });
    case 3:
      return run([](auto&&... args) { return at::avg_pool3d(args...); });
    default:
      return nullptr;
  }
}

RowRun make_adaptive_pool(const RowSite& site) {
  const Dims sizes = site.op.ints(AttrKey::k_sizes);
  switch (sizes.size()) {
    case 1:
      return [sizes](RowIn in, RowOut out) { out[0] = at::adaptive_avg_pool1d(*in[0], sizes); };
    case 2:
      return [sizes](RowIn in, RowOut out) { out[0] = at::adaptive_avg_pool2d(*in[0], sizes); };
    case 3:
      return [sizes](RowIn in, RowOut out) { out[0] = at::adaptive_avg_pool3d(*in[0], sizes); };
    default:
      return nullptr;
  }
}

RowRun make_upsample(const RowSite& site) {
  const Dims sizes = site.op.ints(AttrKey::k_sizes);
  std::vector<std::optional<double>> scales(sizes.size());
  const Dims& bits = site.op.ints(AttrKey::k_scales);
  for (size_t i = 0; i < bits.size() && i < scales.size(); ++i) scales[i] = std::bit_cast<double>(bits[i]);
  if (site.op.code == OpCode::k_upsample_bilinear) {
    return [=, corners = site.op.b(AttrKey::k_align_corners)](RowIn in, RowOut out) {
      out[0] = at::upsample_bilinear2d(*in[0], sizes, corners, scales[0], scales[1]);
    };
  }
  switch (sizes.size()) {
    case 1:
      return [=](RowIn in, RowOut out) { out[0] = at::upsample_nearest1d(*in[0], sizes, scales[0]); };
    case 2:
      return [=](RowIn in, RowOut out) { out[0] = at::upsample_nearest2d(*in[0], sizes, scales[0], scales[1]); };
    case 3:
      return [=](RowIn in, RowOut out) {
        out[0] = at::upsample_nearest3d(*in[0], sizes, scales[0], scales[1], scales[2]);
      };
    default:
      return nullptr;
  }
}

RowRun make_embedding_bag(const RowSite& site) {
  const std::string mode = site.op.s(AttrKey::k_mode);
  const int64_t number = mode == "sum" ? 0 : mode == "mean" ? 1 : 2;
  return [number, last = site.op.b(AttrKey::k_include_last_offset)](RowIn in, RowOut out) {
    Tensor indices = *in[1];
    Tensor offsets = in.size() > 2 ? *in[2] : Tensor();
    if (!offsets.defined()) {  // one bag per row
      offsets = at::arange(indices.size(0), indices.options()).mul(indices.size(1));
      indices = indices.reshape(-1);
    }
    out[0] = std::get<0>(at::embedding_bag(*in[0], indices, offsets, false, number, false, {}, last));
  };
}

RowRun make_norm(const RowSite& site) {
  const Op& op = site.op;
  const double eps = op.d(AttrKey::k_eps);
  const Dims& sizes = site.graph.type(op.operands[0]).sizes;
  const auto rank = static_cast<std::ptrdiff_t>(op.i(AttrKey::k_rank));
  switch (op.code) {
    case OpCode::k_batch_norm:
      return [eps](RowIn in, RowOut out) {
        out[0] = at::batch_norm(*in[0], optional(in, 1), optional(in, 2), optional(in, 3), optional(in, 4), false, 0.1,
                                eps, true);
      };
    case OpCode::k_layer_norm:
      return [eps, shape = Dims(sizes.end() - rank, sizes.end())](RowIn in, RowOut out) {
        out[0] = at::layer_norm(*in[0], shape, optional(in, 1), optional(in, 2), eps);
      };
    case OpCode::k_rms_norm:
      return [eps, shape = Dims(sizes.end() - rank, sizes.end())](RowIn in, RowOut out) {
        out[0] = at::rms_norm(*in[0], shape, optional(in, 1), eps);
      };
    case OpCode::k_group_norm:
      return [eps, groups = op.i(AttrKey::k_groups)](RowIn in, RowOut out) {
        out[0] = at::group_norm(*in[0], groups, optional(in, 1), optional(in, 2), eps);
      };
    default:
      return nullptr;
  }
}

RowRun make_statistic(const RowSite& site) {
  const Op& op = site.op;
  const Dims dims = op.ints(AttrKey::k_dims);
  const bool keep = op.b(AttrKey::k_keepdim);
  const at::ScalarType dtype = site.dtype();
  if (op.code == OpCode::k_var) {
    const at::Scalar correction(op.d(AttrKey::k_correction));
    return [=](RowIn in, RowOut out) { out[0] = at::var(*in[0], at::OptionalIntArrayRef(dims), correction, keep); };
  }
  if (dims.empty()) return [dtype](RowIn in, RowOut out) { out[0] = in[0]->to(dtype); };  // ATen reads it as all axes
  return [=](RowIn in, RowOut out) { out[0] = at::mean(*in[0], at::OptionalIntArrayRef(dims), keep, dtype); };
}

}  // namespace

RowRun make_composite_run(const RowSite& site) {
  const int64_t dim = site.op.i(AttrKey::k_dim);
  switch (site.op.code) {
    case OpCode::k_matmul:
      return [](RowIn in, RowOut out) { out[0] = at::matmul(*in[0], *in[1]); };
    case OpCode::k_linear:
      return [](RowIn in, RowOut out) { out[0] = at::linear(*in[0], *in[1], optional(in, 2)); };
    case OpCode::k_grouped_matmul:
      return [](RowIn in, RowOut out) { out[0] = grouped_matmul(*in[0], *in[1], *in[2]); };
    case OpCode::k_conv:
      return make_conv(site);
    case OpCode::k_conv_grad_weight:
      return make_conv_grad_weight(site);
    case OpCode::k_attention:
      return make_attention(site);
    case OpCode::k_lstm:
    case OpCode::k_gru:
      return make_recurrent(site);
    case OpCode::k_max_pool:
      return make_max_pool(site);
    case OpCode::k_avg_pool:
      return make_avg_pool(site);
    case OpCode::k_adaptive_avg_pool:
      return make_adaptive_pool(site);
    case OpCode::k_upsample_nearest:
    case OpCode::k_upsample_bilinear:
      return make_upsample(site);
    case OpCode::k_embedding_bag:
      return make_embedding_bag(site);
    case OpCode::k_softmax:
      return [dim](RowIn in, RowOut out) { out[0] = at::softmax(*in[0], dim); };
    case OpCode::k_log_softmax:
      return [dim](RowIn in, RowOut out) { out[0] = at::log_softmax(*in[0], dim); };
    case OpCode::k_mean:
    case OpCode::k_var:
      return make_statistic(site);
    default:
      return make_norm(site);
  }
}

}  // namespace keirin
