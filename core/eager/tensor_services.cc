// SPDX-License-Identifier: Apache-2.0
//
// TensorServices over LibTorch. Compiled with OpenMP, because at::parallel_for is a template that runs serially without
// it.
#include "core/eager/tensor_services.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/strides.h>
#include <dlfcn.h>
#include <unistd.h>
#include <malloc.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cfloat>
#include <cstring>
#include <mutex>
#include <optional>
#include <typeinfo>

#include "abi/planted.h"
#include "core/eager/at_tensor.h"

namespace keirin {
namespace {

// Counts live and peak bytes of tensors on the CPU. Blocks tell their own size, so the count needs no table: on x86-64 LibTorch's are
// glibc's. On AArch64 they are of a mimalloc that LibTorch keeps to itself, so there we put the size before what we hand out, in as
// many bytes as keep it aligned.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& instance() {
    static CountingAllocator* allocator = new CountingAllocator;  // outlives every tensor
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes == 0 ? 0 : bytes + kHead);
    if (data != nullptr) {
      if constexpr (kHead > 0) {
        *static_cast<size_t*>(data) = bytes + kHead;
        data = static_cast<char*>(data) + kHead;
      }
      add(size_of(data));
      count_.fetch_add(1, std::memory_order_relaxed);
      handed_out_.fetch_add(bytes, std::memory_order_relaxed);
    }
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  Allocations so_far() const { return {count_.load(std::memory_order_relaxed), handed_out_.load(std::memory_order_relaxed)}; }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  void reset_peak() { peak_.store(live_.load(std::memory_order_relaxed), std::memory_order_relaxed); }

 private:
#if defined(__x86_64__)
  static constexpr size_t kHead = 0;
  static int64_t size_of(void* data) { return static_cast<int64_t>(malloc_usable_size(data)); }
#else
  static constexpr size_t kHead = 64;
  static int64_t size_of(void* data) { return static_cast<int64_t>(*reinterpret_cast<size_t*>(static_cast<char*>(data) - kHead)); }
#endif
  static void release(void* data) {
    if (data == nullptr) return;
    instance().live_.fetch_sub(size_of(data), std::memory_order_relaxed);
    c10::free_cpu(static_cast<char*>(data) - kHead);
  }
  void add(int64_t bytes) {
    const int64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
  }
  std::atomic<int64_t> live_ = 0, peak_ = 0;
  std::atomic<uint64_t> count_ = 0, handed_out_ = 0;
};

std::atomic<int> num_gpus = 0;  // of LibTorch; known once ensure_device() found one

class AtServices final : public TensorServices {
 public:
  AtServices() {
    static std::once_flag once;
    std::call_once(once, [] { c10::SetCPUAllocator(&CountingAllocator::instance(), 1); });
  }

  Result<TensorRef> allocate(const TensorSpec& spec) override {
    KRN_TRY(ensure_device(spec.device));
    if (spec.strides.empty()) return make([&] { return at::empty(spec.sizes, options(spec)); });
    // Around the dispatcher, whose code is cold in every call that ran kernels before: 20 us less for an output.
    return as_ref([&] { return spec.device.kind == Device::kCpu ? allocate_on_cpu(spec) : allocate_on_gpu(spec); });
  }

  [[gnu::hot]] bool unshared(const TensorRef& tensor) override {
    // Every call asks, with cold caches: hence nothing that leaves this function, as dynamic_cast and requires_grad do.
    const Tensor& any = *tensor;
    if (tensor.use_count() != 1 || typeid(any) != typeid(AtTensor)) return false;
    const at::Tensor& at = static_cast<const AtTensor&>(any).at();
    if (at.use_count() != 1 || (at.storage().use_count() != 1 && !KRN_PLANTED(detached_output_reused)) || at.storage_offset() != 0)
      return false;
    c10::TensorImpl* const impl = at.unsafeGetTensorImpl();
    if (impl->autograd_meta() != nullptr) return false;  // no longer as it was made
    // Nor as it would be made now: outside of inference mode nobody may write or differentiate what was made in it.
    if (impl->is_inference() != c10::InferenceMode::is_enabled()) return false;
    std::atomic_thread_fence(std::memory_order_acquire);  // after the last reader's release
    return true;
  }

