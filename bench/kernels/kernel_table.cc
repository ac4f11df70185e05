// SPDX-License-Identifier: Apache-2.0
//
// What share of a measured copy each class of generated kernels reaches on a GPU: whole regions through the CUDA backend, at sizes
// far beyond the second-level cache, on random numbers, many in a row as one recording. Prints a table, and JSON with --json. It
// judges no result (ci/device does) and times no library call.
//
//   kernel_table [--json FILE] [--only PART_OF_A_NAME]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "plugins/codegen/kernel/rows.h"
#include "plugins/codegen/plan/compiled_region.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/kit/error.h"
#include "tests/unit/codegen/region_builder.h"

namespace keirin::cuda {
namespace {

using namespace gpu;

using codegen::Dims;
using codegen::kDType_bf16;
using codegen::kDType_f32;
using codegen::kDType_i64;
using codegen::test::RegionBuilder;

struct Machine {
  const DriverApi* driver = nullptr;
  std::unique_ptr<Gpu> gpu;
  std::unique_ptr<Context> context;
  CUstream stream = nullptr;

  bool open(std::string& why_not) {
    driver = DriverApi::get(why_not);
    if (driver) gpu = look_at_gpu("", 0, why_not);
    if (!gpu) return false;
    context = std::make_unique<Context>(*gpu);
    return gpu->driver->make_current(context->handle()) == 0 && driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
  }
};
Machine machine;

class Memory {
 public:
  explicit Memory(size_t bytes) { check(machine.driver->cuMemAlloc(&at_, std::max<size_t>(bytes, 16)), "cuMemAlloc"); }
  ~Memory() { machine.driver->cuMemFree(at_); }
  Memory(const Memory&) = delete;
  CUdeviceptr at() const { return at_; }
  // Repeats `pattern` over the whole of `bytes`.
  void fill(const std::vector<char>& pattern, size_t bytes) {
    size_t done = std::min(pattern.size(), bytes);
    check(machine.driver->cuMemcpyHtoDAsync(at_, pattern.data(), done, machine.stream), "fill");
    for (; done < bytes; done += std::min(done, bytes - done))
      check(machine.driver->cuMemcpyDtoDAsync(at_ + done, at_, std::min(done, bytes - done), machine.stream), "fill");
    check(machine.driver->cuStreamSynchronize(machine.stream), "fill");
  }

