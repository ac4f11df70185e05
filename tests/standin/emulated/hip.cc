// SPDX-License-Identifier: Apache-2.0
//
// HIP's functions that the AMD plugin and `certify_checks` call, on the host: memory is the host's, and a launch runs on emulated blocks
// (tests/emulator). A stream that somebody made is a thread, which does what it is given in order and later; stream 0 does everything at
// once, and neither waits for the other, as with streams that do not block. The device is a gfx942 with waves of 64, or what $STANDIN_ARCH
// says: gfx1100, with waves of 32. What is given back twice or was never made is refused. Memory that another process is lent becomes a
// memory file, which that one finds in /proc. Numbers are stated here from HIP's documentation, not taken from the plugin.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
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
  kIllegalAddress = 700,
  kLaunchFailure = 719,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901
};
enum : int { kNotCapturing = 0, kCapturing = 1, kRelaxed = 2 };
constexpr int kUnits = 4;  // few, so that blocks go round
constexpr unsigned kMostThreads = 1024;

struct Context {
  int unused = 0;
};

// Something to do later. What it needs lies in it, so that giving a stream work asks nobody for memory.
class Task {
 public:
  template <class F>
  void set(const F& f) {
    static_assert(sizeof(F) <= kBytes && std::is_trivially_destructible_v<F> && std::is_trivially_copyable_v<F>);
    std::memcpy(bytes_, &f, sizeof f);
    run_ = [](const char* bytes) -> int { return (*reinterpret_cast<const F*>(bytes))(); };
  }
  int run() const { return run_(bytes_); }

 private:
  static constexpr size_t kBytes = 6144;
  int (*run_)(const char*) = nullptr;
  alignas(16) char bytes_[kBytes];
};

using Graph = std::vector<Task>;  // what was given to a stream while it was recorded

// The first error of work that was done later: as on a device, nothing more comes of its context.
std::atomic<int> g_lost{kOk};

// In order, on a thread of its own, which is never joined: a process ends with its streams.
class Stream {
 public:
  Stream() {
    std::thread([this] { work(); }).detach();
  }

  template <class F>
  int give(const F& f) {
    std::unique_lock lock(mutex_);
    if (recording_) return recording_->emplace_back().set(f), static_cast<int>(kOk);
    changed_.wait(lock, [this] { return given_ - done_ < kMost; });
    tasks_[given_++ % kMost].set(f);
    changed_.notify_all();
    return g_lost;
  }
  int give(const Graph& graph) {
    for (const Task& task : graph)
      if (const int result = give([at = &task] { return at->run(); })) return result;
    return kOk;
  }
  int wait() {
    std::unique_lock lock(mutex_);
    if (recording_) return broken_ = true, static_cast<int>(kCaptureUnsupported);
    changed_.wait(lock, [this] { return given_ == done_; });
    return g_lost;
  }
  bool recording() {
    const std::lock_guard lock(mutex_);
    return recording_ != nullptr;
  }
  int begin() {
    const std::lock_guard lock(mutex_);
    if (recording_) return kInvalidValue;
    return recording_ = new Graph, broken_ = false, ++recorded, kOk;
  }
  int end(Graph** graph) {
    const std::lock_guard lock(mutex_);
    if (!recording_) return kInvalidValue;
    return *graph = std::exchange(recording_, nullptr), --recorded, broken_ ? kCaptureInvalidated : kOk;
  }

  static inline std::atomic<int> recorded{0};  // streams that are

 private:
  static constexpr size_t kMost = 256;  // then who gives more waits, as with a device

  void work() {
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [this] { return given_ != done_; });
      const Task& task = tasks_[done_ % kMost];
      lock.unlock();
      if (const int result = g_lost == kOk ? task.run() : kOk) g_lost = result;
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;  // guards what follows, but for tasks between done_ and given_
  std::condition_variable changed_;
  std::unique_ptr<Task[]> tasks_{new Task[kMost]};
  size_t given_ = 0, done_ = 0;
  Graph* recording_ = nullptr;
  bool broken_ = false;  // somebody did what cannot be recorded
};

