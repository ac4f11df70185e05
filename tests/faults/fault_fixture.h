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

#include "core/host/plugins.h"
#include "core/ir/bytes.h"
#include "tests/support/trust_count.h"
#include "tests/unit/host/heap_services.h"
#include "tests/support/temp_folder.h"

namespace keirin::test {

namespace fs = std::filesystem;

inline const std::string kFaults = KEIRIN_FAULTS_DIR;

class PluginFaults : public testing::Test {
 protected:
  void TearDown() override {
    trust_count("plugins", new_behaviours_, HasFailure() ? 1 : 0);
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

  HeapServices services_;
  int64_t new_behaviours_ = 0;
  TempFolder folder_;
  const std::string dir_ = folder_.path();
};

inline const PluginReport* report_of(const PluginHost& host, const std::string& name) {
  for (const PluginReport& r : host.reports())
    if (r.name == name) return &r;
  return nullptr;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// relu(neg(x)) over n floats, or relu alone.
inline RegionBytes relu_region(int64_t n, bool with_neg) {
  Graph g;
  const Type type{DType::k_f32, {n}, {1}};
  ValueId v = g.add_input(type, 0);
  if (with_neg) v = g.ops[g.add_op(OpCode::k_neg, {v}, {}, {type})].results[0];
  v = g.ops[g.add_op(OpCode::k_relu, {v}, {}, {type})].results[0];
  g.outputs.push_back({v, kNone, kNone});
  Result<RegionBytes> bytes = write_region(g);
  EXPECT_TRUE(bytes.ok());
  return std::move(bytes).value();
}

}  // namespace keirin::test
