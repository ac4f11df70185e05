// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/json.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

namespace keirin::pt2 {
namespace {

// Walks the text and tells how far the lexer has come, which nlohmann's SAX events do not say.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* p = nullptr;
  const char** reached = nullptr;

  reference operator*() const { return *p; }
  CountingIterator& operator++() {
    *reached = ++p;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const CountingIterator& o) const { return p == o.p; }
  bool operator!=(const CountingIterator& o) const { return p != o.p; }
};

constexpr uint64_t kFreeNodes = 4u << 20;  // 64 MiB of nodes that any text may have
constexpr uint64_t kBytesPerNode = 8;      // beyond them: nodes take at most twice the text

}  // namespace

// Receives nlohmann's events. Each returns false to stop, with the reason in `status_`.
class JsonBuilder {
 public:
  JsonBuilder(std::string_view text, const Limits& limits) : text_(text), limits_(limits), reached_(text.data()) {}

  Result<JsonDoc> run() {
    // At most one node per comma, colon and bracket, and one more: reserving it keeps the peak at one copy.
    auto separators =
        std::count_if(text_.begin(), text_.end(), [](char c) { return c == ',' || c == ':' || c == '[' || c == '{'; });
    doc_.nodes_.reserve(std::min<uint64_t>(static_cast<uint64_t>(separators) + 1, most_nodes()));
    CountingIterator begin{text_.data(), &reached_}, end{text_.data() + text_.size(), &reached_};
    bool done = nlohmann::json::sax_parse(begin, end, this);
    if (!done && status_.ok()) status_ = corrupt("the JSON text is not complete", text_.size());
    if (!status_.ok()) return status_;
    return std::move(doc_);
  }