 private:
  CUdeviceptr at_ = 0;
};

constexpr size_t kPattern = size_t{32} << 20;

std::vector<char> random_numbers(uint8_t dtype, int64_t below) {
  std::mt19937 random(7);
  std::vector<char> out(kPattern);
  if (dtype == kDType_i64) {
    std::vector<int64_t> v(kPattern / 8);
    for (int64_t& each : v) each = static_cast<int64_t>(random() % static_cast<uint64_t>(below));
    memcpy(out.data(), v.data(), kPattern);
    return out;
  }
  std::vector<float> v(kPattern / 4);
  for (float& each : v) each = static_cast<float>(random()) / 2147483648.0f - 1.0f;
  if (dtype == kDType_f32) return memcpy(out.data(), v.data(), kPattern), out;
  for (size_t i = 0; i < v.size(); ++i) memcpy(&out[2 * i], reinterpret_cast<const char*>(&v[i]) + 2, 2);  // bf16 by truncation
  for (size_t i = 0; i < v.size(); ++i) memcpy(&out[2 * (i + v.size())], &out[2 * i], 2);
  return out;
}

// Of one of the `repeats` pieces of work that `burst` enqueues.
double seconds_of(const std::function<void()>& burst, int repeats) {
  const DriverApi& d = *machine.driver;
  CUevent start, stop;
  check(d.cuEventCreate(&start, CU_EVENT_DEFAULT), "cuEventCreate");
  check(d.cuEventCreate(&stop, CU_EVENT_DEFAULT), "cuEventCreate");
  constexpr int kSamples = 9, kWarm = 2;
  std::vector<double> samples;
  for (int i = 0; i < kSamples + kWarm; ++i) {
    d.cuEventRecord(start, machine.stream);
    burst();
    d.cuEventRecord(stop, machine.stream);
    check(d.cuEventSynchronize(stop), "timing");
    float ms = 0;
    d.cuEventElapsedTime(&ms, start, stop);
    if (i >= kWarm) samples.push_back(ms * 1e-3 / repeats);
  }
  d.cuEventDestroy(start), d.cuEventDestroy(stop);
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

// The work is recorded as often as `repeats` says, so that neither the host's launches nor that of a recording is what is measured.
double seconds_recorded(const std::function<void(int)>& work, int repeats) {
  const DriverApi& d = *machine.driver;
  work(0);  // what is kept between runs is made
  check(d.cuStreamSynchronize(machine.stream), "a first run");
  CUgraph graph = nullptr;
  CUgraphExec recording = nullptr;
  check(d.cuStreamBeginCapture(machine.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "recording");
  for (int r = 0; r < repeats; ++r) work(r);
  check(d.cuStreamEndCapture(machine.stream, &graph), "recording");
  check(d.cuGraphInstantiate(&recording, graph, 0), "recording");
  const double seconds = seconds_of([&] { check(d.cuGraphLaunch(recording, machine.stream), "a recording's launch"); }, repeats);
  d.cuGraphExecDestroy(recording), d.cuGraphDestroy(graph);
  return seconds;
}

// Two milliseconds of it.
int repeats_for(double bytes) { return std::clamp(static_cast<int>(8e9 / bytes), 8, 256); }

struct Case {
  std::string kernel_class, name;
  double bar;       // per cent of the copy that is asked for; 0: none
  double bytes;     // that any kernel must move
  RegionBuilder region;
  int64_t below = 0;                  // integer inputs are indices below it
  std::vector<int64_t> offsets = {};  // bags: the last input is 0, n, 2n, ...
  int in_a_row = 1;                   // the region does it so often
};

struct Result {
  double microseconds = 0, share = 0;
  std::string kernel, failure;
};

size_t bytes_of(const RegionBuilder& g, int v) {
  size_t n = static_cast<size_t>(codegen::dtype_bytes(g.dtype(v)));
  for (int64_t s : g.sizes(v)) n *= static_cast<size_t>(s);
  return n;
}

// One set of a region's tensors. Several take turns where one would stay in the cache.
struct Tensors {
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<krn_tensor> inputs, outputs;
};

Result time_case(const Case& c, const std::vector<std::pair<int, bool>>& borders, double copy_rate) {
  Result out;
  try {
    GpuBackend backend(*machine.gpu, machine.context.get(), nullptr);
    const std::vector<uint8_t> bytes = c.region.bytes();
    const auto executable = codegen::CompiledRegion::compile(bytes, backend, {});
    out.kernel = executable->describe();
    out.kernel = out.kernel.substr(0, out.kernel.find('\n'));
    size_t total = 0;
    for (const auto& [v, written] : borders) total += bytes_of(c.region, v);
    const size_t num_sets = std::clamp<size_t>((size_t{1} << 29) / std::max<size_t>(total, 1), 1, 16);
    std::vector<Tensors> sets(num_sets);
    for (Tensors& set : sets)
      for (const auto& [v, written] : borders) {
        const size_t size = bytes_of(c.region, v);
        set.memory.push_back(std::make_unique<Memory>(size));
        const bool offsets = !c.offsets.empty() && !written && c.region.dtype(v) == kDType_i64 && size == c.offsets.size() * 8;
        if (offsets)
          set.memory.back()->fill(
              {reinterpret_cast<const char*>(c.offsets.data()), reinterpret_cast<const char*>(c.offsets.data() + c.offsets.size())}, size);
        else if (!written) set.memory.back()->fill(random_numbers(c.region.dtype(v), std::max<int64_t>(c.below, 1)), size);
        krn_tensor t{};
        t.data = reinterpret_cast<void*>(set.memory.back()->at());
        (written ? set.outputs : set.inputs).push_back(t);
      }
    Memory workspace(static_cast<size_t>(executable->workspace_bytes()));
    krn_code code = KRN_STATUS_ok;
    const double seconds = seconds_recorded([&](int repeat) {
      Tensors& set = sets[static_cast<size_t>(repeat) % sets.size()];
      krn_run run{};
      run.hdr.size = sizeof run;
      run.stream = {reinterpret_cast<uint64_t>(machine.stream), KRN_STREAM_KIND_CUDA, KRN_STREAM_HAS_NATIVE};
      run.inputs = set.inputs.data(), run.num_inputs = static_cast<uint32_t>(set.inputs.size());
      run.outputs = set.outputs.data(), run.num_outputs = static_cast<uint32_t>(set.outputs.size());
      run.workspace = reinterpret_cast<void*>(workspace.at()), run.workspace_bytes = static_cast<uint64_t>(executable->workspace_bytes());
      if (code == KRN_STATUS_ok) code = executable->run(run, nullptr, nullptr, nullptr);
    }, repeats_for(c.bytes * c.in_a_row)) / c.in_a_row;
    if (code != KRN_STATUS_ok) out.failure = "a run ended with code " + std::to_string(code);
    out.microseconds = seconds * 1e6;
    out.share = 100 * c.bytes / seconds / copy_rate;
  } catch (const kit::Error& error) {
    out.failure = error.what();
  }
  return out;
}

// Builds regions and remembers what crosses their border, in order.
class Maker {
 public:
  int in(uint8_t dtype, Dims sizes, Dims strides = {}, bool weight = false) {
    const int v = g.input(dtype, std::move(sizes), std::move(strides), weight);
    borders.emplace_back(v, false);
    return v;
  }
  void out(int v) {
    g.output(v);
    borders.emplace_back(v, true);
  }
  RegionBuilder g;
  std::vector<std::pair<int, bool>> borders;
};

struct Table {
  std::vector<Case> cases;
  std::vector<std::vector<std::pair<int, bool>>> borders;

  void add(const char* kernel_class, std::string name, double bar, double bytes, const Maker& m, int64_t below = 0,
           std::vector<int64_t> offsets = {}, int in_a_row = 1) {
    cases.push_back({kernel_class, std::move(name), bar, bytes, m.g, below, std::move(offsets), in_a_row});
    borders.push_back(m.borders);
  }
};

constexpr int64_t kElements = int64_t{1} << 28;  // 512 MB of bf16

std::string tag(uint8_t dtype) { return dtype == kDType_bf16 ? " bf16" : " f32"; }

void pointwise_and_rows(Table& table, uint8_t dtype) {
  const int64_t size = dtype == kDType_bf16 ? 2 : 4, n = kElements * 2 / size;
  const auto bytes = static_cast<double>(n * size);
  {
    Maker m;
    m.out(m.g.unary(codegen::kOp_gelu, m.in(dtype, {n})));
    table.add("pointwise", "gelu" + tag(dtype), 88, 2 * bytes, m);
  }
  {
    Maker m;
    const int a = m.in(dtype, {n}), b = m.in(dtype, {n});
    m.out(m.g.binary(codegen::kOp_mul, m.g.unary(codegen::kOp_silu, a), b));
    table.add("pointwise", "silu * x" + tag(dtype), 88, 3 * bytes, m);
  }
  for (int64_t row : {1024, 4096, 16384, 65536}) {
    Maker m;
    m.out(m.g.softmax(m.in(dtype, {n / row, row}), 1));
    table.add("softmax", "rows of " + std::to_string(row) + tag(dtype), 88, 2 * bytes, m);
  }
  for (int64_t row : {768, 4096, 16384}) {
    Maker m;
    const int64_t rows = n / row;
    const int x = m.in(dtype, {rows, row}), r = m.in(dtype, {rows, row}), w = m.in(dtype, {row}), b = m.in(dtype, {row});
    m.out(m.g.layer_norm(m.g.binary(codegen::kOp_add, x, r), w, b, 1e-5));
    table.add("row reduction", "residual + layer norm of " + std::to_string(row) + tag(dtype), 88,
              3.0 * static_cast<double>(rows * row * size), m);
  }
  {
    Maker m;
    m.out(m.g.reduce(codegen::kOp_sum, m.in(dtype, {n / 4096, 4096}), {1}, false));
    table.add("row reduction", "row sum of 4096" + tag(dtype), 88, bytes, m);
  }
  {
    Maker m;
    m.out(m.g.reduce(codegen::kOp_sum, m.in(dtype, {n}), {0}, false));
    table.add("row reduction", "sum of all" + tag(dtype), 88, bytes, m);
  }
  for (int64_t columns : {64, 4096}) {
    Maker m;
    m.out(m.g.reduce(codegen::kOp_sum, m.in(dtype, {n / columns, columns}), {0}, false));
    table.add("column reduction", "column sum of " + std::to_string(columns) + tag(dtype), 80, bytes, m);
  }
  {
    Maker m;
    const int64_t side = 8192, batch = n / side / side;
    const int x = m.in(dtype, {batch, side, side}),
              y = m.g.op(codegen::kOp_relayout, {m.g.permute(x, {0, 2, 1})}, dtype, {batch, side, side});
    m.out(m.g.unary(codegen::kOp_neg, y));
    table.add("transpose", "8192 x 8192" + tag(dtype), 80, 2 * bytes, m);
  }
  {
    Maker m;
    const int x = m.in(dtype, {n / 256 / 4096, 256, 64, 64});
    m.out(m.g.unary(codegen::kOp_neg, m.g.reshape(m.g.permute(x, {0, 2, 3, 1}), {n / 256, 256})));
    table.add("transpose", "channels last of 256 x 64 x 64" + tag(dtype), 80, 2 * bytes, m);
  }
  {
    Maker m;
    const int64_t filters = n / 512 / 9;
    const int x = m.in(dtype, {filters, 9, 512});
    m.out(m.g.op(codegen::kOp_relayout, {m.g.permute(x, {0, 2, 1})}, dtype, {filters, 512, 9}));
    table.add("transpose", "filters of 3 x 3 of 512" + tag(dtype), 80, 2 * bytes, m);
  }
  for (int64_t width : {64, 1024}) {
    if (width * size < 128) continue;
    Maker m;
    const int64_t rows = n / width, entries = (int64_t{1} << 30) / (width * size);  // a table of 1 GB
    const int t = m.in(dtype, {entries, width}), index = m.in(kDType_i64, {rows});
    m.out(m.g.take(t, index, 0));
    table.add("gather", "rows of " + std::to_string(width * size) + " B" + tag(dtype), 88, 2 * bytes + 8.0 * static_cast<double>(rows), m,
              entries);
  }
}

void pooling(Table& table) {
  const Dims kernel3{3, 3}, stride2{2, 2}, pad1{1, 1}, one{1, 1}, two{2, 2}, none{0, 0};
  for (bool last : {true, false}) {
    const Dims sizes{512, 64, 112, 112}, result{512, 64, 56, 56};
    auto strides = [&](const Dims& s) {
      return last ? Dims{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]} : Dims{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
    };
    Maker m;
    const int x = m.in(kDType_bf16, sizes, strides(sizes));
    const int y = m.g.op(codegen::kOp_max_pool, {x}, kDType_bf16, result,
                         {{codegen::kAttr_kernel, kernel3},
                          {codegen::kAttr_stride, stride2},
                          {codegen::kAttr_padding, pad1},
                          {codegen::kAttr_dilation, one},
                          {codegen::kAttr_ceil_mode, false}});
    m.g.set_strides(y, strides(result));
    m.out(y);
    table.add("pooling", std::string("max 3x3 by 2, ") + (last ? "channels last" : "rows") + " bf16", 80,
              2.0 * 512 * 64 * (112 * 112 + 56 * 56), m);
    Maker a;
    const int u = a.in(kDType_f32, sizes, strides(sizes));
    const int v = a.g.op(codegen::kOp_avg_pool, {u}, kDType_f32, result,
                         {{codegen::kAttr_kernel, two},
                          {codegen::kAttr_stride, two},
                          {codegen::kAttr_padding, none},
                          {codegen::kAttr_ceil_mode, false},
                          {codegen::kAttr_count_include_pad, true},
                          {codegen::kAttr_divisor, int64_t{0}}});
    a.g.set_strides(v, strides(result));
    a.out(v);
    table.add("pooling", std::string("average 2x2, ") + (last ? "channels last" : "rows") + " f32", 80,
              4.0 * 512 * 64 * (112 * 112 + 56 * 56), a);
    Maker g;
    const Dims wide{2048, 2048, 7, 7}, point{2048, 2048, 1, 1};
    const int p = g.in(kDType_bf16, wide, strides(wide));
    const int q = g.g.op(codegen::kOp_adaptive_avg_pool, {p}, kDType_bf16, point, {{codegen::kAttr_sizes, one}});
    g.out(q);
    table.add("pooling", std::string("mean of 7x7, ") + (last ? "channels last" : "rows") + " bf16", 80, 2.0 * 2048 * 2048 * 50, g);
  }
}

void segments_and_bags(Table& table) {
  const int64_t nodes = int64_t{1} << 20, edges = nodes * 8;
  for (int64_t width : {32, 128}) {
    const codegen::test::AttrList sum{
        {codegen::kAttr_dim, int64_t{0}}, {codegen::kAttr_reduce, std::string("sum")}, {codegen::kAttr_include_self, true}};
    {
      Maker m;
      const int64_t e = edges * 32 / width;
      const int self = m.in(kDType_f32, {nodes, width}), index = m.in(kDType_i64, {e}), source = m.in(kDType_f32, {e, width});
      m.out(m.g.op(codegen::kOp_index_reduce, {self, index, source}, kDType_f32, {nodes, width}, sum));
      table.add("segment reduce", "scatter-add of rows of " + std::to_string(width * 4) + " B f32", 70,
                4.0 * static_cast<double>(width) * static_cast<double>(e + 2 * nodes) + 12.0 * static_cast<double>(e), m, nodes);
    }
    {
      Maker m;
      const int64_t e = edges * 32 / width;
      const int x = m.in(kDType_f32, {nodes, width}), from = m.in(kDType_i64, {e}), to = m.in(kDType_i64, {e});
      const int zero = m.g.expand(m.g.scalar(0, x), {nodes, width});
      m.out(m.g.op(codegen::kOp_index_reduce, {zero, to, m.g.take(x, from, 0)}, kDType_f32, {nodes, width}, sum));
      table.add("segment reduce", "sums over edges of rows of " + std::to_string(width * 4) + " B f32", 70,
                4.0 * static_cast<double>(width) * static_cast<double>(e + nodes) + 20.0 * static_cast<double>(e), m, nodes);
    }
  }
  for (int64_t width : {64, 128}) {
    Maker m;
    const int64_t bags = 65536, length = 32, entries = int64_t{1} << 22;
    const int t = m.in(kDType_f32, {entries, width}), index = m.in(kDType_i64, {bags * length}), offsets = m.in(kDType_i64, {bags});
    m.out(m.g.op(codegen::kOp_embedding_bag, {t, index, offsets}, kDType_f32, {bags, width},
                 {{codegen::kAttr_mode, std::string("sum")}, {codegen::kAttr_include_last_offset, false}}));
    std::vector<int64_t> starts(static_cast<size_t>(bags));
    for (int64_t b = 0; b < bags; ++b) starts[static_cast<size_t>(b)] = b * length;
    table.add("embedding bag", "bags of 32 rows of " + std::to_string(width * 4) + " B f32", 70,
              4.0 * static_cast<double>(width) * static_cast<double>(bags * (length + 1)) + 8.0 * static_cast<double>(bags * length), m,
              entries, starts);
  }
}

// As in a decoder, where one follows another: each of several steps of a region, which may begin before the one before has ended.
constexpr int kInARow = 4;

void products(Table& table) {
  for (auto [rows, depth, columns] : {std::tuple<int64_t, int64_t, int64_t>{1, 4096, 12288},
                                      {1, 4096, 4096},
                                      {1, 4096, 22016},
                                      {1, 11008, 4096},
                                      {1, 4096, 32000},
                                      {2, 4096, 12288}}) {
    Maker m;
    for (int k = 0; k < kInARow; ++k) {
      const int x = m.in(kDType_bf16, {rows, depth}), w = m.in(kDType_bf16, {columns, depth}, {}, true);
      m.out(m.g.op(codegen::kOp_linear, {x, w}, kDType_bf16, {rows, columns}));
    }
    table.add("GEMV", std::to_string(rows) + " x " + std::to_string(depth) + " x " + std::to_string(columns) + " bf16", 88,
              2.0 * static_cast<double>(depth) * static_cast<double>(columns), m, 0, {}, kInARow);
  }
}

// Copies are not recorded: as nodes of a graph they ran at two thirds of the rate.
double copy_rate() {
  constexpr int kRepeats = 8;
  const size_t bytes = size_t{1} << 30;
  Memory from(bytes), to(bytes);
  from.fill(random_numbers(kDType_f32, 0), bytes);
  const auto copies = [&] {
    for (int r = 0; r < kRepeats; ++r) machine.driver->cuMemcpyDtoDAsync(to.at(), from.at(), bytes, machine.stream);
  };
  return 2.0 * static_cast<double>(bytes) / seconds_of(copies, kRepeats);
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) out += c == '"' || c == '\\' ? std::string("\\") + c : c == '\n' ? std::string(" ") : std::string(1, c);
  return out + "\"";
}

int run(int argc, char** argv) {
  std::string json, only, why_not;
  for (int i = 1; i < argc; i += 2) {
    const std::string key = argv[i];
    if (i + 1 == argc || (key != "--json" && key != "--only"))
      return std::fprintf(stderr, "usage: kernel_table [--json FILE] [--only PART_OF_A_NAME]\n"), 2;
    (key == "--json" ? json : only) = argv[i + 1];
  }
  if (!machine.open(why_not)) return std::fprintf(stderr, "kernel_table: no GPU to run on: %s\n", why_not.c_str()), 77;
  Table table;
  for (uint8_t dtype : {uint8_t{kDType_bf16}, uint8_t{kDType_f32}}) pointwise_and_rows(table, dtype);
  pooling(table);
  segments_and_bags(table);
  products(table);
  const double rate = copy_rate();
  std::printf(
      "%s: a copy of 1 GB reads and writes %.0f GB/s\n\n| class | kernel | us | GB/s | %% of copy | asked | how "
      "|\n|---|---|---|---|---|---|---|\n",
      machine.gpu->name.c_str(), rate / 1e9);
  std::string rows;
  int below = 0;
  for (size_t i = 0; i < table.cases.size(); ++i) {
    const Case& c = table.cases[i];
    if (!only.empty() && (c.kernel_class + " " + c.name).find(only) == std::string::npos) continue;
    const Result r = time_case(c, table.borders[i], rate);
    const bool low = !r.failure.empty() || r.share < c.bar;
    below += low;
    std::printf("| %s | %s | %.1f | %.0f | %.1f | %.0f%s | %s |\n", c.kernel_class.c_str(), c.name.c_str(), r.microseconds,
                c.bytes / r.microseconds * 1e-3, r.share, c.bar, low ? " (below)" : "", (r.failure.empty() ? r.kernel : r.failure).c_str());
    std::fflush(stdout);
    rows += std::string(rows.empty() ? "" : ",\n") + "  {\"class\": " + quoted(c.kernel_class) + ", \"kernel\": " + quoted(c.name) +
            ", \"us\": " + std::to_string(r.microseconds) + ", \"bytes\": " + std::to_string(static_cast<int64_t>(c.bytes)) +
            ", \"percent_of_copy\": " + std::to_string(r.share) + ", \"asked\": " + std::to_string(static_cast<int>(c.bar)) +
            ", \"how\": " + quoted(r.kernel) + ", \"failure\": " + quoted(r.failure) + "}";
  }
  std::printf("\n%d kernels below what is asked\n", below);
  if (!json.empty())
    std::ofstream(json) << "{\"schema\": \"keirin/kernels/1\", \"device\": " << quoted(machine.gpu->name)
                        << ", \"copy_bytes_per_s\": " << static_cast<int64_t>(rate) << ",\n \"rows\": [\n"
                        << rows << "\n]}\n";
  return 0;
}

}  // namespace
}  // namespace keirin::cuda

int main(int argc, char** argv) { return keirin::cuda::run(argc, argv); }