  Result<TensorRef> wrap(const TensorSpec& spec, void* data, std::shared_ptr<void> owner) override {
    KRN_TRY(ensure_device(spec.device));
    // LibTorch ends the process for these: what makes a tensor of given memory may not throw.
    if ((!spec.strides.empty() && spec.strides.size() != spec.sizes.size()) ||
        std::any_of(spec.sizes.begin(), spec.sizes.end(), [](int64_t size) { return size < 0; }))
      return Status(Code::k_invalid_input, "a tensor has a negative size, or not one stride for each axis");
    return make([&] {
      const auto release = [owner = std::move(owner)](void*) {};
      // The device is stated: asking the driver for it costs a call, and memory of no elements is nowhere.
      const at::Device device = at_device(spec.device);
      if (spec.strides.empty()) return at::from_blob(data, spec.sizes, release, options(spec), device);
      return at::from_blob(data, spec.sizes, spec.strides, release, options(spec), device);
    });
  }

  Result<TensorRef> view(const TensorRef& tensor, const TensorSpec& spec, int64_t byte_offset) override {
    return make([&] {
      const at::Tensor base = to_at(tensor);
      const auto size = static_cast<int64_t>(dtype_bytes(spec.dtype));
      const int64_t begin = base.storage_offset() * base.itemsize() + byte_offset;
      TORCH_CHECK(begin >= 0 && begin % size == 0, "a view begins within an element of its storage");
      const c10::DimVector row_major = c10::contiguous_strides(spec.sizes);
      const at::IntArrayRef strides = spec.strides.empty() ? at::IntArrayRef(row_major) : at::IntArrayRef(spec.strides);
      at::Tensor out = base.scalar_type() == scalar_type_of(spec.dtype)
                           ? base.as_strided(spec.sizes, strides, begin / size)
                           : at::empty({0}, base.options().dtype(scalar_type_of(spec.dtype)))
                                 .set_(base.storage(), begin / size, spec.sizes, strides);
      // Who keeps one of them for a backward sees that the other was written. Below autograd, where this is called, views do not say so.
      if (!base.is_inference() && !out.is_inference())
        out.unsafeGetTensorImpl()->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
      return out;
    });
  }

  Result<TensorRef> clone(const TensorRef& tensor) override {
    return make([&] { return copy_of(to_at(tensor), to_at(tensor).device()); });
  }

  Status copy(const TensorRef& to, const TensorRef& from) override {
    return catch_torch([&] {
      at::NoGradGuard no_grad;
      copy_elements(to_at(to), to_at(from));
    });
  }

  Result<TensorRef> cast(const TensorRef& tensor, DType dtype) override {
    return make([&] { return to_at(tensor).to(scalar_type_of(dtype)); });
  }

  Result<TensorRef> to_device(const TensorRef& tensor, Device device) override {
    KRN_TRY(ensure_device(device));
    return make([&] {
      const at::Tensor from = to_at(tensor);
      const at::Device to = at_device(device);
      return from.device() == to ? from : copy_of(from, to);
    });
  }

  Result<ElementErrors> errors(const TensorRef& reference, const TensorRef& first, const TensorRef& second,
                               const Granted& granted) override {
    ElementErrors out;
    KRN_TRY(catch_torch([&] {
      const at::NoGradGuard no_grad;
      const at::Tensor r = to_at(reference).reshape({-1}), a = to_at(first).reshape({-1}), b = to_at(second).reshape({-1});
      std::vector<at::Tensor> rows;
      for (int64_t at = 0; at < r.numel(); at += kErrorsAtOnce) {
        const int64_t n = std::min(kErrorsAtOnce, r.numel() - at);
        rows.push_back(errors_of(r.narrow(0, at, n), a.narrow(0, at, n), b.narrow(0, at, n), granted));
      }
      if (!rows.empty()) out = sum_of_errors(at::stack(rows).cpu());
    }));
    return out;
  }

