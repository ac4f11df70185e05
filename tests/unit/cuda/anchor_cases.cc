// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/cuda/anchor_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "plugins/kit/tables.h"

namespace keirin::test {
namespace {

using enum kit::Op;
using enum kit::DType;
using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;
using Dims = std::vector<int64_t>;

class Maker {
 public:
  explicit Maker(const std::string& name) { c_.name = name; }

  // Dense in the order of `order` (outermost first), or row-major; `gap` elements more between lines of the last axis.
  TensorDesc tensor(uint8_t dtype, const Dims& sizes, Dims strides = {}) {
    TensorDesc t;
    t.dtype = dtype, t.sizes = sizes, t.strides = strides;
    t.buffer = static_cast<uint32_t>(c_.buffers.size());
    if (strides.empty()) {
      t.strides.assign(sizes.size(), 1);
      for (size_t d = sizes.size(); d-- > 1;) t.strides[d - 1] = t.strides[d] * sizes[d];
    }
    int64_t last = 0;
    for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * t.strides[d];
    c_.buffers.emplace_back(dtype, last + 1);
    Storage& s = c_.buffers.back();
    for (int64_t e = 0; e < s.elements(); ++e) write_element(s.data(), e, dtype, std::normal_distribution<double>(0, 1)(random_), 0);
    return t;
  }
  TensorDesc whole(uint8_t dtype, const Dims& sizes, int64_t below, Dims strides = {}) {
    TensorDesc t = tensor(dtype, sizes, strides);
    Storage& s = c_.buffers.back();
    for (int64_t e = 0; e < s.elements(); ++e)
      write_element(s.data(), e, dtype, 0, static_cast<int64_t>(random_() % static_cast<uint64_t>(below)));
    return t;
  }
  void set(const TensorDesc& t, const Dims& at, double real, int64_t integer) {
    write_element(c_.buffers[t.buffer].data(), place(t, at), t.dtype, real, integer);
  }
  double get(const TensorDesc& t, const Dims& at) { return read_element(c_.buffers[t.buffer].data(), place(t, at), t.dtype).real; }
  int64_t get_whole(const TensorDesc& t, const Dims& at) { return read_element(c_.buffers[t.buffer].data(), place(t, at), t.dtype).whole; }

  // The result, poisoned.
  TensorDesc result(uint8_t dtype, const Dims& sizes, Dims strides = {}) {
    TensorDesc t = tensor(dtype, sizes, strides);
    c_.result = t.buffer;
    Storage& s = c_.buffers.back();
    c_.expected.assign(static_cast<size_t>(s.elements()), std::numeric_limits<double>::quiet_NaN());
    for (int64_t e = 0; e < s.elements(); ++e) write_element(s.data(), e, dtype, -77, 0);
    return t;
  }
  void expect(const TensorDesc& t, const Dims& at, double value) { c_.expected[static_cast<size_t>(place(t, at))] = value; }

  AnchorCase& made() { return c_; }

