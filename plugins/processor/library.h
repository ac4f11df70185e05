// SPDX-License-Identifier: Apache-2.0
//
// The seam to whatever multiplies, convolves and runs recurrent cells on a processor. One object serves one backend; any thread.
#pragma once

#include <memory>
#include <string>

#include "plugins/codegen/backend.h"

namespace keirin::processor {

class Library {
 public:
  virtual ~Library() = default;
  // Whether it has an implementation worth using; on false, `why_not` says what is in the way.
  virtual bool takes(const codegen::AnchorDesc& anchor, std::string& why_not) const = 0;
  // Whether `post` may follow those the anchor has, with exactly the operator's arithmetic.
  virtual bool takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post) const = 0;
  // Throws kit::Error.
  virtual std::unique_ptr<codegen::Step> make_step(const codegen::AnchorDesc& anchor, const codegen::CompileContext& context) const = 0;
  // What artifacts are checked against, beside the code's target: begins with a line break, or is empty.
  virtual std::string token() const { return {}; }
};

}  // namespace keirin::processor
