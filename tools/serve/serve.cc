// SPDX-License-Identifier: Apache-2.0
//
// keirin serve: models behind HTTP, until SIGTERM.
#include <fmt/format.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "core/api/bundle.h"
#include "core/base/end_flag.h"
#include "tools/serve/router.h"
#include "tools/serve/warm.h"
#include "tools/serve/words.h"

namespace keirin::tools {
namespace {

struct Serve {
  Options runtime;
  std::string size = "small", warm, port_file, repository;
  std::vector<std::string> models;
  HttpOptions http;
  ServingOptions serving;
  double deadline_seconds = 30, batch_delay_ms = 1, drain_seconds = 1, end_seconds = 60, read_seconds = 30,
         idle_seconds = 75;
  uint64_t most_body_mb = 256;
};

sem_t g_ended;  // posted by the signals that end the server: nothing else may be done there
void on_signal(int) { sem_post(&g_ended); }

// Each connection is a descriptor.
void allow_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// "name=path", or a path or a name of the zoo, whose stem is the name.
std::pair<std::string, std::string> named(const std::string& word) {
  const size_t at = word.find('=');
  if (at != std::string::npos && word.find('/') > at) return {word.substr(0, at), word.substr(at + 1)};
  return {std::filesystem::path(word).stem().string(), word};
}

Status check_name(const std::string& name, const ModelTable& table) {
  if (!is_model_name(name))
    return Status(Code::k_invalid_input, {"\"" + name + "\" cannot be a model's name in a path",
                                          {},
                                          "nothing is served",
                                          "give NAME=PATH with a name of letters, digits, _ - and . that begins with no ."});
  if (table.find(name))
    return Status(
        Code::k_invalid_input,
        {"two models are called \"" + name + "\"", {}, "nothing is served", "give one of them as NAME=PATH"});
  return {};
}

// What answers from now on, and why: a line for each decision and change.
void say(const Event& event) {
  if (event.kind != Event::Kind::kDecided && event.kind != Event::Kind::kChanged) return;
  fmt::print("{}: {}\n", event.model, event.text);
  std::fflush(stdout);
}

Status serve(Serve& serve) {
  allow_descriptors();
  KRN_TRY_LET(const WarmShapes shapes,
              serve.warm.empty() ? Result<WarmShapes>(WarmShapes()) : read_warm_shapes(serve.warm));
  serve.runtime.on_event = say;
  KRN_TRY_LET(auto runtime, Runtime::open(serve.runtime));
  ModelTable table;
  std::string names;
  for (const std::string& word : serve.models) {
    const auto [name, file] = named(word);
    KRN_TRY(check_name(name, table));
    KRN_TRY_LET(const std::string path, find_model(file, serve.size));
    KRN_TRY_LET(auto session, Session::open(*runtime, path, serve.runtime));
    const auto model = std::make_shared<ServedModel>(name, *runtime, std::move(session), serve.serving);
    if (serve.serving.max_batch > 1 && !model->batches())
      fmt::print("{}: requests share no calls: {}\n", name, model->why_no_batches());
    // What a bundle was made for is declared as --warm declares it; where its decisions could be taken over that is done already.
    if (const OpenedBundle* bundle = model->session().bundle(); bundle && !bundle->why_not.empty())
      fmt::print("{}: {} of {} kinds of the bundle are taken over: {}\n", name, bundle->taken, bundle->list.kinds.size(), bundle->why_not);
    if (!sizes_to_warm(*model, shapes).empty()) model->set_ready(false);
    names += (names.empty() ? "" : ", ") + name;
    table.put(model);
  }
  std::optional<Repository> repository;
  if (!serve.repository.empty()) repository.emplace(serve.repository, table, *runtime, serve.runtime, serve.serving, shapes);
  const std::vector<std::string> more = repository ? repository->names() : std::vector<std::string>();
  for (const auto& [name, sizes] : shapes)
    if (!table.find(name) && std::find(more.begin(), more.end(), name) == more.end())
      return Status(Code::k_invalid_input, {"\"" + name + "\" is not a model that is served", serve.warm,
                                            "nothing is served", "name models as they are served"});
  Router router(table, repository ? &*repository : nullptr, *runtime, std::chrono::duration<double>(serve.deadline_seconds));
  sem_init(&g_ended, 0, 0);
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  KRN_TRY_LET(const auto server,
              HttpServer::open(serve.http, [&router](HttpRequest&& request, const HttpServer::Respond& respond) {
                router.handle(std::move(request), respond);
              }));
  fmt::print("serving {} on http://{}:{}\n", names, serve.http.address, server->port());
  std::fflush(stdout);
  if (!serve.port_file.empty()) KRN_TRY(write_text(serve.port_file, std::to_string(server->port()) + "\n"));
  // One after another: two races would measure each other.
  std::atomic<bool> stop{false};
  std::thread warming([&] {
    end_when(&stop);
    bool any = false;
    for (const std::string& word : serve.models) {
      const auto model = table.find(named(word).first);
      if (!model || model->ready() || stop) continue;
      any = true;
      if (const Status status = model->warm(sizes_to_warm(*model, shapes)); status.ok())
        model->set_ready(true);
      else if (!stop)
        fmt::print(stderr, "keirin: {} is not ready: {}\n", model->name(), status.text());
    }
    if (!stop && any) fmt::print("warmed\n"), std::fflush(stdout);
  });
  while (sem_wait(&g_ended) != 0) {
  }
  fmt::print("ending: {} connections are open\n", server->num_connections());
  std::fflush(stdout);
  stop = true;
  router.set_ending();
  if (repository) repository->end();
  server->end(std::chrono::milliseconds(static_cast<int64_t>(serve.end_seconds * 1e3)));
  std::vector<std::string> last;
  for (const auto& model : table.all()) model->close(), last.push_back(model->name());
  warming.join();
  const ServedModel::Counts all = table.counts();
  for (const std::string& name : last) table.remove(name, std::chrono::hours(24));  // before the server, to whose connections they answer
  fmt::print("ended: {} requests answered, {} failed, {} refused, {} too late; {} connections cut off\n", all.answered,
             all.failed, all.refused, all.expired, server->num_connections());
  return {};
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  auto state = std::make_shared<Serve>();
  state->runtime.compile = When::kBackground;
  CLI::App* word =
      app.add_subcommand("serve", "answer requests over HTTP by the Open Inference Protocol (docs/serve.md)");
  word->add_option("model", state->models, ".pt2 files, bundles or names of the zoo; NAME=PATH serves a file under another name")
      ->required();
  word->add_option("--port", state->http.port, "0: any that is free")->capture_default_str();
  word->add_option("--address", state->http.address, "0.0.0.0: all of this machine's")->capture_default_str();
  word->add_option("--port-file", state->port_file, "write the port to this file once it is listened on");
  word->add_option("--warm", state->warm, "a JSON file of sizes that are decided first; ready when all are")
      ->check(CLI::ExistingFile);
  word->add_option("--repository", state->repository,
                   "a folder whose models, NAME.pt2 or NAME.krn, may be loaded by name while it serves: new ones, and new versions")
      ->check(CLI::ExistingDirectory);
  word->add_option("--workers", state->serving.workers, "threads that call each model")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  word->add_option("--queue", state->serving.queue, "requests that may wait for each model; more are answered 503")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  word->add_option("--deadline", state->deadline_seconds, "seconds after which a request that waits is answered 504")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  word->add_option("--max-batch", state->serving.max_batch, "rows of a call that requests may share; 1: none share one")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  word->add_option("--batch-delay", state->batch_delay_ms, "milliseconds that a request waits for others")
      ->check(CLI::Range(0.0, 10000.0))
      ->capture_default_str();
  word->add_option("--http-threads", state->http.threads, "threads that read and write requests")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  word->add_option("--connections", state->http.most_connections, "more are answered 503 and closed")
      ->capture_default_str();
  word->add_option("--most-body", state->most_body_mb, "MiB of one request's body")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  word->add_option("--read-timeout", state->read_seconds, "seconds for one request to arrive, and one answer to leave")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  word->add_option("--idle-timeout", state->idle_seconds, "seconds that a connection may idle")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str();
  word->add_option("--drain", state->drain_seconds, "seconds after SIGTERM in which connections are still accepted")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  word->add_option("--end-within", state->end_seconds, "seconds after SIGTERM in which what has begun may end")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  add_size(*word, state->size);
  add_options(*word, state->runtime);
  word->callback([state, &exit_code] {
    state->http.most_body_bytes = state->most_body_mb << 20;
    state->http.read_timeout = std::chrono::seconds(static_cast<int64_t>(state->read_seconds));
    state->http.idle_timeout = std::chrono::seconds(static_cast<int64_t>(state->idle_seconds));
    state->http.drain = std::chrono::milliseconds(static_cast<int64_t>(state->drain_seconds * 1e3));
    state->serving.batch_delay = std::chrono::microseconds(static_cast<int64_t>(state->batch_delay_ms * 1e3));
    if (const Status status = serve(*state); !status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
