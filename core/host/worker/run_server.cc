// SPDX-License-Identifier: Apache-2.0
//
// The worker's side of worker mode: executables by number, each with its arguments in shared memory, the host's or a GPU's. A run is a
// number, and its answer an empty packet or what the plugin said. A GPU's work is waited for before the answer.
#include "core/host/worker/run_server.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "core/host/call/executable.h"
#include "core/host/call/tensor_view.h"
#include "core/host/worker/compile_words.h"
#include "core/host/worker/device_driver.h"
#include "core/host/worker/shared_arguments.h"
#include "core/host/worker/worker_server.h"
#include "core/host/worker/worker_words.h"

namespace keirin {
namespace {

// A tensor in memory of a GPU that somebody keeps.
class DeviceTensor final : public Tensor {
 public:
  DeviceTensor(DType dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides, Device device, DeviceMemoryRef memory,
               uint64_t offset, uint64_t bytes)
      : dtype_(dtype),
        sizes_(std::move(sizes)),
        strides_(std::move(strides)),
        device_(device),
        memory_(std::move(memory)),
        offset_(offset),
        bytes_(bytes) {}
  DType dtype() const override { return dtype_; }
  Device device() const override { return device_; }
  const int64_t* sizes() const override { return sizes_.data(); }
  const int64_t* strides() const override { return strides_.data(); }
  int64_t rank() const override { return static_cast<int64_t>(sizes_.size()); }
  void* data() const override { return memory_->data() + offset_; }
  int64_t storage_bytes() const override { return static_cast<int64_t>(bytes_); }

 private:
  const DType dtype_;
  const std::vector<int64_t> sizes_, strides_;
  const Device device_;
  const DeviceMemoryRef memory_;
  const uint64_t offset_, bytes_;
};

// Slices as LibTorch cuts them, on OpenMP's threads: a plugin's libraries use those, too. Memory of the GPU whose regions run here.
class RunServices final : public WorkerServices {
 public:
  void serve(std::shared_ptr<DeviceDriver> driver) {
    const std::lock_guard guard(mutex_);
    driver_ = std::move(driver);
  }
  Result<TensorRef> allocate(const TensorSpec& spec) override {
    std::shared_ptr<DeviceDriver> driver;
    {
      const std::lock_guard guard(mutex_);
      driver = driver_;
    }
    if (!driver || driver->device() != spec.device || spec.dtype != DType::k_u8 || spec.sizes.size() != 1)
      return WorkerServices::allocate(spec);
    const auto bytes = static_cast<uint64_t>(spec.sizes[0]);
    KRN_TRY_LET(DeviceMemoryRef memory, driver->allocate(bytes));
    return TensorRef(std::make_shared<DeviceTensor>(spec.dtype, spec.sizes, std::vector<int64_t>{1}, spec.device, std::move(memory), 0,
                                                    bytes));
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

 private:
  std::mutex mutex_;
  std::shared_ptr<DeviceDriver> driver_;
};

RunServices& services() {
  static auto* const all = new RunServices;  // never freed: a plugin's thread may still hold it when the process ends
  return *all;
}

// What runs take of the device's memory and do not give back. The device is shared, so only what goes while a run lasts is held against
// it. Looking takes as long as a short run: one run in kEvery is picked at random, and after one that took something the next kWatchful
// are all looked at. So who takes something in each run is found at the limit, and who seldom does, on the average, at kEvery times that.
class TakenMemory {
 public:
  void before(const DeviceDriver& driver) {
    looks_ = --until_look_ == 0;
    if (looks_) before_ = driver.bytes();
  }
  // How much it is by now, if that is more than a plugin may.
  std::optional<uint64_t> after(const DeviceDriver& driver) {
    if (!looks_) return {};
    const DeviceDriver::Bytes now = driver.bytes();
    if (now.free < before_.free) {
      taken_ += before_.free - now.free;
      watchful_ = kWatchful;
    } else {
      taken_ -= std::min(taken_, now.free - before_.free);
    }
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    until_look_ = watchful_ > 0 ? 1 : 1 + (random_ >> 33) % (2 * kEvery - 1);
    watchful_ -= watchful_ > 0;
    if (taken_ > std::max(now.all / kShare, kLeast)) return taken_;
    return {};
  }

 private:
  static constexpr uint64_t kEvery = 16, kWatchful = 32, kShare = 64, kLeast = 256 << 20;
  bool looks_ = false;
  uint64_t until_look_ = 1, watchful_ = kWatchful, taken_ = 0, random_ = 1;
  DeviceDriver::Bytes before_;
};

struct Loaded {
  std::shared_ptr<DeviceDriver> driver;  // null: on the processor
  std::shared_ptr<void> pinned;          // of a GPU: the arguments in memory of the host; null: in lent memory of the device
  std::unique_ptr<DeviceDriver::Point> inputs_are_there;  // null: they are when a run is asked for
  DeviceMemoryRef device_workspace;
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
    void* const workspace = l.device_workspace ? l.device_workspace->data() : l.workspace.get();
    const auto run_on = [&](uint64_t stream) {
      return l.executable->run(l.inputs.data(), static_cast<uint32_t>(l.inputs.size()), l.outputs.data(),
                               static_cast<uint32_t>(l.outputs.size()), workspace, stream);
    };
    const Status status = l.driver ? run_on_device(l, run_on) : run_on(0);
    Packet nothing;
    return status.ok() ? std::move(nothing) : failure(status);
  }

