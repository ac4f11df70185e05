// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <unordered_map>

#include <cudnn_frontend.h>

#include "cuda/driver.h"
#include "cuda/gpu_driver.h"
#include "plugins/gpu/code_store.h"
#include "plugins/gpu/raced_plan.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend's own name for the opened library
}

namespace keirin::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Tensor_attributes>;
using Clock = std::chrono::steady_clock;
using gpu::ConvProblem;
using gpu::ConvStage;
using gpu::ConvTensor;
using gpu::HeadsProblem;

CUstream native(gpu::Stream stream) { return reinterpret_cast<CUstream>(stream); }

constexpr const char* kName = "cuDNN";
constexpr int64_t kMaxWorkspaceBytes = int64_t{1} << 28;
constexpr double kBuildSeconds = 0.3;  // of one problem: after the first plan is built, no other is begun later than this
constexpr int kMaxPlansTimed = 6;
constexpr size_t kHoldsCode = 1 << 14;  // bytes of a plan's text: those of attention take 65,000 and more
constexpr size_t kOldestCudnn = 90000;

struct Opened {
  std::string why_not;
  Opened() {
    void* library = nullptr;
    // LibTorch's own copy first: it is loaded already and its version is the one eager uses.
    for (int flags : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL})
      if (!library) library = dlopen("libcudnn.so.9", flags);
    if (!library) {
      why_not = "libcudnn.so.9 is not installed";
      return;
    }
    fe::cudnn_dlhandle = library;
    if (const size_t version = fe::detail::get_backend_version(); version < kOldestCudnn)
      why_not = "cuDNN " + std::to_string(version) + " is older than 9.0";
  }
};

// cuDNN's handle serves one thread at a time: runs take one and give it back. They are never destroyed, because a context may
// be gone before the process ends.
class Handle {
 public:
  Handle() {
    std::string ignored;
    DriverApi::get(ignored)->cuCtxGetCurrent(&context_);
    {
      std::lock_guard lock(mutex());
      std::vector<cudnnHandle_t>& idle = pool()[context_];
      if (!idle.empty()) {
        handle_ = idle.back();
        idle.pop_back();
      }
    }
    if (!handle_ && fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS) handle_ = nullptr;
  }
  ~Handle() {
    if (!handle_) return;
    std::lock_guard lock(mutex());
    pool()[context_].push_back(handle_);
  }
  Handle(const Handle&) = delete;
  cudnnHandle_t get() const { return handle_; }
  CUcontext context() const { return context_; }

 private:
  static std::mutex& mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::map<CUcontext, std::vector<cudnnHandle_t>>& pool() {
    static auto* pool = new std::map<CUcontext, std::vector<cudnnHandle_t>>;
    return *pool;
  }
  CUcontext context_ = nullptr;
  cudnnHandle_t handle_ = nullptr;
};

fe::DataType_t data_type(uint8_t dtype) {
  switch (dtype) {
    case kit::kDType_f16: return fe::DataType_t::HALF;
    case kit::kDType_bf16: return fe::DataType_t::BFLOAT16;
    default: return fe::DataType_t::FLOAT;
  }
}

fe::PointwiseMode_t mode_of(ConvStage::Op op) {
  switch (op) {
    case ConvStage::kAdd: return fe::PointwiseMode_t::ADD;
    case ConvStage::kMul: return fe::PointwiseMode_t::MUL;
    case ConvStage::kRelu: return fe::PointwiseMode_t::RELU_FWD;
    case ConvStage::kSigmoid: return fe::PointwiseMode_t::SIGMOID_FWD;
    case ConvStage::kTanh: return fe::PointwiseMode_t::TANH_FWD;
    case ConvStage::kSilu: return fe::PointwiseMode_t::SWISH_FWD;
    case ConvStage::kGelu: return fe::PointwiseMode_t::GELU_FWD;
    case ConvStage::kGeluTanh: return fe::PointwiseMode_t::GELU_APPROX_TANH_FWD;
  }
  return fe::PointwiseMode_t::IDENTITY;
}

TensorPtr add_tensor(fe::graph::Graph& graph, const ConvTensor& t, int64_t uid) {
  return graph.tensor(Tensor_attributes().set_dim(t.sizes).set_stride(t.strides).set_data_type(data_type(t.dtype)).set_uid(uid));
}

