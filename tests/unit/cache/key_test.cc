// SPDX-License-Identifier: Apache-2.0
//
// The key of an artifact names everything that the artifact depends on and nothing else: a list of changes that must find another
// entry, or none, and a list of changes that must find the same one.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "core/cache/artifact.h"
#include "core/ir/bytes.h"
#include "core/ir/text.h"
#include "core/ir/verify.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

// A device that only says who it is.
class NamedDevice final : public PluginDevice {
 public:
  std::string name_ = "dev0", plugin_ = "acme", version_ = "1.0", build_ = "b1", guid_ = "g1", arch_ = "x86-64-v4", fingerprint_ = "bf16";
  HardwareItem hardware_;
  krn_device_desc desc_{};
  Device torch_;

  const std::string& plugin_name() const override { return plugin_; }
  const std::string& plugin_version() const override { return version_; }
  const std::string& plugin_build_id() const override { return build_; }
  const std::string& plugin_guid() const override { return guid_; }
  uint64_t capabilities() const override { return 0; }
  const HardwareItem& hardware() const override { return hardware_; }
  Device torch_device() const override { return torch_; }
  const std::string& name() const override { return name_; }
  const std::string& arch() const override { return arch_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  const krn_device_desc& desc() const override { return desc_; }
  Status allowed(const Hash&) override { return {}; }
  Result<ClaimResult> claim(const PluginRegion&, const PolicyOptions&) override { return none(); }
  Result<std::shared_ptr<Executable>> compile(const PluginRegion&, const PolicyOptions&, const CompileOptions&) override { return none(); }
  Result<Artifact> save(const Executable&) override { return none(); }
  Result<ArtifactVerdict> check(std::string_view) override { return none(); }
  Result<std::shared_ptr<Executable>> load(const PluginRegion&, const Artifact&) override { return none(); }
  bool can_record() const override { return false; }
  Status begin_recording(uint64_t) override { return none(); }
  Result<std::shared_ptr<Recording>> end_recording(uint64_t) override { return none(); }
  Status health() override { return {}; }
  DeviceCondition condition() override { return {}; }
  void quarantine(const Hash&, const std::string&) override {}
  void judged_wrong(const Hash&, const std::string&) override {}
  std::set<std::string> known_wrong() const override { return {}; }

 private:
  static Status none() { return Status(Code::k_unsupported, "it only has a name"); }
};

constexpr char kGraph[] = R"(graph {
  %0 = input 0 : f32[4,8] "x"
  %1 = constant 3 : f32[16,8] "w"
  %2 = constant 4 : f32[16] "b"
  %3 = linear(%0, %1, %2) : f32[4,16] unobserved @ "node 1"
  %4 = full() {sizes=[4,16], value_d=0.5, dtype=f32} : f32[4,16]
  %5 = add(%3, %4) : f32[4,16]
  %6 = relu(%5) : f32[4,16]
  %7 = sum(%6) {dims=[1], keepdim=true} : f32[4,1]
  output %6
  output %7
})";

// One change of one of the things that a key is made of.
struct Setting {
  Graph graph;
  NamedDevice device;
  PolicyOptions policy;
  CompileOptions compile;
  CacheKey key() const {
    EXPECT_TRUE(verify(graph).ok()) << verify(graph).text() << print(graph);
    const Result<RegionBytes> bytes = write_region(graph);
    EXPECT_TRUE(bytes.ok()) << bytes.status().text();
    return artifact_key(device, bytes->hash, policy, compile);
  }
};

struct Change {
  const char* name;
  std::function<void(Setting&)> make;
};

// The same text with every `from` replaced.
Change text(const char* name, std::vector<std::pair<std::string, std::string>> edits) {
  return {name, [edits = std::move(edits)](Setting& s) {
            std::string text = kGraph;
            for (const auto& [from, to] : edits) {
              ASSERT_NE(text.find(from), std::string::npos) << from;
              for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
            }
            Result<Graph> g = parse(text);
            ASSERT_TRUE(g.ok()) << g.status().text();
            s.graph = *g;
          }};
}

Setting base() {
  Setting s;
  s.graph = *parse(kGraph);
  return s;
}

