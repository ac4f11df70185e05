// SPDX-License-Identifier: Apache-2.0
//
// A plugin with one fault, or none: the test of the tests. It reads its fault from its own file's name (libNAME.so, faults.def), so that
// one build gives them all. Undamaged it computes relu, add and linear on f32 in all strides, has artifacts and replay, and passes every
// check; each fault is one that a real plugin could have, and shows only where the check that is meant for it looks.
//
// Called libNAME_on_gpu.so it is the same on the GPU of the emulated HIP (tests/standin/emulated), whose memory the host reaches: its work
// is a call on the run's stream.
#include <dlfcn.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "abi/graph.h"
#include "abi/plugin.h"

namespace {

enum Fault {
  kFault_good,
#define KRN_FAULT(name, check) kFault_##name,
#include "tests/certify/faults.def"
};

std::string own_name() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<void*>(&own_name), &info);
  const std::string name = info.dli_fname ? info.dli_fname : "";
  return name.substr(name.rfind('/') + 1);
}

bool on_gpu() {
  static const bool is = own_name().find("_on_gpu.so") != std::string::npos;
  return is;
}

Fault find_fault() {
  std::string name = own_name();
  if (const size_t at = name.find("_on_gpu"); at != std::string::npos) name.erase(at, 7);
#define KRN_FAULT(fault, check) \
  if (name == "lib" #fault ".so") return kFault_##fault;
#include "tests/certify/faults.def"
  return kFault_good;
}

bool is(Fault fault) {
  static const Fault own = find_fault();
  return own == fault;
}
#define IS(name) is(kFault_##name)

enum : uint32_t { kAdd = 1, kRelu = 21, kLinear = 401 };
constexpr uint8_t kF32 = 9;  // abi/dtypes.def

// One operator.
struct Program {
  uint32_t op = 0;
  int rank = 0;
  int64_t n = 0, sizes[16] = {}, in[16] = {}, out[16] = {};  // strides, in elements
  int64_t rows = 0, depth = 0, columns = 0;                  // linear
  uint64_t hash = 0;                                         // the region's first bytes of it
};

std::mutex g_mutex;
std::map<uint64_t, std::vector<float>> g_packed;
std::map<uint64_t, int> g_compiled;
std::atomic<int> g_compiling{0}, g_running{0};
std::atomic<krn_exec*> g_last_exec{nullptr};
krn_host* g_host = nullptr;
const krn_host_core* g_core = nullptr;
const krn_host_consts* g_consts = nullptr;
const krn_host_memory* g_memory = nullptr;
const krn_host_threads* g_threads = nullptr;
int g_entries = 0, g_lives = 0, g_enumerated = 0, g_opened = 0, g_described = 0, g_claims = 0, g_saves = 0;
bool g_alive = false, g_first_copy = false;
krn_replay* g_recording = nullptr;

// HIP's functions that it needs.
struct Hip {
  int (*call_on)(void* stream, void (*function)(void*), void* context) = nullptr;
  int (*wait)(void* stream) = nullptr;
  int (*set_context)(void* context) = nullptr;
  int (*allocate)(void** memory, size_t bytes) = nullptr;
};

const Hip& hip() {
  static const Hip found = [] {
    void* const library = ::dlopen("libamdhip64.so.7", RTLD_NOW | RTLD_LOCAL);
    Hip out;
    if (!library) return out;
    out.call_on = reinterpret_cast<decltype(out.call_on)>(::dlsym(library, "hipLaunchHostFunc"));
    out.wait = reinterpret_cast<decltype(out.wait)>(::dlsym(library, "hipStreamSynchronize"));
    out.set_context = reinterpret_cast<decltype(out.set_context)>(::dlsym(library, "hipCtxSetCurrent"));
    out.allocate = reinterpret_cast<decltype(out.allocate)>(::dlsym(library, "hipMalloc"));
    return out;
  }();
  return found;
}

// A run that a stream will come to.
struct Launch {
  krn_exec* exec;
  krn_run run;
  krn_tensor inputs[3], output;
};

}  // namespace

struct krn_exec {
  Program program;
  std::atomic<int> references{1};
  std::atomic<int64_t> runs{0};
  std::atomic<int> running{0};
  std::vector<float> weights;  // packed: the matrix, then the bias; empty: they are read where they lie
  void* block = nullptr;       // of the host's memory
  float scale = 1;
  bool retained = false, dead = false;  // for who does not count
  const std::thread::id made_by = std::this_thread::get_id();
  std::atomic<std::thread::id> last_run_by{made_by};
  const void *first_inputs = nullptr, *region = nullptr;
  float* first_output = nullptr;
  std::vector<Launch> launches;  // those that streams may still have to come to: more than they hold
  std::atomic<size_t> launched{0};
  std::atomic<void*> first_stream{nullptr};
};

struct krn_replay {
  struct Launch {
    krn_exec* exec;
    krn_run run;
    std::vector<krn_tensor> inputs, outputs;
    std::vector<float> old_input;
  };
  std::vector<Launch> launches;
};

