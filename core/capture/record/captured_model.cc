// SPDX-License-Identifier: Apache-2.0
#include "core/capture/record/open_captured.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <shared_mutex>

#include "core/api/raise.h"
#include "core/api/session.h"
#include "core/capture/record/recorder.h"
#include "core/eager/at_tensor.h"
#include "core/eager/tensor_services.h"

namespace keirin {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<TensorRef> refs_of(const Tensors& tensors) {
  std::vector<TensorRef> out;
  out.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) out.push_back(from_at(tensor));
  return out;
}

Tensors tensors_of(const std::vector<TensorRef>& refs) {
  Tensors out;
  out.reserve(refs.size());
  for (const TensorRef& ref : refs) out.push_back(to_at(ref));
  return out;
}

// A weight as it was when something was decided.
struct Held {
  at::Tensor tensor;      // the caller's
  const void* data = nullptr;
  int64_t version = -1;   // -1: not looked at, since calls write it themselves, or it has none
};

// What tells an input of one call from that of another: all but its memory.
struct Form {
  at::ScalarType dtype;
  at::Device device;
  std::vector<int64_t> sizes, strides;
  bool operator==(const Form&) const = default;
  bool fits(const at::Tensor& tensor) const {
    return tensor.scalar_type() == dtype && tensor.device() == device && tensor.layout() == at::kStrided &&
           tensor.sizes() == at::IntArrayRef(sizes) && tensor.strides() == at::IntArrayRef(strides) && !tensor.is_conj() &&
           !tensor.is_neg();
  }
};

// What was found for calls of one kind.
struct Entry {
  std::vector<Form> forms;  // of the inputs
  uint64_t state = 0;
  std::unique_ptr<Session> session;  // null: it cannot be recorded
  std::vector<Held> held;
  std::vector<size_t> written_inputs;
  Tensors written_weights;
  ModelReport refusal;  // without a session

  bool fits(const Tensors& inputs) const {
    return std::equal(forms.begin(), forms.end(), inputs.begin(), inputs.end(),
                      [](const Form& form, const at::Tensor& input) { return input.defined() && form.fits(input); });
  }
  bool weights_are_as_they_were() const {
    for (const Held& each : held) {
      c10::TensorImpl& impl = *each.tensor.unsafeGetTensorImpl();
      if (!impl.has_storage() || impl.data() != each.data) return false;
      if (each.version >= 0 && (impl.is_inference() || impl.version_counter().current_version() != each.version)) return false;
    }
    return true;
  }
  bool needs_gradients(const Tensors& inputs) const {
    const auto asks = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
    return at::GradMode::is_enabled() && (std::any_of(inputs.begin(), inputs.end(), asks) ||
                                          std::any_of(held.begin(), held.end(), [&](const Held& h) { return asks(h.tensor); }));
  }
};

// Other values of the same kind. Integers stay as they are, since they may be indices; inputs of equal values become different.
enum class Change { kPlaces, kSigns, kScale };
Tensors other_values(const Tensors& inputs, Change change) {
  Tensors out;
  for (const at::Tensor& input : inputs) {
    at::Tensor other = input.clone();
    const double scale = 1 - 1.0 / static_cast<double>(out.size() + 4);
    if (at::isFloatingType(input.scalar_type()) && input.numel() > 0)
      other.copy_((change == Change::kPlaces ? input.flatten().roll(static_cast<int64_t>(out.size()) + 1).view(input.sizes()) : input)
                      .mul(change == Change::kSigns ? -scale : scale));
    out.push_back(std::move(other));
  }
  return out;
}

// What a call left behind.
struct Seen {
  Tensors outputs, inputs, weights;
};

