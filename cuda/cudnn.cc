// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include <cudnn_frontend.h>

#include "cuda/driver.h"
#include "cuda/gpu_driver.h"
#include "plugins/gpu/aligned_copies.h"
#include "plugins/gpu/code_store.h"
#include "plugins/gpu/plan_cache.h"
#include "plugins/gpu/timer.h"
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
  graph.set_io_data_type(data_type(p.x.dtype)).set_intermediate_data_type(fe::DataType_t::FLOAT).set_compute_data_type(fe::DataType_t::FLOAT);
  TensorPtr x = add_tensor(graph, p.x, 0), w = add_tensor(graph, p.w, 1);
  TensorPtr y = graph.conv_fprop(x, w, fe::graph::Conv_fprop_attributes().set_padding(p.padding).set_stride(p.stride).set_dilation(p.dilation));
  y->set_dim(p.y.sizes).set_stride(p.y.strides);
  int64_t uid = 3;
  for (const ConvStage& stage : p.stages) {
    fe::graph::Pointwise_attributes attributes;
    attributes.set_mode(mode_of(stage.op));
    if (stage.op == ConvStage::kSilu) attributes.set_swish_beta(1.0f);
    const bool binary = stage.op == ConvStage::kAdd || stage.op == ConvStage::kMul;
    y = binary ? graph.pointwise(y, add_tensor(graph, stage.operand, uid++), attributes) : graph.pointwise(y, attributes);
    y->set_dim(p.y.sizes).set_stride(p.y.strides);
  }
  y->set_output(true).set_data_type(data_type(p.y.dtype)).set_uid(2);
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
  graph.set_io_data_type(data_type(p.q.dtype)).set_intermediate_data_type(fe::DataType_t::FLOAT).set_compute_data_type(fe::DataType_t::FLOAT);
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
  return p.new_filter || std::any_of(p.stages.begin(), p.stages.end(), [&](const ConvStage& s) { return s.operand.sizes == p.y.sizes; });
}
bool needs_fence(const HeadsProblem&) { return false; }

// What is remembered of a problem holds for this version of the library and this kind of device.
template <class Problem>
std::string choice_key(const char* what, const Problem& problem) {
  std::string ignored;
  const DriverApi* driver = DriverApi::get(ignored);
  CUdevice device = 0;
  int major = 0, minor = 0;
  driver->cuCtxGetDevice(&device);
  driver->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  driver->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  return gpu::kChoicePrefix + std::string(what) + " " + std::to_string(fe::detail::get_backend_version()) + " " + std::to_string(major * 10 + minor) + " " +
         problem.key();
}

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
class GraphPlan final : public gpu::TimedPlan {
 public:
  explicit GraphPlan(const Problem& problem) : problem_(problem) {
    const Handle handle;
    if (!handle.get()) throw kit::Error(KRN_STATUS_unsupported, "cudnnCreate failed");
    const auto good = [](fe::error_t result) {
      if (result.is_bad()) throw kit::Error(KRN_STATUS_unsupported, "cuDNN: " + result.get_message());
    };
    good(lay_out(problem, handle.get(), graph_));
    if (take_choice(handle.get())) return;
    if (graph_.get_execution_plan_count() == 0) good(list_plans(problem, graph_));
    build();
  }

