// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/launch_list.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

namespace fs = std::filesystem;

// Of an element, relative to the larger of its size and 1: several kernels one after the other.
const char* tolerance(uint8_t dtype) {
  switch (dtype) {
    case kit::kDType_bf16: return "0.0625";
    case kit::kDType_f16: return "0.008";
    case kit::kDType_f32: return "4e-5";
    case kit::kDType_f64: return "1e-9";
    default: return "0";
  }
}

const char* type_name(uint8_t dtype) {
  switch (dtype) {
#define KRN_DTYPE(id, name, ...) \
  case id: return id == kit::kDType_bool ? "u8" : #name;
#include "abi/dtypes.def"
#undef KRN_DTYPE
    default: return "u8";
  }
}

std::string hex(const void* data, size_t bytes) {
  static const char kDigits[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < bytes; ++i) {
    const auto byte = static_cast<const uint8_t*>(data)[i];
    out += kDigits[byte >> 4], out += kDigits[byte & 15];
  }
  return out;
}

std::string list(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
  return "[" + out + "]";
}

// Handed out in place of the driver's own.
struct Loaded {
  Module own = nullptr;
  std::vector<char> code;
  std::string file;  // once a launch of it was written
};
struct Found {
  Function own = nullptr;
  Loaded* module = nullptr;
  std::string symbol;
};

class Writer final : public LaunchList, public Driver {
 public:
  Writer(const Driver& over, const std::string& folder, const std::string& arch) : over_(over), folder_(folder), arch_(arch) {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (::access(folder.c_str(), W_OK) != 0) throw kit::Error(KRN_STATUS_invalid_input, "launches cannot be written to " + folder);
  }

  bool is_of(const Driver& over, const std::string& arch) const { return &over == &over_ && arch == arch_; }

  // The list.
  const Driver& driver() const override { return *this; }
  bool wants(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    return written_.insert(name).second;
  }
  void begin(const std::string& name, std::vector<Memory> memory, Stream stream) override {
    turn_.lock();
    const std::lock_guard lock(mutex_);
    name_ = name, stream_ = stream, failure_.clear(), writing_ = std::this_thread::get_id(), num_kept_ = launches_.size();
    pieces_.clear();
    for (const Memory& m : joined(std::move(memory))) pieces_[static_cast<char*>(m.base)] = {m.bytes, "", {}};
    for (const auto& [base, bytes] : allocated_) pieces_[base] = {bytes, "", {}};
  }
  std::string end(std::span<const Expected> expected) override {
    const std::lock_guard<std::mutex> turn(turn_, std::adopt_lock);
    const std::lock_guard lock(mutex_);
    writing_ = std::thread::id();
    if (failure_.empty()) {
      for (const Expected& e : expected) expect(e);
      write_manifest();
    } else {
      launches_.resize(num_kept_);
    }
    return failure_;
  }

  // The driver. What is its own to say first, then what passes.
  Result load(const std::vector<char>& code, Module& module) const override {
    auto loaded = std::make_unique<Loaded>();
    const Result result = over_.load(code, loaded->own);
    if (result != 0) return result;
    loaded->code = code;
    const std::lock_guard lock(mutex_);
    module = reinterpret_cast<Module>(loaded.get());
    loaded_.push_back(std::move(loaded));
    return 0;
  }
  Result find(Module module, const std::string& symbol, Function& function) const override {
    auto found = std::make_unique<Found>();
    found->module = reinterpret_cast<Loaded*>(module), found->symbol = symbol;
    const Result result = over_.find(found->module->own, symbol, found->own);
    if (result != 0) return result;
    const std::lock_guard lock(mutex_);
    function = reinterpret_cast<Function>(found.get());
    found_.push_back(std::move(found));
    return 0;
  }
  Result allow_shared(Function function, int64_t bytes) const override {
    return over_.allow_shared(reinterpret_cast<Found*>(function)->own, bytes);
  }
  Result launch(const Launch& l, Stream stream, void** arguments) const override {
    auto* found = reinterpret_cast<Found*>(l.function);
    Launch own = l;
    own.function = found->own;
    if (writing_ != std::this_thread::get_id()) return over_.launch(own, stream, arguments);
    const std::lock_guard lock(mutex_);
    std::set<Piece*> named;
    launches_.push_back(text_of(l, *found, arguments, named));
    const Result result = over_.launch(own, stream, arguments);
    for (Piece* piece : named) read(*piece, piece->last);
    return result;
  }
  Result allocate(size_t bytes, void*& memory) const override {
    const Result result = over_.allocate(bytes, memory);
    return keep(result, bytes, memory);
  }
  Result free(void* memory) const override { return forget(memory), over_.free(memory); }
  Result allocate_on(Stream s, size_t bytes, void*& memory) const override {
    const Result result = over_.allocate_on(s, bytes, memory);
    return keep(result, bytes, memory);
  }
  Result free_on(Stream s, void* memory) const override { return forget(memory), over_.free_on(s, memory); }

