// SPDX-License-Identifier: Apache-2.0
//
// Chains are read off the rows that a view's recipe emitted, so no list of view operators is needed here.
#include "core/capture/import/aliases.h"

#include <algorithm>

#include "abi/planted.h"

namespace keirin {
namespace {

bool invertible(OpCode code) {
  return code == OpCode::k_reshape || code == OpCode::k_permute || code == OpCode::k_slice;
}

Status cannot(const char* what) {
  return Status(Code::k_unsupported,
                Message{what, {}, "the model runs eagerly", "write to the tensor itself, or to a copy"});
}

}  // namespace

AliasId Aliases::fresh(ValueId value, ValueId root) {
  bases_.push_back({value, root, 0, false});
  aliases_.push_back({static_cast<uint32_t>(bases_.size() - 1), {}, true, value, 0});
  return static_cast<AliasId>(aliases_.size() - 1);
}

AliasId Aliases::view(AliasId source, ValueId value) {
  const Graph& graph = builder_.graph();
  Alias alias = aliases_[source];
  std::vector<Op> steps;
  ValueId at = value;
  while (at != alias.value) {
    const uint32_t producer = graph.values[at].producer;
    if (producer == kNone || !invertible(graph.ops[producer].code)) break;
    steps.push_back(graph.ops[producer]);
    at = graph.ops[producer].operands[0];
  }
  if (at == alias.value) {
    alias.chain.insert(alias.chain.end(), steps.rbegin(), steps.rend());
  } else {
    alias.known = false;
  }
  bases_[alias.base].unknown_views = bases_[alias.base].unknown_views || !alias.known;
  alias.value = value;
  aliases_.push_back(std::move(alias));
  return static_cast<AliasId>(aliases_.size() - 1);
}

Aliases::Saved Aliases::save() const {
  Saved saved;
  saved.bases_ = bases_, saved.aliases_ = aliases_;
  return saved;
}

void Aliases::go_back(Saved saved) { bases_ = std::move(saved.bases_), aliases_ = std::move(saved.aliases_); }

Result<ValueId> Aliases::apply(const Op& step, ValueId operand) {
  return builder_.emit1(step.code, {operand}, step.attrs);
}

Result<ValueId> Aliases::invert(const Op& step, ValueId operand, ValueId result) {
  if (step.code == OpCode::k_reshape) return builder_.reshape(result, builder_.type(operand).sizes);
  if (step.code == OpCode::k_slice) return builder_.emit1(OpCode::k_slice_scatter, {operand, result}, step.attrs);
  const Dims& dims = step.ints(AttrKey::k_dims);
  Dims inverse(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) inverse[static_cast<size_t>(dims[i])] = static_cast<int64_t>(i);
  return builder_.permute(result, inverse);
}

Result<ValueId> Aliases::read(AliasId id) {
  const Base base = bases_[aliases_[id].base];
  if (aliases_[id].version == base.version || KRN_PLANTED(stale_view)) return aliases_[id].value;
  if (!aliases_[id].known) return cannot("a view of unknown form is read after its tensor was written");
  ValueId value = base.value;
  for (const Op& step : aliases_[id].chain) {
    KRN_TRY_LET(value, apply(step, value));
  }
  aliases_[id].value = value;
  aliases_[id].version = base.version;
  return value;
}

Status Aliases::write(AliasId id, ValueId value) {
  const std::vector<Op> chain = aliases_[id].chain;
  if (!aliases_[id].known) return cannot("a view of unknown form is written");
  std::vector<ValueId> operands = {bases_[aliases_[id].base].value};  // of each step
  for (size_t i = 0; i + 1 < chain.size(); ++i) {
    KRN_TRY_LET(const ValueId next, apply(chain[i], operands.back()));
    operands.push_back(next);
  }
  ValueId content = value;
  for (size_t i = chain.size(); i-- > 0;) {
    KRN_TRY_LET(content, invert(chain[i], operands[i], content));
  }
  Base& base = bases_[aliases_[id].base];
  base.value = content;
  ++base.version;
  aliases_[id].value = value;
  aliases_[id].version = base.version;
  return {};
}

ValueId Aliases::identity(AliasId alias) const {
  return aliases_[alias].known && aliases_[alias].chain.empty() ? bases_[aliases_[alias].base].root : kNone;
}

std::vector<std::pair<ValueId, ValueId>> Aliases::updates() const {
  std::vector<std::pair<ValueId, ValueId>> out;
  for (const Base& base : bases_) {
    if (base.root != kNone && base.version > (KRN_PLANTED(lost_update) ? 1u : 0u)) out.emplace_back(base.root, base.value);
  }
  return out;
}

}  // namespace keirin
