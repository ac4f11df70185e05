// SPDX-License-Identifier: Apache-2.0
//
// Pools, resizing and embedding bags in plain loops.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "plugins/reference/node.h"

namespace keirin::reference {
namespace {

// fn(plane, position along each spatial axis, index of the result) for each element of an [N, C, spatial] result.
template <class F>
void each_position(const Dims& sizes, F&& fn) {
  const size_t n = sizes.size() - 2;
  Dims at(n);
  for (int64_t k = 0, count = product(sizes); k < count; ++k) {
    int64_t rest = k;
    for (size_t a = n; a-- > 0;) {
      at[a] = rest % sizes[a + 2];
      rest /= sizes[a + 2];
    }
    fn(rest, at, k);
  }
}

// fn(offset) for each point begin, begin + step, .. < end of a box, as an offset into a plane.
template <class F>
void each_point(const Dims& spatial, const Dims& begin, const Dims& end, const Dims& step, F&& fn) {
  Dims counts(begin.size()), strides = row_major(spatial);
  int64_t offset = 0;
  for (size_t a = 0; a < begin.size(); ++a) {
    counts[a] = std::max<int64_t>(0, (end[a] - begin[a] + step[a] - 1) / step[a]);
    offset += begin[a] * strides[a];
    strides[a] *= step[a];
  }
  walk<1>(counts, {strides}, [&](int64_t, const auto& at) { fn(offset + at[0]); });
}

Dims spatial_of(const Array& x) { return Dims(x.sizes.begin() + 2, x.sizes.end()); }

Array max_pool(const Node& node) {
  const Array& x = node.operand(0);
  Array out = node.result();
  const Dims kernel = node.ints(kAttr_kernel), stride = node.ints(kAttr_stride), padding = node.ints(kAttr_padding),
             dilation = node.ints(kAttr_dilation), in = spatial_of(x);
  const int64_t plane = product(in);
  each_position(out.sizes, [&](int64_t p, const Dims& at, int64_t k) {
    Dims begin(at.size()), end(at.size());
    for (size_t a = 0; a < at.size(); ++a) {
      begin[a] = at[a] * stride[a] - padding[a];
      end[a] = std::min(begin[a] + (kernel[a] - 1) * dilation[a] + 1, in[a]);
      while (begin[a] < 0) begin[a] += dilation[a];
    }
    double best = -INFINITY;
    each_point(in, begin, end, dilation, [&](int64_t o) {
      double v = x.d[p * plane + o];
      if (std::isnan(v) || v > best) best = v;
    });
    out.d[k] = best;
  });
  return out;
}

Array avg_pool(const Node& node) {
  const Array& x = node.operand(0);
  Array out = node.result();
  const Dims kernel = node.ints(kAttr_kernel), stride = node.ints(kAttr_stride), padding = node.ints(kAttr_padding),
             in = spatial_of(x);
  const int64_t plane = product(in), divisor = node.i(kAttr_divisor);
  const bool count_pad = node.b(kAttr_count_include_pad);
  each_position(out.sizes, [&](int64_t p, const Dims& at, int64_t k) {
    Dims begin(at.size()), end(at.size());
    int64_t padded = 1, real = 1;
    for (size_t a = 0; a < at.size(); ++a) {
      begin[a] = at[a] * stride[a] - padding[a];
      end[a] = std::min(begin[a] + kernel[a], in[a] + padding[a]);
      padded *= end[a] - begin[a];
      begin[a] = std::max<int64_t>(begin[a], 0);
      end[a] = std::min(end[a], in[a]);
      real *= std::max<int64_t>(0, end[a] - begin[a]);
    }
    double sum = 0;
    each_point(in, begin, end, Dims(at.size(), 1), [&](int64_t o) { sum += x.d[p * plane + o]; });
    out.d[k] = real == 0 ? 0 : sum / static_cast<double>(divisor != 0 ? divisor : count_pad ? padded : real);
  });
  return out;
}

Array adaptive_avg_pool(const Node& node) {
  const Array& x = node.operand(0);
  Array out = node.result();
  const Dims in = spatial_of(x), to = spatial_of(out);
  const int64_t plane = product(in);
  each_position(out.sizes, [&](int64_t p, const Dims& at, int64_t k) {
    Dims begin(at.size()), end(at.size());
    double real = 1, sum = 0;
    for (size_t a = 0; a < at.size(); ++a) {
      begin[a] = at[a] * in[a] / to[a];
      end[a] = ((at[a] + 1) * in[a] + to[a] - 1) / to[a];
      real *= static_cast<double>(end[a] - begin[a]);
    }
    each_point(in, begin, end, Dims(at.size(), 1), [&](int64_t o) { sum += x.d[p * plane + o]; });
    out.d[k] = sum / real;
  });
  return out;
}

// Input elements per output element along an axis, from the scale factor if one was given.
double ratio(const Node& node, size_t axis, int64_t in, int64_t out) {
  const Dims scales = node.ints(kAttr_scales);
  double factor = 0;
  if (axis < scales.size()) std::memcpy(&factor, &scales[axis], sizeof factor);
  return factor > 0 ? 1.0 / factor : static_cast<double>(in) / static_cast<double>(out);
}

Array upsample_nearest(const Node& node) {
  const Array& x = node.operand(0);
  Array out = node.result();
  const Dims in = spatial_of(x), to = spatial_of(out), strides = row_major(in);
  const int64_t plane = product(in);
  // ATen chooses the element in f32, and the choice is a discontinuity.
  std::vector<float> scale;
  for (size_t a = 0; a < in.size(); ++a) scale.push_back(static_cast<float>(ratio(node, a, in[a], to[a])));
  each_position(out.sizes, [&](int64_t p, const Dims& at, int64_t k) {
    int64_t from = p * plane;
    for (size_t a = 0; a < at.size(); ++a)
      from += strides[a] * std::min(static_cast<int64_t>(std::floor(static_cast<float>(at[a]) * scale[a])), in[a] - 1);
    out.d[k] = x.d[from];
  });
  return out;
}

struct Blend {
  int64_t low, high;
  double weight;  // of high
};

Blend blend(const Node& node, size_t axis, int64_t at, int64_t in, int64_t out) {
  double position;
  if (node.b(kAttr_align_corners)) {
    position = out > 1 ? static_cast<double>(at) * static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  } else {
    position = std::max(0.0, ratio(node, axis, in, out) * (static_cast<double>(at) + 0.5) - 0.5);
  }
  int64_t low = std::min(static_cast<int64_t>(position), in - 1);
  double weight = std::clamp(position - static_cast<double>(low), 0.0, 1.0);
  return {low, std::min(low + 1, in - 1), weight};
}

Array upsample_bilinear(const Node& node) {
  const Array& x = node.operand(0);
  Array out = node.result();
  const Dims in = spatial_of(x), to = spatial_of(out);
  const int64_t plane = product(in);
  each_position(out.sizes, [&](int64_t p, const Dims& at, int64_t k) {
    const Blend y = blend(node, 0, at[0], in[0], to[0]), c = blend(node, 1, at[1], in[1], to[1]);
    auto v = [&](int64_t row, int64_t column) { return x.d[p * plane + row * in[1] + column]; };
    auto line = [&](int64_t row) { return (1 - c.weight) * v(row, c.low) + c.weight * v(row, c.high); };
    out.d[k] = (1 - y.weight) * line(y.low) + y.weight * line(y.high);
  });
  return out;
}

Array embedding_bag(const Node& node) {
  const Array &w = node.operand(0), &index = node.operand(1);
  Array out = node.result();
  const int64_t bags = out.sizes[0], width = out.sizes[1];
  const std::string_view mode = node.word(kAttr_mode);
  for (int64_t bag = 0; bag < bags; ++bag) {
    int64_t begin = 0, end = 0;
    if (node.has(2)) {
      const Array& offsets = node.operand(2);
      begin = offsets.i[bag];
      end = bag + 1 < offsets.count() ? offsets.i[bag + 1] : index.count();
      if (begin < 0 || begin > end || end > index.count())
        throw kit::Error(KRN_STATUS_invalid_input, "offsets of an embedding bag do not ascend");
    } else {
      begin = bag * index.sizes[1];
      end = begin + index.sizes[1];
    }
    for (int64_t c = 0; c < width; ++c) {
      double acc = 0;
      for (int64_t j = begin; j < end; ++j) {
        double v = w.d[checked_index(index.i[j], w.sizes[0]) * width + c];
        acc = mode != "max" ? acc + v : j == begin || v > acc ? v : acc;
      }
      out.d[bag * width + c] = mode == "mean" && end > begin ? acc / static_cast<double>(end - begin) : acc;
    }
  }
  return out;
}

}  // namespace

Arrays window_row(const Node& node) {
  switch (node.op()) {
    case kOp_max_pool:
      return {max_pool(node)};
    case kOp_avg_pool:
      return {avg_pool(node)};
    case kOp_adaptive_avg_pool:
      return {adaptive_avg_pool(node)};
    case kOp_upsample_nearest:
      return {upsample_nearest(node)};
    case kOp_upsample_bilinear:
      return {upsample_bilinear(node)};
    case kOp_embedding_bag:
      return {embedding_bag(node)};
    default:
      return {};
  }
}

}  // namespace keirin::reference
