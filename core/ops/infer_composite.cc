// SPDX-License-Identifier: Apache-2.0
//
// Shape rules of the COMPOSITE rows. Composites over channels keep a channels-last order, the others give row-major.
#include <algorithm>

#include "core/ops/infer_rules.h"
#include "core/ops/strides.h"

namespace keirin::rules {
namespace {

bool present(const Operands& operands, size_t i) { return i < operands.size() && operands[i] != nullptr; }

Type channels_like(const Type& like, Dims sizes) {
  Dims strides = strides_like(like, sizes);
  return Type{like.dtype, std::move(sizes), std::move(strides)};
}

Status same_dtype(const Op& op, const Operands& operands, size_t from = 1) {
  for (size_t i = from; i < operands.size(); ++i)
    KRN_RULE(operands[i] == nullptr || operands[i]->dtype == operands[0]->dtype, "operands differ in dtype");
  return {};
}

Status need_float(const Op& op, const Type& t) {
  KRN_RULE(is_float(t.dtype), "the row does not take " + std::string(dtype_name(t.dtype)));
  return {};
}

Result<Types> matmul(const Op& op, const Operands& operands) {
  const Type &a = *operands[0], &b = *operands[1];
  KRN_TRY(same_dtype(op, operands));
  int64_t r = a.rank();
  KRN_RULE(r >= 2 && b.rank() == r,
           "operands " + text(a.sizes) + " and " + text(b.sizes) + " differ in rank or are below 2");
  KRN_RULE(std::equal(a.sizes.begin(), a.sizes.end() - 2, b.sizes.begin()) && a.sizes[r - 1] == b.sizes[r - 2],
           "operands " + text(a.sizes) + " and " + text(b.sizes) + " do not multiply");
  Dims sizes = a.sizes;
  sizes[r - 1] = b.sizes[r - 1];
  return Types{row_major(a.dtype, std::move(sizes))};
}

Result<Types> linear(const Op& op, const Operands& operands) {
  const Type &x = *operands[0], &w = *operands[1];
  KRN_TRY(same_dtype(op, operands));
  KRN_RULE(x.rank() >= 1 && w.rank() == 2 && x.sizes.back() == w.sizes[1],
           "x " + text(x.sizes) + " does not fit weight " + text(w.sizes));
  KRN_RULE(!present(operands, 2) || operands[2]->sizes == Dims{w.sizes[0]}, "the bias does not fit the weight");
  Dims sizes = x.sizes;
  sizes.back() = w.sizes[0];
  return Types{row_major(x.dtype, std::move(sizes))};
}

Result<Types> grouped_matmul(const Op& op, const Operands& operands) {
  const Type &x = *operands[0], &w = *operands[1], &ends = *operands[2];
  KRN_TRY(need_float(op, x));
  KRN_RULE(w.dtype == x.dtype, "operands differ in dtype");
  KRN_RULE(x.rank() == 2 && w.rank() == 3 && x.sizes[1] == w.sizes[1],
           "x " + text(x.sizes) + " does not fit weights " + text(w.sizes));
  KRN_RULE(is_int(ends.dtype) && ends.sizes == Dims{w.sizes[0]}, "the ends of groups are not one integer for each of the weights");
  return Types{row_major(x.dtype, {x.sizes[0], w.sizes[2]})};
}

Result<Types> conv(const Op& op, const Operands& operands) {
  const Type &x = *operands[0], &w = *operands[1];
  KRN_TRY(need_float(op, x));
  KRN_TRY(same_dtype(op, operands));
  KRN_RULE(x.rank() >= 3 && w.rank() == x.rank(),
           "x " + text(x.sizes) + " and weight " + text(w.sizes) + " differ in rank or are below 3");
  const size_t n = x.sizes.size() - 2;
  const Dims &stride = op.ints(AttrKey::k_stride), &padding = op.ints(AttrKey::k_padding),
             &dilation = op.ints(AttrKey::k_dilation), &extra = op.ints(AttrKey::k_output_padding);
  bool transposed = op.b(AttrKey::k_transposed);
  int64_t groups = op.i(AttrKey::k_groups);
  KRN_RULE(stride.size() == n && padding.size() == n && dilation.size() == n && (!transposed || extra.size() == n),
           "stride, padding, dilation or output_padding do not name each spatial axis");
  KRN_RULE(groups >= 1 && w.sizes[0] % groups == 0,
           "groups " + std::to_string(groups) + " do not divide weight " + text(w.sizes));
  KRN_RULE(x.sizes[1] == (transposed ? w.sizes[0] : w.sizes[1] * groups),
           "x " + text(x.sizes) + " does not fit weight " + text(w.sizes));
  Dims sizes = x.sizes;
  sizes[1] = transposed ? w.sizes[1] * groups : w.sizes[0];
  KRN_RULE(!present(operands, 2) || operands[2]->sizes == Dims{sizes[1]}, "the bias does not fit the weight");
  for (size_t i = 0; i < n; ++i) {
    KRN_RULE(stride[i] >= 1 && dilation[i] >= 1 && padding[i] >= 0, "stride, padding or dilation is out of range");
    int64_t in = x.sizes[i + 2], span = dilation[i] * (w.sizes[i + 2] - 1) + 1;
    int64_t room = in + 2 * padding[i] - span;
    KRN_RULE(transposed || room >= 0, "the kernel is larger than the padded input");
    sizes[i + 2] = transposed ? (in - 1) * stride[i] - 2 * padding[i] + span + extra[i] : room / stride[i] + 1;
    KRN_RULE(sizes[i + 2] >= 0, "the result would have a negative size");
  }
  bool channels_last = suggests_channels_last(x) || suggests_channels_last(w);
  Type t = row_major(x.dtype, sizes);
  if (channels_last && n >= 2) t.strides = channels_last_strides(sizes);
  return Types{t};
}

// As torch.nn.grad.conv2d_weight. Laid out as conv's weight would be for LibTorch's libraries.
Result<Types> conv_grad_weight(const Op& op, const Operands& operands) {
  const Type &x = *operands[0], &grad = *operands[1];
  KRN_TRY(need_float(op, x));
  KRN_TRY(same_dtype(op, operands));
  KRN_RULE(x.rank() >= 3 && grad.rank() == x.rank() && grad.sizes[0] == x.sizes[0],
           "x " + text(x.sizes) + " and gradient " + text(grad.sizes) + " differ in rank or batch, or are below 3");
  const size_t n = x.sizes.size() - 2;
  const Dims &kernel = op.ints(AttrKey::k_sizes), &stride = op.ints(AttrKey::k_stride), &padding = op.ints(AttrKey::k_padding),
             &dilation = op.ints(AttrKey::k_dilation);
  const int64_t groups = op.i(AttrKey::k_groups);
  KRN_RULE(kernel.size() == n && stride.size() == n && padding.size() == n && dilation.size() == n,
           "sizes, stride, padding or dilation do not name each spatial axis");
  KRN_RULE(groups >= 1 && x.sizes[1] % groups == 0 && grad.sizes[1] % groups == 0,
           "groups " + std::to_string(groups) + " do not divide the channels of " + text(x.sizes) + " and " + text(grad.sizes));
  Dims sizes{grad.sizes[1], x.sizes[1] / groups};
  for (size_t i = 0; i < n; ++i) {
    KRN_RULE(stride[i] >= 1 && dilation[i] >= 1 && padding[i] >= 0 && kernel[i] >= 1, "sizes, stride, padding or dilation is out of range");
    const int64_t room = x.sizes[i + 2] + 2 * padding[i] - (dilation[i] * (kernel[i] - 1) + 1);
    KRN_RULE(room >= 0 && grad.sizes[i + 2] == room / stride[i] + 1,
             "gradient " + text(grad.sizes) + " is not of a convolution of " + text(x.sizes) + " by a kernel " + text(kernel));
    sizes.push_back(kernel[i]);
  }
  Type t = row_major(x.dtype, sizes);
  if (n >= 2 && (suggests_channels_last(x) || suggests_channels_last(grad))) t.strides = channels_last_strides(sizes);
  return Types{t};
}

Result<Types> attention(const Op& op, const Operands& operands) {
  const Type &q = *operands[0], &k = *operands[1], &v = *operands[2];
  KRN_TRY(need_float(op, q));
  KRN_RULE(k.dtype == q.dtype && v.dtype == q.dtype, "operands differ in dtype");
  int64_t r = q.rank();
  KRN_RULE(r >= 3 && k.rank() == r && v.rank() == r, "q, k and v differ in rank or are below 3");
  KRN_RULE(q.sizes[r - 1] == k.sizes[r - 1] && k.sizes[r - 2] == v.sizes[r - 2], "q, k and v do not fit");
  for (int64_t i = 0; i < r - 2; ++i) {
    bool heads = i == r - 3 && op.b(AttrKey::k_gqa);
    KRN_RULE(k.sizes[i] == v.sizes[i], "k and v differ in their batch axes");
    KRN_RULE(heads ? k.sizes[i] > 0 && q.sizes[i] % k.sizes[i] == 0 : q.sizes[i] == k.sizes[i],
             "q and k differ in their batch axes");
  }
  if (present(operands, 3)) {
    const Type& mask = *operands[3];
    Dims want(q.sizes.begin(), q.sizes.end() - 1);
    want.push_back(k.sizes[r - 2]);
    KRN_RULE(mask.sizes == want, "mask " + text(mask.sizes) + " is not " + text(want));
    KRN_RULE(mask.dtype == DType::k_bool || mask.dtype == q.dtype, "the mask is neither bool nor of q's dtype");
  }
  Dims sizes = q.sizes;
  sizes[r - 1] = v.sizes[r - 1];
  Type t = row_major(q.dtype, sizes);
  // LibTorch's fused kernels lay the result out like the query: [B, L, H, D] in memory if the heads were transposed.
  if (sizes == q.sizes) t.strides = preserved_strides(q);
  return Types{t};
}

Result<Types> rnn(const Op& op, const Operands& operands) {
  const bool is_lstm = op.code == OpCode::k_lstm;
  const size_t first_weight = is_lstm ? 3 : 2;
  const int64_t gates = is_lstm ? 4 : 3;
  for (const Type* t : operands) KRN_RULE(t != nullptr, "an operand is absent");
  const Type &x = *operands[0], &h = *operands[1];
  KRN_TRY(need_float(op, x));
  KRN_TRY(same_dtype(op, operands));
  KRN_RULE(x.rank() == 3 && h.rank() == 3, "x or h0 is not 3-d");
  int64_t layers = op.i(AttrKey::k_layers), dirs = op.b(AttrKey::k_bidirectional) ? 2 : 1;
  bool batch_first = op.b(AttrKey::k_batch_first);
  int64_t batch = x.sizes[batch_first ? 0 : 1], steps = x.sizes[batch_first ? 1 : 0], hidden = h.sizes[2];
  KRN_RULE(layers >= 1 && h.sizes[0] == layers * dirs && h.sizes[1] == batch,
           "h0 " + text(h.sizes) + " does not fit x " + text(x.sizes));
  KRN_RULE(!is_lstm || operands[2]->sizes == h.sizes, "c0 and h0 differ");
  const bool biases = op.b(AttrKey::k_has_biases);
  const size_t per = biases ? 4 : 2;
  KRN_RULE(operands.size() == first_weight + per * layers * dirs,
           std::to_string(operands.size()) + " operands do not fit the layers");
  for (int64_t i = 0; i < layers * dirs; ++i) {
    int64_t in = i < dirs ? x.sizes[2] : hidden * dirs;
    const size_t w = first_weight + per * i;
    bool fits =
        operands[w]->sizes == Dims{gates * hidden, in} && operands[w + 1]->sizes == Dims{gates * hidden, hidden};
    if (biases)
      fits = fits && operands[w + 2]->sizes == Dims{gates * hidden} && operands[w + 3]->sizes == Dims{gates * hidden};
    KRN_RULE(fits, "weights of layer " + std::to_string(i / dirs) + " do not fit");
  }
  Type out = row_major(x.dtype, {steps, batch, hidden * dirs});
  if (batch_first) {
    std::swap(out.sizes[0], out.sizes[1]);
    std::swap(out.strides[0], out.strides[1]);
  }
  Types types{out, row_major(x.dtype, h.sizes)};
  if (is_lstm) types.push_back(types[1]);
  return types;
}

int64_t pooled_size(int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil_mode) {
  int64_t room = in + 2 * padding - dilation * (kernel - 1) - 1;
  if (room < 0 && !ceil_mode) return 0;
  int64_t out = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (out - 1) * stride >= in + padding) --out;  // the last window must start inside the input
  return out;
}

Result<Types> pool(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  KRN_TRY(need_float(op, x));
  const Dims &kernel = op.ints(AttrKey::k_kernel), &stride = op.ints(AttrKey::k_stride),
             &padding = op.ints(AttrKey::k_padding);
  const size_t n = kernel.size();
  Dims dilation = op.code == OpCode::k_max_pool ? op.ints(AttrKey::k_dilation) : Dims(n, 1);
  KRN_RULE(n >= 1 && x.sizes.size() == n + 2 && stride.size() == n && padding.size() == n && dilation.size() == n,
           "kernel, stride, padding or dilation do not name each spatial axis of " + text(x.sizes));
  Dims sizes = x.sizes;
  for (size_t i = 0; i < n; ++i) {
    KRN_RULE(kernel[i] >= 1 && stride[i] >= 1 && dilation[i] >= 1 && padding[i] >= 0 &&
                 2 * padding[i] <= dilation[i] * (kernel[i] - 1) + 1,
             "kernel, stride, padding or dilation is out of range");
    sizes[i + 2] =
        pooled_size(x.sizes[i + 2], kernel[i], stride[i], padding[i], dilation[i], op.b(AttrKey::k_ceil_mode));
    KRN_RULE(sizes[i + 2] >= 1, "the window is larger than the padded input");
  }
  return Types{channels_like(x, std::move(sizes))};
}

// adaptive_avg_pool, upsample_*: the attribute `sizes` replaces the spatial axes.
Result<Types> resize(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  KRN_TRY(need_float(op, x));
  const Dims& spatial = op.ints(AttrKey::k_sizes);
  const Dims& scales = op.ints(AttrKey::k_scales);
  KRN_RULE(!spatial.empty() && x.sizes.size() == spatial.size() + 2,
           "sizes " + text(spatial) + " do not name each spatial axis of " + text(x.sizes));
  KRN_RULE(scales.empty() || scales.size() == spatial.size(), "scales do not name each spatial axis");
  KRN_RULE(op.code != OpCode::k_upsample_bilinear || spatial.size() == 2, "bilinear needs two spatial axes");
  Dims sizes{x.sizes[0], x.sizes[1]};
  for (size_t i = 0; i < spatial.size(); ++i) {
    KRN_RULE(spatial[i] >= 1 && x.sizes[i + 2] >= 1, "a spatial size is below 1");
    sizes.push_back(spatial[i]);
  }
  return Types{channels_like(x, std::move(sizes))};
}

Result<Types> embedding_bag(const Op& op, const Operands& operands) {
  const Type &w = *operands[0], &index = *operands[1];
  KRN_TRY(need_float(op, w));
  const std::string& mode = op.s(AttrKey::k_mode);
  KRN_RULE(mode == "sum" || mode == "mean" || mode == "max", "mode is \"" + mode + "\"");
  KRN_RULE(w.rank() == 2, "the weight is not 2-d");
  KRN_RULE(is_int(index.dtype), "the indices are not integers");
  int64_t bags = 0;
  if (present(operands, 2)) {
    const Type& offsets = *operands[2];
    KRN_RULE(index.rank() == 1 && offsets.rank() == 1 && is_int(offsets.dtype),
             "indices and offsets are not 1-d integers");
    bags = offsets.sizes[0] - (op.b(AttrKey::k_include_last_offset) ? 1 : 0);
    KRN_RULE(bags >= 0, "there are no offsets");
  } else {
    KRN_RULE(index.rank() == 2, "without offsets the indices are 2-d");
    bags = index.sizes[0];
  }
  return Types{row_major(w.dtype, {bags, w.sizes[1]})};
}

Result<Types> batch_norm(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  KRN_TRY(need_float(op, x));
  KRN_RULE(x.rank() >= 2, "x is below 2-d");
  KRN_RULE(present(operands, 3) && present(operands, 4), "mean or var is absent");
  for (size_t i = 1; i < 5; ++i)
    KRN_RULE(operands[i] == nullptr || (operands[i]->sizes == Dims{x.sizes[1]} && is_float(operands[i]->dtype)),
             "operand " + std::to_string(i) + " does not fit the channels of x " + text(x.sizes));
  return Types{channels_like(x, x.sizes)};
}

Result<Types> trailing_norm(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  KRN_TRY(need_float(op, x));
  int64_t n = op.i(AttrKey::k_rank);
  KRN_RULE(n >= 1 && n <= x.rank(), "rank " + std::to_string(n) + " of x " + text(x.sizes));
  Dims tail(x.sizes.end() - n, x.sizes.end());
  for (size_t i = 1; i < operands.size(); ++i)
    KRN_RULE(operands[i] == nullptr || (operands[i]->sizes == tail && is_float(operands[i]->dtype)),
             "weight or bias is not " + text(tail));
  return Types{row_major(x.dtype, x.sizes)};
}

Result<Types> group_norm(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  KRN_TRY(need_float(op, x));
  int64_t groups = op.i(AttrKey::k_groups);
  KRN_RULE(x.rank() >= 2 && groups >= 1 && x.sizes[1] % groups == 0,
           "groups " + std::to_string(groups) + " do not divide the channels of " + text(x.sizes));
  for (size_t i = 1; i < operands.size(); ++i)
    KRN_RULE(operands[i] == nullptr || (operands[i]->sizes == Dims{x.sizes[1]} && is_float(operands[i]->dtype)),
             "weight or bias does not fit the channels");
  return Types{channels_like(x, x.sizes)};
}

Result<Types> softmax(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  KRN_TRY(need_float(op, x));
  int64_t dim = op.i(AttrKey::k_dim);
  KRN_RULE(dim >= 0 && dim < x.rank(), "dim " + std::to_string(dim) + " is not an axis of " + text(x.sizes));
  return Types{row_major(x.dtype, x.sizes)};
}

Result<Types> statistic(const Op& op, const Operands& operands) {
  KRN_TRY(need_float(op, *operands[0]));
  KRN_TRY_LET(Dims sizes, reduced_sizes(op, operands[0]->sizes));
  return Types{row_major(operands[0]->dtype, std::move(sizes))};
}

}  // namespace