// What another process opens memory, or an event, by: a memory file that it finds in /proc.
struct Handle {
  char kind[8];
  int process, file;
  size_t bytes;
  char rest[40];
};
static_assert(sizeof(Handle) == 64);

Handle handle_of(const char (&kind)[8], int file, size_t bytes) {
  Handle handle{};
  std::memcpy(handle.kind, kind, sizeof handle.kind);
  handle.process = ::getpid(), handle.file = file, handle.bytes = bytes;
  return handle;
}
// Another process's, mapped here; null if it is none.
void* map_lent(const char (&kind)[8], const Handle& handle) {
  if (std::memcmp(handle.kind, kind, sizeof handle.kind) != 0 || handle.process == ::getpid()) return nullptr;
  const int file = ::open(("/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file)).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* const at = ::mmap(nullptr, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return at == MAP_FAILED ? nullptr : at;
}

// How often a stream was asked to reach an event, and which of these it has reached. Of one that two processes have it lies in a memory
// file, at which who waits has to look again and again.
class Event {
 public:
  explicit Event(bool for_processes) {
    if (!for_processes) return;
    file_ = ::memfd_create("emulated event", MFD_CLOEXEC);
    if (file_ < 0 || ::ftruncate(file_, sizeof(Counts)) != 0) std::abort();
    shared_ = static_cast<Counts*>(::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
  }
  explicit Event(void* lent) : shared_(static_cast<Counts*>(lent)) {}
  ~Event() {
    if (shared_) ::munmap(shared_, sizeof(Counts));
    if (file_ >= 0) ::close(file_);
  }
  static Event* open(const Handle& handle) {
    void* const at = map_lent(kKind, handle);
    return at ? new Event(at) : nullptr;
  }
  bool lend(Handle* handle) const {
    if (file_ < 0) return false;
    return *handle = handle_of(kKind, file_, sizeof(Counts)), true;
  }

  uint64_t promise() { return ++counts().promised; }
  void reach(uint64_t number) {
    const std::lock_guard lock(mutex_);
    counts().reached = number, at_ = std::chrono::steady_clock::now();
    changed_.notify_all();
  }
  uint64_t promised() { return counts().promised; }
  bool reached() { return counts().reached >= counts().promised; }
  void wait(uint64_t number) {
    std::unique_lock lock(mutex_);
    const auto is_there = [&] { return counts().reached >= number; };
    if (!shared_) return changed_.wait(lock, is_there);
    while (!is_there()) changed_.wait_for(lock, std::chrono::microseconds(20));
  }
  std::chrono::steady_clock::time_point at() {
    const std::lock_guard lock(mutex_);
    return at_;
  }

 private:
  static constexpr char kKind[8] = "event";
  struct Counts {
    std::atomic<uint64_t> promised{0}, reached{0};
  };
  Counts& counts() { return shared_ ? *shared_ : own_; }

  Counts own_;
  Counts* shared_ = nullptr;
  int file_ = -1;
  std::mutex mutex_;  // guards at_, and what is waited for
  std::condition_variable changed_;
  std::chrono::steady_clock::time_point at_;
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
  const int* sizes = nullptr;  // of its parameters, in bytes; then 0
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

  std::vector<Stream*> streams() {
    const std::lock_guard lock(mutex_);
    return streams_;
  }
  Stream* add_stream() {
    auto* const stream = new Stream;
    const std::lock_guard lock(mutex_);
    made_.insert(stream);
    return streams_.emplace_back(stream);
  }

  const bool wide = [] {
    const char* arch = std::getenv("STANDIN_ARCH");
    return !arch || std::strcmp(arch, "gfx1100") != 0;
  }();
  std::mutex modules;

 private:
  std::mutex mutex_;
  std::set<const void*> made_;
  std::vector<Stream*> streams_;  // ended ones, too: their threads have nothing to do

 public:
  Context* const context = add(new Context);  // the one that LibTorch would share
};

thread_local Context* current = nullptr;
thread_local int capture_mode = 0;

// What nobody may ask for while a stream is recorded, but who said that it knows what it does.
bool forbidden() { return Stream::recorded > 0 && capture_mode != kRelaxed; }

// Null is stream 0.
template <class F>
int on(Stream* stream, const F& f) {
  if (!stream) return f();
  return World::get().knows(stream) ? stream->give(f) : static_cast<int>(kInvalidHandle);
}

// Waits for every stream.
int drain() {
  int result = kOk;
  for (Stream* stream : World::get().streams())
    if (!stream->recording()) result = stream->wait();
  return result;
}

// A device's memory is none of the host's allocator's.
std::mutex g_memory_mutex;
struct Piece {
  size_t bytes = 0;
  int file = -1;        // of one that is lent
  bool opened = false;  // another process's
};
std::map<void*, Piece> g_memory;
std::atomic<size_t> g_memory_bytes{0};
std::map<const void*, size_t> g_pinned;  // memory of the host that was made known, with its bytes

bool is_pinned(const void* memory, size_t bytes) {
  const std::lock_guard lock(g_memory_mutex);
  auto at = g_pinned.upper_bound(memory);
  if (at == g_pinned.begin()) return false;
  --at;
  return static_cast<const char*>(memory) + bytes <= static_cast<const char*>(at->first) + at->second;
}

int allocate(void** memory, size_t bytes) {
  const size_t whole = (bytes + 4096) / 4096 * 4096;
  *memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*memory == MAP_FAILED) return kOutOfMemory;
  std::memset(*memory, 0xff, bytes);  // NaN, as of nobody's memory nothing is known
  const std::lock_guard lock(g_memory_mutex);
  g_memory.emplace(*memory, Piece{whole});
  return g_memory_bytes += whole, kOk;
}
int give_back(void* memory) {
  if (!memory) return kOk;
  Piece piece;
  {
    const std::lock_guard lock(g_memory_mutex);
    const auto at = g_memory.find(memory);
    if (at == g_memory.end() || at->second.opened) return kInvalidValue;
    piece = at->second;
    g_memory.erase(at);
  }
  g_memory_bytes -= piece.bytes;
  if (piece.file >= 0) ::close(piece.file);
  return ::munmap(memory, piece.bytes), kOk;
}

constexpr char kMemory[8] = "memory";

// Of a whole piece, which becomes a memory file where it lies.
int lend(Handle* handle, void* memory) {
  const std::lock_guard lock(g_memory_mutex);
  const auto at = g_memory.find(memory);
  if (at == g_memory.end() || at->second.opened) return kInvalidValue;
  Piece& piece = at->second;
  if (piece.file < 0) {
    const int file = ::memfd_create("emulated device", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(piece.bytes)) != 0 ||
        ::pwrite(file, memory, piece.bytes, 0) != static_cast<ssize_t>(piece.bytes) ||
        ::mmap(memory, piece.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
      return kOutOfMemory;
    piece.file = file;
  }
  return *handle = handle_of(kMemory, piece.file, piece.bytes), kOk;
}
int open_lent(void** memory, const Handle& handle) {
  if (!(*memory = map_lent(kMemory, handle))) return kInvalidValue;
  const std::lock_guard lock(g_memory_mutex);
  return g_memory.emplace(*memory, Piece{.bytes = handle.bytes, .opened = true}), kOk;
}
int close_lent(void* memory) {
  const std::lock_guard lock(g_memory_mutex);
  const auto at = g_memory.find(memory);
  if (at == g_memory.end() || !at->second.opened) return kInvalidValue;
  ::munmap(memory, at->second.bytes);
  return g_memory.erase(at), kOk;
}

// Where no device has memory.
bool illegal(const void* memory) { return reinterpret_cast<uintptr_t>(memory) < 4096; }

// A launch's arguments, which are the caller's only until it returns.
struct Packed {
  static constexpr int kMost = 64;
  int count = 0;
  uint16_t offsets[kMost];
  alignas(16) char bytes[5120];

  bool pack(const Function& f, void** arguments) {
    size_t at = 0;
    for (; f.sizes[count] != 0; ++count) {
      const auto size = static_cast<size_t>(f.sizes[count]);
      if (count == kMost || at + size > sizeof bytes) return false;
      std::memcpy(bytes + at, arguments[count], size);
      offsets[count] = static_cast<uint16_t>(at);
      at = (at + size + 15) / 16 * 16;
    }
    return true;
  }
};

int run_blocks(Function* f, unsigned blocks, unsigned threads, bool together, void** arguments) {
  const HostCode& code = *f->module->code;
  const keirin::test::Grid grid{.blocks = blocks,
                                .threads = static_cast<int>(threads),
                                .wave = code.wave(),
                                .together = together ? static_cast<int>(blocks) : 1,
                                .one_barrier = false,
                                .shared = code.shared()};
  const std::string wrong = run_grid(grid, code.host(), [&] { f->call(arguments); });
  if (wrong.empty()) return kOk;
  if (wrong == keirin::test::kOutOfBounds) return kInvalidValue;  // AMD's would be lost: other cases could not be tried on this one
  std::fprintf(stderr, "emulated blocks: %s\n", wrong.c_str());
  return kLaunchFailure;
}

int launch(Function* f, unsigned blocks, unsigned by, unsigned bz, unsigned threads, unsigned ty, unsigned tz, unsigned shared,
           Stream* stream, void** arguments, bool together) {
  if (!current) return kInvalidContext;
  if (!f || !arguments || by * bz * ty * tz != 1 || blocks == 0 || threads != f->threads || threads > kMostThreads)
    return kInvalidValue;
  if (together && blocks > kUnits) return kInvalidValue;
  if (shared > f->module->code->shared().size()) return kInvalidValue;  // what the text takes of it is static here, for the most
  if (!stream) return run_blocks(f, blocks, threads, together, arguments);
  Packed packed;
  if (!packed.pack(*f, arguments)) return std::fprintf(stderr, "emulated: a launch of too many arguments\n"), kInvalidValue;
  return on(stream, [=] {
    void* at[Packed::kMost];
    for (int i = 0; i < packed.count; ++i) at[i] = const_cast<char*>(packed.bytes + packed.offsets[i]);
    return run_blocks(f, blocks, threads, together, at);
  });
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
STANDIN int hipDeviceGetByPCIBusId(int* device, const char* text) {
  return *device = 0, std::strcmp(text, "0000:03:00.0") == 0 ? kOk : kInvalidValue;
}
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
  if (result == kIllegalAddress) return "an illegal address";
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
  const auto* sizes = static_cast<const int*>(module->code->symbol(std::string("standin_sizes_") + name));
  if (!call || !threads || !sizes) return kNotFound;
  const std::lock_guard lock(World::get().modules);
  *function = &(module->functions[name] = {module, reinterpret_cast<void (*)(void**)>(call), static_cast<unsigned>(*threads), sizes});
  return kOk;
}
STANDIN int hipModuleLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                  unsigned shared, Stream* stream, void** arguments, void** extra) {
  return extra ? kInvalidValue : launch(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, false);
}
STANDIN int hipModuleLaunchCooperativeKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                             unsigned shared, Stream* stream, void** arguments) {
  return launch(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, true);
}

STANDIN int hipMalloc(void** memory, size_t bytes) { return forbidden() ? kCaptureUnsupported : allocate(memory, bytes); }
STANDIN int hipFree(void* memory) {
  if (forbidden()) return kCaptureUnsupported;
  if (const int result = drain()) return result;
  return give_back(memory);
}
STANDIN int hipMallocAsync(void** memory, size_t bytes, Stream*) { return allocate(memory, bytes); }
STANDIN int hipFreeAsync(void* memory, Stream* stream) {
  return on(stream, [=] { return give_back(memory); });
}
STANDIN int hipMemsetD8Async(void* memory, unsigned char value, size_t bytes, Stream* stream) {
  return on(stream, [=] { return illegal(memory) ? kIllegalAddress : (std::memset(memory, value, bytes), kOk); });
}
STANDIN int hipMemsetD32Async(void* memory, int value, size_t words, Stream* stream) {
  return on(stream, [=] {
    for (size_t i = 0; i < words; ++i) std::memcpy(static_cast<char*>(memory) + 4 * i, &value, 4);
    return kOk;
  });
}
STANDIN int hipMemcpyDtoDAsync(void* to, void* from, size_t bytes, Stream* stream) {
  return on(stream, [=] { return std::memmove(to, from, bytes), kOk; });
}
// To or from memory that is not pinned: done when it returns.
STANDIN int hipMemcpyDtoHAsync(void* to, void* from, size_t bytes, Stream* stream) {
  if (const int result = on(stream, [=] { return std::memcpy(to, from, bytes), kOk; })) return result;
  return stream && !is_pinned(to, bytes) ? stream->wait() : kOk;
}
STANDIN int hipMemcpyHtoDAsync(void* to, const void* from, size_t bytes, Stream* stream) {
  if (const int result = on(stream, [=] { return std::memcpy(to, from, bytes), kOk; })) return result;
  return stream && !is_pinned(from, bytes) ? stream->wait() : kOk;
}
STANDIN int hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows, int kind,
                             Stream* stream) {
  if (kind != 1 || to_pitch < width || from_pitch < width) return kInvalidValue;  // from the host to the device
  const auto copy = [=] {
    for (size_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    return static_cast<int>(kOk);
  };
  if (const int result = on(stream, copy)) return result;
  return stream && !is_pinned(from, rows * from_pitch) ? stream->wait() : kOk;
}
STANDIN int hipHostRegister(void* memory, size_t bytes, unsigned flags) {
  const std::lock_guard lock(g_memory_mutex);
  return flags == 0 && g_pinned.emplace(memory, bytes).second ? kOk : kInvalidValue;
}
STANDIN int hipHostUnregister(void* memory) {
  if (const int result = drain()) return result;
  const std::lock_guard lock(g_memory_mutex);
  return g_pinned.erase(memory) != 0 ? kOk : kInvalidValue;
}
STANDIN int hipIpcGetMemHandle(Handle* handle, void* memory) { return lend(handle, memory); }
STANDIN int hipIpcOpenMemHandle(void** memory, Handle handle, unsigned flags) {
  return flags != 1 ? static_cast<int>(kInvalidValue) : open_lent(memory, handle);
}
STANDIN int hipIpcCloseMemHandle(void* memory) {
  if (const int result = drain()) return result;
  return close_lent(memory);
}
STANDIN int hipMemGetInfo(size_t* free, size_t* all) {
  *all = size_t{1} << 34;
  return *free = *all - g_memory_bytes, kOk;
}
STANDIN int hipMemcpyHtoD(void* to, const void* from, size_t bytes) { return std::memcpy(to, from, bytes), kOk; }
STANDIN int hipMemcpyDtoH(void* to, const void* from, size_t bytes) { return std::memcpy(to, from, bytes), kOk; }

// Memory whose end is known: addresses that are reserved, of which some are given memory. Of one size of page, and all of it.
struct Pages {
  size_t bytes = 0;
};
STANDIN int hipMemGetAllocationGranularity(size_t* bytes, const void*, int) { return *bytes = 1 << 16, kOk; }
STANDIN int hipMemAddressReserve(void** at, size_t bytes, size_t, void*, unsigned long long) {
  *at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return *at == MAP_FAILED ? kOutOfMemory : kOk;
}
STANDIN int hipMemAddressFree(void* at, size_t bytes) { return ::munmap(at, bytes) == 0 ? kOk : kInvalidValue; }
STANDIN int hipMemCreate(Pages** pages, size_t bytes, const void*, unsigned long long) {
  return *pages = World::get().add(new Pages{bytes}), kOk;
}
STANDIN int hipMemMap(void*, size_t bytes, size_t offset, Pages* pages, unsigned long long) {
  return World::get().knows(pages) && offset == 0 && bytes == pages->bytes ? kOk : kInvalidValue;
}
STANDIN int hipMemSetAccess(void* at, size_t bytes, const void*, size_t) {
  return ::mprotect(at, bytes, PROT_READ | PROT_WRITE) == 0 ? kOk : kInvalidValue;
}
STANDIN int hipMemUnmap(void* at, size_t bytes) { return ::mprotect(at, bytes, PROT_NONE) == 0 ? kOk : kInvalidValue; }
STANDIN int hipMemRelease(Pages* pages) {
  if (!World::get().take(pages)) return kInvalidValue;
  return delete pages, kOk;
}

STANDIN int hipStreamCreateWithFlags(Stream** stream, unsigned flags) {
  if (!current || flags > 1) return kInvalidValue;
  return *stream = World::get().add_stream(), kOk;
}
STANDIN int hipStreamDestroy(Stream* stream) { return World::get().take(stream) ? kOk : kInvalidHandle; }
STANDIN int hipStreamSynchronize(Stream* stream) {
  if (!stream) return g_lost;
  return World::get().knows(stream) ? stream->wait() : static_cast<int>(kInvalidHandle);
}
STANDIN int hipDeviceSynchronize() { return drain(); }
STANDIN int hipStreamIsCapturing(Stream* stream, int* status) {
  return *status = stream && stream->recording() ? kCapturing : kNotCapturing, kOk;
}
STANDIN int hipThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, capture_mode), kOk; }
STANDIN int hipLaunchHostFunc(Stream* stream, void (*function)(void*), void* context) {
  return on(stream, [=] { return function(context), kOk; });
}
STANDIN int hipStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  if (!World::get().knows(event)) return kInvalidHandle;
  return on(stream, [event, number = event->promised()] { return event->wait(number), kOk; });
}

