// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/launch.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "abi/plugin.h"
#include "plugins/kit/error.h"

namespace keirin::gpu {
namespace {

using codegen::AxisKind;
using codegen::Kernel;
using codegen::Schedule;

constexpr size_t kMaxPointers = 256;
// What a launch may pass by value.
constexpr size_t kMaxParameterBytes = 32764;

std::vector<int64_t> sizes_of(const Kernel& kernel, const Schedule& schedule, bool next_begins_early) {
  std::vector<int64_t> all = codegen::size_arguments(kernel);
  all.insert(all.end(), {schedule.splits, schedule.split_length, next_begins_early});
  return all;
}

std::vector<char> pack(const std::vector<int64_t>& sizes, bool wide) {
  std::vector<char> out;
  for (int64_t v : sizes) {
    const auto narrow = static_cast<int32_t>(v);
    const char* bytes = wide ? reinterpret_cast<const char*>(&v) : reinterpret_cast<const char*>(&narrow);
    out.insert(out.end(), bytes, bytes + (wide ? 8 : 4));
  }
  return out;
}

bool is_empty(const Kernel& kernel) {
  return (kernel.column && kernel.axes.back().size == 0) ||
         std::any_of(kernel.axes.begin(), kernel.axes.end(), [](const auto& a) { return a.kind == AxisKind::kOuter && a.size == 0; });
}

bool has_nothing_to_index(const Kernel& kernel) {
  for (const codegen::Access& a : kernel.accesses)
    for (const auto& i : a.indirects)
      if (i.limit <= 0) return true;
  return false;
}

// Of a run: what went wrong, said in the caller's sink.
krn_code without_device(const codegen::RunContext& context, const std::string& text) {
  kit::set_error(context.err, KRN_STATUS_internal, text + " was compiled without a device and cannot run");
  return KRN_STATUS_internal;
}
krn_code refused(const codegen::RunContext& context, const std::string& text, const Driver& driver, Result result) {
  kit::set_error(context.err, driver.status_of(result), text + ": its launch: " + driver.words_of(result));
  return driver.status_of(result);
}

class KernelStep final : public codegen::Step {
 public:
  KernelStep(const Driver& driver, const Kernel& k, const Schedule& schedule, const Functions& functions)
      : driver_(driver),
        schedule_(schedule),
        functions_(functions),
        sizes_(pack(sizes_of(k, schedule, false), schedule.wide)),
        sizes_and_go_(pack(sizes_of(k, schedule, true), schedule.wide)),
        empty_(is_empty(k)),
        nothing_to_index_(has_nothing_to_index(k)) {
    for (const codegen::Buffer& b : k.buffers) buffers_.push_back(b.id);
    if (k.has_csr) buffers_.push_back(k.csr.row_ptr_buffer), buffers_.push_back(k.csr.perm_buffer);
    const size_t pointers = buffers_.size() + (schedule.split ? 1 : 0);
    parameters_[0] = {static_cast<uint32_t>(sizes_.size()), false}, parameters_[1] = {static_cast<uint32_t>(8 * pointers), true};
    if (buffers_.size() + 1 > kMaxPointers || sizes_.size() + 8 * kMaxPointers > kMaxParameterBytes)
      throw kit::Error(KRN_STATUS_unsupported, "kernel " + k.name + " has more arguments than a launch can pass");
    if (functions_.whole && schedule.shared_bytes > 0)
      check(driver_, driver_.allow_shared(functions_.whole, schedule.shared_bytes), "shared memory of a kernel");
    text_ = "kernel " + k.name + " " + codegen::describe_schedule(k, schedule);
  }

