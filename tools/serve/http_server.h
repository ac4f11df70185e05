// SPDX-License-Identifier: Apache-2.0
//
// HTTP/1.1 for `keirin serve`: many connections on few threads, limits on what a client may make the server hold or
// wait for, and an end with nothing lost. What a request means is the handler's affair.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace keirin::tools {

struct HttpRequest {
  std::string method, path;  // the path without its query
  std::string body;
  std::optional<std::string> json_length;         // Inference-Header-Content-Length
  std::chrono::steady_clock::time_point arrived;  // when its header was complete
};

struct HttpAnswer {
  unsigned status = 200;
  std::string body;
  std::string content_type = "application/json";
  size_t json_length = 0;  // Inference-Header-Content-Length; 0: no such header
  bool retry = false;      // Retry-After: the client may ask again
};

struct HttpOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 8000;  // 0: any that is free
  int threads = 2;
  size_t most_connections = 10000;  // more are answered 503 and closed
  uint64_t most_body_bytes = 256u << 20;
  std::chrono::seconds read_timeout{30};  // of one request, from its first byte to its last; of one answer
  std::chrono::seconds idle_timeout{75};  // of a connection between requests
  std::chrono::milliseconds drain{1000};  // after end(): how long connections are still accepted
};

class HttpServer {
 public:
  // Called by a thread of the server, which must not be kept: the answer may come later, from any thread, once.
  using Respond = std::function<void(HttpAnswer)>;
  using Handler = std::function<void(HttpRequest&&, Respond)>;

  // `invalid_input` for an address that is none, `exhausted` for a port that is taken.
  static Result<std::unique_ptr<HttpServer>> open(const HttpOptions& options, Handler handler);
  // Ends at once what end() has not ended.
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  // For `drain` connections are accepted and all requests answered, with "Connection: close"; then idle connections are
  // closed, and what has begun to arrive is read and answered. Returns when no connection is left, or after `most`. Any
  // thread but the server's.
  virtual void end(std::chrono::milliseconds most) = 0;
  virtual size_t num_connections() const = 0;
  virtual uint64_t num_accepted() const = 0;
};

}  // namespace keirin::tools
