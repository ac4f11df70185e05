// SPDX-License-Identifier: Apache-2.0
//
// The part of a driver that vendors have alike: functions of the same arguments in the same order, found under other names in a table
// that was opened at run time. `Calls` names them; what differs in more than its name, the vendor writes itself. What it is not: a
// promise that numbers are alike; those that are used here are constants of `Calls`.
//
//   struct Calls {
//     using Table = DriverApi;                            // with `static const Table* get(std::string& why_not)`
//     KRN_SEAM(retain, cuDevicePrimaryCtxRetain) ..
//   };
#pragma once

#include <type_traits>

#include "plugins/gpu/driver.h"

#define KRN_SEAM(call, function) static constexpr auto call = &Table::function;

namespace keirin::gpu {

// Looked up once: launches come through here. Without a library a table of nothing, which nobody calls (`usable`).
template <class Table>
const Table& table_or_nothing() {
  static const Table none;
  static const Table& table = [&]() -> const Table& {
    std::string ignored;
    const Table* found = Table::get(ignored);
    return found ? *found : none;
  }();
  return table;
}

// An argument as the vendor's own type: a handle, an address that may be a number there, or a number that may be an enumerator.
template <class T>
struct Given {
  T value;
  template <class To>
  operator To() const {
    if constexpr (std::is_pointer_v<T> && !std::is_pointer_v<To>) return static_cast<To>(reinterpret_cast<uintptr_t>(value));
    else if constexpr (std::is_pointer_v<T>) return (To)value;  // other handles, and without const
    else return static_cast<To>(value);
  }
};

template <class Calls>
class TableDriver : public Driver {
 public:
  Result retain(int device, ContextHandle& context) const override { return call(Calls::retain, &context, device); }
  void release(int device) const override { call(Calls::release, device); }
  Result current(ContextHandle& context) const override { return call(Calls::current, &context); }
  Result make_current(ContextHandle context) const override { return call(Calls::make_current, context); }

  Result load(const std::vector<char>& code, Module& module) const override { return call(Calls::load, &module, code.data()); }
  Result find(Module module, const std::string& symbol, Function& function) const override {
    return call(Calls::find, &function, module, symbol.c_str());
  }

  Result allocate(size_t bytes, void*& memory) const override { return call(Calls::allocate, &memory, bytes); }
  Result free(void* memory) const override { return call(Calls::free, memory); }
  Result allocate_on(Stream stream, size_t bytes, void*& memory) const override {
    return call(Calls::allocate_on, &memory, bytes, stream);
  }
  Result free_on(Stream stream, void* memory) const override { return call(Calls::free_on, memory, stream); }
  Result fill(Stream stream, void* memory, unsigned char value, size_t bytes) const override {
    return call(Calls::fill, memory, value, bytes, stream);
  }
  Result fill_words(Stream stream, void* memory, uint32_t value, size_t words) const override {
    return call(Calls::fill_words, memory, value, words, stream);
  }
  Result copy(Stream stream, void* to, const void* from, size_t bytes) const override {
    return call(Calls::copy, to, from, bytes, stream);
  }
  Result copy_out(Stream stream, void* to, const void* from, size_t bytes) const override {
    return call(Calls::copy_out, to, from, bytes, stream);
  }

  Result make_stream(Stream& stream) const override { return call(Calls::make_stream, &stream, Calls::kStreamOfItsOwn); }
  void end_stream(Stream stream) const override { call(Calls::end_stream, stream); }
  Result wait(Stream stream) const override { return call(Calls::wait_stream, stream); }
  Result is_recording(Stream stream, bool& recording) const override {
    int capture = Calls::kNotCapturing;
    const Result result = call(Calls::is_capturing, stream, &capture);
    recording = capture != Calls::kNotCapturing;
    return result;
  }
  int permit_allocation() const override {
    int mode = Calls::kRelaxed;  // then the mode before
    call(Calls::exchange_mode, &mode);
    return mode;
  }
  void restore_permission(int former) const override { call(Calls::exchange_mode, &former); }

  Result make_event(Event& event, bool timed) const override {
    return call(Calls::make_event, &event, timed ? 0 : Calls::kUntimed);
  }
  void end_event(Event event) const override { call(Calls::end_event, event); }
  Result record(Event event, Stream stream) const override { return call(Calls::record, event, stream); }
  Result wait(Event event) const override { return call(Calls::wait_event, event); }
  Result milliseconds(Event start, Event stop, float& ms) const override { return call(Calls::elapsed, &ms, start, stop); }
  bool is_lost(Event probe) const override {
    const Result result = call(Calls::query, probe);
    return result != 0 && result != Calls::kNotReady;
  }

 protected:
  static const typename Calls::Table& api() { return table_or_nothing<typename Calls::Table>(); }

 private:
  template <class Function, class... Arguments>
  static Result call(Function Calls::Table::*function, Arguments... arguments) {
    return static_cast<Result>((api().*function)(Given<Arguments>{arguments}...));
  }
};

}  // namespace keirin::gpu
