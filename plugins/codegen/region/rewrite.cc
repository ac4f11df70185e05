// SPDX-License-Identifier: Apache-2.0
//
// One function for each op that can be rewritten. A pooling window is a view with guards, so that pooling is a reduction of it;
// a scatter is a reduction over the edges of a CSR row, a short scan one over all that lies before.
#include "plugins/codegen/region/rewrite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "abi/planted.h"
#include "plugins/codegen/plan/storage.h"

namespace keirin::codegen {
namespace {

constexpr int64_t kTinyMatmul = 1 << 16;  // multiply-adds that a generated loop may do where a library refuses
constexpr int64_t kPixelWeights = 1 << 16, kPixelProducts = 1 << 22;  // the same where an image is one pixel: of one image, and of all
constexpr int64_t kLongestScan = 512, kMostScanned = 1 << 22;  // elements of a row; additions of all rows
constexpr int64_t kMostBagTests = 1 << 24;  // positions times bags: every position is compared with every bag's start

class Writer {
 public:
  Writer(FlatRegion& region, int n, const TargetInfo& target)
      : r_(region), node_(region.nodes[n]), target_(target), out_(node_.results[0]) {}

  std::string rewrite() {
    switch (node_.op) {
      case kOp_max_pool:
        return max_pool();
      case kOp_avg_pool:
        return average(node_.attrs.kernel, node_.attrs.stride, node_.attrs.padding);
      case kOp_adaptive_avg_pool:
        return adaptive();
      case kOp_upsample_nearest:
        return upsample_nearest();
      case kOp_upsample_bilinear:
        return upsample_bilinear();
      case kOp_embedding_bag:
        return embedding_bag();
      case kOp_grouped_matmul:
        return grouped_matmul();
      case kOp_attention:
        return attention();
      case kOp_index_reduce:
        return segment(node_.operands[1]);
      case kOp_scatter:
        return scatter();
      case kOp_cumsum:
        return cumsum();
      case kOp_matmul:
      case kOp_linear:
        return matmul();
      case kOp_conv:
        return conv();
      default:
        return std::string(op_name(node_.op)) + " has no generated form";
    }
  }

 private:
  const Tensor& t(int x) const { return r_.tensors[x]; }
  int scalar(uint32_t op, std::vector<int> x) { return r_.add(op, x, t(x[0]).dtype, t(x[0]).sizes); }
  int cast(int x, uint8_t dtype) {
    if (t(x).dtype == dtype) return x;
    Attrs a;
    a.dtype = dtype;
    return r_.add(kOp_cast, {x}, dtype, t(x).sizes, a);
  }
  int reshape(int x, Dims sizes) {
    Attrs a;
    a.sizes = sizes;
    return r_.add(kOp_reshape, {x}, t(x).dtype, std::move(sizes), a);
  }
  int expand(int x, Dims sizes) {
    Attrs a;
    a.sizes = sizes;
    return r_.add(kOp_expand, {x}, t(x).dtype, std::move(sizes), a);
  }
  int reduce(uint32_t op, int x, Dims dims) {
    Attrs a;
    a.dims = dims;
    Dims sizes;
    for (int64_t d = 0; d < t(x).rank(); ++d) {
      if (std::find(dims.begin(), dims.end(), d) == dims.end()) sizes.push_back(t(x).sizes[d]);
    }
    return r_.add(op, {x}, t(x).dtype, std::move(sizes), a);
  }
  int take(int x, int index, int64_t dim) {
    Dims sizes = t(x).sizes;
    sizes.erase(sizes.begin() + dim);
    sizes.insert(sizes.begin() + dim, t(index).sizes.begin(), t(index).sizes.end());
    Attrs a;
    a.dim = dim;
    return r_.add(kOp_take, {x, index}, t(x).dtype, std::move(sizes), a);
  }
  // The node's own result is now computed by whatever computes x.
  std::string result(int x) {
    int n = t(x).producer;
    r_.nodes[n].results[0] = out_;
    r_.nodes[n].claim_node = node_.claim_node;
    r_.tensors[out_].producer = n;
    return "";
  }