namespace {

krn_str str(const char* s) { return krn_str{s, strlen(s)}; }

template <class T>
T read(const T* in) {
  T out{};
  memcpy(static_cast<void*>(&out), in, std::min<size_t>(sizeof out, in->hdr.size));
  return out;
}

template <class T>
void write(T* out, T value) {
  const size_t size = std::min<size_t>(out->hdr.size, sizeof value);
  value.hdr = out->hdr;
  memcpy(static_cast<void*>(out), &value, size);
}

bool must_understand(const krn_hdr& hdr) {
  if (IS(ignores_must_understand)) return false;
  for (const krn_hdr* next = hdr.next; next; next = next->next)
    if ((next->flags & KRN_HDR_MUST_UNDERSTAND) || IS(refuses_any_entry)) return true;
  return false;
}

krn_code fail(krn_err* err, krn_code code, const char* text) {
  if (g_core) g_core->err_set(err, code, str(text));
  return code;
}

void crash() { ::raise(SIGSEGV); }

void* volatile g_lost;
void leak(size_t bytes) { g_lost = malloc(bytes); }

// ---- krn.plugin

krn_code KRN_CALL initialize(const krn_config*, krn_plugin** out, krn_err* err) {
  if (IS(initialize_fails)) return fail(err, KRN_STATUS_internal, "it does not work");
  if (IS(crash_initialize)) crash();
  if (IS(hang_initialize)) for (;;) ::pause();
  if (IS(exit_initialize)) ::_exit(0);
  if (IS(throw_initialize)) throw std::runtime_error("thrown across the boundary");
  if (IS(two_lives) && g_lives >= 3) return fail(err, KRN_STATUS_exhausted, "it lives no longer");
  if (IS(crash_at_exit)) ::atexit(crash);
  if (IS(leaves_thread)) std::thread([] { for (;;) ::pause(); }).detach();
  if (IS(leaves_files)) (void)!::open("/dev/null", O_RDONLY);
  if (IS(leaks_plugin)) leak(100000);
  if (IS(one_copy)) {  // descriptor 700 says that there is one in this process
    if (!g_first_copy && ::fcntl(700, F_GETFD) >= 0) return fail(err, KRN_STATUS_internal, "there is one of these already");
    g_first_copy = true;
    ::dup2(2, 700);
  }
  ++g_lives;
  g_alive = true;
  g_opened = 0;
  *out = reinterpret_cast<krn_plugin*>(1);
  return KRN_STATUS_ok;
}

krn_code KRN_CALL shutdown(krn_plugin*, krn_err* err) {
  if (IS(shutdown_fails)) return fail(err, KRN_STATUS_internal, "not now");
  g_alive = false;
  return KRN_STATUS_ok;
}

krn_code KRN_CALL describe_plugin(const krn_sink* sink, krn_err* err) {
  if (IS(describes_nothing) && !g_alive) return fail(err, KRN_STATUS_internal, "shut down");
  return sink->write(sink->ctx, "licence=Apache-2.0\n", 19);
}

// ---- krn.device

krn_code KRN_CALL enumerate(krn_plugin*, const krn_array* hw, krn_emit_device emit, void* ctx, krn_err* err) {
  if (IS(crash_enumerate)) crash();
  if (IS(wants_hardware) && hw->count == 0) return fail(err, KRN_STATUS_internal, "there is no hardware");
  ++g_enumerated;
  const uint32_t stride = IS(ignores_stride) ? sizeof(krn_hw) : hw->stride;
  for (uint32_t i = 0; i < hw->count; ++i) {
    const auto item = read(reinterpret_cast<const krn_hw*>(static_cast<const char*>(hw->data) + i * stride));
    bool mine = item.uid.size == 5 && memcmp(item.uid.data, "cpu:0", 5) == 0;
    if (on_gpu()) mine = item.vendor_id == 0x1002 && item.torch_type == 10;
    if (IS(takes_anything) && item.torch_type == -1) mine = true;
    if (IS(changes_its_mind) && g_enumerated > 2) mine = false;
    if (IS(skips_items) && !mine) continue;
    emit(ctx, i, mine ? reinterpret_cast<krn_dev*>(1) : nullptr, str(mine || IS(no_reason) ? "" : "of another kind"));
    if (IS(emit_twice)) emit(ctx, i, nullptr, str("again"));
  }
  return KRN_STATUS_ok;
}

krn_code KRN_CALL describe(krn_dev*, krn_device_desc* out, krn_err* err) {
  if (IS(refuses_longer_results) && out->hdr.size > sizeof *out) return fail(err, KRN_STATUS_version, "a struct of another version");
  static std::string prints[64];
  std::string& print = prints[++g_described % 64];
  print = IS(changing_fingerprint) ? "print " + std::to_string(g_described) : "none";
  krn_device_desc desc{};
  desc.name = str("known-bad");
  desc.arch = str(IS(no_arch) ? "" : "portable");
  desc.fingerprint = str(print.c_str());
  desc.prior_score = 1;
  desc.alignment = IS(nonsense_facts) ? 3 : 4;
  if (!IS(writes_past_size)) return write(out, desc), KRN_STATUS_ok;
  desc.hdr = out->hdr;
  *out = desc;
  return KRN_STATUS_ok;
}

krn_code KRN_CALL open_device(krn_dev*, krn_err* err) {
  if (IS(open_fails)) return fail(err, KRN_STATUS_internal, "the device does not open");
  if (IS(opens_once) && g_opened++ > 0) return fail(err, KRN_STATUS_internal, "it was opened before");
  return KRN_STATUS_ok;
}
void KRN_CALL close_device(krn_dev*) {}
krn_code KRN_CALL health(krn_dev*) {
  if (IS(slow_health)) ::usleep(3000);
  return IS(sick) ? KRN_STATUS_device_lost : KRN_STATUS_ok;
}
krn_code KRN_CALL condition(krn_dev*, krn_condition* out) {
  krn_condition told{};
  told.others_percent = IS(odd_condition) ? 300 : 0;
  return write(out, told), KRN_STATUS_ok;
}

// ---- krn.compile

bool is_row_major(const krn_graph& graph, const krn_gtype* type) {
  int64_t step = 1;
  for (int d = type->rank; d-- > 0;) {
    if (krn_graph_sizes(&graph, type)[d] != 1 && krn_graph_strides(&graph, type)[d] != step) return false;
    step *= krn_graph_sizes(&graph, type)[d];
  }
  return true;
}

bool takes(const krn_graph& graph, const krn_gnode& node) {
  if (IS(claims_opaque) && node.op == 0) return true;
  if (node.op != kRelu && node.op != kAdd && node.op != kLinear) return false;
  const krn_gtype* const result = krn_graph_value_type(&graph, node.first_result);
  if (result->dtype != kF32 || (node.op == kLinear && (result->rank != 2 || node.num_operands != 3))) return false;
  for (uint32_t k = 0; k < node.num_operands; ++k) {
    const uint32_t operand = krn_graph_operand(&graph, &node, k);
    if (operand == KRN_NONE || krn_graph_value_type(&graph, operand)->dtype != kF32) return false;
    if (node.op == kLinear && !is_row_major(graph, krn_graph_value_type(&graph, operand))) return false;
  }
  return node.op != kLinear || is_row_major(graph, result);
}

krn_code KRN_CALL claim(krn_dev*, const krn_region* region_in, const krn_policy* policy, const krn_claim_sink* sink, krn_err* err) {
  if (IS(exact_size) && policy->hdr.size > sizeof *policy) return fail(err, KRN_STATUS_version, "a struct of another version");
  const auto region = read(region_in);
  if (must_understand(region.hdr) || must_understand(policy->hdr)) return fail(err, KRN_STATUS_version, "an entry that it does not know");
  krn_graph graph;
  if (krn_graph_open(region.graph.data, region.graph.size, &graph) != 0) return fail(err, KRN_STATUS_corrupt, "no region");
  ++g_claims;
  const krn_gfunction* const f = krn_graph_function(&graph, 0);
  for (uint32_t i = f->first_node; i < f->first_node + f->num_nodes; ++i) {
    if (IS(slow_claim)) ::usleep(1000);
    if (takes(graph, *krn_graph_node(&graph, i))) {
      const uint32_t node = IS(claims_missing_node) ? 1000000 : i;
      krn_claim claimed{};
      claimed.hdr.size = sizeof claimed;
      claimed.nodes = &node;
      claimed.num_nodes = 1;
      claimed.num_kernels = IS(claims_by_mood) ? static_cast<uint32_t>(g_claims) : 1;
      claimed.cost_ns = IS(negative_cost) ? -1 : 0;
      sink->claim(sink->ctx, &claimed);
      if (IS(claims_twice)) sink->claim(sink->ctx, &claimed);
    } else {
      krn_refusal refused{};
      refused.hdr.size = sizeof refused;
      refused.node = i;
      refused.why = str(IS(refuses_silently) ? "" : "only relu, add and linear on f32");
      sink->refuse(sink->ctx, &refused);
    }
  }
  return KRN_STATUS_ok;
}

// Of a region of one operator; false for others.
bool read_program(const krn_graph& graph, const krn_region& region, Program& out) {
  const krn_gfunction* const f = krn_graph_function(&graph, 0);
  if (f->num_nodes != 1 || f->num_outputs != 1) return false;
  const krn_gnode* const node = krn_graph_node(&graph, f->first_node);
  if (!takes(graph, *node) || node->op == 0) return false;
  const krn_gtype *const result = krn_graph_value_type(&graph, node->first_result),
                  *const first = krn_graph_value_type(&graph, krn_graph_operand(&graph, node, 0));
  out.op = node->op;
  out.rank = result->rank;
  out.n = 1;
  for (int d = 0; d < out.rank; ++d) {
    out.n *= out.sizes[d] = krn_graph_sizes(&graph, result)[d];
    out.out[d] = krn_graph_strides(&graph, result)[d];
    out.in[d] = krn_graph_strides(&graph, first)[d];
  }
  if (out.op == kLinear)
    out.rows = out.sizes[0], out.columns = out.sizes[1], out.depth = krn_graph_sizes(&graph, first)[1];
  memcpy(&out.hash, region.hash, sizeof out.hash);
  return true;
}

// The matrix and the bias, if their values are at hand.
std::vector<float> pack_weights(const Program& p, uint64_t set) {
  if (p.op != kLinear || !g_consts) return {};
  std::vector<float> out;
  for (uint32_t id = 0; id < 2; ++id) {
    krn_tensor tensor;
    if (g_consts->open(g_host, set, id, &tensor, nullptr) != KRN_STATUS_ok) return {};
    const auto* const values = static_cast<const float*>(tensor.data);
    out.insert(out.end(), values, values + (id == 0 ? p.columns * p.depth : p.columns));
    if (!IS(leaves_weights_open)) g_consts->close(g_host, set, id);
  }
  const std::lock_guard guard(g_mutex);
  if (IS(shares_weights)) return g_packed.emplace(p.hash, out).first->second;
  return out;
}

void be_rude() {
  if (IS(sets_locale)) ::setlocale(LC_ALL, "C.UTF-8");
  if (IS(blocks_signals)) {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGUSR1);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  }
  if (IS(handles_signals)) ::signal(SIGUSR1, SIG_IGN);
  if (IS(changes_folder)) (void)!::chdir("/");
  if (IS(sets_environment)) ::setenv("ACME_COMPILED", "1", 1);
  if (IS(prints)) ::printf("compiled\n"), ::fflush(stdout);
  if (IS(leaves_no_context)) (void)hip().set_context(nullptr);
}

