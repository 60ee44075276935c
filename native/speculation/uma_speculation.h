// Looks up drafts in earlier text.
// The part between the cdef marks is read by the bindings generator as it stands.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stdint.h>

#include "runtime/uma_runtime.h"

/* cdef begin */

// -- suffix.c: finds where a text's suffix occurred before, in constant time per token. Tokens below 0 separate texts.
typedef struct uma_suffix uma_suffix;
typedef struct uma_suffix_cursor { // the longest suffix of another text that occurs in this one; all 0: none yet
    int32_t state, n_match;
} uma_suffix_cursor;

uma_suffix * uma_suffix_new(void);                                  // NULL: no memory
// false: no memory; nothing matches any more
bool    uma_suffix_extend(uma_suffix * s, const llama_token * tokens, int32_t n);
// Returns the position after the earlier occurrence of the longest suffix that has one. *n_match: its tokens; 0: none
// has.
int32_t uma_suffix_match(const uma_suffix * s, int32_t * n_match);
// Whether the two latest occurrences of a match agree on the next token. After a token on which they differ, only the
// latest occurrence is left.
enum uma_agreement { UMA_ONE_PLACE = 0, UMA_PLACES_AGREE = 1, UMA_PLACES_DIFFER = 2 };
// Copies the tokens that follow a match of n_match tokens, which ends before `from`, up to a separator. Returns their
// number. agreement: (n_most).
int32_t uma_suffix_read(
    const uma_suffix * s, int32_t from, int32_t n_match, llama_token * out, uint8_t * agreement, int32_t n_most);
// moves on by a token; returns the position after the match
int32_t uma_suffix_follow(const uma_suffix * s, uma_suffix_cursor * at, llama_token token);
int64_t uma_suffix_bytes(const uma_suffix * s);
void    uma_suffix_free(uma_suffix * s);

/* cdef end */

#include "runtime/guard.h"
