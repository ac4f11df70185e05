// SPDX-License-Identifier: Apache-2.0
#include "tools/serve/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <limits>

#include "core/base/background.h"
#include "core/eager/teams.h"

namespace keirin::tools {
namespace {

using Tensors = ServedModel::Tensors;
using Clock = ServedModel::Clock;

// A call of more rows rounds otherwise, by what sums of another order do; rows that hear of each other differ by more.
constexpr double kNearly = 1e-3, kNearlyInHalf = 3e-2;
constexpr std::chrono::milliseconds kTeamIsKept{100};  // by a thread that nothing is asked of

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

TensorSpec with_rows(const Tensor& tensor, int64_t rows) {
  TensorSpec spec = spec_of(tensor);
  spec.sizes[0] = rows;
  return spec;
}

int64_t row_bytes(const TensorSpec& spec) { return spec.strides[0] * dtype_bytes(spec.dtype); }

// What tells the first dimension of a port from the others; empty where it is fixed or computed.
std::string batch_symbol(const Port& port) {
  const bool free = !port.sizes.empty() && port.sizes[0].free && port.sizes[0].symbol.find('(') == std::string::npos;
  return free ? port.sizes[0].symbol : std::string();
}

// All elements as numbers, row-major, on the CPU.
Result<std::vector<double>> numbers_of(const TensorRef& tensor, TensorServices& services) {
  KRN_TRY_LET(const TensorRef cpu, services.to_device(tensor, {}));
  KRN_TRY_LET(const TensorRef wide, services.cast(cpu, DType::k_f64));
  TensorSpec spec = spec_of(*wide);
  spec.strides.clear();
  KRN_TRY_LET(const TensorRef dense, services.allocate(spec));
  KRN_TRY(services.copy(dense, wide));
  int64_t elements = 1;
  for (const int64_t size : spec.sizes) elements *= size;
  const auto* at = static_cast<const double*>(dense->data());
  return std::vector<double>(at, at + elements);
}

// The largest difference, as a share of the largest element of `expected`.
Result<double> difference_of(const TensorRef& tensor, const TensorRef& expected, TensorServices& services) {
  KRN_TRY_LET(const std::vector<double> a, numbers_of(tensor, services));
  KRN_TRY_LET(const std::vector<double> b, numbers_of(expected, services));
  if (a.size() != b.size()) return Status(Code::k_wrong_result, "it has another size");
  double largest = 1e-6, difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double by = std::fabs(a[i] - b[i]);
    difference = std::max(difference, std::isfinite(by) ? by : std::numeric_limits<double>::infinity());
  }
  for (const double element : b)
    if (std::isfinite(element)) largest = std::max(largest, std::fabs(element));
  return difference / largest;
}

}  // namespace

ServedModel::ServedModel(std::string name, Runtime& runtime, std::unique_ptr<Session> session,
                         const ServingOptions& options)
    : name_(std::move(name)),
      runtime_(runtime),
      services_(runtime.tensors()),
      session_(std::move(session)),
      signature_(session_->signature()),
      options_(options),
      alone_(!session_->why_not_beside_calls().empty()) {
  if (options_.max_batch > 1) {
    why_no_batches_ = look_at_rows();
    batches_ = why_no_batches_.empty();
  }
  let_go_of_team();  // of who opened the model, and does nothing more with it
  const int workers = alone_ ? 1 : std::max(1, options_.workers);
  for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
}

ServedModel::~ServedModel() {
  close();
  for (std::thread& thread : threads_) thread.join();
}

void ServedModel::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  more_.notify_all();
}

void ServedModel::finish(Request& request, Result<Tensors> result) {
  if (result.ok())
    ++answered_;
  else if (result.status().code() == Code::k_timeout && !result.status().cause())
    ++expired_;
  else
    ++failed_;
  request.done(std::move(result));
}

void ServedModel::submit(Request request) {
  const auto refuse = [&](const char* what, const char* advice) {
    ++refused_;
    request.done(Status(Code::k_exhausted, Message{what, "model " + name_, "nothing was run", advice}));
  };
  if (!ready_ && alone_)
    return refuse("the model is not ready, and its calls may write state", "ask again when it is ready");
  {
    std::unique_lock lock(mutex_);
    const bool closed = closed_;
    if (closed || queue_.size() >= options_.queue) {
      lock.unlock();
      return closed ? refuse("the server is ending", "ask another one")
                    : refuse("the queue is full", "ask again later, or more slowly");
    }
    queue_.push_back(std::move(request));
  }
  more_.notify_one();
}

bool ServedModel::may_join(const Request& first, const Request& other) const {
  for (size_t i = 0; i < first.inputs.size(); ++i) {
    const Tensor &a = *first.inputs[i], &b = *other.inputs[i];
    if (a.rank() != b.rank() || !std::equal(a.sizes() + 1, a.sizes() + a.rank(), b.sizes() + 1)) return false;
  }
  return true;
}

