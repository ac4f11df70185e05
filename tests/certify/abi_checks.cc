// SPDX-License-Identifier: Apache-2.0
//
// B: the entry, the tables, and structs of other sizes than this version's. A struct that ends earlier lies at the end of its page, so that
// reading past what the host filled is a crash with this check's name.
#include <algorithm>
#include <cstring>

#include "core/host/find/manifest.h"
#include "tests/certify/trial.h"

namespace keirin::certify {
namespace {

constexpr size_t kMore = 64;  // bytes that a later version might have added
constexpr char kGarbage = '\x5a';

// A struct as a host of a later version hands it over: longer, and what is new is not zero.
template <class T>
class Longer {
 public:
  explicit Longer(const T& value) : bytes_(sizeof(T) + kMore, kGarbage) {
    std::memcpy(bytes_.data(), &value, sizeof value);
    reinterpret_cast<krn_hdr*>(bytes_.data())->size = static_cast<uint32_t>(bytes_.size());
  }
  T* get() { return reinterpret_cast<T*>(bytes_.data()); }
  bool rest_intact() const { return std::all_of(bytes_.begin() + sizeof(T), bytes_.end(), [](char c) { return c == kGarbage; }); }

 private:
  std::vector<char> bytes_;
};

// As a host of an earlier version does: it ends before `end`, and so does the memory.
template <class T>
class Shorter {
 public:
  Shorter(T value, size_t end) : memory_((value.hdr.size = static_cast<uint32_t>(end), &value), end) {}
  T* get() { return static_cast<T*>(memory_.data()); }

