// SPDX-License-Identifier: Apache-2.0
//
// One source, many plugins: each build defines one fault by name, `good` has none. What they are for: every fault must end as a
// verdict that names it, while the good plugin beside it is used. The good one compiles chains of relu and linear over dense f32.
#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "abi/graph.h"
#include "abi/plugin.h"

#define FAULT_good 0
#define FAULT_no_entry 1
#define FAULT_missing_symbol 2
#define FAULT_crash_static 3
#define FAULT_crash_entry 4
#define FAULT_crash_initialize 5
#define FAULT_crash_enumerate 6
#define FAULT_hang_initialize 7
#define FAULT_exit_enumerate 8
#define FAULT_wrong_guid 9
#define FAULT_wrong_version 10
#define FAULT_other_abi 11
#define FAULT_claim_missing_node 12
#define FAULT_claim_overlap 13
#define FAULT_throw_initialize 14
#define FAULT_no_driver 15
#define FAULT_emit_twice 16
#define FAULT_no_compile_table 17
#define FAULT_unknown_code 18
#define FAULT_crash_shutdown 19
#define FAULT_hang_static 20
#define FAULT_compile_nothing 21
#define FAULT_short_tables 22
#define FAULT_crash_claim 23
#define FAULT_crash_compile 24
#define FAULT_abort_compile 25
#define FAULT_hang_compile 26
#define FAULT_exit_compile 27
#define FAULT_bomb_compile 28
#define FAULT_fill_compile 29
#define FAULT_garbage_claim 30
#define FAULT_garbage_answer 31
#define FAULT_empty_artifact 32
#define FAULT_garbage_artifact 33
#define FAULT_throw_compile 34
#define FAULT_rude_compile 35
#define FAULT_no_artifact 36
#define FAULT_rude_run 37
#define FAULT_rude_slice 38
#define FAULT_crash_load 39
#define FAULT_switched_run 40
#define FAULT_one_process 41
#define FAULT_always_wrong 42
#define FAULT_refuses_unsupported 43
#define FAULT_refuses_internal 44
#define FAULT_wrong_relu 45
#define FAULT_wrong_together 46
#define FAULT_wrong_linear 47
#define FAULT_slow_region 48
#define FAULT_coarse_linear 49
#define FAULT_takes_any_index 50
#define FAULT_wrong_many_rows 51
#define FAULT_marks_load 52
#define FAULT_needs_held 53
#define FAULT_wrong_resize 54
#define FAULT_wrong_second 55

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define IS(name) (JOIN(FAULT_, KRN_FAULT) == FAULT_##name)

// One operator of a region; values are the region's.
struct Step {
  bool linear;
  bool take;                // of rows; an index that is past the end gives the last one
  bool ieee;                // the attribute
  uint32_t x, w, b, y;      // b: KRN_NONE for none
  int64_t rows, depth, columns;  // relu: rows elements; take: of `depth` rows
};

struct krn_exec {
  int64_t num_elements;     // of the output
  std::vector<uint32_t> inputs;
  uint32_t output;
  std::vector<Step> steps;
  bool resized = false;
  bool is_second = false;   // made after another one, before any ran; or the first of all
};

namespace {

krn_host* g_host = nullptr;
const krn_host_core* g_core = nullptr;
const krn_host_threads* g_threads = nullptr;
uint32_t g_role = 0;
int g_made_in_a_row = 1;  // executables, since one ran

krn_str str(const char* s) { return krn_str{s, strlen(s)}; }

// By signal, not by a null pointer: an optimiser may drop that, a sanitizer would report it.
[[maybe_unused]] void crash() { ::raise(SIGSEGV); }

[[maybe_unused]] void hang() {
  for (;;) ::pause();
}

// What no call may change: floating-point mode, signal mask, current folder, locale.
[[maybe_unused]] void flush_to_zero() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}
[[maybe_unused]] void be_rude() {
  flush_to_zero();
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  (void)!::chdir("/");
  ::setlocale(LC_ALL, "C.UTF-8");
}

// 64 GiB, touched.
[[maybe_unused]] void bomb() {
  std::vector<std::vector<char>> blocks;
  for (int i = 0; i < 1024; ++i) blocks.emplace_back(64 << 20, static_cast<char>(i));
}

// Writes until the disk or somebody stops it.
[[maybe_unused]] bool fill_disk() {
  std::string path = (std::filesystem::temp_directory_path() / "keirin-fault-fill-XXXXXX").string();
  const int fd = ::mkstemp(path.data());
  if (fd < 0) return false;
  ::unlink(path.c_str());
  const std::vector<char> block(1 << 20, 'x');
  bool whole = true;
  for (int i = 0; i < 100000 && whole; ++i) whole = ::write(fd, block.data(), block.size()) == static_cast<ssize_t>(block.size());
  ::close(fd);
  return whole;
}

// Says what is not a message where the worker's answer is expected, and goes on as if nothing were.
[[maybe_unused]] void babble() {
  const std::vector<char> noise(4096, 'z');
  (void)!::write(3, noise.data(), noise.size());
}

// Faults of `run` begin when the file that $KEIRIN_FAULT_SWITCH names holds their word.
[[maybe_unused]] bool switched(const char* word) {
  const char* const path = getenv("KEIRIN_FAULT_SWITCH");
  char text[16] = {};
  const int fd = path ? ::open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return false;
  (void)!::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  return strcmp(text, word) == 0;
}

krn_code fail(krn_err* err, krn_code code, const char* text) {
  if (g_core) g_core->err_set(err, code, str(text));
  return code;
}

#if IS(crash_static) || IS(hang_static)
struct AtLoad {
  AtLoad() { IS(crash_static) ? crash() : hang(); }
} g_at_load;
#endif
#if IS(marks_load)  // whoever opens the library leaves a file behind
struct AtLoad {
  AtLoad() {
    if (const char* const mark = ::getenv("KEIRIN_FAULT_MARK")) ::close(::open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  }
} g_at_load;
#endif
#if IS(missing_symbol)
extern "C" int krn_symbol_that_nobody_has(void);
#endif

// ---- krn.plugin and krn.device

krn_code KRN_CALL initialize(const krn_config*, krn_plugin** out, krn_err* err) {
  if (IS(crash_initialize)) crash();
  if (IS(hang_initialize)) hang();
  if (IS(throw_initialize)) throw std::runtime_error("thrown across the boundary");
  if (IS(no_driver)) return fail(err, KRN_STATUS_unsupported, "the driver libacme.so.1 is not installed");
  if (IS(unknown_code)) return fail(err, 4711, "strange");
  *out = reinterpret_cast<krn_plugin*>(1);
  return KRN_STATUS_ok;
}

krn_code KRN_CALL shutdown(krn_plugin*, krn_err*) {
  if (IS(crash_shutdown)) crash();
  return KRN_STATUS_ok;
}

krn_code KRN_CALL enumerate(krn_plugin*, const krn_array* hw, krn_emit_device emit, void* ctx, krn_err*) {
  if (IS(crash_enumerate)) crash();
  if (IS(exit_enumerate)) exit(0);
  for (uint32_t i = 0; i < hw->count; ++i) {
    const auto* item = reinterpret_cast<const krn_hw*>(static_cast<const char*>(hw->data) + i * hw->stride);
    const bool cpu = item->uid.size == 5 && memcmp(item->uid.data, "cpu:0", 5) == 0;
    emit(ctx, i, cpu ? reinterpret_cast<krn_dev*>(1) : nullptr, cpu ? str("") : str("only processors"));
    if (IS(emit_twice)) emit(ctx, i, nullptr, str("again"));
  }
  return KRN_STATUS_ok;
}

krn_code KRN_CALL describe(krn_dev*, krn_device_desc* out, krn_err*) {
  out->name = str("fault0");
  out->arch = str("x86-64");
  out->fingerprint = str("none");
  out->prior_score = IS(always_wrong) ? 1000 : 1;  // before the good ones
  return KRN_STATUS_ok;
}

// A device that only one process may open, or without memory for a second.
krn_code KRN_CALL open_device(krn_dev*, krn_err* err) {
  if (IS(one_process) && g_role == KRN_ROLE_COMPILE) return fail(err, KRN_STATUS_exhausted, "the device has no memory for another process");
  return KRN_STATUS_ok;
}

// ---- krn.compile and krn.exec

constexpr uint32_t kRelu = 21, kTake = 207, kLinear = 401, kIeee = 41;

int64_t count_of(const krn_graph& graph, uint32_t value) {
  const krn_gtype* type = krn_graph_value_type(&graph, value);
  int64_t n = 1;
  for (int i = 0; i < type->rank; ++i) n *= krn_graph_sizes(&graph, type)[i];
  return n;
}

bool takes(const krn_graph& graph, const krn_gnode& node) {
  if (IS(takes_any_index) && node.op == kTake) return krn_graph_value_type(&graph, node.first_result)->rank == 2;
  return node.op == kRelu || (node.op == kLinear && krn_graph_value_type(&graph, node.first_result)->rank == 2);
}

// Null for a region of another kind.
krn_exec* read_steps(krn_span bytes) {
  krn_graph graph;
  if (krn_graph_open(bytes.data, bytes.size, &graph) != 0) return nullptr;
  const krn_gfunction* f = krn_graph_function(&graph, 0);
  if (f->num_outputs != 1) return nullptr;
  krn_exec exec{};
  for (uint32_t i = 0; i < f->num_inputs; ++i) exec.inputs.push_back(krn_graph_input(&graph, f->first_input + i)->value);
  for (uint32_t i = f->first_node; i < f->first_node + f->num_nodes; ++i) {
    const krn_gnode* node = krn_graph_node(&graph, i);
    if (!takes(graph, *node)) return nullptr;
    Step step{};
    step.linear = node->op == kLinear;
    step.take = node->op == kTake;
    const krn_gattr* ieee = krn_graph_find_attr(&graph, node, kIeee);
    step.ieee = ieee && ieee->bits;
    step.x = krn_graph_operand(&graph, node, 0);
    step.y = node->first_result;
    step.rows = count_of(graph, step.y);
    if (step.linear) {
      step.w = krn_graph_operand(&graph, node, 1);
      step.b = node->num_operands > 2 ? krn_graph_operand(&graph, node, 2) : KRN_NONE;
      const int64_t* sizes = krn_graph_sizes(&graph, krn_graph_value_type(&graph, step.w));
      step.columns = sizes[0];
      step.depth = sizes[1];
      step.rows /= step.columns;
    }
    if (step.take) {
      step.w = krn_graph_operand(&graph, node, 1);
      const int64_t* sizes = krn_graph_sizes(&graph, krn_graph_value_type(&graph, step.x));
      step.depth = sizes[0];
      step.columns = sizes[1];
      step.rows /= step.columns;
    }
    exec.steps.push_back(step);
  }
  exec.output = krn_graph_output(&graph, f->first_output)->value;
  exec.num_elements = count_of(graph, exec.output);
  exec.is_second = ++g_made_in_a_row == 2;
  return new krn_exec(exec);
}

krn_code KRN_CALL claim(krn_dev*, const krn_region* region, const krn_policy*, const krn_claim_sink* sink, krn_err* err) {
  if (IS(crash_claim)) crash();
  if (IS(garbage_claim)) babble();
  krn_graph graph;
  if (krn_graph_open(region->graph.data, region->graph.size, &graph) != 0) return fail(err, KRN_STATUS_corrupt, "no graph");
  const krn_gfunction* f = krn_graph_function(&graph, 0);
  for (uint32_t i = f->first_node; i < f->first_node + f->num_nodes; ++i) {
    krn_claim claimed{};
    claimed.hdr.size = sizeof(claimed);
    uint32_t node = IS(claim_missing_node) ? 1000000 : i;
    claimed.nodes = &node;
    claimed.num_nodes = 1;
    claimed.num_kernels = 1;
    const bool between =
        (IS(refuses_unsupported) || IS(refuses_internal) || IS(slow_region)) && i == f->first_node + 2;  // two regions, apart
    if (takes(graph, *krn_graph_node(&graph, i)) && !between) {
      sink->claim(sink->ctx, &claimed);
      if (IS(claim_overlap)) sink->claim(sink->ctx, &claimed);
    } else {
      krn_refusal refused{};
      refused.hdr.size = sizeof(refused);
      refused.node = i;
      refused.why = str("only relu and linear");
      sink->refuse(sink->ctx, &refused);
    }
  }
  return KRN_STATUS_ok;
}

krn_code KRN_CALL compile(krn_dev*, const krn_region* region, const krn_policy*, const krn_options* options, krn_exec** out,
                          krn_err* err) {
  if (IS(compile_nothing)) return KRN_STATUS_ok;
  if (IS(crash_compile)) crash();
  if (IS(abort_compile)) abort();
  if (IS(hang_compile)) hang();
  if (IS(exit_compile)) exit(0);
  if (IS(bomb_compile)) bomb();
  if (IS(garbage_answer)) babble();
  if (IS(rude_compile)) be_rude();
  if (IS(throw_compile)) throw std::runtime_error("thrown across the boundary");
  if (IS(fill_compile) && !fill_disk()) return fail(err, KRN_STATUS_exhausted, "the disk is full");
  if (IS(needs_held) && !::dlopen("libfault_held.so.1", RTLD_LAZY | RTLD_LOCAL)) return fail(err, KRN_STATUS_unsupported, ::dlerror());
  if (options->candidate > 0) return fail(err, KRN_STATUS_unsupported, "there is one candidate");
  // A region that begins with a product, as a plugin does that claimed more than it can do.
  if (IS(refuses_unsupported) || IS(refuses_internal)) {
    krn_graph graph;
    if (krn_graph_open(region->graph.data, region->graph.size, &graph) == 0 &&
        krn_graph_node(&graph, krn_graph_function(&graph, 0)->first_node)->op == kLinear)
      return fail(err, IS(refuses_internal) ? KRN_STATUS_internal : KRN_STATUS_unsupported, "not this one after all");
  }
  krn_exec* const made = read_steps(region->graph);
  if (!made) return fail(err, KRN_STATUS_unsupported, "the region is not a chain of relu and linear");
  *out = made;
  return KRN_STATUS_ok;
}

krn_code KRN_CALL resize(krn_exec*, const krn_region* region, krn_exec** out, krn_err* err) {
  krn_exec* const made = IS(wrong_resize) ? read_steps(region->graph) : nullptr;
  if (!made) return fail(err, KRN_STATUS_unsupported, "no region is taken to other sizes");
  made->resized = true;
  *out = made;
  return KRN_STATUS_ok;
}

void KRN_CALL retain(krn_exec*) {}
void KRN_CALL release(krn_exec* exec) { delete exec; }

krn_code KRN_CALL info(krn_exec*, krn_exec_info* out, krn_err*) {
  out->flags = KRN_EXEC_INPUTS_INTACT;
  out->num_kernels = 1;
  return KRN_STATUS_ok;
}

krn_code KRN_CALL needs(krn_exec*, const int64_t*, uint32_t, krn_needs* out, krn_err*) {
  out->workspace_bytes = 0;
  return KRN_STATUS_ok;
}

struct Slice {
  const float* from;
  float* to;
};

void KRN_CALL relu_slice(void* ctx, int64_t begin, int64_t end, int32_t) {
  const auto* s = static_cast<const Slice*>(ctx);
  if (IS(rude_slice)) flush_to_zero();
  for (int64_t i = begin; i < end; ++i) s->to[i] = s->from[i] <= 0 ? 0 : s->from[i];
}

// To 7 bits, where rounding is not forbidden.
float operand(const Step& s, float x) {
  if (!IS(coarse_linear) || s.ieee) return x;
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  bits &= 0xffff0000u;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

void run_linear(const Step& s, const float* x, const float* w, const float* b, float* y) {
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t c = 0; c < s.columns; ++c) {
      double sum = b ? b[c] : 0;
      for (int64_t k = 0; k < s.depth; ++k) sum += static_cast<double>(operand(s, x[r * s.depth + k])) * operand(s, w[c * s.depth + k]);
      y[r * s.columns + c] = static_cast<float>(sum);
    }
}

// ---- what a plugin may do to its own process and to others; each is a word of `switched`

[[maybe_unused]] void spin() {
  for (volatile bool end = false; !end;) {
  }
}

[[maybe_unused]] int overflow_stack(int depth) {
  volatile char page[4096];
  page[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : overflow_stack(depth + 1) + page[0];
}

// A helper that is to outlive its plugin. Its number goes beside the switch's file.
[[maybe_unused]] void leave_orphan() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setsid();
    ::close(3);
    hang();
  }
  if (const char* const path = getenv("KEIRIN_FAULT_SWITCH"))
    if (FILE* const file = ::fopen((std::string(path) + ".pid").c_str(), "we")) {
      ::fprintf(file, "%d", static_cast<int>(child));
      ::fclose(file);
    }
}

[[maybe_unused]] void fork_and_go() {
  if (::fork() == 0) hang();  // and holds the channel
  ::_exit(0);
}

// Whether another process was reached: the host, which started this one.
[[maybe_unused]] bool reached_parent() {
  const pid_t host = ::getppid();
  uint64_t zero = 0;
  const iovec mine{&zero, sizeof(zero)}, its{&g_role, sizeof(g_role)};
  if (switched("parent")) return ::kill(host, SIGTERM) == 0;
  if (switched("queue")) return ::sigqueue(host, SIGTERM, sigval{}) == 0;
  if (switched("trace")) return ::ptrace(PTRACE_ATTACH, host, nullptr, nullptr) == 0;
  if (switched("memory_of")) return ::syscall(SYS_process_vm_writev, host, &mine, 1ul, &its, 1ul, 0ul) >= 0 || errno != EPERM;
  return false;
}

// Takes bytes of the shared memory away under its other side.
[[maybe_unused]] bool shrunk_arguments() {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/map_files", none)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), none).string();
    if (target.find("memfd:keirin") == std::string::npos) continue;
    const int fd = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    const bool shrunk = fd >= 0 && ::ftruncate(fd, 0) == 0;
    ::close(fd);
    if (shrunk) return true;
  }
  return false;
}

