// SPDX-License-Identifier: Apache-2.0
//
// Two kernels. `tiles`: 64 queries a block on matrix units, the vendor's own or that of text/tiles.krn. `split`: one query a block, or
// its keys cut over blocks whose partial results `join` adds; it also takes f32, where the work is small. Both hold a row's maximum
// finite, so that a row of which nothing may be seen gives zeros.
#include "plugins/gpu/attention.h"

#include <algorithm>
#include <bit>

#include "plugins/gpu/plan_step.h"
#include "plugins/gpu/text.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

using codegen::AnchorDesc;
using codegen::TensorDesc;

constexpr int64_t kLongest = 1024;      // keys of unmasked attention; beyond, eager's kernel has more to offer than it costs to reach
constexpr int64_t kFewestQueries = 17;   // that a library is asked for
constexpr int64_t kFewestSplitKeys = 32;
constexpr int64_t kMostSplits = 256;    // MOST_SPLITS of the text
constexpr double kMostPlainWork = 1 << 27;  // multiply-adds of each product that f32 attention does without matrix units
constexpr int kQueries = 64;            // of a block of `tiles`

// [.., H, L, D] as batch, head, line: strides in elements; false where the leading axes are no single one.
bool strides_of(const TensorDesc& t, int64_t (&out)[3]) {
  const size_t rank = t.sizes.size();
  int64_t size = 1;
  out[0] = 0;
  for (size_t d = rank - 3; d-- > 0;) {
    if (t.sizes[d] == 1) continue;
    if (size != 1 && t.strides[d] != out[0] * size) return false;
    if (size == 1) out[0] = t.strides[d];
    size *= t.sizes[d];
  }
  out[1] = t.strides[rank - 3], out[2] = t.strides[rank - 2];
  return true;
}

// Whole 16-byte words at every line.
bool reads_words(const TensorDesc& t) {
  const size_t rank = t.sizes.size();
  const int64_t word = 16 / float_bytes(t.dtype);
  if (t.strides[rank - 1] != 1 || t.offset % word != 0) return false;
  for (size_t d = 0; d + 1 < rank; ++d)
    if (t.sizes[d] != 1 && t.strides[d] % word != 0) return false;
  return true;
}

}  // namespace

