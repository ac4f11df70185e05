// SPDX-License-Identifier: Apache-2.0
//
// Two kernels. `tiles`: 64 queries a block on the matrix units (8.0 and later), keys and values in double-buffered tiles of
// shared memory, online softmax in registers. `split`: one query a block, or its keys cut over blocks whose partial results
// `join` adds; it also takes f32, where the work is small. Both hold a row's maximum finite, so that a row of which nothing may be
// seen gives zeros.
#include "cuda/attention.h"

#include <algorithm>
#include <bit>

#include "cuda/plan_step.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::cuda {
namespace {

using codegen::AnchorDesc;
using codegen::TensorDesc;

constexpr int64_t kLongest = 1024;      // keys of unmasked attention; beyond, eager's kernel has more to offer than it costs to reach
constexpr int64_t kFewestQueries = 17;   // that cuDNN is asked for
constexpr int64_t kFewestSplitKeys = 32;
constexpr int64_t kMostSplits = 256;    // MOST_SPLITS of the text
constexpr double kMostPlainWork = 1 << 27;  // multiply-adds of each product that f32 attention does without matrix units
constexpr int kQueries = 64;            // of a block of `tiles`

// Sizes, in this order, then strides of q k v o mask in elements.
constexpr const char* kArguments = R"(
enum { a_heads, a_queries, a_keys, a_share, a_scale, a_splits, a_split, a_strides, num_sizes = a_strides + 16 };
#define STRIDE(tensor, axis) a.v[a_strides + 3 * (tensor) + (axis)]
#define MASK_STRIDE(axis) a.v[a_strides + 12 + (axis)]
#define SCALE krn_bits_f32((unsigned)a.v[a_scale])
#if MASKED == 1
typedef d_bool Mask;
#elif MASKED == 2
typedef ADDED Mask;
#endif
KRN_FN float krn_power2(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}
#define LOWEST krn_bits_f32(0xff800000u)
// A score in units of log2, masked.
#if MASKED
KRN_FN float krn_masked(float s, typename Mask::Stored m) {
#if MASKED == 1
  return Mask::get(m) ? s : LOWEST;
#else
  return s + Mask::get(m) * 1.44269504f;
#endif
}
#endif
)";

constexpr const char* kTiles = R"(
typedef unsigned short u16;
KRN_FN void krn_copy16(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(krn_shared(to)), "l"(from), "r"(there ? 16 : 0));
}
KRN_FN void krn_copies_end() { asm volatile("cp.async.commit_group;"); }
template <int LEFT> KRN_FN void krn_copies_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(LEFT)); }
KRN_FN void krn_matrices(unsigned (&r)[4], const u16* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(krn_shared(p)));
}
KRN_FN void krn_turned(unsigned (&r)[4], const u16* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(krn_shared(p)));
}
KRN_FN float krn_quad_max(float x) { x = fmaxf(x, krn_exchange(x, 1)); return fmaxf(x, krn_exchange(x, 2)); }
KRN_FN float krn_quad_sum(float x) { x += krn_exchange(x, 1); return x + krn_exchange(x, 2); }
enum { QUERIES = 64, LINE = D + 8, STEPS = D / 16 };  // a line is padded by 16 bytes, so that eight of them meet no bank twice

template <int LINES> KRN_FN void krn_load(u16* to, const u16* from, i64 stride, int left) {
  for (int c = KRN_THREAD; c < LINES * (D / 8); c += 128) {
    const int line = c / (D / 8), at = c % (D / 8) * 8;
    krn_copy16(to + line * LINE + at, from + (line < left ? line * stride + at : 0), line < left);
  }
}

