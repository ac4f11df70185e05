// SPDX-License-Identifier: Apache-2.0
//
// How a program is tried. State is put back before each row of calls, so that one session serves all layouts that it is
// called with.
#include "tests/programs/trial.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "core/eager/at_tensor.h"

namespace keirin::programs {
namespace {

using Tensors = std::vector<TensorRef>;
using Ints = std::vector<int64_t>;

std::string text_of(const Ints& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + std::to_string(values[i]);
  return out + "]";
}

std::string text_of(double value) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.9g", value);
  return buffer;
}

at::Tensor told_tensor(const Told& told) {
  const at::Tensor t = to_at(told.value);
  return told.complex ? at::view_as_complex(t) : t;
}

// The recorder measures none for complex numbers, which libraries compute in another order on another processor.
double tolerance_of(const Told& told) {
  if (!told.complex || told.tolerance > 0) return told.tolerance;
  constexpr double kUlps = 16;
  const at::Tensor parts = to_at(told.value);
  return parts.numel() == 0 ? 0 : kUlps * std::numeric_limits<float>::epsilon() * parts.abs().nan_to_num(0, 0, 0).max().item<double>();
}

// Of an operator with several results the recorder moves the first alone: a float beside one that may differ by roundings may, too:
// the mean of std_mean is summed in another order on another processor.
double tolerance_of(const Call& call, size_t i, bool is_one_operator) {
  const Told& told = *call.outputs[i];
  const double own = tolerance_of(told);
  const at::Tensor value = to_at(told.value);
  const auto rounds = [](const std::optional<Told>& other) { return other && other->tolerance > 0; };
  if (own > 0 || !is_one_operator || !value.is_floating_point() || value.numel() == 0) return own;
  if (std::none_of(call.outputs.begin(), call.outputs.end(), rounds)) return own;
  constexpr double kUlps = 4;
  const double unit = value.scalar_type() == at::kDouble    ? std::numeric_limits<double>::epsilon()
                      : value.scalar_type() == at::kBFloat16 ? 0x1p-7
                      : value.scalar_type() == at::kHalf     ? 0x1p-10
                                                             : std::numeric_limits<float>::epsilon();
  return kUlps * unit * value.abs().nan_to_num(0, 0, 0).max().item<double>();
}

// Along one element, or in a tensor of none, there is no stride.
Ints telling_strides(const at::Tensor& t) {
  Ints out;
  if (t.numel() > 0)
    for (int64_t d = 0; d < t.dim(); ++d) out.push_back(t.size(d) > 1 ? t.stride(d) : 0);
  return out;
}

at::Tensor on_cpu(const at::Tensor& t) {
  at::Tensor out = t.cpu().resolve_conj().resolve_neg().contiguous();
  return out.is_complex() ? at::view_as_real(out) : out;
}

// Nothing where `got` is Python's.
std::string value_difference(const at::Tensor& got, const at::Tensor& wanted, double tolerance) {
  if (wanted.numel() == 0) return {};
  const at::Tensor a = on_cpu(got).reshape(-1), b = on_cpu(wanted).reshape(-1);
  if (!a.is_floating_point()) {
    const at::Tensor differs = a.ne(b);
    const int64_t count = differs.sum().item<int64_t>();
    if (count == 0) return {};
    const int64_t at = differs.to(at::kByte).argmax().item<int64_t>();
    return std::to_string(count) + " of " + std::to_string(a.numel()) + " elements; element " + std::to_string(at) +
           " is " + text_of(a[at].to(at::kDouble).item<double>()) + ", Python's " +
           text_of(b[at].to(at::kDouble).item<double>());
  }
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  const double *p = x.data_ptr<double>(), *q = y.data_ptr<double>();
  int64_t worst = -1, count = 0;
  double largest = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (p[i] == q[i] || (std::isnan(p[i]) && std::isnan(q[i]))) continue;
    double distance = std::fabs(p[i] - q[i]);
    if (std::isnan(distance)) distance = HUGE_VAL;
    if (distance <= tolerance) continue;
    ++count;
    if (worst < 0 || distance > largest) worst = i, largest = distance;
  }
  if (worst < 0) return {};
  return std::to_string(count) + " of " + std::to_string(x.numel()) + " elements; element " + std::to_string(worst) +
         " is " + text_of(p[worst]) + ", Python's " + text_of(q[worst]) +
         (tolerance > 0 ? " (tolerance " + text_of(tolerance) + ")" : "");
}