  int window(int x, const Dims& kernel, const Dims& stride, const Dims& padding, const Dims& dilation, double fill, int64_t fill_i) {
    Attrs a;
    size_t k = kernel.size();
    a.kernel = kernel, a.stride = stride, a.padding = padding, a.dilation = dilation;
    a.value_d = fill, a.value_i = fill_i;
    Dims sizes = t(x).sizes;
    for (size_t i = 0; i < k; ++i) sizes[sizes.size() - k + i] = t(out_).sizes[t(out_).sizes.size() - k + i];
    sizes.insert(sizes.end(), kernel.begin(), kernel.end());
    return r_.add(kOpWindow, {x}, t(x).dtype, std::move(sizes), a);
  }
  Dims trailing(int x, size_t k) const {
    Dims out;
    for (size_t i = 0; i < k; ++i) out.push_back(t(x).rank() - static_cast<int64_t>(k - i));
    return out;
  }

  std::string max_pool() {
    const Attrs a = node_.attrs;
    Dims dilation = a.dilation.empty() ? Dims(a.kernel.size(), 1) : a.dilation;
    int w = window(node_.operands[0], a.kernel, a.stride, a.padding, dilation, -std::numeric_limits<double>::infinity(),
                   std::numeric_limits<int64_t>::min());
    return result(reduce(kOp_amax, w, trailing(w, a.kernel.size())));
  }

  std::string average(const Dims& kernel, const Dims& stride, const Dims& padding) {
    const Attrs a = node_.attrs;
    int x = node_.operands[0];
    size_t k = kernel.size();
    Dims ones(k, 1);
    int w = window(x, kernel, stride, padding, ones, 0, 0);
    int total = reduce(kOp_sum, w, trailing(w, k));
    bool padded = false;
    int64_t area = 1;
    for (size_t i = 0; i < k; ++i) area *= kernel[i], padded |= padding[i] != 0;
    bool varies = a.divisor == 0 && !KRN_PLANTED(pool_counts_padding) && (a.ceil_mode || (padded && !a.count_include_pad));
    int count;
    if (varies) {
      Dims sizes = t(x).sizes, none(k, 0);
      for (size_t i = 0; a.count_include_pad && i < k; ++i) sizes[sizes.size() - k + i] += 2 * padding[i];
      int unit = r_.constant(1, t(x).dtype, sizes);
      int u = window(unit, kernel, stride, a.count_include_pad ? none : padding, ones, 0, 0);
      count = reduce(kOp_sum, u, trailing(u, k));
    } else {
      count = r_.constant(static_cast<double>(a.divisor ? a.divisor : area), t(x).dtype, t(total).sizes);
    }
    return result(scalar(kOp_div, {total, count}));
  }

  std::string adaptive() {
    const Tensor& x = t(node_.operands[0]);
    size_t k = node_.attrs.sizes.size();
    Dims kernel;
    for (size_t i = 0; i < k; ++i) {
      int64_t in = x.sizes[x.sizes.size() - k + i], out = t(out_).sizes[x.sizes.size() - k + i];
      if (out == 0 || in % out != 0) return "adaptive_avg_pool with windows of different sizes";
      kernel.push_back(in / out);
    }
    return average(kernel, kernel, Dims(k, 0));
  }

  // f32 is summed in f64, as LibTorch does on the CPU: a running sum keeps every rounding of those before.
  std::string cumsum() {
    const int given = node_.operands[0], x = t(given).dtype == kDType_f32 ? cast(given, kDType_f64) : given;
    const int64_t dim = node_.attrs.dim, n = t(x).rank() > 0 ? t(x).sizes[dim] : 0;
    if (t(x).numel() == 0 || n == 0) return "a scan of nothing or of one number";
    if (n > kLongestScan || t(x).numel() > kMostScanned / n) return "a long scan runs in eager's kernel";
    Dims once = t(x).sizes, all = t(x).sizes;  // [.., result, operand, ..]
    once.insert(once.begin() + dim, 1), all.insert(all.begin() + dim, n);
    const int terms = expand(reshape(x, once), all);
    const int later = r_.add(kOp_gt, {coordinate(all, dim + 1), coordinate(all, dim)}, kDType_bool, all);
    const int sums = reduce(kOp_sum, r_.add(kOp_select, {later, constant_like(0, terms), terms}, t(x).dtype, all), {dim + 1});
    return result(cast(sums, t(given).dtype));
  }