[[maybe_unused]] void* sleep_for_good(void*) {
  hang();
  return nullptr;
}
[[maybe_unused]] void* end_soon(void*) {
  ::usleep(50000);
  ::_exit(9);
}
[[maybe_unused]] void start_threads(int count, void* (*body)(void*)) {
  for (int i = 0; i < count; ++i) {
    pthread_t thread;
    if (::pthread_create(&thread, nullptr, body, nullptr) != 0) return;
    ::pthread_detach(thread);
  }
}

[[maybe_unused]] void flood_errors() {
  const std::vector<char> block(1 << 20, 'e');
  for (int i = 0; i < 300; ++i) (void)!::write(2, block.data(), block.size());
}

[[maybe_unused]] void be_slow() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  ::sched_setaffinity(0, sizeof(one), &one);
  (void)!::nice(19);
}

// After the right answer was written.
krn_code misbehave(const krn_run* run, krn_err* err) {
  if (switched("spin")) spin();
  if (switched("stop")) ::raise(SIGSTOP);
  if (switched("closes")) ::close_range(3, ~0u, 0);
  if (switched("fork")) fork_and_go();
  if (switched("exec")) ::execl("/bin/sleep", "sleep", "1000", nullptr);
  if (switched("stack")) overflow_stack(0);
  if (switched("fpe")) ::raise(SIGFPE);
  if (switched("ill")) ::raise(SIGILL);
  if (switched("orphan")) leave_orphan();
  if (switched("folder")) {
    (void)!::chdir("/");
    ::umask(0777);
    ::clearenv();
  }
  if (switched("locale")) ::setlocale(LC_ALL, "C.UTF-8");
  if (switched("mask")) {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  }
  if (switched("flush")) flush_to_zero();
  if (switched("threads")) start_threads(200, sleep_for_good);
  if (switched("files"))
    while (::open("/dev/null", O_RDONLY) >= 0) {
    }
  if (switched("flood")) flood_errors();
  if (switched("slow")) be_slow();
  static int lived = 0;  // runs of this process; what ends it is what the kernel does where memory is short
  ++lived;
  for (int most = 0; most < 8; ++most)
    if (lived > most && switched(("killed" + std::to_string(most)).c_str())) ::raise(SIGKILL);
  if (switched("leak")) memset(::malloc(64 << 20), 1, 64 << 20);
  if (switched("hoard")) *static_cast<volatile char*>(::malloc(size_t{1} << 30)) = 1;  // counts for its limit, and costs a page
  if (switched("alarm")) {
    const itimerval soon{{0, 0}, {0, 50000}};
    ::setitimer(ITIMER_REAL, &soon, nullptr);
  }
  if (switched("idle")) start_threads(1, end_soon);
  if (switched("unmap")) {
    const uintptr_t page = reinterpret_cast<uintptr_t>(run->outputs[0].data) & ~uintptr_t{4095};
    ::munmap(reinterpret_cast<void*>(page), 4096);
  }
  if (switched("shrink") && shrunk_arguments()) return fail(err, KRN_STATUS_internal, "it took the host's memory away");
  if (reached_parent()) return fail(err, KRN_STATUS_internal, "it reached another process");
  return KRN_STATUS_ok;
}

