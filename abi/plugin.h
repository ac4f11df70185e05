/* SPDX-License-Identifier: Apache-2.0
 *
 * abi/plugin.h: the whole contract between the Keirin host and a hardware plugin, version 0.x: no compatibility is promised
 * before 1.0.
 *
 * It is C11 and needs nothing but the C standard headers. A plugin exports one symbol, krn_plugin_entry; everything
 * else is reached through function tables that both sides ask each other for by name. What it is not: a description of
 * graphs (graph.h) or of operators (ops.def).
 *
 * Layout rules, checked by ci/check_abi: one struct per declaration, one field per line, fixed-width types, no implicit
 * padding, no bitfields, no C enums. Growable structs and tables grow at the tail only; frozen ones never change.
 */
#ifndef KEIRIN_ABI_PLUGIN_H
#define KEIRIN_ABI_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KRN_ABI_MAJOR 0
#define KRN_ABI_MINOR 1

#if defined(_WIN32)
#define KRN_CALL __cdecl
#define KRN_EXPORT __declspec(dllexport)
#else
#define KRN_CALL
#define KRN_EXPORT __attribute__((visibility("default")))
#endif

/* ------------------------------------------------------------------------------------------------ vocabulary */

/* Result of every call that can fail. On anything but KRN_STATUS_ok every out-parameter is untouched and nothing needs
 * freeing. Unknown values are read as KRN_STATUS_internal. */
typedef int32_t krn_code;
enum {
#define KRN_STATUS(id, name, text) KRN_STATUS_##name = id,
#include "status.def"
#undef KRN_STATUS
};

typedef struct krn_plugin krn_plugin; /* one initialised plugin       created by krn.plugin  */
typedef struct krn_dev krn_dev;       /* one device                   created by krn.device  */
typedef struct krn_exec krn_exec;     /* one executable, ref-counted  created by krn.compile */
typedef struct krn_replay krn_replay; /* one recorded launch sequence created by krn.replay  */
typedef struct krn_err krn_err;       /* error sink, host owned, valid for the call, may be NULL */
typedef struct krn_host krn_host;     /* the host's context, passed back to every host function  */

/* ------------------------------------------------------------------------------------- frozen plain structs */

/* UTF-8, not NUL terminated. data may be NULL only if size is 0. */
typedef struct krn_str {
  const char* data;
  uint64_t size;
} krn_str;

/* Bytes. Same rules. */
typedef struct krn_span {
  const void* data;
  uint64_t size;
} krn_span;

typedef struct krn_guid {
  uint8_t bytes[16];
} krn_guid;

/* The only way variable-size results leave a plugin. write may be called any number of times; stop on a code != ok. */
typedef struct krn_sink {
  krn_code(KRN_CALL* write)(void* ctx, const void* data, uint64_t size);
  void* ctx;
} krn_sink;

/* A tensor view. The first 48 bytes are bit for bit a DLTensor of DLPack 1.x (the host asserts it against the dlpack.h
 * of LibTorch). shape and strides hold ndim entries, in elements, never NULL unless ndim is 0; data is already shifted,
 * byte_offset is 0. The host owns everything it points to. */
typedef struct krn_tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t byte_offset;
  uint32_t flags;         /* KRN_TENSOR_* */
  uint32_t memory;        /* KRN_MEM_*    */
  uint64_t storage_bytes; /* bytes that may be touched from data */
} krn_tensor;
#define KRN_TENSOR_READ_ONLY 1u
#define KRN_TENSOR_DONATED 2u   /* the plugin may overwrite it; no one reads it after the run */
#define KRN_TENSOR_MAY_ALIAS 4u /* may share bytes with another argument of the same run      */
#define KRN_MEM_HOST 0u
#define KRN_MEM_DEVICE 1u
#define KRN_MEM_HOST_PINNED 2u

/* The stream to work on. native is a CUstream, hipStream_t, ...: 0 is a valid value (the default stream) when
 * KRN_STREAM_HAS_NATIVE is set; without it the work is done inline, before the call returns. */
typedef struct krn_stream {
  uint64_t native;
  uint32_t native_kind; /* KRN_STREAM_KIND_* */
  uint32_t flags;
} krn_stream;
#define KRN_STREAM_HAS_NATIVE 1u
#define KRN_STREAM_RECORDING 2u /* a replay is being recorded on it: no allocation, no sync, no query */
#define KRN_STREAM_KIND_NONE 0u
#define KRN_STREAM_KIND_CUDA 1u
#define KRN_STREAM_KIND_HIP 2u

/* --------------------------------------------------------------------------------- growing structs and tables */

