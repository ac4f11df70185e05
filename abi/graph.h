/* SPDX-License-Identifier: Apache-2.0
 *
 * abi/graph.h: the bytes in which a region crosses the plugin boundary, and their header-only reader, in C11.
 *
 * Flat, little-endian, 8-aligned: a header, a directory, then sections in ascending id, back to back and zero-padded.
 * Records have a fixed size and refer to each other by index. krn_graph_open validates everything once; the accessors
 * afterwards are plain loads. The bytes are canonical: nodes in post-order from the outputs, operands left to right, no dead
 * nodes, everything else numbered by first use, so equal computations are equal bytes. SHA-256 over all sections but DEBUG is
 * the identity of a region. Weight values and names are outside it.
 *
 * In 0.x every dim is a constant; SYMBOLS and EXPRS exist with count 0 and negative dims (~index of an expression) are refused.
 */
#ifndef KEIRIN_ABI_GRAPH_H
#define KEIRIN_ABI_GRAPH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KRN_GRAPH_MAGIC "KRNGRAPH"
#define KRN_GRAPH_MAJOR 0
#define KRN_GRAPH_MINOR 1
#define KRN_OPSET_VERSION 1u
#define KRN_NONE 0xffffffffu
#define KRN_MAX_RANK 16u

typedef struct krn_graph_header {
  char magic[8];
  uint16_t major;
  uint16_t minor;
  uint32_t num_sections;
  uint64_t total_bytes;
} krn_graph_header;

typedef struct krn_graph_section {
  uint32_t id;
  uint32_t flags; /* KRN_SECTION_* */
  uint32_t stride; /* bytes from record to record, at least the size of the record known here */
  uint32_t reserved;
  uint64_t offset; /* from the start of the bytes, 8-aligned */
  uint64_t count;
} krn_graph_section;
#define KRN_SECTION_MUST_UNDERSTAND 1u
#define KRN_SECTION_NOT_HASHED 2u

enum {
  KRN_SECTION_OPSET = 1,     /* one u64: the version of ops.def       */
  KRN_SECTION_SYMBOLS = 2,   /* count 0 in 0.x                        */
  KRN_SECTION_EXPRS = 3,     /* count 0 in 0.x                        */
  KRN_SECTION_TYPES = 4,     /* krn_gtype, all different              */
  KRN_SECTION_DIMS = 5,      /* i64: sizes then strides of the types  */
  KRN_SECTION_VALUES = 6,    /* krn_gvalue                            */
  KRN_SECTION_NODES = 7,     /* krn_gnode                             */
  KRN_SECTION_OPERANDS = 8,  /* u32 value or KRN_NONE                 */
  KRN_SECTION_ATTRS = 9,     /* krn_gattr                             */
  KRN_SECTION_WORDS = 10,    /* i64: lists of attributes              */
  KRN_SECTION_CHARS = 11,    /* bytes of string attributes            */
  KRN_SECTION_FUNCTIONS = 12, /* krn_gfunction; 0 is the region       */
  KRN_SECTION_INPUTS = 13,   /* krn_ginput                            */
  KRN_SECTION_OUTPUTS = 14,  /* krn_goutput                           */
  KRN_SECTION_CONSTRAINTS = 15, /* count 0 in 0.x                     */
  KRN_SECTION_NAMES = 20,    /* krn_gname, not hashed                 */
  KRN_SECTION_NAME_CHARS = 21 /* bytes, not hashed                    */
};

typedef struct krn_gtype {
  uint8_t dtype;    /* dtypes.def */
  uint8_t rank;
  uint8_t encoding; /* KRN_ENCODING_* */
  uint8_t memory;   /* 0 host or device as the run says */
  uint32_t first_dim; /* rank sizes, then rank strides in elements, in DIMS */
} krn_gtype;
enum { KRN_ENCODING_CONTIGUOUS = 0, KRN_ENCODING_CHANNELS_LAST = 1, KRN_ENCODING_STRIDED = 2 };

typedef struct krn_gvalue {
  uint32_t type;
  uint32_t producer; /* node, or KRN_NONE for an input of its function */
  uint32_t result;   /* which result of the producer, or which input */
  uint32_t flags;    /* KRN_VALUE_* */
} krn_gvalue;
#define KRN_VALUE_OBSERVED 1u /* the rounding to its dtype is visible: keep it */

typedef struct krn_gnode {
  uint32_t op; /* ops.def */
  uint32_t first_operand;
  uint32_t num_operands;
  uint32_t first_result; /* results are consecutive values */
  uint32_t num_results;
  uint32_t first_attr;
  uint32_t num_attrs;
  uint32_t body; /* function with the decomposition, or KRN_NONE */
} krn_gnode;

typedef struct krn_gattr {
  uint32_t key;   /* attrs.def */
  uint32_t count; /* lists: number of words; strings: number of bytes; else 0 */
  uint64_t bits;  /* i, b: the integer; d: the bits of the double; lists and strings: first index in WORDS or CHARS */
} krn_gattr;

/* Inputs and outputs of a function are ranges of INPUTS and OUTPUTS; its nodes are a range of NODES. */
typedef struct krn_gfunction {
  uint32_t first_input;
  uint32_t num_inputs;
  uint32_t first_node;
  uint32_t num_nodes;
  uint32_t first_output;
  uint32_t num_outputs;
} krn_gfunction;

