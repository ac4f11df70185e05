// SPDX-License-Identifier: Apache-2.0
//
// A plugin in C++: derive from Plugin, Device and Executable, name them in KRN_PLUGIN, and the kit writes the entry symbol, the
// negotiation and the function tables, with the exception barrier round each function. Nothing to link but this folder.
//
//   std::unique_ptr<keirin::kit::Plugin> make(const keirin::kit::Host& host, const krn_config& config) { ... }
//   KRN_PLUGIN((keirin::kit::About{.guid = "8-4-4-4-12", .version = "0.1.0", .capabilities = 0}), make)
//
// Ownership: the kit owns the objects that these functions return and destroys them when the host says so. An Executable keeps
// its Device alive. Threads: as abi/plugin.h says per function; the kit adds no lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "abi/graph.h"
#include "abi/plugin.h"
#include "plugins/kit/error.h"
#include "plugins/kit/host.h"

namespace keirin::kit {

// One region as the host sent it: validated, borrowed for the call.
struct Region {
  krn_graph graph;
  std::span<const uint8_t> bytes;
  const uint8_t* hash = nullptr;  // 32 bytes
  uint64_t weights = 0;           // handle for krn.host.consts
};

class Executable {
 public:
  virtual ~Executable() = default;
  virtual void info(krn_exec_info& out) const = 0;   // zeroed, header filled
  virtual void needs(krn_needs& out) const = 0;
  virtual krn_code run(const krn_run& run, krn_err* err) noexcept = 0;
  // For krn.artifact: a token of at most 4 KiB that Device::check can judge alone, and the code. Default: unsupported.
  virtual void save(std::string& token, std::string& body) const;
  // krn.compile.resize. Default: unsupported.
  virtual std::unique_ptr<Executable> resize(const Region& region) const;
};

class ClaimSink {
 public:
  virtual void claim(const std::vector<uint32_t>& nodes, uint32_t num_kernels, double cost_ns, double confidence) = 0;
  virtual void refuse(uint32_t node, std::string_view why) = 0;

 protected:
  ~ClaimSink() = default;
};

// A recorded launch sequence.
class Replay {
 public:
  virtual ~Replay() = default;
  virtual void launch(const krn_stream& stream) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual void describe(krn_device_desc& out) const = 0;  // strings must live as long as the device
  virtual void open() {}
  virtual void close() {}
  virtual krn_code health() const { return KRN_STATUS_ok; }
  virtual void condition(krn_condition& /*out*/) const {}  // nothing is told
  virtual void claim(const Region& region, const krn_policy& policy, ClaimSink& sink) = 0;
  virtual std::unique_ptr<Executable> compile(const Region& region, const krn_policy& policy, const krn_options& options) = 0;
  virtual uint32_t check(std::string_view token) const;  // KRN_VERDICT_*; default: reject
  virtual std::unique_ptr<Executable> load(const Region& region, std::string_view token, std::string_view body);  // default: unsupported
  virtual bool can_replay() const { return false; }
  virtual void begin_replay(const krn_stream& stream);             // default: unsupported
  virtual std::unique_ptr<Replay> end_replay(const krn_stream& stream);
};

class Plugin {
 public:
  virtual ~Plugin() = default;
  // A device for that piece of hardware, or null with the reason in `why_not`. Creates no context.
  virtual std::unique_ptr<Device> enumerate(const krn_hw& hardware, std::string& why_not) = 0;
};

struct About {
  const char* guid = "";      // "8-4-4-4-12" hex digits, as in the manifest
  const char* version = "";
  const char* build_id = "";  // part of every cache key: changes whenever the code does. Empty: the linker's (-Wl,--build-id)
  const char* description = "";  // key=value lines for bug reports
  uint64_t capabilities = 0;  // KRN_CAP_*
  bool artifacts = false;     // save, check and load are implemented
  bool replay = false;        // begin_replay and end_replay are
};

// May throw kit::Error(unsupported, reason): driver or licence absent.
using MakePlugin = std::unique_ptr<Plugin> (*)(const Host& host, const krn_config& config);

krn_code entry(const About& about, MakePlugin make, const krn_offer* offer, krn_answer* answer, krn_err* err) noexcept;

}  // namespace keirin::kit

#define KRN_PLUGIN(about, make)                                                                                        \
  extern "C" KRN_EXPORT krn_code KRN_CALL krn_plugin_entry(const krn_offer* offer, krn_answer* answer, krn_err* err) { \
    static const ::keirin::kit::About krn_about = about;                                                              \
    return ::keirin::kit::entry(krn_about, make, offer, answer, err);                                                  \
  }
