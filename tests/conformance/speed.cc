// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/speed.h"

#include <fnmatch.h>

#include <chrono>
#include <cstring>
#include <functional>

#include "core/eager/rows/graph_calls.h"
#include "core/host/call/tensor_view.h"
#include "core/ops/table.h"
#include "core/tune/race.h"
#include "core/tune/verify.h"
#include "tests/conformance/sheet.h"
#include "tests/conformance/subject.h"
#include "tests/conformance/values.h"

namespace keirin::conformance {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Of a case: rows of 1,024 elements. A processor takes some 50 us for a pass over 1 MiB, a GPU some 10 us over 16 MiB, where starting work
// takes a tenth and a third of that.
constexpr int64_t kRows = 256, kRowsOnGpu = 4096;
constexpr uint64_t kRaceNs = 200'000'000;  // of a pair; most are over at their first look, after some 30 ms

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::string sizes_of(const Case& c) {
  std::string out;
  for (const Feed& feed : c.feeds) {
    out += out.empty() ? "" : ", ";
    const Dims& sizes = c.graph.type(feed.value).sizes;
    for (size_t d = 0; d < sizes.size(); ++d) out += (d ? "x" : "") + std::to_string(sizes[d]);
  }
  return out;
}

// The case's tensors where the device reads them.
struct Operands {
  std::vector<TensorRef> inputs, constants;
};

Result<Operands> make_operands(const Case& c, Device device, TensorServices& services) {
  Operands out;
  for (const Feed& feed : c.feeds) {
    const Value& value = c.graph.values[feed.value];
    KRN_TRY_LET(TensorRef made, services.allocate({value.type.dtype, value.type.sizes.vec(), value.type.strides.vec(), device}));
    (value.kind == ValueKind::kConstant ? out.constants : out.inputs).push_back(std::move(made));
  }
  return out;
}

Status fill_operands(const Case& c, const Operands& operands, TensorServices& services) {
  for (size_t i = 0; i < c.feeds.size(); ++i) {
    const Value& value = c.graph.values[c.feeds[i].value];
    const std::vector<uint8_t> bytes = fill(value.type, c.feeds[i], false, i + 1);
    KRN_TRY_LET(const TensorRef here, services.allocate({value.type.dtype, value.type.sizes.vec(), value.type.strides.vec(), {}}));
    std::memcpy(here->data(), bytes.data(), bytes.size());
    KRN_TRY(services.copy((value.kind == ValueKind::kConstant ? operands.constants : operands.inputs)[value.index], here));
  }
  return {};
}

// One plugin's code for a case, called as a plan calls it: outputs are allocated for each call, the workspace once.
class PluginCall {
 public:
  PluginCall(const Case& c, Compiled compiled, const Operands& operands, TensorServices& services, Device device)
      : c_(c), compiled_(std::move(compiled)), services_(services), device_(device) {
    for (ValueId v : compiled_.bytes.inputs) {
      const Value& value = c.graph.values[v];
      in_.push_back(view_of(*(value.kind == ValueKind::kConstant ? operands.constants : operands.inputs)[value.index]));
    }
  }

  Status make_workspace() {
    const auto bytes = static_cast<int64_t>(compiled_.executable->workspace_bytes());
    if (bytes > 0) {
      KRN_TRY_LET(workspace_, services_.allocate({DType::k_u8, {bytes}, {1}, device_}));
    }
    return {};
  }

  Status run() {
    outputs_.clear();
    out_.clear();
    for (const Output& o : c_.graph.outputs) {
      const Type& type = c_.graph.type(o.value);
      KRN_TRY_LET(TensorRef made, services_.allocate({type.dtype, type.sizes.vec(), type.strides.vec(), device_}));
      out_.push_back(view_of(*made));
      outputs_.push_back(std::move(made));
    }
    return compiled_.executable->run(in_.data(), static_cast<uint32_t>(in_.size()), out_.data(), static_cast<uint32_t>(out_.size()),
                                     workspace_ ? workspace_->data() : nullptr, services_.current_stream(device_));
  }
  const std::vector<TensorRef>& outputs() const { return outputs_; }

 private:
  const Case& c_;
  const Compiled compiled_;
  TensorServices& services_;
  const Device device_;
  TensorRef workspace_;
  std::vector<krn_tensor> in_, out_;
  std::vector<TensorRef> outputs_;
};

class Timing {
 public:
  Timing(const SpeedOptions& options, TensorServices& services) : options_(options), services_(services) {}

