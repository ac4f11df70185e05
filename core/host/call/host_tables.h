// SPDX-License-Identifier: Apache-2.0
//
// The host's side of the plugin contract: the context that plugins pass back, the error sink, and the tables krn.host.core,
// consts, memory and threads. Nothing here knows a particular plugin. No function of a table throws.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "abi/plugin.h"
#include "core/base/services.h"
#include "core/host/find/hardware.h"

// The error sink of one call: on the stack, without allocation, because a failed run may be short of memory.
struct krn_err {
  krn_code code = KRN_STATUS_ok;
  uint32_t size = 0;
  char text[2040];
};

// One plugin's view of the host.
struct krn_host {
  keirin::TensorServices* services = nullptr;
  std::function<void(int, std::string_view)> log;
  std::string plugin;  // for messages; empty until the plugin is known

  std::mutex mutex;  // guards what follows
  struct Weights {
    std::vector<keirin::TensorRef> tensors;
  };
  std::map<uint64_t, Weights> weights;
  struct Token {
    const std::atomic<bool>* flag;
    uint64_t deadline_ns;
  };
  std::map<uint64_t, Token> tokens;
  std::map<void*, keirin::TensorRef> device_blocks;
  uint64_t next_handle = 1;
  std::atomic<int64_t> device_bytes{0};
  std::atomic<bool> weights_missed{false};  // a weight was asked for in a call that has none at hand
  std::atomic<uint32_t> slices_strayed{0};  // slices of parallel_for that left another floating-point mode behind
  char last_words[128] = {};
};

namespace keirin {

inline constexpr uint32_t kTableMajor = 1;

// Table `name`, or null. The offer's get_table.
const krn_table* KRN_CALL host_table(krn_host* host, const char* name, uint32_t major);

// The monotonic clock in which deadlines cross the boundary.
uint64_t host_now_ns();

// The offer to a plugin in that role; valid as long as the host.
krn_offer make_offer(krn_host* host, uint32_t role);
uint32_t sanitizer_kind();  // as krn_offer states it

// What a plugin's call came to. A code that is not in the list reads as internal; `where` names plugin and function.
Status status_of(krn_code code, const krn_err& err, std::string where);

// The hardware list as the contract shows it. Borrows `items`.
std::vector<krn_hw> hardware_views(const std::vector<HardwareItem>& items);

inline krn_str str_of(std::string_view s) { return krn_str{s.data(), s.size()}; }
inline std::string text_of(krn_str s) { return s.data ? std::string(s.data, s.size) : std::string(); }

// Reads a growable struct that a plugin wrote: what it did not fill is zero.
template <class T>
T read_struct(const T* from) {
  T out{};
  if (!from) return out;
  const uint32_t size = from->hdr.size;
  __builtin_memcpy(&out, from, size < sizeof(T) ? size : sizeof(T));
  return out;
}

// A growable struct to hand over.
template <class T>
T make_struct() {
  T out{};
  out.hdr.size = sizeof(T);
  return out;
}

// The weights of one region and a cancel token, for the time of one call.
class CallScope {
 public:
  CallScope(krn_host* host, const std::vector<TensorRef>& weights, const std::atomic<bool>* cancel, uint64_t deadline_ns);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  uint64_t weights() const { return weights_; }
  uint64_t token() const { return token_; }

 private:
  krn_host* host_;
  uint64_t weights_ = 0, token_ = 0;
};

}  // namespace keirin