// The problem as a graph; uids are positions in the order of LibraryPlan::run's addresses.
fe::error_t lay_out(const ConvProblem& p, cudnnHandle_t handle, fe::graph::Graph& graph) {
  graph.set_io_data_type(data_type(p.x.dtype))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto given = [&](ConvProblem::Role role) { return add_tensor(graph, p.of(role), role); };
  const auto windows = [&](auto attributes) { return attributes.set_padding(p.padding).set_stride(p.stride).set_dilation(p.dilation); };
  const ConvTensor& result = p.of(p.result);
  TensorPtr y;
  switch (p.result) {
    case ConvProblem::kX:
      y = graph.conv_dgrad(given(ConvProblem::kY), given(ConvProblem::kW), windows(fe::graph::Conv_dgrad_attributes()));
      break;
    case ConvProblem::kW:
      y = graph.conv_wgrad(given(ConvProblem::kY), given(ConvProblem::kX), windows(fe::graph::Conv_wgrad_attributes()));
      break;
    case ConvProblem::kY:
      y = graph.conv_fprop(given(ConvProblem::kX), given(ConvProblem::kW), windows(fe::graph::Conv_fprop_attributes()));
      break;
  }
  y->set_dim(result.sizes).set_stride(result.strides);
  int64_t uid = 3;
  for (const ConvStage& stage : p.stages) {
    fe::graph::Pointwise_attributes attributes;
    attributes.set_mode(mode_of(stage.op));
    if (stage.op == ConvStage::kSilu) attributes.set_swish_beta(1.0f);
    const bool binary = stage.op == ConvStage::kAdd || stage.op == ConvStage::kMul;
    y = binary ? graph.pointwise(y, add_tensor(graph, stage.operand, uid++), attributes) : graph.pointwise(y, attributes);
    y->set_dim(result.sizes).set_stride(result.strides);
  }
  y->set_output(true).set_data_type(data_type(result.dtype)).set_uid(p.result);
  if (auto bad = graph.validate(); bad.is_bad()) return bad;
  return graph.build_operation_graph(handle);
}

// Its engines, best first: the library's heuristics, which take milliseconds.
fe::error_t list_plans(const ConvProblem& p, fe::graph::Graph& graph) {
  if (auto bad = graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}); bad.is_bad()) return bad;
  graph.deselect_workspace_greater_than(kMaxWorkspaceBytes);
  std::vector<fe::NumericalNote_t> unwanted{fe::NumericalNote_t::NONDETERMINISTIC, fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION,
                                            fe::NumericalNote_t::WINOGRAD, fe::NumericalNote_t::FFT};
  if (p.x.dtype == kit::kDType_f32 && !p.tf32) unwanted.push_back(fe::NumericalNote_t::TENSOR_CORE);
  graph.deselect_numeric_notes(unwanted);
  return graph.check_support();
}

fe::error_t lay_out(const HeadsProblem& p, cudnnHandle_t handle, fe::graph::Graph& graph) {
  graph.set_io_data_type(data_type(p.q.dtype))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  TensorPtr q = add_tensor(graph, p.q, 0), k = add_tensor(graph, p.k, 1), v = add_tensor(graph, p.v, 2);
  auto attributes = fe::graph::SDPA_attributes().set_attn_scale(static_cast<float>(p.scale)).set_generate_stats(false);
  if (p.causal) attributes.set_causal_mask(true);
  TensorPtr o = graph.sdpa(q, k, v, attributes)[0];
  o->set_output(true).set_dim(p.o.sizes).set_stride(p.o.strides).set_data_type(data_type(p.o.dtype)).set_uid(3);
  if (auto bad = graph.validate(); bad.is_bad()) return bad;
  return graph.build_operation_graph(handle);
}

fe::error_t list_plans(const HeadsProblem&, fe::graph::Graph& graph) {
  if (auto bad = graph.create_execution_plans({fe::HeurMode_t::A}); bad.is_bad()) return bad;
  graph.deselect_workspace_greater_than(kMaxWorkspaceBytes);
  return graph.check_support();
}

// Whether something that a kernel just before may be writing is read besides x.
bool needs_fence(const ConvProblem& p) {
  const auto is_residual = [&](const ConvStage& stage) { return stage.operand.sizes == p.of(p.result).sizes; };
  return p.new_filter || std::any_of(p.stages.begin(), p.stages.end(), is_residual);
}
bool needs_fence(const HeadsProblem&) { return false; }

// A graph whose plan can be written and read. What reads it lays out the same problem first: addresses and constants are found there.
class Graph : public fe::graph::Graph {
 public:
  // With the code that cuDNN compiled for it, if it did: that takes 30 to 500 ms, one plan at a time. Empty where cuDNN writes none.
  std::string text_of(int64_t plan) const {
    try {
      return plans.execution_plans[static_cast<size_t>(plan)]->getJsonRepresentation();
    } catch (const std::exception&) {
      return {};
    }
  }
  // Makes it plan 0. The device must be of the kind, and cuDNN of the version, that wrote the text.
  bool read_plan(cudnnHandle_t handle, const std::string& text) { return plans.build_plans(handle, text).is_good(); }
};

