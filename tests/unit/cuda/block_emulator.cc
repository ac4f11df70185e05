// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/cuda/block_emulator.h"

#include <dlfcn.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

namespace keirin::test {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr int kMaxThreads = 4096;  // of a cluster

// As the prelude of the host dialect declares it.
struct KrnHost {
  int thread, block, blocks, rank;
  void (*sync)();
  void* (*exchange)(const void* value, int bytes, int distance);
  void* (*fetch)(const void* value, int bytes, int thread);
};

using Function = void (*)(const void* sizes, const void* pointers);

// One block, or the blocks of one cluster, at a time, in one host thread.
struct Block {
  int self = 0;  // the fibre that runs
  ucontext_t scheduler;
  std::vector<ucontext_t> fibres = std::vector<ucontext_t>(kMaxThreads);
  std::unique_ptr<char[]> stacks{new char[kStackBytes * kMaxThreads]};
  std::vector<bool> done;
  struct Slot {
    alignas(16) char bytes[16];
  };
  std::vector<Slot> sent = std::vector<Slot>(kMaxThreads), received = std::vector<Slot>(kMaxThreads);
  KrnHost* host = nullptr;
  int wave = 32;
  Function function = nullptr;
  const void *sizes = nullptr, *pointers = nullptr;
};

Block& block() {
  static auto* block = new Block;
  return *block;
}

void yield() {
  Block& b = block();
  swapcontext(&b.fibres[b.self], &b.scheduler);
}

// What a thread of the block gives; nothing to be had from another wave, which a wrong result then shows.
void* fetch(const void* value, int bytes, int thread) {
  Block& b = block();
  const int self = b.self, own = b.host->thread, other = self - own + thread;
  std::memcpy(b.sent[self].bytes, value, bytes);
  yield();
  if (own / b.wave == thread / b.wave) std::memcpy(b.received[self].bytes, b.sent[other].bytes, bytes);
  else std::memset(b.received[self].bytes, 0xa5, bytes);
  yield();
  return b.received[self].bytes;
}

void* exchange(const void* value, int bytes, int distance) { return fetch(value, bytes, block().host->thread ^ distance); }

void body() {
  Block& b = block();
  b.function(b.sizes, b.pointers);
  b.done[b.self] = true;
  yield();
}

std::string run_blocks(int64_t first, int threads, int cluster) {
  Block& b = block();
  const int all = threads * cluster;
  b.done.assign(all, false);
  for (int t = 0; t < all; ++t) {
    getcontext(&b.fibres[t]);
    b.fibres[t].uc_stack.ss_sp = b.stacks.get() + kStackBytes * t;
    b.fibres[t].uc_stack.ss_size = kStackBytes;
    b.fibres[t].uc_link = &b.scheduler;
    makecontext(&b.fibres[t], body, 0);
  }
  for (bool waiting = true; waiting;) {
    int num_done = 0;
    for (int t = 0; t < all; ++t) {
      b.self = t;
      b.host->thread = t % threads, b.host->rank = t / threads, b.host->block = static_cast<int>(first) + t / threads;
      swapcontext(&b.scheduler, &b.fibres[t]);
      num_done += b.done[t];
    }
    if (num_done != 0 && num_done != all) return "some threads ended while others wait at a barrier";
    waiting = num_done == 0;
  }
  return "";
}

}  // namespace

HostModule::HostModule(const std::string& text, std::string& error) {
  std::string path = (std::filesystem::temp_directory_path() / "keirin-kernels-XXXXXX.cc").string();
  const int file = ::mkstemps(path.data(), 3);
  if (file < 0 || write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    error = "cannot write the kernels' text";
    return;
  }
  ::close(file);
  const std::string base = path.substr(0, path.size() - 3), library = base + ".so", log = base + ".log";
  const char* compiler = std::getenv("CXX");
  const std::string command = std::string(compiler ? compiler : "c++") +
                              " -std=c++17 -O1 -w -ffp-contract=off -fwrapv -shared -fPIC -o " + library + " " + path + " 2> " + log;
  const int result = std::system(command.c_str());
  if (result != 0) {
    std::ifstream in(log);
    std::stringstream words;
    words << in.rdbuf();
    error = words.str().substr(0, 4000) + "\n(text in " + path + ")";
    return;
  }
  library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) error = dlerror();
  for (const std::string& gone : {path, library, log}) unlink(gone.c_str());
}

std::string HostModule::launch(const std::string& symbol, int64_t blocks, int threads, const void* sizes, const void* pointers, int cluster) {
  Block& b = block();
  b.host = static_cast<KrnHost*>(dlsym(library_, "krn_host"));
  b.function = reinterpret_cast<Function>(dlsym(library_, symbol.c_str()));
  const auto* wave = static_cast<const int*>(dlsym(library_, "krn_wave"));
  if (!b.host || !b.function || !wave) return "no symbol " + symbol;
  if (threads * cluster > kMaxThreads || blocks % cluster != 0) return "a block of " + std::to_string(threads) + " threads";
  b.host->sync = yield;
  b.host->exchange = exchange;
  b.host->fetch = fetch;
  b.wave = *wave;
  b.host->blocks = static_cast<int>(blocks);
  b.sizes = sizes, b.pointers = pointers;
  for (int64_t i = 0; i < blocks; i += cluster) {
    if (std::string wrong = run_blocks(i, threads, cluster); !wrong.empty()) return wrong;
  }
  return "";
}

const codegen::Dialect& host_dialect(int wave) {
  static const std::string text = "#define KRN_WAVE 64\n" + std::string(codegen::kHostDialect.prelude);
  static const codegen::Dialect wide = {"host", 64, text};
  return wave == 64 ? wide : codegen::kHostDialect;
}

std::vector<char> pack_sizes(const codegen::Kernel& kernel, const codegen::Schedule& schedule) {
  std::vector<int64_t> all = codegen::size_arguments(kernel);
  all.insert(all.end(), {schedule.splits, schedule.split_length, 0});
  std::vector<char> out;
  for (int64_t v : all) {
    const auto narrow = static_cast<int32_t>(v);
    const char* bytes = schedule.wide ? reinterpret_cast<const char*>(&v) : reinterpret_cast<const char*>(&narrow);
    out.insert(out.end(), bytes, bytes + (schedule.wide ? 8 : 4));
  }
  return out;
}

}  // namespace keirin::test
