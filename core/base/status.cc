// SPDX-License-Identifier: Apache-2.0
#include "core/base/status.h"

namespace keirin {

const char* code_name(Code code) {
  switch (code) {
#define KRN_STATUS(id, name, text) \
  case Code::k_##name:             \
    return #name;
#include "abi/status.def"
#undef KRN_STATUS
  }
  return "internal";
}

Status::Status(Code code, Message message) {
  if (code != Code::k_ok) failure_ = std::make_unique<Failure>(Failure{code, std::move(message), nullptr});
}

Status::Status(const Status& other) : failure_(other.failure_ ? std::make_unique<Failure>(*other.failure_) : nullptr) {}

const Message& Status::message() const {
  static const Message kEmpty;
  return failure_ ? failure_->message : kEmpty;
}

std::exception_ptr Status::cause() const { return failure_ ? failure_->cause : nullptr; }

Status&& Status::at(std::string where) && {
  if (failure_) {
    std::string& own = failure_->message.where;
    own = own.empty() ? std::move(where) : std::move(where) + ": " + own;
  }
  return std::move(*this);
}

Status&& Status::instead(std::string text) && {
  if (failure_ && failure_->message.instead.empty()) failure_->message.instead = std::move(text);
  return std::move(*this);
}

Status&& Status::advise(std::string text) && {
  if (failure_ && failure_->message.advice.empty()) failure_->message.advice = std::move(text);
  return std::move(*this);
}

Status&& Status::caused_by(std::exception_ptr exception) && {
  if (failure_) failure_->cause = std::move(exception);
  return std::move(*this);
}

std::string Status::text() const {
  std::string out = std::string(code_name(code())) + ": " + message().what;
  for (const std::string* part : {&message().where, &message().instead, &message().advice})
    if (!part->empty()) out += "\n  " + *part;
  return out;
}

}  // namespace keirin
