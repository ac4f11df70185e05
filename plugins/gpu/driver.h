// SPDX-License-Identifier: Apache-2.0
//
// The narrow way to a GPU vendor: text to code, code to functions, launches, memory, streams, events. All that
// plugins/gpu asks of a device goes through here; a vendor implements it once, over its driver and its compiler, and a
// test may put a host in its place. Handles are the vendor's own, opaque here. Nothing waits unless it says so; a call
// that fails gives the vendor's own number.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/codegen/text/c_printer.h"

namespace keirin::gpu {

using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using ContextHandle = struct ContextOpaque*;
using Result = int32_t;  // 0: success

class Driver;

// What code is compiled for.
struct CodeTarget {
  const Driver* driver = nullptr;  // of the vendor; outlives everything
  std::string arch;                // as its compiler names it
  bool contract = true;            // a multiply and an add may fuse; off under strict numerics
  bool fast = false;               // the compiler's fast math: numerics=fast only
  bool begins_early = false;       // a launch may begin before the one before has ended, if its text waits itself
  bool only_known = false;         // nothing is compiled: what is not there is refused (unsupported)

  std::string identity() const;  // of what decides the code, with the compiler's version: equal text, equal code
};

// What matrix units do for texts written by hand: d += x y for a wave, of `rows` by `depth` and of `depth` by `columns` 16-bit elements,
// or half that depth of f32. How they lie over lanes: those of 16x8x16 as text/recur.krn says for a host, those of 16x16x16, of which a
// text may add several, as text/unit.krn does.
struct MatrixUnit {
  int rows = 0, columns = 0, depth = 0;
  int wave = 0;
  // Of 16x8x16: krn_product and krn_pair, for texts that define TYPE, "bf16", "f16", or "tf32" and half the DEPTH. Of 16x16x16: KrnUnit for
  // the types that they take, after text/unit.krn.
  std::string_view text;

  bool is(int r, int c, int d, int w) const { return rows == r && columns == c && depth == d && wave == w; }
};

// The vendor's own words, in the language of its compiler.
struct Words {
  codegen::Dialect dialect;      // what all texts stand on
  std::string_view file_ending;  // of a dumped text: ".cu"
  std::string_view stream;       // krn_stream16: sixteen bytes that nobody reads again (text/gemv.krn)
  std::string_view recur;        // what one block tells another (text/recur.krn)
  std::string_view tiles;        // attention on matrix units, over text/attention.krn; empty: text/tiles.krn has it
  std::string_view rows;         // what lanes, blocks and atomics say to each other (text/rows.krn)
};

// One parameter of a kernel: a value, or addresses (one, or a struct of them).
struct Parameter {
  uint32_t bytes = 0;
  bool addresses = false;
};

struct Launch {
  Function function = nullptr;
  int64_t blocks = 1;
  int threads = 1;
  int64_t shared_bytes = 0;  // beyond what the text declares
  bool together = false;     // its blocks wait for each other: all of them run at once, or the launch is refused
  bool early = false;        // may begin before the launch before has ended
  std::span<const Parameter> parameters{};  // in order; no vendor's launch needs them, whoever writes one down does (launch_list.h)
};

// All functions may be called from any thread. A device's context must be current for those below `usable`, but for the
// first few.
class Driver {
 public:
  virtual ~Driver() = default;

  virtual const Words& words() const = 0;
  // Needs the compiler and no device. Throws kit::Error, with the compiler's log where it refused the text.
  virtual std::vector<char> compile(const std::string& text, const CodeTarget& target) const = 0;
  virtual std::string identity(const CodeTarget& target) const = 0;
  // Registers for which the kernels of this code had no room and use memory, all of them together; -1: this driver does not tell.
  virtual int64_t spilled(const std::vector<char>&) const { return -1; }

  // Whether there is a driver; all that follows needs one.
  virtual bool usable(std::string& why_not) const = 0;
  virtual int32_t status_of(Result result) const = 0;  // KRN_STATUS_*
  virtual std::string words_of(Result result) const = 0;

  // The context that is shared with the framework, held from `retain` to `release`. `device` is the driver's number.
  virtual Result retain(int device, ContextHandle& context) const = 0;
  virtual void release(int device) const = 0;
  virtual Result current(ContextHandle& context) const = 0;
  virtual Result make_current(ContextHandle context) const = 0;

