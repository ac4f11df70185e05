// SPDX-License-Identifier: Apache-2.0
//
// A wave takes two rows of the matrix (columns of the result), with four 16-byte loads of each under way. Where there are fewer
// rows than the device has waves for, several waves of a block share two rows and join through shared memory: no atomics, so
// that equal runs give equal sums.
#include "cuda/gemv.h"

#include "cuda/op_ids.h"

namespace keirin::cuda {
namespace {

using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;

constexpr int64_t kMostRows = 8;
constexpr int64_t kSmallestMatrix = 1 << 16;  // elements; a smaller one is the library's
constexpr int kWaves = 4;                     // of a block

constexpr const char* kText = R"(
enum { a_columns, a_depth, a_x, a_w, a_y, a_z, num_sizes, VEC = 16 / (int)sizeof(typename STORAGE::Stored), WAVES = 4, AHEAD = 4 };
KRN_KERNEL(128) gemv(KRN_PARAMETER(KrnSizes<i64, num_sizes>) a, KRN_PARAMETER(KrnPointers<5>) p) {
  typedef typename STORAGE::Stored Stored;
  KRN_SHARED float parts[WAVES][2 * ROWS];
  const int wave = KRN_THREAD / 32, lane = KRN_THREAD % 32, depth = (int)a.v[a_depth], columns = (int)a.v[a_columns];
  const int pair = KRN_BLOCK * (WAVES / SHARE) + wave / SHARE, column = 2 * pair;
  const bool there = column < columns;
  const int second = column + 1 < columns ? column + 1 : column;
  const Stored* const x = (const Stored*)p.v[0];
  const Stored* const w0 = (const Stored*)p.v[1] + (there ? column : 0) * a.v[a_w];
  const Stored* const w1 = (const Stored*)p.v[1] + (there ? second : 0) * a.v[a_w];
  float sum[2][ROWS];
  KRN_UNROLL for (int r = 0; r < ROWS; ++r) sum[0][r] = sum[1][r] = 0;
  const int stride = 32 * VEC * SHARE;
  for (int at = there ? (wave % SHARE * 32 + lane) * VEC : depth; at < depth; at += stride * AHEAD) {
    KrnPack<STORAGE, VEC> ws[2][AHEAD];
    KRN_UNROLL for (int c = 0; c < AHEAD; ++c) {
      const int k = at + c * stride, count = k < depth ? VEC : 0;
      ws[0][c] = krn_fetch<STORAGE, VEC>(w0 + k, count);
      ws[1][c] = krn_fetch<STORAGE, VEC>(w1 + k, count);
    }
    KRN_UNROLL for (int c = 0; c < AHEAD; ++c) {
      const int k = at + c * stride, count = k < depth ? VEC : 0;
      KRN_UNROLL for (int r = 0; r < ROWS; ++r) {
        const KrnPack<STORAGE, VEC> xs = krn_fetch<STORAGE, VEC>(x + r * a.v[a_x] + k, count);
        KRN_UNROLL for (int j = 0; j < VEC; ++j) {
          const float f = STORAGE::get(xs.s[j]);
          sum[0][r] += f * STORAGE::get(ws[0][c].s[j]);
          sum[1][r] += f * STORAGE::get(ws[1][c].s[j]);
        }
      }
    }
  }
  KRN_UNROLL for (int c = 0; c < 2; ++c) KRN_UNROLL for (int r = 0; r < ROWS; ++r) {
    const float all = krn_join<m_sum, 32>(sum[c][r]);
    if (lane == 0) parts[wave][c * ROWS + r] = all;
  }
  krn_sync();
  if (wave % SHARE != 0 || lane >= 2 * ROWS || !there) return;
  const int c = lane / ROWS, r = lane % ROWS;
  if (column + c >= columns) return;
  float v = 0;
  KRN_UNROLL for (int s = 0; s < SHARE; ++s) v += parts[wave + s][lane];
  typename STORAGE::Stored* const y = (Stored*)p.v[3] + r * a.v[a_y] + column + c;
#if BIAS
  v += STORAGE::get(((const Stored*)p.v[2])[column + c]);
#endif
  EPILOGUE
  *y = STORAGE::put(v);
}
)";

const char* epilogue_text(uint32_t op) {
  switch (op) {
    case op_add: return "v += STORAGE::get(((const Stored*)p.v[4])[r * a.v[a_z] + column + c]);";
    case op_relu: return "v = krn_max(v, 0.0f);";
    case op_sigmoid: return "v = 1.0f / (1.0f + expf(-v));";
    case op_tanh: return "v = tanhf(v);";
    case op_silu: return "v = v / (1.0f + expf(-v));";
    case op_gelu: return "v = 0.5f * v * (1.0f + erff(v * 0.707106781f));";
    case op_gelu_tanh: return "v = 0.5f * v * (1.0f + tanhf(0.797884561f * (v + 0.044715f * v * v * v)));";
    default: return nullptr;
  }
}

// All axes but the last as rows of equal stride, elements dense.
bool rows_of(const TensorDesc& t, int64_t& rows, int64_t& stride) {
  const size_t rank = t.sizes.size();
  if (rank == 0 || (t.strides[rank - 1] != 1 && t.sizes[rank - 1] != 1)) return false;
  rows = 1, stride = 0;
  for (size_t d = rank - 1; d-- > 0;) {
    if (t.sizes[d] == 1) continue;
    if (rows == 1) stride = t.strides[d];
    else if (t.strides[d] != stride * rows) return false;
    rows *= t.sizes[d];
  }
  return true;
}

}  // namespace

