// SPDX-License-Identifier: Apache-2.0
//
// A state is passed on as data that says itself whether it is there: its words are set to a pattern that no state has before the
// launch, written once by the block that has the units, and read until the pattern is gone. So a step costs one way through the
// second-level cache instead of a barrier's two. All blocks of a launch must run at once, which the driver is asked to ensure.
#include "cuda/rnn.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <future>

#include "cuda/matmul.h"
#include "plugins/codegen/rnn.h"
#include "plugins/codegen/rows.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::cuda {
namespace {

using codegen::AnchorDesc;
using codegen::RnnShape;
using codegen::TensorDesc;

constexpr int64_t kSetRows = 16;      // of a matrix instruction
constexpr int64_t kWaves = 8, kThreads = 32 * kWaves;
constexpr int64_t kMostTurns = 8;     // pieces of 32 columns of a wave; each takes eight registers
constexpr int64_t kMostSets = 8;      // MOST_SETS of the text; beyond, a library's products are as busy
constexpr int64_t kKeptTiles = 16;    // of 8 lines by 32 columns, that a wave has in registers
constexpr int64_t kMostWorkspaceBytes = int64_t{2} << 30;

// `recur`: a wave takes every eighth piece of 32 columns of the state, for all of the block's lines; the waves' sums meet in shared
// memory. A lane's 16 bytes are eight neighbouring columns, of the state as of the matrix: a product adds them in any order.
constexpr const char* kText = R"(
enum { a_time, a_batch, a_back, a_blocks, a_sets, a_state, a_x, a_y = a_x + 2, a_w = a_y + 2, num_sizes = a_w + 1 };
enum { WAVES = 8, LINES = GATES * UNITS, TILES = LINES / 8, CHUNKS = (HIDDEN + 31) / 32, TURNS = (CHUNKS + WAVES - 1) / WAVES,
       SHARED_CHUNKS = CHUNKS > KEPT * WAVES ? CHUNKS - KEPT * WAVES : 0, LINE = LINES + (LINES % 16 == 0 ? 8 : 0), CELLS = (UNITS + 15) / 16,
       TOGETHER = TILES % 4 == 0 ? 4 : 3, MOST_SETS = 8 };
typedef typename STORAGE::Stored Stored;
#ifdef __CUDA_ARCH__
#define KRN_APART static __device__ __noinline__
#define krn_any(x) __any_sync(0xffffffffu, x)
#define krn_give_up() __trap()
#define krn_let_others()
#define KRN_IDLE(chunk) ((chunk) >= CHUNKS)
// What another block may be about to write, and how it does.
KRN_FN Krn16 krn_peek(const Krn16* p) {
  Krn16 w;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(w.w[0]), "=r"(w.w[1]), "=r"(w.w[2]), "=r"(w.w[3]) : "l"(p) : "memory");
  return w;
}
KRN_FN void krn_tell(unsigned* p, unsigned v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
KRN_FN bool krn_blank(const Krn16& w) { return max(max(w.w[0], w.w[1]), max(w.w[2], w.w[3])) == 0xffffffffu; }
KRN_FN float krn_sigmoid(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + krn_exp2(-1.44269504f * x)));
  return y;
}
#else  // Emulated blocks come one after the other, and threads in turn: what is awaited is there after a turn, or never will be.
#define KRN_APART static
#define krn_any(x) (x)
#define krn_give_up() __builtin_trap()
#define krn_let_others() krn_sync()
#define KRN_IDLE(chunk) false  // turns are counted: every wave goes the same way
KRN_FN Krn16 krn_peek(const Krn16* p) { return *p; }
KRN_FN void krn_tell(unsigned* p, unsigned v) { *p = v; }
KRN_FN bool krn_blank(const Krn16& w) { return w.w[0] == 0xffffffffu || w.w[1] == 0xffffffffu || w.w[2] == 0xffffffffu || w.w[3] == 0xffffffffu; }
KRN_FN void krn_product(float (&d)[4], const unsigned (&left)[4], unsigned y0, unsigned y1) {
  const int lane = KRN_THREAD % 32;
  const Krn16 x = {{left[0], left[1], left[2], left[3]}};
  const Krn8 y = {{y0, y1}};
  Krn16 xs[32];
  Krn8 ys[32];
  for (int i = 0; i < 32; ++i) xs[lane ^ i] = krn_exchange(x, i), ys[lane ^ i] = krn_exchange(y, i);
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    for (int k = 0; k < 16; ++k) {
      const unsigned a = xs[row % 8 * 4 + k % 8 / 2].w[row / 8 + k / 8 * 2], b = ys[column * 4 + k % 8 / 2].w[k / 8];
      d[e] += STORAGE::get((Stored)(a >> k % 2 * 16)) * STORAGE::get((Stored)(b >> k % 2 * 16));
    }
  }
}
KRN_FN unsigned krn_half(float x) { return x != x ? 0x7fffu : STORAGE::put(x); }  // the one NaN that the device makes
KRN_FN unsigned krn_pair(float low, float high) { return krn_half(low) | krn_half(high) << 16; }
KRN_FN float krn_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
#endif
KRN_FN float krn_tanh(float x) { return 2.0f * krn_sigmoid(2.0f * x) - 1.0f; }
KRN_FN float krn_value(const void* p, i64 at) { return p ? STORAGE::get(((const Stored*)p)[at]) : 0.0f; }

