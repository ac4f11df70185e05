// SPDX-License-Identifier: Apache-2.0
//
// A plugin on a GPU that does in a run what the word in the file $KEIRIN_FAULT_SWITCH says, or else what it should: relu and add of dense
// f32. On NVIDIA's driver its work is kernels, written in PTX; on the emulated HIP (tests/standin/emulated), whose memory the host reaches,
// it is calls on the stream.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "abi/graph.h"
#include "abi/plugin.h"
#include "plugins/kit/structs.h"

namespace {

using keirin::kit::read;
using keirin::kit::write;

enum : uint32_t { kAdd = 1, kRelu = 21 };
constexpr uint8_t kF32 = 9;  // abi/dtypes.def
constexpr char kToken[] = "gpu-fault/1";

// y = max(a + b, low): b and low are what makes it one of the two. A thread an element.
constexpr char kKernels[] = R"(.version 6.0
.target sm_52
.address_size 64
.visible .entry work(.param .u64 pa, .param .u64 pb, .param .u64 py, .param .u32 pn, .param .u32 pfirst) {
  .reg .pred %p<4>;
  .reg .b32 %r<8>;
  .reg .b64 %d<10>;
  .reg .f32 %f<5>;
  ld.param.u64 %d1, [pa];
  ld.param.u64 %d2, [pb];
  ld.param.u64 %d3, [py];
  ld.param.u32 %r1, [pn];
  ld.param.u32 %r6, [pfirst];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  add.u32 %r5, %r5, %r6;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra END;
  mul.wide.u32 %d4, %r5, 4;
  add.s64 %d5, %d1, %d4;
  add.s64 %d7, %d3, %d4;
  ld.global.f32 %f1, [%d5];
  setp.eq.s64 %p2, %d2, 0;
  @%p2 bra RELU;
  add.s64 %d6, %d2, %d4;
  ld.global.f32 %f2, [%d6];
  add.f32 %f3, %f1, %f2;
  st.global.f32 [%d7], %f3;
  bra END;
RELU:
  max.f32 %f3, %f1, 0f00000000;
  st.global.f32 [%d7], %f3;
END:
  ret;
}
.visible .entry put(.param .u64 py, .param .u32 pv) {
  .reg .b32 %r<2>;
  .reg .b64 %d<2>;
  ld.param.u64 %d1, [py];
  ld.param.u32 %r1, [pv];
  st.global.u32 [%d1], %r1;
  ret;
}
.visible .entry endless(.param .u64 py) {
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  .reg .b64 %d<2>;
  ld.param.u64 %d1, [py];
AGAIN:
  ld.volatile.global.u32 %r1, [%d1];
  setp.ne.u32 %p1, %r1, 305419896;
  @%p1 bra AGAIN;
  ret;
}
)";

// Function, type, its name at NVIDIA's and at the emulated HIP; "" where it has none.
#define DRIVER(X)                                                                                                          \
  X(init, int(unsigned), "cuInit", "hipInit")                                                                              \
  X(by_bus, int(int*, const char*), "cuDeviceGetByPCIBusId", "hipDeviceGetByPCIBusId")                                     \
  X(retain, int(void**, int), "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain")                                     \
  X(get_current, int(void**), "cuCtxGetCurrent", "hipCtxGetCurrent")                                                       \
  X(set_current, int(void*), "cuCtxSetCurrent", "hipCtxSetCurrent")                                                        \
  X(allocate, int(void**, size_t), "cuMemAlloc_v2", "hipMalloc")                                                           \
  X(fill, int(void*, unsigned char, size_t, void*), "cuMemsetD8Async", "hipMemsetD8Async")                                 \
  X(memory_info, int(size_t*, size_t*), "cuMemGetInfo_v2", "hipMemGetInfo")                                                \
  X(wait, int(void*), "cuStreamSynchronize", "hipStreamSynchronize")                                                       \
  X(call_on, int(void*, void (*)(void*), void*), "cuLaunchHostFunc", "hipLaunchHostFunc")                                  \
  X(load, int(void**, const void*), "cuModuleLoadData", "")                                                                \
  X(function, int(void**, void*, const char*), "cuModuleGetFunction", "")                                                  \
  X(launch, int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**), "cuLaunchKernel", "")

