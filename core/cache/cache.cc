// SPDX-License-Identifier: Apache-2.0
#include "core/cache/cache.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <utility>

#include "abi/planted.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'K', 'R', 'N', 'C', 'A', 'C', 'H', '1'};
constexpr uint64_t kMaxEntryBytes = 1ull << 30;
constexpr uint64_t kMaxKeyBytes = 1 << 20;
constexpr int64_t kStaleTempSeconds = 3600;  // a writer that is this old is dead
constexpr int64_t kTouchSeconds = 60;        // a use is noted at most this often: reads stay reads
constexpr EntryKind kKinds[] = {EntryKind::kArtifact, EntryKind::kClaims, EntryKind::kLedger,
                                EntryKind::kKnown,    EntryKind::kRanges, EntryKind::kBad};

// Fixed part of an entry; the key text and the body follow.
struct Header {
  char magic[8];
  uint32_t kind;
  uint32_t reserved;
  uint64_t key_bytes;
  uint64_t body_bytes;
  uint8_t digest[32];  // of key text and body
  uint8_t mac[32];     // of what stands above, by this user's own key
};
static_assert(sizeof(Header) == 96);

Hash digest_of(std::string_view key_text, std::string_view body) {
  Sha256 sha;
  sha.update(key_text.data(), key_text.size());
  sha.update(body.data(), body.size());
  return sha.finish();
}

// HMAC over SHA-256 (RFC 2104) of the header without its own field.
Hash mac_of(const std::string& key, const Header& header) {
  uint8_t inner[64] = {}, outer[64] = {};
  memcpy(inner, key.data(), std::min<size_t>(key.size(), 64));
  memcpy(outer, inner, 64);
  for (uint8_t& b : inner) b ^= 0x36;
  for (uint8_t& b : outer) b ^= 0x5c;
  Sha256 first, second;
  first.update(inner, 64);
  first.update(&header, offsetof(Header, mac));
  const Hash half = first.finish();
  second.update(outer, 64);
  second.update(half.data(), half.size());
  return second.finish();
}

// Nothing if there is none, or what is there is no key of ours. One that cannot be read now is an error and not nothing: it must
// not be replaced, because with another key every entry would be a stranger's.
std::optional<Result<std::string>> known_key(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 && errno == ENOENT) return {};
  Result<std::string> key = read_private_file(path, 64);
  if (key.ok() ? key->size() != 32 : key.status().code() == Code::k_corrupt) return {};
  return key;
}

// The user's own key, made once per cache.
Result<std::string> user_key(const std::string& dir) {
  const std::string path = dir + "/mac.key";
  if (const auto key = known_key(path)) return *key;
  // Processes that make it at once take turns, and the later ones find the first one's.
  KRN_TRY_LET(const std::optional<FileLock> turn, FileLock::take(dir + "/lock/mac.key", std::chrono::seconds(10)));
  if (!turn) return Status(Code::k_unsupported, Message{"another process holds the lock of the cache's key", path, {}, {}});
  if (const auto key = known_key(path)) return *key;
  std::string fresh(32, '\0');
  if (::getrandom(fresh.data(), fresh.size(), 0) != 32)
    return Status(Code::k_unsupported, "there are no random numbers for the cache's key");
  KRN_TRY(publish_file(path, fresh));
  return fresh;
}

bool is_hex_name(const std::string& name) {
  return name.size() == 64 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

int64_t now_s() { return static_cast<int64_t>(::time(nullptr)); }

// Calls fn(path, name) for each regular file of a kind; names are keys or leftovers.
template <class F>
void each_file(const std::string& dir, EntryKind kind, F&& fn) {
  std::error_code ec;
  const fs::path root = fs::path(dir) / entry_kind_name(kind);
  std::vector<fs::path> paths;
  for (fs::recursive_directory_iterator at(root, ec), end; !ec && at != end; at.increment(ec))
    if (at->is_regular_file(ec) && !at->is_symlink(ec)) paths.push_back(at->path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& p : paths) fn(p.string(), p.filename().string());
}

}  // namespace

std::string_view entry_kind_name(EntryKind kind) {
  switch (kind) {
    case EntryKind::kArtifact: return "artifact";
    case EntryKind::kClaims: return "claims";
    case EntryKind::kLedger: return "ledger";
    case EntryKind::kKnown: return "known";
    case EntryKind::kRanges: return "ranges";
    case EntryKind::kBad: return "bad";
  }
  return "bad";
}

std::string default_cache_dir() {
  const char* own = ::secure_getenv("KEIRIN_CACHE");
  if (own && own[0] == '/') return own;
  const char* xdg = ::secure_getenv("XDG_CACHE_HOME");
  if (xdg && xdg[0] == '/') return std::string(xdg) + "/keirin/1";
  const char* home = ::secure_getenv("HOME");
  if (home && home[0] == '/') return std::string(home) + "/.cache/keirin/1";
  return {};
}

