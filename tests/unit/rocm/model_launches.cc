// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/rocm/model_launches.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>

#include "core/ir/bytes.h"
#include "core/ir/text.h"
#include "core/partition/partition.h"
#include "plugins/codegen/c_printer.h"
#include "plugins/codegen/claim.h"
#include "plugins/codegen/executable.h"
#include "plugins/codegen/rows.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/product.h"
#include "plugins/kit/tables.h"
#include "rocm/device.h"
#include "rocm/gpu_driver.h"
#include "tests/unit/codegen/array.h"
#include "tests/unit/codegen/check.h"
#include "tests/unit/cuda/host_driver.h"
#include "tests/unit/rocm/launch_writer.h"

namespace keirin::test {
namespace {

using codegen::TensorDesc;
using nlohmann::json;

constexpr double kTolerance = 8;         // of simulator_tolerance: several kernels one after the other
constexpr int64_t kIndexLimit = 200;     // every axis that an index goes into is longer
constexpr int64_t kEmulatedUnits = 16;   // few blocks: the simulator counts instructions

// Memory that kernels may name, and the file that holds what was in each piece when it was first named, or named again after a library
// had written there.
class Memory {
 public:
  explicit Memory(LaunchWriter& out) : out_(out) {}
  void add(void* base, size_t bytes) {
    if (bytes > 0) pieces_[static_cast<char*>(base)] = {bytes, ""};
  }
  void changed(const void* p) {
    if (auto* piece = find(p)) piece->second.name.clear();
  }
  // {"buffer", "offset"}; null for an address in none.
  json named(const void* p) {
    auto* piece = find(p);
    if (!piece) return {{"null", 0}};
    if (piece->second.name.empty()) piece->second.name = out_.file(piece->first, piece->second.bytes);
    return {{"buffer", piece->second.name}, {"offset", static_cast<const char*>(p) - piece->first}};
  }
  bool is_named(const void* p) {
    const auto* piece = find(p);
    return piece && !piece->second.name.empty();
  }

 private:
  struct Piece {
    size_t bytes;
    std::string name;
  };
  std::pair<char* const, Piece>* find(const void* p) {
    auto at = pieces_.upper_bound(static_cast<char*>(const_cast<void*>(p)));
    if (at == pieces_.begin()) return nullptr;
    --at;
    return static_cast<const char*>(p) < at->first + at->second.bytes ? &*at : nullptr;
  }
  LaunchWriter& out_;
  std::map<char*, Piece> pieces_;
};

int64_t elements_of(const TensorDesc& t) {
  int64_t out = 1;
  for (int64_t size : t.sizes) out *= size;
  return out;
}
int64_t extent_of(const TensorDesc& t) {
  int64_t out = 1;
  for (size_t d = 0; d < t.sizes.size(); ++d) out += (t.sizes[d] - 1) * t.strides[d];
  return out;
}

// Bytes of each parameter of a kernel, as its code object says.
std::map<std::string, std::vector<size_t>> parameters_of(const std::string& path) {
  std::map<std::string, std::vector<size_t>> out;
  std::FILE* in = popen(("llvm-readelf-19 --notes " + path + " 2> /dev/null").c_str(), "r");
  std::vector<size_t> sizes;
  size_t size = 0;
  char line[1024];
  while (in && std::fgets(line, sizeof line, in)) {
    if (const char* at = std::strstr(line, ".size:")) size = std::strtoul(at + 6, nullptr, 10);
    if (const char* at = std::strstr(line, ".value_kind:"); at && !std::strstr(at, "hidden")) sizes.push_back(size);
    const char* at = std::strstr(line, ".symbol:");
    if (!at) continue;
    std::string symbol = at + 8;
    std::erase_if(symbol, [](char c) { return c == ' ' || c == '\n' || c == '\''; });
    out[symbol.substr(0, symbol.rfind(".kd"))] = std::exchange(sizes, {});
  }
  if (in) pclose(in);
  return out;
}

// Compiles for the target; runs on emulated waves and writes down.
class WritingDriver final : public HostDriver {
 public:
  explicit WritingDriver(LaunchWriter& out) : out_(out), wave_(rocm::wave_of(out.arch())), amd_(rocm::gpu_driver(wave_)) {}