  // Positions in the input of the result's positions along one axis: floor(i * ratio), at most in - 1.
  double ratio(size_t axis, int64_t in, int64_t out) const {
    const Dims& scales = node_.attrs.scales;
    double scale = axis < scales.size() ? std::bit_cast<double>(scales[axis]) : 0;
    return scale > 0 ? 1.0 / scale : static_cast<double>(in) / static_cast<double>(out);
  }
  int positions(int64_t n, uint8_t dtype) {
    Attrs a;
    a.dtype = kDType_i64;
    return cast(r_.add(kOp_iota, {}, kDType_i64, {n}, a), dtype);
  }
  int constant_like(double v, int x) { return r_.constant(v, t(x).dtype, t(x).sizes); }

  std::string upsample_nearest() {
    int x = node_.operands[0];
    const Dims to = t(out_).sizes;
    for (size_t d = 2; d < to.size(); ++d) {
      int64_t in = t(x).sizes[d];
      int i = positions(to[d], kDType_f32);
      int position = scalar(kOp_floor, {scalar(kOp_mul, {i, constant_like(static_cast<float>(ratio(d - 2, in, to[d])), i)})});
      int index = cast(position, kDType_i64);
      index = scalar(kOp_minimum, {index, constant_like(static_cast<double>(in - 1), index)});
      bool repeats = to[d] % in == 0 && ratio(d - 2, in, to[d]) == static_cast<double>(in) / static_cast<double>(to[d]);
      x = repeats ? repeat(x, d, to[d] / in) : take(x, index, static_cast<int64_t>(d));
    }
    return result(reshape(x, to));
  }

  int repeat(int x, size_t d, int64_t times) {
    Dims split = t(x).sizes, merged = t(x).sizes;
    split.insert(split.begin() + d + 1, 1);
    merged[d] *= times;
    int y = reshape(x, split);
    split[d + 1] = times;
    return reshape(expand(y, split), merged);
  }

  std::string upsample_bilinear() {
    int x = node_.operands[0];
    x = cast(x, t(x).dtype == kDType_f64 ? kDType_f64 : kDType_f32);
    const Dims to = t(out_).sizes;
    for (size_t d = 2; d < to.size(); ++d) x = interpolate(x, d, to[d]);
    x = cast(x, t(out_).dtype);
    return result(reshape(x, to));
  }

  int interpolate(int x, size_t d, int64_t out) {
    int64_t in = t(x).sizes[d];
    bool align = node_.attrs.align_corners;
    double step = align ? (out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0) : ratio(d - 2, in, out);
    int i = positions(out, t(x).dtype);
    auto c = [&](double v) { return constant_like(v, i); };
    int at = align ? scalar(kOp_mul, {i, c(step)})
                   : scalar(kOp_maximum, {scalar(kOp_sub, {scalar(kOp_mul, {scalar(kOp_add, {i, c(0.5)}), c(step)}), c(0.5)}), c(0)});
    int low = scalar(kOp_minimum, {scalar(kOp_floor, {at}), c(static_cast<double>(in - 1))});
    int high = scalar(kOp_minimum, {scalar(kOp_add, {low, c(1)}), c(static_cast<double>(in - 1))});
    int weight = scalar(kOp_minimum, {scalar(kOp_sub, {at, low}), c(1)});
    int a = take(x, cast(low, kDType_i64), static_cast<int64_t>(d));
    int b = take(x, cast(high, kDType_i64), static_cast<int64_t>(d));
    Dims thin(t(a).sizes.size(), 1);
    thin[d] = out;
    int w = expand(reshape(weight, thin), t(a).sizes);
    int one = constant_like(1, w);
    return scalar(kOp_add, {scalar(kOp_mul, {a, scalar(kOp_sub, {one, w})}), scalar(kOp_mul, {b, w})});
  }

  std::string embedding_bag() {
    if (node_.operands.size() > 2 && node_.operands[2] >= 0) return bags_by_offset();
    if (t(node_.operands[0]).rank() != 2 || t(node_.operands[1]).rank() != 2) return "embedding_bag of other ranks";
    int rows = take(node_.operands[0], node_.operands[1], 0);
    const std::string mode = node_.attrs.mode;
    if (mode == "max") {
      const int place = coordinate(t(rows).sizes, 1);
      const int later = r_.add(kOp_gt, {place, constant_like(0, place)}, kDType_bool, t(rows).sizes);
      return result(reduce(kOp_amax, drop_nan(rows, later), {1}));
    }
    int total = reduce(kOp_sum, rows, {1});
    if (mode != "mean") return result(total);
    double n = static_cast<double>(std::max<int64_t>(t(rows).sizes[1], 1));
    return result(scalar(kOp_div, {total, constant_like(n, total)}));
  }

