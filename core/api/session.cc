// SPDX-License-Identifier: Apache-2.0
#include "core/api/session.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <set>

#include "abi/planted.h"
#include "core/api/chain.h"
#include "core/api/decide.h"
#include "core/api/decision_thread.h"
#include "core/api/devices.h"
#include "core/api/enter.h"
#include "core/api/events.h"
#include "core/api/free_sizes.h"
#include "core/api/kept_ranges.h"
#include "core/api/session_impl.h"
#include "core/api/signature.h"
#include "core/base/background.h"
#include "core/base/overlap.h"
#include "core/base/sha256.h"
#include "core/capture/import/importer.h"
#include "core/eager/tensor_services.h"
#include "core/eager/weights/load_weights.h"
#include "core/base/request.h"
#include "core/host/plugins.h"
#include "core/tune/inputs.h"

namespace keirin {

Session::Impl::Impl(Runtime& runtime, Options given)
    : runtime(runtime), options(std::move(given)), plans(std::make_shared<std::atomic<Plans>>(options.plans)) {}
Session::Impl::~Impl() = default;

std::shared_ptr<const Decision> Session::Impl::find(const std::vector<TensorRef>& inputs) const {
  const auto now = table.now();
  if (now->empty()) return nullptr;
  const auto fits = [&](const Decision& decision) { return decision.admits.admits(inputs); };
  const std::shared_ptr<const Decision>* const found = now->find(CallGuard::key_of(inputs), fits);
  return found ? *found : nullptr;
}

// Of the sizes that ranges hold, those used longest ago go, until `bytes` more are within the option. What eager answers holds little and
// was never used. How many went.
size_t Session::Impl::make_room(PlanTable<Decision>::List& decisions, int64_t bytes) const {
  const auto most = static_cast<int64_t>(options.plan_memory * (1 << 20));
  std::vector<std::pair<uint64_t, const Decision*>> by_use;
  int64_t held = bytes;
  for (const auto& each : decisions) {
    if (each->bytes == 0) continue;
    held += each->bytes;
    by_use.emplace_back(each->guard ? each->guard->last_used.load(std::memory_order_relaxed) : 0, each.get());
  }
  if (held <= most || KRN_PLANTED(plans_kept)) return 0;
  std::sort(by_use.begin(), by_use.end());
  std::set<const Decision*> gone;
  for (const auto& [use, decision] : by_use) {
    if (held <= most) break;
    held -= decision->bytes;
    gone.insert(decision);
  }
  std::erase_if(decisions, [&](const auto& each) { return gone.count(each.get()) > 0; });
  return gone.size();
}

void Session::Impl::publish(std::shared_ptr<const Decision> decision) {
  std::optional<std::vector<TensorSpec>> evicted;
  size_t let_go = 0;
  table.change([&](auto& decisions) {
    std::erase_if(decisions, [&](const auto& old) { return old->admits.same_inputs(decision->admits); });
    const auto counts = [](const auto& each) { return each->bytes == 0; };
    if (decision->bytes > 0) {
      let_go = make_room(decisions, decision->bytes);
    } else if (std::count_if(decisions.begin(), decisions.end(), counts) >= options.max_shapes) {
      const auto oldest = std::find_if(decisions.begin(), decisions.end(), counts);
      evicted = (*oldest)->admits.specs();
      decisions.erase(oldest);
    }
    decisions.push_back(std::move(decision));
  });
  if (let_go > 0) ranges.let_go(let_go);
  if (evicted)
    add_reason(*evicted,
               "forgotten: " + std::to_string(options.max_shapes) +
                   " decisions are kept (max_shapes) and this was the oldest; eager answers such calls until they are compiled again");
}

void Session::Impl::revoke(const CallGuard& calls, const std::string& why) {
  publish(std::make_shared<Decision>(Decision{CallGuard(calls.specs()), {}, {}}));
  add_reason(calls.specs(), "revoked: " + why);
}

void Session::Impl::revoke(const std::shared_ptr<const SizeRange>& range, const std::string& why) {
  // First the range, so that none of its sizes is entered again by its choice. What was wrong at one size is not asked at any other.
  if (!ranges.close(range->piece.choice, why)) return;
  drop_range_plans(range->piece.choice);
  keep_closed_ranges(*this);  // or the next process would take it over open
  tell(Event::Kind::kChanged, kWarning, "a range of sizes was closed: " + why);
  const std::lock_guard lock(report_mutex);
  if (!reports.empty()) reports.back().reasons.push_back("a range of sizes was closed: " + why);
}

void Session::Impl::drop_range_plans(const std::string& choice) {
  table.change([&](auto& decisions) {
    std::erase_if(decisions, [&](const auto& each) { return each->range && each->range->piece.choice == choice; });
  });
}

Result<CheckedSizes> Session::Impl::check(const Sizes& sizes, bool anew) {
  KRN_TRY_LET(const std::vector<TensorRef> inputs, draw(1, sizes));
  const std::lock_guard lock(compile_mutex);
  gives_way = true;
  decides_anew = anew;
  keep_freed_memory();
  Result<ModelReport> report = decide(*this, inputs, true);
  runtime.plugins().release_devices();
  give_back_memory();
  if (!report.ok()) return report.status();
  return CheckedSizes{sizes, report->chosen, !report->disturbed.empty(), std::move(report->candidates), report->warm_start_seconds > 0};
}

Status Session::Impl::enter(const std::shared_ptr<const SizeRange>& range, const std::vector<TensorRef>& inputs) {
  const std::lock_guard lock(compile_mutex);
  gives_way = enters = true;
  Status status = keirin::enter(*this, range, inputs);
  enters = false;
  if (ranges.is_closed(range->piece.choice)) drop_range_plans(range->piece.choice);  // closed while this plan was made
  return status;
}

std::shared_ptr<const Decision> Session::Impl::enter_at_once(const std::vector<TensorRef>& inputs) {
  if (!has_pattern.load(std::memory_order_acquire)) return nullptr;
  std::vector<TensorSpec> specs;
  for (const TensorRef& input : inputs) specs.push_back(spec_of(*input));
  const Sizes sizes = range_sizes(specs);
  if (sizes.empty()) return nullptr;
  const std::shared_ptr<const SizeRange> range = ranges.find(sizes);
  if (!range || !ranges.pays_at_once(sizes)) return nullptr;
  const std::unique_lock lock(compile_mutex, std::try_to_lock);
  if (!lock.owns_lock()) {  // eager does not wait for it
    ranges.left_to_eager("something else was being decided");
    return nullptr;
  }
  gives_way = false;
  const Status status = keirin::enter_at_once(*this, range, inputs);
  if (!status.ok()) ranges.left_to_eager(status.message().what);
  if (ranges.is_closed(range->piece.choice)) drop_range_plans(range->piece.choice);
  return status.ok() ? find(inputs) : nullptr;
}

void Session::Impl::add_reason(const std::vector<TensorSpec>& inputs, const std::string& reason) {
  tell(Event::Kind::kChanged, kWarning, reason);
  std::vector<std::string> texts;
  for (const TensorSpec& spec : inputs) texts.push_back(spec_text(spec));
  std::lock_guard lock(report_mutex);
  for (size_t i = reports.size(); i-- > 0;)
    if (reports[i].inputs == texts) return reports[i].reasons.push_back(reason);
}

void Session::Impl::note_undecided(const std::vector<TensorSpec>& inputs, const std::string& reason) {
  tell(Event::Kind::kChanged, kNote, reason);
  note(inputs, "eager", reason);
}

void Session::Impl::note(const std::vector<TensorSpec>& inputs, const std::string& chosen, const std::string& reason) {
  ModelReport report;
  report.model = name;
  report.device = device_name(device);
  report.mode = options.mode;
  report.threads = runtime.tensors().num_threads();
  report.sizes = free_sizes(inputs);
  for (const TensorSpec& spec : inputs) report.inputs.push_back(spec_text(spec));
  report.chosen = chosen;
  report.verified = true;
  report.eager_share = chosen == "eager" ? 1 : 0;
  report.reasons.push_back(reason);
  const std::lock_guard lock(report_mutex);
  reports.push_back(std::move(report));
}

bool Session::Impl::in_segments(const std::vector<TensorRef>& inputs) const {
  if (!chain || options.force == "eager") return false;
  if (std::find(inputs.begin(), inputs.end(), nullptr) != inputs.end()) return false;  // `decide` says which
  std::vector<TensorSpec> specs;
  for (const TensorRef& input : inputs) specs.push_back(spec_of(*input));
  return !import_graph(model->program, weights, specs, device).ok();
}

Result<std::vector<TensorRef>> Session::Impl::draw(uint64_t seed, const std::vector<int64_t>& symbol_sizes) {
  TensorServices& services = runtime.tensors();
  KRN_TRY_LET(ExampleShapes shapes, example_shapes(model->program, symbol_sizes));
  if (!KRN_PLANTED(sizes_unchecked)) KRN_TRY(check_sizes(symbol_sizes, shapes.specs));
  std::vector<TensorRef> inputs;
  if (rules) {
    if (rules->inputs.size() < shapes.specs.size())
      return Status(Code::k_corrupt, "the file has rules for " + std::to_string(rules->inputs.size()) + " inputs, the model takes " +
                                         std::to_string(shapes.specs.size()));
    for (size_t i = 0; i < shapes.specs.size(); ++i) {
      KRN_TRY_LET(const InitRule rule, rule_at(rules->inputs, i, shapes.specs));
      KRN_TRY_LET(TensorRef drawn, keirin::draw(services, shapes.specs[i], rule, rules->seed + seed, "input" + std::to_string(i)));
      KRN_TRY_LET(drawn, services.to_device(drawn, device));
      inputs.push_back(std::move(drawn));
    }
    return inputs;
  }
  // Without rules the facts of the graph say what values are legal; what cannot be imported gets plain ones.
  if (auto captured = import_graph(model->program, weights, shapes.specs, device); captured.ok())
    return make_inputs(captured->graph, services, {seed, 0, device, {}});
  KRN_TRY_LET(inputs, draw_inputs(model->program, rules, services));
  for (TensorRef& input : inputs) {
    KRN_TRY_LET(input, services.to_device(input, device));
  }
  return inputs;
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

namespace {

// Options, name and device; the file and the weights are the caller's to add.
Result<std::unique_ptr<Session::Impl>> begin_session(Runtime& runtime, std::string name, const Options& options) {
  KRN_TRY_LET(Options complete, complete_options(options));
  KRN_TRY_LET(const NamedDevice device, find_device(complete.device, runtime.plugins()));
  if (!device.plugin.empty()) complete.plugins = {device.plugin};
  KRN_TRY(check_plugin_names(complete, runtime.plugins()));
  auto impl = std::make_unique<Session::Impl>(runtime, std::move(complete));
  if (options.mode == "max-performance" && options.numerics == Numerics::kDefault) impl->options.numerics = Numerics::kFast;
  impl->name = std::move(name);
  impl->device = device.device;
  return impl;
}

// The weights that the file itself holds, on the device.
Status load_own_weights(Session::Impl& impl) {
  KRN_TRY_LET(impl.rules, read_initial_values(impl.file));
  KRN_TRY_LET(const WeightTable on_cpu, load_weights(*impl.model, impl.rules, impl.runtime.tensors()));
  KRN_TRY_LET(impl.weights, on_cpu.to_device(impl.runtime.tensors(), impl.device));
  return {};
}

Status make_eager(Session::Impl& impl) {
  impl.segments = pt2::find_segments(impl.model->program);
  const bool in_segments = impl.segments.needed() && !impl.segments.all.empty();
  KRN_TRY_LET(impl.eager, EagerProgram::make(impl.model->program, impl.weights, impl.device, in_segments ? &impl.segments : nullptr));
  if (in_segments) impl.chain = std::make_unique<Chain>(impl, impl.segments);
  KRN_TRY_LET(impl.buckets, Buckets::make(impl));
  if (impl.options.compile != When::kNow) {
    impl.decisions = std::make_unique<DecisionThread>(impl);
    impl.decisions->begin();
  }
  return {};
}

// Makes inputs of the program its weights.
Status hold_weights(Session::Impl& impl, pt2::Program& program, const std::vector<Session::HeldWeight>& held) {
  if (held.empty()) return {};
  program.digest.clear();
  std::vector<pt2::InputSpec*> inputs;
  for (pt2::InputSpec& input : program.inputs)
    if (input.kind == pt2::InputSpec::Kind::kUserInput) inputs.push_back(&input);
  // The arguments that stay inputs keep their names and guards, where each argument is one tensor; else the call is flat.
  std::vector<bool> is_held(inputs.size());
  for (const Session::HeldWeight& weight : held)
    if (weight.input < inputs.size()) is_held[weight.input] = true;
  const auto drop = [&](auto& list) {
    size_t at = 0;
    std::erase_if(list, [&](const auto&) { return is_held[at++]; });
  };
  pt2::TreeSpec* args = program.in_spec.children.size() == 2 ? &program.in_spec.children[0] : nullptr;
  program.has_tree_specs = program.has_tree_specs && args && args->children.size() == inputs.size() &&
                           program.in_spec.num_leaves() == inputs.size() && program.forward_arg_names.size() == inputs.size();
  if (program.has_tree_specs) {
    drop(args->children);
    drop(program.forward_arg_names);
  }
  uint32_t first_storage = 0;
  for (size_t i = 0; i < impl.weights.size(); ++i) first_storage = std::max(first_storage, impl.weights[i].storage + 1);
  for (const Session::HeldWeight& weight : held) {
    const pt2::TensorArg* tensor = weight.input < inputs.size() ? inputs[weight.input]->arg.get<pt2::TensorArg>() : nullptr;
    if (!tensor || !weight.tensor || impl.weights.find(weight.name))
      return Status(Code::k_invalid_input, {"weight \"" + weight.name + "\" is not a tensor input of the program, or is given twice",
                                            impl.name, "nothing was loaded", "name each weight once, by the position of its input"});
    if (weight.tensor->device() != impl.device)
      return Status(Code::k_invalid_input, {"weight \"" + weight.name + "\" is on " + device_name(weight.tensor->device()) +
                                                ", the model is on " + device_name(impl.device),
                                            impl.name, "nothing was loaded", "move the weight first"});
    inputs[weight.input]->kind = pt2::InputSpec::Kind::kParameter;
    inputs[weight.input]->target = weight.name;
    impl.weights.add_view(weight.name, weight.tensor, first_storage + weight.storage, weight.byte_offset);
  }
  return {};
}

// Tells checkpoints apart, as the size and the date of a file do: a sample of each weight. On other devices than the CPU, where
// reading has to wait, no two are told to be equal.
std::string stamp_of(const WeightTable& weights) {
  constexpr int64_t kBlock = 64, kBlocks = 64;
  Sha256 hash;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Tensor& tensor = *weights[i].tensor;
    if (tensor.device().kind != Device::kCpu) return std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
    const int64_t bytes = tensor.data() ? tensor.storage_bytes() : 0;
    const int64_t step = std::max(kBlock, bytes / kBlocks);
    for (int64_t at = 0; at < bytes; at += step)
      hash.update(static_cast<const std::byte*>(tensor.data()) + at, static_cast<size_t>(std::min(kBlock, bytes - at)));
  }
  return hex(hash.finish());
}

// What a person reads of a bundle that does not serve as it should; empty: there is nothing to say.
std::string bundle_trouble(const Session::Impl& impl) {
  if (!impl.bundle || impl.bundle->why_not.empty()) return {};
  const size_t all = impl.bundle->list.kinds.size();
  return "the bundle's decisions are not used (" + std::to_string(impl.bundle->taken) + " of " + std::to_string(all) +
         " are): " + impl.bundle->why_not + "; the model is what its .pt2 file was";
}

Status take_over_bundle(Session::Impl& impl) {
  KRN_TRY_LET(impl.bundle, open_bundle(impl));
  if (const std::string trouble = bundle_trouble(impl); !trouble.empty()) impl.tell(Event::Kind::kLog, kWarning, trouble);
  return {};
}

constexpr int64_t kKeptBytes = 16 << 20;  // of the inputs of one kind of call, so that it can be decided about again

bool same_kind(const MetCall& a, const MetCall& b) {
  const auto same = [](const TensorSpec& x, const TensorSpec& y) {
    return x.dtype == y.dtype && x.sizes == y.sizes && x.strides == y.strides;
  };
  return std::ranges::equal(a.specs, b.specs, same);
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(Runtime& runtime, const std::string& path, const Options& options) {
  KRN_TRY_LET(auto impl, begin_session(runtime, std::filesystem::path(path).stem().string(), options));
  KRN_TRY_LET(impl->file, pt2::read_pt2(path));
  impl->file_stamp = impl->file.digest;
  KRN_TRY_LET(impl->model, impl->file.model());
  KRN_TRY(load_own_weights(*impl));
  KRN_TRY(make_eager(*impl));
  KRN_TRY(take_over_bundle(*impl));
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

Result<std::unique_ptr<Session>> Session::open(Runtime& runtime, std::span<const std::byte> file, const std::string& name,
                                               const std::vector<HeldWeight>& weights, const Options& options) {
  KRN_TRY_LET(pt2::Pt2File read, pt2::read_pt2(file, name));
  return open(runtime, std::move(read), name, weights, options);
}

Result<std::unique_ptr<Session>> Session::open(Runtime& runtime, int descriptor, const std::string& name, const Options& options) {
  KRN_TRY_LET(pt2::Pt2File read, pt2::read_pt2(descriptor, name));
  return open(runtime, std::move(read), name, {}, options);
}

Result<std::unique_ptr<Session>> Session::with_weights(const std::vector<std::pair<std::string, TensorRef>>& values) const {
  auto impl = std::make_unique<Session::Impl>(impl_->runtime, impl_->options);
  impl->name = impl_->name;
  impl->device = impl_->device;
  impl->plans = impl_->plans;
  KRN_TRY_LET(impl->weights, impl_->weights.with_values(impl_->runtime.tensors(), values));
  KRN_TRY(impl_->runtime.tensors().synchronize(impl->device));  // the values are the caller's again
  impl->file_stamp = stamp_of(impl->weights);
  impl->file.path = impl_->file.path;
  impl->file.models[impl_->model->program.name].program = impl_->model->program;
  KRN_TRY_LET(impl->model, impl->file.model());
  impl->rules = impl_->rules;
  KRN_TRY(make_eager(*impl));
  if (!impl->decisions) impl->decisions = std::make_unique<DecisionThread>(*impl);
  {
    const std::lock_guard lock(impl_->report_mutex);
    impl->decided = impl_->decided;
  }
  for (const MetCall& call : std::deque<MetCall>(impl->decided)) impl->decisions->decide_again(call);  // the thread changes the list
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

Result<std::unique_ptr<Session>> Session::open(Runtime& runtime, pt2::Pt2File&& file, const std::string& name,
                                               const std::vector<HeldWeight>& weights, const Options& options) {
  KRN_TRY_LET(auto impl, begin_session(runtime, name, options));
  impl->file = std::move(file);
  KRN_TRY_LET(impl->model, impl->file.model());
  KRN_TRY(load_own_weights(*impl));
  KRN_TRY(hold_weights(*impl, impl->file.models.find(impl->model->program.name)->second.program, weights));
  const bool as_in_file = weights.empty() && !impl->file.digest.empty();
  impl->file_stamp = as_in_file ? impl->file.digest : stamp_of(impl->weights);
  KRN_TRY(make_eager(*impl));
  if (as_in_file) KRN_TRY(take_over_bundle(*impl));
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

Signature Session::signature() const { return signature_of(impl_->model->program); }
const std::string& Session::name() const { return impl_->name; }
Device Session::device() const { return impl_->device; }

std::vector<std::pair<std::string, TensorRef>> Session::weights() const {
  std::vector<std::pair<std::string, TensorRef>> out;
  for (size_t i = 0; i < impl_->weights.size(); ++i) out.emplace_back(impl_->weights[i].name, impl_->weights[i].tensor);
  return out;
}

void Session::Impl::tell(Event::Kind kind, int level, const std::string& text, double done) const {
  send(options.on_event, {kind, level, name, text, done});
}

Result<ModelReport> Session::Impl::compile(const std::vector<TensorRef>& inputs, bool beside_calls, bool anew) {
  std::lock_guard lock(compile_mutex);
  const bool in_background = gives_way = beside_calls;
  decides_anew = anew;
  if (in_background) keep_freed_memory();
  Result<ModelReport> report = in_segments(inputs) ? chain->decide(inputs) : decide(*this, inputs);
  runtime.plugins().release_devices();
  if (in_background) give_back_memory();
  if (!report.ok()) {
    tell(Event::Kind::kDecided, kError, "nothing was decided: " + report.status().message().what);
    return report;
  }
  if (std::string trouble = runtime.take_cache_trouble(); !trouble.empty()) {
    std::replace(trouble.begin(), trouble.end(), '\n', ';');
    report->reasons.insert(report->reasons.begin(), "warning: cache: " + trouble);
  }
  if (const std::string trouble = bundle_trouble(*this); !trouble.empty())
    report->reasons.insert(report->reasons.begin(), "warning: " + trouble);
  keep_report(*report, inputs);
  for (const std::string& reason : report->reasons)
    if (reason.starts_with("warning: ")) tell(Event::Kind::kLog, kWarning, reason);
  return report;
}

void Session::Impl::keep_report(const ModelReport& report, const std::vector<TensorRef>& inputs) {
  Result<MetCall> call = keep_call(inputs, runtime.tensors());
  {
    std::lock_guard report_lock(report_mutex);
    reports.push_back(report);
    if (call.ok() && call->bytes() <= kKeptBytes) {
      std::erase_if(decided, [&](const MetCall& old) { return same_kind(old, *call); });
      if (decided.size() >= static_cast<size_t>(options.max_shapes)) decided.pop_front();
      decided.push_back(std::move(*call));
    }
  }
  tell(Event::Kind::kDecided, kNote, verdict_text(report));
}

Result<ModelReport> Session::Impl::take_over(const std::vector<TensorRef>& inputs) {
  const std::lock_guard lock(compile_mutex);
  if (in_segments(inputs)) return Status(Code::k_unsupported, "a model in segments takes its decisions over when it is compiled");
  gives_way = decides_anew = false;
  takes_over = true;
  Result<ModelReport> report = keirin::take_over(*this, inputs);
  takes_over = false;
  runtime.plugins().release_devices();
  if (report.ok()) keep_report(*report, inputs);
  return report;
}

Result<ModelReport> Session::take_over(const std::vector<TensorRef>& inputs) { return impl_->take_over(inputs); }

const OpenedBundle* Session::bundle() const { return impl_->bundle ? &*impl_->bundle : nullptr; }

Result<ModelReport> Session::compile(const std::vector<TensorRef>& inputs) {
  KRN_TRY_LET(const std::optional<PaddedCall> padded, impl_->pad(inputs));
  const std::vector<TensorRef>& asked = padded ? padded->inputs : inputs;
  const bool beside_calls = impl_->options.compile == When::kBackground;
  Result<ModelReport> report = impl_->compile(asked, beside_calls);
  if (beside_calls && report.ok() && !report->disturbed.empty())
    if (const Result<MetCall> call = keep_call(asked, impl_->runtime.tensors()); call.ok()) impl_->decisions->decide_when_idle(*call);
  return report;
}

void Session::meet(const std::vector<TensorRef>& inputs) {
  if (impl_->decisions) impl_->decisions->meet(inputs);
}

void Session::end_deciding() {
  if (impl_->decisions) impl_->decisions->end();
}

bool Session::settle(std::chrono::nanoseconds most) const { return !impl_->decisions || impl_->decisions->settle(most); }

Result<std::vector<TensorRef>> Session::call(const std::vector<TensorRef>& inputs) { return impl_->call(inputs, nullptr); }

Result<std::vector<TensorRef>> Session::call_into(const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& given) {
  const auto refused = [&](const std::string& what, const char* advice) {
    return Status(Code::k_invalid_input, {what, impl_->name, "no output was handed over", advice});
  };
  if (given.size() != impl_->eager->num_outputs())
    return refused("memory for " + std::to_string(given.size()) + " outputs was given, the model has " +
                       std::to_string(impl_->eager->num_outputs()),
                   "give one for each, or null where new memory will do");
  bool apart = true;  // from what is read while they are written
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) continue;
    for (size_t k = 0; k < i; ++k)
      if (given[k] && ranges_meet(*given[i], *given[k]))
        return refused("the memory for outputs " + std::to_string(k) + " and " + std::to_string(i) + " is shared", "give each its own");
    for (const TensorRef& input : inputs) apart &= !input || !ranges_meet(*given[i], *input);
    for (size_t k = 0; k < impl_->weights.size(); ++k) apart &= !ranges_meet(*given[i], *impl_->weights[k].tensor);
  }
  KRN_TRY_LET(std::vector<TensorRef> outputs, impl_->call(inputs, apart ? &given : nullptr));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!given[i] || outputs[i] == given[i]) continue;
    const auto sizes = [](const Tensor& t) { return std::span(t.sizes(), static_cast<size_t>(t.rank())); };
    if (!outputs[i] || outputs[i]->dtype() != given[i]->dtype() || !std::ranges::equal(sizes(*outputs[i]), sizes(*given[i])))
      return refused("output " + std::to_string(i) + " is " + (outputs[i] ? spec_text(spec_of(*outputs[i])) : "not a tensor") +
                         ", the memory for it is " + spec_text(spec_of(*given[i])), "give memory of that dtype and those sizes");
    KRN_TRY(impl_->runtime.tensors().copy(given[i], outputs[i]));
    outputs[i] = given[i];
  }
  return outputs;
}

Result<Session::Effects> Session::effects(const std::vector<TensorRef>& inputs) const {
  ObservedRun seen;
  KRN_TRY(impl_->eager->observe(inputs, seen).status());
  Effects out{{}, seen.draws_random, impl_->chain != nullptr, std::move(seen.written_inputs)};
  for (const size_t i : seen.written_weights) out.written_weights.push_back(impl_->weights[i].name);
  return out;
}

std::string Session::Impl::why_not_beside_calls() const {
  if (const std::string& written = eager->may_write(); !written.empty()) return "a call may write \"" + written + "\"";
  if (const std::string& op = eager->may_draw(); !op.empty()) return "a call may draw random numbers (" + op + ")";
  return {};
}

void Session::let_results_be_constant(size_t from) { impl_->must_vary = from; }

void Session::let_inputs_belong_together() { impl_->inputs_belong_together = true; }

void Session::keep_memory_in_place() { impl_->memory_in_place = true; }

std::string Session::why_not_beside_calls() const { return impl_->why_not_beside_calls(); }

Session::Activity Session::activity() const {
  Activity out{impl_->by_plan,      impl_->eager_chosen, impl_->eager_undecided, impl_->eager_instead,
               impl_->eager_off,    impl_->eager_shadow, impl_->shadow_right,    impl_->shadow_wrong,
               impl_->shadow_failed, impl_->shadow_dropped, impl_->shadow_not_compared};
  const auto decisions = impl_->table.now();
  for (const auto& decision : *decisions) {
    ++out.kinds;
    if (!decision->call) continue;
    ++out.plans;
    out.breakers_open += decision->guard->record->breaker.is_open();
  }
  return out;
}

void Session::set_plans(Plans plans) {
  if (impl_->plans->exchange(plans) == plans) return;
  impl_->tell(Event::Kind::kChanged, kNote, "plans are " + plans_word(plans));
}

Plans Session::plans() const { return impl_->plans->load(); }

bool Session::is_decided(const std::vector<TensorRef>& inputs) const {
  const Result<std::optional<PaddedCall>> padded = impl_->pad(inputs);
  return impl_->find(padded.ok() && *padded ? (*padded)->inputs : inputs) != nullptr;
}

Result<std::vector<TensorRef>> Session::call_eager(const std::vector<TensorRef>& inputs) { return impl_->eager->run(inputs); }

Result<std::vector<TensorRef>> Session::example_inputs(uint64_t seed) { return impl_->draw(seed, {}); }
Result<std::vector<TensorRef>> Session::example_inputs(uint64_t seed, const std::vector<int64_t>& symbol_sizes) {
  return impl_->draw(seed, symbol_sizes);
}

Result<std::vector<std::string>> Session::unknown_inputs(const std::vector<int64_t>& symbol_sizes) const {
  return impl_->unknown_inputs(symbol_sizes);
}

Result<std::vector<std::string>> Session::Impl::unknown_inputs(const std::vector<int64_t>& symbol_sizes) const {
  std::vector<std::string> out;
  if (rules) return out;
  const pt2::Program& program = model->program;
  KRN_TRY_LET(const ExampleShapes shapes, example_shapes(program, symbol_sizes));
  std::vector<InputHint> hints;
  if (auto captured = import_graph(program, weights, shapes.specs, device); captured.ok())
    hints = infer_inputs(captured->graph);
  size_t at = 0;
  for (const pt2::InputSpec& input : program.inputs) {
    const auto* tensor = input.kind == pt2::InputSpec::Kind::kUserInput ? input.arg.get<pt2::TensorArg>() : nullptr;
    if (!tensor) continue;
    const size_t i = at++;
    if (!is_int(shapes.specs[i].dtype)) continue;
    if (i >= hints.size())
      out.push_back("\"" + tensor->name + "\" (of a model that no graph can show)");
    else if (hints[i].unknown_meaning)
      out.push_back("\"" + tensor->name + "\" (" + hints[i].why + ")");
  }
  return out;
}

std::vector<std::pair<size_t, DType>> Session::output_dtypes() const {
  std::vector<std::pair<size_t, DType>> out;
  const pt2::Program& program = impl_->model->program;
  size_t position = 0;
  for (const pt2::OutputSpec& output : program.outputs) {
    if (output.is_mutation()) continue;
    const auto* tensor = output.arg.get<pt2::TensorArg>();
    if (tensor) out.emplace_back(position, program.graph.tensor_values.find(tensor->name)->second.dtype);
    ++position;
  }
  return out;
}

std::vector<ModelReport> Session::reports() const {
  impl_->checker.drain();
  return reports_so_far();
}

std::vector<ModelReport> Session::reports_so_far() const {
  std::lock_guard lock(impl_->report_mutex);
  if (!impl_->reports.empty())  // nobody else says that a call hangs
    for (std::string& incident : impl_->runtime.plugins().take_incidents()) impl_->reports.back().reasons.push_back(std::move(incident));
  if (!impl_->reports.empty()) impl_->reports.back().calls_unadmitted = impl_->calls_unadmitted.load(std::memory_order_relaxed);
  if (!impl_->reports.empty()) impl_->reports.back().compiles_on_requests = compiles_on_requests();
  if (!impl_->reports.empty()) {
    std::vector<std::string> names;
    for (const SizeReport& size : impl_->reports.back().sizes) names.push_back(size.name);
    impl_->reports.back().ranges = impl_->ranges.report(names);
    if (impl_->buckets) impl_->reports.back().buckets = impl_->buckets->report();
  }
  if (impl_->chain && !impl_->reports.empty()) {
    ModelReport& last = impl_->reports.back();
    for (std::string& reason : impl_->chain->take_reasons()) last.reasons.push_back(std::move(reason));
    last.segments_answered = impl_->chain->answered();
    last.segments_unadmitted = impl_->chain->unadmitted();
  }
  std::vector<ModelReport> out = impl_->reports;
  if (const Plans use = plans(); use != Plans::kOn && !out.empty())
    out.back().reasons.insert(out.back().reasons.begin(), use == Plans::kOff ? "plans are off: eager answers every call"
                                                                             : "plans are in shadow: eager answers every call");
  return out;
}

}  // namespace keirin
