// SPDX-License-Identifier: Apache-2.0
//
// J: executables as bytes. Loading is executing, so bytes of another kind are refused, and cut ones lie at the end of a page.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/certify/child.h"
#include "tests/certify/trial.h"

namespace keirin::certify {
namespace {

struct Artifact {
  std::string token, body;
  bool operator==(const Artifact&) const = default;
};

krn_sink sink_of(std::string& text) {
  return {[](void* ctx, const void* data, uint64_t size) -> krn_code {
            static_cast<std::string*>(ctx)->append(static_cast<const char*>(data), size);
            return KRN_STATUS_ok;
          },
          &text};
}

Artifact save(Trial& t, krn_exec* exec) {
  Artifact out;
  const krn_sink token = sink_of(out.token), body = sink_of(out.body);
  t.must("krn.artifact.save", [&](krn_err* err) { return t.artifact().save(exec, &token, &body, err); });
  return out;
}

krn_code load(Trial& t, const Region& region, const Artifact& artifact, krn_exec** out) {
  const krn_region view = region.view();
  const AtPageEnd token(artifact.token.data(), artifact.token.size()), body(artifact.body.data(), artifact.body.size());
  return t.call("krn.artifact.load", [&](krn_err* err) {
    return t.artifact().load(t.opened(), &view, {token.data(), artifact.token.size()}, {body.data(), artifact.body.size()}, out, err);
  });
}

void try_loaded(Trial& t, const Region& region, krn_exec* loaded) {
  Arguments arguments(region, t.needs(loaded));
  arguments.feed(region.row, 1);
  t.run(loaded, arguments.ready());
  arguments.expect_right();
}

krn_code check(Trial& t, const std::string& token, uint32_t* verdict) {
  if (!t.artifact().check) throw NotOffered{"no krn.artifact.check"};
  const AtPageEnd memory(token.data(), token.size());
  return t.call("krn.artifact.check",
                [&](krn_err* err) { return t.artifact().check(t.opened(), {memory.data(), token.size()}, verdict, err); });
}

bool refuses(krn_code code) {
  return code == KRN_STATUS_corrupt || code == KRN_STATUS_version || code == KRN_STATUS_unsupported || code == KRN_STATUS_invalid_input;
}

void round_trip(Trial& t) {
  (void)t.artifact();
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  const Artifact artifact = save(t, exec);
  t.release(exec);
  krn_exec* loaded = nullptr;
  const krn_code code = load(t, region, artifact, &loaded);
  expect(code == KRN_STATUS_ok && loaded, "krn.artifact.load of what was just saved answers {}: {}", code_name(code), t.text);
  try_loaded(t, region, loaded);
}

void known_here(Trial& t) {
  const Artifact artifact = save(t, t.make(t.base()));
  uint32_t verdict = 4711;
  const krn_code code = check(t, artifact.token, &verdict);
  expect(code == KRN_STATUS_ok, "krn.artifact.check answers {}: {}", code_name(code), t.text);
  expect(verdict != KRN_VERDICT_REJECT, "krn.artifact.check rejects a token on the machine that made it");
}

void short_token(Trial& t) {
  const Artifact artifact = save(t, t.make(t.base()));
  expect(artifact.token.size() <= 4096, "the token has {} bytes; 4096 are the most", artifact.token.size());
}

void saves_alike(Trial& t) {
  krn_exec* const exec = t.make(t.base());
  expect(save(t, exec) == save(t, exec), "saved again, the same executable gives other bytes");
}

void knows_verdicts(Trial& t) {
  const Artifact artifact = save(t, t.make(t.base()));
  std::mt19937 random(1);
  for (int i = 0; i < 200 && !artifact.token.empty(); ++i) {
    std::string token = artifact.token;
    token[random() % token.size()] ^= static_cast<char>(1 << (random() % 8));
    uint32_t verdict = KRN_VERDICT_REJECT;
    const krn_code code = check(t, token, &verdict);
    expect(code != KRN_STATUS_ok || verdict <= KRN_VERDICT_OPTIMAL, "of a damaged token krn.artifact.check gives the verdict {}", verdict);
  }
}

void foreign_tokens(Trial& t) {
  (void)t.base();
  std::mt19937 random(2);
  for (const size_t size : {0, 1, 7, 64, 4096}) {
    std::string token(size, '\0');
    for (char& c : token) c = static_cast<char>(random());
    uint32_t verdict = KRN_VERDICT_REJECT;
    const krn_code code = check(t, token, &verdict);
    expect(code != KRN_STATUS_ok || verdict == KRN_VERDICT_REJECT, "{} bytes of noise are a token that krn.artifact.check takes", size);
  }
}

void damaged_bodies(Trial& t) {
  const Region& region = t.base();
  const Artifact artifact = save(t, t.make(region));
  std::mt19937 random(3);
  for (int i = 0; i < (t.request().quick ? 100 : 400) && !artifact.body.empty(); ++i) {
    Artifact bad = artifact;
    bad.body[random() % bad.body.size()] ^= static_cast<char>(1 << (random() % 8));
    krn_exec* loaded = nullptr;
    const krn_code code = load(t, region, bad, &loaded);
    if (code != KRN_STATUS_ok) {
      expect(refuses(code), "damage {}: krn.artifact.load answers {}, not corrupt", i, code_name(code));
      continue;
    }
    try {
      try_loaded(t, region, loaded);
    } catch (const Failed& failed) {
      fail("damage {} is loaded: {}", i, failed.what);
    }
  }
}

void cut_bodies(Trial& t) {
  const Region& region = t.base();
  const Artifact artifact = save(t, t.make(region));
  const size_t steps = std::min<size_t>(artifact.body.size(), 200);
  for (size_t i = 0; i < steps; ++i) {
    Artifact bad = artifact;
    bad.body.resize(artifact.body.size() * i / steps);
    krn_exec* loaded = nullptr;
    const krn_code code = load(t, region, bad, &loaded);
    expect(refuses(code), "{} of {} bytes: krn.artifact.load answers {}, not corrupt", bad.body.size(), artifact.body.size(),
           code_name(code));
  }
}

void other_regions(Trial& t) {
  const Artifact artifact = save(t, t.make(t.base()));
  krn_exec* loaded = nullptr;
  const krn_code code = load(t, t.sized({16, 9}), artifact, &loaded);
  expect(refuses(code), "krn.artifact.load of another region's artifact answers {}, not corrupt", code_name(code));
}

void full_sinks(Trial& t) {
  krn_exec* const exec = t.make(t.base());
  const krn_sink full{[](void*, const void*, uint64_t) -> krn_code { return KRN_STATUS_exhausted; }, nullptr};
  std::string text;
  const krn_sink open = sink_of(text);
  for (const bool token : {true, false}) {
    const krn_code code = t.call("krn.artifact.save", [&](krn_err* err) {
      return t.artifact().save(exec, token ? &full : &open, token ? &open : &full, err);
    });
    expect(code != KRN_STATUS_ok, "the host refuses the {}, and krn.artifact.save answers ok", token ? "token" : "body");
  }
}

void resized(Trial& t) {
  if (!t.compile().resize) throw NotOffered{"no krn.compile.resize: the host compiles for every size"};
  const Region &region = t.base(), &other = t.sized({16, 9});
  krn_exec* const like = t.make(region);
  const krn_region view = other.view();
  krn_exec* made = nullptr;
  const krn_code code = t.call("krn.compile.resize", [&](krn_err* err) { return t.compile().resize(like, &view, &made, err); });
  expect(code == KRN_STATUS_ok ? made != nullptr : code == KRN_STATUS_unsupported, "krn.compile.resize answers {}: {}", code_name(code),
         t.text);
  if (made) try_loaded(t, other, made);
  try_loaded(t, region, like);
}

std::string digits_of(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<uint8_t>(c));
  return out;
}

std::string bytes_of(const std::string& digits) {
  std::string out;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) out += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return out;
}

