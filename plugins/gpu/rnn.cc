// SPDX-License-Identifier: Apache-2.0
//
// A state is passed on as data that says itself whether it is there: its words are set to a pattern that no state has before the
// launch, written once by the block that has the units, and read until the pattern is gone. So a step costs one way through the
// second-level cache instead of a barrier's two. All blocks of a launch must run at once, which the driver is asked to ensure.
#include "plugins/gpu/rnn.h"

#include <algorithm>
#include <array>
#include <future>

#include "plugins/codegen/kernel/rows.h"
#include "plugins/codegen/region/rnn.h"
#include "plugins/gpu/code_store.h"
#include "plugins/gpu/product.h"
#include "plugins/gpu/text.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

using codegen::AnchorDesc;
using codegen::RnnShape;
using codegen::TensorDesc;

constexpr int64_t kSetRows = 16;      // of a matrix instruction
constexpr int64_t kThreads = 256;     // of a block
constexpr int64_t kPieceBytes = 64;   // of a row of the state, that a wave takes at once
constexpr int64_t kMostWords = 16;    // of 16 bytes, of the state in a thread
constexpr int64_t kMostSets = 8;      // MOST_SETS of the text; beyond, a library's products are as busy
constexpr int64_t kKeptWords = 16;    // of the matrix, that a thread has in registers
constexpr int64_t kMostWorkspaceBytes = int64_t{2} << 30;

int64_t over(int64_t n, int64_t by) { return (n + by - 1) / by; }

// Of the matrix, that a product takes: what the units call columns where those are narrow; 0: no units that the text knows.
int64_t tile_lines(const Gpu& gpu) {
  if (!gpu.matrix) return 0;
  return gpu.matrix->is(16, 8, 16, 32) && gpu.wave == 32 ? 8 : gpu.matrix->is(16, 16, 16, gpu.wave) ? 16 : 0;
}

// The text's own LINE and CELLS.
int64_t line_of(int64_t lines) { return lines + (lines % 16 == 0 ? 8 : 0); }
int64_t cells_of(int64_t units) { return over(units * kSetRows, kThreads); }

// Buffers of one run, as the parts of a step number them: the anchor's operands, its results, then pieces of the workspace.
constexpr size_t kMostBuffers = 256;
struct Buffers {
  explicit Buffers(const AnchorDesc& a)
      : results(static_cast<uint32_t>(a.operands.size())), pieces(results + static_cast<uint32_t>(a.results.size())) {}
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
      return dense(b.piece(number % 2 ? Buffers::kBetween1 : Buffers::kBetween0), a.operands[0].dtype,
                   {s.time, s.batch, s.directions * s.hidden});
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
  linear.results = {
      dense(Buffers(a).piece(Buffers::kGates), kit::kDType_f32, {sequences.from.sizes[0], sequences.from.sizes[1], s.gates * s.hidden})};
  return linear;
}

class RnnStep final : public codegen::Step {
 public:
  RnnStep(const AnchorDesc& a, const Gpu& gpu, const CodeTarget& target, const Numerics& numerics, bool load) {
    const RnnShape s(a);
    const RnnPrecision precision = rnn_precision(a, gpu, numerics);
    const Buffers numbers(a);
    for (const TensorDesc& t : a.operands) outer_.push_back(t.buffer);
    for (const TensorDesc& t : a.results) outer_.push_back(t.buffer);
    const RnnLayout layout = *rnn_layout(s.gates, s.hidden, s.batch, precision, gpu);
    // Compiled while the products are raced; what goes wrong comes again below.
    const auto compiling = std::async(std::launch::async, [&] {
      const TextKernel k = rnn_kernel(a, 0, 0, gpu, numerics);
      code_store().compile_text(text_code_name(k, target), whole_text(k, *target.driver), target);
    });
    for (int64_t layer = 0; load && layer < s.layers; ++layer)
      for (int64_t d = 0; d < s.directions; ++d)
        products_.push_back(make_product(input_product(a, s, layer, d), gpu, target, true, precision.tf32,
                                         numerics.deterministic ? Pick::kFirst : Pick::kFastest));
    compiling.wait();
    std::array<int64_t, Buffers::kNumPieces> bytes{};
    for (auto& product : products_) {
      bytes[Buffers::kScratch] = std::max(bytes[Buffers::kScratch], product->workspace_bytes());
      if (product->workspace_bytes() > 0) product->set_workspace(numbers.piece(Buffers::kScratch));
    }
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      for (int64_t d = 0; d < s.directions; ++d) {
        const TextKernel k = rnn_kernel(a, layer, d, gpu, numerics);
        recurrences_.push_back(make_text_step(k, target, load));
        recurrences_.back()->set_workspace(numbers.piece(Buffers::kStates));
        bytes[Buffers::kStates] = k.workspace_bytes;
      }
    }
    bytes[Buffers::kGates] = s.time * s.batch * s.gates * s.hidden * 4;
    const int64_t between = s.time * s.batch * s.directions * s.hidden * precision.bytes;
    bytes[Buffers::kBetween0] = s.layers > 1 ? between : 0, bytes[Buffers::kBetween1] = s.layers > 2 ? between : 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      pieces_[i] = workspace_bytes_;
      workspace_bytes_ += over(bytes[i], 256) * 256;
    }
    text_ = std::string(s.lstm ? "lstm " : "gru ") + std::to_string(s.layers) + " layers x " + std::to_string(s.directions) + " [" +
            std::to_string(s.time) + "x" + std::to_string(s.batch) + ", " + std::to_string(s.hidden) + "] " + std::to_string(layout.units) +
            " units, " + std::to_string(layout.blocks) + "x" + std::to_string(layout.groups) + " blocks, " + std::to_string(layout.sets) +
            " sets" + (precision.tf32 ? ", tf32" : "");
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

