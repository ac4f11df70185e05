// SPDX-License-Identifier: Apache-2.0
//
// From the public documentation of MIOpen 2.20 (ROCm 5.5) and later.
#include "rocm/miopen.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <type_traits>

#include "plugins/gpu/raced_plan.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "rocm/driver.h"
#include "rocm/gpu_driver.h"

namespace keirin::rocm {
namespace {

using gpu::ConvProblem;
using gpu::ConvStage;
using gpu::ConvTensor;
using Dims = std::vector<int64_t>;

using Handle = struct MiopenHandle*;
using Tensor = struct MiopenTensor*;
using Conv = struct MiopenConv*;
using Fusion = struct MiopenFusion*;
using FusionOp = struct MiopenFusionOp*;
using Arguments = struct MiopenArguments*;

struct Solution {
  float ms;  // an estimate
  size_t workspace_bytes;
  uint64_t id;
  int32_t algorithm;
};

enum Number : int32_t {
  kHalf = 0, kFloat = 1, kBFloat16 = 5,               // types
  kCrossCorrelation = 0,                              // mode of a convolution
  kDeterministic = 1, kMathType = 3, kPedantic = 1,   // attributes of a convolution; no xf32
  kFft = 2, kWinograd = 3, kImplicitGemm = 5,         // algorithms
  kVertical = 0,                                      // direction of a fusion
  kLogistic = 1, kTanh = 2, kRelu = 3,                // activations
};

constexpr size_t kMostWorkspaceBytes = size_t{1} << 28;
constexpr const char* kWantsMemory = "MIOpen's fused kernel wants memory of its own";
constexpr size_t kMostSolutions = 64, kMostTimed = 6;

// Arguments of immediate mode begin so: the filter, the image, the convolution, the result.
#define KRN_PROBLEM Handle, Tensor, Tensor, Conv, Tensor
#define KRN_MIOPEN(X)                                                                                                         \
  X(GetVersion, int (*)(size_t*, size_t*, size_t*))                                                                           \
  X(Create, int (*)(Handle*))                                                                                                 \
  X(SetStream, int (*)(Handle, void*))                                                                                        \
  X(CreateTensorDescriptor, int (*)(Tensor*))                                                                                 \
  X(SetTensorDescriptor, int (*)(Tensor, int32_t type, int rank, const int* sizes, const int* strides))                       \
  X(DestroyTensorDescriptor, int (*)(Tensor))                                                                                 \
  X(CreateConvolutionDescriptor, int (*)(Conv*))                                                                              \
  X(InitConvolutionNdDescriptor, int (*)(Conv, int axes, const int* padding, const int* stride, const int* dilation, int32_t mode)) \
  X(SetConvolutionGroupCount, int (*)(Conv, int))                                                                             \
  X(SetConvolutionAttribute, int (*)(Conv, int32_t, int))                                                                     \
  X(DestroyConvolutionDescriptor, int (*)(Conv))                                                                              \
  X(ConvolutionForwardGetSolution, int (*)(KRN_PROBLEM, size_t most, size_t* count, Solution*))                               \
  X(ConvolutionForwardGetSolutionWorkspaceSize, int (*)(KRN_PROBLEM, uint64_t id, size_t*))                                   \
  X(ConvolutionForwardCompileSolution, int (*)(KRN_PROBLEM, uint64_t id))                                                     \
  X(ConvolutionForwardImmediate, int (*)(Handle, Tensor, const void* w, Tensor, const void* x, Conv, Tensor, void* y,         \
                                         void* workspace, size_t workspace_bytes, uint64_t id))                               \
  X(CreateFusionPlan, int (*)(Fusion*, int32_t direction, Tensor x))                                                          \
  X(DestroyFusionPlan, int (*)(Fusion))                                                                                       \
  X(CreateOpConvForward, int (*)(Fusion, FusionOp*, Conv, Tensor w))                                                          \
  X(CreateOpBiasForward, int (*)(Fusion, FusionOp*, Tensor bias))                                                             \
  X(CreateOpActivationForward, int (*)(Fusion, FusionOp*, int32_t mode))                                                      \
  X(CompileFusionPlan, int (*)(Handle, Fusion))                                                                               \
  X(FusionPlanGetWorkSpaceSize, int (*)(Handle, Fusion, size_t*, int32_t algorithm))                                          \
  X(CreateOperatorArgs, int (*)(Arguments*))                                                                                  \
  X(DestroyOperatorArgs, int (*)(Arguments))                                                                                  \
  X(SetOpArgsConvForward, int (*)(Arguments, FusionOp, const void* alpha, const void* beta, const void* w))                   \
  X(SetOpArgsBiasForward, int (*)(Arguments, FusionOp, const void* alpha, const void* beta, const void* bias))                \
  X(SetOpArgsActivForward, int (*)(Arguments, FusionOp, const void* alpha, const void* beta, double, double, double))         \
  X(ExecuteFusionPlan, int (*)(Handle, Fusion, Tensor, const void* x, Tensor, void* y, Arguments))

struct Table {
#define KRN_MEMBER(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  KRN_MIOPEN(KRN_MEMBER)
#undef KRN_MEMBER
  std::string version, why_not;  // the second is empty: it can be used

