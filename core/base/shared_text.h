// SPDX-License-Identifier: Apache-2.0
//
// A text that many values carry and nobody changes: copies share it. Threads: as shared_ptr.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace keirin {

class SharedText {
 public:
  SharedText() = default;
  SharedText(std::string text)  // NOLINT: a string is one
      : text_(text.empty() ? nullptr : std::make_shared<const std::string>(std::move(text))) {}
  SharedText(std::string_view text) : SharedText(std::string(text)) {}  // NOLINT
  SharedText(const char* text) : SharedText(std::string(text)) {}       // NOLINT

  bool empty() const { return !text_; }
  const std::string& str() const {
    static const std::string kEmpty;
    return text_ ? *text_ : kEmpty;
  }
  friend bool operator==(const SharedText& a, const SharedText& b) { return a.text_ == b.text_ || a.str() == b.str(); }

 private:
  std::shared_ptr<const std::string> text_;  // null: empty
};

}  // namespace keirin