// After the right answer was written.
krn_code run_as_told(krn_exec* exec, const krn_run* run, krn_err* err) {
  auto* const output = static_cast<float*>(run->outputs[0].data);
  if (switched("crash")) crash();
  if (switched("abort")) abort();
  if (switched("exit")) exit(0);
  if (switched("hang")) hang();
  while (switched("stall")) ::usleep(1000);
  if (switched("nap")) ::usleep(10000);
  if (switched("bomb")) bomb();
  if (switched("babble")) babble();
  if (switched("throw")) throw std::runtime_error("thrown across the boundary");
  if (switched("overrun")) output[exec->num_elements] = 1;
  if (switched("far")) memset(output, 1, size_t{1} << 30);
  if (switched("inputs")) memset(run->inputs[0].data, 0, 4);
  if (switched("rude")) be_rude();
  if (switched("lost")) return fail(err, KRN_STATUS_device_lost, "the device fell off");
  if (switched("memory")) return fail(err, KRN_STATUS_exhausted, "no memory left");
  if (switched("code")) return fail(err, 4711, "strange");
  if (switched("error")) return fail(err, KRN_STATUS_internal, "the run failed as it was told to");
  if (switched("wrong") && exec->num_elements > 0) output[exec->num_elements - 1] += 1;
  static int sometimes = 0;  // runs since it was told to
  if (switched("sometimes") && exec->num_elements > 0 && ++sometimes % 10 == 0) output[exec->num_elements - 1] += 1;
  return misbehave(run, err);
}

