// SPDX-License-Identifier: Apache-2.0
#include "tools/serve/router.h"

#include <algorithm>
#include <charconv>

#include "tools/serve/protocol.h"

namespace keirin::tools {
namespace {

using nlohmann::json;

HttpAnswer answer_of(const json& body, unsigned status = 200) {
  HttpAnswer answer;
  answer.status = status;
  answer.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
  return answer;
}

HttpAnswer error_of(unsigned status, const std::string& what) {
  HttpAnswer answer = answer_of({{"error", what}}, status);
  answer.retry = status == 503;
  return answer;
}

// Eager's own error on these inputs is the client's, as `invalid_input` is.
unsigned http_status(const Status& status) {
  if (status.cause() || status.code() == Code::k_invalid_input) return 400;
  if (status.code() == Code::k_timeout) return 504;
  if (status.code() == Code::k_exhausted) return 503;
  return 500;
}

HttpAnswer error_of(const Status& status) { return error_of(http_status(status), status.text()); }

// "a/b/c" of "/v2/models/a/b/c"
std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  size_t at = 1;
  while (at <= path.size()) {
    const size_t end = std::min(path.find('/', at), path.size());
    parts.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  if (!parts.empty() && parts.back().empty()) parts.pop_back();
  return parts;
}

HttpAnswer setting_of(const ServedModel& model) {
  return answer_of({{"plans", plans_word(model.session().plans())}});
}

}  // namespace

void Router::count(const std::string& model, unsigned status) {
  const std::lock_guard lock(mutex_);
  ++answers_[{model, status}];
}

HttpAnswer Router::get(const std::string& path) const {
  if (path == "/metrics") {
    HttpAnswer answer;
    answer.content_type = "text/plain; version=0.0.4";
    answer.body = metrics();
    return answer;
  }
  std::vector<std::string> parts = parts_of(path);
  const auto is = [&](std::initializer_list<const char*> words) {
    return std::equal(parts.begin(), parts.end(), words.begin(), words.end());
  };
  if (is({"v2"})) return answer_of(server_metadata(repository_ != nullptr));
  if (is({"v2", "health", "live"})) return answer_of({{"live", true}});
  if (is({"v2", "health", "ready"})) {
    const auto models = table_.all();
    const bool ready = !ending_ && std::all_of(models.begin(), models.end(), [](const auto& model) { return model->ready(); });
    return answer_of({{"ready", ready}}, ready ? 200 : 503);
  }
  if (parts.size() < 3 || parts[0] != "v2" || parts[1] != "models") return error_of(404, "there is no such path");
  const auto model = table_.find(parts[2]);
  if (!model) return error_of(404, "no model is called \"" + parts[2] + "\"");
  if (parts.size() >= 5 && parts[3] == "versions") {
    if (parts[4] != "1") return error_of(404, "the model has version 1 alone");
    parts.erase(parts.begin() + 3, parts.begin() + 5);
  }
  if (parts.size() == 3) return answer_of(model_metadata(model->name(), model->signature()));
  if (parts.size() == 4 && parts[3] == "ready") {
    const bool ready = model->ready() && !ending_;
    return answer_of({{"name", model->name()}, {"ready", ready}}, ready ? 200 : 503);
  }
  if (parts.size() == 5 && parts[3] == "plans" && parts[4] == "setting") return setting_of(*model);
  return error_of(404, "there is no such path");
}

// Beside requests: those that have begun end as they began.
HttpAnswer Router::set_plans(ServedModel& model, const std::string& body) const {
  const json j = json::parse(body, nullptr, false);
  if (!j.is_object() || j.size() != 1 || !j.contains("plans") || !j["plans"].is_string())
    return error_of(400, R"(a setting of plans is {"plans": "on"}, "shadow" or "off"; nothing was changed)");
  const Result<Plans> plans = keirin::plans_of(j["plans"].get<std::string>());
  if (!plans.ok()) return error_of(plans.status());
  model.session().set_plans(*plans);
  return setting_of(model);
}

void Router::handle(HttpRequest&& request, const HttpServer::Respond& respond) {
  if (request.method == "GET" || request.method == "HEAD") return respond(get(request.path));
  if (request.method != "POST") return respond(error_of(405, "GET and POST are understood"));
  std::vector<std::string> parts = parts_of(request.path);
  if (parts.size() > 5 && parts[3] == "versions" && parts[4] == "1") parts.erase(parts.begin() + 3, parts.begin() + 5);
  const bool sets_plans = parts.size() == 5 && parts[3] == "plans" && parts[4] == "setting";
  const bool infers = parts.size() == 4 && parts[3] == "infer";
  if (repository_ && parts.size() > 2 && parts[0] == "v2" && parts[1] == "repository") return ask_repository(parts, respond);
  if (!(infers || sets_plans) || parts[0] != "v2" || parts[1] != "models")
    return respond(error_of(404, "there is no such path to post to"));
  const auto model = table_.find(parts[2]);
  if (!model) return respond(error_of(404, "no model is called \"" + parts[2] + "\""));
  if (sets_plans) return respond(set_plans(*model, request.body));
  infer(model, std::move(request), respond);
}

// POST /v2/repository/index, /v2/repository/models/NAME/load and .../unload. The latter are answered when it is done.
void Router::ask_repository(const std::vector<std::string>& parts, const HttpServer::Respond& respond) {
  if (parts.size() == 3 && parts[2] == "index") {
    json list = json::array();
    std::vector<std::string> names = repository_->names();
    for (const auto& model : table_.all())
      if (std::find(names.begin(), names.end(), model->name()) == names.end()) names.push_back(model->name());
    for (const std::string& name : names) {
      const auto model = table_.find(name);
      list.push_back({{"name", name}, {"version", "1"}, {"state", !model ? "UNAVAILABLE" : model->ready() ? "READY" : "LOADING"},
                      {"reason", model ? "" : "it is not loaded"}});
    }
    return respond(answer_of(list));
  }
  const bool known = parts.size() == 5 && parts[2] == "models" && (parts[4] == "load" || parts[4] == "unload");
  if (!known) return respond(error_of(404, "there is no such path to post to"));
  const auto done = [respond](const Status& status) { respond(status.ok() ? answer_of(json::object()) : error_of(status)); };
  parts[4] == "load" ? repository_->load(parts[3], done) : repository_->unload(parts[3], done);
}

void Router::infer(const std::shared_ptr<ServedModel>& held, HttpRequest&& request, const HttpServer::Respond& respond) {
  ServedModel& model = *held;
  const auto finish = [this, held, &model, respond, arrived = request.arrived](HttpAnswer answer) {
    count(model.name(), answer.status);
    Histogram* seconds = nullptr;
    {
      const std::lock_guard lock(mutex_);
      auto& held = seconds_[model.name()];
      if (!held) held = std::make_unique<Histogram>();
      seconds = held.get();
    }
    seconds->add(std::chrono::duration<double>(std::chrono::steady_clock::now() - arrived).count());
    respond(std::move(answer));
  };
  std::optional<size_t> json_bytes;
  if (request.json_length) {
    size_t value = 0;
    const char* end = request.json_length->data() + request.json_length->size();
    if (const auto [at, error] = std::from_chars(request.json_length->data(), end, value);
        error != std::errc() || at != end)
      return finish(error_of(400, "Inference-Header-Content-Length is not a length"));
    json_bytes = value;
  }
  auto parsed = parse_infer(request.body, json_bytes, model.signature(), runtime_.tensors());
  if (!parsed.ok()) return finish(error_of(parsed.status()));
  ServedModel::Request call;
  call.inputs = std::move(parsed->inputs);
  call.arrived = request.arrived;
  using Clock = ServedModel::Clock;
  auto allowed = std::chrono::duration_cast<Clock::duration>(deadline_);
  if (parsed->timeout_us > 0)
    allowed = std::min<Clock::duration>(
        allowed, std::chrono::microseconds(std::min<int64_t>(parsed->timeout_us, int64_t{1} << 50)));
  call.deadline = request.arrived + allowed;
  call.done = [this, &model, finish, wanted = std::move(*parsed)](Result<ServedModel::Tensors> outputs) {
    if (!outputs.ok()) return finish(error_of(outputs.status()));
    Result<InferAnswer> written = write_infer(wanted, model.name(), model.signature(), *outputs, runtime_.tensors());
    if (!written.ok()) return finish(error_of(written.status()));
    HttpAnswer answer;
    answer.body = std::move(written->body);
    answer.json_length = written->json_bytes;
    if (written->json_bytes > 0) answer.content_type = "application/octet-stream";
    finish(std::move(answer));
  };
  model.submit(std::move(call));
}

}  // namespace keirin::tools