  void settle() override {
    if (chosen_ < 0) choose();
    workspace_bytes_ = graph_.get_workspace_size_plan_at_index(chosen_);
    if (needs_fence(problem_)) fence_at_ = (workspace_bytes_ + 255) / 256 * 256, workspace_bytes_ = fence_at_ + 16;
    if (name_.empty()) name_ = name_at(chosen_);
  }
  int32_t run(gpu::Stream stream, std::span<void* const> addresses, void* workspace, std::string& why_not) const override {
    const Handle handle;
    if (!handle.get() || fe::detail::set_stream(handle.get(), native(stream)) != CUDNN_STATUS_SUCCESS) {
      why_not = "no cuDNN handle";
      return KRN_STATUS_internal;
    }
    const auto whole = [](void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
    if (std::all_of(addresses.begin(), addresses.end(), whole)) return execute_fenced(handle.get(), stream, addresses, workspace, why_not);
    gpu::AlignedCopies copies(gpu_driver(), addresses, stream);
    if (!copies.make(gpu::tensors_of(problem_))) {
      why_not = "no copy of a tensor that does not start at a multiple of 16 bytes";
      return KRN_STATUS_internal;
    }
    const int32_t code = execute_fenced(handle.get(), stream, copies.addresses(), workspace, why_not);
    if (code != KRN_STATUS_ok || copies.give_back(gpu::result_of(problem_))) return code;
    why_not = "the copy of its result";
    return KRN_STATUS_internal;
  }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  double seconds() const override { return seconds_; }
  std::string name() const override { return name_; }

 private:
  int32_t execute(cudnnHandle_t handle, int64_t plan, std::span<void* const> addresses, void* workspace, std::string& why_not) const {
    std::unordered_map<int64_t, void*> by_uid;
    for (size_t i = 0; i < addresses.size(); ++i) by_uid.emplace(static_cast<int64_t>(i), addresses[i]);
    auto result = graph_.execute_plan_at_index(handle, by_uid, workspace, plan);
    if (result.is_good()) return KRN_STATUS_ok;
    why_not = result.get_message();
    return KRN_STATUS_internal;
  }

  int32_t execute_fenced(cudnnHandle_t handle, gpu::Stream stream, std::span<void* const> addresses, void* workspace, std::string& why_not) const {
    if (fence(stream, workspace)) return execute(handle, chosen_, addresses, workspace, why_not);
    why_not = "the fill before it";
    return KRN_STATUS_internal;
  }

  // Engine 4 of cuDNN 9.19 is launched as a programmatic dependent of the kernel before and waits for it before it reads x, but not
  // before it reads a residual or a filter, which may then be half written. Nothing depends on a fill in that way.
  bool fence(gpu::Stream stream, void* workspace) const {
    if (fence_at_ < 0) return true;
    return gpu_driver().fill(stream, static_cast<char*>(workspace) + fence_at_, 0, 1) == 0;
  }
  bool take_choice(cudnnHandle_t handle);
  void build();
  void choose();
  std::string name_at(int64_t plan) const {
    std::string name;
    return graph_.get_plan_name_at_index(plan, name).is_good() ? name : "plan " + std::to_string(plan);
  }

  const Problem problem_;
  mutable Graph graph_;             // `execute` is const; asking a workspace size is not
  std::vector<int64_t> built_;      // places among the heuristic's answers
  int64_t chosen_ = -1;
  int64_t workspace_bytes_ = 0;
  int64_t fence_at_ = -1;           // in the workspace, behind the plan's own; -1: none is needed
  double seconds_ = 0;
  std::string name_;
};

// A plan's tensors and workspaces on a device, for timing.
class Bench {
 public:
  explicit Bench(const std::vector<const ConvTensor*>& tensors) : timer_(gpu_driver()) {
    for (const ConvTensor* t : tensors) addresses_.push_back(allocate(gpu::bytes_of(*t)));
  }

  void* allocate(int64_t bytes) {
    void* const p = timer_.memory(static_cast<size_t>(bytes / 16 * 16 + 16));
    if (!timer_.ok()) throw kit::Error(KRN_STATUS_exhausted, "no memory to time plans with");
    return p;
  }
  CUstream stream() const { return native(timer_.stream()); }
  std::span<void* const> addresses() const { return addresses_; }

  // Whether a plan of a convolution is right where x is full of one value.
  template <class Run>
  bool answers(const gpu::EdgeCase& edge, const ConvTensor& x, const ConvTensor& y, const Run& run) {
    gpu_driver().fill_words(timer_.stream(), addresses_[0], edge.bits(x.dtype), static_cast<size_t>(gpu::bytes_of(x) + 3) / 4);
    if (run() != KRN_STATUS_ok) return false;
    const int64_t size = y.dtype == kit::kDType_f32 ? 4 : 2;
    for (const int64_t at : {int64_t{0}, gpu::bytes_of(y) - size}) {
      uint32_t bits = 0;
      gpu_driver().copy_out(timer_.stream(), &bits, static_cast<char*>(addresses_[2]) + at, static_cast<size_t>(size));
      if (gpu_driver().wait(timer_.stream()) != 0 || !edge.shown_by(bits, y.dtype)) return false;
    }
    return true;
  }

