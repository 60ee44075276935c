// Where drafts are looked up.
// The part between the cdef marks is read by the bindings generator as it stands.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stdint.h>

#include "runtime/uma_runtime.h"

/* cdef begin */

// -- suffix.c: where the end of a text occurred before, in constant time a token. Tokens below 0 separate texts.
typedef struct uma_suffix uma_suffix;
typedef struct uma_suffix_cursor { // the longest end of another text that occurs in this one; all 0: none yet
    int32_t state, n_match;
} uma_suffix_cursor;

uma_suffix * uma_suffix_new(void);                                  // NULL: no memory
// false: no memory; nothing matches any more
bool    uma_suffix_extend(uma_suffix * s, const llama_token * tokens, int32_t n);
// Position after the earlier place of the longest end of the text that has one. *n_match: its tokens, 0: there is none.
int32_t uma_suffix_match(const uma_suffix * s, int32_t * n_match);
// tokens copied, up to a separator
int32_t uma_suffix_read(const uma_suffix * s, int32_t from, llama_token * out, int32_t n_most);
// go on by a token; position after the match
int32_t uma_suffix_follow(const uma_suffix * s, uma_suffix_cursor * at, llama_token token);
int64_t uma_suffix_bytes(const uma_suffix * s);
void    uma_suffix_free(uma_suffix * s);

/* cdef end */

#include "runtime/guard.h"