class Keys : public testing::Test {
 protected:
  void SetUp() override {
    CacheOptions options;
    options.dir = folder_.path() + "/c";
    cache_ = std::make_unique<Cache>(options);
    ASSERT_TRUE(cache_->publish(EntryKind::kArtifact, base().key(), "made for the base"));
  }
  bool hits(const Change& change, std::set<std::string>* names = nullptr) {
    Setting s = base();
    change.make(s);
    const CacheKey key = s.key();
    if (names) {
      EXPECT_TRUE(names->insert(key.hex()).second) << change.name << " has the key of another change";
    }
    return cache_->read(EntryKind::kArtifact, key).has_value();
  }

  test::TempFolder folder_;
  std::unique_ptr<Cache> cache_;
};

TEST_F(Keys, WhatMustMiss) {
  const std::vector<Change> changes = {
      text("another batch", {{"[4,", "[5,"}}),
      text("another width", {{"16", "32"}}),
      text("a size of one", {{"[4,", "[1,"}}),
      text("another depth", {{",8]", ",9]"}}),
      text("column-major input", {{"f32[4,8] \"x\"", "f32[4,8]{1,4} \"x\""}}),
      text("column-major weight", {{"f32[16,8] \"w\"", "f32[16,8]{1,16} \"w\""}}),
      text("an input with padded rows", {{"f32[4,8] \"x\"", "f32[4,8]{16,1} \"x\""}}),
      text("a column-major output", {{"%6 = relu(%5) : f32[4,16]", "%6 = relu(%5) : f32[4,16]{1,4}"}}),
      text("another dtype", {{"f32", "bf16"}}),
      text("double", {{"f32", "f64"}}),
      text("another scalar operator", {{"relu", "tanh"}}),
      text("another binary operator", {{"add(", "sub("}}),
      text("another reduction", {{"sum(", "amax("}}),
      text("operands the other way round", {{"add(%3, %4)", "add(%4, %3)"}}),
      text("no bias", {{"linear(%0, %1, %2)", "linear(%0, %1, _)"},
                       {"  %2 = constant 4 : f32[16] \"b\"\n", ""},
                       {"%3", "%a"},
                       {"%4", "%b"},
                       {"%5", "%c"},
                       {"%6", "%d"},
                       {"%7", "%e"}}),
      text("another literal", {{"value_d=0.5", "value_d=0.25"}}),
      text("the literal's other sign", {{"value_d=0.5", "value_d=-0.5"}}),
      text("another axis", {{"dims=[1], keepdim=true} : f32[4,1]", "dims=[0], keepdim=true} : f32[1,16]"}}),
      text("the axis dropped", {{"keepdim=true} : f32[4,1]", "keepdim=false} : f32[4]"}}),
      text("a rounding that is observed", {{"f32", "f16"}, {" unobserved", ""}}),
      text("outputs the other way round", {{"output %6\n  output %7", "output %7\n  output %6"}}),
      text("one output less", {{"  output %6\n", ""}}),
      text("one output twice", {{"output %6\n", "output %6\n  output %6\n"}}),
      text("a weight that is an input", {{"constant 3 : f32[16,8]", "input 1 : f32[16,8]"}}),
      text("a weight that is state", {{"constant 4", "state 4"}}),
      text("an input that is written",
           {{"  output %7\n", "  output %7\n  output %8 updates %0\n"}, {"  %7 = sum", "  %8 = neg(%0) : f32[4,8]\n  %7 = sum"}}),
      text("one operator more", {{"output %7", "%8 = neg(%7) : f32[4,1]\n  output %8"}}),
      {"the oracle's numerics", [](Setting& s) { s.policy.numerics = KRN_NUMERICS_STRICT; }},
      {"fast numerics", [](Setting& s) { s.policy.numerics = KRN_NUMERICS_FAST; }},
      {"determinism", [](Setting& s) { s.policy.deterministic = true; }},
      {"a plan that is recorded", [](Setting& s) { s.policy.replay = true; }},
      {"a memory limit", [](Setting& s) { s.policy.memory_limit_bytes = 1 << 20; }},
      {"convolutions in TF32", [](Setting& s) { s.policy.tf32_convolutions = true; }},
      {"products in TF32", [](Setting& s) { s.policy.tf32_products = true; }},
      {"recurrent layers in TF32", [](Setting& s) { s.policy.tf32_recurrent = true; }},
      {"another memory limit", [](Setting& s) { s.policy.memory_limit_bytes = 1 << 21; }},
      {"the plugin's second candidate", [](Setting& s) { s.compile.candidate = 1; }},
      {"its third", [](Setting& s) { s.compile.candidate = 2; }},
      {"time to try", [](Setting& s) { s.compile.tune_budget = std::chrono::seconds(1); }},
      {"another level", [](Setting& s) { s.compile.level = 2; }},
      {"another plugin", [](Setting& s) { s.device.guid_ = "g2"; }},
      {"another version of the plugin", [](Setting& s) { s.device.version_ = "1.1"; }},
      {"another build of the same version", [](Setting& s) { s.device.build_ = "b2"; }},
      {"another architecture", [](Setting& s) { s.device.arch_ = "x86-64-v3"; }},
      {"another fingerprint of the device", [](Setting& s) { s.device.fingerprint_ = "none"; }},
      {"a build that ends like a version", [](Setting& s) { s.device.version_ = "1.0b1", s.device.build_ = ""; }},
      {"a value with the next field in it", [](Setting& s) { s.device.arch_ = "x86-64-v4\ndevice_fingerprint=bf16"; }},
  };
  std::set<std::string> names{base().key().hex()};
  for (const Change& change : changes) EXPECT_FALSE(hits(change, &names)) << change.name;
  std::printf("%zu changes that must miss\n", changes.size());
  EXPECT_GE(changes.size(), 30u);
}