  // Bags are segments of the gathered rows. Offsets that eager refuses (the first is not 0) give a row of -1, which ends the run.
  std::string bags_by_offset() {
    int indices = node_.operands[1], offsets = node_.operands[2];
    const Dims sizes = t(out_).sizes;
    if (t(indices).numel() == 0 || t(offsets).numel() * t(indices).numel() > kMostBagTests) return "embedding_bag with too many bags";
    int bag = bag_of_position(offsets, t(indices).numel());
    int rows = take(node_.operands[0], indices, 0);
    uint8_t dtype = t(rows).dtype;
    const std::string mode = node_.attrs.mode;
    Attrs a;
    a.monoid = mode == "max" ? Monoid::kMax : Monoid::kSum;
    if (mode == "max") rows = drop_nan(rows, continues(bag, t(rows).sizes));
    int folded = r_.add(kOpSegmentReduce, {rows, bag}, dtype, sizes, a);
    if (mode == "sum") return result(folded);
    a.monoid = Monoid::kSum;
    int count = r_.add(kOpSegmentReduce, {r_.constant(1, kDType_f32, t(rows).sizes), bag}, kDType_f32, sizes, a);
    if (mode == "mean") return result(scalar(kOp_div, {folded, cast(scalar(kOp_maximum, {count, constant_like(1, count)}), dtype)}));
    int some = r_.add(kOp_gt, {count, constant_like(0, count)}, kDType_bool, sizes);
    return result(r_.add(kOp_select, {some, folded, constant_like(0, folded)}, dtype, sizes));
  }

  // Products of all rows with all groups' weights, of which each row keeps its own group's. Ends that do not ascend, or lie behind the last
  // row, give a group of -1, which ends the run.
  std::string grouped_matmul() {
    const int x = node_.operands[0], weights = node_.operands[1], ends = cast(node_.operands[2], kDType_i64);
    const int64_t rows = t(x).sizes[0], depth = t(x).sizes[1], groups = t(weights).sizes[0], columns = t(weights).sizes[2];
    if (t(x).numel() == 0 || t(weights).numel() == 0) return "an empty contraction";
    const double products = static_cast<double>(t(weights).numel()) * static_cast<double>(rows);
    if (products > target_.max_grouped_products) return "products of many rows and groups run in eager's kernel";
    Attrs first, pad;  // where each group begins
    first.end = groups - 1;
    pad.low = {1}, pad.high = {0};
    const auto before = [&] {
      return r_.add(kOp_pad, {r_.add(kOp_slice, {ends}, kDType_i64, {groups - 1}, first)}, kDType_i64, {groups}, pad);
    };
    const int begins = groups == 1 ? r_.constant(0, kDType_i64, {1}) : before();
    const int all_rows = r_.constant(static_cast<double>(rows), kDType_i64, {groups});
    const int back = r_.add(kOp_lt, {ends, begins}, kDType_bool, {groups});
    const int behind = r_.add(kOp_gt, {ends, all_rows}, kDType_bool, {groups});
    const int wrong = reduce(kOp_any, r_.add(kOp_logical_or, {back, behind}, kDType_bool, {groups}), {0});
    const Dims tests{rows, groups};
    const int passed = r_.add(kOp_ge, {coordinate(tests, 0), expand(reshape(ends, {1, groups}), tests)}, kDType_bool, tests);
    const int group = reduce(kOp_sum, cast(passed, kDType_i64), {1});
    const int none = constant_like(static_cast<double>(groups), group), last = constant_like(static_cast<double>(groups - 1), group);
    const int refused = expand(reshape(wrong, {1}), {rows});
    const int some = r_.add(kOp_logical_or, {r_.add(kOp_lt, {group, none}, kDType_bool, {rows}), refused}, kDType_bool, {rows});
    const int kept = r_.add(kOp_select, {refused, constant_like(-1, group), scalar(kOp_minimum, {group, last})}, kDType_i64, {rows});
    Attrs same = node_.attrs, dim;
    const uint8_t dtype = t(x).dtype;
    const int all = r_.add(kOp_matmul, {expand(reshape(x, {1, rows, depth}), {groups, rows, depth}), weights}, dtype,
                           {groups, rows, columns}, same);
    const Dims one{1, rows, columns}, out{rows, columns};
    const int index = expand(reshape(kept, {1, rows, 1}), one);
    const int own = reshape(r_.add(kOp_gather, {all, index}, dtype, one, dim), out);
    return result(r_.add(kOp_select, {expand(reshape(some, {rows, 1}), out), own, constant_like(0, own)}, dtype, out));
  }

