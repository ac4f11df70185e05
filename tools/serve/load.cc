// SPDX-License-Identifier: Apache-2.0
//
// keirin load: what a model's callers notice under a load that does not wait for them, over HTTP or in process.
#include <fmt/format.h>
#include <signal.h>

#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/serve/load_run.h"
#include "tools/serve/protocol.h"
#include "tools/serve/words.h"
#include "tools/tensors.h"

namespace keirin::tools {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Tensors = std::vector<TensorRef>;

struct Load {
  Options runtime;
  LoadPlan plan;
  std::string model, size = "small", url, name, json, label;
  std::vector<std::string> at;
  bool compile = false, each = false;
};

struct Target {
  std::string host, port;
};

Result<Target> target_of(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  std::string rest = url.starts_with(kScheme) ? url.substr(kScheme.size()) : url;
  while (rest.ends_with('/')) rest.pop_back();
  const size_t colon = rest.rfind(':');
  if (colon == std::string::npos || colon == 0 || rest.find('/') != std::string::npos)
    return Status(
        Code::k_invalid_input,
        {"\"" + url + "\" is not the address of a server", {}, "nothing was sent", "give one like http://127.0.0.1:8000"});
  return Target{rest.substr(0, colon), rest.substr(colon + 1)};
}

// The request's bytes, tensors in binary.
http::request<http::string_body> message_of(const Target& target, const std::string& model, const Signature& signature,
                                            const Tensors& inputs) {
  nlohmann::json j = {{"inputs", nlohmann::json::array()}, {"parameters", {{"binary_data_output", true}}}};
  std::string bytes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorSpec spec = spec_of(*inputs[i]);
    int64_t size = dtype_bytes(spec.dtype);
    for (const int64_t d : spec.sizes) size *= d;
    j["inputs"].push_back({{"name", signature.inputs[i].name},
                           {"datatype", datatype_of(spec.dtype)},
                           {"shape", spec.sizes},
                           {"parameters", {{"binary_data_size", size}}}});
    bytes.append(static_cast<const char*>(inputs[i]->data()), static_cast<size_t>(size));
  }
  const std::string text = j.dump();
  http::request<http::string_body> message{http::verb::post, "/v2/models/" + model + "/infer", 11};
  message.set(http::field::host, target.host);
  message.set(http::field::content_type, "application/octet-stream");
  message.set("Inference-Header-Content-Length", std::to_string(text.size()));
  message.body() = text + bytes;
  message.prepare_payload();
  return message;
}

// One connection, opened again where the server closed it between two requests.
class Client {
 public:
  Client(Target target, const std::vector<http::request<http::string_body>>& messages)
      : target_(std::move(target)), messages_(messages), stream_(context_) {}

  std::string ask(size_t kind) {
    for (int attempt = 0;; ++attempt) {
      const bool reused = open_;
      boost::system::error_code error;
      if (!open_) {
        asio::ip::tcp::resolver resolver(context_);
        const auto found = resolver.resolve(target_.host, target_.port, error);
        if (!error) {
          stream_.connect(found, error);
          buffer_.clear();
        }
        if (error) return "no connection: " + error.message();
        boost::system::error_code ignored;
        stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
        open_ = true;
      }
      http::response_parser<http::string_body> parser;
      parser.body_limit(uint64_t{4} << 30);
      http::write(stream_, messages_[kind], error);
      if (!error) http::read(stream_, buffer_, parser, error);
      if (error) {
        close();
        // Between two requests the server may close a connection, as HTTP has it; the request has not begun then.
        if (reused && attempt == 0 && !parser.got_some()) continue;
        return "no answer: " + error.message();
      }
      if (!parser.get().keep_alive()) close();
      return parser.get().result_int() == 200 ? std::string() : "HTTP " + std::to_string(parser.get().result_int());
    }
  }

 private:
  void close() {
    boost::system::error_code ignored;
    stream_.socket().close(ignored);
    open_ = false;
  }

  const Target target_;
  const std::vector<http::request<http::string_body>>& messages_;
  asio::io_context context_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  bool open_ = false;
};

