// SPDX-License-Identifier: Apache-2.0
//
// What is linked to known_bad.cc for the faults that only a build can have: KRN_BUILT_FAULT is the number of its name here. The others
// of that kind are flags of the linker alone.
#define KRN_BUILT_two_exports 1
#define KRN_BUILT_static_tls 2
#define KRN_BUILT_text_relocations 3
#define KRN_BUILT_gnu_unique 4
#define KRN_BUILT_writable_code 5
#define KRN_BUILT_missing_symbol 6
#define KRN_BUILT_crash_at_load 7
#define KRN_BUILT_thread_at_load 8
#define KRN_BUILT_needs_torch 9
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define IS(name) (JOIN(KRN_BUILT_, KRN_BUILT_FAULT) == KRN_BUILT_##name)

#include <signal.h>
#include <unistd.h>

#include <thread>

#if IS(two_exports)
extern "C" __attribute__((visibility("default"))) int acme_helper(void) { return 1; }
#elif IS(static_tls)
__thread int acme_counter __attribute__((tls_model("initial-exec"))) = 1;
__attribute__((used)) int* acme_count() { return &acme_counter; }
#elif IS(text_relocations)
asm(".text\n.balign 8\nacme_pointer: .quad acme_pointer\n");
#elif IS(gnu_unique)
asm(".data\n.balign 8\n.globl acme_unique\n.type acme_unique, \"gnu_unique_object\"\nacme_unique: .quad 1\n.size acme_unique, 8\n.text\n");
#elif IS(writable_code)
asm(".section .acme,\"awx\"\n.quad 0\n.text\n");
#elif IS(missing_symbol)
extern "C" int acme_symbol_that_nobody_has(void);
extern "C" __attribute__((used)) int acme_call(void) { return acme_symbol_that_nobody_has(); }
#elif IS(crash_at_load)
__attribute__((constructor)) static void at_load() { ::raise(SIGSEGV); }
#elif IS(thread_at_load)
__attribute__((constructor)) static void at_load() {
  std::thread([] { for (;;) ::pause(); }).detach();
}
#elif IS(needs_torch)
extern "C" int acme_c10(void);
extern "C" __attribute__((used)) int acme_call(void) { return acme_c10(); }
#endif