  const Words& words() const override { return over_.words(); }
  std::vector<char> compile(const std::string& text, const CodeTarget& target) const override { return over_.compile(text, target); }
  std::string identity(const CodeTarget& target) const override { return over_.identity(target); }
  int64_t spilled(const std::vector<char>& code) const override { return over_.spilled(code); }
  bool usable(std::string& why_not) const override { return over_.usable(why_not); }
  int32_t status_of(Result result) const override { return over_.status_of(result); }
  std::string words_of(Result result) const override { return over_.words_of(result); }
  Result retain(int device, ContextHandle& context) const override { return over_.retain(device, context); }
  void release(int device) const override { over_.release(device); }
  Result current(ContextHandle& context) const override { return over_.current(context); }
  Result make_current(ContextHandle context) const override { return over_.make_current(context); }
  Result fill(Stream s, void* memory, unsigned char value, size_t bytes) const override { return over_.fill(s, memory, value, bytes); }
  Result fill_words(Stream s, void* memory, uint32_t value, size_t words) const override {
    return over_.fill_words(s, memory, value, words);
  }
  Result copy(Stream s, void* to, const void* from, size_t bytes) const override { return over_.copy(s, to, from, bytes); }
  Result copy_out(Stream s, void* to, const void* from, size_t bytes) const override { return over_.copy_out(s, to, from, bytes); }
  Result make_stream(Stream& stream) const override { return over_.make_stream(stream); }
  void end_stream(Stream stream) const override { over_.end_stream(stream); }
  Result wait(Stream stream) const override { return over_.wait(stream); }
  Result is_recording(Stream stream, bool& recording) const override { return over_.is_recording(stream, recording); }
  int permit_allocation() const override { return over_.permit_allocation(); }
  void restore_permission(int former) const override { over_.restore_permission(former); }
  Result make_event(Event& event, bool timed) const override { return over_.make_event(event, timed); }
  void end_event(Event event) const override { over_.end_event(event); }
  Result record(Event event, Stream stream) const override { return over_.record(event, stream); }
  Result wait(Event event) const override { return over_.wait(event); }
  Result milliseconds(Event start, Event stop, float& ms) const override { return over_.milliseconds(start, stop, ms); }
  bool is_lost(Event probe) const override { return over_.is_lost(probe); }

 private:
  static constexpr const char* kManifest = "launches.json";
  struct Piece {
    size_t bytes;
    std::string file;        // what was there when a launch first named it, or named it after somebody else wrote there
    std::vector<char> last;  // what the last launch that named it left
    char* base = nullptr;
  };

  Result keep(Result result, size_t bytes, void* memory) const {
    if (result != 0 || bytes == 0) return result;
    const std::lock_guard lock(mutex_);
    if (writing_ == std::this_thread::get_id()) pieces_[static_cast<char*>(memory)] = {bytes, "", {}};
    allocated_[static_cast<char*>(memory)] = bytes;
    return result;
  }
  void forget(void* memory) const {
    const std::lock_guard lock(mutex_);
    allocated_.erase(static_cast<char*>(memory));
  }