// Eight elements that may start anywhere, or zeros. Not inlined: it is called often where time does not matter.
KRN_APART Krn16 krn_eight(const Stored* p, bool there) { return krn_fetch<STORAGE, 8>(p, there ? 8 : 0).w[0]; }
// A lane's word of eight lines by 32 columns of the recurrent matrix, zeros where it ends.
KRN_FN Krn16 krn_weight(const KrnSizes<i64, num_sizes>& a, const KrnPointers<10>& p, int first_unit, int chunk, int tile) {
  const int line = tile * 8 + KRN_THREAD % 32 / 4, k = chunk * 32 + KRN_THREAD % 4 * 8, unit = first_unit + line % UNITS;
  return krn_eight((const Stored*)p.v[1] + (line / UNITS * HIDDEN + unit) * a.v[a_w] + k, unit < HIDDEN && k < HIDDEN);
}
// The inputs' part of a thread's cells, from the first row of a set on; zeros where there is no cell.
KRN_FN void krn_inputs(float (&inputs)[CELLS][GATES], const float* from, i64 stride, const int (&rows)[CELLS], const int (&units)[CELLS], int left) {
  KRN_UNROLL for (int c = 0; c < CELLS; ++c) KRN_UNROLL for (int g = 0; g < GATES; ++g)
    inputs[c][g] = units[c] < HIDDEN && rows[c] < 16 && rows[c] < left ? from[rows[c] * stride + g * HIDDEN + units[c]] : 0.0f;
}

// A state is words of [16 rows][32 columns][upper, lower rows][lane]. The first one is the caller's, the others are to come.
KRN_KERNEL(256) blank(KRN_PARAMETER(KrnSizes<i64, num_sizes>) a, KRN_PARAMETER(KrnPointers<10>) p) {
  const i64 at = (i64)KRN_BLOCK * 256 + KRN_THREAD;
  if (at >= (a.v[a_time] + 1) * a.v[a_state]) return;
  Krn16 w;
  w.w[0] = w.w[1] = w.w[2] = w.w[3] = 0xffffffffu;
  if (at < a.v[a_state]) {
    const int lane = (int)at % 32, row = (int)at / 64 / CHUNKS * 16 + (int)at / 32 % 2 * 8 + lane / 4, column = (int)at / 64 % CHUNKS * 32 + lane % 4 * 8;
    w = krn_eight((const Stored*)p.v[4] + (i64)row * HIDDEN + column, row < (int)a.v[a_batch] && column < HIDDEN);
    KRN_UNROLL for (int e = 0; e < 4; ++e) {
      if (w.w[e] >> 16 == 0xffffu) w.w[e] ^= 0x80000000u;  // a NaN that would look like words to come
    }
  }
  ((Krn16*)p.v[9])[at] = w;
}

