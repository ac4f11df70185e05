// SPDX-License-Identifier: Apache-2.0
#include "core/exec/plan.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "abi/planted.h"
#include "core/base/overlap.h"
#include "core/exec/arenas.h"
#include "core/exec/memory_plan.h"
#include "core/exec/ticks.h"
#include "core/host/call/tensor_view.h"
#include "core/host/guard/watchdog.h"

namespace keirin {

// What one call in flight owns. `tensors` is by value; values in an arena that is not lent have theirs from the start, the others get it
// per call.
struct Plan::Context {
  Flight flight;
  TensorRef arena;
  std::vector<TensorRef> tensors;
  std::vector<TensorRef> outputs;  // by position in fresh_: what the last call gave away
  struct Patch {
    krn_tensor* argument;
    ValueId value;
  };
  struct Arguments {
    std::vector<krn_tensor> inputs, outputs;
    std::vector<Patch> patches;  // those whose address changes from call to call
  };
  std::vector<Arguments> arguments;  // by step; empty for eager ones
  std::vector<TensorRef> operands, results;
};

namespace {

void point(krn_tensor& t, const Tensor& tensor) {
  t.data = tensor.data();
  t.storage_bytes = static_cast<uint64_t>(tensor.storage_bytes());
}

TensorSpec spec_of(const Type& type, Device device) { return {type.dtype, type.sizes.vec(), type.strides.vec(), device}; }

}  // namespace

Plan::Plan(TensorServices& services, Device device) : services_(services), device_(device) {}

Plan::~Plan() {
  delete spare_.load();
  if (lent_) Arenas::shared().clear();
}

Plan::Extent Plan::extent_of(const Type& type) {
  return {type.dtype, static_cast<int64_t>(type.sizes.size()), type.sizes.data(), type.strides.data()};
}

bool Plan::same_sizes(const Tensor& tensor, const Extent& extent) {
  return tensor.dtype() == extent.dtype && tensor.rank() == extent.rank &&
         std::equal(extent.sizes, extent.sizes + extent.rank, tensor.sizes());
}

bool Plan::same_strides(const Tensor& tensor, const Extent& extent) {
  const int64_t* strides = tensor.strides();
  for (int64_t d = 0; d < extent.rank; ++d)
    if (extent.sizes[d] > 1 && strides[d] != extent.strides[d]) return false;
  return true;
}

Result<std::unique_ptr<Plan>> Plan::make(const Graph& graph, std::vector<PlanStep> steps, const std::vector<TensorRef>& weights,
                                         TensorServices& services, Device device) {
  std::unique_ptr<Plan> plan(new Plan(services, device));
  plan->steps_ = std::move(steps);
  plan->outputs_ = graph.outputs;
  plan->types_.reserve(graph.values.size());
  for (const Value& value : graph.values) plan->types_.push_back(value.type);
  plan->classify(graph, weights);
  KRN_TRY(plan->bring_fixed(graph));
  plan->expect(graph.inputs);
  plan->place();
  // One context now: a plan that cannot get its arena is refused here and not on the first request.
  KRN_TRY_LET(auto context, plan->make_context());
  plan->idle_.push_back(std::move(context));
  return plan;
}

void Plan::classify(const Graph& graph, const std::vector<TensorRef>& weights) {
  slots_.resize(graph.values.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.kind == ValueKind::kInput) slots_[v].kind = Slot::kInput, slots_[v].input = value.index;
    if (value.kind == ValueKind::kConstant || value.kind == ValueKind::kState)
      slots_[v].kind = Slot::kFixed, slots_[v].fixed = weights[value.index];
  }
  in_place_.assign(slots_.size(), 0);
  for (PlanStep& step : steps_) {
    step.targets.resize(step.results.size(), kNone);
    for (size_t r = 0; r < step.results.size(); ++r) {
      if (step.targets[r] != kNone) in_place_[step.targets[r]] = 1;
      else slots_[step.results[r]].kind = step.executable ? Slot::kArena : Slot::kEager;
    }
  }
  for (const PlanStep& step : steps_)
    if (step.executable)
      for (ValueId v : step.operands) slots_[v].region_reads = true;
  for (const PlanStep& step : steps_) {
    if (step.executable) continue;
    const bool of_kept = step.may_alias && std::ranges::any_of(step.operands, [&](ValueId v) { return v != kNone && slots_[v].kept; });
    for (ValueId v : step.results) slots_[v].kept = step.keeps_results || of_kept;
  }
  // The user keeps his outputs after the call: they are not the arena's. Updates are copied out of it before the call ends.
  for (const Output& output : outputs_)
    if (output.updates == kNone && slots_[output.value].kind == Slot::kArena) slots_[output.value].kind = Slot::kFresh;
  for (ValueId v = 0; v < slots_.size(); ++v) {
    if (slots_[v].kind == Slot::kEager) eager_values_.push_back(v);
    if (slots_[v].kind == Slot::kArena) arena_values_.push_back(v);
  }
}

