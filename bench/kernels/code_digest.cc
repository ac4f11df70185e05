// SPDX-License-Identifier: Apache-2.0
//
// One line for each piece of code that the plugins generate: what it is, its bytes, its SHA-256. Two builds whose lines
// are equal compile the same kernels into the same code, so that a change which moves things about can show that it
// changed nothing. No device is asked: the GPU is imagined, NVRTC makes its code, and what a library would run is left
// out.
//
//   KEIRIN_DUMP=dir keirin explain model.pt2     writes dir/NN-write_bodies.ir, the graph as plugins see it
//   code_digest [--texts] [--processors] GRAPH.ir ...
//
// Lines begin with `code` (a code object by kernel), `text` (what the compiler got), `own` (a kernel written by hand)
// or `plan` (the steps of a region). --texts leaves the compilers out: equal texts for one compiler are equal code, in
// seconds. --processors leaves GPUs out. Objects hold several kernels, as many as the machine's cores make sensible:
// compare on one machine.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/sha256.h"
#include "core/ir/bytes.h"
#include "core/ir/text.h"
#include "core/partition/partition.h"
#include "cpu/device.h"
#include "cpu/vendor.h"
#include "cuda/device.h"
#include "cuda/gpu_driver.h"
#include "cuda/nvrtc.h"
#include "plugins/codegen/kernel/rows.h"
#include "plugins/codegen/plan/compiled_region.h"
#include "plugins/codegen/region/claim.h"
#include "plugins/codegen/text/c_printer.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/rnn.h"
#include "plugins/gpu/stem.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "plugins/processor/backend.h"
#include "tests/unit/cuda/anchor_cases.h"
#include "tests/unit/cuda/kernel_cases.h"
#include "tests/unit/cuda/rnn_case.h"

namespace keirin {
namespace {

std::set<std::string> lines;  // sorted, each once
bool only_texts = false;
bool only_processors = false;

void digest(const std::string& what, const void* bytes, size_t size) {
  lines.insert(what + " " + std::to_string(size) + " " + hex(sha256(bytes, size)));
}
template <class Bytes>
void digest(const std::string& what, const Bytes& bytes) {
  digest(what, bytes.data(), bytes.size());
}

const codegen::Dialect& dialect() { return cuda::gpu_driver().words().dialect; }

// Stands where a library's call would.
class NoStep final : public codegen::Step {
 public:
  explicit NoStep(std::string text) : text_(std::move(text)) {}
  krn_code run(const codegen::RunContext&) const override { return KRN_STATUS_internal; }
  std::string describe() const override { return text_; }

 private:
  std::string text_;
};

// A backend all of whose anchors lower: into nothing, where it has no library for them here.
class WithoutLibraries final : public codegen::Backend {
 public:
  // `device` null: a CPU's backend, whose anchors are all a library's.
  WithoutLibraries(codegen::Backend& inner, const gpu::Gpu* device, const std::string& target)
      : inner_(inner), device_(device), target_(target) {}
  const codegen::TargetInfo& target() const override { return inner_.target(); }
  bool supports(uint32_t op, uint8_t dtype, std::string& why_not) const override {
    return inner_.supports(op, dtype, why_not);
  }
  bool takes_anchor(const codegen::AnchorDesc& a, std::string& why_not) const override {
    return inner_.takes_anchor(a, why_not);
  }
  bool takes_post_op(const codegen::AnchorDesc& a, const codegen::PostOp& post) const override {
    return inner_.takes_post_op(a, post);
  }
  std::string together_key(const codegen::Kernel& k) const override { return inner_.together_key(k); }
  std::vector<std::unique_ptr<codegen::Step>> lower_kernels(std::span<const codegen::Together> of_steps,
                                                            const codegen::CompileContext& context,
                                                            uint32_t& generated) override {
    if (!only_texts || !device_) return inner_.lower_kernels(of_steps, context, generated);
    std::vector<std::unique_ptr<codegen::Step>> steps;
    for (const codegen::Together& kernels : of_steps) {
      const codegen::Kernel& k = *kernels[0];
      for (const gpu::Room& room : gpu::rooms_of(kernels, device_->facts)) {
        const std::string name = gpu::CodeNames(k, gpu::code_target(*device_, context.policy)).of(room.schedule);
        digest("text " + target_ + " " + name,
               codegen::print_prelude(dialect()) + codegen::print_kernel(k, room.schedule, dialect(), name));
      }
      const codegen::Schedule schedule = codegen::choose_schedule(k, device_->facts);
      steps.push_back(std::make_unique<NoStep>("kernel " + k.name + " " + codegen::describe_schedule(k, schedule)));
    }
    return steps;
  }
  std::shared_ptr<const codegen::AnchorChoice> choose_anchor(const codegen::AnchorDesc& a) const override {
    if (!device_) return nullptr;
    try {
      return inner_.choose_anchor(a);
    } catch (const kit::Error&) {  // by a library, at a layout that it does not take
      return nullptr;
    }
  }
  std::unique_ptr<codegen::Step> lower_anchor(const codegen::ChosenAnchor& anchor,
                                              const codegen::CompileContext& context) override {
    const codegen::AnchorDesc& a = *anchor.desc;
    const std::string left_out =
        "library call of op " + std::to_string(a.op) + " with " + std::to_string(a.post_ops.size()) + " more";
    if (!device_ || !anchor.choice) return std::make_unique<NoStep>(left_out);
    const auto& choice = static_cast<const gpu::Choice&>(*anchor.choice);
    if (only_texts) return text_of(choice.kernel, left_out);
    if (choice.shares) return std::make_unique<NoStep>(left_out);  // its library wants a device before it says no
    try {
      return inner_.lower_anchor(anchor, context);
    } catch (const kit::Error&) {
      return std::make_unique<NoStep>(left_out);
    }
  }
  bool joins(std::span<const codegen::AnchorDesc* const> those, const codegen::AnchorDesc& next) const override {
    return inner_.joins(those, next);
  }
  std::unique_ptr<codegen::Step> lower_joined(std::span<const codegen::AnchorDesc* const> anchors,
                                              const codegen::CompileContext& context) override {
    std::string why_not;
    return only_texts ? text_of(gpu::joined_kernel(anchors, *device_, why_not), why_not)
                      : inner_.lower_joined(anchors, context);
  }
  std::unique_ptr<codegen::Step> lower_csr(const codegen::Csr& csr, const codegen::CompileContext& context) override {
    return only_texts && device_ ? std::make_unique<NoStep>("csr") : inner_.lower_csr(csr, context);
  }
  void save_code(std::span<const codegen::Together> steps, std::vector<uint8_t>& out) const override {
    inner_.save_code(steps, out);
  }
  void load_code(std::span<const uint8_t> bytes) override { inner_.load_code(bytes); }