  bool null() { return add(JsonType::kNull) != nullptr; }
  bool boolean(bool value) { return add_integer(JsonType::kBool, value ? 1 : 0); }
  bool number_integer(int64_t value) { return add_integer(JsonType::kInt, value); }
  bool number_unsigned(uint64_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return too_big();
    return add_integer(JsonType::kInt, static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string& raw) {
    // The lexer turns an integer that fits nothing into a float.
    if (raw.find_first_of(".eE") == std::string::npos) return too_big();
    JsonNode* n = add(JsonType::kFloat);
    if (n != nullptr) n->real = value;
    return n != nullptr;
  }
  bool string(std::string& value) { return add_string(value); }
  bool key(std::string& value) { return add_string(value); }
  bool binary(std::vector<uint8_t>&) { return false; }  // JSON text has none
  bool start_object(size_t) { return open(JsonType::kObject); }
  bool start_array(size_t) { return open(JsonType::kArray); }
  bool end_array() { return close(); }
  bool end_object() { return keys_differ(open_.back()) && close(); }

  // A template only so that no exception type of nlohmann is named: its text is not part of our messages.
  template <class Exception>
  bool parse_error(size_t position, const std::string&, const Exception&) {
    status_ = corrupt("this is not valid JSON", std::min<uint64_t>(position > 0 ? position - 1 : 0, text_.size()));
    return false;
  }

 private:
  uint64_t most_nodes() const { return std::min<uint64_t>(kFreeNodes + text_.size() / kBytesPerNode, 0xFFFFFFFE); }

  static Status corrupt(std::string what, uint64_t byte) {
    return Status(Code::k_corrupt,
                  {std::move(what), "byte " + std::to_string(byte), "nothing was loaded", "save the file again"});
  }
  bool fail(std::string what, uint64_t byte) {
    status_ = corrupt(std::move(what), byte);
    return false;
  }
  bool too_big() { return fail("an integer does not fit 64 bits", token_start()); }

  // The first byte of the token that just ended: what stands between it and the last one are only separators.
  uint32_t token_start() const {
    size_t at = last_end_;
    while (at < text_.size() && (text_[at] == ' ' || text_[at] == '\n' || text_[at] == '\r' || text_[at] == '\t' ||
                                 text_[at] == ',' || text_[at] == ':'))
      ++at;
    return static_cast<uint32_t>(at);
  }

  JsonNode* add(JsonType type) {
    if (doc_.nodes_.size() >= most_nodes()) {
      status_ = Status(Code::k_exhausted,
                       {"the JSON text has too many values for its size", "byte " + std::to_string(token_start()),
                        "nothing was loaded", "save the file again"});
      return nullptr;
    }
    JsonNode& n = doc_.nodes_.emplace_back();
    n.type = type;
    n.byte = token_start();
    last_end_ = static_cast<size_t>(reached_ - text_.data());
    if (!open_.empty()) ++doc_.nodes_[open_.back()].span.count;
    return &n;
  }

  bool add_integer(JsonType type, int64_t value) {
    JsonNode* n = add(type);
    if (n != nullptr) n->integer = value;
    return n != nullptr;
  }

  bool add_string(const std::string& value) {
    if (value.size() > limits_.string_bytes) {
      status_ = Status(Code::k_exhausted, {"a JSON string has " + std::to_string(value.size()) +
                                               " bytes, the limit is " + std::to_string(limits_.string_bytes),
                                           "byte " + std::to_string(token_start()), "nothing was loaded",
                                           "raise Limits::string_bytes if the file is trusted"});
      return false;
    }
    JsonNode* n = add(JsonType::kString);
    if (n == nullptr) return false;
    n->text = {static_cast<uint32_t>(doc_.pool_.size()), static_cast<uint32_t>(value.size())};
    doc_.pool_ += value;
    return true;
  }

  bool open(JsonType type) {
    if (open_.size() >= limits_.json_depth)
      return fail("the JSON text is nested deeper than " + std::to_string(limits_.json_depth), token_start());
    JsonNode* n = add(type);
    if (n == nullptr) return false;
    n->span = {0, 0};
    open_.push_back(static_cast<uint32_t>(doc_.nodes_.size() - 1));
    return true;
  }

  bool close() {
    JsonNode& n = doc_.nodes_[open_.back()];
    if (n.type == JsonType::kObject) n.span.count /= 2;  // keys were counted too
    n.span.end = static_cast<uint32_t>(doc_.nodes_.size());
    open_.pop_back();
    last_end_ = static_cast<size_t>(reached_ - text_.data());
    return true;
  }

  // Sorting, not hashing: a hostile file cannot make it quadratic.
  bool keys_differ(uint32_t object) {
    keys_.clear();
    for (uint32_t k = object + 1; k < doc_.nodes_.size(); k = doc_.next(k + 1)) keys_.push_back(k);
    auto text = [&](uint32_t k) { return doc_.string(doc_.node(k)); };
    std::sort(keys_.begin(), keys_.end(), [&](uint32_t a, uint32_t b) { return text(a) < text(b); });
    auto twin =
        std::adjacent_find(keys_.begin(), keys_.end(), [&](uint32_t a, uint32_t b) { return text(a) == text(b); });
    if (twin == keys_.end()) return true;
    uint32_t later = std::max(*twin, *(twin + 1));
    return fail("a JSON object has the key \"" + std::string(text(later)) + "\" twice", doc_.node(later).byte);
  }

  std::string_view text_;
  const Limits& limits_;
  const char* reached_;
  size_t last_end_ = 0;
  JsonDoc doc_;
  std::vector<uint32_t> open_;  // the containers that are not closed yet
  std::vector<uint32_t> keys_;  // scratch of keys_differ
  Status status_;
};

Result<JsonDoc> JsonDoc::parse(std::string_view text, const Limits& limits) {
  if (text.size() >= 0xFFFFFFFF)
    return Status(Code::k_exhausted, {"the JSON text is longer than 4 GiB", {}, "nothing was loaded", {}});
  // nlohmann skips a byte order mark; no writer of .pt2 files puts one.
  if (text.starts_with("\xEF\xBB\xBF"))
    return Status(Code::k_corrupt, {"the JSON text starts with a byte order mark", "byte 0", "nothing was loaded",
                                    "save the file again"});
  return JsonBuilder(text, limits).run();
}

std::string JsonRef::where() const {
  std::vector<const JsonRef*> chain;
  for (const JsonRef* r = this; r->parent_ != nullptr; r = r->parent_) chain.push_back(r);
  std::string path;
  for (auto it = chain.rbegin(); it != chain.rend(); ++it) {
    if ((*it)->item_ >= 0)
      path += "[" + std::to_string((*it)->item_) + "]";
    else
      (path += path.empty() ? "" : ".") += std::string((*it)->key_.substr(0, 200));
  }
  return (path.empty() ? "" : path + " ") + "(byte " + std::to_string(byte()) + ")";
}

const char* json_type_name(JsonType type) {
  constexpr const char* kNames[] = {"null", "a boolean", "an integer", "a float", "a string", "a list", "an object"};
  return kNames[static_cast<size_t>(type)];
}

}  // namespace keirin::pt2
