// SPDX-License-Identifier: Apache-2.0
#include "plugins/kit/plugin.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "plugins/kit/structs.h"

// The handles of the contract are the kit's objects.
struct krn_plugin {
  std::unique_ptr<keirin::kit::Plugin> plugin;
  std::vector<std::unique_ptr<krn_dev>> devices;
};
struct krn_dev {
  std::shared_ptr<keirin::kit::Device> device;
};
struct krn_exec {
  std::atomic<int64_t> references{1};
  std::shared_ptr<keirin::kit::Device> device;  // declared first: outlives the executable
  std::unique_ptr<keirin::kit::Executable> executable;
};
struct krn_replay {
  std::shared_ptr<keirin::kit::Device> device;
  std::unique_ptr<keirin::kit::Replay> replay;
};

namespace keirin::kit {
namespace {

// What the one plugin of this library is: set by the first call of the entry, the same ever after.
const About* g_about = nullptr;
MakePlugin g_make = nullptr;

// The number that the linker gave the library that holds this function, in hex; empty where it gave none. It is made of what was
// linked, and a date would be that of one source file.
std::string linked_build_id() {
  std::string out;
  const auto visit = [](dl_phdr_info* info, size_t, void* to) {
    const ElfW(Phdr) *const begin = info->dlpi_phdr, *const end = begin + info->dlpi_phnum;
    const auto here = reinterpret_cast<ElfW(Addr)>(&linked_build_id) - info->dlpi_addr;
    if (std::none_of(begin, end, [&](const ElfW(Phdr) & p) { return p.p_type == PT_LOAD && here - p.p_vaddr < p.p_memsz; })) return 0;
    for (const ElfW(Phdr)* p = begin; p != end; ++p) {
      if (p->p_type != PT_NOTE) continue;
      const size_t align = p->p_align == 8 ? 8 : 4;
      const auto padded = [&](size_t n) { return (n + align - 1) / align * align; };
      const auto* at = reinterpret_cast<const uint8_t*>(info->dlpi_addr + p->p_vaddr);
      for (const uint8_t* const last = at + p->p_memsz; at + sizeof(ElfW(Nhdr)) <= last;) {
        ElfW(Nhdr) note;
        std::memcpy(&note, at, sizeof note);
        const uint8_t *const name = at + sizeof note, *const body = name + padded(note.n_namesz);
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
          constexpr char kDigits[] = "0123456789abcdef";
          for (const uint8_t* b = body; b != body + note.n_descsz; ++b) {
            static_cast<std::string*>(to)->push_back(kDigits[*b >> 4]);
            static_cast<std::string*>(to)->push_back(kDigits[*b & 15]);
          }
          return 1;
        }
        at = body + padded(note.n_descsz);
      }
    }
    return 1;
  };
  dl_iterate_phdr(visit, &out);
  return out;
}

const std::string& build_id() {
  static const std::string id = *g_about->build_id ? g_about->build_id : linked_build_id();
  return id;
}

Region open_region(const krn_region* in) {
  const krn_region region = read(in);
  Region out;
  if (krn_graph_open(region.graph.data, region.graph.size, &out.graph) != 0)
    throw Error(KRN_STATUS_corrupt, "the region's bytes do not follow the format of abi/graph.h");
  out.bytes = {static_cast<const uint8_t*>(region.graph.data), region.graph.size};
  out.hash = in->hash;
  out.weights = region.consts;
  return out;
}

std::string_view view(krn_span span) { return {static_cast<const char*>(span.data), span.size}; }

void send(const krn_sink* sink, std::string_view bytes) {
  if (krn_code code = sink->write(sink->ctx, bytes.data(), bytes.size()); code != KRN_STATUS_ok)
    throw Error(code, "the host's sink refused the bytes");
}

// ---- krn.plugin

krn_code KRN_CALL initialize(const krn_config* config, krn_plugin** out, krn_err* err) {
  return barrier(err, [&] {
    auto plugin = std::make_unique<krn_plugin>();
    plugin->plugin = g_make(host(), read(config));
    *out = plugin.release();
  });
}

krn_code KRN_CALL shut_down(krn_plugin* plugin, krn_err* err) {
  return barrier(err, [&] { delete plugin; });
}

krn_code KRN_CALL describe_plugin(const krn_sink* sink, krn_err* err) {
  return barrier(err, [&] {
    send(sink, std::string("version=") + g_about->version + "\nbuild=" + build_id() + "\nopset=1-1\n" + g_about->description);
  });
}

const krn_plugin_table kPluginTable = {{sizeof(krn_plugin_table), 1, 0}, initialize, shut_down, describe_plugin};

// ---- krn.device

krn_code KRN_CALL enumerate(krn_plugin* plugin, const krn_array* hw, krn_emit_device emit, void* ctx, krn_err* err) {
  return barrier(err, [&] {
    for (uint32_t i = 0; i < hw->count; ++i) {
      std::string why_not = "not this plugin's kind of hardware";
      std::unique_ptr<Device> device;
      try {
        device = plugin->plugin->enumerate(read<krn_hw>(*hw, i), why_not);
      } catch (const Error& error) {
        why_not = error.what();  // one item that cannot be looked at does not hide the others
      }
      krn_dev* handle = nullptr;
      if (device) {
        plugin->devices.push_back(std::make_unique<krn_dev>());
        handle = plugin->devices.back().get();
        handle->device = std::move(device);
        why_not.clear();
      }
      emit(ctx, i, handle, str(why_not));
    }
  });
}

krn_code KRN_CALL describe_device(krn_dev* dev, krn_device_desc* out, krn_err* err) {
  return barrier(err, [&] {
    auto desc = init<krn_device_desc>();
    dev->device->describe(desc);
    write(out, desc);
  });
}

krn_code KRN_CALL open_device(krn_dev* dev, krn_err* err) {
  return barrier(err, [&] { dev->device->open(); });
}
void KRN_CALL close_device(krn_dev* dev) {
  (void)barrier(nullptr, [&] { dev->device->close(); });
}
krn_code KRN_CALL health(krn_dev* dev) { return dev->device->health(); }
krn_code KRN_CALL condition(krn_dev* dev, krn_condition* out) {
  return barrier(nullptr, [&] {
    auto told = init<krn_condition>();
    dev->device->condition(told);
    write(out, told);
  });
}

const krn_device_table kDeviceTable = {
    {sizeof(krn_device_table), 1, 0}, enumerate, describe_device, open_device, close_device, health, condition};

// ---- krn.compile

class HostSink final : public ClaimSink {
 public:
  explicit HostSink(const krn_claim_sink* sink) : sink_(sink) {}
  void claim(const std::vector<uint32_t>& nodes, uint32_t num_kernels, double cost_ns, double confidence) override {
    auto claim = init<krn_claim>();
    claim.nodes = nodes.data();
    claim.num_nodes = static_cast<uint32_t>(nodes.size());
    claim.num_kernels = num_kernels;
    claim.cost_ns = cost_ns;
    claim.confidence = confidence;
    sink_->claim(sink_->ctx, &claim);
  }
  void refuse(uint32_t node, std::string_view why) override {
    auto refusal = init<krn_refusal>();
    refusal.node = node;
    refusal.why = str(why);
    sink_->refuse(sink_->ctx, &refusal);
  }

