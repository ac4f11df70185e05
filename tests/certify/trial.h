// SPDX-License-Identifier: Apache-2.0
//
// One plugin in this process, under one check: its library, its tables called as a host calls them, regions that it claims and memory to
// run them on. Every step up is taken when a check first needs it. Nothing is shut down at the end unless a check does it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/host/find/hardware.h"
#include "core/ir/bytes.h"
#include "core/ir/graph.h"
#include "tests/certify/check.h"
#include "tests/certify/host.h"
#include "tests/certify/memory.h"

namespace keirin::certify {

std::string code_name(krn_code code);

// A region of one operator on f32, as bytes and as the contract shows it.
struct Region {
  Graph graph;
  RegionBytes bytes;
  OpCode row = OpCode::kOpaque;
  std::vector<Type> inputs, outputs;
  krn_region view() const;
};

Type f32(Dims sizes, Dims strides = {});  // empty: row-major
// Every operand of type `in`; `out` for the result.
Region region_of(OpCode row, const Type& in, const Type& out);
inline Region region_of(OpCode row, const Dims& sizes) { return region_of(row, f32(sizes), f32(sizes)); }
// x of [rows, depth], weight (a constant) of [columns, depth], bias (a constant) of [columns].
Region linear_region(int64_t rows, int64_t depth, int64_t columns);

// What a plugin said of a region.
struct Said {
  struct Claim {
    std::vector<uint32_t> nodes;
    uint32_t kernels;
    double cost, confidence;
    bool operator==(const Claim&) const = default;
  };
  struct Refusal {
    uint32_t node;
    std::string why;
    bool operator==(const Refusal&) const = default;
  };
  std::vector<Claim> claims;
  std::vector<Refusal> refusals;
  bool operator==(const Said&) const = default;
  bool all_of(size_t num_nodes) const;
};

struct Found {
  uint32_t item;
  krn_dev* device;
  std::string why_not;
  bool operator==(const Found&) const = default;
};

// Arguments of one run, in memory that is watched.
struct Arguments {
  std::vector<Memory> inputs, outputs;
  std::optional<Memory> workspace;
  std::vector<krn_tensor> in, out;
  krn_run run{};
  std::vector<float> expected;  // of the one output

  Arguments(const Region& region, const krn_needs& needs, Place inputs_at = Place::kRed, Place outputs_at = Place::kRed);
  Arguments(const Arguments&) = delete;
  // Inputs of that number, what the operator makes of them, and outputs of 0.
  void feed(OpCode row, int seed);
  void feed(OpCode row, const std::function<float(int64_t)>& value);
  void work_out(OpCode row);  // what is expected, from the inputs as they are
  void give_workspace(const krn_needs& needs);
  // The run, all that was set lying where the plugin finds it.
  const krn_run& ready();
  void expect_right();   // throws Failed
  void compare() const;  // the same with what was fetched
};

class Trial {
 public:
  struct Request {
    std::string library, guid, version;  // as the manifest says
    std::string device{};  // the hardware whose driver is started before the plugin, as in a host that has used it; empty: none
    bool quick = false;
  };
  using Entry = krn_code(KRN_CALL*)(const krn_offer*, krn_answer*, krn_err*);

  Trial(Request request, std::function<void(const char*)> say);

  const Request& request() const { return request_; }
  TrialHost host;
  std::vector<HardwareItem> hardware;
  std::string uid;            // of device()'s hardware, once it was asked for
  bool ends_by_exit = false;  // the process is to end as programs do, destructors and all, after the check
  std::function<void(const char* name)> after_call;  // of whatever function of the plugin

  // Calls into the plugin. `code`: what it answered; the text it set is in `text`. What it throws is a failure.
  krn_code call(const char* name, const std::function<krn_code(krn_err*)>& f);
  void must(const char* name, const std::function<krn_code(krn_err*)>& f);  // anything but ok is a failure
  std::string text;

  // The driver of the device that was asked for, before anything of the plugin.
  void start_driver();

  // The steps up.
  void* load();
  Entry entry();
  const krn_answer& answer();
  void read_tables();
  const krn_plugin_table& plugin() { return read_tables(), plugin_; }
  const krn_device_table& devices() { return read_tables(), device_; }
  const krn_compile_table& compile() { return read_tables(), compile_; }
  const krn_exec_table& exec() { return read_tables(), exec_; }
  const krn_artifact_table& artifact();  // NotOffered without
  const krn_replay_table& replay();      // the same
  krn_plugin* handle();                  // initialised
  krn_plugin* initialize_again();        // another one, which becomes handle()
  krn_dev* device();                     // the first whose memory is reached: the host's, or a GPU's (gpu.h)
  krn_dev* opened();
  OpCode row();                          // an operator of the probe list that the plugin claims

  std::vector<Found> enumerate(const std::vector<krn_hw>& items, uint32_t stride = sizeof(krn_hw));
  std::vector<Found> enumerate();        // the machine's hardware
  krn_device_desc describe(krn_dev* dev);
  Said claim(const krn_region& region, const krn_policy& policy);
  Said claim(const Region& region) { return claim(region.view(), policy()); }
  bool claims(const Region& region);
  const Region& claimed(Region region, const char* what);  // kept; NotOffered if it is not claimed
  const Region& base();                  // a plain region that is claimed
  const Region& sized(const Dims& sizes) { return claimed(region_of(row(), sizes), "this size"); }

  krn_exec* make(const krn_region& region, const krn_policy& policy, const krn_options& options);
  krn_exec* make(const Region& region) { return make(region.view(), policy(), options()); }
  void release(krn_exec* exec);
  krn_exec_info info(krn_exec* exec);
  krn_needs needs(krn_exec* exec);
  void run(krn_exec* exec, const krn_run& run);
  // Compiles, runs once on memory of that kind, compares. For most checks of answers.
  void try_once(const Region& region, Place inputs_at = Place::kRed, Place outputs_at = Place::kRed);
  void shut_down();

  static krn_policy policy();
  static krn_options options();

 private:
  Request request_;
  std::function<void(const char*)> say_;
  const char* in_call_ = nullptr;
  void* library_ = nullptr;
  std::optional<krn_answer> answer_;
  bool has_tables_ = false, opened_ = false;
  krn_plugin_table plugin_{};
  krn_device_table device_{};
  krn_compile_table compile_{};
  krn_exec_table exec_{};
  krn_artifact_table artifact_{};
  krn_replay_table replay_{};
  krn_plugin* handle_ = nullptr;
  krn_dev* dev_ = nullptr;
  OpCode row_ = OpCode::kOpaque;
  std::vector<std::unique_ptr<Region>> regions_;
  const Region* base_ = nullptr;
};

// What a second process does for a check of J: it saves an executable, as hexadecimal digits of its token, ".", and those of its body.
constexpr const char* kSavesArtifact = "J/saves";
std::string saved_artifact(Trial& trial);

}  // namespace keirin::certify