CacheKey& CacheKey::add(std::string_view name, std::string_view value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\n') escaped += "\\n";
    else if (c == '\\') escaped += "\\\\";
    else escaped += c;
  }
  std::pair<std::string, std::string> field{std::string(name), std::move(escaped)};
  const auto at = std::lower_bound(fields_.begin(), fields_.end(), field,
                                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (at != fields_.end() && at->first == name) at->second = std::move(field.second);
  else fields_.insert(at, std::move(field));
  return *this;
}

CacheKey& CacheKey::add(std::string_view name, int64_t value) { return add(name, std::to_string(value)); }

std::string CacheKey::text() const {
  std::string text = "keirin-cache 1\n";
  for (const auto& [name, value] : fields_) text += name + "=" + value + "\n";
  return text;
}

std::string CacheKey::hex() const {
  const std::string t = text();
  return keirin::hex(sha256(t.data(), t.size()));
}

Cache::Cache(CacheOptions options) : options_(std::move(options)), dir_(options_.dir) {
  if (dir_.empty()) dir_ = default_cache_dir();
  const Status status = prepare();
  usable_ = status.ok();
  if (!usable_) warn_once(status);
}

Status Cache::prepare() {
  if (dir_.empty())
    return Status(Code::k_unsupported, Message{"there is no folder for the cache", "KEIRIN_CACHE, XDG_CACHE_HOME, HOME", {},
                                               "set KEIRIN_CACHE to an absolute path"});
  KRN_TRY(make_private_dir(dir_));
  for (const EntryKind kind : kKinds) KRN_TRY(make_private_dir(dir_ + "/" + std::string(entry_kind_name(kind))));
  KRN_TRY(make_private_dir(dir_ + "/lock"));
  KRN_TRY_LET(mac_key_, user_key(dir_));
  return {};
}

void Cache::warn_once(const Status& status) {
  if (warned_.exchange(true) || !options_.warn) return;
  Status told = status;
  try {
    options_.warn(std::move(told).instead("nothing is kept between processes").text());
  } catch (...) {  // a user's callback does not throw into the core
  }
}

std::string Cache::path_of(EntryKind kind, const std::string& hex) const {
  const std::string base = dir_ + "/" + std::string(entry_kind_name(kind)) + "/";
  return kind == EntryKind::kBad ? base + hex : base + hex.substr(0, 2) + "/" + hex;
}

