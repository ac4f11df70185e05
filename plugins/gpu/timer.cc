// SPDX-License-Identifier: Apache-2.0
//
// A stream, two events and memory, in the order in which they may be given back: what uses them first.
#include "plugins/gpu/timer.h"

namespace keirin::gpu {

constexpr unsigned char kFill = 0x3c;

Timer::Timer(const Driver& driver) : driver_(driver), allowed_(driver) {
  ok_ = driver_.make_stream(stream_) == 0;
  for (Event& event : events_) ok_ = ok_ && driver_.make_event(event, true) == 0;
}

Timer::~Timer() {
  if (stream_) driver_.wait(stream_);
  for (void* p : memory_) driver_.free(p);
  for (Event event : events_)
    if (event) driver_.end_event(event);
  if (stream_) driver_.end_stream(stream_);
}

void* Timer::memory(size_t bytes) {
  if (!ok_ || bytes == 0) return nullptr;
  void* p = nullptr;
  ok_ = driver_.allocate(bytes, p) == 0;
  if (!ok_) return nullptr;
  memory_.push_back(p);
  ok_ = driver_.fill(stream_, p, kFill, bytes) == 0;
  return p;
}

void Timer::begin() { driver_.record(events_[0], stream_); }

float Timer::end() {
  driver_.record(events_[1], stream_);
  float ms = 0;
  if (driver_.wait(events_[1]) != 0 || driver_.milliseconds(events_[0], events_[1], ms) != 0) return -1;
  return ms;
}

}  // namespace keirin::gpu
