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

Status&& Status::at(std::string where) && {
  if (message_.where.empty()) message_.where = std::move(where);
  else message_.where = std::move(where) + ": " + message_.where;
  return std::move(*this);
}

Status&& Status::instead(std::string text) && {
  if (message_.instead.empty()) message_.instead = std::move(text);
  return std::move(*this);
}

Status&& Status::advise(std::string text) && {
  if (message_.advice.empty()) message_.advice = std::move(text);
  return std::move(*this);
}

std::string Status::text() const {
  std::string out = std::string(code_name(code_)) + ": " + message_.what;
  for (const std::string* part : {&message_.where, &message_.instead, &message_.advice})
    if (!part->empty()) out += "\n  " + *part;
  return out;
}

}  // namespace keirin