krn_code KRN_CALL run(krn_exec* exec, const krn_run* run, krn_err* err) {
  if (run->inputs[0].dtype_bits != 32) return fail(err, KRN_STATUS_invalid_input, "the input is not f32");
  std::map<uint32_t, float*> at;  // by value
  for (uint32_t i = 0; i < run->num_inputs; ++i) at[exec->inputs[i]] = static_cast<float*>(run->inputs[i].data);
  std::vector<std::vector<float>> between;
  for (const Step& step : exec->steps) {
    if (step.y == exec->output) {
      at[step.y] = static_cast<float*>(run->outputs[0].data);
    } else {
      between.emplace_back(static_cast<size_t>(step.columns ? step.rows * step.columns : step.rows));
      at[step.y] = between.back().data();
    }
    if (step.linear) {
      run_linear(step, at[step.x], at[step.w], step.b == KRN_NONE ? nullptr : at[step.b], at[step.y]);
      if ((IS(wrong_linear) && step.rows > 0) || (IS(wrong_many_rows) && step.rows > 20) || exec->resized) at[step.y][0] += 1;
      continue;
    }
    if (step.take) {
      const auto* index = reinterpret_cast<const int64_t*>(at[step.w]);
      for (int64_t r = 0; r < step.rows; ++r)
        memcpy(at[step.y] + r * step.columns, at[step.x] + std::min(index[r], step.depth - 1) * step.columns,
               static_cast<size_t>(step.columns) * 4);
      continue;
    }
    Slice slice{at[step.x], at[step.y]};
    if (g_threads) g_threads->parallel_for(g_host, step.rows, 16, relu_slice, &slice);
    else relu_slice(&slice, 0, step.rows, 0);
    if (IS(wrong_relu) && step.rows > 0) at[step.y][0] += 1;
  }
  if (IS(rude_run)) be_rude();
  if (IS(slow_region) && exec->steps.back().linear && exec->steps.back().columns == 10)
    ::usleep(20000);  // the last one of the test's model
  if (IS(wrong_together) && exec->steps.size() > 1) static_cast<float*>(run->outputs[0].data)[0] += 1;
  if (IS(wrong_second) && exec->is_second && exec->steps[0].linear) static_cast<float*>(run->outputs[0].data)[0] += 1;
  g_made_in_a_row = 0;
  if (IS(always_wrong) && exec->num_elements > 0) static_cast<float*>(run->outputs[0].data)[exec->num_elements - 1] += 1;
  return IS(switched_run) ? run_as_told(exec, run, err) : KRN_STATUS_ok;
}