// The addresses of the first bytes of all elements, and beyond `kMost` elements only whether the extents meet.
constexpr int64_t kMost = 1 << 16;

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const auto extent = [](const at::Tensor& t) {
    int64_t last = 0;
    for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
    const auto begin = reinterpret_cast<int64_t>(t.data_ptr());
    return std::pair(begin, begin + (last + 1) * static_cast<int64_t>(t.element_size()));
  };
  const auto [a0, a1] = extent(a);
  const auto [b0, b1] = extent(b);
  if (a1 <= b0 || b1 <= a0) return false;
  if (std::max(a.numel(), b.numel()) > kMost) return true;
  const auto bytes = [](const at::Tensor& t) {
    std::vector<int64_t> at = {reinterpret_cast<int64_t>(t.data_ptr())};
    for (int64_t d = 0; d < t.dim(); ++d) {
      std::vector<int64_t> next;
      for (const int64_t from : at)
        for (int64_t i = 0; i < t.size(d); ++i)
          next.push_back(from + i * t.stride(d) * static_cast<int64_t>(t.element_size()));
      at = std::move(next);
    }
    std::set<int64_t> out;
    for (const int64_t from : at)
      for (int64_t i = 0; i < static_cast<int64_t>(t.element_size()); ++i) out.insert(from + i);
    return out;
  };
  const std::set<int64_t> of_a = bytes(a);
  for (const int64_t byte : bytes(b))
    if (of_a.count(byte)) return true;
  return false;
}

// The inputs of one row of calls: storages of their own and views of them. The same view twice is one tensor, as in
// Python.
struct Inputs {
  std::vector<at::Tensor> storages;
  Tensors views;

  Inputs(const Variant& variant, Runtime& runtime, const Settings& settings, const at::Device& device) {
    for (const Told& storage : variant.storages) {
      const at::Tensor t = told_tensor(storage);
      storages.push_back(at::empty(t.sizes(), t.options().device(device)));
      storages.back().copy_(t);
    }
    for (size_t i = 0; i < variant.inputs.size(); ++i) {
      const Layout& layout = variant.inputs[i];
      TensorRef same;
      for (size_t j = 0; j < i; ++j) {
        const Layout& other = variant.inputs[j];
        if (other.storage == layout.storage && other.sizes == layout.sizes && other.strides == layout.strides &&
            other.offset == layout.offset)
          same = views[j];
      }
      if (same) {
        views.push_back(same);
        continue;
      }
      const at::Tensor view = storages[layout.storage].as_strided(layout.sizes, layout.strides, layout.offset);
      const TensorRef own = from_at(view);
      if (!settings.wrapped) {
        views.push_back(own);
        continue;
      }
      auto wrapped =
          runtime.tensors().wrap({own->dtype(), layout.sizes, layout.strides, own->device()}, view.data_ptr(), own);
      views.push_back(wrapped.ok() ? *wrapped : own);
    }
  }
};

class Trial {
 public:
  Trial(const Case& program, Runtime& runtime, const Settings& settings)
      : program_(program), runtime_(runtime), settings_(settings), device_(at_device(*device_from_name(settings.options.device))) {}

