// SPDX-License-Identifier: Apache-2.0
//
// D: devices, and what no call of a plugin may change around it.
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "core/host/guard/thread_state.h"
#include "tests/certify/trial.h"

extern char** environ;

namespace keirin::certify {
namespace {

using Clock = std::chrono::steady_clock;


void enumerates_alike(Trial& t) {
  const std::vector<Found> first = t.enumerate();
  for (int again = 0; again < 3; ++again) {
    const std::vector<Found> next = t.enumerate();
    for (size_t i = 0; i < first.size(); ++i)
      expect(first[i].item == next[i].item && !first[i].device == !next[i].device && first[i].why_not == next[i].why_not,
             "asked again it says otherwise of {}", t.hardware[first[i].item].uid);
  }
}

krn_hw foreign_item() {
  krn_hw item{};
  item.hdr.size = sizeof item;
  item.uid = str_of("pci:ffff:ff:00.0");
  item.vendor_id = 0xdead;
  item.device_id = 0xbeef;
  item.torch_type = -1;
  item.driver = str_of("none 0");
  return item;
}

// What this machine has, and what nobody has.
std::vector<krn_hw> all_items(Trial& t) {
  std::vector<krn_hw> items = hardware_views(t.hardware);
  items.push_back(foreign_item());
  return items;
}

void enumerates(Trial& t) { t.enumerate(all_items(t)); }

void gives_reasons(Trial& t) {
  for (const Found& f : t.enumerate(all_items(t)))
    expect(f.device || !f.why_not.empty(), "item {} is not used, and no reason is given", f.item);
}

void no_hardware(Trial& t) { t.enumerate(std::vector<krn_hw>{}); }

void foreign_hardware(Trial& t) {
  expect(!t.enumerate({foreign_item()})[0].device, "it drives hardware of a vendor that does not exist");
}

void describes(Trial& t) {
  const krn_device_desc desc = t.describe(t.device());
  expect(desc.name.size > 0, "the device has no name");
  expect(desc.arch.size > 0, "the device has no arch, which is part of every key of the cache");
}

void describes_alike(Trial& t) {
  const krn_device_desc a = t.describe(t.device());
  const std::string name = text_of(a.name), arch = text_of(a.arch), print = text_of(a.fingerprint);
  const krn_device_desc b = t.describe(t.device());
  expect(text_of(b.name) == name && text_of(b.arch) == arch && text_of(b.fingerprint) == print,
         "asked again it names, or fingerprints, the device otherwise: nothing in the cache would be found again");
}

void facts(Trial& t) {
  const krn_device_desc d = t.describe(t.device());
  const auto sane = [](double x) { return std::isfinite(x) && x >= 0; };
  expect(sane(d.bytes_per_s) && sane(d.launch_ns), "memory rate or launch cost is not a number of at least 0");
  expect(d.prior_score <= 1000, "the prior is {}, and 1000 is the most", d.prior_score);
  expect((d.alignment & (d.alignment - 1)) == 0, "the alignment is {}, which is not a power of two", d.alignment);
  expect(!d.num_peaks || d.peaks, "it states {} peak rates and gives none", d.num_peaks);
  for (uint64_t i = 0; i < d.num_peaks; ++i) expect(sane(d.peaks[i].flops_per_s), "peak rate {} is not a number of at least 0", i);
}

void opens(Trial& t) { t.opened(); }

void reopens(Trial& t) {
  krn_dev* const dev = t.opened();
  for (int i = 0; i < 3 && t.devices().close && t.devices().open; ++i) {
    (void)t.call("krn.device.close", [&](krn_err*) { return t.devices().close(dev), KRN_STATUS_ok; });
    t.must("krn.device.open", [&](krn_err* err) { return t.devices().open(dev, err); });
  }
}

void is_healthy(Trial& t) {
  if (!t.devices().health) throw NotOffered{"no krn.device.health"};
  krn_dev* const dev = t.opened();
  const krn_code code = t.call("krn.device.health", [&](krn_err*) { return t.devices().health(dev); });
  expect(code == KRN_STATUS_ok, "krn.device.health answers {} of a device that was just opened", code_name(code));
}

void health_is_quick(Trial& t) {
  if (!t.devices().health) throw NotOffered{"no krn.device.health"};
  krn_dev* const dev = t.opened();
  auto best = Clock::duration::max();
  for (int i = 0; i < 20; ++i) {
    const auto begin = Clock::now();
    (void)t.call("krn.device.health", [&](krn_err*) { return t.devices().health(dev); });
    best = std::min(best, Clock::now() - begin);
  }
  const double ms = std::chrono::duration<double, std::milli>(best).count();
  expect(ms < 1, "krn.device.health waits: {:.1f} ms", ms);
}

void condition(Trial& t) {
  if (!t.devices().condition) throw NotOffered{"no krn.device.condition"};
  auto told = make_struct<krn_condition>();
  krn_dev* const dev = t.opened();
  const krn_code code = t.call("krn.device.condition", [&](krn_err*) { return t.devices().condition(dev, &told); });
  if (code == KRN_STATUS_unsupported) throw NotOffered{"krn.device.condition tells nothing"};
  expect(code == KRN_STATUS_ok, "krn.device.condition answers {}", code_name(code));
  expect(told.others_percent <= 100, "others are said to have had {} % of the last second", told.others_percent);
  expect((told.flags & ~KRN_CONDITION_SLOWED) == 0, "it sets flags that are not defined: {:#x}", told.flags);
}

// Every function of a plugin once, in the order of a life.
void walk(Trial& t) {
  if (t.devices().health) (void)t.call("krn.device.health", [&](krn_err*) { return t.devices().health(t.opened()); });
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  (void)t.info(exec);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  t.run(exec, arguments.ready());
  if (Gpu* const gpu = Gpu::here()) gpu->wait("after a run");  // the executable is released below
  try {
    const krn_artifact_table& table = t.artifact();
    std::string token, body;
    const auto into = [](std::string& text) {
      return krn_sink{[](void* ctx, const void* data, uint64_t size) -> krn_code {
                        static_cast<std::string*>(ctx)->append(static_cast<const char*>(data), size);
                        return KRN_STATUS_ok;
                      },
                      &text};
    };
    const krn_sink token_sink = into(token), body_sink = into(body);
    (void)t.call("krn.artifact.save", [&](krn_err* err) { return table.save(exec, &token_sink, &body_sink, err); });
    krn_exec* loaded = nullptr;
    const krn_region view = region.view();
    (void)t.call("krn.artifact.load", [&](krn_err* err) {
      return table.load(t.opened(), &view, {token.data(), token.size()}, {body.data(), body.size()}, &loaded, err);
    });
    if (loaded) t.release(loaded);
  } catch (const NotOffered&) {
  }
  t.release(exec);
  t.shut_down();
}

// `same`: whether all is as it was before the walk.
void unchanged(Trial& t, const char* what, const std::function<bool()>& same) {
  t.after_call = [=](const char* name) { expect(same(), "{} changes {}", name, what); };
  walk(t);
}

void keeps_float_mode(Trial& t) {
  const FloatMode mode;
  unchanged(t, "the floating-point mode", [&] { return !mode.restore(); });
}
void keeps_locale(Trial& t) {
  const std::string before = ::setlocale(LC_ALL, nullptr);
  const locale_t own = ::uselocale(nullptr);
  unchanged(t, "the locale", [&] { return before == ::setlocale(LC_ALL, nullptr) && own == ::uselocale(nullptr); });
}
void keeps_signal_mask(Trial& t) {
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  unchanged(t, "the signal mask", [&] {
    sigset_t now;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
    for (int s = 1; s < NSIG; ++s)
      if (::sigismember(&before, s) != ::sigismember(&now, s)) return false;
    return true;
  });
}
void keeps_signal_handlers(Trial& t) {
  const auto handlers = [] {
    std::vector<void*> out;
    for (int s = 1; s < NSIG; ++s) {
      struct sigaction action {};
      ::sigaction(s, nullptr, &action);
      out.push_back(reinterpret_cast<void*>(action.sa_handler));
    }
    return out;
  };
  const std::vector<void*> before = handlers();
  unchanged(t, "a signal's handler", [&] { return handlers() == before; });
}
void keeps_context(Trial& t) {
  (void)t.device();
  Gpu* const gpu = Gpu::here();
  if (!gpu) throw NotOffered{"its device is the host, which has no context"};
  void* const before = gpu->current_context();
  unchanged(t, "the thread's current device", [&] { return gpu->current_context() == before; });
}
void keeps_folder(Trial& t) {
  const auto folder = [] {
    char text[4096] = {};
    return std::string(::getcwd(text, sizeof text) ? text : "");
  };
  const std::string before = folder();
  unchanged(t, "the current folder", [&] { return folder() == before; });
}
void keeps_environment(Trial& t) {
  const auto variables = [] {
    std::vector<std::string> out;
    for (char** each = environ; each && *each; ++each) out.emplace_back(*each);
    return out;
  };
  const std::vector<std::string> before = variables();
  unchanged(t, "the environment", [&] { return variables() == before; });
}
void prints_nothing(Trial& t) {
  const int file = ::memfd_create("stdout", 0);
  if (file < 0) throw NotOffered{"what it might print has no file to go to"};
  ::dup2(file, 1);
  walk(t);
  ::fflush(nullptr);
  expect(::lseek(file, 0, SEEK_END) == 0, "it prints to standard output");
}

constexpr Check kChecks[] = {
    {"D/enumerate", "answers once for every piece of hardware", Rung::kInitialized, enumerates, Rung::kEnumerated},
    {"D/enumerate_alike", "answers the same when it is asked again", Rung::kEnumerated, enumerates_alike},
    {"D/reasons", "says why it does not drive a piece of hardware", Rung::kEnumerated, gives_reasons},
    {"D/no_hardware", "takes a machine without hardware", Rung::kEnumerated, no_hardware},
    {"D/foreign_hardware", "does not drive what it does not know", Rung::kEnumerated, foreign_hardware},
    {"D/describe", "names its device and the arch", Rung::kEnumerated, describes, Rung::kDescribed},
    {"D/describe_alike", "names it the same when it is asked again", Rung::kDescribed, describes_alike},
    {"D/facts", "states facts that can be", Rung::kDescribed, facts},
    {"D/open", "opens its device", Rung::kShutDown, opens, Rung::kOpened},
    {"D/reopen", "opens it again after closing", Rung::kOpened, reopens},
    {"D/health", "is healthy once opened", Rung::kOpened, is_healthy},
    {"D/health_is_quick", "says so without waiting", Rung::kOpened, health_is_quick},
    {"D/condition", "tells a condition that can be", Rung::kOpened, condition},
    {"D/keeps_float_mode", "leaves the floating-point mode as it was, after every call", Rung::kRan, keeps_float_mode},
    {"D/keeps_locale", "leaves the locale", Rung::kRan, keeps_locale},
    {"D/keeps_signal_mask", "leaves the signal mask", Rung::kRan, keeps_signal_mask},
    {"D/keeps_signal_handlers", "leaves the signals' handlers", Rung::kRan, keeps_signal_handlers},
    {"D/keeps_context", "leaves the thread's current device", Rung::kRan, keeps_context},
    {"D/keeps_folder", "leaves the current folder", Rung::kRan, keeps_folder},
    {"D/keeps_environment", "leaves the environment", Rung::kRan, keeps_environment},
    {"D/prints_nothing", "writes nothing to standard output", Rung::kRan, prints_nothing},
};

}  // namespace

std::span<const Check> device_checks() { return kChecks; }

}  // namespace keirin::certify
