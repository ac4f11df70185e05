// SPDX-License-Identifier: Apache-2.0
//
// A plugin over the code generator: claim, compile, run, save and load, written once. A backend states how its devices
// are found and described (kit::Plugin, kit::Device::describe), which codegen::Backend compiles for one, and a few
// Traits. What it is not: a second contract; vendors that bring their own compiler derive from the kit alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/plan/fuse.h"
#include "plugins/codegen/plan/sized_plans.h"
#include "plugins/kit/plugin.h"

namespace keirin::shell {

// What all work on a device needs while it lasts, as a GPU's context: entered on the calling thread for a scope, and
// kept alive by executables. Any thread.
class Held {
 public:
  struct Former {  // what to go back to
    void* handle = nullptr;
    bool changed = false;
  };
  virtual ~Held() = default;
  virtual Former enter() const = 0;
  virtual void leave(const Former& former) const = 0;
};

struct Traits {
  uint64_t exec_flags = 0;             // KRN_EXEC_* of every executable, beside what its steps say
  uint32_t num_candidates = 1;         // ways of compiling one region
  const char* candidates = "";         // what they are, for whoever asks for one more
  const char* needs_stream = nullptr;  // why a run without a native stream is refused; null: it runs
  bool keeps_constants = false;        // memory that steps hold between runs counts as constants
};

// How an executable was asked for.
struct Asked {
  krn_policy policy{};
  uint32_t candidate = 0;
};

class Device : public kit::Device {
 public:
  void claim(const kit::Region& region, const krn_policy& policy, kit::ClaimSink& sink) final;
  std::unique_ptr<kit::Executable> compile(const kit::Region& region, const krn_policy& policy,
                                           const krn_options& options) final;
  uint32_t check(std::string_view token) const final;
  std::unique_ptr<kit::Executable> load(const kit::Region& region, std::string_view token, std::string_view body) final;
  // For an executable that was asked for so and fuses so, at the sizes of another region: kit::Executable::resize.
  std::unique_ptr<kit::Executable> resize(const kit::Region& region, const Asked& asked, const codegen::Grouping& grouping);

 protected:
  // Lives as long as the device.
  virtual const Traits& traits() const = 0;
  // A backend for one policy and candidate. `held` may be null: then it answers and compiles, and loads nothing. It
  // outlives the backend, and so does the device.
  virtual std::unique_ptr<codegen::Backend> backend(const krn_policy& policy, uint32_t candidate,
                                                    const Held* held) const = 0;
  // Null where a device needs none. Throws kit::Error.
  virtual std::shared_ptr<const Held> held() { return nullptr; }

 private:
  std::unique_ptr<codegen::Backend> backend_of(std::string_view token, const Held* held, Asked* asked) const;
  codegen::SizedPlans& sized_of(const Asked& asked);

  std::mutex mutex_;  // guards `sized_`
  std::map<std::string, codegen::SizedPlans> sized_;  // by the bytes of what was asked
};

}  // namespace keirin::shell