/* First member of every growable struct. size is the number of bytes the writer filled. The reader reads
 * min(its sizeof, size); what is missing reads as zero, and zero always means the old behaviour. A size larger than the
 * reader knows is legal. next chains further structs; an unknown entry is skipped, unless it carries
 * KRN_HDR_MUST_UNDERSTAND: then the call returns KRN_STATUS_version and does nothing. */
typedef struct krn_hdr {
  uint32_t size;
  uint16_t kind; /* KRN_KIND_* */
  uint16_t flags;
  const struct krn_hdr* next;
} krn_hdr;
#define KRN_HDR_MUST_UNDERSTAND 1u

/* First member of every table. A function is present if it ends within size and is not NULL. */
typedef struct krn_table {
  uint32_t size;
  uint16_t major;
  uint16_t minor;
} krn_table;

/* An array of growable structs: element i is at (char*)data + i * stride. */
typedef struct krn_array {
  const void* data;
  uint32_t count;
  uint32_t stride;
} krn_array;

/* ----------------------------------------------------------------------------------------- entry, negotiation */

#define KRN_ROLE_RUN 1u     /* the serving process            */
#define KRN_ROLE_COMPILE 2u /* worker that only compiles      */
#define KRN_ROLE_PROBE 3u   /* worker that looks once and ends */

typedef struct krn_offer {
  krn_hdr hdr;
  uint16_t abi_major_min;
  uint16_t abi_minor_min;
  uint16_t abi_major_max;
  uint16_t abi_minor_max;
  uint32_t role;
  uint32_t sanitizer; /* 0 none, 1 address, 2 thread, 3 memory: the pair must match */
  krn_host* host;
  krn_str host_version;
  krn_str host_build_id;
  /* Table `name` of that major, or NULL. Valid for the life of the process, any thread. */
  const krn_table*(KRN_CALL* get_table)(krn_host* host, const char* name, uint32_t major);
} krn_offer;

typedef struct krn_answer {
  krn_hdr hdr;
  uint16_t abi_major;
  uint16_t abi_minor;
  uint32_t sanitizer;
  krn_guid guid; /* must equal the manifest's */
  krn_str version;
  krn_str build_id;
  uint64_t capabilities; /* KRN_CAP_* */
  const krn_table*(KRN_CALL* get_table)(const char* name, uint32_t major);
} krn_answer;
#define KRN_CAP_CONCURRENT_COMPILE (1ull << 0)
#define KRN_CAP_DETERMINISTIC (1ull << 1) /* honours krn_options.flags DETERMINISTIC */
#define KRN_CAP_BACKWARD (1ull << 2)      /* accepts training graphs */

/* The only exported symbol. Touches no device, starts no thread, takes < 50 ms, may be called any number of times with
 * the same answer. Returns KRN_STATUS_version if the ranges do not meet. The kit's entry macro writes this function. */
KRN_EXPORT krn_code KRN_CALL krn_plugin_entry(const krn_offer* offer, krn_answer* answer, krn_err* err);

/* ---------------------------------------------------------------------------------------------- host tables */

typedef struct krn_key_value {
  krn_str key;
  krn_str value;
} krn_key_value;

/* "krn.host.core": errors, logging, memory, time. Any thread. */
typedef struct krn_host_core {
  krn_table table;
  /* Sets code and text. The text says what failed, where, and what the user can do. A NULL err is ignored. */
  void(KRN_CALL* err_set)(krn_err* err, krn_code code, krn_str text);
  void(KRN_CALL* err_attach)(krn_err* err, krn_str key, krn_str value);
  void(KRN_CALL* log)(krn_host* host, int32_t level, krn_str text);
  void*(KRN_CALL* alloc)(krn_host* host, uint64_t size, uint64_t align);
  void(KRN_CALL* free)(krn_host* host, void* p);
  uint64_t(KRN_CALL* now_ns)(krn_host* host);
  /* Non-zero once the work behind `token` should stop. Poll at least every 100 ms while compiling. */
  uint32_t(KRN_CALL* cancelled)(krn_host* host, uint64_t token);
  /* Last words for the crash journal: at most 128 bytes, no allocation, callable from anywhere. */
  void(KRN_CALL* breadcrumb)(krn_host* host, krn_str text);
} krn_host_core;

/* "krn.host.consts": weights of the graph under compilation, by the id that the graph bytes give an input. Read only. They
 * are passed to every run as inputs too, at the same address as long as the model lives: an executable either reads them
 * there or keeps a packed copy that it made while compiling. Absent values (a child that holds no weights) give
 * KRN_STATUS_unsupported. */