  Result<TensorRef> change(const TensorRef& tensor, Change how, double share, uint64_t seed) override {
    TensorRef out;
    KRN_TRY(catch_torch([&] {
      const at::NoGradGuard no_grad;
      const at::Tensor x = to_at(tensor);
      if (!x.is_non_overlapping_and_dense() || !x.is_floating_point()) return;
      const auto empty = [&](at::ScalarType dtype) { return at::empty_strided(x.sizes(), x.strides(), x.options().dtype(dtype)); };
      const at::Device device = x.device();
      at::Generator generator = device.is_cpu()
                                    ? at::detail::createCPUGenerator()
                                    : at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
      generator.set_current_seed(seed);
      at::Tensor r = empty(at::kDouble).uniform_(0, 1, generator);
      if (how == Change::kRounding) {
        out = from_at(r.lt_(0.5).mul_(-2 * share).add_(1 + share).mul_(x));
        return;
      }
      const at::Tensor of_zeros = (r + 1).mul_(share / 8);
      r.mul_(-share).add_(1).mul_(x);
      out = from_at(empty(x.scalar_type()).copy_(at::where(x.eq(0).all(), of_zeros, r)));
    }));
    if (!out) return Status(Code::k_unsupported, "numbers that do not lie densely are changed one by one");
    return out;
  }

  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn) override {
    at::parallel_for(0, n, grain, fn);
  }
  int num_threads() override { return at::get_num_threads(); }
  void set_num_threads(int threads) override { at::set_num_threads(threads); }
  void keep_to_this_thread() override {
    // Else the first operator of this thread would set its number itself: LibTorch's own know by one variable whether that was done, and
    // parallel_for, which is compiled into this file, by another.
    at::get_num_threads();
    at::internal::lazy_init_num_threads();
    omp_set_num_threads(1);
    // MKL keeps a number of its own; it is part of LibTorch for x86 only. (The name in small letters is Fortran's: it takes a pointer.)
    using SetThreads = int (*)(int);
    if (const auto set = reinterpret_cast<SetThreads>(::dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"))) set(1);
  }

  Status synchronize(Device device) override {
    if (device.kind == Device::kCpu) return {};
    return catch_torch([&] {
      const at::Device torch_device = at_device(device);
      c10::impl::VirtualGuardImpl(torch_device.type()).synchronizeDevice(torch_device.index());
    });
  }

  uint64_t current_stream(Device device) override {
    if (device.kind == Device::kCpu) return 0;
    uint64_t handle = 0;
    const Status status = catch_torch([&] {
      const at::Device torch_device = at_device(device);
      const c10::impl::VirtualGuardImpl guard(torch_device.type());
      handle = reinterpret_cast<uint64_t>(guard.getStreamNativeHandle(guard.getStream(torch_device)));
    });
    return status.ok() ? handle : 0;  // 0 is also the name of the default stream
  }

  int64_t peak_bytes(Device device) override {
    if (device.kind == Device::kCpu) return CountingAllocator::instance().peak();
    int64_t bytes = 0;
    const Status status = catch_torch([&] {
      const at::Device torch_device = at_device(device);
      const auto stats = c10::getDeviceAllocator(torch_device.type())->getDeviceStats(torch_device.index());
      bytes = stats.allocated_bytes[0].peak;  // entry 0 aggregates the pools
    });
    return status.ok() ? bytes : 0;
  }

  void reset_peak(Device device) override {
    if (device.kind == Device::kCpu) return CountingAllocator::instance().reset_peak();
    const Status status = catch_torch([&] {
      const at::Device torch_device = at_device(device);
      c10::getDeviceAllocator(torch_device.type())->resetPeakStats(torch_device.index());
    });
    (void)status;  // a device that was never used has no peak to reset
  }

  Allocations allocations(Device device) override {
    if (device.kind == Device::kCpu) return CountingAllocator::instance().so_far();
    Allocations out;
    const Status status = catch_torch([&] {
      const at::Device torch_device = at_device(device);
      const auto stats = c10::getDeviceAllocator(torch_device.type())->getDeviceStats(torch_device.index());
      out = {static_cast<uint64_t>(stats.allocation[0].allocated), static_cast<uint64_t>(stats.allocated_bytes[0].allocated)};
    });
    return status.ok() ? out : Allocations();  // a device that was never used
  }

 private:
  static constexpr int64_t kErrorsAtOnce = 1 << 22;  // elements: some 300 MB for what is computed of them

  // A row of numbers: explained, judged, least and most of the reference, then scale, the three sums of squares, the two worst errors,
  // changed, the worst beyond what is granted and its place. Nothing waits.
  static at::Tensor errors_of(const at::Tensor& reference, const at::Tensor& first, const at::Tensor& second, const Granted& granted) {
    at::Tensor r = reference.to(at::kDouble), a = first.to(at::kDouble), b = second.to(at::kDouble);
    const auto number = [](const at::Tensor& t) { return t.to(at::kDouble); };
    const at::Tensor finite = r.isfinite().logical_and_(a.isfinite()).logical_and_(b.isfinite()), least = r.min(), most = r.max();
    const auto same = [&](const at::Tensor& x) { return x.eq(b).logical_or_(x.isnan().logical_and_(b.isnan())); };
    const at::Tensor explained = same(r).logical_or_(same(a)).logical_or_(finite).all();
    for (at::Tensor* each : {&r, &a, &b}) *each = each->masked_fill(finite.logical_not(), 0);
    const at::Tensor of_first = (a - r).abs_(), of_second = (b - r).abs_(), magnitude = r.abs();
    const at::Tensor exponent = std::get<1>(at::frexp(magnitude.clamp_min(DBL_MIN)));
    const at::Tensor beyond = of_second - number(exponent).sub_(1).exp2_().mul_(granted.at_one).clamp_min_(granted.least);
    return at::stack({number(explained), number(finite.sum()), least, most, magnitude.max(), r.square().sum(), of_first.square().sum(),
                      of_second.square().sum(), of_first.max(), of_second.max(), number(b.ne(r).sum()), beyond.max(),
                      number(beyond.argmax())});
  }

  static ElementErrors sum_of_errors(const at::Tensor& rows) {
    ElementErrors out;
    double least = rows[0][2].item<double>(), most = rows[0][3].item<double>();
    for (int64_t i = 0; i < rows.size(0); ++i) {
      const double* row = rows.const_data_ptr<double>() + i * rows.size(1);
      out.explained = out.explained && row[0] != 0;
      out.judged += static_cast<int64_t>(row[1]);
      least = std::min(least, row[2]), most = std::max(most, row[3]);
      out.scale = std::max(out.scale, row[4]);
      out.squares += row[5], out.first.squares += row[6], out.second.squares += row[7];
      out.first.worst = std::max(out.first.worst, row[8]), out.second.worst = std::max(out.second.worst, row[9]);
      out.changed += static_cast<int64_t>(row[10]);
      if (row[11] > out.worst_beyond) out.worst_beyond = row[11], out.worst_index = i * kErrorsAtOnce + static_cast<int64_t>(row[12]);
    }
    out.constant = least == most;
    return out;
  }

  // In the same strides, whatever they are: LibTorch's own conversions keep those of dense tensors only.
  static at::Tensor copy_of(const at::Tensor& from, const at::Device& device) {
    at::Tensor to = at::empty_strided(from.sizes(), from.strides(), from.options().device(device));
    copy_elements(to, from);
    return to;
  }

  // Along a stride of 0 of `to` one element stands for all.
  static void copy_elements(at::Tensor to, at::Tensor from) {
    for (int64_t d = 0; d < to.dim(); ++d)
      if (to.stride(d) == 0 && to.size(d) > 1 && from.dim() == to.dim() && from.size(d) == to.size(d))
        to = to.narrow(d, 0, 1), from = from.narrow(d, 0, 1);
    to.copy_(from);
  }

  static at::TensorOptions options(const TensorSpec& spec) {
    return at::TensorOptions(scalar_type_of(spec.dtype)).device(at_device(spec.device));
  }

  static at::Tensor allocate_on_cpu(const TensorSpec& spec) {
    return at::detail::empty_strided_cpu(spec.sizes, spec.strides, scalar_type_of(spec.dtype));
  }

  // After ensure_device(). Most of what a replayed call costs the host beyond its launch is the memory of its outputs: to ask which
  // device is current is cheaper than to set it and set it back, and where there is one device nothing need be asked.
  static at::Tensor allocate_on_gpu(const TensorSpec& spec) {
    const at::Device device = at_device(spec.device);
    std::optional<c10::DeviceGuard> guard;
    if (num_gpus.load(std::memory_order_relaxed) > 1 && c10::impl::VirtualGuardImpl(device.type()).getDevice() != device)
      guard.emplace(device);
    return at::detail::empty_strided_generic(spec.sizes, spec.strides, c10::GetAllocator(device.type()),
                                             c10::DispatchKeySet(c10::DispatchKey::CUDA), scalar_type_of(spec.dtype));
  }

  template <class Fn>
  static Result<TensorRef> as_ref(Fn&& fn) {
    at::Tensor tensor;
    KRN_TRY(catch_torch([&] { tensor = fn(); }));
    return from_at(std::move(tensor));
  }

  template <class Fn>
  static Result<TensorRef> make(Fn&& fn) {
    return as_ref([&] {
      const at::NoGradGuard no_grad;
      return at::Tensor(fn());
    });
  }
};

}  // namespace

