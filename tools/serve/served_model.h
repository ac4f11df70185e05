// SPDX-License-Identifier: Apache-2.0
//
// One model that is served: a bounded queue in front of a session, threads that answer it, and batches of requests
// where that is allowed. Answers come in no order. No sockets: `keirin load` uses the same thing in process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/api/session.h"
#include "tools/serve/histogram.h"

namespace keirin::tools {

struct ServingOptions {
  int workers = 1;                              // threads that call the model; one for a model that writes its state
  size_t queue = 256;                           // requests that wait; more are refused
  int64_t max_batch = 1;                        // rows of one call that several requests share; 1: none share one
  std::chrono::microseconds batch_delay{1000};  // how long the first request of a batch waits for others
};

class ServedModel {
 public:
  using Clock = std::chrono::steady_clock;
  using Tensors = std::vector<TensorRef>;
  struct Request {
    Tensors inputs;  // on the session's device
    Clock::time_point deadline = Clock::time_point::max();
    // Called once, by a thread of the model, or by submit's caller where it is refused: the outputs; `exhausted` where
    // the queue is full or the model ends; `timeout` where the deadline passed before the call began; else what the
    // session says.
    std::function<void(Result<Tensors>)> done;
    Clock::time_point arrived = Clock::now();
  };

  ServedModel(std::string name, Runtime& runtime, std::unique_ptr<Session> session, const ServingOptions& options);
  // Answers what waits, then ends.
  ~ServedModel();

  const std::string& name() const { return name_; }
  Session& session() { return *session_; }
  const Session& session() const { return *session_; }
  const Signature& signature() const { return signature_; }
  // Any thread; never waits for a call.
  void submit(Request request);
  // Decides for the sizes, one after another; before that, and without any, the model is ready as it is. The first
  // error ends it.
  Status warm(const std::vector<std::vector<int64_t>>& sizes);
  // A model that writes or draws cannot be decided beside calls: while it is warmed, requests are refused.
  void set_ready(bool ready) { ready_ = ready; }
  bool ready() const { return ready_; }
  // Whether requests share calls; else why not, where it was asked for.
  bool batches() const { return batches_; }
  const std::string& why_no_batches() const { return why_no_batches_; }
  // No request is taken any more; those that wait are answered.
  void close();

  struct Counts {
    uint64_t answered = 0, failed = 0, refused = 0, expired = 0, calls = 0, rows = 0, padded_rows = 0;
    size_t waiting = 0;
  };
  Counts counts() const;
  const Histogram& call_seconds() const { return call_seconds_; }
  const Histogram& queue_seconds() const { return queue_seconds_; }

 private:
  void work();
  std::vector<Request> take();
  void answer(std::vector<Request> batch);
  Result<Tensors> call(const Tensors& inputs);
  void answer_together(std::vector<Request>& batch);
  bool may_join(const Request& first, const Request& other) const;
  // Why requests may not share calls; runs the model twice to see whether its rows are independent.
  std::string look_at_rows();
  Result<Tensors> joined(const std::vector<Request>& batch, int64_t rows);
  Result<Tensors> rows_of(const Tensors& outputs, int64_t first, int64_t count);
  void finish(Request& request, Result<Tensors> result);

  const std::string name_;
  Runtime& runtime_;
  TensorServices& services_;
  const std::unique_ptr<Session> session_;
  const Signature signature_;
  const ServingOptions options_;
  bool alone_ = false;  // the model's calls have to come one after another
  bool batches_ = false;
  std::string why_no_batches_;
  std::atomic<bool> ready_{true};

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable more_;
  std::deque<Request> queue_;
  bool closed_ = false;

  std::atomic<uint64_t> answered_{0}, failed_{0}, refused_{0}, expired_{0}, calls_{0}, rows_{0}, padded_rows_{0};
  Histogram call_seconds_, queue_seconds_;
  std::vector<std::thread> threads_;  // last: they use everything above
};

}  // namespace keirin::tools