typedef struct krn_host_consts {
  krn_table table;
  krn_code(KRN_CALL* open)(krn_host* host, uint64_t set, uint32_t id, krn_tensor* out, krn_err* err);
  void(KRN_CALL* close)(krn_host* host, uint64_t set, uint32_t id);
} krn_host_consts;

/* "krn.host.memory": device memory from LibTorch's allocator, counted against the model's budget. For packed weights
 * and tuning; not to be called inside run. */
typedef struct krn_host_memory {
  krn_table table;
  krn_code(KRN_CALL* alloc)(krn_host* host, const krn_stream* stream, int32_t device_type, int32_t device_id,
                            uint64_t size, uint64_t align, void** out, krn_err* err);
  void(KRN_CALL* free)(krn_host* host, const krn_stream* stream, void* p);
} krn_host_memory;

/* "krn.host.threads": the only CPU parallelism of a plugin. fn runs on [begin, end) slices of [0, n), at least `grain`
 * long, on the calling thread and the host's pool, and has returned everywhere before parallel_for returns. */
typedef struct krn_host_threads {
  krn_table table;
  void(KRN_CALL* parallel_for)(krn_host* host, int64_t n, int64_t grain,
                               void(KRN_CALL* fn)(void* ctx, int64_t begin, int64_t end, int32_t thread), void* ctx);
  int32_t(KRN_CALL* num_threads)(krn_host* host);
} krn_host_threads;

/* ----------------------------------------------------------------------------------------------- "krn.plugin" */

typedef struct krn_config {
  krn_hdr hdr;
  const krn_key_value* options; /* from the user, keys without the plugin's name */
  uint64_t num_options;
  krn_str scratch_dir; /* private, 0700, may be empty: then no files at all */
} krn_config;

typedef struct krn_plugin_table {
  krn_table table;
  /* KRN_STATUS_unsupported with a reason is a normal answer: driver absent, licence absent. */
  krn_code(KRN_CALL* initialize)(const krn_config* config, krn_plugin** out, krn_err* err);
  /* Joins every thread, releases every device. Only describe is legal afterwards. The library stays mapped. */
  krn_code(KRN_CALL* shutdown)(krn_plugin* plugin, krn_err* err);
  /* key=value lines for bug reports: compiler, library versions, op-set range, licence. */
  krn_code(KRN_CALL* describe)(const krn_sink* sink, krn_err* err);
} krn_plugin_table;

/* ----------------------------------------------------------------------------------------------- "krn.device" */

/* One piece of hardware as the host found it. */
typedef struct krn_hw {
  krn_hdr hdr;
  krn_str uid;          /* "pci:0000:3b:00.0", "cpu:0": the name under which two plugins mean the same thing */
  uint32_t vendor_id;   /* PCI, 0 for CPUs */
  uint32_t device_id;
  int32_t torch_type;   /* DLPack device type under which LibTorch drives it, -1 if it does not */
  int32_t torch_index;
  krn_str driver;       /* name and version */
  uint64_t cpu_features[4]; /* usable ones: CPU and operating system */
} krn_hw;

typedef struct krn_peak {
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t reserved0;
  uint32_t reserved1;
  double flops_per_s;
} krn_peak;

/* Facts for the host's prior. Only measurement decides. Strings live as long as the device. */
typedef struct krn_device_desc {
  krn_hdr hdr;
  krn_str name;
  krn_str arch; /* "sm_90", "gfx90a", "x86-64-v4": part of every cache key */
  krn_str fingerprint; /* everything else an artifact depends on: driver, features, stepping */
  uint32_t prior_score; /* 0 to 1000 */
  uint32_t alignment;
  uint64_t memory_bytes;
  double bytes_per_s;
  double launch_ns;
  const krn_peak* peaks;
  uint64_t num_peaks;
} krn_device_desc;

/* What the driver tells of a device at this moment; what it does not tell stays as the host set it, 0. */
typedef struct krn_condition {
  krn_hdr hdr;
  uint32_t clock_mhz;      /* of the units that compute */
  uint32_t flags;          /* KRN_CONDITION_* */
  uint32_t others_percent; /* of the time of the last second in which other processes had work on it */
  uint32_t reserved;
} krn_condition;
#define KRN_CONDITION_SLOWED 1u /* heat or the power supply holds its clocks down; a power limit that it works at does not count */

typedef void(KRN_CALL* krn_emit_device)(void* ctx, uint32_t hw_index, krn_dev* dev_or_null, krn_str why_not);

