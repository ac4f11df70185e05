// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/written_device.h"

#include <vector>

#include "plugins/gpu/launch_list.h"
#include "plugins/kit/error.h"
#include "plugins/reference/interpreter.h"

namespace keirin::gpu {
namespace {

size_t bytes_of(const krn_tensor& t) {
  int64_t last = 0;
  for (int32_t d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 0) return 0;
    last += (t.shape[d] - 1) * t.strides[d];
  }
  return static_cast<size_t>(last + 1) * ((t.dtype_bits + 7u) / 8);
}

bool without_gaps(const krn_tensor& t) {
  int64_t elements = 1;
  for (int32_t d = 0; d < t.ndim; ++d) elements *= t.shape[d];
  return static_cast<size_t>(elements) * ((t.dtype_bits + 7u) / 8) == bytes_of(t);
}

uint8_t dtype_of(const krn_tensor& t) {
#define KRN_DTYPE(id, name, bits, dl, cls) \
  if (t.dtype_bits == bits && t.dtype_code == dl) return id;
#include "abi/dtypes.def"
#undef KRN_DTYPE
  return 0;
}

// The tensors of a run in memory of the host, for the interpreter.
class OnHost {
 public:
  OnHost(const krn_run& run, const Driver& driver) : run_(run) {
    std::vector<LaunchList::Memory> memory;
    each(run, [&](const krn_tensor& t) { memory.push_back({t.data, bytes_of(t)}); });
    const auto stream = reinterpret_cast<Stream>(run.stream.native);
    for (const LaunchList::Memory& m : pieces_ = joined(std::move(memory))) {
      copies_.emplace_back(m.bytes);
      check(driver, driver.copy_out(stream, copies_.back().data(), m.base, m.bytes), "reading a run's tensors");
    }
    check(driver, driver.wait(stream), "reading a run's tensors");
    for (uint32_t i = 0; i < run.num_inputs; ++i) inputs_.push_back(moved(run.inputs[i]));
    for (uint32_t o = 0; o < run.num_outputs; ++o) outputs_.push_back(moved(run.outputs[o]));
  }
  void interpret(const reference::Interpreter& interpreter) {
    interpreter.run(inputs_.data(), run_.num_inputs, outputs_.data(), run_.num_outputs);
  }
  std::vector<LaunchList::Expected> expected() const {
    std::vector<LaunchList::Expected> out;
    for (uint32_t o = 0; o < run_.num_outputs; ++o) {
      const krn_tensor& t = outputs_[o];
      const auto* bytes = static_cast<const char*>(t.data);
      if (const size_t size = bytes_of(t); size > 0 && without_gaps(t))
        out.push_back({run_.outputs[o].data, {bytes, bytes + size}, dtype_of(t)});
    }
    return out;
  }
  // To where the run's own outputs are, on the host too.
  void give_back() const {
    for (uint32_t o = 0; o < run_.num_outputs; ++o) reference::store(reference::load(outputs_[o], dtype_of(outputs_[o])), run_.outputs[o]);
  }

  template <class F>
  static void each(const krn_run& run, F f) {
    for (uint32_t i = 0; i < run.num_inputs; ++i) f(run.inputs[i]);
    for (uint32_t o = 0; o < run.num_outputs; ++o) f(run.outputs[o]);
  }

 private:
  krn_tensor moved(krn_tensor t) {
    for (size_t p = 0; p < pieces_.size(); ++p) {
      const auto* base = static_cast<const char*>(pieces_[p].base);
      const auto* at = static_cast<const char*>(t.data);
      if (at < base || at >= base + pieces_[p].bytes) continue;
      t.data = copies_[p].data() + (at - base);
      break;
    }
    return t;
  }
  const krn_run& run_;
  std::vector<LaunchList::Memory> pieces_;
  std::vector<std::vector<char>> copies_;
  std::vector<krn_tensor> inputs_, outputs_;
};

// What the executables of a device share with it.
struct Pen {
  const Driver* driver;
  LaunchList* list;  // null: nothing is written
  bool imagined;
};

class Executable final : public kit::Executable {
 public:
  Executable(std::unique_ptr<kit::Executable> inner, const kit::Region& region, std::shared_ptr<Pen> pen)
      : inner_(std::move(inner)), pen_(std::move(pen)), interpreter_({region.bytes.data(), region.bytes.size()}) {
    static const char kDigits[] = "0123456789abcdef";
    for (int i = 0; i < 6; ++i) name_ += kDigits[region.hash[i] >> 4], name_ += kDigits[region.hash[i] & 15];
  }
  void info(krn_exec_info& out) const override {
    inner_->info(out);
    out.flags &= ~KRN_EXEC_REPLAY_SAFE;  // what is written down waits
  }
  void needs(krn_needs& out) const override { inner_->needs(out); }
  void save(std::string& token, std::string& body) const override { inner_->save(token, body); }
  std::unique_ptr<kit::Executable> resize(const kit::Region& region) const override {
    return std::make_unique<Executable>(inner_->resize(region), region, pen_);
  }