extern "C" __global__ void __launch_bounds__(128, RESIDENT) tiles(KRN_PARAMETER(KrnSizes<i64, num_sizes>) a, KRN_PARAMETER(KrnPointers<5>) p) {
  __shared__ __align__(16) u16 stage[2][2][KEYS * LINE];
  const int wave = KRN_THREAD / 32, lane = KRN_THREAD % 32;
  const int queries = (int)a.v[a_queries], keys = (int)a.v[a_keys], blocks = (queries + QUERIES - 1) / QUERIES;
  const int first = KRN_BLOCK % blocks * QUERIES, head = KRN_BLOCK / blocks % (int)a.v[a_heads], batch = KRN_BLOCK / blocks / (int)a.v[a_heads];
  const int shared_head = head / (int)a.v[a_share];
  const u16* const q = (const u16*)p.v[0] + batch * STRIDE(0, 0) + head * STRIDE(0, 1) + first * STRIDE(0, 2);
  const u16* const k = (const u16*)p.v[1] + batch * STRIDE(1, 0) + shared_head * STRIDE(1, 1);
  const u16* const v = (const u16*)p.v[2] + batch * STRIDE(2, 0) + shared_head * STRIDE(2, 1);
  u16* const o = (u16*)p.v[3] + batch * STRIDE(3, 0) + head * STRIDE(3, 1) + first * STRIDE(3, 2);
  // The queries pass through the second buffer while the first tile is on its way into the first.
  krn_load<QUERIES>(stage[1][0], q, STRIDE(0, 2), queries - first);
  krn_copies_end();
  krn_load<KEYS>(stage[0][0], k, STRIDE(1, 2), keys);
  krn_load<KEYS>(stage[0][1], v, STRIDE(2, 2), keys);
  krn_copies_end();
  krn_copies_wait<1>();
  krn_sync();
  unsigned qs[STEPS][4];
  KRN_UNROLL for (int s = 0; s < STEPS; ++s) krn_matrices(qs[s], stage[1][0] + (wave * 16 + lane % 16) * LINE + s * 16 + lane / 16 * 8);
  krn_sync();

  float sum[D / 8][4], high[2] = {LOWEST, LOWEST}, total[2] = {0, 0};
  KRN_UNROLL for (int d = 0; d < D / 8; ++d) KRN_UNROLL for (int e = 0; e < 4; ++e) sum[d][e] = 0;
  const float scale = SCALE * 1.44269504f;
  const int row = first + wave * 16 + lane / 4;  // and row + 8
#if MASKED
  const typename Mask::Stored* const mask = (const typename Mask::Stored*)p.v[4] + batch * MASK_STRIDE(0) + head * MASK_STRIDE(1);
  const i64 mask_row[2] = {(row < queries ? row : 0) * MASK_STRIDE(2), (row + 8 < queries ? row + 8 : 0) * MASK_STRIDE(2)};
#endif
  const int end = CAUSAL && first + QUERIES < keys ? first + QUERIES : keys;
  for (int at = 0, turn = 0; at < end; at += KEYS, turn ^= 1) {
    if (at + KEYS < end) {
      krn_load<KEYS>(stage[turn ^ 1][0], k + (at + KEYS) * STRIDE(1, 2), STRIDE(1, 2), keys - at - KEYS);
      krn_load<KEYS>(stage[turn ^ 1][1], v + (at + KEYS) * STRIDE(2, 2), STRIDE(2, 2), keys - at - KEYS);
      krn_copies_end();
      krn_copies_wait<1>();
    } else {
      krn_copies_wait<0>();
    }
#if MASKED
    // Fetched ahead of the products that they are needed after.
#if MASKED == 1
    unsigned shown[MASK_ROWS];  // a bit for each of the thread's keys
    KRN_UNROLL for (int r = 0; r < MASK_ROWS; ++r) shown[r] = 0;
#else
    typename Mask::Stored added[MASK_ROWS][KEYS / 4];
#endif
    KRN_UNROLL for (int r = 0; r < MASK_ROWS; ++r) KRN_UNROLL for (int j = 0; j < KEYS / 4; ++j) {
      const int key = at + j / 2 * 8 + lane % 4 * 2 + j % 2;
      const typename Mask::Stored m = mask[mask_row[r] + (key < keys ? key : 0) * MASK_STRIDE(3)];
#if MASKED == 1
      shown[r] |= Mask::get(m) ? 1u << j : 0u;
#else
      added[r][j] = m;
#endif
    }
#endif
    krn_sync();
    float score[KEYS / 8][4];
    KRN_UNROLL for (int j = 0; j < KEYS / 8; ++j) KRN_UNROLL for (int e = 0; e < 4; ++e) score[j][e] = 0;
    KRN_UNROLL for (int s = 0; s < STEPS; ++s)
      KRN_UNROLL for (int j = 0; j < KEYS / 16; ++j) {
        unsigned ks[4];
        krn_matrices(ks, stage[turn][0] + (j * 16 + lane / 16 * 8 + lane % 8) * LINE + s * 16 + lane / 8 % 2 * 8);
        krn_product(score[2 * j], qs[s], ks[0], ks[1]);
        krn_product(score[2 * j + 1], qs[s], ks[2], ks[3]);
      }
    float top[2] = {high[0], high[1]};
    KRN_UNROLL for (int j = 0; j < KEYS / 8; ++j)
      KRN_UNROLL for (int e = 0; e < 4; ++e) {
        const int key = at + j * 8 + lane % 4 * 2 + e % 2, half = e / 2;
        float s = score[j][e] * scale;
        bool seen = key < keys;
        if (CAUSAL) seen = seen && key <= row + half * 8;
#if MASKED == 1
        seen = seen && (shown[MASK_ROWS == 1 ? 0 : half] >> (j * 2 + e % 2) & 1);
#elif MASKED == 2
        s = krn_masked(s, added[MASK_ROWS == 1 ? 0 : half][j * 2 + e % 2]);
#endif
        s = seen ? s : LOWEST;
        score[j][e] = s;
        top[half] = fmaxf(top[half], s);
      }
    float base[2];
    KRN_UNROLL for (int half = 0; half < 2; ++half) {
      top[half] = krn_quad_max(top[half]);
      base[half] = top[half] == LOWEST ? 0.0f : top[half];
      const float before = krn_power2(high[half] - base[half]);
      high[half] = top[half];
      total[half] *= before;
      KRN_UNROLL for (int d = 0; d < D / 8; ++d) sum[d][2 * half] *= before, sum[d][2 * half + 1] *= before;
    }
    KRN_UNROLL for (int j = 0; j < KEYS / 8; ++j)
      KRN_UNROLL for (int e = 0; e < 4; ++e) {
        score[j][e] = krn_power2(score[j][e] - base[e / 2]);
        total[e / 2] += score[j][e];
      }
    KRN_UNROLL for (int j = 0; j < KEYS / 16; ++j) {
      const unsigned ps[4] = {krn_pair(score[2 * j][0], score[2 * j][1]), krn_pair(score[2 * j][2], score[2 * j][3]),
                              krn_pair(score[2 * j + 1][0], score[2 * j + 1][1]), krn_pair(score[2 * j + 1][2], score[2 * j + 1][3])};
      KRN_UNROLL for (int d = 0; d < D / 16; ++d) {
        unsigned vs[4];
        krn_turned(vs, stage[turn][1] + (j * 16 + lane / 8 % 2 * 8 + lane % 8) * LINE + d * 16 + lane / 16 * 8);
        krn_product(sum[2 * d], ps, vs[0], vs[1]);
        krn_product(sum[2 * d + 1], ps, vs[2], vs[3]);
      }
    }
    krn_sync();
  }
  KRN_UNROLL for (int half = 0; half < 2; ++half) {
    const float all = krn_quad_sum(total[half]), share = all == 0 ? 0.0f : 1.0f / all;
    if (row + half * 8 >= queries) continue;
    u16* const line = o + (wave * 16 + lane / 4 + half * 8) * STRIDE(3, 2) + lane % 4 * 2;
    KRN_UNROLL for (int d = 0; d < D / 8; ++d) *(unsigned*)(line + d * 8) = krn_pair(sum[d][2 * half] * share, sum[d][2 * half + 1] * share);
  }
}
)";