namespace {

Status no_such_device(Device device, std::string why, std::string advice) {
  return Status(Code::k_unsupported, Message{no_device_text(device_name(device)), std::move(why), "nothing was run", std::move(advice)});
}

// Of what was loaded so far.
std::vector<Device> known_devices() {
  std::vector<Device> out{{}};
  for (int i = 0; i < num_gpus; ++i) out.push_back({torch_is_rocm() ? Device::kHip : Device::kCuda, i});
  return out;
}

}  // namespace

std::string no_device_text(const std::string& name, const std::vector<std::string>& others) {
  std::string there;
  for (const Device& device : known_devices()) there += (there.empty() ? "" : ", ") + device_name(device);
  for (const std::string& other : others) there += ", " + other;
  return "no such device: " + (name.empty() ? "\"\"" : name) + "; available: " + there;
}

std::vector<Device> devices_here() {
  (void)ensure_device({torch_is_rocm() ? Device::kHip : Device::kCuda, 0});  // loads the library; without one there is the CPU
  return known_devices();
}

Status ensure_device(Device device) {
  if (device.kind == Device::kCpu) return {};
  static std::array<std::atomic<bool>, 64> ready{};  // every allocation asks
  const bool known = device.index >= 0 && static_cast<size_t>(device.index) < ready.size();
  if (known && ready[static_cast<size_t>(device.index)].load(std::memory_order_acquire)) return {};
  if ((device.kind == Device::kHip) != torch_is_rocm()) {
    const bool rocm = device.kind == Device::kHip;
    return no_such_device(device,
                          std::string("the LibTorch in ") + torch_folder() + " is " +
                              (rocm ? "not a ROCm build" : "a ROCm build, whose devices are called rocm"),
                          rocm ? "use a LibTorch with ROCm, or choose another device" : "choose rocm, or use a LibTorch with CUDA");
  }
  static std::once_flag once;
  static std::string failure;
  std::call_once(once, [] {
    for (const char* library : {"libtorch_cuda.so", "libtorch_hip.so"}) {
      if (dlopen((torch_folder() + library).c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
        failure.clear();
        return;
      }
      if (failure.empty()) failure = dlerror();
    }
  });
  const at::Device torch_device = at_device(device);
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(torch_device.type())].load();
  if (guard == nullptr) {
    // A build for GPUs whose own libraries are not there is what CPU machines often have.
    const bool for_gpus =
        access((torch_folder() + "libtorch_cuda.so").c_str(), R_OK) == 0 || access((torch_folder() + "libtorch_hip.so").c_str(), R_OK) == 0;
    return no_such_device(
        device, for_gpus ? "LibTorch's GPU code could not be loaded: " + failure : "the LibTorch in " + torch_folder() + " has no GPU code",
        for_gpus ? "install the GPU's driver and the libraries that came with this LibTorch (its nvidia-* wheels), or choose cpu"
                 : "use a build of LibTorch for GPUs, or choose cpu");
  }
  num_gpus = guard->deviceCount();
  if (device.index < 0 || device.index >= num_gpus) {
    return no_such_device(device, {}, "choose one that is there; keirin doctor says more");
  }
  KRN_TRY(catch_torch([&] { at::globalContext().lazyInitDevice(torch_device.type()); }));
  if (known) ready[static_cast<size_t>(device.index)].store(true, std::memory_order_release);
  return {};
}