Status Plan::bring_fixed(const Graph& graph) {
  for (size_t v = 0; v < slots_.size(); ++v) {
    Slot& slot = slots_[v];
    if (slot.kind != Slot::kFixed) continue;
    if (slot.region_reads && slot.fixed) {
      if (graph.values[v].kind == ValueKind::kState && slot.fixed->device() != device_)  // a copy would not be written
        return Status(Code::k_unsupported,
                      "a state of the model lies on " + device_name(slot.fixed->device()) + ", not on " + device_name(device_));
      KRN_TRY(bring(slot.fixed));
    }
    fixed_.push_back(slot.fixed);
  }
  return {};
}

void Plan::expect(const std::vector<ValueId>& inputs) {
  for (ValueId v : inputs) expected_.push_back({v, slots_[v].input, slots_[v].region_reads, extent_of(types_[v])});
  for (ValueId v = 0; v < slots_.size(); ++v)
    if (slots_[v].kind == Slot::kFresh) fresh_.push_back({v, 0, false, extent_of(types_[v])});
  only_regions_ = std::all_of(steps_.begin(), steps_.end(), [](const PlanStep& step) { return step.executable != nullptr; });
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const Output& output = outputs_[i];
    const auto same = [&](const Output& other) { return other.value == output.value; };
    only_fresh_ &= output.updates == kNone && slots_[output.value].kind == Slot::kFresh &&
                   std::none_of(outputs_.begin(), outputs_.begin() + static_cast<ptrdiff_t>(i), same);
  }
  size_t num_dims = 0;
  for (const auto* list : {&expected_, &fresh_})
    for (const Expected& each : *list) num_dims += 2 * static_cast<size_t>(each.extent.rank);
  dims_.reserve(num_dims);  // so that no address changes
  for (auto* list : {&expected_, &fresh_})
    for (Expected& each : *list)
      for (const int64_t** dims : {&each.extent.sizes, &each.extent.strides})
        *dims = &*dims_.insert(dims_.end(), *dims, *dims + each.extent.rank);
}