// ---- krn.artifact: the token is a word, the body the number of elements

krn_code KRN_CALL save(krn_exec* exec, const krn_sink* token, const krn_sink* body, krn_err*) {
  if (IS(empty_artifact)) return KRN_STATUS_ok;
  if (IS(garbage_artifact)) {
    token->write(token->ctx, "relu", 4);
    return body->write(body->ctx, "garbage", 7);
  }
  if (const krn_code code = token->write(token->ctx, "relu", 4); code != KRN_STATUS_ok) return code;
  return body->write(body->ctx, &exec->num_elements, sizeof(exec->num_elements));
}

krn_code KRN_CALL check(krn_dev*, krn_span token, uint32_t* out, krn_err*) {
  *out = token.size == 4 && memcmp(token.data, "relu", 4) == 0 ? KRN_VERDICT_OPTIMAL : KRN_VERDICT_REJECT;
  return KRN_STATUS_ok;
}

krn_code KRN_CALL load(krn_dev*, const krn_region* region, krn_span, krn_span body, krn_exec** out, krn_err* err) {
  if (IS(crash_load)) crash();
  if (body.size != sizeof(int64_t)) return fail(err, KRN_STATUS_corrupt, "the body has another length");
  krn_exec* const exec = read_steps(region->graph);
  if (!exec || memcmp(body.data, &exec->num_elements, sizeof(int64_t)) != 0) {
    delete exec;
    return fail(err, KRN_STATUS_corrupt, "the artifact is another region's");
  }
  *out = exec;
  return KRN_STATUS_ok;
}

