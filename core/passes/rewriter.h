// SPDX-License-Identifier: Apache-2.0
//
// How a pass rewrites: it walks the old graph in order and writes a new one, op by op. `keep` copies the op; else the pass
// builds what it wants and names the new value for each old result. So the new graph is in order by construction, a rule sees
// operands that are rewritten already, and what nobody reads any more falls away at the end.
#pragma once

#include <vector>

#include "core/ir/graph.h"
#include "core/ops/builder.h"

namespace keirin {

class Rewriter {
 public:
  // Nobody else may change the graph before finish().
  explicit Rewriter(Graph& graph);

  const Graph& old() const { return old_; }
  Graph& graph() { return new_; }  // the new graph so far
  Builder& build() { return builder_; }

  // Must be called before the op is rewritten: new ops get its origin.
  const Op& begin(OpId id);
  // Behind the last op: what is built now serves an output.
  void begin_border() { fresh_from_ = new_.values.size(); }
  ValueId map(ValueId old_value) const { return old_value == kNone ? kNone : to_[old_value]; }
  ValueIds operands(const Op& old_op) const;

  // Copies the op with its operands mapped. Returns the new op.
  OpId keep(OpId id);
  // Whether `to` may stand for the old value: the user may see strides of outputs, so those must not change.
  bool can_replace(ValueId old_value, ValueId to) const;
  // From now on `to` stands for the old value. A value made since begin() takes the old one's strides and name.
  void replace(ValueId old_value, ValueId to);

  // Number of reads of an old value, outputs included.
  uint32_t old_uses(ValueId old_value) const { return uses_[old_value]; }
  // Puts the new graph in the place of the one given to the constructor, without dead ops, and returns that. Nothing is asked after it.
  Graph finish();

 private:
  void number_leaves_first();

  Graph& target_;
  const Graph& old_;  // the target, which stays as it was until finish(): a pass that fails half way leaves the graph as it found it
  Graph new_;
  Builder builder_;
  std::vector<ValueId> to_;
  std::vector<uint32_t> uses_;
  std::vector<uint8_t> is_output_;
  size_t fresh_from_ = 0;  // values from here on were made since begin()
};

// Runs `rule(rewriter, op)` on every op; where it returns false the op is kept.
template <class Rule>
Status rewrite(Graph& graph, Rule&& rule) {
  Rewriter rewriter(graph);
  for (OpId id = 0; id < rewriter.old().ops.size(); ++id) {
    rewriter.begin(id);
    Result<bool> done = rule(rewriter, id);
    if (!done.ok()) return std::move(done).status();
    if (!*done) rewriter.keep(id);
  }
  rewriter.finish();
  return {};
}

}  // namespace keirin