  Piece* piece_of(const void* p) const {
    auto at = pieces_.upper_bound(static_cast<char*>(const_cast<void*>(p)));
    if (at == pieces_.begin()) return nullptr;
    --at;
    at->second.base = at->first;
    return static_cast<const char*>(p) < at->first + at->second.bytes ? &at->second : nullptr;
  }
  // Whether all of it came.
  bool read(const Piece& piece, std::vector<char>& to) const {
    to.resize(piece.bytes);
    return over_.copy_out(stream_, to.data(), piece.base, piece.bytes) == 0 && over_.wait(stream_) == 0;
  }
  std::string file(const char* letter, const std::vector<char>& bytes, const char* ending) const {
    const std::string name = letter + std::to_string(num_files_++) + ending;
    if (!std::ofstream(folder_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size())))
      failure_ = "cannot write " + (folder_ / name).string();
    return name;
  }

  std::string address(const void* p, std::set<Piece*>& named) const {
    if (!p) return R"({"null": 0})";
    Piece* piece = piece_of(p);
    if (!piece) return failure_ = "a launch of " + symbol_ + " names memory that is nobody's", R"({"null": 0})";
    if (named.insert(piece).second) {
      std::vector<char> now;
      if (!read(*piece, now)) failure_ = "memory that a launch names cannot be read";
      if (piece->file.empty() || now != piece->last) piece->file = file("b", now, ".bin");
    }
    return R"({"buffer": ")" + piece->file + R"(", "offset": )" + std::to_string(static_cast<const char*>(p) - piece->base) + "}";
  }
  std::string argument(const Parameter& parameter, const void* at, std::set<Piece*>& named) const {
    if (!parameter.addresses) return R"({"raw": ")" + hex(at, parameter.bytes) + R"("})";
    std::vector<std::string> all;
    for (size_t i = 0; i < parameter.bytes / sizeof(void*); ++i) all.push_back(address(static_cast<void* const*>(at)[i], named));
    return all.size() == 1 ? all[0] : R"({"struct": )" + list(all) + "}";
  }

  struct Written {
    std::string head;  // all but what is expected
    std::vector<std::string> expected;
  };
  Written text_of(const Launch& l, const Found& found, void** arguments, std::set<Piece*>& named) const {
    if (found.module->file.empty()) found.module->file = file("m", found.module->code, ".co");
    std::vector<std::string> args;
    symbol_ = found.symbol;
    for (size_t i = 0; i < l.parameters.size(); ++i) args.push_back(argument(l.parameters[i], arguments[i], named));
    const int64_t spilled = over_.spilled(found.module->code);
    return {R"({"code": ")" + found.module->file + R"(", "arch": ")" + arch_ + R"(", "kernel": ")" + found.symbol + R"(", "label": ")" +
                name_ + " " + found.symbol + R"(", "grid": [)" + std::to_string(l.blocks) + R"(, 1, 1], "block": [)" +
                std::to_string(l.threads) + R"(, 1, 1], "lds_bytes": )" + std::to_string(l.shared_bytes) +
                (spilled >= 0 ? R"(, "spilled": )" + std::to_string(spilled) : "") + ",\n    \"args\": " + list(args),
            {}};
  }

  void expect(const Expected& e) {
    Piece* piece = piece_of(e.at);
    if (!piece || piece->file.empty() || launches_.size() == num_kept_) return;  // no launch has written there
    std::vector<char> now;
    if (!read(*piece, now) || now != piece->last) return;                        // a library has, after the last launch
    launches_.back().expected.push_back(R"({"buffer": ")" + piece->file + R"(", "offset": )" +
                                        std::to_string(static_cast<const char*>(e.at) - piece->base) + R"(, "file": ")" +
                                        file("e", e.value, ".bin") + R"(", "dtype": ")" + type_name(e.dtype) + R"(", "tol": )" +
                                        tolerance(e.dtype) + "}");
  }
  void write_manifest() const {
    std::ofstream out(folder_ / kManifest);
    out << "{\"launches\": [";
    for (size_t i = 0; i < launches_.size(); ++i)
      out << (i ? ",\n  " : "\n  ") << launches_[i].head << ",\n    \"expect\": " << list(launches_[i].expected) << "}";
    out << "\n]}\n";
  }

  const Driver& over_;
  const fs::path folder_;
  const std::string arch_;
  std::mutex turn_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Loaded>> loaded_;
  mutable std::vector<std::unique_ptr<Found>> found_;
  mutable std::map<char*, size_t> allocated_;
  mutable std::map<char*, Piece> pieces_;  // of the run that is written
  mutable std::vector<Written> launches_;
  mutable std::string failure_, symbol_;  // the latter of the launch that is written
  mutable int num_files_ = 0;
  std::set<std::string> written_;
  std::string name_;
  Stream stream_ = nullptr;
  std::atomic<std::thread::id> writing_{};
  size_t num_kept_ = 0;
};

}  // namespace

std::vector<LaunchList::Memory> joined(std::vector<LaunchList::Memory> memory) {
  const auto end_of = [](const LaunchList::Memory& m) { return static_cast<char*>(m.base) + m.bytes; };
  std::erase_if(memory, [](const LaunchList::Memory& m) { return m.bytes == 0; });
  std::sort(memory.begin(), memory.end(), [](const auto& a, const auto& b) { return std::less<void*>()(a.base, b.base); });
  std::vector<LaunchList::Memory> out;
  for (const LaunchList::Memory& m : memory) {
    if (out.empty() || m.base >= end_of(out.back())) out.push_back(m);
    else out.back().bytes = static_cast<size_t>(std::max(end_of(m), end_of(out.back())) - static_cast<char*>(out.back().base));
  }
  return out;
}

LaunchList& launch_list(const Driver& over, const std::string& folder, const std::string& arch) {
  static std::mutex mutex;
  static auto* lists = new std::map<std::string, std::unique_ptr<Writer>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Writer>& list = (*lists)[folder];
  if (!list) list = std::make_unique<Writer>(over, folder, arch);
  else if (!list->is_of(over, arch))
    throw kit::Error(KRN_STATUS_unsupported, folder + " holds launches of another device; write those of one at a time");
  return *list;
}

}  // namespace keirin::gpu