 private:
  std::unique_ptr<codegen::Step> text_of(const std::optional<gpu::TextKernel>& kernel,
                                         const std::string& otherwise) const {
    if (kernel) digest("text " + target_ + " " + kernel->what, gpu::whole_text(*kernel, cuda::gpu_driver()));
    return std::make_unique<NoStep>(kernel ? kernel->what : otherwise);
  }

  codegen::Backend& inner_;
  const gpu::Gpu* device_;
  const std::string target_;
};

struct Model {
  std::string name;
  Graph graph;
};

bool ok(const Status& status, const std::string& what) {
  if (!status.ok()) std::fprintf(stderr, "%s: %s\n", what.c_str(), status.message().what.c_str());
  return status.ok();
}

// Texts of modules by the name of their first kernel, from what the backend dumps.
krn_code KRN_CALL take_text(void* ctx, const void* data, uint64_t size) {
  const std::string text(static_cast<const char*>(data), size);
  digest("text " + *static_cast<const std::string*>(ctx) + " " + text.substr(3, text.find('\n') - 3), text);
  return KRN_STATUS_ok;
}

using SavedCode = void (*)(const codegen::CompiledRegion&, const codegen::Backend&, const std::string&);

bool digest_model(const Model& model, codegen::Backend& backend, uint32_t numerics, const std::string& target,
                  const gpu::Gpu* device, SavedCode saved) {
  Result<RegionBytes> whole = write_region(model.graph);
  if (!whole.ok()) return ok(whole.status(), model.name);
  krn_graph region;
  if (krn_graph_open(whole->bytes.data(), whole->bytes.size(), &region) != 0) return false;
  const codegen::ClaimResult claimed = codegen::claim(region, backend);
  Claim claim;
  for (uint32_t node : claimed.claimed.nodes) claim.ops.push_back(whole->nodes[node]);
  lines.insert("plan " + target + " " + model.name + " claims " + std::to_string(claim.ops.size()) + " of " +
               std::to_string(whole->nodes.size()));
  Result<Partition> parts = partition(model.graph, {claim});
  if (!parts.ok()) return ok(parts.status(), model.name);
  for (size_t r = 0; r < parts->regions.size(); ++r) {
    Result<RegionBytes> bytes = write_region(parts->regions[r].cut.graph);
    if (!bytes.ok()) return ok(bytes.status(), model.name);
    krn_sink sink{};
    sink.ctx = const_cast<std::string*>(&target);
    sink.write = take_text;
    krn_options options{};
    options.hdr.size = sizeof options;
    options.dump = &sink;
    krn_policy policy{};
    policy.numerics = numerics;
    codegen::CompileContext context;
    context.options = &options;
    context.policy = &policy;
    WithoutLibraries all(backend, device, target);
    try {
      const auto made = codegen::CompiledRegion::compile(bytes->bytes, all, context);
      const std::string steps = made->describe();
      size_t begin = 0, count = 0;
      for (size_t end; (end = steps.find('\n', begin)) != std::string::npos; begin = end + 1) {
        char place[40];
        std::snprintf(place, sizeof place, " r%02zu.%03zu ", r, count++);
        lines.insert("plan " + target + " " + model.name + place + steps.substr(begin, end - begin));
      }
      saved(*made, backend, target);
    } catch (const kit::Error& error) {
      lines.insert("plan " + target + " " + model.name + " r" + std::to_string(r) + " refused: " + error.what());
    }
  }
  return true;
}

void digest_cpu(const std::vector<Model>& models) {
  const krn_policy policy{};
  for (const char* target : {"x86-64-v3", "x86-64-v4"}) {
    std::string why_not;
    processor::Found found;
    found.features = cpu::kAvx2 | cpu::kAvx512;
    const auto machine = processor::make_machine(cpu::isa(), found, target, why_not);
    for (const Model& model : models) {
      processor::Backend backend(*machine, nullptr, cpu::make_onednn(*machine, policy, true));
      digest_model(model, backend, KRN_NUMERICS_DEFAULT, target, nullptr,
                   [](const codegen::CompiledRegion& made, const codegen::Backend& with, const std::string& name) {
                     for (const codegen::Together& kernel : made.kernels()) {
                       std::vector<uint8_t> record;  // [u32 bytes of the symbol][symbol]...
                       with.save_code({&kernel, 1}, record);
                       uint32_t symbol = 0;
                       std::copy_n(record.begin(), sizeof symbol, reinterpret_cast<uint8_t*>(&symbol));
                       digest("code " + name + " " + std::string(record.begin() + 4, record.begin() + 4 + symbol),
                              record);
                     }
                   });
    }
  }
}

codegen::TensorDesc dense(uint32_t buffer, uint8_t dtype, std::vector<int64_t> sizes) {
  codegen::TensorDesc t;
  t.buffer = buffer, t.dtype = dtype, t.strides.assign(sizes.size(), 1), t.sizes = std::move(sizes);
  for (size_t i = t.sizes.size() - 1; i-- > 0;) t.strides[i] = t.strides[i + 1] * t.sizes[i + 1];
  return t;
}

codegen::AnchorDesc first_convolution(uint8_t dtype, int64_t channels, int64_t taps, int64_t stride) {
  codegen::AnchorDesc a;
  a.op = kit::kOp_conv;
  a.operands = {dense(0, dtype, {2, channels, 32, 32}), dense(1, dtype, {8, channels, taps, taps}),
                codegen::TensorDesc{}};
  const int64_t size = (32 - taps) / stride + 1;
  a.results = {dense(2, dtype, {2, 8, size, size})};
  a.results[0].strides = {8 * size * size, 1, 8 * size, 8};
  a.stride = {stride, stride}, a.padding = {0, 0}, a.dilation = {1, 1};
  return a;
}

// Kernels written by hand: those of the tests' anchors, of recurrent layers, of convolutions with few channels.
void digest_own(const std::string& target, const gpu::Gpu& device, const gpu::CodeTarget& code) {
  const auto own = [&](const std::string& name, const std::optional<gpu::TextKernel>& kernel,
                       const std::string& why_not) {
    if (!kernel) return (void)lines.insert("own " + target + " " + name + " refused: " + why_not);
    if (only_texts)
      digest("text " + target + " " + name + ", " + kernel->what, gpu::whole_text(*kernel, cuda::gpu_driver()));
    else
      digest("own " + target + " " + name + ", " + kernel->what,
             cuda::compile_cubin(gpu::whole_text(*kernel, cuda::gpu_driver()), code));
    std::string launches = "plan " + target + " " + name + ", " + kernel->what;
    for (const auto& l : kernel->launches)
      launches += " " + l.symbol + " " + std::to_string(l.blocks) + "x" + std::to_string(l.threads) + "+" +
                  std::to_string(l.shared_bytes) + (l.together ? "t" : "");
    launches += " workspace " + std::to_string(kernel->workspace_bytes) + (kernel->early ? " early" : "") + " sizes";
    for (int64_t size : kernel->sizes) launches += " " + std::to_string(size);
    lines.insert(launches);
  };
  std::string why_not;
  for (const test::AnchorCase& c : test::anchor_cases()) {
    const auto kernel = gpu::own_kernel(c.anchor, device, KRN_NUMERICS_DEFAULT, why_not);
    own(c.name, kernel, why_not);
  }
  for (uint32_t op : {kit::kOp_lstm, kit::kOp_gru})
    for (uint8_t dtype : {kit::kDType_bf16, kit::kDType_f16})
      for (const auto& [batch, hidden] : {std::pair<int64_t, int64_t>{64, 1024}, {3, 8}, {16, 264}, {64, 512}}) {
        const codegen::AnchorDesc a = test::rnn_anchor(op, dtype, 5, batch, 24, hidden);
        const std::string name =
            "recurrent " + std::to_string(int{dtype}) + " " + std::to_string(batch) + "x" + std::to_string(hidden);
        const bool taken = gpu::rnn_taken(a, device, KRN_NUMERICS_DEFAULT, why_not);
        own(name, taken ? std::optional(gpu::rnn_kernel(a, 0, 0, device, KRN_NUMERICS_DEFAULT)) : std::nullopt, why_not);
      }
  for (uint8_t dtype : {kit::kDType_bf16, kit::kDType_f32})
    for (const auto& [channels, taps, stride] :
         {std::tuple<int64_t, int64_t, int64_t>{3, 7, 2}, {1, 5, 3}, {3, 4, 4}}) {
      const auto stem = gpu::stem_of(first_convolution(dtype, channels, taps, stride), KRN_NUMERICS_DEFAULT);
      own("first convolution of " + std::to_string(channels), stem ? std::optional(stem->regroup) : std::nullopt,
          "is none");
    }
}

void digest_cuda(const std::string& arch, uint32_t numerics, const std::vector<Model>& models) {
  krn_policy policy{};
  policy.numerics = numerics;
  const gpu::Gpu device = cuda::imagine_gpu(arch);
  const gpu::CodeTarget code = gpu::code_target(device, &policy);
  const std::string target = arch + (numerics == KRN_NUMERICS_STRICT ? "-strict"
                                     : numerics == KRN_NUMERICS_FAST ? "-fast"
                                                                     : "");
  lines.insert("plan " + target + " identity " + code.identity());
  for (const Model& model : models) {
    gpu::GpuBackend backend(device, nullptr, &policy);
    digest_model(model, backend, numerics, target, &device,
                 [](const codegen::CompiledRegion&, const codegen::Backend&, const std::string&) {});
  }
  digest_own(target, device, code);
  if (numerics == KRN_NUMERICS_STRICT) return;
  std::vector<gpu::CodeStore::Wanted> wanted;
  const std::vector<test::KernelCase> cases = test::kernel_cases(515);
  for (const test::KernelCase& c : cases)
    for (const codegen::Schedule& s : test::schedules_for(c.kernel, device.facts.max_cluster > 1)) {
      const std::string name = gpu::CodeNames(c.kernel, code).of(s);
      if (only_texts)
        digest("text " + target + " " + name,
               codegen::print_prelude(dialect()) + codegen::print_kernel(c.kernel, s, dialect(), name));
      else
        wanted.push_back({&c.kernel, s, name});
      if (!only_texts) break;  // the chosen one: all of them take minutes
    }
  gpu::code_store().compile(wanted, code, [&](const std::string& symbol, const std::string& text) {
    digest("text " + target + " " + symbol, text);
  });
}

// Everything that was made for a GPU.
void digest_store() {
  for (const std::string& each : gpu::code_store().names_from("")) {
    const std::vector<char> bytes = gpu::code_store().recall(each);
    // A hand-written one is named by a hash of its text; equal code from another text is equal code.
    const bool by_text = each.rfind(gpu::kTextPrefix, 0) == 0;
    digest("code " + std::string(by_text ? "by hand" : each), bytes);
  }
}

}  // namespace
}  // namespace keirin

