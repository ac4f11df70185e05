// SPDX-License-Identifier: Apache-2.0
//
// One function for each kind of node, each a loop over all elements of the result.
#include "tests/unit/codegen/evaluate.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "abi/scalar.h"
#include "tests/unit/codegen/array.h"

namespace keirin::codegen::test {
namespace {

Dims unflatten(int64_t i, const Dims& sizes) {
  Dims out(sizes.size());
  for (size_t d = sizes.size(); d-- > 0;) {
    out[d] = i % sizes[d];
    i /= sizes[d];
  }
  return out;
}
int64_t flatten(const Dims& at, const Dims& sizes) {
  int64_t out = 0;
  for (size_t d = 0; d < sizes.size(); ++d) out = out * sizes[d] + at[d];
  return out;
}

template <class F>
double call(F f, const double* x) {
  if constexpr (std::is_invocable_v<F, double>) return f(x[0]);
  if constexpr (std::is_invocable_v<F, double, double>) return f(x[0], x[1]);
  if constexpr (std::is_invocable_v<F, double, double, double>) return f(x[0], x[1], x[2]);
  if constexpr (std::is_invocable_v<F, double, double, double, double>) return f(x[0], x[1], x[2], x[3]);
}

double scalar_row(uint32_t op, const double* x) {
  switch (op) {
    case kOp_select: return x[0] != 0 ? x[1] : x[2];
    case kOp_logical_and: return x[0] != 0 && x[1] != 0;
    case kOp_logical_or: return x[0] != 0 || x[1] != 0;
    case kOp_logical_xor: return (x[0] != 0) != (x[1] != 0);
    case kOp_logical_not: return x[0] == 0;
    case kOp_bit_and: return static_cast<double>(static_cast<int64_t>(x[0]) & static_cast<int64_t>(x[1]));
    case kOp_bit_or: return static_cast<double>(static_cast<int64_t>(x[0]) | static_cast<int64_t>(x[1]));
    case kOp_bit_xor: return static_cast<double>(static_cast<int64_t>(x[0]) ^ static_cast<int64_t>(x[1]));
    case kOp_bit_not: return static_cast<double>(~static_cast<int64_t>(x[0]));
#define ROW(name)  \
  case kOp_##name: \
    return call([](auto... a) -> decltype(static_cast<double>(rows::row_##name(a...))) { return rows::row_##name(a...); }, x);
      ROW(add)
      ROW(sub) ROW(mul) ROW(div) ROW(neg) ROW(abs) ROW(sign) ROW(reciprocal) ROW(sqrt) ROW(rsqrt) ROW(exp) ROW(expm1) ROW(log) ROW(log1p)
          ROW(log2) ROW(sin) ROW(cos) ROW(tanh) ROW(sigmoid) ROW(erf) ROW(relu) ROW(silu) ROW(gelu) ROW(gelu_tanh) ROW(leaky_relu) ROW(elu)
              ROW(hardsigmoid) ROW(hardswish) ROW(softplus) ROW(mish) ROW(log_sigmoid) ROW(pow) ROW(maximum) ROW(minimum) ROW(clamp) ROW(eq)
                  ROW(ne) ROW(lt) ROW(le) ROW(gt) ROW(ge) ROW(floor) ROW(ceil) ROW(trunc) ROW(round) ROW(fmod) ROW(is_nan) ROW(exp2)
#undef ROW
                      default : throw std::runtime_error("no oracle for " + std::string(op_name(op)));
  }
}

class Evaluator {
 public:
  Evaluator(const FlatRegion& r, const std::vector<Values>& inputs) : r_(r), values_(r.tensors.size()) {
    for (size_t i = 0; i < inputs.size(); ++i) values_[r.inputs[i]] = inputs[i];
  }
  std::vector<Values> run() {
    for (const TensorNode& n : r_.nodes) node(n);
    std::vector<Values> out;
    for (const RegionOutput& o : r_.outputs) {
      Values v = values_[o.tensor];
      for (double& x : v) x = through_dtype(x, r_.tensors[o.tensor].dtype);
      out.push_back(std::move(v));
    }
    return out;
  }

 private:
  const Dims& sizes(int t) const { return r_.tensors[t].sizes; }

  void node(const TensorNode& n) {
    int t = n.results[0];
    Values& out = values_[t];
    switch (op_kind(n.op)) {
      case OpKind::kReduce: out = reduce(n); break;
      case OpKind::kAnchorComposite: out = anchor(n); break;
      default:
        if (n.op == kOp_index_reduce || n.op == kOp_scatter) {
          out = scatter(n);
          break;
        }
        out.resize(r_.tensors[t].numel());
        for (int64_t i = 0; i < r_.tensors[t].numel(); ++i) out[i] = element(n, i);
    }
    bool rounds = is_integer(r_.tensors[t].dtype) || r_.tensors[t].observed;
    for (double& x : out) {
      if (rounds) x = through_dtype(x, r_.tensors[t].dtype);
    }
  }

  Values anchor(const TensorNode& n) {
    std::vector<Values> operands;
    for (int o : n.operands) operands.push_back(o < 0 ? Values{} : values_[o]);
    return evaluate_anchor(r_, n, operands);
  }

  double at(int t, const Dims& place) const { return values_[t][flatten(place, sizes(t))]; }

  double element(const TensorNode& n, int64_t i) const {
    const Attrs& a = n.attrs;
    int t = n.results[0];
    if (op_kind(n.op) == OpKind::kScalar && n.op != kOp_cast) {
      double x[4];
      for (size_t k = 0; k < n.operands.size(); ++k) x[k] = values_[n.operands[k]][i];
      return scalar_row(n.op, x);
    }
    Dims p = unflatten(i, sizes(t));
    int x = n.operands.empty() ? -1 : n.operands[0];
    switch (n.op) {
      case kOp_cast: {
        double v = values_[x][i];
        if (r_.tensors[t].dtype == kDType_bool) return v != 0;
        return is_integer(r_.tensors[t].dtype) ? std::trunc(v) : v;
      }
      case kOp_relayout: return values_[x][i];
      case kOp_reshape: return values_[x][i];
      case kOp_expand:
        for (size_t d = 0; d < p.size(); ++d) p[d] = sizes(x)[d] == 1 ? 0 : p[d];
        return at(x, p);
      case kOp_permute: {
        Dims q(p.size());
        for (size_t d = 0; d < p.size(); ++d) q[a.dims[d]] = p[d];
        return at(x, q);
      }
      case kOp_slice: p[a.dim] = a.start + p[a.dim] * a.step; return at(x, p);
      case kOp_flip:
        for (int64_t d : a.dims) p[d] = sizes(x)[d] - 1 - p[d];
        return at(x, p);
      case kOp_cumsum: {
        const int64_t last = p[a.dim];
        double sum = 0;
        for (p[a.dim] = 0; p[a.dim] <= last; ++p[a.dim]) sum += at(x, p);
        return sum;
      }
      case kOp_cat:
        for (int y : n.operands) {
          if (p[a.dim] < sizes(y)[a.dim]) return at(y, p);
          p[a.dim] -= sizes(y)[a.dim];
        }
        return 0;
      case kOp_pad:
        for (size_t d = 0; d < p.size(); ++d) {
          p[d] -= a.low[d];
          if (p[d] < 0 || p[d] >= sizes(x)[d]) return is_float(r_.tensors[t].dtype) ? a.value_d : static_cast<double>(a.value_i);
        }
        return at(x, p);
      case kOp_take: {
        int index = n.operands[1];
        int rank = r_.tensors[index].rank();
        Dims q(p.begin() + a.dim, p.begin() + a.dim + rank), s(p.begin(), p.begin() + a.dim);
        s.push_back(static_cast<int64_t>(at(index, q)));
        s.insert(s.end(), p.begin() + a.dim + rank, p.end());
        return at(x, s);
      }
      case kOp_gather: {
        int64_t j = static_cast<int64_t>(at(n.operands[1], p));
        p[a.dim] = j;
        return at(x, p);
      }
      case kOp_slice_scatter: {
        int64_t j = p[a.dim] - a.start;
        if (j < 0 || j >= (a.end - a.start) || j % a.step != 0) return at(x, p);
        p[a.dim] = j / a.step;
        return at(n.operands[1], p);
      }
      case kOp_full:
        if (r_.tensors[t].dtype == kDType_u8) return static_cast<uint8_t>(a.value_i);
        return is_float(r_.tensors[t].dtype) ? a.value_d : static_cast<double>(a.value_i);
      case kOp_iota: return static_cast<double>(a.start + i * a.step);
      default: throw std::runtime_error("no oracle for " + std::string(op_name(n.op)));
    }
  }

  Values reduce(const TensorNode& n) const {
    int x = n.operands[0], t = n.results[0];
    std::vector<bool> reduced(sizes(x).size(), false);
    for (int64_t d : n.attrs.dims) reduced[d] = true;
    bool index = n.op == kOp_argmax || n.op == kOp_argmin;
    double start = n.op == kOp_amax ? -INFINITY : n.op == kOp_amin ? INFINITY : n.op == kOp_prod || n.op == kOp_all ? 1 : 0;
    Values out(r_.tensors[t].numel(), index ? -1 : start), best(out.size());
    for (int64_t i = 0; i < r_.tensors[x].numel(); ++i) {
      Dims p = unflatten(i, sizes(x)), q;
      int64_t position = 0;
      for (size_t d = 0; d < p.size(); ++d) {
        if (reduced[d]) position = position * sizes(x)[d] + p[d];
        if (!reduced[d]) q.push_back(p[d]);
        if (reduced[d] && n.attrs.keepdim) q.push_back(0);
      }
      int64_t o = flatten(q, sizes(t));
      double v = values_[x][i];
      switch (n.op) {
        case kOp_sum: out[o] += v; break;
        case kOp_prod: out[o] *= v; break;
        case kOp_amax: out[o] = scalar::maximum(out[o], v); break;
        case kOp_amin: out[o] = scalar::minimum(out[o], v); break;
        case kOp_any: out[o] = out[o] != 0 || v != 0; break;
        case kOp_all: out[o] = out[o] != 0 && v != 0; break;
        default: {
          bool better = n.op == kOp_argmax ? v > best[o] : v < best[o];
          if (out[o] < 0 || (best[o] == best[o] && (better || v != v))) out[o] = static_cast<double>(position), best[o] = v;
        }
      }
    }
    return out;
  }

  Values scatter(const TensorNode& n) const {
    int self = n.operands[0], index = n.operands[1], src = n.operands[2];
    const Attrs& a = n.attrs;
    Values out = values_[self], count(out.size(), a.include_self ? 1 : 0);
    for (int64_t i = 0; i < r_.tensors[src].numel(); ++i) {
      Dims p = unflatten(i, sizes(src));
      double row = n.op == kOp_scatter ? values_[index][i] : values_[index][p[a.dim]];
      p[a.dim] = static_cast<int64_t>(row);
      int64_t o = flatten(p, sizes(self));
      double v = values_[src][i];
      bool first = count[o]++ == 0 || a.reduce == "none";
      if (first) {
        out[o] = v;
      } else if (a.reduce == "sum" || a.reduce == "mean") {
        out[o] += v;
      } else {
        out[o] = a.reduce == "amax" ? scalar::maximum(out[o], v) : scalar::minimum(out[o], v);
      }
    }
    for (size_t o = 0; a.reduce == "mean" && o < out.size(); ++o) out[o] /= std::max(count[o], 1.0);
    return out;
  }

  const FlatRegion& r_;
  std::vector<Values> values_;
};

Values matmul(const Dims& a, const Dims& out_sizes, const Values& x, const Values& y, bool linear, const Values& bias) {
  int64_t k = a.back(), n = out_sizes.back(), m = linear ? 1 : out_sizes[out_sizes.size() - 2];
  Values out(1);
  int64_t total = 1;
  for (int64_t s : out_sizes) total *= s;
  out.assign(total, 0);
  for (int64_t i = 0; i < total; ++i) {
    int64_t col = i % n, row = i / n, batch = linear ? 0 : row / m;
    for (int64_t j = 0; j < k; ++j) out[i] += x[row * k + j] * (linear ? y[col * k + j] : y[(batch * k + j) * n + col]);
    if (!bias.empty()) out[i] += bias[col];
  }
  return out;
}

// Pools by their definition in ATen: windows clipped to the input, averages over what the attributes say.
Values pool(const FlatRegion& r, const TensorNode& node, const Values& x) {
  const Dims& in = r.tensors[node.operands[0]].sizes;
  const Dims& to = r.tensors[node.results[0]].sizes;
  const Attrs& a = node.attrs;
  Values out(r.tensors[node.results[0]].numel());
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    Dims p = unflatten(i, to);
    double sum = 0, high = -INFINITY;
    int64_t inside = 0, area = 1;
    int64_t low[2], end[2];
    for (int d = 0; d < 2; ++d) {
      bool adaptive = node.op == kOp_adaptive_avg_pool;
      int64_t step = adaptive ? in[2 + d] / to[2 + d] : a.stride[d], k = adaptive ? step : a.kernel[d];
      int64_t pad = adaptive ? 0 : a.padding[d];
      low[d] = p[2 + d] * step - pad;
      end[d] = low[d] + k;
      area *= std::min(end[d], in[2 + d] + pad) - low[d];
    }
    for (int64_t h = low[0]; h < end[0]; ++h) {
      for (int64_t w = low[1]; w < end[1]; ++w) {
        if (h < 0 || w < 0 || h >= in[2] || w >= in[3]) continue;
        double v = x[((p[0] * in[1] + p[1]) * in[2] + h) * in[3] + w];
        sum += v, high = scalar::maximum(high, v), ++inside;
      }
    }
    int64_t count = a.divisor ? a.divisor : a.count_include_pad ? area : inside;
    out[i] = node.op == kOp_max_pool ? high : sum / static_cast<double>(count);
  }
  return out;
}

Values conv(const FlatRegion& r, const TensorNode& node, const Values& x, const Values& w, const Values& b) {
  const Dims& in = r.tensors[node.operands[0]].sizes;
  const Dims& kernel = r.tensors[node.operands[1]].sizes;
  const Dims& to = r.tensors[node.results[0]].sizes;
  const Attrs& a = node.attrs;
  Values out(r.tensors[node.results[0]].numel());
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    Dims p = unflatten(i, to);
    double sum = b.empty() ? 0 : b[p[1]];
    for (int64_t c = 0; c < kernel[1]; ++c) {
      for (int64_t kh = 0; kh < kernel[2]; ++kh) {
        for (int64_t kw = 0; kw < kernel[3]; ++kw) {
          int64_t h = p[2] * a.stride[0] - a.padding[0] + kh, v = p[3] * a.stride[1] - a.padding[1] + kw;
          if (h < 0 || v < 0 || h >= in[2] || v >= in[3]) continue;
          sum += x[((p[0] * in[1] + c) * in[2] + h) * in[3] + v] * w[((p[1] * kernel[1] + c) * kernel[2] + kh) * kernel[3] + kw];
        }
      }
    }
    out[i] = sum;
  }
  return out;
}

Values upsample_nearest(const FlatRegion& r, const TensorNode& node, const Values& x) {
  const Dims& in = r.tensors[node.operands[0]].sizes;
  const Dims& to = r.tensors[node.results[0]].sizes;
  Values out(r.tensors[node.results[0]].numel());
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    Dims p = unflatten(i, to);
    for (size_t d = 2; d < p.size(); ++d) {
      float scale = static_cast<float>(in[d]) / static_cast<float>(to[d]);
      p[d] = std::min<int64_t>(static_cast<int64_t>(std::floor(static_cast<float>(p[d]) * scale)), in[d] - 1);
    }
    out[i] = x[flatten(p, in)];
  }
  return out;
}

// By definition: query i of head h against every key; a bool mask shows, an additive one adds; `causal` shows keys up to i, counted
// from the first of both. A row that sees nothing is zeros, as LibTorch has it.
Values attention(const FlatRegion& r, const TensorNode& node, const std::vector<Values>& x) {
  const Dims &q = r.tensors[node.operands[0]].sizes, &k = r.tensors[node.operands[1]].sizes, &v = r.tensors[node.operands[2]].sizes;
  const size_t rank = q.size();
  const int64_t queries = q[rank - 2], depth = q[rank - 1], keys = k[rank - 2], width = v[rank - 1];
  const int64_t heads = q[rank - 3], shared = heads / k[rank - 3];
  const bool masked = node.operands.size() > 3 && node.operands[3] >= 0;
  Values out(r.tensors[node.results[0]].numel());
  for (int64_t o = 0; o < static_cast<int64_t>(out.size()); ++o) {
    const int64_t column = o % width, i = o / width % queries, head = o / (width * queries), source = head / shared;
    Values weight(keys, 0);
    double high = -INFINITY, total = 0;
    for (int64_t j = 0; j < keys; ++j) {
      double score = 0;
      for (int64_t d = 0; d < depth; ++d) score += x[0][(head * queries + i) * depth + d] * x[1][(source * keys + j) * depth + d];
      score *= node.attrs.scale;
      const double m = masked ? x[3][(head * queries + i) * keys + j] : 0;
      if (masked) score = r.tensors[node.operands[3]].dtype == kDType_bool ? (m != 0 ? score : -INFINITY) : score + m;
      weight[j] = node.attrs.causal && j > i ? -INFINITY : score;
      high = std::max(high, weight[j]);
    }
    for (double& w : weight) total += w = high == -INFINITY ? 0 : std::exp(w - high);
    for (int64_t j = 0; j < keys && total > 0; ++j) out[o] += weight[j] / total * x[2][(source * keys + j) * width + column];
  }
  return out;
}

// Rows of x[0] up to the ends in x[2], each by its group's part of x[1].
Values grouped(const Dims& rows, const Dims& to, const std::vector<Values>& x) {
  const int64_t depth = rows[1], columns = to[1];
  Values out(static_cast<size_t>(to[0] * columns), 0);
  int64_t row = 0;
  for (size_t group = 0; group < x[2].size(); ++group)
    for (; row < static_cast<int64_t>(x[2][group]); ++row)
      for (int64_t k = 0; k < depth; ++k)
        for (int64_t c = 0; c < columns; ++c)
          out[row * columns + c] += x[0][row * depth + k] * x[1][(static_cast<int64_t>(group) * depth + k) * columns + c];
  return out;
}

// Rows of x[0] named by x[1], summed from one offset of x[2] to the next.
Values bags(const FlatRegion& r, const TensorNode& node, const std::vector<Values>& x) {
  if (node.attrs.mode != "sum" || node.attrs.include_last_offset || x.size() > 3)
    throw std::runtime_error("no oracle for this embedding_bag");
  const int64_t width = r.tensors[node.results[0]].sizes[1];
  Values out(r.tensors[node.results[0]].numel(), 0);
  for (size_t bag = 0; bag < x[2].size(); ++bag) {
    const double end = bag + 1 < x[2].size() ? x[2][bag + 1] : static_cast<double>(x[1].size());
    for (double i = x[2][bag]; i < end; ++i)
      for (int64_t d = 0; d < width; ++d)
        out[static_cast<int64_t>(bag) * width + d] += x[0][static_cast<int64_t>(x[1][static_cast<size_t>(i)]) * width + d];
  }
  return out;
}

}  // namespace

double evaluate_scalar(uint32_t op, const double* operands) { return scalar_row(op, operands); }

Values evaluate_anchor(const FlatRegion& r, const TensorNode& node, const std::vector<Values>& x) {
  const Dims& a = r.tensors[node.operands[0]].sizes;
  const Dims& to = r.tensors[node.results[0]].sizes;
  switch (node.op) {
    case kOp_matmul: return matmul(a, to, x[0], x[1], false, {});
    case kOp_linear: return matmul(a, to, x[0], x[1], true, x.size() > 2 ? x[2] : Values{});
    case kOp_grouped_matmul: return grouped(a, to, x);
    case kOp_conv: return conv(r, node, x[0], x[1], x.size() > 2 ? x[2] : Values{});
    case kOp_max_pool:
    case kOp_avg_pool:
    case kOp_adaptive_avg_pool: return pool(r, node, x[0]);
    case kOp_upsample_nearest: return upsample_nearest(r, node, x[0]);
    case kOp_attention: return attention(r, node, x);
    case kOp_embedding_bag: return bags(r, node, x);
    default: throw std::runtime_error("no oracle for " + std::string(op_name(node.op)));
  }
}

std::vector<Values> evaluate(const FlatRegion& region, const std::vector<Values>& inputs) { return Evaluator(region, inputs).run(); }

}  // namespace keirin::codegen::test
