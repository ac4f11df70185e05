// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/worker_words.h"

#include <fstream>

namespace keirin {

using nlohmann::json;

json hardware_json(const std::vector<HardwareItem>& items) {
  json list = json::array();
  for (const HardwareItem& item : items)
    list.push_back({{"uid", item.uid},
                    {"description", item.description},
                    {"vendor_id", item.vendor_id},
                    {"device_id", item.device_id},
                    {"torch_type", item.torch_device ? item.torch_device->kind : -1},
                    {"torch_index", item.torch_device ? item.torch_device->index : -1},
                    {"driver", item.driver},
                    {"cpu_features", item.cpu_features}});
  return list;
}

std::vector<HardwareItem> hardware_from_json(const json& list) {
  std::vector<HardwareItem> items;
  for (const json& j : list) {
    HardwareItem item;
    item.uid = j.at("uid");
    item.description = j.at("description");
    item.vendor_id = j.at("vendor_id");
    item.device_id = j.at("device_id");
    if (j.at("torch_type") != -1) item.torch_device = Device{j.at("torch_type"), j.at("torch_index")};
    item.driver = j.at("driver");
    item.cpu_features = j.at("cpu_features");
    items.push_back(std::move(item));
  }
  return items;
}

json status_json(const Status& status) {
  const Message& m = status.message();
  return {{"code", static_cast<int>(status.code())}, {"what", m.what}, {"where", m.where}, {"advice", m.advice}};
}

Status status_from_json(const json& j) {
  const int code = j.at("code");
  const bool known = code > static_cast<int>(Code::k_ok) && code <= static_cast<int>(Code::k_internal);
  return Status(known ? static_cast<Code>(code) : Code::k_internal, Message{j.at("what"), j.at("where"), {}, j.at("advice")});
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace keirin