  virtual Result load(const std::vector<char>& code, Module& module) const = 0;
  virtual Result find(Module module, const std::string& symbol, Function& function) const = 0;
  // For functions whose launches ask for `bytes` of shared memory beyond what the text declares.
  virtual Result allow_shared(Function function, int64_t bytes) const = 0;
  // `arguments`: the addresses of the kernel's parameters.
  virtual Result launch(const Launch& launch, Stream stream, void** arguments) const = 0;

  virtual Result allocate(size_t bytes, void*& memory) const = 0;
  virtual Result free(void* memory) const = 0;  // waits for what uses it
  virtual Result allocate_on(Stream stream, size_t bytes, void*& memory) const = 0;
  virtual Result free_on(Stream stream, void* memory) const = 0;
  virtual Result fill(Stream stream, void* memory, unsigned char value, size_t bytes) const = 0;
  virtual Result fill_words(Stream stream, void* memory, uint32_t value, size_t words) const = 0;
  virtual Result copy(Stream stream, void* to, const void* from, size_t bytes) const = 0;      // within the device
  virtual Result copy_out(Stream stream, void* to, const void* from, size_t bytes) const = 0;  // to the host

  // A stream that waits for no other.
  virtual Result make_stream(Stream& stream) const = 0;
  virtual void end_stream(Stream stream) const = 0;
  virtual Result wait(Stream stream) const = 0;
  virtual Result is_recording(Stream stream, bool& recording) const = 0;
  // While another thread records a stream, the calling thread may allocate between the two; without them, a call could
  // end that recording. The first gives what the second takes back.
  virtual int permit_allocation() const = 0;
  virtual void restore_permission(int former) const = 0;

  virtual Result make_event(Event& event, bool timed) const = 0;
  virtual void end_event(Event event) const = 0;
  virtual Result record(Event event, Stream stream) const = 0;
  virtual Result wait(Event event) const = 0;
  virtual Result milliseconds(Event start, Event stop, float& ms) const = 0;
  // Whether the context can no longer be used, as an event that was never recorded shows. Waits for nothing.
  virtual bool is_lost(Event probe) const = 0;
};

inline std::string CodeTarget::identity() const { return driver->identity(*this); }

// The first name that opens; libraries that the process holds already come first, so that one copy is shared. Null with the reason.
void* open_first(const std::vector<const char*>& names, std::string& why_not);
// The function of that name; null with the name in `lacks`.
void* find_function(void* library, const char* name, std::string& lacks);
template <class Function>
bool take_function(void* library, const char* name, Function& function, std::string& lacks) {
  return (function = reinterpret_cast<Function>(find_function(library, name, lacks))) != nullptr;
}

// A library that is opened at run time. `take(library, lacks)` takes its functions. Empty, or why it cannot be used, in one line.
template <class Take>
std::string open_library(const std::string& name, const std::vector<const char*>& files, const char* how_to_get, const Take& take) {
  std::string why_not, lacks;
  void* library = open_first(files, why_not);
  if (!library) return "no " + name + ": " + why_not + "; " + how_to_get;
  return take(library, lacks) ? "" : "this " + name + " is too old: it lacks " + lacks;
}

// A table that is opened once, or why it is not there. `open` fills it and returns what is missing, empty if nothing is.
template <class Table>
class Opened {
 public:
  template <class Open>
  explicit Opened(Open open) : why_not_(open(table_)) {}
  const Table* get(std::string& why_not) const {
    why_not = why_not_;
    return why_not.empty() ? &table_ : nullptr;
  }

 private:
  Table table_;
  std::string why_not_;
};

// Throws kit::Error with the driver's own words unless `result` is success.
void check(const Driver& driver, Result result, const char* what);

// Lets the calling thread allocate while it lives (permit_allocation).
class AllocateWhileRecording {
 public:
  explicit AllocateWhileRecording(const Driver& driver) : driver_(driver), former_(driver.permit_allocation()) {}
  ~AllocateWhileRecording() { driver_.restore_permission(former_); }
  AllocateWhileRecording(const AllocateWhileRecording&) = delete;

 private:
  const Driver& driver_;
  const int former_;
};

}  // namespace keirin::gpu