  // Eager's maximum of a bag keeps a NaN only where it comes first.
  int drop_nan(int rows, int later) {
    const Dims sizes = t(rows).sizes;
    const int nan = r_.add(kOp_ne, {rows, rows}, kDType_bool, sizes);
    const int drop = r_.add(kOp_logical_and, {nan, later}, kDType_bool, sizes);
    return r_.add(kOp_select, {drop, constant_like(-std::numeric_limits<double>::infinity(), rows), rows}, t(rows).dtype, sizes);
  }

  // Whether the position before belongs to the same bag.
  int continues(int bag, Dims rows) {
    const int64_t n = t(bag).sizes[0];
    Attrs first, pad;
    first.end = n - 1;
    pad.low = {1}, pad.high = {0}, pad.value_i = -1;
    const int before = r_.add(kOp_pad, {r_.add(kOp_slice, {bag}, kDType_i64, {n - 1}, first)}, kDType_i64, {n}, pad);
    const int same = r_.add(kOp_eq, {bag, before}, kDType_bool, {n});
    return expand(reshape(same, {n, 1}), std::move(rows));
  }

  // [positions]: how many bags start at or before each position, less one.
  int bag_of_position(int offsets, int64_t positions) {
    const Dims all{positions, t(offsets).sizes[0]};
    Attrs a;
    a.dtype = kDType_i64;
    int position = expand(reshape(r_.add(kOp_iota, {}, kDType_i64, {positions}, a), {positions, 1}), all);
    int start = expand(reshape(cast(offsets, kDType_i64), {1, all[1]}), all);
    int started = cast(r_.add(kOp_ge, {position, start}, kDType_bool, all), kDType_i64);
    int count = reduce(kOp_sum, started, {1});
    return scalar(kOp_sub, {count, constant_like(1, count)});
  }

  int with_sizes(int like, Dims sizes) { return expand(reshape(like, thin_last(sizes)), sizes); }
  static Dims thin_last(Dims sizes) {
    sizes.back() = 1;
    return sizes;
  }

  // Two products around a softmax. It pays while the scores stay in cache; a long sequence wants a kernel that never stores them.
  std::string attention() {
    int q = node_.operands[0], k = node_.operands[1], v = node_.operands[2];
    const int mask = node_.operands.size() > 3 ? node_.operands[3] : -1;
    Dims all = t(q).sizes;
    const int64_t keys = t(k).sizes[all.size() - 2];
    all.back() = keys;
    int64_t count = 1;
    for (int64_t size : all) count *= size;
    if (t(q).dtype != kDType_f32) return "attention runs in eager's kernel where it is not f32";
    if (static_cast<double>(count) * 4 > target_.max_score_bytes) return "attention runs in eager's kernel where its scores are many";
    // Query heads that share a key head are more rows of one product.
    Dims queries = t(q).sizes, scores = all;
    const bool shared = t(k).sizes[all.size() - 3] != all[all.size() - 3];
    if (shared) {
      for (Dims* d : {&queries, &scores}) {
        (*d)[all.size() - 2] *= all[all.size() - 3] / t(k).sizes[all.size() - 3];
        (*d)[all.size() - 3] = t(k).sizes[all.size() - 3];
      }
      q = reshape(q, queries);
    }
    int weights = r_.add(kOp_matmul, {q, transposed(k)}, kDType_f32, scores);
    weights = softmax(shared ? reshape(weights, all) : weights, mask, all);
    if (shared) weights = reshape(weights, scores);
    queries.back() = t(v).sizes.back();
    int out = r_.add(kOp_matmul, {weights, v}, kDType_f32, queries);
    return result(shared ? reshape(out, t(out_).sizes) : out);
  }