void Plan::place() {
  const int32_t end = static_cast<int32_t>(steps_.size());
  std::vector<int32_t> last(slots_.size(), -1);
  for (const Output& output : outputs_) last[output.value] = end;
  // Backwards, so that what a result is still needed for is known when its operands are looked at: a view keeps them alive.
  for (int32_t s = end; s-- > 0;) {
    int32_t until = s;
    if (!steps_[s].executable && steps_[s].may_alias && !KRN_PLANTED(alias_ignored))
      for (ValueId v : steps_[s].results) until = std::max(until, last[v]);
    for (ValueId v : steps_[s].operands)
      if (v != kNone) last[v] = std::max(last[v], until);
  }
  released_.assign(steps_.size(), {});
  std::vector<ValueId> values;
  std::vector<Lifetime> lifetimes;
  for (int32_t s = 0; s < end; ++s)
    for (size_t r = 0; r < steps_[s].results.size(); ++r) {
      const ValueId v = steps_[s].results[r];
      const int32_t until = std::max(last[v], s);
      if (steps_[s].targets[r] != kNone) continue;
      if (slots_[v].kind == Slot::kArena) values.push_back(v), lifetimes.push_back({span_bytes(types_[v]), s, until});
      if (slots_[v].kind == Slot::kEager && until < end) released_[until].push_back(v);
    }
  MemoryPlan plan = plan_memory(lifetimes);
  for (size_t i = 0; i < values.size(); ++i) slots_[values[i]].offset = plan.offsets[i];

  int64_t workspace = 0;
  for (const PlanStep& step : steps_)
    if (step.executable) workspace = std::max(workspace, static_cast<int64_t>(step.executable->workspace_bytes()));
  workspace_offset_ = (plan.total_bytes + kPlanAlignment - 1) / kPlanAlignment * kPlanAlignment;
  arena_bytes_ = workspace_offset_ + workspace;
  lent_ = device_.kind == Device::kCpu && arena_bytes_ >= Arenas::kLeastBytes;
}

Result<std::unique_ptr<Plan::Context>> Plan::make_context() {
  auto context = std::make_unique<Context>();
  context->tensors.resize(slots_.size());
  context->outputs.resize(fresh_.size());
  if (lent_) {
    KRN_TRY(borrow_arena(*context));
    return_arena(*context);
  } else {
    if (arena_bytes_ > 0) {
      KRN_TRY_LET(context->arena, services_.allocate({DType::k_u8, {arena_bytes_}, {}, device_}));
    }
    KRN_TRY(bind_arena(*context));
  }
  for (size_t v = 0; v < slots_.size(); ++v)
    if (slots_[v].kind == Slot::kFixed) context->tensors[v] = slots_[v].fixed;
  context->arguments.resize(steps_.size());
  for (size_t s = 0; s < steps_.size(); ++s) {
    if (!steps_[s].executable) continue;
    Context::Arguments& arguments = context->arguments[s];
    arguments.inputs.reserve(steps_[s].operands.size());  // patches point into both
    arguments.outputs.reserve(steps_[s].results.size());
    auto add = [&](ValueId v, std::vector<krn_tensor>& list, uint32_t flags) {
      list.push_back(view_of(types_[v], device_, flags));
      if (context->tensors[v]) point(list.back(), *context->tensors[v]);
      else arguments.patches.push_back({&list.back(), v});
    };
    for (ValueId v : steps_[s].operands) add(v, arguments.inputs, KRN_TENSOR_READ_ONLY);
    for (size_t r = 0; r < steps_[s].results.size(); ++r)
      add(steps_[s].targets[r] != kNone ? steps_[s].targets[r] : steps_[s].results[r], arguments.outputs, 0);
  }
  return context;
}

Status Plan::bind_arena(Context& context) {
  char* base = context.arena ? static_cast<char*>(context.arena->data()) : nullptr;  // null: all of them are empty
  for (ValueId v : arena_values_) {
    KRN_TRY_LET(context.tensors[v], services_.wrap(spec_of(types_[v], device_), base + slots_[v].offset, context.arena));
  }
  return {};
}

Status Plan::borrow_arena(Context& context) {
  if (device_.kind == Device::kCpu) {
    KRN_TRY_LET(context.arena, Arenas::shared().take(services_, arena_bytes_));
  } else {  // work of the last call may still use its own
    KRN_TRY_LET(context.arena, services_.allocate({DType::k_u8, {arena_bytes_}, {}, device_}));
  }
  return bind_arena(context);
}

void Plan::return_arena(Context& context) {
  for (ValueId v : arena_values_) context.tensors[v].reset();
  if (context.arena && device_.kind == Device::kCpu) Arenas::shared().give_back(std::move(context.arena));
  context.arena.reset();
}

