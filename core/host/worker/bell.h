// SPDX-License-Identifier: Apache-2.0
//
// Two words that host and worker share beside their channel, so that a run which takes microseconds is asked for and answered without
// either going to sleep: each looks at the other's word for a moment before it waits at the channel, and rings there for one that has
// stopped looking. For workers of GPUs, whose host would look at the device meanwhile anyway. Neither trusts what the other wrote: a word
// is compared and nothing else.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/files.h"
#include "core/base/status.h"

namespace keirin {

class Bell {
 public:
  // A packet of this number and no head says: look again. It may come late, when what it is about was seen.
  static constexpr uint32_t kRings = 0xffffffff;
  enum class Answered : uint32_t { kDone = 0, kPacket = 1 };  // kPacket: what it says is in the channel

  // The host makes the words; the worker is given the file.
  static Result<std::unique_ptr<Bell>> make(std::chrono::microseconds looks, Descriptor* file);
  static Result<std::unique_ptr<Bell>> open(std::chrono::microseconds looks, int file);

  // The host's side, one question at a time. True: the worker does not look, so ring.
  bool ask(uint32_t number);
  std::optional<Answered> look_for_answer();  // for a moment, then not without being rung for
  std::optional<Answered> answer() const;     // whether it is there

  // The worker's side: the number of a question that was not given out yet, looked for as above. `answer`: true if the host does not look.
  std::optional<uint32_t> look_for_question();
  bool answer(Answered how);

 private:
  // Each in a cache line of its own. A question is its place in the row, above, and its number; an answer that place, and how.
  struct Words {
    alignas(64) std::atomic<uint64_t> asked;
    alignas(64) std::atomic<uint64_t> answered;
    alignas(64) std::atomic<uint32_t> host_looks;
    alignas(64) std::atomic<uint32_t> worker_looks;
  };
  Bell(std::chrono::microseconds looks, std::shared_ptr<Words> words) : looks_(looks), words_(std::move(words)) {}
  static Result<std::unique_ptr<Bell>> map(std::chrono::microseconds looks, int file);
  template <class F>
  auto look(std::atomic<uint32_t>& looks, const F& see) -> decltype(see());

  const std::chrono::microseconds looks_;
  const std::shared_ptr<Words> words_;
  uint32_t last_ = 0;  // the place of the last question
};

}  // namespace keirin
