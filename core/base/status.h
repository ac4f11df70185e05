// SPDX-License-Identifier: Apache-2.0
//
// How every function of the core says that it failed: a Status by value, or a Result<T> that holds a value or a Status.
// The core throws nothing. Exceptions from outside (torch, a plugin, a user's callback) are converted at the seam; a
// torch exception is kept whole in `cause`, so that the front door can rethrow exactly what eager raised.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace keirin {

// The codes are the same on both sides of the plugin boundary: abi/status.def is the one list.
enum class Code : int {
#define KRN_STATUS(id, name, text) k_##name = id,
#include "abi/status.def"
#undef KRN_STATUS
};

// The lower-case name of a code ("invalid_input"); "internal" for a value that is not in the list.
const char* code_name(Code code);

// A message has four parts in fixed order. `what` names noun and value; the others may be empty.
struct Message {
  std::string what;     // what failed
  std::string where;    // file, record, op, plugin
  std::string instead;  // what was done instead ("nothing was loaded")
  std::string advice;   // what the reader can do
};

// One pointer, null when all went well: every call of a model passes several of them, with cold caches.
class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, Message message);
  Status(Code code, std::string what) : Status(code, Message{std::move(what), {}, {}, {}}) {}
  Status(const Status& other);
  Status(Status&&) = default;
  Status& operator=(Status other) {
    failure_ = std::move(other.failure_);
    return *this;
  }

  bool ok() const { return failure_ == nullptr; }
  Code code() const { return failure_ ? failure_->code : Code::k_ok; }
  const Message& message() const;            // all parts empty when ok
  std::exception_ptr cause() const;          // the foreign exception behind it, or null

  // Adds context on the way up, without overwriting what a callee said already. Nothing when ok.
  Status&& at(std::string where) &&;
  Status&& instead(std::string text) &&;
  Status&& advise(std::string text) &&;
  Status&& caused_by(std::exception_ptr exception) &&;

  // "code: what\n  where\n  instead\n  advice"; empty parts take no line.
  std::string text() const;

 private:
  struct Failure {
    Code code;
    Message message;
    std::exception_ptr cause;
  };
  std::unique_ptr<Failure> failure_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}        // NOLINT: implicit on purpose
  Result(Code code, std::string what) : status_(code, std::move(what)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status&& status() && { return std::move(status_); }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace keirin

#define KRN_CONCAT_(a, b) a##b
#define KRN_CONCAT(a, b) KRN_CONCAT_(a, b)

// Propagates a Status: KRN_TRY(f());
#define KRN_TRY(expression)                                          \
  do {                                                               \
    if (::keirin::Status krn_s_ = (expression); !krn_s_.ok()) return krn_s_; \
  } while (false)

// Takes the value out of a Result, or propagates: KRN_TRY_LET(auto x, g());
#define KRN_TRY_LET(declaration, expression)                                   \
  auto KRN_CONCAT(krn_r_, __LINE__) = (expression);                            \
  if (!KRN_CONCAT(krn_r_, __LINE__).ok()) return std::move(KRN_CONCAT(krn_r_, __LINE__)).status(); \
  declaration = std::move(KRN_CONCAT(krn_r_, __LINE__)).value()