  Outcome run() {
    if (!open()) return outcome_;
    std::set<std::string> left_out;
    for (const Variant& variant : program_.variants) {
      const size_t before = outcome_.differences.size();
      call_all(variant, "eager, called with " + variant.name, true);
      if (device_.is_cpu() || outcome_.differences.size() == before) continue;
      outcome_.differences.resize(before);
      ++outcome_.other_eager;
      left_out.insert(variant.name);
    }
    if (left_out.contains(program_.variants.front().name)) return outcome_;
    for (const Variant& compiled : program_.variants) {
      const bool first = &compiled == &program_.variants.front();
      if (!first && !settings_.all_layouts) break;
      if (left_out.contains(compiled.name)) continue;
      if (!open()) return outcome_;
      compile(compiled, first);
      if (first) {
        for (const Variant& called : program_.variants)
          if (!left_out.contains(called.name))
            call_all(called, "compiled with contiguous, called with " + called.name, false);
      } else {
        call_all(compiled, "compiled with " + compiled.name + ", called with it", false);
        call_all(program_.variants.front(), "compiled with " + compiled.name + ", called with contiguous", false);
      }
    }
    return outcome_;
  }

 private:
  // A sample of PyTorch's: one line.
  bool is_one_operator() const { return program_.source.find('\n') == std::string::npos; }

  void differs(const std::string& kind, const std::string& where, std::string what) {
    outcome_.differences.push_back({kind, where, std::move(what)});
  }

  bool open() {
    session_.reset();
    auto opened = Session::open(runtime_, program_.model, settings_.options);
    if (!opened.ok()) {
      differs("open", "opened", opened.status().text());
      return false;
    }
    session_ = std::move(*opened);
    state_.clear();
    for (const auto& [name, tensor] : session_->weights()) state_.push_back({name, tensor, to_at(tensor).clone()});
    return true;
  }

  void put_state_back() {
    for (const State& state : state_) to_at(state.live).copy_(state.content);
  }

  void compile(const Variant& variant, bool first) {
    const std::string where = "compiled with " + variant.name;
    const Inputs inputs(variant, runtime_, settings_, device_);
    const auto report = session_->compile(inputs.views);
    if (!report.ok()) {
      if (!variant.calls[0].raises) differs("compile", where, report.status().text());
      return;
    }
    for (const auto& [stage, seconds] : report->stage_seconds) outcome_.seconds[stage] += seconds;
    for (const CandidateReport& candidate : report->candidates) {
      if (first && candidate.name == report->chosen && !candidate.plugin.empty()) outcome_.compiled = true;
      if (candidate.reason == "wrong_result")
        outcome_.refused.push_back(where + ", " + candidate.name + ": " + candidate.note);
    }
    if (first)
      outcome_.nodes = report->nodes, outcome_.nodes_compiled = report->nodes_compiled,
      outcome_.reasons = report->reasons;
    for (size_t i = 0; i < inputs.storages.size(); ++i)
      if (std::string what = value_difference(inputs.storages[i], told_tensor(variant.storages[i]), 0); !what.empty())
        differs("inputs_of_compile", where,
                "compiling left another content in storage " + std::to_string(i) + ": " + what);
    for (const State& state : state_)
      if (std::string what = value_difference(to_at(state.live), state.content, 0); !what.empty())
        differs("state_of_compile", where, "compiling left another content in " + state.name + ": " + what);
  }

