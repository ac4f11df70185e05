// SPDX-License-Identifier: Apache-2.0
//
// A group of threads takes one bag of one table: 16 bytes of a row each, four rows under way. Rows are added in the order of the
// bag, so that equal runs give equal sums. An index outside the table is clamped into it.
#include "cuda/bags.h"

#include <bit>

#include "plugins/kit/tables.h"

namespace keirin::cuda {
namespace {

using codegen::AnchorDesc;
using codegen::TensorDesc;

constexpr int kThreads = 128;

constexpr const char* kText = R"(
enum { a_bags, a_positions, a_offsets, a_tables, num_sizes = a_tables + 4 * TABLES, VEC = 16 / (int)sizeof(typename STORAGE::Stored), GROUPS = 128 / LANES };
KRN_KERNEL(128) bags(KRN_PARAMETER(KrnSizes<i64, num_sizes>) a, KRN_PARAMETER(KrnPointers<1 + 3 * TABLES>) p) {
  typedef typename STORAGE::Stored Stored;
  const int lane = KRN_THREAD % LANES, count = (int)a.v[a_bags], blocks = (count + GROUPS - 1) / GROUPS;
  const int table = KRN_BLOCK / blocks, bag = KRN_BLOCK % blocks * GROUPS + KRN_THREAD / LANES;
  if (bag >= count) return;
  // strides of the table, the indices and the result, then the table's rows
  const i64 *const sizes = a.v + a_tables + 4 * table, row_stride = sizes[0], index_stride = sizes[1], rows = sizes[3];
  const Stored* const from = (const Stored*)p.v[1 + 3 * table];
  const INDEX* const index = (const INDEX*)p.v[2 + 3 * table];
  Stored* const to = (Stored*)p.v[3 + 3 * table] + bag * sizes[2];
  const OFFSET* const offsets = (const OFFSET*)p.v[0];
  const i64 begin = offsets[bag * a.v[a_offsets]];
  const i64 end = bag + 1 < count || LAST_OFFSET ? (i64)offsets[(bag + 1) * a.v[a_offsets]] : a.v[a_positions];
  for (int at = lane * VEC; at < WIDTH; at += LANES * VEC) {
    float sum[VEC];
    KRN_UNROLL for (int j = 0; j < VEC; ++j) sum[j] = 0;
    for (i64 i = begin; i < end; i += 4) {
      KrnPack<STORAGE, VEC> xs[4];
      KRN_UNROLL for (int c = 0; c < 4; ++c) {
        i64 row = i + c < end ? (i64)index[(i + c) * index_stride] : 0;
        row = (unsigned long long)row < (unsigned long long)rows ? row : 0;
        xs[c] = krn_word<STORAGE, VEC>(from + row * row_stride + at, i + c < end);
      }
      KRN_UNROLL for (int c = 0; c < 4; ++c) KRN_UNROLL for (int j = 0; j < VEC; ++j) sum[j] += i + c < end ? STORAGE::get(xs[c].s[j]) : 0.0f;
    }
#if MEAN
    KRN_UNROLL for (int j = 0; j < VEC; ++j) sum[j] = end > begin ? sum[j] / (float)(end - begin) : 0.0f;
#endif
    krn_store<STORAGE, VEC>(to + at, VEC, sum);
  }
}
)";

const char* integer_text(uint8_t dtype) { return dtype == kit::kDType_i64 ? "i64" : dtype == kit::kDType_i32 ? "int" : nullptr; }

}  // namespace

bool bags_alike(const AnchorDesc& a, const AnchorDesc& b) {
  const TensorDesc &x = a.operands[2], &y = b.operands[2];
  return a.operands[0].dtype == b.operands[0].dtype && a.operands[0].sizes[1] == b.operands[0].sizes[1] && a.mode == b.mode &&
         a.include_last_offset == b.include_last_offset && a.operands[1].dtype == b.operands[1].dtype && a.operands[1].sizes == b.operands[1].sizes &&
         x.buffer == y.buffer && x.offset == y.offset && x.sizes == y.sizes && x.strides == y.strides && x.dtype == y.dtype;
}

std::optional<TextKernel> bags_kernel(std::span<const AnchorDesc* const> anchors, std::string& why_not) {
  auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  const AnchorDesc& first = *anchors[0];
  if (first.operands.size() < 3 || !first.operands[2].present() || first.operands[1].sizes.size() != 1) return no("bags without offsets run in eager");
  if (first.mode != "sum" && first.mode != "mean") return no("bags of that mode run in eager");
  const TensorDesc& offsets = first.operands[2];
  const uint8_t dtype = first.operands[0].dtype;
  const char *index = integer_text(first.operands[1].dtype), *offset = integer_text(offsets.dtype);
  if (!float_storage(dtype) || !index || !offset) return no("bags of that dtype run in eager");
  const int64_t vec = 16 / float_bytes(dtype), width = first.operands[0].sizes[1], bags = offsets.sizes[0] - (first.include_last_offset ? 1 : 0);
  if (width % vec != 0 || width == 0 || bags <= 0) return no("rows of a bag that are no whole 16-byte words");
  if (anchors.size() > kMostTables) return no("too many tables for one launch");
  TextKernel out;
  out.sizes = {bags, first.operands[1].sizes[0], offsets.strides[0]};
  out.pointers = {offsets};
  for (const AnchorDesc* anchor : anchors) {
    const TensorDesc &table = anchor->operands[0], &at = anchor->operands[1], &y = anchor->results[0];
    auto words = [&](const TensorDesc& t) { return t.strides[1] == 1 && t.strides[0] % vec == 0 && t.offset % vec == 0; };
    if (!words(table) || !words(y) || table.sizes[0] == 0) return no("rows of a bag that are no whole 16-byte words");
    out.sizes.insert(out.sizes.end(), {table.strides[0], at.strides[0], y.strides[0], table.sizes[0]});
    out.pointers.insert(out.pointers.end(), {table, at, y});
  }
  const int64_t lanes = std::min<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(width / vec))), kThreads), groups = kThreads / lanes;
  out.text = std::string("#define STORAGE ") + float_storage(dtype) + "\n#define INDEX " + index + "\n#define OFFSET " + offset + "\n#define LANES " +
             std::to_string(lanes) + "\n#define WIDTH " + std::to_string(width) + "\n#define TABLES " + std::to_string(anchors.size()) +
             "\n#define MEAN " + (first.mode == "mean" ? "1" : "0") + "\n#define LAST_OFFSET " + (first.include_last_offset ? "1" : "0") + "\n" + kText;
  out.launches = {{"bags", (bags + groups - 1) / groups * static_cast<int64_t>(anchors.size()), kThreads}};
  out.what = "bags [" + std::to_string(bags) + ", " + std::to_string(width) + "] of " + std::to_string(anchors.size()) + " tables";
  return out;
}

}  // namespace keirin::cuda