// LANES threads share a key: each holds eight elements of it. A block's groups take keys in turn.
constexpr const char* kSplit = R"(
enum { LANES = D / 8, GROUPS = 128 / LANES, PARTIAL = D + 2, MOST_SPLITS = 256 };
KRN_KERNEL(128) split(KRN_PARAMETER(KrnSizes<i64, num_sizes>) a, KRN_PARAMETER(KrnPointers<6>) p) {
  KRN_SHARED float parts[GROUPS][PARTIAL];
  const int group = KRN_THREAD / LANES, lane = KRN_THREAD % LANES, splits = (int)a.v[a_splits];
  const int unit = KRN_BLOCK / splits, part = KRN_BLOCK % splits, query = MANY ? unit % (int)a.v[a_queries] : 0;
  const int row = MANY ? unit / (int)a.v[a_queries] : unit, head = row % (int)a.v[a_heads], batch = row / (int)a.v[a_heads];
  const int shared_head = head / (int)a.v[a_share];
  typedef typename STORAGE::Stored Stored;
  const Stored* const q = (const Stored*)p.v[0] + batch * STRIDE(0, 0) + head * STRIDE(0, 1) + query * STRIDE(0, 2) + lane * 8;
  const Stored* const k = (const Stored*)p.v[1] + batch * STRIDE(1, 0) + shared_head * STRIDE(1, 1) + lane * 8;
  const Stored* const v = (const Stored*)p.v[2] + batch * STRIDE(2, 0) + shared_head * STRIDE(2, 1) + lane * 8;
  const int begin = part * (int)a.v[a_split], keys = CAUSAL && query + 1 < (int)a.v[a_keys] ? query + 1 : (int)a.v[a_keys];
  const int end = begin + (int)a.v[a_split] < keys ? begin + (int)a.v[a_split] : keys;
#if MASKED
  const typename Mask::Stored* const mask = (const typename Mask::Stored*)p.v[4] + batch * MASK_STRIDE(0) + head * MASK_STRIDE(1) + query * MASK_STRIDE(2);
#endif
  float x[8], sum[8], high = LOWEST, total = 0;
  const KrnPack<STORAGE, 8> stored = krn_word<STORAGE, 8>(q, true);
  const float scale = SCALE * 1.44269504f;
  KRN_UNROLL for (int j = 0; j < 8; ++j) x[j] = STORAGE::get(stored.s[j]) * scale, sum[j] = 0;
  for (int at = begin; at < end; at += 4 * GROUPS) {
    KrnPack<STORAGE, 8> ks[4], vs[4];
    float s[4];
    bool there[4];
    KRN_UNROLL for (int c = 0; c < 4; ++c) {
      const int key = at + c * GROUPS + group;
      there[c] = key < end;
      s[c] = 0;
#if MASKED
      s[c] = there[c] ? krn_masked(0.0f, mask[key * MASK_STRIDE(3)]) : LOWEST;
      there[c] = there[c] && s[c] != LOWEST;  // a hidden key is not fetched
#endif
    }
    KRN_UNROLL for (int c = 0; c < 4; ++c) {
      const i64 key = there[c] ? at + c * GROUPS + group : begin;
      ks[c] = krn_word<STORAGE, 8>(k + key * STRIDE(1, 2), there[c]);
      vs[c] = krn_word<STORAGE, 8>(v + key * STRIDE(2, 2), there[c]);
    }
    KRN_UNROLL for (int c = 0; c < 4; ++c) {
      float dot = 0;
      KRN_UNROLL for (int j = 0; j < 8; ++j) dot += x[j] * STORAGE::get(ks[c].s[j]);
      KRN_UNROLL for (int d = LANES / 2; d > 0; d /= 2) dot += krn_exchange(dot, d);
      s[c] = there[c] ? s[c] + dot : LOWEST;
    }
    float top = high;
    KRN_UNROLL for (int c = 0; c < 4; ++c) top = krn_max(top, s[c]);
    const float base = top == LOWEST ? 0.0f : top, before = krn_power2(high - base);
    high = top;
    total *= before;
    KRN_UNROLL for (int j = 0; j < 8; ++j) sum[j] *= before;
    KRN_UNROLL for (int c = 0; c < 4; ++c) {
      const float w = krn_power2(s[c] - base);
      total += w;
      KRN_UNROLL for (int j = 0; j < 8; ++j) sum[j] += w * STORAGE::get(vs[c].s[j]);
    }
  }
  KRN_UNROLL for (int j = 0; j < 8; ++j) parts[group][lane * 8 + j] = sum[j];
  if (lane == 0) parts[group][D] = high, parts[group][D + 1] = total;
  krn_sync();
  float* const out = (float*)p.v[5] + (i64)KRN_BLOCK * PARTIAL;
  for (int d = KRN_THREAD; d < D; d += 128) {
    float top = LOWEST, all = 0, mine = 0;
    for (int g = 0; g < GROUPS; ++g) top = krn_max(top, parts[g][D]);
    const float base = top == LOWEST ? 0.0f : top;
    for (int g = 0; g < GROUPS; ++g) {
      const float w = krn_power2(parts[g][D] - base);
      mine += w * parts[g][d];
      all += w * parts[g][D + 1];
    }
    if (splits == 1) {
      Stored* const o = (Stored*)p.v[3] + batch * STRIDE(3, 0) + head * STRIDE(3, 1) + query * STRIDE(3, 2);
      o[d] = STORAGE::put(all == 0 ? 0.0f : mine / all);
      continue;
    }
    out[d] = mine;
    if (d == 0) out[D] = top, out[D + 1] = all;
  }
}
KRN_KERNEL(128) join(KRN_PARAMETER(KrnSizes<i64, num_sizes>) a, KRN_PARAMETER(KrnPointers<6>) p) {
  const int splits = (int)a.v[a_splits], query = KRN_BLOCK % (int)a.v[a_queries];
  const int head = KRN_BLOCK / (int)a.v[a_queries] % (int)a.v[a_heads], batch = KRN_BLOCK / (int)a.v[a_queries] / (int)a.v[a_heads];
  const float* const in = (const float*)p.v[5] + (i64)KRN_BLOCK * splits * PARTIAL;
  typedef typename STORAGE::Stored Stored;
  Stored* const o = (Stored*)p.v[3] + batch * STRIDE(3, 0) + head * STRIDE(3, 1) + query * STRIDE(3, 2);
  KRN_SHARED float highs[MOST_SPLITS], totals[MOST_SPLITS];
  for (int s = KRN_THREAD; s < splits; s += 128) highs[s] = in[s * PARTIAL + D], totals[s] = in[s * PARTIAL + D + 1];
  krn_sync();
  float top = LOWEST, all = 0;
  for (int s = 0; s < splits; ++s) top = krn_max(top, highs[s]);
  const float base = top == LOWEST ? 0.0f : top;
  krn_sync();
  for (int s = KRN_THREAD; s < splits; s += 128) highs[s] = krn_power2(highs[s] - base);
  krn_sync();
  for (int s = 0; s < splits; ++s) all += highs[s] * totals[s];
  for (int d = KRN_THREAD; d < D; d += 128) {
    float mine = 0;
    for (int s = 0; s < splits; s += 8) {
      float x[8];
      KRN_UNROLL for (int c = 0; c < 8; ++c) x[c] = s + c < splits ? in[(s + c) * PARTIAL + d] : 0.0f;
      KRN_UNROLL for (int c = 0; c < 8; ++c) mine += s + c < splits ? highs[s + c] * x[c] : 0.0f;
    }
    o[d] = STORAGE::put(all == 0 ? 0.0f : mine / all);
  }
}
)";

