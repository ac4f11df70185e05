// SPDX-License-Identifier: Apache-2.0
//
// Messages between the host and its workers over a socket pair: a JSON head and byte strings, each with its length in front,
// and at most one file descriptor. The reader trusts nothing: lengths are bounded before anything is allocated, and what is no
// message ends the conversation.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/files.h"
#include "core/base/status.h"

namespace keirin {

struct Packet {
  nlohmann::json head;   // an object, or null where `number` says it all
  uint32_t number = 0;   // the executable that a run is of: what every call says is read without a parser
  std::vector<std::string> blobs;
  Descriptor file;  // none: -1
};

// How long one side waits for the other.
struct Patience {
  std::chrono::steady_clock::time_point end = std::chrono::steady_clock::time_point::max();
  const std::atomic<bool>* cancel = nullptr;
};

// `timeout`, `cancelled`, `crashed` if the other side is gone, `corrupt` for what is not a message.
Status send_packet(int socket, const Packet& packet, const Patience& patience);
Result<Packet> receive_packet(int socket, uint64_t max_bytes, const Patience& patience);

// Text from a plugin may be no UTF-8: replaced, because a throw would lose the answer.
std::string json_text(const nlohmann::json& j);

}  // namespace keirin
