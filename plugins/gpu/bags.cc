// SPDX-License-Identifier: Apache-2.0
//
// A group of threads takes one bag of one table: 16 bytes of a row each, four rows under way. Rows are added in the order of the
// bag, so that equal runs give equal sums. An index outside the table is refused.
#include "plugins/gpu/bags.h"

#include <bit>

#include "plugins/gpu/text.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

using codegen::AnchorDesc;
using codegen::TensorDesc;

constexpr int kThreads = 128;

const char* integer_text(uint8_t dtype) { return dtype == kit::kDType_i64 ? "i64" : dtype == kit::kDType_i32 ? "int" : nullptr; }

}  // namespace

bool bags_alike(const AnchorDesc& a, const AnchorDesc& b) {
  const TensorDesc &x = a.operands[2], &y = b.operands[2];
  return a.operands[0].dtype == b.operands[0].dtype && a.operands[0].sizes[1] == b.operands[0].sizes[1] && a.mode == b.mode &&
         a.include_last_offset == b.include_last_offset && a.operands[1].dtype == b.operands[1].dtype &&
         a.operands[1].sizes == b.operands[1].sizes && x.buffer == y.buffer && x.offset == y.offset && x.sizes == y.sizes &&
         x.strides == y.strides && x.dtype == y.dtype;
}

std::optional<TextKernel> bags_kernel(std::span<const AnchorDesc* const> anchors, std::string& why_not) {
  auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  const AnchorDesc& first = *anchors[0];
  if (first.operands.size() < 3 || !first.operands[2].present() || first.operands[1].sizes.size() != 1)
    return no("bags without offsets run in eager");
  if (first.mode != "sum" && first.mode != "mean") return no("bags of that mode run in eager");
  const TensorDesc& offsets = first.operands[2];
  const uint8_t dtype = first.operands[0].dtype;
  const char *index = integer_text(first.operands[1].dtype), *offset = integer_text(offsets.dtype);
  if (!float_storage(dtype) || !index || !offset) return no("bags of that dtype run in eager");
  const int64_t vec = 16 / float_bytes(dtype), width = first.operands[0].sizes[1],
                bags = offsets.sizes[0] - (first.include_last_offset ? 1 : 0);
  if (width % vec != 0 || width == 0 || bags <= 0) return no("rows of a bag that are not whole 16-byte words");
  if (anchors.size() > kMostTables) return no("too many tables for one launch");
  TextKernel out;
  out.sizes = {bags, first.operands[1].sizes[0], offsets.strides[0]};
  out.pointers = {offsets};
  for (const AnchorDesc* anchor : anchors) {
    const TensorDesc &table = anchor->operands[0], &at = anchor->operands[1], &y = anchor->results[0];
    auto words = [&](const TensorDesc& t) { return t.strides[1] == 1 && t.strides[0] % vec == 0 && t.offset % vec == 0; };
    if (!words(table) || !words(y) || table.sizes[0] == 0) return no("rows of a bag that are not whole 16-byte words");
    out.sizes.insert(out.sizes.end(), {table.strides[0], at.strides[0], y.strides[0], table.sizes[0]});
    out.pointers.insert(out.pointers.end(), {table, at, y});
  }
  const int64_t lanes = std::min<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(width / vec))), kThreads),
                groups = kThreads / lanes;
  out.defines = std::string("#define STORAGE ") + float_storage(dtype) + "\n#define INDEX " + index + "\n#define OFFSET " + offset +
                "\n#define LANES " + std::to_string(lanes) + "\n#define WIDTH " + std::to_string(width) + "\n#define TABLES " +
                std::to_string(anchors.size()) + "\n#define MEAN " + (first.mode == "mean" ? "1" : "0") + "\n#define LAST_OFFSET " +
                (first.include_last_offset ? "1" : "0") + "\n";
  out.parts = {text::bags};
  out.launches = {{"bags", (bags + groups - 1) / groups * static_cast<int64_t>(anchors.size()), kThreads}};
  out.what = "bags [" + std::to_string(bags) + ", " + std::to_string(width) + "] of " + std::to_string(anchors.size()) + " tables";
  return out;
}

}  // namespace keirin::gpu
