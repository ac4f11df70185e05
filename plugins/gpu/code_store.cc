// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/code_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <set>
#include <thread>

#include "abi/planted.h"
#include "plugins/codegen/text/c_printer.h"
#include "plugins/codegen/backend.h"
#include "plugins/kit/error.h"

namespace keirin::gpu {
namespace {

// A compiler spends about 30 ms on a module before the first kernel and 5-15 on each; with more in one, threads would idle.
constexpr size_t kKernelsOfModule = 6;

// FNV-1a, twice over the same bytes from other beginnings: 128 bits that say what a kernel is.
using Hashes = std::array<uint64_t, 2>;
constexpr Hashes kBegin = {0xcbf29ce484222325ull, 0x84222325cbf29ce4ull};

Hashes hashed(const std::string& bytes, Hashes hashes) {
  for (unsigned char c : bytes)
    for (uint64_t& hash : hashes) hash = (hash ^ c) * 0x100000001b3ull;
  return hashes;
}

unsigned long long mixed(uint64_t hash) { return (hash ^ hash >> 32) * 0xd6e8feb86659fd93ull; }

template <class T>
void put(std::vector<uint8_t>& out, T value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

struct Reader {
  std::span<const uint8_t> in;
  const uint8_t* bytes(uint64_t n) {
    if (n > in.size()) throw kit::Error(KRN_STATUS_corrupt, "saved code ends early; the artifact must be compiled again");
    const uint8_t* p = in.data();
    in = in.subspan(n);
    return p;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof value), sizeof value);
    return value;
  }
};

// A loss to be found, where one is planted: each kernel of the text stays a share of its own time longer.
std::string slowed(std::string text) {
  char spin[300];
  std::snprintf(spin, sizeof spin,
                "\n  struct Spin {\n    const i64 begin;\n    KRN_FN Spin() : begin(clock64()) {}\n    KRN_FN ~Spin() {"
                " for (const i64 end = clock64(); (clock64() - end) * 100 < (end - begin) * %d;) {} }\n  } spin;",
                static_cast<int>(100 * KRN_PLANTED_SHARE()));
  for (size_t at = 0; (at = text.find("\nKRN_KERNEL", at)) != std::string::npos;) {
    at = text.find('{', at);
    if (at == std::string::npos) break;
    text.insert(++at, spin);
  }
  return text;
}

std::vector<char> compile_module(const std::string& text, const CodeTarget& target) {
  if (KRN_PLANTED(slow_region)) return target.driver->compile(slowed(text), target);
  return target.driver->compile(text, target);
}

}  // namespace

CodeNames::CodeNames(const codegen::Kernel& kernel, const CodeTarget& target)
    : begun_(hashed(target.identity(), hashed(codegen::structure_key(kernel), kBegin))) {}

std::string CodeNames::of(const codegen::Schedule& schedule) const {
  const Hashes hashes = hashed(codegen::schedule_key(schedule), begun_);
  char text[40];
  std::snprintf(text, sizeof text, "k_%016llx%016llx", mixed(hashes[0]), mixed(hashes[1]));
  return text;
}

void CodeStore::add(std::shared_ptr<Made> module) {
  std::lock_guard lock(mutex_);
  bytes_ += module->code.size();
  for (const std::string& name : module->names) modules_.emplace(name, module);
}

