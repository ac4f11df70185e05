// SPDX-License-Identifier: Apache-2.0
//
// H: when work is done. On host memory a run is inline; on a GPU it is given to a stream, and what goes wrong there shows only on a stream
// that does not move, so these checks hold one.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/certify/trial.h"

namespace keirin::certify {
namespace {

Gpu& gpu_of(Trial& t) {
  (void)t.device();
  if (Gpu* const gpu = Gpu::here()) return *gpu;
  throw NotOffered{"its device is the host, where a run is done when it returns"};
}

// A stream that does nothing before it is let go.
class HeldStream {
 public:
  HeldStream(Gpu& gpu, Gpu::Stream stream) {
    gpu.call_on(stream, [](void* context) {
      auto& gate = *static_cast<Gate*>(context);
      std::unique_lock lock(gate.mutex);
      gate.opened.wait(lock, [&] { return gate.open; });
    }, gate_);
  }
  ~HeldStream() { let_go(); }
  HeldStream(const HeldStream&) = delete;

  void let_go() {
    const std::lock_guard lock(gate_->mutex);
    gate_->open = true;
    gate_->opened.notify_all();
  }
  // Does it, and lets the stream go if that has not ended after two seconds: whether it ended before.
  bool ends_while_held(const std::function<void()>& work) {
    bool done = false, late = false;
    std::mutex mutex;
    std::condition_variable changed;
    std::thread guard([&] {
      std::unique_lock lock(mutex);
      late = !changed.wait_for(lock, std::chrono::seconds(2), [&] { return done; });
      if (late) let_go();
    });
    const auto end = [&] {
      {
        const std::lock_guard lock(mutex);
        done = true;
        changed.notify_all();
      }
      guard.join();
    };
    try {
      work();
    } catch (...) {
      end();
      throw;
    }
    end();
    return !late;
  }

 private:
  struct Gate {
    std::mutex mutex;
    std::condition_variable opened;
    bool open = false;
  };
  Gate* const gate_ = new Gate;  // for the life of the process: a driver's thread may look at it later
};

// What is done once is done: code is loaded, and whatever else the first run may wait for.
void run_before(Trial& t, krn_exec* exec, Arguments& arguments) {
  arguments.feed(t.base().row, 3);
  t.run(exec, arguments.ready());
  arguments.expect_right();
}

constexpr std::chrono::milliseconds kAWhile{50};  // for what was done too early to be seen

void does_not_wait(Trial& t) {
  Gpu& gpu = gpu_of(t);
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  run_before(t, exec, arguments);
  arguments.feed(region.row, 1);
  const krn_run& run = arguments.ready();
  HeldStream held(gpu, gpu.own());
  expect(held.ends_while_held([&] { t.run(exec, run); }), "run waits for what is on its stream; only compiling may wait for the device");
  held.let_go();
  arguments.expect_right();
}

void in_order(Trial& t) {
  Gpu& gpu = gpu_of(t);
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec)), other(region, t.needs(exec));
  run_before(t, exec, arguments);
  arguments.feed(region.row, 1);
  other.feed(region.row, 2);
  const krn_run& run = arguments.ready();
  (void)other.ready();
  const auto bytes = [](const Memory& memory) { return static_cast<size_t>(memory.size()) * sizeof(float); };
  HeldStream held(gpu, gpu.own());
  for (size_t k = 0; k < arguments.inputs.size(); ++k)
    gpu.copy_on(gpu.own(), arguments.inputs[k].data(), other.inputs[k].data(), bytes(other.inputs[k]));
  (void)held.ends_while_held([&] { t.run(exec, run); });
  gpu.copy_on(gpu.own(), other.outputs[0].data(), arguments.outputs[0].data(), bytes(other.outputs[0]));
  std::this_thread::sleep_for(kAWhile);
  held.let_go();
  try {
    other.expect_right();
  } catch (const Failed& failed) {
    fail("its work does not keep to its place on the stream, between what was there before and what came after: {}", failed.what);
  }
}

void two_streams(Trial& t) {
  Gpu& gpu = gpu_of(t);
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  if (!(t.info(exec).flags & KRN_EXEC_CONCURRENT)) throw NotOffered{"its executables do one run at a time"};
  Arguments one(region, t.needs(exec)), other(region, t.needs(exec));
  run_before(t, exec, one);
  one.feed(region.row, 1);
  other.feed(region.row, 2);
  const krn_run& first = one.ready();
  const Gpu::Stream second = gpu.make_stream();
  other.run.stream = gpu.stream_of(second);
  const krn_run& beside = other.ready();
  HeldStream held(gpu, gpu.own());
  const bool quick = held.ends_while_held([&] { t.run(exec, first); }) && held.ends_while_held([&] { t.run(exec, beside); });
  if (quick) {  // else H/does_not_wait says what is wrong
    expect(gpu.is_done(second, 2000), "a run on one stream waits for a run on another");
    other.outputs[0].fetch(false);
    try {
      other.compare();
    } catch (const Failed& failed) {
      fail("when the stream of a run is done, the run is not, or not on that stream: {}", failed.what);
    }
  }
  held.let_go();
  one.expect_right();
}