RnnPrecision rnn_precision(const AnchorDesc& a, const Gpu& gpu, const Numerics& numerics) {
  if (a.operands[0].dtype != kit::kDType_f32) return {};
  const bool tf32 = numerics.tf32_recurrent && !a.ieee && tile_lines(gpu) == 8;
  return {4, tf32 ? 1 : 3, tf32};
}

std::optional<RnnLayout> rnn_layout(int64_t gates, int64_t hidden, int64_t batch, const RnnPrecision& precision, const Gpu& gpu) {
  const int64_t waves = kThreads / gpu.wave, tile = tile_lines(gpu), all_sets = over(batch, kSetRows),
                chunks = over(hidden, kPieceBytes / precision.bytes), turns = over(chunks, waves);
  if (turns * (kSetRows * kPieceBytes / 16 / gpu.wave) > kMostWords) return std::nullopt;
  std::optional<RnnLayout> best;
  for (int units : {8, 16, 32}) {
    const int64_t lines = gates * units, tiles = lines / 8, words = lines * kPieceBytes / 16 / gpu.wave;  // of a piece of the matrix
    if (lines % tile != 0) continue;
    RnnLayout l;
    l.units = units, l.blocks = over(hidden, units);
    if (l.blocks > gpu.facts.num_units) continue;
    l.sets = over(all_sets, std::min(all_sets, gpu.facts.num_units / l.blocks));
    l.groups = over(all_sets, l.sets);
    l.kept = static_cast<int>(std::min(turns, std::max<int64_t>(1, kKeptWords / words)));
    const int64_t sums = waves * kSetRows * line_of(lines) * 4;
    l.shared_bytes = std::max<int64_t>(0, chunks - l.kept * waves) * tiles * 512 + sums + l.sets * cells_of(units) * kThreads * 4;
    if (l.sets > kMostSets || l.shared_bytes > gpu.block_shared_bytes) continue;
    // Cycles, fitted to an H200 in 16 bits: products, whose instruction takes one of four units 8; sums, written and read at 128 bytes;
    // the state, read by all blocks at 2,500 bytes; and the way of a state to the others, longer the more there are to wait for. With
    // several sets a part of the way passes while another set is made.
    const double rows = static_cast<double>(std::min(batch, l.sets * kSetRows)) / static_cast<double>(l.sets);
    const double reads = rows * static_cast<double>(precision.bytes * hidden * l.blocks * l.groups) / 2500;
    const double turn =
        static_cast<double>(turns * tiles * 2 * 16 * precision.products + 2 * sums / 128 + 1400 + 8 * l.blocks - (l.sets > 1 ? 600 : 0)) +
        reads;
    l.cycles = static_cast<double>(l.sets) * turn;
    if (!best || l.cycles < best->cycles) best = l;
  }
  return best;
}

