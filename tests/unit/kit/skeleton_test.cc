// SPDX-License-Identifier: Apache-2.0
//
// Loads the skeleton plugin as a vendor would have built it, out of tree, and takes it through a life: entry, enumerate, claim,
// compile, run, release, shutdown. The path of the library is the program's first argument.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "abi/graph.h"
#include "abi/plugin.h"
#include "tests/unit/codegen/region_builder.h"

namespace keirin::codegen::test {
namespace {

std::string g_library;
std::string g_error;

void KRN_CALL err_set(krn_err*, krn_code, krn_str text) { g_error.assign(text.data, text.size); }
const krn_host_core kCore{{sizeof(krn_host_core), 1, 0}, err_set, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
const krn_table* KRN_CALL host_table(krn_host*, const char* name, uint32_t major) {
  return std::string(name) == "krn.host.core" && major == 1 ? &kCore.table : nullptr;
}
krn_err* const kErr = reinterpret_cast<krn_err*>(&g_error);

template <class T>
T make() {
  T out{};
  out.hdr.size = sizeof(T);
  return out;
}

class Skeleton : public ::testing::Test {
 protected:
  void SetUp() override {
    void* library = dlopen(g_library.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_TRUE(library) << dlerror();
    entry_ = reinterpret_cast<decltype(&krn_plugin_entry)>(dlsym(library, "krn_plugin_entry"));
    ASSERT_TRUE(entry_);
    offer_ = make<krn_offer>();
    offer_.abi_major_min = offer_.abi_major_max = KRN_ABI_MAJOR;
    offer_.abi_minor_min = offer_.abi_minor_max = KRN_ABI_MINOR;
    offer_.role = KRN_ROLE_RUN;
    offer_.get_table = host_table;
  }
  template <class T>
  const T* table(const char* name) {
    return reinterpret_cast<const T*>(answer_.get_table(name, 1));
  }
  void open() {
    answer_ = make<krn_answer>();
    ASSERT_EQ(entry_(&offer_, &answer_, kErr), KRN_STATUS_ok) << g_error;
    krn_config config = make<krn_config>();
    ASSERT_EQ(table<krn_plugin_table>("krn.plugin")->initialize(&config, &plugin_, kErr), KRN_STATUS_ok) << g_error;
    std::array<krn_hw, 2> hw{make<krn_hw>(), make<krn_hw>()};
    hw[0].torch_type = 2;
    hw[1].torch_type = 1;
    krn_array array{hw.data(), 2, sizeof(krn_hw)};
    auto emit = [](void* ctx, uint32_t i, krn_dev* dev, krn_str why) {
      auto* self = static_cast<Skeleton*>(ctx);
      if (dev) self->device_ = dev;
      if (!dev) self->why_not_ = std::to_string(i) + ": " + std::string(why.data, why.size);
    };
    ASSERT_EQ(table<krn_device_table>("krn.device")->enumerate(plugin_, &array, emit, this, kErr), KRN_STATUS_ok) << g_error;
    ASSERT_TRUE(device_);
  }

  decltype(&krn_plugin_entry) entry_ = nullptr;
  krn_offer offer_;
  krn_answer answer_;
  krn_plugin* plugin_ = nullptr;
  krn_dev* device_ = nullptr;
  std::string why_not_;
};

TEST_F(Skeleton, RefusesAnotherAbi) {
  offer_.abi_minor_min = offer_.abi_minor_max = KRN_ABI_MINOR + 1;
  krn_answer answer = make<krn_answer>();
  EXPECT_EQ(entry_(&offer_, &answer, kErr), KRN_STATUS_version);
  EXPECT_EQ(answer.get_table, nullptr);
  EXPECT_EQ(entry_(&offer_, &answer, nullptr), KRN_STATUS_version);  // a NULL err is legal
}

// What the linker made of all that is in the library, and so of any change of it.
TEST_F(Skeleton, ItsBuildIdIsTheLinkers) {
  open();
  const std::string id(answer_.build_id.data, answer_.build_id.size);
  ASSERT_EQ(id.size(), 40u) << id;
  std::string bytes("GNU\0", 4);
  for (size_t i = 0; i < id.size(); i += 2) bytes.push_back(static_cast<char>(std::stoi(id.substr(i, 2), nullptr, 16)));
  std::ifstream file(g_library, std::ios::binary);
  const std::string library((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(library.find(bytes), std::string::npos) << id << " is not in " << g_library;
  EXPECT_EQ(table<krn_plugin_table>("krn.plugin")->shutdown(plugin_, kErr), KRN_STATUS_ok);
}

TEST_F(Skeleton, SaysWhyADeviceIsNotUsed) {
  open();
  EXPECT_EQ(why_not_, "0: skeleton runs on the CPU only");
  EXPECT_EQ(table<krn_plugin_table>("krn.plugin")->shutdown(plugin_, kErr), KRN_STATUS_ok);
}

TEST_F(Skeleton, AShortDescriptionStruct) {
  open();
  std::array<unsigned char, sizeof(krn_device_desc)> bytes;
  bytes.fill(0xEE);
  auto* desc = reinterpret_cast<krn_device_desc*>(bytes.data());
  desc->hdr = {offsetof(krn_device_desc, prior_score), 0, 0, nullptr};
  ASSERT_EQ(table<krn_device_table>("krn.device")->describe(device_, desc, kErr), KRN_STATUS_ok) << g_error;
  EXPECT_EQ(std::string(desc->arch.data, desc->arch.size), "portable");
  for (size_t i = offsetof(krn_device_desc, prior_score); i < bytes.size(); ++i) ASSERT_EQ(bytes[i], 0xEE) << "byte " << i;
}

struct Told {
  std::vector<uint32_t> claimed;
  std::vector<std::string> refused;
};

TEST_F(Skeleton, ClaimsCompilesAndRuns) {
  open();
  RegionBuilder g;
  int x = g.input(kDType_f32, {2, 3}), y = g.input(kDType_f32, {2, 3});
  g.output(g.unary(kOp_relu, g.binary(kOp_add, g.unary(kOp_relu, x), y)));
  std::vector<uint8_t> bytes = g.bytes();
  krn_region region = make<krn_region>();
  region.graph = {bytes.data(), bytes.size()};
  krn_policy policy = make<krn_policy>();
  Told told;
  krn_claim_sink sink{[](void* ctx, const krn_claim* c) { static_cast<Told*>(ctx)->claimed.assign(c->nodes, c->nodes + c->num_nodes); },
                      [](void* ctx, const krn_refusal* r) { static_cast<Told*>(ctx)->refused.emplace_back(r->why.data, r->why.size); },
                      &told};
  const auto* compile = table<krn_compile_table>("krn.compile");
  ASSERT_EQ(compile->claim(device_, &region, &policy, &sink, kErr), KRN_STATUS_ok) << g_error;
  EXPECT_EQ(told.claimed.size(), 3u);
  EXPECT_TRUE(told.refused.empty());

  krn_options options = make<krn_options>();
  krn_exec* exec = nullptr;
  ASSERT_EQ(compile->compile(device_, &region, &policy, &options, &exec, kErr), KRN_STATUS_ok) << g_error;
  const auto* execs = table<krn_exec_table>("krn.exec");
  krn_needs needs = make<krn_needs>();
  ASSERT_EQ(execs->needs(exec, nullptr, 0, &needs, kErr), KRN_STATUS_ok);
  std::vector<char> workspace(needs.workspace_bytes);
  std::vector<float> a{-1, 2, -3, 4, -5, 6}, b{-1, -3, 1, 1, 1, -6}, c(6);
  std::array<krn_tensor, 2> inputs{};
  krn_tensor output{};
  inputs[0].data = a.data(), inputs[1].data = b.data(), output.data = c.data();
  krn_run run = make<krn_run>();
  run.inputs = inputs.data(), run.num_inputs = 2, run.outputs = &output, run.num_outputs = 1;
  run.workspace = workspace.data(), run.workspace_bytes = workspace.size();
  ASSERT_EQ(execs->run(exec, &run, kErr), KRN_STATUS_ok) << g_error;
  EXPECT_EQ(c, (std::vector<float>{0, 0, 1, 5, 1, 0}));

  run.num_inputs = 1;
  EXPECT_EQ(execs->run(exec, &run, kErr), KRN_STATUS_invalid_input);
  options.candidate = 1;
  EXPECT_EQ(compile->compile(device_, &region, &policy, &options, &exec, kErr), KRN_STATUS_unsupported);
  compile->retain(exec);
  compile->release(exec);
  compile->release(exec);

  bytes[8] ^= 0x40;  // damaged bytes are refused, whatever they say
  region.graph = {bytes.data(), bytes.size()};
  options.candidate = 0;
  EXPECT_EQ(compile->compile(device_, &region, &policy, &options, &exec, kErr), KRN_STATUS_corrupt);
  EXPECT_EQ(table<krn_plugin_table>("krn.plugin")->shutdown(plugin_, kErr), KRN_STATUS_ok);
}

}  // namespace
}  // namespace keirin::codegen::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc < 2) {
    std::fprintf(stderr, "usage: skeleton_test LIBRARY\n");
    return 2;
  }
  keirin::codegen::test::g_library = argv[1];
  return RUN_ALL_TESTS();
}