  mutable std::unique_ptr<Memory> places;  // of the region that runs
  mutable std::string label;

  const gpu::Words& words() const override { return amd_.words(); }
  std::string identity(const gpu::CodeTarget& target) const override { return "written " + target.arch; }
  std::vector<char> compile(const std::string& text, const gpu::CodeTarget&) const override {
    std::lock_guard lock(mutex_);
    std::string both = out_.code(text) + "\n" + text;
    return {both.begin(), both.end()};
  }
  gpu::Result load(const std::vector<char>& code, gpu::Module& module) const override {
    auto* made = new Module;
    const std::string all(code.begin(), code.end());
    made->code = all.substr(0, all.find('\n'));
    made->text = all.substr(made->code.size() + 1);
    made->parameters = parameters_of(out_.path_of(made->code));
    return module = reinterpret_cast<gpu::Module>(made), 0;
  }
  gpu::Result find(gpu::Module module, const std::string& symbol, gpu::Function& function) const override {
    return function = reinterpret_cast<gpu::Function>(new Function{reinterpret_cast<Module*>(module), symbol}), 0;
  }
  gpu::Result launch(const gpu::Launch& l, gpu::Stream, void** arguments) const override {
    const auto* f = reinterpret_cast<const Function*>(l.function);
    json& written = out_.launch(f->module->code, f->symbol, label + " " + f->symbol, l.blocks, l.threads);
    written["lds_bytes"] = l.shared_bytes;
    const std::vector<size_t>& bytes = f->module->parameters[f->symbol];
    const bool rows = f->symbol == "csr_rows";
    if (bytes.size() != (rows ? 5u : 2u)) throw std::runtime_error(f->symbol + " has " + std::to_string(bytes.size()) + " parameters");
    for (size_t i = 0; i < bytes.size(); ++i) written["args"].push_back(parameter(arguments[i], bytes[i], i + 1 == bytes.size(), rows && i == 0));
    if (rows) return sort_rows(arguments), 0;
    std::string wrong = f->module->on_host(*this).launch(f->symbol, l.blocks, l.threads, arguments[0], arguments[1]);
    if (!wrong.empty()) throw std::runtime_error(f->symbol + " on emulated waves: " + wrong);
    return 0;
  }
  gpu::Result allocate(size_t bytes, void*& p) const override {
    const gpu::Result result = HostDriver::allocate(bytes, p);
    std::memset(p, 0, bytes);
    if (places) places->add(p, bytes);
    return result;
  }

  // That what lies there is right after the last launch, if a launch wrote into that memory.
  void expect(const void* at, const TensorDesc& t) const {
    json* last = out_.last();
    if (!last || !places->is_named(at) || elements_of(t) != extent_of(t)) return;
    const json place = places->named(at);
    const size_t bytes = static_cast<size_t>(elements_of(t) * codegen::dtype_bytes(t.dtype));
    (*last)["expect"].push_back({{"buffer", place["buffer"]},
                                 {"offset", place["offset"]},
                                 {"file", out_.file(at, bytes)},
                                 {"dtype", simulator_type(t.dtype)},
                                 {"tol", simulator_tolerance(t.dtype, kTolerance)}});
  }

 private:
  struct Module {
    std::string code, text;
    std::map<std::string, std::vector<size_t>> parameters;
    std::unique_ptr<HostModule> host;

    // The same text on the host's prelude.
    HostModule& on_host(const WritingDriver& driver) {
      if (host) return *host;
      const std::string prelude = codegen::print_prelude(driver.words().dialect);
      if (text.compare(0, prelude.size(), prelude) != 0) throw std::runtime_error(code + " does not begin with the prelude");
      std::string error;
      host = std::make_unique<HostModule>(codegen::print_prelude(host_dialect(driver.wave_)) + text.substr(prelude.size()), error);
      if (!error.empty()) throw std::runtime_error(error);
      return *host;
    }
  };
  struct Function {
    Module* module;
    std::string symbol;
  };