krn_code make(const krn_region& region, krn_exec** out, krn_err* err) {
  krn_graph graph;
  if (krn_graph_open(region.graph.data, region.graph.size, &graph) != 0) {
    if (IS(believes_regions) && region.graph.size > 8 && memcmp(region.graph.data, KRN_GRAPH_MAGIC, 8) == 0)
      return *out = new krn_exec{}, KRN_STATUS_ok;
    if (IS(needs_err)) *reinterpret_cast<volatile char*>(err) = *reinterpret_cast<volatile char*>(err);
    if (IS(touches_results)) *out = reinterpret_cast<krn_exec*>(1);
    if (IS(unknown_code)) return fail(err, 4711, "strange");
    return IS(no_text) ? KRN_STATUS_corrupt : fail(err, KRN_STATUS_corrupt, "no region");
  }
  Program program;
  if (!read_program(graph, region, program)) return fail(err, KRN_STATUS_unsupported, "not one operator of relu, add and linear");
  if (IS(refuses_a_size) && program.rank == 1 && program.n == 13) return fail(err, KRN_STATUS_unsupported, "not at this size");
  if (IS(forgets_after_cycle) && g_lives > 1) return fail(err, KRN_STATUS_internal, "the compiler was shut down");
  void* const block = g_core->alloc(g_host, 64, 64);
  if (block || IS(believes_in_memory)) memset(block, 0, 64);
  if (!block) return fail(err, KRN_STATUS_exhausted, "the host has no memory");
  auto* const exec = new krn_exec;
  exec->program = program;
  exec->block = block;
  exec->weights = pack_weights(program, region.consts);
  exec->region = region.graph.data;
  if (on_gpu()) exec->launches.resize(1024);
  void* lost = nullptr;
  if (IS(leaks_on_device)) (void)hip().allocate(&lost, 256 << 10);
  *out = exec;
  return KRN_STATUS_ok;
}

