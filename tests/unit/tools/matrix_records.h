// SPDX-License-Identifier: Apache-2.0
//
// Records and stores of the matrix for its tests, as a sitting would have written them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tools/matrix/judge.h"
#include "tools/matrix/store.h"

namespace keirin::tools::matrix {

namespace fs = std::filesystem;
using nlohmann::json;

inline void write_log(const fs::path& store, const std::string& name, const std::string& bytes) {
  fs::create_directories(store / "log");
  std::ofstream(store / "log" / name, std::ios::binary) << bytes;
}

inline std::string lines_of(const std::vector<Record>& records) {
  std::string out;
  for (const Record& record : records) out += record.line + "\n";
  return out;
}

inline Store read(const fs::path& folder) {
  Result<Store> store = Store::read(folder.string());
  EXPECT_TRUE(store.ok()) << store.status().text();
  return store.ok() ? std::move(*store) : Store();
}

inline std::vector<std::string> ids(const Store& store) {
  std::vector<std::string> out;
  for (const auto& [id, record] : store.records()) out.push_back(id);
  return out;
}

// What a sitting writes of one cell. Slots are `base_ns` with noise; head takes `ratio` times as long.
struct Cell {
  std::string item = "mlp/small/f32/infer/single/default", variant = "auto", status = "ok", at_fault = "",
              sitting = "s1";
  double ratio = 1, noise = 0.002;
  json gate = 0.01;
  bool confirm = true;
  std::string fitness = "timing";  // of the sitting: the first cell's
  json base_counts = json::object(), head_counts = json::object();
  std::string base_candidate = "cpu/all", head_candidate = "cpu/all";
};

inline std::vector<Record> sitting_of(const std::vector<Cell>& cells, const std::string& purpose = "compare",
                               double time = 1) {
  json planned = json::array();
  for (const Cell& cell : cells) planned.push_back({cell.item, cell.variant});
  std::vector<Record> out = {make_record("sitting", {{"sitting", cells[0].sitting},
                                                     {"purpose", purpose},
                                                     {"time", time},
                                                     {"machine", "m"},
                                                     {"class", "x86"},
                                                     {"fitness", cells[0].fitness},
                                                     {"base", "b"},
                                                     {"head", "h"},
                                                     {"cells", planned}})};
  std::mt19937_64 random(static_cast<uint64_t>(time));
  std::normal_distribution<double> normal;
  for (const Cell& cell : cells) {
    std::string screen;
    for (const char* stage : {"screen", "confirm"}) {
      if (stage == std::string("confirm") && (!cell.confirm || cell.ratio == 1 || cell.status != "ok")) continue;
      json fields = {{"sitting", cell.sitting},
                     {"case", cell.item},
                     {"variant", cell.variant},
                     {"stage", stage},
                     {"side", "base"},
                     {"candidate", cell.base_candidate},
                     {"counts", cell.base_counts}};
      const Record base = make_record("run", fields);
      fields.update({{"side", "head"},
                     {"candidate", cell.head_candidate},
                     {"counts", cell.head_counts},
                     {"base", base.id},
                     {"status", cell.status},
                     {"at_fault", cell.at_fault},
                     {"gate", cell.gate},
                     {"reasons", json::array()}});
      if (!screen.empty()) fields["confirms"] = screen;
      const Record head = make_record("run", fields);
      out.push_back(base), out.push_back(head);
      if (cell.status != "ok") continue;
      const Measure& measure = measure_of(cell.item);
      const bool start = is_start(cell.item);
      const int per_launch = start ? 1 : 3;
      for (int block = 0; block < (screen.empty() ? measure.protocol.first : measure.protocol.confirm); ++block)
        for (int slot = 0; slot < (start ? 2 : 4); ++slot) {
          const bool is_base = (slot == 0 || slot == 3) == (block / per_launch % 2 == 0);  // who begins changes with the launch
          const double ns = 1e6 * std::exp(cell.noise * normal(random)) * (is_base ? 1 : cell.ratio);
          out.push_back(make_record("sample", {{"run", is_base ? base.id : head.id},
                                               {"launch", block / per_launch},
                                               {"block", block},
                                               {"slot", slot},
                                               {"measure", measure.sample},
                                               {"values", std::vector<int64_t>(5, static_cast<int64_t>(ns))},
                                               {"kept", true}}));
        }
      screen = head.id;
    }
  }
  return out;
}

inline Store store_of(const std::vector<Record>& records) {
  Store store;
  for (const Record& record : records) store.add(record);
  return store;
}

inline std::string verdict_bytes(const Store& store) {
  std::string out;
  for (const Verdict& v : judge(store)) out += record_of(v).line + "\n";
  return out;
}

}  // namespace keirin::tools::matrix