  int transposed(int x) {
    Attrs a;
    for (int64_t d = 0; d < t(x).rank(); ++d) a.dims.push_back(d);
    std::swap(a.dims[a.dims.size() - 1], a.dims[a.dims.size() - 2]);
    Dims sizes = t(x).sizes, strides = t(x).strides;
    std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
    std::swap(strides[sizes.size() - 1], strides[sizes.size() - 2]);
    int y = r_.add(kOp_permute, {x}, t(x).dtype, sizes, a);
    r_.tensors[y].strides = strides;
    return y;
  }

  // A row of which nothing may be seen gives zeros: its maximum is held finite, and every other row's sum is at least 1.
  int softmax(int x, int mask, const Dims& all) {
    x = scalar(kOp_mul, {x, constant_like(node_.attrs.scale, x)});
    const bool some_hidden = mask >= 0 || node_.attrs.causal;
    const int64_t last = static_cast<int64_t>(all.size()) - 1;
    auto hide = [&](int seen) {
      x = r_.add(kOp_select, {seen, x, constant_like(-std::numeric_limits<double>::infinity(), x)}, kDType_f32, all);
    };
    if (mask >= 0 && t(mask).dtype == kDType_bool) hide(mask);
    if (mask >= 0 && t(mask).dtype != kDType_bool) x = scalar(kOp_add, {x, mask});
    if (node_.attrs.causal) {  // query i sees keys up to i, however many there are of either
      int query = coordinate(all, last - 1);
      if (KRN_PLANTED(causal_bottom_right))
        query = scalar(kOp_add, {query, r_.constant(static_cast<double>(all[last] - all[last - 1]), kDType_i64, all)});
      hide(r_.add(kOp_ge, {query, coordinate(all, last)}, kDType_bool, all));
    }
    int high = reduce(kOp_amax, x, {last});
    if (some_hidden) high = scalar(kOp_maximum, {high, constant_like(std::numeric_limits<float>::lowest(), high)});
    x = scalar(kOp_exp, {scalar(kOp_sub, {x, with_sizes(high, all)})});
    int total = reduce(kOp_sum, x, {last});
    if (some_hidden) total = scalar(kOp_maximum, {total, constant_like(1, total)});
    return scalar(kOp_div, {x, with_sizes(total, all)});
  }

  int coordinate(Dims all, int64_t axis) {  // by value: sizes of a tensor move when one is added
    Attrs a;
    a.dtype = kDType_i64;
    Dims thin(all.size(), 1);
    thin[axis] = all[axis];
    return expand(reshape(r_.add(kOp_iota, {}, kDType_i64, {all[axis]}, a), thin), all);
  }

  // An index of the result's rank that changes along `dim` only, as the 1-d tensor it repeats; -1 if it changes elsewhere.
  int one_dimensional(int index, int64_t dim) {
    if (t(index).rank() == 1) return index;
    Layout layout(r_);
    int base = view_base(r_, index);
    if (!layout.stored(base)) layout.place(base, Storage{0, 0, row_major(t(base).sizes)});
    StridedView view;
    if (!resolve_view(r_, layout, index, view)) return -1;
    int x = index;
    for (int64_t d = 0; d < t(index).rank(); ++d) {
      if (d == dim || t(index).sizes[d] == 1) continue;
      if (view.strides[d] != 0) return -1;
      Attrs a;
      a.dim = d, a.start = 0, a.end = 1;
      Dims sizes = t(x).sizes;
      sizes[d] = 1;
      x = r_.add(kOp_slice, {x}, t(x).dtype, sizes, a);
    }
    return reshape(x, {t(index).sizes[dim]});
  }

  std::string scatter() {
    int self = node_.operands[0], index = node_.operands[1], src = node_.operands[2];
    if (node_.attrs.reduce.empty() || node_.attrs.reduce == "none") return "scatter without a reduction";
    if (t(index).sizes != t(src).sizes) return "scatter whose source is larger than its index";
    for (int d = 0; d < t(self).rank(); ++d) {
      if (d != node_.attrs.dim && t(self).sizes[d] != t(src).sizes[d]) return "scatter into a larger tensor";
    }
    int flat = one_dimensional(index, node_.attrs.dim);
    return flat < 0 ? "scatter whose index changes along several axes" : segment(flat);
  }