Result<Types> composite(const Op& op, const OpRow& row, const Operands& operands) {
  // arity_min counts the operands that must be listed; of those batch_norm's weight and bias may still be absent.
  for (int i = 0; i < row.arity_min; ++i)
    KRN_RULE(operands[i] != nullptr || (op.code == OpCode::k_batch_norm && (i == 1 || i == 2)),
             "operand " + std::to_string(i) + " is absent");
  switch (op.code) {
    case OpCode::k_matmul:
      return matmul(op, operands);
    case OpCode::k_linear:
      return linear(op, operands);
    case OpCode::k_grouped_matmul:
      return grouped_matmul(op, operands);
    case OpCode::k_conv:
      return conv(op, operands);
    case OpCode::k_conv_grad_weight:
      return conv_grad_weight(op, operands);
    case OpCode::k_attention:
      return attention(op, operands);
    case OpCode::k_lstm:
    case OpCode::k_gru:
      return rnn(op, operands);
    case OpCode::k_max_pool:
    case OpCode::k_avg_pool:
      return pool(op, operands);
    case OpCode::k_adaptive_avg_pool:
    case OpCode::k_upsample_nearest:
    case OpCode::k_upsample_bilinear:
      return resize(op, operands);
    case OpCode::k_embedding_bag:
      return embedding_bag(op, operands);
    case OpCode::k_batch_norm:
      return batch_norm(op, operands);
    case OpCode::k_layer_norm:
    case OpCode::k_rms_norm:
      return trailing_norm(op, operands);
    case OpCode::k_group_norm:
      return group_norm(op, operands);
    case OpCode::k_softmax:
    case OpCode::k_log_softmax:
      return softmax(op, operands);
    case OpCode::k_mean:
    case OpCode::k_var:
      return statistic(op, operands);
    default:
      return malformed(op, "the composite has no shape rule");
  }
}

}  // namespace keirin::rules