// Where the two differ by more than another order of summation explains, in words; empty: nowhere.
std::string difference(const Tensors& recorded, const Tensors& function, const std::string& what) {
  if (recorded.size() != function.size())
    return "it has " + std::to_string(recorded.size()) + " " + what + "s, the function " + std::to_string(function.size());
  for (size_t i = 0; i < recorded.size(); ++i) {
    const at::Tensor &a = recorded[i], &b = function[i];
    const std::string name = what + " " + std::to_string(i);
    if (a.defined() != b.defined() || (a.defined() && (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes())))
      return name + " has another form";
    if (!a.defined() || a.numel() == 0) continue;
    if (!at::isFloatingType(a.scalar_type())) {
      if (!at::equal(a, b)) return name + " has other values";
      continue;
    }
    const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
    const double scale = y.nan_to_num(0, 0, 0).abs().max().item<double>();
    const double eps = a.scalar_type() == at::kDouble ? 1e-12 : a.scalar_type() == at::kFloat ? 1e-5 : 1e-2;
    if (!at::allclose(x, y, eps, eps * scale, /*equal_nan=*/true)) return name + " has other values";
  }
  return {};
}

}  // namespace

struct CapturedModel::Impl {
  Source source;
  Options options;
  std::unique_ptr<Runtime> runtime;  // before the entries, whose sessions use it

  std::mutex compile_mutex;
  mutable std::shared_mutex entries_mutex;
  std::vector<std::shared_ptr<const Entry>> entries;  // oldest first
  std::atomic<uint64_t> with_gradients{0}, with_other_weights{0};  // calls that the function answered although something was decided

  uint64_t state() const { return source.state ? source.state() : 0; }

  std::shared_ptr<const Entry> find(const Tensors& inputs) const {
    const uint64_t now = state();
    const std::shared_lock lock(entries_mutex);
    for (size_t i = entries.size(); i-- > 0;)
      if (entries[i]->state == now && entries[i]->fits(inputs)) return entries[i];
    return nullptr;
  }

  void publish(std::shared_ptr<const Entry> entry) {
    const std::lock_guard lock(entries_mutex);
    std::erase_if(entries, [&](const auto& old) { return old->state == entry->state && old->forms == entry->forms; });
    if (entries.size() >= static_cast<size_t>(std::max(options.max_shapes, 1))) entries.erase(entries.begin());
    entries.push_back(std::move(entry));
  }

  Status prepare(Entry& entry, const Tensors& inputs);
  Result<Seen> see(const TorchFunction& call, const Tensors& inputs, const Entry& entry) const;
  Status compare(const Entry& entry, const Tensors& inputs) const;
  Status compare_on_other_values(const Entry& entry, const Tensors& inputs) const;
};

// One call on copies of the inputs; weights that it writes and the random generators are put back.
Result<Seen> CapturedModel::Impl::see(const TorchFunction& call, const Tensors& inputs, const Entry& entry) const {
  Seen seen;
  const Device device = inputs.empty() ? Device{} : device_of(inputs[0].device());
  KRN_TRY_LET(const RandomState generators, random_state(device));
  const Status status = catch_torch([&] {
    const at::NoGradGuard no_grad;
    Tensors before;
    for (const at::Tensor& weight : entry.written_weights) before.push_back(weight.clone());
    for (const at::Tensor& input : inputs) seen.inputs.push_back(input.clone());
    try {
      for (const at::Tensor& output : call(seen.inputs)) seen.outputs.push_back(output.defined() ? output.clone() : output);
    } catch (...) {
      for (size_t i = 0; i < before.size(); ++i) entry.written_weights[i].copy_(before[i]);
      throw;
    }
    for (size_t i = 0; i < before.size(); ++i) {
      seen.weights.push_back(entry.written_weights[i].clone());
      entry.written_weights[i].copy_(before[i]);
    }
  });
  KRN_TRY(set_random_state(device, generators));
  KRN_TRY(status);
  return seen;
}

// The recording against the function.
Status CapturedModel::Impl::compare(const Entry& entry, const Tensors& inputs) const {
  const auto recorded = [&](const Tensors& given) { return tensors_of(take(entry.session->call_eager(refs_of(given)))); };
  auto ours = see(recorded, inputs, entry), theirs = see(source.forward, inputs, entry);
  if (!theirs.ok()) return std::move(theirs).status();
  if (!ours.ok()) return std::move(ours).status();
  std::string what = difference(ours->outputs, theirs->outputs, "output");
  if (what.empty()) what = difference(ours->inputs, theirs->inputs, "input after the call,");
  if (what.empty()) what = difference(ours->weights, theirs->weights, "weight after the call,");
  if (what.empty()) return {};
  return Status(Code::k_wrong_result,
                Message{"the recorded operators do not answer as the function does: " + what,
                        {},
                        "the function itself answers",
                        "something else than operators reads or makes its tensors (data_ptr, accessor, state in C++)"});
}

