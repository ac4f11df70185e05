// SPDX-License-Identifier: Apache-2.0
//
// A JSON document as one flat array of 16-byte nodes, and references into it that know their path for messages.
// Strict and bounded: no duplicate keys, no integer beyond int64, no bare NaN, well-formed UTF-8, limited nesting.
// The document owns its strings; it and the text may be dropped once the program structs are built.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/capture/pt2/limits.h"

namespace keirin::pt2 {

enum class JsonType : uint8_t { kNull, kBool, kInt, kFloat, kString, kArray, kObject };

// Nodes stand in document order. An object's children alternate between key (a string node) and value.
struct JsonNode {
  JsonType type = JsonType::kNull;
  uint32_t byte = 0;  // where its text starts
  union {
    int64_t integer = 0;  // kInt; 0 or 1 of kBool
    double real;
    struct {
      uint32_t begin, length;  // kString: in the pool
    } text;
    struct {
      uint32_t count, end;  // containers: members, and the index of the first node behind the whole container
    } span;
  };
};

class JsonDoc {
 public:
  static Result<JsonDoc> parse(std::string_view text, const Limits& limits);

  const JsonNode& node(uint32_t index) const { return nodes_[index]; }
  std::string_view string(const JsonNode& node) const {
    return std::string_view(pool_).substr(node.text.begin, node.text.length);
  }
  // The node behind the whole of `index`.
  uint32_t next(uint32_t index) const {
    const JsonNode& n = nodes_[index];
    return n.type == JsonType::kArray || n.type == JsonType::kObject ? n.span.end : index + 1;
  }

 private:
  friend class JsonBuilder;
  std::vector<JsonNode> nodes_;
  std::string pool_;
};

// A value in a document, with the chain of steps that led to it. Borrows document and parent.
class JsonRef {
 public:
  JsonRef() = default;
  explicit JsonRef(const JsonDoc& doc) : doc_(&doc) {}
  JsonRef(const JsonRef& parent, uint32_t index, std::string_view key)
      : doc_(parent.doc_), parent_(&parent), index_(index), key_(key) {}
  JsonRef(const JsonRef& parent, uint32_t index, int64_t item)
      : doc_(parent.doc_), parent_(&parent), index_(index), item_(item) {}

  JsonType type() const { return node().type; }
  uint32_t byte() const { return node().byte; }
  bool is_null() const { return type() == JsonType::kNull; }
  bool boolean() const { return node().integer != 0; }
  int64_t integer() const { return node().integer; }
  double real() const { return node().real; }
  std::string_view string() const { return doc_->string(node()); }
  uint32_t count() const { return node().span.count; }

  // "graph_module.graph.nodes[17].target (byte 182334)"
  std::string where() const;

  // Calls fn(key, ref) for each member, or fn(ref) for each item, until it returns false. True if none did.
  template <class Fn>
  bool members(Fn&& fn) const {
    uint32_t end = node().span.end;
    for (uint32_t k = index_ + 1; k < end;) {
      std::string_view key = doc_->string(doc_->node(k));
      if (!fn(key, JsonRef(*this, k + 1, key))) return false;
      k = doc_->next(k + 1);
    }
    return true;
  }
  template <class Fn>
  bool items(Fn&& fn) const {
    uint32_t end = node().span.end;
    int64_t item = 0;
    for (uint32_t k = index_ + 1; k < end; k = doc_->next(k))
      if (!fn(JsonRef(*this, k, item++))) return false;
    return true;
  }

 private:
  const JsonNode& node() const { return doc_->node(index_); }
  const JsonDoc* doc_ = nullptr;
  const JsonRef* parent_ = nullptr;
  uint32_t index_ = 0;
  std::string_view key_;
  int64_t item_ = -1;  // the position in an array, -1 for a member
};

const char* json_type_name(JsonType type);

}  // namespace keirin::pt2
