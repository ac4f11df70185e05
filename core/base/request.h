// SPDX-License-Identifier: Apache-2.0
//
// Which threads are answering a call: so that code which is compiled on one of them, while somebody waits for an
// answer, is counted. It should never be; the count is the proof.
#pragma once

#include <cstdint>

namespace keirin {

// While one lives, its thread answers a call, and so do threads that do background work for that thread.
class RequestScope {
 public:
  explicit RequestScope(bool answers = true);
  ~RequestScope();
  RequestScope(const RequestScope&) = delete;
  RequestScope& operator=(const RequestScope&) = delete;

 private:
  bool answers_;
};

// Whether this thread does.
bool answers_request();
// Called where code is about to be compiled, by the thread that waits for it.
void note_compile();
// How often that was a thread that answered a call, in this process so far. Any thread.
uint64_t compiles_on_requests();

}  // namespace keirin