void default_stream(Trial& t) {
  Gpu& gpu = gpu_of(t);
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  arguments.run.stream = gpu.stream_of(nullptr);
  t.run(exec, arguments.ready());
  arguments.expect_right();
}

void is_recorded(Trial& t) {
  Gpu& gpu = gpu_of(t);
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  if (!(t.info(exec).flags & KRN_EXEC_REPLAY_SAFE)) throw NotOffered{"its executables may not be recorded"};
  Arguments arguments(region, t.needs(exec));
  run_before(t, exec, arguments);
  arguments.run.stream = gpu.stream(KRN_STREAM_RECORDING);
  arguments.feed(region.row, 1);
  const krn_run& run = arguments.ready();
  const std::function<void()> again = gpu.record([&] { t.run(exec, run); });
  for (const int seed : {1, 2}) {
    arguments.feed(region.row, seed);
    (void)arguments.ready();
    again();
    try {
      arguments.expect_right();
    } catch (const Failed& failed) {
      fail("what a stream recorded of it does not repeat it: {}", failed.what);
    }
  }
}

void runs_inline(Trial& t) {
  (void)t.device();
  if (Gpu::here()) throw NotOffered{"its device is a GPU, where a run is done when its stream has come to it"};
  const Region& region = t.sized({64, 1024});
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  t.run(exec, arguments.ready());
  arguments.expect_right();
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  try {
    arguments.expect_right();
  } catch (const Failed& failed) {
    fail("60 ms after the run returned: {}", failed.what);
  }
}

krn_stream stream_of_runs(uint32_t flags) {
  const Gpu* const gpu = Gpu::here();
  return gpu ? gpu->stream(flags) : krn_stream{0, KRN_STREAM_KIND_NONE, flags};
}

struct Recorded {
  Trial& t;
  krn_replay* replay = nullptr;
  explicit Recorded(Trial& trial, const std::function<void()>& launch) : t(trial) {
    const krn_replay_table& table = t.replay();
    const krn_stream on = stream_of_runs(KRN_STREAM_RECORDING);
    krn_dev* const dev = t.opened();
    if (const krn_code code = t.call("krn.replay.begin", [&](krn_err* err) { return table.begin(dev, &on, err); });
        code == KRN_STATUS_unsupported)
      throw NotOffered{"krn.replay does not record on this device"};
    else
      expect(code == KRN_STATUS_ok, "krn.replay.begin answers {}: {}", code_name(code), t.text);
    launch();
    t.must("krn.replay.end", [&](krn_err* err) { return table.end(dev, &on, &replay, err); });
    expect(replay != nullptr, "krn.replay.end answers ok and gives no recording");
  }
  void again() {
    const krn_stream on = stream_of_runs(0);
    t.must("krn.replay.launch", [&](krn_err* err) { return t.replay().launch(replay, &on, err); });
  }
};

void replays(Trial& t) {
  const Region& region = t.base();
  (void)t.replay();
  krn_exec* const exec = t.make(region);
  if (!(t.info(exec).flags & KRN_EXEC_REPLAY_SAFE)) throw NotOffered{"its executables may not be recorded"};
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  arguments.run.stream = stream_of_runs(KRN_STREAM_RECORDING);
  const krn_run& run = arguments.ready();
  Recorded recorded(t, [&] { t.run(exec, run); });
  arguments.feed(region.row, 2);
  (void)arguments.ready();
  recorded.again();
  arguments.expect_right();
}

void replays_nothing(Trial& t) {
  (void)t.base();
  Recorded(t, [] {}).again();
}

constexpr Check kChecks[] = {
    {"H/does_not_wait", "gives its work to the stream and returns", Rung::kRan, does_not_wait},
    {"H/in_order", "works on its stream behind what is there, and before what comes", Rung::kRan, in_order},
    {"H/two_streams", "works on two streams, neither of which waits for the other", Rung::kRan, two_streams},
    {"H/default_stream", "works on stream 0", Rung::kRan, default_stream},
    {"H/is_recorded", "may be recorded by the stream it works on", Rung::kRan, is_recorded},
    {"H/runs_inline", "is done with host memory when run returns", Rung::kRan, runs_inline},
    {"H/replays", "repeats what was recorded, on what the inputs then hold", Rung::kRan, replays},
    {"H/replays_nothing", "repeats a recording of nothing", Rung::kRan, replays_nothing},
};

}  // namespace

std::span<const Check> stream_checks() { return kChecks; }

}  // namespace keirin::certify