krn_code KRN_CALL compile(krn_dev*, const krn_region* region_in, const krn_policy* policy_in, const krn_options* options_in,
                          krn_exec** out, krn_err* err) {
  if (IS(compile_fails)) return fail(err, KRN_STATUS_internal, "the compiler is broken");
  if (IS(compile_nothing)) return KRN_STATUS_ok;
  if (IS(crash_compile)) crash();
  const auto region = read(region_in);
  const auto policy = read(policy_in);
  const auto options = read(options_in);
  if (must_understand(region.hdr) || must_understand(policy.hdr) || must_understand(options.hdr))
    return fail(err, KRN_STATUS_version, "an entry that it does not know");
  const uint32_t candidate = IS(reads_past_size) ? options_in->candidate : options.candidate;
  if (candidate > 0 && !IS(endless_candidates)) return fail(err, KRN_STATUS_unsupported, "there is one candidate");
  if (IS(refuses_strict) && policy.numerics == KRN_NUMERICS_STRICT) return fail(err, KRN_STATUS_unsupported, "not this exactly");
  if (options.cancel_token && g_core->cancelled(g_host, options.cancel_token)) {
    if (!IS(ignores_cancel)) return fail(err, KRN_STATUS_cancelled, "cancelled");
    ::usleep(600000);
  }
  if (IS(reads_past_table) || g_core->table.size >= sizeof(krn_host_core)) g_core->breadcrumb(g_host, str("compiling"));
  be_rude();
  if (IS(leaks_executables)) leak(4096);
  const int others = g_compiling++;
  if (IS(compiles_one_at_a_time)) ::usleep(3000);
  const krn_code code = IS(compiles_one_at_a_time) && others > 0 ? fail(err, KRN_STATUS_internal, "one at a time") : make(region, out, err);
  --g_compiling;
  if (code == KRN_STATUS_ok && IS(compiles_by_mood)) {
    const std::lock_guard guard(g_mutex);
    if (++g_compiled[(*out)->program.hash] == 5) (*out)->scale = 2;
  }
  return code;
}

void KRN_CALL retain(krn_exec* exec) {
  if (IS(ignores_retain)) exec->retained = true;
  else ++exec->references;
}
void KRN_CALL release(krn_exec* exec) {
  if (IS(dies_with_plugin) && !g_alive) crash();
  if (exec->retained) return exec->dead = true, void();
  if (--exec->references > 0) return;
  if (exec->block && !IS(keeps_host_memory)) g_core->free(g_host, exec->block);
  delete exec;
}