// Values that the function raises an error for tell nothing; one set of others has to be answered.
Status CapturedModel::Impl::compare_on_other_values(const Entry& entry, const Tensors& inputs) const {
  Status raised;
  int compared = 0;
  for (const Change change : {Change::kPlaces, Change::kSigns, Change::kScale}) {
    if (change == Change::kScale && compared > 0) break;
    Tensors others;
    KRN_TRY(catch_torch([&] { others = other_values(inputs, change); }));
    Status status = compare(entry, others);
    if (!status.ok() && !status.cause()) return status;
    compared += status.ok();
    if (!status.ok()) raised = std::move(status);
  }
  if (compared > 0) return {};
  return Status(
      Code::k_unsupported,
      Message{"the function raises an error for all other values that were tried, so that its recording cannot be compared with it: " +
                  raised.message().what,
              {},
              "the function itself answers",
              {}});
}

Status CapturedModel::Impl::prepare(Entry& entry, const Tensors& inputs) {
  KRN_TRY_LET(Recording recording, record(source.forward, inputs, source.weights));
  std::vector<Session::HeldWeight> weights;
  std::map<const void*, uint32_t> storages;
  std::map<std::string, at::Tensor> by_name;
  for (size_t k = 0; k < recording.reads.size(); ++k) {
    const at::Tensor& tensor = recording.reads[k].tensor;
    const void* storage = tensor.storage().unsafeGetStorageImpl();
    const uint32_t number = storages.try_emplace(storage, static_cast<uint32_t>(storages.size())).first->second;
    weights.push_back({inputs.size() + k, recording.reads[k].name, from_at(tensor.detach()), number,
                       static_cast<int64_t>(tensor.storage_offset() * tensor.itemsize())});
    by_name[recording.reads[k].name] = tensor;
  }
  Options own = options;
  own.device = inputs.empty() ? options.device : device_name(device_of(inputs[0].device()));
  KRN_TRY_LET(entry.session, Session::open(*runtime, std::move(recording.file), source.name, weights, own));
  const std::vector<TensorRef> refs = refs_of(inputs);
  KRN_TRY_LET(const Session::Effects effects, entry.session->effects(refs));
  entry.written_inputs = effects.written_inputs;
  for (const std::string& name : effects.written_weights) entry.written_weights.push_back(by_name[name]);
  KRN_TRY(compare(entry, inputs));
  KRN_TRY(compare_on_other_values(entry, inputs));
  KRN_TRY(entry.session->compile(refs).status());
  for (const RecordedRead& read : recording.reads) {
    if (read.is_own) continue;
    const bool is_state = std::any_of(entry.written_weights.begin(), entry.written_weights.end(),
                                      [&](const at::Tensor& w) { return w.is_alias_of(read.tensor); });
    const bool has_version = !read.tensor.is_inference() && !is_state;
    entry.held.push_back(
        {read.tensor, read.tensor.unsafeGetTensorImpl()->data(), has_version ? static_cast<int64_t>(read.tensor._version()) : -1});
  }
  return {};
}

CapturedModel open_captured(CapturedModel::Source source, const Options& options) {
  if (!source.forward) raise(Status(Code::k_invalid_input, "the source has no function"));
  auto impl = std::make_shared<CapturedModel::Impl>();
  impl->source = std::move(source);
  impl->options = take(complete_options(options));
  impl->runtime = take(Runtime::open(impl->options));
  return CapturedModel(std::move(impl));
}

CapturedModel::CapturedModel(Source source, const LoadOptions& options)
    : CapturedModel(open_captured(std::move(source), take(options_of(options)))) {}

