// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/confine.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

#include "core/host/call/host_tables.h"

namespace keirin {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArch = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArch = 0;
#endif

constexpr uint32_t kAllow = SECCOMP_RET_ALLOW, kRefuse = SECCOMP_RET_ERRNO | EPERM;

// A program of the kernel's filter, which runs for each system call: an accumulator, comparisons, jumps forwards.
class Program {
 public:
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  void give(uint32_t verdict) { add(BPF_RET | BPF_K, verdict); }
  // The next `count` instructions run only if the accumulator is `value`.
  void if_equal(uint32_t value, uint8_t count) { add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, count); }
  void unless_equal(uint32_t value, uint8_t count) { add(BPF_JMP | BPF_JEQ | BPF_K, value, count, 0); }

  bool install() {
    const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  }

 private:
  void add(int code, uint32_t k, uint8_t on_true = 0, uint8_t on_false = 0) {
    code_.push_back({static_cast<uint16_t>(code), on_true, on_false, k});
  }

  std::vector<sock_filter> code_;
};

}  // namespace

bool confine_to_this_process() {
  if (kArch == 0 || sanitizer_kind() != 0) return false;
  const auto self = static_cast<uint32_t>(::getpid());
  Program p;
  p.load(offsetof(seccomp_data, arch));
  p.unless_equal(kArch, 1);
  p.give(kRefuse);  // the calls of another kind of program have other numbers
  p.load(offsetof(seccomp_data, nr));
  for (const long call :
       {SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_open, SYS_pidfd_getfd, SYS_setsid, SYS_setpgid}) {
    p.if_equal(static_cast<uint32_t>(call), 1);
    p.give(kRefuse);
  }
  // kill, tkill, tgkill, rt_sigqueueinfo and rt_tgsigqueueinfo name the receiver first; tkill names a thread, which the filter cannot tell.
  for (const long call : {SYS_kill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo}) {
    p.if_equal(static_cast<uint32_t>(call), 6);
    p.load(offsetof(seccomp_data, args));  // its lower half: both processors are little-endian
    p.unless_equal(self, 3);
    p.unless_equal(0, 2);                  // its group
    p.unless_equal(-self, 1);
    p.give(kRefuse);
    p.give(kAllow);
  }
  p.if_equal(static_cast<uint32_t>(SYS_tkill), 1);
  p.give(kRefuse);
  p.give(kAllow);
  return p.install();
}

}  // namespace keirin