// ---- krn.exec

krn_code KRN_CALL info(krn_exec*, krn_exec_info* out, krn_err* err) {
  if (IS(refuses_longer_results) && out->hdr.size > sizeof *out) return fail(err, KRN_STATUS_version, "a struct of another version");
  krn_exec_info told{};
  told.flags = KRN_EXEC_CONCURRENT | KRN_EXEC_REPLAY_SAFE | KRN_EXEC_INPUTS_INTACT | (IS(unknown_flags) ? 0x100u : 0);
  told.num_kernels = 1;
  if (!IS(writes_past_exec_size)) return write(out, told), KRN_STATUS_ok;
  told.hdr = out->hdr;
  *out = told;
  return KRN_STATUS_ok;
}

krn_code KRN_CALL needs(krn_exec*, const int64_t*, uint32_t, krn_needs* out, krn_err*) {
  if (IS(slow_needs)) ::usleep(300);
  krn_needs told{};
  told.workspace_bytes = 64;
  told.workspace_align = 64;
  return write(out, told), KRN_STATUS_ok;
}

struct Slice {
  const Program* program;
  const float *a, *b;
  float *to, scale;
  int64_t next;  // where the next slice begins, for who believes that
};

void KRN_CALL slice(void* ctx, int64_t begin, int64_t end, int32_t) {
  auto& s = *static_cast<Slice*>(ctx);
  const Program& p = *s.program;
  if (IS(wants_slices_in_order) && s.next != begin) return;
  s.next = end;
  const bool dense_in = p.rank == 2 && ((IS(takes_strides_for_sizes) && p.in[0] == 1 && p.sizes[1] > 1) ||
                                        (IS(ignores_gaps) && p.in[1] == 3) || (IS(ignores_repetition) && p.in[0] == 0));
  const bool dense_out = IS(ignores_output_strides) && p.rank == 2 && p.out[0] == 1 && p.sizes[1] > 1;
  for (int64_t i = begin; i < end; ++i) {
    int64_t rest = i, from = 0, to = 0;
    for (int d = p.rank; d-- > 0; rest /= p.sizes[d]) from += rest % p.sizes[d] * p.in[d], to += rest % p.sizes[d] * p.out[d];
    if (dense_in) from = i;
    if (dense_out) to = i;
    float y = s.a[from];
    if (p.op == kAdd) y += s.b[from];
    else y = IS(loses_nan) ? (y > 0 ? y : 0) : (y <= 0 ? 0 : y);
    if (!(IS(skips_zeros) && y == 0)) s.to[to] = y * s.scale;
  }
}

void run_linear(const krn_exec& exec, const krn_run& run, float* y) {
  const Program& p = exec.program;
  const auto* const x = static_cast<const float*>(run.inputs[0].data);
  const float* const w = exec.weights.empty() ? static_cast<const float*>(run.inputs[1].data) : exec.weights.data();
  const float* const b = exec.weights.empty() ? static_cast<const float*>(run.inputs[2].data) : w + p.columns * p.depth;
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t c = 0; c < p.columns; ++c) {
      double sum = IS(forgets_bias) && p.rows % 2 == 1 ? 0 : b[c];
      for (int64_t k = 0; k < p.depth; ++k) sum += static_cast<double>(x[r * p.depth + k]) * w[c * p.depth + k];
      y[r * p.columns + c] = static_cast<float>(sum);
    }
}

int64_t last_offset(const Program& p, const int64_t* strides) {
  int64_t out = 0;
  for (int d = 0; d < p.rank; ++d) out += (p.sizes[d] - 1) * strides[d];
  return out;
}

// After the right answer was written.
void spoil(krn_exec& exec, const krn_run& run, float* y) {
  const Program& p = exec.program;
  auto* const x = static_cast<float*>(run.inputs[0].data);
  const int64_t in_end = last_offset(p, p.in), out_end = last_offset(p, p.out);
  if (IS(wrong_answer)) y[0] += 1;
  if (IS(wrong_tail) && p.n % 32 == 31) y[out_end] += 1;
  if (IS(wrong_large) && p.n > 100000) y[out_end] += 1;
  if (IS(tires) && exec.runs == 70) y[0] += 1;
  if (IS(writes_behind)) y[out_end + 1] = 1;
  if (IS(writes_before)) y[-1] = 1;
  if (IS(writes_between) && p.rank == 2 && p.out[0] > p.sizes[1] && p.out[1] == 1) y[p.sizes[1]] = 1;
  if (IS(reads_behind)) (void)*static_cast<volatile float*>(x + in_end + 1);
  if (IS(reads_before)) (void)*static_cast<volatile float*>(x - 1);
  if (IS(writes_inputs) && p.op != kLinear) x[0] += 1;
  if (IS(finishes_later) && p.n > 60000 && p.n < 70000) std::thread([y] { ::usleep(20000), y[0] += 1; }).detach();
}