bool rnn_taken(const AnchorDesc& a, const Gpu& gpu, const Numerics& numerics, std::string& why_not) {
  auto no = [&](const char* why) { return why_not = why, false; };
  const uint8_t dtype = a.operands[0].dtype;
  if (float_bytes(dtype) == 0) return no("recurrent layers of more than 32 bits run in eager's library");
  if (numerics.strict) return no("recurrent layers under strict numerics run in eager's library");
  if (tile_lines(gpu) == 0) return no("recurrent layers need matrix units of 16x8x16 or 16x16x16");
  if (!codegen::rnn_is_plain(a, why_not)) return false;
  const RnnShape s(a);
  if (s.time * s.batch * s.hidden * s.input == 0) return no("a recurrent layer without elements");
  for (const TensorDesc& t : a.operands)
    if (!t.present() || t.dtype != dtype) return no("a recurrent layer over tensors of several dtypes");
  for (const TensorDesc& t : a.results)
    if (!t.present() || t.dtype != dtype) return no("a recurrent layer with results of several dtypes");
  if (a.operands.size() + a.results.size() + Buffers::kNumPieces > kMostBuffers) return no("a recurrent layer of very many weights");
  const RnnPrecision precision = rnn_precision(a, gpu, numerics);
  if (!rnn_layout(s.gates, s.hidden, s.batch, precision, gpu))
    return no("a recurrent layer whose matrix and batch do not fit on the device at once");
  if (s.time * s.batch * s.hidden * (s.gates * 4 + precision.bytes) > kMostWorkspaceBytes)
    return no("a recurrent layer whose gates take more than 2 GiB");
  for (int64_t layer = 0; layer < s.layers; ++layer)
    for (int64_t d = 0; d < s.directions; ++d)
      if (!product_taken(input_product(a, s, layer, d), why_not)) return false;
  return true;
}

TextKernel rnn_kernel(const AnchorDesc& a, int64_t layer, int64_t direction, const Gpu& gpu, const Numerics& numerics) {
  const RnnShape s(a);
  const RnnPrecision precision = rnn_precision(a, gpu, numerics);
  const RnnLayout l = *rnn_layout(s.gates, s.hidden, s.batch, precision, gpu);
  const Buffers numbers(a);
  const Sequences sequences(a, s, layer);
  const auto weight = [&](size_t which) {
    const TensorDesc& w = s.weight(a, layer, direction, which);
    return moved(w, static_cast<uint32_t>(&w - a.operands.data()));
  };
  const int64_t state = (layer * s.directions + direction) * s.batch * s.hidden;  // where this one's part of h and c starts
  const int64_t chunks = over(s.hidden, kPieceBytes / precision.bytes), state_words = l.groups * l.sets * chunks * 64,
                line = s.gates * s.hidden;
  const size_t time = sequences.to_batch_first ? 1 : 0;
  TextKernel k;
  const uint8_t dtype = a.operands[0].dtype;
  const char* type = dtype == kit::kDType_bf16 ? "bf16" : dtype == kit::kDType_f16 ? "f16" : "tf32\"\n#define DEPTH \"8";
  k.defines = std::string("#define STORAGE ") + float_storage(dtype) + "\n#define TYPE \"" + type + "\"\n#define PARTS " +
              std::to_string(precision.products) + "\n#define GATES " + std::to_string(s.gates) + "\n#define UNITS " +
              std::to_string(l.units) + "\n#define TILE " + std::to_string(tile_lines(gpu)) + "\n#define HIDDEN " +
              std::to_string(s.hidden) + "\n#define KEPT " + std::to_string(l.kept) + "\n";
  k.parts = {gpu.matrix->text, gpu.driver->words().recur, text::recur};
  if (tile_lines(gpu) == 16) k.parts.insert(k.parts.begin(), text::unit);
  k.sizes = {s.time,
             s.batch,
             direction,
             l.blocks,
             l.sets,
             state_words,
             sequences.from_batch_first ? line : s.batch * line,
             sequences.from_batch_first ? s.time * line : line,
             sequences.to.strides[time],
             sequences.to.strides[1 - time],
             weight(1).strides[0]};
  k.pointers = {dense(numbers.piece(Buffers::kGates), kit::kDType_f32, {s.time, s.batch, line}),
                weight(1),
                s.biases ? weight(2) : TensorDesc{},
                s.biases ? weight(3) : TensorDesc{},
                moved(a.operands[1], 1, state),
                s.lstm ? moved(a.operands[2], 2, state) : TensorDesc{},
                moved(sequences.to, sequences.to.buffer, direction * s.hidden),
                moved(a.results[1], numbers.results + 1, state),
                s.lstm ? moved(a.results[2], numbers.results + 2, state) : TensorDesc{}};
  k.workspace_bytes = (s.time + 1) * state_words * 16;
  k.launches = {{"blank", over((s.time + 1) * state_words, kThreads), kThreads},
                {"recur", l.blocks * l.groups, kThreads, l.shared_bytes, true}};
  k.reads_words = false;
  k.what = s.lstm ? "lstm" : "gru";
  return k;
}

std::unique_ptr<codegen::Step> make_rnn(const AnchorDesc& anchor, const Gpu& gpu, const CodeTarget& target, const Numerics& numerics,
                                        bool load) {
  return std::make_unique<RnnStep>(anchor, gpu, target, numerics, load);
}

}  // namespace keirin::gpu