  Status run_on_device(Loaded& l, const std::function<Status(uint64_t stream)>& run_on) {
    const uint64_t stream = l.driver->own_stream(), bytes = l.arguments.total_bytes();
    taken_.before(*l.driver);
    const auto work = [&]() -> Status {
      if (l.inputs_are_there) KRN_TRY(l.inputs_are_there->awaited_by(stream));
      if (l.pinned) KRN_TRY(l.driver->write(l.arguments.memory(), l.pinned.get(), bytes, stream));
      KRN_TRY(run_on(stream));
      return l.pinned ? l.driver->read(l.pinned.get(), l.arguments.memory(), bytes, stream) : Status();
    };
    return finish(*l.driver, work());
  }

  // Its work is done, or the process is: with a device's context that is lost nothing else of it would run either, and the host starts
  // another.
  Status finish(const DeviceDriver& driver, Status status) {
    const Status waited = driver.wait(driver.own_stream());
    for (const Status* each : {&waited, static_cast<const Status*>(&status)})
      if (each->code() == Code::k_device_lost) {
        ::fprintf(stderr, "%s\n", each->message().what.c_str());
        ::_exit(1);
      }
    if (status.ok()) status = waited;
    const std::optional<uint64_t> taken = taken_.after(driver);
    if (!taken || !status.ok()) return status;
    return Status(Code::k_exhausted,
                  "took " + std::to_string(*taken >> 20) + " MiB of the device's memory in its runs and did not give it back");
  }

  // Memory that the host lends, once however often it is lent.
  Result<DeviceMemoryRef> open(const DeviceDriver& driver, const LentMemory& lent) {
    std::weak_ptr<DeviceMemory>& known = opened_[lent.handle];
    if (DeviceMemoryRef memory = known.lock()) return memory;
    KRN_TRY_LET(DeviceMemoryRef memory, driver.open(lent.handle, lent.bytes));
    known = memory;
    return memory;
  }

  Status take_lent(const LentRegion& lent, const DeviceDriver& driver, SharedArguments* arguments, std::vector<TensorRef>* weights) {
    std::erase_if(opened_, [](const auto& each) { return each.second.expired(); });
    Result<DeviceMemoryRef> opened = lent.arguments ? open(driver, *lent.arguments) : driver.allocate(arguments->total_bytes());
    KRN_TRY_LET(DeviceMemoryRef block, std::move(opened));
    char* const at = block->data();
    arguments->lie_in({std::move(block), at});
    std::vector<DeviceMemoryRef> blocks;
    for (const LentMemory& each : lent.blocks) {
      KRN_TRY_LET(DeviceMemoryRef opened, open(driver, each));
      blocks.push_back(std::move(opened));
    }
    for (const LentRegion::Weight& w : lent.weights)
      weights->push_back(
          std::make_shared<DeviceTensor>(w.dtype, w.sizes, w.strides, driver.device(), blocks.at(w.block), w.offset, w.bytes));
    return {};
  }

  Result<ExecutableInfo> load(UsedPlugin& plugin, const Question& q, const Packet& packet) {
    UsedDevice* const device = device_of(plugin, q.device);
    if (!device) return Status(Code::k_unsupported, "the plugin does not drive " + q.device + " in its worker");
    Loaded l;
    PluginRegion region = q.region;
    const std::optional<LentRegion> lent = lent_of(packet);
    KRN_TRY_LET(l.arguments, SharedArguments::of_region(q.region.bytes, lent ? device->torch_device() : Device{}));
    if (lent) {
      KRN_TRY_LET(l.driver, DeviceDriver::of(device->hardware()));
      services().serve(l.driver);
      KRN_TRY(take_lent(*lent, *l.driver, &l.arguments, &region.weights));
      if (!lent->arguments) {
        KRN_TRY_LET(SharedArguments in_file, SharedArguments::of_region(q.region.bytes, device->torch_device()));
        KRN_TRY(in_file.map(packet.file.get(), room_at(packet)));
        KRN_TRY_LET(l.pinned, l.driver->pin(in_file.held(), in_file.total_bytes()));
      }
      if (lent->event) {
        l.inputs_are_there = std::make_unique<DeviceDriver::Point>(l.driver);
        KRN_TRY(l.inputs_are_there->open(*lent->event));
      }
    } else {
      KRN_TRY(l.arguments.map(packet.file.get(), room_at(packet)));
      held_.share(&region.weights, packet);
    }
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
    if (const uint64_t bytes = l.executable->workspace_bytes(); bytes > 0 && l.driver) {
      KRN_TRY_LET(l.device_workspace, l.driver->allocate(bytes));
    } else if (bytes > 0) {
      const uint64_t align = std::max<uint64_t>(l.executable->workspace_align(), 64);
      l.workspace.reset(::aligned_alloc(align, (bytes + align - 1) / align * align));
      if (!l.workspace) return Status(Code::k_exhausted, "the worker has no memory for the region's workspace");
    }
    ExecutableInfo info = l.executable->info();
    // What a call needs beside the plan's own arrays counts as the region's, here where nobody else sees it.
    if (l.driver) info.constant_bytes += l.arguments.total_bytes() + l.executable->workspace_bytes();
    loaded_.insert_or_assign(static_cast<uint32_t>(q.id), std::move(l));
    return info;
  }

  HeldWeights held_;
  std::map<DeviceDriver::Handle, std::weak_ptr<DeviceMemory>> opened_;
  TakenMemory taken_;
  std::map<uint32_t, Loaded> loaded_;
};

}  // namespace

int serve_run(int channel) {
  static Runs* const runs = new Runs;  // never freed: nothing of a plugin's is released when the process ends
  return serve_plugin(channel, KRN_ROLE_RUN, services(),
                      [](UsedPlugin& plugin, const Packet& packet) { return runs->answer(plugin, packet); });
}

}  // namespace keirin
