// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/blocks.h"

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace keirin::test {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr int kMaxThreads = 8192;  // of blocks side by side
constexpr int kLanes = 64, kSlots = 2 * kLanes, kSlotBytes = 16;  // an exchange may name a lane up to twice the wave's
constexpr char kNobodys = char(0xa5), kUnwritten = char(0xff);    // the latter is NaN in every float
constexpr int kMostWaits = 1 << 20;

struct Fibre {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
};

enum class State : uint8_t { kNew, kReady, kAtBarrier, kAtMeeting, kWaiting, kDone };

class Emulator {
 public:
  static Emulator& get() {
    static auto* emulator = new Emulator;  // never destroyed: a fibre that was left may hold anything
    return *emulator;
  }

  std::string run(const Grid& grid, KrnHost& host, const std::function<void()>& kernel) {
    const std::lock_guard lock(mutex_);
    if (grid.threads < 1 || grid.together < 1 || grid.threads * grid.together > kMaxThreads || grid.blocks % grid.together != 0 ||
        grid.wave > kLanes)
      return "a block of " + std::to_string(grid.threads) + " threads";
    grid_ = &grid, host_ = &host, kernel_ = &kernel;
    host.threads = grid.threads, host.blocks = static_cast<int>(grid.blocks);
    host.sync = [] { get().leave(State::kAtBarrier); };
    host.wait = [] { get().leave(State::kWaiting); };
    host.meet = [](const void* value, int bytes) { return get().meet(value, bytes); };
    host.refused = 0;
    for (first_ = 0; first_ < grid.blocks; first_ += grid.together)
      if (std::string wrong = run_together(); !wrong.empty()) return wrong;
    return host.refused ? std::string(kOutOfBounds) : "";
  }

 private:
  struct Thread {
    State state = State::kNew;
    int fibre = -1;
  };

  int waves() const { return (grid_->threads + grid_->wave - 1) / grid_->wave; }
  bool own_shared() const { return grid_->together > 1 && !grid_->one_barrier; }

  std::string run_together() {
    const int all = grid_->threads * grid_->together;
    threads_.assign(static_cast<size_t>(all), {});
    sent_.resize(static_cast<size_t>(all) * kSlotBytes);
    given_.assign(static_cast<size_t>(grid_->together * waves()) * kSlots * kSlotBytes, kNobodys);
    idle_.clear();
    for (int f = 0; f < static_cast<int>(fibres_.size()); ++f) begin(f);
    std::memset(grid_->shared.data(), kUnwritten, grid_->shared.size());
    if (own_shared()) shared_.assign(static_cast<size_t>(grid_->together), std::vector<char>(grid_->shared.begin(), grid_->shared.end()));
    for (int waits = 0;;) {
      bool ran = false, waited = false;
      for (int b = 0; b < grid_->together; ++b) run_block(b, ran, waited);
      waits = waited && !ran ? waits + 1 : 0;
      const bool passed = pass_barriers();
      if (std::all_of(threads_.begin(), threads_.end(), [](const Thread& t) { return t.state == State::kDone; })) return "";
      if (waits > kMostWaits) return "some threads wait for what never comes";
      if (!ran && !waited && !passed) return stuck();
    }
  }

  void run_block(int b, bool& ran, bool& waited) {
    if (own_shared()) std::copy(shared_[b].begin(), shared_[b].end(), grid_->shared.begin());
    const bool backward = (first_ + b) % 2 != 0;
    for (int w = 0; w < waves(); ++w) {
      const int wave = backward ? waves() - 1 - w : w;
      do ran = run_wave(b, wave, backward, waited) || ran;
      while (pass_meeting(b, wave));
    }
    if (own_shared()) std::copy(grid_->shared.begin(), grid_->shared.end(), shared_[b].begin());
  }

  bool run_wave(int b, int wave, bool backward, bool& waited) {
    bool ran = false;
    const int lanes = lanes_of(wave);
    for (int i = 0; i < lanes; ++i) {
      const int t = b * grid_->threads + wave * grid_->wave + (backward ? lanes - 1 - i : i);
      if (threads_[t].state == State::kNew) ran = true, start(t, backward ? -1 : 1, lanes - i);
      else if (threads_[t].state == State::kReady) ran = true, resume(t);
      else if (threads_[t].state == State::kWaiting) waited = true, resume(t);
    }
    return ran;
  }

  // All lanes that there are have given a value: each gets all of them.
  bool pass_meeting(int b, int wave) {
    const int lanes = lanes_of(wave), first = b * grid_->threads + wave * grid_->wave;
    for (int t = first; t < first + lanes; ++t)
      if (threads_[t].state != State::kAtMeeting) return false;
    std::memcpy(given(b, wave), &sent_[static_cast<size_t>(first) * kSlotBytes], static_cast<size_t>(lanes) * kSlotBytes);
    for (int t = first; t < first + lanes; ++t) threads_[t].state = State::kReady;
    return true;
  }

  bool pass_barriers() {
    const int span = grid_->one_barrier ? grid_->together * grid_->threads : grid_->threads;
    bool passed = false;
    for (size_t first = 0; first < threads_.size(); first += static_cast<size_t>(span)) {
      const auto begin = threads_.begin() + static_cast<std::ptrdiff_t>(first);
      if (!std::all_of(begin, begin + span, [](const Thread& t) { return t.state == State::kAtBarrier; })) continue;
      std::for_each(begin, begin + span, [](Thread& t) { t.state = State::kReady; });
      passed = true;
    }
    return passed;
  }

  std::string stuck() const {
    const auto any = [&](State s) { return std::any_of(threads_.begin(), threads_.end(), [s](const Thread& t) { return t.state == s; }); };
    if (any(State::kAtMeeting)) return "some threads of a wave do not come to an exchange";
    return any(State::kDone) ? "some threads ended while others wait at a barrier" : "some threads do not come to a barrier";
  }

  int lanes_of(int wave) const { return std::min(grid_->wave, grid_->threads - wave * grid_->wave); }
  char* given(int b, int wave) { return &given_[static_cast<size_t>(b * waves() + wave) * kSlots * kSlotBytes]; }

  void begin(int f) {
    Fibre& fibre = *fibres_[f];
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack.get();
    fibre.context.uc_stack.ss_size = kStackBytes;
    fibre.context.uc_link = nullptr;
    makecontext(&fibre.context, [] { get().body(); }, 0);
    idle_.push_back(f);
  }

  // A fibre runs threads of a wave one after the other until one of them waits; that one keeps it until it ends.
  void start(int t, int step, int most) {
    if (idle_.empty()) fibres_.push_back(std::make_unique<Fibre>()), begin(static_cast<int>(fibres_.size()) - 1);
    running_ = idle_.back();
    idle_.pop_back();
    next_ = t, step_ = step, left_ = most;
    swapcontext(&scheduler_, &fibres_[running_]->context);
  }
  void body() {
    for (;;) {
      while (left_ > 0 && threads_[next_].state == State::kNew) {
        self_ = next_, next_ += step_, --left_;
        threads_[self_] = {State::kReady, running_};
        enter();
        (*kernel_)();
        threads_[self_].state = State::kDone;
      }
      const int own = running_;
      idle_.push_back(own);
      swapcontext(&fibres_[own]->context, &scheduler_);
    }
  }
  void enter() {
    host_->thread = self_ % grid_->threads, host_->rank = self_ / grid_->threads;
    host_->block = static_cast<int>(first_) + host_->rank;
  }
  void resume(int t) {
    self_ = t, running_ = threads_[t].fibre, left_ = 0;
    enter();
    swapcontext(&scheduler_, &fibres_[running_]->context);
  }
  void leave(State state) {
    threads_[self_].state = state;
    swapcontext(&fibres_[running_]->context, &scheduler_);
  }
  const char* meet(const void* value, int bytes) {
    std::memcpy(&sent_[static_cast<size_t>(self_) * kSlotBytes], value, static_cast<size_t>(bytes));
    leave(State::kAtMeeting);
    return given(self_ / grid_->threads, self_ % grid_->threads / grid_->wave);
  }

  std::mutex mutex_;
  const Grid* grid_ = nullptr;
  KrnHost* host_ = nullptr;
  const std::function<void()>* kernel_ = nullptr;
  int64_t first_ = 0;  // the first of the blocks that run side by side
  std::vector<Thread> threads_;
  std::vector<std::unique_ptr<Fibre>> fibres_;
  std::vector<int> idle_;
  std::vector<char> sent_, given_;         // slots of threads, of waves
  std::vector<std::vector<char>> shared_;  // by block, where each has its own
  ucontext_t scheduler_;
  int self_ = 0, running_ = 0;        // the thread that runs, and its fibre
  int next_ = 0, step_ = 1, left_ = 0;  // which threads the fibre takes up next
};

}  // namespace

std::string run_grid(const Grid& grid, KrnHost& host, const std::function<void()>& kernel) {
  return Emulator::get().run(grid, host, kernel);
}

}  // namespace keirin::test