  krn_code run(const krn_run& given, krn_err* err) noexcept override {
    krn_run run = given;
    if (pen_->imagined) run.stream.flags |= KRN_STREAM_HAS_NATIVE;
    const bool writes = pen_->list && pen_->list->wants(name_);
    if (!writes && !pen_->imagined) return inner_->run(run, err);
    krn_code code = KRN_STATUS_internal;
    const krn_code caught = kit::barrier(err, [&] {
      OnHost host(run, *pen_->driver);
      code = writes ? written(run, host, err) : KRN_STATUS_ok;
      if (!writes) host.interpret(interpreter_);
      if (pen_->imagined && code == KRN_STATUS_ok) host.give_back();
    });
    return caught != KRN_STATUS_ok ? caught : code;
  }

 private:
  krn_code written(const krn_run& run, OnHost& host, krn_err* err) {
    krn_needs needs{};
    inner_->needs(needs);
    std::vector<LaunchList::Memory> memory{{run.workspace, needs.workspace_bytes}};
    OnHost::each(run, [&](const krn_tensor& t) { memory.push_back({t.data, bytes_of(t)}); });
    pen_->list->begin(name_, std::move(memory), reinterpret_cast<Stream>(run.stream.native));
    const krn_code code = inner_->run(run, err);
    std::vector<LaunchList::Expected> expected;
    std::string wrong;
    try {
      host.interpret(interpreter_);
      expected = host.expected();
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    const std::string failed = pen_->list->end(expected);
    if (code == KRN_STATUS_ok && !wrong.empty())
      throw kit::Error(KRN_STATUS_unsupported, "the interpreter does not run this region: " + wrong);
    if (!failed.empty()) throw kit::Error(KRN_STATUS_internal, "the launches of region " + name_ + " were not written: " + failed);
    return code;
  }

  std::unique_ptr<kit::Executable> inner_;
  std::shared_ptr<Pen> pen_;
  reference::Interpreter interpreter_;
  std::string name_;
};

class WrittenDevice final : public kit::Device {
 public:
  WrittenDevice(std::unique_ptr<Gpu> gpu, std::shared_ptr<Pen> pen)
      : pen_(std::move(pen)), inner_(std::make_unique<PluginDevice>(std::move(gpu))) {}

  void describe(krn_device_desc& out) const override { inner_->describe(out); }
  void open() override { inner_->open(); }
  void close() override { inner_->close(); }
  krn_code health() const override { return inner_->health(); }
  void condition(krn_condition& out) const override { inner_->condition(out); }
  void claim(const kit::Region& region, const krn_policy& policy, kit::ClaimSink& sink) override { inner_->claim(region, policy, sink); }
  uint32_t check(std::string_view token) const override { return inner_->check(token); }
  std::unique_ptr<kit::Executable> compile(const kit::Region& region, const krn_policy& policy, const krn_options& options) override {
    return std::make_unique<Executable>(inner_->compile(region, policy, options), region, pen_);
  }
  std::unique_ptr<kit::Executable> load(const kit::Region& region, std::string_view token, std::string_view body) override {
    return std::make_unique<Executable>(inner_->load(region, token, body), region, pen_);
  }

 private:
  std::shared_ptr<Pen> pen_;
  std::unique_ptr<kit::Device> inner_;
};

}  // namespace

std::unique_ptr<kit::Device> write_device(std::unique_ptr<Gpu> gpu, const std::string& folder, bool imagined) {
  auto pen = std::make_shared<Pen>(Pen{gpu->driver, nullptr, imagined});
  if (!folder.empty()) {
    pen->list = &launch_list(*gpu->driver, folder, gpu->arch);
    gpu->driver = pen->driver = &pen->list->driver();
  }
  return std::make_unique<WrittenDevice>(std::move(gpu), std::move(pen));
}

}  // namespace keirin::gpu