Result<Cache::ForeignEntry> Cache::parse_entry(std::string_view bytes, const std::string& where, bool own) const {
  Header header;
  const auto bad = [&](const char* why) { return Status(Code::k_corrupt, Message{why, where, {}, {}}); };
  if (bytes.size() < sizeof(header)) return bad("it is shorter than its header");
  memcpy(&header, bytes.data(), sizeof(header));
  if (memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return bad("it does not start like an entry of this cache");
  const uint64_t rest = bytes.size() - sizeof(header);
  if (header.key_bytes > kMaxKeyBytes || header.key_bytes > rest || header.body_bytes != rest - header.key_bytes)
    return bad("its length is not the one it states");
  const std::string_view key = bytes.substr(sizeof(header), header.key_bytes);
  const std::string_view body = bytes.substr(sizeof(header) + header.key_bytes);
  const Hash mac = mac_of(mac_key_, header);
  const bool is_own = !mac_key_.empty() && memcmp(mac.data(), header.mac, sizeof(header.mac)) == 0;
  if (own && !is_own) return bad("this user's cache did not write it");
  const Hash digest = digest_of(key, body);
  if (memcmp(digest.data(), header.digest, sizeof(header.digest)) != 0 && !KRN_PLANTED(hash_unchecked))
    return bad("its bytes changed since it was written");
  const std::string hex = keirin::hex(sha256(key.data(), key.size()));
  return ForeignEntry{static_cast<EntryKind>(header.kind), hex, std::string(key), std::string(body), is_own};
}

Result<std::string> Cache::open_entry(EntryKind kind, const std::string& path, const std::string& hex, std::string* key_text) {
  KRN_TRY_LET(const std::string bytes, read_private_file(path, kMaxEntryBytes));
  KRN_TRY_LET(ForeignEntry entry, parse_entry(bytes, path, true));
  const auto bad = [&](const char* why) { return Status(Code::k_corrupt, Message{why, path, {}, {}}); };
  if (entry.kind != kind) return bad("it is an entry of another kind");
  if (entry.key != hex && !KRN_PLANTED(key_unchecked)) return bad("it lies under the name of another key");
  if (key_text) *key_text = std::move(entry.key_text);
  return std::move(entry.body);
}

Result<Cache::ForeignEntry> Cache::check_foreign(std::string_view file) const {
  KRN_TRY_LET(ForeignEntry entry, parse_entry(file, {}, false));
  if (std::find(std::begin(kKinds), std::end(kKinds), entry.kind) == std::end(kKinds))
    return Status(Code::k_corrupt, "it is an entry of a kind that this version does not know");
  return entry;
}

void Cache::adopt(ForeignEntry entry) {
  const std::lock_guard lock(mutex_);
  adopted_[{entry.kind, std::move(entry.key)}] = std::move(entry.body);
}

void Cache::hold(EntryKind kind, const CacheKey& key, std::string body) {
  const Name name{kind, key.hex()};
  const std::lock_guard lock(mutex_);
  std::erase(held_, name);
  if (held_.size() >= kMostHeld) {
    adopted_.erase(held_.front());
    held_.pop_front();
  }
  held_.push_back(name);
  adopted_[name] = std::move(body);
}

bool Cache::readable() const {
  const std::lock_guard lock(mutex_);
  return usable_ || !adopted_.empty();
}

std::optional<std::string> Cache::file_of(const EntryInfo& entry) {
  if (!usable_) return {};
  const std::string path = path_of(entry.kind, entry.key);
  Result<std::string> bytes = read_private_file(path, kMaxEntryBytes);
  if (!bytes.ok() || !parse_entry(*bytes, path, true).ok()) return {};
  return std::move(*bytes);
}

void Cache::begin_noting() {
  const std::lock_guard lock(mutex_);
  noting_ = true;
  noted_.clear();
}

std::vector<EntryInfo> Cache::end_noting() {
  const std::lock_guard lock(mutex_);
  noting_ = false;
  return std::exchange(noted_, {});
}

std::optional<std::string> Cache::find_adopted(EntryKind kind, const std::string& hex) {
  const std::lock_guard lock(mutex_);
  const auto found = adopted_.find({kind, hex});
  return found == adopted_.end() ? std::nullopt : std::optional(found->second);
}

void Cache::drop_adopted(EntryKind kind, const std::string& hex) {
  const std::lock_guard lock(mutex_);
  if (adopted_.erase({kind, hex})) std::erase(held_, Name{kind, hex});
}

void Cache::note(EntryKind kind, const std::string& hex) {
  const std::lock_guard lock(mutex_);
  if (noting_) noted_.push_back({kind, hex, 0, 0, {}});
}

std::optional<std::string> Cache::read(EntryKind kind, const CacheKey& key) {
  const std::string hex = key.hex(), path = path_of(kind, hex);
  if (std::optional<std::string> adopted = find_adopted(kind, hex)) {
    ++counts_[static_cast<size_t>(kind)].hits;
    return adopted;
  }
  if (!usable_) return {};
  struct stat info {};
  const bool there = ::lstat(path.c_str(), &info) == 0;
  Result<std::string> body = there ? open_entry(kind, path, hex, nullptr) : Status(Code::k_unsupported, "the entry is not there");
  Count& count = counts_[static_cast<size_t>(kind)];
  ++(body.ok() ? count.hits : count.misses);
  if (!there) return {};
  if (!body.ok()) {
    // Whoever finds a bad entry removes it; the finder builds it again. One that cannot be read just now is not bad.
    if (body.status().code() == Code::k_corrupt) ::remove(path.c_str());  // a file, or an empty folder in its place
    return {};
  }
  // Last use is the access time; set by us, because file systems are mounted without it.
  if (now_s() - info.st_atim.tv_sec > kTouchSeconds) {
    const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
    (void)::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
  }
  note(kind, hex);
  return std::move(*body);
}

std::map<std::string, Cache::Reads> Cache::reads() const {
  std::map<std::string, Reads> out;
  for (const EntryKind kind : kKinds) {
    const Count& count = counts_[static_cast<size_t>(kind)];
    out[std::string(entry_kind_name(kind))] = {count.hits, count.misses};
  }
  return out;
}

bool Cache::publish(EntryKind kind, const CacheKey& key, std::string_view body) {
  if (!usable_ || body.size() > kMaxEntryBytes / 2) return false;
  const std::string text = key.text(), hex = key.hex(), path = path_of(kind, hex);
  drop_adopted(kind, hex);
  Header header{};
  memcpy(header.magic, kMagic, sizeof(kMagic));
  header.kind = static_cast<uint32_t>(kind);
  header.key_bytes = text.size();
  header.body_bytes = body.size();
  const Hash digest = digest_of(text, body);
  memcpy(header.digest, digest.data(), digest.size());
  const Hash mac = mac_of(mac_key_, header);
  memcpy(header.mac, mac.data(), mac.size());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes += text;
  bytes += body;
  Status status = make_private_dir(fs::path(path).parent_path().string());
  // Only a quarantine must survive a power cut; everything else can be built again.
  if (status.ok()) status = publish_file(path, bytes, kind == EntryKind::kBad);
  if (!status.ok()) warn_once(status);
  return status.ok();
}

void Cache::remove(EntryKind kind, const CacheKey& key) {
  drop_adopted(kind, key.hex());
  if (usable_) ::unlink(path_of(kind, key.hex()).c_str());
}

void Cache::remove(const EntryInfo& entry) {
  if (usable_) ::unlink(path_of(entry.kind, entry.key).c_str());
}

std::optional<FileLock> Cache::lock(const std::string& name, std::chrono::milliseconds wait) {
  if (!usable_) return {};
  Result<std::optional<FileLock>> lock =
      FileLock::take(dir_ + "/lock/" + keirin::hex(sha256(name.data(), name.size())), wait);
  if (!lock.ok()) {
    warn_once(lock.status());
    return {};
  }
  return std::move(*lock);
}

std::vector<EntryInfo> Cache::list() {
  std::vector<EntryInfo> entries;
  if (!usable_) return entries;
  for (const EntryKind kind : kKinds)
    each_file(dir_, kind, [&](const std::string& path, const std::string& name) {
      struct stat info {};
      if (!is_hex_name(name) || ::lstat(path.c_str(), &info) != 0) return;
      entries.push_back({kind, name, static_cast<uint64_t>(info.st_size),
                         static_cast<int64_t>(std::max(info.st_atim.tv_sec, info.st_mtim.tv_sec)), {}});
    });
  return entries;
}

std::optional<std::string> Cache::body(const EntryInfo& entry) {
  if (!usable_) return {};
  auto bytes = open_entry(entry.kind, path_of(entry.kind, entry.key), entry.key, nullptr);
  return bytes.ok() ? std::optional(std::move(*bytes)) : std::nullopt;
}

std::vector<std::string> Cache::bodies(EntryKind kind) {
  std::vector<std::string> all;
  if (!usable_) return all;
  each_file(dir_, kind, [&](const std::string& path, const std::string& name) {
    if (!is_hex_name(name)) return;
    if (auto body = open_entry(kind, path, name, nullptr); body.ok()) all.push_back(std::move(*body));
  });
  return all;
}

std::vector<EntryInfo> Cache::drop_leftovers() {
  std::vector<EntryInfo> dropped;
  const auto look = [&](EntryKind kind, const std::string& path, const std::string& name) {
    struct stat info {};
    if (is_hex_name(name) || ::lstat(path.c_str(), &info) != 0) return;
    if (now_s() - info.st_mtim.tv_sec < kStaleTempSeconds) return;  // somebody may be writing it
    ::unlink(path.c_str());
    dropped.push_back({kind, name, static_cast<uint64_t>(info.st_size), 0, "a writer left it behind"});
  };
  for (const EntryKind kind : kKinds)
    each_file(dir_, kind, [&](const std::string& path, const std::string& name) { look(kind, path, name); });
  std::error_code ec;
  std::vector<std::string> keys;
  for (fs::directory_iterator at(dir_, ec), end; !ec && at != end; at.increment(ec))
    if (at->path().filename().string().rfind("mac.key.tmp.", 0) == 0) keys.push_back(at->path().filename());
  for (const std::string& name : keys) look(EntryKind::kBad, dir_ + "/" + name, name);
  return dropped;
}

std::vector<EntryInfo> Cache::check() {
  if (!usable_) return {};
  std::vector<EntryInfo> dropped = drop_leftovers();
  for (const EntryKind kind : kKinds)
    each_file(dir_, kind, [&](const std::string& path, const std::string& name) {
      struct stat info {};
      if (!is_hex_name(name) || ::lstat(path.c_str(), &info) != 0) return;
      const Result<std::string> body = open_entry(kind, path, name, nullptr);
      if (body.ok() || body.status().code() != Code::k_corrupt) return;
      ::unlink(path.c_str());
      dropped.push_back({kind, name, static_cast<uint64_t>(info.st_size), 0, body.status().message().what});
    });
  return dropped;
}

uint64_t Cache::sweep() {
  if (usable_) (void)drop_leftovers();
  std::vector<EntryInfo> entries = list();
  uint64_t total = 0, freed = 0;
  for (const EntryInfo& e : entries) total += e.bytes;
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.used_s < b.used_s; });
  for (const EntryInfo& e : entries) {
    if (total - freed <= options_.max_bytes) break;
    if (e.kind == EntryKind::kBad) continue;
    if (::unlink(path_of(e.kind, e.key).c_str()) == 0) freed += e.bytes;
  }
  return freed;
}

std::optional<std::string> Cache::explain(std::string_view prefix) {
  for (const EntryInfo& e : list()) {
    if (e.key.rfind(prefix, 0) != 0) continue;
    std::string text;
    if (open_entry(e.kind, path_of(e.kind, e.key), e.key, &text).ok()) return text;
  }
  return {};
}

}  // namespace keirin