 private:
  static int64_t place(const TensorDesc& t, const Dims& at) {
    int64_t out = t.offset;
    for (size_t d = 0; d < at.size(); ++d) out += at[d] * t.strides[d];
    return out;
  }
  AnchorCase c_;
  std::mt19937_64 random_{17};
};

struct Heads {
  std::string name;
  uint8_t dtype = kBf16;
  int64_t batch = 1, heads = 1, shared = 1, queries = 1, keys = 1, width = 64;
  bool causal = false;
  enum { kNone, kBool, kAdded16, kAdded32 } mask = kNone;
  bool by_key = false;   // the mask repeats along heads and queries
  bool merged = false;   // q, k and v are thirds of one line
};

AnchorCase attention(const Heads& h) {
  Maker m(h.name);
  auto heads = [&](int64_t count, int64_t lines) {
    const int64_t line = h.merged ? 3 * count * h.width : count * h.width;
    return m.tensor(h.dtype, {h.batch, count, lines, h.width}, {lines * line, h.width, line, 1});
  };
  AnchorDesc a;
  a.op = kOp_attention;
  a.scale = 1 / std::sqrt(static_cast<double>(h.width));
  a.causal = h.causal;
  const TensorDesc q = heads(h.heads, h.queries), k = heads(h.shared, h.keys), v = heads(h.shared, h.keys);
  a.operands = {q, k, v};
  TensorDesc mask;
  if (h.mask != Heads::kNone) {
    const uint8_t dtype = h.mask == Heads::kBool ? uint8_t{kDType_bool} : h.mask == Heads::kAdded16 ? h.dtype : uint8_t{kF32};
    const Dims sizes{h.batch, h.heads, h.queries, h.keys};
    const Dims strides = h.by_key ? Dims{h.keys, 0, 0, 1} : Dims{};
    mask = h.mask == Heads::kBool ? m.whole(dtype, sizes, 2, strides) : m.tensor(dtype, sizes, strides);
    for (int64_t key = 0; key < h.keys && !h.by_key; ++key) {
      m.set(mask, {0, 0, 0, key}, -std::numeric_limits<double>::infinity(), 0);  // one query sees nothing
      if (dtype != kF32) continue;
      m.set(mask, {h.batch - 1, h.heads - 1, h.queries - 1, key}, -std::numeric_limits<float>::max(), 0);  // one all alike
    }
    a.operands.push_back(mask);
  }
  const TensorDesc o = m.result(h.dtype, {h.batch, h.heads, h.queries, h.width},
                                {h.queries * h.heads * h.width, h.width, h.heads * h.width, 1});
  a.results = {o};
  std::vector<double> w(static_cast<size_t>(h.keys));
  for (int64_t b = 0; b < h.batch; ++b)
    for (int64_t head = 0; head < h.heads; ++head)
      for (int64_t i = 0; i < h.queries; ++i) {
        const int64_t from = head / (h.heads / h.shared);
        double high = -std::numeric_limits<double>::infinity(), total = 0;
        for (int64_t j = 0; j < h.keys; ++j) {
          double s = 0;
          for (int64_t d = 0; d < h.width; ++d) s += m.get(q, {b, head, i, d}) * m.get(k, {b, from, j, d});
          s *= a.scale;
          if (mask.present() && h.mask == Heads::kBool && m.get_whole(mask, {b, head, i, j}) == 0)
            s = -std::numeric_limits<double>::infinity();
          if (mask.present() && h.mask != Heads::kBool) s += m.get(mask, {b, head, i, j});
          if (h.causal && j > i) s = -std::numeric_limits<double>::infinity();
          w[j] = s, high = std::max(high, s);
        }
        for (double& s : w) s = std::isinf(high) ? 0 : std::exp(s - high), total += s;
        for (int64_t d = 0; d < h.width; ++d) {
          double sum = 0;
          for (int64_t j = 0; j < h.keys; ++j) sum += w[j] * m.get(v, {b, from, j, d});
          m.expect(o, {b, head, i, d}, total > 0 ? sum / total : 0);
        }
      }
  AnchorCase out = std::move(m.made());
  out.anchor = a;
  out.relative = h.dtype == kBf16 ? 1.0 / 100 : h.dtype == kF16 ? 1.0 / 700 : 2e-6;
  out.matrix_units = h.queries > 1 && h.dtype != kF32;
  return out;
}

AnchorCase few_rows(const std::string& name, uint8_t dtype, int64_t rows, int64_t depth, int64_t columns, bool bias, bool residual,
                    uint32_t activation) {
  Maker m(name);
  AnchorDesc a;
  a.op = kOp_linear;
  const TensorDesc x = m.tensor(dtype, {rows, 1, depth}), w = m.tensor(dtype, {columns, depth}, {depth + 16, 1});
  a.operands = {x, w, bias ? m.tensor(dtype, {columns}) : TensorDesc{}};
  TensorDesc z;
  if (residual) z = m.tensor(dtype, {rows, 1, columns});
  if (residual) a.post_ops.push_back({kOp_add, z, 0, 0});
  if (activation) a.post_ops.push_back({activation, {}, 0, 0});
  const TensorDesc y = m.result(dtype, {rows, 1, columns});
  a.results = {y};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      double sum = bias ? m.get(a.operands[2], {c}) : 0;
      for (int64_t k = 0; k < depth; ++k) sum += m.get(x, {r, 0, k}) * m.get(w, {c, k});
      if (residual) sum += m.get(z, {r, 0, c});
      if (activation == kOp_relu) sum = std::max(sum, 0.0);
      if (activation == kOp_silu) sum /= 1 + std::exp(-sum);
      if (activation == kOp_gelu) sum *= 0.5 * (1 + std::erf(sum * std::sqrt(0.5)));
      m.expect(y, {r, 0, c}, sum);
    }
  AnchorCase out = std::move(m.made());
  out.anchor = a;
  out.relative = dtype == kF32 ? 1e-6 : 1.0 / 200;
  return out;
}

AnchorCase bags(const std::string& name, uint8_t dtype, int64_t rows, int64_t width, int64_t positions, int64_t count, bool mean,
                bool last) {
  Maker m(name);
  AnchorDesc a;
  a.op = kOp_embedding_bag;
  a.mode = mean ? "mean" : "sum";
  a.include_last_offset = last;
  const TensorDesc table = m.tensor(dtype, {rows, width}), index = m.whole(kI64, {positions}, rows),
                   offsets = m.whole(kI64, {count + last}, positions);
  Dims at;
  for (int64_t b = 0; b < count + last; ++b) at.push_back(m.get_whole(offsets, {b}));
  std::sort(at.begin(), at.end());
  at[0] = 0;
  for (int64_t b = 0; b < count + last; ++b) m.set(offsets, {b}, 0, at[b]);
  a.operands = {table, index, offsets};
  const TensorDesc y = m.result(dtype, {count, width}, {3 * width, 1});
  a.results = {y};
  for (int64_t b = 0; b < count; ++b)
    for (int64_t d = 0; d < width; ++d) {
      const int64_t end = b + 1 < static_cast<int64_t>(at.size()) ? at[b + 1] : positions;
      double sum = 0;
      for (int64_t i = at[b]; i < end; ++i) sum += m.get(table, {m.get_whole(index, {i}), d});
      m.expect(y, {b, d}, mean && end > at[b] ? sum / static_cast<double>(end - at[b]) : sum);
    }
  AnchorCase out = std::move(m.made());
  out.anchor = a;
  out.relative = dtype == kF32 ? 1e-6 : 1.0 / 200;
  return out;
}

struct Grouped {
  std::string name;
  uint8_t dtype;
  int64_t images, channels, height, width, taps_h, taps_w, stride, padding, dilation;
  bool bias, residual;
  uint32_t activation;
  int64_t group = 1;
};

AnchorCase grouped(const Grouped& d) {
  Maker m(d.name);
  AnchorDesc a;
  a.op = kOp_conv;
  a.groups = d.channels / d.group;
  a.stride = {d.stride, d.stride}, a.padding = {d.padding, d.padding}, a.dilation = {d.dilation, d.dilation};
  const auto results = [&](int64_t size, int64_t taps) { return (size + 2 * d.padding - d.dilation * (taps - 1) - 1) / d.stride + 1; };
  const int64_t rows = results(d.height, d.taps_h), columns = results(d.width, d.taps_w);
  const auto image = [&](int64_t h, int64_t w) { return Dims{h * w * d.channels, 1, w * d.channels, d.channels}; };
  const TensorDesc x = m.tensor(d.dtype, {d.images, d.channels, d.height, d.width}, image(d.height, d.width));
  const TensorDesc w = m.tensor(d.dtype, {d.channels, d.group, d.taps_h, d.taps_w});
  a.ieee = true;
  a.operands = {x, w, d.bias ? m.tensor(d.dtype, {d.channels}) : TensorDesc{}};
  TensorDesc z;
  if (d.residual) z = m.tensor(d.dtype, {d.images, d.channels, rows, columns}, image(rows, columns));
  if (d.residual) a.post_ops.push_back({kOp_add, z, 0, 0});
  if (d.activation) a.post_ops.push_back({d.activation, {}, 0, 0});
  const TensorDesc y = m.result(d.dtype, {d.images, d.channels, rows, columns}, image(rows, columns));
  a.results = {y};
  for (int64_t n = 0; n < d.images; ++n)
    for (int64_t c = 0; c < d.channels; ++c)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t q = 0; q < columns; ++q) {
          double sum = d.bias ? m.get(a.operands[2], {c}) : 0;
          for (int64_t i = 0; i < d.taps_h; ++i)
            for (int64_t j = 0; j < d.taps_w; ++j) {
              const int64_t at_h = r * d.stride - d.padding + i * d.dilation, at_w = q * d.stride - d.padding + j * d.dilation;
              if (at_h < 0 || at_h >= d.height || at_w < 0 || at_w >= d.width) continue;
              for (int64_t from = 0; from < d.group; ++from)
                sum += m.get(x, {n, c / d.group * d.group + from, at_h, at_w}) * m.get(w, {c, from, i, j});
            }
          if (d.residual) sum += m.get(z, {n, c, r, q});
          if (d.activation == kOp_relu) sum = std::max(sum, 0.0);
          if (d.activation == kOp_silu) sum /= 1 + std::exp(-sum);
          if (d.activation == kOp_hardswish) sum *= std::clamp(sum + 3, 0.0, 6.0) / 6;
          m.expect(y, {n, c, r, q}, sum);
        }
  AnchorCase out = std::move(m.made());
  out.anchor = a;
  out.relative = d.dtype == kF32 ? 1e-6 : 1.0 / 200;
  return out;
}

}  // namespace

