// SPDX-License-Identifier: Apache-2.0
#include "core/host/call/session.h"

#include <cmath>

namespace keirin {
namespace {

// What enumerate's callbacks collect. Mistakes are kept and judged afterwards: a callback cannot refuse.
struct Emitted {
  std::vector<FoundDevice> devices;
  std::vector<int> times;
  std::string mistake;
};

void KRN_CALL emit_device(void* ctx, uint32_t hw_index, krn_dev* dev, krn_str why_not) {
  auto* out = static_cast<Emitted*>(ctx);
  if (hw_index >= out->devices.size()) {
    out->mistake = "it answered for hardware item " + std::to_string(hw_index) + " of " + std::to_string(out->devices.size());
    return;
  }
  if (out->times[hw_index]++ > 0) {
    out->mistake = "it answered twice for hardware item " + std::to_string(hw_index);
    return;
  }
  out->devices[hw_index].dev = dev;
  out->devices[hw_index].why_not = text_of(why_not);
}

}  // namespace

Status PluginSession::confirm(const Identity& identity) const {
  const std::string guid = guid_text(loaded_.guid);
  if (guid != identity.guid_text)
    return Status(Code::k_invalid_input,
                  Message{"guid mismatch: the manifest says " + identity.guid_text + ", the library says " + guid,
                          identity.library, {}, "install manifest and library of one build"});
  if (loaded_.version != identity.version)
    return Status(Code::k_version,
                  Message{"version mismatch: the manifest says " + identity.version + ", the library says " + loaded_.version,
                          identity.library, {}, "install manifest and library of one build"});
  return {};
}

Status PluginSession::enumerate(const std::vector<HardwareItem>& hardware) {
  Emitted emitted;
  emitted.devices.resize(hardware.size());
  emitted.times.resize(hardware.size());
  const std::vector<krn_hw> views = hardware_views(hardware);
  const krn_array array{views.data(), static_cast<uint32_t>(views.size()), sizeof(krn_hw)};
  KRN_TRY(call_plugin(library_ + ": krn.device.enumerate", [&](krn_err* err) {
    return loaded_.device.enumerate(plugin_, &array, emit_device, &emitted, err);
  }));
  if (!emitted.mistake.empty())
    return Status(Code::k_internal, Message{emitted.mistake, library_ + ": krn.device.enumerate", {}, "report it to its publisher"});
  devices_ = std::move(emitted.devices);
  for (FoundDevice& d : devices_)
    if (!d.dev && d.why_not.empty()) d.why_not = "the plugin gave no reason";
  return {};
}

Status PluginSession::describe() {
  for (FoundDevice& d : devices_) {
    if (!d.dev) continue;
    krn_device_desc desc = make_struct<krn_device_desc>();
    KRN_TRY(call_plugin(library_ + ": krn.device.describe",
                        [&](krn_err* err) { return loaded_.device.describe(d.dev, &desc, err); }));
    if (desc.arch.size == 0 || desc.name.size == 0)
      return Status(Code::k_internal, Message{"a device has no name or no arch, which are part of every cache key",
                                              library_ + ": krn.device.describe", {}, "report it to its publisher"});
    if (!std::isfinite(desc.bytes_per_s) || desc.bytes_per_s < 0) desc.bytes_per_s = 0;
    if (!std::isfinite(desc.launch_ns) || desc.launch_ns < 0) desc.launch_ns = 0;
    d.desc = desc;
  }
  return {};
}

Result<std::unique_ptr<PluginSession>> PluginSession::start(const Identity& identity, krn_host* host, uint32_t role,
                                                            const std::vector<HardwareItem>& hardware,
                                                            const std::function<void(const char*)>& on_stage) {
  std::unique_ptr<PluginSession> session(new PluginSession);
  session->library_ = identity.library;
  on_stage("load");
  KRN_TRY_LET(PluginLibrary* const library, open_library(identity.library));
  on_stage("entry");
  KRN_TRY_LET(session->loaded_, negotiate(*library, host, role));
  KRN_TRY(session->confirm(identity));
  on_stage("initialize");
  const krn_config config = make_struct<krn_config>();
  krn_plugin* plugin = nullptr;
  KRN_TRY(call_plugin(identity.library + ": krn.plugin.initialize",
                      [&](krn_err* err) { return session->loaded_.plugin.initialize(&config, &plugin, err); }));
  session->plugin_ = plugin;
  on_stage("enumerate");
  KRN_TRY(session->enumerate(hardware));
  on_stage("describe");
  KRN_TRY(session->describe());
  return session;
}

Status PluginSession::shutdown() {
  krn_plugin* const plugin = std::exchange(plugin_, nullptr);
  if (!plugin) return {};
  return call_plugin(library_ + ": krn.plugin.shutdown", [&](krn_err* err) { return loaded_.plugin.shutdown(plugin, err); });
}

}  // namespace keirin