std::vector<ServedModel::Request> ServedModel::take() {
  std::vector<Request> batch, expired;
  {
    std::unique_lock lock(mutex_);
    const auto expire = [&] {
      const Clock::time_point now = Clock::now();
      for (size_t i = 0; i < queue_.size();)
        if (queue_[i].deadline <= now) {
          expired.push_back(std::move(queue_[i]));
          queue_.erase(queue_.begin() + static_cast<ptrdiff_t>(i));
        } else {
          ++i;
        }
    };
    const auto wanted = [&] { return closed_ || !queue_.empty(); };
    if (!more_.wait_for(lock, kTeamIsKept, wanted)) {  // it would be in the way of other models' teams
      lock.unlock();
      let_go_of_team();
      lock.lock();
      more_.wait(lock, wanted);
    }
    expire();
    if (!queue_.empty()) {
      batch.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    if (batches_ && !batch.empty()) {
      int64_t rows = batch[0].inputs[0]->sizes()[0];
      const Clock::time_point until = std::min(batch[0].arrived + options_.batch_delay, batch[0].deadline);
      for (;;) {
        for (size_t i = 0; i < queue_.size() && rows < options_.max_batch;) {
          const int64_t more = queue_[i].inputs[0]->sizes()[0];
          if (rows + more > options_.max_batch || !may_join(batch[0], queue_[i])) {
            ++i;
            continue;
          }
          rows += more;
          batch.push_back(std::move(queue_[i]));
          queue_.erase(queue_.begin() + static_cast<ptrdiff_t>(i));
        }
        if (rows >= options_.max_batch || closed_ || more_.wait_until(lock, until) == std::cv_status::timeout) break;
      }
    }
  }
  for (Request& request : expired)
    finish(request, Status(Code::k_timeout, Message{"the deadline passed while the request waited", "model " + name_,
                                                    "nothing was run", "allow more time, or ask more slowly"}));
  return batch;
}

void ServedModel::work() {
  for (;;) {
    std::vector<Request> batch = take();
    if (!batch.empty()) {
      answer(std::move(batch));
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (closed_ && queue_.empty()) break;
  }
  leave_memory();
}

Result<Tensors> ServedModel::call(const Tensors& inputs) {
  const Clock::time_point begin = Clock::now();
  ++calls_;
  if (!inputs.empty() && inputs[0]->rank() > 0) rows_ += static_cast<uint64_t>(inputs[0]->sizes()[0]);
  const Device cpu;
  Tensors there, back;
  try {
    for (const TensorRef& input : inputs) {
      KRN_TRY_LET(TensorRef moved, services_.to_device(input, session_->device()));
      there.push_back(std::move(moved));
    }
    KRN_TRY_LET(const Tensors outputs, session_->call(there));
    for (const TensorRef& output : outputs) {
      KRN_TRY_LET(TensorRef moved, output ? services_.to_device(output, cpu) : Result<TensorRef>(TensorRef()));
      back.push_back(std::move(moved));
    }
  } catch (const std::exception& error) {  // memory that ran out: one request's
    return Status(Code::k_exhausted, Message{error.what(), "model " + name_, {}, {}});
  }
  call_seconds_.add(seconds(Clock::now() - begin));
  return back;
}

void ServedModel::answer(std::vector<Request> batch) {
  for (const Request& request : batch) queue_seconds_.add(seconds(Clock::now() - request.arrived));
  if (batches_ && batch[0].inputs[0]->sizes()[0] <= options_.max_batch) return answer_together(batch);
  for (Request& request : batch) finish(request, call(request.inputs));
}

Result<Tensors> ServedModel::joined(const std::vector<Request>& batch, int64_t rows) {
  Tensors out;
  for (size_t i = 0; i < batch[0].inputs.size(); ++i) {
    KRN_TRY_LET(const TensorRef whole, services_.allocate(with_rows(*batch[0].inputs[i], rows)));
    const int64_t bytes = row_bytes(spec_of(*whole));
    int64_t row = 0;
    const auto put = [&](const TensorRef& from) -> Status {
      const int64_t count = from->sizes()[0];
      KRN_TRY_LET(const TensorRef place, services_.view(whole, with_rows(*whole, count), row * bytes));
      row += count;
      return services_.copy(place, from);
    };
    for (const Request& request : batch) KRN_TRY(put(request.inputs[i]));
    if (row < rows) {  // with rows that are legal: the first one's
      KRN_TRY_LET(const TensorRef first, services_.view(whole, with_rows(*whole, 1), 0));
      while (row < rows) KRN_TRY(put(first));
    }
    out.push_back(whole);
  }
  return out;
}

Result<Tensors> ServedModel::rows_of(const Tensors& outputs, int64_t first, int64_t count) {
  Tensors out;
  for (const TensorRef& whole : outputs) {
    if (!whole || whole->rank() == 0) return Status(Code::k_internal, "an output has no rows");
    const TensorSpec spec = with_rows(*whole, count);
    KRN_TRY_LET(TensorRef part, services_.view(whole, spec, first * row_bytes(spec)));
    out.push_back(std::move(part));
  }
  return out;
}

void ServedModel::answer_together(std::vector<Request>& batch) {
  int64_t rows = 0;
  for (const Request& request : batch) rows += request.inputs[0]->sizes()[0];
  // Few kinds of calls: powers of two, each of which is decided once.
  const int64_t padded =
      std::max(rows, std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(rows, 1)))),
                              options_.max_batch));
  Result<Tensors> outputs = rows > 0 ? joined(batch, padded) : batch[0].inputs;
  if (outputs.ok()) outputs = call(*outputs);
  if (outputs.ok()) padded_rows_ += static_cast<uint64_t>(padded - rows);
  if (!outputs.ok() && batch.size() > 1) {  // of one request's doing: the others are answered
    for (Request& request : batch) finish(request, call(request.inputs));
    return;
  }
  int64_t row = 0;
  for (Request& request : batch) {
    const int64_t count = request.inputs[0]->sizes()[0];
    finish(request, outputs.ok() ? rows_of(*outputs, row, count) : outputs);
    row += count;
  }
}