Status on_stream(Device device, void* handle, const std::function<Status()>& fn) {
  const auto refused = [&](const char* why) {
    return Status(Code::k_unsupported,
                  Message{"a stream was given for " + device_name(device), why, "nothing was run", "leave the stream out"});
  };
  if (device.kind == Device::kCpu) return refused("calls on the CPU return when they are done");
  KRN_TRY(ensure_device(device));
  Status status;
  KRN_TRY(catch_torch([&] {
    const at::Device torch_device = at_device(device);
    // LibTorch's number of a stream that is not of its own pools is its handle (c10/cuda/CUDAStream.cpp).
    const c10::StreamGuard guard(c10::Stream(c10::Stream::UNSAFE, torch_device, reinterpret_cast<c10::StreamId>(handle)));
    const c10::impl::VirtualGuardImpl impl(torch_device.type());
    status = impl.getStreamNativeHandle(guard.current_stream()) == handle ? fn() : refused("this LibTorch numbers streams in another way");
  }));
  return status;
}

std::unique_ptr<TensorServices> make_tensor_services() { return std::make_unique<AtServices>(); }

namespace {

// As integers, for which a NaN equals itself; another axis at the end for what is wider than 8 bytes.
at::Tensor bits_of(const at::Tensor& t) {
  switch (t.element_size()) {
    case 1: return t.view(at::kByte);
    case 2: return t.view(at::kShort);
    case 4: return t.view(at::kInt);
    case 8: return t.view(at::kLong);
    default: return at::view_as_real(t).view(at::kLong);
  }
}

}  // namespace

