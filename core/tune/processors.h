// SPDX-License-Identifier: Apache-2.0
//
// How far apart the processors of this process are. A hypervisor moves those of a virtual machine between cores of its host as it likes:
// what threads hand each other then takes 90 ns or 380, for seconds or minutes, and no counter of the guest's tells.
#pragma once

namespace keirin {

// Nanoseconds for which a cache line travels to the farthest of some others and back, from the first of the processors that this process
// may use; the quickest of some hundred journeys each, so that what comes between counts little. 0: there is one processor, or they are
// busy. Takes about a millisecond for each of seven others at most, on threads of its own.
double processors_apart_ns();

// Whether the two tell of one place. 0 tells nothing.
inline bool same_place(double a_ns, double b_ns) { return a_ns <= 0 || b_ns <= 0 || (a_ns < 1.5 * b_ns && b_ns < 1.5 * a_ns); }

}  // namespace keirin