template <class Problem>
class GraphPlan final : public gpu::RacedPlan {
 public:
  // `text_key`: under which the chosen plan's text is remembered.
  GraphPlan(const Problem& problem, const std::string& key, std::string text_key)
      : RacedPlan(gpu_driver(), kName, problem, key, needs_fence(problem)), problem_(problem), text_key_(std::move(text_key)) {
    const Handle handle;
    lay_out_here(handle.get());
    if (const auto known = recalled(); known && (read_text(handle.get(), *known) || take_named(*known))) return;
    if (graph_.get_execution_plan_count() == 0) good(list_plans(problem, graph_));
    build();
  }

  struct Named {
    std::string engine;  // and its knobs
  };
  // Without asking the heuristics, without timing.
  GraphPlan(const Problem& problem, const std::string& key, const Named& named)
      : RacedPlan(gpu_driver(), kName, problem, key, needs_fence(problem)), problem_(problem) {
    const Handle handle;
    lay_out_here(handle.get());
    if (!take_named({0, 0, named.engine}, false) || workspace_of(0) > kMaxWorkspaceBytes)
      throw kit::Error(KRN_STATUS_unsupported, "cuDNN's engine " + named.engine + " has no plan of these sizes");
  }

  bool is_compiled() const override { return is_compiled_; }

 private:
  static void good(fe::error_t result) {
    if (result.is_bad()) throw kit::Error(KRN_STATUS_unsupported, "cuDNN: " + result.get_message());
  }
  void lay_out_here(cudnnHandle_t handle) {
    if (!handle) throw kit::Error(KRN_STATUS_unsupported, "cudnnCreate failed");
    good(lay_out(problem_, handle, graph_));
  }
  std::vector<int64_t> candidates() const override { return built_; }
  int64_t workspace_of(int64_t plan) const override { return graph_.get_workspace_size_plan_at_index(plan); }
  std::string name_of(int64_t plan) const override {
    std::string name;
    return graph_.get_plan_name_at_index(plan, name).is_good() ? name : "plan-" + std::to_string(plan);
  }
  int32_t execute(int64_t plan, gpu::Stream stream, std::span<void* const> addresses, void* workspace,
                  std::string& why_not) const override {
    const Handle handle;
    if (!handle.get() || fe::detail::set_stream(handle.get(), native(stream)) != CUDNN_STATUS_SUCCESS) {
      why_not = "no cuDNN handle";
      return KRN_STATUS_internal;
    }
    std::unordered_map<int64_t, void*> by_uid;
    for (size_t i = 0; i < addresses.size(); ++i) by_uid.emplace(static_cast<int64_t>(i), addresses[i]);
    auto result = graph_.execute_plan_at_index(handle.get(), by_uid, workspace, plan);
    if (result.is_good()) return KRN_STATUS_ok;
    why_not = result.get_message();
    return KRN_STATUS_internal;
  }
  void remember_more(int64_t plan) override {
    const std::string text = graph_.text_of(plan);
    is_compiled_ = text.size() >= kHoldsCode;
    if (is_compiled_) gpu::code_store().remember(text_key_, {text.begin(), text.end()});
  }
  bool read_text(cudnnHandle_t handle, Choice choice);
  bool take_named(Choice choice, bool may_ask = true);
  void build();

  const Problem problem_;
  const std::string text_key_;
  bool is_compiled_ = false;
  mutable Graph graph_;         // `execute` is const; asking a workspace size is not
  std::vector<int64_t> built_;  // places among the heuristic's answers
};

// "eng62_k2=4_k13=0": the engine and its knobs, which come in any order.
struct EngineName {
  int64_t engine = -1;
  std::map<int, int64_t> knobs;

  explicit EngineName(const std::string& text) {
    if (std::sscanf(text.c_str(), "eng%ld", &engine) != 1) engine = -1;
    for (size_t at = text.find("_k"); at != std::string::npos; at = text.find("_k", at + 1)) {
      int knob = 0;
      int64_t value = 0;
      if (std::sscanf(text.c_str() + at, "_k%d=%ld", &knob, &value) == 2) knobs[knob] = value;
    }
  }
  bool operator==(const EngineName&) const = default;
};

// The plan's text, where that holds code: read again in 1 ms.
template <class Problem>
bool GraphPlan<Problem>::read_text(cudnnHandle_t handle, Choice choice) {
  const std::vector<char> written = gpu::code_store().recall(text_key_);
  if (written.empty() || !graph_.read_plan(handle, {written.begin(), written.end()})) return false;
  is_compiled_ = true;
  choice.candidate = 0;
  take(choice);
  return true;
}

