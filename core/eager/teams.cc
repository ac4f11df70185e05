// SPDX-License-Identifier: Apache-2.0
#include "core/eager/teams.h"

#include <omp.h>

namespace keirin {

void let_go_of_team() { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); }

}  // namespace keirin
