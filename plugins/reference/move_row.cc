// SPDX-License-Identifier: Apache-2.0
//
// MOVE and FACTORY rows: copies with coordinate maps, as strides where the map is affine.
#include <algorithm>

#include "abi/scalar.h"
#include "plugins/reference/node.h"

namespace keirin::reference {
namespace {

// out[k] = x[offset + coordinate of k times strides].
Array strided(const Node& node, const Dims& strides, int64_t offset = 0) {
  const Array& x = node.operand(0);
  Array out = node.result();
  on_data(x, out, [&](const auto& from, auto& to) {
    walk<1>(out.sizes, {strides}, [&](int64_t k, const auto& at) { to[k] = from[offset + at[0]]; });
  });
  return out;
}

Array copied(const Node& node) {
  Array out = node.result();
  on_data(node.operand(0), out, [](const auto& from, auto& to) { to = from; });
  return out;
}

// Writes src into out at offset + coordinate times strides.
void write(const Array& src, Array& out, const Dims& strides, int64_t offset) {
  on_data(src, out, [&](const auto& from, auto& to) {
    walk<1>(src.sizes, {strides}, [&](int64_t k, const auto& at) { to[offset + at[0]] = from[k]; });
  });
}

Array expand(const Node& node) {
  Dims own = node.operand(0).sizes, strides = row_major(own), want = node.result().sizes;
  for (size_t a = 0; a < own.size(); ++a)
    if (own[a] != want[a]) strides[a] = 0;
  return strided(node, strides);
}

Array permute(const Node& node) {
  Dims own = row_major(node.operand(0).sizes), strides;
  for (int64_t d : node.ints(kAttr_dims)) strides.push_back(own[d]);
  return strided(node, strides);
}

Array slice(const Node& node) {
  Dims strides = row_major(node.operand(0).sizes);
  const int64_t dim = node.i(kAttr_dim), offset = node.i(kAttr_start) * strides[dim];
  strides[dim] *= node.i(kAttr_step);
  return strided(node, strides, offset);
}

Array flip(const Node& node) {
  const Array& x = node.operand(0);
  Dims strides = row_major(x.sizes);
  int64_t offset = 0;
  for (int64_t d : node.ints(kAttr_dims)) {
    offset += (x.sizes[d] - 1) * strides[d];
    strides[d] = -strides[d];
  }
  return strided(node, strides, offset);
}

Array cat(const Node& node) {
  Array out = node.result();
  const Dims strides = row_major(out.sizes);
  const int64_t dim = node.i(kAttr_dim);
  int64_t offset = 0;
  for (size_t p = 0; p < node.num_operands(); ++p) {
    write(node.operand(p), out, strides, offset);
    offset += node.operand(p).sizes[dim] * strides[dim];
  }
  return out;
}

Array slice_scatter(const Node& node) {
  Array out = copied(node);
  Dims strides = row_major(out.sizes);
  const int64_t dim = node.i(kAttr_dim), offset = node.i(kAttr_start) * strides[dim];
  strides[dim] *= node.i(kAttr_step);
  write(node.operand(1), out, strides, offset);
  return out;
}

Array pad(const Node& node) {
  const Array& x = node.operand(0);
  Array out = node.result();
  if (out.floats())
    std::fill(out.d.begin(), out.d.end(), round_to(node.d(kAttr_value_d), out.dtype));
  else
    std::fill(out.i.begin(), out.i.end(), wrap_to(node.i(kAttr_value_i), out.dtype));
  const Dims low = node.ints(kAttr_low), strides = row_major(x.sizes);
  Dims at(out.sizes.size(), 0);
  for (int64_t k = 0, n = out.count(); k < n; ++k) {
    int64_t rest = k, from = 0;
    bool inside = true;
    for (size_t a = at.size(); a-- > 0;) {
      int64_t c = rest % out.sizes[a] - low[a];
      rest /= out.sizes[a];
      inside = inside && c >= 0 && c < x.sizes[a];
      from += c * strides[a];
    }
    if (inside) on_data(x, out, [&](const auto& source, auto& to) { to[k] = source[from]; });
  }
  return out;
}

Array take(const Node& node) {
  const Array &x = node.operand(0), &index = node.operand(1);
  Array out = node.result();
  const int64_t dim = node.i(kAttr_dim), inner = row_major(x.sizes)[dim], size = x.sizes[dim], many = index.count();
  for (int64_t k = 0, n = out.count(); k < n; ++k) {
    int64_t at = checked_index(index.i[k / inner % many], size);
    int64_t from = (k / inner / many * size + at) * inner + k % inner;
    on_data(x, out, [&](const auto& source, auto& to) { to[k] = source[from]; });
  }
  return out;
}

Array gather(const Node& node) {
  const Array &x = node.operand(0), &index = node.operand(1);
  Array out = node.result();
  const int64_t dim = node.i(kAttr_dim);
  Dims strides = row_major(x.sizes);
  const int64_t along = strides[dim];
  strides[dim] = 0;
  on_data(x, out, [&](const auto& from, auto& to) {
    walk<1>(index.sizes, {strides},
            [&](int64_t k, const auto& at) { to[k] = from[at[0] + checked_index(index.i[k], x.sizes[dim]) * along]; });
  });
  return out;
}

double plus(double a, double b) { return a + b; }
double times(double a, double b) { return a * b; }
int64_t plus(int64_t a, int64_t b) { return (scalar::Int(a) + scalar::Int(b)).v; }  // wraps
int64_t times(int64_t a, int64_t b) { return (scalar::Int(a) * scalar::Int(b)).v; }

// Combines values into elements of an array that started as `self`.
class Combiner {
 public:
  Combiner(const Node& node, Array& out)
      : out_(out), how_(node.word(kAttr_reduce)), keeps_self_(node.b(kAttr_include_self)), counts_(out.count(), 0) {}