void CapturedModel::compile(const Tensors& inputs) {
  const std::lock_guard lock(impl_->compile_mutex);
  auto entry = std::make_shared<Entry>();
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || input.layout() != at::kStrided || input.is_conj() || input.is_neg())
      raise(Status(
          Code::k_invalid_input,
          Message{"input " + std::to_string(entry->forms.size()) + " is not a plain strided tensor", {}, "nothing was compiled", {}}));
    entry->forms.push_back({input.scalar_type(), input.device(), input.sizes().vec(), input.strides().vec()});
  }
  entry->state = impl_->state();
  if (const Status status = impl_->prepare(*entry, inputs); !status.ok()) {
    if (status.cause()) raise(status);  // the function's own error
    entry->session.reset();
    ModelReport& report = entry->refusal;
    report.model = impl_->source.name;
    report.device = inputs.empty() ? impl_->options.device : device_name(device_of(inputs[0].device()));
    report.mode = impl_->options.mode;
    report.chosen = "function";
    for (const TensorRef& ref : refs_of(inputs)) report.inputs.push_back(spec_text(spec_of(*ref)));
    report.reasons.push_back(status.message().what);
    if (!status.message().advice.empty()) report.reasons.push_back("advice: " + status.message().advice);
  }
  impl_->publish(std::move(entry));
}

Tensors CapturedModel::operator()(const Tensors& inputs) const {
  Impl& impl = *impl_;
  const std::shared_ptr<const Entry> entry = impl.find(inputs);
  if (!entry || !entry->session) return impl.source.forward(inputs);
  if (entry->needs_gradients(inputs)) {
    impl.with_gradients.fetch_add(1, std::memory_order_relaxed);
    return impl.source.forward(inputs);
  }
  if (!entry->weights_are_as_they_were()) {
    impl.with_other_weights.fetch_add(1, std::memory_order_relaxed);
    return impl.source.forward(inputs);
  }
  const std::vector<TensorRef> refs = refs_of(inputs);
  if (!entry->session->is_decided(refs)) return impl.source.forward(inputs);
  Result<std::vector<TensorRef>> outputs = entry->session->call(refs);
  if (!outputs.ok()) {
    // What did not begin to write is asked of the function, which raises its own error.
    const bool wrote = !entry->written_inputs.empty() || !entry->written_weights.empty();
    if (!wrote && outputs.status().code() != Code::k_half_done) return impl.source.forward(inputs);
    raise(outputs.status());
  }
  // A plan writes memory and tells no version.
  const auto bump = [](const at::Tensor& tensor) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  };
  for (const size_t i : entry->written_inputs) bump(inputs[i]);
  for (const at::Tensor& weight : entry->written_weights) bump(weight);
  return tensors_of(*outputs);
}

namespace {

std::vector<ModelReport> reports_of(const CapturedModel::Impl& impl) {
  std::vector<ModelReport> out;
  const std::shared_lock lock(impl.entries_mutex);
  for (const auto& entry : impl.entries) {
    if (!entry->session) {
      out.push_back(entry->refusal);
      continue;
    }
    for (ModelReport& report : entry->session->reports()) out.push_back(std::move(report));
  }
  const auto note = [&](uint64_t calls, const std::string& why) {
    if (calls > 0 && !out.empty())
      out.back().reasons.push_back(std::to_string(calls) + " calls were answered by the function itself: " + why);
  };
  note(impl.with_gradients, "gradient mode was on and an input or a weight asks for gradients (torch::NoGradGuard)");
  note(impl.with_other_weights, "a weight was written or moved after the decision (compile again)");
  return out;
}

}  // namespace

std::string CapturedModel::explain() const {
  std::string text;
  for (const ModelReport& report : reports_of(*impl_)) text += explain_text(report);
  return text;
}

std::string CapturedModel::report_json() const {
  nlohmann::json out = nlohmann::json::array();
  for (const ModelReport& report : reports_of(*impl_)) out.push_back(to_json(report));
  return out.dump(2);
}

}  // namespace keirin