KRN_KERNEL_FULL(256, 1) recur(KRN_PARAMETER(KrnSizes<i64, num_sizes>) a, KRN_PARAMETER(KrnPointers<10>) p) {
  // Words of the matrix, then the waves' sums, then what a cell keeps from step to step.
  KRN_SHARED_AHEAD(weights, SHARED_CHUNKS * TILES * 32 + WAVES * 4 * LINE + MOST_SETS * CELLS * 64);
  float* const parts = (float*)(weights + SHARED_CHUNKS * TILES * 32);
  float* const cells = parts + WAVES * 16 * LINE + KRN_THREAD;
  const int wave = KRN_THREAD / 32, lane = KRN_THREAD % 32, group = lane / 4, quad = lane % 4;
  const int blocks = (int)a.v[a_blocks], sets = (int)a.v[a_sets], first_unit = KRN_BLOCK % blocks * UNITS, first_row = KRN_BLOCK / blocks * sets * 16;
  const int time = (int)a.v[a_time], batch = (int)a.v[a_batch];
  Krn16 kept[KEPT][TILES];
  KRN_UNROLL for (int c = 0; c < KEPT; ++c) KRN_UNROLL for (int n = 0; n < TILES; ++n) kept[c][n] = krn_weight(a, p, first_unit, c * WAVES + wave, n);
  for (int tile = wave; tile < SHARED_CHUNKS * TILES; tile += WAVES)
    weights[tile * 32 + lane] = krn_weight(a, p, first_unit, KEPT * WAVES + tile / TILES, tile % TILES);
  // A thread's cells: one unit of one row of each set. Rows are dealt so that a wave meets no bank of the sums twice.
  float bias[CELLS][GATES], late[CELLS], inputs[CELLS][GATES];
  int rows[CELLS], units[CELLS];
  KRN_UNROLL for (int c = 0; c < CELLS; ++c) {
    const int line = (c * 256 + KRN_THREAD) / UNITS;
    units[c] = first_unit + (c * 256 + KRN_THREAD) % UNITS;
    rows[c] = UNITS == 16 ? (line & ~3) | (line & 1) << 1 | (line >> 1 & 1) : line;
    late[c] = 0;
    KRN_UNROLL for (int g = 0; g < GATES; ++g) {
      bias[c][g] = units[c] < HIDDEN ? krn_value(p.v[2], g * HIDDEN + units[c]) : 0.0f;
      const float other = units[c] < HIDDEN ? krn_value(p.v[3], g * HIDDEN + units[c]) : 0.0f;
      if (GATES == 3 && g == 2) late[c] = other;
      else bias[c][g] += other;
    }
    for (int set = 0; set < sets; ++set) {
      const int row = first_row + set * 16 + rows[c];
      cells[(set * CELLS + c) * 256] = units[c] < HIDDEN && rows[c] < 16 && row < batch ? krn_value(p.v[GATES == 4 ? 5 : 4], (i64)row * HIDDEN + units[c]) : 0.0f;
    }
  }
  krn_sync();
  const Krn16* const states = (const Krn16*)p.v[9] + (i64)first_row / 16 * (CHUNKS * 64) + wave * 64 + lane;
  const int column = wave * 32 + quad * 8;
  Krn16 x[TURNS][2];
  krn_inputs(inputs, (const float*)p.v[0] + (a.v[a_back] ? time - 1 : 0) * a.v[a_x] + first_row * a.v[a_x + 1], a.v[a_x + 1], rows, units, batch - first_row);
  for (int step = 0, set = 0; step < time;) {
    krn_let_others();
    const Krn16* const state = states + step * a.v[a_state] + set * (CHUNKS * 64);
    KRN_UNROLL for (int c = 0; c < TURNS; ++c) KRN_UNROLL for (int u = 0; u < 2; ++u) {
      x[c][u].w[0] = x[c][u].w[1] = x[c][u].w[2] = x[c][u].w[3] = 0;
      if (first_row + set * 16 + u * 8 + group < batch && column + c * WAVES * 32 < HIDDEN) x[c][u] = krn_peek(state + c * WAVES * 64 + u * 32);
    }
    for (int tries = 0;; ++tries) {
      bool waits = false;
      KRN_UNROLL for (int c = 0; c < TURNS; ++c) KRN_UNROLL for (int u = 0; u < 2; ++u) waits = waits || krn_blank(x[c][u]);
      if (!krn_any(waits)) break;
      if (tries > 1 << 24) krn_give_up();
      KRN_UNROLL for (int c = 0; c < TURNS; ++c) KRN_UNROLL for (int u = 0; u < 2; ++u)
        if (krn_blank(x[c][u])) x[c][u] = krn_peek(state + c * WAVES * 64 + u * 32);
    }
    float sum[TILES][4];
    KRN_UNROLL for (int n = 0; n < TILES; ++n) KRN_UNROLL for (int e = 0; e < 4; ++e) sum[n][e] = 0;
    KRN_UNROLL for (int c = 0; c < TURNS; ++c) {
      if (KRN_IDLE(c * WAVES + wave)) break;
      KRN_UNROLL for (int n = 0; n < TILES; n += TOGETHER) {
        Krn16 word[TOGETHER];
        KRN_UNROLL for (int j = 0; j < TOGETHER; ++j)
          word[j] = c < KEPT ? kept[c < KEPT ? c : 0][n + j] : weights[(((c - KEPT) * WAVES + wave) * TILES + n + j) * 32 + lane];
        KRN_UNROLL for (int j = 0; j < TOGETHER; ++j)
          krn_product(sum[n + j], {x[c][0].w[0], x[c][1].w[0], x[c][0].w[1], x[c][1].w[1]}, word[j].w[0], word[j].w[1]);
        KRN_UNROLL for (int j = 0; j < TOGETHER; ++j)
          krn_product(sum[n + j], {x[c][0].w[2], x[c][1].w[2], x[c][0].w[3], x[c][1].w[3]}, word[j].w[2], word[j].w[3]);
      }
    }
    krn_sync();  // the sums before are read
    KRN_UNROLL for (int n = 0; n < TILES; ++n) KRN_UNROLL for (int u = 0; u < 2; ++u) {
      Krn8 v;
      v.w[0] = krn_f32_bits(sum[n][2 * u]), v.w[1] = krn_f32_bits(sum[n][2 * u + 1]);
      *(Krn8*)(parts + (wave * 16 + u * 8 + group) * LINE + n * 8 + quad * 2) = v;
    }
    krn_sync();
    KRN_UNROLL for (int c = 0; c < CELLS; ++c) {
      if (rows[c] >= 16) continue;
      float own[GATES];
      KRN_UNROLL for (int g = 0; g < GATES; ++g) {
        own[g] = 0;
        KRN_UNROLL for (int v = 0; v < WAVES; ++v) own[g] += parts[(v * 16 + rows[c]) * LINE + g * UNITS + (c * 256 + KRN_THREAD) % UNITS];
        inputs[c][g] += bias[c][g];
      }
      const float before = cells[(set * CELLS + c) * 256];
#if GATES == 4
      const float after = krn_sigmoid(inputs[c][1] + own[1]) * before + krn_sigmoid(inputs[c][0] + own[0]) * krn_tanh(inputs[c][2] + own[2]);
      const float h = krn_sigmoid(inputs[c][3] + own[3]) * krn_tanh(after);
#else
      const float r = krn_sigmoid(inputs[c][0] + own[0]), z = krn_sigmoid(inputs[c][1] + own[1]), n = krn_tanh(inputs[c][2] + r * (own[2] + late[c]));
      const float h = n + z * (before - n), after = h;
#endif
      cells[(set * CELLS + c) * 256] = after;
      const int row = first_row + set * 16 + rows[c], unit = units[c];
      const unsigned both = krn_pair(h, krn_exchange(h, 1));
      if (unit >= HIDDEN || row >= batch) continue;
      Krn16* const word = (Krn16*)p.v[9] + (step + 1) * a.v[a_state] + (((i64)row / 16 * CHUNKS + unit / 32) * 2 + row / 8 % 2) * 32 + row % 8 * 4 + unit % 32 / 8;
      if (unit % 2 == 0) krn_tell(&word->w[unit % 8 / 2], both);
      const Stored stored = STORAGE::put(h);
      ((Stored*)p.v[6])[(a.v[a_back] ? time - 1 - step : step) * a.v[a_y] + row * a.v[a_y + 1] + unit] = stored;
      if (step + 1 == time) ((Stored*)p.v[7])[(i64)row * HIDDEN + unit] = stored;
    }
    if (++set == sets) set = 0, ++step;
    const int row = first_row + set * 16;
    if (step < time)
      krn_inputs(inputs, (const float*)p.v[0] + (a.v[a_back] ? time - 1 - step : step) * a.v[a_x] + row * a.v[a_x + 1], a.v[a_x + 1], rows, units, batch - row);
  }
#if GATES == 4
  KRN_UNROLL for (int c = 0; c < CELLS; ++c)
    for (int set = 0; set < sets; ++set) {
      const int row = first_row + set * 16 + rows[c];
      if (units[c] < HIDDEN && rows[c] < 16 && row < batch) ((Stored*)p.v[8])[(i64)row * HIDDEN + units[c]] = STORAGE::put(cells[(set * CELLS + c) * 256]);
    }
#endif
}
)";