TEST_F(Keys, WhatMustHit) {
  const std::vector<Change> changes = {
      {"nothing", [](Setting&) {}},
      text("another name of an input", {{"\"x\"", "\"tokens\""}}),
      text("another name of a weight", {{"\"w\"", "\"layers.7.weight\""}}),
      text("no names at all", {{" \"x\"", ""}, {" \"w\"", ""}, {" \"b\"", ""}}),
      text("another place in the source", {{"node 1", "model.py:88"}}),
      text("another checkpoint: other weights in the same places", {{"constant 3", "constant 30"}, {"constant 4", "constant 31"}}),
      text("another number of the input", {{"input 0", "input 5"}}),
      text("operators in another order",
           {{"  %4 = full() {sizes=[4,16], value_d=0.5, dtype=f32} : f32[4,16]\n", ""},
            {"  %3 = linear", "  %4 = full() {sizes=[4,16], value_d=0.5, dtype=f32} : f32[4,16]\n  %3 = linear"}}),
      text("other numbers of the values", {{"%3", "%y"}, {"%4", "%half"}, {"%5", "%s"}, {"%6", "%r"}, {"%7", "%t"}}),
      text("an operator that nobody reads", {{"  output %6", "  %8 = exp(%6) : f32[4,16]\n  output %6"}}),
      text("an input that nobody reads", {{"  %1 = constant 3", "  %9 = input 1 : i64[3]\n  %1 = constant 3"}}),
      text("a weight that nobody reads", {{"  %1 = constant 3", "  %9 = constant 9 : f32[3]\n  %1 = constant 3"}}),
      {"another name of the device", [](Setting& s) { s.device.name_ = "dev1"; }},
      {"another name of the plugin", [](Setting& s) { s.device.plugin_ = "acme2"; }},
      {"the second device of a kind",
       [](Setting& s) {
         s.device.hardware_.uid = "pci:2", s.device.torch_ = {Device::kCuda, 1};
       }},
      {"another prior", [](Setting& s) { s.device.desc_.prior_score = 9; }},
      {"the graph read back from its bytes", [](Setting& s) { s.graph = *read_graph(write_region(s.graph)->bytes); }},
      {"the graph read back from its text", [](Setting& s) { s.graph = *parse(print(s.graph)); }},
  };
  for (const Change& change : changes) EXPECT_TRUE(hits(change)) << change.name;
  std::printf("%zu changes that must hit\n", changes.size());
  EXPECT_GE(changes.size(), 12u);
}

}  // namespace
}  // namespace keirin
