// SPDX-License-Identifier: Apache-2.0
//
// What the fault tests share: hosts over the plugins of bad_plugin.cc with a cache folder of their own, and the region that all of
// those plugins compile.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "core/cache/bad_records.h"
#include "core/cache/cache.h"
#include "core/host/call/tensor_view.h"
#include "core/host/plugins.h"
#include "core/ir/bytes.h"
#include "tests/support/relu_region.h"
#include "tests/support/temp_folder.h"
#include "tests/support/trust_count.h"
#include "tests/support/world.h"
#include "tests/unit/host/heap_services.h"

namespace keirin::test {

namespace fs = std::filesystem;

inline const std::string kFaults = KEIRIN_FAULTS_DIR;

// Claims, compiles and runs a relu of n floats; ok if the numbers are right.
inline Status try_relu(PluginDevice& device, int64_t n) {
  const RegionBytes region = relu_region(n);
  const PluginRegion view{region.bytes, region.hash, {}};
  KRN_TRY_LET(const ClaimResult claims, device.claim(view, {}));
  if (claims.claims.size() != 1) return Status(Code::k_internal, "not claimed");
  KRN_TRY_LET(const std::shared_ptr<Executable> executable, device.compile(view, {}, {}));
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 7 - 3);
  const TensorRef in = tensor_of(DType::k_f32, {n}, values);
  const TensorRef out = tensor_of(DType::k_f32, {n}, std::vector<float>(n, -1));
  const krn_tensor input = view_of(*in, KRN_TENSOR_READ_ONLY), output = view_of(*out);
  KRN_TRY(executable->run(&input, 1, &output, 1, nullptr, 0));
  for (int64_t i = 0; i < n; ++i)
    if (static_cast<float*>(out->data())[i] != std::max(0.0f, values[i])) return Status(Code::k_wrong_result, "wrong");
  return {};
}

class PluginFaults : public testing::Test {
 protected:
  void SetUp() override { ::setenv("KEIRIN_FAULT_SWITCH", switch_.c_str(), 1); }
  void TearDown() override {
    after_checks();
    trust_count("plugins", new_behaviours_, HasFailure() ? 1 : 0);
  }

  // After whatever a test injected: nothing is left behind, the cache is sound, and the next good work is right.
  void after_checks() {
    for (const std::string& change : world_.changes()) ADD_FAILURE() << change;
    CacheOptions cache;
    cache.dir = dir_ + "/cache";
    for (const EntryInfo& dropped : Cache(cache).check()) ADD_FAILURE() << "the cache held a bad entry: " << dropped.problem;
    const auto host = open(options({"good"}));
    ASSERT_EQ(host->devices().size(), 1u);
    const Status good = try_relu(*host->devices()[0], 8);
    EXPECT_TRUE(good.ok()) << good.text();
  }

  HostOptions options(const std::vector<std::string>& folders) {
    static std::set<std::string> behaviours{"good"};  // counted once, however many tests use them
    HostOptions o;
    for (const std::string& f : folders) {
      const bool built = f[0] != '/';
      new_behaviours_ += built && behaviours.insert(f).second;
      o.paths.push_back(built ? kFaults + "/" + f : f);
    }
    o.search = false;
    o.cache_dir = dir_ + "/cache";
    o.worker = KEIRIN_WORKER;
    o.probe_deadline = std::chrono::milliseconds(10000);
    o.services = &services_;
    return o;
  }

  // The same with a quarantine that outlasts the process.
  HostOptions kept_options(const std::vector<std::string>& folders) {
    HostOptions o = options(folders);
    CacheOptions cache;
    cache.dir = o.cache_dir;
    cache_ = std::make_unique<Cache>(cache);
    EXPECT_TRUE(cache_->usable());
    o.quarantine = open_quarantine(cache_.get());
    return o;
  }

  // What the plugins called `switched_` do from now on; they never read half a word.
  void turn(const std::string& word) {
    std::ofstream(switch_ + ".new") << word;
    fs::rename(switch_ + ".new", switch_);
  }

  static PluginDevice* device_of(PluginHost& host, const std::string& plugin) {
    for (PluginDevice* d : host.devices())
      if (d->plugin_name() == plugin) return d;
    return nullptr;
  }

  std::unique_ptr<PluginHost> open(const HostOptions& o) {
    Result<std::unique_ptr<PluginHost>> host = PluginHost::open(o);
    EXPECT_TRUE(host.ok()) << host.status().text();
    return std::move(host).value();
  }

  // A copy of the good plugin whose files may be spoilt.
  std::string copy_good() {
    const std::string to = dir_ + "/copy";
    fs::create_directory(to);
    fs::permissions(to, fs::perms::owner_all);
    for (const char* file : {"manifest.toml", "libfault_good.so"}) fs::copy_file(kFaults + "/good/" + file, to + "/" + file);
    return to;
  }

  const World world_;  // first: what the test itself makes comes later
  HeapServices services_;
  int64_t new_behaviours_ = 0;
  TempFolder folder_;
  const std::string dir_ = folder_.path(), switch_ = dir_ + "/switch";
  std::unique_ptr<Cache> cache_;
};

inline const PluginReport* report_of(const PluginHost& host, const std::string& name) {
  for (const PluginReport& r : host.reports())
    if (r.name == name) return &r;
  return nullptr;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace keirin::test
