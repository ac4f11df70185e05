// SPDX-License-Identifier: Apache-2.0
//
// Rows of a scatter on the device: a counting sort of the edges by destination, kept by content, because the same pointer may
// hold new indices. One cooperative launch compares the index with a kept copy and sorts again only if it differs; nothing
// waits. Edges of a row end up in ascending order whatever order the threads took, so that two runs add in the same order. An
// index outside [0, rows) is refused (krn_refuse).
//
// The invariant: arrays belong to one stream, or to one recorded launch, so that whoever reads them is ordered with whoever sorts.
#include <algorithm>
#include <mutex>
#include <vector>

#include "plugins/gpu/csr.h"
#include "plugins/gpu/code_store.h"
#include "plugins/gpu/text.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

constexpr int kThreads = 1024;  // of a block, as the text has them

// The kept copy and what was made of it, in device memory of their own.
class Slot {
 public:
  // As the kernel's parameter.
  struct Arrays {
    char *state, *kept, *row_ptr, *perm, *next, *unordered;
  };

  // Null with the driver's code in `result` if there is no memory.
  static std::unique_ptr<Slot> make(const Driver& driver, int64_t rows, int64_t edges, int64_t index_bytes, Result& result) {
    std::unique_ptr<Slot> slot(new Slot(driver));
    const int64_t parts[] = {32, edges * index_bytes, 4 * (rows + 1), 4 * edges, 4 * rows, 4 * edges};
    int64_t total = 0, at[6];
    for (int i = 0; i < 6; ++i) at[i] = total, total += (parts[i] + 255) / 256 * 256;
    const AllocateWhileRecording allowed(driver);
    Stream stream = nullptr;
    result = driver.allocate(static_cast<size_t>(total), slot->memory_);
    if (result != 0) return nullptr;
    result = driver.make_stream(stream);
    if (result == 0) result = driver.fill(stream, slot->memory_, 0, total);
    if (result == 0) result = driver.wait(stream);
    if (stream) driver.end_stream(stream);
    if (result != 0) return nullptr;
    char* const base = static_cast<char*>(slot->memory_);
    slot->arrays = {base + at[0], base + at[1], base + at[2], base + at[3], base + at[4], base + at[5]};
    slot->bytes = total;
    return slot;
  }
  ~Slot() {
    const AllocateWhileRecording allowed(driver_);
    if (memory_) driver_.free(memory_);  // waits for its readers
  }
  Slot(const Slot&) = delete;

  Arrays arrays{};
  int64_t bytes = 0;

 private:
  explicit Slot(const Driver& driver) : driver_(driver) {}
  const Driver& driver_;
  void* memory_ = nullptr;
};

class CsrStep final : public codegen::Step {
 public:
  CsrStep(const codegen::Csr& csr, const Gpu& gpu, const CodeTarget& target, bool load) : csr_(csr), driver_(*gpu.driver) {
    rows_ = static_cast<int>(csr.num_rows);
    edges_ = static_cast<int>(csr.num_edges);
    wide_ = csr.index_dtype == kit::kDType_i64;
    blocks_ = std::clamp<int64_t>((csr.num_edges + kThreads - 1) / kThreads, 1, gpu.facts.num_units);
    const std::string name = csr_code_name(target);
    code_store().compile_text(name, csr_text(driver_), target);
    if (load) function_ = code_store().load_function(driver_, name, "csr_rows");
  }

  krn_code run(const codegen::RunContext& context) const override {
    if (!function_) {
      kit::set_error(context.err, KRN_STATUS_internal, describe() + " was compiled without a device and cannot run");
      return KRN_STATUS_internal;
    }
    const auto stream = reinterpret_cast<Stream>(context.run->stream.native);
    Result result = 0;
    if (const Slot* slot = slot_for(stream, result)) {
      const void* index = static_cast<char*>(context.buffers[csr_.index_buffer]) + csr_.index_offset * (wide_ ? 8 : 4);
      context.buffers[csr_.row_ptr_buffer] = slot->arrays.row_ptr;
      context.buffers[csr_.perm_buffer] = slot->arrays.perm;
      int wide = wide_, edges = edges_, rows = rows_;
      Slot::Arrays arrays = slot->arrays;
      void* parameters[] = {&index, &wide, &edges, &rows, &arrays};
      static constexpr Parameter kForms[] = {{8, true}, {4}, {4}, {4}, {sizeof(Slot::Arrays), true}};
      result = driver_.launch({.function = function_, .blocks = blocks_, .threads = kThreads, .together = true, .parameters = kForms},
                              stream, parameters);
    }
    if (result == 0) return KRN_STATUS_ok;
    kit::set_error(context.err, driver_.status_of(result), describe() + ": its memory or its launch was refused");
    return driver_.status_of(result);
  }

  std::string describe() const override {
    return "csr of " + std::to_string(csr_.num_edges) + " edges into " + std::to_string(csr_.num_rows) + " rows";
  }
  int64_t constant_bytes() const override {
    std::lock_guard lock(mutex_);
    int64_t bytes = 0;
    for (const auto& [stream, slot] : slots_) bytes += slot->bytes;
    return bytes;
  }

 private:
  // A stream's own, made when it first comes by. A recording gets a new one for every launch: nobody knows on which streams it
  // will be replayed.
  const Slot* slot_for(Stream stream, Result& result) const {
    bool recording = false;
    result = driver_.is_recording(stream, recording);
    if (result != 0) return nullptr;
    std::lock_guard lock(mutex_);
    if (!recording)
      for (const auto& [owner, slot] : slots_)
        if (owner == Owner{stream, false}) return slot.get();
    std::unique_ptr<Slot> slot = Slot::make(driver_, rows_, edges_, wide_ ? 8 : 4, result);
    if (!slot) return nullptr;
    slots_.emplace_back(Owner{stream, recording}, std::move(slot));
    return slots_.back().second.get();
  }

  struct Owner {
    Stream stream;
    bool recording;
    bool operator==(const Owner&) const = default;
  };

  codegen::Csr csr_;
  const Driver& driver_;
  int rows_, edges_;
  bool wide_;
  int64_t blocks_;
  Function function_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<Owner, std::unique_ptr<Slot>>> slots_;
};

}  // namespace

std::string csr_code_name(const CodeTarget& target) { return "csr 4 " + target.identity(); }

std::string csr_text(const Driver& driver) {
  return codegen::print_prelude(driver.words().dialect) + std::string(driver.words().rows) + std::string(text::rows);
}

std::unique_ptr<codegen::Step> make_csr_step(const codegen::Csr& csr, const Gpu& gpu, const CodeTarget& target, bool load) {
  return std::make_unique<CsrStep>(csr, gpu, target, load);
}

}  // namespace keirin::gpu