int64_t over(int64_t n, int64_t by) { return (n + by - 1) / by; }

// The text's own LINE and CELLS.
int64_t line_of(int64_t lines) { return lines + (lines % 16 == 0 ? 8 : 0); }
int64_t cells_of(int64_t units) { return over(units * kSetRows, kThreads); }

// Buffers of one run, as the parts of a step number them: the anchor's operands, its results, then pieces of the workspace.
constexpr size_t kMostBuffers = 256;
struct Buffers {
  explicit Buffers(const AnchorDesc& a) : results(static_cast<uint32_t>(a.operands.size())), pieces(results + static_cast<uint32_t>(a.results.size())) {}
  uint32_t results, pieces;
  enum Piece : uint32_t { kGates, kBetween0, kBetween1, kStates, kScratch, kNumPieces };
  uint32_t piece(Piece p) const { return pieces + p; }
};

TensorDesc moved(TensorDesc t, uint32_t buffer, int64_t offset = 0) {
  t.buffer = buffer, t.offset += offset;
  return t;
}

TensorDesc dense(uint32_t buffer, uint8_t dtype, std::vector<int64_t> sizes) {
  TensorDesc t;
  t.buffer = buffer, t.dtype = dtype, t.sizes = std::move(sizes);
  t.strides.assign(t.sizes.size(), 1);
  for (size_t i = t.sizes.size() - 1; i-- > 0;) t.strides[i] = t.strides[i + 1] * t.sizes[i + 1];
  return t;
}

