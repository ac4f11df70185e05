// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/reference/region_runner.h"

#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/base/half.h"
#include "core/ir/bytes.h"

namespace keirin::testing {
namespace {

std::string& error_text() {
  static std::string text;
  return text;
}

void KRN_CALL err_set(krn_err*, krn_code, krn_str text) { error_text().assign(text.data, text.size); }

const krn_host_core* host_core() {
  static const krn_host_core core = [] {
    krn_host_core c{};
    c.table = {sizeof(krn_host_core), 1, 0};
    c.err_set = err_set;
    return c;
  }();
  return &core;
}

const krn_table* KRN_CALL get_host_table(krn_host*, const char* name, uint32_t major) {
  return std::strcmp(name, "krn.host.core") == 0 && major == 1 ? &host_core()->table : nullptr;
}

void KRN_CALL take_device(void* ctx, uint32_t, krn_dev* dev, krn_str) { *static_cast<krn_dev**>(ctx) = dev; }

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

// Offsets of the elements in row-major order.
std::vector<int64_t> offsets(const Type& type) {
  std::vector<int64_t> out{0};
  for (size_t a = 0; a < type.sizes.size(); ++a) {
    std::vector<int64_t> next;
    for (int64_t base : out)
      for (int64_t i = 0; i < type.sizes[a]; ++i) next.push_back(base + i * type.strides[a]);
    out = std::move(next);
  }
  return out;
}

uint16_t half_bits(double v, DType dtype) {  // v is representable: the tests' values sit on a coarse grid
  float f = static_cast<float>(v);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if (dtype == DType::k_bf16) return static_cast<uint16_t>(bits >> 16);
  Float16 h = static_cast<Float16>(f);
  uint16_t out;
  std::memcpy(&out, &h, 2);
  return out;
}

double from_half(uint16_t h, DType dtype) {
  if (dtype == DType::k_bf16) {
    uint32_t bits = static_cast<uint32_t>(h) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
  Float16 f;
  std::memcpy(&f, &h, 2);
  return static_cast<double>(f);
}

template <class T>
void write_as(uint8_t* p, double v) {
  T x = static_cast<T>(v);
  std::memcpy(p, &x, sizeof x);
}

template <class T>
double read_as(const uint8_t* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return static_cast<double>(x);
}

}  // namespace

HostTensor HostTensor::empty(Type type) {
  int64_t last = 0;
  for (size_t a = 0; a < type.sizes.size(); ++a) last += (std::max<int64_t>(type.sizes[a], 1) - 1) * type.strides[a];
  HostTensor t;
  t.bytes.assign(static_cast<size_t>((last + 1) * dtype_bytes(type.dtype)), 0xcd);
  t.type = std::move(type);
  return t;
}

HostTensor HostTensor::of(Type type, const std::vector<double>& values) {
  HostTensor t = empty(std::move(type));
  const int64_t size = dtype_bytes(t.type.dtype);
  std::vector<int64_t> at = offsets(t.type);
  for (size_t k = 0; k < at.size() && k < values.size(); ++k) {
    uint8_t* p = t.bytes.data() + at[k] * size;
    switch (t.type.dtype) {
      case DType::k_f32:
        write_as<float>(p, values[k]);
        break;
      case DType::k_f64:
        write_as<double>(p, values[k]);
        break;
      case DType::k_f16:
      case DType::k_bf16: {
        uint16_t h = half_bits(values[k], t.type.dtype);
        std::memcpy(p, &h, 2);
        break;
      }
      case DType::k_i64:
        write_as<int64_t>(p, values[k]);
        break;
      case DType::k_i32:
        write_as<int32_t>(p, values[k]);
        break;
      case DType::k_i16:
        write_as<int16_t>(p, values[k]);
        break;
      case DType::k_i8:
        write_as<int8_t>(p, values[k]);
        break;
      default:
        write_as<uint8_t>(p, values[k]);
    }
  }
  return t;
}

std::vector<double> HostTensor::values() const {
  std::vector<double> out;
  const int64_t size = dtype_bytes(type.dtype);
  for (int64_t at : offsets(type)) {
    const uint8_t* p = bytes.data() + at * size;
    switch (type.dtype) {
      case DType::k_f32:
        out.push_back(read_as<float>(p));
        break;
      case DType::k_f64:
        out.push_back(read_as<double>(p));
        break;
      case DType::k_f16:
      case DType::k_bf16: {
        uint16_t h;
        std::memcpy(&h, p, 2);
        out.push_back(from_half(h, type.dtype));
        break;
      }
      case DType::k_i64:
        out.push_back(read_as<int64_t>(p));
        break;
      case DType::k_i32:
        out.push_back(read_as<int32_t>(p));
        break;
      case DType::k_i16:
        out.push_back(read_as<int16_t>(p));
        break;
      case DType::k_i8:
        out.push_back(read_as<int8_t>(p));
        break;
      default:
        out.push_back(read_as<uint8_t>(p));
    }
  }
  return out;
}

const std::string& last_error() { return error_text(); }

krn_tensor view_of(HostTensor& t) {
  krn_tensor v{};
  v.data = t.bytes.data();
  v.device_type = 1;
  v.ndim = static_cast<int32_t>(t.type.sizes.size());
  v.dtype_code = dtype_dl_code(t.type.dtype);
  v.dtype_bits = static_cast<uint8_t>(dtype_bytes(t.type.dtype) * 8);
  v.dtype_lanes = 1;
  v.shape = t.type.sizes.data();
  v.strides = t.type.strides.data();
  v.storage_bytes = t.bytes.size();
  return v;
}

ReferencePlugin& ReferencePlugin::get() {
  static ReferencePlugin* const plugin = new ReferencePlugin;
  return *plugin;
}

ReferencePlugin::ReferencePlugin() {
  void* library = dlopen(KEIRIN_REFERENCE_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(dlerror());
  auto entry = reinterpret_cast<decltype(&krn_plugin_entry)>(dlsym(library, "krn_plugin_entry"));
  krn_offer offer{};
  offer.hdr.size = sizeof offer;
  offer.abi_major_min = offer.abi_major_max = KRN_ABI_MAJOR;
  offer.abi_minor_min = offer.abi_minor_max = KRN_ABI_MINOR;
  offer.role = KRN_ROLE_RUN;
  offer.get_table = get_host_table;
  answer_.hdr.size = sizeof answer_;
  if (entry(&offer, &answer_, nullptr) != KRN_STATUS_ok) fail("krn_plugin_entry refused the offer");
  krn_config config{};
  config.hdr.size = sizeof config;
  if (reinterpret_cast<const krn_plugin_table*>(table("krn.plugin"))->initialize(&config, &plugin_, nullptr) !=
      KRN_STATUS_ok)
    fail("initialize failed");
  krn_hw cpu{};
  cpu.hdr.size = sizeof cpu;
  cpu.torch_type = 1;
  krn_array hw{&cpu, 1, sizeof cpu};
  reinterpret_cast<const krn_device_table*>(table("krn.device"))
      ->enumerate(plugin_, &hw, take_device, &device_, nullptr);
  if (device_ == nullptr) fail("the reference plugin has no device");
}

krn_exec_info ReferencePlugin::info(const Graph& graph) {
  krn_exec_info info{};
  info.hdr.size = sizeof info;
  const Result<RegionBytes> bytes = write_region(graph);
  if (!bytes.ok()) return info;
  const auto* compile = reinterpret_cast<const krn_compile_table*>(table("krn.compile"));
  krn_region region{};
  region.hdr.size = sizeof region;
  region.graph = {bytes->bytes.data(), bytes->bytes.size()};
  int sink = 0;
  auto* err = reinterpret_cast<krn_err*>(&sink);
  krn_exec* handle = nullptr;
  if (compile->compile(device_, &region, nullptr, nullptr, &handle, err) != KRN_STATUS_ok) return info;
  reinterpret_cast<const krn_exec_table*>(table("krn.exec"))->info(handle, &info, err);
  compile->release(handle);
  return info;
}

Result<std::vector<HostTensor>> ReferencePlugin::run(const Graph& graph, std::vector<HostTensor> inputs) {
  KRN_TRY_LET(RegionBytes bytes, write_region(graph));
  const auto* compile = reinterpret_cast<const krn_compile_table*>(table("krn.compile"));
  const auto* exec = reinterpret_cast<const krn_exec_table*>(table("krn.exec"));
  krn_region region{};
  region.hdr.size = sizeof region;
  region.graph = {bytes.bytes.data(), bytes.bytes.size()};
  int sink = 0;
  auto* err = reinterpret_cast<krn_err*>(&sink);
  krn_exec* handle = nullptr;
  if (krn_code code = compile->compile(device_, &region, nullptr, nullptr, &handle, err); code != KRN_STATUS_ok)
    return Status(static_cast<Code>(code), last_error());
  std::vector<krn_tensor> in, out;
  for (ValueId v : bytes.inputs) in.push_back(view_of(inputs.at(graph.values[v].index)));
  std::vector<HostTensor> results;
  for (const Output& o : graph.outputs) results.push_back(HostTensor::empty(graph.type(o.value)));
  for (HostTensor& t : results) out.push_back(view_of(t));
  krn_run run{};
  run.hdr.size = sizeof run;
  run.inputs = in.data();
  run.num_inputs = static_cast<uint32_t>(in.size());
  run.outputs = out.data();
  run.num_outputs = static_cast<uint32_t>(out.size());
  krn_code code = exec->run(handle, &run, err);
  compile->release(handle);
  if (code != KRN_STATUS_ok) return Status(static_cast<Code>(code), last_error());
  return results;
}

}  // namespace keirin::testing