typedef struct krn_device_table {
  krn_table table;
  /* Calls emit exactly once per hardware item: with a device, or with NULL and the reason. Creates no context. */
  krn_code(KRN_CALL* enumerate)(krn_plugin* plugin, const krn_array* hw, krn_emit_device emit, void* ctx, krn_err* err);
  krn_code(KRN_CALL* describe)(krn_dev* dev, krn_device_desc* out, krn_err* err);
  /* Joins LibTorch's context on that device (the primary one); never makes a second. */
  krn_code(KRN_CALL* open)(krn_dev* dev, krn_err* err);
  void(KRN_CALL* close)(krn_dev* dev);
  /* ok or device_lost. Never waits for the device. Any thread, any time. */
  krn_code(KRN_CALL* health)(krn_dev* dev);
  /* Takes microseconds and waits for nothing on the device. Any thread. A plugin may leave it out. */
  krn_code(KRN_CALL* condition)(krn_dev* dev, krn_condition* out);
} krn_device_table;

/* ---------------------------------------------------------------------------------------------- "krn.compile" */

/* One region. hash is SHA-256 of the hashed sections: structure without weights and without debug names. */
typedef struct krn_region {
  krn_hdr hdr;
  krn_span graph;
  uint8_t hash[32];
  uint64_t consts; /* handle for krn.host.consts */
} krn_region;

/* The same for every region of a model; part of every cache key. */
typedef struct krn_policy {
  krn_hdr hdr;
  uint32_t numerics; /* KRN_NUMERICS_* */
  uint32_t flags;    /* KRN_POLICY_*   */
  uint64_t memory_limit_bytes;
} krn_policy;
#define KRN_NUMERICS_DEFAULT 0u
#define KRN_NUMERICS_STRICT 1u
#define KRN_NUMERICS_FAST 2u
#define KRN_POLICY_DETERMINISTIC 1u
#define KRN_POLICY_REPLAY 2u /* the plan will be recorded: prefer replay-safe code */
/* The framework rounds f32 operands of convolutions, of matrix products, of recurrent layers, to TF32 on this device: plans may, too,
 * where the node has no attribute ieee. Without them they may under numerics FAST only. */
#define KRN_POLICY_TF32_CONVOLUTIONS 4u
#define KRN_POLICY_TF32_PRODUCTS 8u
#define KRN_POLICY_TF32_RECURRENT 16u

/* Nodes the plugin wants as one executable, and what it thinks they cost. */
typedef struct krn_claim {
  krn_hdr hdr;
  const uint32_t* nodes;
  uint32_t num_nodes;
  uint32_t num_kernels;
  double cost_ns; /* at the symbols' hints; 0 = no idea */
  double confidence;
} krn_claim;

/* Why a node was not claimed; aggregated into the report. */
typedef struct krn_refusal {
  krn_hdr hdr;
  uint32_t node;
  uint32_t reserved;
  krn_str why;
} krn_refusal;

typedef struct krn_claim_sink {
  void(KRN_CALL* claim)(void* ctx, const krn_claim* claim);
  void(KRN_CALL* refuse)(void* ctx, const krn_refusal* refusal);
  void* ctx;
} krn_claim_sink;

typedef struct krn_options {
  krn_hdr hdr;
  uint64_t deadline_ns; /* host clock; 0 = none */
  uint64_t cancel_token;
  uint64_t tune_budget_ns; /* device time the plugin may spend trying; 0 = none */
  uint32_t level;          /* 0 quick, 1 default, 2 best */
  uint32_t candidate;      /* 0 = the plugin's best guess, k = its next one; unsupported past the last */
  const int64_t* symbol_hints; /* one per symbol of the graph; ranges are in the graph */
  const krn_sink* dump;        /* NULL, or where to write generated code, framed by the kit */
} krn_options;

typedef struct krn_compile_table {
  krn_table table;
  /* A pure function of its arguments: same graph, same answer. */
  krn_code(KRN_CALL* claim)(krn_dev* dev, const krn_region* region, const krn_policy* policy, const krn_claim_sink* sink,
                            krn_err* err);
  krn_code(KRN_CALL* compile)(krn_dev* dev, const krn_region* region, const krn_policy* policy,
                              const krn_options* options, krn_exec** out, krn_err* err);
  void(KRN_CALL* retain)(krn_exec* exec);
  void(KRN_CALL* release)(krn_exec* exec); /* never fails, never waits for the device */
  /* What compile would make of a region whose nodes are those of `like`'s at other sizes, made of what is there: `like`'s way of
   * fusing, code that is known, choices that were made. Nothing is generated, timed or planned by a library, so that a call may wait
   * for it. unsupported: that does not suffice, and the host compiles. `like` stays what it is. Any thread. A plugin may leave it out. */
  krn_code(KRN_CALL* resize)(krn_exec* like, const krn_region* region, krn_exec** out, krn_err* err);
} krn_compile_table;