  explicit Table(const std::vector<const char*>& files) {
#define KRN_LOAD(name, ...) &&gpu::take_function(library, "miopen" #name, this->name, lacks)
    why_not = gpu::open_library("MIOpen", files, "install ROCm's miopen-hip",
                                [&](void* library, std::string& lacks) { return true KRN_MIOPEN(KRN_LOAD); });
#undef KRN_LOAD
    if (!why_not.empty()) return;
    size_t parts[3] = {};
    GetVersion(&parts[0], &parts[1], &parts[2]);
    version = std::to_string(parts[0]) + "." + std::to_string(parts[1]) + "." + std::to_string(parts[2]);
  }
};

[[noreturn]] void fail(const std::string& what, int status, krn_code code = KRN_STATUS_unsupported) {
  throw kit::Error(code, "MIOpen: " + what + ": status " + std::to_string(status));
}
void check(int status, const char* what) {
  if (status != 0) fail(what, status, KRN_STATUS_internal);
}

// MIOpen keeps the code that it loaded with a handle: one for each context, for one thread at a time, so that a run may wait for a
// compile beside it (compiles are a worker's, unless asked otherwise). Never destroyed.
class Handles {
 public:
  Handles(const Table& api, const gpu::Driver& driver) : api_(api), driver_(driver) {}

  class Turn {
   public:
    Turn(Handles& all, gpu::Stream stream) {
      Each& each = all.here();
      lock_ = std::unique_lock(each.mutex);
      if (!each.handle && all.api_.Create(&each.handle) != 0) each.handle = nullptr;
      if (each.handle && all.api_.SetStream(each.handle, stream) == 0) handle_ = each.handle;
    }
    // Null: there is none.
    Handle get() const { return handle_; }
    Handle checked() const {
      if (!handle_) throw kit::Error(KRN_STATUS_internal, "MIOpen gives no handle");
      return handle_;
    }

   private:
    std::unique_lock<std::mutex> lock_;
    Handle handle_ = nullptr;
  };

 private:
  struct Each {
    std::mutex mutex;
    Handle handle = nullptr;
  };
  Each& here() {
    gpu::ContextHandle context = nullptr;
    driver_.current(context);
    const std::lock_guard lock(mutex_);
    return by_context_[context];
  }