STANDIN int hipStreamBeginCapture(Stream* stream, int) { return World::get().knows(stream) ? stream->begin() : kInvalidHandle; }
STANDIN int hipStreamEndCapture(Stream* stream, Graph** graph) { return World::get().knows(stream) ? stream->end(graph) : kInvalidHandle; }
STANDIN int hipGraphInstantiateWithFlags(Graph** ready, Graph* graph, unsigned long long) { return *ready = graph, kOk; }
STANDIN int hipGraphLaunch(Graph* graph, Stream* stream) { return World::get().knows(stream) ? stream->give(*graph) : kInvalidHandle; }

STANDIN int hipEventCreateWithFlags(Event** event, unsigned flags) {
  if (!current || (flags & ~6u) != 0 || flags == 4) return kInvalidValue;
  return *event = World::get().add(new Event((flags & 4) != 0)), kOk;
}
STANDIN int hipIpcGetEventHandle(Handle* handle, Event* event) {
  return World::get().knows(event) && event->lend(handle) ? kOk : kInvalidValue;
}
STANDIN int hipIpcOpenEventHandle(Event** event, Handle handle) {
  Event* const opened = Event::open(handle);
  return opened ? (*event = World::get().add(opened), kOk) : static_cast<int>(kInvalidValue);
}
STANDIN int hipEventDestroy(Event* event) {
  if (!World::get().take(event)) return kInvalidHandle;
  if (event->reached()) delete event;  // else a stream will still come to it
  return kOk;
}
STANDIN int hipEventRecord(Event* event, Stream* stream) {
  if (!World::get().knows(event)) return kInvalidHandle;
  return on(stream, [event, number = event->promise()] { return event->reach(number), kOk; });
}
STANDIN int hipEventQuery(Event* event) {
  if (!World::get().knows(event)) return kInvalidHandle;
  return g_lost != kOk ? g_lost.load() : event->reached() ? kOk : kNotReady;
}
STANDIN int hipEventSynchronize(Event* event) {
  if (!World::get().knows(event)) return kInvalidHandle;
  return event->wait(event->promised()), g_lost;
}
STANDIN int hipEventElapsedTime(float* ms, Event* start, Event* stop) {
  if (!World::get().knows(start) || !World::get().knows(stop) || start->promised() == 0 || stop->promised() == 0) return kInvalidHandle;
  if (!start->reached() || !stop->reached()) return kNotReady;
  *ms = std::chrono::duration<float, std::milli>(stop->at() - start->at()).count();
  return kOk;
}
