// SPDX-License-Identifier: Apache-2.0
//
// HIP's functions that the AMD plugin calls, on the host: memory is the host's, a stream does everything at once, and a launch runs on
// emulated blocks (tests/emulator). The device is a gfx942 with waves of 64, or what $STANDIN_ARCH says: gfx1100, with waves of 32. What
// is given back twice or was never made is refused. Numbers are stated here from HIP's documentation, not taken from the plugin.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/emulator/blocks.h"
#include "tests/emulator/host_code.h"

#define STANDIN extern "C" __attribute__((visibility("default")))

namespace {

using keirin::test::HostCode;

enum : int {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kLaunchFailure = 719
};
constexpr int kUnits = 4;  // few, so that blocks go round
constexpr unsigned kMostThreads = 1024;

struct Context {
  int unused = 0;
};
struct Stream {
  int unused = 0;
};
struct Event {
  bool recorded = false;
  std::chrono::steady_clock::time_point at;
};
struct Function;
struct Module {
  explicit Module(std::unique_ptr<HostCode> c) : code(std::move(c)) {}
  std::unique_ptr<HostCode> code;
  std::map<std::string, Function> functions;
};
struct Function {
  Module* module = nullptr;
  void (*call)(void** arguments) = nullptr;
  unsigned threads = 0;
};

// What was made and not given back. Any thread.
class World {
 public:
  static World& get() {
    static auto* world = new World;
    return *world;
  }
  template <class T>
  T* add(T* made) {
    const std::lock_guard lock(mutex_);
    made_.insert(made);
    return made;
  }
  bool knows(const void* p) {
    const std::lock_guard lock(mutex_);
    return made_.count(p) != 0;
  }
  bool take(const void* p) {
    const std::lock_guard lock(mutex_);
    return made_.erase(p) != 0;
  }

  const bool wide = [] {
    const char* arch = std::getenv("STANDIN_ARCH");
    return !arch || std::strcmp(arch, "gfx1100") != 0;
  }();
  std::mutex modules;

 private:
  std::mutex mutex_;
  std::set<const void*> made_;

 public:
  Context* const context = add(new Context);  // the one that LibTorch would share
};

thread_local Context* current = nullptr;

int allocate(void** memory, size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 511) / 256 * 256);
  if (!*memory) return kOutOfMemory;
  std::memset(*memory, 0xff, bytes);  // NaN, as of nobody's memory nothing is known
  World::get().add(static_cast<char*>(*memory));
  return kOk;
}
int give_back(void* memory) {
  if (!memory) return kOk;
  if (!World::get().take(memory)) return kInvalidValue;
  return std::free(memory), kOk;
}

int launch(Function* f, unsigned blocks, unsigned by, unsigned bz, unsigned threads, unsigned ty, unsigned tz, unsigned shared,
           void** arguments, bool together) {
  if (!current) return kInvalidContext;
  if (!f || !arguments || by * bz * ty * tz != 1 || blocks == 0 || threads != f->threads || threads > kMostThreads)
    return kInvalidValue;
  if (together && blocks > kUnits) return kInvalidValue;
  const HostCode& code = *f->module->code;
  if (shared > code.shared().size()) return kInvalidValue;  // what the text takes of it is static here, for the most that it may ask for
  const keirin::test::Grid grid{.blocks = blocks,
                                .threads = static_cast<int>(threads),
                                .wave = code.wave(),
                                .together = together ? static_cast<int>(blocks) : 1,
                                .one_barrier = false,
                                .shared = code.shared()};
  const std::string wrong = run_grid(grid, code.host(), [&] { f->call(arguments); });
  if (wrong.empty()) return kOk;
  std::fprintf(stderr, "emulated blocks: %s\n", wrong.c_str());
  return kLaunchFailure;
}

}  // namespace

STANDIN int hipInit(unsigned flags) { return flags != 0 ? kInvalidValue : kOk; }
STANDIN int hipRuntimeGetVersion(int* version) { return *version = 70000000, kOk; }
STANDIN int hipGetDeviceCount(int* count) { return *count = 1, kOk; }
STANDIN int hipDeviceGet(int* device, int number) { return *device = number, number == 0 ? kOk : kInvalidValue; }
STANDIN int hipGetDevice(int* device) { return *device = 0, kOk; }
STANDIN int hipDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, static_cast<size_t>(bytes), "emulated waves of %d", World::get().wide ? 64 : 32);
  return kOk;
}
STANDIN int hipDeviceTotalMem(size_t* bytes, int) { return *bytes = size_t{1} << 34, kOk; }
STANDIN int hipDeviceGetPCIBusId(char* text, int bytes, int) {
  return std::snprintf(text, static_cast<size_t>(bytes), "0000:03:00.0"), kOk;
}

// By HIP's numbers of attributes.
STANDIN int hipDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 5: return *value = 2100000, kOk;
    case 19: return *value = 4 << 20, kOk;
    case 57: return *value = 2048, kOk;
    case 59: return *value = 8192, kOk;
    case 60: return *value = 1300000, kOk;
    case 63: return *value = kUnits, kOk;
    case 74: return *value = 64 << 10, kOk;
    case 87: return *value = World::get().wide ? 64 : 32, kOk;
    default: return kInvalidValue;
  }
}

// The struct of HIP 6 and later has the instruction set somewhere behind a byte 0.
STANDIN int hipGetDevicePropertiesR0600(void* properties, int) {
  constexpr size_t kBytes = 1472, kName = 1160;
  std::memset(properties, 0, kBytes);
  std::strcpy(static_cast<char*>(properties) + kName, World::get().wide ? "gfx942:sramecc+:xnack-" : "gfx1100");
  return kOk;
}

