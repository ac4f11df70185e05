// SPDX-License-Identifier: Apache-2.0
//
// What a call that replays a recording costs the host, and how much of that is cudaGraphLaunch itself: this program stands in front
// of LibTorch's cudaGraphLaunch and adds up the time inside. One row for each model whose chosen plan is a replay; the device is
// idle when a call begins. Decisions of the cache are taken over, so that a run after `keirin bench` compiles nothing.
//
//   host_time [--json FILE] MODEL.pt2 ...
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "core/api/session.h"

namespace {

using Clock = std::chrono::steady_clock;
double launch_us = 0;
int launches = 0;

double since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }

}  // namespace

// Found before libcudart's by the dynamic linker, because it is the program's.
extern "C" __attribute__((visibility("default"))) int cudaGraphLaunch(void* graph, void* stream) {
  static const auto real = reinterpret_cast<int (*)(void*, void*)>(dlsym(RTLD_NEXT, "cudaGraphLaunch"));
  const auto start = Clock::now();
  const int result = real(graph, stream);
  launch_us += since(start);
  ++launches;
  return result;
}

namespace keirin {
namespace {

constexpr int kWarm = 20, kCalls = 200;
constexpr double kAllowedUs = 3;

struct Row {
  std::string model, chosen;
  size_t inputs = 0, outputs = 0;
  double call_us = 0, launch_us = 0, beyond_us = 0;  // medians
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

Result<Row> measure(Runtime& runtime, const std::string& path, const Options& options) {
  KRN_TRY_LET(auto session, Session::open(runtime, path, options));
  KRN_TRY_LET(const std::vector<TensorRef> inputs, session->example_inputs(0));
  KRN_TRY_LET(const ModelReport report, session->compile(inputs));
  Row row{session->name(), report.chosen, inputs.size()};
  for (int i = 0; i < kWarm; ++i) KRN_TRY(session->call(inputs).status());
  std::vector<double> calls, inside, beyond;
  for (int i = 0; i < kCalls; ++i) {
    KRN_TRY(runtime.tensors().synchronize(inputs[0]->device()));
    ::launch_us = 0, ::launches = 0;
    const auto start = ::Clock::now();
    KRN_TRY_LET(const std::vector<TensorRef> outputs, session->call(inputs));
    const double us = ::since(start);
    row.outputs = outputs.size();
    if (::launches != 1) return row;  // not a replay
    calls.push_back(us), inside.push_back(::launch_us), beyond.push_back(us - ::launch_us);
  }
  row.call_us = median(calls), row.launch_us = median(inside), row.beyond_us = median(beyond);
  return row;
}

int run(int argc, char** argv) {
  std::string json;
  std::vector<std::string> models;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--json" && i + 1 < argc) json = argv[++i];
    else models.push_back(argv[i]);
  }
  if (models.empty()) return std::fprintf(stderr, "usage: %s [--json FILE] MODEL.pt2 ...\n", argv[0]), 2;
  Options options;
  options.device = "cuda";
  options.sample_rate = 0;  // checking an answer is not part of a call
  auto runtime = Runtime::open(options);
  if (!runtime.ok()) return std::fprintf(stderr, "%s\n", runtime.status().text().c_str()), 1;
  std::printf(
      "| model | inputs, outputs | call us | cudaGraphLaunch us | beyond it us | allowed | chosen |\n|---|---|---|---|---|---|---|\n");
  std::string rows;
  int above = 0;
  for (const std::string& model : models) {
    auto row = measure(**runtime, model, options);
    if (!row.ok()) return std::fprintf(stderr, "%s\n", row.status().text().c_str()), 1;
    if (row->call_us == 0) {
      std::printf("| %s | %zu, %zu | - | - | - | - | %s |\n", row->model.c_str(), row->inputs, row->outputs, row->chosen.c_str());
      continue;
    }
    above += row->beyond_us > kAllowedUs;
    std::printf("| %s | %zu, %zu | %.2f | %.2f | %.2f | %.0f%s | %s |\n", row->model.c_str(), row->inputs, row->outputs, row->call_us,
                row->launch_us, row->beyond_us, kAllowedUs, row->beyond_us > kAllowedUs ? " (above)" : "", row->chosen.c_str());
    std::fflush(stdout);
    char text[300];
    std::snprintf(text, sizeof text,
                  "%s  {\"model\": \"%s\", \"inputs\": %zu, \"outputs\": %zu, \"call_us\": %.3f, \"launch_us\": %.3f, \"beyond_us\": %.3f}",
                  rows.empty() ? "" : ",\n", row->model.c_str(), row->inputs, row->outputs, row->call_us, row->launch_us, row->beyond_us);
    rows += text;
  }
  std::printf("\n%d above what is allowed\n", above);
  if (!json.empty())
    std::ofstream(json) << "{\"schema\": \"keirin/host_time/1\", \"allowed_us\": " << kAllowedUs << ", \"rows\": [\n" << rows << "\n]}\n";
  return 0;
}

}  // namespace
}  // namespace keirin

int main(int argc, char** argv) { return keirin::run(argc, argv); }