  // The best of a few runs, or a negative number.
  template <class Run>
  double seconds_of(const Run& run) {
    double best = -1;
    for (int i = 0; i < 4; ++i) {
      const float ms = timer_.milliseconds_of([&] { return run() == KRN_STATUS_ok; });
      if (ms < 0) return -1;
      if (i > 0 && (best < 0 || ms * 1e-3 < best)) best = ms * 1e-3;
    }
    return best;
  }

 private:
  gpu::Timer timer_;
  std::vector<void*> addresses_;
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

// A choice is the plan's time, its place among the heuristic's answers and its name, from which it is made without asking the
// heuristics where the frontend knows the knobs; and the plan's text, where that holds code: read again in 1 ms.
template <class Problem>
bool GraphPlan<Problem>::take_choice(cudnnHandle_t handle) {
  const std::vector<char> bytes = gpu::code_store().recall(choice_key("plan", problem_));
  std::istringstream words(std::string(bytes.begin(), bytes.end()));
  int64_t place = -1;
  std::string text;
  if (!(words >> seconds_ >> place >> text)) return seconds_ = 0, false;
  if (const std::vector<char> written = gpu::code_store().recall(choice_key("text", problem_));
      !written.empty() && graph_.read_plan(handle, {written.begin(), written.end()})) {
    chosen_ = 0, name_ = text;
    return true;
  }
  const EngineName name(text);
  std::unordered_map<fe::KnobType_t, int64_t> knobs;
  for (const auto& [knob, value] : name.knobs) knobs[fe::convert_from_backend_knob_type(static_cast<cudnnBackendKnobType_t>(knob))] = value;
  const bool by_name = !knobs.count(fe::KnobType_t::NOT_SET);
  if (by_name) place = 0;
  const bool listed = by_name ? graph_.create_execution_plan(name.engine, knobs).is_good() : list_plans(problem_, graph_).is_good();
  if (!listed || place >= graph_.get_execution_plan_count() || graph_.build_plan_at_index(place).is_bad() || EngineName(name_at(place)) != name)
    return seconds_ = 0, false;
  chosen_ = place;
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

template <class Problem>
void GraphPlan<Problem>::choose() {
  const Handle handle;
  if (!handle.get()) throw kit::Error(KRN_STATUS_unsupported, "cudnnCreate failed");
  const std::vector<const ConvTensor*> tensors = gpu::tensors_of(problem_);
  const std::vector<gpu::EdgeCase> edges = gpu::edge_cases(problem_);
  try {
    Bench bench(tensors);
    fe::detail::set_stream(handle.get(), bench.stream());
    for (const int64_t i : built_) {
      void* workspace = bench.allocate(graph_.get_workspace_size_plan_at_index(i));
      std::string ignored;
      const auto run = [&] { return execute(handle.get(), i, bench.addresses(), workspace, ignored); };
      const double seconds = bench.seconds_of(run);
      if (seconds <= 0 || (chosen_ >= 0 && seconds >= seconds_)) continue;
      const auto right = [&](const gpu::EdgeCase& edge) { return bench.answers(edge, *tensors[0], *tensors[2], run); };
      if (!std::all_of(edges.begin(), edges.end(), right)) continue;
      chosen_ = i, seconds_ = seconds;
    }
  } catch (const kit::Error&) {  // no memory to time with: the library's own first choice
    if (chosen_ < 0) chosen_ = built_[0];
  }
  fe::detail::set_stream(handle.get(), nullptr);
  if (chosen_ < 0) throw kit::Error(KRN_STATUS_unsupported, "none of cuDNN's plans runs and is right for infinities, NaN and large numbers");
  const std::string choice = std::to_string(seconds_) + " " + std::to_string(chosen_) + " " + name_at(chosen_);
  gpu::code_store().remember(choice_key("plan", problem_), {choice.begin(), choice.end()});
  if (const std::string text = graph_.text_of(chosen_); text.size() >= kHoldsCode)
    gpu::code_store().remember(choice_key("text", problem_), {text.begin(), text.end()});
}

// The answer travels with artifacts: the heuristics take milliseconds, and a start asks for every convolution and epilogue.
template <class Problem>
bool supports(const Problem& problem, std::string& why_not) {
  if (why_not = cudnn_missing(); !why_not.empty()) return false;
  constexpr char kYes[] = "yes";
  const std::string key = choice_key("support", problem);
  std::vector<char> answer = gpu::code_store().recall(key);
  if (answer.empty()) {
    std::string text = kYes;
    try {
      const Handle handle;
      fe::graph::Graph graph;
      if (!handle.get()) return why_not = "cudnnCreate failed", false;
      auto bad = lay_out(problem, handle.get(), graph);
      if (bad.is_good()) bad = list_plans(problem, graph);
      if (bad.is_bad()) text = "cuDNN has no engine: " + bad.get_message();
    } catch (const std::exception& error) {
      text = std::string("cuDNN: ") + error.what();
    }
    answer.assign(text.begin(), text.end());
    gpu::code_store().remember(key, answer);
  }
  if (const std::string text(answer.begin(), answer.end()); text != kYes) why_not = text;
  return why_not.empty();
}

class Cudnn final : public gpu::PlanLibrary {
 public:
  const char* name() const override { return "cudnn"; }
  bool supports(const ConvProblem& problem, std::string& why_not) const override {
    // Engine 0 of cuDNN 9.19, often the only one that fuses it.
    if (std::any_of(problem.stages.begin(), problem.stages.end(), [](const ConvStage& s) { return s.op == ConvStage::kTanh; }))
      return why_not = "cuDNN's fused tanh of a large number is NaN", false;
    return cuda::supports(problem, why_not);
  }
  bool supports(const HeadsProblem& problem, std::string& why_not) const override { return cuda::supports(problem, why_not); }
  void prepare(std::span<const ConvProblem> convs, std::span<const HeadsProblem> heads) const override {
    if (!cudnn_missing().empty()) return;
    std::map<gpu::PlanCache::Key, gpu::PlanCache::Wanted> wanted;
    const auto want = [&](const auto& problem) {
      const auto key = gpu::PlanCache::key_here(gpu_driver(), problem.key());
      if (cache_.knows(key) || wanted.count(key)) return;
      wanted[key] = {gpu::code_store().recall(choice_key("plan", problem)).empty(), maker(problem)};
    };
    for (const HeadsProblem& problem : heads) want(problem);
    for (const ConvProblem& problem : convs) want(problem);
    cache_.prepare(gpu_driver(), wanted);
  }
  std::shared_ptr<const gpu::LibraryPlan> plan(const ConvProblem& problem) const override { return plan_for(problem); }
  std::shared_ptr<const gpu::LibraryPlan> plan(const HeadsProblem& problem) const override { return plan_for(problem); }

 private:
  // `problem` outlives the call that makes it.
  template <class Problem>
  static gpu::PlanCache::Make maker(const Problem& problem) {
    return [&problem] { return std::make_shared<GraphPlan<Problem>>(problem); };
  }

  template <class Problem>
  std::shared_ptr<const gpu::LibraryPlan> plan_for(const Problem& problem) const {
    if (!cudnn_missing().empty()) throw kit::Error(KRN_STATUS_unsupported, cudnn_missing());
    try {
      return cache_.get(gpu::PlanCache::key_here(gpu_driver(), problem.key()), maker(problem));
    } catch (const kit::Error&) {
      throw;
    } catch (const std::exception& error) {
      throw kit::Error(KRN_STATUS_unsupported, std::string("cuDNN: ") + error.what());
    }
  }

  mutable gpu::PlanCache cache_;
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
