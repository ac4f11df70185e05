// SPDX-License-Identifier: Apache-2.0
//
// E: what is claimed compiles, claims are facts about bytes, and bytes that are not a region are refused.
#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "abi/graph.h"
#include "tests/certify/trial.h"

namespace keirin::certify {
namespace {

void check_said(const Said& said, size_t num_nodes) {
  std::set<uint32_t> taken;
  for (const Said::Claim& claim : said.claims)
    for (const uint32_t node : claim.nodes) {
      expect(node < num_nodes, "it claims node {} of a region of {}", node, num_nodes);
      expect(taken.insert(node).second, "it claims node {} twice", node);
    }
}

void claims(Trial& t) {
  const Region region = region_of(OpCode::k_relu, Dims{8, 16});
  check_said(t.claim(region), region.bytes.nodes.size());
  (void)t.row();
}

void claims_alike(Trial& t) {
  const Said first = t.claim(t.base());
  for (int i = 0; i < 5; ++i) expect(t.claim(t.base()) == first, "the same bytes are claimed otherwise the next time");
}

// Opaque, f64, and the operator of the probe list: something to refuse for nearly everybody.
Region mixed(OpCode row) {
  Region region;
  region.row = row;
  const ValueId x = region.graph.add_input(f32({8, 16}), 0), y = region.graph.add_input(f32({8, 16}), 1);
  ValueIds operands{x};
  if (row == OpCode::k_add || row == OpCode::k_mul) operands.push_back(y);
  const OpId first = region.graph.add_op(row, operands, {}, {f32({8, 16})});
  const ValueId between = region.graph.ops[first].results[0];
  const OpId opaque = region.graph.add_op(OpCode::kOpaque, {between}, {{AttrKey::k_aten, std::string("acme::op")}}, {f32({8, 16})});
  region.graph.ops[opaque].call = 0;
  operands[0] = region.graph.ops[opaque].results[0];
  const OpId last = region.graph.add_op(row, operands, {}, {f32({8, 16})});
  region.graph.outputs.push_back({region.graph.ops[last].results[0], kNone, kNone});
  Result<RegionBytes> bytes = write_region(region.graph);
  if (!bytes.ok()) throw NotOffered{"a graph with an unknown operator cannot be written: " + bytes.status().text()};
  region.bytes = std::move(bytes).value();
  return region;
}

bool is_opaque(const Region& region, uint32_t node) {
  return region.graph.ops[region.bytes.nodes[node]].code == OpCode::kOpaque;
}

void leaves_opaque(Trial& t) {
  const Region region = mixed(t.row());
  for (const Said::Claim& claim : t.claim(region).claims)
    for (const uint32_t node : claim.nodes)
      expect(node >= region.bytes.nodes.size() || !is_opaque(region, node), "it claims an operator that only the host can call");
}

void says_why_not(Trial& t) {
  const Region region = mixed(t.row());
  const Said said = t.claim(region);
  std::set<uint32_t> claimed;
  for (const Said::Claim& claim : said.claims) claimed.insert(claim.nodes.begin(), claim.nodes.end());
  for (const Said::Refusal& refusal : said.refusals) {
    expect(refusal.node < region.bytes.nodes.size(), "it refuses node {} of {}", refusal.node, region.bytes.nodes.size());
    expect(!refusal.why.empty(), "it refuses node {} without a reason", refusal.node);
    expect(!claimed.count(refusal.node), "it claims node {} and refuses it", refusal.node);
  }
}

void costs(Trial& t) {
  for (const Said::Claim& claim : t.claim(t.base()).claims) {
    expect(std::isfinite(claim.cost) && claim.cost >= 0, "a claim costs {} ns", claim.cost);
    expect(claim.confidence >= 0 && claim.confidence <= 1, "a claim has the confidence {}, not one from 0 to 1", claim.confidence);
  }
}

void compiles(Trial& t) { t.release(t.make(t.base())); }

void compiles_all(Trial& t) {
  for (int64_t n = 1; n <= (t.request().quick ? 33 : 130); ++n) {
    const Region region = region_of(t.row(), Dims{n});
    if (t.claims(region)) t.release(t.make(region));
  }
  for (const Dims& sizes : {Dims{1, 1, 1}, Dims{2, 3, 4, 5}, Dims{3, 1, 5, 1, 2}, Dims{1, 7}, Dims{7, 1}}) {
    const Region region = region_of(t.row(), sizes);
    if (t.claims(region)) t.release(t.make(region));
  }
}

void ends_candidates(Trial& t) {
  const Region& region = t.base();
  krn_options options = Trial::options();
  const krn_policy policy = Trial::policy();
  for (options.candidate = 1; options.candidate < 64; ++options.candidate) {
    krn_exec* made = nullptr;
    const krn_region view = region.view();
    const krn_code code = t.call("krn.compile.compile", [&](krn_err* err) {
      return t.compile().compile(t.opened(), &view, &policy, &options, &made, err);
    });
    if (code == KRN_STATUS_unsupported) return;
    expect(code == KRN_STATUS_ok, "candidate {} answers {}; past the last it is unsupported", options.candidate, code_name(code));
    t.release(made);
  }
  fail("it has a candidate {}: there is no last one", options.candidate);
}

void policies(Trial& t) {
  const Region& region = t.base();
  for (const uint32_t numerics : {KRN_NUMERICS_STRICT, KRN_NUMERICS_FAST})
    for (const uint32_t flags : {0u, KRN_POLICY_DETERMINISTIC}) {
      krn_policy policy = Trial::policy();
      policy.numerics = numerics;
      policy.flags = flags;
      if (!t.claim(region.view(), policy).all_of(region.bytes.nodes.size())) continue;
      t.release(t.make(region.view(), policy, Trial::options()));
    }
}

void info_can_be(Trial& t) {
  krn_exec* const exec = t.make(t.base());
  const krn_exec_info info = t.info(exec);
  constexpr uint32_t kKnown = KRN_EXEC_CONCURRENT | KRN_EXEC_REPLAY_SAFE | KRN_EXEC_WEIGHTS_BAKED | KRN_EXEC_INPUTS_INTACT;
  expect((info.flags & ~kKnown) == 0, "krn.exec.info sets flags that are not defined: {:#x}", info.flags & ~kKnown);
  const krn_needs needs = t.needs(exec);
  expect((needs.workspace_align & (needs.workspace_align - 1)) == 0, "the workspace's alignment {} is no power of two",
         needs.workspace_align);
}

void damaged_regions(Trial& t) {
  const Region& region = t.base();
  const krn_policy policy = Trial::policy();
  const krn_options options = Trial::options();
  std::mt19937 random(1);
  for (int i = 0; i < (t.request().quick ? 300 : 3000); ++i) {
    std::vector<uint8_t> bytes = region.bytes.bytes;
    if (i % 4 == 0) bytes.resize(random() % bytes.size());
    else bytes[random() % bytes.size()] ^= static_cast<uint8_t>(1 << (random() % 8));
    const size_t size = bytes.size();
    bytes.resize((size + 7) / 8 * 8);  // aligned as the contract says
    const AtPageEnd memory(bytes.data(), bytes.size());
    krn_graph graph;
    if (krn_graph_open(memory.data(), size, &graph) == 0) continue;  // another region
    krn_region view = region.view();
    view.graph = {memory.data(), size};
    krn_exec* made = nullptr;
    const krn_code code = t.call("krn.compile.compile", [&](krn_err* err) {
      return t.compile().compile(t.opened(), &view, &policy, &options, &made, err);
    });
    expect(code != KRN_STATUS_ok, "damage {}: it compiles bytes that are not a region", i);
    const krn_claim_sink sink{[](void*, const krn_claim*) {}, [](void*, const krn_refusal*) {}, nullptr};
    const krn_code claimed =
        t.call("krn.compile.claim", [&](krn_err* err) { return t.compile().claim(t.opened(), &view, &policy, &sink, err); });
    expect(claimed != KRN_STATUS_ok, "damage {}: it claims of bytes that are not a region", i);
  }
}

void copies_what_it_needs(Trial& t) {
  const Region& region = t.base();
  std::vector<uint8_t> bytes = region.bytes.bytes;
  auto view = std::make_unique<krn_region>(region.view());
  view->graph = {bytes.data(), bytes.size()};
  auto options = std::make_unique<krn_options>(Trial::options());
  auto policy = std::make_unique<krn_policy>(Trial::policy());
  krn_exec* const exec = t.make(*view, *policy, *options);
  std::fill(bytes.begin(), bytes.end(), uint8_t{0xee});
  *view = {}, *options = {}, *policy = {};
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  t.run(exec, arguments.ready());
  arguments.expect_right();
}

constexpr Check kChecks[] = {
    {"E/claim", "claims nodes that there are, each once", Rung::kOpened, claims, Rung::kClaimed},
    {"E/claims_alike", "claims the same of the same bytes", Rung::kClaimed, claims_alike},
    {"E/leaves_opaque", "leaves operators to the host that only it can call", Rung::kClaimed, leaves_opaque},
    {"E/says_why_not", "gives a reason for what it refuses", Rung::kClaimed, says_why_not},
    {"E/costs", "expects costs that can be", Rung::kClaimed, costs},
    {"E/compile", "compiles what it claims", Rung::kClaimed, compiles, Rung::kCompiled},
    {"E/compiles_all", "compiles what it claims at every size", Rung::kRan, compiles_all, Rung::kAllSizes},
    {"E/ends_candidates", "has a last candidate", Rung::kCompiled, ends_candidates},
    {"E/policies", "compiles what it claims under every policy", Rung::kCompiled, policies},
    {"E/info", "states facts of an executable that can be", Rung::kCompiled, info_can_be},
    {"E/damaged_regions", "refuses bytes that are not a region", Rung::kCompiled, damaged_regions},
    {"E/copies_what_it_needs", "keeps no pointer to what it was lent", Rung::kRan, copies_what_it_needs},
};

}  // namespace

std::span<const Check> honesty_checks() { return kChecks; }

}  // namespace keirin::certify
