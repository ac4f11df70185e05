// SPDX-License-Identifier: Apache-2.0
//
// The only place where the plugin side of the boundary writes an error. Before negotiation there is no host table: then the code
// alone must do.
#include "plugins/kit/error.h"

#include "plugins/kit/host.h"

namespace keirin::kit {

void set_error(krn_err* err, krn_code code, std::string_view text) noexcept {
  const krn_host_core* core = host().core;
  if (err && core && core->err_set) core->err_set(err, code, str(text));
}

}  // namespace keirin::kit
