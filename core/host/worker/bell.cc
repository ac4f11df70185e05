// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/bell.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace keirin {
namespace {

constexpr int kTurns = 64;  // between two looks at the clock

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Result<std::unique_ptr<Bell>> Bell::make(std::chrono::microseconds looks, Descriptor* file) {
  *file = above_standard(Descriptor(::memfd_create("keirin-bell", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (file->get() < 0 || ::ftruncate(file->get(), sizeof(Words)) != 0)
    return Status(Code::k_exhausted, std::string("memory that a worker shares could not be made: ") + ::strerror(errno));
  (void)::fcntl(file->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return map(looks, file->get());
}

Result<std::unique_ptr<Bell>> Bell::open(std::chrono::microseconds looks, int file) { return map(looks, file); }

Result<std::unique_ptr<Bell>> Bell::map(std::chrono::microseconds looks, int file) {
  void* const at = ::mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return Status(Code::k_exhausted, std::string("a worker's words cannot be shared: ") + ::strerror(errno));
  std::shared_ptr<Words> words(static_cast<Words*>(at), [](Words* w) { ::munmap(w, sizeof(Words)); });
  return std::unique_ptr<Bell>(new Bell(looks, std::move(words)));
}

// Whoever stops looking says so and looks once more; whoever has written a word reads afterwards whether the other one looks. So one of
// the two sees the other, in the one order of these loads and stores that all agree on.
template <class F>
auto Bell::look(std::atomic<uint32_t>& looks, const F& see) -> decltype(see()) {
  using Clock = std::chrono::steady_clock;
  for (const Clock::time_point end = Clock::now() + looks_;;) {
    for (int turn = 0; turn < kTurns; ++turn, pause())
      if (const auto seen = see()) return seen;
    if (Clock::now() >= end) break;
  }
  looks.store(0);
  return see();
}

bool Bell::ask(uint32_t number) {
  words_->host_looks.store(1);
  words_->asked.store(static_cast<uint64_t>(++last_) << 32 | number);
  return words_->worker_looks.load() == 0;
}

std::optional<Bell::Answered> Bell::answer() const {
  const uint64_t word = words_->answered.load();
  if (word >> 32 != last_) return {};
  return static_cast<uint32_t>(word) == 0 ? Answered::kDone : Answered::kPacket;
}

std::optional<Bell::Answered> Bell::look_for_answer() {
  return look(words_->host_looks, [this] { return answer(); });
}

std::optional<uint32_t> Bell::look_for_question() {
  words_->worker_looks.store(1);
  const std::optional<uint64_t> word = look(words_->worker_looks, [this]() -> std::optional<uint64_t> {
    const uint64_t asked = words_->asked.load();
    if (asked >> 32 == last_) return {};
    return asked;
  });
  if (!word) return {};
  last_ = static_cast<uint32_t>(*word >> 32);
  return static_cast<uint32_t>(*word);
}

bool Bell::answer(Answered how) {
  words_->answered.store(static_cast<uint64_t>(last_) << 32 | static_cast<uint32_t>(how));
  return words_->host_looks.load() == 0;
}

}  // namespace keirin