Result<std::unique_ptr<Plan::Context>> Plan::take_context() {
  if (std::unique_ptr<Context> spare{spare_.exchange(nullptr)}) return spare;
  return another_context();
}

Result<std::unique_ptr<Plan::Context>> Plan::another_context() {
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto context = std::move(idle_.back());
      idle_.pop_back();
      return context;
    }
  }
  return make_context();
}

void Plan::give_back(std::unique_ptr<Context> context) {
  // A walk over all tensors would cost tens of microseconds.
  for (const Expected& each : expected_) context->tensors[each.value].reset();
  for (ValueId v : eager_values_) context->tensors[v].reset();
  context->operands.clear();  // the last eager step's, the caller's tensors among them
  context->results.clear();
  for (size_t i = 0; i < fresh_.size(); ++i) {
    TensorRef output = std::move(context->tensors[fresh_[i].value]);
    if (device_.kind == Device::kCpu) context->outputs[i] = std::move(output);
  }
  if (lent_) return_arena(*context);
  context.reset(spare_.exchange(context.release()));
  if (context) keep(std::move(context));
}

void Plan::keep(std::unique_ptr<Context> context) {
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(context));
}

void Plan::lend_arena() {
  if (lent_ || arena_bytes_ < Arenas::kLeastBytes) return;
  trim();  // those have their own
  lent_ = true;
}

void Plan::trim() {
  delete spare_.exchange(nullptr);
  if (lent_) Arenas::shared().clear();
  std::lock_guard lock(mutex_);
  idle_.clear();
}

// A region reads its device's memory. LibTorch's operators may answer on another one: a single number, which it takes along from anywhere.
Status Plan::bring(TensorRef& tensor) {
  if (tensor->device() == device_) return {};
  KRN_TRY_LET(tensor, services_.to_device(tensor, device_));
  return {};
}

// A region's inputs have binding strides: what comes with others is copied.
Status Plan::conform(Context& context, ValueId v) {
  TensorRef& tensor = context.tensors[v];
  // Along a stride of 0 one element stands for all: only that one is memory to copy into.
  TensorSpec own = spec_of(types_[v], device_);
  TensorSpec given{own.dtype, own.sizes, {tensor->strides(), tensor->strides() + tensor->rank()}, own.device};
  for (size_t d = 0; d < own.sizes.size(); ++d)
    if (own.strides[d] == 0) own.sizes[d] = given.sizes[d] = std::min<int64_t>(own.sizes[d], 1);
  KRN_TRY_LET(const TensorRef from, services_.wrap(given, tensor->data(), tensor));
  KRN_TRY_LET(const TensorRef copy, services_.allocate(own));
  KRN_TRY(services_.copy(copy, from));
  KRN_TRY_LET(tensor, services_.wrap(spec_of(types_[v], device_), copy->data(), copy));
  return {};
}

Status Plan::too_few(size_t inputs) const {
  return Status(Code::k_invalid_input, "the model takes " + std::to_string(expected_.size()) + " inputs, got " + std::to_string(inputs));
}

Status Plan::unexpected(uint32_t input) const {
  return Status(Code::k_invalid_input, "input " + std::to_string(input) + " is not of the sizes this plan was made for");
}

Status Plan::bind_inputs(Context& context, const std::vector<TensorRef>& inputs) {
  if (inputs.size() < expected_.size()) return too_few(inputs.size());
  for (const Expected& each : expected_) {
    const TensorRef& tensor = inputs[each.input];
    if (!tensor || (!same_sizes(*tensor, each.extent) && !KRN_PLANTED(stale_guard))) return unexpected(each.input);
    // The caller's reference lasts for the call: no other is counted unless an eager step may hand it on.
    context.tensors[each.value] = only_regions_ ? TensorRef(TensorRef(), tensor.get()) : tensor;
    if (each.region_reads) KRN_TRY(bring(context.tensors[each.value]));
    if (each.region_reads && !same_strides(*tensor, each.extent) && !KRN_PLANTED(strides_unchecked)) KRN_TRY(conform(context, each.value));
  }
  return {};
}

