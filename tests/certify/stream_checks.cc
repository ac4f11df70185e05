// SPDX-License-Identifier: Apache-2.0
//
// H: when work is done. On host memory a run is inline; what only a device with streams can get wrong (order over two streams, a hidden
// wait) is not tried here.
#include <chrono>
#include <thread>

#include "tests/certify/trial.h"

namespace keirin::certify {
namespace {

void runs_inline(Trial& t) {
  const Region& region = t.sized({64, 1024});
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  t.run(exec, arguments.run);
  arguments.expect_right();
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  try {
    arguments.expect_right();
  } catch (const Failed& failed) {
    fail("60 ms after the run returned: {}", failed.what);
  }
}

krn_stream recording() { return {0, KRN_STREAM_KIND_NONE, KRN_STREAM_RECORDING}; }

struct Recorded {
  Trial& t;
  krn_replay* replay = nullptr;
  explicit Recorded(Trial& trial, const std::function<void()>& launch) : t(trial) {
    const krn_replay_table& table = t.replay();
    const krn_stream on = recording();
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
    const krn_stream on{0, KRN_STREAM_KIND_NONE, 0};
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
  arguments.run.stream = recording();
  Recorded recorded(t, [&] { t.run(exec, arguments.run); });
  arguments.feed(region.row, 2);
  recorded.again();
  arguments.expect_right();
}

void replays_nothing(Trial& t) {
  (void)t.base();
  Recorded(t, [] {}).again();
}

constexpr Check kChecks[] = {
    {"H/runs_inline", "is done with host memory when run returns", Rung::kRan, runs_inline},
    {"H/replays", "repeats what was recorded, on what the inputs then hold", Rung::kRan, replays},
    {"H/replays_nothing", "repeats a recording of nothing", Rung::kRan, replays_nothing},
};

}  // namespace

std::span<const Check> stream_checks() { return kChecks; }

}  // namespace keirin::certify
