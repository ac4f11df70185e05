// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/cache/cache.h"
#include "core/base/request.h"
#include "tools/serve/router.h"

namespace keirin::tools {
namespace {

// A family's lines stand together under its type, as the format asks.
class Text {
 public:
  void family(const char* name, const char* type, const char* help) {
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <class Number>
  void row(const std::string& name, const std::string& labels, Number value) {
    text_ += labels.empty() ? fmt::format("{} {}\n", name, value) : fmt::format("{}{{{}}} {}\n", name, labels, value);
  }
  void histogram(const std::string& name, const std::string& labels, const Histogram& histogram) {
    for (int power = 6; power <= 26; power += 2)  // 64 us to a minute
      row(name + "_bucket", fmt::format("{},le=\"{}\"", labels, static_cast<double>(uint64_t{1} << power) / 1e6),
          histogram.at_most(power));
    row(name + "_bucket", labels + ",le=\"+Inf\"", histogram.count());
    row(name + "_sum", labels, histogram.sum());
    row(name + "_count", labels, histogram.count());
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string label(const char* name, const std::string& value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return fmt::format("{}=\"{}\"", name, escaped);
}

}  // namespace

std::string Router::metrics() const {
  struct Row {
    std::shared_ptr<ServedModel> model;
    std::string labels;
    Session::Activity activity;
    ServedModel::Counts counts;
    std::vector<ModelReport> reports;
  };
  std::vector<Row> rows;
  for (const auto& model : table_.all())
    rows.push_back({model, label("model", model->name()), model->session().activity(), model->counts(),
                    model->session().reports_so_far()});
  Text text;
  text.family("keirin_requests_total", "counter", "requests for inference by HTTP status");
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : answers_)
      text.row("keirin_requests_total", label("model", key.first) + "," + label("code", std::to_string(key.second)),
               count);
    text.family("keirin_request_seconds", "histogram", "from a request's header to its answer");
    for (const auto& [model, seconds] : seconds_)
      text.histogram("keirin_request_seconds", label("model", model), *seconds);
  }
  text.family("keirin_calls_total", "counter", "calls of the model by what answered them, and why eager did");
  for (const Row& row : rows) {
    text.row("keirin_calls_total", row.labels + R"(,path="compiled",reason="")", row.activity.by_plan);
    text.row("keirin_calls_total", row.labels + R"(,path="eager",reason="chosen")", row.activity.eager_chosen);
    text.row("keirin_calls_total", row.labels + R"(,path="eager",reason="undecided")", row.activity.eager_undecided);
    text.row("keirin_calls_total", row.labels + R"(,path="eager",reason="plan_failed")", row.activity.eager_instead);
    text.row("keirin_calls_total", row.labels + R"(,path="eager",reason="shadow")", row.activity.eager_shadow);
    text.row("keirin_calls_total", row.labels + R"(,path="eager",reason="off")", row.activity.eager_off);
  }
  text.family("keirin_plans_setting", "gauge", "1 for what plans are for: on, shadow or off");
  for (const Row& row : rows)
    for (const std::string& word : option_row("plans").values.words) {
      Options options;
      options.plans = row.model->session().plans();
      text.row("keirin_plans_setting", row.labels + "," + label("plans", word), option_row("plans").get(options)[0] == word ? 1 : 0);
    }
  text.family("keirin_shadow_total", "counter", "calls in shadow that plans answered too, by what came out beside eager's answer");
  for (const Row& row : rows)
    for (const auto& [result, count] : {std::pair{"right", row.activity.shadow_right},
                                        {"wrong", row.activity.shadow_wrong},
                                        {"failed", row.activity.shadow_failed},
                                        {"dropped", row.activity.shadow_dropped},
                                        {"not_compared", row.activity.shadow_not_compared}})
      text.row("keirin_shadow_total", row.labels + "," + label("result", result), count);
  const auto each = [&](const char* name, const char* type, const char* help, auto&& value) {
    text.family(name, type, help);
    for (const Row& row : rows) text.row(name, row.labels, value(row));
  };
  text.family("keirin_call_seconds", "histogram", "of one call of the model, batches being one");
  for (const Row& row : rows) text.histogram("keirin_call_seconds", row.labels, row.model->call_seconds());
  text.family("keirin_queue_seconds", "histogram", "a request's wait for its call");
  for (const Row& row : rows) text.histogram("keirin_queue_seconds", row.labels, row.model->queue_seconds());
  each("keirin_queue_length", "gauge", "requests that wait", [](const Row& r) { return r.counts.waiting; });
  each("keirin_refused_total", "counter", "requests refused because the queue was full or the server ends",
       [](const Row& r) { return r.counts.refused; });
  each("keirin_expired_total", "counter", "requests whose deadline passed while they waited",
       [](const Row& r) { return r.counts.expired; });
  each("keirin_rows_total", "counter", "rows of all calls, those that fill a batch up included",
       [](const Row& r) { return r.counts.rows; });
  each("keirin_padded_rows_total", "counter", "rows that fill a batch up",
       [](const Row& r) { return r.counts.padded_rows; });
  each("keirin_ready", "gauge", "1 once every declared kind of call is decided",
       [](const Row& r) { return r.model->ready() ? 1 : 0; });
  each("keirin_shape_classes", "gauge", "kinds of calls that something is decided for",
       [](const Row& r) { return r.activity.kinds; });
  each("keirin_plans", "gauge", "kinds of calls that a plan answers", [](const Row& r) { return r.activity.plans; });
  each("keirin_breaker_open", "gauge", "plans that failed too often and rest",
       [](const Row& r) { return r.activity.breakers_open; });
  each("keirin_guard_misses_total", "counter", "calls that nothing was decided for although something was for others",
       [](const Row& r) { return r.reports.empty() ? uint64_t{0} : r.reports.back().calls_unadmitted; });
  const auto padded = [&](const char* name, const char* help, int64_t BucketSizeReport::*sum) {
    text.family(name, "counter", help);
    for (const Row& row : rows)
      if (!row.reports.empty())
        for (const BucketSizeReport& size : row.reports.back().buckets.sizes)
          text.row(name, row.labels + "," + label("size", size.name), size.*sum);
  };
  padded("keirin_bucket_asked_total", "free sizes of the calls that were padded to a bucket, as they came", &BucketSizeReport::asked);
  padded("keirin_bucket_ran_total", "the same as they ran: what is more is padding", &BucketSizeReport::ran);
  text.family("keirin_compiles_total", "counter", "decisions by what they chose");
  for (const Row& row : rows) {
    std::map<std::string, uint64_t> by_choice;
    for (const ModelReport& report : row.reports) ++by_choice[report.chosen];
    for (const auto& [choice, count] : by_choice)
      text.row("keirin_compiles_total", row.labels + "," + label("result", choice), count);
  }
  text.family("keirin_compile_seconds", "counter", "seconds of decisions by stage");
  for (const Row& row : rows) {
    std::map<std::string, double> by_stage;
    for (const ModelReport& report : row.reports)
      for (const auto& [stage, seconds] : report.stage_seconds) by_stage[stage] += seconds;
    for (const auto& [stage, seconds] : by_stage)
      text.row("keirin_compile_seconds", row.labels + "," + label("stage", stage), seconds);
  }
  const auto largest = [](const Row& row, auto&& value) {
    double most = 0;
    for (const ModelReport& report : row.reports) most = std::max(most, value(report));
    return most;
  };
  each("keirin_arena_bytes", "gauge", "memory that the largest chosen plan takes beside the weights",
       [&](const Row& r) {
         return largest(r, [](const ModelReport& report) { return static_cast<double>(report.peak_bytes); });
       });
  each("keirin_verify_error_ratio", "gauge", "largest error of a chosen plan over eager's own, against fp64",
       [&](const Row& r) {
         return largest(r, [](const ModelReport& report) {
           return report.eager_error > 0 ? report.max_error / report.eager_error : 0.0;
         });
       });
  text.family("keirin_cache_total", "counter",
              "reads of the cache of decisions and code, by what was looked for and whether it was there");
  if (Cache* cache = runtime_.cache())
    for (const auto& [kind, counts] : cache->reads()) {
      text.row("keirin_cache_total", label("kind", kind) + R"(,result="hit")", counts.hits);
      text.row("keirin_cache_total", label("kind", kind) + R"(,result="miss")", counts.misses);
    }
  text.family("keirin_request_compiles_total", "counter",
              "code compiled by a thread that answered a request: has to be 0");
  text.row("keirin_request_compiles_total", "", compiles_on_requests());
  return text.take();
}

}  // namespace keirin::tools