  Result<json> run() {
    const Clock::time_point begin = Clock::now();
    KRN_TRY(open());
    static constexpr OpCode kRowsOfTable[] = {
#define KRN_ROW(id, name) OpCode::k_##name,
#define KRN_SCALAR(id, name, ...) KRN_ROW(id, name)
#define KRN_REDUCE(id, name, ...) KRN_ROW(id, name)
#define KRN_MOVE(id, name, ...) KRN_ROW(id, name)
#define KRN_FACTORY(id, name, ...) KRN_ROW(id, name)
#define KRN_COMPOSITE(id, name, ...) KRN_ROW(id, name)
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
#undef KRN_ROW
    };
    json cases = json::array(), others = json::array();
    int64_t left_out = 0;
    // By dtype, and what models have most comes first: where time is short, it is the odd ones that are left out.
    for (const DType dtype : kAll)
      for (const OpCode row : kRowsOfTable) {
        const std::string name = std::string(op_name(row)) + "/" + std::string(dtype_name(dtype));
        if (!options_.pattern.empty() && fnmatch(options_.pattern.c_str(), name.c_str(), 0) != 0) continue;
        const std::optional<Case> c = speed_case(row, dtype, device_.kind == Device::kCpu ? kRows : kRowsOnGpu);
        if (!c) continue;
        if (seconds_since(begin) > options_.seconds) {
          ++left_out;
          continue;
        }
        json timed = {{"operator", op_name(row)}, {"dtype", dtype_name(dtype)}, {"sizes", sizes_of(*c)}};
        if (const Status status = time_case(*c, timed); !status.ok()) timed["note"] = status.message().what;
        if (timed.contains("plugins") || timed.contains("note")) cases.push_back(std::move(timed));
      }
    for (const PluginDevice* device : devices_)
      if (device != devices_[0]) others.push_back(device->plugin_name());
    return json{{"arch", devices_[0]->arch()}, {"threads", services_.num_threads()}, {"seconds", seconds_since(begin)},
                {"left_out", left_out},        {"others", others},                   {"cases", cases}};
  }

 private:
  Status open() {
    HostOptions host;
    host.paths = {options_.folder};
    for (const std::string& other : options_.others) host.paths.push_back(other);
    host.search = false;
    host.worker = options_.worker;
    host.services = &services_;
    host.run_in = RunIn::kProcess;
    host.compile_in = CompileIn::kProcess;
    KRN_TRY_LET(host_, PluginHost::open(host));
    for (PluginDevice* device : host_->devices())
      if (device->plugin_name() == options_.name) devices_.push_back(device);
    if (devices_.empty()) return Status(Code::k_unsupported, "the plugin " + options_.name + " drives nothing here");
    devices_.resize(1);
    device_ = devices_[0]->torch_device();
    // Those that a session would ask of itself.
    for (PluginDevice* device : host_->devices())
      if (device != devices_[0] && device->torch_device() == device_ && device->desc().prior_score != 0) devices_.push_back(device);
    // LibTorch's library for a GPU is opened before anything asks about one.
    return services_.allocate({DType::k_u8, {1}, {1}, device_}).status();
  }

  // What LibTorch answers, in the strides that the case asks for: it may answer with a view. `wide`: in fp64.
  Result<std::vector<TensorRef>> answer(const Case& c, const Operands& operands, bool wide) {
    CallOptions call{device_, std::nullopt};
    if (wide) call.float_dtype = DType::k_f64;
    KRN_TRY_LET(std::vector<TensorRef> out, evaluate(c.graph, nullptr, operands.inputs, operands.constants, call));
    for (size_t o = 0; o < out.size(); ++o) {
      const Type& type = c.graph.type(c.graph.outputs[o].value);
      KRN_TRY_LET(TensorRef laid, services_.allocate({out[o]->dtype(), type.sizes.vec(), type.strides.vec(), device_}));
      KRN_TRY(services_.copy(laid, out[o]));
      out[o] = std::move(laid);
    }
    return out;
  }

  // Empty, or what is wrong with the answer.
  std::string judged(const Case& c, const std::vector<TensorRef>& referee, const std::vector<TensorRef>& eager,
                     const std::vector<TensorRef>& own) {
    const Result<Judgement> judgement = judge(referee, eager, own, services_, judge_options(c.graph, Numerics::kDefault, 0));
    return !judgement.ok() ? judgement.status().message().what : judgement->right ? "" : "wrong: " + judgement->reason;
  }