 private:
  AtPageEnd memory_;
};

// For results: known bytes behind what may be written.
template <class T>
void expect_written_to(size_t end, const char* what, const std::function<void(T*)>& ask) {
  std::vector<char> bytes(sizeof(T), kGarbage);
  auto* const out = reinterpret_cast<T*>(bytes.data());
  std::memset(bytes.data(), 0, end);
  out->hdr.size = static_cast<uint32_t>(end);
  ask(out);
  expect(std::all_of(bytes.begin() + static_cast<int64_t>(end), bytes.end(), [](char c) { return c == kGarbage; }),
         "{} writes past the {} bytes that the host's struct has", what, end);
  expect(out->hdr.size == end, "{} changes the size that the host stated", what);
}

void enters(Trial& t) { t.answer(); }
void has_tables(Trial& t) { t.read_tables(); }

void is_itself(Trial& t) {
  const krn_answer& a = t.answer();
  expect(guid_text(a.guid) == t.request().guid, "the manifest has the guid {}, the library {}", t.request().guid, guid_text(a.guid));
  expect(text_of(a.version) == t.request().version, "the manifest has the version {}, the library {}", t.request().version,
         text_of(a.version));
}

void has_build_id(Trial& t) {
  expect(t.answer().build_id.size > 0, "the answer's build_id is empty: other builds' code is taken for its own");
}

void unknown_tables(Trial& t) {
  expect(!t.answer().get_table("krn.of_a_later_version", 1), "it gives a table under a name that nobody has defined");
}

void other_majors(Trial& t) {
  for (const char* name : {"krn.plugin", "krn.device", "krn.compile", "krn.exec"}) {
    const krn_table* const table = t.answer().get_table(name, 2);
    expect(!table || table->major == 2, "asked for major 2 of {}, it gives major {}", name, table ? table->major : 0);
  }
}

void other_abi(Trial& t) {
  krn_offer offer = t.host.offer();
  offer.abi_major_min = offer.abi_major_max = 9;
  auto answer = make_struct<krn_answer>();
  const Trial::Entry entry = t.entry();
  const krn_code code = t.call("krn_plugin_entry", [&](krn_err* err) { return entry(&offer, &answer, err); });
  expect(code == KRN_STATUS_version, "offered ABI 9.x alone, it answers {}, not version", code_name(code));
  expect(!answer.get_table, "it refuses and fills the answer all the same");
}

void short_results(Trial& t) {
  krn_dev* const dev = t.device();
  expect_written_to<krn_device_desc>(offsetof(krn_device_desc, memory_bytes), "krn.device.describe", [&](krn_device_desc* out) {
    t.must("krn.device.describe", [&](krn_err* err) { return t.devices().describe(dev, out, err); });
  });
}

void short_exec_results(Trial& t) {
  krn_exec* const exec = t.make(t.base());
  expect_written_to<krn_exec_info>(offsetof(krn_exec_info, code_bytes), "krn.exec.info", [&](krn_exec_info* out) {
    t.must("krn.exec.info", [&](krn_err* err) { return t.exec().info(exec, out, err); });
  });
  expect_written_to<krn_needs>(offsetof(krn_needs, workspace_align), "krn.exec.needs", [&](krn_needs* out) {
    t.must("krn.exec.needs", [&](krn_err* err) { return t.exec().needs(exec, nullptr, 0, out, err); });
  });
}

void long_results(Trial& t) {
  krn_exec* const exec = t.make(t.base());
  Longer<krn_device_desc> desc(make_struct<krn_device_desc>());
  Longer<krn_exec_info> info(make_struct<krn_exec_info>());
  Longer<krn_needs> needs(make_struct<krn_needs>());
  t.must("krn.device.describe", [&](krn_err* err) { return t.devices().describe(t.device(), desc.get(), err); });
  t.must("krn.exec.info", [&](krn_err* err) { return t.exec().info(exec, info.get(), err); });
  t.must("krn.exec.needs", [&](krn_err* err) { return t.exec().needs(exec, nullptr, 0, needs.get(), err); });
  expect(desc.rest_intact() && info.rest_intact() && needs.rest_intact(), "it writes to fields of a struct that it cannot know");
}

void short_arguments(Trial& t) {
  const Region& region = t.base();
  Shorter<krn_policy> policy(Trial::policy(), offsetof(krn_policy, memory_limit_bytes));
  Shorter<krn_options> options(Trial::options(), offsetof(krn_options, level));
  Shorter<krn_region> view(region.view(), offsetof(krn_region, consts));
  t.release(t.make(*view.get(), *policy.get(), *options.get()));
}

void long_arguments(Trial& t) {
  const Region& region = t.base();
  Longer<krn_policy> policy(Trial::policy());
  Longer<krn_options> options(Trial::options());
  Longer<krn_region> view(region.view());
  expect(t.claim(*view.get(), *policy.get()).all_of(region.bytes.nodes.size()), "a region whose struct is longer is not claimed any more");
  krn_exec* const exec = t.make(*view.get(), *policy.get(), *options.get());
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  Longer<krn_run> run(arguments.ready());
  t.run(exec, *run.get());
  arguments.expect_right();
}

krn_hdr unknown_entry(uint16_t flags) { return {sizeof(krn_hdr), 4711, flags, nullptr}; }

void unknown_entries(Trial& t) {
  const Region& region = t.base();
  const krn_hdr unknown = unknown_entry(0);
  krn_region view = region.view();
  krn_policy policy = Trial::policy();
  krn_options options = Trial::options();
  view.hdr.next = policy.hdr.next = options.hdr.next = &unknown;
  expect(t.claim(view, policy).all_of(region.bytes.nodes.size()), "a region with an entry chained to it that nobody must understand is not "
         "claimed any more");
  krn_exec* const exec = t.make(view, policy, options);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  arguments.run.hdr.next = &unknown;
  t.run(exec, arguments.ready());
  arguments.expect_right();
}

void must_understand(Trial& t) {
  const Region& region = t.base();
  const krn_hdr unknown = unknown_entry(KRN_HDR_MUST_UNDERSTAND);
  for (int which = 0; which < 3; ++which) {
    krn_region view = region.view();
    krn_policy policy = Trial::policy();
    krn_options options = Trial::options();
    (which == 0 ? view.hdr : which == 1 ? policy.hdr : options.hdr).next = &unknown;
    krn_exec* made = nullptr;
    const krn_code code = t.call("krn.compile.compile", [&](krn_err* err) {
      return t.compile().compile(t.opened(), &view, &policy, &options, &made, err);
    });
    expect(code == KRN_STATUS_version, "{} with an entry that must be understood: compile answers {}, not version",
           which == 0 ? "a region" : which == 1 ? "a policy" : "options", code_name(code));
  }
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  arguments.run.hdr.next = &unknown;
  const krn_code code = t.call("krn.exec.run", [&](krn_err* err) { return t.exec().run(exec, &arguments.run, err); });
  expect(code == KRN_STATUS_version, "a run with an entry that must be understood answers {}, not version", code_name(code));
}

// A region that no reader takes: the call that has to fail.
struct Broken {
  std::vector<uint8_t> bytes;
  krn_region view;
  explicit Broken(const Region& region) : bytes(region.bytes.bytes), view(region.view()) {
    bytes[0] ^= 1;
    view.graph = {bytes.data(), bytes.size()};
  }
  krn_code compile(Trial& t, krn_exec** out, bool with_err = true) {
    const krn_policy policy = Trial::policy();
    const krn_options options = Trial::options();
    krn_dev* const dev = t.opened();
    return t.call("krn.compile.compile",
                  [&](krn_err* err) { return t.compile().compile(dev, &view, &policy, &options, out, with_err ? err : nullptr); });
  }
};

void no_error_sink(Trial& t) {
  krn_exec* made = nullptr;
  expect(Broken(t.base()).compile(t, &made, false) != KRN_STATUS_ok, "a region without its magic number is compiled");
}

void results_untouched(Trial& t) {
  auto* const before = reinterpret_cast<krn_exec*>(0x5a5a);
  krn_exec* made = before;
  (void)Broken(t.base()).compile(t, &made);
  expect(made == before, "a compile that fails writes to its result");
}

void known_codes(Trial& t) {
  krn_exec* made = nullptr;
  const krn_code code = Broken(t.base()).compile(t, &made);
  expect(!code_name(code).starts_with("the unknown"), "a failed compile answers {}, which abi/status.def does not have", code_name(code));
}

void error_texts(Trial& t) {
  krn_exec* made = nullptr;
  (void)Broken(t.base()).compile(t, &made);
  expect(!t.text.empty(), "a compile that fails says nothing: krn.host.core.err_set was not called");
}

void strides(Trial& t) {
  std::vector<krn_hw> items = hardware_views(t.hardware);
  krn_hw other = items[0];
  other.uid = str_of("pci:ffff:ff:00.0");
  other.vendor_id = 0xdead;
  other.torch_type = -1;
  items.insert(items.begin(), other);
  const std::vector<Found> dense = t.enumerate(items), wide = t.enumerate(items, sizeof(krn_hw) + kMore);
  for (size_t i = 0; i < dense.size(); ++i)
    expect(!dense[i].device == !wide[i].device && dense[i].item == wide[i].item,
           "of the same hardware, {} bytes further apart, it finds other devices", kMore);
}

void without_tables(Trial& t) {
  t.host.missing = {"krn.host.threads", "krn.host.consts", "krn.host.memory"};
  t.try_once(t.base());
}

void short_host_table(Trial& t) {
  krn_host_core older;
  std::memcpy(&older, t.host.core, sizeof older);
  older.table.size = offsetof(krn_host_core, cancelled);
  const AtPageEnd memory(&older, older.table.size);
  t.host.core = static_cast<const krn_table*>(memory.data());
  t.try_once(t.base());
  krn_exec* made = nullptr;
  (void)Broken(t.base()).compile(t, &made);
}

constexpr Check kChecks[] = {
    {"B/entry", "answers the offer of this host's version", Rung::kLoads, enters, Rung::kEntry},
    {"B/tables", "has the tables and functions that are required", Rung::kEntry, has_tables, Rung::kTables},
    {"B/is_itself", "has the guid and the version of its manifest", Rung::kEntry, is_itself},
    {"B/build_id", "says which build it is", Rung::kEntry, has_build_id},
    {"B/unknown_tables", "has no table of a name that it does not know", Rung::kEntry, unknown_tables},
    {"B/other_majors", "gives no table of another major than was asked for", Rung::kEntry, other_majors},
    {"B/other_abi", "refuses a range of versions that it does not speak", Rung::kEntry, other_abi},
    {"B/short_results", "writes no further than the host's struct of a device reaches", Rung::kDescribed, short_results},
    {"B/short_exec_results", "writes no further than the host's structs of an executable reach", Rung::kCompiled, short_exec_results},
    {"B/long_results", "fills structs that are longer than it knows", Rung::kCompiled, long_results},
    {"B/short_arguments", "reads no further than the host's structs reach", Rung::kCompiled, short_arguments},
    {"B/long_arguments", "takes structs that are longer than it knows", Rung::kRan, long_arguments},
    {"B/unknown_entries", "skips chained entries that it does not know", Rung::kRan, unknown_entries},
    {"B/must_understand", "refuses chained entries that it must understand and does not", Rung::kCompiled, must_understand},
    {"B/no_error_sink", "fails without a sink for the error", Rung::kCompiled, no_error_sink},
    {"B/results_untouched", "leaves results alone when it fails", Rung::kCompiled, results_untouched},
    {"B/known_codes", "fails with a code of abi/status.def", Rung::kCompiled, known_codes},
    {"B/error_texts", "says why it fails", Rung::kCompiled, error_texts},
    {"B/strides", "walks arrays by the stride that is stated", Rung::kEnumerated, strides},
    {"B/without_tables", "works without the host's optional tables", Rung::kRan, without_tables},
    {"B/short_host_table", "calls no function that the host's table is too short for", Rung::kRan, short_host_table},
};

}  // namespace

std::span<const Check> abi_checks() { return kChecks; }

}  // namespace keirin::certify
