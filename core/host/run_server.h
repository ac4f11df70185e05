// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace keirin {

// The worker of worker mode: answers on `channel` until it closes. Returns the exit status.
int serve_run(int channel);

}  // namespace keirin
