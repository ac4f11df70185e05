// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/record.h"

#include "core/base/sha256.h"

namespace keirin::tools::matrix {

bool Record::is(std::string_view kind) const { return text("krn") == kSchema && text("kind") == kind; }

std::string Record::text(const char* field) const {
  const auto at = fields.find(field);
  return at != fields.end() && at->is_string() ? at->get<std::string>() : std::string();
}

double Record::number(const char* field, double fallback) const {
  const auto at = fields.find(field);
  return at != fields.end() && at->is_number() ? at->get<double>() : fallback;
}

int Record::whole(const char* field, int fallback) const {
  const double value = number(field, fallback);
  return value >= -1e9 && value <= 1e9 ? static_cast<int>(value) : fallback;
}

bool Record::flag(const char* field, bool fallback) const {
  const auto at = fields.find(field);
  return at != fields.end() && at->is_boolean() ? at->get<bool>() : fallback;
}

Record make_record(std::string_view kind, nlohmann::json fields) {
  fields["krn"] = kSchema;
  fields["kind"] = kind;
  Record record;
  record.line = fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  record.id = hex(sha256(record.line.data(), record.line.size()));
  record.fields = std::move(fields);
  return record;
}

Result<Record> read_record(std::string_view line) {
  if (line.size() > kMaxRecordBytes)
    return Status(Code::k_corrupt, "longer than " + std::to_string(kMaxRecordBytes) + " bytes");
  bool too_deep = false;
  const auto bound = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep |= depth > kMaxRecordDepth;
    return !too_deep;  // what is refused is not kept, so that depth costs no memory
  };
  Record record;
  record.fields = nlohmann::json::parse(line.begin(), line.end(), bound, false);
  if (too_deep) return Status(Code::k_corrupt, "nested deeper than " + std::to_string(kMaxRecordDepth));
  if (record.fields.is_discarded()) return Status(Code::k_corrupt, "no JSON");
  if (!record.fields.is_object()) return Status(Code::k_corrupt, "no JSON object");
  if (record.text("krn").rfind("matrix/", 0) != 0)
    return Status(Code::k_corrupt, "its field \"krn\" names no schema of the matrix");
  record.line = line;
  record.id = hex(sha256(line.data(), line.size()));
  return record;
}

}  // namespace keirin::tools::matrix