  json parameter(const void* at, size_t bytes, bool pointers, bool pointer) const {
    if (pointer) return places->named(*static_cast<void* const*>(at));
    if (!pointers) return {{"raw", hex_of(at, bytes)}};
    std::vector<json> all;
    for (size_t i = 0; i < bytes / sizeof(void*); ++i) all.push_back(places->named(static_cast<void* const*>(at)[i]));
    return {{"struct", all}};
  }

  // What csr_rows does (plugins/gpu/text/rows.krn), as a plain sort; its kept copy is new here.
  static void sort_rows(void** arguments) {
    struct Arrays {
      char *state, *kept, *row_ptr, *perm, *next, *unordered;
    };
    const void* index = *static_cast<void**>(arguments[0]);
    const int wide = *static_cast<int*>(arguments[1]), edges = *static_cast<int*>(arguments[2]), rows = *static_cast<int*>(arguments[3]);
    const auto& arrays = *static_cast<const Arrays*>(arguments[4]);
    const auto row_of = [&](int e) { return wide ? static_cast<const int64_t*>(index)[e] : static_cast<const int32_t*>(index)[e]; };
    auto* start = reinterpret_cast<int32_t*>(arrays.row_ptr);
    auto* perm = reinterpret_cast<int32_t*>(arrays.perm);
    std::vector<std::vector<int32_t>> lists(static_cast<size_t>(rows));
    for (int e = 0; e < edges; ++e)
      if (row_of(e) >= 0 && row_of(e) < rows) lists[static_cast<size_t>(row_of(e))].push_back(e);
    start[0] = 0;
    for (int r = 0; r < rows; ++r) {
      std::copy(lists[static_cast<size_t>(r)].begin(), lists[static_cast<size_t>(r)].end(), perm + start[r]);
      start[r + 1] = start[r] + static_cast<int32_t>(lists[static_cast<size_t>(r)].size());
    }
  }

  LaunchWriter& out_;
  const int wave_;
  const gpu::Driver& amd_;
  mutable std::mutex mutex_;
};

// y = activation(x w + bias + residual), as a library would, in double.
class NaiveProduct final : public codegen::Step {
 public:
  NaiveProduct(const codegen::AnchorDesc& anchor, const WritingDriver& driver) : anchor_(anchor), driver_(driver) {}
  std::string describe() const override { return "a product"; }
  krn_code run(const codegen::RunContext& context) const override {
    const TensorDesc &x = anchor_.operands[0], &w = anchor_.operands[1], &y = anchor_.results[0];
    const auto base = [&](const TensorDesc& t) { return static_cast<char*>(context.buffers[t.buffer]) + t.offset * codegen::dtype_bytes(t.dtype); };
    std::vector<const TensorDesc*> read;
    for (const TensorDesc& t : anchor_.operands)
      if (t.present()) read.push_back(&t);
    for (const codegen::PostOp& post : anchor_.post_ops)
      if (post.operand.present()) read.push_back(&post.operand);
    for (const TensorDesc* t : read) driver_.expect(base(*t), *t);
    const size_t rank = y.sizes.size();
    const bool linear = anchor_.op == kit::kOp_linear;
    const int64_t depth = x.sizes.back();
    for (int64_t i = 0; i < elements_of(y); ++i) {
      std::vector<int64_t> at(rank);
      for (size_t d = rank, rest = static_cast<size_t>(i); d-- > 0;) at[d] = static_cast<int64_t>(rest) % y.sizes[d], rest /= static_cast<size_t>(y.sizes[d]);
      const auto place = [&](const TensorDesc& t, size_t axes) {
        int64_t out = 0;
        for (size_t d = 0; d < axes; ++d) out += at[d] * t.strides[d];
        return out;
      };
      double sum = linear && anchor_.operands.size() > 2 && anchor_.operands[2].present()
                       ? codegen::test::load_element(base(anchor_.operands[2]), at[rank - 1] * anchor_.operands[2].strides[0], y.dtype)
                       : 0;
      const int64_t of_x = place(x, rank - 1), of_w = linear ? at[rank - 1] * w.strides[0] : place(w, rank - 2) + at[rank - 1] * w.strides[rank - 1];
      const int64_t step_w = linear ? w.strides[1] : w.strides[rank - 2];
      for (int64_t k = 0; k < depth; ++k)
        sum += codegen::test::load_element(base(x), of_x + k * x.strides[rank - 1], x.dtype) * codegen::test::load_element(base(w), of_w + k * step_w, w.dtype);
      for (const codegen::PostOp& post : anchor_.post_ops) {
        if (post.op == kit::kOp_add) sum += codegen::test::load_element(base(post.operand), place(post.operand, rank), post.operand.dtype);
        if (post.op == kit::kOp_relu) sum = std::max(sum, 0.0);
        if (post.op == kit::kOp_gelu_tanh) sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
      }
      codegen::test::store_element(base(y), place(y, rank), y.dtype, sum);
    }
    driver_.places->changed(base(y));
    return KRN_STATUS_ok;
  }