 private:
  const krn_claim_sink* sink_;
};

krn_code KRN_CALL claim(krn_dev* dev, const krn_region* region, const krn_policy* policy, const krn_claim_sink* sink, krn_err* err) {
  return barrier(err, [&] {
    HostSink host_sink(sink);
    dev->device->claim(open_region(region), read(policy), host_sink);
  });
}

template <class Handle>
krn_exec* wrap(const Handle* of_device, std::unique_ptr<Executable> executable) {
  if (!executable) throw Error(KRN_STATUS_internal, "the plugin made no executable");
  auto handle = std::make_unique<krn_exec>();
  handle->device = of_device->device;
  handle->executable = std::move(executable);
  return handle.release();
}

krn_code KRN_CALL compile(krn_dev* dev, const krn_region* region, const krn_policy* policy, const krn_options* options, krn_exec** out,
                          krn_err* err) {
  return barrier(err, [&] { *out = wrap(dev, dev->device->compile(open_region(region), read(policy), read(options))); });
}

void KRN_CALL retain(krn_exec* exec) { exec->references.fetch_add(1, std::memory_order_relaxed); }
void KRN_CALL release(krn_exec* exec) {
  if (exec->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    exec->executable.reset();
    delete exec;
  }
}

krn_code KRN_CALL resize(krn_exec* like, const krn_region* region, krn_exec** out, krn_err* err) {
  return barrier(err, [&] { *out = wrap(like, like->executable->resize(open_region(region))); });
}

const krn_compile_table kCompileTable = {{sizeof(krn_compile_table), 1, 0}, claim, compile, retain, release, resize};

// ---- krn.exec

krn_code KRN_CALL info(krn_exec* exec, krn_exec_info* out, krn_err* err) {
  return barrier(err, [&] {
    auto value = init<krn_exec_info>();
    exec->executable->info(value);
    write(out, value);
  });
}

krn_code KRN_CALL needs(krn_exec* exec, const int64_t*, uint32_t, krn_needs* out, krn_err* err) {
  return barrier(err, [&] {
    auto value = init<krn_needs>();
    exec->executable->needs(value);
    write(out, value);
  });
}

krn_code KRN_CALL run(krn_exec* exec, const krn_run* run, krn_err* err) {
  // The common case costs no copy: a struct of our size or larger is read in place.
  if (run->hdr.size >= sizeof(krn_run) && !run->hdr.next) return exec->executable->run(*run, err);
  krn_code code = KRN_STATUS_ok;
  krn_code converted = barrier(err, [&] { code = exec->executable->run(read(run), err); });
  return converted == KRN_STATUS_ok ? code : converted;
}

const krn_exec_table kExecTable = {{sizeof(krn_exec_table), 1, 0}, info, needs, run};

// ---- krn.artifact

krn_code KRN_CALL save(krn_exec* exec, const krn_sink* token, const krn_sink* body, krn_err* err) {
  return barrier(err, [&] {
    std::string token_bytes, body_bytes;
    exec->executable->save(token_bytes, body_bytes);
    send(token, token_bytes);
    send(body, body_bytes);
  });
}
krn_code KRN_CALL check(krn_dev* dev, krn_span token, uint32_t* out_verdict, krn_err* err) {
  return barrier(err, [&] { *out_verdict = dev->device->check(view(token)); });
}
krn_code KRN_CALL load(krn_dev* dev, const krn_region* region, krn_span token, krn_span body, krn_exec** out, krn_err* err) {
  return barrier(err, [&] { *out = wrap(dev, dev->device->load(open_region(region), view(token), view(body))); });
}

const krn_artifact_table kArtifactTable = {{sizeof(krn_artifact_table), 1, 0}, save, check, load};

// ---- krn.replay

krn_code KRN_CALL begin(krn_dev* dev, const krn_stream* stream, krn_err* err) {
  return barrier(err, [&] { dev->device->begin_replay(*stream); });
}
krn_code KRN_CALL end(krn_dev* dev, const krn_stream* stream, krn_replay** out, krn_err* err) {
  return barrier(err, [&] {
    auto handle = std::make_unique<krn_replay>();
    handle->device = dev->device;
    handle->replay = dev->device->end_replay(*stream);
    *out = handle.release();
  });
}
krn_code KRN_CALL launch(krn_replay* replay, const krn_stream* stream, krn_err* err) {
  return barrier(err, [&] { replay->replay->launch(*stream); });
}
void KRN_CALL release_replay(krn_replay* replay) {
  replay->replay.reset();
  delete replay;
}

const krn_replay_table kReplayTable = {{sizeof(krn_replay_table), 1, 0}, begin, end, launch, release_replay};

const krn_table* KRN_CALL get_table(const char* name, uint32_t major) {
  if (major != 1) return nullptr;
  const std::string_view wanted(name);
  if (wanted == "krn.plugin") return &kPluginTable.table;
  if (wanted == "krn.device") return &kDeviceTable.table;
  if (wanted == "krn.compile") return &kCompileTable.table;
  if (wanted == "krn.exec") return &kExecTable.table;
  if (wanted == "krn.artifact" && g_about->artifacts) return &kArtifactTable.table;
  if (wanted == "krn.replay" && g_about->replay) return &kReplayTable.table;
  return nullptr;
}

krn_guid parse_guid(std::string_view text) {
  krn_guid guid{};
  size_t digit = 0;
  for (char c : text) {
    int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (value < 0) continue;
    if (digit < 32) guid.bytes[digit / 2] = static_cast<uint8_t>(guid.bytes[digit / 2] << 4 | value);
    ++digit;
  }
  if (digit != 32) throw Error(KRN_STATUS_internal, "the plugin's guid has not 32 hex digits: " + std::string(text));
  return guid;
}

}  // namespace