  // index_copy of one row: everywhere else the tensor as it was.
  std::string one_row(int index) {
    const int self = node_.operands[0], src = node_.operands[2];
    if (t(index).numel() != 1) return "rows of an index of several";
    const Dims sizes = t(self).sizes;
    const int64_t rank = t(self).rank();
    int here = coordinate(sizes, node_.attrs.dim);
    // Out of the rows' own numbers, so that the index is checked: one outside would be no row's.
    Attrs numbers;
    numbers.dtype = kDType_i64;
    int row = take(r_.add(kOp_iota, {}, kDType_i64, {sizes[node_.attrs.dim]}, numbers), index, 0);
    int there = expand(reshape(row, Dims(rank, 1)), sizes);
    int hit = r_.add(kOp_eq, {here, there}, kDType_bool, sizes);
    return result(r_.add(kOp_select, {hit, expand(src, sizes), self}, t(self).dtype, sizes));
  }

  std::string segment(int index) {
    int self = node_.operands[0], src = node_.operands[2];
    const Attrs from = node_.attrs;
    const std::string& kind = from.reduce;
    if (t(index).rank() != 1 || (t(index).dtype != kDType_i64 && t(index).dtype != kDType_i32)) return "an index that is not 1-d int";
    bool mean = kind == "mean";
    if (kind == "none") return one_row(index);
    if (kind != "sum" && !mean && kind != "amax" && kind != "amin") return "index reduction '" + kind + "'";
    if (mean && !is_float(t(self).dtype)) return "integer mean of scattered rows";
    Attrs a;
    a.dim = from.dim;
    a.monoid = kind == "amax" ? Monoid::kMax : kind == "amin" ? Monoid::kMin : Monoid::kSum;
    const Dims sizes = t(self).sizes;
    const uint8_t dtype = t(self).dtype;
    // A row that nothing goes to starts at the least or greatest i64, which a narrow integer does not hold.
    const uint8_t wide = is_integer(dtype) ? static_cast<uint8_t>(kDType_i64) : dtype;
    self = cast(self, wide), src = cast(src, wide);
    int folded = r_.add(kOpSegmentReduce, {src, index}, wide, sizes, a);
    int count = -1;
    if (mean || !from.include_self) {
      a.monoid = Monoid::kSum;
      count = r_.add(kOpSegmentReduce, {r_.constant(1, kDType_f32, t(src).sizes), index}, kDType_f32, sizes, a);
    }
    int out;
    if (from.include_self) {
      uint32_t op = kOp_add;
      if (kind == "amax") op = kOp_maximum;
      if (kind == "amin") op = kOp_minimum;
      out = scalar(op, {self, folded});
      if (mean) out = scalar(kOp_div, {out, cast(scalar(kOp_add, {count, constant_like(1, count)}), wide)});
    } else {
      out = mean ? scalar(kOp_div, {folded, cast(count, wide)}) : folded;
      int some = r_.add(kOp_gt, {count, constant_like(0, count)}, kDType_bool, sizes);
      out = r_.add(kOp_select, {some, out, self}, wide, sizes);
    }
    return result(cast(out, dtype));
  }

  std::string matmul() {
    int a = node_.operands[0], b = node_.operands[1];
    bool linear = node_.op == kOp_linear;
    Dims rows = t(a).sizes;
    int64_t k = rows.back(), n = t(out_).sizes.back();
    if (t(out_).numel() * k > kTinyMatmul) return on_copies(linear ? 1 : 2);
    Dims all = rows;
    all.push_back(n);
    Dims left = rows;
    left.push_back(1);
    if (linear) {
      Attrs p;
      p.dims = {1, 0};
      b = r_.add(kOp_permute, {b}, t(b).dtype, {k, n}, p);
    }
    Dims right(all.size() - 2, 1);  // of a batch, the second operand has its own copy for each product
    for (size_t d = 0; !linear && d + 3 < all.size(); ++d) right[d] = t(b).sizes[d];
    right.insert(right.end(), {k, n});
    int products = scalar(kOp_mul, {expand(reshape(a, left), all), expand(reshape(b, right), all)});
    int out = reduce(kOp_sum, products, {static_cast<int64_t>(all.size()) - 2});
    bool bias = linear && node_.operands.size() > 2 && node_.operands[2] >= 0;
    if (!bias) return result(out);
    Dims thin(t(out_).sizes.size(), 1);
    thin.back() = n;
    return result(scalar(kOp_add, {out, expand(reshape(node_.operands[2], thin), t(out_).sizes)}));
  }