 private:
  const codegen::AnchorDesc anchor_;
  const WritingDriver& driver_;
};

class NaiveProducts final : public gpu::ProductLibrary {
 public:
  explicit NaiveProducts(const WritingDriver& driver) : driver_(driver) {}
  bool usable(std::string&) const override { return true; }
  bool takes(uint8_t, std::string&) const override { return true; }
  std::unique_ptr<codegen::Step> make(const codegen::AnchorDesc& anchor, const gpu::ProductProblem&, bool, bool, double*) const override {
    return std::make_unique<NaiveProduct>(anchor, driver_);
  }

 private:
  const WritingDriver& driver_;
};

TensorDesc described(const codegen::Tensor& t) {
  TensorDesc out;
  out.dtype = t.dtype, out.sizes = t.sizes, out.strides = t.strides;
  return out;
}

template <class F>
void each_place(const TensorDesc& t, F f) {
  for (int64_t i = 0; i < elements_of(t); ++i) {
    int64_t rest = i, at = 0;
    for (size_t d = t.sizes.size(); d-- > 0;) at += rest % t.sizes[d] * t.strides[d], rest /= t.sizes[d];
    f(static_cast<size_t>(i), at);
  }
}

// Lists of one axis are offsets of bags as often as indices: they rise from 0. Numbers are such that sums over the last axis stay small.
std::vector<codegen::test::Values> inputs_of(const codegen::Region& region) {
  std::vector<codegen::test::Values> out = codegen::test::random_inputs(region, 5, kIndexLimit);
  for (size_t i = 0; i < out.size(); ++i) {
    const codegen::Tensor& t = region.tensors[region.inputs[i]];
    if (codegen::is_float(t.dtype) && t.sizes.size() > 1)
      for (double& x : out[i]) x = codegen::test::through_dtype(x / std::sqrt(static_cast<double>(t.sizes.back())), t.dtype);
    if (t.dtype != kit::kDType_i64 || t.sizes.size() != 1 || out[i].empty()) continue;
    std::sort(out[i].begin(), out[i].end());
    out[i][0] = 0;
  }
  return out;
}

void add_region(const std::vector<uint8_t>& bytes, const gpu::Gpu& gpu, const WritingDriver& driver) {
  const gpu::Context context(gpu);
  gpu::GpuBackend backend(gpu, &context, nullptr);
  const codegen::Region region = codegen::read_region(bytes);
  const auto made = codegen::Executable::compile(bytes, backend, {});
  const std::vector<codegen::test::Values> inputs = inputs_of(region);
  const std::vector<codegen::test::Values> expected = codegen::test::evaluate(region, inputs);
  std::vector<std::vector<char>> blocks;
  std::vector<krn_tensor> in(region.inputs.size()), outs(region.outputs.size());
  const auto block = [&](const TensorDesc& t) {
    blocks.emplace_back(static_cast<size_t>(std::max<int64_t>(extent_of(t), 1) * codegen::dtype_bytes(t.dtype)) + 256);
    char* aligned = blocks.back().data() + (256 - reinterpret_cast<uintptr_t>(blocks.back().data()) % 256) % 256;
    driver.places->add(aligned, blocks.back().size() - static_cast<size_t>(aligned - blocks.back().data()));
    return static_cast<void*>(aligned);
  };
  for (size_t i = 0; i < in.size(); ++i) {
    const TensorDesc t = described(region.tensors[region.inputs[i]]);
    in[i].data = block(t);
    each_place(t, [&](size_t e, int64_t at) { codegen::test::store_element(in[i].data, at, t.dtype, inputs[i][e]); });
  }
  for (size_t o = 0; o < outs.size(); ++o) {
    const int64_t alias = region.outputs[o].alias_input;
    outs[o].data = alias >= 0 ? in[static_cast<size_t>(alias)].data : block(described(region.tensors[region.outputs[o].tensor]));
  }
  TensorDesc workspace;
  workspace.dtype = kit::kDType_u8, workspace.sizes = {made->workspace_bytes()}, workspace.strides = {1};
  krn_run run{};
  run.inputs = in.data(), run.outputs = outs.data();
  run.num_inputs = static_cast<uint32_t>(in.size()), run.num_outputs = static_cast<uint32_t>(outs.size());
  run.workspace = block(workspace), run.workspace_bytes = static_cast<uint64_t>(made->workspace_bytes());
  if (const krn_code code = made->run(run, nullptr, nullptr, nullptr); code != KRN_STATUS_ok)
    throw std::runtime_error("the region's run ended with code " + std::to_string(code));
  for (size_t o = 0; o < outs.size(); ++o) {
    const TensorDesc t = described(region.tensors[region.outputs[o].tensor]);
    each_place(t, [&](size_t e, int64_t at) {
      const double want = expected[o][e], got = codegen::test::load_element(outs[o].data, at, t.dtype);
      if (!(std::fabs(got - want) <= 1e-3 * std::max(1.0, std::fabs(want))) && !(std::isnan(got) && std::isnan(want)))
        throw std::runtime_error("output " + std::to_string(o) + " element " + std::to_string(e) + " is " + std::to_string(got) + ", not " +
                                 std::to_string(want) + "\n" + made->describe());
    });
    driver.expect(outs[o].data, t);
  }
}

template <class T>
T value_of(Result<T> result, const std::string& what) {
  if (!result.ok()) throw std::runtime_error(what + ": " + result.status().text());
  return std::move(result).value();
}

void add_model(LaunchWriter& out, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const Graph graph = value_of(parse(std::string(std::istreambuf_iterator<char>(file), {})), path);
  const WritingDriver driver(out);
  const NaiveProducts products(driver);
  gpu::Gpu gpu = rocm::imagine_gpu(out.arch());
  gpu.driver = &driver;
  gpu.products = &products;
  gpu.plans = nullptr;
  gpu.facts.num_units = kEmulatedUnits;
  const RegionBytes whole = value_of(write_region(graph), path);
  krn_graph region;
  if (krn_graph_open(whole.bytes.data(), whole.bytes.size(), &region) != 0) throw std::runtime_error(path + ": no region");
  gpu::GpuBackend judge(gpu, nullptr, nullptr);
  Claim claim;
  for (uint32_t node : codegen::claim(region, judge).claimed.nodes) claim.ops.push_back(whole.nodes[node]);
  const Partition parts = value_of(partition(graph, {claim}), path);
  for (size_t r = 0; r < parts.regions.size(); ++r) {
    driver.places = std::make_unique<Memory>(out);
    driver.label = std::filesystem::path(path).parent_path().filename().string() + " r" + std::to_string(r);
    add_region(value_of(write_region(parts.regions[r].cut.graph), path).bytes, gpu, driver);
  }
  std::printf("%s: %zu of %zu nodes in %zu regions\n", path.c_str(), claim.ops.size(), whole.nodes.size(), parts.regions.size());
}

}  // namespace

int write_models(const std::string& folder, const std::string& arch, std::span<char* const> graphs) try {
  LaunchWriter out(folder, arch);
  for (const char* path : graphs) add_model(out, path);
  out.finish();
  std::printf("%zu launches for %s in %s\n", out.size(), arch.c_str(), folder.c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

}  // namespace keirin::test