void Executable::save(std::string&, std::string&) const { throw Error(KRN_STATUS_unsupported, "this executable cannot be saved"); }
std::unique_ptr<Executable> Executable::resize(const Region&) const {
  throw Error(KRN_STATUS_unsupported, "this executable is for one size");
}
uint32_t Device::check(std::string_view) const { return KRN_VERDICT_REJECT; }
std::unique_ptr<Executable> Device::load(const Region&, std::string_view, std::string_view) {
  throw Error(KRN_STATUS_unsupported, "this device loads no artifacts");
}
void Device::begin_replay(const krn_stream&) { throw Error(KRN_STATUS_unsupported, "this device records nothing"); }
std::unique_ptr<Replay> Device::end_replay(const krn_stream&) { throw Error(KRN_STATUS_unsupported, "this device records nothing"); }

krn_code entry(const About& about, MakePlugin make, const krn_offer* in, krn_answer* out, krn_err* err) noexcept {
  return barrier(err, [&] {
    const krn_offer offer = read(in);
    if (!g_about) {
      // The first host that asks is the one whose tables are used: a library serves one host per process.
      g_about = &about;
      g_make = make;
      set_host(offer);
    }
    const auto number = [](uint16_t major, uint16_t minor) { return (uint32_t{major} << 16) | minor; };
    const uint32_t ours = number(KRN_ABI_MAJOR, KRN_ABI_MINOR);
    if (ours < number(offer.abi_major_min, offer.abi_minor_min) || ours > number(offer.abi_major_max, offer.abi_minor_max))
      throw Error(KRN_STATUS_version, "this plugin speaks ABI " + std::to_string(KRN_ABI_MAJOR) + "." + std::to_string(KRN_ABI_MINOR) +
                                          ", the host another range");
    if (build_id().empty())
      throw Error(KRN_STATUS_internal, "this plugin has no build id, so code cached by another build of it would be taken for its own: "
                                       "link it with -Wl,--build-id=sha1");
    auto answer = init<krn_answer>();
    answer.abi_major = KRN_ABI_MAJOR;
    answer.abi_minor = KRN_ABI_MINOR;
    answer.guid = parse_guid(about.guid);
    answer.version = str(about.version);
    answer.build_id = str(build_id().c_str());
    answer.capabilities = about.capabilities;
    answer.get_table = get_table;
    write(out, answer);
  });
}

}  // namespace keirin::kit