  std::string conv() {
    if (!is_pixel_product(describe_anchor(r_, node_))) return "conv has no generated form";
    const int x = node_.operands[0], w = node_.operands[1];
    const int64_t images = t(x).sizes[0], depth = t(x).sizes[1], channels = t(w).sizes[0];
    const Dims all{images, channels, depth};
    const int products = scalar(kOp_mul, {expand(reshape(x, {images, 1, depth}), all), expand(reshape(w, {1, channels, depth}), all)});
    int out = reduce(kOp_sum, products, {2});
    if (node_.operands.size() > 2 && node_.operands[2] >= 0)
      out = scalar(kOp_add, {out, expand(reshape(node_.operands[2], {1, channels}), {images, channels})});
    return result(reshape(out, t(out_).sizes));
  }

  // The same product, with the first operands laid out in rows: a library may refuse only how they lie. Where it refuses that too,
  // there is nothing left to copy.
  std::string on_copies(size_t count) {
    std::vector<int> operands = node_.operands;
    bool copied = false;
    for (size_t i = 0; i < count; ++i) {
      if (t(operands[i]).strides == row_major(t(operands[i]).sizes)) continue;
      operands[i] = r_.add(kOp_relayout, {operands[i]}, t(operands[i]).dtype, t(operands[i]).sizes);
      copied = true;
    }
    if (!copied) return "a matmul that the library refuses and that is too large to generate";
    return result(r_.add(node_.op, operands, t(out_).dtype, t(out_).sizes, node_.attrs));
  }

  FlatRegion& r_;
  const TensorNode node_;
  const TargetInfo& target_;
  int out_;
};

}  // namespace

std::string rewrite(FlatRegion& region, int n, const TargetInfo& target) { return Writer(region, n, target).rewrite(); }

bool is_pixel_product(const AnchorDesc& anchor) {
  if (anchor.op != kOp_conv || anchor.transposed || anchor.groups != 1) return false;
  const Dims &x = anchor.operands[0].sizes, &w = anchor.operands[1].sizes, &y = anchor.results[0].sizes;
  if (x.size() < 3 || w.size() != x.size() || y.size() != x.size() || w[1] != x[1]) return false;
  for (size_t d = 2; d < x.size(); ++d)
    if (x[d] != 1 || w[d] != 1 || y[d] != 1) return false;
  if (std::ranges::any_of(anchor.padding, [](int64_t p) { return p != 0; })) return false;
  return w[0] * w[1] <= kPixelWeights && x[0] * w[0] * w[1] <= kPixelProducts;
}

static TensorDesc describe(const FlatRegion& region, int tensor) {
  TensorDesc out;
  if (tensor < 0) return out;
  const Tensor& t = region.tensors[tensor];
  out.buffer = 0;
  out.dtype = t.dtype;
  out.sizes = t.sizes;
  out.strides = t.strides;
  out.weight = t.weight;
  return out;
}

AnchorDesc describe_anchor(const FlatRegion& region, const TensorNode& node) {
  AnchorDesc d;
  d.op = node.op;
  for (int x : node.operands) d.operands.push_back(describe(region, x));
  for (int x : node.results) d.results.push_back(describe(region, x));
  const Attrs& a = node.attrs;
  d.stride = a.stride, d.padding = a.padding, d.dilation = a.dilation, d.output_padding = a.output_padding;
  d.kernel = a.kernel, d.sizes = a.sizes;
  d.groups = a.groups, d.layers = a.layers, d.divisor = a.divisor;
  d.transposed = a.transposed, d.causal = a.causal, d.gqa = a.gqa, d.bidirectional = a.bidirectional;
  d.batch_first = a.batch_first, d.has_biases = a.has_biases, d.ceil_mode = a.ceil_mode;
  d.count_include_pad = a.count_include_pad, d.align_corners = a.align_corners, d.include_last_offset = a.include_last_offset;
  d.ieee = a.ieee;
  d.scale = a.scale, d.mode = a.mode;
  return d;
}

}  // namespace keirin::codegen