  void add(int64_t at, const Array& src, int64_t from) {
    const bool first = counts_[at]++ == 0 && !keeps_self_;
    if (src.floats())
      combine(out_.d[at], src.d[from], first);
    else
      combine(out_.i[at], src.i[from], first);
  }

  void finish() {
    if (how_ != "mean") return;
    for (int64_t k = 0; k < out_.count(); ++k) {
      int64_t n = counts_[k] + (keeps_self_ ? 1 : 0);
      if (counts_[k] == 0) continue;
      if (out_.floats())
        out_.d[k] /= static_cast<double>(n);
      else
        out_.i[k] = divide(wrap_to(out_.i[k], out_.dtype), wrap_to(n, out_.dtype));
    }
  }

 private:
  // Rounded down. Eager adds and counts in the tensor's own dtype, and takes a count that wrapped to 0 for 1.
  static int64_t divide(int64_t sum, int64_t n) {
    if (n == 0) return sum;
    return sum / n - (sum % n != 0 && (sum < 0) != (n < 0) ? 1 : 0);
  }

  template <class T>
  void combine(T& to, T v, bool first) {
    if (how_ == "none" || first)
      to = v;
    else if (how_ == "sum" || how_ == "mean")
      to = plus(to, v);
    else if (how_ == "prod")
      to = times(to, v);
    else if (how_ == "amax")
      to = to != to ? to : (v != v || v > to) ? v : to;
    else
      to = to != to ? to : (v != v || v < to) ? v : to;
  }

  Array& out_;
  std::string_view how_;
  bool keeps_self_;
  std::vector<int64_t> counts_;
};

Array scatter(const Node& node) {
  const Array &index = node.operand(1), &src = node.operand(2);
  Array out = copied(node);
  const int64_t dim = node.i(kAttr_dim);
  Dims strides = row_major(out.sizes);
  const int64_t along = strides[dim];
  strides[dim] = 0;
  Combiner combiner(node, out);
  walk<2>(index.sizes, {strides, row_major(src.sizes)}, [&](int64_t k, const auto& at) {
    combiner.add(at[0] + checked_index(index.i[k], out.sizes[dim]) * along, src, at[1]);
  });
  combiner.finish();
  return out;
}

Array index_reduce(const Node& node) {
  const Array &index = node.operand(1), &src = node.operand(2);
  Array out = copied(node);
  const int64_t dim = node.i(kAttr_dim);
  Dims strides = row_major(out.sizes), row(out.sizes.size(), 0);
  const int64_t along = strides[dim];
  strides[dim] = 0;
  row[dim] = 1;
  Combiner combiner(node, out);
  walk<2>(src.sizes, {strides, row}, [&](int64_t k, const auto& at) {
    combiner.add(at[0] + checked_index(index.i[at[1]], out.sizes[dim]) * along, src, k);
  });
  combiner.finish();
  return out;
}

Array cumsum(const Node& node) {
  Array out = copied(node);
  const int64_t dim = node.i(kAttr_dim), n = out.sizes[dim], step = row_major(out.sizes)[dim];
  for (int64_t k = 0; k < out.count(); ++k) {
    if (k / step % n == 0) continue;
    if (out.floats())
      out.d[k] += out.d[k - step];
    else
      out.i[k] = plus(out.i[k], out.i[k - step]);
  }
  return out;
}

Array full(const Node& node) {
  Array out = node.result();
  if (out.floats())
    std::fill(out.d.begin(), out.d.end(), node.d(kAttr_value_d));
  else
    std::fill(out.i.begin(), out.i.end(), node.i(kAttr_value_i));
  return out;
}

Array iota(const Node& node) {
  Array out = node.result();
  for (int64_t k = 0; k < out.count(); ++k) {
    int64_t v = node.i(kAttr_start) + k * node.i(kAttr_step);
    if (out.floats())
      out.d[k] = static_cast<double>(v);
    else
      out.i[k] = v;
  }
  return out;
}

}  // namespace

Arrays move_row(const Node& node) {
  switch (node.op()) {
    case kOp_expand:
      return {expand(node)};
    case kOp_reshape:
    case kOp_relayout:
      return {copied(node)};
    case kOp_permute:
      return {permute(node)};
    case kOp_slice:
      return {slice(node)};
    case kOp_cat:
      return {cat(node)};
    case kOp_pad:
      return {pad(node)};
    case kOp_flip:
      return {flip(node)};
    case kOp_take:
      return {take(node)};
    case kOp_gather:
      return {gather(node)};
    case kOp_scatter:
      return {scatter(node)};
    case kOp_index_reduce:
      return {index_reduce(node)};
    case kOp_slice_scatter:
      return {slice_scatter(node)};
    case kOp_cumsum:
      return {cumsum(node)};
    case kOp_full:
      return {full(node)};
    case kOp_iota:
      return {iota(node)};
    default:
      return {};
  }
}

}  // namespace keirin::reference