typedef struct krn_ginput {
  uint32_t value;
  uint32_t flags;  /* KRN_INPUT_* */
  uint32_t weight; /* id for krn.host.consts if KRN_INPUT_WEIGHT, numbered by first use, else KRN_NONE */
  uint32_t reserved;
} krn_ginput;
#define KRN_INPUT_WEIGHT 1u  /* never changes, passed to every run at the same address */
#define KRN_INPUT_DONATED 2u /* nobody reads it after the run */

typedef struct krn_goutput {
  uint32_t value;
  uint32_t alias_input; /* the output must be written into this input of the function, or KRN_NONE */
} krn_goutput;

typedef struct krn_gname {
  uint32_t value;
  uint32_t first_char;
  uint32_t num_chars;
  uint32_t reserved;
} krn_gname;

typedef struct krn_garray {
  const uint8_t* data;
  uint64_t count;
  uint64_t stride;
} krn_garray;

/* An opened graph borrows the bytes: they must stay alive and unchanged, at an address aligned to 8. */
typedef struct krn_graph {
  const uint8_t* bytes;
  uint64_t size;
  krn_garray sections[32]; /* by section id; absent: count 0 */
} krn_graph;

static inline const void* krn_graph_at(const krn_graph* g, uint32_t section, uint64_t i) {
  return g->sections[section].data + i * g->sections[section].stride;
}
static inline uint64_t krn_graph_count(const krn_graph* g, uint32_t section) { return g->sections[section].count; }
static inline const krn_gtype* krn_graph_type(const krn_graph* g, uint32_t i) {
  return (const krn_gtype*)krn_graph_at(g, KRN_SECTION_TYPES, i);
}
static inline const krn_gvalue* krn_graph_value(const krn_graph* g, uint32_t i) {
  return (const krn_gvalue*)krn_graph_at(g, KRN_SECTION_VALUES, i);
}
static inline const krn_gnode* krn_graph_node(const krn_graph* g, uint32_t i) {
  return (const krn_gnode*)krn_graph_at(g, KRN_SECTION_NODES, i);
}
static inline const krn_gattr* krn_graph_attr(const krn_graph* g, uint32_t i) {
  return (const krn_gattr*)krn_graph_at(g, KRN_SECTION_ATTRS, i);
}
static inline const krn_gfunction* krn_graph_function(const krn_graph* g, uint32_t i) {
  return (const krn_gfunction*)krn_graph_at(g, KRN_SECTION_FUNCTIONS, i);
}
static inline const krn_ginput* krn_graph_input(const krn_graph* g, uint32_t i) {
  return (const krn_ginput*)krn_graph_at(g, KRN_SECTION_INPUTS, i);
}
static inline const krn_goutput* krn_graph_output(const krn_graph* g, uint32_t i) {
  return (const krn_goutput*)krn_graph_at(g, KRN_SECTION_OUTPUTS, i);
}
/* Operand `k` of a node: a value, or KRN_NONE for an absent one. */
static inline uint32_t krn_graph_operand(const krn_graph* g, const krn_gnode* n, uint32_t k) {
  return *(const uint32_t*)krn_graph_at(g, KRN_SECTION_OPERANDS, (uint64_t)n->first_operand + k);
}
/* Sizes of a type: `rank` of them; the strides follow. DIMS always has stride 8. */
static inline const int64_t* krn_graph_sizes(const krn_graph* g, const krn_gtype* t) {
  return (const int64_t*)krn_graph_at(g, KRN_SECTION_DIMS, t->first_dim);
}
static inline const int64_t* krn_graph_strides(const krn_graph* g, const krn_gtype* t) {
  return krn_graph_sizes(g, t) + t->rank;
}
/* Type of a value. */
static inline const krn_gtype* krn_graph_value_type(const krn_graph* g, uint32_t value) {
  return krn_graph_type(g, krn_graph_value(g, value)->type);
}
/* The attribute of a node with that key, or NULL. */
static inline const krn_gattr* krn_graph_find_attr(const krn_graph* g, const krn_gnode* n, uint32_t key) {
  for (uint32_t i = 0; i < n->num_attrs; ++i) {
    const krn_gattr* a = krn_graph_attr(g, n->first_attr + i);
    if (a->key == key) return a;
  }
  return NULL;
}
static inline const int64_t* krn_graph_words(const krn_graph* g, const krn_gattr* a) {
  return (const int64_t*)krn_graph_at(g, KRN_SECTION_WORDS, a->bits);
}
static inline const char* krn_graph_chars(const krn_graph* g, const krn_gattr* a) {
  return (const char*)krn_graph_at(g, KRN_SECTION_CHARS, a->bits);
}

/* Validates `bytes` in one pass (bounds, every index, topological order, checked products, caps) and fills *out.
 * Returns 0, or the line of graph_open.inc that refused: the caller maps any other value to `corrupt`. */
static inline int32_t krn_graph_open(const void* bytes, uint64_t size, krn_graph* out);

#include "graph_open.inc"

#ifdef __cplusplus
}
#endif
#endif /* KEIRIN_ABI_GRAPH_H */
