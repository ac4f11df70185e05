// SPDX-License-Identifier: Apache-2.0
//
// What the paths of `keirin serve` mean: the Open Inference Protocol over the served models, its extension for repositories, and /metrics.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tools/serve/histogram.h"
#include "tools/serve/http_server.h"
#include "tools/serve/model_table.h"
#include "tools/serve/repository.h"

namespace keirin::tools {

class Router {
 public:
  // What it is given outlives it, and every answer that was promised. `repository` null: models stay as they are.
  Router(const ModelTable& table, Repository* repository, Runtime& runtime, std::chrono::duration<double> deadline)
      : table_(table), repository_(repository), runtime_(runtime), deadline_(deadline) {}

  // A HttpServer's handler.
  void handle(HttpRequest&& request, const HttpServer::Respond& respond);
  // Nobody is to send new requests here: /v2/health/ready says so from now on.
  void set_ending() { ending_ = true; }
  // Prometheus' text. Any thread; waits for nothing.
  std::string metrics() const;

 private:
  HttpAnswer get(const std::string& path) const;
  HttpAnswer set_plans(ServedModel& model, const std::string& body) const;
  void infer(const std::shared_ptr<ServedModel>& model, HttpRequest&& request, const HttpServer::Respond& respond);
  void ask_repository(const std::vector<std::string>& parts, const HttpServer::Respond& respond);
  void count(const std::string& model, unsigned status);

  const ModelTable& table_;
  Repository* const repository_;
  Runtime& runtime_;
  const std::chrono::duration<double> deadline_;
  std::atomic<bool> ending_{false};
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, unsigned>, uint64_t> answers_;  // by model and HTTP status, under mutex_
  std::map<std::string, std::unique_ptr<Histogram>>
      seconds_;  // by model, from a request's header to its answer; under mutex_
};

}  // namespace keirin::tools
