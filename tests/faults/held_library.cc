// SPDX-License-Identifier: Apache-2.0
//
// What a vendor's library is to a plugin: opened at run time, by the name that is written into it.
extern "C" int fault_held() { return 1; }