int capability(const std::string& arch) { return arch.size() > 3 ? std::atoi(arch.c_str() + 3) : 0; }

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

std::optional<TextKernel> attention_kernel(const AnchorDesc& anchor, const std::string& arch, int num_units, std::string& why_not) {
  const TensorDesc &q = anchor.operands[0], &k = anchor.operands[1], &v = anchor.operands[2], &o = anchor.results[0];
  const bool masked = anchor.operands.size() > 3 && anchor.operands[3].present();
  auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  if (!float_storage(q.dtype) || k.dtype != q.dtype || v.dtype != q.dtype || o.dtype != q.dtype)
    return no("attention that is not f32, bf16 or f16 runs in eager's kernel");
  const size_t rank = q.sizes.size();
  if (rank < 3 || k.sizes.size() != rank || v.sizes.size() != rank) return no("attention with fewer axes than heads, queries and elements");
  const int64_t d = q.sizes[rank - 1], queries = q.sizes[rank - 2], heads = q.sizes[rank - 3], keys = k.sizes[rank - 2], shared = k.sizes[rank - 3];
  int64_t batch = 1;
  for (size_t i = 0; i + 3 < rank; ++i) batch *= q.sizes[i];
  const bool plain = q.dtype == kit::kDType_f32;
  const bool one = (queries == 1 || plain) && std::has_single_bit(static_cast<uint64_t>(d)) && d >= 16 && d <= 256;
  if (plain && static_cast<double>(batch * heads) * static_cast<double>(queries * keys) * static_cast<double>(d) > kMostPlainWork)
    return no("large attention in f32 runs in eager's kernel");
  if (plain && !one) return no("attention with heads of a width that has no kernel");
  if (v.sizes[rank - 1] != d || (!one && (d % 16 != 0 || d > 128))) return no("attention with heads of a width that has no kernel");
  if (shared == 0 || heads % shared != 0 || keys == 0) return no("attention whose heads share no keys evenly");
  if (!one && capability(arch) < 80) return no("attention on matrix units older than 8.0 runs in eager's kernel");
  if (!one && !masked && keys > kLongest) return no("long attention without a mask runs in eager's flash kernel");
  TextKernel out;
  const int64_t per_unit = batch * heads * (one ? queries : 1);
  const int64_t splits = one ? std::clamp<int64_t>(int64_t{8} * num_units / std::max<int64_t>(per_unit, 1), 1,
                                                        std::clamp<int64_t>(keys / kFewestSplitKeys, 1, kMostSplits)) : 1;
  const int64_t split = (keys + splits - 1) / splits;
  out.sizes = {heads, queries, keys, heads / shared, static_cast<int64_t>(std::bit_cast<uint32_t>(static_cast<float>(anchor.scale))),
               (keys + split - 1) / split, split};
  for (const TensorDesc* t : {&q, &k, &v, &o}) {
    int64_t strides[3];
    if (!reads_words(*t) || !strides_of(*t, strides)) return no("attention over elements that are not whole aligned lines");
    out.sizes.insert(out.sizes.end(), strides, strides + 3);
    out.pointers.push_back(*t);
  }
  std::string text;
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
  text += "#define D " + std::to_string(d) + "\n#define MASKED " + (!masked ? "0" : mask.dtype == kit::kDType_bool ? "1" : "2") + "\n#define CAUSAL " +
          (anchor.causal ? "1" : "0") + "\n#define STORAGE " + float_storage(q.dtype) + "\n#define MASK_ROWS " + (mask_strides[2] == 0 ? "1" : "2") + "\n";
  if (masked && mask.dtype != kit::kDType_bool) text += std::string("#define ADDED ") + float_storage(mask.dtype) + "\n";
  if (one) {
    text += std::string("#define MANY ") + (queries > 1 ? "1" : "0") + "\n" + kArguments + kSplit;
    const int64_t parts = out.sizes[5];
    out.launches = {{"split", per_unit * parts, 128}};
    if (parts > 1) out.launches.push_back({"join", per_unit, 128});
    out.workspace_bytes = parts > 1 ? per_unit * parts * (d + 2) * 4 : 0;
  } else {
    text += std::string("#define TYPE \"") + (q.dtype == kit::kDType_bf16 ? "bf16" : "f16") + "\"\n#define KEYS " + (d <= 64 ? "64" : "32") +
            "\n#define RESIDENT " + (d <= 64 ? "4" : "3") + "\n" + kArguments + kMatrixText + kTiles;
    out.launches = {{"tiles", per_unit * ((queries + kQueries - 1) / kQueries), 128}};
  }
  out.text = std::move(text);
  out.what = "attention [" + std::to_string(batch) + "x" + std::to_string(heads) + ", " + std::to_string(queries) + "x" + std::to_string(keys) + ", " +
             std::to_string(d) + "]" + (masked ? " masked" : "") + (anchor.causal ? " causal" : "");
  return out;
}

std::optional<HeadsProblem> heads_problem(const AnchorDesc& anchor, std::string& why_not) {
  auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  const TensorDesc& q = anchor.operands[0];
  if (q.dtype != kit::kDType_bf16 && q.dtype != kit::kDType_f16) return no("cuDNN's attention takes bf16 and f16");
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

std::string HeadsProblem::key() const {
  std::string out = "heads ";
  for (const ConvTensor* t : {&q, &k, &v, &o}) {
    out += std::to_string(int{t->dtype}) + ":";
    for (const auto* dims : {&t->sizes, &t->strides})
      for (int64_t d : *dims) out += std::to_string(d) + ",";
  }
  return out + std::to_string(scale) + (causal ? "c" : "");
}

std::unique_ptr<codegen::Step> make_heads(const AnchorDesc& anchor) {
  std::string why_not;
  const auto p = heads_problem(anchor, why_not);
  if (!p) throw kit::Error(KRN_STATUS_unsupported, why_not);
  const TensorDesc tensors[] = {anchor.operands[0], anchor.operands[1], anchor.operands[2], anchor.results[0]};
  return make_plan_step("cudnn attention", tensors, anchor.causal ? "causal" : "", cudnn_plan(*p));
}

}  // namespace keirin::cuda