uint32_t CodeStore::compile(std::span<const Wanted> wanted, const CodeTarget& target,
                            const std::function<void(const std::string&, const std::string&)>& dump) {
  std::vector<const Wanted*> missing;
  {
    std::lock_guard lock(mutex_);
    std::set<std::string> seen;
    for (const Wanted& w : wanted)
      if (!modules_.count(w.name) && seen.insert(w.name).second) missing.push_back(&w);
  }
  if (missing.empty()) return 0;
  if (target.only_known) throw codegen::not_compiled(missing[0]->kernel->name);
  // Even groups: no module much longer than the others.
  const size_t groups = (missing.size() + kKernelsOfModule - 1) / kKernelsOfModule;
  const size_t cores = std::max<size_t>(1, std::thread::hardware_concurrency());
  const size_t num_modules = std::min(missing.size(), std::max(groups, std::min(cores, (missing.size() + 1) / 2)));
  const codegen::Dialect& dialect = target.driver->words().dialect;
  std::vector<std::string> texts(num_modules, codegen::print_prelude(dialect));
  std::vector<std::shared_ptr<Made>> made(num_modules);
  for (auto& module : made) module = std::make_shared<Made>();
  for (size_t i = 0; i < missing.size(); ++i) {
    texts[i % num_modules] += codegen::print_kernel(*missing[i]->kernel, missing[i]->schedule, dialect, missing[i]->name);
    made[i % num_modules]->names.push_back(missing[i]->name);
  }
  if (dump)
    for (size_t m = 0; m < num_modules; ++m) dump(made[m]->names[0], texts[m]);
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> failures(num_modules);
  auto work = [&] {
    for (size_t m; (m = next.fetch_add(1)) < num_modules;) {
      try {
        made[m]->code = compile_module(texts[m], target);
      } catch (...) {
        failures[m] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t t = 1; t < std::min(cores, num_modules); ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  for (auto& module : made) add(std::move(module));
  return static_cast<uint32_t>(missing.size());
}

bool CodeStore::knows(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return modules_.count(name) > 0;
}

uint32_t CodeStore::compile_text(const std::string& name, const std::string& text, const CodeTarget& target) {
  {
    std::lock_guard lock(mutex_);
    if (modules_.count(name)) return 0;
  }
  if (target.only_known) throw codegen::not_compiled(name);
  auto module = std::make_shared<Made>();
  module->names = {name};
  module->code = compile_module(text, target);
  add(std::move(module));
  return 1;
}

Module CodeStore::loaded(const Driver& driver, const std::string& name) {
  std::string why_not;
  if (!driver.usable(why_not)) throw kit::Error(KRN_STATUS_unsupported, "no driver to load kernels with: " + why_not);
  auto found = modules_.find(name);
  if (found == modules_.end()) throw kit::Error(KRN_STATUS_internal, "kernel " + name + " was not compiled");
  Made& module = *found->second;
  if (!module.handle) check(driver, driver.load(module.code, module.handle), "loading code");
  return module.handle;
}

Function CodeStore::load_function(const Driver& driver, const std::string& name, const std::string& symbol) {
  std::lock_guard lock(mutex_);
  Module module = loaded(driver, name);
  Function out = nullptr;
  check(driver, driver.find(module, symbol, out), "a function of loaded code");
  return out;
}

Functions CodeStore::load(const Driver& driver, const Wanted& wanted) {
  Functions out;
  out.whole = load_function(driver, wanted.name, wanted.name);
  if (wanted.schedule.split) out.finish = load_function(driver, wanted.name, wanted.name + "_finish");
  return out;
}

void CodeStore::save(std::span<const std::string> names, std::vector<uint8_t>& out) const {
  std::lock_guard lock(mutex_);
  std::set<const Made*> written;
  for (const std::string& name : names) {
    auto found = modules_.find(name);
    if (found == modules_.end() || !written.insert(found->second.get()).second) continue;
    const Made& module = *found->second;
    put(out, static_cast<uint32_t>(module.names.size()));
    for (const std::string& each : module.names) {
      put(out, static_cast<uint32_t>(each.size()));
      out.insert(out.end(), each.begin(), each.end());
    }
    put(out, static_cast<uint64_t>(module.code.size()));
    out.insert(out.end(), module.code.begin(), module.code.end());
  }
}

void CodeStore::take(std::span<const uint8_t> bytes) {
  Reader in{bytes};
  while (!in.in.empty()) {
    auto module = std::make_shared<Made>();
    const auto count = in.number<uint32_t>();
    for (uint32_t i = 0; i < count; ++i) {
      const auto size = in.number<uint32_t>();
      const uint8_t* name = in.bytes(size);
      module->names.emplace_back(reinterpret_cast<const char*>(name), size);
    }
    const auto size = in.number<uint64_t>();
    const uint8_t* code = in.bytes(size);
    module->code.assign(code, code + size);
    add(std::move(module));
  }
}

void CodeStore::remember(const std::string& name, std::vector<char> bytes) {
  auto record = std::make_shared<Made>();
  record->names = {name};
  record->code = std::move(bytes);
  add(std::move(record));
}

std::vector<char> CodeStore::recall(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto found = modules_.find(name);
  return found == modules_.end() ? std::vector<char>() : found->second->code;
}

std::vector<std::string> CodeStore::names_from(const std::string& prefix) const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (auto at = modules_.lower_bound(prefix); at != modules_.end() && at->first.starts_with(prefix); ++at) out.push_back(at->first);
  return out;
}

uint64_t CodeStore::code_bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

// Never destroyed: at process exit nothing is called, and modules die with the context.
CodeStore& code_store() {
  static auto* store = new CodeStore;
  return *store;
}

}  // namespace keirin::gpu