void print(const Load& load, const LoadResult& result) {
  const auto ms = [&](double q) { return result.quantile(q) * 1e3; };
  uint64_t failed = 0;
  for (const auto& [what, count] : result.failures) failed += count;
  const double rate = result.lasted > 0 ? static_cast<double>(result.seconds.size()) / result.lasted : 0;
  nlohmann::json j = {
      {"schema", "keirin/load/1"},
      {"model", load.model},
      {"url", load.url},
      {"rate", load.plan.rate},
      {"seconds", load.plan.seconds},
      {"callers", load.plan.callers},
      {"answered", result.seconds.size()},
      {"failed", failed},
      {"failures", result.failures},
      {"began_late", result.late},
      {"answered_per_s", rate},
      {"ms", {{"p50", ms(0.5)}, {"p90", ms(0.9)}, {"p99", ms(0.99)}, {"p99.9", ms(0.999)}, {"max", ms(1)}}}};
  if (load.each) {
    j["began"] = result.began;
    j["each"] = nlohmann::json::array();
    for (const LoadResult::Request& request : result.requests)
      j["each"].push_back({request.at, request.seconds * 1e3, request.kind, request.failed});
  }
  std::FILE* out = text_out(load.json);
  fmt::print(out, "{} answered, {} failed, {:.1f} answered a second ({:.1f} asked); {} began more than 1 ms late\n",
             result.seconds.size(), failed, rate, load.plan.rate, result.late);
  for (const auto& [what, count] : result.failures) fmt::print(out, "  {} x {}\n", count, what);
  fmt::print(out, "ms from the intended begin: p50 {:.3f}  p90 {:.3f}  p99 {:.3f}  p99.9 {:.3f}  max {:.3f}\n", ms(0.5),
             ms(0.9), ms(0.99), ms(0.999), ms(1));
  if (!load.json.empty())
    if (const Status status = write_text(load.json, j.dump(2) + "\n"); !status.ok()) (void)fail(status);
}

std::atomic<bool> g_stopped{false};  // by SIGINT: what was asked until then is told

Status run(Load& load, bool* failed) {
  load.plan.stop = &g_stopped;
  struct sigaction action {};
  action.sa_handler = [](int) { g_stopped = true; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  KRN_TRY_LET(const auto runtime, Runtime::open(load.runtime));
  KRN_TRY_LET(const std::string path, find_model(load.model, load.size));
  KRN_TRY_LET(const auto session, Session::open(*runtime, path, load.runtime));
  std::vector<Tensors> inputs;
  if (load.at.empty()) load.at.emplace_back();
  for (const std::string& sizes : load.at) {
    KRN_TRY_LET(const std::vector<int64_t> numbers, parse_sizes(sizes));
    KRN_TRY_LET(Tensors drawn, session->example_inputs(1, numbers));
    if (load.compile && load.url.empty()) KRN_TRY(session->compile(drawn).status());
    inputs.push_back(std::move(drawn));
  }
  load.plan.kinds = inputs.size();
  LoadResult result;
  if (load.url.empty()) {
    result = run_load(load.plan, [&] {
      return [&](size_t kind) {
        const auto outputs = session->call(inputs[kind]);
        return outputs.ok() ? std::string() : outputs.status().message().what;
      };
    });
  } else {
    KRN_TRY_LET(const Target target, target_of(load.url));
    const std::string name = load.name.empty() ? std::filesystem::path(path).stem().string() : load.name;
    const Signature signature = session->signature();
    std::vector<http::request<http::string_body>> messages;
    for (const Tensors& each : inputs) {
      Tensors there;
      for (const TensorRef& tensor : each) {
        KRN_TRY_LET(TensorRef moved, runtime->tensors().to_device(tensor, {}));
        there.push_back(std::move(moved));
      }
      messages.push_back(message_of(target, name, signature, there));
    }
    result = run_load(load.plan, [&] {
      auto client = std::make_shared<Client>(target, messages);
      return [client](size_t kind) { return client->ask(kind); };
    });
  }
  print(load, result);
  *failed = !result.failures.empty();
  return {};
}

}  // namespace

void add_load(CLI::App& app, int& exit_code) {
  auto state = std::make_shared<Load>();
  CLI::App* word = app.add_subcommand(
      "load", "ask a model at a given rate, and time each request from when it was meant to begin (docs/serve.md)");
  word->add_option("model", state->model,
                   "a .pt2 file or a name of the zoo: what is asked, and, without --url, what answers")
      ->required();
  word->add_option(
      "--url", state->url,
      "of a server of the Open Inference Protocol, http://127.0.0.1:8000; without, the model is called in process");
  word->add_option("--name", state->name, "under which the server knows the model; else the file's");
  word->add_option("--rate", state->plan.rate, "requests a second, at random times (Poisson)")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  word->add_option("--seconds", state->plan.seconds, "how long")->check(CLI::Range(0.01, 1e6))->capture_default_str();
  word->add_option("--callers", state->plan.callers, "requests that may be under way at once")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  word->add_option("--at", state->at,
                   "free sizes of a request (8,128), in the order of `keirin inspect`; repeat it for more, each as "
                   "often as it is given");
  word->add_option("--seed", state->plan.seed, "of times and sizes")->capture_default_str();
  word->add_flag("--compiled", state->compile, "in process: decide for the sizes before the first request");
  word->add_flag("--each", state->each,
                 "in the JSON each request too: [seconds from `began` (Unix time) to its intended begin, ms, number of its --at, failed]");
  add_json(*word, state->json);
  add_size(*word, state->size);
  add_options(*word, state->runtime);
  word->callback([state, &exit_code] {
    bool failed = false;
    const Status status = run(*state, &failed);
    if (!status.ok())
      exit_code = fail(status);
    else if (failed)
      exit_code = kFailed;
  });
}

}  // namespace keirin::tools
