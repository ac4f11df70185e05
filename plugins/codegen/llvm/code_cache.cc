// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/llvm/code_cache.h"

#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

#include "llvm/ADT/StringExtras.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Support/SHA256.h"
#include "plugins/codegen/llvm/compile_kernel.h"
#include "plugins/codegen/llvm/spills.h"
#include "plugins/codegen/llvm/vector_math.h"

namespace keirin::codegen::native {
namespace {

template <class T>
T checked(llvm::Expected<T> result, const char* what) {
  if (result) return std::move(*result);
  throw std::runtime_error(std::string(what) + ": " + llvm::toString(result.takeError()));
}

void checked(llvm::Error error, const char* what) {
  if (error) throw std::runtime_error(std::string(what) + ": " + llvm::toString(std::move(error)));
}

std::unique_ptr<llvm::orc::LLJIT> make_jit() {
  register_targets();
  llvm::orc::LLJITBuilder builder;
  // Nothing of the process is visible to generated code but the functions named here.
  builder.setLinkProcessSymbolsByDefault(false);
  builder.setPlatformSetUp(llvm::orc::setUpInactivePlatform);
  auto jit = checked(builder.create(), "starting the code linker");
  llvm::orc::SymbolMap symbols;
  auto add = [&](const char* name, void* address) {
    symbols[jit->mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(address), llvm::JITSymbolFlags::Exported};
  };
  for (auto [name, address] : lane_functions()) add(name, address);
  add("memcpy", reinterpret_cast<void*>(&std::memcpy));
  add("memset", reinterpret_cast<void*>(&std::memset));
  checked(jit->getMainJITDylib().define(llvm::orc::absoluteSymbols(symbols)), "naming the library functions");
  return jit;
}

template <class T>
void put(std::vector<uint8_t>& out, T value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

template <class T>
bool take(std::span<const uint8_t>& in, T& value) {
  if (in.size() < sizeof value) return false;
  std::memcpy(&value, in.data(), sizeof value);
  in = in.subspan(sizeof value);
  return true;
}

}  // namespace

struct CodeCache::State {
  struct Code {
    std::vector<uint8_t> object;
    KernelFunction function = nullptr;  // null until linked
  };

  KernelFunction link(const std::string& name, Code& code) {
    if (code.function) return code.function;
    if (!jit) jit = make_jit();
    llvm::StringRef bytes(reinterpret_cast<const char*>(code.object.data()), code.object.size());
    checked(jit->addObjectFile(llvm::MemoryBuffer::getMemBuffer(bytes, name, false)), "linking a kernel");
    code.function = checked(jit->lookup(name), "finding a kernel").toPtr<KernelFunction>();
    return code.function;
  }

  Compiler& compiler(const CpuTarget& target) {
    std::unique_ptr<Compiler>& found = compilers[target.identity()];
    if (!found) found = std::make_unique<Compiler>(target);
    return *found;
  }

  mutable std::mutex mutex;
  std::unique_ptr<llvm::orc::LLJIT> jit;
  std::map<std::string, std::unique_ptr<Compiler>> compilers;
  std::map<std::string, Code> codes;
  uint64_t bytes = 0;
  uint64_t generated = 0;
};

CodeCache::CodeCache() : state_(std::make_unique<State>()) {}
CodeCache::~CodeCache() = default;

KernelFunction CodeCache::known(const Kernel& kernel, const CpuTarget& target) {
  std::lock_guard lock(state_->mutex);
  const std::string name = code_name(kernel, target);
  const auto code = state_->codes.find(name);
  return code == state_->codes.end() || code->second.object.empty() ? nullptr : state_->link(name, code->second);
}

KernelFunction CodeCache::get(const Kernel& kernel, const CpuTarget& target, uint32_t& generated,
                              const std::function<void(const std::string& name, const std::string& ir)>& dump) {
  std::lock_guard lock(state_->mutex);
  const std::string name = code_name(kernel, target);
  State::Code& code = state_->codes[name];
  if (code.object.empty()) {
    std::string ir;
    try {
      code.object = state_->compiler(target).compile(kernel, name, dump ? &ir : nullptr);
    } catch (...) {
      state_->codes.erase(name);
      throw;
    }
    if (dump) dump(kernel.name, ir);
    state_->bytes += code.object.size();
    ++state_->generated;
    ++generated;
  }
  return state_->link(name, code);
}

void CodeCache::save(std::span<const Kernel* const> kernels, const CpuTarget& target, std::vector<uint8_t>& out) const {
  std::lock_guard lock(state_->mutex);
  std::map<std::string, bool> written;
  for (const Kernel* kernel : kernels) {
    const std::string name = code_name(*kernel, target);
    auto code = state_->codes.find(name);
    if (code == state_->codes.end() || !written.emplace(name, true).second) continue;
    put(out, static_cast<uint32_t>(name.size()));
    out.insert(out.end(), name.begin(), name.end());
    put(out, static_cast<uint64_t>(code->second.object.size()));
    out.insert(out.end(), code->second.object.begin(), code->second.object.end());
  }
}

bool CodeCache::load(std::span<const uint8_t> bytes) {
  std::lock_guard lock(state_->mutex);
  while (!bytes.empty()) {
    uint32_t name_bytes = 0;
    uint64_t object_bytes = 0;
    if (!take(bytes, name_bytes) || name_bytes > bytes.size()) return false;
    std::string name(reinterpret_cast<const char*>(bytes.data()), name_bytes);
    bytes = bytes.subspan(name_bytes);
    if (!take(bytes, object_bytes) || object_bytes > bytes.size()) return false;
    State::Code& code = state_->codes[name];
    if (code.object.empty()) {
      code.object.assign(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(object_bytes));
      state_->bytes += object_bytes;
    }
    bytes = bytes.subspan(object_bytes);
  }
  return true;
}

uint64_t CodeCache::code_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->bytes;
}

uint64_t CodeCache::num_generated() const {
  std::lock_guard lock(state_->mutex);
  return state_->generated;
}

int64_t scratch_bytes(const Kernel& kernel, int64_t block) {
  const auto slots = static_cast<int64_t>(SpillPlan(kernel).slots.size());
  int64_t elements = block;
  for (const Axis& axis : kernel.axes) elements *= axis.kind == AxisKind::kSerial ? axis.size : 1;
  return slots == 0 ? 0 : slots * slot_bytes(elements);
}

std::string code_name(const Kernel& kernel, const CpuTarget& target) {
  llvm::SHA256 hash;
  hash.update(structure_key(kernel));
  hash.update(target.identity());
  return "k_" + llvm::toHex(hash.final(), /*LowerCase=*/true).substr(0, 40);
}

}  // namespace keirin::codegen::native
