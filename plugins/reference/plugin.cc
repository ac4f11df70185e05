// SPDX-License-Identifier: Apache-2.0
//
// The tables of the reference plugin: it claims every row of the op table on CPU devices and interprets. Written on plugin.h
// alone, so it is also the smallest complete plugin.
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "abi/graph.h"
#include "abi/plugin.h"
#include "plugins/kit/error.h"
#include "plugins/reference/interpreter.h"

#include <atomic>

struct krn_plugin {
  krn_host* host;
};

struct krn_dev {
  int32_t torch_index;
};

struct krn_exec {
  explicit krn_exec(krn_span bytes) : interpreter(bytes) {}
  keirin::reference::Interpreter interpreter;
  std::atomic<int64_t> references{1};
};

namespace {

constexpr uint8_t kGuid[16] = {0x6b, 0x72, 0x6e, 0x00, 0x72, 0x65, 0x66, 0x40, 0x80, 0x00, 0x6f, 0x72, 0x61, 0x63, 0x6c, 0x65};
constexpr std::string_view kVersion = "0.1.0";
constexpr int32_t kCpu = 1;

const krn_host_core* host_core = nullptr;  // set by the entry; the same for the life of the process

krn_str str(std::string_view s) { return {s.data(), s.size()}; }

void set_error(krn_err* err, krn_code code, std::string_view text) {
  if (host_core != nullptr && host_core->err_set != nullptr && err != nullptr) host_core->err_set(err, code, str(text));
}

// No exception crosses the boundary.
template <class F>
krn_code guarded(krn_err* err, F&& body) noexcept {
  try {
    return body();
  } catch (const keirin::kit::Error& e) {
    set_error(err, e.code(), e.what());
    return e.code();
  } catch (const std::bad_alloc&) {
    set_error(err, KRN_STATUS_exhausted, "the reference interpreter ran out of memory");
    return KRN_STATUS_exhausted;
  } catch (const std::exception& e) {
    set_error(err, KRN_STATUS_internal, e.what());
    return KRN_STATUS_internal;
  }
}

// Whether field `end_of_field` (an offset past it) is within what the caller filled.
bool filled(const krn_hdr& hdr, size_t end_of_field) { return hdr.size >= end_of_field; }

// An entry of a chain that must be understood and is not.
bool foreign(const krn_hdr& hdr) {
  for (const krn_hdr* h = hdr.next; h != nullptr; h = h->next)
    if ((h->flags & KRN_HDR_MUST_UNDERSTAND) != 0) return true;
  return false;
}

// Copies as much of `from` as the reader's struct holds, behind its header.
template <class T>
void answer(T* out, const T& from) {
  if (out->hdr.size <= sizeof(krn_hdr)) return;
  size_t size = out->hdr.size < sizeof(T) ? out->hdr.size : sizeof(T);
  std::memcpy(reinterpret_cast<char*>(out) + sizeof(krn_hdr), reinterpret_cast<const char*>(&from) + sizeof(krn_hdr), size - sizeof(krn_hdr));
}

// ---- krn.plugin

krn_code KRN_CALL initialize(const krn_config* config, krn_plugin** out, krn_err* err) {
  return guarded(err, [&]() -> krn_code {
    if (foreign(config->hdr)) return KRN_STATUS_version;
    *out = new krn_plugin{nullptr};
    return KRN_STATUS_ok;
  });
}

krn_code KRN_CALL shutdown(krn_plugin* plugin, krn_err*) {
  delete plugin;
  return KRN_STATUS_ok;
}

krn_code KRN_CALL describe_plugin(const krn_sink* sink, krn_err*) {
  std::string text = "name=reference\nversion=" + std::string(kVersion) + "\nopset=1..1\nlicence=Apache-2.0\n";
  return sink->write(sink->ctx, text.data(), text.size());
}

// ---- krn.device

krn_code KRN_CALL enumerate(krn_plugin*, const krn_array* hw, krn_emit_device emit, void* ctx, krn_err* err) {
  return guarded(err, [&]() -> krn_code {
    for (uint32_t i = 0; i < hw->count; ++i) {
      const auto* item = reinterpret_cast<const krn_hw*>(static_cast<const char*>(hw->data) + static_cast<size_t>(i) * hw->stride);
      const bool cpu = filled(item->hdr, offsetof(krn_hw, torch_index) + sizeof(int32_t)) && item->torch_type == kCpu;
      if (cpu) emit(ctx, i, new krn_dev{item->torch_index}, krn_str{nullptr, 0});
      else emit(ctx, i, nullptr, str("the reference interpreter runs on CPU tensors only"));
    }
    return KRN_STATUS_ok;
  });
}

krn_code KRN_CALL describe_device(krn_dev*, krn_device_desc* out, krn_err*) {
  krn_device_desc desc{};
  desc.name = str("reference interpreter");
  desc.arch = str("portable");
  desc.fingerprint = str("double");
  desc.prior_score = 0;
  desc.alignment = 8;
  answer(out, desc);
  return KRN_STATUS_ok;
}

krn_code KRN_CALL open_device(krn_dev*, krn_err*) { return KRN_STATUS_ok; }
void KRN_CALL close_device(krn_dev* dev) { delete dev; }
krn_code KRN_CALL health(krn_dev*) { return KRN_STATUS_ok; }

// ---- krn.compile

krn_code KRN_CALL claim(krn_dev*, const krn_region* region, const krn_policy*, const krn_claim_sink* sink, krn_err* err) {
  return guarded(err, [&]() -> krn_code {
    krn_graph graph;
    if (krn_graph_open(region->graph.data, region->graph.size, &graph) != 0)
      throw keirin::kit::Error(KRN_STATUS_corrupt, "the region's bytes do not open");
    std::vector<uint32_t> nodes;
    const krn_gfunction* f = krn_graph_function(&graph, 0);
    for (uint32_t k = 0; k < f->num_nodes; ++k) {
      const uint32_t node = f->first_node + k;
      if (keirin::reference::computes(krn_graph_node(&graph, node)->op)) {
        nodes.push_back(node);
        continue;
      }
      krn_refusal refusal{};
      refusal.hdr.size = sizeof refusal;
      refusal.node = node;
      refusal.why = str("no row of the op table");
      sink->refuse(sink->ctx, &refusal);
    }
    if (nodes.empty()) return KRN_STATUS_ok;
    krn_claim all{};
    all.hdr.size = sizeof all;
    all.nodes = nodes.data();
    all.num_nodes = static_cast<uint32_t>(nodes.size());
    all.num_kernels = all.num_nodes;
    sink->claim(sink->ctx, &all);
    return KRN_STATUS_ok;
  });
}

krn_code KRN_CALL compile(krn_dev*, const krn_region* region, const krn_policy* policy, const krn_options* options, krn_exec** out, krn_err* err) {
  return guarded(err, [&]() -> krn_code {
    if (foreign(region->hdr) || (policy != nullptr && foreign(policy->hdr))) return KRN_STATUS_version;
    if (options != nullptr && filled(options->hdr, offsetof(krn_options, candidate) + sizeof(uint32_t)) && options->candidate > 0)
      throw keirin::kit::Error(KRN_STATUS_unsupported, "there is one way to interpret a region");
    *out = new krn_exec(region->graph);
    return KRN_STATUS_ok;
  });
}

void KRN_CALL retain(krn_exec* exec) { exec->references.fetch_add(1, std::memory_order_relaxed); }
void KRN_CALL release(krn_exec* exec) {
  if (exec->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete exec;
}

// ---- krn.exec

krn_code KRN_CALL info(krn_exec* exec, krn_exec_info* out, krn_err*) {
  krn_exec_info facts{};
  facts.flags = KRN_EXEC_CONCURRENT | KRN_EXEC_INPUTS_INTACT;
  facts.num_kernels = exec->interpreter.num_nodes();
  answer(out, facts);
  return KRN_STATUS_ok;
}

krn_code KRN_CALL needs(krn_exec*, const int64_t*, uint32_t, krn_needs* out, krn_err*) {
  krn_needs none{};
  none.workspace_align = 1;
  answer(out, none);
  return KRN_STATUS_ok;
}

krn_code KRN_CALL run(krn_exec* exec, const krn_run* run, krn_err* err) {
  return guarded(err, [&]() -> krn_code {
    exec->interpreter.run(run->inputs, run->num_inputs, run->outputs, run->num_outputs);
    return KRN_STATUS_ok;
  });
}

template <class T>
constexpr krn_table header() {
  return {sizeof(T), 1, 0};
}

const krn_plugin_table kPluginTable = {header<krn_plugin_table>(), initialize, shutdown, describe_plugin};
const krn_device_table kDeviceTable = {header<krn_device_table>(), enumerate, describe_device, open_device, close_device, health};
const krn_compile_table kCompileTable = {header<krn_compile_table>(), claim, compile, retain, release};
const krn_exec_table kExecTable = {header<krn_exec_table>(), info, needs, run};

const krn_table* KRN_CALL get_table(const char* name, uint32_t major) {
  const std::string_view n = name;
  if (major != 1) return nullptr;
  if (n == "krn.plugin") return &kPluginTable.table;
  if (n == "krn.device") return &kDeviceTable.table;
  if (n == "krn.compile") return &kCompileTable.table;
  if (n == "krn.exec") return &kExecTable.table;
  return nullptr;
}

uint32_t sanitizer() {
#if defined(__SANITIZE_ADDRESS__)
  return 1;
#elif defined(__SANITIZE_THREAD__)
  return 2;
#else
  return 0;
#endif
}

bool offers_our_version(const krn_offer& offer) {
  auto number = [](uint16_t major, uint16_t minor) { return (static_cast<uint32_t>(major) << 16) | minor; };
  const uint32_t ours = number(KRN_ABI_MAJOR, KRN_ABI_MINOR);
  return number(offer.abi_major_min, offer.abi_minor_min) <= ours && ours <= number(offer.abi_major_max, offer.abi_minor_max);
}

}  // namespace

extern "C" KRN_EXPORT krn_code KRN_CALL krn_plugin_entry(const krn_offer* offer, krn_answer* out, krn_err* err) {
  if (!filled(offer->hdr, offsetof(krn_offer, get_table) + sizeof(void*)) || foreign(offer->hdr)) return KRN_STATUS_version;
  if (offer->get_table != nullptr) host_core = reinterpret_cast<const krn_host_core*>(offer->get_table(offer->host, "krn.host.core", 1));
  if (!offers_our_version(*offer)) {
    set_error(err, KRN_STATUS_version, "the reference plugin speaks abi 0.1 only");
    return KRN_STATUS_version;
  }
  krn_answer reply{};
  reply.abi_major = KRN_ABI_MAJOR;
  reply.abi_minor = KRN_ABI_MINOR;
  reply.sanitizer = sanitizer();
  std::memcpy(reply.guid.bytes, kGuid, sizeof kGuid);
  reply.version = str(kVersion);
  reply.build_id = str(kVersion);
  reply.capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC;
  reply.get_table = get_table;
  answer(out, reply);
  return KRN_STATUS_ok;
}