  // The row of calls of one layout. The first difference ends it: what follows would only repeat it.
  void call_all(const Variant& variant, const std::string& how, bool eager) {
    const size_t before = outcome_.differences.size();
    const std::string prefix = eager ? "eager_" : "";
    put_state_back();
    Inputs inputs(variant, runtime_, settings_, device_);
    std::vector<Tensors> kept;
    for (size_t k = 0; k < variant.calls.size() && outcome_.differences.size() == before; ++k) {
      const Call& call = variant.calls[k];
      const std::string where = how + ", call " + std::to_string(k + 1);
      auto outputs = eager ? session_->call_eager(inputs.views) : session_->call(inputs.views);
      if (call.raises) {
        if (outputs.ok()) compare_where_python_raises(variant, call, k, *outputs, prefix, where);
        return;
      }
      if (!outputs.ok()) {
        differs(prefix + "error", where, outputs.status().text());
        return;
      }
      compare(call, *outputs, inputs, prefix, where);
      kept.push_back(std::move(*outputs));
    }
    // What a call answered stays, unless it is memory of an input or of the state, which later calls may write.
    if (outcome_.differences.size() != before) return;
    for (size_t k = 0; k + 1 < kept.size(); ++k)
      for (size_t i = 0; i < kept[k].size(); ++i) {
        const std::string me = "o" + std::to_string(i);
        const auto& shares = variant.calls[k].shares;
        const bool foreign = std::any_of(shares.begin(), shares.end(),
                                         [&](const Share& s) { return s.left == me && s.right[0] != 'o'; });
        if (foreign || !kept[k][i] || !variant.calls[k].outputs[i] || lies_beside_an_input(kept[k][i], inputs)) continue;
        const double tolerance = tolerance_of(variant.calls[k], i, is_one_operator());
        if (std::string what = value_difference(to_at(kept[k][i]), told_tensor(*variant.calls[k].outputs[i]), tolerance); !what.empty())
          differs(prefix + "kept", how,
                  "output " + std::to_string(i) + " of call " + std::to_string(k + 1) +
                      " was changed by a later call: " + what);
      }
  }

  // An offset counts from the beginning of a storage: what it leads to may be the caller's memory and no element of an input.
  bool lies_beside_an_input(const TensorRef& output, const Inputs& inputs) const {
    if (program_.source.find("as_strided(") == std::string::npos) return false;
    const at::Tensor own = to_at(output);
    return std::any_of(inputs.storages.begin(), inputs.storages.end(),
                       [&](const at::Tensor& storage) { return own.has_storage() && storage.is_alias_of(own); });
  }

  // Where strides allow no view, Python raises and we may copy. The transposed layout holds the values of the first
  // one.
  void compare_where_python_raises(const Variant& variant, const Call& call, size_t number, const Tensors& outputs,
                                   const std::string& prefix, const std::string& where) {
    if (call.error.find("view size is not compatible") == std::string::npos)
      return differs(prefix + "no_error", where, "it answers where Python raises " + call.error);
    // What is read by its place in memory is other elements there, and what is a view or a copy as strides have it is written or not.
    for (const char* word : {"as_strided(", "ravel(", "reshape(", "flatten(", "contiguous("})
      if (program_.source.find(word) != std::string::npos) return;
    const Variant& first = program_.variants.front();
    if (variant.name != "transposed" || number >= first.calls.size() || first.calls[number].raises) return;
    const Call& told = first.calls[number];
    for (size_t i = 0; i < outputs.size() && i < told.outputs.size(); ++i) {
      if (!outputs[i] || !told.outputs[i]) continue;
      if (std::string what =
              value_difference(to_at(outputs[i]), told_tensor(*told.outputs[i]), tolerance_of(told, i, is_one_operator()));
          !what.empty())
        differs(prefix + "values", where, "output " + std::to_string(i) + ", of a view that is a copy: " + what);
    }
  }