// A choice is the plan's time, its place among the heuristic's answers and its name, from which it is made without asking the heuristics
// where the frontend knows the knobs; else only where they `may_ask`.
template <class Problem>
bool GraphPlan<Problem>::take_named(Choice choice, bool may_ask) {
  const EngineName name(choice.name);
  std::unordered_map<fe::KnobType_t, int64_t> knobs;
  for (const auto& [knob, value] : name.knobs) knobs[fe::convert_from_backend_knob_type(static_cast<cudnnBackendKnobType_t>(knob))] = value;
  const bool by_name = !knobs.count(fe::KnobType_t::NOT_SET);
  if (!by_name && !may_ask) return false;
  if (by_name) choice.candidate = 0;
  const bool listed = by_name ? graph_.create_execution_plan(name.engine, knobs).is_good() : list_plans(problem_, graph_).is_good();
  if (!listed || choice.candidate >= graph_.get_execution_plan_count() || graph_.build_plan_at_index(choice.candidate).is_bad() ||
      EngineName(name_of(choice.candidate)) != name)
    return false;
  choice.name = name_of(choice.candidate);
  take(choice);
  return true;
}

template <class Problem>
void GraphPlan<Problem>::build() {
  const auto begin = Clock::now();
  for (int64_t i = 0; i < graph_.get_execution_plan_count() && built_.size() < kMaxPlansTimed; ++i) {
    if (!built_.empty() && std::chrono::duration<double>(Clock::now() - begin).count() > kBuildSeconds) break;
    if (graph_.build_plan_at_index(i).is_good()) built_.push_back(i);
  }
  if (built_.empty()) throw kit::Error(KRN_STATUS_unsupported, "cuDNN built no plan: " + fe::detail::get_last_error_string_());
}

// Empty, or why cuDNN names no engine.
template <class Problem>
std::string why_none(const Problem& problem) {
  const Handle handle;
  fe::graph::Graph graph;
  if (!handle.get()) throw kit::Error(KRN_STATUS_internal, "cudnnCreate failed");
  auto bad = lay_out(problem, handle.get(), graph);
  if (bad.is_good()) bad = list_plans(problem, graph);
  return bad.is_bad() ? "cuDNN has no engine: " + bad.get_message() : "";
}

class Cudnn final : public gpu::RacedLibrary {
 public:
  const char* name() const override { return "cudnn"; }
  bool supports(const ConvProblem& problem, std::string& why_not) const override {
    // Engine 0 of cuDNN 9.19, often the only one that fuses it.
    if (std::any_of(problem.stages.begin(), problem.stages.end(), [](const ConvStage& s) { return s.op == ConvStage::kTanh; }))
      return why_not = "cuDNN's fused tanh of a large number is NaN", false;
    return RacedLibrary::supports(problem, why_not);
  }
  using RacedLibrary::supports;

 private:
  const gpu::Driver& driver() const override { return gpu_driver(); }
  std::string missing() const override {
    std::string why_not;
    return DriverApi::get(why_not) ? cudnn_missing() : why_not;
  }
  std::string kind() const override {
    std::string ignored;
    const DriverApi* api = DriverApi::get(ignored);
    CUdevice device = 0;
    int major = 0, minor = 0;
    api->cuCtxGetDevice(&device);
    api->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    api->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    return std::to_string(fe::detail::get_backend_version()) + " " + std::to_string(major * 10 + minor);
  }
  std::string refusal(const ConvProblem& problem) const override { return why_none(problem); }
  std::string refusal(const HeadsProblem& problem) const override { return why_none(problem); }
  std::shared_ptr<gpu::RacedPlan> make(const ConvProblem& problem) const override { return made(problem); }
  std::shared_ptr<gpu::RacedPlan> make(const HeadsProblem& problem) const override { return made(problem); }
  std::shared_ptr<gpu::RacedPlan> make_named(const ConvProblem& problem, const std::string& name) const override {
    using Plan = GraphPlan<ConvProblem>;
    return std::make_shared<Plan>(problem, key("plan", problem), typename Plan::Named{name});
  }
  template <class Problem>
  std::shared_ptr<gpu::RacedPlan> made(const Problem& problem) const {
    return std::make_shared<GraphPlan<Problem>>(problem, key("plan", problem), key("text", problem));
  }
};

}  // namespace

const std::string& cudnn_missing() {
  static const Opened opened;
  return opened.why_not;
}

const gpu::PlanLibrary& cudnn() {
  static const auto* library = new Cudnn;  // never destroyed: a context may be gone before the process ends
  return *library;
}

}  // namespace keirin::cuda