std::string ServedModel::look_at_rows() {
  if (alone_) return session_->why_not_beside_calls();
  if (signature_.inputs.empty()) return "it takes no inputs";
  const std::string symbol = batch_symbol(signature_.inputs[0]);
  if (symbol.empty()) return "the first size of input \"" + signature_.inputs[0].name + "\" is fixed";
  for (const auto* ports : {&signature_.inputs, &signature_.outputs})
    for (const Port& port : *ports)
      if (batch_symbol(port) != symbol)
        return "\"" + port.name + "\" has another first size than input \"" + signature_.inputs[0].name + "\"";
  // That each size is free does not say that rows do not hear of each other: three rows at once are held against each
  // of them alone.
  std::vector<int64_t> sizes;
  std::vector<std::string> seen;
  const Dimension& batch = signature_.inputs[0].sizes[0];
  const int64_t rows = 3;
  if (batch.min > 1 || (batch.max > 0 && batch.max < rows)) return "the export allows no single rows";
  for (const Port& port : signature_.inputs)
    for (const Dimension& d : port.sizes) {
      if (!d.free || d.symbol.find('(') != std::string::npos ||
          std::find(seen.begin(), seen.end(), d.symbol) != seen.end())
        continue;
      seen.push_back(d.symbol);
      sizes.push_back(d.symbol == symbol ? rows : d.size);
    }
  const auto inputs = session_->example_inputs(1, sizes);
  if (!inputs.ok()) return inputs.status().message().what;
  const auto together = session_->call_eager(*inputs);
  if (!together.ok()) return together.status().message().what;
  for (int64_t row = 0; row < rows; ++row) {
    const auto part = rows_of(*inputs, row, 1);
    const auto alone = part.ok() ? session_->call_eager(*part) : part.status();
    const auto expected = rows_of(*together, row, 1);
    if (!alone.ok() || !expected.ok())
      return "its rows cannot be asked for one by one: " + (alone.ok() ? expected : alone).status().message().what;
    for (size_t k = 0; k < alone->size(); ++k) {
      const std::string called = "output \"" + signature_.outputs[k].name + "\"";
      const double near = dtype_bytes((*alone)[k]->dtype()) < 4 ? kNearlyInHalf : kNearly;
      const auto difference = difference_of((*alone)[k], (*expected)[k], services_);
      if (!difference.ok()) return called + " cannot be compared: " + difference.status().message().what;
      if (*difference > near)
        return fmt::format("rows hear of each other: {} of a row alone differs by {:.2g} of its largest element",
                           called, *difference);
    }
  }
  return {};
}

Status ServedModel::warm(const std::vector<std::vector<int64_t>>& sizes) {
  for (const std::vector<int64_t>& each : sizes) {
    KRN_TRY_LET(const Tensors inputs, session_->example_inputs(1, each));
    const std::lock_guard turn(runtime_.decision_turn());
    if (session_->is_decided(inputs)) continue;
    KRN_TRY(session_->compile(inputs).status());
  }
  return {};
}

ServedModel::Counts ServedModel::counts() const {
  Counts counts{answered_, failed_, refused_, expired_, calls_, rows_, padded_rows_, 0};
  const std::lock_guard lock(mutex_);
  counts.waiting = queue_.size();
  return counts;
}

}  // namespace keirin::tools