std::optional<TextKernel> gemv_kernel(const AnchorDesc& anchor, int num_units, std::string& why_not) {
  auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  if (anchor.op != op_linear) return no("not a linear layer");
  const TensorDesc &x = anchor.operands[0], &w = anchor.operands[1], &y = anchor.results[0];
  const int64_t bytes = float_bytes(x.dtype);
  if (bytes == 0 || w.dtype != x.dtype || y.dtype != x.dtype) return no("products take f32, bf16 and f16 here");
  const int64_t columns = w.sizes[0], depth = w.sizes[1], vec = 16 / bytes;
  if (columns * depth < kSmallestMatrix) return no("a small matrix");
  int64_t rows = 0, x_stride = 0, y_rows = 0, y_stride = 0, z_stride = 0;
  if (!rows_of(x, rows, x_stride) || !rows_of(y, y_rows, y_stride) || rows > kMostRows || rows == 0) return no("more than eight rows");
  auto words = [&](const TensorDesc& t, int64_t stride) { return t.offset % vec == 0 && stride % vec == 0; };
  if (depth % vec != 0 || w.strides[1] != 1 || !words(w, w.strides[0]) || !words(x, x_stride)) return no("lines that are no whole 16-byte words");
  TensorDesc bias = anchor.operands.size() > 2 ? anchor.operands[2] : TensorDesc{}, residual;
  if (bias.present() && (bias.dtype != x.dtype || (bias.strides[0] != 1 && columns > 1))) return no("a bias of another dtype or with gaps");
  std::string epilogue;
  for (const PostOp& post : anchor.post_ops) {
    const char* text = epilogue_text(post.op);
    if (!text || (post.op == op_add && residual.present())) return no("an epilogue without a form here");
    epilogue += text;
    if (post.op != op_add) continue;
    residual = post.operand;
    int64_t z_rows = 0;
    if (residual.dtype != x.dtype || residual.sizes != y.sizes || !rows_of(residual, z_rows, z_stride)) return no("a residual of another shape");
  }
  // Waves for every multiprocessor, four loads of 16 bytes each: as many as the deepest split still fills.
  int64_t share = 1;
  while (share < kWaves && columns / 2 * share < int64_t{num_units} * 16 && depth >= share * 2 * 32 * vec) share *= 2;
  TextKernel out;
  out.text = std::string("#define STORAGE ") + float_storage(x.dtype) + "\n#define ROWS " + std::to_string(rows) + "\n#define SHARE " +
             std::to_string(share) + "\n#define BIAS " + (bias.present() ? "1" : "0") + "\n#define EPILOGUE " + epilogue + "\n" + kText;
  out.sizes = {columns, depth, x_stride, w.strides[0], y_stride, z_stride};
  out.pointers = {x, w, bias, y, residual};
  const int64_t pairs = (columns + 1) / 2, per_block = kWaves / share;
  out.launches = {{"gemv", (pairs + per_block - 1) / per_block, 32 * kWaves}};
  out.what = "gemv [" + std::to_string(rows) + "x" + std::to_string(depth) + "]x" + std::to_string(columns) + " share " + std::to_string(share);
  return out;
}

}  // namespace keirin::cuda