Result<bool> same_bits(const TensorRef& a, const TensorRef& b) {
  bool same = false;
  KRN_TRY(catch_torch([&] {
    const at::NoGradGuard no_grad;
    const at::Tensor x = to_at(a), y = to_at(b);
    // at::equal compares element by element, at a tenth of memory's speed.
    const bool blocks = x.is_cpu() && y.is_cpu() && x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
                        x.strides() == y.strides() && x.is_non_overlapping_and_dense();
    same = blocks ? std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0 : at::equal(bits_of(x), bits_of(y));
  }));
  return same;
}

Result<std::vector<TensorRef>> changed_elements(const TensorRef& before, const std::vector<TensorRef>& tensors, ChangedPlaces* places) {
  std::vector<TensorRef> out;
  KRN_TRY(catch_torch([&] {
    const at::NoGradGuard no_grad;
    const at::Tensor old = to_at(before);
    at::Tensor changed = at::zeros(old.sizes(), old.options().dtype(at::kBool));
    bool comparable = old.element_size() <= 8;
    for (const TensorRef& tensor : tensors) {
      const at::Tensor t = to_at(tensor);
      comparable = comparable && t.sizes() == old.sizes();
      if (!comparable) break;
      changed |= t.scalar_type() == old.scalar_type() ? bits_of(t).ne(bits_of(old)) : t.ne(old.to(t.scalar_type()));
    }
    if (places) *places = {};
    const bool most = comparable && old.numel() > 0 && 2 * changed.sum().item<int64_t>() >= old.numel();
    if (!comparable || most) {
      out = tensors;
      if (places && most) *places = {true, before, nullptr, nullptr};
      return;
    }
    const at::Tensor indices = changed.flatten().nonzero().squeeze(1);
    for (const TensorRef& tensor : tensors) out.push_back(from_at(to_at(tensor).reshape({-1}).index({indices})));
    if (places) *places = {false, before, from_at(changed), from_at(indices)};
  }));
  return out;
}

