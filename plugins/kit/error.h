// SPDX-License-Identifier: Apache-2.0
//
// How plugin code fails: it throws kit::Error, and the barrier at every function of a table turns that (and any other
// exception) into a code plus text in the caller's sink. Nothing else crosses the boundary.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "abi/plugin.h"

namespace keirin::kit {

class Error : public std::runtime_error {
 public:
  // `text` says what failed, where, and what the reader can do.
  Error(krn_code code, const std::string& text) : std::runtime_error(text), code_(code) {}
  krn_code code() const { return code_; }

 private:
  krn_code code_;
};

inline krn_str str(std::string_view s) { return krn_str{s.data(), s.size()}; }
inline std::string text(krn_str s) { return std::string(s.data ? s.data : "", s.size); }

// Sets code and text through the host's table; either may be absent.
void set_error(krn_err* err, krn_code code, std::string_view text) noexcept;

// Runs `body` (returning void) and converts what it throws.
template <class F>
krn_code barrier(krn_err* err, F&& body) noexcept {
  try {
    body();
    return KRN_STATUS_ok;
  } catch (const Error& e) {
    set_error(err, e.code(), e.what());
    return e.code();
  } catch (const std::bad_alloc&) {
    set_error(err, KRN_STATUS_exhausted, "the plugin ran out of memory");
    return KRN_STATUS_exhausted;
  } catch (const std::exception& e) {
    set_error(err, KRN_STATUS_internal, e.what());
    return KRN_STATUS_internal;
  } catch (...) {
    set_error(err, KRN_STATUS_internal, "an exception of an unknown type reached the plugin boundary");
    return KRN_STATUS_internal;
  }
}

}  // namespace keirin::kit