// What a layer reads and writes; those between layers are time-first.
struct Sequences {
  TensorDesc from, to;
  bool from_batch_first, to_batch_first;

  Sequences(const AnchorDesc& a, const RnnShape& s, int64_t layer) {
    const Buffers b(a);
    const auto between = [&](int64_t number) {
      return dense(b.piece(number % 2 ? Buffers::kBetween1 : Buffers::kBetween0), a.operands[0].dtype, {s.time, s.batch, s.directions * s.hidden});
    };
    from_batch_first = layer == 0 && s.batch_first;
    from = layer == 0 ? moved(a.operands[0], 0) : between(layer - 1);
    to_batch_first = layer == s.layers - 1 && s.batch_first;
    to = layer == s.layers - 1 ? moved(a.results[0], b.results) : between(layer);
  }
};

// x W^T of all steps at once, in the order of x.
AnchorDesc input_product(const AnchorDesc& a, const RnnShape& s, int64_t layer, int64_t direction) {
  const Sequences sequences(a, s, layer);
  const TensorDesc& w = s.weight(a, layer, direction, 0);
  AnchorDesc linear;
  linear.op = kit::kOp_linear;
  linear.operands = {sequences.from, moved(w, static_cast<uint32_t>(&w - a.operands.data()))};
  linear.results = {dense(Buffers(a).piece(Buffers::kGates), kit::kDType_f32, {sequences.from.sizes[0], sequences.from.sizes[1], s.gates * s.hidden})};
  return linear;
}

