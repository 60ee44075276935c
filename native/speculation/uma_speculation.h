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
// What the two latest places of a match say of the token that follows it. Behind a token of which they differ, the
// latest place is the only one that is left.
enum uma_agreement { UMA_ONE_PLACE = 0, UMA_PLACES_AGREE = 1, UMA_PLACES_DIFFER = 2 };
// Tokens copied that follow a match of n_match tokens, which ends before `from`, up to a separator. agreement: n_most.
int32_t uma_suffix_read(
    const uma_suffix * s, int32_t from, int32_t n_match, llama_token * out, uint8_t * agreement, int32_t n_most);
// go on by a token; position after the match
int32_t uma_suffix_follow(const uma_suffix * s, uma_suffix_cursor * at, llama_token token);
int64_t uma_suffix_bytes(const uma_suffix * s);
void    uma_suffix_free(uma_suffix * s);

/* cdef end */

#include "runtime/guard.h"
