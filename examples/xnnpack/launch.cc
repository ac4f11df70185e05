// SPDX-License-Identifier: Apache-2.0
//
// Running a region: its borders in place or by way of the workspace, then XNNPACK. It may read XNN_EXTRA_BYTES behind the end of a tensor,
// whose values mean nothing. The host promises no such bytes: where they may lie in the next page, which may not be there, a copy is read.
#include <algorithm>
#include <cstring>

#include "device.h"

namespace xnnpack_plugin {
namespace {

constexpr uintptr_t kPage = 4096;  // the least one

bool may_be_read_beyond(const void* data, uint64_t bytes) {
  const uintptr_t last = reinterpret_cast<uintptr_t>(data) + bytes - 1;
  return last / kPage == (last + XNN_EXTRA_BYTES) / kPage;
}

// Between N, C, H, W and N, H, W, C, on the host's threads.
struct Reorder {
  const float* from;
  float* to;
  std::array<int64_t, 4> sizes;
  bool to_image;

  void run() const noexcept {
    const krn_host_threads* const threads = keirin::kit::host().threads;
    const int64_t rows = sizes[0] * sizes[2];
    const int64_t grain = std::max<int64_t>(1, 16384 / (sizes[1] * sizes[3]));
    if (threads && threads->parallel_for) threads->parallel_for(keirin::kit::host().host, rows, grain, part, const_cast<Reorder*>(this));
    else part(const_cast<Reorder*>(this), 0, rows, 0);
  }

  static void KRN_CALL part(void* ctx, int64_t begin, int64_t end, int32_t) {
    const Reorder& r = *static_cast<const Reorder*>(ctx);
    const auto [batch, channels, height, width] = r.sizes;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t n = row / height, h = row % height;
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t plane = ((n * channels + c) * height + h) * width, image = (n * height + h) * width * channels + c;
        for (int64_t w = 0; w < width; ++w) {
          if (r.to_image) r.to[image + w * channels] = r.from[plane + w];
          else r.to[plane + w] = r.from[image + w * channels];
        }
      }
    }
  }
};

class Executable final : public keirin::kit::Executable {
 public:
  explicit Executable(std::unique_ptr<Program> program) : program_(std::move(program)), values_(program_->borders.size()) {
    for (const Border& b : program_->borders) values_[b.id].id = b.id;
  }

  void info(krn_exec_info& out) const override {
    out.flags = KRN_EXEC_INPUTS_INTACT;  // a runtime has one set of addresses: one thread at a time
    out.num_kernels = out.num_anchors = program_->num_nodes;
    for (const std::vector<float>& filter : program_->filters) out.constant_bytes += filter.size() * sizeof(float);
  }

  void needs(krn_needs& out) const override {
    out.workspace_bytes = program_->workspace_bytes;
    out.workspace_align = 64;
  }

  void save(std::string& token, std::string& body) const override {
    token = artifact_token();
    body = xnnpack_plugin::save(*program_);
  }

  krn_code run(const krn_run& run, krn_err* err) noexcept override {
    const Program& p = *program_;
    if (run.num_inputs != p.num_inputs || run.num_outputs != p.num_outputs || run.workspace_bytes < p.workspace_bytes) {
      keirin::kit::set_error(err, KRN_STATUS_invalid_input, "run: tensors or workspace do not match the compiled region");
      return KRN_STATUS_invalid_input;
    }
    bool moved = !set_up_;
    for (const Border& b : p.borders) {
      void* const place = place_of(run, b);
      if (!b.is_output) fill(run, b, place);
      moved = moved || values_[b.id].data != place;
      values_[b.id].data = place;
    }
    set_up_ = false;
    const Engine& e = engine();
    xnn_status status = moved ? e.xnn_setup_runtime(p.runtime, values_.size(), values_.data()) : xnn_status_success;
    if (status == xnn_status_success) status = e.xnn_invoke_runtime(p.runtime);
    if (status != xnn_status_success) {
      keirin::kit::set_error(err, code_of(status), text_of(status));
      return code_of(status);
    }
    set_up_ = true;
    write_outputs(run);
    return KRN_STATUS_ok;
  }

 private:
  static char* workspace(const krn_run& run, uint64_t offset) { return static_cast<char*>(run.workspace) + offset; }
  static void* tensor(const krn_run& run, const Border& b) { return (b.is_output ? run.outputs : run.inputs)[b.tensor].data; }

  static void* place_of(const krn_run& run, const Border& b) {
    void* const data = tensor(run, b);
    return b.reorder || b.always_copy || !may_be_read_beyond(data, b.bytes) ? workspace(run, b.offset) : data;
  }

  static void fill(const krn_run& run, const Border& b, void* place) noexcept {
    const auto* const data = static_cast<const float*>(tensor(run, b));
    if (b.reorder) Reorder{data, static_cast<float*>(place), b.sizes, true}.run();
    else if (place != data) std::memcpy(place, data, b.bytes);
  }

  void write_outputs(const krn_run& run) const noexcept {
    const Program& p = *program_;
    for (const Copy& c : p.copies)
      if (c.from_input) std::memcpy(c.is_update ? workspace(run, c.offset) : run.outputs[c.to].data, run.inputs[c.from].data, c.bytes);
    for (const Border& b : p.borders) {
      if (!b.is_output || values_[b.id].data == tensor(run, b)) continue;
      auto* const to = static_cast<float*>(tensor(run, b));
      if (b.reorder) Reorder{static_cast<const float*>(values_[b.id].data), to, b.sizes, false}.run();
      else std::memcpy(to, values_[b.id].data, b.bytes);
    }
    for (const Copy& c : p.copies) {
      if (!c.from_input) std::memcpy(run.outputs[c.to].data, run.outputs[c.from].data, c.bytes);
      else if (c.is_update) std::memcpy(run.outputs[c.to].data, workspace(run, c.offset), c.bytes);
    }
  }

  const std::unique_ptr<Program> program_;
  std::vector<xnn_external_value> values_;
  bool set_up_ = false;
};

}  // namespace

std::unique_ptr<keirin::kit::Executable> make_executable(std::unique_ptr<Program> program) {
  return std::make_unique<Executable>(std::move(program));
}

}  // namespace xnnpack_plugin