constexpr uint32_t size_of(uint32_t full) { return IS(short_tables) ? sizeof(krn_table) + sizeof(void*) : full; }

constexpr krn_plugin_table kPlugin{{sizeof(krn_plugin_table), 1, 0}, initialize, shutdown, nullptr};
constexpr krn_device_table kDevice{{sizeof(krn_device_table), 1, 0}, enumerate, describe, open_device, nullptr, nullptr, nullptr};
constexpr krn_compile_table kCompile{{size_of(sizeof(krn_compile_table)), 1, 0}, claim, compile, retain, release, resize};
constexpr krn_exec_table kExec{{sizeof(krn_exec_table), 1, 0}, info, needs, run};
constexpr krn_artifact_table kArtifact{{sizeof(krn_artifact_table), 1, 0}, save, check, load};

[[maybe_unused]] const krn_table* KRN_CALL get_table(const char* name, uint32_t major) {
  if (major != 1) return nullptr;
  if (!strcmp(name, "krn.plugin")) return &kPlugin.table;
  if (!strcmp(name, "krn.device")) return &kDevice.table;
  if (!strcmp(name, "krn.compile")) return IS(no_compile_table) ? nullptr : &kCompile.table;
  if (!strcmp(name, "krn.exec")) return &kExec.table;
  if (!strcmp(name, "krn.artifact")) return IS(no_artifact) ? nullptr : &kArtifact.table;
  return nullptr;
}

}  // namespace