  const Table& api_;
  const gpu::Driver& driver_;
  std::mutex mutex_;
  std::map<gpu::ContextHandle, Each> by_context_;
};

struct Library {
  Library(const std::vector<const char*>& files, const gpu::Driver& driver) : api(files), driver(driver), handles(api, driver) {}
  const Table api;
  const gpu::Driver& driver;
  mutable Handles handles;
};

int32_t type_of(uint8_t dtype) { return dtype == kit::kDType_f16 ? kHalf : dtype == kit::kDType_bf16 ? kBFloat16 : kFloat; }

std::optional<int32_t> activation_of(ConvStage::Op op) {
  switch (op) {
    case ConvStage::kRelu: return kRelu;
    case ConvStage::kSigmoid: return kLogistic;
    case ConvStage::kTanh: return kTanh;
    default: return std::nullopt;
  }
}

// What MIOpen is never asked for, and why; empty: it may have it.
std::string never(const ConvProblem& p) {
  if (p.result != ConvProblem::kY) return "MIOpen is asked for no gradients and no transposed convolutions";
  if (p.x.sizes.size() != 4) return "MIOpen is asked for convolutions over two axes";
  for (const ConvTensor* t : {&p.x, &p.w, &p.y})
    for (int64_t size : t->sizes)
      if (size == 0) return "a convolution of nothing";
  const auto all_lie = [&](bool last) { return gpu::is_packed(p.x, last) && gpu::is_packed(p.w, last) && gpu::is_packed(p.y, last); };
  if (!all_lie(false) && !all_lie(true)) return "MIOpen takes tensors without gaps, all in one order";
  for (const ConvTensor* t : {&p.x, &p.w, &p.y})
    if (gpu::bytes_of(*t) > std::numeric_limits<int32_t>::max()) return "more than MIOpen counts";
  size_t at = 0;
  const auto is_bias = [&](const ConvStage& s) {
    return s.op == ConvStage::kAdd && s.operand.dtype == p.y.dtype && s.operand.sizes != p.y.sizes;
  };
  if (at < p.stages.size() && is_bias(p.stages[at])) ++at;
  if (at < p.stages.size() && activation_of(p.stages[at].op)) ++at;
  return at == p.stages.size() ? "" : "MIOpen fuses a bias and then an activation, nothing else";
}

// A problem in MIOpen's objects.
class Described {
 public:
  // By way of the private one, so that what was made is destroyed where this throws.
  Described(const Table& api, const ConvProblem& p) : Described(api) {
    const bool last = !(gpu::is_packed(p.x, false) && gpu::is_packed(p.w, false) && gpu::is_packed(p.y, false));
    w = add(p.w.dtype, p.w.sizes, last), x = add(p.x.dtype, p.x.sizes, last), y = add(p.y.dtype, p.y.sizes, last);
    check(api_.CreateConvolutionDescriptor(&conv), "the descriptor of a convolution");
    const std::vector<int> padding(p.padding.begin(), p.padding.end()), stride(p.stride.begin(), p.stride.end()),
        dilation(p.dilation.begin(), p.dilation.end());
    check(api_.InitConvolutionNdDescriptor(conv, static_cast<int>(padding.size()), padding.data(), stride.data(),
                                           dilation.data(), kCrossCorrelation),
          "a convolution's sizes");
    check(api_.SetConvolutionGroupCount(conv, static_cast<int>(p.x.sizes[1] / p.w.sizes[1])), "a convolution's groups");
    check(api_.SetConvolutionAttribute(conv, kDeterministic, 1), "asking for equal results every time");
    // Releases that do not know it have no xf32.
    if (!p.tf32) api_.SetConvolutionAttribute(conv, kMathType, kPedantic);
    if (!p.stages.empty() && p.stages[0].op == ConvStage::kAdd) bias = add(p.y.dtype, p.stages[0].operand.sizes, last);
  }
  ~Described() {
    for (Tensor t : tensors_) api_.DestroyTensorDescriptor(t);
    if (conv) api_.DestroyConvolutionDescriptor(conv);
  }
  Described(const Described&) = delete;

  Tensor w = nullptr, x = nullptr, y = nullptr, bias = nullptr;  // the last may be absent
  Conv conv = nullptr;

 private:
  explicit Described(const Table& api) : api_(api) {}
  Tensor add(uint8_t dtype, const Dims& sizes, bool channels_last) {
    Tensor t = nullptr;
    check(api_.CreateTensorDescriptor(&t), "the descriptor of a tensor");
    tensors_.push_back(t);
    const Dims wide = gpu::packed_strides(sizes, channels_last);
    const std::vector<int> each(sizes.begin(), sizes.end()), strides(wide.begin(), wide.end());
    check(api_.SetTensorDescriptor(t, type_of(dtype), static_cast<int>(each.size()), each.data(), strides.data()), "a tensor's sizes");
    return t;
  }

  const Table& api_;
  std::vector<Tensor> tensors_;
};

// A convolution with what follows it, as MIOpen compiles it.
class Fused {
 public:
  Fused(const Table& api, const Described& d, const ConvProblem& p) : Fused(api, d) {
    must(api_.CreateOpConvForward(plan_, &conv_, d.conv, d.w));
    if (d.bias) must(api_.CreateOpBiasForward(plan_, &bias_, d.bias));
    if (p.stages.size() > (d.bias ? 1u : 0u)) must(api_.CreateOpActivationForward(plan_, &activation_, *activation_of(p.stages.back().op)));
  }
  ~Fused() { api_.DestroyFusionPlan(plan_); }
  Fused(const Fused&) = delete;

