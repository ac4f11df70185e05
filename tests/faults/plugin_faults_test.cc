// SPDX-License-Identifier: Apache-2.0
//
// Every fault that a plugin can have while it is looked at ends as a verdict that names it, and the good plugin beside it is
// used. The list of faults is bad_plugin.cc.
#include "core/host/call/tensor_view.h"
#include "tests/faults/fault_fixture.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;
using test::has;
using test::kFaults;
using test::PluginFaults;
using test::relu_region;
using test::report_of;

void poke(const std::string& path, std::streamoff offset, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

struct Fault {
  const char* name;
  const char* reason;  // must be in the report
};

class RefusedFaults : public PluginFaults, public testing::WithParamInterface<Fault> {};

TEST_P(RefusedFaults, EndAsAVerdictAndTheGoodPluginIsUsed) {
  const Fault fault = GetParam();
  HostOptions o = options({fault.name, "good"});
  if (has(fault.name, "hang")) o.probe_deadline = std::chrono::milliseconds(700);
  for (const char* round : {"probed", "remembered"}) {
    SCOPED_TRACE(round);
    const auto begin = std::chrono::steady_clock::now();
    const auto host = open(o);
    const auto took = std::chrono::steady_clock::now() - begin;
    const PluginReport* bad = report_of(*host, fault.name);
    ASSERT_NE(bad, nullptr);
    EXPECT_FALSE(bad->used);
    EXPECT_TRUE(has(bad->reason, fault.reason)) << bad->reason;
    const PluginReport* good = report_of(*host, "good");
    ASSERT_NE(good, nullptr);
    EXPECT_TRUE(good->used) << good->reason;
    ASSERT_EQ(host->devices().size(), 1u);
    EXPECT_EQ(host->devices()[0]->plugin_name(), "good");
    if (std::string(round) == "remembered") {
      EXPECT_LT(took, std::chrono::milliseconds(500));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedFaults,
    testing::Values(Fault{"no_entry", "no symbol krn_plugin_entry"},
                    Fault{"missing_symbol", "krn_symbol_that_nobody_has"},
                    Fault{"crash_static", "crashed in load (signal 11"}, Fault{"crash_entry", "crashed in entry (signal 11"},
                    Fault{"crash_initialize", "crashed in initialize (signal 11"},
                    Fault{"crash_enumerate", "crashed in enumerate (signal 11"},
                    Fault{"crash_shutdown", "crashed in shutdown (signal 11"}, Fault{"hang_static", "hung in load"},
                    Fault{"hang_initialize", "hung in initialize"},
                    Fault{"exit_enumerate", "ended the process in enumerate (exit status 0)"},
                    Fault{"wrong_guid", "guid mismatch"}, Fault{"wrong_version", "version mismatch"},
                    Fault{"other_abi", "it chose ABI 7.1"}, Fault{"throw_initialize", "threw an exception"},
                    Fault{"no_driver", "libacme.so.1 is not installed"}, Fault{"emit_twice", "answered twice"},
                    Fault{"no_compile_table", "does not offer the table krn.compile"},
                    Fault{"short_tables", "does not offer krn.compile.compile"},
                    Fault{"unknown_code", "unknown code 4711"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(PluginFaults, WrongArchitectureIsReadFromTheFile) {
  const std::string copy = copy_good();
  const bool on_x86 = host_os_arch() == "linux-x86_64";
  for (const char* machine : {"\x16", on_x86 ? "\xb7" : "\x3e"}) {  // e_machine: S/390, and the other one that plugins are built for
    poke(copy + "/libfault_good.so", 18, std::string(machine) + '\0');
    const auto host = open(options({copy}));
    EXPECT_TRUE(has(host->reports()[0].reason, "wrong architecture")) << host->reports()[0].reason;
    EXPECT_TRUE(host->devices().empty());
  }
}

TEST_F(PluginFaults, MissingCutOffAndForeignFilesAreRefused) {
  const std::string copy = copy_good();
  fs::resize_file(copy + "/libfault_good.so", fs::file_size(copy + "/libfault_good.so") / 2);
  EXPECT_TRUE(has(open(options({copy}))->reports()[0].reason, "cut off"));
  fs::remove(copy + "/libfault_good.so");
  EXPECT_TRUE(has(open(options({copy}))->reports()[0].reason, "cannot be found"));
  std::ofstream(copy + "/libfault_good.so") << "hello";
  EXPECT_TRUE(has(open(options({copy}))->reports()[0].reason, "not an ELF file"));
}

TEST_F(PluginFaults, FilesThatOthersCanWriteAreRefused) {
  const std::string copy = copy_good();
  fs::permissions(copy + "/libfault_good.so", fs::perms::others_write, fs::perm_options::add);
  EXPECT_TRUE(has(open(options({copy}))->reports()[0].reason, "others could have changed it"));
  fs::permissions(copy + "/libfault_good.so", fs::perms::others_write, fs::perm_options::remove);
  fs::permissions(copy, fs::perms::others_write, fs::perm_options::add);
  EXPECT_TRUE(has(open(options({copy}))->reports()[0].reason, "others could have changed it"));
  fs::permissions(copy, fs::perms::others_write, fs::perm_options::remove);
  EXPECT_TRUE(open(options({copy}))->reports()[0].used);
}

TEST_F(PluginFaults, ManifestMistakesAreNamed) {
  const std::string copy = copy_good();
  const auto reason_with = [&](const std::string& from, const std::string& to) {
    std::ifstream file(kFaults + "/good/manifest.toml");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    for (; at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);  // in each variant
    std::ofstream(copy + "/manifest.toml") << text;
    return open(options({copy}))->reports()[0].reason;
  };
  EXPECT_TRUE(has(reason_with("manifest_version = 1", "manifest_version = 2"), "manifest_version 2 is not known"));
  EXPECT_TRUE(has(reason_with("guid = \"fa", "guid = \"xx"), "`guid` is not of the form"));
  EXPECT_TRUE(has(reason_with("[\"0.1\", \"0.1\"]", "[\"3.1\", \"4.0\"]"), "it speaks ABI 3.1 to 4.0"));
  EXPECT_TRUE(has(reason_with("opset = [1, 1]", "opset = [7, 9]"), "it reads op-sets 7 to 9"));
  EXPECT_TRUE(has(reason_with("libfault_good.so", "../libfault_good.so"), "must stay below the manifest"));
  EXPECT_TRUE(has(reason_with("libfault_good.so\"", "libfault_good.so\"\nrequires_cpu = [\"avx9\"]"), "has no avx9") ||
              sizeof(void*) == 4);
  EXPECT_TRUE(has(reason_with("libfault_good.so\"", "libfault_good.so\"\nsha256 = \"00\""), "not the one that the manifest names"));
  EXPECT_TRUE(has(reason_with("name =", "name"), "line 3 is neither a [header]"));
  const std::string own(host_os_arch());
  EXPECT_TRUE(has(reason_with(own, "plan9"), "no variant for " + own));
  EXPECT_EQ(reason_with(own, "L" + own.substr(1)), "");
  EXPECT_EQ(reason_with("publisher", "unknown_key"), "");
}

TEST_F(PluginFaults, TheSameGuidTwiceIsRefusedUnlessOneIsNamed) {
  const std::string copy = copy_good();
  std::ofstream(copy + "/libfault_good.so", std::ios::app) << "another build";
  const auto both = open(options({"good", copy}));
  for (const PluginReport& r : both->reports()) EXPECT_TRUE(has(r.reason, "the same guid")) << r.reason;
  // Found by searching the folder above, not named: the other one wins.
  const auto one = open(options({"good", dir_}));
  ASSERT_EQ(one->reports().size(), 2u);
  EXPECT_TRUE(one->reports()[0].used) << one->reports()[0].reason;
  EXPECT_FALSE(one->reports()[1].used);
}

TEST_F(PluginFaults, OfCopiesOfOneLibraryOneIsUsed) {
  const std::string copy = copy_good();
  const auto host = open(options({"good", copy}));
  ASSERT_EQ(host->reports().size(), 2u);
  EXPECT_TRUE(host->reports()[0].used) << host->reports()[0].reason;
  EXPECT_FALSE(host->reports()[1].used);
  EXPECT_TRUE(has(host->reports()[1].reason, "a copy of the library")) << host->reports()[1].reason;
}

TEST_F(PluginFaults, PathsWithoutAPluginAreReported) {
  HostOptions o = options({"/nowhere/at/all"});
  o.paths.push_back("relative");
  const auto host = open(o);
  ASSERT_EQ(host->reports().size(), 2u);
  EXPECT_TRUE(has(host->reports()[0].reason, "no such file or folder"));
  EXPECT_TRUE(has(host->reports()[1].reason, "not absolute"));
}

TEST_F(PluginFaults, LyingClaimsAreBelievedNothing) {
  const RegionBytes region = relu_region(8, true);
  for (const auto& [name, text] : {std::pair<std::string, std::string>{"claim_missing_node", "which does not exist"},
                                   {"claim_overlap", "claims overlap"}}) {
    const auto host = open(options({name}));
    ASSERT_EQ(host->devices().size(), 1u);
    const Result<ClaimResult> claims = host->devices()[0]->claim({region.bytes, region.hash, {}}, {});
    ASSERT_FALSE(claims.ok());
    EXPECT_TRUE(has(claims.status().text(), text)) << claims.status().text();
    EXPECT_TRUE(has(claims.status().text(), name)) << "the plugin is named";
  }
}

TEST_F(PluginFaults, AnExecutableThatIsNotThereIsAnError) {
  const RegionBytes region = relu_region(8);
  const auto host = open(options({"compile_nothing"}));
  ASSERT_EQ(host->devices().size(), 1u);
  const auto made = host->devices()[0]->compile({region.bytes, region.hash, {}}, {}, {});
  ASSERT_FALSE(made.ok());
  EXPECT_TRUE(has(made.status().text(), "returned no executable"));
}

TEST_F(PluginFaults, TheGoodPluginClaimsCompilesRunsAndIsSaved) {
  const auto host = open(options({"good"}));
  ASSERT_EQ(host->devices().size(), 1u);
  PluginDevice& device = *host->devices()[0];
  const RegionBytes both = relu_region(8, true);
  const Result<ClaimResult> claims = device.claim({both.bytes, both.hash, {}}, {});
  ASSERT_TRUE(claims.ok()) << claims.status().text();
  ASSERT_EQ(claims->claims.size(), 1u);
  ASSERT_EQ(claims->refusals.size(), 1u);
  EXPECT_EQ(claims->refusals[0].why, "only relu and linear");

  const int64_t n = 1000;
  const RegionBytes region = relu_region(n);
  const PluginRegion view{region.bytes, region.hash, {}};
  auto made = device.compile(view, {}, {});
  ASSERT_TRUE(made.ok()) << made.status().text();
  CompileOptions next;
  next.candidate = 1;
  EXPECT_EQ(device.compile(view, {}, next).status().code(), Code::k_unsupported);
  EXPECT_TRUE((*made)->info().inputs_intact);

  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 7 - 3);
  const TensorRef in = test::tensor_of(DType::k_f32, {n}, values);
  const auto check = [&](Executable& executable) {
    const TensorRef out = test::tensor_of(DType::k_f32, {n}, std::vector<float>(n, -1));
    const krn_tensor input = view_of(*in, KRN_TENSOR_READ_ONLY), output = view_of(*out);
    const Status status = executable.run(&input, 1, &output, 1, nullptr, 0);
    ASSERT_TRUE(status.ok()) << status.text();
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(static_cast<float*>(out->data())[i], std::max(0.0f, values[i]));
    EXPECT_EQ(executable.run(&input, 1, &output, 0, nullptr, 0).code(), Code::k_invalid_input);
    krn_tensor half = input;
    half.dtype_bits = 16;
    const Status refused = executable.run(&half, 1, &output, 1, nullptr, 0);
    EXPECT_TRUE(has(refused.text(), "the input is not f32")) << "the plugin's words end in the status: " << refused.text();
  };
  check(**made);
  const Result<Artifact> saved = device.save(**made);
  ASSERT_TRUE(saved.ok()) << saved.status().text();
  EXPECT_EQ(*device.check(saved->token), ArtifactVerdict::kOptimal);
  EXPECT_EQ(*device.check("other"), ArtifactVerdict::kReject);
  auto loaded = device.load(view, *saved);
  ASSERT_TRUE(loaded.ok());
  check(**loaded);
  EXPECT_EQ(device.load(view, {saved->token, "x"}).status().code(), Code::k_corrupt);
  std::vector<uint8_t> spoilt = region.bytes;
  spoilt[0] ^= 1;
  EXPECT_EQ(device.compile({spoilt, region.hash, {}}, {}, {}).status().code(), Code::k_invalid_input);
}

TEST_F(PluginFaults, TwoHostsShareOnePluginAndAnExecutableOutlivesThem) {
  const RegionBytes region = relu_region(4);
  std::shared_ptr<Executable> executable;
  {
    const auto first = open(options({"good"})), second = open(options({"good"}));
    ASSERT_EQ(first->devices().size(), 1u);
    ASSERT_EQ(second->devices().size(), 1u);
    executable = *second->devices()[0]->compile({region.bytes, region.hash, {}}, {}, {});
    EXPECT_EQ(&executable->device(), &(*first->devices()[0]->compile({region.bytes, region.hash, {}}, {}, {}))->device());
    executable = *first->devices()[0]->compile({region.bytes, region.hash, {}}, {}, {});
  }
  const TensorRef in = test::tensor_of<float>(DType::k_f32, {4}, {-1, 2, -3, 4});
  const TensorRef out = test::tensor_of<float>(DType::k_f32, {4}, {9, 9, 9, 9});
  const krn_tensor input = view_of(*in), output = view_of(*out);
  EXPECT_TRUE(executable->run(&input, 1, &output, 1, nullptr, 0).ok());
  EXPECT_EQ(static_cast<float*>(out->data())[3], 4.0f);
}

TEST_F(PluginFaults, ATornVerdictIsProbedAgain) {
  ASSERT_TRUE(open(options({"good"}))->reports()[0].used);
  int spoilt = 0;
  for (const auto& entry : fs::directory_iterator(dir_ + "/cache/probe")) {
    fs::resize_file(entry.path(), 20);
    ++spoilt;
  }
  EXPECT_EQ(spoilt, 1);
  EXPECT_TRUE(open(options({"good"}))->reports()[0].used);
}

}  // namespace
}  // namespace keirin