STANDIN int hipDevicePrimaryCtxRetain(Context** context, int) { return *context = World::get().context, kOk; }
STANDIN int hipDevicePrimaryCtxRelease(int) { return kOk; }
STANDIN int hipCtxGetCurrent(Context** context) { return *context = current, kOk; }
STANDIN int hipCtxSetCurrent(Context* context) {
  if (context && context != World::get().context) return kInvalidContext;
  return current = context, kOk;
}
STANDIN const char* hipGetErrorString(int result) {
  return result == kLaunchFailure ? "the emulated blocks did not end" : "refused by the stand-in";
}

STANDIN int hipModuleLoadData(Module** module, const void* code) {
  if (!current) return kInvalidContext;
  // An ELF file says how long it is: its section headers stand at its end.
  const char* bytes = static_cast<const char*>(code);
  uint64_t at;
  uint16_t size, count;
  std::memcpy(&at, bytes + 40, sizeof at), std::memcpy(&size, bytes + 58, sizeof size), std::memcpy(&count, bytes + 60, sizeof count);
  if (std::memcmp(bytes, "\x7f" "ELF", 4) != 0) return kInvalidImage;
  std::string error;
  auto made = std::make_unique<HostCode>(std::vector<char>(bytes, bytes + at + uint64_t{size} * count), error);
  if (!error.empty()) return std::fprintf(stderr, "emulated blocks: %s\n", error.c_str()), kInvalidImage;
  return *module = World::get().add(new Module(std::move(made))), kOk;
}
STANDIN int hipModuleGetFunction(Function** function, Module* module, const char* name) {
  if (!World::get().knows(module)) return kInvalidHandle;
  void* call = module->code->symbol(std::string("standin_call_") + name);
  const auto* threads = static_cast<const int*>(module->code->symbol(std::string("standin_threads_") + name));
  if (!call || !threads) return kNotFound;
  const std::lock_guard lock(World::get().modules);
  *function = &(module->functions[name] = {module, reinterpret_cast<void (*)(void**)>(call), static_cast<unsigned>(*threads)});
  return kOk;
}
STANDIN int hipModuleLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                  unsigned shared, Stream*, void** arguments, void** extra) {
  return extra ? kInvalidValue : launch(f, gx, gy, gz, bx, by, bz, shared, arguments, false);
}
STANDIN int hipModuleLaunchCooperativeKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                             unsigned shared, Stream*, void** arguments) {
  return launch(f, gx, gy, gz, bx, by, bz, shared, arguments, true);
}

STANDIN int hipMalloc(void** memory, size_t bytes) { return allocate(memory, bytes); }
STANDIN int hipFree(void* memory) { return give_back(memory); }
STANDIN int hipMallocAsync(void** memory, size_t bytes, Stream*) { return allocate(memory, bytes); }
STANDIN int hipFreeAsync(void* memory, Stream*) { return give_back(memory); }
STANDIN int hipMemsetD8Async(void* memory, unsigned char value, size_t bytes, Stream*) { return std::memset(memory, value, bytes), kOk; }
STANDIN int hipMemsetD32Async(void* memory, int value, size_t words, Stream*) {
  for (size_t i = 0; i < words; ++i) std::memcpy(static_cast<char*>(memory) + 4 * i, &value, 4);
  return kOk;
}
STANDIN int hipMemcpyDtoDAsync(void* to, void* from, size_t bytes, Stream*) { return std::memcpy(to, from, bytes), kOk; }
STANDIN int hipMemcpyDtoHAsync(void* to, void* from, size_t bytes, Stream*) { return std::memcpy(to, from, bytes), kOk; }

STANDIN int hipStreamCreateWithFlags(Stream** stream, unsigned flags) {
  if (!current || flags > 1) return kInvalidValue;
  return *stream = World::get().add(new Stream), kOk;
}
STANDIN int hipStreamDestroy(Stream* stream) {
  if (!World::get().take(stream)) return kInvalidHandle;
  return delete stream, kOk;
}
STANDIN int hipStreamSynchronize(Stream* stream) { return !stream || World::get().knows(stream) ? kOk : kInvalidHandle; }
STANDIN int hipStreamIsCapturing(Stream*, int* status) { return *status = 0, kOk; }
STANDIN int hipThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int now = 0;
  return std::swap(*mode, now), kOk;
}
STANDIN int hipEventCreateWithFlags(Event** event, unsigned flags) {
  if (!current || (flags & ~2u) != 0) return kInvalidValue;
  return *event = World::get().add(new Event), kOk;
}
STANDIN int hipEventDestroy(Event* event) {
  if (!World::get().take(event)) return kInvalidHandle;
  return delete event, kOk;
}
STANDIN int hipEventRecord(Event* event, Stream*) {
  if (!World::get().knows(event)) return kInvalidHandle;
  return event->recorded = true, event->at = std::chrono::steady_clock::now(), kOk;
}
STANDIN int hipEventQuery(Event* event) { return World::get().knows(event) ? kOk : kInvalidHandle; }
STANDIN int hipEventSynchronize(Event* event) { return World::get().knows(event) ? kOk : kInvalidHandle; }
STANDIN int hipEventElapsedTime(float* ms, Event* start, Event* stop) {
  if (!World::get().knows(start) || !World::get().knows(stop) || !start->recorded || !stop->recorded) return kInvalidHandle;
  *ms = std::chrono::duration<float, std::milli>(stop->at - start->at).count();
  return kOk;
}