  krn_code run(const codegen::RunContext& context) const override {
    if (empty_) return KRN_STATUS_ok;
    if (nothing_to_index_) {
      kit::set_error(context.err, KRN_STATUS_invalid_input,
                     "an index into an axis without elements in " + text_ + "; eager names the index");
      return KRN_STATUS_invalid_input;
    }
    if (!functions_.whole) return without_device(context, text_);
    void* pointers[kMaxPointers];
    size_t n = 0;
    for (uint32_t id : buffers_) pointers[n++] = context.buffers[id];
    if (schedule_.split) pointers[n++] = context.buffers[workspace_];
    void* arguments[] = {const_cast<char*>(sizes_.data()), pointers};
    const auto stream = reinterpret_cast<Stream>(context.run->stream.native);
    Result result = launch(functions_.whole, schedule_.blocks, arguments, stream);
    if (result == 0 && schedule_.split) result = launch(functions_.finish, schedule_.finish_blocks, arguments, stream);
    return result == 0 ? KRN_STATUS_ok : refused(context, text_, driver_, result);
  }

  std::string describe() const override { return text_; }
  int64_t workspace_bytes() const override { return schedule_.split ? schedule_.workspace_bytes : 0; }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }
  void let_next_begin() override { sizes_ = sizes_and_go_; }

 private:
  Result launch(Function function, int64_t blocks, void** arguments, Stream stream) const {
    const Launch launch{.function = function,
                        .blocks = blocks,
                        .threads = schedule_.threads,
                        .shared_bytes = schedule_.shared_bytes,
                        .parameters = parameters_};
    return driver_.launch(launch, stream, arguments);
  }

  const Driver& driver_;
  Schedule schedule_;
  Functions functions_;
  std::vector<char> sizes_, sizes_and_go_;
  std::vector<uint32_t> buffers_;
  Parameter parameters_[2];
  uint32_t workspace_ = 0;
  const bool empty_, nothing_to_index_;
  std::string text_;
};

class TogetherStep final : public codegen::Step {
 public:
  TogetherStep(const Driver& driver, const std::vector<Room>& rooms, const codegen::GpuFacts& facts,
               const std::vector<Functions>& functions)
      : driver_(driver) {
    size_t kernels = 0;
    for (size_t r = 0; r < rooms.size(); ++r) {
      launches_.push_back(launch_of(rooms[r], facts, functions[r].whole));
      kernels += rooms[r].kernels.size();
    }
    const Kernel& first = *rooms[0].kernels[0];
    text_ = "kernel " + first.name + " and " + std::to_string(kernels - 1) + " like it in " + std::to_string(launches_.size()) + " " +
            codegen::describe_schedule(first, rooms[0].schedule);
  }

  krn_code run(const codegen::RunContext& context) const override {
    void* pointers[kMaxParameterBytes / sizeof(void*)];
    const auto stream = reinterpret_cast<Stream>(context.run->stream.native);
    for (const One& one : launches_) {
      if (!one.function) return without_device(context, text_);
      for (size_t i = 0; i < one.buffers.size(); ++i)
        pointers[i] = one.buffers[i] == codegen::TensorDesc::KRN_NONE_BUFFER ? nullptr : context.buffers[one.buffers[i]];
      void* arguments[] = {const_cast<char*>(one.sizes.data()), pointers};
      const Launch launch{.function = one.function, .blocks = one.blocks, .threads = one.threads, .parameters = one.parameters};
      if (const Result result = driver_.launch(launch, stream, arguments); result != 0) return refused(context, text_, driver_, result);
    }
    return KRN_STATUS_ok;
  }
  std::string describe() const override { return text_; }
  void let_next_begin() override { launches_.back().sizes = launches_.back().sizes_and_go; }

 private:
  struct One {
    Function function;
    int64_t blocks = 0;
    int threads;
    std::vector<char> sizes, sizes_and_go;
    std::vector<uint32_t> buffers;
    Parameter parameters[2];
  };