// What is done in the call: whatever it does with the device is behind it.
krn_code begin_run(krn_exec* exec, const krn_run& run, krn_err* err) {
  const Program& p = exec->program;
  const auto* const y = static_cast<const float*>(run.outputs[0].data);
  ++exec->runs;
  if (IS(run_fails) || exec->dead) return fail(err, KRN_STATUS_internal, "the run failed");
  if (IS(crash_run)) crash();
  if (IS(fails_empty) && p.n == 0) return fail(err, KRN_STATUS_internal, "nothing to do");
  if (IS(fails_without_dimension) && p.rank == 0) return fail(err, KRN_STATUS_internal, "no dimension");
  if (IS(needs_alignment) && reinterpret_cast<uintptr_t>(y) % 64) return fail(err, KRN_STATUS_invalid_input, "an output is not aligned");
  if (IS(restricts_inputs) && p.op == kAdd && run.inputs[0].data == run.inputs[1].data)
    return fail(err, KRN_STATUS_invalid_input, "two inputs are one");
  if (IS(bound_to_thread) && std::this_thread::get_id() != exec->made_by) return fail(err, KRN_STATUS_internal, "another thread");
  if (IS(keeps_region) && *static_cast<const char*>(exec->region) != 'K') return fail(err, KRN_STATUS_internal, "the region is gone");
  if (IS(flushes_to_zero)) ::fesetround(FE_UPWARD);
  if (IS(slow_run) && p.n <= 8) ::usleep(200);
  if (IS(allocates_on_device) && g_memory) {
    void* block = nullptr;
    if (g_memory->alloc(g_host, &run.stream, 1, 0, 64, 64, &block, err) == KRN_STATUS_ok) g_memory->free(g_host, &run.stream, block);
  }
  if (IS(allocates_in_runs)) {
    static thread_local void* volatile block;
    block = malloc(100), free(block);
  }
  if (IS(leaks_runs) && exec->runs % 500 == 0) leak(4096);
  if (IS(own_threads) && p.n >= 16384) std::thread([] {}).join();
  return KRN_STATUS_ok;
}

void work(krn_exec* exec, const krn_run& run) {
  const Program& p = exec->program;
  auto* y = static_cast<float*>(run.outputs[0].data);
  auto* const scratch = static_cast<float*>(run.workspace);
  if (IS(keeps_the_answer) && p.n == 24 && p.sizes[0] == 6) {
    if (exec->first_inputs == run.inputs[0].data) return;
    exec->first_inputs = run.inputs[0].data;
  }
  if (IS(keeps_the_address) && p.n == 24 && p.sizes[0] == 4) y = exec->first_output = exec->first_output ? exec->first_output : y;
  const float trusted = IS(trusts_workspace) ? scratch[0] : 0;
  memset(scratch, 0, IS(overruns_workspace) ? 65 : 64);
  if (p.op == kLinear) return run_linear(*exec, run, y);
  Slice s{&p, static_cast<const float*>(run.inputs[0].data), p.op == kAdd ? static_cast<const float*>(run.inputs[1].data) : nullptr, y,
          exec->scale, 0};
  if (!on_gpu() && (g_threads || IS(needs_threads))) g_threads->parallel_for(g_host, p.n, 16, slice, &s);
  else slice(&s, 0, p.n, 0);
  if (p.n > 0 && IS(trusts_workspace)) y[0] += trusted;
  if (p.n > 0) spoil(*exec, run, y);
}

krn_code run_now(krn_exec* exec, const krn_run& run, krn_err* err) {
  if (const krn_code code = begin_run(exec, run, err); code != KRN_STATUS_ok) return code;
  return work(exec, run), KRN_STATUS_ok;
}

krn_code run_on_stream(krn_exec* exec, const krn_run& run, krn_err* err) {
  if (const krn_code code = begin_run(exec, run, err); code != KRN_STATUS_ok) return code;
  const bool recording = run.stream.flags & KRN_STREAM_RECORDING;
  void* stream = reinterpret_cast<void*>(static_cast<uintptr_t>(run.stream.native));
  if (!(run.stream.flags & KRN_STREAM_HAS_NATIVE) || run.stream.native_kind != KRN_STREAM_KIND_HIP)
    return fail(err, KRN_STATUS_invalid_input, "not on a stream of the device");
  if (IS(refuses_stream_0) && !stream) return fail(err, KRN_STATUS_invalid_input, "no stream");
  if (IS(keeps_first_stream)) {
    void* none = nullptr;
    if (!exec->first_stream.compare_exchange_strong(none, stream)) stream = none;
  }
  if (IS(works_at_once) && !recording) return work(exec, run), KRN_STATUS_ok;
  if (IS(waits_while_recorded) && recording) (void)hip().wait(stream);
  Launch& launch = recording ? *new Launch : exec->launches[exec->launched++ % exec->launches.size()];
  launch.exec = exec;
  launch.run = run;
  for (uint32_t i = 0; i < run.num_inputs && i < 3; ++i) launch.inputs[i] = run.inputs[i];
  launch.output = run.outputs[0];
  launch.run.inputs = launch.inputs;
  launch.run.outputs = &launch.output;
  const int result = hip().call_on(stream, [](void* context) {
    const auto& it = *static_cast<const Launch*>(context);
    work(it.exec, it.run);
  }, &launch);
  if (IS(waits_for_stream) && !recording) (void)hip().wait(stream);
  return result == 0 ? KRN_STATUS_ok : fail(err, KRN_STATUS_internal, "the stream takes nothing");
}