std::string AnchorCase::difference(Storage got) const {
  if (!got.zones_intact()) return "wrote outside the result";
  double largest = 0;
  for (double e : expected)
    if (!std::isnan(e)) largest = std::max(largest, std::fabs(e));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double g = read_element(got.data(), static_cast<int64_t>(i), got.dtype()).real;
    const double want = std::isnan(expected[i]) ? -77 : expected[i], allowed = std::isnan(expected[i]) ? 0.5 : relative * largest;
    if (!(std::fabs(g - want) <= allowed))
      return "element " + std::to_string(i) + ": " + std::to_string(g) + ", not " + std::to_string(want);
  }
  return "";
}

std::vector<AnchorCase> anchor_cases() {
  std::vector<AnchorCase> out;
  for (const Heads& h : std::vector<Heads>{
           {"attention, one query", kBf16, 2, 3, 3, 1, 200, 128, false, Heads::kBool, true, false},
           {"attention, one query, no mask", kF16, 1, 4, 2, 1, 77, 64},
           {"attention, one query, few keys", kBf16, 1, 2, 1, 1, 3, 32, false, Heads::kAdded32, false, false},
           {"attention of f32", kF32, 2, 3, 3, 37, 37, 32, false, Heads::kNone, false, true},
           {"attention of f32, causal, added", kF32, 1, 2, 1, 9, 20, 128, true, Heads::kAdded32, false, false},
           {"attention", kBf16, 2, 3, 3, 130, 130, 64, false, Heads::kNone, false, true},
           {"attention, causal", kF16, 1, 2, 1, 100, 100, 128, true},
           {"attention, hidden keys", kBf16, 2, 2, 2, 128, 128, 64, false, Heads::kBool, true, true},
           {"attention, hidden scores", kBf16, 1, 2, 2, 33, 70, 32, false, Heads::kBool, false, false},
           {"attention, added", kF16, 1, 2, 1, 20, 90, 80, false, Heads::kAdded16, false, false},
           {"attention, added f32 by key", kBf16, 1, 2, 2, 65, 65, 96, true, Heads::kAdded32, true, false}})
    out.push_back(attention(h));
  out.push_back(few_rows("one row", kBf16, 1, 1024, 66, false, false, 0));
  out.push_back(few_rows("one row + bias + residual", kF16, 1, 520, 131, true, true, 0));
  out.push_back(few_rows("two rows + bias + gelu", kF32, 2, 516, 130, true, false, kOp_gelu));
  out.push_back(few_rows("two rows + silu", kBf16, 2, 264, 250, false, false, kOp_silu));
  for (const Grouped& d : std::vector<Grouped>{
           {"depthwise", kF32, 2, 40, 9, 11, 3, 3, 1, 1, 1, false, false, 0},
           {"depthwise, bias, hardswish", kF32, 1, 24, 14, 14, 5, 5, 2, 2, 1, true, false, kOp_hardswish},
           {"depthwise, residual, relu", kBf16, 3, 16, 7, 7, 7, 7, 1, 3, 1, true, true, kOp_relu},
           {"depthwise, apart", kF16, 1, 136, 12, 10, 3, 3, 1, 2, 2, false, false, kOp_silu},
           {"depthwise, one line, even", kF32, 1, 8, 1, 50, 1, 4, 1, 0, 1, false, false, 0},
           {"depthwise, many channels, far apart", kF32, 1, 516, 8, 8, 3, 5, 2, 6, 4, true, false, 0},
           {"groups of two", kF32, 1, 24, 9, 10, 3, 3, 1, 1, 1, true, false, 0, 2},
           {"groups of a word", kF32, 2, 40, 9, 7, 3, 3, 2, 1, 1, true, false, kOp_relu, 4},
           {"groups of two words", kF32, 1, 104, 14, 14, 3, 3, 1, 1, 1, true, true, kOp_relu, 8},
           {"groups of eight words", kF32, 1, 64, 7, 7, 3, 3, 2, 1, 1, false, false, 0, 32},
           {"groups of half a word", kBf16, 1, 48, 6, 8, 3, 3, 1, 1, 1, true, false, kOp_silu, 4}})
    out.push_back(grouped(d));
  out.push_back(bags("bags", kF32, 50, 64, 90, 33, false, false));
  out.push_back(bags("bags, mean, last offset", kBf16, 20, 24, 60, 21, true, true));
  return out;
}

}  // namespace keirin::test
