// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>

#include "core/ir/text.h"
#include "core/passes/check.h"
#include "core/passes/pass.h"

namespace keirin {
namespace {

Status unknown_name(const std::string& name) {
  std::string known;
  for (const PassRow& row : all_passes()) known += (known.empty() ? "" : ", ") + std::string(row.name);
  return Status(Code::k_invalid_input, {"no pass is called '" + name + "'", "", "nothing was run", "the passes are: " + known});
}

bool disabled(const PassContext& context, const PassRow& row) {
  if (std::find(context.disabled.begin(), context.disabled.end(), row.name) != context.disabled.end()) return true;
  return !row.on;
}

Status dump(const Graph& graph, const PassContext& context, int number, std::string_view name) {
  if (context.dump_dir.empty()) return {};
  char prefix[16];
  std::snprintf(prefix, sizeof(prefix), "%02d-", number);
  std::string path = context.dump_dir + "/" + prefix + std::string(name) + ".ir";
  std::ofstream file(path);
  file << print(graph);
  if (file.flush()) return {};
  return Status(Code::k_exhausted, {"a dump could not be written", path, "", "check that the folder exists and has room"});
}

Status run_one(Graph& graph, PassContext& context, const PassRow& row) {
  const size_t ops_before = graph.ops.size();
  std::optional<Graph> before;
  if (context.check_each) before = graph;
  auto fail = [&](Status status) {
    if (before) graph = std::move(*before);
    return Status(std::move(status).at("pass " + std::string(row.name)).instead(before ? "the graph is as before the pass" : ""));
  };
  auto start = std::chrono::steady_clock::now();
  Status status = row.run(graph, context);
  int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  if (status.ok() && context.check_each) status = check(graph);
  if (!status.ok()) return fail(std::move(status));
  context.times.push_back({row.name, ns, ops_before, graph.ops.size()});
  if (!context.run_twice) return {};
  Graph once = graph;
  status = row.run(graph, context);
  if (!status.ok()) return fail(std::move(status));
  if (!(graph == once)) return fail(Status(Code::k_internal, "a second run changed the graph:\n" + print(once) + print(graph)));
  return {};
}

}  // namespace

const std::vector<PassRow>& all_passes() {
  static const std::vector<PassRow> kRows = {
#define KRN_PASS(name, on, text) {#name, on, text, &passes::name},
#include "core/passes/passes.def"
#undef KRN_PASS
  };
  return kRows;
}

const PassRow* find_pass(std::string_view name) {
  for (const PassRow& row : all_passes())
    if (row.name == name) return &row;
  return nullptr;
}

Status run_passes(Graph& graph, PassContext& context) {
  for (const std::string& name : context.disabled)
    if (!find_pass(name)) return unknown_name(name);
  if (!context.stop_after.empty() && !find_pass(context.stop_after)) return unknown_name(context.stop_after);
  if (context.check_each) KRN_TRY(check(graph).at("the graph as captured"));
  int number = context.first_dump_number;
  for (const PassRow& row : all_passes()) {
    if (!disabled(context, row)) {
      KRN_TRY(run_one(graph, context, row));
      KRN_TRY(dump(graph, context, number, row.name));
    }
    ++number;  // a disabled pass keeps its number, so that dumps of two runs can be compared by name
    if (row.name == context.stop_after) break;
  }
  if (!context.check_each) KRN_TRY(check(graph).at("the graph after the passes"));
  return {};
}

}  // namespace keirin