/* ------------------------------------------------------------------------------------------------- "krn.exec" */

/* Facts that do not change over the life of an executable. */
typedef struct krn_exec_info {
  krn_hdr hdr;
  uint32_t flags; /* KRN_EXEC_* */
  uint32_t num_kernels;
  uint64_t code_bytes;
  uint64_t constant_bytes; /* device memory held by packed weights */
  uint32_t num_anchors;    /* steps done by a vendor's library */
  uint32_t num_codegen;    /* kernels generated by this compile, not taken from a cache: 0 for a known structure */
} krn_exec_info;
#define KRN_EXEC_CONCURRENT 1u       /* run may be entered by several threads at once          */
#define KRN_EXEC_REPLAY_SAFE 2u      /* run may be recorded                                     */
#define KRN_EXEC_WEIGHTS_BAKED 4u  /* the artifact depends on the weights' values             */
#define KRN_EXEC_INPUTS_INTACT 8u    /* on failure the inputs are as before: eager can take over */

/* What one run needs for concrete symbol values. Shapes follow from the graph; the host has them. */
typedef struct krn_needs {
  krn_hdr hdr;
  uint64_t workspace_bytes;
  uint64_t workspace_align;
} krn_needs;

typedef struct krn_run {
  krn_hdr hdr;
  krn_stream stream;
  const krn_tensor* inputs;
  const krn_tensor* outputs; /* allocated by the host at the shapes and strides the graph states */
  const int64_t* symbols;
  void* workspace;
  uint64_t workspace_bytes;
  uint64_t run_id; /* correlation id in profiles and in the crash journal */
  uint32_t num_inputs;
  uint32_t num_outputs;
  uint32_t num_symbols;
  uint32_t flags;
} krn_run;

typedef struct krn_exec_table {
  krn_table table;
  krn_code(KRN_CALL* info)(krn_exec* exec, krn_exec_info* out, krn_err* err);
  /* Host side only: < 10 us, no allocation. */
  krn_code(KRN_CALL* needs)(krn_exec* exec, const int64_t* symbols, uint32_t num_symbols, krn_needs* out, krn_err* err);
  /* Enqueues on run->stream and returns: no sync, no allocation, no other stream. KRN_STATUS_invalid_input, as for an index
   * that leads out of its tensor, promises what KRN_EXEC_INPUTS_INTACT does: where an output that is written into an input was
   * begun, another status is returned. */
  krn_code(KRN_CALL* run)(krn_exec* exec, const krn_run* run, krn_err* err);
} krn_exec_table;

/* --------------------------------------------------------------------------- "krn.artifact" (optional, advised) */

#define KRN_VERDICT_REJECT 0u
#define KRN_VERDICT_RECOMPILE 1u /* runs, but a fresh compile would be better */
#define KRN_VERDICT_OPTIMAL 2u

typedef struct krn_artifact_table {
  krn_table table;
  /* token: at most 4 KiB that check() can judge alone. body: the code; no weights unless WEIGHTS_BAKED. */
  krn_code(KRN_CALL* save)(krn_exec* exec, const krn_sink* token, const krn_sink* body, krn_err* err);
  krn_code(KRN_CALL* check)(krn_dev* dev, krn_span token, uint32_t* out_verdict, krn_err* err);
  /* Bounds-checked: corrupt bytes give KRN_STATUS_corrupt. region gives the graph and the weights to pack. */
  krn_code(KRN_CALL* load)(krn_dev* dev, const krn_region* region, krn_span token, krn_span body, krn_exec** out,
                           krn_err* err);
} krn_artifact_table;

/* ------------------------------------------------------------------------------------- "krn.replay" (optional) */

/* Records whatever is launched on the stream between begin and end, also by others. Absent: no replay on the device. */
typedef struct krn_replay_table {
  krn_table table;
  krn_code(KRN_CALL* begin)(krn_dev* dev, const krn_stream* stream, krn_err* err);
  krn_code(KRN_CALL* end)(krn_dev* dev, const krn_stream* stream, krn_replay** out, krn_err* err);
  krn_code(KRN_CALL* launch)(krn_replay* replay, const krn_stream* stream, krn_err* err);
  void(KRN_CALL* release)(krn_replay* replay);
} krn_replay_table;

#ifdef __cplusplus
}
#endif
#endif /* KEIRIN_ABI_PLUGIN_H */