  // Throws kit::Error where MIOpen has no such kernel.
  void compile(Handle handle) {
    must(api_.CompileFusionPlan(handle, plan_));
    size_t bytes = 0;
    if (api_.FusionPlanGetWorkSpaceSize(handle, plan_, &bytes, kImplicitGemm) == 0 && bytes > 0) wants_workspace_ = true;
  }
  bool wants_workspace() const { return wants_workspace_; }

  int run(Handle handle, std::span<void* const> addresses) const {
    const float one = 1, zero = 0;
    Arguments arguments = nullptr;
    if (const int status = api_.CreateOperatorArgs(&arguments); status != 0) return status;
    int status = api_.SetOpArgsConvForward(arguments, conv_, &one, &zero, addresses[1]);
    if (status == 0 && bias_) status = api_.SetOpArgsBiasForward(arguments, bias_, &one, &zero, addresses[3]);
    // tanh is beta * tanh(alpha * x) there; the others take none of the three.
    if (status == 0 && activation_) status = api_.SetOpArgsActivForward(arguments, activation_, &one, &zero, 1, 1, 1);
    if (status == 0) status = api_.ExecuteFusionPlan(handle, plan_, d_.x, addresses[0], d_.y, addresses[2], arguments);
    api_.DestroyOperatorArgs(arguments);
    return status;
  }

 private:
  Fused(const Table& api, const Described& d) : api_(api), d_(d) { check(api_.CreateFusionPlan(&plan_, kVertical, d.x), "a fusion plan"); }
  static void must(int status) {
    if (status != 0) fail("no fused kernel", status);
  }

  const Table& api_;
  const Described& d_;
  Fusion plan_ = nullptr;
  FusionOp conv_ = nullptr, bias_ = nullptr, activation_ = nullptr;
  bool wants_workspace_ = false;
};

// What MIOpen proposes, best first; not what transforms its operands, whose errors are larger, nor what takes much memory.
std::vector<Solution> solutions_of(const Table& api, Handle handle, const Described& d) {
  std::vector<Solution> found(kMostSolutions);
  size_t count = 0;
  if (const int status = api.ConvolutionForwardGetSolution(handle, d.w, d.x, d.conv, d.y, found.size(), &count, found.data()); status != 0)
    fail("no solution", status);
  found.resize(std::min(count, found.size()));
  std::erase_if(found, [](const Solution& s) {
    return s.algorithm == kFft || s.algorithm == kWinograd || s.workspace_bytes > kMostWorkspaceBytes;
  });
  return found;
}

class MiopenPlan final : public gpu::RacedPlan {
 public:
  MiopenPlan(const Library& library, const ConvProblem& problem, std::string key)
      : RacedPlan(library.driver, "MIOpen", problem, std::move(key), false), library_(library), described_(library.api, problem) {
    const Handles::Turn turn(library_.handles, nullptr);
    if (!problem.stages.empty()) {
      fused_.emplace(library_.api, described_, problem);
      fused_->compile(turn.checked());
      if (fused_->wants_workspace()) throw kit::Error(KRN_STATUS_unsupported, kWantsMemory);
      if (const auto known = recalled()) take(*known);
    } else if (const auto known = recalled(); !known || !take_solution(turn.checked(), *known)) {
      compile_solutions(turn.checked());
    }
  }

 private:
  std::vector<int64_t> candidates() const override {
    std::vector<int64_t> out;
    for (size_t i = 0; i < (fused_ ? 1 : solutions_.size()); ++i) out.push_back(static_cast<int64_t>(i));
    return out;
  }
  int64_t workspace_of(int64_t i) const override {
    return fused_ ? 0 : static_cast<int64_t>(solutions_[static_cast<size_t>(i)].workspace_bytes);
  }
  std::string name_of(int64_t i) const override {
    return fused_ ? "fused" : "solution-" + std::to_string(solutions_[static_cast<size_t>(i)].id);
  }

