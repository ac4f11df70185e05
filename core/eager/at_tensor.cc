// SPDX-License-Identifier: Apache-2.0
//
// The conversions of at_tensor.h.
#include "core/eager/at_tensor.h"

#include <algorithm>
#include <c10/core/impl/alloc_cpu.h>
#include <dlfcn.h>
#include <unistd.h>

#include <mutex>
#include <new>
#include <set>

namespace keirin {
namespace {

struct TypePair {
  DType dtype;
  at::ScalarType scalar_type;
};

constexpr TypePair kTypes[] = {
    {DType::k_bool, at::kBool},
    {DType::k_u8, at::kByte},
    {DType::k_i8, at::kChar},
    {DType::k_i16, at::kShort},
    {DType::k_i32, at::kInt},
    {DType::k_i64, at::kLong},
    {DType::k_f16, at::kHalf},
    {DType::k_bf16, at::kBFloat16},
    {DType::k_f32, at::kFloat},
    {DType::k_f64, at::kDouble},
    {DType::k_c64, at::kComplexFloat},
    {DType::k_c128, at::kComplexDouble},
    {DType::k_u16, at::kUInt16},
    {DType::k_u32, at::kUInt32},
    {DType::k_u64, at::kUInt64},
    {DType::k_f8_e4m3fn, at::kFloat8_e4m3fn},
    {DType::k_f8_e5m2, at::kFloat8_e5m2},
};

}  // namespace

DType dtype_of(at::ScalarType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.scalar_type == type) return pair.dtype;
  }
  return DType::kNone;
}

at::ScalarType scalar_type_of(DType dtype) {
  for (const TypePair& pair : kTypes) {
    if (pair.dtype == dtype) return pair.scalar_type;
  }
  return at::ScalarType::Undefined;
}

std::string torch_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&c10::alloc_cpu), &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

bool torch_is_rocm() {
  static const bool rocm = ::access((torch_folder() + "libtorch_hip.so").c_str(), F_OK) == 0;
  return rocm;
}

Device device_of(const at::Device& device) {
  if (device.is_cpu()) return {};
  return {device.is_cuda() && !torch_is_rocm() ? static_cast<int32_t>(Device::kCuda) : static_cast<int32_t>(Device::kHip),
          device.has_index() ? device.index() : 0};
}

at::Device at_device(const Device& device) {
  if (device.kind == Device::kCpu) return at::Device(at::kCPU);
  // A ROCm build of LibTorch calls its devices cuda as well.
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device.index));
}

AtTensor::AtTensor(at::Tensor tensor) : tensor_(std::move(tensor)), dtype_(dtype_of(tensor_.scalar_type())) {}

Device AtTensor::device() const { return device_of(tensor_.device()); }

DType AtTensor::dtype() const { return dtype_; }
const int64_t* AtTensor::sizes() const { return tensor_.sizes().data(); }
const int64_t* AtTensor::strides() const { return tensor_.strides().data(); }
int64_t AtTensor::rank() const { return tensor_.dim(); }
void* AtTensor::data() const { return tensor_.data_ptr(); }

int64_t AtTensor::storage_bytes() const {
  if (!tensor_.has_storage()) return 0;
  return static_cast<int64_t>(tensor_.storage().nbytes()) - tensor_.storage_offset() * tensor_.itemsize();
}

TensorRef from_at(at::Tensor tensor) {
  if (!tensor.defined()) return nullptr;
  return std::make_shared<AtTensor>(std::move(tensor));
}

at::Tensor to_at(const TensorRef& tensor) {
  if (tensor == nullptr) return {};
  if (const auto* own = dynamic_cast<const AtTensor*>(tensor.get())) return own->at();
  const at::IntArrayRef sizes(tensor->sizes(), tensor->rank());
  const at::IntArrayRef strides(tensor->strides(), tensor->rank());
  const auto options = at::TensorOptions(scalar_type_of(tensor->dtype())).device(at_device(tensor->device()));
  return at::from_blob(
      tensor->data(), sizes, strides, [tensor](void*) {}, options);
}

namespace {

class OnceHandler final : public c10::WarningHandler {
 public:
  static OnceHandler& get() {
    static auto* handler = new OnceHandler;  // never destroyed: threads may outlive statics
    return *handler;
  }
  static thread_local c10::WarningHandler* outer;

  void process(const c10::Warning& warning) override {
    {
      const std::lock_guard lock(mutex_);
      if (said_.size() >= kMostSaid || !said_.insert(warning.msg()).second) return;
    }
    if (outer) outer->process(warning);
  }

 private:
  static constexpr size_t kMostSaid = 1000;  // some hold sizes
  std::mutex mutex_;
  std::set<std::string> said_;
};

thread_local c10::WarningHandler* OnceHandler::outer = nullptr;

}  // namespace

WarnsOnce::WarnsOnce()
    : outer_(c10::WarningUtils::get_warning_handler() == &OnceHandler::get() ? nullptr : c10::WarningUtils::get_warning_handler()) {
  if (!outer_) return;
  OnceHandler::outer = outer_;
  c10::WarningUtils::set_warning_handler(&OnceHandler::get());
}

WarnsOnce::~WarnsOnce() {
  if (outer_) c10::WarningUtils::set_warning_handler(outer_);
}

Status status_of_current_exception() {
  Code code = Code::k_internal;
  std::string what = "a foreign exception of unknown type";
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    code = Code::k_exhausted;
    what = error.what_without_backtrace();
  } catch (const c10::NotImplementedError& error) {
    code = Code::k_unsupported;
    what = error.what_without_backtrace();
  } catch (const c10::Error& error) {
    code = Code::k_invalid_input;
    what = error.what_without_backtrace();
  } catch (const std::bad_alloc&) {
    code = Code::k_exhausted;
    what = "out of memory";
  } catch (const std::exception& error) {
    what = error.what();
    what.resize(std::min(what.find("\n\nAt:\n"), what.size()));  // pybind11 has Python's stack behind it
  } catch (...) {
  }
  return Status(code, std::move(what)).caused_by(std::current_exception());
}

}  // namespace keirin