#if !IS(no_entry)
extern "C" KRN_EXPORT krn_code KRN_CALL krn_plugin_entry(const krn_offer* offer, krn_answer* answer, krn_err*) {
  if (IS(crash_entry)) crash();
#if IS(missing_symbol)
  answer->capabilities = krn_symbol_that_nobody_has();
#endif
  g_host = offer->host;
  g_role = offer->role;
  g_core = reinterpret_cast<const krn_host_core*>(offer->get_table(offer->host, "krn.host.core", 1));
  g_threads = reinterpret_cast<const krn_host_threads*>(offer->get_table(offer->host, "krn.host.threads", 1));
  answer->abi_major = IS(other_abi) ? 7 : offer->abi_major_max;
  answer->abi_minor = offer->abi_minor_max;
  answer->sanitizer = offer->sanitizer;
  answer->guid.bytes[0] = 0xfa;  // fa000000-0000-0000-0000-0000000000NN, NN the fault
  answer->guid.bytes[15] = IS(wrong_guid) ? 0xff : JOIN(FAULT_, KRN_FAULT);
  answer->version = str(IS(wrong_version) ? "9.9.9" : "0.1.0");
  answer->build_id = str("test");
  answer->get_table = get_table;
  return KRN_STATUS_ok;
}
#else
extern "C" KRN_EXPORT int not_the_entry(void) { return get_table("", 1) != nullptr; }
#endif