std::optional<TextKernel> attention_kernel(const AnchorDesc& anchor, const Gpu& gpu, std::string& why_not) {
  const TensorDesc &q = anchor.operands[0], &k = anchor.operands[1], &v = anchor.operands[2], &o = anchor.results[0];
  const bool masked = anchor.operands.size() > 3 && anchor.operands[3].present();
  auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  if (!float_storage(q.dtype) || k.dtype != q.dtype || v.dtype != q.dtype || o.dtype != q.dtype)
    return no("attention that is not f32, bf16 or f16 runs in eager's kernel");
  const size_t rank = q.sizes.size();
  if (rank < 3 || k.sizes.size() != rank || v.sizes.size() != rank) return no("attention with fewer axes than heads, queries and elements");
  const int64_t d = q.sizes[rank - 1], queries = q.sizes[rank - 2], heads = q.sizes[rank - 3], keys = k.sizes[rank - 2],
                shared = k.sizes[rank - 3];
  int64_t batch = 1;
  for (size_t i = 0; i + 3 < rank; ++i) batch *= q.sizes[i];
  const bool plain = q.dtype == kit::kDType_f32;
  const bool one = (queries == 1 || plain) && std::has_single_bit(static_cast<uint64_t>(d)) && d >= 16 && d <= 256;
  if (plain && static_cast<double>(batch * heads) * static_cast<double>(queries * keys) * static_cast<double>(d) > kMostPlainWork)
    return no("large attention in f32 runs in eager's kernel");
  if (plain && !one) return no("attention with heads of a width that has no kernel");
  const std::string_view own_tiles = gpu.driver->words().tiles;
  if (v.sizes[rank - 1] != d || (!one && (d % (own_tiles.empty() ? 8 : 16) != 0 || d > 128)))
    return no("attention with heads of a width that has no kernel");
  if (shared == 0 || heads % shared != 0 || keys == 0) return no("attention whose heads share no keys evenly");
  if (!one && (!gpu.matrix || (own_tiles.empty() && !gpu.matrix->is(16, 16, 16, gpu.wave))))
    return no("attention of many queries without matrix units runs in eager's kernel");
  if (!one && !masked && keys > kLongest) return no("long attention without a mask runs in eager's flash kernel");
  TextKernel out;
  const int64_t per_unit = batch * heads * (one ? queries : 1);
  const int64_t splits = one ? std::clamp<int64_t>(int64_t{8} * gpu.facts.num_units / std::max<int64_t>(per_unit, 1), 1,
                                                        std::clamp<int64_t>(keys / kFewestSplitKeys, 1, kMostSplits)) : 1;
  const int64_t split = (keys + splits - 1) / splits;
  out.sizes = {heads, queries, keys, heads / shared, static_cast<int64_t>(std::bit_cast<uint32_t>(static_cast<float>(anchor.scale))),
               (keys + split - 1) / split, split};
  out.reads_words = one || !own_tiles.empty();
  for (const TensorDesc* t : {&q, &k, &v, &o}) {
    int64_t strides[3];
    if ((out.reads_words && !reads_words(*t)) || t->strides[rank - 1] != 1 || !strides_of(*t, strides))
      return no("attention over elements that are not whole aligned lines");
    out.sizes.insert(out.sizes.end(), strides, strides + 3);
    out.pointers.push_back(*t);
  }
  std::string& defines = out.defines;
  TensorDesc mask;
  int64_t mask_strides[4] = {0, 0, 0, 0};
  if (masked) {
    mask = anchor.operands[3];
    if (mask.dtype != kit::kDType_bool && !float_storage(mask.dtype)) return no("an attention mask of that dtype");
    int64_t strides[3];
    if (mask.sizes.size() != rank || !strides_of(mask, strides)) return no("an attention mask of fewer axes than its scores");
    int64_t mask_batch = 1;
    for (size_t i = 0; i + 3 < rank; ++i) mask_batch *= mask.sizes[i];
    if (mask_batch != batch && mask_batch != 1) return no("an attention mask that repeats along a part of the batch");
    mask_strides[0] = mask_batch == 1 ? 0 : strides[0];
    for (size_t i = 1; i < 4; ++i) mask_strides[i] = mask.sizes[rank - 4 + i] == 1 ? 0 : mask.strides[rank - 4 + i];
  }
  out.sizes.insert(out.sizes.end(), mask_strides, mask_strides + 4);
  out.pointers.push_back(mask);
  defines = "#define D " + std::to_string(d) + "\n#define MASKED " +
            (!masked                          ? "0"
             : mask.dtype == kit::kDType_bool ? "1"
                                              : "2") +
            "\n#define CAUSAL " + (anchor.causal ? "1" : "0") + "\n#define STORAGE " + float_storage(q.dtype) + "\n#define MASK_ROWS " +
            (mask_strides[2] == 0 ? "1" : "2") + "\n";
  if (masked && mask.dtype != kit::kDType_bool) defines += std::string("#define ADDED ") + float_storage(mask.dtype) + "\n";
  if (one) {
    defines += std::string("#define MANY ") + (queries > 1 ? "1" : "0") + "\n";
    out.parts = {text::attention, text::split};
    const int64_t parts = out.sizes[5];
    out.launches = {{"split", per_unit * parts, 128}};
    if (parts > 1) out.launches.push_back({"join", per_unit, 128});
    out.workspace_bytes = parts > 1 ? per_unit * parts * (d + 2) * 4 : 0;
  } else {
    if (own_tiles.empty()) {
      // As many keys at once as leave registers: a thread of a narrow wave has twice the sums.
      defines += std::string("#define KEYS ") + (gpu.wave == 64 ? (d <= 64 ? "64" : "32") : d <= 96 ? "32" : "16") + "\n";
      out.parts = {text::attention, text::unit, gpu.matrix->text, text::tiles};
    } else {
      defines += std::string("#define TYPE \"") + (q.dtype == kit::kDType_bf16 ? "bf16" : "f16") + "\"\n#define KEYS " +
                 (d <= 64 ? "64" : "32") + "\n#define RESIDENT " + (d <= 64 ? "4" : "3") + "\n";
      out.parts = {text::attention, gpu.matrix->text, own_tiles};
    }
    out.launches = {{"tiles", per_unit * ((queries + kQueries - 1) / kQueries), 4 * gpu.wave}};
  }
  out.what = "attention [" + std::to_string(batch) + "x" + std::to_string(heads) + ", " + std::to_string(queries) + "x" +
             std::to_string(keys) + ", " + std::to_string(d) + "]" + (masked ? " masked" : "") + (anchor.causal ? " causal" : "");
  return out;
}

std::optional<HeadsProblem> heads_problem(const AnchorDesc& anchor, std::string& why_not) {
  auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  const TensorDesc& q = anchor.operands[0];
  if (q.dtype != kit::kDType_bf16 && q.dtype != kit::kDType_f16) return no("the library's attention takes bf16 and f16");
  if (anchor.operands.size() > 3 && anchor.operands[3].present()) return no("attention with a mask has a kernel of its own");
  const size_t rank = q.sizes.size();
  if (rank < 3 || q.sizes[rank - 2] < kFewestQueries) return no("few queries have a kernel of their own");
  HeadsProblem out;
  out.scale = anchor.scale, out.causal = anchor.causal;
  ConvTensor* const to[] = {&out.q, &out.k, &out.v, &out.o};
  const TensorDesc* const from[] = {&q, &anchor.operands[1], &anchor.operands[2], &anchor.results[0]};
  for (size_t i = 0; i < 4; ++i) {
    const TensorDesc& t = *from[i];
    int64_t strides[3], batch = 1;
    if (t.dtype != q.dtype || t.sizes.size() != rank || !reads_words(t) || !strides_of(t, strides))
      return no("attention over elements that are not whole aligned lines");
    for (size_t d = 0; d + 3 < rank; ++d) batch *= t.sizes[d];
    *to[i] = {t.dtype, {batch, t.sizes[rank - 3], t.sizes[rank - 2], t.sizes[rank - 1]}, {strides[0], strides[1], strides[2], 1}};
    if (batch == 1) to[i]->strides[0] = to[i]->sizes[1] * to[i]->sizes[2] * to[i]->sizes[3];
  }
  return out;
}

std::unique_ptr<codegen::Step> make_heads(const AnchorDesc& anchor, const HeadsProblem& problem, const PlanLibrary& library) {
  const TensorDesc tensors[] = {anchor.operands[0], anchor.operands[1], anchor.operands[2], anchor.results[0]};
  return make_plan_step(std::string(library.name()) + " attention", tensors, anchor.causal ? "causal" : "", library.plan(problem));
}

}  // namespace keirin::gpu