  void compare(const Call& call, const Tensors& outputs, const Inputs& inputs, const std::string& prefix,
               const std::string& where) {
    if (outputs.size() != call.outputs.size())
      return differs(prefix + "outputs", where,
                     std::to_string(outputs.size()) + " outputs, Python's " + std::to_string(call.outputs.size()));
    std::vector<std::pair<std::string, at::Tensor>> named;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::string me = "output " + std::to_string(i);
      if (!outputs[i] || !call.outputs[i]) {
        if (static_cast<bool>(outputs[i]) != call.outputs[i].has_value())
          differs(prefix + "outputs", where, me + " is nothing on one side only");
        continue;
      }
      const at::Tensor got = to_at(outputs[i]), wanted = told_tensor(*call.outputs[i]);
      named.emplace_back("o" + std::to_string(i), got);
      if (got.scalar_type() != wanted.scalar_type())
        differs(
            prefix + "dtype", where,
            me + " is of " + c10::toString(got.scalar_type()) + ", Python's of " + c10::toString(wanted.scalar_type()));
      else if (got.sizes() != wanted.sizes())
        differs(prefix + "sizes", where,
                me + " has sizes " + text_of(got.sizes().vec()) + ", Python's " + text_of(wanted.sizes().vec()));
      else if (std::string what = value_difference(got, wanted, tolerance_of(call, i, is_one_operator())); !what.empty())
        differs(prefix + "values", where, me + ": " + what);
      else if (telling_strides(got) != call.outputs[i]->strides)
        differs(prefix + "strides", where,
                me + " of sizes " + text_of(got.sizes().vec()) + " has strides " + text_of(telling_strides(got)) +
                    ", Python's " + text_of(call.outputs[i]->strides));
    }
    for (size_t i = 0; i < call.storages.size(); ++i)
      if (std::string what =
              value_difference(inputs.storages[i], told_tensor(call.storages[i]), tolerance_of(call.storages[i]));
          !what.empty())
        differs(prefix + "inputs", where, "storage " + std::to_string(i) + " afterwards: " + what);
    const size_t num_outputs = named.size();
    for (size_t i = 0; i < inputs.views.size(); ++i)
      named.emplace_back("i" + std::to_string(i), to_at(inputs.views[i]));
    for (const auto& [name, told] : call.buffers) {
      const auto found =
          std::find_if(state_.begin(), state_.end(), [&, key = name](const State& s) { return s.name == key; });
      if (found == state_.end()) {
        differs(prefix + "state", where, "there is no tensor called " + name);
        continue;
      }
      named.emplace_back("b:" + name, to_at(found->live));
      if (std::string what = value_difference(to_at(found->live), told_tensor(told), tolerance_of(told)); !what.empty())
        differs(prefix + "state", where, name + " afterwards: " + what);
    }
    std::map<std::pair<std::string, std::string>, int64_t> wanted;
    for (const Share& share : call.shares) wanted[{share.left, share.right}] = share.bytes;
    for (size_t a = 0; a < num_outputs; ++a)
      for (size_t b = a + 1; b < named.size(); ++b) {
        const auto& [left, x] = named[a];
        const auto& [right, y] = named[b];
        const auto found = wanted.find({left, right});
        const bool share = share_memory(x, y);
        const auto bytes = static_cast<int64_t>(static_cast<char*>(y.data_ptr()) - static_cast<char*>(x.data_ptr()));
        if (share != (found != wanted.end()))
          differs(prefix + (share ? "shares" : "shares_not"), where,
                  left + " and " + right +
                      (share ? " share memory, in Python they do not" : " share no memory, in Python they do"));
        else if (share && bytes != found->second)
          differs(prefix + "shares", where,
                  right + " begins " + std::to_string(bytes) + " bytes after " + left + ", in Python " +
                      std::to_string(found->second));
      }
  }

  struct State {
    std::string name;
    TensorRef live;
    at::Tensor content;
  };

  const Case& program_;
  Runtime& runtime_;
  const Settings& settings_;
  const at::Device device_;
  std::unique_ptr<Session> session_;
  std::vector<State> state_;
  Outcome outcome_;
};

}  // namespace

Outcome try_case(const Case& program, Runtime& runtime, const Settings& settings) {
  Trial trial(program, runtime, settings);
  Outcome outcome;
  // Inputs and recordings are handled by LibTorch, which throws.
  const Status status = catch_torch([&] { outcome = trial.run(); });
  if (!status.ok()) outcome.differences.push_back({"thrown", "in the runner or a call", status.text()});
  return outcome;
}

}  // namespace keirin::programs