struct Driver {
#define MEMBER(name, type, cuda, hip) std::add_pointer_t<type> name = nullptr;
  DRIVER(MEMBER)
#undef MEMBER
  bool nvidia = false;
  void *context = nullptr, *work = nullptr, *put = nullptr, *endless = nullptr;
};

Driver g_driver;
std::string g_bus;
krn_host* g_host = nullptr;
const krn_host_core* g_core = nullptr;
const krn_host_consts* g_consts = nullptr;
const krn_host_memory* g_memory = nullptr;

krn_str str(const char* s) { return krn_str{s, strlen(s)}; }
krn_code fail(krn_err* err, krn_code code, const char* text) {
  if (g_core) g_core->err_set(err, code, str(text));
  return code;
}

std::string word() {
  const char* const path = getenv("KEIRIN_FAULT_SWITCH");
  char text[16] = {};
  const int fd = path ? ::open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return "";
  (void)!::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  return text;
}

// The calling thread in the device's context, and then in the one it came with.
class Current {
 public:
  Current() { (void)g_driver.get_current(&former_), (void)g_driver.set_current(g_driver.context); }
  ~Current() { (void)g_driver.set_current(former_); }

 private:
  void* former_ = nullptr;
};

struct Work {
  const float *a, *b;
  float* y;
  uint32_t n;
};

}  // namespace

struct krn_exec {
  uint32_t op = 0, n = 0;
  const void* weight = nullptr;  // where it was when this was made
  bool weighted = false;
};

