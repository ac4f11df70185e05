// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/rocm/launches.h"

#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <tuple>

#include "plugins/codegen/text/c_printer.h"
#include "plugins/gpu/csr.h"
#include "rocm/device.h"
#include "rocm/gpu_driver.h"
#include "tests/unit/cuda/block_emulator.h"
#include "tests/unit/cuda/case_runner.h"
#include "tests/unit/rocm/kernel_texts.h"
#include "tests/unit/rocm/launch_writer.h"

namespace keirin::test {
namespace {

using nlohmann::json;
using Writer = LaunchWriter;

json pointers_of(const std::vector<json>& pointers) { return {{"struct", pointers}}; }

// A simulator that takes all waves of a block at once is kind to missing barriers; told so, it takes one wave after the other.
enum class Waves { kAtOnce, kOneAfterTheOther };

json& marked(json& launch, Waves waves) {
  if (waves == Waves::kOneAfterTheOther) launch["lockstep"] = false, launch["label"] = launch["label"].get<std::string>() + " by waves";
  return launch;
}

void add_case(Writer& out, const KernelCase& c, const codegen::Schedule& s, const std::string& code,
              const std::string& symbol, Waves waves = Waves::kAtOnce) {
  CaseBuffers buffers(c);
  std::vector<json> pointers;
  std::vector<json> expected;
  for (size_t b = 0; b < buffers.got.size(); ++b) {
    Storage &got = buffers.got[b], &want = buffers.want[b];
    const size_t bytes = static_cast<size_t>(got.elements()) * element_bytes(got.dtype());
    const std::string name = out.file(got.data(), std::max<size_t>(bytes, 1));
    pointers.push_back({{"buffer", name}, {"offset", 0}});
    if (!c.kernel.buffers[b].written || bytes == 0) continue;
    expected.push_back({{"buffer", name},
                        {"file", out.file(want.data(), bytes)},
                        {"dtype", simulator_type(got.dtype())},
                        {"tol", simulator_tolerance(got.dtype(), c.loosen)}});
  }
  if (c.kernel.has_csr)
    for (const auto* rows : {&c.rows, &c.order})
      pointers.push_back({{"buffer", out.file(rows->data(), std::max<size_t>(4 * rows->size(), 4))}, {"offset", 0}});
  const std::string workspace = symbol + (waves == Waves::kAtOnce ? " workspace" : " workspace by waves");
  if (s.split) pointers.push_back({{"buffer", workspace}, {"bytes", s.workspace_bytes}});
  const std::vector<char> sizes = pack_sizes(c.kernel, s);
  const auto arguments = [&](json& launch) {
    launch["args"].push_back({{"raw", hex_of(sizes.data(), sizes.size())}});
    launch["args"].push_back(pointers_of(pointers));
  };
  const std::string label = c.name + ": " + codegen::describe_schedule(c.kernel, s);
  json& first = marked(out.launch(code, symbol, label, s.blocks, s.threads), waves);
  first["lds_bytes"] = s.shared_bytes;
  arguments(first);
  if (!s.split) return void(first["expect"] = expected);
  json& second = marked(out.launch(code, symbol + "_finish", label + " finish", s.finish_blocks, s.threads), waves);
  arguments(second);
  second["expect"] = expected;
}

int wave_of_target(const Writer& out) { return rocm::wave_of(out.arch()); }

void add_cases(Writer& out, int64_t length) {
  const codegen::Dialect& dialect = rocm::gpu_driver(rocm::wave_of(out.arch())).words().dialect;
  const std::vector<KernelCase> cases = kernel_cases(length);
  int number = 0;
  std::set<std::tuple<codegen::GpuShape, bool, bool, bool>> classes;  // of which one block goes by waves
  for (const KernelCase& c : cases) {
    const std::vector<codegen::Schedule> schedules = rocm_schedules(c.kernel, out.arch(), true);
    std::string text = codegen::print_prelude(dialect);
    std::vector<std::string> symbols;
    for (const codegen::Schedule& s : schedules) {
      symbols.push_back("k" + std::to_string(length) + "_" + std::to_string(number++));
      text += codegen::print_kernel(c.kernel, s, dialect, symbols.back());
    }
    const std::string code = out.code(text);
    for (size_t i = 0; i < schedules.size(); ++i) {
      const codegen::Schedule& s = schedules[i];
      add_case(out, c, s, code, symbols[i]);
      if (s.blocks == 1 && s.threads > wave_of_target(out) && classes.emplace(s.shape, s.split, s.group > 1, s.vec > 1).second)
        add_case(out, c, s, code, symbols[i], Waves::kOneAfterTheOther);
    }
  }
}

void add_anchor(Writer& out, const AnchorCase& c, const gpu::TextKernel& kernel, Waves waves = Waves::kAtOnce) {
  AnchorCase run = c;
  std::vector<std::string> names;
  for (Storage& b : run.buffers)
    names.push_back(out.file(b.data(), static_cast<size_t>(b.elements()) * element_bytes(b.dtype())));
  std::vector<json> pointers;
  for (const codegen::TensorDesc& t : kernel.pointers) {
    if (t.present())
      pointers.push_back({{"buffer", names[t.buffer]}, {"offset", t.offset * element_bytes(t.dtype)}});
    else
      pointers.push_back({{"null", 0}});
  }
  pointers.push_back({{"buffer", c.name + (waves == Waves::kAtOnce ? " workspace" : " workspace by waves")},
                      {"bytes", std::max<int64_t>(kernel.workspace_bytes, 16)}});
  const std::string code = out.code(gpu::whole_text(kernel, rocm::gpu_driver(rocm::wave_of(out.arch()))));
  for (const auto& l : kernel.launches) {
    json& launch = marked(out.launch(code, l.symbol, c.name + " " + l.symbol, l.blocks, l.threads), waves);
    launch["args"].push_back({{"raw", hex_of(kernel.sizes.data(), kernel.sizes.size() * 8)}});
    launch["args"].push_back(pointers_of(pointers));
    if (&l != &kernel.launches.back()) continue;
    Storage& result = run.buffers[c.result];
    double largest = 0;
    for (double x : c.expected) largest = std::isnan(x) ? largest : std::max(largest, std::fabs(x));
    // Where nothing may be written the buffer keeps what it had.
    Storage want = result;
    for (size_t e = 0; e < c.expected.size(); ++e)
      if (!std::isnan(c.expected[e]))
        write_element(want.data(), static_cast<int64_t>(e), want.dtype(), c.expected[e], 0);
    const size_t bytes = static_cast<size_t>(want.elements()) * element_bytes(want.dtype());
    launch["expect"].push_back({{"buffer", names[c.result]},
                                {"file", out.file(want.data(), bytes)},
                                {"dtype", simulator_type(want.dtype())},
                                {"tol", c.relative * std::max(largest, 1.0)}});
  }
}

// All blocks wait for each other's states.
void add_rnn(Writer& out, const RnnCase& c) {
  RnnCase run = c;
  const gpu::TextKernel kernel = rnn_kernel_for(c, out.arch(), 0);
  std::vector<Storage> want = c.buffers;
  for (const RnnCase::Expected& e : c.expected) write_element(want[e.pointer].data(), e.element, want[e.pointer].dtype(), e.value, 0);
  std::vector<json> pointers, expected;
  for (size_t i = 0; i < run.buffers.size(); ++i) {
    const size_t bytes = static_cast<size_t>(want[i].elements()) * element_bytes(want[i].dtype());
    pointers.push_back({{"buffer", out.file(run.buffers[i].data(), bytes)}, {"offset", c.skipped[i]}});
    if (i >= 6)
      expected.push_back({{"buffer", pointers.back()["buffer"]},
                          {"file", out.file(want[i].data(), bytes)},
                          {"dtype", simulator_type(want[i].dtype())},
                          {"tol", c.room}});
  }
  pointers.push_back({{"buffer", c.name + " states"}, {"bytes", kernel.workspace_bytes}});
  const std::string code = out.code(gpu::whole_text(kernel, rocm::gpu_driver(rocm::wave_of(out.arch()))));
  for (const auto& l : kernel.launches) {
    json& launch = out.launch(code, l.symbol, c.name + " " + l.symbol, l.blocks, l.threads);
    launch["lds_bytes"] = l.shared_bytes;
    launch["args"].push_back({{"raw", hex_of(kernel.sizes.data(), kernel.sizes.size() * 8)}});
    launch["args"].push_back(pointers_of(pointers));
    if (&l == &kernel.launches.back()) launch["expect"] = expected;
  }
}

void add_tail(Writer& out, uint8_t dtype) {
  const gpu::TextKernel kernel = tail_kernel(dtype);
  Tail tail(dtype);
  std::vector<json> pointers;
  for (const auto* bytes : {&tail.y, &tail.bias, &tail.residual})
    pointers.push_back({{"buffer", out.file(bytes->data(), bytes->size())}, {"offset", 0}});
  pointers.push_back({{"null", 0}});
  const std::string code = out.code(gpu::whole_text(kernel, rocm::gpu_driver(rocm::wave_of(out.arch()))));
  const auto& l = kernel.launches[0];
  json& launch = out.launch(code, l.symbol, "tail of dtype " + std::to_string(dtype), l.blocks, l.threads);
  launch["args"] = {{{"raw", hex_of(kernel.sizes.data(), kernel.sizes.size() * 8)}}, pointers_of(pointers)};
  launch["expect"] = {{{"buffer", pointers[0]["buffer"]},
                       {"file", out.file(tail.want.data(), tail.want.size())},
                       {"dtype", simulator_type(dtype)},
                       {"tol", 0}}};
}

// Three launches: the second finds the rows that the first made, the third sorts other edges with what the first left behind.
void add_scatter(Writer& out, int rows, int edges, bool wide) {
  std::mt19937 random(11);
  const std::string name = "scatter" + std::to_string(wide) + " ";
  const std::string code = out.code(gpu::csr_text(rocm::gpu_driver(rocm::wave_of(out.arch()))));
  const std::vector<char> zeros(4 * rows), other(8 * edges, 1);
  const json arrays = {{"struct",
                        {{{"buffer", out.file(zeros.data(), 32)}},
                         {{"buffer", out.file(other.data(), (wide ? 8 : 4) * static_cast<size_t>(edges))}},
                         {{"buffer", name + "rows"}, {"bytes", 4 * rows + 4}},
                         {{"buffer", name + "order"}, {"bytes", 4 * edges}},
                         {{"buffer", out.file(zeros.data(), zeros.size())}},
                         {{"buffer", name + "unordered"}, {"bytes", 4 * edges}}}}};
  std::string from;
  std::vector<int32_t> start(rows + 1), order;
  for (int turn = 0; turn < 3; ++turn) {
    if (turn != 1) {
      std::vector<int64_t> index(edges);
      for (int64_t& r : index) r = random() % 3 == 0 ? 7 + turn : static_cast<int64_t>(random() % (rows + 6)) - 3;
      order.clear();
      for (int r = 0; r < rows; ++r) {
        for (int e = 0; e < edges; ++e)
          if (index[e] == r) order.push_back(e);
        start[r + 1] = static_cast<int32_t>(order.size());
      }
      const std::vector<int32_t> narrow(index.begin(), index.end());
      from = wide ? out.file(index.data(), 8 * index.size()) : out.file(narrow.data(), 4 * narrow.size());
    }
    json& launch = out.launch(code, "csr_rows", name + std::to_string(turn), 5, 1024);
    launch["args"] = {{{"buffer", from}}, {{"i32", wide}}, {{"i32", edges}}, {{"i32", rows}}, arrays};
    launch["args"][1]["i32"] = wide ? 1 : 0;
    launch["expect"] = {
        {{"buffer", name + "rows"}, {"file", out.file(start.data(), 4 * start.size())}, {"dtype", "i32"}, {"tol", 0}},
        {{"buffer", name + "order"},
         {"file", out.file(order.data(), 4 * order.size())},
         {"dtype", "i32"},
         {"tol", 0},
         {"count", order.size()}}};
  }
}

}  // namespace

int write_launches(const std::string& folder, const std::string& arch) try {
  Writer out(folder, arch);
  for (int64_t length : {5, 515}) add_cases(out, length);
  std::string why_not;
  // Of each text the case of the fewest blocks goes by waves, too.
  std::map<std::string, std::pair<int64_t, std::function<void()>>> smallest;
  const std::vector<AnchorCase> anchors = anchor_cases();
  for (const AnchorCase& c : anchors) {
    const auto kernel = own_kernel_for(c, arch, why_not);
    if (!kernel) continue;
    add_anchor(out, c, *kernel);
    const auto& first = kernel->launches[0];
    auto& least = smallest[first.symbol];
    if (!least.second || first.blocks < least.first)
      least = {first.blocks, [&out, &c, own = *kernel] { add_anchor(out, c, own, Waves::kOneAfterTheOther); }};
  }
  for (const auto& [symbol, least] : smallest) least.second();
  for (const RnnCase& c : rnn_cases()) add_rnn(out, c);
  for (uint8_t dtype : {kBf16, kF16, kF32}) add_tail(out, dtype);
  for (bool wide : {false, true}) add_scatter(out, 300, 5000, wide);
  out.finish();
  std::printf("%zu launches for %s in %s\n", out.size(), arch.c_str(), folder.c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

}  // namespace keirin::test
