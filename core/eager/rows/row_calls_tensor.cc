// SPDX-License-Identifier: Apache-2.0
//
// REDUCE, MOVE and FACTORY rows. Moves that are views in ATen stay views: nothing writes in place, so nobody can tell.
#include "core/eager/at_tensor.h"
#include "core/eager/rows/row_calls.h"

namespace keirin {
namespace {

using at::Tensor;

std::optional<at::Scalar> fill_value(const Op& op, DType dtype) {
  switch (dtype_class(dtype)) {
    case DTypeClass::f:
      return at::Scalar(op.d(AttrKey::k_value_d));
    case DTypeClass::i:
      return at::Scalar(op.i(AttrKey::k_value_i));
    case DTypeClass::b:
      return at::Scalar(op.i(AttrKey::k_value_i) != 0);
    case DTypeClass::x:
      break;
  }
  return std::nullopt;
}

Tensor as_index(const Tensor& index) { return index.to(at::kLong); }

RowRun make_reduce(const RowSite& site) {
  const Dims dims = site.op.ints(AttrKey::k_dims);
  const bool keep = site.op.b(AttrKey::k_keepdim);
  const at::ScalarType dtype = site.dtype();
  if (dims.empty()) {  // ATen reads an empty list as all axes
    switch (site.op.code) {
      case OpCode::k_argmax:
      case OpCode::k_argmin:
        return [](RowIn in, RowOut out) { out[0] = at::zeros_like(*in[0], at::kLong); };
      case OpCode::k_sum:
      case OpCode::k_prod:
      case OpCode::k_amax:
      case OpCode::k_amin:
      case OpCode::k_any:
      case OpCode::k_all:
        return [dtype](RowIn in, RowOut out) { out[0] = in[0]->to(dtype); };
      default:
        return nullptr;
    }
  }
  switch (site.op.code) {
    case OpCode::k_sum:
      return [=](RowIn in, RowOut out) { out[0] = at::sum(*in[0], dims, keep, dtype); };
    case OpCode::k_amax:
      return [=](RowIn in, RowOut out) { out[0] = at::amax(*in[0], dims, keep); };
    case OpCode::k_amin:
      return [=](RowIn in, RowOut out) { out[0] = at::amin(*in[0], dims, keep); };
    case OpCode::k_any:
      return [=](RowIn in, RowOut out) { out[0] = at::any(*in[0], at::OptionalIntArrayRef(dims), keep); };
    case OpCode::k_all:
      return [=](RowIn in, RowOut out) { out[0] = at::all(*in[0], at::OptionalIntArrayRef(dims), keep); };
    case OpCode::k_argmax:
      return [=](RowIn in, RowOut out) { out[0] = at::argmax(*in[0], dims[0], keep); };
    case OpCode::k_argmin:
      return [=](RowIn in, RowOut out) { out[0] = at::argmin(*in[0], dims[0], keep); };
    case OpCode::k_prod:
      return [=](RowIn in, RowOut out) {
        Tensor x = *in[0];
        for (size_t i = dims.size(); i-- > 0;) x = at::prod(x, dims[i], keep, dtype);
        out[0] = x;
      };
    default:
      return nullptr;
  }
}

RowRun make_pad(const RowSite& site) {
  const Dims& low = site.op.ints(AttrKey::k_low);
  const Dims& high = site.op.ints(AttrKey::k_high);
  std::vector<int64_t> pairs;  // the last axis first
  for (size_t i = low.size(); i-- > 0;) {
    pairs.push_back(low[i]);
    pairs.push_back(high[i]);
  }
  const auto value = fill_value(site.op, site.results[0].dtype);
  if (!value) return nullptr;
  return [pairs, v = *value](RowIn in, RowOut out) { out[0] = at::constant_pad_nd(*in[0], pairs, v); };
}

RowRun make_take(const RowSite& site) {
  const int64_t dim = site.op.i(AttrKey::k_dim);
  return [dim, sizes = site.results[0].sizes](RowIn in, RowOut out) {
    out[0] = at::index_select(*in[0], dim, in[1]->reshape(-1)).reshape(sizes);
  };
}

RowRun make_scatter(const RowSite& site) {
  const int64_t dim = site.op.i(AttrKey::k_dim);
  const std::string reduce = site.op.s(AttrKey::k_reduce);
  const bool include_self = site.op.b(AttrKey::k_include_self);
  if (reduce == "none")
    return [dim](RowIn in, RowOut out) { out[0] = at::scatter(*in[0], dim, as_index(*in[1]), *in[2]); };
  if (reduce == "sum" && include_self) {
    return [dim](RowIn in, RowOut out) { out[0] = at::scatter_add(*in[0], dim, as_index(*in[1]), *in[2]); };
  }
  return [=](RowIn in, RowOut out) {
    out[0] = at::scatter_reduce(*in[0], dim, as_index(*in[1]), *in[2], reduce, include_self);
  };
}

RowRun make_index_reduce(const RowSite& site) {
  const int64_t dim = site.op.i(AttrKey::k_dim);
  const std::string reduce = site.op.s(AttrKey::k_reduce);
  const bool include_self = site.op.b(AttrKey::k_include_self);
  if (reduce == "none")
    return [dim](RowIn in, RowOut out) { out[0] = at::index_copy(*in[0], dim, as_index(*in[1]), *in[2]); };
  if (reduce == "sum") {
    return [=](RowIn in, RowOut out) {
      const Tensor start = include_self ? *in[0] : at::index_fill(*in[0], dim, as_index(*in[1]), 0);
      out[0] = at::index_add(start, dim, as_index(*in[1]), *in[2]);
    };
  }
  return [=](RowIn in, RowOut out) {
    out[0] = at::index_reduce(*in[0], dim, as_index(*in[1]), *in[2], reduce, include_self);
  };
}

RowRun make_slice(const RowSite& site) {
  const int64_t dim = site.op.i(AttrKey::k_dim), start = site.op.i(AttrKey::k_start), end = site.op.i(AttrKey::k_end);
  const int64_t step = site.op.i(AttrKey::k_step);
  if (site.op.code == OpCode::k_slice) {
    return [=](RowIn in, RowOut out) { out[0] = at::slice(*in[0], dim, start, end, step); };
  }
  return [=](RowIn in, RowOut out) { out[0] = at::slice_scatter(*in[0], *in[1], dim, start, end, step); };
}

RowRun make_move(const RowSite& site) {
  const int64_t dim = site.op.i(AttrKey::k_dim);
  switch (site.op.code) {
    case OpCode::k_expand:
      return [sizes = site.results[0].sizes](RowIn in, RowOut out) { out[0] = in[0]->expand(sizes); };
    case OpCode::k_reshape:
      return [sizes = site.results[0].sizes](RowIn in, RowOut out) { out[0] = in[0]->reshape(sizes); };
    case OpCode::k_permute:
      return [dims = site.op.ints(AttrKey::k_dims)](RowIn in, RowOut out) { out[0] = in[0]->permute(dims); };
    case OpCode::k_flip:
      return [dims = site.op.ints(AttrKey::k_dims)](RowIn in, RowOut out) { out[0] = at::flip(*in[0], dims); };
    case OpCode::k_slice:
    case OpCode::k_slice_scatter:
      return make_slice(site);
    case OpCode::k_cat:
      return [dim](RowIn in, RowOut out) {
        std::vector<Tensor> tensors;
        tensors.reserve(in.size());
        for (const Tensor* tensor : in) tensors.push_back(*tensor);
        out[0] = at::cat(tensors, dim);
      };
    case OpCode::k_pad:
      return make_pad(site);
    case OpCode::k_take:
      return make_take(site);
    case OpCode::k_gather:
      return [dim](RowIn in, RowOut out) { out[0] = at::gather(*in[0], dim, as_index(*in[1])); };
    case OpCode::k_scatter:
      return make_scatter(site);
    case OpCode::k_index_reduce:
      return make_index_reduce(site);
    case OpCode::k_cumsum:
      return [dim, to = site.dtype()](RowIn in, RowOut out) { out[0] = at::cumsum(*in[0], dim, to); };
    case OpCode::k_relayout: {
      const bool last = site.op.s(AttrKey::k_encoding) == "channels_last";
      const auto format = !last                               ? at::MemoryFormat::Contiguous
                          : site.results[0].sizes.size() == 5 ? at::MemoryFormat::ChannelsLast3d
                                                              : at::MemoryFormat::ChannelsLast;
      return [format](RowIn in, RowOut out) { out[0] = in[0]->contiguous(format); };
    }
    default:
      return nullptr;
  }
}

// Made once: a value never changes, so every call may share it.
RowRun make_factory(const RowSite& site) {
  const auto options = at::TensorOptions(site.dtype()).device(site.device);
  Tensor value;
  if (site.op.code == OpCode::k_full) {
    const auto number = fill_value(site.op, site.results[0].dtype);
    if (!number) return nullptr;
    value = at::full({}, *number, options).expand(site.results[0].sizes);
  } else {
    const int64_t start = site.op.i(AttrKey::k_start), step = site.op.i(AttrKey::k_step),
                  n = site.results[0].sizes.at(0);
    value = at::arange(n, options.dtype(at::kLong)).mul(step).add(start).to(site.dtype());
  }
  return [value](RowIn, RowOut out) { out[0] = value; };
}

}  // namespace

RowRun make_tensor_run(const RowSite& site) {
  if (site.op.code == OpCode::k_full || site.op.code == OpCode::k_iota) return make_factory(site);
  if (RowRun run = make_reduce(site)) return run;
  return make_move(site);
}

}  // namespace keirin