Status Plan::bind_outputs(Context& context) {
  for (size_t i = 0; i < fresh_.size(); ++i) {
    const Expected& each = fresh_[i];
    // What the caller got last time and has let go of serves again: new memory costs page faults, and asking for it runs code
    // that the kernels have pushed out of the caches. Not on a GPU, where he may have work in flight that still reads it.
    TensorRef& last = context.outputs[i];
    if (last && services_.unshared(last) && same_sizes(*last, each.extent) && same_strides(*last, each.extent)) {
      context.tensors[each.value] = std::move(last);
      continue;
    }
    KRN_TRY(allocate_output(context, i));
  }
  return {};
}

Status Plan::allocate_output(Context& context, size_t i) {
  context.outputs[i].reset();
  KRN_TRY_LET(context.tensors[fresh_[i].value], services_.allocate(spec_of(types_[fresh_[i].value], device_)));
  return {};
}

std::vector<size_t> Plan::bind_given(Context& context, const std::vector<TensorRef>& given) {
  std::vector<size_t> taken;
  auto to = given.begin();
  for (const Output& output : outputs_) {
    if (output.updates != kNone) continue;
    if (to == given.end()) break;
    const TensorRef& tensor = *to++;
    const auto fresh = std::find_if(fresh_.begin(), fresh_.end(), [&](const Expected& each) { return each.value == output.value; });
    if (!tensor || fresh == fresh_.end() || !same_sizes(*tensor, fresh->extent) || !same_strides(*tensor, fresh->extent) ||
        reinterpret_cast<uintptr_t>(tensor->data()) % kOutputAlignment != 0)
      continue;
    const auto index = static_cast<size_t>(fresh - fresh_.begin());
    if (std::find(taken.begin(), taken.end(), index) != taken.end()) continue;  // another output is the same value
    // What was at hand for it waits for the next call.
    context.outputs[index] = std::exchange(context.tensors[output.value], tensor);
    taken.push_back(index);
  }
  return taken;
}

Status Plan::run_region(Context& context, size_t s) {
  Context::Arguments& arguments = context.arguments[s];
  for (const Context::Patch& patch : arguments.patches) point(*patch.argument, *context.tensors[patch.value]);
  void* workspace = context.arena ? static_cast<char*>(context.arena->data()) + workspace_offset_ : nullptr;
  Executable& executable = *steps_[s].executable;
  context.flight.enter(executable);
  const bool spins = KRN_PLANTED(slow_region) && device_.kind == Device::kCpu;  // on a GPU its kernels do
  const auto begin = spins ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
  Status status = executable.run(arguments.inputs.data(), static_cast<uint32_t>(arguments.inputs.size()), arguments.outputs.data(),
                                 static_cast<uint32_t>(arguments.outputs.size()), workspace, services_.current_stream(device_));
  if (spins) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    while (std::chrono::steady_clock::now() - begin < took * (1 + KRN_PLANTED_SHARE())) {
    }
  }
  context.flight.leave();
  return status;
}

Status Plan::run_eager(Context& context, size_t s) {
  const PlanStep& step = steps_[s];
  context.operands.clear();
  for (ValueId v : step.operands) context.operands.push_back(v == kNone ? nullptr : context.tensors[v]);
  context.results.clear();
  KRN_TRY(step.eager(context.operands, context.results));
  if (context.results.size() != step.results.size())
    return Status(Code::k_internal, step.name + " returned " + std::to_string(context.results.size()) + " results, not " +
                                        std::to_string(step.results.size()));
  for (size_t r = 0; r < step.results.size(); ++r) {
    const ValueId v = step.results[r];
    if (!context.results[r]) continue;  // an undefined result that nobody reads
    const Extent extent = extent_of(types_[v]);
    if (slots_[v].region_reads && !same_sizes(*context.results[r], extent))
      return Status(Code::k_invalid_input, step.name + " returned other sizes than the file says");
    context.tensors[v] = std::move(context.results[r]);
    if (slots_[v].region_reads) KRN_TRY(bring(context.tensors[v]));
    if (slots_[v].region_reads && !same_strides(*context.tensors[v], extent)) KRN_TRY(conform(context, v));
  }
  return {};
}