namespace {

// ---- krn.plugin, krn.device

krn_code KRN_CALL initialize(const krn_config*, krn_plugin** out, krn_err*) {
  return *out = reinterpret_cast<krn_plugin*>(1), KRN_STATUS_ok;
}
krn_code KRN_CALL shutdown(krn_plugin*, krn_err*) { return KRN_STATUS_ok; }
krn_code KRN_CALL describe_plugin(const krn_sink* sink, krn_err*) { return sink->write(sink->ctx, "licence=Apache-2.0\n", 19); }

krn_code KRN_CALL enumerate(krn_plugin*, const krn_array* hw, krn_emit_device emit, void* ctx, krn_err*) {
  bool taken = false;  // one is enough
  for (uint32_t i = 0; i < hw->count; ++i) {
    const auto item = read(reinterpret_cast<const krn_hw*>(static_cast<const char*>(hw->data) + i * hw->stride));
    const bool mine = !taken && (item.torch_type == 2 || item.torch_type == 10) && item.uid.size > 4;
    if (mine) g_bus = std::string(item.uid.data + 4, item.uid.size - 4), g_driver.nvidia = item.torch_type == 2;
    taken |= mine;
    emit(ctx, i, mine ? reinterpret_cast<krn_dev*>(1) : nullptr, str(mine ? "" : "not the first GPU"));
  }
  return KRN_STATUS_ok;
}

krn_code KRN_CALL describe(krn_dev*, krn_device_desc* out, krn_err*) {
  krn_device_desc desc{};
  desc.name = str("gpu with faults");
  desc.arch = str("any");
  desc.fingerprint = str("none");
  desc.prior_score = 1;
  desc.alignment = 16;
  return write(out, desc), KRN_STATUS_ok;
}

krn_code KRN_CALL open_device(krn_dev*, krn_err* err) {
  Driver& d = g_driver;
  void* const library = ::dlopen(d.nvidia ? "libcuda.so.1" : "libamdhip64.so.7", RTLD_NOW | RTLD_LOCAL);
  if (!library) return fail(err, KRN_STATUS_unsupported, "no driver");
#define TAKE(name, type, cuda, hip) d.name = reinterpret_cast<std::add_pointer_t<type>>(::dlsym(library, d.nvidia ? cuda : hip));
  DRIVER(TAKE)
#undef TAKE
  int device = 0;
  if (d.init(0) != 0 || d.by_bus(&device, g_bus.c_str()) != 0 || d.retain(&d.context, device) != 0)
    return fail(err, KRN_STATUS_internal, "the device does not open");
  if (!d.nvidia) return KRN_STATUS_ok;
  const Current current;
  void* module = nullptr;
  if (d.load(&module, kKernels) != 0 || d.function(&d.work, module, "work") != 0 || d.function(&d.put, module, "put") != 0 ||
      d.function(&d.endless, module, "endless") != 0)
    return fail(err, KRN_STATUS_internal, "the kernels do not load");
  return KRN_STATUS_ok;
}
void KRN_CALL close_device(krn_dev*) {}
krn_code KRN_CALL health(krn_dev*) { return KRN_STATUS_ok; }

// ---- krn.compile

bool takes(const krn_graph& graph, const krn_gnode& node) {
  const krn_gtype* const type = krn_graph_value_type(&graph, node.first_result);
  if ((node.op != kRelu && node.op != kAdd) || type->dtype != kF32) return false;
  for (uint32_t k = 0; k < node.num_operands; ++k) {
    const krn_gtype* const other = krn_graph_value_type(&graph, krn_graph_operand(&graph, &node, k));
    const size_t bytes = sizeof(int64_t) * static_cast<size_t>(type->rank);
    if (other->rank != type->rank || memcmp(krn_graph_sizes(&graph, other), krn_graph_sizes(&graph, type), bytes) != 0) return false;
  }
  return true;
}

krn_code KRN_CALL claim(krn_dev*, const krn_region* region_in, const krn_policy*, const krn_claim_sink* sink, krn_err* err) {
  const auto region = read(region_in);
  krn_graph graph;
  if (krn_graph_open(region.graph.data, region.graph.size, &graph) != 0) return fail(err, KRN_STATUS_corrupt, "no region");
  const krn_gfunction* const f = krn_graph_function(&graph, 0);
  for (uint32_t i = f->first_node; i < f->first_node + f->num_nodes; ++i) {
    if (takes(graph, *krn_graph_node(&graph, i))) {
      krn_claim claimed{};
      claimed.hdr.size = sizeof claimed;
      claimed.nodes = &i;
      claimed.num_nodes = claimed.num_kernels = 1;
      sink->claim(sink->ctx, &claimed);
    } else {
      krn_refusal refused{};
      refused.hdr.size = sizeof refused;
      refused.node = i;
      refused.why = str("only relu and add of f32");
      sink->refuse(sink->ctx, &refused);
    }
  }
  return KRN_STATUS_ok;
}

krn_code make(const krn_region* region_in, krn_exec** out, krn_err* err) {
  const auto region = read(region_in);
  krn_graph graph;
  if (krn_graph_open(region.graph.data, region.graph.size, &graph) != 0) return fail(err, KRN_STATUS_corrupt, "no region");
  const krn_gfunction* const f = krn_graph_function(&graph, 0);
  const krn_gnode* const node = krn_graph_node(&graph, f->first_node);
  if (f->num_nodes != 1 || !takes(graph, *node)) return fail(err, KRN_STATUS_unsupported, "not one relu or add");
  auto* const made = new krn_exec;
  made->op = node->op;
  made->n = 1;
  const krn_gtype* const type = krn_graph_value_type(&graph, node->first_result);
  for (int d = 0; d < type->rank; ++d) made->n *= static_cast<uint32_t>(krn_graph_sizes(&graph, type)[d]);
  for (uint32_t i = 0; i < f->num_inputs; ++i)
    if (krn_graph_input(&graph, f->first_input + i)->flags & KRN_INPUT_WEIGHT) made->weighted = true;
  krn_tensor tensor{};
  if (made->weighted && g_consts && g_consts->open(g_host, region.consts, 0, &tensor, nullptr) == KRN_STATUS_ok) {
    made->weight = tensor.data;
    g_consts->close(g_host, region.consts, 0);
  }
  return *out = made, KRN_STATUS_ok;
}

krn_code KRN_CALL compile(krn_dev*, const krn_region* region, const krn_policy*, const krn_options* options, krn_exec** out, krn_err* err) {
  if (read(options).candidate > 0) return fail(err, KRN_STATUS_unsupported, "there is one candidate");
  return make(region, out, err);
}
void KRN_CALL retain(krn_exec*) {}
void KRN_CALL release(krn_exec* exec) { delete exec; }

// ---- krn.exec

krn_code KRN_CALL info(krn_exec*, krn_exec_info* out, krn_err*) {
  krn_exec_info told{};
  told.flags = KRN_EXEC_CONCURRENT | KRN_EXEC_INPUTS_INTACT;
  told.num_kernels = 1;
  return write(out, told), KRN_STATUS_ok;
}
krn_code KRN_CALL needs(krn_exec*, const int64_t*, uint32_t, krn_needs* out, krn_err*) {
  krn_needs told{};
  told.workspace_bytes = 256;
  told.workspace_align = 256;
  return write(out, told), KRN_STATUS_ok;
}

template <class F>
void later(void* stream, const F& f) {
  auto* const kept = new F(f);
  if (g_driver.call_on(stream, [](void* context) {
        const auto* const at = static_cast<F*>(context);
        (*at)();
        delete at;
      }, kept) != 0)
    delete kept;
}

bool start_work(void* stream, Work work) {
  if (!g_driver.nvidia) {
    later(stream, [work] {
      for (uint32_t i = 0; i < work.n; ++i) work.y[i] = work.b ? work.a[i] + work.b[i] : std::max(work.a[i], 0.0f);
    });
    return true;
  }
  uint32_t first = 0;
  void* arguments[] = {&work.a, &work.b, &work.y, &work.n, &first};
  return g_driver.launch(g_driver.work, (work.n + 255) / 256, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr) == 0;
}

void put(void* stream, void* at, uint32_t value) {
  if (!g_driver.nvidia) return later(stream, [=] { memcpy(at, &value, 4); });
  void* arguments[] = {&at, &value};
  (void)g_driver.launch(g_driver.put, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
}

krn_code KRN_CALL run(krn_exec* exec, const krn_run* run_in, krn_err* err) {
  const auto run = read(run_in);
  if (!(run.stream.flags & KRN_STREAM_HAS_NATIVE)) return fail(err, KRN_STATUS_invalid_input, "not on a stream of the device");
  void* const stream = reinterpret_cast<void*>(static_cast<uintptr_t>(run.stream.native));
  if (run.inputs[0].memory != KRN_MEM_DEVICE || !run.workspace) return fail(err, KRN_STATUS_invalid_input, "not in memory of the device");
  if (exec->weight && exec->op == kAdd && run.inputs[1].data != exec->weight) return fail(err, KRN_STATUS_invalid_input, "a weight moved");
  if (exec->weighted && !exec->weight) return fail(err, KRN_STATUS_invalid_input, "a weight's value was not at hand");
  const Current current;
  Work work{static_cast<const float*>(run.inputs[0].data), exec->op == kAdd ? static_cast<const float*>(run.inputs[1].data) : nullptr,
            static_cast<float*>(run.outputs[0].data), exec->n};
  const std::string does = word();
  if (does == "crash") ::raise(SIGSEGV);
  if (does == "exit") ::_exit(0);
  if (does == "hang")
    for (;;) ::pause();
  if (does == "error") return fail(err, KRN_STATUS_internal, "as it was told to");
  if (does == "memory") return fail(err, KRN_STATUS_exhausted, "no memory left, it says");
  if (does == "lost") return fail(err, KRN_STATUS_device_lost, "the device is gone, it says");
  if (does == "endless" && !g_driver.nvidia) later(stream, [] { for (;;) ::pause(); });
  if (does == "endless" && g_driver.nvidia) {
    void* arguments[] = {&work.y};
    (void)g_driver.launch(g_driver.endless, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
  }
  if (does == "wild" && g_driver.nvidia) put(stream, reinterpret_cast<void*>(16), 1);
  if (does == "wild" && !g_driver.nvidia) (void)g_driver.fill(reinterpret_cast<void*>(16), 1, 4, stream);
  if (does == "asks") {  // the host for memory of the device, and writes to it
    void* block = nullptr;
    const krn_tensor& x = run.inputs[0];
    if (g_memory->alloc(g_host, &run.stream, x.device_type, x.device_id, 4096, 64, &block, err) != KRN_STATUS_ok)
      return fail(err, KRN_STATUS_internal, "the host has no memory of the device");
    if (g_driver.fill(block, 1, 4096, stream) != 0 || g_driver.wait(stream) != 0) return fail(err, KRN_STATUS_internal, "it is none");
    g_memory->free(g_host, &run.stream, block);
  }
  if (does == "leak") {
    size_t free = 0, all = 0;
    void* lost = nullptr;
    if (g_driver.memory_info(&free, &all) != 0 || g_driver.allocate(&lost, all / 256) != 0)
      return fail(err, KRN_STATUS_exhausted, "the device has no memory left");
  }
  if (!start_work(stream, work)) return fail(err, KRN_STATUS_internal, "the stream takes nothing");
  if (does == "overrun") put(stream, work.y + work.n, 1);
  if (does == "before") put(stream, const_cast<float*>(work.a) + work.n, 1);
  if (does == "inputs") put(stream, const_cast<float*>(work.a), 1);
  if (does == "weights" && work.b) put(stream, const_cast<float*>(work.b), 0x42280000);  // 42, after it was read
  return KRN_STATUS_ok;
}

// ---- krn.artifact

krn_code KRN_CALL save(krn_exec*, const krn_sink* token, const krn_sink* body, krn_err*) {
  if (const krn_code code = token->write(token->ctx, kToken, strlen(kToken)); code != KRN_STATUS_ok) return code;
  return body->write(body->ctx, "-", 1);
}
krn_code KRN_CALL check(krn_dev*, krn_span token, uint32_t* out, krn_err*) {
  *out = token.size == strlen(kToken) && memcmp(token.data, kToken, token.size) == 0 ? KRN_VERDICT_OPTIMAL : KRN_VERDICT_REJECT;
  return KRN_STATUS_ok;
}
krn_code KRN_CALL load(krn_dev*, const krn_region* region, krn_span, krn_span, krn_exec** out, krn_err* err) {
  return make(region, out, err);
}

constexpr krn_plugin_table kPlugin{{sizeof(krn_plugin_table), 1, 0}, initialize, shutdown, describe_plugin};
constexpr krn_device_table kDevice{{sizeof(krn_device_table), 1, 0}, enumerate, describe, open_device, close_device, health, nullptr};
constexpr krn_compile_table kCompile{{sizeof(krn_compile_table), 1, 0}, claim, compile, retain, release};
constexpr krn_exec_table kExec{{sizeof(krn_exec_table), 1, 0}, info, needs, run};
constexpr krn_artifact_table kArtifact{{sizeof(krn_artifact_table), 1, 0}, save, check, load};

const krn_table* KRN_CALL get_table(const char* name, uint32_t major) {
  if (major != 1) return nullptr;
  if (!strcmp(name, "krn.plugin")) return &kPlugin.table;
  if (!strcmp(name, "krn.device")) return &kDevice.table;
  if (!strcmp(name, "krn.compile")) return &kCompile.table;
  if (!strcmp(name, "krn.exec")) return &kExec.table;
  if (!strcmp(name, "krn.artifact")) return &kArtifact.table;
  return nullptr;
}

}  // namespace

extern "C" KRN_EXPORT krn_code KRN_CALL krn_plugin_entry(const krn_offer* offer, krn_answer* answer, krn_err*) {
  g_host = offer->host;
  g_core = reinterpret_cast<const krn_host_core*>(offer->get_table(offer->host, "krn.host.core", 1));
  g_memory = reinterpret_cast<const krn_host_memory*>(offer->get_table(offer->host, "krn.host.memory", 1));
  g_consts = reinterpret_cast<const krn_host_consts*>(offer->get_table(offer->host, "krn.host.consts", 1));
  krn_answer out{};
  out.abi_major = KRN_ABI_MAJOR;
  out.abi_minor = KRN_ABI_MINOR;
  out.sanitizer = offer->sanitizer;
  out.guid.bytes[0] = 0xfc;  // fc000000-0000-0000-0000-000000000000
  out.version = str("0.1.0");
  out.build_id = str("gpu-fault");
  out.capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC;
  out.get_table = get_table;
  return write(answer, out), KRN_STATUS_ok;
}
