// SPDX-License-Identifier: Apache-2.0
//
// A wave takes two rows of the matrix (columns of the result), with two 16-byte loads of each under way and the next asked for as one
// is used. Several waves of a block share two rows and join through shared memory: no atomics, so that equal runs give equal sums.
// A constant matrix is asked for before the kernels before have ended.
#include "plugins/gpu/gemv.h"

#include "plugins/gpu/text.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;

constexpr int64_t kMostRows = 2;  // with four, the library's matrix units are faster
constexpr int64_t kSmallestMatrix = 1 << 16;  // elements; a smaller one is the library's
constexpr int kThreads = 128;                 // of a block, as the text has them

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
  if (!rows_of(x, t.rows, t.x_stride) || !rows_of(y, y_rows, t.y_stride) || t.rows > kMostRows || t.rows == 0)
    return no("more rows than stay in registers");
  auto words = [&](const TensorDesc& d, int64_t stride) { return d.offset % vec == 0 && stride % vec == 0; };
  if (t.depth % vec != 0 || w.strides[1] != 1 || !words(w, w.strides[0]) || !words(x, t.x_stride))
    return no("lines that are not whole 16-byte words");
  if (anchor.operands.size() > 2) t.bias = anchor.operands[2];
  if (t.bias.present() && (t.bias.dtype != x.dtype || (t.bias.strides[0] != 1 && t.columns > 1)))
    return no("a bias of another dtype or with gaps");
  for (const PostOp& post : anchor.post_ops) {
    const std::string text = epilogue_text(post);
    if (text.empty() || (post.op == kit::kOp_add && t.residual.present())) return no("an epilogue without a form here");
    t.epilogue += text;
    if (post.op != kit::kOp_add) continue;
    t.residual = post.operand;
    if (t.residual.dtype != x.dtype || t.residual.sizes != y.sizes || !rows_of(t.residual, z_rows, t.z_stride))
      return no("a residual of another shape");
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

std::optional<TextKernel> gemv_kernel(std::span<const AnchorDesc* const> anchors, const Gpu& gpu, std::string& why_not) {
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
  const int waves = kThreads / gpu.wave;
  // Many short blocks even the load out.
  int64_t share = 1;
  while (share < waves && t->depth >= share * 2 * gpu.wave * (16 / float_bytes(dtype))) share *= 2;
  // But all at once, where two waves a pair fill the device.
  if (waves == 4 && share == waves && pairs / 2 <= int64_t{gpu.facts.num_units} * 8 && pairs / 2 >= int64_t{gpu.facts.num_units} * 6)
    share = 2;
  out.defines = std::string("#define STORAGE ") + float_storage(dtype) + "\n#define ROWS " + std::to_string(t->rows) + "\n#define SHARE " +
                std::to_string(share) + "\n#define BIAS " + (t->bias.present() ? "1" : "0") + "\n#define TABLES " +
                std::to_string(anchors.size()) + "\n#define EPILOGUE " + t->epilogue + "\n";
  out.parts = {gpu.driver->words().stream, text::gemv};
  const int64_t per_block = waves / share;
  out.launches = {{"gemv", (pairs + per_block - 1) / per_block, kThreads}};
  out.what = "gemv [" + std::to_string(t->rows) + "x" + std::to_string(t->depth) + "]x" + std::to_string(2 * pairs) + " of " +
             std::to_string(anchors.size()) + ", share " + std::to_string(share);
  return out;
}

}  // namespace keirin::gpu