Status Plan::collect(Context& context, const std::vector<TensorRef>& inputs, std::vector<TensorRef>& outputs) {
  auto in_arena = [&](const TensorRef& t) {
    if (!context.arena || !t->data() || KRN_PLANTED(arena_escapes)) return false;
    auto p = static_cast<const char*>(t->data()), base = static_cast<const char*>(context.arena->data());
    return p >= base && p < base + arena_bytes_;
  };
  const auto storage_of = [&](const Output& update) -> const TensorRef& {
    const Slot& target = slots_[update.updates];
    return target.kind == Slot::kInput ? inputs[target.input] : target.fixed;
  };
  // What an update below is going to overwrite: views that eager steps made of it need the old content.
  const auto is_overwritten = [&](const TensorRef& t) {
    return std::any_of(outputs_.begin(), outputs_.end(), [&](const Output& update) {
      return update.updates != kNone && !KRN_PLANTED(state_view_kept) && ranges_meet(*t, *storage_of(update));
    });
  };
  std::vector<TensorRef> contents;
  // Where what is looked through for each output lies, asked once: of a training step there are hundreds on either side.
  using Bytes = std::pair<uintptr_t, uintptr_t>;
  std::vector<Bytes> before, given;
  const auto meets = [](const Bytes& at, const std::vector<Bytes>& others) {
    return at.first != at.second && std::any_of(others.begin(), others.end(), [&](const Bytes& other) {
             return at.first < other.second && other.first < at.second && other.first != other.second;
           });
  };
  const auto callers = [&](const std::vector<TensorRef>& inputs) -> const std::vector<Bytes>& {
    if (given.empty())
      for (const std::vector<TensorRef>* list : {&inputs, &std::as_const(fixed_)})
        for (const TensorRef& tensor : *list)
          if (tensor) given.push_back(byte_range(*tensor));
    return given;
  };
  for (const Output& output : outputs_) {
    if (output.updates != kNone) {
      // Written in place already, unless the region was given a copy of an input with other strides.
      TensorRef content = context.tensors[in_place_[output.updates] ? output.updates : output.value];
      if (content != storage_of(output) && is_overwritten(content)) {
        KRN_TRY_LET(content, services_.clone(content));
      }
      contents.push_back(std::move(content));
      continue;
    }
    // What is an input itself goes back as the caller's own tensor, also where a region read a copy with other strides.
    const Slot& slot = slots_[output.value];
    TensorRef tensor = slot.kind == Slot::kInput ? inputs[slot.input] : context.tensors[output.value];
    // A fresh tensor where eager gives one: neither the arena's, nor an input or weight that a no-op in the graph led to, nor a step's own.
    const bool borrowed = (slot.kind == Slot::kInput || slot.kind == Slot::kFixed || slot.kept) && output.alias_of == kNone;
    const Bytes at = tensor ? byte_range(*tensor) : Bytes();
    // An eager step may have made a view of an input or a weight; what an output before this one is may be asked for twice.
    const bool lent = slot.kind == Slot::kEager && output.alias_of == kNone && tensor && !KRN_PLANTED(state_view_kept) &&
                      meets(at, callers(inputs));
    const bool shared = tensor && ((slot.kind != Slot::kFresh && (borrowed || in_arena(tensor))) || lent ||
                                   (output.alias_of == kNone && meets(at, before)));
    if (shared) {
      KRN_TRY_LET(tensor, services_.clone(tensor));
    }
    if (outputs_.size() > 1 && tensor) before.push_back(shared ? byte_range(*tensor) : at);
    outputs.push_back(std::move(tensor));
  }
  // State last: until here a failure has changed nothing.
  size_t next = 0;
  for (const Output& output : outputs_) {
    if (output.updates == kNone) continue;
    const TensorRef& content = contents[next++];
    if (content != storage_of(output) && !KRN_PLANTED(state_not_written)) KRN_TRY(services_.copy(storage_of(output), content));
  }
  return {};
}