int main(int argc, char** argv) {
  using namespace keirin;
  std::vector<Model> models;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--texts") {
      only_texts = true;
      continue;
    }
    if (std::string_view(argv[i]) == "--processors") {
      only_processors = true;
      continue;
    }
    std::ifstream file(argv[i], std::ios::binary);
    Result<Graph> graph = parse(std::string(std::istreambuf_iterator<char>(file), {}));
    if (!graph.ok()) return ok(graph.status(), argv[i]), 1;
    const std::string path = argv[i], name = path.substr(path.rfind('/') + 1);
    models.push_back({name.substr(0, name.rfind('.')), std::move(*graph)});
  }
  if (!only_texts) digest_cpu(models);
  std::string why_not;
  if (!only_processors && !cuda::Nvrtc::get(why_not))
    return std::fprintf(stderr, "no NVRTC: %s (set KEIRIN_NVRTC)\n", why_not.c_str()), 1;
  try {
    if (!only_processors) {
      digest_cuda("sm_90", KRN_NUMERICS_DEFAULT, models);
      digest_cuda("sm_80", KRN_NUMERICS_DEFAULT, models);
      digest_cuda("sm_90", KRN_NUMERICS_STRICT, models);
      digest_store();
    }
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
  for (const std::string& line : lines) std::puts(line.c_str());
  return 0;
}
