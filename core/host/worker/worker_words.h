// SPDX-License-Identifier: Apache-2.0
//
// What host and worker tell each other, as JSON: the hardware list and how a call ended. One place, so that both sides agree.
// Readers throw nlohmann's exceptions for what is not of the form; their callers turn that into "could not be read".
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/status.h"
#include "core/host/find/hardware.h"

namespace keirin {

nlohmann::json hardware_json(const std::vector<HardwareItem>& items);
std::vector<HardwareItem> hardware_from_json(const nlohmann::json& list);

nlohmann::json status_json(const Status& status);
Status status_from_json(const nlohmann::json& j);  // a code that is not in the list reads as internal

// Of the running system: what a process of an earlier boot left behind says nothing about a plugin.
std::string boot_id();

}  // namespace keirin