class RnnStep final : public codegen::Step {
 public:
  RnnStep(const AnchorDesc& a, const Gpu& gpu, const CodeTarget& target, bool raced, bool load) {
    const RnnShape s(a);
    const Buffers numbers(a);
    for (const TensorDesc& t : a.operands) outer_.push_back(t.buffer);
    for (const TensorDesc& t : a.results) outer_.push_back(t.buffer);
    const RnnLayout layout = *rnn_layout(s.gates, s.hidden, s.batch, gpu);
    // Compiled while the products are raced; what goes wrong comes again below.
    const auto compiling = std::async(std::launch::async, [&] {
      const TextKernel k = rnn_kernel(a, 0, 0, gpu);
      code_store().compile_text(text_code_name(k, target), whole_text(k), target);
    });
    for (int64_t layer = 0; load && layer < s.layers; ++layer)
      for (int64_t d = 0; d < s.directions; ++d) products_.push_back(make_matmul(input_product(a, s, layer, d), false, raced));
    compiling.wait();
    std::array<int64_t, Buffers::kNumPieces> bytes{};
    for (auto& product : products_) {
      bytes[Buffers::kScratch] = std::max(bytes[Buffers::kScratch], product->workspace_bytes());
      if (product->workspace_bytes() > 0) product->set_workspace(numbers.piece(Buffers::kScratch));
    }
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      for (int64_t d = 0; d < s.directions; ++d) {
        const TextKernel k = rnn_kernel(a, layer, d, gpu);
        recurrences_.push_back(make_text_step(k, target, load));
        recurrences_.back()->set_workspace(numbers.piece(Buffers::kStates));
        bytes[Buffers::kStates] = k.workspace_bytes;
      }
    }
    bytes[Buffers::kGates] = s.time * s.batch * s.gates * s.hidden * 4;
    const int64_t between = s.time * s.batch * s.directions * s.hidden * 2;
    bytes[Buffers::kBetween0] = s.layers > 1 ? between : 0, bytes[Buffers::kBetween1] = s.layers > 2 ? between : 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      pieces_[i] = workspace_bytes_;
      workspace_bytes_ += over(bytes[i], 256) * 256;
    }
    text_ = std::string(s.lstm ? "lstm " : "gru ") + std::to_string(s.layers) + " layers x " + std::to_string(s.directions) + " [" + std::to_string(s.time) +
            "x" + std::to_string(s.batch) + ", " + std::to_string(s.hidden) + "] " + std::to_string(layout.units) + " units, " +
            std::to_string(layout.blocks) + "x" + std::to_string(layout.groups) + " blocks, " + std::to_string(layout.sets) + " sets";
  }

  krn_code run(const codegen::RunContext& context) const override {
    if (products_.empty()) {
      kit::set_error(context.err, KRN_STATUS_internal, text_ + " was compiled without a device and cannot run");
      return KRN_STATUS_internal;
    }
    void* table[kMostBuffers];
    size_t n = 0;
    for (uint32_t buffer : outer_) table[n++] = buffer == TensorDesc::KRN_NONE_BUFFER ? nullptr : context.buffers[buffer];
    for (int64_t at : pieces_) table[n++] = static_cast<char*>(context.buffers[workspace_]) + at;
    codegen::RunContext inner = context;
    inner.buffers = table;
    for (size_t i = 0; i < products_.size(); ++i) {
      if (const krn_code code = products_[i]->run(inner); code != KRN_STATUS_ok) return code;
      if (const krn_code code = recurrences_[i]->run(inner); code != KRN_STATUS_ok) return code;
    }
    return KRN_STATUS_ok;
  }
  std::string describe() const override { return text_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }

 private:
  std::vector<uint32_t> outer_;
  std::vector<std::unique_ptr<codegen::Step>> products_, recurrences_;  // of each layer and direction
  std::array<int64_t, Buffers::kNumPieces> pieces_{};                   // where they are in the workspace, in bytes
  int64_t workspace_bytes_ = 0;
  uint32_t workspace_ = 0;
  std::string text_;
};

}  // namespace

