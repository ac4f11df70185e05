// SPDX-License-Identifier: Apache-2.0
//
// One function and one row per operator. What they mean was read off the packages' schemas and off what they answer
// (tests/data/packages/make.py records it); arguments that no exported file was seen to pass are refused.
#include "core/eager/program/package_ops.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/eager/rows/grouped_matmul.h"

namespace keirin {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// ---- torchvision

// Boxes in the order of their scores; each that stays removes the later ones whose overlap with it is larger than the
// threshold.
Tensor nms(const Tensor& dets, const Tensor& scores, double iou_threshold) {
  TORCH_CHECK(dets.dim() == 2 && dets.size(1) == 4, "boxes should be a 2d tensor of 4 columns, got sizes ",
              dets.sizes());
  TORCH_CHECK(scores.dim() == 1 && scores.size(0) == dets.size(0), "there should be one score for each box");
  const Tensor order = std::get<1>(scores.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
  const Tensor boxes = dets.index_select(0, order).to(at::kCPU).t().contiguous();
  const int64_t count = dets.size(0);
  std::vector<int64_t> kept;
  const auto keep = [&]<class T>(const T* x1) {
    const T *y1 = x1 + count, *x2 = y1 + count, *y2 = x2 + count;
    std::vector<T> areas(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) areas[static_cast<size_t>(i)] = (x2[i] - x1[i]) * (y2[i] - y1[i]);
    std::vector<bool> removed(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      if (removed[static_cast<size_t>(i)]) continue;
      kept.push_back(i);
      for (int64_t j = i + 1; j < count; ++j) {
        const T width = std::max(T(0), std::min(x2[i], x2[j]) - std::max(x1[i], x1[j]));
        const T height = std::max(T(0), std::min(y2[i], y2[j]) - std::max(y1[i], y1[j]));
        const T common = width * height;
        if (common / (areas[static_cast<size_t>(i)] + areas[static_cast<size_t>(j)] - common) > iou_threshold)
          removed[static_cast<size_t>(j)] = true;
      }
    }
  };
  if (boxes.scalar_type() == at::kDouble)
    keep(boxes.const_data_ptr<double>());
  else
    keep(boxes.to(at::kFloat).const_data_ptr<float>());
  return order.index_select(0, at::tensor(kept, at::kLong).to(order.device()));
}

// The share of each cell of an axis in each bin of a region: the samples of a bin lie evenly in it, each is
// interpolated between two cells, and one that lies outside of the axis by more than a cell counts as zero. Only cells
// from `first` on are held.
struct Shares {
  int64_t first = 0;
  Tensor shares;  // [bins, cells] on the CPU; without cells if no sample lies inside
};

// In the arithmetic of the input: how many samples a bin has may hang on a rounding.
template <class T>
Shares shares_of(T begin, T end, int64_t bins, int64_t sampling, int64_t cells, bool aligned) {
  const T extent = aligned ? end - begin : std::max(end - begin, T(1));
  const T bin = extent / static_cast<T>(bins);
  const auto samples = sampling > 0 ? sampling : static_cast<int64_t>(std::ceil(bin));
  const Tensor all = at::zeros({bins, cells}, c10::CppTypeToScalarType<T>::value);
  int64_t first = cells, last = -1;
  for (int64_t b = 0; b < bins; ++b) {
    T* row = all.mutable_data_ptr<T>() + b * cells;
    for (int64_t s = 0; s < samples; ++s) {
      T at = begin + static_cast<T>(b) * bin + (static_cast<T>(s) + T(0.5)) * bin / static_cast<T>(samples);
      if (at < -1 || at > static_cast<T>(cells)) continue;
      at = std::clamp(at, T(0), static_cast<T>(cells - 1));
      const auto low = static_cast<int64_t>(at);
      const int64_t high = std::min(low + 1, cells - 1);
      const T part = at - static_cast<T>(low);
      row[low] += (1 - part) / static_cast<T>(samples);
      row[high] += part / static_cast<T>(samples);
      first = std::min(first, low), last = std::max(last, high);
    }
  }
  return last < first ? Shares{0, all.slice(1, 0, 0)} : Shares{first, all.slice(1, first, last + 1)};
}

// Interpolation along two axes is a product of two matrices with the cells between them.
template <class T>
Tensor aligned_regions(const Tensor& input, const Tensor& rois, T scale, int64_t pooled_height, int64_t pooled_width,
                       int64_t sampling, bool aligned) {
  constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;
  const Tensor regions = rois.to(at::kCPU, kType).contiguous();
  const Tensor output = at::zeros({rois.size(0), input.size(1), pooled_height, pooled_width}, input.options());
  const T offset = aligned ? T(0.5) : T(0);
  for (int64_t k = 0; k < rois.size(0); ++k) {
    const T* region = regions.const_data_ptr<T>() + 5 * k;
    const auto image = static_cast<int64_t>(region[0]);
    TORCH_CHECK_INDEX(image >= 0 && image < input.size(0), "region ", k, " is of image ", image, " of ", input.size(0));
    const auto shares = [&](T begin, T end, int64_t bins, int64_t cells) {
      return shares_of<T>(begin * scale - offset, end * scale - offset, bins, sampling, cells, aligned);
    };
    const Shares rows = shares(region[2], region[4], pooled_height, input.size(2));
    const Shares columns = shares(region[1], region[3], pooled_width, input.size(3));
    if (rows.shares.size(1) == 0 || columns.shares.size(1) == 0) continue;
    const Tensor cells = input[image]
                             .narrow(1, rows.first, rows.shares.size(1))
                             .narrow(2, columns.first, columns.shares.size(1))
                             .to(kType);
    output[k].copy_(
        at::matmul(at::matmul(rows.shares.to(input.device()), cells), columns.shares.to(input.device()).t()));
  }
  return output;
}

Tensor roi_align(const Tensor& input, const Tensor& rois, double spatial_scale, int64_t pooled_height,
                 int64_t pooled_width, int64_t sampling_ratio, bool aligned) {
  TORCH_CHECK(rois.dim() == 2 && rois.size(1) == 5, "regions should be a 2d tensor of 5 columns, got sizes ",
              rois.sizes());
  if (input.scalar_type() == at::kDouble)
    return aligned_regions<double>(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned);
  return aligned_regions<float>(input, rois, static_cast<float>(spatial_scale), pooled_height, pooled_width,
                                sampling_ratio, aligned);
}

// The package's functions ask for it while they are exported; nothing reads the answer. -1: made without CUDA.
int64_t cuda_version() { return -1; }

// ---- torch_scatter

enum class Reduction { kSum, kMean, kMul, kMin, kMax };

void refuse_out(const OptionalTensor& out) {
  TORCH_CHECK(!out, "an output that is given is written by torch_scatter's own library only: --load-library");
}

at::Scalar start_of(Reduction reduction, at::ScalarType type) {
  if (reduction == Reduction::kMul) return 1;
  if (reduction == Reduction::kSum || reduction == Reduction::kMean) return 0;
  const bool least = reduction == Reduction::kMax;
  at::Scalar start;
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, type, "torch_scatter", [&] {
    start = least ? std::numeric_limits<scalar_t>::lowest() : std::numeric_limits<scalar_t>::max();
  });
  return start;
}

// Elements of `src` along `dim` to the place that `index` (of the sizes of `src`) names. The second result, of min and
// max only, is the first element that is the extreme one. What nothing was put into is 0, of a product 1, and its
// element is the number behind the last.
std::tuple<Tensor, Tensor> reduce(const Tensor& src, const Tensor& index, int64_t dim, int64_t size,
                                  Reduction reduction) {
  std::vector<int64_t> sizes = src.sizes().vec();
  sizes[static_cast<size_t>(dim)] = size;
  const at::Scalar start = start_of(reduction, src.scalar_type());
  const Tensor out = at::full(sizes, start, src.options());
  if (reduction == Reduction::kMul) return {out.scatter_reduce(dim, index, src, "prod"), Tensor()};
  if (reduction == Reduction::kSum) return {out.scatter_add(dim, index, src), Tensor()};
  if (reduction == Reduction::kMean) {
    const Tensor sum = out.scatter_add(dim, index, src), ones = at::ones_like(src, at::MemoryFormat::Contiguous);
    const Tensor counts = at::zeros_like(out).scatter_add(dim, index, ones).clamp_min(1);
    return {at::isFloatingType(src.scalar_type()) ? sum / counts : sum.div(counts, "floor"), Tensor()};
  }
  const bool least = reduction == Reduction::kMin;
  const Tensor begins = at::full({}, start, src.options());
  const Tensor counted = least ? src < begins : src > begins;  // not what equals the start, and no NaN
  const Tensor extremes = out.scatter_reduce(dim, index, at::where(counted, src, begins), least ? "amin" : "amax");
  std::vector<int64_t> along(sizes.size(), 1);
  along[static_cast<size_t>(dim)] = src.size(dim);
  const Tensor numbers = at::arange(src.size(dim), index.options()).view(along).expand(src.sizes());
  const Tensor chosen = counted.logical_and(src == extremes.gather(dim, index));
  const Tensor none = at::full({}, src.size(dim), index.options());
  const Tensor first = at::full(sizes, src.size(dim), index.options())
                           .scatter_reduce(dim, index, at::where(chosen, numbers, none), "amin");
  return {extremes.masked_fill(extremes == begins, 0), first};
}

template <Reduction reduction>
constexpr bool kIsExtreme = reduction == Reduction::kMin || reduction == Reduction::kMax;
// Min and max return the elements' numbers too.
template <Reduction reduction>
using Reduced = std::conditional_t<kIsExtreme<reduction>, std::tuple<Tensor, Tensor>, Tensor>;

template <Reduction reduction>
Reduced<reduction> reduced(std::tuple<Tensor, Tensor> both) {
  if constexpr (kIsExtreme<reduction>)
    return both;
  else
    return std::get<0>(std::move(both));
}

// An index of fewer axes stands for all elements of the other ones.
Tensor like_source(Tensor index, const Tensor& src, int64_t leading) {
  for (int64_t i = 0; i < leading; ++i) index = index.unsqueeze(0);
  while (index.dim() < src.dim()) index = index.unsqueeze(-1);
  return index.expand(src.sizes());
}

template <Reduction reduction>
Reduced<reduction> scatter(const Tensor& src, const Tensor& index, int64_t dim, const OptionalTensor& out,
                           std::optional<int64_t> dim_size) {
  refuse_out(out);
  dim = dim < 0 ? dim + src.dim() : dim;
  const int64_t size = dim_size ? *dim_size : index.numel() == 0 ? 0 : index.max().item<int64_t>() + 1;
  return reduced<reduction>(reduce(src, like_source(index, src, index.dim() == 1 ? dim : 0), dim, size, reduction));
}

// `index` ascends along its last axis.
template <Reduction reduction>
Reduced<reduction> segment_coo(const Tensor& src, const Tensor& index, const OptionalTensor& out,
                               std::optional<int64_t> dim_size) {
  refuse_out(out);
  const int64_t size = dim_size ? *dim_size : index.numel() == 0 ? 0 : index.select(-1, -1).max().item<int64_t>() + 1;
  return reduced<reduction>(reduce(src, like_source(index, src, 0), index.dim() - 1, size, reduction));
}

// The segment of each of `count` elements where `indptr` holds the segments' borders along its last axis.
Tensor segment_numbers(const Tensor& indptr, const Tensor& src, int64_t count) {
  const int64_t dim = indptr.dim() - 1;
  std::vector<int64_t> sizes(src.sizes().begin(), src.sizes().begin() + dim);
  sizes.push_back(indptr.size(dim));
  const Tensor borders = indptr.expand(sizes).contiguous();
  sizes.back() = count;
  return at::searchsorted(borders, at::arange(count, indptr.options()).expand(sizes).contiguous(), /*out_int32=*/false,
                          /*right=*/true) -
         1;
}

template <Reduction reduction>
Reduced<reduction> segment_csr(const Tensor& src, const Tensor& indptr, const OptionalTensor& out) {
  refuse_out(out);
  const int64_t dim = indptr.dim() - 1, segments = std::max<int64_t>(indptr.size(dim) - 1, 0);
  // What lies before the first border or behind the last one is nobody's: it goes to a place of its own, which is cut
  // off.
  const Tensor number = segment_numbers(indptr, src, src.size(dim));
  const Tensor index = at::where(number < 0, segments, number).clamp_max(segments);
  auto [values, first] = reduce(src, like_source(index, src, 0), dim, segments + 1, reduction);
  values = values.narrow(dim, 0, segments).contiguous();
  if (first.defined()) first = first.narrow(dim, 0, segments).contiguous();
  return reduced<reduction>({values, first});
}

Tensor gather_coo(const Tensor& src, const Tensor& index, const OptionalTensor& out) {
  refuse_out(out);
  std::vector<int64_t> sizes = src.sizes().vec();
  sizes[static_cast<size_t>(index.dim() - 1)] = index.size(-1);
  Tensor wide = index;
  while (wide.dim() < src.dim()) wide = wide.unsqueeze(-1);
  return src.gather(index.dim() - 1, wide.expand(sizes));
}

Tensor gather_csr(const Tensor& src, const Tensor& indptr, const OptionalTensor& out) {
  const int64_t count = src.numel() == 0 ? 0 : indptr.flatten()[-1].item<int64_t>();
  return gather_coo(src, segment_numbers(indptr, src, count), out);
}

// ---- bitsandbytes

constexpr std::array<float, 16> kNormalFloats = {
    -1.f,          -0.696192801f, -0.525073051f, -0.394917488f, -0.284441382f, -0.18477343f, -0.0910500363f, 0.f,
    0.0795802996f, 0.160930201f,  0.246112302f,  0.337915242f,  0.440709829f,  0.562617004f, 0.722956836f,   1.f};
constexpr std::array<float, 16> kFloats = {0.f, 0.00520833349f,  2.f / 3,  1.f,  1.f / 3,  0.5f,  1.f / 6,  0.25f,
                                           0.f, -0.00520833349f, -2.f / 3, -1.f, -1.f / 3, -0.5f, -1.f / 6, -0.25f};

// Blocks of `blocksize` numbers of `codes`, the last one may be shorter, times their scale.
Tensor scaled_blocks(const Tensor& codes, const Tensor& absmax, int64_t blocksize) {
  const Tensor scales = absmax.reshape(-1).repeat_interleave(blocksize).slice(0, 0, codes.numel());
  return codes.reshape(-1) * scales;
}

Tensor dequantize_blockwise(const Tensor& A, const Tensor& absmax, const Tensor& code, int64_t blocksize,
                            at::ScalarType dtype) {
  return scaled_blocks(code.index_select(0, A.reshape(-1).to(at::kLong)), absmax, blocksize)
      .to(dtype)
      .reshape(A.sizes());
}

// Two numbers in a byte, the first one in its upper half.
Tensor unpacked(const Tensor& A, const Tensor& absmax, const Tensor& code, int64_t blocksize, at::IntArrayRef shape,
                at::ScalarType dtype) {
  const Tensor bytes = A.view(at::kByte).reshape(-1);
  const Tensor halves = at::stack({bytes.bitwise_right_shift(4), bytes.bitwise_and(15)}, 1).reshape(-1);
  const Tensor codes = code.index_select(0, halves.to(at::kLong)).slice(0, 0, c10::multiply_integers(shape));
  return scaled_blocks(codes, absmax, blocksize).to(dtype).reshape(shape);
}

Tensor dequantize_4bit(const Tensor& A, const Tensor& absmax, int64_t blocksize, c10::string_view quant_type,
                       at::IntArrayRef shape, at::ScalarType dtype) {
  TORCH_CHECK(quant_type == "nf4" || quant_type == "fp4", "quant_type should be nf4 or fp4, got ", quant_type);
  const auto& table = quant_type == "nf4" ? kNormalFloats : kFloats;
  const Tensor code = at::tensor(at::ArrayRef<float>(table.data(), table.size()), at::kFloat).to(absmax.options());
  return unpacked(A, absmax, code, blocksize, shape, dtype);
}

Tensor gemv_4bit(const Tensor& A, const Tensor& B, at::IntArrayRef shapeB, const Tensor& absmax, const Tensor& code,
                 int64_t blocksize) {
  return at::linear(A, unpacked(B, absmax, code.to(absmax.scalar_type()), blocksize, shapeB, A.scalar_type()));
}

// With `absmax_8bit` the scales are quantized themselves, in blocks of 256.
Tensor gemm_4bit(const Tensor& A, const Tensor& B, at::IntArrayRef shapeB, const Tensor& absmax, int64_t blocksize,
                 c10::string_view quant_type, const OptionalTensor& bias, const OptionalTensor& absmax_8bit,
                 const OptionalTensor& absmax_code, const OptionalTensor& absmax_offset) {
  Tensor scales = absmax;
  if (absmax_8bit)
    scales = dequantize_blockwise(*absmax_8bit, absmax, absmax_code.value(), 256, absmax.scalar_type()) +
             absmax_offset.value();
  return at::linear(A, dequantize_4bit(B, scales, blocksize, quant_type, shapeB, A.scalar_type()), bias);
}

Tensor int8_linear_matmul(const Tensor& A, const Tensor& B) {
  return at::matmul(A.to(at::kDouble), B.to(at::kDouble).t()).to(at::kInt);  // whole numbers, exact in f64
}

Tensor int8_mm_dequant(const Tensor& A, const Tensor& row_stats, const Tensor& col_stats,
                       std::optional<at::ScalarType> dtype, const OptionalTensor& bias) {
  // 1 / 127^2, which the package's code for CPUs rounds to other digits than its kernels for GPUs.
  const double unit = A.is_cpu() ? 6.200124e-05 : 1.0 / (127 * 127);
  Tensor out = A.reshape({-1, A.size(-1)}) * (row_stats.reshape({-1, 1}) * col_stats.reshape({1, -1})) * unit;
  if (bias) out = out + *bias;
  return out.to(dtype.value_or(at::kHalf));
}

Tensor int8_scaled_mm(const Tensor& A, const Tensor& B, const Tensor& row_stats, const Tensor& col_stats,
                      const OptionalTensor& bias, std::optional<at::ScalarType> dtype) {
  return int8_mm_dequant(int8_linear_matmul(A, B), row_stats, col_stats, dtype, bias);
}

// Rows by their largest elements. Elements of `threshold` and above stay out of it; their columns, the third result,
// are zero.
std::tuple<Tensor, Tensor, OptionalTensor> int8_vectorwise_quant(const Tensor& A, double threshold) {
  Tensor kept = A;
  OptionalTensor columns;
  if (threshold > 0) {
    const Tensor outliers = A.abs() >= threshold;
    kept = A.masked_fill(outliers, 0);
    columns = outliers.any(0).nonzero().view(-1);
  }
  const Tensor largest = kept.abs().amax(1), stats = A.scalar_type() == at::kDouble ? largest : largest.to(at::kFloat);
  Tensor rows = (kept * (127.0 / stats.unsqueeze(-1))).round().to(at::kChar);
  if (columns && A.size(0) > 1) rows = rows.index_fill(1, *columns, 0);
  return {rows, stats, columns};
}

Tensor int8_vectorwise_dequant(const Tensor& A, const Tensor& stats) {
  return A * stats.reshape({-1, 1}) * (1.0 / 127);
}

// ---- the table

struct Row {
  const char* space;
  const char* schema;
  void (*define)(torch::Library& library, const char* schema);
};

template <auto function>
void define(torch::Library& library, const char* schema) {
  library.def(schema, function);
}

#define KRN_ROW(space, schema, ...) \
  { #space, schema, define < &__VA_ARGS__> }
// torch_scatter's schemas are inferred: their parameters have no names.
#define KRN_SCATTER(name, reduction, result)                                                               \
  KRN_ROW(torch_scatter, "scatter_" name "(Tensor _0, Tensor _1, int _2, Tensor? _3, int? _4) -> " result, \
          scatter<reduction>),                                                                             \
      KRN_ROW(torch_scatter, "segment_" name "_coo(Tensor _0, Tensor _1, Tensor? _2, int? _3) -> " result, \
              segment_coo<reduction>),                                                                     \
      KRN_ROW(torch_scatter, "segment_" name "_csr(Tensor _0, Tensor _1, Tensor? _2) -> " result,          \
              segment_csr<reduction>)
constexpr Row kRows[] = {
    KRN_ROW(transformers, "grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor", grouped_matmul),
    KRN_ROW(torchvision, "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor", nms),
    KRN_ROW(torchvision,
            "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, int "
            "sampling_ratio, bool aligned) "
            "-> Tensor",
            roi_align),
    KRN_ROW(torchvision, "_cuda_version() -> int", cuda_version),
    KRN_SCATTER("sum", Reduction::kSum, "Tensor"),
    KRN_SCATTER("mean", Reduction::kMean, "Tensor"),
    KRN_SCATTER("min", Reduction::kMin, "(Tensor, Tensor)"),
    KRN_SCATTER("max", Reduction::kMax, "(Tensor, Tensor)"),
    KRN_ROW(torch_scatter, "scatter_mul(Tensor _0, Tensor _1, int _2, Tensor? _3, int? _4) -> Tensor",
            scatter<Reduction::kMul>),
    KRN_ROW(torch_scatter, "gather_coo(Tensor _0, Tensor _1, Tensor? _2) -> Tensor", gather_coo),
    KRN_ROW(torch_scatter, "gather_csr(Tensor _0, Tensor _1, Tensor? _2) -> Tensor", gather_csr),
    KRN_ROW(bitsandbytes,
            "dequantize_blockwise(Tensor A, Tensor absmax, Tensor code, int blocksize, ScalarType dtype) -> Tensor",
            dequantize_blockwise),
    KRN_ROW(bitsandbytes,
            "dequantize_4bit(Tensor A, Tensor absmax, int blocksize, str quant_type, int[] shape, ScalarType dtype) -> "
            "Tensor",
            dequantize_4bit),
    KRN_ROW(bitsandbytes,
            "gemv_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, Tensor code, int blocksize) -> Tensor",
            gemv_4bit),
    KRN_ROW(
        bitsandbytes,
        "gemm_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, int blocksize, str quant_type, Tensor? bias=None, "
        "Tensor? absmax_8bit=None, Tensor? absmax_code=None, Tensor? absmax_offset=None) -> Tensor",
        gemm_4bit),
    KRN_ROW(bitsandbytes, "int8_linear_matmul(Tensor A, Tensor B) -> Tensor", int8_linear_matmul),
    KRN_ROW(bitsandbytes,
            "int8_mm_dequant(Tensor A, Tensor row_stats, Tensor col_stats, ScalarType? dtype=None, Tensor? bias=None) "
            "-> Tensor",
            int8_mm_dequant),
    KRN_ROW(bitsandbytes,
            "int8_scaled_mm(Tensor A, Tensor B, Tensor row_stats, Tensor col_stats, Tensor? bias=None, ScalarType? "
            "dtype=None) -> Tensor",
            int8_scaled_mm),
    KRN_ROW(bitsandbytes, "int8_vectorwise_quant(Tensor A, float threshold=0.) -> (Tensor, Tensor, Tensor?)",
            int8_vectorwise_quant),
    KRN_ROW(bitsandbytes, "int8_vectorwise_dequant(Tensor A, Tensor stats) -> Tensor", int8_vectorwise_dequant),
};
#undef KRN_SCATTER
#undef KRN_ROW

constexpr std::string_view kPrefix = "keirin_";

// Packages and what of theirs registers their operators in a process without Python.
struct Package {
  std::string_view space, libraries;
};
constexpr Package kPackages[] = {
    {"torchvision",
     "libtorchvision.so of its C++ build (torchvision/_C.so of the Python package needs a process with Python)"},
    {"torch_scatter", "torch_scatter/_scatter_cpu.so, _segment_csr_cpu.so and _segment_coo_cpu.so (or _cuda.so each)"},
    {"torch_sparse", "the libraries of torch_sparse/ (_spmm_cpu.so, _convert_cpu.so, ...; or _cuda.so each)"},
    {"torch_cluster", "the libraries of torch_cluster/ (_knn_cpu.so, _radius_cpu.so, ...; or _cuda.so each)"},
    {"torch_spline_conv", "torch_spline_conv/_basis_cpu.so and _weighting_cpu.so (or _cuda.so each)"},
    {"pyg", "libpyg.so of pyg_lib"},
    {"fbgemm", "fbgemm_gpu/fbgemm_gpu_py.so"},
    {"torchaudio", "the libraries of torchaudio/lib/"},
    {"torchao", "torchao/_C*.so"},
};
// Registered by Python code: no library holds them.
constexpr std::string_view kPythonOnly[] = {"transformers", "bitsandbytes", "quantized_decomposed", "flash_attn",
                                            "triton"};

}  // namespace

std::optional<c10::OperatorHandle> find_package_op(const std::string& space, const std::string& name,
                                                   const std::string& overload) {
  if (!overload.empty()) return std::nullopt;
  for (const Row& row : kRows) {
    const std::string_view schema = row.schema;
    if (space != row.space || schema.substr(0, schema.find('(')) != name) continue;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const c10::OperatorName full(std::string(kPrefix) + space + "::" + name, "");
    if (const auto known = c10::Dispatcher::singleton().findSchema(full)) return known;
    // Never taken back: operators of loaded programs are called as long as the process runs.
    auto* library =
        new torch::Library(torch::Library::FRAGMENT, std::string(kPrefix) + space, std::nullopt, __FILE__, __LINE__);
    row.define(*library, row.schema);
    return c10::Dispatcher::singleton().findSchema(full);
  }
  return std::nullopt;
}

bool is_package_op(const std::string& schema_name) { return schema_name.starts_with(kPrefix); }

std::string package_advice(const std::string& space) {
  for (const Package& package : kPackages)
    if (package.space == space)
      return "give the library that registers it with --load-library: " + std::string(package.libraries);
  if (std::find(std::begin(kPythonOnly), std::end(kPythonOnly), space) != std::end(kPythonOnly))
    return "the Python package " + space +
           " registers it in Python; build a library that does and give it with --load-library";
  return "give the library that registers it with --load-library";
}

}  // namespace keirin