  static One launch_of(const Room& room, const codegen::GpuFacts& facts, Function function) {
    One out{function, 0, room.schedule.threads, {}, {}, {}, {}};
    std::vector<int64_t> firsts, sizes, sizes_and_go;
    for (const Kernel* kernel : room.kernels) {
      const Schedule its = codegen::choose_schedule(*kernel, facts);
      firsts.push_back(out.blocks);
      out.blocks += its.blocks;
      for (const bool go : {false, true}) {
        const std::vector<int64_t> own = sizes_of(*kernel, its, go);
        std::vector<int64_t>& all = go ? sizes_and_go : sizes;
        all.insert(all.end(), own.begin(), own.end());
      }
      for (const codegen::Buffer& b : kernel->buffers) out.buffers.push_back(b.id);
    }
    const size_t places = static_cast<size_t>(room.schedule.many), each = room.kernels.size();
    firsts.push_back(out.blocks);
    firsts.resize(places + 1, std::numeric_limits<int32_t>::max());  // no block is
    out.buffers.resize(places * out.buffers.size() / each, codegen::TensorDesc::KRN_NONE_BUFFER);
    for (std::vector<int64_t>* of : {&sizes, &sizes_and_go}) {
      of->resize(places * of->size() / each);
      of->insert(of->begin(), firsts.begin(), firsts.end());
    }
    out.sizes = pack(sizes, room.schedule.wide), out.sizes_and_go = pack(sizes_and_go, room.schedule.wide);
    out.parameters[0] = {static_cast<uint32_t>(out.sizes.size()), false};
    out.parameters[1] = {static_cast<uint32_t>(8 * out.buffers.size()), true};
    return out;
  }

  const Driver& driver_;
  std::vector<One> launches_;
  std::string text_;
};

// Kernels that one launch has parameters for, at most: a power of two.
size_t places_of(const Kernel& kernel, const Schedule& schedule, const codegen::GpuFacts& facts) {
  const size_t word = schedule.wide ? 8 : 4, room = std::min<size_t>(static_cast<size_t>(facts.parameter_bytes), kMaxParameterBytes);
  const size_t each = word * (sizes_of(kernel, schedule, false).size() + 1) + 8 * kernel.buffers.size();
  return room < word + each ? 0 : std::bit_floor((room - word) / each);
}

}  // namespace

std::unique_ptr<codegen::Step> make_kernel_step(const Driver& driver, const Kernel& kernel, const Schedule& schedule,
                                                const Functions& functions) {
  return std::make_unique<KernelStep>(driver, kernel, schedule, functions);
}

bool shares_launch(const Kernel& kernel, const Schedule& schedule, const codegen::GpuFacts& facts) {
  return schedule.shape == codegen::GpuShape::kFlat && !kernel.has_csr && !is_empty(kernel) && !has_nothing_to_index(kernel) &&
         places_of(kernel, schedule, facts) > 1;
}

std::vector<Room> rooms_of(const codegen::Together& kernels, const codegen::GpuFacts& facts) {
  const Schedule schedule = codegen::choose_schedule(*kernels[0], facts);
  if (kernels.size() == 1) return {{kernels, schedule}};
  const size_t most = places_of(*kernels[0], schedule, facts);
  if (most < 2) throw kit::Error(KRN_STATUS_internal, "kernel " + kernels[0]->name + " shares no launch");
  std::vector<Room> out;
  for (size_t first = 0; first < kernels.size(); first += most) {
    const size_t count = std::min(most, kernels.size() - first);
    out.push_back({{kernels.begin() + static_cast<std::ptrdiff_t>(first), kernels.begin() + static_cast<std::ptrdiff_t>(first + count)},
                   schedule});
    out.back().schedule.many = static_cast<int>(std::max<size_t>(2, std::bit_ceil(count)));
  }
  return out;
}

std::unique_ptr<codegen::Step> make_together_step(const Driver& driver, const std::vector<Room>& rooms, const codegen::GpuFacts& facts,
                                                  const std::vector<Functions>& functions) {
  return std::make_unique<TogetherStep>(driver, rooms, facts, functions);
}

}  // namespace keirin::gpu
