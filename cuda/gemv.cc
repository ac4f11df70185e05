// SPDX-License-Identifier: Apache-2.0
//
// A wave takes two rows of the matrix (columns of the result), with two 16-byte loads of each under way and the next asked for as one
// is used. Several waves of a block share two rows and join through shared memory: no atomics, so that equal runs give equal sums.
// A constant matrix is asked for before the kernels before have ended.
#include "cuda/gemv.h"

#include "plugins/kit/tables.h"

namespace keirin::cuda {
namespace {

using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;

constexpr int64_t kMostRows = 2;  // with four, the library's matrix units are faster
constexpr int64_t kSmallestMatrix = 1 << 16;  // elements; a smaller one is the library's
constexpr int kWaves = 4;                     // of a block

constexpr const char* kText = R"(
enum { a_depth, a_x, a_next, a_tables, num_sizes = a_tables + 4 * TABLES, VEC = 16 / (int)sizeof(typename STORAGE::Stored), WAVES = 4, AHEAD = 2 };
typedef typename STORAGE::Stored Stored;
// A word of the matrix, which nobody reads again.
KRN_FN KrnPack<STORAGE, VEC> krn_stream(const Stored* p, bool there) {
#ifdef __CUDA_ARCH__
  KrnPack<STORAGE, VEC> pack;
  pack.w[0].w[0] = pack.w[0].w[1] = pack.w[0].w[2] = pack.w[0].w[3] = 0;
  if (there)
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(pack.w[0].w[0]), "=r"(pack.w[0].w[1]), "=r"(pack.w[0].w[2]), "=r"(pack.w[0].w[3]) : "l"(p));
  return pack;
#else
  return krn_word<STORAGE, VEC>(p, there);
#endif
}
KRN_KERNEL_FULL(128, 8) gemv(KRN_PARAMETER(KrnSizes<i64, num_sizes>) a, KRN_PARAMETER(KrnPointers<1 + 4 * TABLES>) p) {
  KRN_SHARED float parts[WAVES][2 * ROWS];
  const int wave = KRN_THREAD / 32, lane = KRN_THREAD % 32, depth = (int)a.v[a_depth];
  int pair = KRN_BLOCK * (WAVES / SHARE) + wave / SHARE, table = 0;
  KRN_UNROLL for (int t = 0; t + 1 < TABLES; ++t) {
    const int pairs = ((int)a.v[a_tables + 4 * t] + 1) / 2;
    if (table == t && pair >= pairs) pair -= pairs, ++table;
  }
  const i64* const sizes = a.v + a_tables + 4 * table;  // columns; strides of the matrix, the result and the residual
  const int columns = (int)sizes[0], column = 2 * pair;
  const bool there = column < columns;
  const Stored* const x = (const Stored*)p.v[0];
  const Stored* const w0 = (const Stored*)p.v[1 + 4 * table] + (there ? column : 0) * sizes[1];
  const Stored* const w1 = column + 1 < columns ? w0 + sizes[1] : w0;
  enum { STRIDE = 32 * VEC * SHARE };
  const int start = there ? (wave % SHARE * 32 + lane) * VEC : depth;
  KrnPack<STORAGE, VEC> ws[2][AHEAD];
  KRN_UNROLL for (int c = 0; c < AHEAD; ++c) {
    ws[0][c] = krn_stream(w0 + start + c * STRIDE, start + c * STRIDE < depth);
    ws[1][c] = krn_stream(w1 + start + c * STRIDE, start + c * STRIDE < depth);
  }
  if (a.v[a_next]) krn_let_next_begin();
  krn_await_before();  // the matrix was there; everything else is other kernels'
  float sum[2][ROWS];
  KRN_UNROLL for (int r = 0; r < ROWS; ++r) sum[0][r] = sum[1][r] = 0;
  for (int at = start; at < depth; at += STRIDE * AHEAD) {
    KRN_UNROLL for (int c = 0; c < AHEAD; ++c) {
      const int k = at + c * STRIDE, next = k + STRIDE * AHEAD;
      float f0[VEC], f1[VEC];
      KRN_UNROLL for (int j = 0; j < VEC; ++j) f0[j] = STORAGE::get(ws[0][c].s[j]), f1[j] = STORAGE::get(ws[1][c].s[j]);
      ws[0][c] = krn_stream(w0 + next, next < depth);
      ws[1][c] = krn_stream(w1 + next, next < depth);
      KRN_UNROLL for (int r = 0; r < ROWS; ++r) {
        const KrnPack<STORAGE, VEC> xs = krn_word<STORAGE, VEC>(x + r * a.v[a_x] + k, k < depth);
        KRN_UNROLL for (int j = 0; j < VEC; ++j) {
          const float f = STORAGE::get(xs.s[j]);
          sum[0][r] += f * f0[j];
          sum[1][r] += f * f1[j];
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
#if BIAS
  v += STORAGE::get(((const Stored*)p.v[2 + 4 * table])[column + c]);
#endif
  EPILOGUE
  ((Stored*)p.v[3 + 4 * table])[r * sizes[2] + column + c] = STORAGE::put(v);
}
)";

const char* epilogue_text(uint32_t op) {
  switch (op) {
    case kit::kOp_add: return "v += STORAGE::get(((const Stored*)p.v[4 + 4 * table])[r * sizes[3] + column + c]);";
    case kit::kOp_relu: return "v = krn_max(v, 0.0f);";
    case kit::kOp_sigmoid: return "v = 1.0f / (1.0f + expf(-v));";
    case kit::kOp_tanh: return "v = tanhf(v);";
    case kit::kOp_silu: return "v = v / (1.0f + expf(-v));";
    case kit::kOp_gelu: return "v = 0.5f * v * (1.0f + krn_erf(v * 0.707106781f));";
    case kit::kOp_gelu_tanh: return "v = 0.5f * v * (1.0f + tanhf(0.797884561f * (v + 0.044715f * v * v * v)));";
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

// One anchor's part of a launch.
struct Table {
  int64_t rows = 0, depth = 0, columns = 0, x_stride = 0, y_stride = 0, z_stride = 0;
  TensorDesc bias, residual;
  std::string epilogue;
};

std::optional<Table> table_of(const AnchorDesc& anchor, std::string& why_not) {
  auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  if (anchor.op != kit::kOp_linear) return no("not a linear layer");
  const TensorDesc &x = anchor.operands[0], &w = anchor.operands[1], &y = anchor.results[0];
  const int64_t bytes = float_bytes(x.dtype);
  if (bytes == 0 || w.dtype != x.dtype || y.dtype != x.dtype) return no("products take f32, bf16 and f16 here");
  Table t;
  t.columns = w.sizes[0], t.depth = w.sizes[1];
  const int64_t vec = 16 / bytes;
  if (t.columns * t.depth < kSmallestMatrix) return no("a small matrix");
  int64_t y_rows = 0, z_rows = 0;
  if (!rows_of(x, t.rows, t.x_stride) || !rows_of(y, y_rows, t.y_stride) || t.rows > kMostRows || t.rows == 0) return no("more rows than stay in registers");
  auto words = [&](const TensorDesc& d, int64_t stride) { return d.offset % vec == 0 && stride % vec == 0; };
  if (t.depth % vec != 0 || w.strides[1] != 1 || !words(w, w.strides[0]) || !words(x, t.x_stride)) return no("lines that are no whole 16-byte words");
  if (anchor.operands.size() > 2) t.bias = anchor.operands[2];
  if (t.bias.present() && (t.bias.dtype != x.dtype || (t.bias.strides[0] != 1 && t.columns > 1))) return no("a bias of another dtype or with gaps");
  for (const PostOp& post : anchor.post_ops) {
    const char* text = epilogue_text(post.op);
    if (!text || (post.op == kit::kOp_add && t.residual.present())) return no("an epilogue without a form here");
    t.epilogue += text;
    if (post.op != kit::kOp_add) continue;
    t.residual = post.operand;
    if (t.residual.dtype != x.dtype || t.residual.sizes != y.sizes || !rows_of(t.residual, z_rows, t.z_stride)) return no("a residual of another shape");
  }
  return t;
}

}  // namespace

bool gemv_alike(const AnchorDesc& a, const AnchorDesc& b) {
  std::string ignored;
  const auto x = table_of(a, ignored), y = table_of(b, ignored);
  const TensorDesc &from = a.operands[0], &other = b.operands[0];
  return x && y && from.buffer == other.buffer && from.offset == other.offset && from.dtype == other.dtype && from.sizes == other.sizes &&
         from.strides == other.strides && x->depth == y->depth && x->epilogue == y->epilogue && x->bias.present() == y->bias.present();
}

std::optional<TextKernel> gemv_kernel(std::span<const AnchorDesc* const> anchors, int num_units, std::string& why_not) {
  TextKernel out;
  out.pointers = {anchors[0]->operands[0]};
  int64_t pairs = 0;
  std::optional<Table> t;
  out.early = true;
  for (const AnchorDesc* anchor : anchors) {
    if (t = table_of(*anchor, why_not); !t) return std::nullopt;
    if (out.sizes.empty()) out.sizes = {t->depth, t->x_stride, 0}, out.next_size = 2;
    out.sizes.insert(out.sizes.end(), {t->columns, anchor->operands[1].strides[0], t->y_stride, t->z_stride});
    out.pointers.insert(out.pointers.end(), {anchor->operands[1], t->bias, anchor->results[0], t->residual});
    pairs += (t->columns + 1) / 2;
    out.early &= anchor->operands[1].weight != codegen::TensorDesc().weight;  // read before the kernels before have ended
  }
  const uint8_t dtype = anchors[0]->operands[0].dtype;
  // Many short blocks even the load out.
  int64_t share = 1;
  while (share < kWaves && t->depth >= share * 2 * 32 * (16 / float_bytes(dtype))) share *= 2;
  // But all at once, where two waves a pair fill the device.
  if (share == kWaves && pairs / 2 <= int64_t{num_units} * 8 && pairs / 2 >= int64_t{num_units} * 6) share = 2;
  out.text = std::string("#define STORAGE ") + float_storage(dtype) + "\n#define ROWS " + std::to_string(t->rows) + "\n#define SHARE " +
             std::to_string(share) + "\n#define BIAS " + (t->bias.present() ? "1" : "0") + "\n#define TABLES " + std::to_string(anchors.size()) +
             "\n#define EPILOGUE " + t->epilogue + "\n" + kText;
  const int64_t per_block = kWaves / share;
  out.launches = {{"gemv", (pairs + per_block - 1) / per_block, 32 * kWaves}};
  out.what = "gemv [" + std::to_string(t->rows) + "x" + std::to_string(t->depth) + "]x" + std::to_string(2 * pairs) + " of " +
             std::to_string(anchors.size()) + ", share " + std::to_string(share);
  return out;
}

}  // namespace keirin::cuda