void other_processes(Trial& t) {
  const Trial::Request& r = t.request();
  const nlohmann::json request = {{"library", r.library}, {"guid", r.guid},     {"version", r.version},
                                  {"check", kSavesArtifact}, {"device", r.device}, {"quick", r.quick}};
  const Result<ChildAnswer> answer = ask_child(request.dump(), std::chrono::seconds(50));
  const std::string told = answer.ok() ? answer->told : answer.status().text();
  const size_t at = told.find("saved "), dot = told.find('.', at), end = told.find('\n', at);
  expect(at != std::string::npos && dot < end && end != std::string::npos, "another process could not save an artifact: {}", told);
  const Artifact artifact{bytes_of(told.substr(at + 6, dot - at - 6)), bytes_of(told.substr(dot + 1, end - dot - 1))};
  krn_exec* loaded = nullptr;
  const Region& region = t.base();
  const krn_code code = load(t, region, artifact, &loaded);
  expect(code == KRN_STATUS_ok && loaded, "krn.artifact.load of another process's artifact answers {}: {}", code_name(code), t.text);
  try_loaded(t, region, loaded);
}

constexpr Check kChecks[] = {
    {"J/round_trip", "loads what it saved, and that computes", Rung::kRan, round_trip, Rung::kArtifact},
    {"J/known_here", "knows its own token", Rung::kArtifact, known_here},
    {"J/short_token", "has a token of 4 KiB at most", Rung::kArtifact, short_token},
    {"J/saves_alike", "saves the same executable as the same bytes", Rung::kArtifact, saves_alike},
    {"J/knows_verdicts", "has no verdict but those that there are", Rung::kArtifact, knows_verdicts},
    {"J/foreign_tokens", "takes no token that is not its own", Rung::kArtifact, foreign_tokens},
    {"J/damaged_bodies", "refuses damaged code, or is right all the same", Rung::kArtifact, damaged_bodies},
    {"J/cut_bodies", "refuses code that was cut off", Rung::kArtifact, cut_bodies},
    {"J/other_regions", "refuses another region's code", Rung::kArtifact, other_regions},
    {"J/full_sinks", "fails where the host takes no more bytes", Rung::kArtifact, full_sinks},
    {"J/resized", "takes an executable to another size, or says that it cannot", Rung::kRan, resized},
    {"J/other_processes", "loads what another process saved", Rung::kArtifact, other_processes},
};

}  // namespace

std::string saved_artifact(Trial& t) {
  const Artifact artifact = save(t, t.make(t.base()));
  return digits_of(artifact.token) + "." + digits_of(artifact.body);
}

std::span<const Check> artifact_checks() { return kChecks; }

}  // namespace keirin::certify