std::optional<RnnLayout> rnn_layout(int64_t gates, int64_t hidden, int64_t batch, const Gpu& gpu) {
  const int64_t chunks = over(hidden, 32), turns = over(chunks, kWaves), all_sets = over(batch, kSetRows);
  if (turns > kMostTurns) return std::nullopt;
  std::optional<RnnLayout> best;
  for (int units : {8, 16, 32}) {
    const int64_t lines = gates * units, tiles = lines / 8;
    RnnLayout l;
    l.units = units, l.blocks = over(hidden, units);
    if (l.blocks > gpu.facts.num_units) continue;
    l.sets = over(all_sets, std::min(all_sets, gpu.facts.num_units / l.blocks));
    l.groups = over(all_sets, l.sets);
    l.kept = static_cast<int>(std::min(turns, std::max<int64_t>(1, kKeptTiles / tiles)));
    const int64_t sums = kWaves * kSetRows * line_of(lines) * 4;
    l.shared_bytes = std::max<int64_t>(0, chunks - l.kept * kWaves) * tiles * 512 + sums + l.sets * cells_of(units) * kThreads * 4;
    if (l.sets > kMostSets || l.shared_bytes > gpu.block_shared_bytes) continue;
    // Cycles, fitted to an H200: products, whose instruction takes one of four units 8; sums, written and read at 128 bytes; the state,
    // read by all blocks at 2,500 bytes; and the way of a state to the others, longer the more there are to wait for. With several
    // sets a part of the way passes while another set is made.
    const double rows = static_cast<double>(std::min(batch, l.sets * kSetRows)) / static_cast<double>(l.sets);
    const double reads = rows * static_cast<double>(2 * hidden * l.blocks * l.groups) / 2500;
    const double turn = static_cast<double>(turns * tiles * 2 * 16 + 2 * sums / 128 + 1400 + 8 * l.blocks - (l.sets > 1 ? 600 : 0)) + reads;
    l.cycles = static_cast<double>(l.sets) * turn;
    if (!best || l.cycles < best->cycles) best = l;
  }
  return best;
}