// What the failure in a step, or after it, means for the caller.
Status Plan::failed(size_t step, bool after, Status status) const {
  const auto in_place = [](const PlanStep& s) {
    return std::any_of(s.targets.begin(), s.targets.end(), [](ValueId v) { return v != kNone; });
  };
  const std::string name = "step " + steps_[step].name;
  // A region that updates the caller's memory only when it is done has not begun; nor one that refuses what it is given.
  const bool intact = !after && steps_[step].executable &&
                      (steps_[step].executable->info().inputs_intact || status.code() == Code::k_invalid_input);
  if (std::none_of(steps_.begin(), steps_.begin() + static_cast<ptrdiff_t>(step) + !intact, in_place)) return std::move(status).at(name);
  return Status(Code::k_half_done, Message{status.message().what + "; the state was being updated already", name,
                                           "the call is not repeated: it would update the state twice", "load the model again"});
}

Status Plan::run_steps(Context& context, std::vector<double>* step_us, const uint64_t* count) {
  const auto now = [count] { return count ? __atomic_load_n(count, __ATOMIC_RELAXED) : ticks(); };
  for (size_t s = 0; s < steps_.size(); ++s) {
    const uint64_t start = now();
    Status status = steps_[s].executable ? run_region(context, s) : run_eager(context, s);
    if (!status.ok()) return failed(s, false, std::move(status));
    if (!only_regions_)
      for (ValueId v : released_[s]) context.tensors[v].reset();
    if (!step_us) continue;
    KRN_TRY(services_.synchronize(device_));
    step_us->push_back(static_cast<double>(now() - start) * (count ? 1e-3 : microseconds_per_tick()));
  }
  return {};
}

Result<std::vector<TensorRef>> Plan::execute(const std::vector<TensorRef>& inputs, std::vector<double>* step_us, const uint64_t* count,
                                             const std::vector<TensorRef>* given) {
  KRN_TRY_LET(std::unique_ptr<Context> context, take_context());
  std::vector<TensorRef> outputs;
  outputs.reserve(outputs_.size());
  Status status = lent_ ? borrow_arena(*context) : Status();
  if (status.ok()) status = bind_inputs(*context, inputs);
  if (status.ok()) status = bind_outputs(*context);
  std::vector<size_t> taken;
  if (status.ok() && given) taken = bind_given(*context, *given);
  if (status.ok()) {
    // Before the kernels, while all of this is still in the caches.
    if (only_fresh_)
      for (const Output& output : outputs_) outputs.push_back(context->tensors[output.value]);
    status = run_steps(*context, step_us, count);
    if (status.ok() && !only_fresh_) {
      status = collect(*context, inputs, outputs);
      if (!status.ok() && !steps_.empty()) status = failed(steps_.size() - 1, true, std::move(status));
    }
  }
  for (size_t i : taken) context->tensors[fresh_[i].value] = std::move(context->outputs[i]);  // the caller's memory is not ours to keep
  give_back(std::move(context));
  if (!status.ok()) return status;
  return outputs;
}

Result<std::vector<TensorRef>> Plan::run(const std::vector<TensorRef>& inputs) { return execute(inputs, nullptr, nullptr); }

Result<std::vector<TensorRef>> Plan::run_into(const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& given) {
  return execute(inputs, nullptr, nullptr, &given);
}

Result<std::vector<TensorRef>> Plan::run_timed(const std::vector<TensorRef>& inputs, std::vector<double>& step_us, const uint64_t* count) {
  step_us.clear();
  step_us.reserve(steps_.size());
  return execute(inputs, &step_us, count);
}

}  // namespace keirin