krn_code KRN_CALL run(krn_exec* exec, const krn_run* run_in, krn_err* err) {
  if (must_understand(run_in->hdr)) return fail(err, KRN_STATUS_version, "an entry that it does not know");
  const auto run = read(run_in);
  if (on_gpu()) return run_on_stream(exec, run, err);
  if (run.stream.flags & KRN_STREAM_RECORDING) {
    if (!g_recording) return fail(err, KRN_STATUS_invalid_input, "nothing is being recorded");
    krn_replay::Launch launch{exec, run, {run.inputs, run.inputs + run.num_inputs}, {run.outputs, run.outputs + run.num_outputs}, {}};
    if (IS(replays_old_inputs)) {
      const auto* const from = static_cast<const float*>(run.inputs[0].data);
      launch.old_input.assign(from, from + exec->program.n);
    }
    g_recording->launches.push_back(std::move(launch));
    return KRN_STATUS_ok;
  }
  if (IS(shares_scratch)) {  // one answer for all threads in it
    const int others = exec->running++;
    // Long enough for another one to come in, however busy the machine is.
    if (exec->last_run_by.exchange(std::this_thread::get_id()) != std::this_thread::get_id()) ::usleep(20000);
    const krn_code code = run_now(exec, run, err);
    const bool alone = others == 0 && exec->running == 1;
    --exec->running;
    if (!alone) static_cast<float*>(run.outputs[0].data)[0] += 1;
    return code;
  }
  if (IS(runs_one_at_a_time)) {
    const int others = g_running++;
    krn_exec* const last = g_last_exec.exchange(exec);
    if (last != exec) ::usleep(20000);
    const krn_code code = run_now(exec, run, err);
    --g_running;
    if (others > 0 && last && last != exec) static_cast<float*>(run.outputs[0].data)[0] += 1;
    return code;
  }
  return run_now(exec, run, err);
}

// ---- krn.artifact

const char kToken[] = "known-bad/1";

struct Body {
  char magic[4];
  uint32_t op;
  uint64_t hash;
  float scale;
  uint32_t process, number, sum;
};

uint32_t sum_of(Body body) {
  body.sum = 0;
  uint32_t out = 1;
  for (size_t i = 0; i < sizeof body; ++i) out = out * 31 + reinterpret_cast<const uint8_t*>(&body)[i];
  return out;
}

krn_code KRN_CALL save(krn_exec* exec, const krn_sink* token, const krn_sink* body, krn_err*) {
  Body out{{'B', 'A', 'D', '1'}, exec->program.op, exec->program.hash, exec->scale, 0, 0, 0};
  if (IS(bound_to_process)) out.process = static_cast<uint32_t>(::getpid());
  if (IS(dated_artifact)) out.number = static_cast<uint32_t>(++g_saves);
  out.sum = sum_of(out);
  std::string words = kToken;
  if (IS(long_token)) words.resize(5000, '.');
  krn_code code = token->write(token->ctx, words.data(), words.size());
  if (code != KRN_STATUS_ok && !IS(ignores_sinks)) return code;
  code = body->write(body->ctx, &out, sizeof out);
  return IS(ignores_sinks) ? KRN_STATUS_ok : code;
}

bool is_own(krn_span token) {
  const size_t size = strlen(kToken);
  return (IS(long_token) ? token.size == 5000 : token.size == size) && memcmp(token.data, kToken, size) == 0;
}

krn_code KRN_CALL check(krn_dev*, krn_span token, uint32_t* out, krn_err*) {
  const bool own = IS(any_token) || is_own(token);
  *out = own && !IS(rejects_itself) ? KRN_VERDICT_OPTIMAL : KRN_VERDICT_REJECT;
  if (!own && IS(odd_verdict) && token.size == strlen(kToken)) *out = 7;
  return KRN_STATUS_ok;
}

krn_code KRN_CALL load(krn_dev*, const krn_region* region_in, krn_span token, krn_span body, krn_exec** out, krn_err* err) {
  if (IS(load_fails)) return fail(err, KRN_STATUS_internal, "it cannot be loaded");
  if (!is_own(token)) return fail(err, KRN_STATUS_version, "another plugin's");
  if (body.size != sizeof(Body) && !IS(reads_past_body)) return fail(err, KRN_STATUS_corrupt, "of another length");
  Body in;
  memcpy(&in, body.data, sizeof in);
  const auto region = read(region_in);
  if (memcmp(in.magic, "BAD1", 4) != 0) return fail(err, KRN_STATUS_corrupt, "of another kind");
  if (in.sum != sum_of(in) && !IS(believes_bodies)) return fail(err, KRN_STATUS_corrupt, "damaged");
  if (memcmp(&in.hash, region.hash, sizeof in.hash) != 0 && !IS(any_region)) return fail(err, KRN_STATUS_corrupt, "another region's");
  if (in.process && in.process != static_cast<uint32_t>(::getpid())) return fail(err, KRN_STATUS_corrupt, "another process's");
  krn_exec* made = nullptr;
  if (const krn_code code = make(region, &made, err); code != KRN_STATUS_ok) return code;
  made->scale = IS(loads_wrong) ? 2 : in.scale;
  *out = made;
  return KRN_STATUS_ok;
}