  int32_t execute(int64_t i, gpu::Stream stream, std::span<void* const> addresses, void* workspace, std::string& why_not) const override {
    const Handles::Turn turn(library_.handles, stream);
    if (!turn.get()) {
      why_not = "MIOpen gives no handle";
      return KRN_STATUS_internal;
    }
    int status = 0;
    if (fused_) {
      status = fused_->run(turn.get(), addresses);
    } else {
      const Solution& s = solutions_[static_cast<size_t>(i)];
      status = library_.api.ConvolutionForwardImmediate(turn.get(), described_.w, addresses[1], described_.x,
                                                        addresses[0], described_.conv, described_.y, addresses[2],
                                                        workspace, s.workspace_bytes, s.id);
    }
    if (status == 0) return KRN_STATUS_ok;
    why_not = "MIOpen's status " + std::to_string(status);
    return KRN_STATUS_internal;
  }

  // Without asking for all that there are.
  bool take_solution(Handle handle, Choice choice) {
    unsigned long long id = 0;
    if (std::sscanf(choice.name.c_str(), "solution-%llu", &id) != 1) return false;
    Solution s{0, 0, id, 0};
    const Described& d = described_;
    if (library_.api.ConvolutionForwardGetSolutionWorkspaceSize(handle, d.w, d.x, d.conv, d.y, id, &s.workspace_bytes) != 0 ||
        library_.api.ConvolutionForwardCompileSolution(handle, d.w, d.x, d.conv, d.y, id) != 0)
      return false;
    solutions_ = {s};
    choice.candidate = 0;
    take(choice);
    return true;
  }

  void compile_solutions(Handle handle) {
    const Described& d = described_;
    for (const Solution& s : solutions_of(library_.api, handle, d)) {
      if (solutions_.size() == kMostTimed) break;
      if (library_.api.ConvolutionForwardCompileSolution(handle, d.w, d.x, d.conv, d.y, s.id) == 0) solutions_.push_back(s);
    }
    if (solutions_.empty()) throw kit::Error(KRN_STATUS_unsupported, "MIOpen compiled no solution");
  }

  const Library& library_;
  const Described described_;
  std::optional<Fused> fused_;
  std::vector<Solution> solutions_;
};

class Miopen final : public gpu::RacedLibrary {
 public:
  Miopen(std::vector<const char*> files, const gpu::Driver& driver, std::function<std::string()> device)
      : files_(std::move(files)), driver_(driver), device_(std::move(device)) {}

  const char* name() const override { return "miopen"; }

 private:
  const gpu::Driver& driver() const override { return driver_; }
  std::string missing() const override {
    std::string why_not;
    return driver_.usable(why_not) ? library().api.why_not : why_not;
  }
  std::string kind() const override { return library().api.version + " " + device_(); }
  std::string refusal(const ConvProblem& problem) const override {
    if (std::string why = never(problem); !why.empty()) return why;
    const Handles::Turn turn(library().handles, nullptr);
    const Handle handle = turn.checked();
    try {
      const Described described(library().api, problem);
      if (problem.stages.empty()) return solutions_of(library().api, handle, described).empty() ? "MIOpen has no solution" : "";
      Fused fused(library().api, described, problem);
      fused.compile(handle);
      return fused.wants_workspace() ? kWantsMemory : "";
    } catch (const kit::Error& error) {
      return error.what();
    }
  }
  std::shared_ptr<gpu::RacedPlan> make(const ConvProblem& problem) const override {
    if (const std::string why = never(problem); !why.empty()) throw kit::Error(KRN_STATUS_unsupported, why);
    return std::make_shared<MiopenPlan>(library(), problem, key("plan", problem));
  }

  const Library& library() const {
    std::call_once(once_, [&] { library_ = std::make_unique<Library>(files_, driver_); });
    return *library_;
  }

  const std::vector<const char*> files_;
  const gpu::Driver& driver_;
  const std::function<std::string()> device_;
  mutable std::once_flag once_;
  mutable std::unique_ptr<Library> library_;
};

std::string current_device() {
  std::string ignored;
  const DriverApi* api = DriverApi::get(ignored);
  int device = 0;
  return api && api->hipGetDevice(&device) == kSuccess ? gcn_name(*api, device) : "";
}

}  // namespace

std::unique_ptr<gpu::PlanLibrary> open_miopen(std::vector<const char*> files, const gpu::Driver& driver,
                                              std::function<std::string()> device) {
  return std::make_unique<Miopen>(std::move(files), driver, std::move(device));
}

const gpu::PlanLibrary& miopen() {
  static const gpu::PlanLibrary* library = open_miopen({"libMIOpen.so.1", "libMIOpen.so"}, gpu_driver(64), current_device).release();
  return *library;
}

}  // namespace keirin::rocm
