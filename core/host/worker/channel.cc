// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>

namespace keirin {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr uint32_t kMagic = 0x314e524b;  // "KRN1"
constexpr uint32_t kMaxBlobs = 8;
constexpr int kCancelPollMs = 50;

struct Header {
  uint32_t magic;
  uint32_t num_blobs;
  uint32_t has_file;
  uint32_t number;
  uint64_t head_bytes;
  uint64_t blob_bytes[kMaxBlobs];
};

Status gone() { return Status(Code::k_crashed, "the other side of the channel is gone"); }
Status garbage(const char* what) { return Status(Code::k_corrupt, std::string("answered what is not a message: ") + what); }

// ok once the socket can be read or written.
Status wait_for(int socket, short events, const Patience& patience) {
  for (;;) {
    if (patience.cancel && patience.cancel->load(std::memory_order_relaxed)) return Status(Code::k_cancelled, "stopped on request");
    int wait_ms = patience.cancel ? kCancelPollMs : -1;
    if (patience.end != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(patience.end - Clock::now()).count();
      if (left <= 0) return Status(Code::k_timeout, "the deadline passed");
      const int left_ms = static_cast<int>(std::min<int64_t>(left, 1 << 30));
      wait_ms = wait_ms < 0 ? left_ms : std::min(wait_ms, left_ms);
    }
    pollfd item{socket, events, 0};
    const int ready = ::poll(&item, 1, wait_ms);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return gone();
  }
}

Status send_all(int socket, const void* data, size_t size, int file, const Patience& patience) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    iovec part{const_cast<char*>(at), size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (file >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* const item = CMSG_FIRSTHDR(&message);
      item->cmsg_level = SOL_SOCKET;
      item->cmsg_type = SCM_RIGHTS;
      item->cmsg_len = CMSG_LEN(sizeof(int));
      ::memcpy(CMSG_DATA(item), &file, sizeof(int));
    }
    const ssize_t n = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      KRN_TRY(wait_for(socket, POLLOUT, patience));
    } else if (n < 0 && errno != EINTR) {
      return gone();
    } else if (n > 0) {
      at += n;
      size -= static_cast<size_t>(n);
      file = -1;
    }
  }
  return {};
}

Status receive_all(int socket, void* data, size_t size, Descriptor* file, const Patience& patience) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    KRN_TRY(wait_for(socket, POLLIN, patience));
    iovec part{at, size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n == 0) return gone();
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return gone();
    }
    if (const cmsghdr* item = CMSG_FIRSTHDR(&message);
        item && item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_RIGHTS && item->cmsg_len == CMSG_LEN(sizeof(int))) {
      int received = -1;
      ::memcpy(&received, CMSG_DATA(item), sizeof(int));
      Descriptor owned(received);
      if (file) *file = std::move(owned);  // one that nobody asked for is closed
    }
    at += n;
    size -= static_cast<size_t>(n);
  }
  return {};
}

}  // namespace

std::string json_text(const json& j) { return j.dump(-1, ' ', false, json::error_handler_t::replace); }

Status send_packet(int socket, const Packet& packet, const Patience& patience) {
  const std::string head = packet.head.is_null() ? std::string() : json_text(packet.head);
  if (packet.blobs.size() > kMaxBlobs) return Status(Code::k_internal, "a message has too many parts");
  Header header{};
  header.magic = kMagic;
  header.num_blobs = static_cast<uint32_t>(packet.blobs.size());
  header.has_file = packet.file.get() >= 0;
  header.number = packet.number;
  header.head_bytes = head.size();
  for (size_t i = 0; i < packet.blobs.size(); ++i) header.blob_bytes[i] = packet.blobs[i].size();
  KRN_TRY(send_all(socket, &header, sizeof(header), packet.file.get(), patience));
  KRN_TRY(send_all(socket, head.data(), head.size(), -1, patience));
  for (const std::string& blob : packet.blobs) KRN_TRY(send_all(socket, blob.data(), blob.size(), -1, patience));
  return {};
}

Result<Packet> receive_packet(int socket, uint64_t max_bytes, const Patience& patience) {
  Header header{};
  Packet packet;
  KRN_TRY(receive_all(socket, &header, sizeof(header), &packet.file, patience));
  if (header.magic != kMagic || header.num_blobs > kMaxBlobs) return garbage("it does not start like one");
  uint64_t left = max_bytes;
  const auto fits = [&](uint64_t bytes) { return bytes <= left && (left -= bytes, true); };
  if (!fits(header.head_bytes)) return garbage("its head is too long");
  for (uint32_t i = 0; i < header.num_blobs; ++i)
    if (!fits(header.blob_bytes[i])) return garbage("it is too long");
  if ((header.has_file != 0) != (packet.file.get() >= 0)) return garbage("its descriptor is missing");
  std::string head(header.head_bytes, '\0');
  KRN_TRY(receive_all(socket, head.data(), head.size(), nullptr, patience));
  packet.number = header.number;
  if (!head.empty()) packet.head = json::parse(head, nullptr, false);
  if (!head.empty() && !packet.head.is_object()) return garbage("its head is not a JSON object");
  for (uint32_t i = 0; i < header.num_blobs; ++i) {
    packet.blobs.emplace_back(header.blob_bytes[i], '\0');
    KRN_TRY(receive_all(socket, packet.blobs.back().data(), packet.blobs.back().size(), nullptr, patience));
  }
  return packet;
}

}  // namespace keirin
