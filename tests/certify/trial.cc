// SPDX-License-Identifier: Apache-2.0
#include "tests/certify/trial.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "core/host/find/manifest.h"

namespace keirin::certify {
namespace {

template <class T>
bool copy_table(const krn_answer& answer, const char* name, T& to) {
  const krn_table* const table = answer.get_table(name, 1);
  if (!table) return false;
  expect(table->major == 1, "asked for major 1 of {}, it gives major {}", name, table->major);
  expect(table->size >= sizeof(krn_table), "the table {} says that it has {} bytes, less than its head", name, table->size);
  __builtin_memcpy(static_cast<void*>(&to), table, std::min<size_t>(table->size, sizeof(T)));
  return true;
}

}  // namespace

std::string code_name(krn_code code) {
  switch (code) {
#define KRN_STATUS(id, name, text) \
  case id: return #name;
#include "abi/status.def"
#undef KRN_STATUS
    default: return fmt::format("the unknown code {}", code);
  }
}

Trial::Trial(Request request, std::function<void(const char*)> say)
    : hardware(find_hardware()), request_(std::move(request)), say_(std::move(say)) {}

krn_code Trial::call(const char* name, const std::function<krn_code(krn_err*)>& f) {
  const char* const outer = std::exchange(in_call_, name);
  say_(name);
  auto err = std::make_unique<krn_err>();
  krn_code code = KRN_STATUS_internal;
  try {
    code = f(err.get());
  } catch (const Failed&) {  // of a step up, taken on the way to the call
    throw;
  } catch (const NotOffered&) {
    throw;
  } catch (const NotRun&) {
    throw;
  } catch (...) {
    fail("{} threw an exception across the boundary", name);
  }
  text.assign(err->text, err->size);
  in_call_ = outer;
  if (outer) say_(outer);  // this was a step up on the way to it
  if (after_call) after_call(name);
  return code;
}

void Trial::must(const char* name, const std::function<krn_code(krn_err*)>& f) {
  const krn_code code = call(name, f);
  if (code != KRN_STATUS_ok) fail("{} answers {}: {}", name, code_name(code), text.empty() ? "no text" : text);
}

void* Trial::load() {
  if (library_) return library_;
  (void)call("dlopen", [&](krn_err*) {
    library_ = ::dlopen(request_.library.c_str(), RTLD_NOW | RTLD_LOCAL);
    return KRN_STATUS_ok;
  });
  if (!library_) fail("the library cannot be loaded: {}", ::dlerror());
  return library_;
}

Trial::Entry Trial::entry() {
  void* const symbol = ::dlsym(load(), "krn_plugin_entry");
  expect(symbol != nullptr, "the library has no symbol krn_plugin_entry");
  return reinterpret_cast<Entry>(symbol);
}

const krn_answer& Trial::answer() {
  if (answer_) return *answer_;
  const Entry function = entry();
  const krn_offer offer = host.offer();
  krn_answer got = make_struct<krn_answer>();
  must("krn_plugin_entry", [&](krn_err* err) { return function(&offer, &got, err); });
  expect(got.abi_major == KRN_ABI_MAJOR && got.abi_minor == KRN_ABI_MINOR, "offered ABI {}.{}, it chooses {}.{}", KRN_ABI_MAJOR,
         KRN_ABI_MINOR, got.abi_major, got.abi_minor);
  expect(got.sanitizer == offer.sanitizer, "it is built with another sanitizer than this host");
  expect(got.get_table != nullptr, "the answer has no get_table");
  return answer_.emplace(got);
}

void Trial::read_tables() {
  if (has_tables_) return;
  const krn_answer& a = answer();
  expect(copy_table(a, "krn.plugin", plugin_), "the table krn.plugin is missing");
  expect(copy_table(a, "krn.device", device_), "the table krn.device is missing");
  expect(copy_table(a, "krn.compile", compile_), "the table krn.compile is missing");
  expect(copy_table(a, "krn.exec", exec_), "the table krn.exec is missing");
  const struct {
    const char* name;
    bool present;
  } rows[] = {{"krn.plugin.initialize", plugin_.initialize != nullptr}, {"krn.plugin.shutdown", plugin_.shutdown != nullptr},
              {"krn.device.enumerate", device_.enumerate != nullptr},   {"krn.device.describe", device_.describe != nullptr},
              {"krn.compile.claim", compile_.claim != nullptr},         {"krn.compile.compile", compile_.compile != nullptr},
              {"krn.compile.release", compile_.release != nullptr},     {"krn.exec.info", exec_.info != nullptr},
              {"krn.exec.needs", exec_.needs != nullptr},               {"krn.exec.run", exec_.run != nullptr}};
  for (const auto& row : rows) expect(row.present, "the function {} is missing", row.name);
  (void)copy_table(a, "krn.artifact", artifact_);
  (void)copy_table(a, "krn.replay", replay_);
  has_tables_ = true;
}

const krn_artifact_table& Trial::artifact() {
  read_tables();
  if (!artifact_.save || !artifact_.load) throw NotOffered{"no krn.artifact: it compiles at every start, and in the host's process"};
  return artifact_;
}

const krn_replay_table& Trial::replay() {
  read_tables();
  if (!replay_.begin || !replay_.end || !replay_.launch || !replay_.release) throw NotOffered{"no krn.replay"};
  return replay_;
}

krn_plugin* Trial::initialize_again() {
  const auto config = make_struct<krn_config>();
  handle_ = nullptr, dev_ = nullptr, opened_ = false;
  const krn_code code = call("krn.plugin.initialize", [&](krn_err* err) { return plugin().initialize(&config, &handle_, err); });
  if (code == KRN_STATUS_unsupported && !text.empty()) throw NotRun{"it does not work on this machine: " + text};
  expect(code == KRN_STATUS_ok, "krn.plugin.initialize answers {}: {}", code_name(code), text);
  expect(handle_ != nullptr, "krn.plugin.initialize answers ok and gives no plugin");
  return handle_;
}

krn_plugin* Trial::handle() { return handle_ ? handle_ : initialize_again(); }

std::vector<Found> Trial::enumerate(const std::vector<krn_hw>& items, uint32_t stride) {
  struct Emitted {
    std::vector<Found> found;
    std::string mistake;
    size_t count;
  } out{{}, {}, items.size()};
  std::vector<char> memory(items.size() * stride + 1, '\x5a');
  for (size_t i = 0; i < items.size(); ++i) __builtin_memcpy(memory.data() + i * stride, &items[i], sizeof(krn_hw));
  const krn_array array{memory.data(), static_cast<uint32_t>(items.size()), stride};
  krn_plugin* const to = handle();
  must("krn.device.enumerate", [&](krn_err* err) {
    return devices().enumerate(to, &array, [](void* ctx, uint32_t item, krn_dev* dev, krn_str why_not) {
      auto& into = *static_cast<Emitted*>(ctx);
      if (item >= into.count) into.mistake = fmt::format("it answers for item {} of {}", item, into.count);
      for (const Found& f : into.found)
        if (f.item == item) into.mistake = fmt::format("it answers twice for item {}", item);
      into.found.push_back({item, dev, text_of(why_not)});
    }, &out, err);
  });
  expect(out.mistake.empty(), "krn.device.enumerate: {}", out.mistake);
  expect(out.found.size() == items.size(), "krn.device.enumerate answers for {} of {} items", out.found.size(), items.size());
  return out.found;
}

std::vector<Found> Trial::enumerate() { return enumerate(hardware_views(hardware)); }

krn_device_desc Trial::describe(krn_dev* dev) {
  auto desc = make_struct<krn_device_desc>();
  must("krn.device.describe", [&](krn_err* err) { return devices().describe(dev, &desc, err); });
  return desc;
}

void Trial::start_driver() {
  for (const HardwareItem& item : hardware)
    if (item.uid == request_.device && item.torch_device && item.torch_device->kind != Device::kCpu) Gpu::use(item);
}

krn_dev* Trial::device() {
  if (dev_) return dev_;
  std::string why;
  for (const Found& f : enumerate()) {
    const HardwareItem& item = hardware[f.item];
    why += fmt::format("; {}: {}", item.uid, f.device ? "a device, where LibTorch, which would give it memory, drives none" : f.why_not);
    if (!f.device || !item.torch_device) continue;
    if (item.torch_device->kind != Device::kCpu) Gpu::use(item);
    uid = item.uid;
    return dev_ = f.device;
  }
  throw NotRun{"it drives no device of this machine" + why};
}

krn_dev* Trial::opened() {
  krn_dev* const dev = device();
  if (opened_) return dev;
  if (devices().open) must("krn.device.open", [&](krn_err* err) { return devices().open(dev, err); });
  opened_ = true;
  return dev;
}

Said Trial::claim(const krn_region& region, const krn_policy& policy) {
  struct Heard {
    Said said;
    std::string mistake;
  } heard;
  const krn_claim_sink sink{
      [](void* ctx, const krn_claim* claim) {
        auto& into = *static_cast<Heard*>(ctx);
        const auto c = read_struct(claim);
        if (!c.nodes || c.num_nodes == 0) into.mistake = "a claim without nodes";
        else into.said.claims.push_back({{c.nodes, c.nodes + c.num_nodes}, c.num_kernels, c.cost_ns, c.confidence});
      },
      [](void* ctx, const krn_refusal* refusal) {
        const auto r = read_struct(refusal);
        static_cast<Heard*>(ctx)->said.refusals.push_back({r.node, text_of(r.why)});
      },
      &heard};
  krn_dev* const dev = opened();
  must("krn.compile.claim", [&](krn_err* err) { return compile().claim(dev, &region, &policy, &sink, err); });
  expect(heard.mistake.empty(), "krn.compile.claim: {}", heard.mistake);
  return heard.said;
}

bool Trial::claims(const Region& region) { return claim(region).all_of(region.bytes.nodes.size()); }

const Region& Trial::claimed(Region region, const char* what) {
  if (!claims(region)) throw NotOffered{fmt::format("{} is not claimed", what)};
  return *regions_.emplace_back(std::make_unique<Region>(std::move(region)));
}

OpCode Trial::row() {
  if (row_ != OpCode::kOpaque) return row_;
  for (const OpCode row : {OpCode::k_relu, OpCode::k_add, OpCode::k_mul, OpCode::k_neg})
    if (claims(region_of(row, {8, 16}))) return row_ = row;
  throw NotOffered{"none of relu, add, mul and neg on f32 is claimed by itself, so that there is no answer to compare"};
}

const Region& Trial::base() {
  if (!base_) base_ = &sized({8, 16});
  return *base_;
}

krn_exec* Trial::make(const krn_region& region, const krn_policy& policy, const krn_options& options) {
  krn_exec* made = nullptr;
  krn_dev* const dev = opened();
  must("krn.compile.compile", [&](krn_err* err) { return compile().compile(dev, &region, &policy, &options, &made, err); });
  expect(made != nullptr, "krn.compile.compile answers ok and gives no executable");
  return made;
}

void Trial::release(krn_exec* exec) {
  (void)call("krn.compile.release", [&](krn_err*) {
    compile().release(exec);
    return KRN_STATUS_ok;
  });
}

krn_exec_info Trial::info(krn_exec* e) {
  auto out = make_struct<krn_exec_info>();
  must("krn.exec.info", [&](krn_err* err) { return exec().info(e, &out, err); });
  return out;
}

krn_needs Trial::needs(krn_exec* e) {
  auto out = make_struct<krn_needs>();
  must("krn.exec.needs", [&](krn_err* err) { return exec().needs(e, nullptr, 0, &out, err); });
  return out;
}

void Trial::run(krn_exec* e, const krn_run& run) {
  must("krn.exec.run", [&](krn_err* err) { return exec().run(e, &run, err); });
}

void Trial::try_once(const Region& region, Place inputs_at, Place outputs_at) {
  krn_exec* const made = make(region);
  Arguments arguments(region, needs(made), inputs_at, outputs_at);
  arguments.feed(region.row, 1);
  run(made, arguments.ready());
  arguments.expect_right();
  release(made);
}

void Trial::shut_down() {
  if (dev_ && opened_ && devices().close) {
    (void)call("krn.device.close", [&](krn_err*) {
      devices().close(dev_);
      return KRN_STATUS_ok;
    });
  }
  krn_plugin* const gone = handle();
  must("krn.plugin.shutdown", [&](krn_err* err) { return plugin().shutdown(gone, err); });
  handle_ = nullptr, dev_ = nullptr, opened_ = false;
}

krn_policy Trial::policy() { return make_struct<krn_policy>(); }
krn_options Trial::options() {
  auto out = make_struct<krn_options>();
  out.level = 1;
  return out;
}

}  // namespace keirin::certify
