// SPDX-License-Identifier: Apache-2.0
#include "core/api/kept_ranges.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/api/kept_decision.h"
#include "core/cache/cache.h"

namespace keirin {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "keirin/ranges/1";
constexpr const char *kWhat = "ranges 1", *kBegun = "ranges begun 1";  // beside the program, in the key

Status corrupt(const std::string& what) {
  return Status(Code::k_corrupt, {what, "kept ranges", "the ranges are found out again", {}});
}

// Side by side, ascending, none of them empty, as divide makes them.
bool are_pieces(const std::vector<SizePiece>& pieces) {
  if (pieces.empty() || pieces.size() > kMostPieces) return false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].least < 0 || pieces[i].least > pieces[i].most || pieces[i].choice.empty()) return false;
    if (i > 0 && pieces[i].least != pieces[i - 1].most + 1) return false;
  }
  return true;
}

bool is_box(const SizeBox& box) {
  if (box.least.empty() || box.least.size() != box.most.size()) return false;
  for (size_t k = 0; k < box.least.size(); ++k)
    if (box.least[k] < 0 || box.least[k] > box.most[k]) return false;
  return true;
}

std::optional<CacheKey> key_of(const Session::Impl& session, RangesOf of) {
  return key_by_program(session, of == RangesOf::kBegun ? kBegun : kWhat, of != RangesOf::kTheseWeights);
}

}  // namespace

std::string ranges_text(const KeptRanges& ranges) {
  json pieces = json::array(), checks = json::array();
  for (const SizePiece& piece : ranges.pieces) pieces.push_back({piece.least, piece.most, piece.choice});
  for (const CheckedSizes& check : ranges.checks) checks.push_back({check.sizes, check.chosen});
  return json{{"schema", kSchema}, {"least", ranges.box.least}, {"most", ranges.box.most},
              {"pieces", pieces},  {"checks", checks},          {"closed", ranges.closed}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<KeptRanges> parse_ranges(std::string_view text) {
  const json j = json::parse(text, nullptr, false);
  try {
    if (!j.is_object() || j.at("schema") != kSchema) return corrupt("kept ranges have another schema");
    KeptRanges out;
    out.box = {j.at("least").get<Sizes>(), j.at("most").get<Sizes>()};
    for (const json& piece : j.at("pieces")) out.pieces.push_back({piece.at(0), piece.at(1), piece.at(2)});
    for (const json& check : j.at("checks")) out.checks.push_back({check.at(0).get<Sizes>(), check.at(1), false, {}});
    out.closed = j.at("closed").get<std::map<std::string, std::string>>();
    if (!is_box(out.box) || !are_pieces(out.pieces)) return corrupt("kept ranges hold no sizes, or some twice");
    return out;
  } catch (const json::exception& error) {
    return corrupt(std::string("kept ranges have another shape: ") + error.what());
  }
}

std::optional<KeptRanges> read_kept_ranges(const Session::Impl& session, RangesOf of) {
  Cache* cache = usable_cache(session);
  const auto key = key_of(session, of);
  if (!cache || !key || session.options.measure_again) return std::nullopt;
  const std::optional<std::string> text = cache->read(EntryKind::kRanges, *key);
  if (!text) return std::nullopt;
  Result<KeptRanges> ranges = parse_ranges(*text);
  return ranges.ok() ? std::optional(std::move(*ranges)) : std::nullopt;
}

namespace {

// For these weights, and for others, which look at it if nothing was found for theirs.
void publish(const Session::Impl& session, const KeptRanges& ranges) {
  Cache* cache = usable_cache(session);
  for (const RangesOf of : {RangesOf::kTheseWeights, RangesOf::kAnyWeights})
    if (const auto key = key_of(session, of); cache && key && !ranges.pieces.empty())
      cache->publish(EntryKind::kRanges, *key, ranges_text(ranges));
}

}  // namespace

void keep_ranges(const Session::Impl& session) { publish(session, session.ranges.kept()); }

void keep_begun_ranges(const Session::Impl& session, const SizeBox& box, const std::vector<Sizes>& met) {
  Cache* cache = usable_cache(session);
  const auto key = key_of(session, RangesOf::kBegun);
  if (!cache || !key) return;
  KeptRanges begun{box, {{volume_of(box.least), volume_of(box.most), "eager"}}, {}, {}};
  for (const Sizes& sizes : met) begun.checks.push_back({sizes, "eager", false, {}});
  cache->hold(EntryKind::kRanges, *key, ranges_text(begun));
}

void keep_closed_ranges(const Session::Impl& session) {
  std::optional<KeptRanges> known = read_kept_ranges(session);
  if (!known) return;
  known->closed.merge(session.ranges.kept().closed);
  publish(session, *known);
}

}  // namespace keirin