Result<std::vector<TensorRef>> elements_within(std::span<const ChangedPlaces> places, std::span<const TensorRef> tensors) {
  std::vector<TensorRef> out(tensors.size());
  KRN_TRY(catch_torch([&] {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> elsewhere;  // a bool for each of `asked`
    std::vector<size_t> asked;
    for (size_t k = 0; k < tensors.size(); ++k) {
      if (!places[k].mask && !places[k].most) continue;
      const at::Tensor old = to_at(places[k].before), t = to_at(tensors[k]);
      if (t.scalar_type() != old.scalar_type() || t.sizes() != old.sizes()) continue;
      if (places[k].most) {
        out[k] = tensors[k];
        continue;
      }
      const at::Tensor flag = bits_of(t).ne(bits_of(old)).gt_(to_at(places[k].mask)).any();
      elsewhere.push_back(elsewhere.empty() ? flag : flag.to(elsewhere[0].device()));
      out[k] = from_at(t.reshape({-1}).index({to_at(places[k].indices)}));
      asked.push_back(k);
    }
    if (asked.empty()) return;
    const at::Tensor flags = at::stack(elsewhere).cpu();
    for (size_t i = 0; i < asked.size(); ++i)
      if (flags.const_data_ptr<bool>()[i]) out[asked[i]] = nullptr;
  }));
  return out;
}

uint64_t numeric_modes(Device device) {
  const at::Context& context = at::globalContext();
  const bool on_cpu = device.kind == Device::kCpu;
  const auto backend = on_cpu ? at::Float32Backend::MKLDNN : at::Float32Backend::CUDA;
  const c10::DeviceType type = on_cpu ? at::kCPU : at::kCUDA;
  uint64_t word = context.deterministicAlgorithms();
  const auto add = [&](uint64_t value, int bits) { word = word << bits | value; };
  add(static_cast<uint64_t>(context.float32Precision(backend, at::Float32Op::MATMUL)), 3);
  add(static_cast<uint64_t>(context.float32Precision(backend, at::Float32Op::CONV)), 3);
  add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()), 8);
  const bool autocast = at::autocast::is_autocast_enabled(type);
  add(autocast, 1);
  add(autocast ? static_cast<uint64_t>(at::autocast::get_autocast_dtype(type)) : 0, 8);
  return word;
}

namespace {

std::vector<at::Generator> generators_of(Device device) {
  std::vector<at::Generator> out{at::globalContext().defaultGenerator(at::Device(at::kCPU))};
  if (device.kind != Device::kCpu) out.push_back(at::globalContext().defaultGenerator(at_device(device)));
  return out;
}

}  // namespace

Result<RandomState> random_state(Device device) {
  KRN_TRY(ensure_device(device));
  RandomState state;
  KRN_TRY(catch_torch([&] {
    for (at::Generator& generator : generators_of(device)) {
      const std::lock_guard lock(generator.mutex());
      const at::Tensor bytes = generator.get_state();
      const auto* begin = static_cast<const uint8_t*>(bytes.data_ptr());
      state.generators.emplace_back(begin, begin + bytes.numel());
    }
  }));
  return state;
}

Status set_random_state(Device device, const RandomState& state) {
  return catch_torch([&] {
    std::vector<at::Generator> generators = generators_of(device);
    for (size_t i = 0; i < generators.size() && i < state.generators.size(); ++i) {
      const std::lock_guard lock(generators[i].mutex());
      const at::Tensor bytes = at::empty({static_cast<int64_t>(state.generators[i].size())}, at::kByte);
      std::copy(state.generators[i].begin(), state.generators[i].end(), static_cast<uint8_t*>(bytes.data_ptr()));
      generators[i].set_state(bytes);
    }
  });
}

}  // namespace keirin