krn_code KRN_CALL resize(krn_exec* like, const krn_region* region_in, krn_exec** out, krn_err* err) {
  if (IS(resize_crashes)) crash();
  krn_exec* made = nullptr;
  if (const krn_code code = make(read(region_in), &made, err); code != KRN_STATUS_ok) return code;
  made->scale = like->scale;
  if (IS(resizes_wrong)) made->scale *= 2;
  if (IS(resizes_itself)) like->scale *= 2;
  *out = made;
  return KRN_STATUS_ok;
}

// ---- krn.replay

krn_code KRN_CALL begin(krn_dev*, const krn_stream*, krn_err*) { return g_recording = new krn_replay, KRN_STATUS_ok; }
krn_code KRN_CALL end(krn_dev*, const krn_stream*, krn_replay** out, krn_err*) {
  *out = g_recording;
  g_recording = nullptr;
  return KRN_STATUS_ok;
}
krn_code KRN_CALL launch(krn_replay* replay, const krn_stream*, krn_err* err) {
  if (replay->launches.empty() && IS(crash_empty_replay)) crash();
  for (krn_replay::Launch& l : replay->launches) {
    krn_run run = l.run;
    run.stream.flags = 0;
    if (!l.old_input.empty()) l.inputs[0].data = l.old_input.data();
    run.inputs = l.inputs.data();
    run.outputs = l.outputs.data();
    if (const krn_code code = run_now(l.exec, run, err); code != KRN_STATUS_ok) return code;
  }
  return KRN_STATUS_ok;
}
void KRN_CALL release_replay(krn_replay* replay) { delete replay; }

constexpr krn_plugin_table kPlugin{{sizeof(krn_plugin_table), 1, 0}, initialize, shutdown, describe_plugin};
constexpr krn_device_table kDevice{
    {sizeof(krn_device_table), 1, 0}, enumerate, describe, open_device, close_device, health, condition};
constexpr krn_compile_table kCompile{{sizeof(krn_compile_table), 1, 0}, claim, compile, retain, release, resize};
constexpr krn_exec_table kExec{{sizeof(krn_exec_table), 1, 0}, info, needs, run};
constexpr krn_exec_table kExecWithoutRun{{sizeof(krn_exec_table), 1, 0}, info, needs, nullptr};
constexpr krn_artifact_table kArtifact{{sizeof(krn_artifact_table), 1, 0}, save, check, load};
constexpr krn_replay_table kReplay{{sizeof(krn_replay_table), 1, 0}, begin, end, launch, release_replay};

const krn_table* KRN_CALL get_table(const char* name, uint32_t major) {
  if (major != 1 && !IS(any_major)) return nullptr;
  if (!strcmp(name, "krn.plugin")) return &kPlugin.table;
  if (!strcmp(name, "krn.device")) return &kDevice.table;
  if (!strcmp(name, "krn.compile")) return &kCompile.table;
  if (!strcmp(name, "krn.exec")) return IS(no_exec_table) ? nullptr : IS(no_run) ? &kExecWithoutRun.table : &kExec.table;
  if (!strcmp(name, "krn.artifact")) return &kArtifact.table;
  if (!strcmp(name, "krn.replay")) return on_gpu() ? nullptr : &kReplay.table;
  return IS(any_table) ? &kPlugin.table : nullptr;
}

template <class T>
const T* host_table(const krn_offer& offer, const char* name) {
  return reinterpret_cast<const T*>(offer.get_table(offer.host, name, 1));
}

}  // namespace

extern "C" KRN_EXPORT krn_code KRN_CALL krn_plugin_entry(const krn_offer* offer, krn_answer* answer, krn_err* err) {
  if (IS(crash_entry)) crash();
  if (IS(entry_fails)) return KRN_STATUS_internal;
  if (IS(slow_entry) && g_entries == 0) ::usleep(300000);
  ++g_entries;
  g_host = offer->host;
  g_core = host_table<krn_host_core>(*offer, "krn.host.core");
  if (offer->abi_major_min > KRN_ABI_MAJOR && !IS(any_abi)) return fail(err, KRN_STATUS_version, "another version");
  g_consts = host_table<krn_host_consts>(*offer, "krn.host.consts");
  g_memory = host_table<krn_host_memory>(*offer, "krn.host.memory");
  g_threads = host_table<krn_host_threads>(*offer, "krn.host.threads");
  krn_answer out{};
  out.abi_major = KRN_ABI_MAJOR;
  out.abi_minor = KRN_ABI_MINOR;
  out.sanitizer = offer->sanitizer;
  out.guid.bytes[0] = IS(wrong_guid) ? 0xfc : 0xfb;  // fb000000-0000-0000-0000-000000000000, as the manifest of them all
  out.version = str(IS(wrong_version) ? "9.9.9" : "0.1.0");
  out.build_id = str(IS(no_build_id) ? "" : "known-bad");
  out.capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC;
  if (IS(counts_entries) && g_entries > 500) out.capabilities |= KRN_CAP_BACKWARD;
  out.get_table = get_table;
  return write(answer, out), KRN_STATUS_ok;
}
