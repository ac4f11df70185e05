// SPDX-License-Identifier: Apache-2.0
//
// The worker's side of worker mode: executables by number, each with its arguments in shared memory. A run is a number, and its answer
// an empty packet or what the plugin said.
#include "core/host/worker/run_server.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <fcntl.h>
#include <string.h>

#include <algorithm>
#include <map>

#include "core/host/call/executable.h"
#include "core/host/call/tensor_view.h"
#include "core/host/worker/compile_words.h"
#include "core/host/worker/shared_arguments.h"
#include "core/host/worker/worker_server.h"
#include "core/host/worker/worker_words.h"

namespace keirin {
namespace {

// Slices as LibTorch cuts them, on OpenMP's threads: a plugin's libraries use those, too.
class RunServices final : public WorkerServices {
 public:
  void set_num_threads(int threads) override {
    WorkerServices::set_num_threads(threads);
#ifdef _OPENMP
    ::omp_set_num_threads(threads);
#endif
  }
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn) override {
    const int64_t most = (n + grain - 1) / grain;
    const int64_t slices = std::min<int64_t>(num_threads(), most);
    if (slices <= 1) return fn(0, n);
    const int64_t slice = (n + slices - 1) / slices;
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(slices))
    for (int64_t i = 0; i < slices; ++i)
      if (i * slice < n) fn(i * slice, std::min(n, (i + 1) * slice));
  }
};

struct Loaded {
  std::shared_ptr<Executable> executable;
  SharedArguments arguments;
  std::vector<TensorRef> weights;
  std::vector<krn_tensor> inputs, outputs;
  std::unique_ptr<void, void (*)(void*)> workspace{nullptr, ::free};
};

bool same_form(const Tensor& a, const Tensor& b) {
  const auto n = static_cast<size_t>(a.rank());
  return a.dtype() == b.dtype() && a.rank() == b.rank() && a.storage_bytes() == b.storage_bytes() && a.data() && b.data() &&
         std::equal(a.sizes(), a.sizes() + n, b.sizes()) && std::equal(a.strides(), a.strides() + n, b.strides());
}

// The weights that loaded regions have. Each region comes with its own copy of them in its memory file: the plans of one model's sizes have
// the same ones, which are held once, and packed once by whoever goes by their address.
class HeldWeights {
 public:
  // Has those that are held already, by value, in place of the copies, and gives the copies' memory back.
  void share(std::vector<TensorRef>* weights, const Packet& packet) {
    std::erase_if(held_, [](const auto& each) { return each.second.expired(); });
    for (size_t i = 0; i < weights->size(); ++i) {
      TensorRef& weight = (*weights)[i];
      const auto [first, last] = held_.equal_range(weight->storage_bytes());
      TensorRef known;
      const auto bytes = static_cast<size_t>(weight->storage_bytes());
      for (auto at = first; at != last && !known; ++at)
        if (const TensorRef other = at->second.lock())
          if (same_form(*other, *weight) && ::memcmp(other->data(), weight->data(), bytes) == 0) known = other;
      if (!known) {
        held_.emplace(weight->storage_bytes(), weight);
        continue;
      }
      const off_t from = packet.head.at("weights").at(i).at("offset");
      (void)::fallocate(packet.file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, weight->storage_bytes());
      weight = known;
    }
  }

 private:
  std::multimap<int64_t, std::weak_ptr<Tensor>> held_;  // by bytes
};

class Runs {
 public:
  Packet answer(UsedPlugin& plugin, const Packet& packet) {
    if (packet.head.is_null()) return run(packet.number);
    const Question question = read_question(packet);
    Packet reply;
    if (question.op == "drop") {
      loaded_.erase(static_cast<uint32_t>(question.id));
      return reply;
    }
    Result<ExecutableInfo> info = load(plugin, question, packet);
    if (!info.ok()) return failure(info.status());
    reply.head["info"] = info_json(*info);
    return reply;
  }

 private:
  Packet run(uint32_t id) {
    const auto at = loaded_.find(id);
    if (at == loaded_.end()) return failure(Status(Code::k_internal, "the worker has no executable of that number"));
    Loaded& l = at->second;
    const Status status = l.executable->run(l.inputs.data(), static_cast<uint32_t>(l.inputs.size()), l.outputs.data(),
                                            static_cast<uint32_t>(l.outputs.size()), l.workspace.get(), 0);
    Packet nothing;
    return status.ok() ? std::move(nothing) : failure(status);
  }

  Result<ExecutableInfo> load(UsedPlugin& plugin, const Question& q, const Packet& packet) {
    UsedDevice* const device = device_of(plugin, q.device);
    if (!device) return Status(Code::k_unsupported, "the plugin does not drive " + q.device + " in its worker");
    Loaded l;
    KRN_TRY_LET(l.arguments, SharedArguments::of_region(q.region.bytes));
    KRN_TRY(l.arguments.map(packet.file.get(), room_at(packet)));
    PluginRegion region = q.region;
    held_.share(&region.weights, packet);
    l.weights = region.weights;
    if (q.artifact) {
      KRN_TRY_LET(l.executable, device->load(region, *q.artifact));
    } else {
      KRN_TRY_LET(l.executable, device->compile(region, q.policy, q.options));
    }
    for (const SharedArguments::Argument& input : l.arguments.inputs())
      l.inputs.push_back(input.weight == kNone ? l.arguments.view(input, KRN_TENSOR_READ_ONLY)
                                               : view_of(*l.weights.at(input.weight), KRN_TENSOR_READ_ONLY));
    for (const SharedArguments::Argument& output : l.arguments.outputs()) l.outputs.push_back(l.arguments.view(output, 0));
    if (const uint64_t bytes = l.executable->workspace_bytes()) {
      const uint64_t align = std::max<uint64_t>(l.executable->workspace_align(), 64);
      l.workspace.reset(::aligned_alloc(align, (bytes + align - 1) / align * align));
      if (!l.workspace) return Status(Code::k_exhausted, "the worker has no memory for the region's workspace");
    }
    const ExecutableInfo info = l.executable->info();
    loaded_.insert_or_assign(static_cast<uint32_t>(q.id), std::move(l));
    return info;
  }

  HeldWeights held_;
  std::map<uint32_t, Loaded> loaded_;
};

}  // namespace

int serve_run(int channel) {
  static RunServices services;
  static Runs* const runs = new Runs;  // never freed: nothing of a plugin's is released when the process ends
  return serve_plugin(channel, KRN_ROLE_RUN, services,
                      [](UsedPlugin& plugin, const Packet& packet) { return runs->answer(plugin, packet); });
}

}  // namespace keirin
