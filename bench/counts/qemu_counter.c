/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin of qemu's user mode that counts the instructions of a guest where the guest can read them: in the first 8 bytes of a file
 * that both map. What KEIRIN_INSTRUCTIONS asks for; ci/arm builds and loads it. The count is one for all threads and is not locked:
 * it is exact while one thread works. What qemu asks of plugins is declared in our own words (version 1 of its interface: qemu 4.2 to
 * 8.x), because Debian packages no header.
 *
 *   qemu-aarch64 -plugin libqemu_counter.so,count=FILE program */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct qemu_plugin_tb;
enum { kAdd64 = 0 };
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*translated)(uint64_t id, struct qemu_plugin_tb* block));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb* block, int operation, void* counter, uint64_t by);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);

int qemu_plugin_version = 1;
static void* counter;

static void count(uint64_t id, struct qemu_plugin_tb* block) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(block, kAdd64, counter, qemu_plugin_tb_n_insns(block));
}

int qemu_plugin_install(uint64_t id, const void* about_qemu, int argc, char** argv) {
  (void)about_qemu;
  if (argc != 1 || strncmp(argv[0], "count=", 6) != 0) return fprintf(stderr, "qemu_counter: count=FILE is missing\n"), -1;
  const int file = open(argv[0] + 6, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(uint64_t)) != 0) return perror(argv[0] + 6), -1;
  counter = mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (counter == MAP_FAILED) return perror("mmap"), -1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, count);
  return 0;
}