bool rnn_taken(const AnchorDesc& a, const Gpu& gpu, uint32_t numerics, std::string& why_not) {
  auto no = [&](const char* why) { return why_not = why, false; };
  const uint8_t dtype = a.operands[0].dtype;
  if (dtype != kit::kDType_bf16 && dtype != kit::kDType_f16) return no("recurrent layers of more than 16 bits run in eager's cuDNN");
  if (numerics == KRN_NUMERICS_STRICT) return no("recurrent layers under strict numerics run in eager's cuDNN");
  if (std::atoi(gpu.arch.c_str() + 3) < 80) return no("recurrent layers need compute capability 8.0");
  if (!codegen::rnn_is_plain(a, why_not)) return false;
  const RnnShape s(a);
  if (s.hidden % 8 != 0) return no("recurrent layers of a width that is no multiple of 8 run in eager's cuDNN");
  if (s.time * s.batch * s.hidden * s.input == 0) return no("a recurrent layer without elements");
  for (const TensorDesc& t : a.operands)
    if (!t.present() || t.dtype != dtype) return no("a recurrent layer over tensors of several dtypes");
  for (const TensorDesc& t : a.results)
    if (!t.present() || t.dtype != dtype) return no("a recurrent layer with results of several dtypes");
  if (a.operands.size() + a.results.size() + Buffers::kNumPieces > kMostBuffers) return no("a recurrent layer of very many weights");
  if (!rnn_layout(s.gates, s.hidden, s.batch, gpu)) return no("a recurrent layer whose matrix and batch do not fit on the device at once");
  if (s.time * s.batch * s.hidden * (s.gates * 4 + 2) > kMostWorkspaceBytes) return no("a recurrent layer whose gates take more than 2 GiB");
  for (int64_t layer = 0; layer < s.layers; ++layer)
    for (int64_t d = 0; d < s.directions; ++d)
      if (!matmul_taken(input_product(a, s, layer, d), why_not)) return false;
  return true;
}

TextKernel rnn_kernel(const AnchorDesc& a, int64_t layer, int64_t direction, const Gpu& gpu) {
  const RnnShape s(a);
  const RnnLayout l = *rnn_layout(s.gates, s.hidden, s.batch, gpu);
  const Buffers numbers(a);
  const Sequences sequences(a, s, layer);
  const auto weight = [&](size_t which) {
    const TensorDesc& w = s.weight(a, layer, direction, which);
    return moved(w, static_cast<uint32_t>(&w - a.operands.data()));
  };
  const int64_t state = (layer * s.directions + direction) * s.batch * s.hidden;  // where this one's part of h and c starts
  const int64_t chunks = over(s.hidden, 32), state_words = l.groups * l.sets * chunks * 64, line = s.gates * s.hidden;
  const size_t time = sequences.to_batch_first ? 1 : 0;
  TextKernel k;
  k.text = std::string("#define STORAGE ") + float_storage(a.operands[0].dtype) + "\n#define TYPE \"" + (a.operands[0].dtype == kit::kDType_bf16 ? "bf16" : "f16") +
           "\"\n#define GATES " + std::to_string(s.gates) + "\n#define UNITS " + std::to_string(l.units) + "\n#define HIDDEN " + std::to_string(s.hidden) +
           "\n#define KEPT " + std::to_string(l.kept) + "\n" + kMatrixText + kText;
  k.sizes = {s.time, s.batch, direction, l.blocks, l.sets, state_words, sequences.from_batch_first ? line : s.batch * line,
             sequences.from_batch_first ? s.time * line : line, sequences.to.strides[time], sequences.to.strides[1 - time], weight(1).strides[0]};
  k.pointers = {dense(numbers.piece(Buffers::kGates), kit::kDType_f32, {s.time, s.batch, line}), weight(1), s.biases ? weight(2) : TensorDesc{},
                s.biases ? weight(3) : TensorDesc{}, moved(a.operands[1], 1, state), s.lstm ? moved(a.operands[2], 2, state) : TensorDesc{},
                moved(sequences.to, sequences.to.buffer, direction * s.hidden), moved(a.results[1], numbers.results + 1, state),
                s.lstm ? moved(a.results[2], numbers.results + 2, state) : TensorDesc{}};
  k.workspace_bytes = (s.time + 1) * state_words * 16;
  k.launches = {{"blank", over((s.time + 1) * state_words, kThreads), kThreads}, {"recur", l.blocks * l.groups, kThreads, l.shared_bytes, true}};
  k.reads_words = false;
  k.what = s.lstm ? "lstm" : "gru";
  return k;
}

std::unique_ptr<codegen::Step> make_rnn(const AnchorDesc& anchor, const Gpu& gpu, const CodeTarget& target, bool raced, bool load) {
  return std::make_unique<RnnStep>(anchor, gpu, target, raced, load);
}

}  // namespace keirin::cuda
