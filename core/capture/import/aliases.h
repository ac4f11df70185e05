// SPDX-License-Identifier: Apache-2.0
//
// Who shares storage with whom while a program with in-place writes becomes functional. Every name is a base or a chain
// of views on one; a write goes through the chain to the base, and the other views are rebuilt from it when they are
// read next. A write through views that cannot be inverted is refused, never guessed.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ops/builder.h"

namespace keirin {

using AliasId = uint32_t;

class Aliases {
 public:
  explicit Aliases(Builder& builder) : builder_(builder) {}

  // A value with storage of its own. `root` is the input or constant that it is, or kNone.
  AliasId fresh(ValueId value, ValueId root = kNone);
  // `value` was computed from the current content of `source` by rows; where eager makes a view, writes go through. If
  // the rows are not a chain of invertible moves, the storage is shared in an unknown way and only reads are possible.
  AliasId view(AliasId source, ValueId value);

  // The value that it was read as last: of the current type, perhaps not of the current content.
  ValueId last_value(AliasId alias) const { return aliases_[alias].value; }
  // The current content.
  Result<ValueId> read(AliasId alias);
  // Replaces the content of the alias by `value` of equal dtype and sizes.
  Status write(AliasId alias, ValueId value);

  bool share_storage(AliasId a, AliasId b) const { return aliases_[a].base == aliases_[b].base; }
  // What is known now, to go back to.
  class Saved;
  Saved save() const;
  void go_back(Saved saved);

  // The input or constant that the alias is, whole and unchanged in shape; else kNone.
  ValueId identity(AliasId alias) const;
  // Contents of written inputs and constants: (root, new value).
  std::vector<std::pair<ValueId, ValueId>> updates() const;

 private:
  struct Base {
    ValueId value = kNone, root = kNone;
    uint64_t version = 0;
    bool unknown_views = false;
  };
  struct Alias {
    uint32_t base = 0;
    std::vector<Op> chain;  // from the base; operands and results are void
    bool known = true;
    ValueId value = kNone;
    uint64_t version = 0;
  };
  Result<ValueId> apply(const Op& step, ValueId operand);
  Result<ValueId> invert(const Op& step, ValueId operand, ValueId result);

  Builder& builder_;
  std::vector<Base> bases_;
  std::vector<Alias> aliases_;
};

class Aliases::Saved {
  friend class Aliases;
  std::vector<Base> bases_;
  std::vector<Alias> aliases_;
};

}  // namespace keirin
