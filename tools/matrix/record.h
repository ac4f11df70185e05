// SPDX-License-Identifier: Apache-2.0
//
// One record of the matrix: a JSON object on one line, named by the SHA-256 of its bytes. Written ones are canonical
// (sorted keys, no spaces); read ones keep the bytes that they had, so that what this version does not know is carried
// through whole. A record is never edited. The kinds and fields are listed in docs/matrix.md.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace keirin::tools::matrix {

inline constexpr std::string_view kSchema = "matrix/1";  // of the field "krn"

// Of a line from elsewhere.
inline constexpr size_t kMaxRecordBytes = 1 << 20;
inline constexpr int kMaxRecordDepth = 16;

struct Record {
  nlohmann::json fields;
  std::string line;  // without the line feed
  std::string id;    // hex

  // Whether this version knows its schema, and it is of that kind.
  bool is(std::string_view kind) const;
  // A field of a record from anywhere: the fallback where it is missing or of another type.
  std::string text(const char* field) const;
  double number(const char* field, double fallback = 0) const;
  int whole(const char* field, int fallback = 0) const;  // also where it is too large
  bool flag(const char* field, bool fallback) const;
};

Record make_record(std::string_view kind, nlohmann::json fields);

// `corrupt` for what is no record: too long, too deep, no JSON object, no "krn" of a matrix.
Result<Record> read_record(std::string_view line);

}  // namespace keirin::tools::matrix