  // Adds `eager_ns` and `plugins`; nothing where the plugin does not claim the case.
  Status time_case(const Case& c, json& timed) {
    KRN_TRY_LET(const Operands operands, make_operands(c, device_, services_));
    KRN_TRY_LET(const Compiled asked, claim_case(*devices_[0], c, operands.constants));
    if (!asked.claimed) return {};
    KRN_TRY(fill_operands(c, operands, services_));
    std::vector<std::unique_ptr<PluginCall>> calls;
    std::vector<std::string> names;
    json plugins = json::object();
    std::vector<TensorRef> referee, eager;
    for (PluginDevice* device : devices_) {
      Result<Compiled> compiled = compile_case(*device, c, operands.constants);
      if (compiled.ok() && !compiled->claimed) continue;
      std::string why;
      if (compiled.ok()) {
        calls.push_back(std::make_unique<PluginCall>(c, std::move(*compiled), operands, services_, device_));
        if (referee.empty()) {
          KRN_TRY_LET(eager, answer(c, operands, false));
          KRN_TRY_LET(referee, answer(c, operands, true));
        }
        Status status = calls.back()->make_workspace();
        if (status.ok()) status = calls.back()->run();
        if (status.ok()) status = services_.synchronize(device_);
        why = status.ok() ? judged(c, referee, eager, calls.back()->outputs()) : status.message().what;
        if (!why.empty()) calls.pop_back();
      } else {
        why = compiled.status().message().what;
      }
      plugins[device->plugin_name()] = {{"note", why}};
      if (why.empty()) names.push_back(device->plugin_name());
    }
    KRN_TRY(race_calls(c, operands, calls, names, timed, plugins));
    timed["plugins"] = std::move(plugins);
    return {};
  }

  Status race_calls(const Case& c, const Operands& operands, const std::vector<std::unique_ptr<PluginCall>>& calls,
                    const std::vector<std::string>& names, json& timed, json& plugins) {
    KRN_TRY_LET(const std::unique_ptr<EagerGraph> eager, EagerGraph::make(c.graph, nullptr, operands.constants, {device_, std::nullopt}));
    std::vector<Runner> runners{{"eager", [&] { return eager->run(operands.inputs).status(); }}};
    for (size_t i = 0; i < calls.size(); ++i) runners.push_back({names[i], [call = calls[i].get()] { return call->run(); }});
    RaceOptions race_options;
    race_options.limit_ns = kRaceNs;
    if (device_.kind != Device::kCpu) race_options.wait = [&] { return services_.synchronize(device_); };
    if (device_.kind != Device::kCpu && devices_[0]->condition().clock_mhz > 0)
      race_options.condition = [&] { return devices_[0]->condition(); };
    if (!calls.empty() && names[0] == options_.name) race_options.one_must_race = {1};  // else only the best would have an interval
    KRN_TRY_LET(const RaceSheet sheet, race(runners, 0, race_options));
    if (sheet.rows[0].ns > 0) timed["eager_ns"] = sheet.rows[0].ns;
    for (size_t i = 1; i < sheet.rows.size(); ++i) {
      const RaceRow& row = sheet.rows[i];
      json& plugin = plugins[row.name];
      if (row.outcome == RaceOutcome::kFailed) plugin["note"] = row.note;
      else if (row.outcome == RaceOutcome::kDisturbed) plugin["note"] = "disturbed: " + row.note;
      else if (row.ns <= 0) plugin["note"] = "disturbed: no look at it was quiet";
      if (row.outcome == RaceOutcome::kFailed || row.ns <= 0) continue;
      plugin["ns"] = row.ns;
      // Of one that is far slower than the best the screen is all that is known.
      if (row.blocks > 0) plugin["ratio"] = row.gain, plugin["low"] = row.gain_low, plugin["high"] = row.gain_high;
      else if (sheet.rows[0].ns > 0) plugin["ratio"] = sheet.rows[0].ns / row.ns;
    }
    return {};
  }

  const SpeedOptions& options_;
  TensorServices& services_;
  std::unique_ptr<PluginHost> host_;
  std::vector<PluginDevice*> devices_;  // the plugin's first
  Device device_;
};

}  // namespace

Result<json> time_operators(const SpeedOptions& options, TensorServices& services) { return Timing(options, services).run(); }

}  // namespace keirin::conformance
