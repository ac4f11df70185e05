// SPDX-License-Identifier: Apache-2.0
//
// One file per process, locked as long as the process lives. Fixed slots, so that a writer that dies half way leaves at worst one
// slot that is not marked as taken.
#include "core/host/guard/journal.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "core/base/files.h"
#include "core/host/worker/worker_words.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSlots = 63;
constexpr char kMagic[8] = {'K', 'R', 'N', 'J', 'R', 'N', 'L', '1'};
enum SlotState : uint32_t { kFree = 0, kFilling = 1, kInCall = 2 };

struct Slot {
  std::atomic<uint32_t> state;
  char function[28];
  char plugin[48];
  char guid[48];
  char build[96];
  uint8_t region[32];
};
struct Page {
  char magic[8];
  char boot[56];
  char reserved[192];
  Slot slots[kSlots];
};
static_assert(sizeof(Slot) == 256 && sizeof(Page) == 64 * 256 && std::atomic<uint32_t>::is_always_lock_free);

template <size_t N>
void put(char (&to)[N], const std::string& text) {
  const size_t n = std::min(N - 1, text.size());
  memcpy(to, text.data(), n);
  memset(to + n, 0, N - n);
}
template <size_t N>
std::string get(const char (&from)[N]) {
  return std::string(from, strnlen(from, N));
}

// Making a journal and collecting dead ones exclude each other: a new file is not locked yet for a moment.
Result<std::optional<FileLock>> take_turn(const std::string& dir) {
  KRN_TRY(make_private_dir(dir));
  return FileLock::take(dir + "/lock", std::chrono::seconds(2));
}

std::vector<BadRecord> entries_of(const std::string& path) {
  std::vector<BadRecord> found;
  const Result<std::string> bytes = read_private_file(path, sizeof(Page));
  if (!bytes.ok() || bytes->size() != sizeof(Page)) return found;
  auto page = std::make_unique<Page>();
  memcpy(static_cast<void*>(page.get()), bytes->data(), sizeof(Page));
  if (memcmp(page->magic, kMagic, sizeof(kMagic)) != 0 || get(page->boot) != boot_id()) return found;
  for (const Slot& slot : page->slots) {
    if (slot.state.load() != kInCall) continue;
    Hash region{};
    memcpy(region.data(), slot.region, region.size());
    const std::string function = get(slot.function);
    found.push_back({get(slot.plugin), get(slot.guid), get(slot.build), region == Hash{} ? std::string() : hex(region), function,
                     "took its process down in " + function, {}});
  }
  return found;
}

}  // namespace

std::shared_ptr<Journal> Journal::open(const std::string& cache_dir) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const open_ones = new std::map<std::string, std::weak_ptr<Journal>>;
  if (cache_dir.empty()) return nullptr;
  const std::lock_guard guard(*mutex);
  if (std::shared_ptr<Journal> known = (*open_ones)[cache_dir].lock()) return known;
  const std::string dir = cache_dir + "/journal";
  const auto turn = take_turn(dir);
  if (!turn.ok() || !*turn) return nullptr;
  const std::string path = dir + "/" + std::to_string(::getpid()) + "-" +
                           std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
  Descriptor file = above_standard(Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)));
  if (file.get() < 0) return nullptr;
  // Reserved on disk now: a store into a mapping that the disk has no room for would be a SIGBUS.
  void* memory = MAP_FAILED;
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0 && ::posix_fallocate(file.get(), 0, sizeof(Page)) == 0)
    memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    ::unlink(path.c_str());
    return nullptr;
  }
  auto* const page = static_cast<Page*>(memory);
  put(page->boot, boot_id());
  memcpy(page->magic, kMagic, sizeof(kMagic));
  std::shared_ptr<Journal> journal(new Journal(path, std::move(file), memory));
  (*open_ones)[cache_dir] = journal;
  return journal;
}

Journal::~Journal() {
  ::munmap(memory_, sizeof(Page));
  if (fork_count() == forks_) ::unlink(path_.c_str());
}

std::vector<BadRecord> Journal::collect(const std::string& cache_dir) {
  std::vector<BadRecord> all;
  if (cache_dir.empty()) return all;
  const std::string dir = cache_dir + "/journal";
  const auto turn = take_turn(dir);
  if (!turn.ok() || !*turn) return all;
  std::error_code ec;
  for (fs::directory_iterator at(dir, ec), end; !ec && at != end; at.increment(ec)) {
    if (at->path().filename() == "lock") continue;
    const Descriptor file(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file.get() < 0 || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;  // its process lives
    for (BadRecord& record : entries_of(at->path())) all.push_back(std::move(record));
    ::unlink(at->path().c_str());
  }
  return all;
}

Journal::Entry::Entry(std::shared_ptr<Journal> journal, const std::string& plugin, const std::string& guid,
                      const std::string& build, const char* function, const Hash& region)
    : journal_(std::move(journal)) {
  if (journal_ && fork_count() != journal_->forks_) journal_.reset();  // the other process's
  if (!journal_) return;
  for (Slot& slot : static_cast<Page*>(journal_->memory_)->slots) {
    uint32_t expected = kFree;
    if (!slot.state.compare_exchange_strong(expected, kFilling, std::memory_order_acquire)) continue;
    put(slot.function, function);
    put(slot.plugin, plugin);
    put(slot.guid, guid);
    put(slot.build, build);
    memcpy(slot.region, region.data(), sizeof(slot.region));
    slot.state.store(kInCall, std::memory_order_release);
    slot_ = &slot;
    return;
  }
  journal_.reset();  // more calls in flight than slots: this one goes without
}

Journal::Entry::~Entry() {
  if (slot_) static_cast<Slot*>(slot_)->state.store(kFree, std::memory_order_release);
}

}  // namespace keirin
