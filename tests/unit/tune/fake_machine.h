// SPDX-License-Identifier: Apache-2.0
//
// A machine with a clock of its own: calls take the time that they are told, times noise. The race runs on it unchanged, so
// hours of measuring pass in a second, and the same seed gives the same hours.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

#include "core/tune/race.h"
#include "tests/support/others.h"

namespace keirin::test {

struct Noise {
  double deviation = 0;       // of the log of a call's time
  double correlation = 0;     // AR(1) from call to call
  double drift_per_call = 0;  // of the log, for all calls alike
  double outliers = 0;        // share of calls that take 1.5x
};

// Others that want the processor: for on_ns, then not for off_ns; while they do, each call waits for wait_ns, and `crowd`: more
// threads want to run than there are processors.
struct Load {
  double on_ns = 0, off_ns = 0, wait_ns = 0;
  bool crowd = false;
  bool empty() const { return on_ns == 0; }
};

class FakeMachine {
 public:
  FakeMachine(uint64_t seed, Noise noise) : random_(seed), noise_(noise) {}

  Runner runner(std::string name, double call_ns, int64_t memory = 0) {
    return {std::move(name), [this, call_ns] {
              spend(call_ns);
              return Status();
            }, memory};
  }
  RaceOptions options() {
    RaceOptions o;
    o.now_ns = [this] { return static_cast<uint64_t>(now_ns_); };
    others.all = false;
    others.crowds = [this] { return load.crowd && load_is_on(); };
    o.interference = &others;
    o.pause = [this](uint64_t ns) {
      now_ns_ += static_cast<double>(ns);
      ++pauses;
    };
    return o;
  }
  void spend(double ns) {
    ++calls;
    state_ = noise_.correlation * state_ +
             std::sqrt(1 - noise_.correlation * noise_.correlation) * noise_.deviation * normal_(random_);
    drift_ += noise_.drift_per_call;
    if (load_is_on()) {
      const double lost = std::min(load.wait_ns, load.on_ns - std::fmod(now_ns_, load.on_ns + load.off_ns));
      others.waited += lost;
      now_ns_ += lost;
    }
    const double factor = uniform_(random_) < noise_.outliers ? 1.5 : 1.0;
    now_ns_ += ns * factor * std::exp(state_ + drift_);
  }
  void pass(double ns) { now_ns_ += ns; }
  double now_ns() const { return now_ns_; }
  void set_noise(Noise noise) { noise_ = noise; }

  int calls = 0;
  int pauses = 0;
  Load load;
  Others others;

 private:
  bool load_is_on() const { return !load.empty() && std::fmod(now_ns_, load.on_ns + load.off_ns) < load.on_ns; }

  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  Noise noise_;
  double now_ns_ = 1e9, state_ = 0, drift_ = 0;
};

}  // namespace keirin::test
